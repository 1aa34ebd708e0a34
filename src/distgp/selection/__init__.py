"""The choice that "auto" leaves to us: a Plan goes in, trials are measured, and a Plan comes out.

Rows are held out, candidates are fitted to the rest by the same pipeline that fits the final model, and
the candidate with the lowest NLPD is taken. Nothing here knows an estimator.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np

from distgp._util.checks import is_auto, silenced, warn_user
from distgp._util.progress import Progress, doing, telling, untold
from distgp._util.threads import on_threads
from distgp.data.rows import Rows
from distgp.data.scaling import HardlyAnyRowsError, refuse_hardly_any_rows, varying
from distgp.diagnostics import calibration, metrics
from distgp.engines import Engine
from distgp.file_rows import FileRows
from distgp.model import Model, TargetModel
from distgp.pipeline import Placed, fit, place, transformed
from distgp.plan import TIME_LIMIT, Plan
from distgp.predicting import calibrated, predict_gaussian
from distgp.selection import logarithms
from distgp.selection.alone import check_few_rows, measured_one_by_one
from distgp.selection.candidates import (
    EXACT,
    EXACT_ALONE,
    FOLDS,
    KERNELS_TRIED,
    Candidate,
    Tried,
    affordable,
    as_given,
    at_once_on,
    best_of,
    better_of,
    log_tried,
    name_of,
    numbers_of_experts,
    taken,
    tried_on,
    ways_to_fit,
)
from distgp.selection.repeats import (
    RepeatsWarning,
    labels_of_repeats,
    warn_of_repeats,
    warn_of_repeats_in_files,
)
from distgp.selection.residuals import (
    CoverWarning,
    NeighboursWarning,
    Residuals,
    warn_of_cover,
    warn_of_hardly_any_rows,
    warn_of_neighbours,
)
from distgp.selection.trials import (
    Choice,
    ChoiceWarning,
    Divisions,
    Trial,
    baselines,
    better_baselines_text,
    columns_in_time,
    divisions,
    hold_out,
)

TRIAL_TEST = 2_000
"""Rows that a candidate is measured on."""
LEAST_FOR_FOLDS = 10
"""Rows, where they are fewer than the columns, from which on predictions in folds tell something."""
TRIAL_SAMPLE = 20_000
"""Rows on which the choice is made where rows stay with the workers."""

__all__ = [
    "Candidate",
    "Choice",
    "ChoiceWarning",
    "CoverWarning",
    "Fitted",
    "NeighboursWarning",
    "RepeatsWarning",
    "Trial",
    "choose_and_fit",
    "fit_files",
    "hold_out",
    "select",
]


class Fitted(NamedTuple):
    """A fitted model, where its experts live, and the choices that led to it.

    `choice` is the table of trials, None where nothing was measured; `settled` are the parameters that
    the choice set, by name; `cv_results` the NLPD of each candidate of n_experts="cv".
    """

    model: Model[TargetModel]
    engine: Engine
    choice: Choice | None
    settled: dict[str, object]
    cv_results: dict[str, list[int] | list[float]] | None = None


def choose_and_fit(plan: Plan, rows: Rows) -> Fitted:
    """Hold out rows to calibrate on, choose what is left open, fit, and calibrate."""
    with _told_of_parts(len(rows)):
        return _chosen_and_fitted(plan, rows)


def _chosen_and_fitted(plan: Plan, rows: Rows) -> Fitted:
    asked, held = is_auto(plan.target_transform), None
    if plan.target_transform is not None:
        plan = logarithms.checked(plan, rows)
    warn_of_repeats(plan, rows)
    if plan.calibrate is not None:
        train, test = _calibration_rows(plan, rows)
        rows, held = rows.take(train), rows.take(test)
        plan = plan.settled({}, len(rows))
    rows, transforms = transformed(plan, rows)
    chosen, choice, settled = select(plan, rows)
    at_once = choice is None and bool(settled)
    if asked:
        settled["target_transform"] = chosen.target_transform
    if is_auto(plan.target_transform):  # only now it is known
        rows, transforms = transformed(chosen, rows)
    along = columns_in_time(rows) if plan.validation == "last" else frozenset()
    with _reached(choice, settled):
        chosen, results = _cross_validated(chosen, rows)
        placed, begin = place(chosen, rows, transforms), time.perf_counter()
        model = placed.with_inputs(fit(chosen, placed), chosen, along)
    if at_once:  # its figures come with the fit
        seconds = time.perf_counter() - begin
        calibrating = 0 if held is None else len(held)
        choice = _figures(chosen, rows, placed, model, seconds, calibrating)
    elif choice is None and _in_folds(chosen, rows):
        folds = _folds(rows.X, plan.seed, FOLDS)
        check_few_rows(chosen, rows, model, folds, 0 if held is None else len(held))
    elif choice is None and chosen.algorithm is not None:
        d = len(rows.schema.places)
        warn_of_hardly_any_rows(len(rows), d, _least_to_measure(d))
    if held is not None:
        model = _calibrated(plan, model, held, choice)
    return Fitted(model, placed.engine, choice, settled, results)


def fit_files(plan: Plan, rows: FileRows) -> Fitted:
    """Fit rows that workers read.

    What is left open is chosen on a sample of them in this process; a transform is made for it, and a part
    of it is held out to calibrate on.
    """
    with _told_of_parts(rows.n):
        return _chosen_and_fitted_files(plan, rows)


def _chosen_and_fitted_files(plan: Plan, rows: FileRows) -> Fitted:
    choice, settled, transforms, held, some = None, {}, (None,), None, None
    if plan.measures or plan.target_transform is not None or plan.calibrate is not None:
        some, held, rows = _sampled(plan, rows)
        plan = replace(plan, schema=some.schema).settled({}, rows.n)
        some, transforms = transformed(plan, some)
        plan, choice, settled = select(plan, some)
    with _reached(choice, settled):
        (plan, placed), begin = rows.place(plan, *transforms), time.perf_counter()
        model = placed.with_inputs(fit(plan, placed), plan)
    if choice is None and settled and some is not None:
        seconds = time.perf_counter() - begin
        calibrating = 0 if held is None else len(held)
        choice = _figures(plan, some, placed, model, seconds, calibrating)
    elif choice is None and plan.algorithm is not None:
        d = len(placed.schema.places)
        warn_of_hardly_any_rows(model.targets[0].ensemble.row_count(), d, _least_to_measure(d))
    if held is not None:
        model = _calibrated(plan, model, held, choice)
    return Fitted(model, placed.engine, choice, settled)


def _figures(
    plan: Plan,
    rows: Rows,
    placed: Placed,
    model: Model[TargetModel],
    seconds: float,
    calibrating: int,
) -> Choice:
    """Measure a way to fit that was taken at once, and warn of what is doubtful.

    Where rows are few for their columns the figures are those of folds that hyperparameters are learnt
    without.
    """
    folds, few = _folds(rows.X, plan.seed, FOLDS), _in_folds(plan, rows)
    alone = measured_one_by_one(plan, rows, placed, model, seconds, folds)
    choice = alone.choice
    if few:
        found = check_few_rows(plan, rows, model, folds, calibrating)
        choice = choice if found.error else choice.in_folds(found, len(folds[0][0]))
    if plan.verbose:
        print(choice, file=sys.stderr)
    _warn(plan, rows, choice, alone.residuals, alone.comparable, told=few)
    return choice


@contextmanager
def _told_of_parts(given: int) -> Iterator[None]:
    """Say how many rows were given, where a linear trend needs more of them than a part of them has."""
    try:
        yield
    except HardlyAnyRowsError as error:
        raise HardlyAnyRowsError(error.n, error.d, given) from None


def _calibrated(
    plan: Plan, model: Model[TargetModel], held: Rows, choice: Choice | None
) -> Model[TargetModel]:
    """Calibrate on rows held out, which tell too whether neighbours are alike where no trial has."""
    doing("calibrating on rows held out")
    model, residuals = calibrated(plan, model, held)
    if choice is None and plan.validation == "random":
        warn_of_neighbours(held, Residuals(np.arange(len(held)), residuals))
    return model


def _sampled(plan: Plan, rows: FileRows) -> tuple[Rows, Rows | None, FileRows]:
    """Draw a sample of rows that workers read, hold out a part to calibrate on, and tell which are left.

    Of rows in the order of time the last are held out; else with a row all others with the same inputs.
    """
    last = plan.calibrate == "conformal" and plan.validation == "last"
    end = calibration.held_out(min(rows.n, TRIAL_SAMPLE)) if last else 0
    found = rows.sample(plan, TRIAL_SAMPLE, end)
    some = found.rows
    warn_of_repeats_in_files(plan, found.copies, rows.n)
    if plan.calibrate is None:
        return some, None, rows
    if last:
        test = found.numbers >= rows.n - end
        left = replace(rows, files=rows.files.first(rows.n - end))
    else:
        test = np.isin(np.arange(len(some)), _calibration_rows(plan, some)[1])
        left = replace(rows, left_out=found.left_out(test))
    return some.take(np.flatnonzero(~test)), some.take(np.flatnonzero(test)), left


def _reached(choice: Choice | None, settled: dict[str, object]) -> AbstractContextManager[None]:
    """Tell with an interrupt what was measured, and θ of each target that training had reached by then."""

    def known(told: dict[str, Any]) -> dict[str, object]:
        found = {"found": told["found"]} if told.get("found") else {}
        return found if choice is None else found | {"choice": choice, "settled": settled}

    return telling("reached", known)


def select(plan: Plan, rows: Rows) -> tuple[Plan, Choice | None, dict[str, object]]:
    """Settle what the plan leaves open: at once, or by measuring candidates on rows held out.

    Returns the plan, whose training starts where the trial of the best candidate ended; the table of
    trials, None where nothing was measured; and the parameters that were set, by name.
    """
    known = _taken_at_once(plan, rows)
    plan = plan.settled(known) if known else plan
    if not plan.measures:
        return plan, None, known
    tried, choice = _choose(plan, rows, at_once=bool(known))
    best = tried.candidate
    if plan.verbose:
        print(choice, file=sys.stderr)
    _warn(plan, rows, choice, tried.residuals)
    as_it_is = {"target_transform": None} if is_auto(plan.target_transform) else {}
    plan = plan.settled({**as_it_is, **best.settings})
    # The trial of nearest rows looks at so few of them that it may end elsewhere: it is not used.
    draws = plan.algorithm is not None and plan.algorithm.draws_rows
    found = () if draws else tried.learnt
    return replace(plan, found=found, found_in="trial"), choice, known | dict(best.settings)


def _warn(
    plan: Plan,
    rows: Rows,
    choice: Choice,
    left: Residuals | None,
    comparable: bool = True,
    told: bool = False,
) -> None:
    """Warn of better baselines, of residuals that correlate, and of intervals that do not cover.

    Baselines are only told where they are `comparable`: a GP of all rows that is measured by its nearest
    rows is better than its figures.
    """
    if choice.better_baselines and comparable:
        warn_user(better_baselines_text(choice), ChoiceWarning)
    if plan.validation == "random" and left is not None:
        warn_of_neighbours(rows, left)
    if plan.calibrate is None and not told:  # of few rows the cover is told already
        warn_of_cover(choice)


def _taken_at_once(plan: Plan, rows: Rows) -> dict[str, object]:
    """The parameters of the exact GP of all rows, or of its mean, where that needs no measuring.

    Between rows nothing predicts better than the GP of all of them, where the rows are in this process and
    time and memory suffice. They always do for few rows.
    """
    if plan.verbose and plan.time_limit != TIME_LIMIT and len(rows) <= EXACT_ALONE:
        print(f"time_limit changes nothing up to {EXACT_ALONE:,} rows", file=sys.stderr)
    if not plan.measures_ways or plan.validation != "random" or plan.n != len(rows):
        return {}
    if len(rows) <= EXACT_ALONE:
        return dict(EXACT)
    way, said = affordable(plan, rows.X.shape[1])
    if plan.verbose:
        print("\n".join(said), file=sys.stderr)
    return {} if way is None else dict(way.settings)


class _Trying(NamedTuple):
    """Trials of candidates on the same parts of the rows, told as some of the `total`.

    `least` is the lowest NLPD of the baselines.
    """

    plan: Plan
    rows: Rows
    parts: Divisions
    least: float
    progress: Progress
    total: int

    def each(self, candidates: Sequence[Candidate], before: int = 0) -> list[Tried]:
        """Try all, side by side where there are few rows."""
        last = before + len(candidates)
        if at_once_on(self.plan, self.rows) > 1 and len(candidates) > 1:
            names = "; ".join(candidate.name for candidate in candidates)
            self.progress.begin(f"trying {1 + before} to {last} of {self.total}: {names}")
            with untold():
                return on_threads(self._one, candidates)
        found = []
        for place_, candidate in enumerate(candidates, 1 + before):
            self.progress.begin(f"trying {place_} of {self.total}: {candidate.name}")
            found.append(self._one(candidate))
        return found

    def _one(self, candidate: Candidate) -> Tried:
        """Try one, and where it is worse than a baseline a second time, if that may end elsewhere."""
        found = tried_on(self.plan, self.rows, self.parts, candidate)
        slower = found.second(self.least, cast("int | None", self.plan.given["n_iter"]))
        if slower is None:
            return found
        other = replace(self.plan, seed=self.plan.seed + 1)
        return better_of(found, tried_on(other, self.rows, self.parts, slower))


def _choose(plan: Plan, rows: Rows, at_once: bool) -> tuple[Tried, Choice]:
    """Measure the ways to fit, then the kernels for the best of them, then the logarithm of the target."""
    parts = _parts(plan, rows)
    for train, _ in parts if plan.mean == "linear" else ():
        refuse_hardly_any_rows(len(train), varying(rows.X[train]))
    shown = Progress("measuring baselines", show=plan.progress)
    with shown as progress, np.errstate(all="ignore"), silenced(Warning):
        others = baselines(rows, parts, plan.seed)
        least = min(baseline.nlpd for baseline in others)
        ways = _ways(plan, rows) if plan.measures_ways else []
        if plan.kernel is None:  # the best way to fit is measured with the first of the kernels
            ways = [way.with_kernels()[0]._replace(name=way.name) for way in ways]
        kernels = len(KERNELS_TRIED) - bool(ways) if plan.kernel is None else 0
        if not ways and not kernels:
            ways = [taken(plan) if at_once else as_given(plan)]
        log = is_auto(plan.target_transform)
        total = len(ways) + kernels + log

        trying = _Trying(plan, rows, parts, least, progress, total)
        found = trying.each(ways)
        best = best_of(found) if found else None
        if plan.kernel is None:
            others_of = as_given(plan) if best is None else best.candidate
            if at_once:
                others_of = others_of._replace(name=name_of(plan))
            more = trying.each(others_of.with_kernels()[-kernels:], len(ways))
            found, best = found + more, best_of([*more, *([] if best is None else [best])])
        assert best is not None
        if log:
            progress.begin(f"trying {total} of {total}: {best.candidate.name}, log")
            found.append(log_tried(plan, rows, parts, best.candidate))
            best = found[-1] if not found[-1].trial.error and found[-1].beats(best) else best
    held_out = len(np.unique(np.concatenate([test for _, test in parts])))
    trials = [one.trial for one in found]
    choice = Choice.of(plan.validation, len(parts[0][0]), trials, others, held_out, best.trial.name)
    return best, choice


def _parts(plan: Plan, rows: Rows) -> Divisions:
    """Divide rows as `validation` says.

    Few rows of which some are held out at random are divided into folds, whatever is measured: one hold-out
    of them tells little.
    """
    if _few(plan, rows):
        return _folds(rows.X, plan.seed, FOLDS)
    return divisions(rows, plan.validation, TRIAL_TEST, plan.seed)


def _few(plan: Plan, rows: Rows) -> bool:
    """Whether rows are so few that all of them are predicted in folds, where those held out are random."""
    return plan.validation == "random" and len(rows) <= EXACT_ALONE


def _ways(plan: Plan, rows: Rows) -> list[Candidate]:
    """The ways to fit that are worth measuring, one exact GP among them where time and memory suffice."""
    many = plan.n == len(rows) > EXACT_ALONE
    way = affordable(plan, rows.X.shape[1])[0] if many else None
    return ways_to_fit(len(rows), exact_fits=way is not None and way.settings is EXACT)


def _cross_validated(
    plan: Plan, rows: Rows
) -> tuple[Plan, dict[str, list[int] | list[float]] | None]:
    """Settle n_experts="cv": the number of experts with the lowest NLPD over three folds."""
    if plan.n_experts != "cv":
        return plan, None
    folds = _folds(rows.X, plan.seed)
    numbers, scores = numbers_of_experts(len(rows)), []
    for number in numbers:
        trial, found = plan.settled({"n_experts": number, "verbose": False}), []
        with np.errstate(all="ignore"), silenced(Warning):
            for train, test in folds:
                some = replace(trial, n=len(train), found=())
                model = fit(some, place(some, rows.take(train)))
                y, (mean, variance) = rows.y[test], predict_gaussian(model, rows.X[test])
                found.append(metrics.nlpd(y.ravel(), mean.ravel(), variance.ravel()))
        scores.append(float(np.mean(found)))
    best = numbers[int(np.argmin(scores))]
    return plan.settled({"n_experts": best}), {"n_experts": numbers, "nlpd": scores}


def _in_folds(plan: Plan, rows: Rows) -> bool:
    """Whether rows are few for their columns, and enough to say so by predicting them in folds."""
    few = plan.few_rows and plan.validation == "random"
    return few and _least_to_measure(rows.X.shape[1]) <= len(rows) <= EXACT_ALONE


def _least_to_measure(d: int) -> int:
    """Return the number of rows with d columns from which on predictions in folds tell something."""
    return max(FOLDS, min(LEAST_FOR_FOLDS, d))


def _folds(X: np.ndarray, seed: int, count: int = 3) -> Divisions:
    """Divide rows into folds to predict, with rows that have the same inputs in one of them."""
    from sklearn.model_selection import KFold

    labels = labels_of_repeats(X)
    if labels is None or labels.max() < count - 1:
        labels = np.arange(len(X))
    folds = KFold(count, shuffle=True, random_state=seed % 2**32).split(np.arange(labels.max() + 1))
    parts = [np.isin(labels, test) for _, test in folds]
    return [(np.flatnonzero(~out), np.flatnonzero(out)) for out in parts]


def _calibration_rows(plan: Plan, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows into those to fit and those held out for calibration, as `validation` says."""
    kind = "random" if plan.calibrate == "mondrian" else plan.validation
    time = rows.time if kind == "last" else None
    groups = rows.groups if kind == "groups" else None
    share = calibration.held_out(len(rows)) / len(rows)
    return hold_out(
        len(rows),
        kind,
        time=time,
        groups=groups,
        inputs=rows.X,
        share=share,
        seed=plan.seed + 1,
    )
