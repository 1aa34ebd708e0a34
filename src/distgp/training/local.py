"""Local steps: what FedAvg, FedProx, ADMM and independent training do on a worker."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from distgp.shards import Shard
from distgp.training.steps import STEPPERS, State, finite
from distgp.training.task import Task, evaluate

Pull = Callable[[Tensor], Tensor]
"""The gradient (M, P) of what is added to each local objective at x (M, P)."""


def local_steps(
    task: Task,
    shards: Shard,
    start: Tensor,
    moments: State,
    rate: Tensor,
    steps: int,
    optimizer: str,
    scale: Tensor,
    prior_weight: Tensor,
    pull: Pull | None = None,
    good: Tensor | None = None,
) -> tuple[Tensor, State, State]:
    """`steps` optimiser steps of every expert of a batch on scale · objective (+ what pulls).

    start (M, P); rate, scale, prior_weight (M,). Returns the points, the moments, and what was seen
    at the start: `value` and `gradient` of the objective itself, `failures`, and `good`, the last
    point whose numbers were in hand. An expert whose numbers are not goes back to that (`good`, if
    it comes to that at the start), forgets its moments and halves its rate.
    """
    stepper = STEPPERS[optimizer]
    x, good = start, start if good is None else good
    seen: State = {}
    failures = torch.zeros_like(rate)
    for _ in range(steps):
        value, gradient = evaluate(task, shards, x, prior_weight)
        if not seen:
            seen = {"value": value, "gradient": gradient}
        fine = finite(value, gradient)
        good = torch.where(fine[:, None], x, good)
        failures, rate = failures + ~fine, torch.where(fine, rate, 0.5 * rate)
        total = scale[:, None] * gradient + (0.0 if pull is None else pull(x))
        move, after = stepper.step(moments, torch.where(fine[:, None], total, 0.0), rate)
        fresh = stepper.start(x)
        moments = {
            name: torch.where(fine.reshape(-1, *[1] * (value.ndim - 1)), value, fresh[name])
            for name, value in after.items()
        }
        x = torch.where(fine[:, None], task.layout.clamp(good + move), good)
    return x, moments, seen | {"failures": failures, "rate": rate, "good": good}
