"""Draws of a GP's prior as functions, by random features, which can be evaluated at any points.

A kernel with a spectral density is k(x, x′) = E cos ωᵀ(z − z′) of coordinates z(x). With F frequencies ω_j,
amplitudes ρ_j, ρ_j² = g² + h² of two standard normal numbers, and uniform phases φ_j, the function

    f(x) = F^−½ Σ_j ρ_j cos(ω_jᵀz + φ_j)

is Gaussian given the frequencies, and has mean 0 and covariance k over them. **Every draw has frequencies
of its own**: draws that share them would all have the covariance of these F frequencies, which is not k.
Linear and constant kernels have finitely many features, and their draws are Gaussian without exception.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, reduce, singledispatch
from itertools import product
from typing import TypeAlias

import numpy as np
import torch
from scipy.special import betaincinv, gammainccinv
from torch import Tensor

from distgp._util.threads import on_threads
from distgp.kernels.base import Kernel, Product, Scale, Sum
from distgp.kernels.kinds import (
    RBF,
    Constant,
    Linear,
    Matern12,
    Matern32,
    Matern52,
    Periodic,
    RationalQuadratic,
)
from distgp.kernels.stationary import Stationary

FEATURES = 128
"""Frequencies of each draw. Mean and covariance are right with any number, higher moments with many."""
TAIL = 3.0
"""The power p in u = t^p, by which long frequencies are drawn more often than they are."""
BLOCK = {"cpu": 2**18, "cuda": 2**26}
"""Cosines that are computed at a time: 2 MiB, which stays in the cache, and 512 MiB."""
POINTS = {"cpu": 2**10, "cuda": 2**12}
"""Points of such a block at most; the rest of it are draws."""
Map: TypeAlias = Callable[[Tensor], Tensor]
"""A function of inputs X (N, d) with values (N, q)."""
Radius: TypeAlias = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]
"""|ω|² that is exceeded with given probabilities, for q coordinates; what it needs more is random."""


@dataclass(frozen=True)
class Wave:
    """A kernel E cos ωᵀ(z − z′) of coordinates z(x), with frequencies ω whose direction is uniform."""

    located: Map
    radius: Radius


@dataclass(frozen=True)
class Term:
    """A product of kernels: a variance, waves, and kernels z(x)ᵀz(x′) of finitely many features z."""

    variance: float = 1.0
    waves: tuple[Wave, ...] = ()
    finite: tuple[Map, ...] = ()

    def times(self, other: Term) -> Term:
        """Multiply two products."""
        variance = self.variance * other.variance
        return Term(variance, self.waves + other.waves, self.finite + other.finite)


@singledispatch
def spectrum(kernel: Kernel) -> tuple[Term, ...] | None:
    """Write a kernel without batch dimensions as a sum of products of waves and finite features.

    None where that is not known; register a function for a kernel of one's own.

    Examples
    --------
    >>> [len(term.waves) for term in spectrum(2.0 * RBF(0.5) * Matern52(2.0) + Linear())]
    [2, 0]
    """
    del kernel
    return None


@spectrum.register
def _(kernel: RBF) -> tuple[Term, ...]:
    return (Term(waves=(Wave(kernel.scaled, _normal_radius),)),)


def _normal_radius(u: np.ndarray, q: int, rng: np.random.Generator) -> np.ndarray:
    """ω of the RBF kernel is normal, and |ω|² has a χ² distribution."""
    del rng
    return 2.0 * gammainccinv(0.5 * q, u)


def _matern(nu: float, kernel: Stationary) -> tuple[Term, ...]:
    """ω has a multivariate t distribution with 2ν degrees of freedom: 2ν / (2ν + |ω|²) a beta number."""

    def radius(u: np.ndarray, q: int, rng: np.random.Generator) -> np.ndarray:
        del rng
        share = betaincinv(nu, 0.5 * q, u)
        return 2.0 * nu * (1.0 - share) / share

    return (Term(waves=(Wave(kernel.scaled, radius),)),)


spectrum.register(Matern12, partial(_matern, 0.5))
spectrum.register(Matern32, partial(_matern, 1.5))
spectrum.register(Matern52, partial(_matern, 2.5))


@spectrum.register
def _(kernel: RationalQuadratic) -> tuple[Term, ...]:
    """(1 + s/α)^−α = E exp(−τs), s = r²/2, with τ gamma of shape α and mean 1: ω is √τ times normal."""
    alpha = float(kernel.alpha)

    def radius(u: np.ndarray, q: int, rng: np.random.Generator) -> np.ndarray:
        return rng.gamma(alpha, 1.0 / alpha, u.shape) * _normal_radius(u, q, rng)

    return (Term(waves=(Wave(kernel.scaled, radius),)),)


@spectrum.register
def _(kernel: Periodic) -> tuple[Term, ...]:
    """It is the RBF kernel of points on circles."""
    return (Term(waves=(Wave(kernel.embedded, _normal_radius),)),)


@spectrum.register
def _(kernel: Constant) -> tuple[Term, ...]:
    return (Term(float(kernel.variance)),)


@spectrum.register
def _(kernel: Linear) -> tuple[Term, ...]:
    return (Term(finite=(kernel.scaled,)),)


@spectrum.register
def _(kernel: Scale) -> tuple[Term, ...] | None:
    found, scale = spectrum(kernel.kernel), Term(float(kernel.variance))
    return None if found is None else tuple(map(scale.times, found))


@spectrum.register
def _(kernel: Sum) -> tuple[Term, ...] | None:
    found = [part for part in map(spectrum, kernel.kernels) if part is not None]
    return sum(found, ()) if len(found) == len(kernel.kernels) else None


@spectrum.register
def _(kernel: Product) -> tuple[Term, ...] | None:
    """Brackets are multiplied out."""
    found = [part for part in map(spectrum, kernel.kernels) if part is not None]
    if len(found) < len(kernel.kernels):
        return None
    return tuple(reduce(Term.times, factors) for factors in product(*found))


@dataclass(frozen=True, eq=False)
class FiniteDraws:
    """Draws z(x)ᵀw with normal weights w (q, size): Gaussian."""

    features: Map
    weights: Tensor

    def add_to(self, out: Tensor, X: Tensor, draws: slice) -> None:
        """Add some of the draws at the rows of X to `out`, (N, draws)."""
        out.addmm_(self.features(X), self.weights[:, draws])


@dataclass(frozen=True, eq=False)
class WaveDraws:
    """Draws Σ_j ρ_j cos(ω_jᵀz + φ_j), each summand times the features' z(x)ᵀu_j: right in covariance.

    The phases are the last line of the frequencies, (size, q + 1, F); amplitudes are (size, F, 1), and
    the directions u (size, q, F) go with each of the maps of finite features.
    """

    located: tuple[Map, ...]
    frequencies: Tensor
    amplitudes: Tensor
    finite: tuple[tuple[Map, Tensor], ...] = ()

    def add_to(self, out: Tensor, X: Tensor, draws: slice) -> None:
        """Add some of the draws at the rows of X to `out`, (N, draws)."""
        Z = torch.cat([located(X) for located in self.located] + [X.new_ones(len(X), 1)], -1)
        waves = (Z @ self.frequencies[draws]).cos_()
        for features, directions in self.finite:
            waves.mul_(features(X) @ directions[draws])
        out.add_((waves @ self.amplitudes[draws])[..., 0].mT)


@dataclass(frozen=True, eq=False)
class PriorDraws:
    """Functions drawn from the prior; the same functions wherever and however often they are evaluated."""

    parts: tuple[FiniteDraws | WaveDraws, ...]
    size: int

    def at(self, X: Tensor) -> Tensor:
        """Evaluate all draws at the rows of X (N, d), (N, size), in bounded memory beside the result."""
        out = X.new_zeros(len(X), self.size)
        kind = X.device.type
        points = POINTS.get(kind, POINTS["cpu"])
        step = max(1, BLOCK.get(kind, BLOCK["cpu"]) // (points * FEATURES))

        def fill(pair: tuple[Tensor, Tensor]) -> None:
            some, x = pair
            for start in range(0, self.size, step):
                draws = slice(start, start + step)
                for part in self.parts:
                    part.add_to(some[:, draws], x, draws)

        pairs = list(zip(out.split(points), X.split(points), strict=True))
        with torch.no_grad():
            if kind == "cpu":
                on_threads(fill, pairs)
            else:
                list(map(fill, pairs))
        return out


def prior_draws(kernel: Kernel, d: int, size: int, seed: int, like: Tensor) -> PriorDraws | None:
    """Draw functions from the prior GP(0, k), by `FEATURES` random features for each product of kernels.

    Mean and covariance are exactly 0 and k. Sums of linear and constant kernels, and products of these,
    are Gaussian. Where there are other kernels a draw is Gaussian given its frequencies, and beyond mean
    and covariance only nearly so; the more so the fewer frequencies matter, as between points that are so
    near to each other that only the highest tell them apart. In products of such kernels and linear
    ones the features' random directions do the same.

    Parameters
    ----------
    kernel : Kernel
        The kernel k, without batch dimensions.
    d : int
        The number of input columns.
    size : int
        The number of draws.
    seed : int
        The seed; it gives the same functions on every device.
    like : Tensor
        A tensor with the dtype and the device of the inputs to come.

    Returns
    -------
    PriorDraws or None
        None where the kernel has a part without a known spectrum.

    Examples
    --------
    >>> X = torch.zeros(3, 2, dtype=torch.float64)
    >>> draws = prior_draws(RBF(0.5) + Constant(2.0), 2, size=5, seed=0, like=X)
    >>> draws.at(X).shape
    torch.Size([3, 5])
    """
    terms = spectrum(kernel)
    if terms is None:
        return None
    rng, x = np.random.default_rng(seed), like.new_zeros(1, d)
    return PriorDraws(tuple(_drawn(term, size, rng, x) for term in terms), size)


def _drawn(term: Term, size: int, rng: np.random.Generator, x: Tensor) -> FiniteDraws | WaveDraws:
    """Draw the functions of one product; x (1, d) is any input."""
    scale = math.sqrt(term.variance)
    if not term.waves:
        features = partial(_multiplied, term.finite)
        weights = scale * rng.standard_normal((features(x).shape[-1], size))
        return FiniteDraws(features, torch.as_tensor(weights).to(x))
    drawn = [_frequencies(wave, size, rng, x) for wave in term.waves]
    phases = 2.0 * math.pi * rng.random((size, 1, FEATURES))
    finite = tuple(
        (z, torch.as_tensor(rng.standard_normal((size, z(x).shape[-1], FEATURES))).to(x))
        for z in term.finite
    )
    square = math.prod((weight for _, weight in drawn), start=rng.chisquare(2.0, phases.shape))
    return WaveDraws(
        tuple(wave.located for wave in term.waves),
        torch.as_tensor(np.concatenate([*(omega for omega, _ in drawn), phases], 1)).to(x),
        torch.as_tensor(scale * np.sqrt(square / FEATURES)).to(x).mT,
        finite,
    )


def _frequencies(
    wave: Wave, size: int, rng: np.random.Generator, x: Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Draw ω for each draw and feature, (size, q, F), and the weights of its square, (size, 1, F).

    The probability u of a longer ω is t^p for t in each of F equal parts of (0, 1), in random order, with
    the weight du/dt. So a draw's frequencies represent all lengths evenly, and the long ones, which are
    rare but make all that is left of f between dense rows, by more of smaller weight.
    """
    shape, q = (size, 1, FEATURES), wave.located(x).shape[-1]
    parts = rng.permuted(np.broadcast_to(np.arange(FEATURES), shape), axis=-1)
    t = np.clip((parts + rng.random(shape)) / FEATURES, 1e-9, 1.0 - 1e-15)
    direction = rng.standard_normal((size, q, FEATURES))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    radius = np.sqrt(wave.radius(t**TAIL, q, rng))
    return radius * direction, TAIL * t ** (TAIL - 1.0)


def _multiplied(maps: tuple[Map, ...], X: Tensor) -> Tensor:
    """All products of one feature of each map, (N, q₁q₂…); ones where there is no map."""
    return reduce(
        lambda A, B: (A[:, :, None] * B[:, None, :]).flatten(1),
        (features(X) for features in maps),
        X.new_ones(len(X), 1),
    )
