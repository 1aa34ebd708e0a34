"""First-order optimisers: single steps of Adam and plain descent, and steps on a worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.training.base import Tensors
from distgp.training.objective import Objective


class Stepper(ABC):
    """An optimiser that takes one step per gradient and keeps its memory outside, in tensors."""

    @abstractmethod
    def start(self, x: Tensor) -> Tensors:
        """The memory before the first step from points x (*batch, P)."""

    @abstractmethod
    def step(self, memory: Tensors, gradient: Tensor, rate: Tensor) -> tuple[Tensor, Tensors]:
        """The move (*batch, P) and the memory after it, for learning rates (*batch,)."""


@dataclass(frozen=True)
class Adam(Stepper):
    """Adam (Kingma and Ba): the gradient's running mean over the root of its running mean square."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def start(self, x: Tensor) -> Tensors:
        """Zero moments."""
        count = torch.zeros(x.shape[:-1], dtype=x.dtype, device=x.device)
        return {"mean": torch.zeros_like(x), "square": torch.zeros_like(x), "steps": count}

    def step(self, memory: Tensors, gradient: Tensor, rate: Tensor) -> tuple[Tensor, Tensors]:
        """Move by −rate · mean / (√square + ε), both corrected for their start at zero."""
        t = memory["steps"] + 1
        mean = self.beta1 * memory["mean"] + (1 - self.beta1) * gradient
        square = self.beta2 * memory["square"] + (1 - self.beta2) * gradient.square()
        direction = mean / (1 - self.beta1**t)[..., None]
        scale = (square / (1 - self.beta2**t)[..., None]).sqrt() + self.epsilon
        move = -rate[..., None] * direction / scale
        return move, {"mean": mean, "square": square, "steps": t}


@dataclass(frozen=True)
class Sgd(Stepper):
    """Plain gradient steps, without memory."""

    def start(self, x: Tensor) -> Tensors:
        """Nothing."""
        del x
        return {}

    def step(self, memory: Tensors, gradient: Tensor, rate: Tensor) -> tuple[Tensor, Tensors]:
        """Move by −rate · gradient."""
        return -rate[..., None] * gradient, memory


STEPPERS: dict[str, Stepper] = {"adam": Adam(), "sgd": Sgd()}


def check_steps(
    name: str,
    optimizer: str,
    learning_rate: float,
    local_steps: int = 1,
    also: tuple[str, ...] = (),
) -> None:
    """Refuse an optimizer, a rate or a number of steps with which an algorithm cannot work."""
    if optimizer not in (*STEPPERS, *also):
        raise ValueError(
            f"{name} has no optimizer {optimizer!r}; there are {', '.join((*also, *STEPPERS))}"
        )
    if local_steps < 1 or not learning_rate > 0:
        raise ValueError(
            f"local_steps and learning_rate of {name} must be positive, got {local_steps} and "
            f"{learning_rate}"
        )


def finite(value: Tensor, gradient: Tensor) -> Tensor:
    """Whether a value (*batch,) and its gradient (*batch, P) are usable, (*batch,)."""
    return torch.isfinite(value) & torch.isfinite(gradient).all(-1)


def start_steps(optimizer: str, x: Tensor, rate: float) -> Tensors:
    """What `local_steps` starts from, for points x (M, P): points, rates (M,) and memory."""
    rates = torch.full(x.shape[:1], rate, dtype=x.dtype, device=x.device)
    return {"x": x, "good": x, "rate": rates} | STEPPERS[optimizer].start(x)


def local_steps(
    objective: Objective,
    shard: Shard,
    each: Tensors,
    count: int,
    optimizer: str,
    scale: Tensor,
    prior_weight: Tensor,
    pull: Callable[[Tensor], Tensor] | None = None,
) -> Tensors:
    """Take optimiser steps with every expert of a worker, each on its own objective.

    An expert whose objective cannot be computed goes back to its last good point, forgets what the
    optimiser remembers, and halves its rate.

    Parameters
    ----------
    objective : Objective
        What is minimised.
    shard : Shard
        The rows of M experts.
    each : dict of str to Tensor
        Per expert: "x" (M, P), where it stands; "good" (M, P), the last point where its objective
        could be computed; "rate" (M,), its learning rate; and the optimiser's memory.
    count : int
        The number of steps.
    optimizer : str
        A name of `STEPPERS`.
    scale : Tensor of shape (M,)
        A factor of each objective: 1 / n_i for the objective per row.
    prior_weight : Tensor of shape (M,)
        The share of the log prior that each objective contains.
    pull : callable, optional
        The gradient (M, P) of what is added to each scaled objective, at points (M, P).

    Returns
    -------
    dict of str to Tensor
        What `each` holds, after the steps; "value" (M,) and "gradient" (M, P) of the objective itself
        where the steps began; and "failures" (M,), how often it could not be computed.
    """
    stepper = STEPPERS[optimizer]
    x, good, rate = each["x"], each["good"], each["rate"]
    memory = {name: each[name] for name in stepper.start(x)}
    failures, seen = torch.zeros_like(rate), {}
    for _ in range(count):
        value, gradient = objective.evaluate(shard, x, prior_weight)
        seen = seen or {"value": value, "gradient": gradient}
        fine = finite(value, gradient)
        good = torch.where(fine[:, None], x, good)
        failures, rate = failures + ~fine, torch.where(fine, rate, 0.5 * rate)
        total = scale[:, None] * gradient + (0.0 if pull is None else pull(x))
        move, after = stepper.step(memory, torch.where(fine[:, None], total, 0.0), rate)
        memory = choose(fine, after, stepper.start(x))
        x = torch.where(fine[:, None], objective.layout.clamp(good + move), good)
    return {"x": x, "good": good, "rate": rate} | memory | seen | {"failures": failures}


def choose(which: Tensor, yes: Tensors, no: Tensors) -> Tensors:
    """The rows of `yes` of the experts where `which` (M,) is true, those of `no` of the others."""
    return {
        name: torch.where(which.reshape(-1, *[1] * (value.ndim - 1)), value, no[name])
        for name, value in yes.items()
    }
