"""The sparse GP expert: collapsed variational inference (Titsias), whitened, from sums over its rows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.data import shard as sample
from distgp.data.shard import Shard
from distgp.engines import Kinds, Placement
from distgp.experts import inducing as inputs
from distgp.experts.base import (
    Expert,
    Inducing,
    Parameters,
    Prediction,
    Stage,
    fields_alone,
    latent_variance,
)
from distgp.experts.draws import moved, normal, seeds
from distgp.experts.linear import LinearPosterior, Means
from distgp.experts.sums import (
    SparseFactors,
    SparseSums,
    factorised,
    inducing,
    inducing_factor,
    negative_bound,
    residual_trace,
    row_sums,
    widened,
)
from distgp.kernels import Kernel, prior_draws
from distgp.likelihoods import own_noise_term

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


class SparseExpert(Expert):
    """A sparse GP on its shard: O(nm²) time, O(m²) memory. Its objective is minus Titsias' bound."""

    name: ClassVar[str] = "sparse"
    default_training: ClassVar[str] = "pooled"
    training_rows: ClassVar[int | None] = 10_000
    holds_rows: ClassVar[bool] = False
    adds_sums: ClassVar[bool] = True
    cheap_covariances: ClassVar[bool] = True
    least_inducing: ClassVar[int] = 1

    def number_of_experts(self, n: int, inducing: Inducing, workers: int) -> int:
        """As many as shards of 32 rows per inducing input make, within memory; one per worker at least."""
        full = self.full_shard(inducing)
        by_rows, by_memory = (
            math.ceil(n / full),
            EXPERT_MEMORY // (2 * 8 * (full // SHARD_ROWS) ** 2),
        )
        return max(1, min(by_rows, by_memory, n), min(workers, n))

    def full_shard(self, inducing: Inducing) -> int:
        """32 rows per inducing input."""
        given = LARGEST_INDUCING if isinstance(inducing, str) else inducing
        return SHARD_ROWS * max(1, len(given) if isinstance(given, Tensor) else int(given))

    def default_aggregation(self, size: int, shares_theta: bool, shares_inducing: bool) -> str:
        """Pooled, the full sparse GP itself, where the experts share θ and Z."""
        if shares_inducing:
            return "pooled"
        return Expert.default_aggregation(self, size, shares_theta, shares_inducing)

    def first_inducing(self, given: Inducing, rows: Placement[Shard], seed: int) -> Tensor:
        """The k-means centres of a sample."""
        if isinstance(given, Tensor):
            return given
        # The greedy rule would put only a few where θ starts with long lengthscales, and with those few
        # training could never find shorter ones.
        few = TRAINING_INDUCING[0]
        return inputs.spread(rows, few if given == "auto" else min(given, few), seed)

    def stages(self, given: Inducing, n_iter: int, shared: bool, learnt: bool) -> Sequence[Stage]:
        """Two stages, with the inducing inputs chosen anew in between for the θ found so far.

        Experts with a θ of their own have inducing inputs of their own too, and train them.
        """
        if not shared:
            return (Stage(partial(_own_inducing, given), own=("inducing",)),)
        first = Stage(fixed=("inducing",))
        again = first._replace(choose=partial(_chosen_inducing, given, TRAINING_INDUCING[-1]))
        if learnt:
            return (again,)
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
        return negative_bound(wide.noise, sums) + own_noise_term(shard)

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
    asked, noise = (LARGEST_INDUCING, float(theta.noise)) if given == "auto" else (given, None)
    m = min(asked, cap or asked)
    # While training goes on, twice what the rule asks for: room for shorter lengthscales.
    return inputs.greedy_for(theta.kernel, shards, m, seed, noise, twice=cap is not None)


def _own_inducing(
    given: Inducing, theta: Parameters, shards: Placement[Shard], seed: int
) -> Tensor:
    """One set of inducing inputs per expert, all of one size: with "auto" a tenth of the shard."""
    if isinstance(given, Tensor):
        return given.expand(int(sum(sample.counts(shards))), *given.shape[-2:])
    m, most = (None, TRAINING_INDUCING[-1]) if given == "auto" else (given, None)
    return inputs.greedy_each(theta.kernel, shards, m, most, seed)


@dataclass(frozen=True, eq=False)
class SparsePosterior(LinearPosterior):
    """f given the sums of a shard, in float64; prediction needs none of its rows, and files hold none."""

    travels_as: ClassVar[Kinds] = {"Lu": "basis", "*": "sums"}
    parameters: Parameters
    Lu: Tensor
    sums: SparseSums  # pyright: ignore[reportIncompatibleVariableOverride]
    factors: SparseFactors
    shard: Shard | None = None
    __getstate__ = fields_alone

    @staticmethod
    def of(
        parameters: Parameters, Lu: Tensor, sums: SparseSums, shard: Shard | None = None
    ) -> SparsePosterior:
        """Build the posterior from sums, of one shard or added over several."""
        return SparsePosterior(parameters, Lu, sums, factorised(parameters.noise, sums), shard)

    @property
    def entries(self) -> int:
        """One entry per inducing input and expert."""
        return self.factors.c.numel()

    def chosen(self, which: Tensor) -> SparsePosterior:
        """The sums and factors of these experts."""
        Lu = self.Lu[which] if self.Lu.ndim > 2 else self.Lu
        shard = None if self.shard is None else self.shard[which]
        factors = SparseFactors(self.factors.LB[which], self.factors.c[which])
        return SparsePosterior(self.parameters[which], Lu, self.sums[which], factors, shard)

    def with_rows(self, shard: Shard) -> SparsePosterior:
        """Add the sums over the rows; where it holds its own rows, it holds these too."""
        with torch.no_grad():
            sums = self.sums + row_sums(self.parameters, self.Lu, sample.stack([shard]))
        held = self.shard
        if held is not None:
            held = sample.stack([sample.concatenate([held[0], shard])])
        return SparsePosterior.of(self.parameters, self.Lu, sums, held)

    @cached_property
    def weights(self) -> Tensor:
        """w = L_B⁻ᵀ c, with μ(x) = v(x)ᵀ w."""
        return linalg.solve_upper(self.factors.LB, self.factors.c[..., None])[..., 0]

    @property
    def batch(self) -> torch.Size:
        """One entry per expert."""
        return self.factors.c.shape[:-1]

    def shrinkage(self) -> Tensor:
        """R = I − B⁻¹, (*batch, m, m): r(x) = R v(x) is what the expert passes on of v."""
        eye = torch.eye(self.Lu.shape[-1], dtype=self.Lu.dtype, device=self.Lu.device)
        return eye - linalg.cholesky_inverse(self.factors.LB)

    def means(self) -> Means:
        """L_u and w, without L_B and the sums."""
        return Means(self.parameters, self.weights, Lu=self.Lu)

    def representer(self) -> tuple[Tensor, Tensor]:
        """The inducing inputs and L_u⁻ᵀ w."""
        w = self.weights[..., None]
        batch = w.shape[:-2]
        coefficients = linalg.solve_upper(self.Lu.expand(*batch, -1, -1), w)[..., 0]
        return inducing(self.parameters).expand(*batch, -1, -1), coefficients

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

    def projection(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Nyström: a = L_u⁻ᵀ r on the inducing inputs; k_A = rᵀv."""
        v = self.whitened(X)
        r = v - linalg.cholesky_solve(self.factors.LB, v)  # (I − B⁻¹)v
        batch = r.shape[:-2]
        a = linalg.solve_upper(self.Lu.expand(*batch, -1, -1), r)
        return inducing(self.parameters).expand(*batch, -1, -1), a, (r * v).sum(-2)

    def covariance(self, X: Tensor) -> Tensor:
        """k(x, x′) − v(x)ᵀv(x′) + (L_B⁻¹v(x))ᵀ(L_B⁻¹v(x′))."""
        v = self.whitened(X)
        kept = linalg.solve_lower(self.factors.LB, v)
        prior = self.parameters.kernel(X.to(v.dtype))
        return (prior - v.mT @ v + kept.mT @ kept).to(X.dtype)

    def part(self, kernel: Kernel) -> SparsePosterior:
        """k_p(x, Z) in the place of k(x, Z): inducing inputs know of f, which is the sum of all parts."""
        own = kernel.to(self.Lu.device, self.Lu.dtype)
        return replace(self, parameters=replace(self.parameters, kernel=own))

    def draws(self, X: Tensor, size: int, seed: int) -> Tensor | None:
        """f(x) + v(x)ᵀ(w_p − L_u⁻¹f(Z)) with draws f of the prior and w_p = w + L_B⁻ᵀz of w's posterior."""
        Z, (first, second) = inducing(self.parameters), seeds(seed, 2)
        prior = prior_draws(self.parameters.kernel, X.shape[-1], size, first, Z)
        if prior is None:
            return None
        with torch.no_grad():
            z = normal(len(Z), size, second, Z)
            w = self.weights[:, None] + linalg.solve_upper(self.factors.LB, z)
            change = w - linalg.solve_lower(self.Lu, prior.at(Z))
            return moved(prior, lambda x: self.whitened(x).mT, change, X.to(Z)).to(X.dtype)

    def residual(self) -> Tensor:
        """tr(K − Q) / (nσ²): what the inducing inputs leave unexplained, in units of the noise."""
        return residual_trace(self.sums) / self.sums.n

    def whitened(self, X: Tensor) -> Tensor:
        """v(x) = L_u⁻¹ k_u(x) for all x, (*batch, m, N), in float64."""
        K = self.parameters.kernel(X.to(self.Lu.dtype), inducing(self.parameters)).mT
        return linalg.solve_lower(self.Lu, K, overwrite=True)

    def predict_chunk(self, X: Tensor) -> Prediction:
        """μ = vᵀ L_B⁻ᵀ c and s² = k(x, x) − ‖v‖² + ‖L_B⁻¹ v‖²."""
        v = self.whitened(X)
        kept = linalg.solve_lower(self.factors.LB, v).square_().sum(-2)
        explained = v.square().sum(-2) - kept
        variance = latent_variance(self.parameters.kernel.diag(X.to(v.dtype)), explained)
        mean = (self.weights[..., None, :] @ v)[..., 0, :]
        return Prediction(mean.to(X.dtype), variance.to(X.dtype))
