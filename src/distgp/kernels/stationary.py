"""Kernels of the scaled distance r² = Σ_j (x_j − x′_j)² / ℓ_j², and their derivatives."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar, Protocol, TypeAlias

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
WIDE = 16
"""Columns from which sets of rows in a batch are not augmented: that would copy each of them twice."""
SMALL_SET = 256
"""Rows up to which the middle of a set in a batch is that of three of its rows."""
EARTH = 6371.0088
"""The mean radius of the Earth in km."""
Degrees: TypeAlias = tuple[tuple[float, float], tuple[float, float]]
"""The mean and the scale by which longitudes, and latitudes, were standardised."""
PLAIN_DEGREES: Degrees = ((0.0, 1.0), (0.0, 1.0))


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
    a, b = _norms(A, B)
    left, right = _augmented(A, B, a, b)
    square = (left @ right.mT).clamp_min(0.0)
    if _cancels(a, b):
        batch = square.shape[:-2]
        wide = (P.expand(*batch, *P.shape[-2:]).reshape(-1, *P.shape[-2:]) for P in (A, B))
        square = _by_differences(square.reshape(-1, *square.shape[-2:]), *wide).reshape(
            square.shape
        )
    return square.to(dtype)


def _centred(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return the points in float64, shifted by the middle of B; the same tensor twice if both are one."""
    same, B = A is B, B.to(torch.float64)
    centre = _middle(B.detach())
    shifted = B - centre
    return shifted if same else A.to(torch.float64) - centre, shifted


def _shrink(d: int) -> float:
    """Return 1 less the rounding error that a product of d columns is likely to have."""
    return 1.0 - (2.0 + math.sqrt(d)) * torch.finfo(torch.float64).eps


def _norms(A: Tensor, B: Tensor) -> tuple[Tensor, Tensor]:
    """Return ‖a‖² and ‖b‖², shrunk."""
    a, b = _each((A, B), lambda P: torch.linalg.vecdot(P, P) * _shrink(P.shape[-1]))
    return a, b


def _augmented(A: Tensor, B: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows whose products are the squared distances, from rows and their norms."""
    left = torch.cat([-2.0 * A, a[..., None], torch.ones_like(a)[..., None]], -1)
    return left, torch.cat([B, torch.ones_like(b)[..., None], b[..., None]], -1)


def _cancels(a: Tensor, b: Tensor) -> bool:
    """Whether the rounding error of some squared distance may be more than `TOLERATED`, by the norms."""
    if torch.compiler.is_compiling() or not a.numel() or not b.numel():
        return False  # an exported program cannot look at its numbers
    largest = a.detach().max() + b.detach().max()
    return bool(torch.finfo(a.dtype).eps * largest > TOLERATED)


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

    That is the median, so that outliers do not move it, of some hundreds of rows where there are more; of
    many small sets (neighbourhoods of rows) that of the first, a middle and the last row, which costs far
    less.
    """
    n = B.shape[-2]
    if B.ndim == 2 or n > SMALL_SET:
        return B[..., :: max(1, n // SMALL_SET), :].median(-2, keepdim=True).values
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


def stretches(value: Sequence[float] | None) -> tuple[float, ...] | None:
    """Convert the factors of columns, one for each, to a tuple; None where all are 1."""
    if value is None:
        return None
    found = tuple(float(factor) for factor in value)
    if not found or not all(0.0 < factor < math.inf for factor in found):
        raise ParameterError(
            f"stretch must have a positive, finite number for each column, or be None, got {found}"
        )
    return found


def degrees(value: bool | Degrees | None) -> Degrees | None:
    """Convert how two columns become degrees: True for columns that hold them, None for no sphere."""
    if value is None or value is False:
        return None
    if value is True:
        return PLAIN_DEGREES
    (lon, lon_scale), (lat, lat_scale) = value
    return (float(lon), float(lon_scale)), (float(lat), float(lat_scale))


def on_sphere(X: Tensor, sphere: Degrees) -> Tensor:
    """Place longitudes and latitudes (*batch, n, 2) on the Earth's sphere: x, y, z in km, (*batch, n, 3).

    The straight line between two such points, through the Earth, is the chord 2R sin(angle / 2). Kernels of
    distances in three dimensions stay positive definite on it, which those of arcs need not.

    Examples
    --------
    >>> on_sphere(torch.tensor([[0.0, 0.0]]), PLAIN_DEGREES).round()
    tensor([[6371.,    0.,    0.]])
    """
    if X.shape[-1] != 2:
        raise ParameterError(
            "a kernel on the sphere looks at two columns, longitude and latitude, got "
            f"{X.shape[-1]}: name them in active_dims"
        )
    lon, lat = (
        torch.deg2rad(mean + scale * X[..., place]) for place, (mean, scale) in enumerate(sphere)
    )
    around = lat.cos()
    return EARTH * torch.stack([around * lon.cos(), around * lon.sin(), lat.sin()], -1)


class Stationary(Kernel):
    """The base class of kernels k(x, x′) = shape(r²), shape(0) = 1, with the parameters of `RBF`."""

    units: ClassVar[Mapping[str, int]] = {"lengthscale": 1}
    lengthscale: Tensor = field(default=1.0, converter=vector)
    active_dims: Columns = field(default=None, converter=columns)
    shared: tuple[int, ...] | None = field(default=None, converter=lengths, kw_only=True)
    stretch: tuple[float, ...] | None = field(default=None, converter=stretches, kw_only=True)
    sphere: Degrees | None = field(default=None, converter=degrees, kw_only=True)

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
        if self.sphere is not None:
            X = on_sphere(X, self.sphere)
        return X / self.lengthscale_by_column(X.shape[-1])[..., None, :]

    def lengthscale_by_column(self, count: int) -> Tensor:
        """Return the lengthscale of each of the `count` active columns, or one for all of them."""
        found = self._shared_by(count)
        if self.stretch is None:
            return found
        if len(self.stretch) != count:
            raise wrong_width(len(self.stretch), count)
        return found / found.new_tensor(self.stretch)

    def _shared_by(self, count: int) -> Tensor:
        """Return the lengthscale of each active column, or one for all, before columns are stretched."""
        held = self.lengthscale.shape[-1]
        if self.sphere is not None and held > 1:
            raise ParameterError(
                f"a kernel on the sphere has one lengthscale, in km, got {held}: give one number"
            )
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
        """Compute the matrix in the dtype of X1, differentiable in the rows, ℓ and the variance."""
        lengths = self._learnt_lengths(X1, X2)
        with torch.set_grad_enabled(torch.is_grad_enabled() and lengths is None):
            A = self.scaled(X1)
            B = A if X2 is X1 else self.scaled(X2)
            dtype, (A, B) = A.dtype, _centred(A, B)
        batch, n1, n2 = A.shape[:-2], A.shape[-2], B.shape[-2]  # A has the batches of both by now
        if batch and B.ndim == 2:
            A = A.reshape(-1, A.shape[-1])
        elif batch:
            A, B = _each(
                (A, B), lambda P: P.expand(*batch, *P.shape[-2:]).reshape(-1, *P.shape[-2:])
            )
        if A.ndim == 2:
            A, B = _each((A, B), lambda P: P[None])
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
        return self.lengthscale_by_column(len(places(self.active_dims, X1.shape[-1])))


def _each(pair: tuple[Tensor, Tensor], change: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Change two tensors, which stay one if they are one."""
    first = change(pair[0])
    return first, first if pair[1] is pair[0] else change(pair[1])


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
    a, b = _norms(A, B)
    far = _cancels(a, b)
    sets = B is A and len(A) > 1 and A.shape[-1] >= WIDE and not A.is_cuda
    left, right = (A, A) if sets else _augmented(A, B, a, b)
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
        square.clamp_min_(0.0)
        if square is not block:
            block.copy_(square)
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
    if _cancels(*_norms(A, B)):
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
    if _cancels(*_norms(A, B)):
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
