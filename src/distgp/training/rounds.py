"""The rounds of training: the centre sends a message, every worker answers, the centre merges.

Workers keep nothing between rounds, so one that is lost and rebuilt loses nothing: all state is in the
local variables of the centre's half of the algorithm.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor

from distgp._util.progress import Progress
from distgp._util.threads import go_on
from distgp.data import shard as sample
from distgp.data.shard import Shard
from distgp.engines import Kinds, Placement
from distgp.engines.base import bytes_by_kind
from distgp.experts import Parameters
from distgp.training.curvature import Curvature
from distgp.training.objective import Objective

Tensors: TypeAlias = dict[str, Tensor]
Reason: TypeAlias = Literal["iterations", "tolerance", "diverged"]

DESCENT: Kinds = {"value": "gradients", "gradient": "gradients", "*": "parameters"}
"""The kinds of what algorithms exchange that send θ out and take gradients, or other θ, back."""
PATIENCE = 5
"""Accepted rounds in a row that must change the objective by less than the tolerance."""
HOPELESS = 50
"""Rounds in a row that are not accepted, after which training gives up."""


@dataclass(frozen=True, eq=False)
class Message:
    """A message of the centre: `shared` goes to every expert, `each` (M, …) has one row for each."""

    shared: Tensors
    each: Tensors
    travels_as: Kinds = "other"


@dataclass(frozen=True, eq=False)
class Reply:
    """The workers' answer: `summed` over the experts, and `each` (M, …) with one row for each."""

    summed: Tensors
    each: Tensors
    travels_as: Kinds = "other"


@dataclass(frozen=True)
class Round:
    """One round of training, for the history; L-BFGS notes the best objective and gradient so far.

    `hyperparameters` are geometric means where the experts differ; `bytes` would have travelled if every
    expert were a machine of its own; a round is `accepted` if it changed θ for good; ADMM's `residuals`
    are "primal" and "dual".
    """

    number: int
    objective: float
    gradient_norm: float
    hyperparameters: dict[str, list[float]]
    seconds: float
    bytes: int
    accepted: bool
    residuals: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """The result of training: the θ that was found, the rounds, and why they stopped.

    Parameters
    ----------
    parameters : Parameters
        The trained θ, batched where the experts differ. Its noise is higher than that of the last round
        where there was next to none, and rows held out are clearly predicted better with more.
    history : tuple of Round
        The rounds.
    stopped : "iterations", "tolerance" or "diverged"
        Why training stopped: all rounds were done; the objective changed no more; or the objective
        could not be computed anywhere near.
    rows : int, optional
        The number of rows whose objective the last stage looked at; None in files of earlier versions,
        as are the next two.
    last_stage : int, optional
        The number of rounds of the last stage, which are the last of the history. Stages minimise
        different objectives, with other inducing inputs or other neighbours.
    bounds : dict of str to (float, float), optional
        The lowest and the highest value of every trained hyperparameter, by its full path; 0 and
        infinity where it is free.
    """

    parameters: Parameters
    history: tuple[Round, ...]
    stopped: Reason
    rows: int | None = None
    last_stage: int | None = None
    bounds: dict[str, tuple[float, float]] | None = None

    @property
    def objective(self) -> float:
        """The objective of the last round."""
        return self.history[-1].objective if self.history else math.nan


def joined(results: Sequence[TrainingResult]) -> TrainingResult:
    """The last result, with the rounds of all."""
    rounds = [round_ for result in results for round_ in result.history]
    history = tuple(replace(round_, number=i + 1) for i, round_ in enumerate(rounds))
    return replace(results[-1], history=history)


class Stop(Exception):
    """Raised with a `Reason` inside `Algorithm.at_centre` when training is over."""


class Refinement(NamedTuple):
    """Further training, perhaps with a bound of ours lifted: "floor" of the noise, or "cap" of signals.

    Without an algorithm it is that of the last refinement that was kept. `anew` is said of the one that
    begins anew with all columns in the kernel: what comes after it is tried even if it is not kept.
    """

    algorithm: Algorithm | None
    lifts: str = ""
    anew: bool = False


class Algorithm(ABC):
    """A way to learn θ across shards, with one half for the workers and one for the centre."""

    name: ClassVar[str]
    exchanges: ClassVar[Kinds] = "other"
    """The kinds of the tensors in its messages and replies, by their names."""
    agrees: ClassVar[bool] = True
    """Whether the experts end up with one value of the shared parameters."""
    serves: ClassVar[tuple[str, ...]] = ("exact", "sparse", "nearest")
    """The kinds of experts that it can train."""
    draws_rows: ClassVar[bool] = False
    """Whether it draws the rows to learn from, and searches for a start, by itself."""
    tolerance: ClassVar[float] = 1e-5
    """Relative change of the objective that ends training: what is left to gain is far below one nat."""
    least_noise: ClassVar[float] = 1e-6
    """The share of the targets' variance that training keeps the noise variance above."""
    polish: int = 0
    """Evaluations of the objective of all rows, by L-BFGS, after training from rows that it draws."""
    n_iter: int
    """The number of rounds, at most."""

    def refinements(self, own: bool = False) -> Sequence[Refinement]:
        """Further training from rows that it draws, each to be kept if rows held out say that it pays.

        With `own` the first is by the algorithm itself, since θ was found in another way.
        """
        del own
        return ()

    def rows_of(self, n: int) -> int:
        """Return how many of n rows the objective looks at."""
        return n

    def with_rounds(self, rounds: int) -> Self:
        """Return the same algorithm with another number of rounds."""
        return replace(self, n_iter=rounds)  # pyright: ignore[reportArgumentType, reportReturnType]

    def with_polish(self, polish: int) -> Algorithm:
        """Return the same algorithm with so many evaluations of all rows at its end, if it draws rows."""
        del polish
        return self

    def with_search(self, search: bool) -> Algorithm:
        """Return the same algorithm, told whether it may search for a start if it draws rows."""
        del search
        return self

    @abstractmethod
    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Answer a message for the experts of one worker, whose rows `shard` and `each` have."""

    @abstractmethod
    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Run the rounds: in a loop, exchange a message, merge the replies, record the result.

        Training starts at one vector (P,) for all experts or one for each (M, P); the experts have
        `sizes` (M,) rows. The loop is left by the exception `Stop`, which `rounds` raises when training
        is over, or by returning, when no further progress is possible.
        """


class Rounds:
    """The rounds of one training: messages to the workers, the history, and when to stop."""

    def __init__(
        self,
        algorithm: Algorithm,
        objective: Objective,
        shards: Placement[Shard],
        start: Tensor,
        tolerance: float,
        progress: Progress,
        curvature: Curvature | None = None,
    ) -> None:
        self.history: list[Round] = []
        self.vectors = start  # where training stands: one vector (P,), or one per expert (M, P)
        self.failed = False  # whether the objective could not be computed somewhere
        self.began = 0  # rounds before the last stage, which an algorithm of several stages sets
        self._algorithm, self._objective, self._shards = algorithm, objective, shards
        self._counts = sample.counts(shards)
        self._tolerance, self._progress = tolerance, progress
        n = int(sample.sizes(shards).sum())
        self._rows = algorithm.rows_of(n)  # that the objective looks at
        self.curvature = curvature  # of the objective, which an earlier training has learnt
        self._bytes, self._last = 0, time.perf_counter()

    @property
    def least_gain(self) -> float:
        """The decrease of the objective per round below which training is over."""
        value = abs(self.history[-1].objective) if self.history else 0.0
        return self._tolerance * max(self._rows, 1.0 + value)

    def exchange(self, message: Message) -> Reply:
        """Send a message to all workers and gather their replies; raise Stop if all rounds are done."""
        if len(self.history) >= self._algorithm.n_iter:
            raise Stop("iterations")
        kinds, counts = self._algorithm.exchanges, self._counts
        cut = {name: value.split(counts) for name, value in message.each.items()}
        own = ({name: parts[i] for name, parts in cut.items()} for i in range(len(counts)))
        replies = self._shards.map(
            _answer,
            self._algorithm,
            self._objective,
            Message(message.shared, {}, kinds),
            each=[Message({}, each, kinds) for each in own],
        )
        reply = _gathered(replies)
        # What is for all is counted as if every expert were a machine of its own.
        common, own = (message.shared, reply.summed), (message.each, reply.each)
        self._bytes = sum(counts) * bytes_by_kind(common).total() + bytes_by_kind(own).total()
        return reply

    def record(
        self,
        vectors: Tensor,
        value: Tensor | float,
        gradient_norm: Tensor | float,
        *,
        accepted: bool = True,
        failed: bool = False,
        residuals: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Note where training stands after a round, (P,) or (M, P), and what the round found.

        Raises Stop where nothing changes any more, or nothing works any more.
        """
        go_on()
        self.vectors, self.failed = vectors, self.failed or failed
        one = vectors if vectors.ndim == 1 else vectors.mean(0)
        now = time.perf_counter()
        self.history.append(
            Round(
                number=len(self.history) + 1,
                objective=float(value),
                gradient_norm=float(gradient_norm),
                hyperparameters=self._objective.layout.values(one),
                seconds=now - self._last,
                bytes=self._bytes,
                accepted=bool(accepted),
                residuals={name: float(size) for name, size in (residuals or {}).items()},
            )
        )
        self._last = now
        self._progress.advance(text=f"objective {float(value):.6g}")
        self._stop_if_over()

    def without_progress(self) -> Reason:
        """Why training is over when no further progress is possible."""
        found = bool(self.history) and math.isfinite(self.history[-1].objective)
        return "tolerance" if found else "diverged"

    def _stop_if_over(self) -> None:
        recent = self.history[-HOPELESS:]
        if len(recent) == HOPELESS and not any(round_.accepted for round_ in recent):
            raise Stop(self.without_progress())
        values = [round_.objective for round_ in self.history if round_.accepted][-PATIENCE - 1 :]
        if len(values) <= PATIENCE:
            return
        limit = self.least_gain
        if all(abs(a - b) <= limit for a, b in zip(values[1:], values, strict=False)):
            raise Stop("tolerance")


def _answer(
    shard: Shard, algorithm: Algorithm, objective: Objective, common: Message, own: Message
) -> Reply:
    """The worker's half of a round, on a worker."""
    reply = algorithm.on_worker(objective, shard, Message(common.shared, own.each))
    return replace(reply, travels_as=algorithm.exchanges)


def _gathered(replies: Sequence[Reply]) -> Reply:
    """The replies of all workers as one."""
    first = replies[0]
    return Reply(
        {name: torch.stack([one.summed[name] for one in replies]).sum(0) for name in first.summed},
        {name: torch.cat([one.each[name] for one in replies]) for name in first.each},
    )
