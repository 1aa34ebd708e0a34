"""Learn θ from placed rows: which rows are looked at, where training starts, and its stages."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch

from distgp.data import sample
from distgp.data.shard import Shard
from distgp.engines import Placement
from distgp.experts import Expert, Parameters
from distgp.experts.base import Inducing, Stage
from distgp.training.base import Algorithm, TrainingResult
from distgp.training.objective import objective_value
from distgp.training.priors import Prior
from distgp.training.rounds import train

SEARCHED = (1.0, 0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start."""


@dataclass(frozen=True, eq=False)
class Learning:
    """How θ is to be learnt.

    Parameters
    ----------
    algorithm : Algorithm
        The method of training.
    start : Parameters
        Kernel and noise to start from.
    inducing : int, "auto" or Tensor, default="auto"
        The number of inducing inputs, or the inputs themselves, for experts that have any.
    search : bool, default=False
        Whether shorter lengthscales than those of `start` may be taken as a start, if they explain
        the rows better.
    learnt : bool, default=False
        Whether `start` has been learnt from a part of these rows, so that a first stage, which finds
        where to look, is left out.
    rows : int, optional
        The number of rows that training looks at; all by default.
    priors, bounds, fixed
        By parameter name, as for `distgp.training.train`.
    seed : int, default=0
        The seed of the sample and of the inducing inputs.
    verbose : bool, default=False
        Whether to show progress.
    """

    algorithm: Algorithm
    start: Parameters
    inducing: Inducing = "auto"
    search: bool = False
    learnt: bool = False
    rows: int | None = None
    priors: Mapping[str, Prior] | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    fixed: Collection[str] = ()
    seed: int = 0
    verbose: bool = False

    def on(self, expert: Expert, shards: Placement[Shard]) -> TrainingResult:
        """Learn θ of experts of this kind, in the stages that the kind asks for."""
        algorithm = self.algorithm.with_search(self.search)
        rows = shards if algorithm.draws_rows else self._sampled(shards)
        theta, stages, results = self.start, (Stage(),), []
        if not algorithm.draws_rows:
            stages = expert.stages(self.inducing, algorithm.n_iter, algorithm.agrees, self.learnt)
            theta = replace(theta, inducing=expert.first_inducing(self.inducing, rows, self.seed))
            theta = best_start(expert, theta, rows) if self.search else theta
        least = {"noise": (algorithm.least_noise * _target_variance(rows), math.inf)}
        for i, stage in enumerate(stages):
            if stage.choose is not None:
                theta = replace(theta, inducing=stage.choose(theta, rows, self.seed))
            found = train(
                _share_of_rounds(algorithm, i, len(stages)),
                expert,
                theta,
                rows,
                own=stage.own,
                fixed=[*self.fixed, *stage.fixed],
                priors=self.priors,
                bounds=least | dict(self.bounds),
                tolerance=algorithm.tolerance,
                verbose=self.verbose,
            )
            results.append(found)
            theta = found.parameters
        return _joined(results)

    def _sampled(self, shards: Placement[Shard]) -> Placement[Shard]:
        """A random sample of as many rows as training looks at."""
        n = int(sample.sizes(shards).sum())
        share = 1.0 if self.rows is None or self.rows >= n else self.rows / n
        return sample.sampled(shards, share, self.seed)


def best_start(expert: Expert, theta: Parameters, shards: Placement[Shard]) -> Parameters:
    """Take θ, or θ with shorter lengthscales where those explain the rows better.

    Started too long, training can end where everything is noise.
    """
    lengths = {
        name: value
        for name, value in theta.kernel.parameters().items()
        if name.endswith("lengthscale")
    }
    found: list[tuple[float, Parameters]] = []
    for factor in SEARCHED:
        shorter = {name: factor * value for name, value in lengths.items()}
        candidate = replace(theta, kernel=theta.kernel.with_parameters(shorter))
        value = objective_value(expert, candidate, shards)
        if math.isfinite(value):
            found.append((value, candidate))
    return min(found, key=lambda pair: pair[0])[1] if found else theta


def _share_of_rounds(algorithm: Algorithm, stage: int, stages: int) -> Algorithm:
    """The algorithm with one stage's share of its rounds."""
    if stages == 1:
        return algorithm
    early = algorithm.n_iter // stages
    share = early if stage < stages - 1 else algorithm.n_iter - early * (stages - 1)
    return replace(algorithm, n_iter=share)  # pyright: ignore[reportArgumentType]


def _joined(results: list[TrainingResult]) -> TrainingResult:
    """The last result, with the rounds of all stages."""
    if len(results) == 1:
        return results[0]
    rounds = [round_ for result in results for round_ in result.history]
    history = tuple(replace(round_, number=i + 1) for i, round_ in enumerate(rounds))
    return replace(results[-1], history=history)


def _target_variance(shards: Placement[Shard]) -> float:
    """The variance of the targets, or 1 where they do not vary."""
    moments = torch.stack(shards.map(sample.target_moments)).sum(0)
    found = float(moments[2] / moments[0] - (moments[1] / moments[0]).square())
    return found if found > 0 else 1.0
