"""The factorisations and solves of SciPy's LAPACK and BLAS on tensors of the CPU, in place.

On AMD's processors they are far faster than those that PyTorch has, whose MKL is Intel's; elsewhere
PyTorch's are as good or better, and are used. SciPy's own wrappers hold
Python's lock while they run; the same routines are called here by their addresses, which SciPy
publishes for other compiled code (`scipy.linalg.cython_lapack`), and so without it: threads work on
different matrices at the same time.

A matrix in rows, as tensors have them, is to LAPACK, which counts by columns, its own transpose. So
the lower factor L of a symmetric matrix is to LAPACK the upper one, U = Lᵀ, and nothing is copied. The
comments below speak of U, and of places (row, column) as LAPACK sees them.

Every call of a routine runs on one thread. Large matrices are cut into blocks here, and threads of
our own share these: those of a second library would stay awake beside PyTorch's after every call, and
take their time.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from distgp.threads import at_once, blas_threads

SMALLEST = 64
"""Matrices with fewer rows are left to PyTorch: calling LAPACK for each would take longer."""
DIVIDED = 768
"""Rows from which all threads work on one matrix."""
BLOCK = 256
"""Rows of the blocks into which such a matrix is cut."""
FEWEST_FLOPS = 5e7
"""Multiplications and additions that are worth waking other threads for: one to two milliseconds."""
FEWEST_COLUMNS = 8
"""Right-hand sides that a solve is worth a call for."""
_WIDTH = 8
"""Bytes of a number."""
_Call = Callable[..., None]


def _char(letter: bytes) -> object:
    return ctypes.byref(ctypes.c_char(letter))


def _int(number: int) -> object:
    return ctypes.byref(ctypes.c_int(number))


def _value(number: float) -> object:
    return ctypes.byref(ctypes.c_double(number))


_UPPER, _LEFT, _RIGHT, _TURN, _PLAIN = map(_char, (b"U", b"L", b"R", b"T", b"N"))


@cache
def _routine(library: str, name: str) -> Callable[..., None] | None:
    """A routine of SciPy's `cython_blas` or `cython_lapack`; None where it is not as expected.

    Its signature is part of what SciPy publishes: integers must be C's int.
    """
    import importlib

    capsule = importlib.import_module(f"scipy.linalg.{library}").__pyx_capi__[name]
    name_of, pointer_of = (
        ctypes.pythonapi.PyCapsule_GetName,
        ctypes.pythonapi.PyCapsule_GetPointer,
    )
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
    first = tensors[0]
    if not faster_here():
        return False
    if rows < SMALLEST or first.dtype != torch.float64 or first.device.type != "cpu":
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return False
    return _routine("cython_lapack", "dpotrf") is not None


class _Matrix:
    """A matrix as LAPACK sees it: places in memory, and the distance between columns."""

    def __init__(self, address: int, lead: int) -> None:
        self.address, self.lead, self._step = address, _int(lead), lead * _WIDTH

    def at(self, row: int, column: int) -> int:
        """The address of an entry."""
        return self.address + row * _WIDTH + column * self._step


class _Blas:
    """The routines on matrices as LAPACK sees them."""

    def __init__(self) -> None:
        found = [_routine("cython_blas", name) for name in ("dgemm", "dsyrk", "dtrsm")]
        found += [_routine("cython_lapack", name) for name in ("dpotrf", "dpotri")]
        self._gemm, self._syrk, self._trsm, self._potrf, self._potri = cast(list[_Call], found)

    def factor(self, n: int, A: int, lead: object) -> int:
        """UᵀU = A in the upper triangle; the number of the first pivot that is not positive, or 0."""
        info = ctypes.c_int(0)
        self._potrf(_UPPER, _int(n), A, lead, ctypes.byref(info))
        return info.value

    def invert(self, n: int, U: int, lead: object) -> None:
        """(UᵀU)⁻¹ in the upper triangle, in place of U."""
        self._potri(_UPPER, _int(n), U, lead, _int(0))

    def solve(
        self, side: object, turn: object, m: int, n: int, U: int, of_U: object, B: int, of_B: object
    ) -> None:
        """U⁻¹B or, turned, U⁻ᵀB from the left; BU⁻¹ or BU⁻ᵀ from the right; B is m × n."""
        one = _value(1.0)
        self._trsm(side, _UPPER, turn, _PLAIN, _int(m), _int(n), one, U, of_U, B, of_B)

    def multiply(
        self, turns: tuple[object, object], sizes: tuple[int, int, int], alpha: float,
        A: int, of_A: object, B: int, of_B: object, beta: float, C: int, of_C: object,
    ) -> None:  # fmt: skip
        """C = αAB + βC, of sizes m × n with k terms each."""
        m, n, k = map(_int, sizes)
        scale, keep = _value(alpha), _value(beta)
        self._gemm(*turns, m, n, k, scale, A, of_A, B, of_B, keep, C, of_C)

    def square(
        self, turn: object, n: int, k: int, alpha: float, A: int, of_A: object, beta: float, C: int,
        of_C: object,
    ) -> None:  # fmt: skip
        """The upper triangle of C = αAAᵀ + βC or, turned, of αAᵀA + βC, n × n with k terms each."""
        scale, keep = _value(alpha), _value(beta)
        self._syrk(_UPPER, turn, _int(n), _int(k), scale, A, of_A, keep, C, of_C)


_blas = cache(_Blas)


def factorise_(A: Tensor) -> Tensor:
    """Put the lower Cholesky factor into the lower triangle of A; what is above it stays.

    Parameters
    ----------
    A : Tensor of shape (*batch, n, n)
        Symmetric matrices, contiguous.

    Returns
    -------
    Tensor of shape (*batch,)
        Zero where it succeeded, else the number of the first pivot that is not positive.
    """
    assert A.is_contiguous()
    info = torch.zeros(A.shape[:-2], dtype=torch.int32)
    flags, n = info.view(-1), A.shape[-1]
    matrices = A.view(-1, n, n)

    def one(i: int, share: _Share) -> None:
        flags[i] = _factorise(_blas(), _Matrix(matrices[i].data_ptr(), n), n, share)

    _spread(one, len(matrices), n**3 / 3, n >= DIVIDED)
    return info


def _factorise(blas: _Blas, A: _Matrix, n: int, share: _Share) -> int:
    """Block after block: factorise it, solve for the rows right of it, and take them off the rest."""
    if n < DIVIDED:
        return blas.factor(n, A.address, A.lead)
    for start, stop in _cut(0, n, BLOCK):
        size = stop - start
        if info := blas.factor(size, A.at(start, start), A.lead):
            return info + start

        def right_of(part: tuple[int, int], s: int = start, size: int = size) -> None:
            columns = part[1] - part[0]
            blas.solve(_LEFT, _TURN, size, columns, A.at(s, s), A.lead, A.at(s, part[0]), A.lead)

        def rest(part: tuple[int, int], s: int = start, e: int = stop, size: int = size) -> None:
            first, last = part
            mine, columns = A.at(s, first), last - first
            if first > e:
                sizes, target = (first - e, columns, size), A.at(e, first)
                turns, left = (_TURN, _PLAIN), A.at(s, e)
                blas.multiply(turns, sizes, -1.0, left, A.lead, mine, A.lead, 1.0, target, A.lead)
            blas.square(_TURN, columns, size, -1.0, mine, A.lead, 1.0, A.at(first, first), A.lead)

        parts = _cut(stop, n, BLOCK)
        share(right_of, parts)
        share(rest, parts[::-1])  # the largest first
    return 0


def invert_(L: Tensor) -> None:
    """Put the lower triangle of (L Lᵀ)⁻¹ in place of the lower factor L; what is above it is lost."""
    assert L.is_contiguous()
    n = L.shape[-1]
    matrices = L.view(-1, n, n)

    def one(i: int, share: _Share) -> None:
        _invert(_blas(), _Matrix(matrices[i].data_ptr(), n), n, share)

    _spread(one, len(matrices), n**3 / 1.5, n >= DIVIDED)


def _invert(blas: _Blas, U: _Matrix, n: int, share: _Share) -> None:
    """UᵀX = I, a block of columns after the other, then XᵀX in place of U.

    X is lower, so that its blocks below the diagonal have room beside U; those on the diagonal have a
    place of their own, D.
    """
    if n < DIVIDED:
        blas.invert(n, U.address, U.lead)
        return
    held = torch.zeros(n, BLOCK, dtype=torch.float64)
    D = _Matrix(held.data_ptr(), BLOCK)  # D_s in columns s … s + BLOCK
    parts = _cut(0, n, BLOCK)
    for start, stop in parts:
        held[start:stop].diagonal().fill_(1.0)

    def columns(part: tuple[int, int]) -> None:
        start, stop = part
        size, rest, own, below = stop - start, n - stop, D.at(0, start), U.at(stop, start)
        blas.solve(_LEFT, _TURN, size, size, U.at(start, start), U.lead, own, D.lead)
        if rest:  # L_rest X = −L_below D
            right_of = U.at(start, stop)
            sizes, turns = (rest, size, size), (_TURN, _PLAIN)
            blas.multiply(turns, sizes, -1.0, right_of, U.lead, own, D.lead, 0.0, below, U.lead)
            blas.solve(_LEFT, _TURN, rest, size, U.at(stop, stop), U.lead, below, U.lead)

    def product(part: tuple[int, int]) -> None:
        start, stop = part
        size, rest, own, below = stop - start, n - stop, D.at(0, start), U.at(stop, start)
        turns, target = (_TURN, _PLAIN), U.at(0, start)
        if start:
            left = U.at(start, 0)
            sizes = (start, size, size)
            blas.multiply(turns, sizes, 1.0, left, U.lead, own, D.lead, 0.0, target, U.lead)
        if start and rest:
            sizes, left = (start, size, rest), U.at(stop, 0)
            blas.multiply(turns, sizes, 1.0, left, U.lead, below, U.lead, 1.0, target, U.lead)
        diagonal = U.at(start, start)
        blas.square(_TURN, size, size, 1.0, own, D.lead, 0.0, diagonal, U.lead)
        if rest:
            blas.square(_TURN, size, rest, 1.0, below, U.lead, 1.0, diagonal, U.lead)

    share(columns, parts)
    share(product, parts)


def subtract_gram_(S: Tensor, V: Tensor) -> None:
    """Take VVᵀ off the lower triangle of S; what is above it stays.

    Parameters
    ----------
    S : Tensor of shape (*batch, k, k)
        Symmetric matrices, contiguous.
    V : Tensor of shape (*batch, k, m)
        Contiguous.
    """
    assert S.is_contiguous() and V.is_contiguous() and S.shape[:-1] == V.shape[:-1]
    (k, m), blas = V.shape[-2:], _blas()
    start, begin, lead, of_V = S.data_ptr(), V.data_ptr(), _int(k), _int(m)

    def one(i: int, share: _Share) -> None:
        del share
        mine, other = start + i * k * k * _WIDTH, begin + i * k * m * _WIDTH
        blas.square(_TURN, k, m, -1.0, other, of_V, 1.0, mine, lead)

    _spread(one, S.shape[:-2].numel(), k * k * m, divided=False)


def solve_(L: Tensor, B: Tensor, transposed: bool = False) -> None:
    """Put L⁻¹B, or L⁻ᵀB, in place of B.

    Parameters
    ----------
    L : Tensor of shape (*batch, n, n)
        Lower factors with rows that are contiguous, or one for all.
    B : Tensor of shape (*batch, n, k)
        Right-hand sides, contiguous in rows or in columns.
    transposed : bool, default=False
        Whether to solve with Lᵀ.
    """
    n, k = B.shape[-2:]
    by_rows = B.is_contiguous()
    assert L.stride(-1) == 1 and (by_rows or B.mT.is_contiguous())
    # In rows B is to LAPACK its transpose, and BᵀU⁻¹ = (L⁻¹B)ᵀ.
    side, turned = (_RIGHT, transposed) if by_rows else (_LEFT, not transposed)
    turn, blas = _TURN if turned else _PLAIN, _blas()
    factors = L.expand(*B.shape[:-2], n, n)
    places = torch.zeros(1, dtype=torch.int64)
    for size, stride in zip(factors.shape[:-2], factors.stride()[:-2], strict=True):
        places = (places[:, None] + torch.arange(size) * stride).reshape(-1)
    begin, lead, at = factors.data_ptr(), _int(max(L.stride(-2), n)), places.tolist()

    def one(i: int, share: _Share) -> None:
        U = begin + at[i] * _WIDTH
        right = _Matrix(B.data_ptr() + i * n * k * _WIDTH, k if by_rows else n)

        def some(part: tuple[int, int]) -> None:
            first, size = part[0], part[1] - part[0]
            mine = right.at(first, 0) if by_rows else right.at(0, first)
            sizes = (size, n) if by_rows else (n, size)
            blas.solve(side, turn, *sizes, U, lead, mine, right.lead)

        share(some, _cut(0, k, max(FEWEST_COLUMNS, -(-k // (2 * torch.get_num_threads())))))

    _spread(one, len(at), n * n * k, n * n * k >= FEWEST_FLOPS)


def _cut(start: int, stop: int, size: int) -> list[tuple[int, int]]:
    """Places from start to stop in pieces of a size."""
    return [(at, min(stop, at + size)) for at in range(start, stop, size)]


_Share = Callable[[Callable[[tuple[int, int]], None], list[tuple[int, int]]], None]
"""Calls a function on pieces of a matrix, all at the same time or one after the other."""


def _in_turn(work: Callable[[tuple[int, int]], None], parts: list[tuple[int, int]]) -> None:
    for part in parts:
        work(part)


def _spread(one: Callable[[int, _Share], None], count: int, flops: float, divided: bool) -> None:
    """Let every thread work on matrices of its own, or all together on pieces of large ones."""
    threads = torch.get_num_threads()
    with blas_threads(1):
        if threads == 1 or flops * count < FEWEST_FLOPS or (count == 1 and not divided):
            for i in range(count):
                one(i, _in_turn)
        elif count < 2 * threads and divided:
            for i in range(count):
                one(i, at_once)
        else:
            at_once(lambda i: one(i, _in_turn), range(count))
