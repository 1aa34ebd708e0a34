"""Points given their nearest rows and the points before them: their covariance, and draws of them.

The points come after all rows in the order. Each is conditioned on the k nearest of the rows and of the
points before it, whose f is free of noise: f_i = Σ_j A_ij f_j + c_i + h_iᵀw + e_i with e_i ~ N(0, d_i), so
that cov f = (I − A)⁻¹(D + H B⁻¹Hᵀ)(I − A)⁻ᵀ, and a draw of f solves a sparse triangular system.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from distgp import linalg
from distgp._util.threads import on_threads
from distgp.data.neighbors import CorrelationNeighbors, Neighbors
from distgp.experts.base import chunk_rows
from distgp.experts.draws import normal, seeds
from distgp.experts.neighborhoods import (
    GlobalPart,
    Neighbours,
    OrderedRows,
    conditional,
    correlation,
)

NUGGET = 1e-8
"""The noise of a point that is a neighbour, in units of σ²: it is a value of f, up to rounding."""

LEAST_DRAWS = 256
"""Draws from which the variance that the chain gives a point is estimated, at least."""
LEVELLED_AT_ONCE = 1024
"""Points whose levels are found together; few of them depend on each other."""


class Chain(NamedTuple):
    """f at N points less its mean, each given those before it: Σ_j a_ij f_{p_ij} + h_iᵀw + e_i.

    The places p (N, k) of points are -1 where a neighbour is a row; a (N, k) is 0 there. The variances d
    (N,) are those of e, and h (N, m) is None without a global part.
    """

    places: Tensor
    a: Tensor
    d: Tensor
    h: Tensor | None


def chain(rows: OrderedRows, X: Tensor, k: int) -> Chain:
    """Condition each of the points X (N, d), in float64, on the k nearest of rows and points before it."""
    n, N = len(rows.X), len(X)
    index, v = _nearest_of_both(rows, X, min(k, n + N)), rows.basis(X)
    factor = X.new_ones(n) if rows.factor is None else rows.factor
    factor = torch.cat([factor, X.new_full((N,), NUGGET)])
    points, y = torch.cat([rows.X, X]), torch.cat([rows.y, X.new_zeros(N)])
    V = None if v is None or rows.V is None else torch.cat([rows.V, v])
    a, d, h = X.new_empty(index.shape), X.new_empty(N), None if v is None else torch.empty_like(v)

    def fill(some: Tensor) -> None:
        at, real = index[some].clamp_min(0), index[some] >= 0
        sets = Neighbours(points[at], y[at], real, None if V is None else V[at], factor[at])
        out = conditional(rows.parameters, X[some], None if v is None else v[some], sets)
        assert out.variance is not None and out.a is not None
        a[some], d[some] = torch.where(at < n, 0.0, out.a), out.variance
        if h is not None and out.h is not None:
            h[some] = out.h

    on_threads(fill, torch.arange(N, device=X.device).split(rows.points_at_once(index.shape[-1])))
    return Chain((index - n).clamp_min(-1), a, d, h)


def joint_covariance(rows: OrderedRows, X: Tensor, k: int, part: GlobalPart | None) -> Tensor:
    """The covariance of f between all rows of X (N, d), given the data."""
    given = chain(rows, X.double(), k)
    A = given.d.new_zeros(len(X), len(X)).scatter_add(1, given.places.clamp_min(0), given.a)
    lower = linalg.add_diagonal(-A, A.new_ones(()))
    root = linalg.solve_lower(lower, torch.diag(given.d.sqrt()))
    covariance = root @ root.mT
    if given.h is not None and part is not None:
        kept = linalg.solve_lower(part.L, linalg.solve_lower(lower, given.h).mT)
        covariance = covariance + kept.mT @ kept
    return covariance.to(X.dtype)


def joint_draws(
    rows: OrderedRows, X: Tensor, k: int, part: GlobalPart | None, size: int, seed: int
) -> Tensor:
    """Draw f at all rows of X (N, d), given the data, (N, size): any kernel, and no matrix of N × N.

    The points are put in a random order, so that long chains of points that depend on each other are
    rare. Each has the mean and the variance that are predicted for it alone: the chain's own variance,
    which differs where k is small, is estimated from the draws themselves, at least `LEAST_DRAWS`.
    """
    order, (for_e, for_w) = order_of_points(len(X), seed).to(X.device), seeds(seed, 2)
    count = max(size, LEAST_DRAWS)
    with torch.no_grad():
        given = chain(rows, X.double()[order], k)
        out = normal(len(X), count, for_e, given.d).mul_(_put_back(given.d.sqrt(), order)[:, None])
        if given.h is not None and part is not None:
            w = linalg.solve_upper(part.L, normal(len(part.L), count, for_w, given.d))
            out.addmm_(_put_back(given.h, order), w)
        _solve_chain(given, order, out)
        wanted = rows.predict(X, k, part)
        spread = out.square().mean(-1)
        out = out[:, :size].mul_((wanted.variance.double() / spread).sqrt()[:, None])
        return out.add_(wanted.mean.double()[:, None]).to(X.dtype)


def order_of_points(N: int, seed: int) -> Tensor:
    """Put N points in the random order in which draws with this seed go through them."""
    return torch.as_tensor(np.random.default_rng([seed, N]).permutation(N))


def _put_back(values: Tensor, order: Tensor) -> Tensor:
    """Bring values of the points in their random order back to their places in X."""
    return torch.empty_like(values).index_copy_(0, order, values)


def _solve_chain(given: Chain, order: Tensor, out: Tensor) -> None:
    """Solve (I − A)f = e for columns e (N, size), by their places in X, in place.

    Points whose neighbours are known are worked on together, level after level.
    """

    def fill(some: Tensor) -> None:
        near = given.places[some]
        real = near >= 0
        ends = real.sum(-1).cumsum(0)
        offsets, weights = F.pad(ends[:-1], (1, 0)), given.a[some][real]
        sums = F.embedding_bag(
            order[near[real]], out, offsets, mode="sum", per_sample_weights=weights
        )
        out.index_add_(0, order[some], sums)

    for points in levels(given.places)[1:]:
        on_threads(fill, points.split(chunk_rows(out.shape[-1], out.device)))


def levels(places: Tensor) -> list[Tensor]:
    """Group points by the longest way through neighbours, (N, k), to one without any: 0, 1, …"""
    here = places.cpu()
    level = here.new_zeros(len(here))
    for some in torch.arange(len(here)).split(LEVELLED_AT_ONCE):
        near = here[some]
        while True:
            found = torch.where(near >= 0, level[near] + 1, 0).amax(-1)
            if torch.equal(found, level[some]):
                break
            level[some] = found
    counts = level.bincount(minlength=1).tolist()
    return list(level.argsort(stable=True).to(places.device).split(counts))


def _nearest_of_both(rows: OrderedRows, X: Tensor, k: int) -> Tensor:
    """Find the k nearest of the rows and of the points before each: places among rows, then points."""
    located, places = rows.located(X), torch.arange(len(X), device=X.device)
    if rows.has_coordinates:
        among: Neighbors | CorrelationNeighbors = Neighbors(located)
    else:
        among = CorrelationNeighbors(partial(correlation, rows.parameters.kernel), X, places)
    d_rows, i_rows = rows.search.nearest(located, k)
    d_points, i_points = among.nearest_before(located, places, k)
    index = torch.cat([i_rows, torch.where(i_points >= 0, i_points + len(rows.X), -1)], -1)
    order = torch.cat([d_rows, d_points], -1).argsort(dim=-1, stable=True)[:, :k]
    return index.gather(-1, order)
