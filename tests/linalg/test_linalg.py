import warnings

import pytest
import torch
from helpers import FLOAT, close, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from distgp import linalg
from distgp.linalg import JitterWarning, NotPositiveDefiniteError


def spd(n: int, seed: int = 0, ridge: float = 1.0) -> torch.Tensor:
    A = inputs(n, n, seed)
    return A @ A.mT + ridge * torch.eye(n, dtype=FLOAT)


def test_a_sound_matrix_gets_no_jitter_and_no_warning():
    A = spd(6)
    L = linalg.cholesky(A)
    close(L @ L.mT, A, rtol=1e-13)


def test_solves_agree_with_the_dense_inverse():
    A, B = spd(5), inputs(5, 3, 1)
    L = linalg.cholesky(A)
    inverse = torch.linalg.inv(A)
    close(linalg.cholesky_solve(L, B), inverse @ B)
    close(linalg.cholesky_inverse(L), inverse)
    close(linalg.solve_upper(L, linalg.solve_lower(L, B)), inverse @ B)
    close(linalg.log_det(L), torch.linalg.slogdet(A)[1])


def test_rounding_jitter_is_silent():
    A = torch.ones(4, 4, dtype=FLOAT)  # rank one: needs about ε
    L = linalg.cholesky(A)
    close(L @ L.mT, A, rtol=1e-12)


def test_more_jitter_warns_and_says_how_much():
    A = torch.diag(torch.tensor([1.0, 1.0, -1e-9], dtype=FLOAT))
    with pytest.warns(JitterWarning, match=r"added \de-\d+ of its mean diagonal to K"):
        L = linalg.cholesky(A, "K")
    close(L @ L.mT, A, rtol=0, atol=1e-7)


def test_only_the_matrices_that_need_it_get_jitter():
    good, bad = spd(3), torch.diag(torch.tensor([1.0, 1.0, -1e-9], dtype=FLOAT))
    with pytest.warns(JitterWarning):
        L = linalg.cholesky(torch.stack([good, bad]))
    close(L[0], linalg.cholesky(good), rtol=0, atol=0)


def test_jitter_is_relative_to_the_diagonal():
    A = torch.diag(torch.tensor([1.0, 1.0, -1e-9], dtype=FLOAT))
    with pytest.warns(JitterWarning):
        small, large = linalg.cholesky(A), linalg.cholesky(1e12 * A)
    close(large, 1e6 * small, rtol=1e-10)


@pytest.mark.parametrize(("dtype", "eigenvalue"), [(FLOAT, -1e-4), (torch.float32, -0.1)])
def test_jitter_has_a_limit(dtype, eigenvalue):
    with pytest.raises(NotPositiveDefiniteError):
        linalg.cholesky(torch.diag(torch.tensor([1.0, 1.0, eigenvalue], dtype=dtype)))


def test_float32_never_gets_jitter_silently():
    A = torch.ones(1000, 1000, dtype=torch.float32)
    with pytest.warns(JitterWarning):
        linalg.cholesky(A)


def test_truncated_solve_ignores_directions_of_rounding_error():
    F = inputs(30, 4)
    A = F @ F.mT
    b = A @ inputs(30, 1, 3)[:, 0]
    x = linalg.truncated_solve(A, b, A.diagonal())
    close(A @ x, b, rtol=1e-9)
    assert float(x.norm()) < 10
    scale = torch.logspace(-8, 8, 30, dtype=FLOAT)
    scaled = scale[:, None] * A * scale
    y = linalg.truncated_solve(scaled, scale * b, scaled.diagonal())
    close(y * scale, x, rtol=1e-6, atol=1e-8)


def test_diagonals_broadcast():
    A = spd(3)
    out = linalg.add_diagonal(A, torch.tensor([[1.0], [2.0]], dtype=FLOAT))
    close(out[1] - A, 2.0 * torch.eye(3, dtype=FLOAT))


def test_an_indefinite_matrix_is_an_error_with_advice():
    with pytest.raises(NotPositiveDefiniteError, match="duplicate") as caught:
        linalg.cholesky(torch.diag(torch.tensor([1.0, -1.0], dtype=FLOAT)))
    assert "float64" in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_is_named(value):
    A = spd(3)
    A[1, 1] = value
    with pytest.raises(NotPositiveDefiniteError, match="NaN or infinity"):
        linalg.cholesky(A)


def test_gradients_flow_through_a_jittered_factor():
    A = torch.ones(3, 3, dtype=FLOAT, requires_grad=True)
    linalg.log_det(linalg.cholesky(A)).backward()
    assert A.grad is not None and bool(torch.isfinite(A.grad).all())


@settings(max_examples=20)
@given(s=st.integers(2, 40), rank=st.integers(1, 10), seed=st.integers(0, 99))
def test_pivoted_cholesky_stops_at_the_rank_and_picks_the_largest_residual(s, rank, seed):
    F = inputs(s, rank, seed)
    A = F @ F.mT
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pivots, left = linalg.pivoted_cholesky(A.diagonal(), lambda p: A[:, p], 0.0, s)
    assert left < 1e-9
    assert len(pivots) <= min(rank, s)
    assert len(set(pivots.tolist())) == len(pivots)
    for j in range(len(pivots)):  # the definition, one Schur complement a step
        chosen = pivots[:j]
        known = A[chosen]
        explained = (
            known.mT @ torch.linalg.lstsq(A[chosen][:, chosen], known).solution if j else 0 * A
        )
        residual = (A - explained).diagonal()
        assert residual[pivots[j]] >= residual.max() - 1e-6
