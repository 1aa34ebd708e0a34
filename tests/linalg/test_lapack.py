"""SciPy's routines by their addresses, against PyTorch's, for every layout and size of a block."""

import pytest
import torch
from helpers import FLOAT, close, inputs

from distgp import linalg
from distgp._util import threads
from distgp.linalg import lapack

SIZES = [64, 130, lapack.DIVIDED - 1, lapack.DIVIDED + 3]
if lapack._routine("cython_lapack", "dpotrf") is None:
    pytest.skip("SciPy's LAPACK has integers that are not C's int", allow_module_level=True)


def spd(n: int, *batch: int) -> torch.Tensor:
    A = torch.randn(*batch, n, n, dtype=FLOAT, generator=torch.Generator().manual_seed(n))
    return A @ A.mT / n + torch.eye(n, dtype=FLOAT)


@pytest.fixture(params=[1, 2], ids=["one thread", "two threads"])
def _threads(request):
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("batch", [(), (5,)], ids=["one", "five"])
def test_factor_inverse_and_solves_equal_pytorch_s(n, batch):
    K, tolerance = spd(n, *batch), 1e-11
    expected = torch.linalg.cholesky(K)
    L = K.clone()
    assert not lapack.factorise_(L).any()
    close(L.tril(), expected, rtol=tolerance, atol=tolerance)
    assert torch.equal(L.triu(1), K.triu(1)), "what is above the diagonal stays"
    inverse = L.clone()
    lapack.invert_(inverse)
    close(inverse.tril(), torch.cholesky_inverse(expected).tril(), rtol=tolerance, atol=tolerance)
    for columns in (1, 37, 300):
        rows = torch.randn(*batch, n, columns, dtype=FLOAT)
        for B in (rows, rows.mT.contiguous().mT):
            for transposed in (False, True):
                x = B.clone()
                lapack.solve_(L, x, transposed)
                factor = expected.mT if transposed else expected
                close(factor @ x, B, rtol=tolerance, atol=30 * tolerance)


def test_one_factor_serves_all_right_hand_sides_of_a_batch():
    L = torch.linalg.cholesky(spd(70)).contiguous()
    B = torch.randn(2, 3, 70, 9, dtype=FLOAT)
    x = B.clone()
    lapack.solve_(L, x)
    close(L @ x, B, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", SIZES)
def test_a_pivot_that_is_not_positive_is_named_as_by_pytorch(n):
    K = spd(n, 2)
    K[1, n - 5, n - 5] = -1.0
    assert torch.equal(lapack.factorise_(K.clone()), torch.linalg.cholesky_ex(K).info)


@pytest.mark.parametrize("overwrite", [False, True])
def test_jitter_is_the_same_whoever_factorises(monkeypatch, overwrite):
    A = inputs(100, 3)
    K = A @ A.mT  # of rank three
    monkeypatch.setattr(lapack, "faster_here", lambda: False)
    expected = linalg.cholesky(K)
    monkeypatch.setattr(lapack, "faster_here", lambda: True)
    given = K.clone()
    found = linalg.cholesky(given, overwrite=overwrite)
    close(found @ found.mT, expected @ expected.mT, rtol=0, atol=1e-12)
    assert overwrite or torch.equal(given, K)


def test_threads_of_the_library_are_put_back_even_when_users_overlap():
    libraries = threads._blas().lib_controllers
    before = [library.get_num_threads() for library in libraries]
    first, second = threads.blas_threads(1), threads.blas_threads(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert {library.get_num_threads() for library in libraries} == {1}
    second.__exit__(None, None, None)
    assert [library.get_num_threads() for library in libraries] == before


@pytest.mark.parametrize("columns", [False, True], ids=["in rows", "in columns"])
def test_a_gram_matrix_is_taken_off_below_the_diagonal(columns):
    S, V = spd(70, 3), torch.randn(3, 70, 40, dtype=FLOAT)
    found = S.mT.contiguous().mT if columns else S.clone()
    assert lapack.in_columns(found) == columns
    lapack.subtract_gram_(found, V)
    close(found.tril(), (S - V @ V.mT).tril(), rtol=1e-11, atol=1e-11)
    assert torch.equal(found.triu(1), S.triu(1))


@pytest.mark.usefixtures("_threads")
@pytest.mark.parametrize("n", SIZES)
def test_matrices_in_columns_and_half_of_them_have_the_same_factors(n):
    K, nan = spd(n, 3), torch.full((n, n), torch.nan, dtype=FLOAT).triu(1)
    expected = torch.linalg.cholesky(K)
    turned = K.mT.contiguous().mT
    close(linalg.cholesky(turned), expected, rtol=1e-11, atol=1e-11)
    assert torch.equal(turned, K)
    for half in (K + nan, (K + nan).mT.contiguous().mT):
        close(linalg.cholesky(half), expected, rtol=1e-11, atol=1e-11)
        found = linalg.half_cholesky(half.clone(), half.clone, "a matrix")
        close(found.tril(), expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("n", [20, 100])
def test_half_of_a_singular_matrix_gets_the_jitter_of_the_whole(n):
    A = inputs(n, 3)
    K = torch.stack([A @ A.mT, spd(n)])  # the first has rank three
    half = (K + torch.full((n, n), torch.nan, dtype=FLOAT).triu(1)).mT.contiguous().mT
    found, expected = linalg.half_cholesky(half.clone(), half.clone, "half"), linalg.cholesky(K)
    close(found.tril() @ found.tril().mT, expected @ expected.mT, rtol=0, atol=1e-12)
    with pytest.raises(linalg.NotPositiveDefiniteError, match="NaN"):
        linalg.half_cholesky(half * torch.nan, lambda: half * torch.nan, "half")


@pytest.mark.parametrize("n", [15, 31, 70, 191, 200])
@pytest.mark.parametrize("shape", [(5,), (2, 3)])
def test_factors_of_a_batch_are_pytorch_s_whatever_is_above_the_diagonal(monkeypatch, n, shape):
    monkeypatch.setattr(lapack, "faster_here", lambda: True)
    K = spd(n, *shape)
    expected, nan = torch.linalg.cholesky(K), torch.full((n, n), torch.nan, dtype=FLOAT).triu(1)
    for given in (K, K + nan, K.mT.contiguous().mT, K.requires_grad_()):
        with torch.no_grad():
            every = [linalg.cholesky(given), linalg.many_cholesky(given, "")]
            every += [L] if (L := lapack.factors_of_batch(given.detach())) is not None else []
        for found in every:
            close(found, expected, rtol=1e-11, atol=1e-11)
            assert not found.triu(1).any()
        assert (lapack.factors_of_batch(K.detach()) is None) == (n not in lapack.IN_BATCHES)


@pytest.mark.parametrize("n", [31, 100])
def test_one_singular_matrix_of_a_batch_gets_jitter_as_from_pytorch(monkeypatch, n):
    K, found = spd(n, 4), []
    K[1, n - 5, n - 5] = -1.0
    with pytest.raises(linalg.NotPositiveDefiniteError, match="not positive definite"):
        linalg.many_cholesky(K, "a batch")
    A = inputs(n, 3)
    K[1] = A @ A.mT  # of rank three
    for here in (True, False):
        monkeypatch.setattr(lapack, "faster_here", lambda here=here: here)
        L = linalg.many_cholesky(K, "a batch")
        found.append(L @ L.mT)
    assert lapack.factors_of_batch(K) is None
    close(found[0], found[1], rtol=0, atol=1e-12)
    K[2, 3, 3] = torch.nan
    monkeypatch.setattr(lapack, "faster_here", lambda: True)
    with pytest.raises(linalg.NotPositiveDefiniteError, match="NaN"):
        linalg.many_cholesky(K, "a batch")


@pytest.mark.usefixtures("_threads")
def test_many_small_matrices_in_turn_name_the_pivots_that_fail():
    K = spd(70, 40)
    K[7, 30, 30] = K[39, 3, 3] = -1.0
    found, L = K.clone(), torch.linalg.cholesky_ex(K)
    assert torch.equal(lapack.factorise_(found), L.info)
    good = L.info == 0
    close(found[good].tril(), L.L[good], rtol=1e-11, atol=1e-11)


def test_products_of_a_batch_are_pytorch_s(monkeypatch):
    monkeypatch.setattr(lapack, "faster_here", lambda: True)
    A, B = torch.randn(5, 31, 20, dtype=FLOAT), torch.randn(5, 31, 20, dtype=FLOAT)
    close(linalg.product(A, B.mT), A @ B.mT, rtol=1e-12, atol=1e-12)
    close(linalg.product(A[:, :9], A.mT), A[:, :9] @ A.mT, rtol=1e-12, atol=1e-12)
    close(linalg.product(A.float(), B.float().mT), A.float() @ B.float().mT, rtol=1e-5, atol=1e-5)
    A.requires_grad_()
    assert linalg.product(A, B.mT).requires_grad
