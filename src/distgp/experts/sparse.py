"""The sparse GP expert: collapsed variational inference (Titsias), whitened, built from chunks.

With L_u L_uᵀ = K_uu and A = σ⁻¹ L_u⁻¹ K_uf, everything an expert needs of its rows is a sum over
them: AAᵀ, Ay, yᵀy and Σ k(x, x). So a shard of any length is read once, in O(m²) memory, and
shards that share θ and Z are added by adding their sums.

K_uu is the worst conditioned matrix of all, and L_u⁻¹ would turn the rounding errors of a float32
K_uf into nonsense: sparse experts compute in float64, chunk by chunk, whatever the data's dtype.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from distgp import linalg
from distgp.data import sample
from distgp.data.shard import Shard
from distgp.engines import Kinds, Placement
from distgp.experts import inducing as inputs
from distgp.experts.base import (
    Expert,
    Inducing,
    LinearPosterior,
    Means,
    Prediction,
    Stage,
    chunk_rows,
    in_chunks,
    latent_variance,
)
from distgp.experts.parameters import Parameters
from distgp.likelihoods import noise_factor

SHARD_ROWS = 32
"""Rows per expert for each inducing input: its m³ is then little beside its nm²."""
EXPERT_MEMORY = 2**26
"""Bytes that the m × m matrices of all experts may take together."""
LARGEST_INDUCING = 1024
"""Inducing inputs at most, where the greedy rule chooses; conditioning costs m² per row."""
TRAINING_INDUCING = (128, 256)
"""Inducing inputs at most in the two stages of training; they are chosen anew in between."""
FEW_ROUNDS = 20
"""Below this many rounds, training has one stage: two would get nowhere."""


@dataclass(frozen=True, eq=False)
class SparseSums:
    """Sums over the rows of a shard: all that conditioning needs of them.

    With A = σ⁻¹ L_u⁻¹ K_uf these are AAᵀ (*batch, m, m), Ay (*batch, m), yᵀy, the trace Σ k(x, x) / σ² and
    the number n of rows, with weights that of all copies. Where rows have weights w, or noise variances
    σ²v of their own, every term of a sum over rows is multiplied by w / v.
    """

    travels_as: ClassVar[str] = "sums"
    AAt: Tensor
    Ay: Tensor
    yy: Tensor
    trace: Tensor
    n: Tensor

    def __getitem__(self, index: int | slice | Tensor) -> SparseSums:
        """The sums of these shards of a batch."""
        return SparseSums(
            self.AAt[index], self.Ay[index], self.yy[index], self.trace[index], self.n[index]
        )

    def total(self) -> SparseSums:
        """The sums over all shards of a batch."""
        return SparseSums(
            self.AAt.sum(0), self.Ay.sum(0), self.yy.sum(0), self.trace.sum(0), self.n.sum(0)
        )

    def __add__(self, other: SparseSums) -> SparseSums:
        return SparseSums(
            self.AAt + other.AAt,
            self.Ay + other.Ay,
            self.yy + other.yy,
            self.trace + other.trace,
            self.n + other.n,
        )


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
    def forward(ctx: Any, Lu: Tensor, Kfu: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Solve, multiply; keep V."""
        V = linalg.solve_lower(Lu, Kfu.mT)
        VV, Vy = linalg.gram(V), (V @ y[..., None])[..., 0]
        ctx.save_for_backward(Lu, V, y, VV, Vy)
        return VV, Vy

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, G: Tensor, g: Tensor
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """The formulas above."""
        Lu, V, y, VV, Vy = ctx.saved_tensors
        P, p = _through_solve(Lu, G, g)
        in_K = (P @ V).addcmul_(p, y[..., None, :]).mT
        in_Lu = -(P @ VV + p * Vy[..., None, :]).tril()
        in_y = (g[..., None, :] @ V)[..., 0, :] if ctx.needs_input_grad[2] else None
        return in_Lu.sum_to_size(Lu.shape), in_K, in_y


@dataclass(frozen=True, eq=False)
class _Chunk:
    """Rows in float64, each in units of its own noise, with their kernels; zero on padding.

    k(X, Z) (*batch, n, m), k(x, x) (*batch, n), the targets, and the number of rows, with weights that
    of all copies.
    """

    Kfu: Tensor
    prior: Tensor
    y: Tensor
    n: Tensor

    @staticmethod
    def of(parameters: Parameters, rows: Shard) -> _Chunk:
        """Evaluate the kernels; θ in float64."""
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
        return _Chunk(Kfu, prior, y, n)


def chunk_sums(parameters: Parameters, Lu: Tensor, rows: Shard) -> SparseSums:
    """The sums over these rows, all at once; θ and L_u in float64."""
    chunk, noise = _Chunk.of(parameters, rows), parameters.noise
    VV, Vy = WhitenedSums.apply(Lu, chunk.Kfu, chunk.y)  # V = σA
    return SparseSums(
        AAt=VV / noise[..., None, None],
        Ay=Vy / noise.sqrt()[..., None],
        yy=chunk.y.square().sum(-1),
        trace=chunk.prior.sum(-1) / noise,
        n=chunk.n,
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
            chunk = _Chunk.of(unpack(point), some)
        V = linalg.solve_lower(Lu, chunk.Kfu.detach().mT)
        in_K = (P @ V).addcmul_(p, chunk.y).mT
        in_prior = (t / noise).expand_as(chunk.prior)
        return _gradient([chunk.Kfu, chunk.prior], point, [in_K, in_prior])

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
        for part in _sums_of_parts(parameters, Lu, piece, size):
            total = part if total is None else total + part
    if total is None:
        raise ValueError("a shard needs at least one row, got none")
    return total


def _sums_of_parts(
    parameters: Parameters, Lu: Tensor, rows: Shard, size: int
) -> Iterable[SparseSums]:
    """The sums of at most `size` rows at a time."""
    if not torch.is_grad_enabled():
        return (chunk_sums(parameters, Lu, part) for part in rows.chunks(size))
    if rows.n <= size:
        return [chunk_sums(parameters, Lu, rows)]
    parts = (
        checkpoint(chunk_sums, parameters, Lu, part, use_reentrant=False)
        for part in rows.chunks(size)
    )
    return cast(Iterable[SparseSums], parts)


@dataclass(frozen=True, eq=False)
class SparseFactors:
    """B = I + AAᵀ = L_B L_Bᵀ and c = σ⁻¹ L_B⁻¹ Ay: shared by the bound and the prediction."""

    travels_as: ClassVar[str] = "sums"
    LB: Tensor
    c: Tensor

    @staticmethod
    def of(noise: Tensor, sums: SparseSums) -> SparseFactors:
        """Factorise the sums."""
        LB = linalg.cholesky(linalg.add_diagonal(sums.AAt, sums.AAt.new_ones(())), "I + AAᵀ")
        c = linalg.solve_lower(LB, sums.Ay[..., None])[..., 0] / noise.sqrt()[..., None]
        return SparseFactors(LB, c)


def negative_bound(noise: Tensor, sums: SparseSums, factors: SparseFactors | None = None) -> Tensor:
    """−(collapsed lower bound of log p(y)), (*batch,).

    ½ [n log 2πσ² + log det B + yᵀy/σ² − ‖c‖² + tr(K − Q)/σ²], with Q = σ²AᵀA. Where rows have noise
    variances σ²v of their own the constant ½Σ w log v is left out.
    """
    factors = SparseFactors.of(noise, sums) if factors is None else factors
    data = sums.yy / noise - factors.c.square().sum(-1)
    normaliser = sums.n * (2.0 * math.pi * noise).log() + linalg.log_det(factors.LB)
    return 0.5 * (normaliser + data + _residual_trace(sums))


def _residual_trace(sums: SparseSums) -> Tensor:
    """tr(K − Q) / σ²."""
    return sums.trace - sums.AAt.diagonal(dim1=-2, dim2=-1).sum(-1)


class SparseExpert(Expert):
    """A sparse GP on its shard: O(nm²) time and O(m²) memory.

    Its objective is the negative collapsed bound of Titsias, with the trace term.
    """

    name: ClassVar[str] = "sparse"
    default_training: ClassVar[str] = "pooled"
    training_rows: ClassVar[int | None] = 10_000
    holds_rows: ClassVar[bool] = False
    adds_sums: ClassVar[bool] = True
    cheap_covariances: ClassVar[bool] = True
    least_inducing: ClassVar[int] = 1

    def number_of_experts(self, n: int, inducing: Inducing, workers: int) -> int:
        """As many as shards of 32 rows per inducing input make, within memory; one per worker at least.

        How rows are divided changes nothing but the division of work where experts share all.
        """
        given = LARGEST_INDUCING if isinstance(inducing, str) else inducing
        m = max(1, len(given) if isinstance(given, Tensor) else int(given))
        by_rows, by_memory = math.ceil(n / (SHARD_ROWS * m)), EXPERT_MEMORY // (2 * 8 * m**2)
        return max(1, min(by_rows, by_memory, n), min(workers, n))

    def default_aggregation(self, size: int, shares_theta: bool, shares_inducing: bool) -> str:
        """Pooled, the full sparse GP itself, where the experts share θ and Z."""
        if shares_inducing:
            return "pooled"
        return Expert.default_aggregation(self, size, shares_theta, shares_inducing)

    def first_inducing(self, given: Inducing, rows: Placement[Shard], seed: int) -> Tensor:
        """The k-means centres of a sample.

        The greedy rule would put only a few where θ starts with long lengthscales, and with those few
        training could never find shorter ones.
        """
        if isinstance(given, Tensor):
            return given
        few = TRAINING_INDUCING[0]
        return inputs.spread(rows, few if given == "auto" else min(given, few), seed)

    def stages(self, given: Inducing, n_iter: int, shared: bool, learnt: bool) -> Sequence[Stage]:
        """Two stages, with the inducing inputs chosen anew in between for the θ found so far.

        Experts with a θ of their own have inducing inputs of their own too, and train them.
        """
        if not shared:
            return (Stage(partial(_own_inducing, given), own=("inducing",)),)
        choose = partial(_chosen_inducing, given, TRAINING_INDUCING[-1])
        again = Stage(choose, fixed=("inducing",))
        if learnt:
            return (again,)
        first = Stage(fixed=("inducing",))
        return (first,) if isinstance(given, Tensor) or n_iter < FEW_ROUNDS else (first, again)

    def last_inducing(
        self, given: Inducing, theta: Parameters, shards: Placement[Shard], seed: int
    ) -> Tensor | None:
        """By the greedy rule for θ, from a sample of all shards; experts keep what is their own."""
        if theta.inducing_batch:
            return theta.inducing
        return _chosen_inducing(given, None, theta, shards, seed)

    def entries(self, n: int) -> int:
        """One: the objective reads its rows in chunks, whatever n is."""
        del n
        return 1

    def objective(self, parameters: Parameters, shard: Shard) -> Tensor:
        """−(Titsias' bound on log p(y)), with the trace term."""
        wide = widened(parameters)
        sums = row_sums(wide, inducing_factor(wide), shard)
        return negative_bound(wide.noise, sums)

    def condition(self, parameters: Parameters, shard: Shard | Iterable[Shard]) -> SparsePosterior:
        """Equation (2) of the paper, from one pass over a shard or over a stream of its pieces."""
        with torch.no_grad():
            wide = widened(parameters)
            Lu = inducing_factor(wide)
            held = shard if isinstance(shard, Shard) else None
            return SparsePosterior.of(wide, Lu, row_sums(wide, Lu, shard), held)


def _chosen_inducing(
    given: Inducing, cap: int | None, theta: Parameters, shards: Placement[Shard], seed: int
) -> Tensor:
    """Z as given, or by the greedy rule for θ; `cap` bounds their number while training goes on.

    They stay where the rule puts them: that is as good as descent, and far cheaper.
    """
    if isinstance(given, Tensor):
        return given
    asked = LARGEST_INDUCING if given == "auto" else given
    m, noise = min(asked, cap or asked), float(theta.noise)
    # While training goes on, twice what the rule asks for: room for shorter lengthscales.
    by_rule = None if given != "auto" else noise
    return inputs.greedy_for(theta.kernel, shards, m, seed, by_rule, twice=cap is not None)


def _own_inducing(
    given: Inducing, theta: Parameters, shards: Placement[Shard], seed: int
) -> Tensor:
    """One set of inducing inputs per expert, all of one size: with "auto" a tenth of the shard."""
    if isinstance(given, Tensor):
        count = int(sum(sample.counts(shards)))
        return given.expand(count, *given.shape[-2:])
    most = TRAINING_INDUCING[-1] if given == "auto" else None
    return inputs.greedy_each(theta.kernel, shards, None if given == "auto" else given, most, seed)


@dataclass(frozen=True, eq=False)
class SparsePosterior(LinearPosterior):
    """f given the sums of a shard, in float64; θ has the inducing inputs Z.

    The rows stay while they are at hand. Prediction needs none of them, and files hold none.
    """

    travels_as: ClassVar[Kinds] = {"Lu": "basis", "*": "sums"}
    parameters: Parameters
    Lu: Tensor
    sums: SparseSums
    factors: SparseFactors
    shard: Shard | None = None

    @staticmethod
    def of(
        parameters: Parameters, Lu: Tensor, sums: SparseSums, shard: Shard | None = None
    ) -> SparsePosterior:
        """Build the posterior from sums, of one shard or added over several."""
        factors = SparseFactors.of(parameters.noise, sums)
        return SparsePosterior(parameters, Lu, sums, factors, shard)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the fields, but not w, which each process computes for itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def entries(self) -> int:
        """One entry per inducing input and expert."""
        return self.factors.c.numel()

    def row_count(self) -> int:
        """The number of rows behind the sums, with weights that of all copies."""
        return round(float(self.sums.n.sum()))

    def without_rows(self) -> SparsePosterior:
        """The same posterior, whose sums are all that it needs."""
        return replace(self, shard=None)

    def chosen(self, which: Tensor) -> SparsePosterior:
        """The sums and factors of these experts."""
        Lu = self.Lu[which] if self.Lu.ndim > 2 else self.Lu
        shard = None if self.shard is None else self.shard[which]
        factors = SparseFactors(self.factors.LB[which], self.factors.c[which])
        return SparsePosterior(self.parameters[which], Lu, self.sums[which], factors, shard)

    @cached_property
    def weights(self) -> Tensor:
        """w = L_B⁻ᵀ c, with μ(x) = v(x)ᵀ w."""
        return linalg.solve_upper(self.factors.LB, self.factors.c[..., None])[..., 0]

    @property
    def batch(self) -> torch.Size:
        """One entry per expert."""
        return self.factors.c.shape[:-1]

    @property
    def shared(self) -> bool:
        """Whether the experts of the batch share kernel, noise and Z, and so v(x)."""
        return not self.parameters.batch and not self.parameters.inducing_batch

    def shrinkage(self) -> Tensor:
        """R = I − B⁻¹, (*batch, m, m): r(x) = R v(x) is what the expert passes on of v."""
        eye = torch.eye(self.Lu.shape[-1], dtype=self.Lu.dtype, device=self.Lu.device)
        return eye - linalg.cholesky_inverse(self.factors.LB)

    def means(self) -> SparseMeans:
        """L_u and w, without L_B and the sums."""
        return SparseMeans(self.parameters, self.Lu, self.weights)

    def representer(self) -> tuple[Tensor, Tensor]:
        """The inducing inputs and L_u⁻ᵀ w."""
        w = self.weights[..., None]
        batch = w.shape[:-2]
        coefficients = linalg.solve_upper(self.Lu.expand(*batch, -1, -1), w)[..., 0]
        return inducing(self.parameters).expand(*batch, -1, -1), coefficients

    @property
    def row_coefficients(self) -> None:
        """None: the mean is represented on the inducing inputs."""

    def communication(self, shared: bool) -> Shard | SparseSums:
        """The sums of the first expert where they can be added to the others', else its rows."""
        return self.sums[0] if shared else self.rows_held()[:1].flatten().without_padding()

    def augmented(self, message: object, skip: int) -> tuple[SparsePosterior, SparsePosterior]:
        """Add the communication shard's sums to those of each expert."""
        theta, Lu = self.parameters[skip:], self.Lu[skip:] if self.Lu.ndim > 2 else self.Lu
        common = row_sums(theta, Lu, message) if isinstance(message, Shard) else message
        assert isinstance(common, SparseSums)
        both = common + self.sums[skip:]
        return SparsePosterior.of(theta, Lu, both), SparsePosterior.of(theta, Lu, common)

    def printed_variance(self, X: Tensor) -> Tensor:
        """‖L_B⁻¹v‖², which lacks k − Q."""
        kept = linalg.solve_lower(self.factors.LB, self.whitened(X))
        return kept.square().sum(-2).to(X.dtype)

    def passed_on(self, v: Tensor) -> Tensor:
        """r = (I − B⁻¹)v, (*batch, m, N)."""
        return v - linalg.cholesky_solve(self.factors.LB, v)

    def projection(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Nyström: a = L_u⁻ᵀ r on the inducing inputs; k_A = rᵀv."""
        v = self.whitened(X)
        r = self.passed_on(v)
        batch = r.shape[:-2]
        a = linalg.solve_upper(self.Lu.expand(*batch, -1, -1), r)
        return inducing(self.parameters).expand(*batch, -1, -1), a, (r * v).sum(-2)

    def weighted_mean(self, X: Tensor, weights: Tensor) -> Tensor:
        """v(x)ᵀ Σβ_i w_i where Z is shared."""
        if not self.shared:
            return weights.to(X.dtype) @ self.mean(X)
        w = weights.to(self.weights.dtype) @ self.weights
        parts = in_chunks(lambda chunk: w @ self.whitened(chunk), X, len(w))
        return torch.cat(parts).to(X.dtype)

    def covariance(self, X: Tensor) -> Tensor:
        """k(x, x′) − v(x)ᵀv(x′) + (L_B⁻¹v(x))ᵀ(L_B⁻¹v(x′))."""
        v = self.whitened(X)
        kept = linalg.solve_lower(self.factors.LB, v)
        prior = self.parameters.kernel(X.to(v.dtype))
        return (prior - v.mT @ v + kept.mT @ kept).to(X.dtype)

    def residual(self) -> Tensor:
        """tr(K − Q) / (nσ²): what the inducing inputs leave unexplained, in units of the noise."""
        return _residual_trace(self.sums) / self.sums.n

    def whitened(self, X: Tensor) -> Tensor:
        """v(x) = L_u⁻¹ k_u(x) for all x, (*batch, m, N), in float64."""
        K = self.parameters.kernel(X.to(self.Lu.dtype), inducing(self.parameters)).mT
        return linalg.solve_lower(self.Lu, K, overwrite=True)

    def mean_chunk(self, X: Tensor) -> Tensor:
        """μ = vᵀ L_B⁻ᵀ c."""
        return self._mean(self.whitened(X)).to(X.dtype)

    def predict_chunk(self, X: Tensor) -> Prediction:
        """μ = vᵀ L_B⁻ᵀ c and s² = k(x, x) − ‖v‖² + ‖L_B⁻¹ v‖²."""
        v = self.whitened(X)
        kept = linalg.solve_lower(self.factors.LB, v).square_().sum(-2)
        explained = v.square().sum(-2) - kept
        variance = latent_variance(self.parameters.kernel.diag(X.to(v.dtype)), explained)
        return Prediction(self._mean(v).to(X.dtype), variance.to(X.dtype))

    def _mean(self, v: Tensor) -> Tensor:
        return (self.weights[..., None, :] @ v)[..., 0, :]


@dataclass(frozen=True, eq=False)
class SparseMeans(Means):
    """v(x)ᵀw_i for all experts i."""

    travels_as: ClassVar[Kinds] = {"Lu": "basis", "*": "means"}
    parameters: Parameters
    Lu: Tensor
    weights: Tensor

    @property
    def coefficients(self) -> Tensor:
        """The coefficients w."""
        return self.weights

    def mean_chunk(self, X: Tensor) -> Tensor:
        """Once v(x) where the inducing inputs are shared, else for every expert."""
        K = self.parameters.kernel(X.to(self.Lu.dtype), inducing(self.parameters)).mT
        v = linalg.solve_lower(self.Lu, K, overwrite=True)
        return (self.weights[..., None, :] @ v)[..., 0, :].to(X.dtype)
