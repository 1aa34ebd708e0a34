"""The exact GP expert."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distgp import linalg
from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.experts.base import (
    Expert,
    Inducing,
    LinearPosterior,
    Means,
    Prediction,
    latent_variance,
    product_in_chunks,
)
from distgp.experts.parameters import Parameters
from distgp.likelihoods import copies_term, noise_of_rows

EXPERTS_AT_ONCE = 32
"""Experts that predict at once: a solve with few points for each of many experts is slow."""
SHARD_ROWS = 1_000
"""Rows per expert, at most, where the number of experts is left to us."""


class GaussianNLL(torch.autograd.Function):
    """½(yᵀK̃⁻¹y + log det K̃) for K̃ = K + diag(noise), with the derivative written by hand.

    With α = K̃⁻¹y it is ½(K̃⁻¹ − ααᵀ) in K, the diagonal of that in the noise, and α in y, so that one
    factorisation and one inverse from it serve value and gradient, and nothing is differentiated
    through the factorisation.
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, noise: Tensor, y: Tensor) -> Tensor:
        """Factorise once; keep L and α."""
        L, alpha = _factor_and_weights(K, noise, y)
        ctx.save_for_backward(L, alpha)
        ctx.shapes = K.shape, noise.shape, y.shape
        return 0.5 * ((y * alpha).sum(-1) + linalg.log_det(L))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """½(K̃⁻¹ − ααᵀ), its diagonal and α, times the incoming gradient."""
        L, alpha = ctx.saved_tensors
        half = (0.5 * gradient)[..., None]
        in_K = linalg.half_inverse(L)
        in_K.addcmul_(alpha[..., :, None], alpha[..., None, :], value=-1.0).mul_(half[..., None])
        in_noise = in_K.diagonal(dim1=-2, dim2=-1)
        in_y = gradient[..., None] * alpha
        parts = zip((in_K, in_noise, in_y), ctx.shapes, strict=True)
        return tuple(part.sum_to_size(shape) for part, shape in parts)  # pyright: ignore


def _factor_and_weights(K: Tensor, noise: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """L with L Lᵀ = K̃ = K + diag(noise), and α = K̃⁻¹y."""
    L = linalg.cholesky(linalg.add_diagonal(K, noise), overwrite=True)
    return L, linalg.cholesky_solve(L, y.expand(L.shape[:-1])[..., None])[..., 0]


def covariance_and_noise(parameters: Parameters, shard: Shard) -> tuple[Tensor, Tensor]:
    """k(X, X) and the noise variances of the rows, which K̃ has on its diagonal.

    Padding becomes rows of the identity: log-determinant 0, no influence.
    """
    K = parameters.kernel(shard.X)
    noise = noise_of_rows(shard, parameters.noise)
    if shard.mask is not None:
        K = torch.where(shard.mask[..., :, None] & shard.mask[..., None, :], K, 0.0)
        noise = torch.where(shard.mask, noise, 1.0)
    return K, noise


class ExactExpert(Expert):
    """A full GP on its shard: O(n³) time and O(n²) memory. Its objective is −log N(y; 0, K̃)."""

    name: ClassVar[str] = "exact"
    default_training: ClassVar[str] = "fact"

    def number_of_experts(self, n: int, inducing: Inducing, workers: int) -> int:
        """As many as shards of at most 1,000 rows make."""
        del inducing, workers
        return math.ceil(n / SHARD_ROWS)

    def entries(self, n: int) -> int:
        """Entries of K̃."""
        return n * n

    def objective(self, parameters: Parameters, shard: Shard) -> Tensor:
        """−log p(y) = ½(yᵀ K̃⁻¹ y + log det K̃ + n log 2π), of all copies where rows have weights."""
        nll = GaussianNLL.apply(*covariance_and_noise(parameters, shard), shard.y)
        normaliser = 0.5 * math.log(2.0 * math.pi) * shard.sizes
        return nll + normaliser + copies_term(shard, parameters.noise)

    def condition(self, parameters: Parameters, shard: Shard) -> ExactPosterior:
        """Equation (1) of the paper: L Lᵀ = K̃, α = K̃⁻¹ y."""
        with torch.no_grad():
            K, noise = covariance_and_noise(parameters, shard)
            L, alpha = _factor_and_weights(K, noise, shard.y)
        return ExactPosterior(parameters, shard, L, alpha)


@dataclass(frozen=True, eq=False)
class ExactPosterior(LinearPosterior):
    """f given (X, y): the Cholesky factor L of K̃ = k(X, X) + σ²I, (*batch, n, n), and α = K̃⁻¹y."""

    travels_as: ClassVar[Kinds] = {"alpha": "means", "*": "factors"}
    parameters: Parameters
    shard: Shard  # pyright: ignore[reportIncompatibleVariableOverride]
    L: Tensor
    alpha: Tensor

    @property
    def entries(self) -> int:
        """One entry per training row of the experts that are worked on at once."""
        return self.alpha.shape[-1] * min(EXPERTS_AT_ONCE, math.prod(self.batch))

    @property
    def batch(self) -> torch.Size:
        """One entry per expert."""
        return self.alpha.shape[:-1]

    def row_count(self) -> int:
        """The number of real rows."""
        return int(self.shard.sizes.sum())

    def without_rows(self) -> ExactPosterior:
        """Return the posterior itself: exact experts are made of their rows."""
        return self

    def chosen(self, which: Tensor | slice) -> ExactPosterior:
        """The rows and factors of these experts."""
        return ExactPosterior(
            self.parameters[which], self.shard[which], self.L[which], self.alpha[which]
        )

    def means(self) -> ExactMeans:
        """The rows and α, without L."""
        return ExactMeans(self.parameters, self.shard.X, self.alpha)

    def representer(self) -> tuple[Tensor, Tensor]:
        """The training rows and their coefficients α."""
        return self.shard.X, self.alpha

    @property
    def row_coefficients(self) -> Tensor:
        """α."""
        return self.alpha

    def communication(self, shared: bool) -> Shard:
        """The rows of the first expert."""
        del shared
        return self.shard[:1].flatten().without_padding()

    def augmented(self, message: object, skip: int) -> tuple[ExactPosterior, ExactPosterior]:
        """Condition on the communication rows with and without each expert's own."""
        assert isinstance(message, Shard)
        theta, expert = self.parameters[skip:], ExactExpert()
        both = message.join(self.shard[skip:])
        return expert.condition(theta, both), expert.condition(theta, message)

    def printed_variance(self, X: Tensor) -> Tensor:
        """k_i(x)ᵀK̃⁻¹k_i(x): the variance *explained*."""
        return self.prior(X) - self.predict_chunk(X).variance

    def projection(self, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """a = K̃⁻¹k_i(x) on the training rows; k_A = aᵀk_i(x)."""
        K = self.cross(X)
        half = linalg.solve_lower(self.L, K)
        return self.shard.X, linalg.solve_upper(self.L, half), half.square().sum(-2)

    def weighted_mean(self, X: Tensor, weights: Tensor) -> Tensor:
        """Σβ_i k_i(x)ᵀα_i."""
        if self.parameters.batch:
            return weights @ self.mean(X)
        points = self.shard.X.reshape(-1, self.shard.d)
        return product_in_chunks(
            self.parameters.kernel, X, points, (weights[:, None] * self.alpha).reshape(-1)
        )

    def covariance(self, X: Tensor) -> Tensor:
        """k(x, x′) − (L⁻¹k_i(x))ᵀ(L⁻¹k_i(x′))."""
        half = linalg.solve_lower(self.L, self.cross(X))
        return self.parameters.kernel(X) - half.mT @ half

    def cross(self, X: Tensor) -> Tensor:
        """k_i(x) = k(X_i, x) for all x, (*batch, n, N); zero on padding."""
        K = self.parameters.kernel(X, self.shard.X).mT
        return K if self.shard.mask is None else torch.where(self.shard.mask[..., None], K, 0.0)

    def mean_chunk(self, X: Tensor) -> Tensor:
        """μ = k_i(x)ᵀα."""
        return torch.cat([some._mean(some.cross(X)) for some in self._groups()])

    def predict_chunk(self, X: Tensor) -> Prediction:
        """μ = k_i(x)ᵀα and s² = k(x, x) − ‖L⁻¹k_i(x)‖²."""
        parts = [some._predict(X) for some in self._groups()]
        mean = torch.cat([part.mean for part in parts])
        return Prediction(mean, torch.cat([part.variance for part in parts]))

    def _groups(self) -> list[ExactPosterior]:
        """A few experts at a time, so that many points are worked on at once."""
        if len(self.batch) != 1 or self.count <= EXPERTS_AT_ONCE:
            return [self]
        starts = range(0, self.count, EXPERTS_AT_ONCE)
        return [self.chosen(slice(start, start + EXPERTS_AT_ONCE)) for start in starts]

    def _predict(self, X: Tensor) -> Prediction:
        K = self.cross(X)
        mean = self._mean(K)
        explained = linalg.solve_lower(self.L, K, overwrite=True).square_().sum(-2)
        return Prediction(mean, latent_variance(self.parameters.kernel.diag(X), explained))

    def _mean(self, K: Tensor) -> Tensor:
        return (self.alpha[..., None, :] @ K)[..., 0, :]


@dataclass(frozen=True, eq=False)
class ExactMeans(Means):
    """k(x, X_i)ᵀα_i for all experts i; α is zero on padding."""

    travels_as: ClassVar[Kinds] = {"points": "inputs", "*": "means"}
    parameters: Parameters
    points: Tensor
    alpha: Tensor

    @property
    def coefficients(self) -> Tensor:
        """The coefficients α."""
        return self.alpha

    def mean_chunk(self, X: Tensor) -> Tensor:
        """One kernel block per expert."""
        K = self.parameters.kernel(X, self.points)
        return (K @ self.alpha[..., None])[..., 0]
