"""FedAvg: local steps from the broadcast θ, then the average weighted by rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.training.base import DESCENT, Algorithm, Message, Reply
from distgp.training.objective import Objective
from distgp.training.optimizers import check_steps, choose, finite, local_steps, start_steps
from distgp.training.rounds import Rounds


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """E local steps on each objective per row, objective_i / n_i, then the n_i-weighted average.

    Adam's moments survive a round, each expert's own; they travel with θ. With one plain step
    (``optimizer="sgd"``, ``local_steps=1``) a round is FACT's step on the objective per row.

    Parameters
    ----------
    local_steps : int, default=5
        The number E of steps that each expert takes in a round.
    learning_rate : float, default=0.1
        The size of the steps.
    optimizer : {"adam", "sgd"}, default="adam"
        What makes a step of a gradient.
    n_iter : int, default=100
        The number of rounds, at most.
    """

    name: ClassVar[str] = "fedavg"
    exchanges: ClassVar[Kinds] = DESCENT
    local_steps: int = 5
    learning_rate: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100

    def __post_init__(self) -> None:
        check_steps(self.name, self.optimizer, self.learning_rate, self.local_steps)

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Take E steps with every expert."""
        return steps_from_broadcast(objective, shard, message, self.local_steps, self.optimizer)

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Average all experts."""
        average(objective, start, sizes, rounds, self.optimizer, self.learning_rate)


def steps_from_broadcast(
    objective: Objective,
    shard: Shard,
    message: Message,
    count: int,
    optimizer: str,
    pull: Callable[[Tensor], Tensor] | None = None,
) -> Reply:
    """The worker's half of an averaging method: local steps on the objective per row."""
    each = message.each
    x = objective.layout.join_each(message.shared["shared"], each["own"])
    scale, weight = 1.0 / shard.sizes.to(each["rate"]), each["prior_weight"]
    begin = each | {"x": x, "good": x}
    return Reply({}, local_steps(objective, shard, begin, count, optimizer, scale, weight, pull))


def average(
    objective: Objective,
    start: Tensor,
    sizes: Tensor,
    rounds: Rounds,
    optimizer: str,
    learning_rate: float,
    drawn: Callable[[int], Tensor] | None = None,
) -> None:
    """The centre's half of an averaging method: the average of the experts, weighted by rows.

    The shared part is averaged; each expert keeps its own part, moments and rate. The objective that
    is reported is Σ_i objective_i at the broadcast θ, scaled up where only some experts took part.
    Experts whose objective could not be computed there have no say; where that is all of them, the
    last good θ comes back. `drawn` tells which experts (M,) take part, for the number of rounds done.
    """
    layout, k = objective.layout, objective.layout.n_shared
    shared, own = layout.split(start, len(sizes))
    good, good_own = shared, own
    memory = start_steps(optimizer, layout.join_each(shared, own), learning_rate)
    rate = memory.pop("rate")
    del memory["x"], memory["good"]  # they are the broadcast θ
    prior_weight, everyone = sizes / sizes.sum(), torch.ones_like(sizes, dtype=torch.bool)
    value = norm = torch.full_like(sizes[0], torch.nan)
    while True:
        each = {"own": own, "rate": rate, "prior_weight": prior_weight} | memory
        called = everyone
        if drawn is not None:
            called = each["taking_part"] = drawn(len(rounds.history))
        reply = rounds.exchange(Message({"shared": shared}, each)).each
        failed = bool(reply["failures"].any())
        fine = called & finite(reply["value"], reply["gradient"])
        lost = called & ~fine
        rate = torch.where(called, reply["rate"], rate)
        if not fine.any():
            shared, own = good, good_own
            rounds.record(layout.join(shared, own), value, norm, accepted=False, failed=failed)
            continue
        weight = torch.where(fine, sizes, 0.0)
        scale = sizes.sum() / weight.sum()
        value = scale * torch.where(fine, reply["value"], 0.0).sum()
        norm = (scale * torch.where(fine[:, None], reply["gradient"][:, :k], 0.0).sum(0)).norm()
        memory = choose(fine, {name: reply[name] for name in memory}, memory)
        good = good if lost.any() else shared
        shared = (weight[:, None] / weight.sum() * reply["x"][:, :k]).sum(0)
        # An expert that failed goes back to the last own part that worked.
        kept = torch.where(lost[:, None], good_own, own)
        good_own = torch.where(fine[:, None], own, good_own)
        own = torch.where(fine[:, None], reply["x"][:, k:], kept)
        rounds.record(layout.join(shared, own), value, norm, failed=failed)
