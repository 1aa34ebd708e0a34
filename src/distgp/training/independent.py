"""Independent training: each expert its own θ, nothing exchanged but progress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.training.base import Algorithm, Message, Reply, counters
from distgp.training.layout import Layout
from distgp.training.local import local_steps
from distgp.training.steps import STEPPERS, State
from distgp.training.task import Task
from distgp.workers import ShardGroup


@dataclass(frozen=True)
class Independent(Algorithm):
    """Every expert minimises its own objective per row, `local_steps` steps a round."""

    name: ClassVar[str] = "independent"
    agrees: ClassVar[bool] = False
    local_steps: int = 1
    learning_rate: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100

    def start(self, layout: Layout, vector: Tensor, sizes: Tensor) -> State:
        """One point each."""
        del layout
        x = (vector.expand(len(sizes), -1) if vector.ndim == 1 else vector).clone()
        moments = {f"opt_{k}": v for k, v in STEPPERS[self.optimizer].start(x).items()}
        rate = torch.full_like(sizes, self.learning_rate)
        return counters(x[0]) | moments | {"x": x, "good": x, "sizes": sizes, "rate": rate}

    def message(self, layout: Layout, state: State) -> Message:
        """To each its point, moments and rate."""
        del layout
        each = {name: state[name] for name in state if name.startswith("opt_")}
        return Message({}, each | {name: state[name] for name in ("x", "good", "rate")})

    def local(self, task: Task, group: ShardGroup, message: Message) -> Reply:
        """Steps on the objective per row; the prior counts in full for every expert."""
        each = message.each
        x, moments, seen = local_steps(
            task,
            group.shards,
            each["x"],
            {name.removeprefix("opt_"): v for name, v in each.items() if name.startswith("opt_")},
            each["rate"],
            self.local_steps,
            self.optimizer,
            1.0 / group.shards.sizes.to(each["rate"]),
            torch.ones_like(each["rate"]),
            good=each["good"],
        )
        return Reply({}, {f"opt_{name}": v for name, v in moments.items()} | seen | {"x": x})

    def merge(self, task: Task, state: State, reply: Reply) -> State:
        """Nothing to merge: note where everyone is."""
        del task
        each = reply.each
        kept = {name: each[name] for name in state if name.startswith("opt_") or name == "rate"}
        return (
            state
            | kept
            | {
                "x": each["x"],
                "good": each["good"],
                "objective": each["value"].sum(),
                "gradient_norm": each["gradient"].norm(),
                "accepted": state["accepted"] + torch.isfinite(each["value"]).all(),
                "round": state["round"] + 1,
                "failures": state["failures"] + int(each["failures"].sum()),
            }
        )

    def vectors(self, layout: Layout, state: State) -> Tensor:
        """Every expert's own."""
        del layout
        return state["x"]
