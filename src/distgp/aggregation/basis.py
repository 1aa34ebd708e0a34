"""Central inputs: their kernel functions, and sums over the rows of all shards on them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation.ensemble import WIDE, Ensemble
from distgp.data.shard import Shard
from distgp.engines import travels
from distgp.experts import Parameters, SparsePosterior, SparseSums
from distgp.experts.base import latent_variance
from distgp.experts.sparse import inducing_factor, row_sums

EXPERTS_AT_ONCE = 32
"""Experts whose sums on the central inputs are held at a time."""


@dataclass(frozen=True, eq=False)
class Basis:
    """The whitened kernel functions v_c(x) = L_c⁻¹k(X_c, x) of the central inputs X_c.

    Parameters
    ----------
    parameters : Parameters
        θ in float64, with the central inputs as its inducing inputs.
    L : Tensor of shape (m_c, m_c)
        L_c, the Cholesky factor of k(X_c, X_c).
    """

    travels_as: ClassVar[str] = "basis"
    parameters: Parameters
    L: Tensor

    @staticmethod
    def of(parameters: Parameters, inputs: Tensor) -> Basis:
        """Factorise k(X_c, X_c) in float64."""
        wide = Parameters(parameters.kernel, parameters.noise, inputs).to(dtype=WIDE)
        return Basis(wide, inducing_factor(wide))

    @staticmethod
    def of_shared(ensemble: Ensemble) -> Basis:
        """The basis of the inducing inputs that sparse experts share."""
        return Basis(ensemble.parameters.to(dtype=WIDE), ensemble.on_first(_inducing_factor))

    @property
    def size(self) -> int:
        """The number m_c of central inputs."""
        return self.L.shape[-1]

    @property
    def inputs(self) -> Tensor:
        """The central inputs X_c, (m_c, d)."""
        assert self.parameters.inducing is not None
        return self.parameters.inducing

    def at(self, X: Tensor) -> Tensor:
        """v_c at the rows of X, (m_c, N)."""
        return linalg.solve_lower(self.L, self.parameters.kernel(X.to(WIDE), self.inputs).mT)

    def prior(self, X: Tensor) -> Tensor:
        """k(x, x) in the dtype of X."""
        return self.parameters.kernel.diag(X.to(WIDE)).to(X.dtype)


@travels("basis")
def _inducing_factor(posterior: SparsePosterior) -> Tensor:
    return posterior.Lu


def central_variance(LB: Tensor, v: Tensor, prior: Tensor) -> Tensor:
    """s_c² = k − ‖v_c‖² + ‖L_B⁻¹v_c‖²: the sparse variance on the central inputs, given all rows."""
    explained = v.square().sum(0) - linalg.solve_lower(LB, v).square_().sum(0)
    return latent_variance(prior, explained.to(prior.dtype))


def factor_of_B(AA: Tensor) -> Tensor:
    """L_B of B = I + AAᵀ."""
    return linalg.cholesky(linalg.add_diagonal(AA, AA.new_ones(())), "I + AAᵀ")


def sum_sparse(parts: list[SparseSums]) -> SparseSums:
    """The sums of several sets of rows together."""
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def sums_by_expert(rows: Shard, basis: Basis) -> Iterator[tuple[slice, SparseSums]]:
    """Sums over each shard's rows on the central inputs, some experts at a time."""
    for start in range(0, rows.count, EXPERTS_AT_ONCE):
        some = slice(start, start + EXPERTS_AT_ONCE)
        yield some, row_sums(basis.parameters, basis.L, rows[some])


def sum_of(tensors: list[Tensor]) -> Tensor:
    """The sum of equal-shaped tensors."""
    return torch.stack(tensors).sum(0)
