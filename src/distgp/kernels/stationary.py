"""Kernels of the scaled distance r² = Σ_j (x_j − x′_j)² / ℓ_j², and their derivatives."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distgp.kernels.base import (
    Columns,
    Kernel,
    ParameterError,
    columns,
    field,
    places,
    vector,
    wrong_width,
)

BLOCK = 2**18
"""Entries of a matrix that are worked on at a time on a CPU: 2 MiB, which stays in the cache."""
TOLERATED = 1e-9
"""The error of squared distances, in lengthscales, or their share, from which they are mended: rows must be
some 1,500 lengthscales away from the middle of all to have it."""
SMALL_SET = 256
"""Rows up to which the middle of a set in a batch is that of three of its rows."""


def squared_distance(A: Tensor, B: Tensor) -> Tensor:
    """Compute ‖a_i − b_j‖² for all rows of A and B, the points of reference, by one matrix product.

    ‖a‖² + ‖b‖² − 2aᵀb is the product of the augmented rows (−2a, ‖a‖², 1) and (b, 1, ‖b‖²), in float64,
    where its cancellation mostly does no harm. Both are shifted by the median of B, so that neither an
    offset nor outliers take digits from other rows. The norms are shrunk by the rounding error that the
    product is likely to have, (2 + √d)ε, so that equal rows get exactly 0, in value and in gradient.
    Where cancellation does harm, between rows that are close to each other and far from all others, the
    differences are squared and added.

    Examples
    --------
    >>> A = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> squared_distance(A, A)
    tensor([[ 0., 25.],
            [25.,  0.]])
    """
    dtype, (A, B) = A.dtype, _centred(A, B)
    left, right = _augmented(A, B)
    square = (left @ right.mT).clamp_min(0.0)
    if _cancels(left, right):
        batch = square.shape[:-2]
        wide = (P.expand(*batch, *P.shape[-2:]).reshape(-1, *P.shape[-2:]) for P in (A, B))
        square = _by_differences(square.reshape(-1, *square.shape[-2:]), *wide).reshape(
            square.shape
        )
    return square.to(dtype)


def _centred(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points in float64, shifted by the middle of B."""
    A, B = A.to(torch.float64), B.to(torch.float64)
    centre = _middle(B.detach())
    return A - centre, B - centre


def _augmented(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows whose products are the squared distances."""
    shrink = 1.0 - (2.0 + math.sqrt(A.shape[-1])) * torch.finfo(A.dtype).eps
    a = A.square().sum(-1, keepdim=True) * shrink
    b = B.square().sum(-1, keepdim=True) * shrink
    left = torch.cat([-2.0 * A, a, torch.ones_like(a)], -1)
    return left, torch.cat([B, torch.ones_like(b), b], -1)


def _cancels(left: Tensor, right: Tensor) -> bool:
    """Whether the rounding error of some product of augmented rows may be more than `TOLERATED`."""
    if torch.compiler.is_compiling() or not left.numel() or not right.numel():
        return False  # an exported program cannot look at its numbers
    largest = left[..., -2].detach().max() + right[..., -1].detach().max()
    return bool(torch.finfo(left.dtype).eps * largest > TOLERATED)


def _by_differences(square: Tensor, A: Tensor, B: Tensor) -> Tensor:
    """Replace the squared distances (count, n1, n2) that lost their digits by those of the differences.

    The product is wrong by about ε(‖a‖² + ‖b‖²), which is tolerated up to `TOLERATED`, or that share of
    the squared distance.
    """
    with torch.no_grad():
        eps = torch.finfo(A.dtype).eps
        wrong = eps * (A.square().sum(-1)[..., None] + B.square().sum(-1)[..., None, :])
        lost = (wrong > TOLERATED * square.clamp_min(1.0)).nonzero(as_tuple=True)
    item, row, column = lost
    parts = zip(*(index.split(BLOCK) for index in (item, row, column)), strict=True)
    mended = [(A[i, r] - B[i, c]).square().sum(-1) for i, r, c in parts]
    return square.index_put(lost, torch.cat(mended).to(square.dtype)) if mended else square


def _middle(B: Tensor) -> Tensor:
    """Return a point in the middle of the rows of B (*batch, n, d), column by column, (*batch, 1, d).

    That is the median, so that outliers do not move it; of many small sets (neighbourhoods of rows)
    the median of the first, a middle and the last row, which costs far less.
    """
    n = B.shape[-2]
    if B.ndim == 2 or n > SMALL_SET:
        return B.median(-2, keepdim=True).values
    first, middle, last = B[..., :1, :], B[..., n // 2 : n // 2 + 1, :], B[..., -1:, :]
    low, high = torch.minimum(first, last), torch.maximum(first, last)
    return torch.maximum(low, torch.minimum(high, middle))


def safe_sqrt(square: Tensor) -> Tensor:
    """Compute the square root, with derivative 0 instead of infinity at 0."""
    return square.clamp_min(torch.finfo(square.dtype).tiny).sqrt()


def lengths(value: Sequence[int] | None) -> tuple[int, ...] | None:
    """Convert the places of lengthscales, one for each column, to a tuple; None for one each."""
    if value is None:
        return None
    found = tuple(int(place) for place in value)
    if not found or min(found) < 0:
        raise ParameterError(
            "shared must say for each column which lengthscale it has, by numbers from 0, such as "
            f"(0, 1, 1), or be None, got {found}"
        )
    return found


class Stationary(Kernel):
    """The base class of kernels k(x, x′) = shape(r²), shape(0) = 1, with the parameters of `RBF`."""

    units: ClassVar[Mapping[str, int]] = {"lengthscale": 1}
    lengthscale: Tensor = field(default=1.0, converter=vector)
    active_dims: Columns = field(default=None, converter=columns)
    shared: tuple[int, ...] | None = field(default=None, converter=lengths, kw_only=True)

    @abstractmethod
    def shape(self, square: Tensor) -> Tensor:
        """Compute the kernel from the matrix of r²."""

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute shape(r²) for all pairs."""
        A = self.scaled(X1)
        B = A if X2 is X1 else self.scaled(X2)
        return self.shape(squared_distance(A, B))

    def diag(self, X: Tensor) -> Tensor:
        """Return ones."""
        return torch.ones_like(X[..., 0] * self.lengthscale[..., :1], dtype=X.dtype)

    def scaled(self, X: Tensor) -> Tensor:
        """Return the active columns in units of the lengthscales, x / ℓ."""
        if self.active_dims is not None:
            X = X[..., places(self.active_dims, X.shape[-1])]
        return X / self.lengthscale_by_column(X.shape[-1])[..., None, :]

    def lengthscale_by_column(self, count: int) -> Tensor:
        """Return the lengthscale of each of the `count` active columns, or one for all of them."""
        held = self.lengthscale.shape[-1]
        if self.shared is None:
            if held not in (1, count):
                raise wrong_width(held, count)
            return self.lengthscale
        if len(self.shared) != count:
            raise ParameterError(
                f"shared says which lengthscale each of {len(self.shared)} columns has, but the kernel "
                f"looks at {count} columns: give it one entry for each of them"
            )
        if set(self.shared) != set(range(held)):
            raise ParameterError(
                f"the kernel holds {held} lengthscales, but shared refers to {sorted(set(self.shared))}: "
                f"it must refer to all of them, by numbers from 0 to {held - 1}"
            )
        return self.lengthscale[..., list(self.shared)]


class FixedShape(Stationary):
    """The base class of those whose shape has no parameters of its own, with derivatives by hand."""

    proportional: ClassVar[float | None] = None
    """The derivative in r² in units of the kernel, where that is a number: it is not stored then."""
    formula: ClassVar[str | None] = None
    """The shape in C++, of a number s = r², for a GPU that does it in one pass."""

    @abstractmethod
    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Replace r² by the shape; put its derivative in r² into `slope`, if there is one."""

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute shape(r²) for all pairs."""
        return self._gram(X1, X2, None)

    def multiple(self, variance: Tensor, X1: Tensor, X2: Tensor) -> Tensor:
        """Compute variance · shape(r²) for all pairs, in the same pass where there is one variance."""
        if variance.ndim:
            return variance[..., None, None] * self.gram(X1, X2)
        return self._gram(X1, X2, variance)

    def _gram(self, X1: Tensor, X2: Tensor, variance: Tensor | None) -> Tensor:
        """Compute the matrix in the dtype of X1, differentiable in the rows and the variance."""
        A = self.scaled(X1)
        B = A if X2 is X1 else self.scaled(X2)
        dtype, (A, B) = A.dtype, _centred(A, B)
        batch, n1, n2 = A.shape[:-2], A.shape[-2], B.shape[-2]  # A has the batches of both by now
        if batch and B.ndim == 2:
            A = A.reshape(-1, A.shape[-1])
        elif batch:
            A, B = (P.expand(*batch, *P.shape[-2:]).reshape(-1, *P.shape[-2:]) for P in (A, B))
        if A.ndim == 2:
            A, B = A[None], B[None]
        turned = len(A) == 1 and A.shape[-2] > B.shape[-2]  # long rows are faster than many
        if turned:
            A, B = B, A
        given = [A, B] if variance is None else [A, B, variance]
        if torch.is_grad_enabled() and any(part.requires_grad for part in given):
            K = KernelOfDistance.apply(A, B, variance, self, dtype)
        else:
            K, _ = _evaluated(self, A, B, variance, dtype, with_slope=False)
        return (K.mT if turned else K).reshape(*batch, n1, n2)


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
    left, right = _augmented(A, B)
    far = _cancels(left, right)
    plain = with_slope or far or not A.is_cuda
    fused = None if plain or shape.formula is None else _fused(shape.formula)
    if fused is not None:
        square = (left @ right.mT).to(dtype)
        return fused(square, square.new_ones(()) if variance is None else variance), None
    K = torch.empty(len(A), A.shape[-2], B.shape[-2], dtype=dtype, device=A.device)
    slope = torch.empty_like(K) if with_slope and shape.proportional is None else None
    for some, rows in _blocks(K):
        block = K[some, rows]
        if dtype == left.dtype:
            _multiply(left[some, rows], right[some].mT, block)
            block.clamp_min_(0.0)
        else:
            block.copy_((left[some, rows] @ right[some].mT).clamp_min_(0.0))
        if far:
            block.copy_(_by_differences(block, A[some, rows], B[some]))
        steep = None if slope is None else slope[some, rows]
        shape.shape_(block, steep)
        if variance is not None:
            block.mul_(variance)
            if steep is not None:
                steep.mul_(variance)
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
    """variance · shape(r²) for batches of rows A and B, with the derivative written by hand.

    One pass over the matrix gives the kernel and S = ∂k/∂r²; with the incoming gradient G and
    W = G ∘ S the derivative is 2(a_i Σ_j W_ij − Σ_j W_ij b_j) in a_i, likewise in b_j, and ΣG ∘ K over
    the variance in the variance: two matrix products, and no other matrix is kept.
    """

    @staticmethod
    def forward(
        ctx: _Context,
        A: Tensor,
        B: Tensor,
        variance: Tensor | None,
        shape: FixedShape,
        dtype: torch.dtype,
    ) -> Tensor:
        """Keep the rows, K and, where it is not a multiple of K, S."""
        K, slope = _evaluated(shape, A, B, variance, dtype, with_slope=True)
        ctx.save_for_backward(A, B, variance, K, slope)
        ctx.shape = shape
        return K

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: _Context, G: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        """Evaluate the formulas above, block after block."""
        A, B, variance, K, slope = ctx.saved_tensors
        S, factor = (slope, 2.0) if slope is not None else (K, 2.0 * ctx.shape.proportional)
        far = _cancels(*_augmented(A, B))
        # (Σ_j W_ij b_j, Σ_j W_ij) by one product, and likewise for the other side, all transposed.
        a, b = (torch.cat([P.mT, P.new_ones(len(P), 1, P.shape[-2])], -2) for P in (A, B))
        in_A, in_B = torch.empty_like(a), torch.zeros_like(b)
        wanted, total = ctx.needs_input_grad[2], A.new_zeros(())
        for some, rows in _blocks(K):
            W = (G[some, rows] * S[some, rows]).to(A.dtype)
            if len(W) == 1:
                in_A[some.start, :, rows] = b[some.start] @ W[0].mT
                in_B[some.start].addmm_(a[some.start][:, rows], W[0])
            else:
                in_A[some, :, rows] = b[some] @ W.mT
                in_B[some].baddbmm_(a[some, :, rows], W)
            if wanted and slope is not None:
                total += (G[some, rows] * K[some, rows]).sum()
        if wanted and slope is None:
            total = in_A[..., -1, :].sum()
        if far:
            in_A, in_B = (factor * sums for sums in _slopes_by_differences(A, B, G, S))
        else:
            in_A, in_B = (
                factor * (P * sums[..., -1:, :].mT - sums[..., :-1, :].mT)
                for P, sums in ((A, in_A), (B, in_B))
            )
        in_variance = (total / variance).to(variance.dtype) if wanted else None
        return in_A, in_B, in_variance, None, None


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
