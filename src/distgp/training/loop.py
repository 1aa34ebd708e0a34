"""The round loop: it knows neither which algorithm it runs nor where the shards live."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from distgp.experts import Expert, Parameters
from distgp.shards import Shard
from distgp.training import checkpoint as files
from distgp.training.base import Algorithm, Message, Reply, traffic
from distgp.training.fact import Fact
from distgp.training.interrupt import Interrupt
from distgp.training.layout import Layout
from distgp.training.priors import Prior
from distgp.training.progress import Bar
from distgp.training.result import Reason, Round, TrainingResult
from distgp.training.steps import STEPPERS, State
from distgp.training.task import Task
from distgp.workers import ShardGroup, Workers

PATIENCE = 5
"""Accepted rounds in a row that must change the objective by less than the tolerance."""
HOPELESS = 50
"""Rounds in a row without a usable number before training gives up."""


class TrainingWarning(UserWarning):
    """Numbers got out of hand during training and a step was taken back."""


def train(
    algorithm: Algorithm,
    expert: Expert,
    parameters: Parameters,
    shards: Sequence[Shard] | Workers,
    *,
    own: Collection[str] = (),
    fixed: Collection[str] = (),
    priors: Mapping[str, Prior] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    tolerance: float = 1e-6,
    time_limit: float = math.inf,
    checkpoint: Path | str | None = None,
    start: TrainingResult | None = None,
    verbose: bool = False,
) -> TrainingResult:
    """Learn θ from its start `parameters`, by at most `algorithm.n_iter` rounds.

    own: parameters that each expert keeps for itself ("inducing", say); fixed: those that stay.
    Stops when the objective changes by less than `tolerance`, relative, in five accepted rounds
    running, at the time limit (seconds), or after the round in which Ctrl-C was pressed. start: go
    on from an earlier result, its rounds counted in. checkpoint: a file that is written every round
    and, where it exists, resumed from, to the same numbers.
    """
    workers = shards if isinstance(shards, Workers) else Workers.of(shards)
    sizes = workers.sizes().to(parameters.noise)
    _check(algorithm, parameters, len(sizes), own, fixed, priors or {})
    layout = Layout.of(_template(parameters), own, fixed, bounds)
    task = Task(expert, layout, priors or {})
    state = algorithm.start(layout, _start_vector(layout, parameters, len(sizes)), sizes)
    history: list[Round] = []
    path = None if checkpoint is None else Path(checkpoint)
    if start is not None:
        state, history = files.fitted(start.state, state, "start"), list(start.history)
    elif path is not None and path.exists():
        loaded, history = files.load(path, algorithm.name)
        state = files.fitted(loaded, state, str(path))
    reason: Reason = "iterations"
    begin, warned = time.perf_counter(), False
    with Interrupt() as interrupt, Bar(algorithm.name, algorithm.n_iter, verbose) as bar:
        while len(history) < algorithm.n_iter:
            state, round_ = _round(algorithm, task, workers, state, len(sizes))
            history.append(round_)
            bar.advance(round_.objective)
            if path is not None:
                files.save(path, algorithm.name, state, history)
            if int(state["failures"]) and not warned:
                warned = True
                warnings.warn(
                    f"{algorithm.name}: the objective could not be computed at some hyperparameters; "
                    "those steps were taken back and shortened",
                    TrainingWarning,
                    stacklevel=2,
                )
            if (stop := _verdict(history, tolerance)) is not None:
                reason = stop
                break
            if interrupt.asked:
                reason = "interrupt"
                break
            if time.perf_counter() - begin > time_limit:
                reason = "time limit"
                break
    vectors = algorithm.vectors(layout, state)
    agreed = vectors.ndim == 2 and algorithm.agrees
    theta = layout.unpack_shared(vectors) if agreed else layout.unpack(vectors)
    return TrainingResult(theta, tuple(history), reason, state)


def _round(
    algorithm: Algorithm, task: Task, workers: Workers, state: State, M: int
) -> tuple[State, Round]:
    """One exchange."""
    begin = time.perf_counter()
    message = algorithm.message(task.layout, state)
    reply = Reply.gather(workers.map(_local, algorithm, task, message))
    after = algorithm.merge(task, state, reply)
    accepted = int(after["accepted"]) > int(state["accepted"])
    vectors = algorithm.vectors(task.layout, after)
    return after, Round(
        number=int(after["round"]),
        objective=float(after["objective"]),
        gradient_norm=float(after["gradient_norm"]),
        hyperparameters=task.layout.values(_one(vectors)),
        seconds=time.perf_counter() - begin,
        bytes=traffic(message, reply, M),
        accepted=accepted,
    )


def _local(group: ShardGroup, algorithm: Algorithm, task: Task, message: Message) -> Reply:
    return algorithm.local(task, group, message.part(group))


def _one(vectors: Tensor) -> Tensor:
    """One vector to report: the experts' mean where they differ."""
    return vectors if vectors.ndim == 1 else vectors.mean(0)


def _verdict(history: list[Round], tolerance: float) -> Reason | None:
    """Whether to stop: nothing changes any more, or nothing works any more."""
    if len(history) >= HOPELESS and not any(r.accepted for r in history[-HOPELESS:]):
        return "tolerance" if math.isfinite(history[-1].objective) else "diverged"
    values = [r.objective for r in history if r.accepted][-PATIENCE - 1 :]
    if len(values) <= PATIENCE:
        return None
    limit = tolerance * (1.0 + abs(values[-1]))
    still = all(abs(a - b) <= limit for a, b in zip(values[1:], values, strict=False))
    return "tolerance" if still else None


def _check(
    algorithm: Algorithm,
    parameters: Parameters,
    M: int,
    own: Collection[str],
    fixed: Collection[str],
    priors: Mapping[str, Prior],
) -> None:
    """Refuse what would fail later, or be misread in silence."""
    optimizer = getattr(algorithm, "optimizer", "adam")
    if optimizer not in (*STEPPERS, *(["lbfgs"] if isinstance(algorithm, Fact) else [])):
        raise ValueError(f"{algorithm.name} has no optimizer {optimizer!r}")
    if getattr(algorithm, "local_steps", 1) < 1 or not getattr(algorithm, "learning_rate", 1) > 0:
        raise ValueError(f"local_steps and learning_rate must be positive, got {algorithm}")
    names = parameters.unconstrained().keys() - {"inducing"}
    if unknown := priors.keys() - names:
        raise ValueError(f"no parameter {sorted(unknown)} for a prior; there are {sorted(names)}")
    batches = {f"kernel.{name}": b for name, b in parameters.kernel.batches().items() if b}
    batches |= {"noise": parameters.noise.shape} if parameters.noise.ndim else {}
    batches |= {"inducing": parameters.inducing_batch} if parameters.inducing_batch else {}
    for name, batch in batches.items():
        if batch != torch.Size([M]):
            raise ValueError(f"{name} has a batch of {tuple(batch)} for {M} shards")
        if name in fixed or (algorithm.agrees and name not in own):
            raise ValueError(
                f"each expert has its own {name}, which {algorithm.name} cannot share or keep fixed: "
                f"give one value, or name it in `own`"
            )


def _template(parameters: Parameters) -> Parameters:
    """θ without batch dimensions: the first expert's."""
    batched = bool(parameters.batch) or bool(parameters.inducing_batch)
    return parameters[0] if batched else parameters


def _start_vector(layout: Layout, parameters: Parameters, M: int) -> Tensor:
    """One start, or one for each expert where θ has a batch."""
    if not parameters.batch and not parameters.inducing_batch:
        return layout.pack(parameters)
    return torch.stack([layout.pack(parameters[i]) for i in range(M)])
