"""Pooled training: the full sparse bound of all rows, without ever bringing the rows together.

For sparse experts that share θ and Z it is a function of sums over rows: ΣAAᵀ, ΣAy and Σk(x, x).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp._util.checks import silenced
from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.experts.sums import (
    SparseSums,
    gradient_by_factor,
    gradient_by_rows,
    inducing_factor,
    negative_bound,
    row_sums,
    widened,
)
from distgp.likelihoods import own_noise_term
from distgp.linalg import JitterWarning
from distgp.training.fact import Lbfgs
from distgp.training.objective import UNUSABLE, Layout, Objective, log_prior
from distgp.training.rounds import Algorithm, Message, Reply, Rounds, Tensors

SUMS = ("AAt", "Ay", "trace")  # those that depend on θ and Z


@dataclass(frozen=True)
class PooledBound(Algorithm):
    """L-BFGS on the collapsed bound of all rows: central training of the sparse GP, distributed.

    One evaluation takes two rounds. The workers send their sums; the centre returns the derivatives of
    the bound in the sums; and the workers answer with the gradient in θ and Z by way of their rows'
    kernels. What goes by way of K_uu and σ² the centre finds from the sums alone. Each worker so sends
    and receives m² numbers. A trial point that is refused by its value costs one round only.

    Parameters
    ----------
    n_iter : int, default=200
        The number of rounds, at most.
    """

    name: ClassVar[str] = "pooled"
    exchanges: ClassVar[Kinds] = {"x": "parameters", "gradient": "gradients", "*": "sums"}
    serves: ClassVar[tuple[str, ...]] = ("sparse",)
    n_iter: int = 200

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Answer with the sums of the rows; given derivatives in them, with the rows' gradient."""
        rows, shared = shard.flatten(), message.shared
        if "AAt" not in shared:
            with torch.no_grad():
                sums = _sums(objective.layout, rows, shared["x"])
            found = {name: getattr(sums, name) for name in (*SUMS, "yy", "n")}
            return Reply(
                found | {"own_noise": torch.zeros_like(sums.yy) + own_noise_term(rows)}, {}
            )
        with silenced(JitterWarning):
            gradient = gradient_by_rows(
                lambda x: widened(objective.layout.unpack(x)),
                shared["x"],
                rows,
                *(shared[name] for name in SUMS),
            )
        return Reply({"gradient": gradient}, {})

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Minimise the bound of all rows."""
        del sizes
        layout = objective.layout
        if layout.template.inducing is None or layout.own or start.ndim > 1:
            raise ValueError(
                "pooled training needs sparse experts that share all hyperparameters and inducing "
                "inputs; use fact, fedavg, fedprox or admm for others"
            )
        search = Lbfgs(start, layout.low, layout.high)

        def trial(x: Tensor) -> tuple[float, Tensor | None]:
            sums = rounds.exchange(Message({"x": x}, {})).summed
            value, derivatives, direct = _bound(objective, x, sums)
            number, failed = float(value), not bool(torch.isfinite(value))
            best = number if math.isnan(search.value) else search.value
            rounds.record(search.x, best, search.gradient_norm, accepted=False, failed=failed)
            if not search.hopeful(number):
                return number, None
            reply = rounds.exchange(Message({"x": x} | derivatives, {}))
            return search.record(rounds, x, value, direct + reply.summed["gradient"])

        search.minimise(trial)


def _sums(layout: Layout, shard: Shard, x: Tensor) -> SparseSums:
    """The sums of one worker's rows at θ(x); NaN where K_uu cannot be factorised."""
    try:
        theta = widened(layout.unpack(x))
        with silenced(JitterWarning):
            Lu = inducing_factor(theta)
        return row_sums(theta, Lu, shard)
    except UNUSABLE:
        Z = layout.template.inducing
        m = 0 if Z is None else len(Z)
        nan = torch.full((), torch.nan, dtype=torch.float64, device=x.device)
        return SparseSums(nan.expand(m, m), nan.expand(m), nan, nan, nan)


def _bound(objective: Objective, x: Tensor, summed: Tensors) -> tuple[Tensor, Tensors, Tensor]:
    """The objective at x, its derivatives in the sums, and in x, but for the rows' part of it."""
    sums = {name: summed[name].detach().requires_grad_() for name in SUMS}
    point = x.detach().requires_grad_()
    total = SparseSums(**sums, yy=summed["yy"], n=summed["n"])
    try:
        theta = widened(objective.layout.unpack(point))
        bound = negative_bound(theta.noise, total) + summed["own_noise"]
    except UNUSABLE:
        return x.new_tensor(torch.nan), {}, torch.full_like(x, torch.nan)
    value = bound - log_prior(objective.priors, theta)
    *inner, direct = torch.autograd.grad(
        value, [*sums.values(), point], retain_graph=True, materialize_grads=True
    )
    with silenced(JitterWarning):
        direct = direct + gradient_by_factor(theta, point, total, *inner)
    return value.detach(), dict(zip(SUMS, inner, strict=True)), direct
