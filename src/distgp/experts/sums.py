"""Sums over the rows of a shard, all that sparse experts need of them, and their gradients.

With L_u L_uᵀ = K_uu and A = σ⁻¹ L_u⁻¹ K_uf these are AAᵀ, Ay, yᵀy and Σ k(x, x). So a shard of any
length is read once, in O(m²) memory, and shards that share θ and Z are added by adding their sums.

K_uu is the worst conditioned matrix of all, and L_u⁻¹ would turn the rounding errors of a float32
K_uf into nonsense: all this is in float64, chunk by chunk, whatever the data's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable
from torch.utils.checkpoint import checkpoint

from distgp import linalg
from distgp.data.shard import Shard
from distgp.experts.base import Parameters, chunk_rows
from distgp.likelihoods import noise_factor


@dataclass(frozen=True, eq=False)
class SparseSums:
    """AAᵀ (*batch, m, m), Ay (*batch, m), yᵀy, Σ k(x, x) / σ² and the number n of rows of a shard.

    n is that of all copies where rows have weights w. With these, or with noise variances σ²v of rows'
    own, every term of a sum over rows is multiplied by w / v.
    """

    travels_as: ClassVar[str] = "sums"
    AAt: Tensor
    Ay: Tensor
    yy: Tensor
    trace: Tensor
    n: Tensor

    def __getitem__(self, index: int | slice | Tensor) -> SparseSums:
        """The sums of these shards of a batch."""
        return SparseSums(*(values[index] for values in vars(self).values()))

    def total(self) -> SparseSums:
        """The sums over all shards of a batch."""
        return SparseSums(*(values.sum(0) for values in vars(self).values()))

    def __add__(self, other: SparseSums) -> SparseSums:
        return SparseSums(*map(torch.add, vars(self).values(), vars(other).values()))


def inducing_factor(parameters: Parameters) -> Tensor:
    """L_u, with L_u L_uᵀ = K_uu."""
    K = parameters.kernel(inducing(parameters))
    return linalg.cholesky(K, "K_uu of the inducing inputs", singular=True)


def widened(parameters: Parameters) -> Parameters:
    """θ in float64."""
    return parameters.to(dtype=torch.float64)


def inducing(parameters: Parameters) -> Tensor:
    """Z, which a sparse expert cannot do without."""
    if parameters.inducing is None:
        raise ValueError("a sparse expert needs inducing inputs: give Parameters an `inducing`")
    return parameters.inducing


def _through_solve(Lu: Tensor, G: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    """P = L_u⁻ᵀ(G + Gᵀ) and p = L_u⁻ᵀg, a column: G and g are gradients in VVᵀ and Vy, V = L_u⁻¹K_uf."""
    both = torch.cat([G + G.mT, g[..., None]], -1)
    P, p = linalg.solve_upper(Lu, both).split([both.shape[-2], 1], -1)
    return P, p


class WhitenedSums(torch.autograd.Function):
    """VVᵀ and Vy for V = L_u⁻¹K_uf, with the derivative written by hand.

    With incoming gradients G and g, P = L_u⁻ᵀ(G + Gᵀ) and p = L_u⁻ᵀg it is PV + pyᵀ in K_uf, gᵀV in y
    and −(PVVᵀ + p(Vy)ᵀ), the lower triangle of it, in L_u: of matrices with a column per row of data
    there is one product, and none is solved for.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, Lu: Tensor, Kfu: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Solve, multiply; keep V."""
        V = linalg.solve_lower(Lu, Kfu.mT)
        VV, Vy = linalg.gram(V), (V @ y[..., None])[..., 0]
        ctx.save_for_backward(Lu, V, y, VV, Vy)
        return VV, Vy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: BackwardCFunction, G: Tensor, g: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The formulas above."""
        Lu, V, y, VV, Vy = list(ctx.saved_tensors)
        P, p = _through_solve(Lu, G, g)
        in_K = (P @ V).addcmul_(p, y[..., None, :]).mT
        in_Lu = -(P @ VV + p * Vy[..., None, :]).tril()
        in_y = (g[..., None, :] @ V)[..., 0, :] if list(ctx.needs_input_grad)[2] else None
        return in_Lu, in_K, in_y


class _Terms(NamedTuple):
    """The terms of sums over rows: k(X, Z) (*batch, n, m), k(x, x) and y (*batch, n), and the number n."""

    Kfu: Tensor
    prior: Tensor
    y: Tensor
    n: Tensor


def _terms(parameters: Parameters, rows: Shard) -> _Terms:
    """Rows in float64, each in units of its own noise, with their kernels; zero on padding."""
    rows = rows.to(dtype=torch.float64)
    Kfu = parameters.kernel(rows.X, inducing(parameters))
    prior = parameters.kernel.diag(rows.X)
    if rows.mask is not None:
        Kfu = torch.where(rows.mask[..., None], Kfu, 0.0)
        prior = torch.where(rows.mask, prior, 0.0)
    y, n = rows.y, rows.sizes
    if (factor := noise_factor(rows)) is not None:
        root = factor.rsqrt()
        Kfu, prior, y = Kfu * root[..., None], prior * root.square(), y * root
    if rows.weight is not None:
        n = (rows.weight if rows.mask is None else rows.weight * rows.mask).sum(-1)
    return _Terms(Kfu, prior, y, n)


def chunk_sums(parameters: Parameters, Lu: Tensor, rows: Shard) -> SparseSums:
    """The sums over these rows, all at once; θ and L_u in float64."""
    terms, noise = _terms(parameters, rows), parameters.noise
    VV, Vy = WhitenedSums.apply(Lu, terms.Kfu, terms.y)  # V = σA
    return SparseSums(
        AAt=VV / noise[..., None, None],
        Ay=Vy / noise.sqrt()[..., None],
        yy=terms.y.square().sum(-1),
        trace=terms.prior.sum(-1) / noise,
        n=terms.n,
    )


def gradient_by_rows(
    unpack: Callable[[Tensor], Parameters], x: Tensor, rows: Shard, G: Tensor, g: Tensor, t: Tensor
) -> Tensor:
    """The gradient of ⟨G, AAᵀ⟩ + gᵀAy + t·trace in x by way of the rows' kernels.

    L_u and σ² count as constant: `gradient_by_factor` has the rest. So no sum is formed once more.
    `unpack` makes θ of x, in float64; neither θ nor the rows have batch dimensions.
    """
    with torch.no_grad():
        parameters = unpack(x)
        Lu, noise = inducing_factor(parameters), parameters.noise
        P, p = _through_solve(Lu, G / noise, g / noise.sqrt())

    def part(some: Shard) -> Tensor:
        point = x.detach().requires_grad_()
        with torch.enable_grad():
            terms = _terms(unpack(point), some)
        V = linalg.solve_lower(Lu, terms.Kfu.detach().mT)
        in_K = (P @ V).addcmul_(p, terms.y).mT
        in_prior = (t / noise).expand_as(terms.prior)
        return _gradient([terms.Kfu, terms.prior], point, [in_K, in_prior])

    size = chunk_rows(max(len(Lu), rows.d + 2), rows.X.device)
    with torch.no_grad():
        return torch.stack([part(some) for some in rows.chunks(size)]).sum(0)


def gradient_by_factor(
    parameters: Parameters, x: Tensor, sums: SparseSums, G: Tensor, g: Tensor, t: Tensor
) -> Tensor:
    """The gradient of ⟨G, AAᵀ⟩ + gᵀAy + t·trace in x by way of L_u and σ², from the sums alone.

    With P = L_u⁻ᵀ(G + Gᵀ) and p = L_u⁻ᵀg the derivative in L_u is −(PAAᵀ + p(Ay)ᵀ), its lower triangle.
    """
    Lu = inducing_factor(parameters)
    with torch.no_grad():
        P, p = _through_solve(Lu, G, g)
        in_Lu = -(P @ sums.AAt + p * sums.Ay).tril()
    shrink = parameters.noise.detach() / parameters.noise  # AAᵀ and the trace are in units of σ²
    by_noise = shrink * ((G * sums.AAt).sum() + t * sums.trace) + shrink.sqrt() * (g @ sums.Ay)
    return _gradient([Lu, by_noise], x, [in_Lu, torch.ones_like(by_noise)])


def _gradient(outputs: list[Tensor], x: Tensor, weights: list[Tensor]) -> Tensor:
    """The gradient in x of outputs times weights; zero where none depends on x."""
    pairs = [(out, w) for out, w in zip(outputs, weights, strict=True) if out.requires_grad]
    if not pairs:
        return torch.zeros_like(x)
    depend, times = zip(*pairs, strict=True)
    return torch.autograd.grad(depend, x, times)[0]


def row_sums(parameters: Parameters, Lu: Tensor, rows: Shard | Iterable[Shard]) -> SparseSums:
    """The sums over a shard, or over a stream of its pieces, in chunks of bounded memory.

    Under autograd every chunk, where there are several, is recomputed in the backward pass, so
    that a gradient needs little more memory than a value.
    """
    total: SparseSums | None = None
    for piece in [rows] if isinstance(rows, Shard) else rows:
        batch = linalg.broadcast(Lu.shape[:-2], piece.batch)
        columns = max(Lu.shape[-1], piece.d + 2)
        size = chunk_rows(math.prod(batch) * columns, piece.X.device)
        recomputed = torch.is_grad_enabled() and piece.n > size
        for some in piece.chunks(size):
            part = (
                checkpoint(chunk_sums, parameters, Lu, some, use_reentrant=False)
                if recomputed
                else chunk_sums(parameters, Lu, some)
            )
            assert isinstance(part, SparseSums)
            total = part if total is None else total + part
    if total is None:
        raise ValueError("a shard needs at least one row, got none")
    return total


class SparseFactors(NamedTuple):
    """B = I + AAᵀ = L_B L_Bᵀ and c = σ⁻¹ L_B⁻¹ Ay: shared by the bound and the prediction."""

    LB: Tensor
    c: Tensor


def factorised(noise: Tensor, sums: SparseSums) -> SparseFactors:
    """Factorise the sums."""
    LB = linalg.cholesky(linalg.add_diagonal(sums.AAt, sums.AAt.new_ones(())), "I + AAᵀ")
    c = linalg.solve_lower(LB, sums.Ay[..., None])[..., 0] / noise.sqrt()[..., None]
    return SparseFactors(LB, c)


def negative_bound(noise: Tensor, sums: SparseSums, factors: SparseFactors | None = None) -> Tensor:
    """−(collapsed lower bound of log p(y)), (*batch,).

    ½ [n log 2πσ² + log det B + yᵀy/σ² − ‖c‖² + tr(K − Q)/σ²], with Q = σ²AᵀA. Where rows have noise
    variances σ²v of their own, ½Σ w log v is to be added, which is no function of the sums:
    `likelihoods.own_noise_term`.
    """
    LB, c = factors or factorised(noise, sums)
    data = sums.yy / noise - c.square().sum(-1)
    normaliser = sums.n * (2.0 * math.pi * noise).log() + linalg.log_det(LB)
    return 0.5 * (normaliser + data + residual_trace(sums))


def residual_trace(sums: SparseSums) -> Tensor:
    """tr(K − Q) / σ²."""
    return sums.trace - sums.AAt.diagonal(dim1=-2, dim2=-1).sum(-1)
