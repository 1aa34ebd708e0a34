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

from distgp.engines import Local, Placement
from distgp.experts import ExactPosterior, Expert, Parameters, Posterior, SparsePosterior
from distgp.shards import Shard
from distgp.workers import ShardGroup, Workers, draw_central, sizes_of

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
class About:
    """What must be known of a group without asking it again."""

    size: int
    first: int
    parameters: Parameters
    exact: bool


@dataclass(frozen=True, eq=False)
class Ensemble:
    """M conditioned experts, in groups, wherever those live."""

    where: Placement[Group]
    about: tuple[About, ...]

    def __init__(
        self, where: Placement[Group] | Sequence[Group], about: tuple[About, ...] | None = None
    ) -> None:
        placed = where if isinstance(where, Placement) else Local(tuple(where))
        object.__setattr__(self, "where", placed)
        object.__setattr__(self, "about", tuple(placed.map(_about)) if about is None else about)
        object.__setattr__(self, "_drawn", {})
        expected = 0
        for group in self.about:
            if group.exact is not self.about[0].exact:
                raise ValueError("the experts of an ensemble must be of one kind")
            if group.first < expected:
                raise ValueError(f"a group's first expert is {group.first}, expected {expected}")
            expected = group.first + group.size

    @staticmethod
    def condition(
        expert: Expert, parameters: Parameters, shards: Sequence[Shard] | Workers
    ) -> Ensemble:
        """Condition one expert on each shard, where the shards are."""
        workers = shards if isinstance(shards, Workers) else Workers.of(shards)
        return Ensemble(workers.where.derive(_condition, expert, parameters))

    @property
    def groups(self) -> tuple[Group, ...]:
        """The groups themselves, brought here if they live elsewhere."""
        return self.where.here()

    def map(self, function: Callable[..., Result], *arguments: Any) -> list[Result]:
        """function(group, *arguments) for every group, in order."""
        return self.where.map(function, *arguments)

    def first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """function(group, *arguments) for the first group alone."""
        return self.where.first(function, *arguments)

    def derive(self, function: Callable[..., Group | None], *arguments: Any) -> Ensemble:
        """An ensemble of what the function makes of each group; groups that it drops are left out."""
        return Ensemble(self.where.derive(function, *arguments))

    def extended(self, group: Group) -> Ensemble:
        """The same with one group more, in this process."""
        return Ensemble((*self.groups, group))

    @property
    def size(self) -> int:
        """M."""
        return sum(group.size for group in self.about)

    @property
    def parameters(self) -> Parameters:
        """θ, where the experts share it."""
        return self.about[0].parameters

    @property
    def shares_hyperparameters(self) -> bool:
        """Whether kernel and noise are the same for all experts."""
        return not self.parameters.batch

    @property
    def shares_inducing(self) -> bool:
        """Whether the experts are sparse, with the same kernel, noise and inducing inputs."""
        return not self.exact and self.shares_hyperparameters and not self.parameters.inducing_batch

    @property
    def exact(self) -> bool:
        """Whether the experts are exact."""
        return self.about[0].exact

    def prior(self, X: Tensor) -> Tensor:
        """k(x, x), where the experts share the kernel."""
        return self.parameters.kernel.diag(X.to(self.parameters.noise.dtype)).to(X.dtype)

    def noise(self) -> Tensor:
        """σ²; the experts' mean where they differ."""
        return torch.cat([a.parameters.noise.expand(a.size) for a in self.about]).mean()

    def sizes(self) -> Tensor:
        """n_i of all shards, (M,)."""
        return torch.cat(self.map(sizes_of))

    def row_count(self) -> int:
        """n: the rows of all shards, known even where they are no longer held."""
        return int(sum(self.map(_row_count)))

    def central(self, size: int, seed: int) -> Shard:
        """Random rows, evenly from all shards: the same for any order of the experts.

        Drawn once, for all aggregators that ask for the same.
        """
        drawn: dict[tuple[int, int], Shard] = self.__dict__["_drawn"]
        if (size, seed) not in drawn:
            drawn[size, seed] = draw_central(self.where, self.sizes(), size, seed)
        return drawn[size, seed]


def _about(group: Group) -> About:
    if len(group.posterior.batch) != 1:
        raise ValueError("a group needs a batched posterior: condition on stack([shard])")
    exact = isinstance(group.posterior, ExactPosterior)
    return About(group.size, group.first, group.posterior.parameters, exact)


def _condition(group: ShardGroup, expert: Expert, parameters: Parameters) -> Group:
    if parameters.batch or parameters.inducing_batch:
        parameters = parameters[group.first : group.first + group.size]
    return Group(expert.condition(parameters, group.shards), group.shards, group.first)


def _row_count(group: Group) -> int:
    if isinstance(group.posterior, SparsePosterior):
        return int(group.posterior.sums.n.sum())
    return int(group.rows().sizes.sum())
