"""The estimator's parameters, checked, and names turned into objects."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distgp import choices
from distgp.aggregation import GRBCM
from distgp.engines import Engine, LocalEngine
from distgp.experts import EXPERTS, Expert, Parameters
from distgp.fitting import Inducing, Recipe
from distgp.kernels import KERNELS, Kernel, Stationary
from distgp.partition import PARTITIONS, Partition, split, with_communication
from distgp.scaling import Scaling
from distgp.shards import Shard
from distgp.training import ALGORITHMS, Algorithm

DTYPES = {"float64": torch.float64, "float32": torch.float32}
TRAINING = {"exact": "fact", "sparse": "pooled"}
"""The default method of training: with one shard, or sparse experts, that of a single GP."""

ENGINES = ("local", "ray")
REACH = 1e3
"""How far training may take the parameters of a named kernel."""


@dataclass(frozen=True, eq=False)
class Settings:
    """The parameters of a regressor, for n rows of d columns. `DistributedGPRegressor` explains them."""

    expert: Any
    n_experts: Any
    n_inducing: Any
    aggregation: Any
    kernel: Any
    noise: Any
    partition: Any
    training: Any
    n_iter: Any
    learning_rate: Any
    training_rows: Any
    engine: Any
    device: Any
    dtype: Any
    normalize: Any
    random_state: Any
    verbose: Any
    n: int
    d: int

    def __post_init__(self) -> None:
        check_count("n_iter", self.n_iter, (None,))
        check_count("training_rows", self.training_rows, (None, "auto"))
        check_count("n_experts", self.n_experts, ("auto", "cv"))
        if np.ndim(self.n_inducing) == 0:
            check_count("n_inducing", self.n_inducing, ("auto",))
        check_engine(self.engine)
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {self.dtype!r}")
        check_noise(self.noise)
        rate = self.learning_rate
        if rate is not None and not (isinstance(rate, Real) and 0 < float(rate) < math.inf):
            raise ValueError(f"learning_rate must be positive and finite, or None, got {rate!r}")

    def check_targets(self, targets: np.ndarray) -> None:
        """Refuse a target (a column of targets) that does not vary."""
        if self.normalize or self.training is not None:
            check_varies(targets)

    @cached_property
    def seed(self) -> int:
        """The seed of everything random."""
        return choices.seed_of(self.random_state)

    @cached_property
    def kind(self) -> Expert:
        """The kind of expert."""
        name = choices.expert_kind(self.n) if is_auto(self.expert) else self.expert
        return choices.by_name("expert", name, EXPERTS, Expert)

    @cached_property
    def labels(self) -> np.ndarray | None:
        """Labels as given, made 0 … M − 1; None where the partition is a name or an object."""
        if isinstance(self.partition, str | Partition):
            return None
        labels = np.asarray(self.partition)
        if labels.shape != (self.n,):
            raise ValueError(
                f"partition must be one of {', '.join(map(repr, PARTITIONS))}, a Partition object, or "
                f"one label for each of the {self.n} rows; got "
                f"{f'an array of shape {labels.shape}' if labels.ndim else repr(self.partition)}"
            )
        return labels_of(labels)

    def like(self) -> Tensor:
        """A tensor of the dtype, on the device, that the experts work in."""
        return tensor_like(self.device, DTYPES[self.dtype])

    def open_engine(self) -> Engine:
        """The engine, started if it was given by name."""
        return opened(self.engine)

    def number_of_experts(self, workers: int = 1) -> int | None:
        """M; None where cross-validation is to find it."""
        cross_validated = isinstance(self.n_experts, str) and self.n_experts == "cv"
        if self.labels is not None:
            return self._labelled_experts(cross_validated)
        if cross_validated:
            return None
        if not isinstance(self.n_experts, str):
            if self.n_experts > self.n:
                raise ValueError(
                    f"n_experts={self.n_experts} is more than the {self.n} rows: every expert needs one "
                    "row at least, and predicts well with hundreds"
                )
            return int(self.n_experts)
        Z = self.inducing(None)
        largest = choices.LARGEST_INDUCING if isinstance(Z, str) else Z
        largest = len(largest) if isinstance(largest, Tensor) else largest
        found = choices.number_of_experts(self.n, self.kind.name, largest)
        # Sparse experts that share all are divided at no loss: let every worker have one.
        return max(found, min(workers, self.n)) if self.kind.name == "sparse" else found

    def _labelled_experts(self, cross_validated: bool) -> int:
        assert self.labels is not None
        found = int(self.labels.max()) + 1
        if cross_validated or not (is_auto(self.n_experts) or self.n_experts == found):
            raise ValueError(
                f"the labels in partition make {found} experts, but n_experts is {self.n_experts!r}: "
                "leave it at 'auto', or name a partition"
            )
        return found

    def divide(self, X: Tensor, n_experts: int) -> list[Shard]:
        """Shards of the standardised inputs; their targets are still zero."""
        data = Shard(X, X.new_zeros(len(X)), torch.arange(len(X), device=X.device))
        if self.labels is not None:
            return split(data, self.labels)
        partition = choices.by_name("partition", self.partition, PARTITIONS, Partition)
        if isinstance(self.aggregation, GRBCM) or self.aggregation == GRBCM.name:
            return with_communication(data, n_experts, partition, self.seed)
        return split(data, partition.assign(X.cpu().numpy(), n_experts, self.seed))

    def recipe(self, scaling: Scaling) -> Recipe:
        """What to fit."""
        rows = self.training_rows
        if is_auto(rows):
            rows = choices.TRAINING_ROWS if self.kind.name == "sparse" else None
        return Recipe(
            expert=self.kind,
            start=self._start(),
            bounds=self._bounds(),
            search=not isinstance(self.kernel, Kernel),
            inducing=self.inducing(scaling),
            algorithm=self._algorithm(),
            training_rows=rows,
            seed=self.seed,
            verbose=bool(self.verbose),
        )

    def _start(self) -> Parameters:
        return starting(self.kernel, self.noise, self.d, self.like())

    def _bounds(self) -> dict[str, tuple[float, float]]:
        return bounds_of(self.kernel, self._start())

    def inducing(self, scaling: Scaling | None) -> Inducing:
        """How many, "auto", or the inputs themselves, standardised where a scaling is given."""
        if np.ndim(self.n_inducing) == 0:
            return "auto" if is_auto(self.n_inducing) else int(self.n_inducing)
        Z = np.asarray(self.n_inducing, dtype=np.float64)
        if Z.ndim != 2 or Z.shape[1] != self.d or not np.isfinite(Z).all() or not len(Z):
            raise ValueError(
                f"n_inducing must be a number, 'auto', or finite inducing inputs of shape (m, {self.d}), "
                f"got shape {Z.shape}"
            )
        return torch.as_tensor(Z) if scaling is None else scaling.inputs(Z, self.like())

    def _algorithm(self) -> Algorithm | None:
        if self.training is None:
            return None
        name = TRAINING[self.kind.name] if is_auto(self.training) else self.training
        algorithm = choices.by_name("training", name, ALGORITHMS, Algorithm)
        known = {spec.name for spec in fields(algorithm)}  # pyright: ignore[reportArgumentType]
        if self.learning_rate is not None and "learning_rate" not in known:
            raise ValueError(f"{algorithm.name} has no learning rate: leave learning_rate at None")
        given = {"n_iter": self.n_iter, "learning_rate": self.learning_rate}
        if self.learning_rate is not None and isinstance(name, str) and "lbfgs" in repr(algorithm):
            given["optimizer"] = "adam"  # L-BFGS finds its own step
        if isinstance(name, str):
            given["seed"] = self.seed
        changes = {k: v for k, v in given.items() if v is not None and k in known}
        return replace(algorithm, **changes)  # pyright: ignore[reportArgumentType]


def labels_of(values: Any) -> np.ndarray:
    """Any labels as numbers 0 … M − 1."""
    labels = np.asarray(values)
    try:
        return np.unique(labels, return_inverse=True)[1]
    except TypeError as error:
        raise ValueError(
            f"the labels in partition cannot be told apart, some may be missing: {error}"
        ) from error


def tensor_like(device: Any, dtype: torch.dtype) -> Tensor:
    """A tensor of this dtype, on this device, if the device exists."""
    try:
        return torch.zeros((), dtype=dtype, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} is not to be had here: {error}") from error


def opened(engine: str | Engine) -> Engine:
    """The engine, started if it was given by name."""
    if isinstance(engine, Engine):
        return engine
    if engine == "ray":
        from distgp.engines.ray import shared_engine

        return shared_engine()
    return LocalEngine()


def starting(
    kernel: Any,
    noise: Any,
    d: int,
    like: Tensor,
    build: Callable[[type[Stationary], list[float]], Kernel] = lambda kind, lengths: kind(lengths),
) -> Parameters:
    """Where training starts: the kernel given, or what `build` makes of a named one."""
    if isinstance(kernel, str) and kernel in KERNELS:
        # Points of standardised data are √d apart, so that is a lengthscale to start from.
        kernel = 1.0 * build(KERNELS[kernel], [math.sqrt(d)] * d)
    if not isinstance(kernel, Kernel):
        raise ValueError(
            f"kernel must be one of {', '.join(map(repr, KERNELS))} or a Kernel object, got {kernel!r}"
        )
    start = Parameters.of(kernel, float(noise)).to(like.device, like.dtype)
    start.kernel(like.new_zeros(1, d))  # refuses a kernel of another width
    return start


def bounds_of(kernel: Any, start: Parameters) -> dict[str, tuple[float, float]]:
    """A named kernel's parameters stay near where they start, within a factor of 1,000.

    On smooth functions variance and lengthscales can grow together for ever, for next to nothing.
    """
    if isinstance(kernel, Kernel):
        return {}
    return {
        f"kernel.{name}": (float(value.min()) / REACH, float(value.max()) * REACH)
        for name, value in start.kernel.parameters().items()
    }


def check_varies(targets: np.ndarray) -> None:
    """Refuse a target (a column of targets) that does not vary."""
    constant = np.flatnonzero(np.ptp(targets, axis=0) == 0)
    if len(constant):
        where = "y" if targets.shape[1] == 1 else f"target column {constant[0]}"
        raise ValueError(
            f"{where} is constant ({targets[0, constant[0]]:g} in all {len(targets)} rows), so there is "
            "nothing to learn: check the target, or give normalize=False and training=None"
        )


def check_engine(engine: Any) -> None:
    """Refuse what is no engine."""
    if not isinstance(engine, Engine) and engine not in ENGINES:
        raise ValueError(f"engine must be 'local', 'ray' or an Engine object, got {engine!r}")


def check_noise(noise: Any) -> None:
    """Refuse what is no variance."""
    if not isinstance(noise, Real) or not 0 < float(noise) < math.inf:
        raise ValueError(f"noise must be a positive, finite variance, got {noise!r}")


def is_auto(value: Any) -> bool:
    """Whether a parameter leaves the choice to us."""
    return isinstance(value, str) and value == "auto"


def check_count(name: str, value: Any, others: tuple[Any, ...]) -> None:
    """Refuse what is neither a positive integer nor one of the other values."""
    if value is None or isinstance(value, str):
        fine = value in others
    else:
        fine = isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 1
    if not fine:
        named = " or ".join(repr(other) for other in others)
        raise ValueError(f"{name} must be a positive integer or {named}, got {value!r}")
