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
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from distgp import linalg
from distgp.kernels import Kernel
from distgp.kernels.fused import shaped
from distgp.kernels.shapes import FixedShape
from distgp.kernels.stationary import TOLERATED

TILE = 32
"""Rows of the blocks that the lower triangle of a kernel matrix is made of."""


class Neighbours(NamedTuple):
    """The neighbours of B points: X (B, k, d), y and `real` (B, k), which is False where there are fewer.

    With a global part V (B, k, m) is v at each; with a `factor` (B, k) its noise variance is σ² times that.
    """

    X: Tensor
    y: Tensor
    real: Tensor
    V: Tensor | None = None
    factor: Tensor | None = None


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
        rows: Tensor,
        sets: Neighbours,
        shape: FixedShape,
    ) -> Tensor:
        """Evaluate the formulas above for rows in units of the lengthscales, relative to the last."""
        wanted = any(ctx.needs_input_grad)  # pyright: ignore[reportAttributeAccessIssue]
        K, slope = _shape_between(rows, rows, shape, wanted)
        K.mul_(variance)
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
            M, scale = (K, shape.proportional or 0.0) if slope is None else (slope, variance)
            in_lengths = _by_column(M, rows, w, p).mul_(-2.0 * scale)
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

    On a CPU blocks above the diagonal are left out, and stay 0.
    """
    found = shaped(kernel)
    q, batch = X.shape[-2], X.shape[:-2]
    learnt = torch.is_grad_enabled() and any(v.requires_grad for v in kernel.parameters().values())
    if found is None or learnt or len(batch) != 1 or q <= TILE or X.device.type != "cpu":
        return kernel(X)
    rows = _relative(found.kernel, X)
    if found.variance.ndim or rows is None:
        return kernel(X)
    out = X.new_zeros(*batch, q, q)
    for start in range(0, q, TILE):
        stop = min(q, start + TILE)
        block, _ = _shape_between(rows[:, start:stop], rows[:, :stop], found.kernel, False)
        torch.mul(block, found.variance, out=out[:, start:stop, :stop])
    out.diagonal(dim1=-2, dim2=-1).copy_(found.variance.expand(*batch, q))
    return out


def of_last_rows(
    shape: FixedShape, variance: Tensor, noise: Tensor, sets: Neighbours
) -> Tensor | None:
    """Σ −log p of the last row of every set given the others.

    None where rows are too far for products, or where training moves them.
    """
    moving = shape.anisotropy is not None and shape.anisotropy.requires_grad
    rows = None if moving else _relative(shape, sets.X)
    if rows is None:
        return None
    lengths = shape.lengthscale_of_each(rows.shape[-1])
    return LastRows.apply(lengths, variance, noise, rows, sets, shape)


def _relative(shape: FixedShape, X: Tensor) -> Tensor | None:
    """Rows in units of the lengthscales, relative to the last of each set; None where they are too far.

    Distances by products would lose their digits then.
    """
    X = shape.located(X).detach()
    rows = (X - X[..., -1:, :]).div_(shape.lengthscale_of_each(X.shape[-1]).detach())
    largest = 2.0 * torch.linalg.vecdot(rows, rows).max()
    return None if bool(torch.finfo(rows.dtype).eps * largest > TOLERATED) else rows


def _shape_between(
    A: Tensor, B: Tensor, shape: FixedShape, with_slope: bool
) -> tuple[Tensor, Tensor | None]:
    """The shape of the distances of rows in each set, and its derivative in their squares."""
    shrink = 1.0 - (2.0 + math.sqrt(A.shape[-1])) * torch.finfo(A.dtype).eps
    a, b = (torch.linalg.vecdot(P, P) * shrink for P in (A, B))  # so that equal rows get exactly 0
    K = a[..., :, None] + b[..., None, :]
    K.baddbmm_(A, B.mT, alpha=-2.0).clamp_min_(0.0)
    slope = torch.empty_like(K) if with_slope and shape.proportional is None else None
    shape.shape_(K, slope)
    return K, slope


def _by_column(M: Tensor, rows: Tensor, w: Tensor, p: Tensor) -> Tensor:
    """Σ_ij p_i M_ij w_j (a_ic − a_jc)² for every column c, over all sets; M is symmetric."""
    right = torch.cat([w[..., None] * rows, w[..., None], p[..., None]], -1)
    product = M @ right
    Mw, Mp = product[..., -2], product[..., -1]
    both = (p * Mw + w * Mp).reshape(1, -1) @ rows.square().reshape(-1, rows.shape[-1])
    crossed = (product[..., :-2] * rows).reshape(-1, rows.shape[-1])
    return (both - 2.0 * (p.reshape(1, -1) @ crossed))[0]
