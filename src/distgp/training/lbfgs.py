"""L-BFGS as a state machine: each evaluation of its line search can be a round of its own.

The state holds the last accepted point `good` with its `objective` and gradient `g`, the pairs S and
Y, and the trial point `x`. The objective of accepted points never rises.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from distgp.training.steps import State

MEMORY = 10
"""Pairs that are remembered."""
ARMIJO = 1e-4
LEAST_SHARE = 0.05
"""A bound that leaves less than this of a step holds its coordinate instead of the whole step."""
SHORTEST = 1e-12
"""A trial step smaller than this in every entry is given up."""
Project = Callable[[Tensor], Tensor]
"""Maps a point into the bounds."""


def start(z: Tensor) -> State:
    """Nothing known yet: the first evaluation, at the start itself, is always accepted."""
    empty = z.new_zeros(0, len(z))
    return {"x": z, "good": z, "g": torch.zeros_like(z), "S": empty, "Y": empty}


def acceptable(state: State, value: Tensor) -> bool:
    """Whether the trial point decreases the objective enough (Armijo)."""
    if not bool(torch.isfinite(value)):
        return False
    slope = state["g"] @ (state["x"] - state["good"])
    decrease = ARMIJO * slope.clamp_max(0.0)
    return int(state["accepted"]) == 0 or bool(value <= state["objective"] + decrease)


def accept(state: State, value: Tensor, gradient: Tensor, project: Project) -> State:
    """Move to the trial point and try the next one, along the coordinates that bounds leave free."""
    x, S, Y = state["x"], state["S"], state["Y"]
    step, y = state["x"] - state["good"], gradient - state["g"]
    if int(state["accepted"]) and step @ y > 1e-10 * step.norm() * y.norm():
        S, Y = torch.cat([S, step[None]])[-MEMORY:], torch.cat([Y, y[None]])[-MEMORY:]
    free = _free(x, gradient, project)
    downhill = -gradient * free
    steepest = downhill * min(1.0, 1.0 / float(downhill.norm() + 1e-300))
    pairs = ((S * free) * (Y * free)).sum(-1) > 1e-10 * (S * free).norm(dim=-1) * (Y * free).norm(
        dim=-1
    )
    newton = two_loop(-downhill, S[pairs] * free, Y[pairs] * free) * free
    trial = project(x + _within(x, newton, project))
    if not pairs.any() or float(gradient @ (trial - x)) >= 0:
        trial = project(x + steepest)
    return state | {
        "S": S,
        "Y": Y,
        "g": gradient,
        "good": state["x"],
        "x": trial,
        "objective": value,
        "gradient_norm": downhill.norm(),
        "accepted": state["accepted"] + 1,
    }


def _within(x: Tensor, step: Tensor, project: Project) -> Tensor:
    """The step up to the first bound that it meets, so that its direction stays.

    Cutting off single coordinates instead would leave the valley that the others follow. Only those
    that could hardly move are held still.
    """
    share = torch.where(step == 0, 1.0, (project(x + step) - x) / step)
    moving = share > LEAST_SHARE
    return step * moving * torch.where(moving, share, 1.0).min()


def _free(x: Tensor, gradient: Tensor, project: Project) -> Tensor:
    """1 where a small step downhill stays within the bounds, 0 where a bound stops it."""
    nudge = 1e-6 * (1.0 + x.abs()) * gradient.sign()
    stopped = (project(x - nudge) == x) & (gradient != 0)
    return (~stopped).to(x.dtype)


def shorten(state: State, value: Tensor, project: Project) -> State:
    """Back towards the last good point: by the parabola through what is known, or to a tenth."""
    step = state["x"] - state["good"]
    factor = 0.1
    if bool(torch.isfinite(value)):
        slope = float(state["g"] @ step)
        rise = float(value - state["objective"]) - slope
        factor = min(0.5, max(0.1, -slope / (2 * rise))) if rise > 0 else 0.5
    if float(factor * step.abs().max()) >= SHORTEST:
        return state | {"x": state["good"] + factor * step}
    # Nothing is left of the step: forget the curvature and start again from the gradient.
    empty = state["S"][:0]
    downhill = -state["g"] * min(1.0, 1e-3 / float(state["g"].norm() + 1e-300))
    return state | {"S": empty, "Y": empty, "x": project(state["good"] + downhill)}


def two_loop(gradient: Tensor, S: Tensor, Y: Tensor) -> Tensor:
    """−H g by the two-loop recursion over pairs s, y (k, D), oldest first."""
    q, alphas = gradient.clone(), []
    for s, y in zip(S.flip(0), Y.flip(0), strict=True):
        alpha = (s @ q) / (s @ y)
        q = q - alpha * y
        alphas.append(alpha)
    if len(S):
        q = q * (S[-1] @ Y[-1]) / Y[-1].square().sum()
    for s, y, alpha in zip(S, Y, reversed(alphas), strict=True):
        q = q + s * (alpha - (y @ q) / (s @ y))
    return -q
