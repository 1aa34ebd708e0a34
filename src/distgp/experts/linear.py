"""Posteriors whose means are fixed combinations of kernel functions, and these means alone."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.engines import Kinds
from distgp.experts.base import Parameters, Posterior, in_chunks

EXPERTS_AT_ONCE = 32
"""Experts that predict at once: a solve with few points for each of many experts is slow."""


class LinearPosterior(Posterior):
    """A posterior whose mean is a fixed combination of kernel functions, the same at every point."""

    on_rows: ClassVar[bool] = False
    """Whether the points of the representer are the rows."""

    @abstractmethod
    def means(self) -> Means:
        """The means of a batch of experts, without what only variances need."""

    @abstractmethod
    def representer(self) -> tuple[Tensor, Tensor]:
        """Points P (*batch, p, d) and coefficients (*batch, p) with μ(x) = Σ_p k(x, p) c_p."""

    @abstractmethod
    def projection(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean as a random variable of the prior: points P, a (*batch, p, N), k_A (*batch, N).

        cov(μ_i(x), μ_j(x)) = a_iᵀ k(P_i, P_j) a_j for i ≠ j, and var μ_i = cov(μ_i, f) = k_A: equation
        (6) of the paper.
        """

    @abstractmethod
    def printed_variance(self, X: Tensor) -> Tensor:
        """The term that algorithms 4 and 6 of the paper print for the variance, (*batch, N)."""

    @property
    def row_coefficients(self) -> Tensor | None:
        """The representer's coefficients where its points are the rows, (*batch, n); else None."""
        return self.representer()[1] if self.on_rows else None

    def mean_chunk(self, X: Tensor) -> Tensor:
        """The mean at all rows of X at once."""
        return self.means().mean_chunk(X)

    def weighted_mean(self, X: Tensor, weights: Tensor) -> Tensor:
        """Σ_i β_i μ_i(x) over the experts of a batch, with one kernel matrix where they share θ."""
        return self.means().weighted(X, weights)


@dataclass(frozen=True, eq=False)
class Means:
    """The posterior means of a batch of experts without their variances, μ_i(x) = v_i(x)ᵀc_i.

    v_i(x) is k(P_i, x) on the rows P_i of expert i, or L_u⁻¹k(Z, x) where there is a factor L_u. This is
    all that other workers need of an expert to evaluate its mean on their own rows.
    """

    travels_as: ClassVar[Kinds] = {"points": "inputs", "Lu": "basis", "*": "means"}
    parameters: Parameters
    coefficients: Tensor
    points: Tensor | None = None
    Lu: Tensor | None = None

    @property
    def size(self) -> int:
        """The number of experts."""
        return len(self.coefficients)

    def mean(self, X: Tensor) -> Tensor:
        """All means at the rows of X, (M, N), in bounded memory."""
        return torch.cat(in_chunks(self.mean_chunk, X, self.coefficients.numel()), -1)

    def mean_chunk(self, X: Tensor) -> Tensor:
        """All means at all rows of X at once, (M, N)."""
        c, kernel = self.coefficients, self.parameters.kernel
        if self.points is None:
            assert self.parameters.inducing is not None and self.Lu is not None
            K = kernel(X.to(self.Lu.dtype), self.parameters.inducing).mT
            v = linalg.solve_lower(self.Lu, K, overwrite=True)
            return (c[..., None, :] @ v)[..., 0, :].to(X.dtype)
        if c.ndim == 2 and len(c) > EXPERTS_AT_ONCE:
            groups = [
                Means(self.parameters[i], c[i], self.points[i]) for i in few_at_a_time(len(c))
            ]
            return torch.cat([group.mean_chunk(X) for group in groups])
        return (c[..., None, :] @ kernel(X, self.points).mT)[..., 0, :]

    def weighted(self, X: Tensor, weights: Tensor) -> Tensor:
        """Σ_i β_i μ_i(x), with one kernel matrix where the experts share θ."""
        c, points, Lu = self.coefficients, self.points, self.Lu
        if self.parameters.batch or (Lu is not None and Lu.ndim > 2):
            return weights.to(X.dtype) @ self.mean(X)
        weights = weights.to(c.dtype)
        if points is None:
            return Means(self.parameters, weights @ c, Lu=Lu).mean(X)
        every = points.reshape(-1, points.shape[-1])
        return Means(self.parameters, (weights[:, None] * c).reshape(-1), every).mean(X)


def few_at_a_time(experts: int) -> list[slice]:
    """Slices of a batch of experts, few at a time, so that many points are worked on at once."""
    starts = range(0, experts, EXPERTS_AT_ONCE)
    return [slice(start, start + EXPERTS_AT_ONCE) for start in starts]
