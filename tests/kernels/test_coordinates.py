"""Coordinates order points as the kernel's correlation does."""

import pytest
import torch
from helpers import concrete, example, inputs

from distgp import RBF, Constant, Kernel, Linear, Matern52, Periodic
from distgp.kernels import coordinates


@pytest.mark.parametrize("kind", concrete(Kernel))
def test_the_nearer_the_larger_the_correlation(kind):
    kernel = example(kind, 3)
    X, x = inputs(60, 3), inputs(1, 3, 1)
    located, centre = coordinates(kernel, X), coordinates(kernel, x)
    if located is None:
        return
    stationary = kernel.kernels[0] if hasattr(kernel, "kernels") else kernel
    order = (located - centre).norm(dim=-1).argsort()
    values = stationary(x, X)[0][order]
    assert bool((values.diff() <= 1e-12).all())


def test_which_kernels_have_coordinates():
    X = inputs(7, 3)
    assert coordinates(2.0 * Matern52([1.0, 2.0, 3.0]), X).shape == (7, 3)
    assert coordinates(Matern52(1.0, active_dims=[1]) + Linear(1.0), X).shape == (7, 1)
    assert coordinates(Linear(1.0) + RBF(1.0), X).shape == (7, 3)
    assert coordinates(RBF(1.0) * Periodic(1.0, 2.0), X).shape == (7, 9)
    assert coordinates(Linear(1.0), X) is None and coordinates(Constant(1.0), X) is None
    assert coordinates(Matern52(1.0) * Periodic(1.0, 2.0), X) is None


def test_coordinates_of_a_product_add_up():
    kernel, X = RBF([0.5, 1.0, 2.0]) * Periodic(1.5, 2.0), inputs(9, 3)
    located = coordinates(kernel, X)
    expected = torch.exp(-0.5 * torch.cdist(located, located).square())
    torch.testing.assert_close(kernel(X), expected)
