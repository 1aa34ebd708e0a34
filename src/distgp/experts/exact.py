"""The exact GP expert."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction, FunctionCtx, once_differentiable

from distgp import linalg
from distgp._util.progress import doing
from distgp._util.threads import Lock
from distgp.data.shard import Shard, concatenate, stack
from distgp.engines import Kinds
from distgp.experts import cost, whole
from distgp.experts.base import (
    Expert,
    Inducing,
    Parameters,
    Prediction,
    chunk_rows,
    fields_alone,
    latent_variance,
)
from distgp.experts.draws import matheron
from distgp.experts.linear import EXPERTS_AT_ONCE, LinearPosterior, Means, few_at_a_time
from distgp.kernels import Kernel
from distgp.likelihoods import copies_term, noise_of_rows

SHARD_ROWS = 1_000
"""Rows per expert, at most, where the number of experts is left to us."""
ROWS_WITH_FACTOR = 2_000
"""Rows up to which the factor of an expert is saved and sent with it: beyond, it is most of the bytes."""
POINTS_AT_ONCE = 256
"""Points that a solve with a large factor should have: with 60 it takes half as long again for each."""
DIRECT_ROWS = 4_000
"""Rows of one expert up to which it is trained by its own likelihood from the start."""
LEAST_POLISH, MOST_POLISH = 4, 20
"""Evaluations of the likelihood of all rows after nearest rows have led near its maximum, and as many again
without bounds of ours."""
_LOCK = Lock()


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


def _conditioned(parameters: Parameters, shard: Shard) -> tuple[Tensor, Tensor]:
    """L and α of every expert of a batch; those of a large one alone in a single matrix."""
    one = whole.alone(parameters, shard) if shard.mask is None else None
    with torch.no_grad():
        if one is None:
            return _factor_and_weights(*covariance_and_noise(parameters, shard), shard.y)
        ExactExpert().check_room(shard)
        L, alpha = whole.factor_and_weights(*one)
        batch = linalg.broadcast(shard.batch, parameters.batch)
        return L.expand(*batch, -1, -1), alpha.expand(*batch, -1)


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
    first_rows: ClassVar[int | None] = 1_000

    def training_for(self, rows: int) -> str:
        """Nearest rows, polished, for one that is so large that every evaluation counts."""
        return "nearest" if rows > DIRECT_ROWS else self.default_training

    def polish_for(self, n: int, d: int, like: Tensor, seconds: float) -> int:
        """As many evaluations as fit twice, at most 20; none where they are too few to lead anywhere."""
        if n <= DIRECT_ROWS:  # training looks at all rows anyhow: no time goes into an estimate
            return 0
        each = cost.cost_of_objective(n, d, like).seconds
        fit = int(min(0.5 * seconds / each, MOST_POLISH + 1.0)) - 1
        return min(fit, MOST_POLISH) if fit >= LEAST_POLISH else 0

    def check_room(self, shard: Shard) -> None:
        """Raise a MemoryError where one large matrix does not fit."""
        if shard.n >= whole.LARGE and shard.batch in ((), (1,)):
            needed = cost.bytes_of_condition(shard.n, shard.X)
            cost.refuse_above_free(shard.n, needed, shard.X.device)

    def number_of_experts(self, n: int, inducing: Inducing, workers: int) -> int:
        """As many as shards of at most 1,000 rows make."""
        del workers
        return math.ceil(n / self.full_shard(inducing))

    def full_shard(self, inducing: Inducing) -> int:
        """1,000 rows: beyond, n³ is felt."""
        del inducing
        return SHARD_ROWS

    def entries(self, n: int) -> int:
        """Entries of K̃."""
        return n * n

    def objective(self, parameters: Parameters, shard: Shard) -> Tensor:
        """−log p(y) = ½(yᵀ K̃⁻¹ y + log det K̃ + n log 2π), of all copies where rows have weights."""
        one = whole.alone(parameters, shard)
        if one is None:
            nll = GaussianNLL.apply(*covariance_and_noise(parameters, shard), shard.y)
        else:
            batch = linalg.broadcast(shard.batch, parameters.batch)
            nll = whole.negative_log_likelihood(*one).expand(batch)
        normaliser = 0.5 * math.log(2.0 * math.pi) * shard.sizes
        return nll + normaliser + copies_term(shard, parameters.noise)

    def leave_one_out(self, parameters: Parameters, shard: Shard) -> Prediction:
        """Without row i, y_i has the mean y_i − α_i/q_i and the variance 1/q_i, with q = diag K̃⁻¹."""
        one = whole.alone(parameters, shard)
        if one is None:
            L, alpha = _factor_and_weights(*covariance_and_noise(parameters, shard), shard.y)
            q = linalg.half_inverse(L).diagonal(dim1=-2, dim2=-1)
        else:
            L, alpha = whole.factor_and_weights(*one)
            linalg.invert_(L)
            q = L.diagonal()
        return Prediction(shard.y - alpha / q, 1.0 / q)

    def condition(self, parameters: Parameters, shard: Shard) -> ExactPosterior:
        """Equation (1) of the paper: L Lᵀ = K̃, α = K̃⁻¹ y."""
        return ExactPosterior(parameters, shard, *_conditioned(parameters, shard))


@dataclass(frozen=True, eq=False)
class ExactPosterior(LinearPosterior):
    """f given (X, y): the Cholesky factor L of K̃ = k(X, X) + σ²I, (*batch, n, n), and α = K̃⁻¹y.

    A large L is neither saved nor sent: it is None then, and computed again when it is first needed.
    """

    travels_as: ClassVar[Kinds] = {"alpha": "means", "*": "factors"}
    on_rows: ClassVar[bool] = True
    sums = None
    parameters: Parameters
    shard: Shard  # pyright: ignore[reportIncompatibleVariableOverride]
    L: Tensor | None
    alpha: Tensor

    @cached_property
    def factor(self) -> Tensor:
        """L, computed when it is first needed where it is not held."""
        with _LOCK.now:  # chunks of points are predicted on several threads
            if "factor" in vars(self):
                return vars(self)["factor"]
            if self.L is None:
                doing(f"factorising the kernel matrix of {self.shard.n:,} rows, once")
            found = _conditioned(self.parameters, self.shard)[0] if self.L is None else self.L
            return vars(self).setdefault("factor", found)

    @property
    def entries(self) -> int:
        """One entry per training row of the experts that are worked on at once.

        Of very many rows fewer are said, so that a solve still has some hundreds of points.
        """
        most = max(whole.LARGE, chunk_rows(POINTS_AT_ONCE, self.alpha.device))
        rows = min(self.alpha.shape[-1], most)
        return rows * min(EXPERTS_AT_ONCE, math.prod(self.batch))

    @property
    def batch(self) -> torch.Size:
        """One entry per expert."""
        return self.alpha.shape[:-1]

    def prepare(self) -> None:
        """Compute the factor, if it is not held."""
        _ = self.factor

    def stored(self) -> ExactPosterior:
        """The same posterior without its factor, if that is large."""
        large = self.alpha.shape[-1] > ROWS_WITH_FACTOR
        return replace(self, L=None) if large and self.L is not None else self

    def __getstate__(self) -> dict[str, object]:
        return fields_alone(self.stored())

    def chosen(self, which: Tensor | slice) -> ExactPosterior:
        """The rows and factors of these experts."""
        return ExactPosterior(
            self.parameters[which], self.shard[which], self.factor[which], self.alpha[which]
        )

    def with_rows(self, shard: Shard) -> ExactPosterior:
        """Condition on all rows together."""
        both = stack([concatenate([self.shard[0], shard])])
        return ExactExpert().condition(self.parameters, both)

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
        half = linalg.solve_lower(self.factor, self.cross(X))
        return self.shard.X, linalg.solve_upper(self.factor, half), half.square().sum(-2)

    def covariance(self, X: Tensor) -> Tensor:
        """k(x, x′) − (L⁻¹k_i(x))ᵀ(L⁻¹k_i(x′))."""
        half = linalg.solve_lower(self.factor, self.cross(X))
        return self.parameters.kernel(X) - half.mT @ half

    def part(self, kernel: Kernel) -> ExactPosterior:
        """k_p(x, X) α and k_p(x, x) − ‖L⁻¹k_p(X, x)‖², with L and α of all parts together."""
        return replace(self, parameters=replace(self.parameters, kernel=kernel), L=self.factor)

    def draws(self, X: Tensor, size: int, seed: int) -> Tensor | None:
        """Matheron's rule with the factor L."""

        def solve(columns: Tensor) -> Tensor:
            return linalg.cholesky_solve(self.factor, columns.to(self.alpha)).to(columns.dtype)

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
        explained = linalg.solve_lower(self.factor, K, overwrite=True).square_().sum(-2)
        return Prediction(mean, latent_variance(self.parameters.kernel.diag(X), explained))
