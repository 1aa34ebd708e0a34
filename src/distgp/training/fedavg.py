"""FedAvg: local steps from the broadcast θ, then the average weighted by rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.training.base import Algorithm, Message, Reply, counters, joined, split_start
from distgp.training.layout import Layout
from distgp.training.local import Pull, local_steps
from distgp.training.steps import STEPPERS, State, finite
from distgp.training.task import Task
from distgp.workers import ShardGroup


def averaging_start(
    layout: Layout, vector: Tensor, sizes: Tensor, rate: float, optimizer: str
) -> State:
    """The state of an averaging method: one θ, and every expert's own part, moments and rate."""
    shared, own = split_start(layout, vector, len(sizes))
    each = torch.cat([shared.expand(len(sizes), -1), own], -1)
    moments = {f"opt_{k}": v for k, v in STEPPERS[optimizer].start(each).items()}
    state = counters(shared) | {"shared": shared, "own": own, "sizes": sizes} | moments
    state |= {"good": shared, "good_own": own}
    return state | {"rate": torch.full_like(sizes, rate)}


def averaging_message(state: State) -> Message:
    """θ to all; to each its own part, its moments, its rate and its share of the rows."""
    each = {name: state[name] for name in state if name.startswith("opt_")}
    weight = state["sizes"] / state["sizes"].sum()
    each |= {"own": state["own"], "rate": state["rate"], "prior_weight": weight}
    return Message({"shared": state["shared"]}, each)


def averaging_local(
    task: Task, group: ShardGroup, message: Message, steps: int, optimizer: str, pull: Pull | None
) -> Reply:
    """Local steps on the objective per row."""
    own = message.each["own"]
    start = torch.cat([message.shared["shared"].expand(len(own), -1), own], -1)
    x, moments, seen = local_steps(
        task,
        group.shards,
        start,
        {k.removeprefix("opt_"): v for k, v in message.each.items() if k.startswith("opt_")},
        message.each["rate"],
        steps,
        optimizer,
        1.0 / group.shards.sizes.to(message.each["rate"]),
        message.each["prior_weight"],
        pull,
    )
    each = {f"opt_{k}": v for k, v in moments.items()} | seen | {"x": x}
    return Reply({}, each)


def averaging_merge(layout: Layout, state: State, reply: Reply, taking_part: Tensor) -> State:
    """The average of the experts that took part, weighted by rows; each keeps its own part.

    The objective and gradient that are reported are Σ over experts at the broadcast θ, scaled up
    where only some took part. Experts whose numbers were out of hand at θ have no say; where that
    is everyone, the last good θ comes back.
    """
    k, each = layout.n_shared, reply.each
    called = taking_part
    taking_part = called & finite(each["value"], each["gradient"])
    if not taking_part.any():
        back = {
            "shared": state["good"],
            "own": state["good_own"],
            "rate": torch.where(called, each["rate"], state["rate"]),
        }
        failed = state["failures"] + int(each["failures"].sum())
        return state | back | {"round": state["round"] + 1, "failures": failed}
    weight = torch.where(taking_part, state["sizes"], 0.0)
    scale = state["sizes"].sum() / weight.sum()
    weight = weight / weight.sum()
    kept = {
        name: torch.where(taking_part.reshape(-1, *[1] * (value.ndim - 1)), each[name], value)
        for name, value in state.items()
        if name.startswith("opt_")
    }
    kept["rate"] = torch.where(called, each["rate"], state["rate"])
    # An expert that failed goes back to the last own part that worked.
    back_to = torch.where((called & ~taking_part)[:, None], state["good_own"], state["own"])
    own = torch.where(taking_part[:, None], each["x"][:, k:], back_to)
    good_own = torch.where(taking_part[:, None], state["own"], state["good_own"])
    value = scale * torch.where(taking_part, each["value"], 0.0).sum()
    gradient = scale * torch.where(taking_part[:, None], each["gradient"][:, :k], 0.0).sum(0)
    return (
        state
        | kept
        | {
            "shared": (weight[:, None] * each["x"][:, :k]).sum(0),
            "own": own,
            "good_own": good_own,
            "good": state["shared"] if bool(taking_part.equal(called)) else state["good"],
            "objective": value,
            "gradient_norm": gradient.norm(),
            "accepted": state["accepted"] + 1,
            "round": state["round"] + 1,
            "failures": state["failures"] + int(each["failures"].sum()),
        }
    )


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """E local steps on each objective per row, objective_i / n_i, then the n_i-weighted average.

    Adam's moments survive a round, each expert's own; they travel with θ. With one plain step
    (`optimizer="sgd"`, `local_steps=1`) a round is FACT's step on the objective per row.
    """

    name: ClassVar[str] = "fedavg"
    local_steps: int = 5
    learning_rate: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100

    def start(self, layout: Layout, vector: Tensor, sizes: Tensor) -> State:
        """One θ, and each expert's own."""
        return averaging_start(layout, vector, sizes, self.learning_rate, self.optimizer)

    def message(self, layout: Layout, state: State) -> Message:
        """θ and each expert's own."""
        del layout
        return averaging_message(state)

    def local(self, task: Task, group: ShardGroup, message: Message) -> Reply:
        """E steps."""
        return averaging_local(task, group, message, self.local_steps, self.optimizer, None)

    def merge(self, task: Task, state: State, reply: Reply) -> State:
        """The average of all."""
        everyone = torch.ones_like(state["sizes"], dtype=torch.bool)
        return averaging_merge(task.layout, state, reply, everyone)

    def vectors(self, layout: Layout, state: State) -> Tensor:
        """The averaged θ."""
        return joined(layout, state["shared"], state["own"])
