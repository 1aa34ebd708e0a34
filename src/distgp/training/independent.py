"""Independent training: each expert learns its own θ, and nothing is exchanged but progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.training.base import DESCENT, Algorithm, Message, Reply
from distgp.training.objective import Objective
from distgp.training.optimizers import check_steps, local_steps, start_steps
from distgp.training.rounds import Rounds


@dataclass(frozen=True)
class Independent(Algorithm):
    """Every expert minimises its own objective per row, by itself.

    Parameters
    ----------
    local_steps : int, default=1
        The number of steps that each expert takes in a round.
    learning_rate : float, default=0.1
        The size of the steps.
    optimizer : {"adam", "sgd"}, default="adam"
        What makes a step of a gradient.
    n_iter : int, default=100
        The number of rounds, at most.
    """

    name: ClassVar[str] = "independent"
    exchanges: ClassVar[Kinds] = DESCENT
    agrees: ClassVar[bool] = False
    local_steps: int = 1
    learning_rate: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100

    def __post_init__(self) -> None:
        check_steps(self.name, self.optimizer, self.learning_rate, self.local_steps)

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Take steps on the objective per row; the prior counts in full for every expert."""
        each = message.each
        scale, weight = 1.0 / shard.sizes.to(each["rate"]), torch.ones_like(each["rate"])
        return Reply(
            {},
            local_steps(objective, shard, each, self.local_steps, self.optimizer, scale, weight),
        )

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Keep what every expert remembers; there is nothing to merge."""
        del objective
        x = start.expand(len(sizes), -1) if start.ndim == 1 else start
        each = start_steps(self.optimizer, x.clone(), self.learning_rate)
        while True:
            reply = rounds.exchange(Message({}, each)).each
            each = {name: reply[name] for name in each}
            rounds.record(
                each["x"],
                reply["value"].sum(),
                reply["gradient"].norm(),
                accepted=bool(torch.isfinite(reply["value"]).all()),
                failed=bool(reply["failures"].any()),
            )
