"""What a GPU makes of matrix products, against PyTorch's own; the formulas are the same on a CPU."""

import pytest
import torch
from helpers import close, inputs

from distgp import RBF
from distgp.linalg import factors


def spd(n: int, *batch: int) -> torch.Tensor:
    A = torch.randn(*batch, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n))
    return A @ A.mT / n + torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize("n", [5, 64, 65, 200, 333])
def test_factor_and_inverse_equal_pytorch_s(n):
    K = spd(n, 2, 2)
    L, info = factors.factorised_in_blocks(K)
    assert not info.any()
    close(L, torch.linalg.cholesky(K), rtol=1e-11, atol=1e-13)
    close(factors.inverse_in_blocks(L), torch.cholesky_inverse(L), rtol=1e-10, atol=1e-12)


def test_a_pivot_that_is_not_positive_is_named_as_by_pytorch():
    K = spd(150, 3)
    K[1, 100, 100] = -1.0
    assert torch.equal(factors.factorised_in_blocks(K)[1], torch.linalg.cholesky_ex(K).info)


@pytest.mark.parametrize("lengthscale", [0.1, 0.3, 30.0])
def test_a_product_with_the_inverse_factor_is_as_good_as_a_solve(lengthscale):
    Z, X = inputs(60, 2), inputs(500, 2, 1)
    kernel = RBF(lengthscale)
    K = kernel(Z) + 1e-13 * torch.eye(60, dtype=torch.float64)
    L, B = torch.linalg.cholesky(K), kernel(Z, X)
    V = factors.solved_by_product(L, B)
    assert (V is None) == (lengthscale == 30.0), "on a CPU a solve is better where it is rough"
    if V is None:
        return
    solve = torch.linalg.solve_triangular(L, B, upper=False)
    worst = (L @ solve - B).abs().max().clamp_min(1e-15)
    assert (L @ V - B).abs().max() <= 20 * worst
