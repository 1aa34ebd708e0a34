"""Training algorithms: what they exchange, record and return.

A round is one exchange: the centre sends a message, every worker answers for its shards, and the
centre merges the answers. Workers keep nothing between rounds, so one that is lost and rebuilt loses
nothing: all state is in the local variables of the centre's half of the algorithm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.experts import Parameters
from distgp.training.objective import Objective

if TYPE_CHECKING:
    from distgp.training.rounds import Rounds

Tensors: TypeAlias = dict[str, Tensor]
Reason: TypeAlias = Literal["iterations", "tolerance", "diverged"]


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
    """One round of training, for the history.

    Parameters
    ----------
    number : int
        1 for the first round.
    objective, gradient_norm : float
        What the round found; for L-BFGS, of the best point so far.
    hyperparameters : dict of str to list of float
        Kernel parameters and noise after the round, by name; the mean of their logarithms over the
        experts, exponentiated, where the experts differ.
    seconds : float
        How long the round took.
    bytes : int
        What would have been sent and received if every expert were a machine of its own.
    accepted : bool
        Whether the round changed θ for good: False where it found a worse point, or none at all.
    residuals : dict of str to float
        What the algorithm measures beside the objective: ADMM's "primal" and "dual" residual.
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
        The trained θ, batched where the experts differ.
    history : tuple of Round
        The rounds.
    stopped : {"iterations", "tolerance", "diverged"}
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


DESCENT: Kinds = {"value": "gradients", "gradient": "gradients", "*": "parameters"}
"""The kinds of what algorithms exchange that send θ out and take gradients, or other θ, back."""


class Stop(Exception):
    """Raised with a `Reason` inside `Algorithm.at_centre` when training is over."""


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
    n_iter: int
    """The number of rounds, at most."""

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
