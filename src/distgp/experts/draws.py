"""Joint draws of f without a covariance between points: Matheron's rule.

A draw f of the prior becomes one of the posterior by adding the posterior mean of what it lacks: with
ε ~ N(0, diag noise), f(x) + k(x)ᵀK̃⁻¹(y − f(X) − ε) has the posterior's mean and covariance. Given inducing
inputs, f(x) = v(x)ᵀw + residual, of which only w is changed: f(x) + v(x)ᵀ(w_posterior − L_u⁻¹f(Z)).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from distgp.data.shard import Shard
from distgp.experts.base import Parameters, chunk_rows
from distgp.kernels import PriorDraws, prior_draws
from distgp.likelihoods import noise_of_rows

Solve: TypeAlias = Callable[[Tensor], Tensor]
"""A function that returns K̃⁻¹R, (n, size), of the columns R."""


def matheron(
    parameters: Parameters, rows: Shard, solve: Solve, X: Tensor, size: int, seed: int
) -> Tensor | None:
    """Draw f at the rows of X given all rows of one shard, by one solve for all draws.

    Parameters
    ----------
    parameters : Parameters
        θ, without batch dimensions.
    rows : Shard
        The rows, without batch dimensions; padding has no influence if K̃ is the identity there.
    solve : callable
        Returns K̃⁻¹R of columns R (n, size) in float64, with K̃ = k(X, X) + diag of the rows' noise.
    X : Tensor
        Points (N, d).
    size : int
        The number of draws.
    seed : int
        The seed.

    Returns
    -------
    Tensor or None
        (N, size); None where the kernel has no known spectrum.
    """
    wide, real, x = parameters.to(dtype=torch.float64), rows.to(dtype=torch.float64), X.double()
    first, second = seeds(seed, 2)
    prior = prior_draws(wide.kernel, X.shape[-1], size, first, x)
    if prior is None:
        return None
    with torch.no_grad():
        deviation = noise_of_rows(real, wide.noise).sqrt()[:, None]
        noise = normal(real.n, size, second, x).mul_(deviation)
        lacking = prior.at(real.X).add_(noise).neg_().add_(real.y[:, None])
        if real.mask is not None:
            lacking = torch.where(real.mask[:, None], lacking, 0.0)
        alpha = solve(lacking)
        return moved(prior, lambda part: wide.kernel(part, real.X), alpha, x).to(X.dtype)


def moved(prior: PriorDraws, basis: Callable[[Tensor], Tensor], c: Tensor, X: Tensor) -> Tensor:
    """Compute f(x) + b(x)ᵀc at the rows of X, (N, size), for a basis b (N, p) and columns c (p, size)."""
    out, step = prior.at(X), chunk_rows(len(c), X.device)
    for some, part in zip(out.split(step), X.split(step), strict=True):
        some.addmm_(basis(part), c)
    return out


def normal(n: int, size: int, seed: int, like: Tensor) -> Tensor:
    """Draw standard normal numbers (n, size): the same on every device."""
    return torch.as_tensor(np.random.default_rng(seed).standard_normal((n, size))).to(like)


def seeds(seed: int, count: int) -> list[int]:
    """Derive independent seeds from one."""
    return [int(one) for one in np.random.SeedSequence(seed).generate_state(count, np.uint64)]
