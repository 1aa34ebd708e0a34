"""FACT: the sum of the experts' objectives is minimised; and the optimisers that take its steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import numpy as np
import torch
from scipy import optimize
from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.training.curvature import Curvature
from distgp.training.objective import Objective
from distgp.training.rounds import DESCENT, Algorithm, Message, Reply, Rounds, Tensors

Evaluate = Callable[[Tensor], tuple[float, Tensor | None]]
"""The objective at a point and its gradient, None for a trial of L-BFGS that is not hopeful."""
OPTIONS = {"maxcor": 10, "maxiter": 10**9, "maxfun": 10**9, "ftol": 0, "gtol": 0}
"""Ten remembered steps, and no stopping rule of SciPy's: `Rounds` has its own."""
SHORTENED = 0.1
"""The part of a step that is kept, at least, when it leads to a useless point."""
WORTH = 20.0
"""What a step of 1 in a parameter's logarithm must promise, in units of the least gain of a round, for the
search to begin anew."""
LONGEST, SHORTEST = 1.0, 1e-6
"""The longest step of a parameter's logarithm by a known curvature, and one that is too short to try."""


def finite(value: Tensor, gradient: Tensor) -> Tensor:
    """Whether a value (*batch,) and its gradient (*batch, P) are usable, (*batch,)."""
    return torch.isfinite(value) & torch.isfinite(gradient).all(-1)


class Point(NamedTuple):
    """A point with its objective and gradient, in SciPy's arrays."""

    x: np.ndarray
    value: float
    gradient: np.ndarray


class NothingToGain(Exception):
    """The next step promises no more than rounding errors."""


class Lbfgs:
    """A search for the minimum, which keeps the best point that it has found.

    Where a trial has no value, or one that is far too high, L-BFGS-B is told those of a parabola along
    the step: it begins as the objective does and has its minimum at a tenth of the step. The trial is
    then refused and the step shortened to a tenth.
    """

    def __init__(
        self, start: Tensor, low: Tensor, high: Tensor, curvature: Curvature | None = None
    ) -> None:
        self.x, self.value = start, math.nan  # the best point so far, and the objective there
        self.gradient_norm = math.nan  # there, without the entries at which a bound stops descent
        self._low, self._high = _array(low), _array(high)
        self._curvature = Curvature() if curvature is None else curvature
        self._known = self._curvature.knows(len(start))  # from an earlier search
        # Relative differences of the objective that factorisations cannot resolve: 2e-12 in float64.
        self._rounding = torch.finfo(start.dtype).eps ** 0.75
        self._best: Point | None = None
        self._began: Point | None = None  # where the line search began
        self._told: Point | None = None  # what SciPy was told last

    def hopeful(self, value: float) -> bool:
        """Whether a trial with this value may be accepted, so that its gradient is worth having."""
        return math.isfinite(value) if self._began is None else value <= self._began.value

    def offer(self, x: Tensor, value: float, gradient: Tensor) -> bool:
        """Keep a point if it is usable and the best so far; return whether it is."""
        usable = math.isfinite(value) and bool(torch.isfinite(gradient).all())
        if not usable:
            return False
        found, before = Point(_array(x), value, _array(gradient)), self._best
        if before is not None:
            self._curvature.learn(found.x - before.x, found.gradient - before.gradient)
        if value >= self.value:
            return False
        self.x, self.value, self._best = x, value, found
        self._curvature.stand(found.x)
        self.gradient_norm = float(np.linalg.norm(found.gradient[self._free(found)]))
        return True

    def _free(self, point: Point) -> np.ndarray:
        """Tell which entries of a point no bound keeps from descending."""
        stopped = (point.x <= self._low) & (point.gradient > 0)
        return ~(stopped | (point.x >= self._high) & (point.gradient < 0))

    def record(
        self,
        rounds: Rounds,
        x: Tensor,
        value: Tensor,
        gradient: Tensor,
        vectors: Callable[[Tensor], Tensor] = lambda x: x,
    ) -> tuple[float, Tensor]:
        """Offer what a round found at x, and record it; training stands at the `vectors` of the best."""
        better = self.offer(x, float(value), gradient)
        best, failed = vectors(self.x), not finite(value, gradient)
        rounds.record(best, self.value, self.gradient_norm, accepted=better, failed=failed)
        return float(value), gradient

    def minimise(self, evaluate: Evaluate, least: float = 0.0) -> None:
        """Search until no progress is possible; `evaluate` must `offer` or `record` what it found.

        By a known curvature it is over when the next step promises less than `least`. That of entries that
        were moved since is another: where these still descend, the search begins anew.
        """
        moved = self._curvature.moved(_array(self.x)) if self._known else None
        evaluate(self.x)
        if moved is not None:
            with suppress(NothingToGain):
                self._by_known_curvature(evaluate, least)
            if self._best is None or not self._descends(self._best, moved, WORTH * least):
                return
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

    def _descends(self, point: Point, entries: np.ndarray, least: float) -> bool:
        """Whether a step of 1 in one of some entries promises more than this."""
        return bool((np.abs(point.gradient) > least)[entries & self._free(point)].any())

    def _by_known_curvature(self, evaluate: Evaluate, least: float) -> None:
        """Take steps to the minimum of the parabola, shorter ones after one that led upwards.

        Such a step has told how the objective bends along it, so that the next one differs.
        """
        longest = LONGEST
        while (best := self._best) is not None and longest > SHORTEST:
            self._began, longest = best, min(LONGEST, 2.0 * longest)
            step = self._curvature.step(best.gradient, self._free(best), longest)
            x = np.clip(best.x + step, self._low, self._high)
            gain = self._curvature.gain(best.gradient, x - best.x)
            if 0.0 <= gain <= max(least, self._smallest(best.value)):
                return
            if gain > 0.0:  # a step that is cut off by bounds may lead upwards
                told = self._trial(x, evaluate)
                self._curvature.learn(told.x - best.x, told.gradient - best.gradient)
            if self._best is best:
                longest = 0.25 * float(np.abs(step).max())

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
        if gradient is not None and value <= highest and bool(torch.isfinite(gradient).all()):
            return Point(x.copy(), value, _array(gradient))
        rise = (value if value <= highest else highest) - began.value + descent
        slopes = began.gradient + 2.0 * rise / float(step @ step) * step
        return Point(x.copy(), began.value - descent + rise, slopes)

    def _smallest(self, value: float) -> float:
        """The smallest difference from an objective that is more than rounding errors."""
        return self._rounding * (1.0 + abs(value))


def _array(x: Tensor) -> np.ndarray:
    return x.detach().to("cpu", torch.float64).numpy().copy()


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
