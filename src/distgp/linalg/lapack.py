"""The factorisations and solves of SciPy's LAPACK and BLAS on tensors of the CPU, in place.

On AMD's processors they are far faster than those that PyTorch has, whose MKL is Intel's; elsewhere
PyTorch's are used. SciPy's own wrappers hold Python's lock while they run; the same routines are called
here without it, by the addresses that SciPy publishes for compiled code (`scipy.linalg.cython_lapack`).
Each call runs on one thread, and threads of our own share matrices and blocks of large ones: those of a
second library would stay awake beside PyTorch's after every call, and take their time.

A matrix in rows, as tensors have them, is to LAPACK, which counts by columns, its own transpose. So
the lower factor L of a symmetric matrix is to LAPACK the upper one, U = Lᵀ, and nothing is copied. The
comments below speak of U, and of places (row, column) as LAPACK sees them. Where a matrix lies in columns
L is L to LAPACK too, and its factorisation of that kind is the faster one, by a fifth to a third.
"""

from __future__ import annotations

import ctypes
import importlib
import itertools
import platform
from collections.abc import Callable
from functools import cache, partial
from operator import mul
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from distgp._util.threads import at_once, blas_threads

SMALLEST = 64
"""Matrices with fewer rows are left to PyTorch: calling LAPACK for each would take longer."""
MIDDLING = range(96, 321)
"""Rows of matrices in batches that are factorised here on every processor: PyTorch copies them twice, which
takes as long as their factorisation."""
DIVIDED = 768
"""Rows from which all threads work on one matrix."""
BLOCK = 256
"""Rows of the blocks into which such a matrix is cut."""
FEWEST_FLOPS = 5e7
"""Multiplications and additions that are worth waking other threads for: one to two milliseconds."""
IN_BATCHES = range(16, 192)
"""Rows of matrices in batches whose factors NumPy makes faster than PyTorch and than calls for each."""
FEWEST_COLUMNS = 8
"""Right-hand sides that a solve is worth a call for."""
_WIDTH = 8
"""Bytes of a number."""
_Matrix: TypeAlias = tuple[int, int]
"""A matrix as LAPACK sees it: the address of its first entry, and the step between columns."""
_Part: TypeAlias = tuple[int, int]
"""The first column of a piece of a matrix, and the one after its last."""
_Share: TypeAlias = Callable[[Callable[[_Part], None], list[_Part]], object]
"""Calls a function on pieces of a matrix, all at the same time or one after the other."""
_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def _int(number: int) -> object:
    return ctypes.byref(ctypes.c_int(number))


_UPPER, _LEFT, _RIGHT, _TURN, _PLAIN = (ctypes.byref(ctypes.c_char(letter)) for letter in b"ULRTN")
_LOWER = _LEFT  # the same letter
_ONE, _MINUS, _ZERO = (ctypes.byref(ctypes.c_double(number)) for number in (1.0, -1.0, 0.0))


@cache
def _routine(library: str, name: str) -> Callable[..., None] | None:
    """A routine of SciPy's `cython_blas` or `cython_lapack`; None where its integers are not C's int."""
    capsule = importlib.import_module(f"scipy.linalg.{library}").__pyx_capi__[name]
    name_of = ctypes.pythonapi.PyCapsule_GetName
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    name_of.restype, name_of.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = name_of(capsule)
    kinds = signature.decode().removeprefix("void (").removesuffix(")").split(", ")
    known = {"char *", "int *", f"__pyx_t_5scipy_6linalg_{len(library)}{library}_{name[0]} *"}
    if not set(kinds) <= known:
        return None
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(kinds))(pointer_of(capsule, signature))


@cache
def faster_here() -> bool:
    """Whether PyTorch has Intel's library, and the processor is another's."""
    if not torch.backends.mkl.is_available():
        return False
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = platform.processor()
    return "AuthenticAMD" in text


def serves(*tensors: Tensor, rows: int) -> bool:
    """Whether matrices with this many rows are worked on here: float64, of the CPU, no gradients.

    In float32 the factors of SciPy's library are a little less accurate than those of PyTorch's.
    """
    return rows >= SMALLEST and faster_here() and _can_be_given(*tensors)


def serves_batch(A: Tensor) -> bool:
    """Whether matrices (*batch, n, n) are factorised here: those that are served, and middling ones."""
    n = A.shape[-1]
    return serves(A, rows=n) or (A.ndim > 2 and n in MIDDLING and _can_be_given(A))


def _can_be_given(*tensors: Tensor) -> bool:
    first = tensors[0]
    if first.dtype != torch.float64 or first.device.type != "cpu":
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return _routine("cython_lapack", "dpotrf") is not None


def _at(A: _Matrix, row: int, column: int) -> _Matrix:
    """The part of a matrix that begins at an entry."""
    return A[0] + (row + column * A[1]) * _WIDTH, A[1]


def _matrices(A: Tensor) -> list[_Matrix]:
    """The matrices of a batch (*batch, n, k), each with rows that are contiguous."""
    assert A.stride(-1) == 1 or A.shape[-1] == 1
    step, start, strides = max(A.stride(-2), A.shape[-1]), A.data_ptr(), A.stride()
    places = itertools.product(*map(range, A.shape[:-2]))
    return [(start + sum(map(mul, place, strides)) * _WIDTH, step) for place in places]


def _call(library: str, name: str, *arguments: object) -> None:
    routine = _routine(library, name)
    assert routine is not None
    routine(*arguments)


def _factor(n: int, A: _Matrix, half: object = _UPPER) -> int:
    """UᵀU or LLᵀ = A in a triangle; the number of the first pivot that is not positive, or 0."""
    info = ctypes.c_int(0)
    _call("cython_lapack", "dpotrf", half, _int(n), A[0], _int(A[1]), ctypes.byref(info))
    return info.value


def _solve(side: object, turn: object, m: int, n: int, U: _Matrix, B: _Matrix) -> None:
    """U⁻¹B or, turned, U⁻ᵀB from the left; BU⁻¹ or BU⁻ᵀ from the right; B is m × n."""
    both = (U[0], _int(U[1]), B[0], _int(B[1]))
    _call("cython_blas", "dtrsm", side, _UPPER, turn, _PLAIN, _int(m), _int(n), _ONE, *both)


def _multiply(
    sizes: tuple[int, int, int], alpha: object, A: _Matrix, B: _Matrix, beta: object, C: _Matrix
) -> None:
    """C = αAᵀB + βC, of sizes m × n with k terms each."""
    both = (A[0], _int(A[1]), B[0], _int(B[1]))
    start = (_TURN, _PLAIN, *map(_int, sizes), alpha)
    _call("cython_blas", "dgemm", *start, *both, beta, C[0], _int(C[1]))


def _square(
    n: int, k: int, alpha: object, A: _Matrix, beta: object, C: _Matrix, half: object = _UPPER
) -> None:
    """A triangle, the upper one, of C = αAᵀA + βC, n × n with k terms each."""
    start = (half, _TURN, _int(n), _int(k), alpha)
    _call("cython_blas", "dsyrk", *start, A[0], _int(A[1]), beta, C[0], _int(C[1]))


def in_columns(A: Tensor) -> bool:
    """Whether matrices lie in columns, each after the other, and are small enough to stay so."""
    return not A.is_contiguous() and A.mT.is_contiguous() and A.shape[-1] < DIVIDED


def in_place(A: Tensor) -> bool:
    """Whether matrices can be worked on as they lie."""
    return A.is_contiguous() or in_columns(A)


def factorise_(A: Tensor) -> Tensor:
    """Put the lower Cholesky factors into the lower triangles of A (*batch, n, n); what is above stays.

    A is contiguous, or `in_columns`.
    Returns for each matrix (*batch,) the number of its first pivot that is not positive, or 0.
    """
    half, B = (_LOWER, A.mT) if in_columns(A) else (_UPPER, A)
    assert B.is_contiguous()
    n, matrices = A.shape[-1], _matrices(B)
    if n < DIVIDED and (torch.get_num_threads() == 1 or n**3 / 3 * len(matrices) < FEWEST_FLOPS):
        info = _factorise_in_turn(n, half, matrices)
    else:
        info = _spread(partial(_factorise, n, half), matrices, n**3 / 3, n >= DIVIDED)
    return torch.tensor(info, dtype=torch.int32).reshape(A.shape[:-2])


def _factorise_in_turn(n: int, half: object, matrices: list[_Matrix]) -> list[int]:
    """`_factor` of many small matrices: what is the same for all of them is made once."""
    routine, info, found = _routine("cython_lapack", "dpotrf"), ctypes.c_int(0), list[int]()
    assert routine is not None
    order, steps, result = _int(n), {step: _int(step) for _, step in matrices}, ctypes.byref(info)
    with blas_threads(1):
        for address, step in matrices:
            routine(half, order, address, steps[step], result)
            found.append(info.value)
    return found


def _factorise(n: int, half: object, A: _Matrix, share: _Share) -> int:
    """Block after block: factorise it, solve for the rows right of it, and take them off the rest."""
    if n < DIVIDED:
        return _factor(n, A, half)
    for start, stop in _cut(0, n, BLOCK):
        size = stop - start
        if info := _factor(size, _at(A, start, start)):
            return info + start

        def right_of(part: _Part, s: int = start, size: int = size) -> None:
            _solve(_LEFT, _TURN, size, part[1] - part[0], _at(A, s, s), _at(A, s, part[0]))

        def rest(part: _Part, s: int = start, e: int = stop, size: int = size) -> None:
            first, columns = part[0], part[1] - part[0]
            mine = _at(A, s, first)
            if first > e:
                sizes = (first - e, columns, size)
                _multiply(sizes, _MINUS, _at(A, s, e), mine, _ONE, _at(A, e, first))
            _square(columns, size, _MINUS, mine, _ONE, _at(A, first, first))

        parts = _cut(stop, n, BLOCK)
        share(right_of, parts)
        share(rest, parts[::-1])  # the largest first
    return 0


def factors_of_batch(A: Tensor) -> Tensor | None:
    """The lower Cholesky factors of small matrices (*batch, n, n) by NumPy, which loops over them in C.

    None where others are faster, and where one of them is not positive definite.
    """
    if A.ndim < 3 or A.shape[-1] not in IN_BATCHES or not faster_here() or not _can_be_given(A):
        return None
    try:
        with blas_threads(1):
            return torch.from_numpy(np.linalg.cholesky(A.detach().numpy()))
    except np.linalg.LinAlgError:
        return None


def product(A: Tensor, B: Tensor) -> Tensor:
    """AB for batches of small matrices, (*batch, n, k) and (*batch, k, m)."""
    if not faster_here() or not _can_be_given(A, B):
        return A @ B
    with blas_threads(1):
        return torch.from_numpy(np.matmul(A.detach().numpy(), B.detach().numpy()))


def invert_(L: Tensor) -> None:
    """Put the lower triangle of (L Lᵀ)⁻¹ in place of the lower factor L; what is above it is lost."""
    assert L.is_contiguous()
    n = L.shape[-1]
    _spread(partial(_invert, n), _matrices(L), n**3 / 1.5, n >= DIVIDED)


def _invert(n: int, U: _Matrix, share: _Share) -> None:
    """UᵀX = I by blocks of columns, then XᵀX in place of U; X's blocks on the diagonal are kept in D."""
    if n < DIVIDED:
        _call("cython_lapack", "dpotri", _UPPER, _int(n), U[0], _int(U[1]), _int(0))
        return
    held = torch.zeros(n, BLOCK, dtype=torch.float64)
    (D,), parts = _matrices(held), _cut(0, n, BLOCK)  # D_s in columns s … s + BLOCK
    for start, stop in parts:
        held[start:stop].diagonal().fill_(1.0)

    def columns(part: _Part) -> None:
        start, stop = part
        size, rest, own, below = stop - start, n - stop, _at(D, 0, start), _at(U, stop, start)
        _solve(_LEFT, _TURN, size, size, _at(U, start, start), own)
        if rest:  # L_rest X = −L_below D
            _multiply((rest, size, size), _MINUS, _at(U, start, stop), own, _ZERO, below)
            _solve(_LEFT, _TURN, rest, size, _at(U, stop, stop), below)

    def product(part: _Part) -> None:
        start, stop = part
        size, rest, own, below = stop - start, n - stop, _at(D, 0, start), _at(U, stop, start)
        above, diagonal = _at(U, 0, start), _at(U, start, start)
        if start:
            _multiply((start, size, size), _ONE, _at(U, start, 0), own, _ZERO, above)
        if start and rest:
            _multiply((start, size, rest), _ONE, _at(U, stop, 0), below, _ONE, above)
        _square(size, size, _ONE, own, _ZERO, diagonal)
        if rest:
            _square(size, rest, _ONE, below, _ONE, diagonal)

    share(columns, parts)
    share(product, parts)


def subtract_gram_(S: Tensor, V: Tensor) -> None:
    """Take VVᵀ, V (*batch, k, m), off the lower triangle of S (*batch, k, k), contiguous or in columns."""
    half, C = (_LOWER, S.mT) if in_columns(S) else (_UPPER, S)
    assert C.is_contiguous() and V.is_contiguous() and S.shape[:-1] == V.shape[:-1]
    k, m = V.shape[-2:]

    def one(pair: tuple[_Matrix, _Matrix], share: _Share) -> None:
        del share
        _square(k, m, _MINUS, pair[0], _ONE, pair[1], half)

    _spread(one, list(zip(_matrices(V), _matrices(C), strict=True)), k * k * m, divided=False)


def solve_(L: Tensor, B: Tensor, transposed: bool = False) -> None:
    """Put L⁻¹B, or L⁻ᵀB where `transposed`, in place of B (*batch, n, k), contiguous either way."""
    n, k = B.shape[-2:]
    by_rows = B.is_contiguous()
    assert by_rows or B.mT.is_contiguous()
    # In rows B is to LAPACK its transpose, and BᵀU⁻¹ = (L⁻¹B)ᵀ.
    side, turned = (_RIGHT, transposed) if by_rows else (_LEFT, not transposed)
    turn = _TURN if turned else _PLAIN
    parts = _cut(0, k, max(FEWEST_COLUMNS, -(-k // (2 * torch.get_num_threads()))))

    def one(pair: tuple[_Matrix, _Matrix], share: _Share) -> None:
        U, right = pair

        def some(part: _Part) -> None:
            first, size = part[0], part[1] - part[0]
            if by_rows:
                _solve(side, turn, size, n, U, _at(right, first, 0))
            else:
                _solve(side, turn, n, size, U, _at(right, 0, first))

        share(some, parts)

    factors, sides = _matrices(L.expand(*B.shape[:-2], n, n)), _matrices(B if by_rows else B.mT)
    pairs = list(zip(factors, sides, strict=True))
    _spread(one, pairs, n * n * k, n * n * k >= FEWEST_FLOPS)


def _cut(start: int, stop: int, size: int) -> list[_Part]:
    """Places from start to stop in pieces of a size."""
    return [(at, min(stop, at + size)) for at in range(start, stop, size)]


def _in_turn(work: Callable[[_Part], None], parts: list[_Part]) -> None:
    for part in parts:
        work(part)


def _spread(
    one: Callable[[_Item, _Share], _Result], items: list[_Item], flops: float, divided: bool
) -> list[_Result]:
    """Let every thread work on matrices of its own, or all together on pieces of large ones."""
    threads, share = torch.get_num_threads(), _in_turn
    with blas_threads(1):
        if threads > 1 and flops * len(items) >= FEWEST_FLOPS:
            if divided and len(items) < 2 * threads:
                share = at_once
            elif len(items) > 1:
                return at_once(lambda item: one(item, _in_turn), items)
        return [one(item, share) for item in items]
