"""ADMM: consensus by local minimisation, averaging, and dual ascent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.training.base import DESCENT, Algorithm, Message, Reply
from distgp.training.objective import Layout, Objective
from distgp.training.optimizers import STEPPERS, check_steps, local_steps, start_steps
from distgp.training.rounds import Rounds


@dataclass(frozen=True)
class Admm(Algorithm):
    """Each expert minimises objective_i + ψ_iᵀ(θ_i − θ) + ρ/2 ‖θ_i − θ‖²; then θ and ψ are updated.

    θ = mean(θ_i + ψ_i / ρ), unweighted, and ψ_i ← ψ_i + ρ(θ_i − θ). Objectives are summed over rows,
    against which ρ counts, so that a fixed point is a stationary point of FACT. Adam starts afresh in
    each round: every round has another objective, and moments of the last one drive the experts
    apart. The history's residuals are "primal", ‖θ_i − θ‖ over all experts, and "dual",
    ρ√M‖θ − θ_before‖.

    Parameters
    ----------
    rho : float, default=500.0
        The weight ρ of the distance from the consensus.
    local_steps : int, default=5
        The number of steps that each expert takes in a round, from its last θ_i.
    learning_rate : float, default=0.01
        The size of the steps. Adam moves θ_i by about this much in a step, so it must be small for the
        residuals to become small.
    optimizer : {"adam", "sgd"}, default="adam"
        What makes a step of a gradient.
    n_iter : int, default=100
        The number of rounds, at most.
    """

    name: ClassVar[str] = "admm"
    exchanges: ClassVar[Kinds] = DESCENT
    rho: float = 500.0
    local_steps: int = 5
    learning_rate: float = 0.01
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100

    def __post_init__(self) -> None:
        check_steps(self.name, self.optimizer, self.learning_rate, self.local_steps)
        if not self.rho > 0:
            raise ValueError(f"rho must be positive, got {self.rho}")

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Take steps on the augmented objective."""
        each, centre, k = message.each, message.shared["shared"], objective.layout.n_shared

        def pull(x: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            out[:, :k] = each["psi"] + self.rho * (x[:, :k] - centre)
            return out

        fresh = STEPPERS[self.optimizer].start(each["x"])
        after = local_steps(
            objective,
            shard,
            each | fresh,
            self.local_steps,
            self.optimizer,
            torch.ones_like(each["rate"]),
            each["prior_weight"],
            pull,
        )
        return Reply({}, {name: value for name, value in after.items() if name not in fresh})

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Alternate the experts' minimisations with the consensus and the dual step."""
        layout, k = objective.layout, objective.layout.n_shared
        shared, own = layout.split(start, len(sizes))
        each = start_steps("sgd", layout.join_each(shared, own), self.learning_rate)
        psi, prior_weight = torch.zeros_like(each["x"][:, :k]), sizes / sizes.sum()
        while True:
            sent = each | {"psi": psi, "prior_weight": prior_weight}
            reply = rounds.exchange(Message({"shared": shared}, sent)).each
            each, before = {name: reply[name] for name in each}, shared
            shared, psi = self.consensus(layout, each["x"][:, :k], psi)
            dual = self.rho * len(sizes) ** 0.5 * (shared - before).norm()
            rounds.record(
                layout.join(shared, each["x"][:, k:]),
                reply["value"].sum(),
                reply["gradient"][:, :k].sum(0).norm(),
                accepted=bool(torch.isfinite(reply["value"]).all()),
                failed=bool(reply["failures"].any()),
                residuals={"primal": (each["x"][:, :k] - shared).norm(), "dual": dual},
            )

    def consensus(self, layout: Layout, x: Tensor, psi: Tensor) -> tuple[Tensor, Tensor]:
        """Find the consensus θ (n_shared,) within the bounds, and ψ (M, n_shared) after its ascent."""
        theta = layout.clamp((x + psi / self.rho).mean(0))
        return theta, psi + self.rho * (x - theta)
