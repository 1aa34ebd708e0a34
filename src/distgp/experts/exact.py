"""The exact GP expert."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from distgp import linalg
from distgp.data.shard import Shard
from distgp.engines import Kinds
from distgp.experts.base import Expert, Inducing, Parameters, Prediction, latent_variance
from distgp.experts.draws import matheron
from distgp.experts.linear import EXPERTS_AT_ONCE, LinearPosterior, Means, few_at_a_time
from distgp.likelihoods import copies_term, noise_of_rows

SHARD_ROWS = 1_000
"""Rows per expert, at most, where the number of experts is left to us."""


class GaussianNLL(torch.autograd.Function):
    """½(yᵀK̃⁻¹y + log det K̃) for K̃ = K + diag(noise), with the derivative written by hand.

    With α = K̃⁻¹y it is ½(K̃⁻¹ − ααᵀ) in K, the diagonal of that in the noise, and α in y, so that one
    factorisation and one inverse from it serve value and gradient, and nothing is differentiated
    through the factorisation.
    """

    @staticmethod
    def forward(ctx: FunctionCtx, K: Tensor, noise: Tensor, y: Tensor) -> Tensor:
        """Factorise once; keep L and α."""
        L, alpha = _factor_and_weights(K, noise, y)
        ctx.save_for_backward(L, alpha)
        return 0.5 * ((y * alpha).sum(-1) + linalg.log_det(L))

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: BackwardCFunction, gradient: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """½(K̃⁻¹ − ααᵀ), its diagonal and α, times the incoming gradient."""
        L, alpha = list(ctx.saved_tensors)
        half = (0.5 * gradient)[..., None]
        in_K = linalg.half_inverse(L)
        in_K.addcmul_(alpha[..., :, None], alpha[..., None, :], value=-1.0).mul_(half[..., None])
        # PyTorch itself sums over batch dimensions that an input did not have.
        return in_K, in_K.diagonal(dim1=-2, dim2=-1), gradient[..., None] * alpha


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
    on_rows: ClassVar[bool] = True
    sums = None
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

    def chosen(self, which: Tensor | slice) -> ExactPosterior:
        """The rows and factors of these experts."""
        return ExactPosterior(
            self.parameters[which], self.shard[which], self.L[which], self.alpha[which]
        )

    def means(self) -> Means:
        """The rows and α, which is zero on padding, without L."""
        return Means(self.parameters, self.alpha, self.shard.X)

    def representer(self) -> tuple[Tensor, Tensor]:
        """The training rows and their coefficients α."""
        return self.shard.X, self.alpha

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
        half = linalg.solve_lower(self.L, self.cross(X))
        return self.shard.X, linalg.solve_upper(self.L, half), half.square().sum(-2)

    def covariance(self, X: Tensor) -> Tensor:
        """k(x, x′) − (L⁻¹k_i(x))ᵀ(L⁻¹k_i(x′))."""
        half = linalg.solve_lower(self.L, self.cross(X))
        return self.parameters.kernel(X) - half.mT @ half

    def draws(self, X: Tensor, size: int, seed: int) -> Tensor | None:
        """Matheron's rule with the factor L."""

        def solve(columns: Tensor) -> Tensor:
            return linalg.cholesky_solve(self.L, columns.to(self.L.dtype)).to(columns.dtype)

        return matheron(self.parameters, self.shard, solve, X, size, seed)

    def cross(self, X: Tensor) -> Tensor:
        """k_i(x) = k(X_i, x) for all x, (*batch, n, N); zero on padding."""
        K = self.parameters.kernel(X, self.shard.X).mT
        return K if self.shard.mask is None else torch.where(self.shard.mask[..., None], K, 0.0)

    def predict_chunk(self, X: Tensor) -> Prediction:
        """μ = k_i(x)ᵀα and s² = k(x, x) − ‖L⁻¹k_i(x)‖²."""
        if len(self.batch) == 1 and self.count > EXPERTS_AT_ONCE:
            parts = [self.chosen(some).predict_chunk(X) for some in few_at_a_time(self.count)]
            mean = torch.cat([part.mean for part in parts])
            return Prediction(mean, torch.cat([part.variance for part in parts]))
        K = self.cross(X)
        mean = (self.alpha[..., None, :] @ K)[..., 0, :]
        explained = linalg.solve_lower(self.L, K, overwrite=True).square_().sum(-2)
        return Prediction(mean, latent_variance(self.parameters.kernel.diag(X), explained))
