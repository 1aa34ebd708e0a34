"""What holds of particular kernels; the laws of all are in laws/test_kernels.py."""

import numpy as np
import pytest
import torch
from helpers import FLOAT, close, inputs
from sklearn.gaussian_process import kernels as sk

from distgp import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    ParameterError,
    Periodic,
    Product,
    RationalQuadratic,
    Scale,
    Sum,
)

X, Z = inputs(9, 3), inputs(5, 3, 1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RBF([0.5, 1.0, 2.0]), sk.RBF([0.5, 1.0, 2.0])),
        (Matern12([0.5, 1.0, 2.0]), sk.Matern([0.5, 1.0, 2.0], nu=0.5)),
        (Matern32(0.8), sk.Matern(0.8, nu=1.5)),
        (Matern52(0.8), sk.Matern(0.8, nu=2.5)),
        (RationalQuadratic(0.8, alpha=1.4), sk.RationalQuadratic(0.8, alpha=1.4)),
        (
            1.7 * RBF(0.6) + Constant(0.2),
            sk.ConstantKernel(1.7) * sk.RBF(0.6) + sk.ConstantKernel(0.2),
        ),
        (Linear(1.0), sk.DotProduct(sigma_0=0.0)),
    ],
    ids=lambda k: type(k).__name__,
)
def test_against_scikit_learn(ours, theirs):
    expected = torch.as_tensor(theirs(X.numpy(), Z.numpy()), dtype=FLOAT)
    close(ours(X, Z), expected, rtol=1e-11, atol=1e-12)


def test_periodic_against_scikit_learn_in_one_dimension():
    x, z = X[:, :1], Z[:, :1]
    theirs = sk.ExpSineSquared(length_scale=0.8, periodicity=1.3)
    close(Periodic(0.8, 1.3)(x, z), torch.as_tensor(theirs(x.numpy(), z.numpy())), rtol=1e-10)
    close(Periodic(0.8, 1.3)(x, z + 1.3), Periodic(0.8, 1.3)(x, z), rtol=1e-10)


def test_active_dims_select_columns():
    close(RBF([0.5, 2.0], active_dims=[2, 0])(X, Z), RBF([0.5, 2.0])(X[:, [2, 0]], Z[:, [2, 0]]))
    additive = RBF(0.5, active_dims=(0,)) + RBF(0.7, active_dims=(1,))
    close(additive(X, Z), RBF(0.5)(X[:, :1], Z[:, :1]) + RBF(0.7)(X[:, 1:2], Z[:, 1:2]))


def test_algebra_flattens_and_names_parameters():
    kernel = 2.0 * RBF(0.5) + Linear() + Constant()
    assert isinstance(kernel, Sum) and len(kernel.kernels) == 3
    assert list(kernel.parameters()) == [
        "kernels.0.variance",
        "kernels.0.kernel.lengthscale",
        "kernels.1.variance",
        "kernels.2.variance",
    ]
    assert isinstance(RBF() * Linear() * Constant(), Product)
    assert isinstance(RBF() * 3.0, Scale)
    changed = kernel.with_parameters({"kernels.1.variance": torch.tensor([9.0], dtype=FLOAT)})
    assert changed.parameters()["kernels.1.variance"].item() == 9.0
    assert kernel.parameters()["kernels.1.variance"].item() == 1.0


def test_large_offsets_do_not_spoil_distances():
    kernel = RBF(0.5)
    close(kernel(X + 1e6, Z + 1e6), kernel(X, Z), rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), [1.0, -2.0]])
def test_parameters_out_of_range_are_refused(value):
    with pytest.raises(ParameterError, match="lengthscale must be positive and finite"):
        RBF(value)


def test_columns_that_do_not_fit_are_explained():
    with pytest.raises(ParameterError, match="2 values, one a column, but looks at 3 columns"):
        RBF([1.0, 2.0])(X)
    with pytest.raises(ParameterError, match="reach past the last of the 3"):
        RBF(1.0, active_dims=[3])(X)


def test_widths_and_dtypes_must_agree():
    with pytest.raises(ParameterError, match=r"3 columns of torch\.float64 and 1 of"):
        RBF(0.5)(X, Z[:, :1])
    with pytest.raises(ParameterError, match="same columns and dtype"):
        RBF(0.5)(X, Z.to(torch.float32))


def test_an_outlier_among_the_training_rows_does_not_spoil_the_others():
    far = torch.cat([X, torch.full((1, 3), 1e9, dtype=FLOAT)])
    close(Matern12(0.5)(far)[:-1, :-1], Matern12(0.5)(X), rtol=1e-12, atol=1e-13)


def test_float32_distances_are_as_good_as_float32_gets():
    x = torch.linspace(0, 1000, 2000, dtype=torch.float32)[:, None]
    exact = torch.exp(-(x.to(FLOAT) - x.to(FLOAT).mT).abs())
    close(Matern12(1.0).to(dtype=torch.float32)(x).to(FLOAT), exact, rtol=0, atol=1e-4)


def test_mistakes_in_the_algebra_are_explained():
    with pytest.raises(ParameterError, match=r"no parameter .'lenghtscale'."):
        RBF().with_parameters({"lenghtscale": torch.ones(1, dtype=FLOAT)})
    with pytest.raises(ParameterError, match="at least one column"):
        RBF(active_dims=[])
    with pytest.raises(TypeError, match="at least one kernel"):
        Sum(())
    assert isinstance(np.float64(2.0) * RBF(), Scale)


def test_repr_shows_the_parameters():
    assert repr(1.5 * RBF([0.5, 2.0])) == "Scale(kernel=RBF(lengthscale=[0.5, 2.0]), variance=1.5)"


def test_an_outlier_among_the_test_points_does_not_spoil_the_others():
    far = torch.cat([Z, torch.full((1, 3), 1e9, dtype=FLOAT)])
    close(Matern12(0.5)(far, X)[:-1], Matern12(0.5)(Z, X), rtol=1e-12)
