"""Kernels whose shape has no parameters of its own, evaluated in blocks, with derivatives by hand."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distgp.kernels.base import places
from distgp.kernels.stationary import (
    BLOCK,
    Stationary,
    augmented,
    both,
    by_differences,
    cancels,
    centred,
    norms,
)

WIDE = 16
"""Columns from which sets of rows in a batch are not augmented: that would copy each of them twice."""


class FixedShape(Stationary):
    """The base class of those whose shape has no parameters of its own, with derivatives by hand.

    Examples
    --------
    >>> from distgp import RBF, RationalQuadratic
    >>> issubclass(RBF, FixedShape), issubclass(RationalQuadratic, FixedShape)
    (True, False)
    """

    proportional: ClassVar[float | None] = None
    """The derivative in r² in units of the kernel, where that is a number: it is not stored then."""
    steepness: ClassVar[float] = 1.0
    """The number by which the derivative in r² is more than what `shape_` makes of it."""
    formula: ClassVar[str | None] = None
    """The shape in C++, of a number s = r², for a GPU that does it in one pass."""

    @abstractmethod
    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Replace r² by the shape; put its derivative in r² / `steepness` into `slope`, if there is one.

        Each r² is a normal number: `at_least_normal_` has lifted those that are 0.
        """

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute shape(r²) for all pairs."""
        return self._gram(X1, X2, None)

    def multiple(self, variance: Tensor, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute variance · shape(r²) for all pairs, in the same pass where there is one variance."""
        if variance.ndim:
            return variance[..., None, None] * self.gram(X1, X2)
        return self._gram(X1, X2, variance)

    def _gram(self, X1: Tensor, X2: Tensor, variance: Tensor | None) -> Tensor:
        """Compute the matrix in the dtype of X1, differentiable in the rows, ℓ and the variance."""
        lengths = self._learnt_lengths(X1, X2)
        with torch.set_grad_enabled(torch.is_grad_enabled() and lengths is None):
            A = self.scaled(X1)
            B = A if X2 is X1 else self.scaled(X2)
            dtype, (A, B) = A.dtype, centred(A, B)
        batch, n1, n2 = A.shape[:-2], A.shape[-2], B.shape[-2]  # A has the batches of both by now
        if batch and B.ndim == 2:
            A = A.reshape(-1, A.shape[-1])
        elif batch:
            A, B = both(
                (A, B), lambda P: P.expand(*batch, *P.shape[-2:]).reshape(-1, *P.shape[-2:])
            )
        if A.ndim == 2:
            A, B = both((A, B), lambda P: P[None])
        turned = len(A) == 1 and A.shape[-2] > B.shape[-2]  # long rows are faster than many
        if turned:
            A, B = B, A
        given = [part for part in (A, B, lengths, variance) if part is not None]
        if torch.is_grad_enabled() and any(part.requires_grad for part in given):
            K = KernelOfDistance.apply(A, B, lengths, variance, self, dtype)
        else:
            K, _ = _evaluated(self, A, B, variance, dtype, with_slope=False)
        return (K.mT if turned else K).reshape(*batch, n1, n2)

    def _learnt_lengths(self, X1: Tensor, X2: Tensor) -> Tensor | None:
        """Return the lengthscales by column if a gradient is wanted in them, and none in the rows."""
        if not torch.is_grad_enabled() or X1.requires_grad or X2.requires_grad:
            return None
        if self.lengthscale.ndim > 1 or not self.lengthscale.requires_grad:
            return None
        if self.anisotropy is not None and self.anisotropy.requires_grad:
            return None  # it moves the rows
        return self.lengthscale_of_each(len(places(self.active_dims, X1.shape[-1])))


def at_least_normal_(square: Tensor) -> Tensor:
    """Lift squared distances that are 0, or less by rounding, to the smallest normal number."""
    return square.clamp_min_(torch.finfo(square.dtype).tiny)


def _blocks(K: Tensor) -> Iterator[tuple[slice, slice]]:
    """List places in a batch of matrices, and of rows in them, that are worked on at a time."""
    count, n1, n2 = K.shape
    size = BLOCK if K.device.type == "cpu" else max(1, K.numel())
    together = size // max(1, n1 * n2)
    if together or n1 == 0:
        for i in range(0, count, max(1, together)):
            yield slice(i, i + max(1, together)), slice(None)
        return
    rows = max(1, size // n2)
    for i in range(count):
        for row in range(0, n1, rows):
            yield slice(i, i + 1), slice(row, row + rows)


def _evaluated(
    shape: FixedShape,
    A: Tensor,
    B: Tensor,
    variance: Tensor | None,
    dtype: torch.dtype,
    with_slope: bool,
) -> tuple[Tensor, Tensor | None]:
    """Compute the kernel and its derivative in r², block after block, while it is in the cache."""
    a, b = norms(A, B)
    far = cancels(a, b)
    sets = B is A and len(A) > 1 and A.shape[-1] >= WIDE and not A.is_cuda
    left, right = (A, A) if sets else augmented(A, B, a, b)
    plain = with_slope or far or not A.is_cuda
    fused = None if plain or shape.formula is None else _fused(shape.formula)
    if fused is not None:
        square = (left @ right.mT).to(dtype)
        return fused(square, square.new_ones(()) if variance is None else variance), None
    K = torch.empty(len(A), A.shape[-2], B.shape[-2], dtype=dtype, device=A.device)
    slope = torch.empty_like(K) if with_slope and shape.proportional is None else None
    for some, rows in _blocks(K):
        block = K[some, rows]
        square = block if dtype == left.dtype else torch.empty_like(block, dtype=left.dtype)
        _multiply(left[some, rows], right[some].mT, square)
        if sets:
            square.mul_(-2.0).add_(a[some, rows, None]).add_(b[some, None, :])
        if square is not block:
            block.copy_(square)
        if far:
            block.copy_(by_differences(block.clamp_min_(0.0), A[some, rows], B[some]))
        at_least_normal_(block)
        steep = None if slope is None else slope[some, rows]
        shape.shape_(block, steep)
        if variance is not None:
            block.mul_(variance)
        if steep is not None:
            steep.mul_(shape.steepness if variance is None else shape.steepness * variance)
    return K, slope


@cache
def _fused(formula: str) -> Callable[[Tensor, Tensor], Tensor] | None:
    """Compile variance · formula, clamped, in one pass on a GPU; None where this PyTorch cannot."""
    try:
        from torch.cuda.jiterator import _create_jit_fn
    except ImportError:
        return None
    text = f"template <typename T> T shape(T s, T v) {{ s = s > T(0) ? s : T(0); return v * ({formula}); }}"
    return _create_jit_fn(text)


def _multiply(left: Tensor, right: Tensor, out: Tensor) -> None:
    if len(left) == 1:
        torch.mm(left[0], right[0], out=out[0])
    else:
        torch.bmm(left, right, out=out)


class _Context(Protocol):
    """The part of PyTorch's context that the derivative needs."""

    shape: Any
    saved_tensors: tuple[Any, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class KernelOfDistance(torch.autograd.Function):
    """variance · shape(r²) for batches of scaled rows A and B, with the derivative written by hand.

    One pass over the matrix gives the kernel and S = ∂k/∂r²; with the incoming gradient G and W = G ∘ S
    the derivative is 2(a_i Σ_j W_ij − Σ_j W_ij b_j) in a_i, likewise in b_j, and ΣG ∘ K over the variance
    in the variance: two matrix products, and no other matrix is kept. Where the `lengths` ℓ of the columns
    are given, which the rows were divided by, it is −2/ℓ_c Σ_ij W_ij (a_ic − b_jc)² in them, by one
    product, and there is none in the rows.
    """

    @staticmethod
    def forward(
        ctx: _Context,
        A: Tensor,
        B: Tensor,
        lengths: Tensor | None,
        variance: Tensor | None,
        shape: FixedShape,
        dtype: torch.dtype,
    ) -> Tensor:
        """Keep the rows, K and, where it is not a multiple of K, S."""
        K, slope = _evaluated(shape, A, B, variance, dtype, with_slope=True)
        ctx.save_for_backward(A, B, lengths, variance, K, slope)
        ctx.shape = shape
        return K

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: _Context, G: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, None, None]:
        """Evaluate the formulas above, block after block."""
        A, B, lengths, variance, K, slope = ctx.saved_tensors
        S, factor = (slope, 2.0) if slope is not None else (K, 2.0 * ctx.shape.proportional)
        in_A = in_B = in_lengths = in_variance = None
        if lengths is not None:
            squares = -factor * _sums_of_squares(A, B, G, S)
            in_lengths = squares.sum(-1, keepdim=True) if len(lengths) == 1 else squares
            in_lengths = in_lengths.to(lengths.dtype) / lengths
        elif any(ctx.needs_input_grad[:2]):
            in_A, in_B = (factor * sums for sums in _slopes_in_rows(A, B, G, S))
        if ctx.needs_input_grad[3]:
            total = torch.stack([(G[at] * K[at]).sum() for at in _blocks(K)]).sum()
            in_variance = (total / variance).to(variance.dtype)
        return in_A, in_B, in_lengths, in_variance, None, None


def _sums_of_squares(A: Tensor, B: Tensor, G: Tensor, S: Tensor) -> Tensor:
    """Compute Σ_ij W_ij (a_ic − b_jc)² for all columns c, W = G ∘ S, added up over a batch, by one product.

    That is Σ_i a_ic² Σ_j W_ij + Σ_j b_jc² Σ_i W_ij − 2Σ_i a_ic (WB)_ic.
    """
    if cancels(*norms(A, B)):
        in_A, in_B = _slopes_by_differences(A, B, G, S)
        return (A * in_A).sum((0, 1)) + (B * in_B).sum((0, 1))
    total, down = A.new_zeros(A.shape[-1]), None
    for some, rows in _blocks(S):
        W = (G[some, rows] * S[some, rows]).to(A.dtype)
        across, a = W.sum(-1), A[some, rows]
        if B is A and rows == slice(None):
            across += W.sum(-2)
        else:
            down = B.new_zeros(B.shape[:-1]) if down is None else down
            down[some] += W.sum(-2)
        product = (W[0] @ B[some.start])[None] if len(W) == 1 else W @ B[some]
        total += product.mul_(-2.0).addcmul_(across[..., None], a).mul_(a).sum((0, 1))
    return total if down is None else total + down.reshape(-1) @ B.square().flatten(0, 1)


def _slopes_in_rows(A: Tensor, B: Tensor, G: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Σ_j W_ij (a_i − b_j) and Σ_i W_ij (b_j − a_i), W = G ∘ S."""
    if cancels(*norms(A, B)):
        return _slopes_by_differences(A, B, G, S)
    # (Σ_j W_ij b_j, Σ_j W_ij) by one product, and likewise for the other side, all transposed.
    a, b = (torch.cat([P.mT, P.new_ones(len(P), 1, P.shape[-2])], -2) for P in (A, B))
    in_A, in_B = torch.empty_like(a), torch.zeros_like(b)
    for some, rows in _blocks(S):
        W = (G[some, rows] * S[some, rows]).to(A.dtype)
        if len(W) == 1:
            in_A[some.start, :, rows] = b[some.start] @ W[0].mT
            in_B[some.start].addmm_(a[some.start][:, rows], W[0])
        else:
            in_A[some, :, rows] = b[some] @ W.mT
            in_B[some].baddbmm_(a[some, :, rows], W)
    by_a, by_b = (
        P * sums[..., -1:, :].mT - sums[..., :-1, :].mT for P, sums in ((A, in_A), (B, in_B))
    )
    return by_a, by_b


def _slopes_by_differences(A: Tensor, B: Tensor, G: Tensor, S: Tensor) -> tuple[Tensor, Tensor]:
    """Compute Σ_j W_ij (a_i − b_j) and Σ_i W_ij (b_j − a_i), W = G ∘ S, where products would cancel."""
    in_A, in_B = torch.zeros_like(A), torch.zeros_like(B)
    for some, rows in _blocks(S):
        W = (G[some, rows] * S[some, rows]).to(A.dtype)
        for column in range(A.shape[-1]):
            each = W * (A[some, rows, column, None] - B[some, None, :, column])
            in_A[some, rows, column] = each.sum(-1)
            in_B[some, :, column] -= each.sum(-2)
    return in_A, in_B
