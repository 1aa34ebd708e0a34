"""The functions that all grids are made of."""

import pytest
import torch
from helpers import inputs

import distgp
from distgp import separable
from distgp.sparsegrid import Box, PointBasis, SparseGrid, basis_of


@pytest.mark.parametrize(("level", "d"), [(4, 2), (3, 3), (2, 4)])
def test_combined_norms_are_the_unions(level, d):
    # Σ_l c_l‖v_l‖² = ‖v_union‖² for product kernels, with every grid's own dense factor.
    kernel = separable(distgp.Matern32, torch.linspace(0.5, 1.0, d))
    box, sparse, X = Box.of((-1.0, 1.0), d), SparseGrid.of(level, d), inputs(30, d, seed=2)
    dense = basis_of(kernel, sparse, box, dense=True)
    assert isinstance(dense, PointBasis)
    u = dense.at(X)
    combined = sum(
        c * dense.whitened(u, l).square().sum(0) for l, c in enumerate(sparse.coefficients)
    )
    whole = basis_of(kernel, sparse.whole(), box, dense=True)
    union = whole.whitened(whole.at(X), 0).square().sum(0)
    torch.testing.assert_close(combined, union, rtol=1e-9, atol=1e-9)
    tensor = basis_of(kernel, sparse, box)
    torch.testing.assert_close(tensor.at(X).square().sum(0), union, rtol=1e-9, atol=1e-9)
