"""Lengthscales that several columns share."""

import dataclasses

import pytest
import torch
from helpers import FLOAT, close, concrete, example, finite_differences, inputs, value_and_gradient

from distgp import RBF, Linear, Matern52, RationalQuadratic
from distgp.data import Shard
from distgp.experts import ExactExpert, Parameters
from distgp.files import model_file as persistence
from distgp.files import tree
from distgp.kernels import ParameterError, Stationary, coordinates
from distgp.sparsegrid import factors

SHARED = (0, 1, 1, 2, 1)
X, Z = inputs(9, 5), inputs(6, 5, 1)
ALL = pytest.mark.parametrize("cls", concrete(Stationary), ids=lambda cls: cls.__name__)


def pair(cls, batch=()):
    """A kernel with shared lengthscales, and the one with a lengthscale for each column."""
    lengths = torch.tensor([0.6, 1.1, 1.9], dtype=FLOAT)
    if batch:
        lengths = lengths * torch.linspace(0.5, 2.0, *batch, dtype=FLOAT)[:, None]
    return cls(lengths, shared=SHARED), cls(lengths[..., list(SHARED)])


@ALL
@pytest.mark.parametrize("batch", [(), (3,)])
def test_equals_the_kernel_with_a_lengthscale_for_each_column(cls, batch):
    shared, expanded = pair(cls, batch)
    close(shared(X, Z), expanded(X, Z), rtol=0, atol=0)
    close(shared(X), expanded(X), rtol=0, atol=0)
    close(shared.diag(X), expanded.diag(X), rtol=0, atol=0)
    assert shared.batches()["lengthscale"] == torch.Size(batch)
    if not batch:
        close(coordinates(shared, X), coordinates(expanded, X), rtol=0, atol=0)


@ALL
def test_of_some_columns(cls):
    kernel = cls([0.5, 2.0], active_dims=[4, 0, 2], shared=[0, 1, 0])
    close(kernel(X, Z), cls([0.5, 2.0, 0.5])(X[:, [4, 0, 2]], Z[:, [4, 0, 2]]))


@ALL
def test_gradients_are_those_of_finite_differences(cls):
    data = Shard.of(inputs(12, 5, 3), inputs(12, 1, 4)[:, 0])
    theta = Parameters.of(1.3 * pair(cls)[0], 0.1)

    def objective(parameters):
        return ExactExpert().objective(parameters, data)

    _, gradient = value_and_gradient(objective, theta)
    expected = finite_differences(objective, theta)
    assert gradient["kernel.kernel.lengthscale"].shape == (3,)
    for name, values in expected.items():
        close(gradient[name], values, rtol=1e-5, atol=1e-6)


@ALL
def test_the_gradient_is_the_sum_of_those_of_the_columns(cls):
    shared, expanded = (k.lengthscale.clone().requires_grad_() for k in pair(cls))
    cls(shared, shared=SHARED)(X, Z).sum().backward()
    cls(expanded)(X, Z).sum().backward()
    summed = torch.zeros(3, dtype=FLOAT).index_add(0, torch.tensor(SHARED), expanded.grad)
    close(shared.grad, summed)


def test_it_goes_along_with_other_parameters_dtypes_and_arguments():
    kernel = Matern52([0.5, 2.0], shared=(0, 1, 1))
    again = (3.0 * kernel).with_parameters({"kernel.lengthscale": torch.tensor([1.0, 4.0])})
    assert again.kernel.shared == (0, 1, 1) and kernel.to(dtype=torch.float32).shared == (0, 1, 1)
    old = RationalQuadratic(0.8, [0], 1.4)  # arguments by place mean what they did
    assert old.alpha == 1.4 and old.active_dims == (0,) and old.shared is None


def test_repr_shows_it_only_where_it_is_set():
    assert (
        repr(RBF([1.0, 2.0], shared=[0, 1, 1])) == "RBF(lengthscale=[1.0, 2.0], shared=(0, 1, 1))"
    )
    assert "shared" not in repr(RBF([1.0, 2.0]))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (
            RBF([1.0, 2.0], shared=(0, 1)),
            "each of 2 columns has, but the kernel looks at 5 columns",
        ),
        (
            RBF([1.0, 2.0], shared=(0, 1, 2, 1, 0)),
            r"2 lengthscales, but shared refers to \[0, 1, 2\]",
        ),
        (RBF([1.0, 2.0], shared=(0,) * 5), r"2 lengthscales, but shared refers to \[0\]"),
        (RBF([1.0, 2.0], active_dims=[0], shared=(0, 1)), "but the kernel looks at 1 columns"),
    ],
)
def test_what_does_not_fit_is_explained(kernel, message):
    with pytest.raises(ParameterError, match=message):
        kernel(X)


@pytest.mark.parametrize("value", [(), (-1, 0)])
def test_what_can_never_fit_is_refused_at_once(value):
    with pytest.raises(ParameterError, match="shared must say for each column"):
        RBF(1.0, shared=value)


def test_factors_of_products_over_columns():
    kernel, expanded = pair(RBF)
    parts, expected = factors(2.0 * kernel, 5), factors(2.0 * expanded, 5)
    for j, (one, other) in enumerate(zip(parts, expected, strict=True)):
        close(one(X[:, j : j + 1]), other(X[:, j : j + 1]), rtol=0, atol=0)
    assert factors(pair(Matern52)[0], 5) is None
    assert factors(Matern52(1.0, active_dims=[1], shared=(0,)), 2) is not None
    with pytest.raises(ParameterError, match="5 columns"):
        factors(RBF([1.0, 2.0], shared=(0, 1)), 5)


def test_files_keep_it_and_those_from_before_load(tmp_path, monkeypatch):
    path = tmp_path / "kernel.safetensors"
    persistence.save(path, 2.0 * pair(RBF)[0] + Linear(), {})
    close(persistence.load(path)(X), (2.0 * pair(RBF)[0] + Linear())(X), rtol=0, atol=0)
    before = tree.Encoder._object

    def without(self, value, path):
        node = before(self, value, path)
        node["fields"].pop("shared", None)
        return node

    monkeypatch.setattr(tree.Encoder, "_object", without)
    persistence.save(path, example(RationalQuadratic, 5), {})
    found = persistence.load(path)
    assert found.shared is None and "shared" in {s.name for s in dataclasses.fields(found)}
    close(found(X), example(RationalQuadratic, 5)(X), rtol=0, atol=0)
