"""The steps from rows to a model, in order.

    Rows → place → train θ → condition experts → combine → Model

`place` puts standardised rows where the experts will live, as `FileRows.place` does for rows that workers
read from files; `fit` is the rest of the line, for all of them, trials and cross-validation alike.
`update` adds rows to a model. The way from a model to predictions is in `predicting`. Nothing here knows
an estimator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from distgp._util.checks import is_auto
from distgp._util.progress import doing, in_words, telling
from distgp.aggregation import Ensemble, default_aggregator
from distgp.data import shard as sample
from distgp.data.partition import split, with_communication
from distgp.data.rows import Rows, Schema
from distgp.data.scaling import MANY, Scaling
from distgp.data.shard import Shard, stack
from distgp.diagnostics.novelty import TrainingInputs
from distgp.engines import Engine, Placement, opened
from distgp.experts import Parameters, Posterior
from distgp.kernels.base import columns_with_period
from distgp.likelihoods import Gaussian
from distgp.likelihoods.gaussian import standardised_noise
from distgp.likelihoods.transforms import Transform, transform_of
from distgp.model import Model, TargetModel
from distgp.plan import Plan, refuse_transformed_noise
from distgp.training import Learning, Prior
from distgp.training.stage import Initial

LEAST_LEARNT = 50
"""Rows from which a new expert learns hyperparameters of its own, where the others have theirs."""


@dataclass(frozen=True, eq=False)
class Placed:
    """Standardised rows where their experts will live, one shard per expert, and what was done to them.

    There is one scaling and one transform for each target; `one_target` says that they were given as one
    column. Where rows have noise variances of their own, `row_noise` is their mean, in the target's units.
    """

    engine: Engine
    shards: Placement[Shard]
    schema: Schema
    scalings: tuple[Scaling, ...]
    transforms: tuple[Transform | None, ...]
    one_target: bool = True
    row_noise: float | None = None

    def of_target(self, column: int) -> Placement[Shard]:
        """The shards with one of the targets, and with noise in its units."""
        shards = self.shards.derive(Shard.target, column)
        if self.row_noise is None:
            return shards
        return shards.derive(standardised_noise, self.scalings[column].y_scale ** 2)

    def with_inputs(
        self, model: Model[TargetModel], plan: Plan, time: frozenset[int] = frozenset()
    ) -> Model[TargetModel]:
        """The model with what the training inputs look like, for warnings of novelty.

        Columns of time are those given, those made of dates, and those along which the kernel repeats
        itself. Where distances between rows may not leave the workers, the model does without.
        """
        if self.shards.may_leave is not None and "distances" not in self.shards.may_leave:
            return model
        doing("measuring how far apart the rows lie")
        inputs = TrainingInputs.of(self.shards, plan.seed, nearest=plan.kind.holds_rows)
        kernels, table = [target.parameters.kernel for target in model.targets], self.schema.table
        time |= frozenset() if table is None else table.of_dates
        time = time.union(*(columns_with_period(k, self.schema.n_features) for k in kernels))
        inputs = inputs.forecasting(self.shards, time, plan.validation, plan.seed)
        return replace(model, inputs=inputs)


def transformed(plan: Plan, rows: Rows) -> tuple[Rows, tuple[Transform | None, ...]]:
    """Transform every target; what a transform learns, it learns of these rows."""
    columns, name = rows.targets.T, plan.target_transform
    if name is None or is_auto(name):  # "auto": that is measured first
        return rows, (None,) * len(columns)
    transforms = tuple(transform_of(name, column, rows.weight) for column in columns)
    z = np.stack([t.forward(y) for t, y in zip(transforms, columns, strict=True)], -1)
    return replace(rows, y=z.reshape(rows.y.shape)), transforms


def place(plan: Plan, rows: Rows, transforms: Sequence[Transform | None] = ()) -> Placed:
    """Standardise rows, divide them into shards, and put these on the engine's workers.

    Their targets are transformed already, by `transforms` where there are any.
    """
    X, targets, like = rows.X, rows.targets, plan.like
    how = plan.normalize, plan.mean == "linear", rows.weight, rows.schema.blocks
    scalings = tuple(
        replace(
            Scaling.of(X, y, *how),
            latitudes=plan.latitudes,
            never_negative=len(y) >= MANY and bool((y >= 0).all()),
        )
        for y in targets.T
    )
    engine = opened(plan.engine, plan.device)
    M = plan.number_of_experts(len(rows), engine.workers)
    pairs = zip(scalings, targets.T, strict=True)
    scaled = torch.stack([scaling.targets(y, X, like) for scaling, y in pairs], -1)
    weight, noise = (
        None if values is None else torch.as_tensor(values).to(like)
        for values in (rows.weight, rows.noise)
    )
    numbers = torch.arange(len(rows), device=like.device)
    data = Shard(scalings[0].inputs(X, like), scaled, numbers, None, weight, noise)
    shards = sample.place(engine, divided(plan, data, M))
    row_noise = None if rows.noise is None else float(np.average(rows.noise, weights=rows.weight))
    known = tuple(transforms) or (None,) * len(scalings)
    return Placed(engine, shards, rows.schema, scalings, known, rows.y.ndim == 1, row_noise)


def divided(plan: Plan, data: Shard, n_experts: int) -> list[Shard]:
    """Divide rows into shards, one per expert, as the plan's partition says."""
    if isinstance(plan.partition, np.ndarray):
        return split(data, plan.partition)
    if plan.aggregation is not None and plan.aggregation.needs_communication_shard:
        return with_communication(data, n_experts, plan.partition, plan.seed)
    return split(data, plan.partition.assign(data.X.cpu().numpy(), n_experts, plan.seed))


def fit(plan: Plan, placed: Placed) -> Model[TargetModel]:
    """Train, condition and combine the experts of every target where the rows are.

    Nothing in the plan is left to be chosen.
    """
    targets: list[TargetModel] = []

    def found(told: Mapping[str, Any]) -> tuple[Parameters, ...]:
        last = (told["theta"],) if "theta" in told else ()
        return (*(target.parameters for target in targets), *last)

    with telling("found", found):
        for column in range(len(placed.scalings)):
            targets.append(fit_target(plan, placed, column))  # noqa: PERF401  # `found` sees each
    return Model(tuple(targets), placed.one_target, placed.schema, plan.seed)


def fit_target(plan: Plan, placed: Placed, column: int) -> TargetModel:
    """Fit one target: train θ, condition one expert per shard on all its rows, combine them."""
    scaling, row_noise = placed.scalings[column], placed.row_noise
    shards = placed.of_target(column)
    if row_noise is not None:
        row_noise = row_noise / scaling.y_scale**2
    theta, learning = starting_point(plan, scaling, column, row_noise)
    result = None if learning is None else learning.on(plan.kind, shards)
    theta = theta if result is None else result.parameters
    with telling("theta", lambda _: theta):
        doing("conditioning on all rows")
        ensemble = condition(plan, shards, scaling, theta)
        method = plan.aggregation or default_aggregator(ensemble)
        doing(f"combining the experts by {in_words(method.name)}")
        combined = method.with_progress(plan.progress).combine(ensemble)
    likelihood, transform = Gaussian(ensemble.noise(), row_noise), placed.transforms[column]
    return TargetModel(scaling, ensemble, method, combined, likelihood, result, transform)


def condition(
    plan: Plan, shards: Placement[Shard], scaling: Scaling, theta: Parameters
) -> Ensemble:
    """Condition one expert per shard on all its rows, with inducing inputs chosen for this θ."""
    Z = plan.kind.last_inducing(plan.inducing(scaling), theta, shards, plan.seed)
    return Ensemble.condition(plan.kind, replace(theta, inducing=Z), shards)


def starting_point(
    plan: Plan, scaling: Scaling, column: int, row_noise: float | None
) -> tuple[Parameters, Learning | None]:
    """θ to start from, and how to learn a better one; None where nothing is trained.

    Training starts where an earlier fit ended, with warm_start; or else where the trial of what was
    chosen ended, which has seen nearly as much; or else at what the kernel says, or at shorter
    lengthscales.
    """
    initial = plan.initial(scaling, row_noise)
    start, search, found_in = initial.parameters, initial.named, ""
    if plan.found:
        found = plan.found[min(column, len(plan.found) - 1)]
        moved = initial.moved_to(found, plan.fixed)
        search = moved is None and (search or plan.found_in != "trial")
        start, found_in = (start, "") if moved is None else (moved, plan.found_in)
    paths, fixed = initial.parameters.paths, [*plan.fixed, *initial.fixed]
    held = {path for name in fixed for path in paths(name)}
    if plan.algorithm is None or held >= set(initial.parameters.unconstrained()):
        return start, None
    given = {path: pair for name, pair in plan.bounds.items() for path in paths(name)}
    learning = Learning(
        plan.algorithm,
        start,
        plan.inducing(scaling),
        search,
        found_in,
        plan.training_rows,
        _priors(plan, initial),
        initial.bounds(capped=plan.normalize) | given,
        fixed,
        plan.seed,
        plan.progress,
        plan.refines,
        {path: pair for path, pair in initial.uncapped().items() if path not in given},
        plan.in_blocks,
    )
    return start, learning


def _priors(plan: Plan, initial: Initial) -> Mapping[str, Prior]:
    """The priors given, and for few rows those of ours where the user has said nothing."""
    if not plan.few_rows:
        return plan.priors
    names = (*plan.priors, *plan.bounds)
    said = {path for name in names for path in initial.parameters.paths(name)}
    ours = {path: prior for path, prior in initial.priors().items() if path not in said}
    return {**ours, **plan.priors}


def update(plan: Plan, model: Model[TargetModel], rows: Rows) -> Model[TargetModel]:
    """Add rows to the last expert of a model until it is full, and then to new ones.

    Scaling, transform and θ stay; where each expert has hyperparameters of its own, a new one learns its
    own. The weights of the aggregator are computed anew. Experts on a cluster are brought into this
    process first.
    """
    for target, y in zip(model.targets, rows.targets.T, strict=True):
        if target.transform is not None:
            refuse_transformed_noise(rows.noise is not None)
            target.transform.check(y)
    pairs = zip(model.gathered().targets, rows.targets.T, strict=True)
    targets = (_updated(plan, target, replace(rows, y=y)) for target, y in pairs)
    return replace(model, targets=tuple(targets))


def _updated(plan: Plan, target: TargetModel, rows: Rows) -> TargetModel:
    """One target's model with more rows."""
    shard, ensemble = new_shard(target, rows), target.ensemble
    counts = ensemble.row_counts()
    full = plan.full_shard(round(float(counts.max())))
    room = max(0, full - round(float(counts[-1])))
    if room:
        try:
            ensemble = ensemble.filled(shard.take(slice(room)))
        except MemoryError:  # one exact GP of all rows, which fits no longer
            room = 0
    for some in shard.take(slice(room, None)).chunks(full):
        ensemble = ensemble.extended(_new_expert(plan, target, some))
    positive = target.scaling.never_negative and bool((rows.y >= 0).all())
    target = replace(target, scaling=replace(target.scaling, never_negative=positive))
    return recombined(plan, target, ensemble)


def recombined(plan: Plan, target: TargetModel, ensemble: Ensemble) -> TargetModel:
    """One target's model with other experts, combined anew by the aggregator that suits them."""
    method = plan.aggregation or default_aggregator(ensemble)
    likelihood = replace(target.likelihood, noise=ensemble.noise())
    found = {"aggregation": method, "combined": method.combine(ensemble)}
    return replace(target, ensemble=ensemble, likelihood=likelihood, **found)


def without_experts(
    plan: Plan, model: Model[TargetModel], places: Sequence[int]
) -> Model[TargetModel]:
    """Forget the rows of some experts, and combine the others anew, in this process."""
    targets = model.gathered().targets
    left = (recombined(plan, target, target.ensemble.without(places)) for target in targets)
    return replace(model, targets=tuple(left))


def new_shard(target: TargetModel, rows: Rows) -> Shard:
    """New rows in the units of a fitted model."""
    like, seen = target.parameters.noise, target.ensemble.row_count()
    z = rows.y if target.transform is None else target.transform.forward(rows.y)
    scaling, n = target.scaling, len(rows)
    noise = target.likelihood.standardised(n, scaling, rows.noise)
    own = (None if v is None else torch.as_tensor(v).to(like) for v in (rows.weight, noise))
    numbers = torch.arange(seen, seen + n, device=like.device)
    inputs, scaled = scaling.inputs(rows.X, like), scaling.targets(z, rows.X, like)
    return Shard.of(inputs, scaled, numbers, *own)


def _new_expert(plan: Plan, target: TargetModel, shard: Shard) -> Posterior:
    """Condition one more expert on new rows, with the others' θ or, where each has its own, its own.

    Where it has too few rows to learn from, its θ is that of the last expert.
    """
    expert, theta = target.ensemble.expert, target.parameters
    if not theta.batch and not theta.inducing_batch:
        return expert.condition(theta, stack([shard]))
    own = theta[-1]
    m = None if own.inducing is None else len(own.inducing)
    own_noise = target.likelihood.row_noise
    _, learning = starting_point(replace(plan, found=()), target.scaling, 0, own_noise)
    if learning is not None and shard.n >= max(LEAST_LEARNT, m or 0):
        learning = replace(learning, inducing="auto" if m is None else m)
        own = learning.on(expert, sample.placed([shard])).parameters[0]
    return expert.condition(own.unsqueezed(), stack([shard]))
