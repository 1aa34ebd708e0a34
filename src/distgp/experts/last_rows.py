"""The likelihood of the last row of many small sets, for kernels that are a shape of the distance.

Training by nearest rows spends its time here. With S the covariance of a set and L its factor, w = L⁻ᵀe_l,
t = (L⁻¹y)_l for the last row l, −log p(y_l | the others) = ½t² + log L_ll + ½ log 2π. With α = S⁻¹y and
p = ½(t² + 1)w − tα its derivative in S is ½(pwᵀ + wpᵀ): of rank two. So nothing but one product with
M = ∂k/∂r² is needed for the derivatives in all lengthscales: with rows a in units of them, and
W = M ∘ (pwᵀ + wpᵀ), whose rows add up to D,

    Σ_ij p_i M_ij w_j (a_ic − a_jc)² = ½ Σ_ij W_ij (a_ic − a_jc)² = a_cᵀ(D − W)a_c,

and since Kw = Sw − σ²w = L_ll e_l − σ²w, that in the variance needs no product at all.

All is in units of the variance v: S = v(R + νI) with R the shape and ν = σ²/v. With y divided by √v the
same formulas of R + νI give the same t, an L_ll that is √v times smaller, and p and w that are √v times
larger. So the derivatives in ℓ, for which M is ∂R/∂r², come as they are, and those in S are divided by v.

On a CPU a few sets at a time go all the way, while their matrices are in its cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from distgp import linalg
from distgp.kernels import Kernel
from distgp.kernels.fused import Shaped, shaped
from distgp.kernels.shapes import WIDE, FixedShape, at_least_normal_
from distgp.kernels.stationary import TOLERATED

TILE = 32
"""Rows of the blocks that the lower triangle of a kernel matrix is made of."""
AT_ONCE = 2**18
"""Entries of the largest matrices that are worked on at a time on a CPU, while they are in its cache."""


class Neighbours(NamedTuple):
    """The neighbours of B points: X (B, k, d), y and `real` (B, k), which is False where there are fewer.

    With a global part V (B, k, m) is v at each; with a `factor` (B, k) its noise variance is σ² times that.
    """

    X: Tensor
    y: Tensor
    real: Tensor
    V: Tensor | None = None
    factor: Tensor | None = None


class _Rows(NamedTuple):
    """Rows of sets (B, q, d) in units of the lengthscales, relative to a point of each, and ‖a‖² (B, q)."""

    a: Tensor
    square: Tensor

    def of_sets(self, some: slice) -> _Rows:
        """All rows of some of the sets."""
        return _Rows(self.a[some], self.square[some])

    def some(self, start: int, stop: int | None = None) -> _Rows:
        """Those from one place to another in every set."""
        return _Rows(self.a[:, start:stop], self.square[:, start:stop])


class WithSlopes(torch.autograd.Function):
    """A number whose derivatives in some tensors are known."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, value: Tensor, slopes: tuple[Tensor, ...], *given: Tensor
    ) -> Tensor:
        """Keep the derivatives, one for each of the tensors that are given."""
        del given
        ctx.save_for_backward(*slopes)
        return value.clone()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: BackwardCFunction, g: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Hand on what is known."""
        return None, None, *(g * slope for slope in ctx.saved_tensors)


def lower_kernel(kernel: Kernel, X: Tensor) -> Tensor:
    """k(X, X) for sets of rows (B, q, d), of which only the lower triangle is sure to be right.

    On a CPU blocks above the diagonal are left out: any number may be there.
    """
    found = shaped(kernel)
    rows = _tiled(kernel, X, X[..., -1:, :])
    return kernel(X) if rows is None or found is None else _lower(found, rows)


def kernel_at_points(kernel: Kernel, x: Tensor, X: Tensor) -> tuple[Tensor, Tensor]:
    """`lower_kernel` of sets of rows (B, q, d), and k(x, X) (B, q) for a point of each, x (B, d)."""
    found = shaped(kernel)
    rows = _tiled(kernel, X, x[:, None, :])
    if rows is None or found is None:
        return lower_kernel(kernel, X), kernel(x[:, None, :], X)[:, 0, :]
    c = at_least_normal_(rows.square.clone())
    found.kernel.shape_(c, None)
    return _lower(found, rows), c.mul_(found.variance)


def _tiled(kernel: Kernel, X: Tensor, origin: Tensor) -> _Rows | None:
    """The rows of sets where the lower triangle of their kernel matrices is made of tiles, else None."""
    found = shaped(kernel)
    learnt = torch.is_grad_enabled() and any(v.requires_grad for v in kernel.parameters().values())
    if found is None or learnt or X.ndim != 3 or X.shape[-2] <= TILE or X.device.type != "cpu":
        return None
    if found.variance.ndim:
        return None
    shape = found.kernel
    inverse = 1.0 / shape.lengthscale_of_each(shape.located(origin).shape[-1])
    return _relative(shape, X, origin, inverse)


def _lower(found: Shaped, rows: _Rows) -> Tensor:
    """The lower triangles of kernel matrices, made in columns, in which they are factorised faster."""
    batch, q = rows.square.shape
    out = rows.a.new_empty(batch, q, q)
    for start in range(0, q, TILE):
        stop = min(q, start + TILE)
        whole = out[:, start:stop, start:]
        for some in _few_tiles(whole):
            part = rows.of_sets(some)
            tile = _square_between(part.some(start, stop), part.some(start))
            found.kernel.shape_(tile, None)
            torch.mul(tile, found.variance, out=whole[some])
    out.diagonal(dim1=-2, dim2=-1).copy_(found.variance.expand(batch, q))
    return out.mT


def _few_tiles(whole: Tensor) -> Iterator[slice]:
    """List places in a batch of tiles that are made at a time: four of them are in the cache at once."""
    size = max(1, AT_ONCE // (4 * whole[0].numel()))
    return (slice(i, i + size) for i in range(0, len(whole), size))


def of_last_rows(
    shape: FixedShape, variance: Tensor, noise: Tensor, sets: Neighbours
) -> Tensor | None:
    """Σ −log p of the last row of every set given the others, differentiable in ℓ, variance and noise.

    The derivatives are computed beside the value, while its matrices are at hand. None where rows are too
    far for products, or where training moves them.
    """
    if shape.anisotropy is not None and shape.anisotropy.requires_grad:
        return None
    lengths = shape.lengthscale_of_each(shape.located(sets.X[:1]).shape[-1])
    given = (lengths, variance, noise)
    wanted = torch.is_grad_enabled() and any(one.requires_grad for one in given)
    with torch.no_grad():
        v, inverse = variance.detach(), 1.0 / lengths.detach()
        ratio, y, every = noise.detach() / v, sets.y / v.sqrt(), bool(sets.real.all())
        parts: list[tuple[Tensor, ...]] = []
        for some in _few_sets(sets.X):
            rows = _relative(shape, sets.X[some], sets.X[some, -1:], inverse)
            if rows is None:
                return None
            real = None if every else sets.real[some]
            factor = None if sets.factor is None else sets.factor[some]
            parts.append(_of_some(shape, ratio, rows, y[some], real, factor, wanted))
        sums = [torch.stack(part).sum(0) for part in zip(*parts, strict=True)]
    value = sums[0] + 0.5 * len(y) * (math.log(2.0 * math.pi) + v.log())
    if not wanted:
        return value
    in_lengths = sums[3].sum(-1, keepdim=True) if len(lengths) == 1 else sums[3]
    slopes = (in_lengths * inverse, (sums[1] - ratio * sums[2]) / v, sums[2] / v)
    return WithSlopes.apply(value, slopes, *given)


def _of_some(
    shape: FixedShape,
    ratio: Tensor,
    rows: _Rows,
    y: Tensor,
    real: Tensor | None,
    factor: Tensor | None,
    wanted: bool,
) -> tuple[Tensor, ...]:
    """Σ(½t² + log L_ll), and if wanted Σ p_l L_ll, Σ pᵀw and the derivatives in log ℓ, in units of v."""
    R = _square_between(rows, rows)
    slope = torch.empty_like(R) if wanted and shape.proportional is None else None
    shape.shape_(R, slope)
    if factor is not None:
        ratio = ratio * factor
    if real is not None:
        R.masked_fill_(~(real[..., :, None] & real[..., None, :]), 0.0)
        ratio, y = torch.where(real, ratio, 1.0), torch.where(real, y, 0.0)
    R.diagonal(dim1=-2, dim2=-1).add_(ratio)
    L = linalg.many_cholesky(R, "the covariance of a row and its neighbours")
    u, s = linalg.solve_lower(L, y[..., None]), L[:, -1, -1]
    t = u[:, -1]
    value = 0.5 * torch.dot(t[:, 0], t[:, 0]) + s.log().sum()
    if not wanted:
        return (value,)
    last = y.new_zeros(y.shape[-1], 1)
    last[-1] = 1.0
    both = linalg.solve_upper(L, torch.cat([last.expand_as(u), u], -1))
    w, alpha = both.unbind(-1)
    p = (0.5 * t.square() + 0.5) * w - t * alpha
    pw = p * w if factor is None else p * w * factor
    M, scale = (R, shape.proportional or 0.0) if slope is None else (slope, shape.steepness)
    return value, torch.dot(p[:, -1], s), pw.sum(), _by_column(M, rows.a, w, p).mul_(-2.0 * scale)


def _relative(shape: FixedShape, X: Tensor, origin: Tensor, inverse: Tensor) -> _Rows | None:
    """Rows of sets relative to a point of each (B, 1, d), times 1/ℓ; None where they are too far from it.

    Distances by products would lose their digits then.
    """
    X, origin = (shape.located(P).detach() for P in (X, origin))
    a = (X - origin).mul_(inverse.detach())
    square = torch.linalg.vecdot(a, a)
    lost = torch.finfo(a.dtype).eps * 2.0 * float(square.max()) > TOLERATED
    return None if lost else _Rows(a, square)


def _few_sets(X: Tensor) -> Iterator[slice]:
    """List places in a batch of sets (B, q, d) that are worked on at a time: on a CPU few, else all."""
    q, d = X.shape[-2:]
    size = AT_ONCE // max(1, q * max(q, d)) if X.device.type == "cpu" else len(X)
    return (slice(i, i + max(1, size)) for i in range(0, len(X), max(1, size)))


def _square_between(left: _Rows, right: _Rows) -> Tensor:
    """The squared distances of rows in each set, at least the smallest normal number."""
    # Shrunk by a rounding error, so that equal rows get exactly 0.
    shrink = 1.0 - (2.0 + math.sqrt(left.a.shape[-1])) * torch.finfo(left.a.dtype).eps
    mine, others = left.square[..., :, None], right.square[..., None, :]
    if left.a.shape[-1] < WIDE:
        square = (mine + others).baddbmm_(left.a, right.a.mT, beta=shrink, alpha=-2.0)
    else:
        square = linalg.product(left.a, right.a.mT)
        torch.add(shrink * mine, square, alpha=-2.0, out=square).add_(shrink * others)
    return at_least_normal_(square)


def _by_column(M: Tensor, rows: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Σ_ij p_i M_ij w_j (a_ic − a_jc)² for every column c, over all sets; M is symmetric."""
    W = p[:, :, None] * w[:, None, :]
    W.addcmul_(w[:, :, None], p[:, None, :]).mul_(M)
    total = W.sum(-1)
    W.diagonal(dim1=-2, dim2=-1).sub_(total)
    return linalg.product(W, rows).mul_(rows).sum((0, 1)).neg_()
