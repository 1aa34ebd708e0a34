"""FedProx: FedAvg with a proximal term, and a sample of the experts a round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from distgp.training.base import Algorithm, Message, Reply, joined
from distgp.training.fedavg import (
    averaging_local,
    averaging_merge,
    averaging_message,
    averaging_start,
)
from distgp.training.layout import Layout
from distgp.training.steps import State
from distgp.training.task import Task
from distgp.workers import ShardGroup


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg's local steps with μ/2 ‖θ − θ_global‖² added to each objective per row.

    μ therefore counts against objective_i / n_i. A `fraction` of the experts, at least one, drawn
    anew each round from the seed and the round's number, takes part. With μ = 0 and all experts it
    is FedAvg.
    """

    name: ClassVar[str] = "fedprox"
    mu: float = 0.01
    fraction: float = 0.5
    local_steps: int = 5
    learning_rate: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 < self.fraction <= 1 or self.mu < 0:
            raise ValueError(
                f"expected 0 < fraction ≤ 1 and mu ≥ 0, got {self.fraction} and {self.mu}"
            )

    def sampled(self, round_: int, M: int) -> np.ndarray:
        """The experts that take part in a round."""
        size = max(1, math.floor(self.fraction * M + 0.5))
        rng = np.random.default_rng([self.seed, round_])
        return rng.permutation(M)[:size]

    def start(self, layout: Layout, vector: Tensor, sizes: Tensor) -> State:
        """One θ, and each expert's own."""
        return averaging_start(layout, vector, sizes, self.learning_rate, self.optimizer)

    def message(self, layout: Layout, state: State) -> Message:
        """θ, each expert's own, and whether it takes part."""
        del layout
        message = averaging_message(state)
        message.each["taking_part"] = self._taking_part(state)
        return message

    def local(self, task: Task, group: ShardGroup, message: Message) -> Reply:
        """E steps, held near the broadcast θ; experts that do not take part do nothing."""
        taking = message.each["taking_part"]
        if not taking.any():
            return _silence(message)
        chosen = torch.nonzero(taking)[:, 0]
        some = ShardGroup(group.shards.take_batch(chosen), group.first)
        each = {name: value[chosen] for name, value in message.each.items()}
        k, centre = task.layout.n_shared, message.shared["shared"]

        def pull(x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            out[:, :k] = self.mu * (x[:, :k] - centre)
            return out

        part = Message(message.shared, each)
        reply = averaging_local(task, some, part, self.local_steps, self.optimizer, pull)
        whole = _silence(message)
        for name, value in reply.each.items():
            whole.each[name][chosen] = value
        return whole

    def merge(self, task: Task, state: State, reply: Reply) -> State:
        """The average of those that took part."""
        return averaging_merge(task.layout, state, reply, self._taking_part(state))

    def vectors(self, layout: Layout, state: State) -> Tensor:
        """The averaged θ."""
        return joined(layout, state["shared"], state["own"])

    def _taking_part(self, state: State) -> Tensor:
        M = len(state["sizes"])
        taking = torch.zeros(M, dtype=torch.bool, device=state["sizes"].device)
        taking[torch.as_tensor(self.sampled(int(state["round"]), M))] = True
        return taking


def _silence(message: Message) -> Reply:
    """The reply of experts that did nothing."""
    own = message.each["own"]
    start = torch.cat([message.shared["shared"].expand(len(own), -1), own], -1)
    nothing = torch.zeros_like(message.each["rate"])
    each = {k: v.clone() for k, v in message.each.items() if k.startswith("opt_") or k == "rate"}
    each |= {"x": start.clone(), "good": start.clone(), "value": nothing.clone()}
    each["failures"] = nothing.clone()
    return Reply({}, each | {"gradient": torch.zeros_like(start)})
