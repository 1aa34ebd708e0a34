"""Learn θ from placed rows: which rows are looked at, where training starts, its stages, and `train`."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from distgp._util.checks import warn_user
from distgp._util.progress import Progress, doing, telling
from distgp._util.words import in_words
from distgp.data import shard as sample
from distgp.data.shard import Shard
from distgp.engines import Placement, travels
from distgp.experts import Expert, Parameters
from distgp.experts.base import Inducing, Stage
from distgp.kernels import Expression, InputLayout, Kernel, in_data_units
from distgp.training.fact import Fact
from distgp.training.objective import (
    Layout,
    LogNormal,
    Objective,
    Prior,
    by_path,
    objective_value,
)
from distgp.training.refinement import (
    ERRORS,
    Bounds,
    Limits,
    Score,
    back_at_start,
    left_out_densities,
    score,
    within_reach,
)
from distgp.training.rounds import Algorithm, Rounds, Stop, TrainingResult

REACH = 1e3
"""How far training may take the parameters of a named kernel from where they start."""
LARGEST_SIGNAL = 1.0
"""The largest signal variance of a named kernel, in units of the target's variance. Beyond it, where
columns nearly repeat each other, the variance runs away with the lengthscales for next to nothing, and
the model extrapolates without limit along directions in which its rows hardly vary."""
LEAST_NOISE = 1e-8
"""The floor of the noise in units of the target's variance, once it is lifted."""
SHORTER = 0.7
"""The most probable lengthscale of few rows, in units of that which training starts from, √d by default.
Hvarfner, Hellsten and Nardi (2024) have this one for inputs spread evenly over a unit cube."""
MANY = 1.5
"""Training begins with a part of the rows where there are so many times more."""
PART_TOLERANCE = 5e-5
"""Nats per row that five rounds in a row must fall below, where training begins with a part of the rows
and where it goes on with all of them: 0.1 nats of 2,000 rows."""
SEARCHED = (1.0, 0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start."""


class Initial(NamedTuple):
    """Kernel and noise that training starts from; bounds are ours if the kernel is `named` by a text.

    `fixed` and `signals` are full paths of parameters that stay, and of signal variances.
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
        """Build the kernel for these columns; "auto" units are those of the data in texts alone."""
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
        """Bounds by full path: a factor of 1,000 for a named kernel; 1 for signals if `capped`."""
        if not self.named:
            return {}
        bounds = {
            f"kernel.{name}": (float(value.min()) / REACH, float(value.max()) * REACH)
            for name, value in self.parameters.kernel.parameters().items()
        }
        for path in self.signals if capped else ():
            bounds[path] = (bounds[path][0], max(LARGEST_SIGNAL, bounds[path][1] / REACH))
        return bounds

    def priors(self) -> dict[str, Prior]:
        """Priors by full path for few rows, of the lengthscales and the noise of a named kernel.

        Their maxima are near where training starts, and a factor of e from there costs half a nat. So many
        hyperparameters explain so few rows without any noise, by the columns that happen to fit.
        """
        if not self.named:
            return {}
        values = self.parameters.kernel.parameters()
        most = {
            f"kernel.{name}": SHORTER * math.exp(float(value.log().mean()))
            for name, value in values.items()
            if name.endswith("lengthscale")
        }
        most["noise"] = float(self.parameters.noise)
        return {path: LogNormal(math.e * value, 1.0) for path, value in most.items()}

    def uncapped(self) -> dict[str, tuple[float, float]]:
        """The bounds of signal variances without a cap, and of lengthscales that may be far longer."""
        free = self.bounds()
        far = {path: (low, REACH * high) for path, (low, high) in free.items()}
        long = {path: pair for path, pair in far.items() if path.endswith("lengthscale")}
        return long | {path: free[path] for path in self.signals if path in free}

    def holds(self, path: str, fixed: tuple[str, ...]) -> bool:
        """Tell whether training leaves this parameter as it is, given the names the user fixed."""
        return path in self.fixed or bool({path, path.rpartition(".")[2]} & set(fixed))

    def moved_to(self, found: Parameters, fixed: tuple[str, ...]) -> Parameters | None:
        """Start from a θ found earlier; None where the kernel has other parameters.

        What training leaves as it is comes from here: other rows have other means and scales, and a
        period in the units of the data, or how columns become degrees, are other numbers there.
        """
        start = self.parameters
        old, new = found.kernel.parameters(), start.kernel.parameters()
        if {k: v.shape for k, v in old.items()} != {k: v.shape for k, v in new.items()}:
            return None
        here = replace(found, inducing=None).to(start.noise.device, start.noise.dtype)
        values = here.kernel.parameters()
        free = {k: v for k, v in values.items() if not self.holds(f"kernel.{k}", fixed)}
        noise = start.noise if self.holds("noise", fixed) else here.noise
        return replace(here, kernel=start.kernel.with_parameters(free), noise=noise)


class TrainingWarning(UserWarning):
    """The objective could not be computed at some point during training; a step was taken back."""


@dataclass(frozen=True, eq=False)
class Learning:
    """The way in which θ is to be learnt; names and bounds are as for `train`.

    With `search`, shorter lengthscales are a start too. A `start` that was `learnt` from a part of these
    rows makes a first stage unnecessary. Training looks at this number of `rows`, all by default. With
    `refine`, bounds of ours are lifted to `uncapped` where rows held out say that it pays.
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
    refine: bool = False
    uncapped: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def on(self, expert: Expert, shards: Placement[Shard]) -> TrainingResult:
        """Learn θ of experts of this kind, in the stages that the kind asks for."""
        shards.map(_check_room, expert)
        limits, alone = self._limits(shards), sum(sample.counts(shards)) == 1
        every_row = bool(self.algorithm.polish) if self.algorithm.draws_rows else self.rows is None
        refine = self.refine and alone and every_row and self.algorithm.agrees
        if self.algorithm.draws_rows:
            results, limits = self._by_drawn_rows(expert, shards, limits)
        elif refine and self.search and _share_of_first(expert, shards) < 1.0:
            return _joined(self._from_part(expert, shards, limits))
        else:
            results = self._by_stages(expert, self._sampled(shards), limits.now)
        if refine:
            with telling("theta", lambda told: told.get("theta", results[-1].parameters)):
                results += self._without_bounds(expert, shards, results[-1].parameters, limits)
        return _joined(results)

    def _from_part(
        self, expert: Expert, shards: Placement[Shard], limits: Limits
    ) -> list[TrainingResult]:
        """Learn θ from a part of the rows, with bounds of ours or without, and go on with all rows.

        An evaluation of all rows costs many times as much. From where the part has led a few of them
        are left to do.
        """
        rounds = self.algorithm.n_iter
        part = sample.sampled(shards, _share_of_first(expert, shards), self.seed)
        first = replace(self, algorithm=_with_rounds(self.algorithm, max(1, rounds // 2)))
        results = first._by_stages(expert, part, limits.now, PART_TOLERANCE)
        free = first._without_bounds(expert, part, results[-1].parameters, limits, PART_TOLERANCE)
        bounds = limits.now | limits.free if free else limits.now
        results += free
        theta = within_reach(results[-1].parameters, self.start)
        left = _with_rounds(self.algorithm, max(1, rounds - rounds // 2))
        results.append(self._train(left, expert, theta, shards, bounds, tolerance=PART_TOLERANCE))
        return results

    def _by_stages(
        self,
        expert: Expert,
        rows: Placement[Shard],
        bounds: Bounds,
        tolerance: float | None = None,
    ) -> list[TrainingResult]:
        """Train in the stages that the kind of expert asks for."""
        algorithm, results = self.algorithm, []
        stages = expert.stages(self.inducing, algorithm.n_iter, algorithm.agrees, self.learnt)
        first = expert.first_inducing(self.inducing, rows, self.seed)
        theta = replace(self.start, inducing=first)
        doing("looking for hyperparameters to start from")
        theta = best_start(expert, theta, rows, self.priors) if self.search else theta
        for i, stage in enumerate(stages):
            if stage.choose is not None:
                theta = replace(theta, inducing=stage.choose(theta, rows, self.seed))
            share = _share_of_rounds(algorithm, i, len(stages))
            results.append(self._train(share, expert, theta, rows, bounds, stage, tolerance))
            theta = results[-1].parameters
        return results

    def _by_drawn_rows(
        self, expert: Expert, shards: Placement[Shard], limits: Limits
    ) -> tuple[list[TrainingResult], Limits]:
        """Train by an algorithm that draws its rows; refine and polish what it found."""
        algorithm, floor = self.algorithm.with_search(self.search), limits.now["noise"][0]
        results = [self._train(algorithm, expert, self.start, shards, limits.now)]
        if self.refine:
            with telling("theta", lambda told: told.get("theta", results[0].parameters)):
                found, limits = self._refined(expert, shards, results[0].parameters, limits)
            results += found
        if algorithm.polish:
            theta, held = results[-1].parameters, "noise" in self.fixed
            if not held:  # below the floor the objective hardly depends on it, and leads nowhere
                theta = replace(theta, noise=theta.noise.clamp_min(floor))
            polish = Fact(n_iter=min(algorithm.polish, algorithm.n_iter))
            results.append(self._train(polish, expert, theta, shards, limits.now))
        return results, limits

    def _refined(
        self, expert: Expert, shards: Placement[Shard], theta: Parameters, limits: Limits
    ) -> tuple[list[TrainingResult], Limits]:
        """Take those steps of further training by which rows held out are predicted better."""
        results, last = [], self.algorithm
        doing("measuring what was learnt on rows held out")
        best = score(theta, shards, self.seed)
        for change in self.algorithm.refinements():
            wider, again = limits.lifted(change.lifts, theta), change.algorithm or last
            if change.lifts and wider == limits:
                continue
            start = theta if change.lifts else back_at_start(theta, self.start)
            found = self._train(
                again, expert, start, shards, wider.now, tolerance=Algorithm.tolerance
            )
            new = score(found.parameters, shards, self.seed)
            if new.beats(best, ERRORS if change.lifts else 0.0):
                results, best, limits, last = [*results, found], new, wider, again
                theta = found.parameters
        return results, limits

    def _without_bounds(
        self,
        expert: Expert,
        shards: Placement[Shard],
        theta: Parameters,
        limits: Limits,
        tolerance: float | None = None,
    ) -> list[TrainingResult]:
        """Go on without bounds of ours, and keep it where rows that are left out in turn do not object.

        The likelihood of all rows speaks for it already, so that a gain on average is enough. A descent
        that begins anew also leaves places where rounding errors have stopped the last one.
        """
        doing("measuring what was learnt on rows left out in turn")
        before = shards.on_first(left_out_densities, expert, theta)
        if before is None:
            return []
        most = self.algorithm.polish or max(1, self.algorithm.n_iter // 2)
        free = limits.now | limits.free
        found = self._train(Fact(n_iter=most), expert, theta, shards, free, tolerance=tolerance)
        after = shards.on_first(left_out_densities, expert, found.parameters)
        better = after is not None and Score(after).beats(Score(before), 0.0)
        return [found] if better else []

    def _limits(self, rows: Placement[Shard]) -> Limits:
        """The bounds given and a floor of the noise, and those of them that may be lifted."""
        variance = _target_variance(rows)
        floor = {"noise": (self.algorithm.least_noise * variance, math.inf)}
        free = {"noise": (LEAST_NOISE * variance, math.inf)} if "noise" not in self.bounds else {}
        return Limits(floor | dict(self.bounds), free | dict(self.uncapped))

    def _train(
        self,
        algorithm: Algorithm,
        expert: Expert,
        theta: Parameters,
        rows: Placement[Shard],
        bounds: Bounds,
        stage: Stage = Stage(),  # noqa: B008
        tolerance: float | None = None,
    ) -> TrainingResult:
        """Train one stage."""
        return train(
            algorithm,
            expert,
            theta,
            rows,
            own=stage.own,
            fixed=[*self.fixed, *stage.fixed],
            priors=self.priors,
            bounds=bounds,
            tolerance=algorithm.tolerance if tolerance is None else tolerance,
            verbose=self.verbose,
        )

    def _sampled(self, shards: Placement[Shard]) -> Placement[Shard]:
        """A random sample of as many rows as training looks at."""
        n = int(sample.sizes(shards).sum())
        return sample.sampled(shards, 1.0 if self.rows is None else self.rows / n, self.seed)


@travels("settings")
def _check_room(batch: Shard, expert: Expert) -> None:
    expert.check_room(batch)


def best_start(
    expert: Expert,
    theta: Parameters,
    shards: Placement[Shard],
    priors: Mapping[str, Prior] | None = None,
) -> Parameters:
    """Take θ, or shorter lengthscales: started too long, training can end where everything is noise."""

    def value(candidate: Parameters) -> float:
        found = objective_value(expert, candidate, shards, priors)
        return found if math.isfinite(found) else math.inf

    return min(with_lengthscales(theta, SEARCHED), key=value, default=theta)


def with_lengthscales(theta: Parameters, factors: Collection[float]) -> list[Parameters]:
    """Multiply all lengthscales of θ by each of these factors; none where it has no lengthscales."""
    kernel = theta.kernel
    lengths = {k: v for k, v in kernel.parameters().items() if k.endswith("lengthscale")}
    scaled = [{name: factor * value for name, value in lengths.items()} for factor in factors]
    return [replace(theta, kernel=kernel.with_parameters(one)) for one in scaled if one]


def _share_of_rounds(algorithm: Algorithm, stage: int, stages: int) -> Algorithm:
    """The algorithm with one stage's share of its rounds."""
    if stages == 1:
        return algorithm
    early = algorithm.n_iter // stages
    share = early if stage < stages - 1 else algorithm.n_iter - early * (stages - 1)
    return _with_rounds(algorithm, share)


def _with_rounds(algorithm: Algorithm, rounds: int) -> Algorithm:
    """The algorithm with another number of rounds."""
    return replace(algorithm, n_iter=rounds)  # pyright: ignore[reportArgumentType]


def _share_of_first(expert: Expert, shards: Placement[Shard]) -> float:
    """The share of the rows that training begins with, 1 where it looks at all of them at once."""
    n, first = float(sample.sizes(shards).sum()), expert.first_rows
    return 1.0 if first is None or n < MANY * first else first / n


def _joined(results: list[TrainingResult]) -> TrainingResult:
    """The last result, with the rounds of all stages."""
    rounds = [round_ for result in results for round_ in result.history]
    history = tuple(replace(round_, number=i + 1) for i, round_ in enumerate(rounds))
    return replace(results[-1], history=history)


def _target_variance(shards: Placement[Shard]) -> float:
    """The variance of the targets, or 1 where they do not vary."""
    moments = torch.stack(shards.map(sample.target_moments)).sum(0)
    found = float(moments[2] / moments[0] - (moments[1] / moments[0]).square())
    return found if found > 0 else 1.0


def train(
    algorithm: Algorithm,
    expert: Expert,
    parameters: Parameters,
    shards: Placement[Shard] | Sequence[Shard],
    *,
    own: Collection[str] = (),
    fixed: Collection[str] = (),
    priors: Mapping[str, Prior] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    tolerance: float = 1e-6,
    verbose: bool = False,
) -> TrainingResult:
    """Learn θ across shards, by at most `algorithm.n_iter` rounds.

    Parameters are named by their full path, such as "kernel.kernel.lengthscale", "noise" or
    "inducing", or by the last part of it, such as "lengthscale", which stands for every parameter of
    that name.

    Parameters
    ----------
    algorithm : Algorithm
        The method of training.
    expert : Expert
        The kind of expert, which defines the objective.
    parameters : Parameters
        θ to start from. What each expert keeps for itself may have one value per expert.
    shards : Placement of Shard, or sequence of Shard
        One shard per expert.
    own : collection of str, default=()
        Parameters that each expert keeps for itself.
    fixed : collection of str, default=()
        Parameters that are not trained.
    priors : mapping of str to Prior, optional
        Densities of parameters, by name; their logarithms are subtracted from the objective.
    bounds : mapping of str to (float, float), optional
        Lowest and highest values of parameters, by name.
    tolerance : float, default=1e-6
        Training stops when five accepted rounds in a row change the objective by less than this, relative
        to 1 + |objective| or, if that is more, to the number of rows that it looks at.
    verbose : bool, default=False
        Whether to show progress.

    Returns
    -------
    TrainingResult

    Warns
    -----
    TrainingWarning
        Once, where the objective could not be computed at some θ on the way.

    Examples
    --------
    >>> import torch
    >>> from distgp.data import Shard
    >>> from distgp.experts import ExactExpert, Parameters
    >>> from distgp.kernels import RBF
    >>> from distgp.training import Fact
    >>> X = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    >>> start = Parameters.of(1.0 * RBF(0.5), 0.1)
    >>> shard = Shard.of(X, torch.sin(6 * X[:, 0]))
    >>> result = train(Fact(n_iter=10), ExactExpert(), start, [shard], fixed=["noise"])
    >>> len(result.history), float(result.parameters.noise)
    (10, 0.1)
    """
    placement = sample.placed(shards)
    sizes = sample.sizes(placement).to(parameters.noise)
    batched = bool(parameters.batch) or bool(parameters.inducing_batch)
    layout = Layout.of(parameters[0] if batched else parameters, own, fixed, bounds)
    _check_batches(algorithm, parameters, layout, len(sizes))
    objective = Objective.of(expert, layout, priors)
    starts = [layout.pack(parameters[i]) for i in range(len(sizes))] if batched else []
    start = torch.stack(starts) if batched else layout.pack(parameters)
    title = f"training by {in_words(algorithm.name)}"
    doing(title)  # told beside what is shown already, where this is not
    with Progress(title, algorithm.n_iter, verbose, at_most=True) as progress:
        rounds = Rounds(algorithm, objective, placement, start, tolerance, progress)
        try:
            with telling("theta", lambda _: layout.unpack(rounds.vectors, agreed=algorithm.agrees)):
                algorithm.at_centre(objective, start, sizes, rounds)
            stopped = rounds.without_progress()
        except Stop as stop:
            stopped = stop.args[0]
    if rounds.failed:
        warn_user(
            f"{in_words(algorithm.name)}: the objective could not be computed at some hyperparameters; "
            "those steps were taken back and shortened",
            TrainingWarning,
        )
    n = int(sizes.sum())
    return TrainingResult(
        layout.unpack(rounds.vectors, agreed=algorithm.agrees),
        tuple(rounds.history),
        stopped,
        rows=min(n, getattr(algorithm, "n_targets", n)),
        last_stage=len(rounds.history) - rounds.began,
        bounds=_trained_bounds(layout, bounds),
    )


def _trained_bounds(
    layout: Layout, bounds: Mapping[str, tuple[float, float]] | None
) -> dict[str, tuple[float, float]]:
    """The bounds of every trained hyperparameter, by its full path; 0 and infinity where it has none."""
    given = dict.fromkeys(layout.names, (0.0, math.inf)) | by_path(bounds or {}, layout.template)
    trained = (name for name in layout.names if name != "inducing")
    return {name: (float(given[name][0]), float(given[name][1])) for name in trained}


def _check_batches(algorithm: Algorithm, parameters: Parameters, layout: Layout, M: int) -> None:
    """Refuse values per expert that do not match the shards, or that the algorithm would merge."""
    batches = {f"kernel.{name}": batch for name, batch in parameters.kernel.batches().items()}
    batches |= {"noise": parameters.noise.shape, "inducing": parameters.inducing_batch}
    kept = layout.own if algorithm.agrees else layout.names
    for name, batch in batches.items():
        if batch and batch != torch.Size([M]):
            raise ValueError(f"{name} has a batch of {tuple(batch)} for {M} shards")
        if batch and name not in kept:
            raise ValueError(
                f"each expert has its own {name}, which {algorithm.name} cannot share or keep fixed: "
                f"give one value, or name it in `own`"
            )
