"""The way from rows to a model, and from a model to predictions, top to bottom.

    Rows → place → train θ → condition experts → combine → Model → predict

`place` puts standardised rows where the experts will live; `fit` is the rest of the first line, for
rows in this process, rows that workers read from files, trials and cross-validation alike. `update`
adds rows to a model. Nothing here knows an estimator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike

from distgp._util.interrupts import telling
from distgp._util.progress import doing
from distgp.aggregation import Aggregator, Ensemble, default_aggregator
from distgp.data import parquet
from distgp.data import shard as sample
from distgp.data.encoding import Columns
from distgp.data.partition import split, with_communication
from distgp.data.rows import Rows, Schema
from distgp.data.scaling import Scaling
from distgp.data.shard import Shard, stack
from distgp.diagnostics import metrics
from distgp.diagnostics.calibration import Calibration
from distgp.diagnostics.novelty import TrainingInputs, warn_of_novelty
from distgp.engines import Engine, Placement, opened
from distgp.experts import Parameters, Posterior
from distgp.kernels.base import columns_with_period
from distgp.likelihoods import Gaussian
from distgp.likelihoods.gaussian import standardised_noise
from distgp.likelihoods.transforms import Transform, transform_of
from distgp.model import Model, Points, TargetModel
from distgp.plan import Plan, refuse_transformed_noise
from distgp.training import Learning, Prior
from distgp.training.initial import Initial

LEAST_LEARNT = 50
"""Rows from which a new expert learns hyperparameters of its own, where the others have theirs."""


@dataclass(frozen=True, eq=False)
class Placed:
    """Standardised rows where their experts will live, and what was done to them.

    Parameters
    ----------
    engine : Engine
        Where they live.
    shards : Placement of Shard
        One shard per expert, with all targets.
    schema : Schema
        The columns of the inputs.
    scalings : tuple of Scaling
        The units of the data, for each target.
    transforms : tuple of Transform or None
        What each target was transformed by.
    one_target : bool
        Whether the targets were given as one column.
    row_noise : float, optional
        Where rows have noise variances of their own: their mean, in the target's units.
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


@dataclass(frozen=True, eq=False)
class FileRows:
    """Rows in Parquet files that workers read by themselves; this process never holds them.

    `given` names the columns of what `fit` takes for each row. Rows to be `left_out` are named by their
    numbers.
    """

    files: parquet.ParquetRows
    target: str
    columns: Mapping[str, Any]
    missing: str
    given: Mapping[str, str]
    left_out: tuple[int, ...] = ()

    @property
    def n(self) -> int:
        """The number of rows."""
        return self.files.n - len(self.left_out)

    def sample(self, plan: Plan, size: int, last: int = 0) -> tuple[Rows, np.ndarray]:
        """Draw a sample of the rows into this process, and all of the `last` rows; tell their numbers."""
        engine = opened(plan.engine, plan.device)
        stretches, columns = self._stretches(engine, min(engine.workers, self.files.n))
        shards = self._read(stretches, columns, plan.seed)
        some = sample.drawn(shards, size, plan.seed)
        if last:
            end = sample.drawn(shards.derive(_rows_from, self.files.n - last), last, plan.seed)
            some = sample.concatenate([some.take(some.rows < self.files.n - last), end])
        some = some.take(some.rows.argsort())
        X, y, order = (value.cpu().numpy() for value in (some.X, some.y, some.rows))
        weight, noise = (None if v is None else v.cpu().numpy() for v in (some.weight, some.noise))
        known = {"time": order if plan.validation == "last" else None}
        for kind in self.given.keys() & {"time", "groups"}:
            known[kind] = parquet.values_of(stretches, self.given[kind], order)
        return Rows(X, y, Schema.of(columns), weight, noise, **known), order

    def place(self, plan: Plan, transform: Transform | None = None) -> tuple[Plan, Placed]:
        """Let every worker read its rows, and transform and standardise them there."""
        engine = opened(plan.engine, plan.device)
        M = plan.number_of_experts(self.n, engine.workers)
        stretches, columns = self._stretches(engine, M)
        raw, schema = self._read(stretches, columns, plan.seed), Schema.of(columns)
        plan = replace(plan, schema=schema).settled({})  # now that the columns are known
        if transform is not None:
            raw = raw.derive(_transformed, transform)
        linear, d = plan.mean == "linear", schema.n_features
        scaling = parquet.scaling_of(raw, plan.normalize, d, schema.blocks, linear)
        scaling = replace(scaling, latitudes=plan.latitudes)
        shards = parquet.standardise(raw, scaling, plan.like)
        noise = parquet.mean_noise(raw) if "noise_variance" in self.given else None
        return plan, Placed(engine, shards, schema, (scaling,), (transform,), row_noise=noise)

    def _stretches(
        self, engine: Engine, n_experts: int
    ) -> tuple[Placement[parquet.Stretch], Columns]:
        return parquet.place(engine, self.files, n_experts, self.target, **self.columns)

    def _read(
        self, stretches: Placement[parquet.Stretch], columns: Columns, seed: int
    ) -> Placement[Shard]:
        return parquet.read(stretches, columns, self.missing, seed, self.given, self.left_out)


def _rows_from(batch: Shard, number: int) -> Shard:
    """The rows of a batch that have this number or a higher one."""
    rows = batch.flatten().without_padding()
    return rows.take(rows.rows >= number)


def _transformed(batch: Shard, transform: Transform) -> Shard:
    """Transform the targets of rows where they are; those of padding stay 0."""
    real = torch.ones_like(batch.y, dtype=torch.bool) if batch.mask is None else batch.mask
    y, z = batch.y[real].cpu().numpy(), torch.zeros_like(batch.y)
    transform.check(y)
    z[real] = torch.as_tensor(transform.forward(y)).to(z)
    return replace(batch, y=z)


def transformed(plan: Plan, rows: Rows) -> tuple[Rows, tuple[Transform | None, ...]]:
    """Transform every target; what a transform learns, it learns of these rows."""
    columns, name = rows.targets.T, plan.target_transform
    if name is None:
        return rows, (None,) * len(columns)
    transforms = tuple(transform_of(name, column, rows.weight) for column in columns)
    z = np.stack([t.forward(y) for t, y in zip(transforms, columns, strict=True)], -1)
    return replace(rows, y=z.reshape(rows.y.shape)), transforms


def place(plan: Plan, rows: Rows, transforms: Sequence[Transform | None] = ()) -> Placed:
    """Standardise rows, divide them into shards, and put these on the engine's workers.

    Parameters
    ----------
    plan : Plan
        With its expert settled.
    rows : Rows
        The rows, their targets transformed already.
    transforms : sequence of Transform or None
        What transformed each target; nothing by default.

    Returns
    -------
    Placed
    """
    X, targets, like = rows.X, rows.targets, plan.like
    scalings = tuple(
        Scaling.of(X, y, plan.normalize, plan.mean == "linear", rows.weight, rows.schema.blocks)
        for y in targets.T
    )
    scalings = tuple(replace(scaling, latitudes=plan.latitudes) for scaling in scalings)
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

    Parameters
    ----------
    plan : Plan
        What to do, with nothing left to be chosen.
    placed : Placed
        The rows.

    Returns
    -------
    Model
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
    theta, learning = starting_point(plan, scaling, column, row_noise is not None)
    result = None if learning is None else learning.on(plan.kind, shards)
    theta = theta if result is None else result.parameters
    with telling("theta", lambda _: theta):
        doing("conditioning on all rows")
        ensemble = condition(plan, shards, scaling, theta)
        method = plan.aggregation or default_aggregator(ensemble)
        doing(f"combining the experts by {method.name}")
        combined = method.with_progress(plan.verbose).combine(ensemble)
    likelihood, transform = Gaussian(ensemble.noise(), row_noise), placed.transforms[column]
    return TargetModel(scaling, ensemble, method, combined, likelihood, result, transform)


def condition(
    plan: Plan, shards: Placement[Shard], scaling: Scaling, theta: Parameters
) -> Ensemble:
    """Condition one expert per shard on all its rows, with inducing inputs chosen for this θ."""
    Z = plan.kind.last_inducing(plan.inducing(scaling), theta, shards, plan.seed)
    return Ensemble.condition(plan.kind, replace(theta, inducing=Z), shards)


def starting_point(
    plan: Plan, scaling: Scaling, column: int, factor: bool
) -> tuple[Parameters, Learning | None]:
    """θ to start from, and how to learn a better one; None where nothing is trained.

    Training starts where an earlier fit ended, with warm_start; or else where the trial of what was
    chosen ended, which has seen nearly as much; or else at what the kernel says, or at shorter
    lengthscales.
    """
    initial = plan.initial(scaling, factor)
    start, search, learnt = initial.parameters, initial.named, False
    if plan.found:
        found = plan.found[min(column, len(plan.found) - 1)]
        moved = initial.moved_to(found, plan.fixed)
        search = moved is None and (search or not plan.from_trial)
        start, learnt = (start, False) if moved is None else (moved, plan.from_trial)
    if plan.algorithm is None:
        return start, None
    bounds, given = initial.bounds(capped=plan.normalize), {}
    for name, pair in plan.bounds.items():
        given |= dict.fromkeys(initial.parameters.paths(name), pair)
    bounds |= given
    learning = Learning(
        plan.algorithm,
        start,
        plan.inducing(scaling),
        search,
        learnt,
        plan.training_rows,
        _priors(plan, initial),
        bounds,
        [*plan.fixed, *initial.fixed],
        plan.seed,
        plan.verbose,
        plan.refines,
        {path: pair for path, pair in initial.uncapped().items() if path not in given},
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
    return recombined(plan, target, ensemble)


def recombined(plan: Plan, target: TargetModel, ensemble: Ensemble) -> TargetModel:
    """One target's model with other experts, combined anew by the aggregator that suits them."""
    method = plan.aggregation or default_aggregator(ensemble)
    likelihood = replace(target.likelihood, noise=ensemble.noise())
    return replace(
        target,
        ensemble=ensemble,
        aggregation=method,
        combined=method.combine(ensemble),
        likelihood=likelihood,
    )


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
    factor = target.likelihood.row_noise is not None
    _, learning = starting_point(replace(plan, found=()), target.scaling, 0, factor)
    if learning is not None and shard.n >= max(LEAST_LEARNT, m or 0):
        learning = replace(learning, inducing="auto" if m is None else m)
        own = learning.on(expert, sample.placed([shard])).parameters[0]
    return expert.condition(own.unsqueezed(), stack([shard]))


def points(
    model: Model[TargetModel],
    X: np.ndarray,
    latent: bool = False,
    noise: np.ndarray | None = None,
    *,
    warn: bool = True,
) -> Points:
    """Standardise points to predict; warns where many are unlike the training rows."""
    target = model.targets[0]
    refuse_transformed_noise(noise is not None and target.transform is not None)
    inputs = target.scaling.inputs(X, target.parameters.noise)
    if warn and model.inputs is not None:
        warn_of_novelty(model.inputs, inputs)
    return Points(X, inputs, latent, noise)


def combined_by(
    model: Model[TargetModel], aggregation: Aggregator | Literal["auto"]
) -> Model[TargetModel]:
    """The model with its experts combined by another aggregator, or by that which suits them best."""
    targets = []
    for target in model.targets:
        auto = aggregation == "auto"
        method = default_aggregator(target.ensemble) if auto else aggregation
        same = method == target.aggregation
        combined = target.combined if same else method.combine(target.ensemble)
        targets.append(replace(target, combined=combined))
    return replace(model, targets=tuple(targets))


def check_calibration(model: Model[TargetModel], other: Model[TargetModel]) -> None:
    """Refuse intervals of another combination of the experts than the one that was calibrated."""
    for target, asked in zip(model.targets, other.targets, strict=True):
        if target.calibration is not None and asked.combined is not target.combined:
            raise ValueError(
                f"intervals of this model are calibrated for its own aggregation, "
                f"{target.aggregation.name!r}, and say nothing of another: leave aggregation= out, give "
                "latent=True, or fit with that aggregation"
            )


def predict(
    model: Model[TargetModel],
    X: np.ndarray,
    what: Literal["mean", "variance", "covariance"] = "variance",
    *,
    latent: bool = False,
    noise: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Predict at the rows of X, in the targets' units.

    The mean is alone, without variance work, or has the variance or the covariance beside it: of f
    where `latent`, else of an observation, whose noise variances may be given. Several targets are in
    the last dimension.
    """
    at = points(model, X, latent, noise)
    if what == "mean":
        return model.columns([(target.mean(at),) for target in model.targets])
    if what == "covariance":
        return model.columns([target.covariance(at) for target in model.targets])
    return model.columns([target.predict(at) for target in model.targets])


def predict_gaussian(
    model: Model[TargetModel],
    X: np.ndarray,
    *,
    latent: bool = False,
    noise: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Predict mean and variance of that which is Gaussian: the target, or its transform."""
    at = points(model, X, latent, noise)
    return model.columns([target.gaussian(at) for target in model.targets])


def calibrated(plan: Plan, model: Model[TargetModel], rows: Rows) -> Model[TargetModel]:
    """Score the model's predictions of rows that it never saw."""
    groups = rows.groups if plan.calibrate == "mondrian" else None
    targets, at = [], points(model, rows.X, noise=rows.noise)
    for target, y in zip(model.targets, rows.targets.T, strict=True):
        mean, variance = target.gaussian(at)
        z, std = target.log_slope(y)[0], np.sqrt(variance)
        scores = Calibration.of(z, mean, std, groups, rows.weight)
        targets.append(replace(target, calibration=scores))
    return replace(model, targets=tuple(targets))


def quantiles(
    model: Model[TargetModel],
    X: np.ndarray,
    levels: Sequence[float],
    groups: ArrayLike | None,
    *,
    latent: bool = False,
    noise: np.ndarray | None = None,
) -> np.ndarray:
    """Quantiles at these probabilities, (N, levels) or (N, targets, levels), calibrated if the model is."""
    at = points(model, X, latent, noise)
    parts = [
        target.quantiles(*target.gaussian(at), levels, groups, latent) for target in model.targets
    ]
    return parts[0] if model.one_target else np.stack(parts, 1)


def with_interval(
    model: Model[TargetModel], X: np.ndarray, levels: Sequence[float], *, latent: bool = False
) -> list[np.ndarray]:
    """Mean, variance and two quantiles, for the price of one prediction."""
    at, parts = points(model, X, latent), []
    for target in model.targets:
        z, variance = target.gaussian(at)
        lower, upper = target.quantiles(z, variance, levels, None, latent).T
        parts.append((*target.of_target(z, variance), lower, upper))
    return model.columns(parts)


def parts(model: Model[TargetModel], X: np.ndarray) -> list[list[np.ndarray]]:
    """The level that f is counted from, and the summands of f, each with mean and variance.

    They are in the targets' units; the level is the target's mean or linear trend, with variance 0.
    """
    at, found = points(model, X, latent=True), []
    for target in model.targets:
        level = np.broadcast_to(target.scaling.trend(X), (len(X),))
        found.append([(level, np.zeros(len(X))), *target.parts(at)])
    return [model.columns(one) for one in zip(*found, strict=True)]


def draw(
    model: Model[TargetModel], X: np.ndarray, size: int, seed: int, latent: bool
) -> np.ndarray:
    """Joint draws of the observations, or of f, (N, size) or (N, targets, size)."""
    at = points(model, X, latent)
    seeds = np.random.SeedSequence(seed).generate_state(len(model.targets))
    pairs = zip(model.targets, seeds, strict=True)
    draws = [target.sample(at, size, int(one)) for target, one in pairs]
    return draws[0] if model.one_target else np.stack(draws, axis=1)


def nlpd(model: Model[TargetModel], y: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    """The mean negative log density of observed targets, given predictions of that which is Gaussian."""
    columns = (y[:, None] if y.ndim == 1 else y).T
    parts = [target.log_slope(one) for target, one in zip(model.targets, columns, strict=True)]
    z = np.stack([part for part, _ in parts], -1).reshape(y.shape)
    slope = float(np.mean([np.mean(log_slope) for _, log_slope in parts]))
    return metrics.nlpd(z.ravel(), mean.ravel(), variance.ravel()) - slope
