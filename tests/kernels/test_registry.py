"""Kernels of users' own, by name in texts and in files."""

import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers import make_data

import distgp
from distgp import RBF, DistributedGPRegressor, Kernel, Linear, SparseGridGP
from distgp.files.model_file import ModelFileError
from distgp.kernels import KERNELS, ParameterError, Stationary, in_data_units, parse, register
from distgp.kernels.base import field, scalar, vector
from distgp.kernels.layout import InputLayout
from distgp.kernels.names import OTHERS

MODULE = """
from distgp.kernels import Stationary, register

@register
class Cauchy(Stationary):
    name = "cauchy"

    def shape(self, square):
        return 1.0 / (1.0 + square)
"""
FRESH = """
import sys
import numpy as np
import distgp
import my_kernels

np.save("again.npy", distgp.load("model.safetensors").predict(np.load("X.npy")))
"""


class Wendland(Stationary):
    """A stationary kernel without a name of its own."""

    def shape(self, square):
        return (1.0 - square).clamp_min(0.0) ** 4


class Quadratic(Kernel):
    """A kernel that is not stationary."""

    offset: torch.Tensor = field(default=1.0, converter=scalar)

    def gram(self, X1, X2):
        return (self.offset[..., None, None] + X1 @ X2.mT).square()

    def diag(self, X):
        return (self.offset[..., None] + X.square().sum(-1)).square()


@pytest.fixture(autouse=True)
def unchanged():
    """Every test finds distgp's own kernels alone."""
    before = dict(KERNELS), dict(OTHERS)
    yield
    for known, kept in zip((KERNELS, OTHERS), before, strict=True):
        known.clear()
        known.update(kept)


def test_a_kernel_from_outside_is_fitted_by_name_and_goes_through_a_file(tmp_path, monkeypatch):
    (tmp_path / "my_kernels.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_kernels", raising=False)
    import my_kernels  # pyright: ignore[reportMissingImports]

    X, y = make_data(120)
    options = {"expert": "exact", "n_experts": 2, "n_iter": 5}
    gp = DistributedGPRegressor(kernel="cauchy(1.5) + linear", **options).fit(X, y)
    assert type(gp.kernel_.kernels[0].kernel) is my_kernels.Cauchy
    path = tmp_path / "model.safetensors"
    gp.save(path)
    np.save(tmp_path / "X.npy", X[:20])
    subprocess.run([sys.executable, "-c", FRESH], cwd=tmp_path, check=True, timeout=120)
    np.testing.assert_array_equal(np.load(tmp_path / "again.npy"), gp.predict(X[:20]))

    del KERNELS["cauchy"]
    with pytest.raises(
        ModelFileError,
        match=r"no kernel 'cauchy'.*register its class before loading, by distgp\.kernels\.register$",
    ):
        distgp.load(path)


def test_texts_know_a_stationary_kernel_with_its_columns_and_units():
    register(Wendland)
    built = parse("2*wendland(6, columns=x1) + rbf").build(InputLayout.of_array(2, [1.0, 3.0]))
    assert repr(built.kernel.kernels[0].kernel) == "Wendland(lengthscale=[2.0], active_dims=(1,))"
    with pytest.raises(ParameterError, match=r"did you mean 'wendland'\? there are 'rbf'"):
        parse("wendlant")
    with pytest.raises(
        ParameterError,
        match="across= or angle= or columns= or isotropic or rotated or sphere for 'wendland'",
    ):
        parse("wendland(alpha=2)")
    SparseGridGP(level=2, kernel="wendland", n_iter=1).fit(*make_data(60))


def test_any_kernel_can_be_saved_once_it_is_registered(tmp_path):
    X, y = make_data(60)
    gp = DistributedGPRegressor(kernel=0.1 * Quadratic(), expert="exact", n_iter=2).fit(X, y)
    with pytest.raises(TypeError, match=r"Quadratic \(at .*distgp\.kernels\.register"):
        gp.save(tmp_path / "model.safetensors")
    register(Quadratic, name="degree-2")
    gp.save(tmp_path / "model.safetensors")
    again = distgp.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.predict(X), gp.predict(X))
    with pytest.raises(ParameterError, match="there is no kernel 'degree-2'"):
        parse("degree-2")


def test_a_kernel_says_which_parameters_have_units():
    class Affine(Linear):
        units: ClassVar = Linear.units | {"slope": 1}
        slope: torch.Tensor = field(default=6.0, converter=vector)

    found = in_data_units(3.0 * Affine(1.0), InputLayout.of_array(2, scale=[2.0, 3.0])).kernel
    assert found.slope.tolist() == [3.0, 2.0] and found.variance.tolist() == [4.0, 9.0]


def test_registering_again_replaces_and_other_names_are_refused():
    def cell():
        class Bump(Stationary):
            def shape(self, square):
                return 1.0 / (1.0 + square)

        return register(Bump)

    first, second = cell(), cell()
    assert first is not second and KERNELS["bump"] is second
    for name in ("rbf", "linear", "scale"):
        with pytest.raises(ParameterError, match=f"the name '{name}' is taken by .*give Wendland"):
            register(Wendland, name=name)
    for name in ("auto", "2nd", "a b", "a(b)"):
        with pytest.raises(ParameterError, match="expected a name such as 'my-kernel'"):
            register(Wendland, name=name)
    for other in (RBF(1.0), Stationary, dict):
        with pytest.raises(TypeError, match=r"a class derived from distgp\.Kernel"):
            register(other)
