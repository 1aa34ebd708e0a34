"""What a regressor's parameters stand for: what "auto" means here, and names turned into objects."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold
from torch import Tensor

from distgp import auto, choice
from distgp.aggregation import (
    AGGREGATORS,
    GRBCM,
    AggregationError,
    Aggregator,
    Combined,
    Ensemble,
)
from distgp.auto import Rows, is_auto
from distgp.data.encoding import Columns
from distgp.data.partition import PARTITIONS, Partition, split, with_communication
from distgp.data.scaling import Scaling
from distgp.data.shard import Shard
from distgp.estimator import DTYPES, GPEstimator, Start, by_name, labels_of, start_of, tensor_like
from distgp.experts import EXPERTS, Expert, NearestExpert, Parameters, SparseExpert
from distgp.fit import Inducing
from distgp.kernels import InputLayout, Kernel
from distgp.model import Model
from distgp.training import ALGORITHMS, Algorithm, Independent
from distgp.warn import warn_user


class Settings(GPEstimator):
    """An estimator that knows what its parameters stand for; `DistributedGPRegressor` describes them."""

    models_: list[Model]
    expert: Any
    n_experts: Any
    n_inducing: Any
    n_neighbors: int
    aggregation: Any
    kernel: Any
    kernel_units: str
    noise: float
    partition: Any
    training: Any
    n_iter: int | None
    learning_rate: float | None
    training_rows: Any
    priors: Any
    bounds: Any
    fixed: Sequence[str]
    warm_start: bool
    validation: str
    device: str
    dtype: str
    normalize: bool
    verbose: bool

    # What "auto" stands for: what was measured, or a rule.

    def _value(self, name: str) -> Any:
        """A parameter as the choice settled it, or as given."""
        given = getattr(self, name)
        return getattr(self, "settled_", {}).get(name, given) if is_auto(given) else given

    def _left_to_us(self) -> bool:
        """Whether the way to fit, or the kernel, is to be chosen by measuring."""
        return auto.way_is_left(self) or is_auto(self.kernel)

    def _choose(self, rows: Rows, seed: int) -> list[Parameters]:
        """Measure the candidates on rows held out, and settle what was left to us.

        Returns
        -------
        list of Parameters
            What the trial of the best candidate learnt for each target; empty where nothing was tried.
        """
        if self._chosen_before():
            return []
        self.settled_, self.choice_ = {}, None
        n = len(rows.X)
        if n < choice.LEAST_ROWS or not self._left_to_us():
            return []
        self._check_before_trials()
        groups = rows.groups if self.validation == "groups" else None
        divisions = choice.divisions(
            n, self.validation, auto.TRIAL_TEST, time=rows.time, groups=groups, seed=seed
        )
        kind, kernel = self._expert(n).name, self._kernel()
        columns = self._named_columns()
        best, self.choice_, learnt = auto.choose(self, kind, kernel, columns, rows, divisions, seed)
        self.settled_ = dict(best.settings)
        if self.verbose:
            print(self.choice_, file=sys.stderr)
        if self.choice_.better_baselines:
            warn_user(choice.outdone(self.choice_), choice.ChoiceWarning)
        return learnt

    def _chosen_before(self) -> bool:
        """Whether an earlier choice still holds: with `warm_start`, while all that it set is left to us."""
        settled = getattr(self, "settled_", {})
        return bool(self.warm_start and settled) and all(is_auto(getattr(self, k)) for k in settled)

    def _check_before_trials(self) -> None:
        """Refuse what would fail in every trial."""
        self._like()
        if not is_auto(self.kernel):
            start = self._starting().parameters
            for name in (*(self.bounds or {}), *(self.priors or {}), *self.fixed):
                start.paths(name)

    # Names turned into objects.

    def _blocks(self) -> list[tuple[int, ...]]:
        """The places of the numbers made of each text column."""
        columns = getattr(self, "table_", None)
        return [] if columns is None else columns.blocks

    def _like(self) -> Tensor:
        """A tensor of the dtype, on the device, that the experts work in."""
        return tensor_like(self.device, DTYPES[self.dtype])

    def _expert(self, n: int) -> Expert:
        given = self._value("expert")
        name = auto.expert(n) if is_auto(given) else given
        expert = by_name("expert", name, EXPERTS, Expert)
        if isinstance(expert, NearestExpert) and isinstance(name, str):
            expert = replace(expert, n_neighbors=int(self.n_neighbors))
        m = self._value("n_inducing")
        if np.ndim(m) == 0 and not is_auto(m) and m == 0 and isinstance(expert, SparseExpert):
            raise ValueError(
                "sparse experts need inducing inputs, got n_inducing=0: give 1 or more"
            )
        self._check_serves(expert)
        return expert

    def _check_serves(self, expert: Expert) -> None:
        """Refuse what cannot train or combine these experts, before any work is done."""
        algorithm = self._algorithm(expert, seed=0)
        if algorithm is not None and expert.name not in algorithm.serves:
            able = [name for name, kind in ALGORITHMS.items() if expert.name in kind.serves]
            raise ValueError(
                f"{algorithm.name} training cannot train {expert.name} experts, only "
                f"{' and '.join(algorithm.serves)} ones; use {', '.join(able)} or 'auto'"
            )
        given = self._value("aggregation")
        if is_auto(given):
            return
        method = by_name("aggregation", given, AGGREGATORS, Aggregator)
        if expert.name not in method.serves:
            able = [name for name, kind in AGGREGATORS.items() if expert.name in kind.serves]
            raise AggregationError(
                f"{method.name} cannot combine {expert.name} experts; use {', '.join(able)} or 'auto'"
            )
        if method.needs_one_prior and algorithm is not None and not algorithm.agrees:
            raise AggregationError(
                f"{method.name} needs experts that share their hyperparameters, and training="
                f"{algorithm.name!r} gives each its own; use opt-local or another training"
            )

    def _aggregator(self, ensemble: Ensemble) -> Aggregator:
        given = self._value("aggregation")
        if is_auto(given):
            return auto.aggregator(ensemble)
        return by_name("aggregation", given, AGGREGATORS, Aggregator)

    def _algorithm(self, expert: Expert, seed: int) -> Algorithm | None:
        given_name = self._value("training")
        if given_name is None:
            return None
        name = auto.TRAINING[expert.name] if is_auto(given_name) else given_name
        algorithm = by_name("training", name, ALGORITHMS, Algorithm)
        known = {spec.name for spec in fields(algorithm)}  # pyright: ignore[reportArgumentType]
        if self.learning_rate is not None and "learning_rate" not in known:
            raise ValueError(f"{algorithm.name} has no learning rate: leave learning_rate at None")
        given = {"n_iter": self.n_iter, "learning_rate": self.learning_rate}
        if isinstance(name, str):
            given["seed"] = seed
            if self.learning_rate is not None and getattr(algorithm, "optimizer", "") == "lbfgs":
                given["optimizer"] = "adam"  # L-BFGS finds its own step
        changes = {k: v for k, v in given.items() if v is not None and k in known}
        return replace(algorithm, **changes)  # pyright: ignore[reportArgumentType]

    def _starting(self, scale: Iterable[float] = (), factor: bool = False) -> Start:
        """Where training starts, with inputs divided by these scales.

        With `factor` rows have noise variances of their own, and the noise is a factor of them.
        """
        noise = 1.0 if factor else self.noise
        layout = self._layout(scale)
        return start_of(self._kernel(), noise, layout, self._like(), self.kernel_units)

    def _layout(self, scale: Iterable[float]) -> InputLayout:
        """What the columns are, for kernels that name them or have units."""
        columns, scale = self._named_columns(), tuple(float(value) for value in scale)
        if columns is None:
            return InputLayout.of_array(self.n_features_in_, scale)
        groups = columns.groups if columns.blocks else None
        return InputLayout(tuple(columns.features), columns.places, columns.days, groups, scale)

    def _named_columns(self) -> Columns | None:
        """The columns of the table that was fitted, or those of a frame of numbers; None for arrays."""
        names = self._names()
        if (columns := getattr(self, "table_", None)) is not None or names is None:
            return columns
        return Columns.of_numbers(names)

    def _kernel(self) -> str | Kernel:
        """The kernel as given, or as chosen."""
        given = self._value("kernel")
        return auto.KERNELS_TRIED[0] if is_auto(given) else given

    def _start(
        self,
        column: int,
        scale: Iterable[float],
        factor: bool,
        expert: Expert,
        tried: Sequence[Parameters],
    ) -> tuple[Parameters, dict[str, bool]]:
        """Where training of a target starts, and what `learn` is told of it.

        That is where an earlier fit ended, with `warm_start`; or else where the trial of what was chosen
        ended, which has seen nearly as much; or else what the kernel says, or shorter lengthscales.
        The trial of nearest rows looks at so few of them that it may end elsewhere: it is not used.
        What training leaves as it is comes from the kernel always: other rows have other scales, and a
        period in the units of the data is another number there.
        """
        starting = self._starting(scale, factor)
        start = starting.parameters
        told = {"search": not isinstance(self.kernel, Kernel), "learnt": False}
        nearest = isinstance(expert, NearestExpert)
        before = [] if nearest else tried
        if self.warm_start and hasattr(self, "models_"):
            before = [model.parameters.averaged() for model in self.models_]
            told = {"search": True, "learnt": False}
        if not before:
            return start, told
        found = before[min(column, len(before) - 1)]
        old, new_ = found.kernel.parameters(), start.kernel.parameters()
        if {k: v.shape for k, v in old.items()} != {k: v.shape for k, v in new_.items()}:
            return start, told
        here = replace(found, inducing=None).to(start.noise.device, start.noise.dtype)
        held = {k: v for k, v in new_.items() if self._is_fixed(f"kernel.{k}", starting)}
        noise = start.noise if self._is_fixed("noise", starting) else here.noise
        here = replace(here, kernel=here.kernel.with_parameters(held), noise=noise)
        return here, {"search": False, "learnt": not self.warm_start}

    def _is_fixed(self, path: str, starting: Start) -> bool:
        """Whether training leaves this parameter as it is."""
        return path in starting.fixed or bool({path, path.rpartition(".")[2]} & set(self.fixed))

    def _training_options(
        self, expert: Expert, scaling: Scaling, seed: int, factor: bool
    ) -> dict[str, Any]:
        """Options of `fit.learn`."""
        rows = self.training_rows
        if is_auto(rows):
            rows = auto.TRAINING_ROWS if isinstance(expert, SparseExpert) else None
        start = self._starting(scaling.x_scale, factor)
        bounds = start.bounds(capped=bool(self.normalize))
        for name, (low, high) in (self.bounds or {}).items():
            bounds |= dict.fromkeys(start.parameters.paths(name), (float(low), float(high)))
        return {
            "inducing": self._inducing(scaling),
            "training_rows": rows,
            "priors": self.priors,
            "bounds": bounds,
            "fixed": [*self.fixed, *start.fixed],
            "seed": seed,
            "verbose": bool(self.verbose),
        }

    def _inducing(self, scaling: Scaling) -> Inducing:
        """How many, "auto", or the inputs themselves, standardised."""
        given = self._value("n_inducing")
        if np.ndim(given) == 0:
            return "auto" if is_auto(given) else int(given)
        Z, d = np.asarray(given, dtype=np.float64), self.n_features_in_
        if Z.ndim != 2 or Z.shape[1] != d or not np.isfinite(Z).all() or not len(Z):
            raise ValueError(
                f"n_inducing must be a number, 'auto', or finite inducing inputs of shape (m, {d}), "
                f"got shape {Z.shape}"
            )
        return scaling.inputs(Z, self._like())

    def _number_of_experts(self, asked: int | str, n: int, expert: Expert, workers: int) -> int:
        """M, from what was asked for and the number of rows."""
        labels = self._labels(n)
        if labels is not None:
            found = int(labels.max()) + 1
            if self.n_experts == "cv" or not (is_auto(asked) or asked == found):
                raise ValueError(
                    f"the labels in partition make {found} experts, but n_experts is "
                    f"{self.n_experts!r}: leave it at 'auto', or name a partition"
                )
            return found
        if not isinstance(asked, str):
            if asked > n:
                raise ValueError(
                    f"n_experts={asked} is more than the {n} rows: every expert needs one "
                    "row at least, and predicts well with hundreds"
                )
            return int(asked)
        m: Any = self._value("n_inducing")
        largest = auto.LARGEST_INDUCING if is_auto(m) else len(m) if np.ndim(m) else int(m)
        training = self._value("training")
        alone = isinstance(training, Independent) or training == Independent.name
        return auto.number_of_experts(n, expert.name, max(1, largest), workers, alone)

    def _labels(self, n: int) -> np.ndarray | None:
        """Labels as given, made 0 … M − 1; None where the partition is a name or an object."""
        if isinstance(self.partition, str | Partition):
            return None
        labels = np.asarray(self.partition)
        if labels.shape != (n,):
            raise ValueError(
                f"partition must be one of {', '.join(map(repr, PARTITIONS))}, a Partition object, or "
                f"one label for each of the {n} rows; got "
                f"{f'an array of shape {labels.shape}' if labels.ndim else repr(self.partition)}"
            )
        return labels_of(labels)

    def _divided(self, data: Shard, n_experts: int, seed: int) -> list[Shard]:
        """The shards, one per expert."""
        labels = self._labels(data.n)
        if labels is not None:
            return split(data, labels)
        partition = by_name("partition", self.partition, PARTITIONS, Partition)
        if isinstance(self.aggregation, GRBCM) or self.aggregation == GRBCM.name:
            return with_communication(data, n_experts, partition, seed)
        return split(data, partition.assign(data.X.cpu().numpy(), n_experts, seed))

    def _cross_validated(self, rows: Rows, seed: int) -> int:
        """The number of experts with the lowest NLPD over three folds."""
        X, y, columns = rows.X, rows.y, self._named_columns()
        if self._labels(len(X)) is not None:
            self._number_of_experts("cv", len(X), self._expert(len(X)), 1)  # refuses
        candidates = auto.cross_validated_experts(len(X))
        folds = list(KFold(3, shuffle=True, random_state=seed % 2**32).split(X))
        scores = []
        for n_experts in candidates:
            copy: Any = clone(self)
            trial = copy.set_params(
                n_experts=n_experts,
                random_state=seed,
                kernel=self._kernel(),
                target_transform=None,
                calibrate=None,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = [
                    trial.fit_columns(X[a], y[a], columns, **rows.take(a).options).nlpd(X[b], y[b])
                    for a, b in folds
                ]
            scores.append(float(np.mean(found)))
        self.cv_results_ = {"n_experts": candidates, "nlpd": scores}
        return candidates[int(np.argmin(scores))]

    def _combined(self, aggregation: str | Aggregator | None) -> Sequence[Combined | None]:
        """The combination of each target's experts by another aggregator; None for the model's own.

        Combinations asked for by name are kept for the next time.
        """
        if aggregation is None:
            return [None] * len(self.models_)
        if is_auto(aggregation):
            methods = [auto.aggregator(model.ensemble) for model in self.models_]
        else:
            method = by_name("aggregation", aggregation, AGGREGATORS, Aggregator)
            methods = [method] * len(self.models_)
        kept: dict[str, Sequence[Combined]] = vars(self).setdefault("_combinations", {})
        if isinstance(aggregation, str) and aggregation in kept:
            return kept[aggregation]
        made = [
            model.combined if method == model.aggregation else method.combine(model.ensemble)
            for model, method in zip(self.models_, methods, strict=True)
        ]
        if isinstance(aggregation, str):
            kept[aggregation] = made
        return made

    def _plain_parameters(self) -> dict[str, Any]:
        """Those parameters that a file holds in another form: numbers, names and arrays."""
        plain: dict[str, Any] = {"device": str(self.device), "fixed": list(self.fixed)}
        if isinstance(self.expert, Expert):
            plain["expert"] = self.expert.name
        if not isinstance(self.partition, str | Partition):
            plain["partition"] = labels_of(self.partition)
        if np.ndim(self.n_inducing):
            plain["n_inducing"] = np.asarray(self.n_inducing, dtype=np.float64)
        return plain
