"""Learn θ from placed rows: which rows are looked at, where training starts, and its stages."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from distgp.data import shard as sample
from distgp.data.shard import Shard
from distgp.engines import Placement
from distgp.experts import Expert, Parameters
from distgp.experts.base import Inducing, Stage
from distgp.kernels import Expression, InputLayout, Kernel, in_data_units
from distgp.training.base import Algorithm, TrainingResult
from distgp.training.objective import Prior, objective_value
from distgp.training.rounds import train

REACH = 1e3
"""How far training may take the parameters of a named kernel from where they start."""
LARGEST_SIGNAL = 1.0
"""The largest signal variance of a named kernel, in units of the target's variance. Beyond it, where
columns nearly repeat each other, the variance runs away with the lengthscales for next to nothing, and
the model extrapolates without limit along directions in which its rows hardly vary."""


@dataclass(frozen=True, eq=False)
class Initial:
    """Kernel and noise that training starts from.

    The kernel is `named` if it was given as a text, so that bounds and the search for lengthscales are
    ours. `fixed` and `signals` are full paths of parameters that stay, and of signal variances.
    """

    parameters: Parameters
    named: bool
    fixed: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()

    @staticmethod
    def of(
        kernel: Expression | Kernel,
        noise: float,
        layout: InputLayout,
        like: Tensor,
        units: str = "auto",
    ) -> Initial:
        """Build the kernel for these columns, in the dtype and on the device of `like`.

        `units` are those of lengthscales and periods: "data", "standardised", or "auto" for those of
        the data in texts and standardised ones in objects.
        """
        named = not isinstance(kernel, Kernel)
        if units == "standardised" or (units == "auto" and not named):
            layout = replace(layout, scale=())
        fixed, signals = (), ()
        if isinstance(kernel, Kernel):
            kernel = in_data_units(kernel, layout)
        else:
            built = kernel.build(layout)
            kernel, fixed, signals = built.kernel, built.fixed, built.signals
        start = Parameters.of(kernel, float(noise)).to(like.device, like.dtype)
        start.kernel(like.new_zeros(1, layout.d))  # refuses a kernel of another width
        return Initial(start, named, fixed, signals)

    def bounds(self, capped: bool = False) -> dict[str, tuple[float, float]]:
        """Bounds by full path: a named kernel's parameters stay within a factor of 1,000 of the start.

        Where `capped`, signal variances stay at or below 1, the variance of a standardised target.
        """
        if not self.named:
            return {}
        bounds = {
            f"kernel.{name}": (float(value.min()) / REACH, float(value.max()) * REACH)
            for name, value in self.parameters.kernel.parameters().items()
        }
        for path in self.signals if capped else ():
            bounds[path] = (bounds[path][0], max(LARGEST_SIGNAL, bounds[path][1] / REACH))
        return bounds

    def holds(self, path: str, fixed: tuple[str, ...]) -> bool:
        """Tell whether training leaves this parameter as it is, given the names the user fixed."""
        return path in self.fixed or bool({path, path.rpartition(".")[2]} & set(fixed))

    def moved_to(self, found: Parameters, fixed: tuple[str, ...]) -> Parameters | None:
        """Start from a θ found earlier, with all that training leaves as it is from here.

        Other rows have other scales, and a period in the units of the data is another number there.
        None where the kernel has other parameters.
        """
        start = self.parameters
        old, new = found.kernel.parameters(), start.kernel.parameters()
        if {k: v.shape for k, v in old.items()} != {k: v.shape for k, v in new.items()}:
            return None
        here = replace(found, inducing=None).to(start.noise.device, start.noise.dtype)
        held = {k: v for k, v in new.items() if self.holds(f"kernel.{k}", fixed)}
        noise = start.noise if self.holds("noise", fixed) else here.noise
        return replace(here, kernel=here.kernel.with_parameters(held), noise=noise)


SEARCHED = (1.0, 0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start."""


@dataclass(frozen=True, eq=False)
class Learning:
    """The way in which θ is to be learnt; names and bounds are as for `distgp.training.train`.

    With `search`, shorter lengthscales than those of `start` are taken as a start if they explain the
    rows better. A `start` that was `learnt` from a part of these rows makes a first stage, which finds
    where to look, unnecessary. Training looks at this number of `rows`, all by default; the `seed` is
    that of their sample and of the inducing inputs.
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
        algorithm, theta, stages, results = self.algorithm, self.start, (Stage(),), []
        if algorithm.draws_rows:
            algorithm, rows = algorithm.with_search(self.search), shards
        else:
            rows = self._sampled(shards)
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
