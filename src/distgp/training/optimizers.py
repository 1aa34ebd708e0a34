"""First-order optimisers: single steps of Adam and plain descent, and steps on a worker."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from scipy import optimize
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
    """Return what `local_steps` starts from at points x (M, P): points, rates (M,) and memory."""
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
    optimiser remembers, and halves its rate. `each` has every expert's point "x" (M, P), its last "good"
    one, its "rate" (M,) and the optimiser's memory; they are returned as they are after the steps, with
    "value" (M,) and "gradient" (M, P) where the steps began, and the number of "failures" (M,).
    Objectives are multiplied by `scale` (M,); `pull` is the gradient of what is added to them.
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


OPTIONS = {"maxcor": 10, "maxiter": 10**9, "maxfun": 10**9, "ftol": 0, "gtol": 0}
"""Ten remembered steps, and no stopping rule of SciPy's: `Rounds` has its own."""
SHORTENED = 0.1
"""The part of a step that is kept, at least, when it leads to a useless point."""

Evaluate = Callable[[Tensor], tuple[float, Tensor | None]]


@dataclass(frozen=True, eq=False)
class Point:
    """A point with its objective and gradient, in SciPy's arrays."""

    x: np.ndarray
    value: float
    gradient: np.ndarray


class NothingToGain(Exception):
    """The next step promises no more than rounding errors."""


class Lbfgs:
    """A search for the minimum, which keeps the best point that it has found.

    L-BFGS-B compares each trial point with the point at which its line search began, and shortens the
    step as the values and slopes of both suggest. Where a trial has no value, or one that is far too
    high, L-BFGS-B is told those of a parabola along the step: it begins as the objective does and has
    its minimum at a tenth of the step. The trial is then refused and the step shortened to a tenth.
    """

    def __init__(self, start: Tensor, low: Tensor, high: Tensor) -> None:
        self.x = start
        """The best point so far."""
        self.value = math.nan
        """The objective there; NaN before the first evaluation."""
        self.gradient_norm = math.nan
        """The norm of the gradient there, without the entries at which a bound stops descent."""
        self._low, self._high = _array(low), _array(high)
        # Relative differences of the objective that factorisations cannot resolve: 2e-12 in float64.
        self._rounding = torch.finfo(start.dtype).eps ** 0.75
        self._best: Point | None = None
        self._began: Point | None = None  # where the line search began
        self._told: Point | None = None  # what SciPy was told last

    def hopeful(self, value: float) -> bool:
        """Whether a trial with this value may be accepted, so that its gradient is worth having."""
        if self._began is None:
            return math.isfinite(value)
        return value <= self._began.value

    def offer(self, x: Tensor, value: float, gradient: Tensor) -> bool:
        """Keep a point if it is usable and the best so far; return whether it is."""
        usable = math.isfinite(value) and bool(torch.isfinite(gradient).all())
        if not usable or value >= self.value:
            return False
        self.x, self.value = x, value
        self._best = Point(_array(x), value, _array(gradient))
        self.gradient_norm = float(np.linalg.norm(self._free(self._best)))
        return True

    def minimise(self, evaluate: Evaluate) -> None:
        """Search until no further progress is possible, or until `evaluate` raises an exception.

        It returns the objective at a point, or NaN, and the gradient, or None for a trial that is not
        `hopeful`; and it must call `offer` with what it found.
        """
        evaluate(self.x)
        while self._best is not None:
            before = self._began = self._best
            # The first step of L-BFGS-B is as long as the gradient: with this scale, 1 at most.
            scale = 1.0 / max(1.0, self.gradient_norm)

            def scaled(x: np.ndarray, scale: float = scale) -> tuple[float, np.ndarray]:
                self._told = self._trial(x, evaluate)
                return scale * self._told.value, scale * self._told.gradient

            with suppress(NothingToGain):
                optimize.minimize(
                    scaled,
                    before.x,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=list(zip(self._low, self._high, strict=True)),
                    callback=self._begin_line_search,
                    options=OPTIONS,
                )
            # A line search that failed after some trials may have met a better point: go on from there,
            # with a fresh memory of the curvature.
            converged = self._told is self._began
            if converged or self.value >= before.value - self._smallest(before.value):
                return

    def _begin_line_search(self, intermediate_result: object) -> None:
        """Note that the last trial was accepted: it is where the next line search begins."""
        del intermediate_result
        self._began = self._told

    def _trial(self, x: np.ndarray, evaluate: Evaluate) -> Point:
        """Return what SciPy is told of a trial point; of a useless one, a point of the parabola."""
        best, began = self._best, self._began
        assert best is not None and began is not None
        if np.array_equal(x, best.x):  # SciPy begins anew, or returns to the best of a line search
            return best
        step = x - began.x
        descent = -float(began.gradient @ step)
        if descent <= self._smallest(began.value):
            raise NothingToGain
        value, gradient = evaluate(torch.from_numpy(x.copy()).to(self.x))
        # began − descent·t + rise·t² has its minimum at t = SHORTENED for rise = descent / (2·SHORTENED).
        highest = began.value + (0.5 / SHORTENED - 1.0) * descent
        known = gradient is not None and bool(torch.isfinite(gradient).all())
        if gradient is not None and known and value <= highest:
            return Point(x.copy(), value, _array(gradient))
        rise = (value if value <= highest else highest) - began.value + descent
        slopes = began.gradient + 2.0 * rise / float(step @ step) * step
        return Point(x.copy(), began.value - descent + rise, slopes)

    def _smallest(self, value: float) -> float:
        """The smallest difference from an objective that is more than rounding errors."""
        return self._rounding * (1.0 + abs(value))

    def _free(self, point: Point) -> np.ndarray:
        """The gradient, zero where a bound stops descent."""
        stopped = (point.x <= self._low) & (point.gradient > 0)
        stopped |= (point.x >= self._high) & (point.gradient < 0)
        return np.where(stopped, 0.0, point.gradient)


def _array(x: Tensor) -> np.ndarray:
    return x.detach().to("cpu", torch.float64).numpy().copy()
