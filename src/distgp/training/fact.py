"""FACT: the factorised objective Σ_i objective_i, its gradient summed over workers, one central step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.training import lbfgs
from distgp.training.base import Algorithm, Message, Reply, counters, joined, split_start
from distgp.training.layout import Layout
from distgp.training.steps import STEPPERS, State, finite
from distgp.training.task import Task, evaluate
from distgp.workers import ShardGroup


@dataclass(frozen=True)
class Fact(Algorithm):
    """Equation (3): block-diagonal likelihood. With one shard it is ordinary central training.

    optimizer "lbfgs" (default) is deterministic and needs far fewer rounds; each evaluation of its
    line search is a round, and the objective never rises. "adam" takes one step of `learning_rate`
    a round, its moments kept at the centre; "sgd" is a plain step on the objective per row.
    """

    name: ClassVar[str] = "fact"
    optimizer: Literal["lbfgs", "adam", "sgd"] = "lbfgs"
    learning_rate: float = 0.1
    n_iter: int = 100

    def start(self, layout: Layout, vector: Tensor, sizes: Tensor) -> State:
        """The point as one vector: the shared part, then every expert's own."""
        shared, own = split_start(layout, vector, len(sizes))
        z = torch.cat([shared, own.reshape(-1)])
        state = counters(z) | {"x": z, "good": z, "sizes": sizes}
        state["rate"] = torch.full((), self.learning_rate, dtype=z.dtype, device=z.device)
        if self.optimizer == "lbfgs":
            return state | lbfgs.start(z)
        return state | {f"opt_{k}": v for k, v in STEPPERS[self.optimizer].start(z).items()}

    def message(self, layout: Layout, state: State) -> Message:
        """The point to evaluate."""
        shared, own = _parts(layout, state["x"], len(state["sizes"]))
        weight = state["sizes"] / state["sizes"].sum()
        return Message({"shared": shared}, {"own": own, "prior_weight": weight})

    def local(self, task: Task, group: ShardGroup, message: Message) -> Reply:
        """Objectives and their gradient there."""
        own, weight = message.each["own"], message.each["prior_weight"]
        point = joined(task.layout, message.shared["shared"], own)
        values, gradient = evaluate(task, group.shards, point, weight)
        k = task.layout.n_shared
        if point.ndim == 1:
            return Reply({"value": values.sum(), "gradient": gradient}, {"gradient_own": own})
        return Reply(
            {"value": values.sum(), "gradient": gradient[:, :k].sum(0)},
            {"gradient_own": gradient[:, k:]},
        )

    def merge(self, task: Task, state: State, reply: Reply) -> State:
        """One optimiser step; out of hand, back to the last good point with half the step."""
        layout, value = task.layout, reply.summed["value"]
        gradient = torch.cat([reply.summed["gradient"], reply.each["gradient_own"].reshape(-1)])
        fine = bool(finite(value, gradient))
        state = state | {"round": state["round"] + 1}
        if not fine:
            state["failures"] = state["failures"] + 1
        if self.optimizer != "lbfgs":
            return self._first_order(layout, state, value, gradient, fine)

        def project(z: Tensor) -> Tensor:
            return _clamped(layout, z, len(state["sizes"]))

        if fine and lbfgs.acceptable(state, value):
            return lbfgs.accept(state, value, gradient, project)
        return lbfgs.shorten(state, value if fine else value * torch.nan, project)

    def _first_order(
        self, layout: Layout, state: State, value: Tensor, gradient: Tensor, fine: bool
    ) -> State:
        stepper = STEPPERS[self.optimizer]
        if not fine:
            fresh = {f"opt_{k}": v for k, v in stepper.start(state["x"]).items()}
            return state | fresh | {"x": state["good"], "rate": 0.5 * state["rate"]}
        moments = {k.removeprefix("opt_"): v for k, v in state.items() if k.startswith("opt_")}
        per_row = gradient / state["sizes"].sum() if self.optimizer == "sgd" else gradient
        move, moments = stepper.step(moments, per_row, state["rate"])
        return (
            state
            | {f"opt_{k}": v for k, v in moments.items()}
            | {
                "x": _clamped(layout, state["x"] + move, len(state["sizes"])),
                "good": state["x"],
                "objective": value,
                "gradient_norm": gradient.norm(),
                "accepted": state["accepted"] + 1,
            }
        )

    def vectors(self, layout: Layout, state: State) -> Tensor:
        """Where the last step went; for L-BFGS, whose steps are trials, the last point accepted."""
        z = state["good"] if self.optimizer == "lbfgs" else state["x"]
        return joined(layout, *_parts(layout, z, len(state["sizes"])))


def _parts(layout: Layout, z: Tensor, M: int) -> tuple[Tensor, Tensor]:
    return z[: layout.n_shared], z[layout.n_shared :].reshape(M, layout.n_own)


def _clamped(layout: Layout, z: Tensor, M: int) -> Tensor:
    shared, own = _parts(layout, z, M)
    both = layout.clamp(torch.cat([shared.expand(M, -1), own], -1))
    return torch.cat([both[0, : layout.n_shared], both[:, layout.n_shared :].reshape(-1)])
