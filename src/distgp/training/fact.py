"""FACT: the factorised objective Σ_i objective_i, its gradient summed over workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.training.base import DESCENT, Algorithm, Message, Reply
from distgp.training.objective import Layout, Objective
from distgp.training.optimizers import STEPPERS, Lbfgs, check_steps, finite
from distgp.training.rounds import Rounds

Evaluate = Callable[[Tensor], tuple[Tensor, Tensor]]
"""The objective at a point and its gradient, found in one exchange."""


@dataclass(frozen=True)
class Fact(Algorithm):
    """FACT, equation (3): the block-diagonal likelihood. With one shard, ordinary central training.

    Every round finds the objective Σ_i objective_i and its gradient at one point.

    Parameters
    ----------
    optimizer : {"lbfgs", "adam", "sgd"}, default="lbfgs"
        "lbfgs" is deterministic and needs far fewer rounds: each evaluation of its line search is a
        round, and the objective never rises. "adam" takes one step a round, its moments kept at the
        centre. "sgd" takes a plain step on the objective per row.
    learning_rate : float, default=0.1
        The size of the steps of "adam" and "sgd".
    n_iter : int, default=100
        The number of rounds, at most.
    """

    name: ClassVar[str] = "fact"
    exchanges: ClassVar[Kinds] = DESCENT
    optimizer: Literal["lbfgs", "adam", "sgd"] = "lbfgs"
    learning_rate: float = 0.1
    n_iter: int = 100

    def __post_init__(self) -> None:
        check_steps(self.name, self.optimizer, self.learning_rate, also=("lbfgs",))

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Answer with the experts' objectives and their gradient at the point."""
        own = message.each["own"]
        point = objective.layout.join(message.shared["shared"], own)
        values, gradient = objective.evaluate(shard, point, message.each["prior_weight"])
        if point.ndim == 1:
            return Reply({"value": values.sum(), "gradient": gradient}, {"gradient": own})
        k = objective.layout.n_shared
        summed = {"value": values.sum(), "gradient": gradient[:, :k].sum(0)}
        return Reply(summed, {"gradient": gradient[:, k:]})

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Minimise over one long vector: the shared part, then every expert's own."""
        layout, M = objective.layout, len(sizes)
        weight = sizes / sizes.sum()

        def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
            shared, own = _parts(layout, z, M)
            message = Message({"shared": shared}, {"own": own, "prior_weight": weight})
            reply = rounds.exchange(message)
            own_gradient = reply.each["gradient"].reshape(-1)
            return reply.summed["value"], torch.cat([reply.summed["gradient"], own_gradient])

        shared, own = layout.split(start, M)
        z = torch.cat([shared, own.reshape(-1)])
        if self.optimizer == "lbfgs":
            self._by_lbfgs(layout, z, M, evaluate, rounds)
        else:
            self._by_steps(layout, z, sizes, evaluate, rounds)

    def _by_lbfgs(
        self, layout: Layout, z: Tensor, M: int, evaluate: Evaluate, rounds: Rounds
    ) -> None:
        """Every trial point is a round; the best point so far is where training stands."""
        search = Lbfgs(z, *_bounds(layout, M))

        def trial(z: Tensor) -> tuple[float, Tensor]:
            value, gradient = evaluate(z)
            better = search.offer(z, float(value), gradient)
            rounds.record(
                layout.join(*_parts(layout, search.x, M)),
                search.value,
                search.gradient_norm,
                accepted=better,
                failed=not finite(value, gradient),
            )
            return float(value), gradient

        search.minimise(trial)

    def _by_steps(
        self, layout: Layout, z: Tensor, sizes: Tensor, evaluate: Evaluate, rounds: Rounds
    ) -> None:
        """One step per round; from a useless point, back to the last good one with half the rate."""
        low, high = _bounds(layout, len(sizes))
        stepper, rate, good = STEPPERS[self.optimizer], sizes.new_tensor(self.learning_rate), z
        memory = stepper.start(z)
        value = norm = torch.full_like(rate, torch.nan)
        while True:
            found, gradient = evaluate(z)
            fine = bool(finite(found, gradient))
            if fine:
                value, norm, good = found, gradient.norm(), z
                per_row = gradient / sizes.sum() if self.optimizer == "sgd" else gradient
                move, memory = stepper.step(memory, per_row, rate)
                z = torch.clamp(z + move, low, high)
            else:
                z, rate, memory = good, 0.5 * rate, stepper.start(z)
            vectors = layout.join(*_parts(layout, z, len(sizes)))
            rounds.record(vectors, value, norm, accepted=fine, failed=not fine)


def _parts(layout: Layout, z: Tensor, M: int) -> tuple[Tensor, Tensor]:
    """The shared part of the long vector, and every expert's own (M, …)."""
    k = layout.n_shared
    return z[:k], z[k:].reshape(M, len(layout.low) - k)


def _bounds(layout: Layout, M: int) -> tuple[Tensor, Tensor]:
    """Bounds of the long vector."""
    k = layout.n_shared
    low, high = (torch.cat([b[:k], b[k:].repeat(M)]) for b in (layout.low, layout.high))
    return low, high
