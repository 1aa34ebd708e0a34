"""One matrix, factorised and inverted in its own memory, with the jitter policy of all others."""

import pytest
import torch
from helpers import FLOAT, close, inputs

from distgp import linalg
from distgp.linalg import lapack, large

BOTH = pytest.mark.parametrize("scipy", [True, False], ids=["scipy", "torch"])
SIZES = pytest.mark.parametrize("n", [3, 90, 800])


def matrix(n: int, dtype: torch.dtype = FLOAT) -> torch.Tensor:
    A = inputs(n, n, dtype=dtype)
    return A @ A.mT + n * torch.eye(n, dtype=dtype)


def filling(A: torch.Tensor):
    """Put the lower triangle of A into memory, and nonsense above it."""
    calls = []

    def fill(out: torch.Tensor) -> None:
        calls.append(len(out))
        out.copy_(A.tril()).add_(torch.full_like(A, torch.nan).triu_(1))

    return fill, calls


@pytest.fixture
def library(monkeypatch, scipy):
    monkeypatch.setattr(lapack, "faster_here", lambda: scipy)


@BOTH
@SIZES
@pytest.mark.parametrize("dtype", [FLOAT, torch.float32])
@pytest.mark.usefixtures("library")
def test_factor_and_inverse_take_the_place_of_the_matrix(n, dtype):
    A = matrix(n, dtype)
    (fill, calls), L = filling(A), torch.empty_like(A)
    place, tolerance = L.data_ptr(), 1e-12 if dtype == FLOAT else 1e-4
    linalg.cholesky_(L, fill)
    assert calls == [n] and L.data_ptr() == place and L.is_contiguous()
    close(L @ L.mT, A, rtol=tolerance, atol=tolerance * n)
    close(L, L.tril(), rtol=0, atol=0)
    linalg.invert_(L)
    below = L.tril()
    close(below + below.tril(-1).mT, torch.linalg.inv(A), rtol=tolerance, atol=tolerance)


@SIZES
@pytest.mark.parametrize(("rows", "columns"), [(64, 100), (7, 20), (1024, 4096)])
@pytest.mark.parametrize("least", [1.0, 1e-9])
def test_an_inverse_by_products_of_blocks_is_that_of_the_library(
    monkeypatch, n, rows, columns, least
):
    """Also of a matrix that is nearly singular."""
    monkeypatch.setattr(large, "ROWS", rows)
    monkeypatch.setattr(large, "COLUMNS", columns)
    L = torch.linalg.cholesky(matrix(n) - (1.0 - least) * n * torch.eye(n, dtype=FLOAT))
    wanted, place = torch.cholesky_inverse(L).tril(), L.data_ptr()
    large._invert_by_products_(L)
    assert L.data_ptr() == place
    close(L.tril() / wanted.abs().max(), wanted / wanted.abs().max(), rtol=0, atol=1e-10)


@BOTH
@pytest.mark.usefixtures("library")
def test_the_least_jitter_that_does_is_added_and_reported():
    A = matrix(100)
    values, vectors = torch.linalg.eigh(A)
    values[0] = -1e-8 * A.diagonal().mean()
    A = (vectors * values) @ vectors.mT
    fill, L = filling(A)[0], torch.empty_like(A)
    with pytest.warns(linalg.JitterWarning, match="added 2e-08 of its mean diagonal to a name"):
        linalg.cholesky_(L, fill, "a name")
    jitter = 1e8 * 10 * torch.finfo(FLOAT).eps / 10 * A.diagonal().mean()
    close(L @ L.mT - A, jitter * torch.eye(100, dtype=FLOAT), rtol=1e-2, atol=1e-10)
    with pytest.warns(linalg.JitterWarning, match="added 2e-08 of its mean diagonal to a name"):
        close(linalg.cholesky(A, "a name"), L, rtol=1e-6, atol=1e-6)


@BOTH
@pytest.mark.usefixtures("library")
def test_what_no_jitter_mends_is_refused():
    A = matrix(70)
    L = torch.empty_like(A)
    with pytest.raises(linalg.NotPositiveDefiniteError, match="even with 2e-06 of its mean"):
        linalg.cholesky_(L, filling(A - 2 * torch.diag(torch.linspace(0, 70, 70).to(FLOAT)))[0])
    A[60, 3] = torch.inf
    with pytest.raises(linalg.NotPositiveDefiniteError, match="contains NaN or infinity"):
        linalg.cholesky_(L, filling(A)[0])
