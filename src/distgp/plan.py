"""The plan of a fit: every parameter checked, and every name turned into an object, once.

`resolve` is the only place where the parameters of `DistributedGPRegressor` are looked at. Below it
nothing knows names or the estimator, only the `Plan`. What "auto" leaves open is None in it, until
`distgp.selection` has measured candidates and settled it.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor

from distgp._util.checks import (
    Resolver,
    a_count,
    a_name,
    a_positive_number,
    a_seed,
    by_name,
    is_auto,
    is_integer,
    one_of,
    some_names,
)
from distgp._util.moved import deprecated
from distgp._util.progress import is_shown
from distgp.aggregation import AGGREGATORS, AggregationError, Aggregator
from distgp.aggregation.base import names_where
from distgp.data.encoding import CHOICES
from distgp.data.partition import PARTITIONS, Partition, RandomPartition
from distgp.data.rows import Rows, Schema
from distgp.data.scaling import Scaling
from distgp.diagnostics.calibration import KINDS as CALIBRATIONS
from distgp.engines import ENGINES, Engine
from distgp.experts import EXPERTS, Expert, Parameters
from distgp.experts.base import Inducing
from distgp.kernels import KERNELS, Expression, InputLayout, Kernel, latitudes, parse
from distgp.likelihoods.transforms import TRANSFORMS
from distgp.training import ALGORITHMS, Algorithm, Prior
from distgp.training.stage import Initial

DTYPES = {"float64": torch.float64, "float32": torch.float32}
VALIDATIONS = ("random", "last", "groups")
EXACT_ROWS = 20_000
"""Rows up to which experts are exact where nothing is measured: beyond, the n² kernel values of
two-level weigh too much."""
OWN_SHARD = 1_000
"""Rows per expert that learns hyperparameters of its own."""
TIME_LIMIT = 180.0
"""Seconds that a fit is planned for where the user says nothing."""
LIKELY_NOISE = 0.01, 1.0
"""Variances of the noise that training may start from, where the rows say theirs up to a factor."""
POLISHING = 0.6
"""The share of the time limit in which a θ found by nearest rows may be polished."""
LEAST_CALIBRATED = 50
"""Rows that calibration needs at least."""
LEAST_MEASURED = 200
"""Below this many rows nothing is held out to choose by."""
FEW = 10
"""Rows for each column up to which hyperparameters get priors of ours. Beyond, priors cost a little where
most columns mean nothing (`benchmarks/few_rows.py --only 80x8 120x8` with a larger number here)."""
REFINED_ROUNDS = 100
"""Rounds that a user must have allowed, at least, for training to have all its stages."""
WAYS = ("expert", "aggregation", "training", "n_experts", "n_inducing")
"""Parameters that say how to fit. Where all are "auto", candidates are measured."""
FIRST_KERNEL = "matern52"
"""The kernel of candidates for how to fit, where the kernel is to be measured too."""
NEEDS_GROUPS = "validation='groups' needs the groups: fit(X, y, groups=…), one per row"


@dataclass(frozen=True, eq=False, kw_only=True)
class Plan:
    """Everything that the parameters of a fit stand for.

    Fields have the names of the parameters of `DistributedGPRegressor`, which describes them. `expert`,
    `aggregation` and `kernel` are None where they are left to be chosen; `algorithm` is None where
    nothing is trained.

    Parameters
    ----------
    schema : Schema or None
        The columns of the inputs; None while rows are in files that nobody has looked into.
    n : int
        The number of rows.
    like : Tensor
        A tensor of the dtype, and on the device, that the experts work in.
    seed : int
        The seed of everything random.
    verbose : bool
        Whether what was weighed and measured is told too, and not only `progress` while the work goes on.
    given : mapping of str to object
        The parameters, checked, by name: what `settled` starts from.
    found : tuple of Parameters
        θ of each target to start training from, where an earlier fit or a trial has found one.
    found_in : "", "trial", "interrupted" or "fit"
        Where it was found: in a trial, from a part of the same rows; in a fit that was interrupted; or in
        one that has ended.
    refine : bool
        Whether training is refined; trials do without.
    left : bool
        Whether training is left to us: neither rounds nor an algorithm with settings was given.
    """

    schema: Schema | None
    n: int
    expert: Expert | None
    algorithm: Algorithm | None
    aggregation: Aggregator | None
    kernel: Expression | Kernel | None
    like: Tensor
    seed: int
    n_experts: int | Literal["auto", "cv"]
    n_inducing: int | Literal["auto"] | np.ndarray
    kernel_units: str
    noise: float
    mean: str
    partition: Partition | np.ndarray
    training_rows: int | None
    priors: Mapping[str, Prior]
    bounds: Mapping[str, tuple[float, float]]
    fixed: tuple[str, ...]
    validation: str
    time_limit: float
    target_transform: str | None
    calibrate: str | None
    engine: str | Engine
    device: str | torch.device
    normalize: bool
    verbose: bool
    progress: bool
    given: Mapping[str, object]
    found: tuple[Parameters, ...] = ()
    found_in: str = ""
    refine: bool = True
    left: bool = True

    @property
    def measures_ways(self) -> bool:
        """Whether nothing is given of how to fit, so that candidates are worth measuring."""
        return self.expert is None

    @property
    def measures(self) -> bool:
        """Whether the way to fit, or the kernel, is to be chosen by measuring."""
        return self.measures_ways or self.kernel is None or is_auto(self.target_transform)

    @property
    def refines(self) -> bool:
        """Whether training is refined by rows that are left out.

        Not in trials, for few rows, or where the user has said how to train, be it by a few rounds.
        """
        between = self.validation == "random" and self.n >= LEAST_MEASURED
        return self.refine and between and _left_to_us(self.given)

    @property
    def in_blocks(self) -> bool:
        """Whether one large expert may learn from parts of its rows first, also in a trial.

        Not where an algorithm was given by name, or a few rounds.
        """
        left = self.left and is_auto(self.given["training"])
        return left and (self.refines or not self.refine)

    @property
    def few_rows(self) -> bool:
        """Whether rows are so few for their columns that hyperparameters get priors of ours.

        Not where the user has said how to train, where units are not known, or with other than exact
        experts, which are for many rows.
        """
        d = 0 if self.schema is None else self.schema.n_features
        exact = self.kind.holds_rows and not self.kind.joins_rows
        return exact and self.left and self.normalize and self.n <= FEW * d

    @property
    def kind(self) -> Expert:
        """The kind of expert, once it is settled."""
        assert self.expert is not None, "the choice has not been made yet"
        return self.expert

    def settled(self, settings: Mapping[str, object], n: int | None = None) -> Plan:
        """The same plan with these parameters, by name, as if they had been given; for n rows."""
        checked = {name: RESOLVERS[name](name, value) for name, value in settings.items()}
        rows = self.n if n is None else n
        made = _completed({**self.given, **checked}, self.schema, rows, self.seed, self.like)
        return replace(
            made,
            found=self.found,
            found_in=self.found_in,
            refine=self.refine,
            left=self.left,
        )

    def trial(self, settings: Mapping[str, object], n: int) -> Plan:
        """The plan of a quick fit of n of the rows, in this process, with these parameters."""
        quick: dict[str, object] = {"engine": "local", "verbose": False}
        quick["kernel"] = self.kernel or FIRST_KERNEL
        if self.n_experts == "cv" or isinstance(self.partition, np.ndarray):
            quick |= {"n_experts": "auto", "partition": "random"}
        return replace(self, found=(), refine=False).settled({**quick, **settings}, n)

    def starting_from(self, found: Iterable[Parameters], found_in: str) -> Plan:
        """The same plan, whose training goes on from where an earlier fit ended or was interrupted."""
        return replace(self, found=tuple(theta.averaged() for theta in found), found_in=found_in)

    def inducing(self, scaling: Scaling) -> Inducing:
        """The number of inducing inputs, "auto", or the inputs themselves, standardised."""
        given = self.n_inducing
        return scaling.inputs(given, self.like) if isinstance(given, np.ndarray) else given

    def initial(self, scaling: Scaling | None = None, row_noise: float | None = None) -> Initial:
        """Kernel and noise that training starts from, with inputs standardised by this scaling.

        With `row_noise`, the mean of rows' own noise variances, the noise is a factor of them: 1, unless it
        is learnt and the noise would be far from anything that the standardised target suggests.
        """
        assert self.kernel is not None and self.schema is not None
        noise, layout = self.noise, layout_of(self.schema, scaling)
        if row_noise is not None:
            low, high = (level / row_noise for level in LIKELY_NOISE)
            noise = 1.0 if "noise" in self.fixed else min(max(1.0, low), high)
        return Initial.of(self.kernel, noise, layout, self.like, self.kernel_units)

    @property
    def latitudes(self) -> tuple[int, ...]:
        """The places of columns that the kernel takes as latitudes."""
        if self.kernel is None or self.schema is None:
            return ()
        return latitudes(self.initial().parameters.kernel, self.schema.n_features)

    def number_of_experts(self, n: int, workers: int) -> int:
        """The number of experts for n rows, as given or by the rule of the kind of expert."""
        if isinstance(self.partition, np.ndarray):
            return int(self.partition.max()) + 1
        if not isinstance(self.n_experts, str):
            return self.n_experts
        if self.algorithm is not None and not self.algorithm.agrees:
            return max(min(2, n), -(-n // OWN_SHARD))
        return self.kind.number_of_experts(n, self._inputs_as_given(), workers)

    def full_shard(self, largest: int) -> int:
        """The number of rows at which an expert of a model is full, so that new rows make another.

        One expert, where one was asked for, is never full. Where another number was, an expert is full
        with as many rows as the largest has. Where it is left to us, the rule of the kind of expert says
        what is full, if no expert has more rows than that.
        """
        if self.n_experts == 1:
            return sys.maxsize
        if not isinstance(self.n_experts, str):
            return largest
        if self.algorithm is not None and not self.algorithm.agrees:
            return max(largest, OWN_SHARD)
        return max(largest, self.kind.full_shard(self._inputs_as_given()))

    def _inputs_as_given(self) -> Inducing:
        """The number of inducing inputs, "auto", or the inputs themselves, as they were given."""
        given = self.n_inducing
        return torch.as_tensor(given) if isinstance(given, np.ndarray) else given


def resolve(parameters: Mapping[str, Any], schema: Schema | None, n: int) -> Plan:
    """Check every parameter, and turn every name into an object.

    Parameters
    ----------
    parameters : mapping of str to object
        Those of `DistributedGPRegressor`.
    schema : Schema or None
        The columns of the inputs, where they are known.
    n : int
        The number of rows.

    Returns
    -------
    Plan

    Raises
    ------
    ValueError
        With what was expected, what came, and what to do.
    """
    checked = {name: check(name, parameters[name]) for name, check in RESOLVERS.items()}
    seed = a_seed("random_state", parameters["random_state"])
    like = tensor_like(parameters["device"], DTYPES[str(checked["dtype"])])
    plan = _completed(checked | {"device": parameters["device"]}, schema, n, seed, like)
    if (rate := checked["learning_rate"]) is not None:
        if isinstance(own := checked["training"], Algorithm):
            raise ValueError(
                f"learning_rate={rate:g} and training={own!r:.200} both say how fast to learn: give the "
                "rate to the training, and leave learning_rate out"
            )
        deprecated(
            f"learning_rate={rate:g} is said with the method of training now, such as "
            f"training=distgp.training.Fact('adam', learning_rate={rate:g}): the parameter"
        )
    return replace(plan, left=_left_to_us(checked))


def _left_to_us(given: Mapping[str, object]) -> bool:
    """Whether the user has not said how to train, be it by a few rounds."""
    rounds = cast("int | None", given["n_iter"])
    enough = rounds is None or rounds >= REFINED_ROUNDS
    return enough and isinstance(given["training"], str)


def _completed(
    given: Mapping[str, Any], schema: Schema | None, n: int, seed: int, like: Tensor
) -> Plan:
    """Settle what depends on several parameters, on the columns or on the number of rows."""
    if given["mean"] == "linear" and not given["normalize"]:
        raise ValueError("mean='linear' needs normalize=True, got normalize=False")
    random = isinstance(given["partition"], RandomPartition)
    undecided = n >= LEAST_MEASURED and random and all(is_auto(given[name]) for name in WAYS)
    expert = None if undecided else _expert(given, n)
    aggregation = given["aggregation"]
    plan = Plan(
        schema=schema,
        n=n,
        expert=expert,
        algorithm=None if expert is None else _algorithm(given, expert, schema, n, seed, like),
        aggregation=None if is_auto(aggregation) else aggregation,
        like=like,
        seed=seed,
        given=given,
        kernel=_kernel(given["kernel"], n),
        training_rows=_rows(given, expert),
        verbose=given["verbose"] is True,
        progress=is_shown(given["verbose"]),
        **_common(given),
    )
    plan = replace(plan, partition=_labels(plan.partition, n), n_inducing=_inputs(plan))
    if expert is not None:
        _check_together(plan, expert)
    _check_names(plan)
    return plan


def _common(given: Mapping[str, object]) -> dict[str, Any]:
    """Those parameters that a plan has under their own names."""
    own = {"expert", "aggregation", "kernel", "training_rows", "verbose", "progress", "given"}
    names = {spec.name for spec in fields(Plan)} - own
    return {name: value for name, value in given.items() if name in names}


def _expert(given: Mapping[str, Any], n: int) -> Expert:
    """The kind of expert, as given or by the rule."""
    value = given["expert"]
    if is_auto(value):
        value = expert_for(n)
    expert = EXPERTS[value].with_options(given["n_neighbors"]) if isinstance(value, str) else value
    m = given["n_inducing"]
    if is_integer(m) and m < expert.least_inducing:
        raise ValueError(
            f"{expert.name} experts need inducing inputs, got n_inducing={m}: give 1 or more"
        )
    return expert


def expert_for(n: int) -> str:
    """The kind of expert for n rows where nothing is measured: exact while n² is small."""
    return "exact" if n <= EXACT_ROWS else "sparse"


def _algorithm(
    given: Mapping[str, Any],
    expert: Expert,
    schema: Schema | None,
    n: int,
    seed: int,
    like: Tensor,
) -> Algorithm | None:
    """The method of training, with the rounds and the learning rate asked for; None for none."""
    value = given["training"]
    if value is None:
        return None
    M = given["n_experts"]
    name = expert.training_for(0 if isinstance(M, str) else n // M) if is_auto(value) else value
    algorithm = by_name("training", name, ALGORITHMS, Algorithm)
    if is_auto(value):
        d = 1 if schema is None else schema.n_features
        polish = expert.polish_for(n, d, like, POLISHING * given["time_limit"])
        algorithm = algorithm.with_polish(polish)
    known = {spec.name for spec in fields(cast(Any, algorithm))}
    rate, changes = given["learning_rate"], {"n_iter": given["n_iter"]}
    if rate is not None and "learning_rate" not in known:
        raise ValueError(f"{algorithm.name} has no learning rate: leave learning_rate at None")
    if rate is not None:
        changes["learning_rate"] = rate
    if isinstance(name, str):
        changes["seed"] = seed
        if rate is not None and getattr(algorithm, "optimizer", "") == "lbfgs":
            changes["optimizer"] = "adam"  # L-BFGS finds its own step
    changes = {k: v for k, v in changes.items() if v is not None and k in known}
    return replace(cast(Any, algorithm), **changes)


def _kernel(given: object, n: int) -> Expression | Kernel | None:
    """The kernel; None where it is to be measured, and there are rows enough for it."""
    if not is_auto(given):
        return cast(Any, given)
    return None if n >= LEAST_MEASURED else parse(FIRST_KERNEL)


def _rows(given: Mapping[str, Any], expert: Expert | None) -> int | None:
    """The number of rows that training looks at; None for all."""
    value = given["training_rows"]
    if not is_auto(value):
        return value
    return None if expert is None else expert.training_rows


def _labels(partition: Partition | np.ndarray, n: int) -> Partition | np.ndarray:
    """A partition as it is; labels as numbers 0 … M − 1, one for each of n rows."""
    if isinstance(partition, Partition):
        return partition
    if partition.shape != (n,):
        raise ValueError(
            f"partition must be one of {', '.join(map(repr, PARTITIONS))}, a Partition object, or "
            f"one label for each of the {n} rows; got "
            f"{f'an array of shape {partition.shape}' if partition.ndim else repr(partition.item())}"
        )
    return as_labels(partition)


def as_labels(values: object) -> np.ndarray:
    """Any labels as numbers 0 … M − 1."""
    try:
        return np.unique(np.asarray(values), return_inverse=True)[1]
    except TypeError as error:
        raise ValueError(
            f"the labels in partition cannot be told apart, some may be missing: {error}"
        ) from error


def _inputs(plan: Plan) -> int | Literal["auto"] | np.ndarray:
    """The number of inducing inputs, or the inputs themselves, as wide as the rows."""
    given = plan.n_inducing
    if not isinstance(given, np.ndarray) or plan.schema is None:
        return given
    d = plan.schema.n_features
    if given.ndim != 2 or given.shape[1] != d or not np.isfinite(given).all() or not len(given):
        raise ValueError(
            f"n_inducing must be a number, 'auto', or finite inducing inputs of shape (m, {d}), "
            f"got shape {given.shape}"
        )
    return given


def _check_together(plan: Plan, expert: Expert) -> None:
    """Refuse what cannot train, combine or divide these experts, before any work is done."""
    algorithm, method = plan.algorithm, plan.aggregation
    if algorithm is not None and expert.name not in algorithm.serves:
        able = [name for name, kind in ALGORITHMS.items() if expert.name in kind.serves]
        raise ValueError(
            f"{algorithm.name} training cannot train {expert.name} experts, only "
            f"{' and '.join(algorithm.serves)} ones; use {', '.join(able)} or 'auto'"
        )
    if method is not None and expert.name not in method.serves:
        able = names_where(lambda kind: expert.name in kind.serves, last=", ")
        raise AggregationError(
            f"{method.name} cannot combine {expert.name} experts; use {able} or 'auto'"
        )
    own = algorithm is not None and not algorithm.agrees
    if method is not None and method.needs_one_prior and own:
        assert algorithm is not None
        raise AggregationError(
            f"{method.name} needs experts that share their hyperparameters, and training="
            f"{algorithm.name!r} gives each its own; use opt-local or another training"
        )
    asked, labels = plan.n_experts, plan.partition
    if isinstance(labels, np.ndarray):
        found = int(labels.max()) + 1
        if asked not in ("auto", found):
            raise ValueError(
                f"the labels in partition make {found} experts, but n_experts is "
                f"{asked!r}: leave it at 'auto', or name a partition"
            )
    if not isinstance(asked, str) and asked > plan.n:
        raise ValueError(
            f"n_experts={asked} is more than the {plan.n} rows: every expert needs one "
            "row at least, and predicts well with hundreds"
        )


def _check_names(plan: Plan) -> None:
    """Refuse names of hyperparameters, or of columns, that the kernel does not have."""
    if plan.kernel is None or plan.schema is None:
        return
    start = plan.initial().parameters
    for name in {*plan.bounds, *plan.priors, *plan.fixed} - {"inducing"}:
        start.paths(name)


def layout_of(schema: Schema, scaling: Scaling | None = None) -> InputLayout:
    """Describe the columns, standardised or as they are, to kernels that name them or have units."""
    scaling, columns = scaling or Scaling.identity(schema.n_features), schema.columns
    scales = tuple(map(float, scaling.x_scale))
    standard = tuple(zip(map(float, scaling.x_mean), scales, strict=True))
    if columns is None:
        return InputLayout.of_array(schema.n_features, scales, standard)
    groups = columns.groups if columns.blocks else None
    places = (tuple(columns.features), columns.places, columns.days)
    return InputLayout(*places, groups, scales, standard)


def check_rows(plan: Plan, rows: Rows) -> None:
    """Refuse what was given for each row where the parameters leave no use for it."""
    _check_uses(plan, rows.time is not None, rows.groups is not None)
    if plan.validation == "groups" and rows.groups is None:
        raise ValueError(NEEDS_GROUPS)
    refuse_transformed_noise(rows.noise is not None and plan.target_transform in TRANSFORMS)
    labelled = isinstance(plan.partition, np.ndarray)
    if labelled and rows.weight is not None and not (rows.weight > 0).all():
        raise ValueError(
            "sample_weight has zeros and partition one label per row: leave those rows out of X, y "
            "and partition"
        )
    if plan.calibrate is not None and labelled:
        raise ValueError(
            "calibrate holds out rows, and partition has one label per row: name a partition"
        )
    _check_calibrated(plan, rows.groups is not None, len(rows))


def _check_calibrated(plan: Plan, groups: bool, n: int) -> None:
    """Refuse to calibrate where groups are lacking, or rows to hold out."""
    if plan.calibrate == "mondrian" and not groups:
        raise ValueError("calibrate='mondrian' needs the group of each row: fit(X, y, groups=…)")
    if plan.calibrate is not None and n < LEAST_CALIBRATED:
        raise ValueError(
            f"calibrate needs {LEAST_CALIBRATED} rows at least to hold some out, got {n}: "
            "leave it at None"
        )


def _check_uses(plan: Plan, time: bool, groups: bool) -> None:
    """Refuse times or groups of rows where the parameters leave no use for them."""
    if time and plan.validation != "last":
        raise ValueError(
            "time= says which rows are held out where validation='last', but validation is "
            f"{plan.validation!r}"
        )
    if groups and plan.validation != "groups" and plan.calibrate != "mondrian":
        raise ValueError(
            "groups= says which rows are held out where validation='groups', or calibrated together "
            f"where calibrate='mondrian', but validation is {plan.validation!r} and calibrate is "
            f"{plan.calibrate!r}"
        )


def refuse_transformed_noise(both: bool) -> None:
    """Refuse noise variances of rows where the target is transformed."""
    if both:
        raise ValueError(
            "noise_variance is in the target's units, and target_transform leaves them: give one of "
            "the two"
        )


def check_files(plan: Plan, given: Collection[str]) -> None:
    """Refuse what needs the rows in this process, where workers are to read them from files.

    `given` are the names of what is given for each row.
    """
    _check_uses(plan, "time" in given, "groups" in given)
    refuse_transformed_noise("noise_variance" in given and plan.target_transform in TRANSFORMS)
    if is_auto(plan.target_transform):
        raise ValueError(
            "target_transform='auto' looks at all targets, which needs the rows in this process: give "
            "'log', 'yeo-johnson' or None, or call fit"
        )
    if not isinstance(plan.partition, RandomPartition):
        raise ValueError(
            "workers divide the rows that they read at random: leave partition at 'random'"
        )
    if plan.n_experts == "cv":
        raise ValueError("n_experts='cv' needs the rows in this process: give a number, or 'auto'")
    if plan.validation == "groups" and "groups" not in given:
        raise ValueError(
            "validation='groups' needs the groups: give groups=…, the name of a column of the files"
        )
    _check_calibrated(plan, "groups" in given, plan.n)
    if plan.calibrate == "conformal" and plan.validation == "groups":
        raise ValueError(
            "calibrate='conformal' with validation='groups' holds out whole groups, which needs the rows "
            "in this process: give calibrate='mondrian', or call fit"
        )
    if plan.calibrate == "conformal" and "time" in given:
        raise ValueError(
            "calibrate='conformal' with validation='last' holds out the last rows of the files: put the "
            "rows into the order of time and leave time= out, or call fit"
        )


def tensor_like(device: object, dtype: torch.dtype) -> Tensor:
    """Make a tensor of this dtype on this device, if the device exists."""
    if not isinstance(device, str | torch.device):
        raise ValueError(f"device must be a name such as 'cpu' or 'cuda', got {device!r}")
    try:
        return torch.zeros((), dtype=dtype, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"device {device!r} is not available here: {error}") from error


# One resolver for each parameter, in the order in which they are checked.


def an_engine(name: str, value: object) -> str | Engine:
    """Expect an engine, or the name of one."""
    if isinstance(value, Engine) or (isinstance(value, str) and value in ENGINES):
        return value
    named = ", ".join(map(repr, ENGINES))
    raise ValueError(f"{name} must be {named} or an Engine object, got {value!r}")


def _a_kernel(name: str, value: object) -> object:
    """Expect a kernel object, a text such as "matern52 + linear", or "auto"."""
    if isinstance(value, Kernel | Expression) or is_auto(value):
        return value
    if isinstance(value, str):
        return parse(value)
    known = ", ".join(repr(choice) for choice in (*KERNELS, "linear", "auto"))
    raise ValueError(
        f"{name} must be one of {known}, a text such as 'matern52 + periodic(24)', or a Kernel object, "
        f"got {value!r}"
    )


def _inducing_inputs(name: str, value: object) -> object:
    """Expect a number of inducing inputs, "auto", or the inputs themselves."""
    if np.ndim(cast(Any, value)):
        return np.array(
            value, dtype=np.float64
        )  # a copy: PyTorch warns of arrays that are read only
    # 0: nearest experts without a global part
    return 0 if is_integer(value) and value == 0 else a_count("auto")(name, value)


def _a_partition(name: str, value: object) -> object:
    """Expect a partition by name or as an object, or labels, whose number is checked later."""
    if isinstance(value, str):
        value = a_name(PARTITIONS, Partition)(name, value)
        return PARTITIONS[str(value)]()
    return value if isinstance(value, Partition) else np.asarray(value)


def _an_aggregation(name: str, value: object) -> object:
    """Expect an aggregator by name or as an object, or "auto"."""
    value = a_name(AGGREGATORS, Aggregator, "auto")(name, value)
    return AGGREGATORS[value]() if isinstance(value, str) and value != "auto" else value


def _bounds(name: str, value: object) -> Mapping[str, tuple[float, float]]:
    """Expect pairs (low, high) by parameter name, which training checks further."""
    fine = value is None or isinstance(value, Mapping)
    pairs = cast(Mapping[str, Any], {} if value is None or not fine else value)
    if not fine or not all(np.shape(pair) == (2,) for pair in pairs.values()):
        raise ValueError(
            f"{name} must map parameter names to (low, high), such as {{'lengthscale': (0.1, 10)}}, "
            f"got {value!r}"
        )
    return {key: (float(low), float(high)) for key, (low, high) in pairs.items()}


def _priors(name: str, value: object) -> Mapping[str, Prior]:
    """Expect priors by parameter name."""
    fine = value is None or isinstance(value, Mapping)
    priors = cast(Mapping[str, Any], {} if value is None or not fine else value)
    if not fine or not all(isinstance(prior, Prior) for prior in priors.values()):
        raise ValueError(
            f"{name} must map parameter names to priors, such as "
            f"{{'noise': distgp.training.LogNormal(0.1)}}, got {value!r}"
        )
    return priors


def _seconds(name: str, value: object) -> object:
    """Expect a positive number of seconds; None stands for infinity."""
    check = a_positive_number("a positive number of seconds", None, most=math.inf)
    return math.inf if value is None else check(name, value)


RESOLVERS: dict[str, Resolver] = {
    "expert": a_name(EXPERTS, Expert, "auto"),
    "n_experts": a_count("auto", "cv"),
    "n_inducing": _inducing_inputs,
    "n_neighbors": a_count(),
    "aggregation": _an_aggregation,
    "kernel": _a_kernel,
    "kernel_units": one_of("auto", "data", "standardised"),
    "noise": a_positive_number("a positive, finite variance"),
    "mean": one_of("constant", "linear"),
    "partition": _a_partition,
    "training": a_name(ALGORITHMS, Algorithm, "auto", None),
    "n_iter": a_count(None),
    "learning_rate": a_positive_number("a positive number, at most 1e6", None, most=1e6),
    "training_rows": a_count(None, "auto"),
    "priors": _priors,
    "bounds": _bounds,
    "fixed": some_names("hyperparameters, such as ['noise']"),
    "warm_start": one_of(True, False),
    "validation": one_of(*VALIDATIONS),
    "time_limit": _seconds,
    "target_transform": one_of(None, "auto", *TRANSFORMS),
    "calibrate": one_of(None, *CALIBRATIONS),
    "missing": one_of(*CHOICES["missing"]),
    "unknown": one_of(*CHOICES["unknown"]),
    "dates": one_of(*CHOICES["dates"]),
    "categorical": some_names("columns of X"),
    "engine": an_engine,
    "dtype": one_of(*DTYPES),
    "normalize": one_of(True, False),
    "verbose": one_of("auto", True, False),
}
"""What each parameter may be, and what its value stands for."""
