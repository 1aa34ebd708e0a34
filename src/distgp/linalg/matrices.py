"""Sums and products of matrices, and the shapes of batches."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from distgp.linalg import lapack

GRAM_BLOCK = 128
"""Rows of the blocks that a Gram matrix is computed in."""


def gram(V: Tensor) -> Tensor:
    """VVᵀ for V (*batch, m, n): on a CPU only blocks on and below the diagonal are computed."""
    m = V.shape[-2]
    if V.is_cuda or m < 2 * GRAM_BLOCK:
        return V @ V.mT
    out = V.new_empty(*V.shape[:-2], m, m)
    for start in range(0, m, GRAM_BLOCK):
        stop = min(m, start + GRAM_BLOCK)
        rows = V[..., start:stop, :] @ V[..., :stop, :].mT
        out[..., start:stop, :stop] = rows
        out[..., :start, start:stop] = rows[..., :start].mT
    return out


def minus_gram(S: Tensor, V: Tensor) -> Tensor:
    """S − VVᵀ, perhaps in place of S, and perhaps right on and below the diagonal alone.

    For S (*batch, k, k) that the caller has no other use for, and V (*batch, k, m).
    """
    fit = S.is_contiguous() and V.is_contiguous() and S.shape[:-1] == V.shape[:-1]
    if not fit or not lapack.serves(S, V, rows=S.shape[-1]):
        return S - V @ V.mT
    lapack.subtract_gram_(S, V)
    return S


def add_diagonal(A: Tensor, values: Tensor) -> Tensor:
    """A + diag(values), where values broadcasts to the diagonal's shape (*batch, n)."""
    shape = broadcast(A.shape[:-1], values.shape)
    out = A.expand(*shape, A.shape[-1]).clone()
    out.diagonal(dim1=-2, dim2=-1).add_(values)
    return out


def broadcast(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape that tensors of these shapes have together.

    PyTorch's own function loads half a second of code when it is called first; NumPy's does not take
    the symbols that sizes are while a module is exported.
    """
    found = [1] * max(map(len, shapes))
    for shape in shapes:
        for place, size in enumerate(shape, len(found) - len(shape)):
            if size != 1:
                if found[place] not in (1, size):
                    raise ValueError(f"shapes {', '.join(map(str, shapes))} do not fit together")
                found[place] = size
    return tuple(found)
