"""Exact: the GP of all rows, by conjugate gradients preconditioned by the nearest rows' model."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp._util.checks import is_integer, warn_user
from distgp._util.machine import free_bytes
from distgp._util.progress import Progress
from distgp.aggregation.base import (
    Aggregator,
    Combined,
    Ensemble,
    check_choice,
    check_not_negative,
    refusal,
)
from distgp.aggregation.gram import PooledCombined
from distgp.aggregation.solve import KEPT, KernelMatrix, Watched, conjugate_gradients
from distgp.data import shard as sample
from distgp.data.shard import Shard, concatenate
from distgp.engines import travels
from distgp.experts import ExactExpert, Parameters, Posterior, Prediction, inducing
from distgp.experts.base import fields_alone
from distgp.experts.cost import Cost, seconds_for_cholesky, seconds_for_kernel
from distgp.experts.joint import joint_covariance, joint_draws
from distgp.experts.linear import Means
from distgp.experts.neighborhoods import GlobalPart, OrderedRows, in_order
from distgp.experts.preconditioner import Preconditioner
from distgp.kernels.fused import MOST_COLUMNS

FACTOR_ROWS = {"cpu": 10_000, "cuda": 50_000}
"""Rows up to which K is factorised where that is left to us: some seconds."""
CONDITIONING = {"cpu": 64, "cuda": 256}
"""Nearest rows before each row in the preconditioner, where that is left to us."""
VARIANCES = ("auto", "factor", "nearest")
ITERATIONS = 30
"""Iterations that estimates of time count with."""
PRODUCT = 0.1
"""The time of a product with K where it is kept, in units of that for making it."""
IN_ONE_PASS = 0.03
"""The time of a product on a GPU without K, in units of that for making K."""
SLOW = 4.0
"""The time of many small matrices in units of one large one's, for as many multiplications."""


class SolveWarning(UserWarning):
    """Conjugate gradients ended before the means had come to rest."""


@dataclass(frozen=True)
class Exact(Aggregator):
    """The posterior of the GP of all rows, for nearest and for exact experts that share θ.

    Its mean is k(x)ᵀα with (K + σ²I)α = y. Where K is not factorised, α is found by conjugate gradients,
    with the model of nearest rows and inducing inputs as the preconditioner, and that model's prediction of
    what the solve has left of the targets is added: before the first iteration the mean is that of nearest
    rows, at the end the exact one.

    Parameters
    ----------
    tolerance : float, default=0.01
        The change of means from one iteration to the next, in posterior standard deviations, that ends the
        solve.
    n_iter : int, default=100
        The number of iterations, at most.
    variance : {"auto", "factor", "nearest"}, default="auto"
        "factor": the exact variance, by a Cholesky factor of all rows, which gives the exact mean too:
        no iterations. "nearest": that of the nearest rows, which is a little too large. "auto": by the
        factor up to 10,000 rows on a CPU and 50,000 on a GPU.
    n_neighbors : int, default=256
        The nearest rows that variances, and the prediction of the residual, are given.
    n_conditioning : int or None, default=None
        The nearest rows before each row, in the preconditioner: where it is None, 64 on a CPU and 256 on a
        GPU, where more of them cost little and save iterations.
    n_inducing : int, default=1024
        The inducing inputs of the preconditioner; 0 for none.
    verbose : bool, default=False
        Whether to show progress.
    """

    name: ClassVar[str] = "exact"
    serves: ClassVar[tuple[str, ...]] = ("exact", "nearest")
    joint: ClassVar[str] = "always"
    needs_one_prior: ClassVar[bool] = True
    tolerance: float = 0.01
    n_iter: int = 100
    variance: Literal["auto", "factor", "nearest"] = "auto"
    n_neighbors: int = 256
    n_conditioning: int | None = None
    n_inducing: int = 1024
    verbose: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        check_not_negative("tolerance", self.tolerance)
        check_choice("variance", self.variance, VARIANCES)
        least = {"n_iter": 0, "n_neighbors": 1, "n_conditioning": 1, "n_inducing": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            if name == "n_conditioning" and value is None:
                continue
            if not is_integer(value) or value < smallest:
                raise ValueError(f"{name} must be a whole number from {smallest}, got {value!r}")

    def with_progress(self, show: bool) -> Exact:
        """Show the iterations of the solve."""
        return replace(self, verbose=show or self.verbose)

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Bring the rows to the centre; factorise K, or solve with the workers' products."""
        if ensemble.parameters.inducing_batch:
            why = "needs experts that share their hyperparameters"
            raise refusal(self.name, why, "opt-local")
        rows = in_order(concatenate(ensemble.placement.map(_rows)))
        theta = Parameters(ensemble.parameters.kernel, ensemble.parameters.noise)
        device = rows.X.device.type
        most = FACTOR_ROWS.get(device, FACTOR_ROWS["cpu"]) if self.variance == "auto" else 0
        if self.variance == "factor" or rows.n <= most:
            return PooledCombined(posterior=ExactExpert().condition(theta, rows))
        m = min(self.n_inducing, rows.n // 4)
        Z = inducing.centres_for(theta.kernel, sample.placed([rows]), m, 0) if m else None
        return self._solved(ensemble, replace(theta, inducing=Z), rows)

    def _solved(self, ensemble: Ensemble, theta: Parameters, rows: Shard) -> Combined:
        """Solve for α, and keep what predictions need."""
        ordered = OrderedRows(theta, rows)
        k = self.n_conditioning or _conditioning(rows.X.device)
        preconditioner = Preconditioner.of(ordered, k)
        watched = Watched.among(ordered, self.n_neighbors, preconditioner)
        matrix = KernelMatrix(ensemble.placement, ordered)
        with Progress("solving", self.n_iter, self.verbose, at_most=True) as progress:
            found = conjugate_gradients(
                matrix,
                preconditioner,
                ordered.y,
                lambda alpha, r: watched.means(alpha, r, preconditioner),
                self.tolerance,
                self.n_iter,
                progress,
            )
        if not found.change < self.tolerance:
            warn_user(
                f"the exact mean was not reached: after {found.iterations} iterations it still changes by "
                f"{found.change:.2g} posterior standard deviations, more than the tolerance "
                f"{self.tolerance:g}; raise n_iter or n_inducing of distgp.aggregation.Exact, or the noise",
                SolveWarning,
            )
        return ExactCombined(
            rows=replace(rows, X=ordered.X, y=found.residual),
            parameters=ordered.parameters,
            alpha=found.alpha,
            part=preconditioner.global_part(found.residual),
            n_neighbors=self.n_neighbors,
            change=found.change,
            iterations=found.iterations,
            seconds=found.seconds,
        )


def cost_of_solve(n: int, d: int, like: Tensor) -> Cost:
    """Estimate memory and time of `Exact`, solved by conjugate gradients, for n rows of d columns.

    The preconditioner factorises a small matrix for each row and keeps m numbers of it; K is made once and
    read in every iteration, or made in every iteration where it does not fit.
    """
    device = like.device
    k, m = _conditioning(device), min(Exact.n_inducing, n // 4)
    kernel = seconds_for_kernel(n * n, d, device, torch.float64)
    one_pass = device.type == "cuda" and d <= MOST_COLUMNS
    free, sizes = free_bytes(device) or math.inf, (8,) if one_pass else (8, 4)
    kept = next((size for size in sizes if n * n * size <= KEPT * free), 0)
    each = kernel * (PRODUCT if kept else IN_ONE_PASS if one_pass else 1.0)
    small = 3.0 * n * k * k * (m + k)  # multiplications, of which a factorisation has n³/3
    made = SLOW * seconds_for_cholesky(round(small ** (1 / 3)), device, torch.float64)
    held = 8 * n * (2 * m + 3 * k + d) + n * n * kept
    return Cost(held, (kernel if kept else 0.0) + ITERATIONS * each + made)


def _conditioning(device: torch.device) -> int:
    return CONDITIONING.get(device.type, CONDITIONING["cpu"])


@travels("rows")
def _rows(posterior: Posterior) -> Shard:
    return posterior.rows_held().flatten().without_padding()


@dataclass(frozen=True, eq=False, kw_only=True)
class ExactCombined(Combined):
    """The exact mean k(x)ᵀα, with the nearest rows' prediction of the residual and their variance.

    `rows` are all rows in their random order, the residual as their targets, and `part` is the global part
    of the model that predicts it. `change` is how much the means at sample points changed at last, in
    posterior standard deviations, after so many `iterations` and `seconds`.
    """

    rows: Shard
    parameters: Parameters
    alpha: Tensor
    part: GlobalPart | None
    n_neighbors: int
    change: float
    iterations: int
    seconds: float
    __getstate__ = fields_alone

    @cached_property
    def ordered(self) -> OrderedRows:
        """The rows with what searches and predictions need."""
        return OrderedRows(self.parameters, self.rows)

    @property
    def effort(self) -> str:
        """The iterations of the solve, and how much means changed at last."""
        return (
            f"conjugate gradients, {self.iterations} iterations in {self.seconds:.3g} s, means changed by "
            f"{self.change:.1g} posterior sd at last; variances of {self.n_neighbors} nearest rows"
        )

    def entries(self, ensemble: Ensemble) -> int:
        """Few: both parts of a prediction are made in chunks of their own."""
        del ensemble
        return 64

    def mean_chunk(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """k(x)ᵀα and the prediction of the residual."""
        del ensemble
        return self._mean(X) + self.ordered.mean(X, self.n_neighbors, self.part)

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """The mean, and the variance given the nearest rows."""
        del ensemble
        found = self.ordered.predict(X, self.n_neighbors, self.part)
        return Prediction(self._mean(X) + found.mean, found.variance)

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """Vecchia's approximation over the points, given the data."""
        del ensemble
        return joint_covariance(self.ordered, X, self.n_neighbors, self.part)

    def draws(self, ensemble: Ensemble, X: Tensor, size: int, seed: int) -> Tensor:
        """Draws of what the nearest rows leave open, around the exact mean."""
        del ensemble
        found = joint_draws(self.ordered, X, self.n_neighbors, self.part, size, seed)
        return found + self._mean(X)[:, None]

    def _mean(self, X: Tensor) -> Tensor:
        means = Means(self.parameters, self.alpha, self.rows.X)
        return means.mean(X.to(self.alpha.dtype)).to(X.dtype)
