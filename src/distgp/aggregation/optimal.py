"""Optimal weights: `opt` and `two-level` over all rows, `opt-printed` as the paper has it, `opt-local`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from operator import add
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp import linalg
from distgp._util.checks import is_integer, warn_user
from distgp.aggregation import gram
from distgp.aggregation.base import (
    WIDE,
    Aggregator,
    Combined,
    Ensemble,
    check_choice,
    check_not_negative,
    joined,
    predictions,
)
from distgp.aggregation.variance import (
    Basis,
    Central,
    Mixture,
    Nested,
    OwnExact,
    OwnNystrom,
    OwnShared,
    Printed,
    VarianceRule,
    Weighted,
    WeightedCombined,
)
from distgp.engines import travels
from distgp.experts import Posterior, Prediction
from distgp.likelihoods import noise_factor
from distgp.likelihoods.gaussian import in_noise_units

MOST_ROWS = 2**40
"""More rows than any option can mean."""
ROWS_PER_EXPERT = 10
"""Rows that the weights of `opt-local` are fitted on, for each expert."""
SMALL_NORM, LARGEST_NORM = 10.0, 1e3
"""Σ|β| beyond which weights are reported. Over all rows large weights come from experts that span
nearly the same functions, and do little harm: measured RMSE within 2 % of the full GP's at 210."""


class WeightsWarning(UserWarning):
    """The weights of an aggregator are so large that errors of single experts may spoil its prediction."""


def warn_of_large_weights(name: str, weights: Tensor, limit: float) -> None:
    """Warn when Σ|β| says that large weights amplify the errors of single experts."""
    norm = float(weights.abs().sum())
    if not norm <= limit:
        warn_user(
            f"the weights of {name} add up to {float(weights.sum()):.3g} but their absolute values "
            f"to {norm:.3g}: large weights of either sign cancel, so an error of one expert can grow up to "
            "that much, and the prediction can be far off; use a ridge, fewer experts, or two-level",
            WeightsWarning,
        )


def check_count(name: str, value: int | None) -> None:
    """Refuse what is no number of rows, 1 or more."""
    if value is not None and not (is_integer(value) and 1 <= value <= MOST_ROWS):
        raise ValueError(f"{name} must be at least 1, got {value!r}")


@dataclass(frozen=True)
class Opt(Aggregator):
    """Σβ_i μ_i with the weights that bring it closest to the full GP's mean.

    "Closest" is in R(g) = ‖y − g(X)‖² + σ²‖g‖²_H, which the full GP's mean minimises. The weights solve
    Gβ = b with the inner products of the expert means over all rows.

    Parameters
    ----------
    ridge : float, optional
        ρ of the pull towards equal weights. By default 0, or 0.1 where a ridge is needed: with
        `n_eval`, or for different hyperparameters.
    n_eval : int, optional
        Use a sample of this many rows instead of all. It only pays for sparse experts with their own
        inducing inputs; take 40 M at least.
    variance : {"own", "weighted", "central", "nested"}, default="own"
        "own": the mean squared error of this combination under the prior, at most min s_i²; a
        mixture's variance where hyperparameters differ. "weighted": Σβ²s². "central": that of a sparse
        GP on central inputs. "nested": NPAE's.
    cross : {"nystrom", "exact"}, default="nystrom"
        How "own" gets the covariances between exact experts: through central inputs, or exactly in
        O(n²) per test point. Sparse experts know theirs, in O((Mm)²) per test point with their own
        inducing inputs and in O(m²) with shared ones.
    n_central : int, default=128
        The number of central inputs.
    seed : int, default=0
        The seed of the rows that are drawn.
    n_basis : int, optional
        Find the weights from the projections of the means on this many central inputs instead: far
        cheaper than the n² kernel values of exact experts, and as good where these inputs can express
        the means. A smooth function of eight columns took 2,048; 512 were too few.
    """

    name: ClassVar[str] = "opt"
    rows_needed: ClassVar[str] = "unless shared"
    joint: ClassVar[str] = "with shared inducing inputs"
    ridge: float | None = None
    n_eval: int | None = None
    variance: Literal["own", "weighted", "central", "nested"] = "own"
    cross: Literal["nystrom", "exact"] = "nystrom"
    n_central: int = 128
    seed: int = 0
    n_basis: int | None = None

    def __post_init__(self) -> None:
        check_choice("variance", self.variance, ("own", "weighted", "central", "nested"))
        check_choice("cross", self.cross, ("nystrom", "exact"))
        if self.ridge is not None:
            check_not_negative("ridge", self.ridge)
        for name in ("n_eval", "n_basis", "n_central"):
            check_count(name, getattr(self, name))
        if self.n_eval is not None and self.n_basis is not None:
            raise ValueError(
                "n_eval and n_basis are two ways to find the weights: give one of them"
            )

    @property
    def needs_one_prior(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Whether the experts must share their hyperparameters: with some of the options."""
        return self.n_basis is not None or self.variance in ("central", "nested")

    def posterior(self, ensemble: Ensemble) -> Combined:
        """One round over the shards for the weights, one for the variance where it needs it."""
        # Over all rows and in a common RKHS the weights are held by the data; else by a ridge.
        whole = self.n_eval is None or ensemble.shares_inducing
        sure = ensemble.shares_hyperparameters and whole
        default = 0.0 if sure else 0.1
        beta = self.equations(ensemble).weights(default if self.ridge is None else self.ridge)
        warn_of_large_weights(self.name, beta, LARGEST_NORM if sure else SMALL_NORM)
        rule, basis = self._variance(ensemble, beta)
        central = None if basis is None else basis.inputs
        return WeightedCombined(weights=beta, central=central, rule=rule)

    def equations(self, ensemble: Ensemble) -> gram.NormalEquations:
        """G and b: over all rows, over a sample, or from the sums of experts that share Z."""
        if ensemble.shares_inducing:
            return gram.shared_equations(ensemble)
        if self.n_eval is not None:
            return gram.sampled_equations(ensemble, self.n_eval, self.seed)
        if self.n_basis is not None:
            inputs = ensemble.central(self.n_basis, self.seed).X
            return gram.projected_equations(ensemble, Basis.of(ensemble.parameters, inputs))
        return gram.trial_equations(ensemble)

    def _variance(self, ensemble: Ensemble, beta: Tensor) -> tuple[VarianceRule, Basis | None]:
        if self.variance == "weighted":
            return Weighted(beta), None
        if not ensemble.shares_hyperparameters:  # only "own" is left then: see `needs_one_prior`
            return Mixture(), None
        if self.variance == "nested":
            return Nested(), None
        if self.variance == "own" and ensemble.shares_inducing:
            return OwnShared.of(ensemble, beta), None
        if self.variance == "own" and (self.cross == "exact" or ensemble.expert.cheap_covariances):
            return OwnExact(beta), None
        central = ensemble.central(self.n_central, self.seed)
        basis = Basis.of(ensemble.parameters, central.X)
        if self.variance == "own":
            return OwnNystrom.of(ensemble, beta, basis), basis
        return Central.of_rows(ensemble, basis), basis


@dataclass(frozen=True)
class OptPrinted(Aggregator):
    """The paper's weights, algorithms 3 to 6 as printed, for comparison; `opt` is what works.

    G is summed over one central row per shard, b = diag G, and there is a jitter. But b = diag G holds
    for projections of f* onto subspaces, which posteriors on different shards are not, and M rows
    cannot tell M functions apart: as M grows the weights explode.

    Parameters
    ----------
    lam : float, optional
        λ of the inner product: σ² by default, 1 as algorithm 5 has it.
    jitter : float, default=1e-6
        What is added to G's diagonal, relative to its mean.
    variance : {"printed", "weighted"}, default="printed"
        The printed one goes to 0 far from the data; "weighted" is Σβ²s².
    seed : int, default=0
        The seed of the rows that are drawn.
    """

    name: ClassVar[str] = "opt-printed"
    needs_one_prior: ClassVar[bool] = True
    lam: float | None = None
    jitter: float = 1e-6
    variance: Literal["printed", "weighted"] = "printed"
    seed: int = 0

    def __post_init__(self) -> None:
        check_choice("variance", self.variance, ("printed", "weighted"))
        if self.jitter < 0 or (self.lam is not None and not self.lam > 0):
            raise ValueError(
                f"expected jitter ≥ 0 and lam > 0 (or None), got {self.jitter} and {self.lam}"
            )

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Solve (G + jitter·mean(diag G)·I)β = diag G."""
        equations, inputs = self.equations(ensemble)
        G = linalg.add_diagonal(equations.G, self.jitter * equations.G.diagonal().mean())
        L = linalg.cholesky(G, "the printed Gram matrix")
        beta = linalg.cholesky_solve(L, equations.b[:, None])[:, 0]
        warn_of_large_weights(self.name, beta, SMALL_NORM)
        rule = Printed(beta) if self.variance == "printed" else Weighted(beta)
        return WeightedCombined(weights=beta, central=inputs, rule=rule)

    def equations(self, ensemble: Ensemble) -> tuple[gram.NormalEquations, Tensor]:
        """G_lk = Σ_c f_l(x_c)f_k(x_c) + λ⟨f_l, f_k⟩_H and b = diag G, and the central inputs X_c."""
        central, means = ensemble.central(ensemble.size, self.seed), gram.means_of(ensemble)
        F = gram.means_at(means, central.X)
        inner = ensemble.placement.map(gram.rkhs_inner, means)
        lam = ensemble.noise().to(WIDE) if self.lam is None else self.lam
        G = F @ F.mT + lam * gram.symmetric(inner)
        return gram.NormalEquations(G, G.diagonal()), central.X


@dataclass(frozen=True)
class TwoLevel(Aggregator):
    """Σβ_i μ_i + v_cᵀγ, the best in R(g) over experts and central kernel functions together.

    The coarse space of a two-level Schwarz method: the experts know their shards, the central inputs
    tie them together. Σ|β| says nothing here, since the central functions can express the same, so
    there is no warning about it.

    Parameters
    ----------
    n_central : int, default=512
        The number of central inputs, drawn evenly from all shards.
    variance : {"central", "nested"}, default="central"
        "central": min(s_c², min s_i²) with the sparse variance s_c² on the central inputs. "nested":
        NPAE's upper bound.
    seed : int, default=0
        The seed of the draw.
    central : Tensor of shape (m_c, d), optional
        The central inputs, where they are not to be drawn.
    """

    name: ClassVar[str] = "two-level"
    joint: ClassVar[str] = "with variance='central'"
    needs_one_prior: ClassVar[bool] = True
    n_central: int = 512
    variance: Literal["central", "nested"] = "central"
    seed: int = 0
    central: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_choice("variance", self.variance, ("central", "nested"))
        check_count("n_central", self.n_central)
        if self.central is not None:
            given = torch.as_tensor(self.central)
            if given.ndim != 2 or not given.numel() or not bool(torch.isfinite(given).all()):
                raise ValueError(
                    f"central must be finite, of shape (m, d), got {tuple(given.shape)}"
                )
            object.__setattr__(self, "central", given)

    def posterior(self, ensemble: Ensemble) -> Combined:
        """One round over the shards for all sums, then the eliminated, whitened solve."""
        given = self.central
        inputs = ensemble.central(self.n_central, self.seed).X if given is None else given
        basis = Basis.of(ensemble.parameters, inputs)
        equations = gram.trial_equations(ensemble, basis)
        beta, gamma, LB = eliminate(equations, ensemble.size)
        coarse = basis, gamma / ensemble.noise().to(WIDE).sqrt()
        if self.variance == "nested":
            rule = Nested()
        else:
            trace = reduce(add, ensemble.placement.map(_prior_trace)) / ensemble.noise().to(WIDE)
            explained = (equations.G.diagonal()[ensemble.size :] - 1.0).sum()
            rule = Central.of(basis, LB, float((trace - explained) / ensemble.sizes().sum()))
        return WeightedCombined(weights=beta, central=inputs, rule=rule, coarse=coarse)


def eliminate(equations: gram.NormalEquations, M: int) -> tuple[Tensor, Tensor, Tensor]:
    """Solve the joint normal equations of M experts and σ⁻¹v_c, for β, their coefficients and L_B.

    The block of the whitened central functions, B = I + AAᵀ, is well conditioned whatever the central
    inputs are; the whole matrix is singular. Eliminating B leaves, with C = L_B⁻¹(AFᵀ + σL_c⁻¹F_cᵀ) and
    t = L_B⁻¹Ay: (G − CᵀC)β = b − Cᵀt, solved on the scale of G, and L_B⁻ᵀ(t − Cβ).
    """
    G, b = equations.G[:M, :M], equations.b[:M]
    LB = linalg.cholesky(equations.G[M:, M:], "I + AAᵀ")
    C = linalg.solve_lower(LB, equations.G[M:, :M])
    t = linalg.solve_lower(LB, equations.b[M:, None])[:, 0]
    schur = G - C.mT @ C
    beta = linalg.truncated_solve(0.5 * (schur + schur.mT), b - C.mT @ t, G.diagonal())
    return beta, linalg.solve_upper(LB, (t - C @ beta)[:, None])[:, 0], LB


@travels("sums")
def _prior_trace(posterior: Posterior) -> Tensor:
    """Σ k(x, x) over a worker's rows, each in units of its own noise."""
    rows = posterior.rows_held()
    prior = posterior.prior(rows.X)
    factor = noise_factor(rows)
    prior = prior if factor is None else prior / factor
    real = prior if rows.mask is None else torch.where(rows.mask, prior, 0.0)
    return real.sum(dtype=WIDE)


@dataclass(frozen=True)
class OptLocal(Aggregator):
    """Optimal weights on experts times their share of the precision.

    Σβ_i g_i with g_i(x) = M π_i(x) μ_i(x) and π_i = s_i⁻² / Σ_j s_j⁻². Experts with hyperparameters of
    their own share no RKHS, and one number per expert cannot tell where each is good: away from its
    rows an expert may be far off, and says so by its variance. The weights minimise
    ‖y − Σβ_i g_i(X)‖² on a sample of rows, subject to Σβ_i = 1, with a ridge ρ Σ G_ii(β_i − 1/M)²: equal
    weights are the mean of PoE. The variance is the mixture's, Σπ_i (s_i² + (μ_i − μ)²), which grows
    where the experts disagree.

    Parameters
    ----------
    ridge : float, default=10.0
        ρ of the pull towards equal weights.
    n_eval : int, optional
        The number of rows in the sample, 10 M by default.
    seed : int, default=0
        The seed of the sample.
    """

    name: ClassVar[str] = "opt-local"
    serves: ClassVar[tuple[str, ...]] = ("exact", "sparse", "nearest")
    ridge: float = 10.0
    n_eval: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        check_not_negative("ridge", self.ridge)
        check_count("n_eval", self.n_eval)

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Fit the weights on a sample of rows."""
        M = ensemble.size
        if M == 1:
            return LocalCombined(weights=ensemble.noise().new_ones(1).to(WIDE))
        sample = ensemble.central(self.n_eval or ROWS_PER_EXPERT * M, self.seed)
        out = joined(ensemble.placement.map(predictions, sample.X))
        g = (M * precision_shares(out.variance) * out.mean).to(WIDE)
        g, y = in_noise_units(sample, g)
        # A system of M + 1 unknowns: small, and fastest where no kernel has to be launched.
        sums = (g @ torch.cat([g, y[None]]).mT).cpu()
        return LocalCombined(weights=constrained(sums[:, :M], sums[:, M], self.ridge).to(g.device))


@dataclass(frozen=True, eq=False, kw_only=True)
class LocalCombined(Combined):
    """The posterior of `opt-local`."""

    weights: Tensor  # pyright: ignore[reportGeneralTypeIssues]

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Σβ_i M π_i μ_i, and the mixture's variance; experts of this process are asked directly."""
        here = [posterior.predict_chunk(X) for posterior in ensemble.here]
        out = joined(here or ensemble.placement.map(predictions, X))
        shares = precision_shares(out.variance)
        mean = ensemble.size * self.weights.to(X) @ (shares * out.mean)
        spread = out.variance + (out.mean - mean).square()
        return Prediction(mean, (shares * spread).sum(0))


def precision_shares(variance: Tensor) -> Tensor:
    """The shares π_i = s_i⁻² / Σ_j s_j⁻² of the experts in the precision, (M, N)."""
    precision = 1.0 / variance
    return precision / precision.sum(0)


def constrained(G: Tensor, b: Tensor, ridge: float) -> Tensor:
    """Minimise βᵀGβ − 2βᵀb + ρ Σ G_ii(β_i − 1/M)² subject to Σβ = 1.

    With β = 1/M + δ, Σδ = 0: δ = H⁻¹(r − λ1) with H = G + ρ diag G, r = b − G1/M, λ = 1ᵀH⁻¹r / 1ᵀH⁻¹1.
    """
    M, diagonal = len(b), G.diagonal()
    if not float(diagonal.max()) > 0.0:  # no expert says anything on these rows
        return torch.full_like(b, 1.0 / M)
    H = linalg.add_diagonal(G, ridge * diagonal)
    both = torch.stack([b - G.mean(-1), torch.ones_like(b)], -1)
    if ridge > 0.0:
        scale = H.diagonal().clamp_min(torch.finfo(H.dtype).eps * float(diagonal.max())).rsqrt()
        L = linalg.cholesky(scale[:, None] * H * scale, "the Gram matrix of opt-local")
        solved = scale[:, None] * linalg.cholesky_solve(L, scale[:, None] * both)
    else:
        solved = linalg.truncated_solve(H, both, H.diagonal())
    a, c = solved.unbind(-1)
    return 1.0 / M + a - c * (a.sum() / c.sum())
