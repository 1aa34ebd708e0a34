"""The choice that "auto" leaves to us: a Plan goes in, trials are measured, and a Plan comes out.

Rows are held out, candidates are fitted to the rest by the same pipeline that fits the final model, and
the candidate with the lowest NLPD is taken. Nothing here knows an estimator.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from sklearn.model_selection import KFold

from distgp._util.checks import warn_user
from distgp._util.progress import Progress
from distgp.data.rows import Rows
from distgp.diagnostics import calibration, metrics
from distgp.engines import Engine
from distgp.experts import Parameters
from distgp.model import Model, TargetModel
from distgp.pipeline import (
    FileRows,
    Placed,
    calibrated,
    fit,
    place,
    predict_gaussian,
    transformed,
)
from distgp.plan import Plan
from distgp.selection.candidates import Candidate, as_given, numbers_of_experts, ways_to_fit
from distgp.selection.trials import (
    Choice,
    ChoiceWarning,
    Divisions,
    Trial,
    baselines,
    better_baselines_text,
    divisions,
    hold_out,
    measure,
)

TRIAL_TEST = 2_000
"""Rows that a candidate is measured on."""
TRIAL_SAMPLE = 20_000
"""Rows on which the choice is made where rows stay with the workers."""

__all__ = [
    "Candidate",
    "Choice",
    "ChoiceWarning",
    "Fitted",
    "Trial",
    "choose_and_fit",
    "fit_files",
    "hold_out",
    "select",
]


@dataclass(frozen=True, eq=False)
class Fitted:
    """A fitted model, where its experts live, and the choices that led to it.

    Parameters
    ----------
    model : Model
        The model.
    engine : Engine
        Where its experts live.
    choice : Choice or None
        The table of trials; None where nothing was measured.
    settled : dict of str to object
        The parameters that the choice set, by name.
    cv_results : dict, optional
        With n_experts="cv", the NLPD of each candidate.
    """

    model: Model[TargetModel]
    engine: Engine
    choice: Choice | None
    settled: dict[str, object]
    cv_results: dict[str, list[int] | list[float]] | None = None


def choose_and_fit(plan: Plan, rows: Rows) -> Fitted:
    """Hold out rows to calibrate on, choose what is left open, fit, and calibrate."""
    held = None
    if plan.calibrate is not None:
        train, test = _calibration_rows(plan, rows)
        rows, held = rows.take(train), rows.take(test)
        plan = plan.settled({}, len(rows))
    rows, transforms = transformed(plan, rows)
    chosen, choice, settled = select(plan, rows)
    chosen, results = _cross_validated(chosen, rows)
    placed = place(chosen, rows, transforms)
    model = _finished(chosen, placed)
    if held is not None:
        model = calibrated(plan, model, held)
    return Fitted(model, placed.engine, choice, settled, results)


def fit_files(plan: Plan, rows: FileRows) -> Fitted:
    """Fit rows that workers read; what is left open is chosen on a sample of them, in this process."""
    choice, settled = None, {}
    if plan.measures:
        some = rows.sample(plan, TRIAL_SAMPLE)
        plan, choice, settled = select(replace(plan, schema=some.schema), some)
    plan, placed = rows.place(plan)
    return Fitted(_finished(plan, placed), placed.engine, choice, settled)


def _finished(plan: Plan, placed: Placed) -> Model[TargetModel]:
    """Fit for good: a trial has no use for what the training inputs look like."""
    return placed.with_inputs(fit(plan, placed), plan)


def select(plan: Plan, rows: Rows) -> tuple[Plan, Choice | None, dict[str, object]]:
    """Measure candidates on rows held out, and settle what the plan leaves open.

    Parameters
    ----------
    plan : Plan
        What is None in it is to be chosen.
    rows : Rows
        All rows that may be looked at, their targets transformed.

    Returns
    -------
    plan : Plan
        Nothing is left open in it; training starts where the trial of the best candidate ended.
    choice : Choice or None
        The table of trials; None where nothing was measured.
    settled : dict of str to object
        The parameters that were set, by name.
    """
    if not plan.measures:
        return plan, None, {}
    bench = _Bench(plan, rows, divisions(rows, plan.validation, TRIAL_TEST, plan.seed))
    best, choice = bench.choose()
    if plan.verbose:
        print(choice, file=sys.stderr)
    if choice.better_baselines:
        warn_user(better_baselines_text(choice), ChoiceWarning)
    settled = dict(best.settings)
    plan = plan.settled(settled)
    # The trial of nearest rows looks at so few of them that it may end elsewhere: it is not used.
    draws = plan.algorithm is not None and plan.algorithm.draws_rows
    found = () if draws else bench.learnt[best.name]
    return replace(plan, found=found, from_trial=True), choice, settled


class _Bench:
    """Candidates are tried here, on the same divisions of the rows."""

    def __init__(self, plan: Plan, rows: Rows, parts: Divisions) -> None:
        self.plan, self.rows, self.divisions = plan, rows, parts
        self.tested = np.concatenate([test for _, test in parts])
        self.learnt: dict[str, tuple[Parameters, ...]] = {}
        """θ of each target that a candidate learnt in its trial, by the candidate's name."""

    def choose(self) -> tuple[Candidate, Choice]:
        """Measure the ways to fit, and then the kernels for the best of them."""
        plan, tried, found = self.plan, [], []
        show = Progress("choosing", show=plan.verbose)
        with show as progress, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if plan.measures_ways:
                tried = ways_to_fit(len(self.rows))
                found = self.measured(tried, progress)
            if plan.kernel is None:
                # The best way to fit has been measured with the first of the kernels.
                more = (
                    _best(tried, found).with_kernels()[1:]
                    if tried
                    else as_given(plan).with_kernels()
                )
                found, tried = [*found, *self.measured(more, progress)], [*tried, *more]
            others = baselines(self.rows, self.divisions, plan.seed)
        held_out = len(np.unique(self.tested))
        used = len(self.divisions[0][0])
        return _best(tried, found), Choice.of(plan.validation, used, found, others, held_out)

    def measured(self, candidates: Sequence[Candidate], progress: Progress) -> list[Trial]:
        """Try candidates, one after the other."""
        trials = []
        for candidate in candidates:
            trials.append(
                measure(
                    candidate.name,
                    lambda one=candidate: self.predictions(one),
                    self.rows.y[self.tested],
                )
            )
            progress.advance(text=candidate.name)
        return trials

    def predictions(self, candidate: Candidate) -> tuple[np.ndarray, np.ndarray]:
        """Fit a candidate to the rows to learn from, and predict those held out."""
        parts, settings = [], {**candidate.settings, **candidate.trial}
        asked = self.plan.given["n_iter"]
        if asked is not None and "n_iter" in settings:
            settings["n_iter"] = min(settings["n_iter"], asked)  # pyright: ignore
        for train, test in self.divisions:
            some = self.rows.take(train[: candidate.rows])
            plan = self.plan.trial(settings, len(some))
            model = fit(plan, place(plan, some))
            noise = None if self.rows.noise is None else self.rows.noise[test]
            parts.append(predict_gaussian(model, self.rows.X[test], noise=noise))
            self.learnt[candidate.name] = tuple(target.parameters for target in model.targets)
        mean, variance = (np.concatenate(kind) for kind in zip(*parts, strict=True))
        return mean, np.sqrt(variance)


def _best(candidates: Sequence[Candidate], trials: Sequence[Trial]) -> Candidate:
    """The candidate with the lowest NLPD in its trial; an error where none could be fitted."""
    fine = [i for i, trial in enumerate(trials) if not trial.error]
    if not fine:
        reasons = dict.fromkeys(trial.error for trial in trials)
        raise ValueError(f"no candidate could be fitted: {'; '.join(reasons)}")
    return candidates[min(fine, key=lambda i: trials[i].nlpd)]


def _cross_validated(
    plan: Plan, rows: Rows
) -> tuple[Plan, dict[str, list[int] | list[float]] | None]:
    """Settle n_experts="cv": the number of experts with the lowest NLPD over three folds."""
    if plan.n_experts != "cv":
        return plan, None
    folds = list(KFold(3, shuffle=True, random_state=plan.seed % 2**32).split(rows.X))
    numbers, scores = numbers_of_experts(len(rows)), []
    for number in numbers:
        trial, found = plan.settled({"n_experts": number, "verbose": False}), []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for train, test in folds:
                some = replace(trial, n=len(train), found=())
                model = fit(some, place(some, rows.take(train)))
                y, (mean, variance) = rows.y[test], predict_gaussian(model, rows.X[test])
                found.append(metrics.nlpd(y.ravel(), mean.ravel(), variance.ravel()))
        scores.append(float(np.mean(found)))
    best = numbers[int(np.argmin(scores))]
    return plan.settled({"n_experts": best}), {"n_experts": numbers, "nlpd": scores}


def _calibration_rows(plan: Plan, rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Divide rows into those to fit and those held out for calibration, as `validation` says."""
    kind = "random" if plan.calibrate == "mondrian" else plan.validation
    time = rows.time if kind == "last" else None
    groups = rows.groups if kind == "groups" else None
    share = calibration.held_out(len(rows)) / len(rows)
    return hold_out(len(rows), kind, time=time, groups=groups, share=share, seed=plan.seed + 1)
