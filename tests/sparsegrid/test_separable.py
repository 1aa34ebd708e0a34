"""Kernels that are products over the columns, taken apart."""

import pytest
import torch
from helpers import inputs

import distgp
from distgp.sparsegrid import factors, separable

PRODUCTS = {
    "scaled": 2.0 * distgp.RBF([0.5, 1.0, 2.0]),
    "one lengthscale": distgp.RBF(0.7),
    "some columns": distgp.RBF([0.5, 1.0], active_dims=[2, 0]) * distgp.Constant(3.0),
    "periodic": distgp.Periodic([0.5, 1.0, 2.0], [1.0, 2.0, 3.0]) * distgp.RBF(1.0),
    "each column": separable(distgp.Matern52, [0.5, 1.0, 2.0]),
    "same column twice": distgp.Matern12(1.0, active_dims=[-1])
    * distgp.Linear(2.0, active_dims=[2]),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_factors_multiply_to_the_kernel(name):
    kernel, X, Y = PRODUCTS[name], inputs(7, 3), inputs(5, 3, seed=1)
    parts = factors(kernel, 3)
    product = torch.ones(7, 5, dtype=torch.float64)
    for j, part in enumerate(parts):
        product = product * part(X[:, j : j + 1], Y[:, j : j + 1])
    torch.testing.assert_close(product, kernel(X, Y))


@pytest.mark.parametrize(
    "kernel",
    [
        distgp.Matern32([1.0, 1.0, 1.0]),
        distgp.RBF(1.0) + distgp.RBF(2.0),
        distgp.RBF(1.0) * distgp.Matern12(1.0),
        2.0 * distgp.RationalQuadratic(1.0),
    ],
)
def test_other_kernels_have_no_factors(kernel):
    assert factors(kernel, 3) is None
