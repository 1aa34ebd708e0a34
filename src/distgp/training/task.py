"""What is trained: the objective with its gradient."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from distgp.experts import Expert
from distgp.experts.base import chunk_rows
from distgp.kernels import ParameterError
from distgp.linalg import JitterWarning, NotPositiveDefiniteError
from distgp.shards import Shard
from distgp.training.layout import Layout
from distgp.training.priors import Prior, log_prior


@dataclass(frozen=True, eq=False)
class Task:
    """The kind of expert, the layout of θ, and priors: the same on every worker."""

    expert: Expert
    layout: Layout
    priors: Mapping[str, Prior] = field(default_factory=dict)


def evaluate(
    task: Task, shards: Shard, vector: Tensor, prior_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Objectives (M,) and their gradient: (P,) summed for one shared vector, (M, P) for one each.

    Each expert's objective is −log p(y_i) (or the negative bound) less its weight of the log prior.
    Where θ is out of hand (a factorisation fails, a number overflows) the value is NaN.
    """
    # A few experts at a time: matrices that fit into the cache are worth more than one long call.
    size = chunk_rows(task.expert.entries(shards.n), vector.device)
    if shards.batch[0] > size:
        return _in_parts(task, shards, vector, prior_weight, size)
    try:
        return _evaluate(task, shards, vector, prior_weight)
    except (NotPositiveDefiniteError, ParameterError):
        if vector.ndim == 1 or len(vector) == 1:
            bad = torch.full_like(prior_weight, torch.nan)
            return bad, torch.full_like(vector, torch.nan)
    # One expert of the batch failed: find out which, one by one.
    return _in_parts(task, shards, vector, prior_weight, 1)


def _in_parts(
    task: Task, shards: Shard, vector: Tensor, prior_weight: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """`evaluate` for `size` experts at a time."""
    values, gradients = [], []
    for start in range(0, shards.batch[0], size):
        some = slice(start, start + size)
        own = vector if vector.ndim == 1 else vector[some]
        value, gradient = evaluate(task, shards.take_batch(some), own, prior_weight[some])
        values.append(value)
        gradients.append(gradient)
    shared = vector.ndim == 1
    return torch.cat(values), torch.stack(gradients).sum(0) if shared else torch.cat(gradients)


def _evaluate(
    task: Task, shards: Shard, vector: Tensor, prior_weight: Tensor
) -> tuple[Tensor, Tensor]:
    point = vector.detach().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", JitterWarning)  # passing by a hard θ is no news
        theta = task.layout.unpack(point)
        values = task.expert.objective(theta, shards).to(vector.dtype)
    if task.priors:
        values = values - prior_weight * log_prior(task.priors, theta)
    (gradient,) = torch.autograd.grad(values.sum(), point)
    return values.detach(), gradient
