"""ADMM: consensus by local minimisation, averaging, and dual ascent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.training.base import Algorithm, Message, Reply, counters, joined, split_start
from distgp.training.layout import Layout
from distgp.training.local import local_steps
from distgp.training.steps import STEPPERS, State
from distgp.training.task import Task
from distgp.workers import ShardGroup


@dataclass(frozen=True)
class Admm(Algorithm):
    """Each expert minimises objective_i + ψ_iᵀ(θ_i − θ) + ρ/2 ‖θ_i − θ‖²; then θ and ψ are updated.

    θ = mean(θ_i + ψ_i / ρ), unweighted, and ψ_i ← ψ_i + ρ(θ_i − θ), with objectives summed over rows,
    against which ρ counts: a fixed point is a stationary point of FACT. The minimisation is
    `local_steps` steps from the expert's last θ_i. Adam starts afresh each round: every round has
    another objective, and moments of the last one drive the experts apart. A step moves θ_i by about
    `learning_rate`, which must be small for the residuals to become so. `primal` and `dual` in
    the state are the residuals ‖θ_i − θ‖ and ρ√M‖θ − θ_before‖.
    """

    name: ClassVar[str] = "admm"
    rho: float = 500.0
    local_steps: int = 5
    learning_rate: float = 0.01
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100

    def __post_init__(self) -> None:
        if not self.rho > 0:
            raise ValueError(f"rho must be positive, got {self.rho}")

    def start(self, layout: Layout, vector: Tensor, sizes: Tensor) -> State:
        """All experts at the start, no dual force."""
        shared, own = split_start(layout, vector, len(sizes))
        x = torch.cat([shared.expand(len(sizes), -1), own], -1)
        nan = torch.full_like(shared[:1].sum(), torch.nan)
        return counters(shared) | {
            "shared": shared,
            "x": x,
            "good": x,
            "psi": torch.zeros(len(sizes), layout.n_shared, dtype=x.dtype, device=x.device),
            "sizes": sizes,
            "rate": torch.full_like(sizes, self.learning_rate),
            "primal": nan,
            "dual": nan,
        }

    def message(self, layout: Layout, state: State) -> Message:
        """The consensus to all; to each its point, dual force and rate."""
        del layout
        each = {name: state[name] for name in ("x", "good", "psi", "rate")}
        each["prior_weight"] = state["sizes"] / state["sizes"].sum()
        return Message({"shared": state["shared"]}, each)

    def local(self, task: Task, group: ShardGroup, message: Message) -> Reply:
        """Steps on the augmented objective."""
        each, centre, k = message.each, message.shared["shared"], task.layout.n_shared

        def pull(x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            out[:, :k] = each["psi"] + self.rho * (x[:, :k] - centre)
            return out

        x, _, seen = local_steps(
            task,
            group.shards,
            each["x"],
            STEPPERS[self.optimizer].start(each["x"]),
            each["rate"],
            self.local_steps,
            self.optimizer,
            torch.ones_like(each["rate"]),
            each["prior_weight"],
            pull,
            each["good"],
        )
        return Reply({}, seen | {"x": x})

    def merge(self, task: Task, state: State, reply: Reply) -> State:
        """The consensus and dual steps."""
        layout, each = task.layout, reply.each
        k = layout.n_shared
        local = each["x"][:, :k]
        shared = layout_clamped(layout, (local + state["psi"] / self.rho).mean(0))
        gap = local - shared
        kept = {"rate": each["rate"]}
        moved = (shared - state["shared"]).norm()
        return (
            state
            | kept
            | {
                "shared": shared,
                "x": each["x"],
                "good": each["good"],
                "psi": state["psi"] + self.rho * gap,
                "primal": gap.norm(),
                "dual": self.rho * len(gap) ** 0.5 * moved,
                "objective": each["value"].sum(),
                "gradient_norm": each["gradient"][:, :k].sum(0).norm(),
                "accepted": state["accepted"] + torch.isfinite(each["value"]).all(),
                "round": state["round"] + 1,
                "failures": state["failures"] + int(each["failures"].sum()),
            }
        )

    def vectors(self, layout: Layout, state: State) -> Tensor:
        """The consensus."""
        return joined(layout, state["shared"], state["x"][:, layout.n_shared :])


def layout_clamped(layout: Layout, shared: Tensor) -> Tensor:
    """The shared part within its bounds."""
    k = layout.n_shared
    return torch.minimum(torch.maximum(shared, layout.low[:k]), layout.high[:k])
