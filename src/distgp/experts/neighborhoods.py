"""Rows conditioned on their nearest rows: the numerics behind nearest experts.

With v(x) = L_u⁻¹k_u(x) for m inducing inputs, f(x) = v(x)ᵀw + e(x), where w ~ N(0, I) and e is a GP with
the residual kernel r(x, x′) = k(x, x′) − v(x)ᵀv(x′). That is the GP itself. The approximation: rows are
put in a random order, and y_i given w depends on the rows before it only through its k nearest of
them, the set C (Vecchia; with the global part "full-scale", Gyger, Furrer and Sigrist 2025). With
S = r(X_C, X_C) + σ²I:

    a = S⁻¹r(X_C, x_i),  s² = r(x_i, x_i) + σ² − aᵀr(X_C, x_i),
    u = (v_i − V_Cᵀa) / s,  t = (y_i − aᵀy_C) / s,

and t ~ N(uᵀw, 1), so that B = I + Σuuᵀ and b = Σut are sums over rows, and
−log p(y) = ½[Σt² − bᵀB⁻¹b + log det B + Σ log s² + n log 2π]. A prediction at x conditions on the k
nearest of all rows in the same way: mean aᵀy_C + hᵀB⁻¹b and variance r(x, x) − aᵀr(X_C, x) + hᵀB⁻¹h, with
h = v(x) − V_Cᵀa.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import cached_property, partial
from typing import ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from distgp import linalg
from distgp._util.machine import keep_freed_memory
from distgp._util.threads import on_threads
from distgp.data.neighbors import CorrelationNeighbors, Neighbors, without_ties
from distgp.data.shard import Shard, row_priority
from distgp.experts.base import (
    Parameters,
    Prediction,
    chunk_rows,
    concatenated,
    latent_variance,
)
from distgp.experts.last_rows import Neighbours, kernel_at_points, lower_kernel, of_last_rows
from distgp.experts.sums import inducing_factor, widened
from distgp.kernels import Kernel, coordinates
from distgp.kernels.fused import shaped
from distgp.likelihoods import noise_factor

Result = TypeVar("Result")
ORDER_SEED = 0
"""The seed of the rows' random order. It is the same for all shards, so that the order is one."""
SEARCHED_AT_ONCE = 4096
"""Points whose neighbours are found at a time, at least."""


class Whitened(torch.autograd.Function):
    """wᵀY and log s for batches of matrices S, with w = S⁻¹e · s and s² = 1 / (S⁻¹)_ll, l the last row.

    w = (−a, 1) / s: what the last row has that the others do not explain, in units of its standard
    deviation. Derivative, with z = S⁻¹Yg for the incoming gradient g of wᵀY and g_s of log s:
    ½(wᵀYg + g_s) wwᵀ − ½(zwᵀ + wzᵀ) in S and wgᵀ in Y. Nothing is differentiated through the factor.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, S: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        """Factorise once; w solves Lᵀw = e_l."""
        L = linalg.cholesky(S, "the covariance of a row and its neighbours")
        last = L.new_zeros(L.shape[-1], 1)
        last[-1] = 1.0
        w = linalg.solve_upper(L, last.expand(*L.shape[:-1], 1))[..., 0]
        ctx.save_for_backward(L, w, Y)
        return (w[..., None, :] @ Y)[..., 0, :], L[..., -1, -1].log()

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: BackwardCFunction, g: Tensor, g_s: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """The formulas above."""
        L, w, Y = list(ctx.saved_tensors)
        q = (Y @ g[..., None])[..., 0]
        z = linalg.cholesky_solve(L, q[..., None])[..., 0]
        # ½(wᵀq + g_s) wwᵀ − ½(zwᵀ + wzᵀ) = ½(pwᵀ + wpᵀ) with p = ½(wᵀq + g_s)w − z.
        p = 0.5 * ((w * q).sum(-1) + g_s)[..., None] * w - z
        left, right = torch.stack([0.5 * p, w], -1), torch.stack([w, 0.5 * p], -1)
        in_Y = w[..., :, None] * g[..., None, :] if list(ctx.needs_input_grad)[1] else None
        return left @ right.mT, in_Y


def residual_matrix(parameters: Parameters, sets: Neighbours, S: Tensor) -> Tensor:
    """S = r(X, X) + σ²I for sets of rows with k(X, X) = S; where they are not `real`, rows of the identity.

    Entries above the diagonal may be wrong: who factorises does not look there. It may be done in place.
    """
    real = sets.real
    if sets.V is not None:
        S = linalg.minus_gram(S, sets.V)
    noise = parameters.noise[..., None].expand(S.shape[:-1])
    if sets.factor is not None:
        noise = noise * sets.factor
    if not bool(real.all()):
        S = torch.where(real[..., :, None] & real[..., None, :], S, 0.0)
        noise = torch.where(real, noise, 1.0)
    if S.requires_grad or noise.requires_grad or not (S.is_contiguous() or S.mT.is_contiguous()):
        return linalg.add_diagonal(S, noise)
    S.diagonal(dim1=-2, dim2=-1).add_(noise)
    return S


def negative_log_likelihood(parameters: Parameters, sets: Neighbours) -> Tensor:
    """−log p of the last row of every set given the others, summed; with V, of all jointly."""
    found = shaped(parameters.kernel)
    if sets.V is None and found is not None and not parameters.batch:
        value = of_last_rows(found.kernel, found.variance, parameters.noise, sets)
        if value is not None:
            return value
    S = residual_matrix(parameters, sets, lower_kernel(parameters.kernel, sets.X))
    Y = torch.where(sets.real, sets.y, 0.0)[..., None]
    if sets.V is not None:
        Y = torch.cat([Y, torch.where(sets.real[..., None], sets.V, 0.0)], -1)
    out, log_s = Whitened.apply(S, Y)
    t, U = out[:, 0], out[:, 1:]
    value = 0.5 * t.square().sum() + log_s.sum() + 0.5 * len(t) * math.log(2.0 * math.pi)
    if sets.V is None:
        return value
    B = linalg.add_diagonal(U.mT @ U, U.new_ones(()))
    L = linalg.cholesky(B, "I + Σuuᵀ")
    half = linalg.solve_lower(L, (U.mT @ t)[:, None])
    return value - 0.5 * half.square().sum() + 0.5 * linalg.log_det(L)


@dataclass(frozen=True, eq=False)
class GlobalSums:
    """The contribution of rows to the global part: B − I = Σuuᵀ (m, m) and b = Σut (m,)."""

    travels_as: ClassVar[str] = "sums"
    UU: Tensor
    Ut: Tensor

    def __add__(self, other: GlobalSums) -> GlobalSums:
        return GlobalSums(self.UU + other.UU, self.Ut + other.Ut)


@dataclass(frozen=True, eq=False)
class GlobalPart:
    """The posterior of w: L_B of B, and B⁻¹b."""

    travels_as: ClassVar[str] = "sums"
    L: Tensor
    weights: Tensor

    @staticmethod
    def of(sums: GlobalSums) -> GlobalPart:
        """Factorise B = I + Σuuᵀ."""
        L = linalg.cholesky(linalg.add_diagonal(sums.UU, sums.UU.new_ones(())), "I + Σuuᵀ")
        return GlobalPart(L, linalg.cholesky_solve(L, sums.Ut[:, None])[:, 0])


class Conditional(NamedTuple):
    """f at B points given their neighbours and w: mean + hᵀw, variance.

    The mean is aᵀy_C (B,), the variance r(x, x) − aᵀr(X_C, x) (B,), None where only means are wanted,
    h = v(x) − V_Cᵀa (B, m), None without a global part, and a (B, k) as long as it is at hand.
    """

    mean: Tensor
    variance: Tensor | None
    h: Tensor | None
    a: Tensor | None = None

    def sums(self, y: Tensor, noise: Tensor) -> GlobalSums:
        """Σuuᵀ and Σut of rows with targets y and these noise variances, one each or one for all."""
        assert self.h is not None and self.variance is not None
        s = (self.variance + noise).sqrt()
        u, t = self.h / s[:, None], (y - self.mean) / s
        return GlobalSums(u.mT @ u, u.mT @ t)

    def mean_given(self, part: GlobalPart | None) -> Tensor:
        """The mean with w's posterior put in."""
        return self.mean if part is None or self.h is None else self.mean + self.h @ part.weights

    def given(self, part: GlobalPart | None) -> Prediction:
        """Mean and variance with w's posterior put in."""
        variance = self.variance
        assert variance is not None
        if part is not None and self.h is not None:
            variance = variance + linalg.solve_lower(part.L, self.h.mT).square_().sum(0)
        return Prediction(self.mean_given(part), variance)


def conditional(
    parameters: Parameters,
    x: Tensor,
    v: Tensor | None,
    sets: Neighbours,
    with_variance: bool = True,
) -> Conditional:
    """f at points given their neighbours, and w."""
    K, c = kernel_at_points(parameters.kernel, x, sets.X)
    S, V = residual_matrix(parameters, sets, K), sets.V
    if v is not None and V is not None:
        c = c - (V @ v[..., None])[..., 0]
    c = torch.where(sets.real, c, 0.0)

    def again() -> Tensor:
        return residual_matrix(parameters, sets, lower_kernel(parameters.kernel, sets.X))

    L = linalg.half_cholesky(S, again, "the covariance of a point's neighbours")
    a = linalg.cholesky_solve(L, c[..., None])[..., 0]
    mean = (a * torch.where(sets.real, sets.y, 0.0)).sum(-1)
    h = None if v is None or V is None else v - (a[..., None, :] @ V)[..., 0, :]
    variance = None
    if with_variance:
        explained = (a * c).sum(-1)  # cᵀS⁻¹c
        if v is not None:
            explained = explained + v.square().sum(-1)
        variance = latent_variance(parameters.kernel.diag(x), explained)
    return Conditional(mean, variance, h, a)


def correlation(kernel: Kernel, A: Tensor, B: Tensor) -> Tensor:
    """|k(a, b)| / √(k(a, a) k(b, b)), 0 where a prior variance is 0."""
    tiny = torch.finfo(A.dtype).tiny
    scale = kernel.diag(A)[:, None] * kernel.diag(B)[None, :]
    return kernel(A, B).abs() / scale.clamp_min(tiny).sqrt()


def in_order(rows: Shard) -> Shard:
    """The same rows in their random order, which belongs to the rows and not to their division."""
    return rows.take(row_priority(rows.rows, ORDER_SEED).argsort())


class OrderedRows:
    """Rows in their random order, with the search structure and v(x) that predictions need.

    θ has no batch dimensions; inducing inputs in it make a global part.
    """

    def __init__(self, parameters: Parameters, shard: Shard) -> None:
        rows = in_order(shard.flatten().without_padding())
        self.parameters = widened(parameters)
        self.priority = row_priority(rows.rows, ORDER_SEED)
        rows = rows.to(dtype=torch.float64)
        self.X, self.y, self.factor = rows.X, rows.y, noise_factor(rows)

    def rows_at(self, which: Tensor | slice) -> Shard:
        """Some of the rows as a shard, numbered by their places, with the factors of their noise."""
        place = torch.arange(len(self.X), device=self.X.device)[which]
        factor = None if self.factor is None else self.factor[which]
        return Shard(self.X[which], self.y[which], place, noise=factor)

    @cached_property
    def search(self) -> Neighbors | CorrelationNeighbors:
        """Finds nearest rows by the kernel."""
        with torch.no_grad():
            kernel = self.parameters.kernel
            found = coordinates(kernel, self.X)
            if found is None:
                return CorrelationNeighbors(partial(correlation, kernel), self.X, self.priority)
            return Neighbors(without_ties(found, self.priority))

    @property
    def has_coordinates(self) -> bool:
        """Whether nearness is a Euclidean distance, so that cells have spheres around them."""
        return isinstance(self.search, Neighbors)

    def places_before(self, priority: Tensor) -> Tensor:
        """Count the rows that come before each of these priorities."""
        return torch.searchsorted(self.priority, priority)

    def located(self, X: Tensor) -> Tensor:
        """Points in the coordinates of the search."""
        found = coordinates(self.parameters.kernel, X)
        return X if found is None else found

    @cached_property
    def Lu(self) -> Tensor | None:
        """The factor of K_uu; None without a global part."""
        return None if self.parameters.inducing is None else inducing_factor(self.parameters)

    def basis(self, X: Tensor) -> Tensor | None:
        """v(x) for all rows of X, (n, m); None without a global part."""
        kernel, Z = self.parameters.kernel, self.parameters.inducing
        if self.Lu is None or Z is None:
            return None
        parts = X.split(chunk_rows(len(Z), X.device))
        return torch.cat([linalg.solve_lower(self.Lu, kernel(part, Z).mT).mT for part in parts])

    @cached_property
    def V(self) -> Tensor | None:
        """v at the rows."""
        return self.basis(self.X)

    def points_at_once(self, k: int) -> int:
        """Return the number of points to work on at a time, with k neighbours each."""
        m = 0 if self.Lu is None else len(self.Lu)
        matrices, coordinates = 2 * (k + 1) * (k + 1 + m), 2 * k * self.X.shape[-1]
        return chunk_rows(max(matrices, coordinates), self.X.device)

    def sums(self, k: int) -> GlobalSums:
        """Σuuᵀ and Σut over all rows, each given its k nearest before it."""
        assert self.V is not None
        m = self.V.shape[1]
        total = GlobalSums(self.V.new_zeros(m, m), self.V.new_zeros(m))
        _, parts = self.given_before(k, lambda some, out: out.sums(self.y[some], self.noise(some)))
        for found in parts:
            total = total + found
        return total

    def given_before(
        self, k: int, finish: Callable[[Tensor, Conditional], Result]
    ) -> tuple[Tensor, Iterator[Result]]:
        """The k nearest rows before each row, and what `finish` makes of f at some rows given these.

        It is called with the places of a few rows at a time, on several threads.
        """
        place, neighbours = nearest_before_each(self, k)
        _ = self.V  # computed once, before threads ask for it at the same time

        def part(some: Tensor) -> Result:
            v, sets = None if self.V is None else self.V[some], self.sets(neighbours[some])
            return finish(some, conditional(self.parameters, self.X[some], v, sets))

        size = self.points_at_once(neighbours.shape[1])
        groups = place.split(max(SEARCHED_AT_ONCE, size))  # so that few parts are held at a time
        found = (one for group in groups for one in on_threads(part, group.split(size)))
        return neighbours, found

    def noise(self, some: Tensor | slice = slice(None)) -> Tensor:
        """The noise variances of some of the rows, or one for all of them."""
        noise = self.parameters.noise
        return noise if self.factor is None else noise * self.factor[some]

    def with_targets(self, y: Tensor) -> OrderedRows:
        """The same rows with other targets, and all that was computed of the inputs."""
        same = copy(self)
        same.y = y
        return same

    def sets(self, index: Tensor) -> Neighbours:
        """The rows with these places (B, k) as neighbours; -1 for none."""
        at = index.clamp_min(0).reshape(-1)

        def taken(of_rows: Tensor) -> Tensor:  # twice as fast as of_rows[at]
            return of_rows.index_select(0, at).reshape(*index.shape, *of_rows.shape[1:])

        V = None if self.V is None else taken(self.V)
        factor = None if self.factor is None else taken(self.factor)
        return Neighbours(taken(self.X), taken(self.y), index >= 0, V, factor)

    def predict(self, X: Tensor, k: int, part: GlobalPart | None) -> Prediction:
        """Mean and latent variance at the rows of X, given the k nearest rows of each."""
        found = concatenated([out.given(part) for out in self._at_points(X, k, True)])
        return Prediction(found.mean.to(X.dtype), found.variance.to(X.dtype))

    def mean(self, X: Tensor, k: int, part: GlobalPart | None) -> Tensor:
        """The mean at the rows of X, without variance work."""
        parts = [out.mean_given(part) for out in self._at_points(X, k, False)]
        return torch.cat(parts).to(X.dtype)

    def _at_points(self, X: Tensor, k: int, with_variance: bool) -> Iterator[Conditional]:
        """f at the rows of X given the k nearest rows of each, in chunks of bounded memory."""
        keep_freed_memory()
        k = min(k, len(self.X))
        size = self.points_at_once(k)
        _ = self.V  # computed once, before threads ask for it at the same time

        def part(pair: tuple[Tensor, Tensor]) -> Conditional:
            x, index = pair
            return conditional(self.parameters, x, self.basis(x), self.sets(index), with_variance)

        for wide in X.double().split(max(SEARCHED_AT_ONCE, size)):
            _, index = self.search.nearest(self.located(wide), k)
            yield from on_threads(part, list(zip(wide.split(size), index.split(size), strict=True)))


def nearest_before_each(rows: OrderedRows, k: int) -> tuple[Tensor, Tensor]:
    """The places of all rows, and those of the k nearest before each, or as many as there can be."""
    place = torch.arange(len(rows.X), device=rows.X.device)
    k = min(k, max(1, len(place) - 1))
    return place, rows.search.nearest_before(rows.search.coordinates, place, k)[1]
