"""Training by local steps: FedAvg, FedProx, ADMM, and independent experts.

In each round every expert takes steps of an optimiser on its own objective, and sends back where they
led. The algorithms differ in where the steps begin, what holds them back, and what is made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.training.fact import STEPS, check_steps, finite, fresh
from distgp.training.objective import Layout, Objective
from distgp.training.rounds import DESCENT, Algorithm, Message, Reply, Rounds, Tensors

Pull = Callable[[Tensor], Tensor]
"""The gradient (M, n_shared) in the shared parts (M, n_shared) of what is added to an objective."""


@dataclass(frozen=True)
class FedAvg(Algorithm):
    """E local steps on each objective per row, objective_i / n_i, then the n_i-weighted average.

    Adam's moments survive a round, each expert's own; they travel with θ. With one plain step
    (``optimizer="sgd"``, ``local_steps=1``) a round is FACT's step on the objective per row.

    Parameters
    ----------
    local_steps : int, default=5
        The number E of steps that each expert takes in a round.
    learning_rate : float, default=0.1
        The size of the steps.
    optimizer : {"adam", "sgd"}, default="adam"
        What makes a step of a gradient.
    n_iter : int, default=100
        The number of rounds, at most.
    """

    name: ClassVar[str] = "fedavg"
    exchanges: ClassVar[Kinds] = DESCENT
    local_steps: int = 5
    learning_rate: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100

    def __post_init__(self) -> None:
        check_steps(self.name, self.optimizer, self.learning_rate, self.local_steps)

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Take E steps with every expert."""
        return _from_broadcast(objective, shard, message, self.local_steps, self.optimizer)

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Average all experts."""
        _average(self, objective, start, sizes, rounds)


@dataclass(frozen=True)
class FedProx(Algorithm):
    """FedAvg's local steps with μ/2 ‖θ − θ_global‖² added to each objective per row.

    μ therefore counts against objective_i / n_i. With μ = 0 and all experts this is FedAvg.

    Parameters
    ----------
    mu : float, default=0.01
        The weight μ of the proximal term.
    fraction : float, default=0.5
        The part of the experts, at least one, that takes part in a round. They are drawn anew for each
        round, from the seed and the round's number.
    local_steps : int, default=5
        As for `FedAvg`, as are those that follow.
    learning_rate : float, default=0.1
    optimizer : {"adam", "sgd"}, default="adam"
    n_iter : int, default=100
    seed : int, default=0
        The seed of the draws.
    """

    name: ClassVar[str] = "fedprox"
    exchanges: ClassVar[Kinds] = DESCENT
    mu: float = 0.01
    fraction: float = 0.5
    local_steps: int = 5
    learning_rate: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        check_steps(self.name, self.optimizer, self.learning_rate, self.local_steps)
        if not 0 < self.fraction <= 1 or self.mu < 0:
            raise ValueError(
                f"expected 0 < fraction ≤ 1 and mu ≥ 0, got {self.fraction} and {self.mu}"
            )

    def sampled(self, round_: int, M: int) -> np.ndarray:
        """Draw the experts that take part in a round, which is 0 for the first."""
        size = max(1, math.floor(self.fraction * M + 0.5))
        rng = np.random.default_rng([self.seed, round_])
        return rng.permutation(M)[:size]

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Take E steps, held near the broadcast θ, with the experts that take part."""
        unmoved = _from_broadcast(objective, shard, message, 0, self.optimizer)
        chosen = torch.nonzero(message.each["taking_part"])[:, 0]
        if not len(chosen):
            return unmoved
        part = Message(
            message.shared, {name: value[chosen] for name, value in message.each.items()}
        )
        moved = _from_broadcast(
            objective,
            shard[chosen],
            part,
            self.local_steps,
            self.optimizer,
            lambda x: self.mu * (x - message.shared["shared"]),
        ).each
        each = {n: value.index_copy(0, chosen, moved[n]) for n, value in unmoved.each.items()}
        return Reply({}, each)

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Average the experts that took part."""

        def drawn(round_: int) -> Tensor:
            taking = torch.zeros_like(sizes, dtype=torch.bool)
            taking[torch.as_tensor(self.sampled(round_, len(sizes)))] = True
            return taking

        _average(self, objective, start, sizes, rounds, drawn)


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
        As for `FedAvg`, as is the next.
    n_iter : int, default=100
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
        each, memory = message.each, fresh(self.optimizer, message.each["x"])
        after = _local_steps(
            objective,
            shard,
            each | memory,
            self.local_steps,
            self.optimizer,
            torch.ones_like(each["rate"]),
            each["prior_weight"],
            lambda x: each["psi"] + self.rho * (x - message.shared["shared"]),
        )
        return Reply({}, {name: value for name, value in after.items() if name not in memory})

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Alternate the experts' minimisations with the consensus and the dual step."""
        layout, k = objective.layout, objective.layout.n_shared
        shared, own = layout.split(start, len(sizes))
        each = _first_state("sgd", layout.join_each(shared, own), self.learning_rate)
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


@dataclass(frozen=True)
class Independent(Algorithm):
    """Every expert minimises its own objective per row, by itself; only progress is exchanged.

    Parameters
    ----------
    local_steps : int, default=1
        The number of steps that each expert takes in a round.
    learning_rate : float, default=0.1
        As for `FedAvg`, as are those that follow.
    optimizer : {"adam", "sgd"}, default="adam"
    n_iter : int, default=100
    """

    name: ClassVar[str] = "independent"
    exchanges: ClassVar[Kinds] = DESCENT
    agrees: ClassVar[bool] = False
    local_steps: int = 1
    learning_rate: float = 0.1
    optimizer: Literal["adam", "sgd"] = "adam"
    n_iter: int = 100

    def __post_init__(self) -> None:
        check_steps(self.name, self.optimizer, self.learning_rate, self.local_steps)

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Take steps on the objective per row; the prior counts in full for every expert."""
        each, ones = message.each, torch.ones_like(message.each["rate"])
        count, scale = self.local_steps, 1.0 / shard.sizes.to(ones)
        return Reply({}, _local_steps(objective, shard, each, count, self.optimizer, scale, ones))

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Keep what every expert remembers; there is nothing to merge."""
        del objective
        each = _first_state(
            self.optimizer, start.expand(len(sizes), -1).clone(), self.learning_rate
        )
        while True:
            reply = rounds.exchange(Message({}, each)).each
            each = {name: reply[name] for name in each}
            rounds.record(
                each["x"],
                reply["value"].sum(),
                reply["gradient"].norm(),
                accepted=bool(torch.isfinite(reply["value"]).all()),
                failed=bool(reply["failures"].any()),
            )


def _first_state(optimizer: str, x: Tensor, rate: float) -> Tensors:
    """Points x (M, P), rates (M,) and memory, from which `_local_steps` starts."""
    return {"x": x, "good": x, "rate": torch.full_like(x[:, 0], rate)} | fresh(optimizer, x)


def _local_steps(
    objective: Objective,
    shard: Shard,
    each: Tensors,
    count: int,
    optimizer: str,
    scale: Tensor,
    prior_weight: Tensor,
    pull: Pull | None = None,
) -> Tensors:
    """Take optimiser steps with every expert of a worker, each on its own objective.

    An expert whose objective cannot be computed goes back to its last "good" point, forgets what the
    optimiser remembers, and halves its "rate". Returned is `each` after the steps, with "value" (M,) and
    "gradient" (M, P) where they began, and the number of "failures" (M,). Objectives are multiplied by
    `scale` (M,); `pull` is the gradient of what is added to them.
    """
    x, good, rate, k = each["x"], each["good"], each["rate"], objective.layout.n_shared
    memory = {name: each[name] for name in fresh(optimizer, x)}
    failures, seen = torch.zeros_like(rate), (torch.zeros_like(rate), torch.zeros_like(x))
    for i in range(count):
        value, gradient = objective.evaluate(shard, x, prior_weight)
        seen = seen if i else (value, gradient)
        fine = finite(value, gradient)
        good = torch.where(fine[:, None], x, good)
        failures, rate = failures + ~fine, torch.where(fine, rate, 0.5 * rate)
        total = scale[:, None] * gradient
        if pull is not None:
            total[:, :k] += pull(x[:, :k])
        move, after = STEPS[optimizer](memory, torch.where(fine[:, None], total, 0.0), rate)
        memory = _choose(fine, after, fresh(optimizer, x))
        x = torch.where(fine[:, None], objective.layout.clamp(good + move), good)
    found = {"value": seen[0], "gradient": seen[1], "failures": failures}
    return {"x": x, "good": good, "rate": rate} | memory | found


def _choose(which: Tensor, yes: Tensors, no: Tensors) -> Tensors:
    """The rows of `yes` of the experts where `which` (M,) is true, those of `no` of the others."""
    return {
        name: torch.where(which.reshape(-1, *[1] * (value.ndim - 1)), value, no[name])
        for name, value in yes.items()
    }


def _from_broadcast(
    objective: Objective,
    shard: Shard,
    message: Message,
    count: int,
    optimizer: str,
    pull: Pull | None = None,
) -> Reply:
    """The worker's half of an averaging method: local steps on the objective per row."""
    each = message.each
    x = objective.layout.join_each(message.shared["shared"], each["own"])
    scale, weight = 1.0 / shard.sizes.to(each["rate"]), each["prior_weight"]
    begin = each | {"x": x, "good": x}
    return Reply({}, _local_steps(objective, shard, begin, count, optimizer, scale, weight, pull))


def _average(
    algorithm: FedAvg | FedProx,
    objective: Objective,
    start: Tensor,
    sizes: Tensor,
    rounds: Rounds,
    drawn: Callable[[int], Tensor] | None = None,
) -> None:
    """The centre's half of an averaging method: the average of the experts, weighted by rows.

    It reports Σ_i objective_i at the broadcast θ, scaled up where only the experts (M,) that are `drawn`
    for a round took part. Experts whose objective could not be computed there have no say; where that is
    all of them, the last good θ comes back.
    """
    layout, k = objective.layout, objective.layout.n_shared
    shared, own = layout.split(start, len(sizes))
    good, good_own = shared, own
    memory = fresh(algorithm.optimizer, layout.join_each(shared, own))
    rate, prior_weight = torch.full_like(sizes, algorithm.learning_rate), sizes / sizes.sum()
    called = torch.ones_like(sizes, dtype=torch.bool)
    value = norm = torch.full_like(sizes[0], torch.nan)
    while True:
        each = {"own": own, "rate": rate, "prior_weight": prior_weight} | memory
        if drawn is not None:
            called = each["taking_part"] = drawn(len(rounds.history))
        reply = rounds.exchange(Message({"shared": shared}, each)).each
        failed = bool(reply["failures"].any())
        fine = called & finite(reply["value"], reply["gradient"])
        lost = called & ~fine
        rate = torch.where(called, reply["rate"], rate)
        if not fine.any():
            shared, own = good, good_own
            rounds.record(layout.join(shared, own), value, norm, accepted=False, failed=failed)
            continue
        weight = torch.where(fine, sizes, 0.0)
        scale = sizes.sum() / weight.sum()
        value = scale * torch.where(fine, reply["value"], 0.0).sum()
        norm = (scale * torch.where(fine[:, None], reply["gradient"][:, :k], 0.0).sum(0)).norm()
        memory = _choose(fine, {name: reply[name] for name in memory}, memory)
        good = good if lost.any() else shared
        shared = (weight[:, None] / weight.sum() * reply["x"][:, :k]).sum(0)
        # An expert that failed goes back to the last own part that worked.
        kept = torch.where(lost[:, None], good_own, own)
        good_own = torch.where(fine[:, None], own, good_own)
        own = torch.where(fine[:, None], reply["x"][:, k:], kept)
        rounds.record(layout.join(shared, own), value, norm, failed=failed)
