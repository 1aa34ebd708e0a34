"""Aggregators for which the experts' predictions alone are not enough: NPAE and grBCM.

NPAE is nested pointwise aggregation of experts, equation (6) of the paper: the experts' means at x are
linear in the data, so under the prior they and f(x) are jointly Gaussian; NPAE conditions f(x) on them.
grBCM joins every shard with a communication shard, and combines what the experts then say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.base import WIDE, Aggregator, Combined, Ensemble, joined
from distgp.aggregation.marginals import (
    MarginalAggregator,
    Marginals,
    committee,
    expert_marginals,
)
from distgp.engines import Kinds, LocalPlacement, Placement, travels
from distgp.experts import LinearPosterior, Posterior, Prediction, SparsePosterior
from distgp.experts.base import chunk_rows, latent_variance
from distgp.kernels import Kernel
from distgp.likelihoods.gaussian import Space


@dataclass(frozen=True)
class NPAE(Aggregator):
    """Nested pointwise aggregation of experts.

    μ = k_Aᵀ K_A⁻¹ μ_1..M and s² = k − k_Aᵀ K_A⁻¹ k_A, with exact cross-covariances for exact experts,
    O(n²) per test point, and Nyström ones for sparse experts. The variance is an upper bound of the
    full GP's for exact experts, of the pooled one's for sparse experts.
    """

    name: ClassVar[str] = "npae"
    rows_needed: ClassVar[str] = "never"
    needs_one_prior: ClassVar[bool] = True

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Nothing is to be computed before there are test points."""
        del ensemble
        return NestedCombined()


@dataclass(frozen=True, eq=False, kw_only=True)
class NestedCombined(Combined):
    """The posterior of NPAE."""

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of the moments of all experts."""
        return moment_entries(ensemble)

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Condition f on the experts' means."""
        out = moments(ensemble, X).nested()
        return Prediction(out.mean.to(X.dtype), out.variance.to(X.dtype))


class Moments(NamedTuple):
    """First and second moments, under the prior, of M experts' means at N points."""

    mean: Tensor  # (M, N): the means μ_i(x) themselves
    to_f: Tensor  # (M, N): k_A = cov(μ_i, f), which is also the diagonal of K_A
    between: Tensor  # (N, M, M): K_A = cov(μ_i, μ_j)
    prior: Tensor  # (N,): k(x, x)

    def nested(self) -> Prediction:
        """μ = k_Aᵀ K_A⁻¹ μ_1..M and s² = k − k_Aᵀ K_A⁻¹ k_A.

        Far from the data K_A underflows, so it is scaled to a correlation matrix; experts with no
        covariance left are dropped.
        """
        tiny = torch.finfo(self.prior.dtype).tiny ** 0.5
        alive = self.to_f > tiny * self.prior
        root = torch.where(alive, self.to_f, 1.0).sqrt().mT  # (N, M)
        both = alive.mT[:, :, None] & alive.mT[:, None, :]
        scaled = self.between / (root[:, :, None] * root[:, None, :])
        correlation = torch.where(both, scaled, 0.0)
        correlation.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        L = linalg.cholesky(correlation, "the experts' correlation matrix")
        target = torch.where(alive.mT, root, 0.0)  # k_A / root, since k_A = root²
        values = torch.where(alive, self.mean, 0.0).mT / root
        half = linalg.solve_lower(L, torch.stack([target, values], -1))
        explained = half[..., 0].square().sum(-1)
        mean = (half[..., 0] * half[..., 1]).sum(-1)
        return Prediction(mean, latent_variance(self.prior, explained))

    def error(self, beta: Tensor) -> Tensor:
        """k − 2βᵀk_A + βᵀK_Aβ: the mean squared error of Σβ_i μ_i under the prior."""
        quadratic = torch.einsum("i,nij,j->n", beta, self.between, beta)
        return latent_variance(self.prior, 2.0 * (beta @ self.to_f) - quadratic)


def moments(ensemble: Ensemble, X: Tensor) -> Moments:
    """The moments of all experts' means at X, in float64, where they share their hyperparameters."""
    kernel, whitened = ensemble.parameters.kernel.to(dtype=WIDE), ensemble.shares_inducing
    parts = ensemble.placement.map(_project_whitened if whitened else _project, X)
    p = max(part.a.shape[1] for part in parts)
    whole = joined([part.padded(p) for part in parts])
    if whitened:  # in whitened coordinates k(P_i, P_j) is the identity
        r = whole.a.permute(2, 0, 1)
        between = r @ r.mT
    else:
        between = _cross_covariances(kernel, whole.points, whole.a)
    # Noise enters the diagonal alone: a_iᵀ(K_ii + σ²I)a_i = k_A, by the definition of a_i.
    between.diagonal(dim1=-2, dim2=-1).copy_(whole.to_f.mT)
    return Moments(whole.mean, whole.to_f, between, kernel.diag(X.to(WIDE)))


def moment_entries(ensemble: Ensemble) -> int:
    """An eighth of the entries of a_i and K_A per test point: larger chunks save kernel blocks."""
    return max(1, (sum(ensemble.placement.map(_entries)) + ensemble.size**2) // 8)


@travels("counts")
def _entries(posterior: Posterior) -> int:
    return posterior.entries


@dataclass(frozen=True, eq=False)
class Projections:
    """A worker's expert means as random variables of the prior: see `LinearPosterior.projection`."""

    travels_as: ClassVar[Kinds] = {"mean": "predictions", "points": "inputs", "*": "projections"}
    mean: Tensor  # (count, N)
    points: Tensor  # (count, p, d)
    a: Tensor  # (count, p, N)
    to_f: Tensor  # (count, N)

    def padded(self, p: int) -> Projections:
        """The same with p points per expert: a point with a = 0 has no part in any covariance."""
        more = (0, 0, 0, p - self.a.shape[1])
        points, a = (torch.nn.functional.pad(values, more) for values in (self.points, self.a))
        return Projections(self.mean, points, a, self.to_f)


@travels("projections", X="points")
def _project(posterior: LinearPosterior, X: Tensor) -> Projections:
    return _projections(posterior, X, *posterior.projection(X))


@travels("projections", X="points")
def _project_whitened(posterior: SparsePosterior, X: Tensor) -> Projections:
    """The projections in whitened coordinates, which experts that share inducing inputs have in common."""
    v = posterior.whitened(X)
    a = v - linalg.cholesky_solve(posterior.factors.LB, v)  # (I − B⁻¹)v
    return _projections(posterior, X, a.new_empty(*a.shape[:2], 0), a, (a * v).sum(-2))


def _projections(posterior: Posterior, X: Tensor, *parts: Tensor) -> Projections:
    return Projections(posterior.mean_chunk(X).to(WIDE), *(part.to(WIDE) for part in parts))


def _cross_covariances(kernel: Kernel, P: Tensor, a: Tensor) -> Tensor:
    """a_iᵀ k(P_i, P_j) a_j for all i ≠ j, (N, M, M): expert j meets all experts before it at once."""
    M, p, N = a.shape
    out = a.new_zeros(N, M, M)
    flat_P, flat_a = P.reshape(M * p, -1), a.reshape(M * p, N)
    experts = max(1, chunk_rows(N * p, a.device))  # experts i handled at a time
    for j in range(1, M):
        for start in range(0, j, experts):
            stop = min(start + experts, j)
            rows = slice(start * p, stop * p)
            T = kernel(flat_P[rows], P[j]) @ a[j]
            block = (T.mul_(flat_a[rows])).reshape(stop - start, p, N).sum(1)
            out[:, start:stop, j] = block.mT
            out[:, j, start:stop] = block.mT
    return out


@dataclass(frozen=True)
class GRBCM(MarginalAggregator):
    """Generalised robust Bayesian committee machine (Liu et al.).

    The first shard is the communication shard c: `with_communication` makes it a random one. Each
    other shard is joined with it to an augmented expert +i, and c's expert takes the prior's place.
    β = 1 for the first augmented expert, ½(log s_c² − log s_+i²) for the others. One shard alone is
    its own communication expert; two give the full GP.

    Parameters
    ----------
    space : {"latent", "observed"}, default="latent"
        Whether latent variances are combined, or observed ones, as in the paper's equation (4).
    """

    name: ClassVar[str] = "grbcm"
    rows_needed: ClassVar[str] = "unless shared"
    joint: ClassVar[str] = ""
    needs_communication_shard: ClassVar[bool] = True
    space: Space = "latent"

    def merge(self, marginals: Marginals) -> Prediction:
        """Precision Σβ_i s_+i⁻² − (Σβ_i − 1) s_c⁻²."""
        beta = marginals.gain()
        beta[0] = 1.0
        return committee(marginals, beta)

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Condition the augmented experts, each where its shard lives."""
        return AugmentedCombined(aggregator=self, augmented=augmented_experts(ensemble))


@dataclass(frozen=True, eq=False)
class AugmentedExperts:
    """A worker's augmented experts, and the communication expert as each of them sees it."""

    posterior: Posterior
    base: Posterior


@dataclass(frozen=True, eq=False, kw_only=True)
class AugmentedCombined(Combined):
    """The posterior of grBCM, which has experts of its own."""

    aggregator: MarginalAggregator
    augmented: Placement[AugmentedExperts]

    @property
    def space(self) -> Space:
        """The aggregator's."""
        return self.aggregator.space

    def entries(self, ensemble: Ensemble) -> int:
        """Entries of temporary matrices: augmented experts have the rows of two."""
        return 2 * ensemble.entries

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Ask every augmented expert, then apply the formula."""
        del ensemble
        return self.aggregator.merged(self.augmented.map(_augmented_marginals, X))

    def gathered(self) -> AugmentedCombined:
        """The same posterior with its augmented experts in this process."""
        if isinstance(self.augmented, LocalPlacement) and self.augmented.may_leave is None:
            return self
        return replace(self, augmented=LocalPlacement(tuple(self.augmented.map(_without_rows))))


def augmented_experts(ensemble: Ensemble) -> Placement[AugmentedExperts]:
    """The augmented experts of grBCM, each where its shard lives; only the communication shard travels."""
    if ensemble.size == 1:
        return ensemble.placement.derive(_alone)
    message = ensemble.placement.on_first(_communication, ensemble.shares_inducing)
    skip = [1] + [0] * (len(ensemble.counts) - 1)  # the communication expert itself
    return ensemble.placement.derive(_augment, message, each=skip)


@travels("predictions", X="points")
def _augmented_marginals(experts: AugmentedExperts, X: Tensor) -> Marginals:
    own, base = expert_marginals(experts.posterior, X), experts.base.predict(X)
    mean, variance = base.mean.expand_as(own.mean), base.variance.expand_as(own.mean)
    return own._replace(base_mean=mean, base_variance=variance)


def _alone(posterior: Posterior) -> AugmentedExperts:
    return AugmentedExperts(posterior, posterior)


def _communication(posterior: Posterior, shared: bool) -> object:
    return posterior.communication(shared)


def _augment(posterior: Posterior, message: object, skip: int) -> AugmentedExperts | None:
    """Augment a worker's experts, all but the first `skip`; None where there are no others."""
    if posterior.count == skip:
        return None
    return AugmentedExperts(*posterior.augmented(message, skip))


def _without_rows(experts: AugmentedExperts) -> AugmentedExperts:
    return AugmentedExperts(experts.posterior.without_rows(), experts.base.without_rows())
