"""An ensemble: the conditioned experts, wherever they live.

Aggregators reach the experts through `map` and `derive` alone: functions of one group of experts,
whose results, sums over that group's rows or values at test points, are small. Groups that live in
other processes therefore need no other aggregators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from distgp.experts import ExactPosterior, Expert, Parameters, Posterior, SparsePosterior
from distgp.partition import central_set
from distgp.shards import Shard, stack, unstack

Result = TypeVar("Result")
WIDE = torch.float64
"""What sums over rows and systems for weights are computed in, whatever the data's dtype."""


@dataclass(frozen=True, eq=False)
class Group:
    """Experts that live together: a batched posterior and the shards that it was conditioned on."""

    posterior: Posterior
    shards: Shard | None
    first: int = 0  # the number of its first expert in the ensemble

    @property
    def size(self) -> int:
        """How many experts."""
        return self.posterior.batch[0]

    def rows(self) -> Shard:
        """The shards, where an aggregator cannot do without the rows."""
        if self.shards is None:
            raise ValueError(
                "this aggregator needs the training rows, which these experts no longer hold; "
                "poe, gpoe, bcm, rbcm, npae and, with shared inducing inputs, opt, grbcm and pooled "
                "do without"
            )
        return self.shards


@dataclass(frozen=True, eq=False)
class Ensemble:
    """M conditioned experts, in groups."""

    groups: tuple[Group, ...]

    @staticmethod
    def condition(expert: Expert, parameters: Parameters, shards: Sequence[Shard]) -> Ensemble:
        """Condition one expert on each shard, in this process."""
        batch = stack(shards)
        return Ensemble((Group(expert.condition(parameters, batch), batch),))

    def __post_init__(self) -> None:
        expected = 0
        for group in self.groups:
            if len(group.posterior.batch) != 1:
                raise ValueError("a group needs a batched posterior: condition on stack([shard])")
            if type(group.posterior) is not type(self.groups[0].posterior):
                raise ValueError("the experts of an ensemble must be of one kind")
            if group.first < expected:
                raise ValueError(f"a group's first expert is {group.first}, expected {expected}")
            expected = group.first + group.size

    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """function(group, *arguments) for every group, in order."""
        return [function(group, *arguments) for group in self.groups]

    def first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """function(group, *arguments) for the first group alone."""
        return function(self.groups[0], *arguments)

    def derive(self, function: Callable[..., Group | None], *arguments: Any) -> Ensemble:
        """An ensemble of what the function makes of each group; groups that it drops are left out."""
        made = self.map(function, *arguments)
        return Ensemble(tuple(group for group in made if group is not None))

    @property
    def size(self) -> int:
        """M."""
        return sum(group.size for group in self.groups)

    @property
    def parameters(self) -> Parameters:
        """θ, where the experts share it."""
        return self.groups[0].posterior.parameters

    @property
    def shares_hyperparameters(self) -> bool:
        """Whether kernel and noise are the same for all experts."""
        return not self.parameters.batch

    @property
    def shares_inducing(self) -> bool:
        """Whether the experts are sparse, with the same kernel, noise and inducing inputs."""
        sparse = isinstance(self.groups[0].posterior, SparsePosterior)
        return sparse and self.shares_hyperparameters and not self.parameters.inducing_batch

    @property
    def exact(self) -> bool:
        """Whether the experts are exact."""
        return isinstance(self.groups[0].posterior, ExactPosterior)

    def prior(self, X: Tensor) -> Tensor:
        """k(x, x), where the experts share the kernel."""
        return self.groups[0].posterior.prior(X)

    def noise(self) -> Tensor:
        """σ²; the experts' mean where they differ."""
        values = self.map(_noises)
        return torch.cat(values).mean()

    def sizes(self) -> Tensor:
        """n_i of all shards, (M,)."""
        return torch.cat(self.map(_sizes))

    def row_count(self) -> int:
        """n: the rows of all shards, known even where they are no longer held."""
        return int(sum(self.map(_row_count)))

    def central(self, size: int, seed: int) -> Shard:
        """Random rows, evenly from all shards: the same for any order of the experts."""
        sizes = self.sizes().long()
        size = min(size, int(sizes.sum()))
        ranks = torch.arange(1, int(sizes.max()) + 1, device=sizes.device)
        reached = torch.minimum(sizes[None, :], ranks[:, None]).sum(-1)
        deepest = int((reached < size).sum()) + 1  # no shard is asked for more rows than this
        offers = [shard for group in self.map(_offers, deepest, seed) for shard in group]
        return central_set(offers, size, seed)


def _noises(group: Group) -> Tensor:
    return group.posterior.parameters.noise.expand(group.size)


def _row_count(group: Group) -> int:
    if isinstance(group.posterior, SparsePosterior):
        return int(group.posterior.sums.n.sum())
    return int(group.rows().sizes.sum())


def _sizes(group: Group) -> Tensor:
    return group.rows().sizes


def _offers(group: Group, size: int, seed: int) -> list[Shard]:
    """The rows of each shard that come first in the draw."""
    return [central_set([s], min(size, s.n), seed) for s in unstack(group.rows())]
