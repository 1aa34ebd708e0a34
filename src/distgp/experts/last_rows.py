"""The likelihood of the last row of many small sets, for kernels that are a shape of the distance.

Training by nearest rows spends its time here. With S the covariance of a set and L its factor, w = L⁻ᵀe_l,
t = (L⁻¹y)_l for the last row l, −log p(y_l | the others) = ½t² + log L_ll + ½ log 2π. With α = S⁻¹y and
p = ½(t² + 1)w − tα its derivative in S is ½(pwᵀ + wpᵀ): of rank two. So nothing but one product with
M = ∂k/∂r² is needed for the derivatives in all lengthscales: with rows a in units of them,

    Σ_ij p_i M_ij w_j (a_ic − a_jc)² = Σ_i (p_i (Mw)_i + w_i (Mp)_i) a_ic² − 2 Σ_i p_i a_ic (M(w ∘ a_c))_i,

and since Kw = Sw − σ²w = L_ll e_l − σ²w, that in the variance needs no product at all.
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
from distgp.kernels.shapes import FixedShape
from distgp.kernels.stationary import TOLERATED

TILE = 32
"""Rows of the blocks that the lower triangle of a kernel matrix is made of."""
AT_ONCE = 2**16
"""Entries of kernel matrices that are made at a time on a CPU, while they are in its cache."""


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


class LastRows(torch.autograd.Function):
    """Σ −log p of the last row of every set, differentiable in ℓ by column, the variance and the noise.

    The derivatives are computed beside the value, while its matrices are at hand.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx,
        lengths: Tensor,
        variance: Tensor,
        noise: Tensor,
        rows: _Rows,
        sets: Neighbours,
        shape: FixedShape,
    ) -> Tensor:
        """Evaluate the formulas above for rows relative to the last."""
        wanted = any(ctx.needs_input_grad)  # pyright: ignore[reportAttributeAccessIssue]
        K = rows.a.new_empty(*sets.y.shape, sets.y.shape[-1])
        slope = torch.empty_like(K) if wanted and shape.proportional is None else None
        for some in _few_sets(K):
            part = rows.of_sets(some)
            _square_between(part, part, K[some])
            shape.shape_(K[some], None if slope is None else slope[some])
            K[some].mul_(variance)
        each = noise.expand(K.shape[:-1]) if sets.factor is None else noise * sets.factor
        y = sets.y
        if not bool(sets.real.all()):
            K.masked_fill_(~(sets.real[..., :, None] & sets.real[..., None, :]), 0.0)
            each, y = torch.where(sets.real, each, 1.0), torch.where(sets.real, y, 0.0)
        K.diagonal(dim1=-2, dim2=-1).add_(each)
        L = linalg.cholesky(K, "the covariance of a row and its neighbours")
        u, s = linalg.solve_lower(L, y[..., None]), L[..., -1, -1]
        t = u[:, -1, 0]
        if wanted:
            last = torch.zeros_like(u)
            last[:, -1] = 1.0
            w, alpha = linalg.solve_upper(L, torch.cat([last, u], -1)).unbind(-1)
            p = (0.5 * (t.square() + 1.0))[:, None] * w - t[:, None] * alpha
            own = shape.steepness * variance
            M, scale = (K, shape.proportional or 0.0) if slope is None else (slope, own)
            in_lengths = _by_column(M, rows.a, w, p).mul_(-2.0 * scale)
            in_lengths = in_lengths.sum(-1, keepdim=True) if len(lengths) == 1 else in_lengths
            pw = p * w
            in_noise = pw if sets.factor is None else pw * sets.factor
            in_variance = ((p[:, -1] * s).sum() - (pw * each).sum()) / variance
            ctx.save_for_backward(in_lengths / lengths, in_variance, in_noise.sum())
        half = 0.5 * math.log(2.0 * math.pi)
        return 0.5 * t.square().sum() + s.log().sum() + half * len(t)

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: BackwardCFunction, g: Tensor
    ) -> tuple[Tensor | None, ...]:
        """Hand on what was computed."""
        return *(g * part for part in ctx.saved_tensors), None, None, None


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
    c = rows.square.clone()
    found.kernel.shape_(c, None)
    return _lower(found, rows), c.mul_(found.variance)


def _tiled(kernel: Kernel, X: Tensor, origin: Tensor) -> _Rows | None:
    """The rows of sets where the lower triangle of their kernel matrices is made of tiles, else None."""
    found = shaped(kernel)
    learnt = torch.is_grad_enabled() and any(v.requires_grad for v in kernel.parameters().values())
    if found is None or learnt or X.ndim != 3 or X.shape[-2] <= TILE or X.device.type != "cpu":
        return None
    return None if found.variance.ndim else _relative(found.kernel, X, origin)


def _lower(found: Shaped, rows: _Rows) -> Tensor:
    """The lower triangles of kernel matrices, made in columns, in which they are factorised faster."""
    batch, q = rows.square.shape
    out = rows.a.new_empty(batch, q, q)
    for start in range(0, q, TILE):
        stop = min(q, start + TILE)
        whole = out[:, start:stop, start:]
        for some in _few_sets(whole):
            part, tile = rows.of_sets(some), out.new_empty(whole[some].shape)
            _square_between(part.some(start, stop), part.some(start), tile)
            found.kernel.shape_(tile, None)
            torch.mul(tile, found.variance, out=whole[some])
    out.diagonal(dim1=-2, dim2=-1).copy_(found.variance.expand(batch, q))
    return out.mT


def of_last_rows(
    shape: FixedShape, variance: Tensor, noise: Tensor, sets: Neighbours
) -> Tensor | None:
    """Σ −log p of the last row of every set given the others.

    None where rows are too far for products, or where training moves them.
    """
    moving = shape.anisotropy is not None and shape.anisotropy.requires_grad
    rows = None if moving else _relative(shape, sets.X, sets.X[..., -1:, :])
    if rows is None:
        return None
    lengths = shape.lengthscale_of_each(rows.a.shape[-1])
    return LastRows.apply(lengths, variance, noise, rows, sets, shape)


def _relative(shape: FixedShape, X: Tensor, origin: Tensor) -> _Rows | None:
    """Rows of sets relative to a point of each (B, 1, d); None where they are too far from it.

    Distances by products would lose their digits then.
    """
    X, origin = (shape.located(P).detach() for P in (X, origin))
    a = (X - origin).div_(shape.lengthscale_of_each(X.shape[-1]).detach())
    square = torch.linalg.vecdot(a, a)
    lost = torch.finfo(a.dtype).eps * 2.0 * square.max() > TOLERATED
    return None if bool(lost) else _Rows(a, square)


def _few_sets(K: Tensor) -> Iterator[slice]:
    """List places in a batch of matrices that are made at a time: on a CPU few, else all."""
    size = AT_ONCE // max(1, K[0].numel()) if K.device.type == "cpu" else len(K)
    return (slice(i, i + max(1, size)) for i in range(0, len(K), max(1, size)))


def _square_between(left: _Rows, right: _Rows, out: Tensor) -> None:
    """Put the squared distances of rows in each set there."""
    # Shrunk by a rounding error, so that equal rows get exactly 0.
    shrink = 1.0 - (2.0 + math.sqrt(left.a.shape[-1])) * torch.finfo(out.dtype).eps
    torch.add(left.square[..., :, None], right.square[..., None, :], out=out)
    out.baddbmm_(left.a, right.a.mT, beta=shrink, alpha=-2.0).clamp_min_(0.0)


def _by_column(M: Tensor, rows: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Σ_ij p_i M_ij w_j (a_ic − a_jc)² for every column c, over all sets; M is symmetric."""
    right = torch.cat([w[..., None] * rows, w[..., None], p[..., None]], -1)
    product = (right.mT @ M).mT  # short and wide: a third faster than long and narrow
    Mw, Mp = product[..., -2], product[..., -1]
    both = (p * Mw + w * Mp).reshape(1, -1) @ rows.square().reshape(-1, rows.shape[-1])
    crossed = (product[..., :-2] * rows).reshape(-1, rows.shape[-1])
    return (both - 2.0 * (p.reshape(1, -1) @ crossed))[0]
