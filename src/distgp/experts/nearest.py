"""The nearest expert: each row is conditioned on its nearest rows, with or without a global part."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from distgp import linalg
from distgp.data.shard import Shard, concatenate, stack
from distgp.engines import Placement
from distgp.experts import inducing
from distgp.experts.base import Expert, Inducing, Parameters, Posterior, Prediction, fields_alone
from distgp.experts.joint import joint_covariance, joint_draws
from distgp.experts.neighborhoods import (
    GlobalPart,
    OrderedRows,
    nearest_before_each,
    negative_log_likelihood,
)
from distgp.likelihoods import copies_term

GLOBAL_INPUTS = 256
"""Inducing inputs of the global part, where their number is left to us."""


@dataclass(frozen=True)
class NearestExpert(Expert):
    """A GP that conditions each row on its nearest rows: O(nk³) time, O(nm) memory.

    Parameters
    ----------
    n_neighbors : int, default=128
        k at prediction: the rows that each point is conditioned on.
    n_conditioning : int, default=50
        k for the sums of the global part and in training, where every row is conditioned on as many
        rows before it.
    """

    name: ClassVar[str] = "nearest"
    default_training: ClassVar[str] = "nearest"
    joins_rows: ClassVar[bool] = True
    n_neighbors: int = 128
    n_conditioning: int = 50

    def __post_init__(self) -> None:
        for name in ("n_neighbors", "n_conditioning"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    @classmethod
    def with_options(cls, n_neighbors: int) -> NearestExpert:
        """Condition on this many rows at prediction."""
        return cls(n_neighbors=int(n_neighbors))

    def number_of_experts(self, n: int, inducing: Inducing, workers: int) -> int:
        """One for each worker: how rows are divided changes no prediction."""
        del inducing
        return min(workers, n)

    def default_aggregation(self, size: int, shares_theta: bool, shares_inducing: bool) -> str:
        """Nearest rows of all shards where the experts share θ."""
        if shares_theta:
            return "nearest"
        return Expert.default_aggregation(self, size, shares_theta, shares_inducing)

    def last_inducing(
        self, given: Inducing, theta: Parameters, shards: Placement[Shard], seed: int
    ) -> Tensor | None:
        """Inputs of the global part: k-means centres in units of θ; none where experts differ."""
        if isinstance(given, Tensor):
            return given
        m = GLOBAL_INPUTS if given == "auto" else given
        if m == 0 or theta.batch:
            return None
        return inducing.centres_for(theta.kernel, shards, m, seed)

    def entries(self, n: int) -> int:
        """Entries of all neighbourhoods of a shard together."""
        return n * (min(n, self.n_conditioning) + 1) ** 2

    def objective(self, parameters: Parameters, shard: Shard) -> Tensor:
        """−log p(y) of Vecchia's approximation, with the global part where θ has inducing inputs."""
        values = [self._objective(theta, one) for theta, one in _each(parameters, shard)]
        return torch.stack(values) if _batch(parameters, shard) else values[0]

    def _objective(self, parameters: Parameters, shard: Shard) -> Tensor:
        rows = OrderedRows(parameters, shard)
        with torch.no_grad():
            place, index = nearest_before_each(rows, self.n_conditioning)
        sets = rows.sets(torch.cat([index, place[:, None]], -1))
        value = negative_log_likelihood(rows.parameters, sets)
        return value + copies_term(shard, rows.parameters.noise)

    def condition(self, parameters: Parameters, shard: Shard) -> NearestPosterior:
        """Keep the rows: what depends on all of them is computed when it is first needed."""
        return NearestPosterior(parameters, shard, self)


@dataclass(frozen=True, eq=False)
class NearestPosterior(Posterior):
    """f given a shard, by the nearest rows of each point; inducing inputs in θ make a global part."""

    travels_as: ClassVar[str] = "settings"
    sums = None
    parameters: Parameters
    shard: Shard  # pyright: ignore[reportIncompatibleVariableOverride]
    expert: NearestExpert
    __getstate__ = fields_alone

    @property
    def entries(self) -> int:
        """A number per expert: the neighbourhoods are worked on in chunks of their own."""
        return max(1, math.prod(self.batch))

    @property
    def batch(self) -> tuple[int, ...]:
        """One entry per expert."""
        return _batch(self.parameters, self.shard)

    @cached_property
    def flat(self) -> OrderedRows:
        """The rows of all experts of the batch as one set; θ must be shared."""
        return OrderedRows(self.parameters, self.shard)

    @cached_property
    def ordered(self) -> list[tuple[OrderedRows, GlobalPart | None]]:
        """Per expert, its rows in their order and the posterior of its global part."""
        k, pairs = self.expert.n_conditioning, _each(self.parameters, self.shard)
        with torch.no_grad():
            found = [OrderedRows(theta, shard) for theta, shard in pairs]
            return [(r, None if r.Lu is None else GlobalPart.of(r.sums(k))) for r in found]

    def predict_chunk(self, X: Tensor) -> Prediction:
        """Given the nearest rows of each point in each expert's shard."""
        k = self.expert.n_neighbors
        parts = [rows.predict(X, k, part) for rows, part in self.ordered]
        if not self.batch:
            return parts[0]
        mean = torch.stack([part.mean for part in parts])
        return Prediction(mean, torch.stack([part.variance for part in parts]))

    def mean_chunk(self, X: Tensor) -> Tensor:
        """The mean given the nearest rows of each point, without variance work."""
        k = self.expert.n_neighbors
        parts = [rows.mean(X, k, part) for rows, part in self.ordered]
        return torch.stack(parts) if self.batch else parts[0]

    def chosen(self, which: Tensor) -> NearestPosterior:
        """The rows of these experts."""
        return NearestPosterior(self.parameters[which], self.shard[which], self.expert)

    def with_rows(self, shard: Shard) -> NearestPosterior:
        """Keep these rows too."""
        both = stack([concatenate([self.shard[0], shard])])
        return self.expert.condition(self.parameters, both)

    def covariance(self, X: Tensor) -> Tensor:
        """Between all rows of X, by Vecchia's approximation over the points, given the data."""
        k = self.expert.n_neighbors
        found = [joint_covariance(rows, X, k, part) for rows, part in self.ordered]
        return torch.stack(found) if self.batch else found[0]

    def draws(self, X: Tensor, size: int, seed: int) -> Tensor:
        """One point after another, given the rows and the points before it."""
        ((rows, part),) = self.ordered
        return joint_draws(rows, X, self.expert.n_neighbors, part, size, seed)

    def augmented(self, message: object, skip: int) -> tuple[NearestPosterior, NearestPosterior]:
        """Condition on the communication rows with and without each expert's own."""
        assert isinstance(message, Shard)
        theta, both = self.parameters[skip:], message.join(self.shard[skip:])
        return self.expert.condition(theta, both), self.expert.condition(theta, message)


def _batch(parameters: Parameters, shard: Shard) -> tuple[int, ...]:
    """The batch dimensions of θ and shard together."""
    return linalg.broadcast(shard.batch, parameters.batch, parameters.inducing_batch)


def _each(parameters: Parameters, shard: Shard) -> list[tuple[Parameters, Shard]]:
    """θ and shard of every expert of a batch; the one there is where nothing has a batch."""
    batch = _batch(parameters, shard)
    if not batch:
        return [(parameters, shard)]
    own = bool(parameters.batch) or bool(parameters.inducing_batch)
    return [
        (parameters[i] if own else parameters, shard[i] if shard.batch else shard)
        for i in range(batch[0])
    ]
