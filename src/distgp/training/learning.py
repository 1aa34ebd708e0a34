"""Learn θ from placed rows: which rows are looked at, and the stages of training."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from distgp._util.progress import doing, telling
from distgp.data import shard as sample
from distgp.data.shard import Shard
from distgp.engines import Placement, travels
from distgp.experts import Expert, Parameters
from distgp.experts.base import Inducing, Stage
from distgp.training.curvature import Curvature
from distgp.training.fact import Fact
from distgp.training.objective import Prior, objective_value
from distgp.training.refinement import (
    ERRORS,
    FEW_HELD_OUT,
    HELD_OUT,
    Bounds,
    Limits,
    Score,
    back_at_start,
    left_out_densities,
    score,
    set_apart,
    tells_little,
    with_lengthscales_back,
    with_noise_allowed,
    within_reach,
)
from distgp.training.rounds import Algorithm, TrainingResult, joined
from distgp.training.stage import faint, starts, train

FIRST_ROUNDS = 10
"""Rounds from each of two starts, after which training goes on from one of the ends."""
DECISIVE = 1.0
"""Nats by which the start with longer lengthscales must lead then, since the rows preferred the other; and
by which another must lead one with a faint signal."""
LARGEST_PART = 0.25
"""The part of its rows that one large expert learns from first, at most, for blocks to be worth it."""
MOST_BLOCKS = 4
"""Blocks of rows that one large expert learns from, at most."""
MOST_APART = 8
"""Lengthscales, at most, that are tried to be longer."""
SEEN = 0.5
"""The part of the rows in blocks below which nearest rows among all of them may tell more."""
MANY = 1.5
"""Steps to more rows look at so many times more, at least."""
PART_TOLERANCE = 5e-5
"""Nats per row that five rounds in a row must fall below, where training begins with a part of the rows
and where it goes on with all of them: 0.1 nats of 2,000 rows."""
BLOCK_TOLERANCE = 1e-4
"""The same for blocks of rows, after which θ is refined anyway: 0.8 nats of 8,000 rows."""
OBJECTION = -1.0
"""Standard errors by which rows left out may be predicted worse than before, to no objection of theirs."""
Step = tuple[float, Placement[Shard]]
"""Rows to go on with, and how many times more of them there are than before."""


@dataclass(frozen=True, eq=False)
class Learning:
    """The way in which θ is to be learnt; names and bounds are as for `train`.

    With `search`, shorter lengthscales are a start too. `found_in` says where the `start` was found: one
    of a "trial" makes a first stage unnecessary; from that of a "fit" which has ended only the objective of
    all rows leads further, where it is looked at; that of an "interrupted" one takes all steps again.
    Training looks at this number of `rows`, all by default. With `refine`, bounds of ours are lifted to
    `uncapped` where rows held out say that it pays. With `blocks`, one large expert learns from parts of
    its rows first, before all of them or before an algorithm that draws rows refines θ.
    """

    algorithm: Algorithm
    start: Parameters
    inducing: Inducing = "auto"
    search: bool = False
    found_in: str = ""
    rows: int | None = None
    priors: Mapping[str, Prior] | None = None
    bounds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    fixed: Collection[str] = ()
    seed: int = 0
    verbose: bool = False
    refine: bool = False
    uncapped: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    blocks: bool = False
    curvature: Curvature | None = None

    def on(self, expert: Expert, shards: Placement[Shard]) -> TrainingResult:
        """Learn θ of experts of this kind, in the stages that the kind asks for."""
        shards.map(_check_room, expert)
        least, dtype = self.algorithm.least_noise, self.start.noise.dtype
        limits = Limits.of(self.bounds, self.uncapped, least, shards, dtype)
        if self.found_in and not self.start.batch:
            limits = limits.around(self.start)
        result = joined(self._learnt(expert, shards, limits))
        ours = "noise" in limits.free and "noise" not in {*self.fixed, *(self.priors or ())}
        if not (self.refine and ours and expert.holds_rows and self.algorithm.agrees):
            return result
        doing("measuring how much noise rows held out allow")
        with telling("theta", lambda _: result.parameters):
            scored = partial(self._scored, expert, shards, most=FEW_HELD_OUT)
            theta = with_noise_allowed(result.parameters, shards, scored)
        return replace(result, parameters=theta)

    def _learnt(
        self, expert: Expert, shards: Placement[Shard], limits: Limits
    ) -> list[TrainingResult]:
        """The results of all stages."""
        if self.algorithm.draws_rows:
            return replace(self, curvature=Curvature())._by_drawn_rows(expert, shards, limits)
        alone = self.rows is None and self.algorithm.agrees and sum(sample.counts(shards)) == 1
        refine, parts = self.refine and alone, (self.refine or self.blocks) and alone
        if parts and self.search and _share_of_first(expert, shards) < 1.0:
            return self._from_part(expert, shards, limits)
        learner = replace(self, curvature=Curvature()) if refine else self
        results = learner._by_stages(expert, self._sampled(shards), limits.now)
        if refine:
            with telling("theta", lambda told: told.get("theta", results[-1].parameters)):
                results += learner._without_bounds(expert, shards, results[-1].parameters, limits)
        return results

    def _from_part(
        self, expert: Expert, shards: Placement[Shard], limits: Limits
    ) -> list[TrainingResult]:
        """Learn θ from a part of the rows, with bounds of ours or without, and go on with all rows.

        An evaluation of all rows costs many times as much. From where the part has led a few of them
        are left to do.
        """
        rounds, share = self.algorithm.n_iter, _share_of_first(expert, shards)
        half = self.algorithm.with_rounds(max(1, rounds // 2))
        first = replace(self, algorithm=half, curvature=Curvature())
        part = sample.sampled(shards, share, self.seed)
        results = first._by_stages(expert, part, limits.now, PART_TOLERANCE)
        free: list[TrainingResult] = []
        if self.refine:
            theta = results[-1].parameters
            free = first._without_bounds(expert, part, theta, limits, PART_TOLERANCE)
        bounds = limits.all_lifted().now if free else limits.now
        results += free
        last = replace(first, algorithm=self.algorithm.with_rounds(max(1, rounds - rounds // 2)))
        steps: list[Step] = []
        while share < 1.0:
            more = 2.0 * share if 2.0 * MANY * share <= 1.0 else 1.0
            steps.append((more / share, sample.sampled(shards, more, self.seed)))
            share = more
        return results + last._with_more_rows(expert, steps, results[-1], bounds)

    def _with_more_rows(
        self,
        expert: Expert,
        steps: list[Step],
        last: TrainingResult,
        bounds: Bounds,
        tolerance: float = PART_TOLERANCE,
    ) -> list[TrainingResult]:
        """Go on from the last end with the rows of each step, so many times more than before."""
        results: list[TrainingResult] = []
        for more, rows in steps:
            assert self.curvature is not None
            weak = self._better_faint(expert, last, rows, bounds)
            if weak is None:
                self.curvature.scale(more)
                theta = within_reach(last.parameters, self.start, rows)
            else:
                self.curvature.forget()
                results, theta = [*results, weak], weak.parameters
            last = self._train(self.algorithm, expert, theta, rows, bounds, tolerance=tolerance)
            results.append(last)
        return results

    def _better_faint(
        self, expert: Expert, last: TrainingResult, rows: Placement[Shard], bounds: Bounds
    ) -> TrainingResult | None:
        """A few rounds from a faint signal, where fewer rows have told next to nothing and it is better."""
        weak = faint(self.start, self.fixed) if tells_little(last, rows) else None
        if weak is None:
            return None
        early, racer = self.algorithm.with_rounds(FIRST_ROUNDS), replace(self, curvature=None)
        found = racer._train(early, expert, weak, rows, bounds)
        better = found.objective - DECISIVE < self._objective(expert, last.parameters, rows)
        return found if better else None

    def _by_stages(
        self,
        expert: Expert,
        rows: Placement[Shard],
        bounds: Bounds,
        tolerance: float | None = None,
        more: Placement[Shard] | None = None,
    ) -> list[TrainingResult]:
        """Train in the stages that the kind of expert asks for.

        Of the starts that one is taken which leads to the lowest objective; of `more` rows, if given, since
        few of them may hardly tell what is rough from noise.
        """
        algorithm, results = self.algorithm, []
        learnt = self.found_in == "trial"
        stages = expert.stages(self.inducing, algorithm.n_iter, algorithm.agrees, learnt)
        first = expert.first_inducing(self.inducing, rows, self.seed)
        theta = replace(self.start, inducing=first)
        doing("looking for hyperparameters to start from")
        points = starts(expert, theta, rows, self.priors) if self.search else [theta]
        for i, stage in enumerate(stages):
            if stage.choose is not None:
                inducing = [stage.choose(theta, rows, self.seed) for theta in points]
                points = [replace(p, inducing=Z) for p, Z in zip(points, inducing, strict=True)]
            share = _share_of_rounds(algorithm, i, len(stages))
            if len(points) > 1 and share.n_iter > FIRST_ROUNDS:
                early = share.with_rounds(FIRST_ROUNDS)
                results.append(self._race(early, expert, points, rows, bounds, stage, more))
                share = share.with_rounds(share.n_iter - FIRST_ROUNDS)
                points = [results[-1].parameters]
            found = self._train(share, expert, points[-1], rows, bounds, stage, tolerance)
            results, points = [*results, found], [found.parameters]
        return results

    def _race(
        self,
        algorithm: Algorithm,
        expert: Expert,
        points: Sequence[Parameters],
        rows: Placement[Shard],
        bounds: Bounds,
        stage: Stage,
        more: Placement[Shard] | None,
    ) -> TrainingResult:
        """The end of a few rounds from each start that is the best; the first must lead clearly.

        Where it tells next to nothing of the rows, a start with a faint signal is raced too, and taken
        unless it is clearly worse: a kernel that is noise itself explains them as well, but for the rows
        themselves it predicts their own noise.
        What the way to the optimum has shown of the curvature is not that around it, and is forgotten.
        """
        racer = replace(self, curvature=None)

        def raced(theta: Parameters) -> tuple[float, TrainingResult]:
            found = racer._train(algorithm, expert, theta, rows, bounds, stage)
            value = found.objective
            if more is not None:
                value = self._objective(expert, found.parameters, more)
            return value if math.isfinite(value) else math.inf, found

        far, near = (raced(theta) for theta in points)
        best = far if far[0] < near[0] - DECISIVE else near
        weak = faint(points[0], self.fixed) if tells_little(best[1], rows) else None
        if weak is None:
            return best[1]
        last = raced(weak)
        return best[1] if best[0] < last[0] - DECISIVE else last[1]

    def _objective(self, expert: Expert, theta: Parameters, rows: Placement[Shard]) -> float:
        """The objective at θ, infinite where it has none."""
        value = objective_value(expert, theta, rows, self.priors)
        return value if math.isfinite(value) else math.inf

    def _by_drawn_rows(
        self, expert: Expert, shards: Placement[Shard], limits: Limits
    ) -> list[TrainingResult]:
        """Train by an algorithm that draws its rows; refine and polish what it found.

        One large expert whose objective of fewer rows can be had learns from that first.
        """
        algorithm, lifted = self.algorithm.with_search(self.search), None
        if self.found_in == "fit" and algorithm.polish:
            polish, free = Fact(n_iter=algorithm.polish), limits.all_lifted().now
            found = self._train(polish, expert, self.start, shards, free)
            worse = self._clearly_worse(expert, shards, found.parameters, self.start)
            return [replace(found, parameters=self.start) if worse else found]
        alone, goes_on = sum(sample.counts(shards)) == 1, self.found_in == "interrupted"
        small = _share_of_first(expert, shards) <= LARGEST_PART
        blocks = self.blocks and (self.search or goes_on) and alone and small
        if blocks:
            results, lifted = self._in_blocks(expert, shards, limits)
        else:
            results = [self._train(algorithm, expert, self.start, shards, limits.now)]
        with telling("theta", lambda told: told.get("theta", results[-1].parameters)):
            if self.refine:
                theta = results[-1].parameters
                found, limits = self._refined(expert, shards, theta, limits, blocks, lifted)
                results += found
            if algorithm.polish:
                theta = results[-1].parameters
                found = self._polished(expert, shards, theta, limits, lifted)
                if not self._clearly_worse(expert, shards, found[-1].parameters, theta):
                    results += found
        return results

    def _polished(
        self,
        expert: Expert,
        shards: Placement[Shard],
        theta: Parameters,
        limits: Limits,
        lifted: TrainingResult | None,
    ) -> list[TrainingResult]:
        """Go on from θ by the objective of all rows, within bounds of ours and then without.

        Where blocks of rows have `lifted` bounds, and rows held out were not sure, that is tried at once,
        from what they found if all rows agree.
        """
        bounded, found = limits != limits.all_lifted(), []
        may_lift = self.refine and bounded and sum(sample.counts(shards)) == 1
        if lifted is not None and may_lift:
            start = lifted.parameters
            found = self._without_bounds(expert, shards, theta, limits, start=start)
        if found:
            return found
        polish = min(self.algorithm.polish, self.algorithm.n_iter)
        results = [self._train(Fact(n_iter=polish), expert, theta, shards, limits.now)]
        if may_lift and lifted is None:
            with telling("theta", lambda told: told.get("theta", results[-1].parameters)):
                results += self._without_bounds(expert, shards, results[-1].parameters, limits)
        return results

    def _clearly_worse(
        self, expert: Expert, shards: Placement[Shard], theta: Parameters, before: Parameters
    ) -> bool:
        """Whether rows held out, where there are any, are predicted clearly worse than before."""
        if not self.refine:
            return False
        doing("measuring what was learnt on rows held out")
        with telling("theta", lambda _: theta):
            old, new = (self._scored(expert, shards, one) for one in (before, theta))
        return old.beats(new, ERRORS) or not bool(torch.isfinite(new.densities).all())

    def _in_blocks(
        self, expert: Expert, shards: Placement[Shard], limits: Limits
    ) -> tuple[list[TrainingResult], TrainingResult | None]:
        """Learn θ from parts of the rows, and then by FACT from most rows in blocks of such a size.

        The objective of blocks sees what is as far apart as in a part, and all that their rows say. Its
        curvature, for as many rows as there are, is kept for those evaluations that look at all of them:
        before these, blocks tell cheaply where they may lead without bounds of ours, if that is anywhere.
        """
        assert expert.first_rows is not None
        exact = replace(self, algorithm=Fact(n_iter=min(Fact.n_iter, self.algorithm.n_iter)))
        share, size = _share_of_first(expert, shards), 2 * expert.first_rows
        part = sample.sampled(shards, share, self.seed)
        blocks = sample.divided(shards, size, MOST_BLOCKS, self.seed)
        results = exact._by_stages(expert, part, limits.now, PART_TOLERANCE, blocks)
        twice = sample.sampled(shards, 2.0 * share, self.seed)
        steps: list[Step] = [(2.0, twice), (float(sum(sample.counts(blocks))), blocks)]
        for step, tolerance in zip(steps, (PART_TOLERANCE, BLOCK_TOLERANCE), strict=True):
            results += exact._with_more_rows(expert, [step], results[-1], limits.now, tolerance)
        free, theta = [], results[-1].parameters
        if self.refine:
            free = exact._without_bounds(expert, blocks, theta, limits, BLOCK_TOLERANCE)
        assert self.curvature is not None
        self.curvature.scale(float(sample.sizes(shards).sum() / sample.sizes(blocks).sum()))
        return results, free[0] if free else None

    def _refined(
        self,
        expert: Expert,
        shards: Placement[Shard],
        theta: Parameters,
        limits: Limits,
        blocks: bool,
        lifted: TrainingResult | None,
    ) -> tuple[list[TrainingResult], Limits]:
        """Take those steps of further training by which rows held out are predicted better.

        Steps with more neighbours bring back lengthscales that have left the kernel. After `blocks` of
        rows only a step with as many neighbours as the algorithm has by itself does. It is made where the
        blocks saw few of the rows, or where rows need not be set apart. A step knows the curvature that
        those before it have shown.
        Still more are looked at only where the last ones were clearly worth it. Where blocks of rows have
        `lifted` bounds, their end is tried before nearest rows lift the cap of signals. That is left to
        the objective of all rows where it comes later.
        """
        results, last, more = [], self.algorithm, True
        n, known, looked_at = int(sample.sizes(shards).sum()), Curvature(), 1.0
        own = blocks and 2 * MOST_BLOCKS * _share_of_first(expert, shards) < SEEN
        doing("measuring what was learnt on rows held out")
        best = self._scored(expert, shards, theta)
        together = self._together(expert, shards, theta, best)
        for change in self.algorithm.refinements(own or together is not theta):
            wider, again = limits.lifted(change.lifts, theta), change.algorithm or last
            if (change.lifts and wider == limits) or not (change.lifts or more):
                continue
            if change.lifts == "cap" and lifted is not None:
                if self._scored(expert, shards, lifted.parameters).beats(best, ERRORS):
                    return [*results, lifted], limits.all_lifted()
                if self.algorithm.polish:
                    break
            back = change.anew or not (change.lifts or blocks)
            begin = together if change.anew else theta
            start = back_at_start(begin, self.start) if back else theta
            known.scale(again.rows_of(n) / looked_at)
            looked_at, tolerance = again.rows_of(n), Algorithm.tolerance
            learner = replace(self, curvature=known)
            found = learner._train(again, expert, start, shards, wider.now, tolerance=tolerance)
            new = self._scored(expert, shards, found.parameters)
            clearly = new.beats(best, ERRORS)
            more = more if change.lifts or change.anew else clearly
            if clearly or (not change.lifts and new.safely_beats(best)):
                results, best, limits, last = [*results, found], new, wider, again
                theta = found.parameters
        return results, limits

    def _together(
        self, expert: Expert, shards: Placement[Shard], theta: Parameters, best: Score
    ) -> Parameters:
        """θ with those lengthscales longer that set rows apart, where rows held out are hardly worse.

        With a very short lengthscale rows with different values in a column say nothing of each other.
        Where few rows have such a value, the likelihood hardly minds, and gives no way back; but a row to
        predict then has those few alone to go by. All are tried at once, and then one by one.
        """
        apart = set_apart(theta, self.start)[:MOST_APART]
        for which in ([apart] if len(apart) > 1 else []) + [[one] for one in apart]:
            longer = with_lengthscales_back(theta, self.start, which)
            found = self._scored(expert, shards, longer)
            if bool(torch.isfinite(found.densities).all()) and not best.beats(found, ERRORS):
                theta, best = longer, found
                if which == apart:
                    break
        return theta

    def _scored(
        self, expert: Expert, shards: Placement[Shard], theta: Parameters, most: int = HELD_OUT
    ) -> Score:
        """Score θ by rows held out; for one exact expert also by rows of a part, left out in turn."""
        found, share = score(theta, shards, self.seed, most), 2.0 * _share_of_first(expert, shards)
        if sum(sample.counts(shards)) > 1:
            return found
        part = shards if share >= 1.0 else sample.sampled(shards, share, self.seed)
        return found._replace(left_out=part.on_first(left_out_densities, expert, theta))

    def _without_bounds(
        self,
        expert: Expert,
        shards: Placement[Shard],
        theta: Parameters,
        limits: Limits,
        tolerance: float | None = None,
        start: Parameters | None = None,
    ) -> list[TrainingResult]:
        """Go on without bounds of ours, and keep it where rows that are left out in turn do not object.

        These are the rows of the first shard. The likelihood speaks for it already, so that they object
        only where they are predicted worse by more than a standard error. A descent that begins anew also
        leaves places where rounding errors have stopped the last one. It begins at another `start`, if
        given, where the objective is lower there.
        """
        doing("measuring what was learnt on rows left out in turn")
        before = shards.on_first(left_out_densities, expert, theta)
        if before is None:
            return []
        most = self.algorithm.polish or max(1, self.algorithm.n_iter // 2)
        free, begin = limits.all_lifted().now, theta
        if start is not None:
            begin = min(theta, start, key=lambda one: self._objective(expert, one, shards))
        found = self._train(Fact(n_iter=most), expert, begin, shards, free, tolerance=tolerance)
        after = shards.on_first(left_out_densities, expert, found.parameters)
        better = after is not None and Score(after).beats(Score(before), OBJECTION)
        return [found] if better else []

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
            curvature=self.curvature,
        )

    def _sampled(self, shards: Placement[Shard]) -> Placement[Shard]:
        """A random sample of as many rows as training looks at."""
        n = int(sample.sizes(shards).sum())
        return sample.sampled(shards, 1.0 if self.rows is None else self.rows / n, self.seed)


@travels("settings")
def _check_room(batch: Shard, expert: Expert) -> None:
    expert.check_room(batch)


def _share_of_rounds(algorithm: Algorithm, stage: int, stages: int) -> Algorithm:
    """The algorithm with one stage's share of its rounds."""
    if stages == 1:
        return algorithm
    early = algorithm.n_iter // stages
    share = early if stage < stages - 1 else algorithm.n_iter - early * (stages - 1)
    return algorithm.with_rounds(share)


def _share_of_first(expert: Expert, shards: Placement[Shard]) -> float:
    """The share of the rows that training begins with, a half at most; 1 where it looks at all at once."""
    n, first = float(sample.sizes(shards).sum()), expert.first_rows
    return 1.0 if first is None or n < first else min(0.5, first / n)
