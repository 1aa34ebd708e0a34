"""FACT: the objective Σ_i objective_i, its gradient summed over workers; and optimisers that take steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.training.lbfgs import Lbfgs, finite
from distgp.training.objective import Objective
from distgp.training.rounds import DESCENT, Algorithm, Message, Reply, Rounds, Tensors


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
        layout, M, k = objective.layout, len(sizes), objective.layout.n_shared
        weight = sizes / sizes.sum()
        low, high = (torch.cat([b[:k], b[k:].repeat(M)]) for b in (layout.low, layout.high))

        def parts(z: Tensor) -> tuple[Tensor, Tensor]:
            return z[:k], z[k:].reshape(M, len(layout.low) - k)

        def vectors(z: Tensor) -> Tensor:
            return layout.join(*parts(z))

        def evaluate(z: Tensor) -> tuple[Tensor, Tensor]:
            shared, own = parts(z)
            message = Message({"shared": shared}, {"own": own, "prior_weight": weight})
            reply = rounds.exchange(message)
            own_gradient = reply.each["gradient"].reshape(-1)
            return reply.summed["value"], torch.cat([reply.summed["gradient"], own_gradient])

        shared, own = layout.split(start, M)
        z = torch.cat([shared, own.reshape(-1)])
        if self.optimizer == "lbfgs":  # every trial point is a round
            search = Lbfgs(z, low, high, rounds.curvature)
            found = lambda z: search.record(rounds, z, *evaluate(z), vectors)  # noqa: E731
            search.minimise(found, rounds.least_gain)
        else:
            self._by_steps(z, (low, high), sizes.sum(), evaluate, vectors, rounds)

    def _by_steps(
        self,
        z: Tensor,
        bounds: tuple[Tensor, Tensor],
        n: Tensor,
        evaluate: Callable[[Tensor], tuple[Tensor, Tensor]],
        vectors: Callable[[Tensor], Tensor],
        rounds: Rounds,
    ) -> None:
        """One step per round; from a useless point, back to the last good one with half the rate."""
        rate, good, memory = n.new_tensor(self.learning_rate), z, fresh(self.optimizer, z)
        value = norm = torch.full_like(rate, torch.nan)
        while True:
            found, gradient = evaluate(z)
            fine = bool(finite(found, gradient))
            if fine:
                value, norm, good = found, gradient.norm(), z
                per_row = gradient / n if self.optimizer == "sgd" else gradient
                move, memory = STEPS[self.optimizer](memory, per_row, rate)
                z = torch.clamp(z + move, *bounds)
            else:
                z, rate, memory = good, 0.5 * rate, fresh(self.optimizer, z)
            rounds.record(vectors(z), value, norm, accepted=fine, failed=not fine)


def adam(memory: Tensors, gradient: Tensor, rate: Tensor) -> tuple[Tensor, Tensors]:
    """Adam (Kingma and Ba): −rate · mean / (√square + 1e-8), both corrected for their start at zero."""
    t = memory["steps"] + 1
    mean = 0.9 * memory["mean"] + (1 - 0.9) * gradient
    square = 0.999 * memory["square"] + (1 - 0.999) * gradient.square()
    direction = mean / (1 - 0.9**t)[..., None]
    scale = (square / (1 - 0.999**t)[..., None]).sqrt() + 1e-8
    return -rate[..., None] * direction / scale, {"mean": mean, "square": square, "steps": t}


def sgd(memory: Tensors, gradient: Tensor, rate: Tensor) -> tuple[Tensor, Tensors]:
    """Plain gradient steps: −rate · gradient, without memory."""
    return -rate[..., None] * gradient, memory


STEPS = {"adam": adam, "sgd": sgd}
"""The move (*batch, P) and the optimiser's memory after it, for a gradient and rates (*batch,)."""


def fresh(optimizer: str, x: Tensor) -> Tensors:
    """The memory of an optimiser before its first step from points x (*batch, P)."""
    if optimizer == "sgd":
        return {}
    moments = {name: torch.zeros_like(x) for name in ("mean", "square")}
    return moments | {"steps": torch.zeros_like(x[..., 0])}


def check_steps(
    name: str,
    optimizer: str,
    learning_rate: float,
    local_steps: int = 1,
    also: tuple[str, ...] = (),
) -> None:
    """Refuse an optimizer, a rate or a number of steps with which an algorithm cannot work."""
    if optimizer not in (*STEPS, *also):
        raise ValueError(
            f"{name} has no optimizer {optimizer!r}; there are {', '.join((*also, *STEPS))}"
        )
    if local_steps < 1 or not learning_rate > 0:
        raise ValueError(
            f"local_steps and learning_rate of {name} must be positive, got {local_steps} and "
            f"{learning_rate}"
        )
