"""FedProx: FedAvg with a proximal term, and a sample of the experts in each round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.training.base import DESCENT, Algorithm, Message, Reply
from distgp.training.fedavg import average, steps_from_broadcast
from distgp.training.objective import Objective
from distgp.training.optimizers import STEPPERS, check_steps
from distgp.training.rounds import Rounds


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg's local steps with μ/2 ‖θ − θ_global‖² added to each objective per row.

    μ therefore counts against objective_i / n_i. With μ = 0 and all experts this is FedAvg.

    Parameters
    ----------
    mu : float, default=0.01
        The weight μ of the proximal term.
    fraction : float, default=0.5
        The part of the experts, at least one, that takes part in a round. They are drawn anew for each
        round, from the seed and the round's number.
    local_steps, learning_rate, optimizer, n_iter
        As for `FedAvg`.
    seed : int, default=0
        The seed of the draws.
    """

    name: ClassVar[str] = "fedprox"
    exchanges: ClassVar[Kinds] = DESCENT
    mu: float = 0.01
    fraction: float = 0.5
    local_steps: int = 5
    learning_rate: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_steps(self.name, self.optimizer, self.learning_rate, self.local_steps)
        if not 0 < self.fraction <= 1 or self.mu < 0:
            raise ValueError(
                f"expected 0 < fraction ≤ 1 and mu ≥ 0, got {self.fraction} and {self.mu}"
            )

    def sampled(self, round_: int, M: int) -> np.ndarray:
        """Draw the experts that take part in a round, which is 0 for the first."""
        size = max(1, math.floor(self.fraction * M + 0.5))
        rng = np.random.default_rng([self.seed, round_])
        return rng.permutation(M)[:size]

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Take E steps, held near the broadcast θ, with the experts that take part."""
        whole = self._unmoved(objective, message)
        chosen = torch.nonzero(message.each["taking_part"])[:, 0]
        if not len(chosen):
            return whole
        k, centre = objective.layout.n_shared, message.shared["shared"]

        def pull(x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            out[:, :k] = self.mu * (x[:, :k] - centre)
            return out

        each = {name: value[chosen] for name, value in message.each.items()}
        part = Message(message.shared, each)
        reply = steps_from_broadcast(
            objective, shard[chosen], part, self.local_steps, self.optimizer, pull
        )
        for name, value in reply.each.items():
            whole.each[name][chosen] = value
        return whole

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Average the experts that took part."""

        def drawn(round_: int) -> Tensor:
            taking = torch.zeros_like(sizes, dtype=torch.bool)
            taking[torch.as_tensor(self.sampled(round_, len(sizes)))] = True
            return taking

        average(objective, start, sizes, rounds, self.optimizer, self.learning_rate, drawn)

    def _unmoved(self, objective: Objective, message: Message) -> Reply:
        """The reply of experts that did nothing."""
        x = objective.layout.join_each(message.shared["shared"], message.each["own"])
        nothing = torch.zeros_like(message.each["rate"])
        kept = ("rate", *STEPPERS[self.optimizer].start(x))
        each = {name: message.each[name].clone() for name in kept}
        each |= {"x": x.clone(), "good": x.clone(), "value": nothing.clone()}
        return Reply({}, each | {"gradient": torch.zeros_like(x), "failures": nothing})
