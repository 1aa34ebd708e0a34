"""The central variance: that of a sparse GP on the central inputs, given all rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.ensemble import Ensemble, Group
from distgp.aggregation.gram import Basis
from distgp.aggregation.variance import VarianceRule
from distgp.experts import Prediction, SparsePosterior, sparse
from distgp.experts.base import latent_variance

EXPERTS_AT_ONCE = 32
LARGEST_RESIDUAL = 1.0
"""tr(K − Q) / (nσ²) beyond which a central variance is reported."""


class CentralWarning(UserWarning):
    """The central inputs are too few for the central variance to be trusted."""


def central_variance(LB: Tensor, v: Tensor, prior: Tensor) -> Tensor:
    """s_c² = k − ‖v_c‖² + ‖L_B⁻¹v_c‖²: the sparse variance on the central inputs, given all rows."""
    explained = v.square().sum(0) - linalg.solve_lower(LB, v).square_().sum(0)
    return latent_variance(prior, explained.to(prior.dtype))


def factor_of_B(AA: Tensor) -> Tensor:
    """L_B of B = I + AAᵀ."""
    return linalg.cholesky(linalg.add_diagonal(AA, AA.new_ones(())), "I + AAᵀ")


@dataclass(frozen=True, eq=False)
class Central(VarianceRule):
    """min(s_c², min_i s_i²), with s_c² the sparse variance on the central inputs from all rows.

    s_c² = k − ‖v_c‖² + ‖L_B⁻¹v_c‖² approximates the full GP's variance. It is not a bound: at a central
    input it lies below. `residual`, tr(K − Q) / (nσ²), says how much the central inputs leave out.
    """

    needs_experts: ClassVar[bool] = True
    basis: Basis
    LB: Tensor
    residual: float

    @property
    def columns(self) -> int:
        """v_c(x) and its image."""
        return 2 * len(self.LB)

    def at(self, X: Tensor, mean: Tensor, experts: Prediction | None) -> Tensor:
        """The smaller of the central and the experts' variances."""
        del mean
        assert experts is not None
        v = self.basis.at(X)
        central = central_variance(self.LB, v, self.basis.prior(X))
        return torch.minimum(central, experts.variance.amin(0))

    def between(self, X: Tensor) -> Tensor:
        """k(x, x′) − v_cᵀv_c′ + (L_B⁻¹v_c)ᵀ(L_B⁻¹v_c′): the central inputs' sparse posterior."""
        v = self.basis.at(X)
        kept = linalg.solve_lower(self.LB, v)
        prior = self.basis.parameters.kernel(X.to(v.dtype))
        return (prior - v.mT @ v + kept.mT @ kept).to(X.dtype)

    def __post_init__(self) -> None:
        if self.residual > LARGEST_RESIDUAL:
            warnings.warn(
                f"the central inputs leave {self.residual:.2g} noise variances of each row "
                "unexplained, so the central variance is not to be trusted: raise n_central, or use "
                "variance='nested'",
                CentralWarning,
                stacklevel=5,
            )

    @staticmethod
    def of(ensemble: Ensemble, basis: Basis) -> Central:
        """From one pass over the rows."""
        total = sum_sparse(ensemble.map(_central_sums, basis))
        posterior = SparsePosterior.of(basis.parameters, basis.L, total)
        return Central(basis, posterior.factors.LB, float(posterior.residual()))


def _central_sums(group: Group, basis: Basis) -> sparse.SparseSums:
    return sum_sparse([sums.total() for _, sums in sums_by_expert(group, basis)])


def sums_by_expert(group: Group, basis: Basis) -> Iterator[tuple[slice, sparse.SparseSums]]:
    """Sums over each shard's rows on the central inputs, some experts at a time."""
    for start in range(0, group.size, EXPERTS_AT_ONCE):
        some = slice(start, start + EXPERTS_AT_ONCE)
        shards = group.rows().take_batch(some)
        yield some, sparse.row_sums(basis.parameters, basis.L, shards)


def sum_sparse(parts: list[sparse.SparseSums]) -> sparse.SparseSums:
    """The sums of several sets of rows."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
