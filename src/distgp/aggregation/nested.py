"""NPAE: nested pointwise aggregation of experts, equation (6) of the paper.

The experts' means at x are linear in the data, so under the prior they and f(x) are jointly
Gaussian; NPAE conditions f(x) on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.base import Aggregator, Combined, require_one_prior
from distgp.aggregation.ensemble import WIDE, Ensemble, Group
from distgp.experts import Prediction, SparsePosterior
from distgp.experts.base import chunk_rows, latent_variance
from distgp.kernels import Kernel


@dataclass(frozen=True, eq=False)
class Moments:
    """Of M experts' means at N points under the prior."""

    mean: Tensor  # μ_i(x), (M, N)
    to_f: Tensor  # k_A = cov(μ_i, f), (M, N); also the diagonal of K_A
    between: Tensor  # K_A = cov(μ_i, μ_j), (N, M, M)
    prior: Tensor  # k(x, x), (N,)


def moments(ensemble: Ensemble, X: Tensor) -> Moments:
    """The means and covariances of all experts at X, in float64."""
    kernel = ensemble.parameters.kernel.to(dtype=WIDE)
    parts = ensemble.map(_projected, X, ensemble.shares_inducing)
    p = max(part[2].shape[1] for part in parts)
    mean, to_f = torch.cat([part[0] for part in parts]), torch.cat([part[3] for part in parts])
    a = torch.cat([_padded(part[2], p) for part in parts])
    if ensemble.shares_inducing:  # in whitened coordinates k(P_i, P_j) is the identity
        r = a.permute(2, 0, 1)
        between = r @ r.mT
    else:
        P = torch.cat([_padded(part[1], p) for part in parts])
        between = _cross_covariances(kernel, P, a)
    # Noise enters the diagonal alone: a_iᵀ(K_ii + σ²I)a_i = k_A, by the definition of a_i.
    between.diagonal(dim1=-2, dim2=-1).copy_(to_f.mT)
    return Moments(mean, to_f, between, kernel.diag(X.to(WIDE)))


def _padded(values: Tensor, p: int) -> Tensor:
    """(M, p, ·), filled with zeros: a point with a = 0 has no part in any covariance."""
    return torch.nn.functional.pad(values, (0, 0, 0, p - values.shape[1]))


def _projected(group: Group, X: Tensor, whitened: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    posterior = group.posterior
    if whitened:
        assert isinstance(posterior, SparsePosterior)
        v = posterior.whitened(X)
        r = posterior.passed_on(v)
        parts = (posterior.mean_chunk(X), r.new_empty(len(r), 0), r, (r * v).sum(-2))
    else:
        parts = (posterior.mean_chunk(X), *posterior.projection(X))
    mean, P, a, to_f = (part.to(WIDE) for part in parts)
    return mean, P, a, to_f


def _cross_covariances(kernel: Kernel, P: Tensor, a: Tensor) -> Tensor:
    """a_iᵀ k(P_i, P_j) a_j for all i < j and its mirror image, (N, M, M): all in matrix products.

    Expert j meets all experts before it at once: one kernel block and one product with a_j, in
    blocks of rows.
    """
    M, p, N = a.shape
    out = a.new_zeros(N, M, M)
    flat_P, flat_a = P.reshape(M * p, -1), a.reshape(M * p, N)
    experts = max(1, chunk_rows(N * p, a.device))  # experts i handled at a time
    for j in range(1, M):
        for start in range(0, j, experts):
            stop = min(start + experts, j)
            rows = slice(start * p, stop * p)
            T = kernel(flat_P[rows], P[j]) @ a[j]
            block = (T.mul_(flat_a[rows])).reshape(stop - start, p, N).sum(1)
            out[:, start:stop, j] = block.mT
            out[:, j, start:stop] = block.mT
    return out


def nested(m: Moments) -> Prediction:
    """μ = k_Aᵀ K_A⁻¹ μ_1..M and s² = k − k_Aᵀ K_A⁻¹ k_A.

    Far from the data K_A underflows, so it is scaled to a correlation matrix; experts with no
    covariance left are dropped.
    """
    tiny = torch.finfo(m.prior.dtype).tiny ** 0.5
    alive = m.to_f > tiny * m.prior
    root = torch.where(alive, m.to_f, 1.0).sqrt().mT  # (N, M)
    both = alive.mT[:, :, None] & alive.mT[:, None, :]
    correlation = torch.where(both, m.between / (root[:, :, None] * root[:, None, :]), 0.0)
    correlation.diagonal(dim1=-2, dim2=-1).fill_(1.0)
    L = linalg.cholesky(correlation, "the experts' correlation matrix")
    target = torch.where(alive.mT, root, 0.0)  # k_A / root, since k_A = root²
    values = torch.where(alive, m.mean, 0.0).mT / root
    half = linalg.solve_lower(L, torch.stack([target, values], -1))
    explained = half[..., 0].square().sum(-1)
    mean = (half[..., 0] * half[..., 1]).sum(-1)
    return Prediction(mean, latent_variance(m.prior, explained))


def moment_columns(ensemble: Ensemble) -> int:
    """Entries for each test point: a_i and K_A."""
    M = ensemble.size
    points = sum(ensemble.map(_points))
    return points + M * M


def _points(group: Group) -> int:
    return group.posterior.columns


@dataclass(frozen=True)
class NPAE(Aggregator):
    """Nested pointwise aggregation of experts.

    Exact cross-covariances for exact experts (O(n²) a test point), Nyström for sparse ones. Its
    variance is an upper bound of the full GP's for exact experts, of the pooled one's for sparse.
    """

    name: ClassVar[str] = "npae"

    def combine(self, ensemble: Ensemble) -> Combined:
        """All of it depends on the test points: keep the experts."""
        require_one_prior(ensemble, self.name)
        return NestedCombined(ensemble, ensemble.noise())


@dataclass(frozen=True, eq=False)
class NestedCombined(Combined):
    """The posterior of NPAE."""

    ensemble: Ensemble
    noise: Tensor

    @property
    def columns(self) -> int:
        """a_i and K_A, less what a larger chunk saves in kernel blocks."""
        return max(1, moment_columns(self.ensemble) // 8)

    def between(self, X: Tensor) -> None:
        """None: every point has its own weights."""
        del X

    def mean_chunk(self, X: Tensor) -> Tensor:
        """The weights are the covariances, so there is nothing to spare."""
        return self.predict_chunk(X).mean

    def predict_chunk(self, X: Tensor) -> Prediction:
        """Condition f on the experts' means."""
        out = nested(moments(self.ensemble, X))
        return Prediction(out.mean.to(X.dtype), out.variance.to(X.dtype))
