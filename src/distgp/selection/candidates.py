"""The ways to fit that may be taken: the candidates, their trials, and what an earlier fit has chosen.

Trials are cheap: they learn from few rows, but for nearest rows, whose neighbours must be as near as they
will be; and training of the best starts where its trial ended.

`benchmarks/estimator.py` measures the costs behind the rules on two CPU cores. Training exact experts of
s rows costs about s²n per round. On a smooth function small shards lose nothing and are cheap; on a
rough one, where rows never suffice, the error falls as s grows, and sparse experts are far worse. So s
is as large as seems affordable: 1,000. Two-level adds n² kernel values, again for every n rows
predicted: beyond 20,000 rows sparse experts take over, whose cost is linear in n, and constant for
training.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor

from distgp._util.checks import is_auto
from distgp._util.machine import GIB, SHARE, free_bytes
from distgp.aggregation.exact import cost_of_solve
from distgp.data.partition import Partition
from distgp.data.rows import Rows, Schema, kept
from distgp.experts import Parameters
from distgp.experts.cost import Cost, cost_of_condition
from distgp.model import Model, TargetModel
from distgp.pipeline import fit, place, transformed
from distgp.plan import FIRST_KERNEL, Plan, resolve
from distgp.predicting import predict_gaussian
from distgp.selection import logarithms
from distgp.selection.residuals import Residuals
from distgp.selection.trials import FAILURES, MARGIN, Choice, Divisions, Trial, failed, scored
from distgp.training import NearestRows

EXACT_ALONE = 1_500
"""Rows up to which one exact GP takes hardly any time; beyond, what it takes is weighed."""
EXACT_TRIAL = 2_000
"""Rows that the trial of one exact GP learns from."""
EXACT = {"expert": "exact", "n_experts": 1}
EXACT_MEAN = {"expert": "nearest", "aggregation": "exact"}
CONDITIONING = 0.4
"""The share of the time limit that conditioning on all rows at once may take."""
OWN_INDUCING = 100
"""Inducing inputs of an expert that learns hyperparameters of its own."""
QUICK = NearestRows(n_targets=4096, stages=2, n_iter=60)
"""Training by nearest rows in a trial. Among too few targets it may be that none lies beside a row that
contradicts it, though some of all rows do: the noise that is learnt is then far too small."""
SLOWER = replace(QUICK, n_targets=8192, stages=3, n_iter=150, seed=1)
"""The same with other rows and more of them, where a trial has ended in a bad place."""
MORE_ROUNDS = 3
"""How many times the rounds of a trial its second trial may take."""
TRIAL_ROWS = 4_000
"""Rows that a candidate learns from in its trial, but for nearest rows."""
FOLDS = 5
"""Folds in which candidates for few rows are measured on all of them."""
ERRORS = 2.0
"""Standard errors by which one candidate must be better than another to be clearly better."""
KERNELS_TRIED = (FIRST_KERNEL, "rbf", "matern52 + linear", "rbf + linear", "linear")
"""The kernels that kernel="auto" stands for."""


class Candidate(NamedTuple):
    """A way to fit: the name that the user reads, and the parameters that it sets, by name.

    `trial` are parameters that make its trial cheaper, which learns from `rows` rows at most. One that
    `learns_once` is conditioned on each part of the rows with the θ of all of them. Where its trial is
    worse than a baseline, a second one with the parameters `again` in their place, and another seed,
    counts if it is better.
    One that is not `joint` predicts each point by itself, without covariances and draws.
    """

    name: str
    settings: Mapping[str, object]
    trial: Mapping[str, object] = MappingProxyType({})
    rows: int | None = None
    learns_once: bool = False
    again: Mapping[str, object] = MappingProxyType({})
    joint: bool = True

    def with_more_rounds(self) -> Candidate:
        """The same way to fit, whose second trial takes more rounds."""
        rounds = cast("int", self.trial["n_iter"])
        return self._replace(again={**self.trial, "n_iter": MORE_ROUNDS * rounds})

    def with_kernels(self) -> list[Candidate]:
        """The same way to fit, with every kernel that is tried."""
        return [
            self._replace(name=f"{self.name}, {name}", settings={**self.settings, "kernel": name})
            for name in KERNELS_TRIED
        ]

    def with_log(self) -> Candidate:
        """The same way to fit, of the target's logarithm."""
        settings = {**self.settings, "target_transform": "log"}
        return self._replace(name=f"{self.name}, log", settings=settings)


def affordable(plan: Plan, d: int) -> tuple[Candidate | None, list[str]]:
    """The way nearest to the exact GP of all rows for which time and memory suffice; None for neither.

    What was weighed is said in the second value, line by line.
    """
    seconds, said = CONDITIONING * plan.time_limit, []
    free = free_bytes(plan.like.device)
    ways: dict[str, tuple[Mapping[str, object], Callable[[int, int, Tensor], Cost]]] = {
        "exact GP": (EXACT, cost_of_condition),
        "nearest rows with the exact mean": (EXACT_MEAN, cost_of_solve),
    }
    for name, (settings, estimate) in ways.items():
        cost = estimate(plan.n, d, plan.like)
        fits = cost.seconds <= seconds and (free is None or cost.bytes <= SHARE * free)
        took = f"about {cost.seconds:,.0f} s" if cost.seconds >= 1.0 else "less than 1 s"
        said.append(
            f"{name}: {took} and {cost.bytes / GIB:,.1f} GiB after training, "
            f"{'taken' if fits else f'left out by time_limit={plan.time_limit:g} or free memory'}"
        )
        if fits:
            return Candidate(name, settings), said
    return None, said


def ways_to_fit(n: int, exact_fits: bool = False) -> list[Candidate]:
    """The ways to fit n rows that are worth measuring.

    One exact GP while it is affordable, and beyond it its two approximations, by inducing inputs and
    by nearest rows; and experts with hyperparameters of their own, which do not agree where rows are
    unlike those that they know, so that their combination is cautious there.
    """
    own = {
        "expert": "sparse",
        "training": "independent",
        "aggregation": "opt-local",
        "n_inducing": OWN_INDUCING,
    }
    name = "independent experts, opt-local"
    independent = Candidate(name, own, {"n_iter": 40}, TRIAL_ROWS, joint=False).with_more_rounds()
    exact = Candidate("exact GP", EXACT, {"n_iter": 60}, learns_once=True).with_more_rounds()
    if n <= EXACT_ALONE:
        return [exact, independent]
    sparse = {"n_inducing": 256, "n_iter": 30}
    return [
        *([exact._replace(rows=EXACT_TRIAL)] if exact_fits else []),
        Candidate(
            "nearest rows",
            {"expert": "nearest"},
            {"training": QUICK, "n_inducing": 0},
            again={"training": SLOWER, "n_inducing": 0},
        ),
        Candidate("sparse, pooled", {"expert": "sparse"}, sparse, TRIAL_ROWS).with_more_rounds(),
        independent,
    ]


def taken(plan: Plan) -> Candidate:
    """The way to fit that was taken at once, with a trial on few rows."""
    return as_given(plan)._replace(name=name_of(plan), rows=EXACT_TRIAL)


def name_of(plan: Plan) -> str:
    """The name of the way to fit that a plan took at once."""
    return "nearest rows with the exact mean" if plan.kind.joins_rows else "exact GP"


def as_given(plan: Plan) -> Candidate:
    """The way to fit that the user gave, with a cheaper trial.

    In folds of few rows experts that share θ learn it once, as one exact GP does.
    """
    algorithm = plan.algorithm
    once = algorithm is not None and algorithm.agrees
    some = Candidate("as given", {}, {"n_iter": 60}, learns_once=once).with_more_rounds()
    if algorithm is None or not algorithm.draws_rows:
        return some._replace(rows=TRIAL_ROWS)
    if plan.expert is not None and not plan.expert.joins_rows:
        return some._replace(rows=EXACT_TRIAL)
    # Nearest rows keep all rows as neighbours.
    if not is_auto(plan.given["training"]):
        return some
    quick = Candidate("as given", {}, {"training": QUICK}, learns_once=once)
    # Where kernels are tried too, a second trial of each would more than double the time.
    return quick if plan.kernel is None else quick._replace(again={"training": SLOWER})


def numbers_of_experts(n: int) -> list[int]:
    """The numbers of experts that the paper tries: ⌊√n / i⌋ for i = 4, 5, 6."""
    return sorted({max(1, int(math.sqrt(n) / i)) for i in (4, 5, 6)})


class Tried(NamedTuple):
    """A candidate, its figures, and θ of each target that its trial learnt, or the memory it lacked.

    With them are the residuals of the rows held out, whether training ended for want of rounds, and whether
    another seed could have led it elsewhere.
    """

    candidate: Candidate
    trial: Trial
    learnt: tuple[Parameters, ...]
    residuals: Residuals | None = None
    lacked: MemoryError | None = None
    densities: np.ndarray | None = None
    predicted: tuple[np.ndarray, ...] | None = None
    out_of_rounds: bool = False
    by_seed: bool = True

    def second(self, least: float, asked: int | None) -> Candidate | None:
        """The candidate with its second trial, where the first is worse than `least`, a baseline's NLPD.

        It has as many rounds as were `asked` for at most. None where it would end in the same place, or
        hardly change the choice: where rounds change nothing, since the first has ended with some left, and
        its seed has changed nothing, or it is worse by next to nothing. One that failed would fail again.
        """
        first, again = self.candidate.trial.get("n_iter"), self.candidate.again
        more = self.out_of_rounds and (asked is None or asked > cast("int", first or 0))
        worth = first is None or more or (self.by_seed and self.trial.nlpd > least + MARGIN)
        if not again or self.trial.error or self.trial.nlpd <= least or not worth:
            return None
        return self.candidate._replace(trial=again, again=MappingProxyType({}))

    def beats(self, other: Tried) -> bool:
        """Whether the rows held out are predicted better than by another, by two standard errors."""
        assert self.densities is not None and other.densities is not None
        gain = self.densities - other.densities
        return bool(gain.mean() > ERRORS * gain.std() / np.sqrt(len(gain)))


def tried_on(plan: Plan, rows: Rows, parts: Divisions, candidate: Candidate) -> Tried:
    """Fit a candidate to the rows to learn from, and score its predictions of those held out."""
    places, begin, found = np.concatenate([test for _, test in parts]), time.perf_counter(), []
    learnt, short, by_seed = (), False, False
    try:
        for model, test, ended in _fitted(plan, rows, parts, candidate):
            noise = None if rows.noise is None else rows.noise[test]
            found.append(predict_gaussian(model, rows.X[test], noise=noise))
            learnt = tuple(target.parameters for target in model.targets)
            short, by_seed = short or ended.out_of_rounds, by_seed or ended.by_seed
    except FAILURES as error:
        lacked = error if isinstance(error, MemoryError) else None
        return Tried(
            candidate, failed(candidate.name, error, time.perf_counter() - begin), (), lacked=lacked
        )
    mean, variance = predicted = tuple(map(np.concatenate, zip(*found, strict=True)))
    y, std = rows.y[places], np.sqrt(variance)
    trial = scored(candidate.name, y, mean, std, time.perf_counter() - begin)
    residuals = Residuals.of(places, y, mean, std)
    each = np.square(residuals.values) + np.log(variance).reshape(len(places), -1)
    densities = -0.5 * each.sum(-1)  # up to a constant
    return Tried(candidate, trial, learnt, residuals, None, densities, predicted, short, by_seed)


class _Ended(NamedTuple):
    """Whether training ended for want of rounds, and whether another seed could lead it elsewhere."""

    out_of_rounds: bool
    by_seed: bool

    @staticmethod
    def of(plan: Plan, model: Model[TargetModel]) -> _Ended:
        """One exact GP draws nothing where it learns from all of its rows at once."""
        short = any(t.training and t.training.stopped == "iterations" for t in model.targets)
        experts, algorithm = model.targets[0].ensemble, plan.algorithm
        first, n = experts.expert.first_rows, experts.row_count()
        at_once = first is not None and n < first and experts.size == 1
        drawn = plan.training_rows is not None and plan.training_rows < n
        drawn |= algorithm is not None and algorithm.draws_rows
        return _Ended(short, drawn or not at_once)


def _fitted(
    plan: Plan, rows: Rows, parts: Divisions, candidate: Candidate
) -> Iterator[tuple[Model[TargetModel], np.ndarray, _Ended]]:
    """Fit a candidate to the rows to learn from of each part.

    With it come the places of those held out, and how training ended.
    """
    settings, given, once = {**candidate.settings, **candidate.trial}, (), None
    asked = plan.given["n_iter"]
    if asked is not None and "n_iter" in settings:
        settings["n_iter"] = min(settings["n_iter"], asked)  # pyright: ignore
    if candidate.learns_once and len(parts) == FOLDS:
        quick = plan.trial(settings, len(rows))
        model = fit(quick, place(quick, rows))
        given, once = tuple(t.parameters for t in model.targets), _Ended.of(quick, model)

    for train, test in parts:
        some = rows.take(train[: candidate.rows])
        quick = plan.trial(settings, len(some))
        if given:
            quick = replace(quick, algorithm=None, found=given, found_in="trial")
        model = fit(quick, place(quick, some))
        yield model, test, once or _Ended.of(quick, model)


def at_once_on(plan: Plan, rows: Rows) -> int:
    """Return the number of candidates that are tried side by side, each on a thread of its own.

    On a CPU few rows leave threads idle that work together on one fit.
    """
    few = len(rows) <= EXACT_ALONE and plan.like.device.type == "cpu"
    return torch.get_num_threads() if few else 1


def log_tried(plan: Plan, rows: Rows, parts: Divisions, candidate: Candidate) -> Tried:
    """Fit a candidate to the logarithm of the target; its figures are of the target itself."""
    of_log, transforms = transformed(plan.settled({"target_transform": "log"}), rows)
    one = tried_on(plan, of_log, parts, candidate.with_log())
    if one.trial.error or one.densities is None or one.predicted is None:
        return one
    y = rows.y[np.concatenate([test for _, test in parts])]
    trial, found = logarithms.of_target(one.trial, one.densities, y, one.predicted, transforms)
    return one._replace(trial=trial, densities=found)


def better_of(one: Tried, other: Tried) -> Tried:
    """Of two trials of a candidate, the one with the lower NLPD; their times are added."""
    seconds = one.trial.seconds + other.trial.seconds
    better = other if other.trial.nlpd < one.trial.nlpd else one
    return better._replace(trial=replace(better.trial, seconds=seconds))


def best_of(found: Sequence[Tried]) -> Tried:
    """The candidate with the lowest NLPD in its trial; an error where none could be fitted.

    One without joint predictions must be better by two standard errors than the best that has them.
    """
    fine = [one for one in found if not one.trial.error]
    if not fine:
        if all(one.lacked for one in found):
            raise cast(MemoryError, found[0].lacked)
        reasons = dict.fromkeys(one.trial.error for one in found)
        raise ValueError(f"no candidate could be fitted: {'; '.join(reasons)}")
    fine.sort(key=lambda one: one.trial.nlpd)
    joint = next((one for one in fine if one.candidate.joint), fine[0])
    return joint if fine[0] is joint or not fine[0].beats(joint) else fine[0]


@dataclass(frozen=True, eq=False)
class Past:
    """The last fit, or where one was interrupted: a fit with `warm_start` goes on from there.

    It has θ of each target that was found, the choice that was made, and the parameters that it set. The
    choice of a fit that has ended counts the one that goes on, which measures nothing where it holds.
    """

    found: tuple[Parameters, ...] = ()
    found_in: str = "fit"
    choice: Choice | None = None
    settled: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(attributes: Mapping[str, Any]) -> Past:
        """Read it from the attributes of a fitted estimator, those reached by an interrupted fit first."""
        known: dict[str, Any] = {}
        if "model_" in attributes:
            known["found"] = tuple(one.parameters for one in attributes["model_"].targets)
            choice = attributes.get("choice_")
            known["choice"] = choice and replace(choice, fits=choice.fits + 1, added=0)
            known["settled"] = attributes.get("settled_") or {}
        reached = attributes.get("_reached", {})
        if reached.get("found"):
            known["found_in"] = "interrupted"
        return Past(**known | reached)

    def holds(self, parameters: Mapping[str, Any]) -> bool:
        """Tell whether the choice still holds: while all that it set is "auto"."""
        return bool(self.settled) and all(is_auto(parameters[name]) for name in self.settled)

    def plan(
        self,
        parameters: Mapping[str, Any],
        schema: Schema | None,
        n: int,
        keep: np.ndarray | None = None,
    ) -> Plan:
        """Make the plan of a fit of n rows, of those to `keep`, that goes on from here."""
        given = dict(parameters)
        if keep is not None and not isinstance(given["partition"], str | Partition):
            given["partition"] = kept(given["partition"], keep, "partition")
        plan = resolve(given, schema, n)
        if self.holds(parameters):
            plan = plan.settled(self.settled)
        return plan.starting_from(self.found, self.found_in) if self.found else plan


def plan_of_update(
    parameters: Mapping[str, Any], settled: Mapping[str, Any], model: Model[TargetModel]
) -> Plan:
    """Make the plan of a change to a model: its experts, and all else as given or chosen."""
    given, ensemble = dict(parameters), model.targets[0].ensemble
    given |= {name: value for name, value in settled.items() if is_auto(given[name])}
    M = given["n_experts"]
    if M == "cv" or not isinstance(given["partition"], str | Partition):
        M = ensemble.size
    given |= {"expert": ensemble.expert, "n_experts": M, "partition": "random"}
    n = max(ensemble.row_count(), 0 if isinstance(M, str) else M)
    return resolve(given, model.schema, n)
