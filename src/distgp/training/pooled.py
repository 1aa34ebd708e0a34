"""Pooled training: the full sparse bound of all rows, without ever bringing them together.

For sparse experts that share θ and Z the collapsed bound of the whole data set is a function of sums
over rows, ΣAAᵀ, ΣAy and Σk(x, x). FACT replaces it by a sum of the shards' own bounds, which
loses what one shard says about another; here nothing is lost. One evaluation takes two rounds: the
workers send their sums, the centre returns the bound's derivatives in them, and the workers answer
with the gradient in θ and Z.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp.experts.sparse import SparseSums, inducing_factor, negative_bound, row_sums, widened
from distgp.kernels import ParameterError
from distgp.linalg import JitterWarning, NotPositiveDefiniteError
from distgp.training import lbfgs
from distgp.training.base import Algorithm, Message, Reply, counters
from distgp.training.layout import Layout
from distgp.training.priors import log_prior
from distgp.training.steps import State
from distgp.training.task import Task
from distgp.workers import ShardGroup

SUMS = ("AAt", "Ay", "trace")
"""The sums that depend on θ and Z."""


@dataclass(frozen=True)
class PooledBound(Algorithm):
    """L-BFGS on the collapsed bound of all rows: central training of the sparse GP, distributed.

    Each worker sends and receives m² numbers an evaluation. A trial point that is refused by its
    value costs one round only.
    """

    name: ClassVar[str] = "pooled"
    n_iter: int = 100

    def start(self, layout: Layout, vector: Tensor, sizes: Tensor) -> State:
        """One point, and room for the derivatives in the sums."""
        Z = layout.template.inducing
        if Z is None or layout.own or vector.ndim > 1:
            raise ValueError(
                "pooled training needs sparse experts that share all hyperparameters and inducing "
                "inputs; use fact, fedavg, fedprox or admm for others"
            )
        m, wide = len(Z), torch.float64
        room = {
            "in_AAt": torch.zeros(m, m, dtype=wide, device=vector.device),
            "in_Ay": torch.zeros(m, dtype=wide, device=vector.device),
            "in_trace": torch.zeros((), dtype=wide, device=vector.device),
            "direct": torch.zeros_like(vector),
            "value": torch.full_like(vector[:1].sum(), torch.nan),
            "second": torch.zeros((), dtype=torch.int64, device=vector.device),
        }
        return counters(vector) | lbfgs.start(vector) | room | {"sizes": sizes}

    def message(self, layout: Layout, state: State) -> Message:
        """The point, and in the second round the derivatives in the sums."""
        del layout
        shared = {"x": state["x"]}
        if int(state["second"]):
            shared |= {f"in_{name}": state[f"in_{name}"] for name in SUMS}
        return Message(shared, {})

    def local(self, task: Task, group: ShardGroup, message: Message) -> Reply:
        """The sums of the group's rows; in the second round their share of the gradient."""
        second = "in_AAt" in message.shared
        x = message.shared["x"].detach().requires_grad_(second)
        with torch.set_grad_enabled(second):
            sums = _sums(task.layout, group, x)
        if not second:
            return Reply({name: getattr(sums, name) for name in (*SUMS, "yy", "n")}, {})
        terms = [(message.shared[f"in_{name}"] * getattr(sums, name)).sum() for name in SUMS]
        (gradient,) = torch.autograd.grad(torch.stack(terms).sum(), x)
        return Reply({"gradient": gradient}, {})

    def merge(self, task: Task, state: State, reply: Reply) -> State:
        """The bound and its derivatives; or, with the gradient, one step of L-BFGS."""
        layout, state = task.layout, state | {"round": state["round"] + 1}
        if int(state["second"]):
            gradient = state["direct"] + reply.summed["gradient"]
            state |= {"second": state["second"] * 0}
            if bool(torch.isfinite(gradient).all()):
                return lbfgs.accept(state, state["value"], gradient, layout.clamp)
            failed = {"failures": state["failures"] + 1}
            return lbfgs.shorten(state | failed, state["value"] * torch.nan, layout.clamp)
        value, derivatives = _bound(task, state["x"], reply.summed)
        if lbfgs.acceptable(state, value):
            best = state["objective"] if int(state["accepted"]) else value
            found = {"value": value, "objective": best, "second": state["second"] + 1}
            return state | derivatives | found
        failed = state["failures"] + int(not bool(torch.isfinite(value)))
        return lbfgs.shorten(state | {"failures": failed}, value, layout.clamp)

    def vectors(self, layout: Layout, state: State) -> Tensor:
        """The last point accepted."""
        del layout
        return state["good"]


def _sums(layout: Layout, group: ShardGroup, x: Tensor) -> SparseSums:
    """The sums of the group's rows at θ(x); NaN where its K_uu cannot be factorised."""
    try:
        theta = widened(layout.unpack(x))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitterWarning)  # passing by a hard θ is no news
            Lu = inducing_factor(theta)
        return row_sums(theta, Lu, group.shards.flatten())
    except (NotPositiveDefiniteError, ParameterError):
        m = layout.template.inducing.shape[-2] if layout.template.inducing is not None else 0
        nan = torch.full((), torch.nan, dtype=torch.float64, device=x.device)
        return SparseSums(nan.expand(m, m), nan.expand(m), nan, nan, nan)


def _bound(task: Task, x: Tensor, summed: State) -> tuple[Tensor, State]:
    """The objective at x, and its derivatives: in the sums, and in x with the sums held fixed."""
    sums = {name: summed[name].detach().requires_grad_() for name in SUMS}
    point = x.detach().requires_grad_()
    try:
        theta = widened(task.layout.unpack(point))
        bound = negative_bound(theta.noise, SparseSums(**sums, yy=summed["yy"], n=summed["n"]))
    except (NotPositiveDefiniteError, ParameterError):
        return torch.full_like(x[:1].sum(), torch.nan), {}
    value = bound - log_prior(task.priors, theta)
    inputs = [*sums.values(), point]
    *inner, direct = torch.autograd.grad(value, inputs, allow_unused=True, materialize_grads=True)
    derivatives = {f"in_{name}": part for name, part in zip(SUMS, inner, strict=True)}
    return value.detach().to(x.dtype), derivatives | {"direct": direct}
