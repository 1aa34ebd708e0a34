"""An ensemble: the conditioned experts, wherever they live.

Aggregators reach the experts through `map`, `on_first` and `derive` alone: functions of one worker's
experts whose results, sums over that worker's rows or values at test points, are small. So the same
aggregators serve experts in this process and on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, TypeVar

import torch
from torch import Tensor

from distgp.data import sample
from distgp.data.sample import placed
from distgp.data.shard import Shard, unstack
from distgp.engines import LocalPlacement, Placement, travels
from distgp.experts import Expert, Parameters, Posterior

Result = TypeVar("Result")
WIDE = torch.float64
"""The dtype of sums over rows and of systems for weights, whatever the data's dtype is."""


@dataclass(frozen=True, eq=False)
class Ensemble:
    """M conditioned experts, wherever they live.

    Parameters
    ----------
    placement : Placement of Posterior
        Each worker holds one posterior with one batch dimension: its own experts.
    counts : tuple of int
        The number of experts of each worker.
    parameters : Parameters
        θ of all experts, with a batch dimension of M wherever they differ.
    expert : Expert
        The kind of the experts.
    """

    placement: Placement[Posterior]
    counts: tuple[int, ...]
    parameters: Parameters
    expert: Expert

    def __post_init__(self) -> None:
        if len(self.placement) != len(self.counts):
            raise ValueError(
                f"expected one number of experts per worker, got {len(self.counts)} numbers for "
                f"{len(self.placement)} workers"
            )
        for batch in (self.parameters.batch, self.parameters.inducing_batch):
            if batch not in ((), (self.size,)):
                raise ValueError(
                    f"expected parameters that {self.size} experts share, or one set per expert, got "
                    f"batch dimensions {tuple(batch)}"
                )

    @staticmethod
    def condition(
        expert: Expert, parameters: Parameters, shards: Placement[Shard] | Sequence[Shard]
    ) -> Ensemble:
        """Condition one expert on each shard, where the shards are.

        Parameters
        ----------
        expert : Expert
            The kind of expert.
        parameters : Parameters
            θ, shared or with one entry per expert.
        shards : Placement of Shard, or sequence of Shard
            One shard per expert; a sequence stays in this process.

        Returns
        -------
        Ensemble
        """
        placement = placed(shards)
        counts = tuple(sample.counts(placement))
        if parameters.batch or parameters.inducing_batch:
            ends = zip(counts, accumulate(counts), strict=True)
            own = [parameters[stop - count : stop] for count, stop in ends]
            made = placement.derive(_condition, expert, each=own)
        else:
            made = placement.derive(_condition, expert, parameters)
        return Ensemble(made, counts, parameters, expert)

    def map(
        self,
        function: Callable[..., Result],
        *arguments: Any,
        each: Sequence[Any] | None = None,
    ) -> list[Result]:
        """Call ``function(posterior, *arguments)`` for every worker's experts, as `Placement.map`."""
        return self.placement.map(function, *arguments, each=each)

    def on_first(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Call ``function(posterior, *arguments)`` for the first worker's experts alone."""
        return self.placement.on_first(function, *arguments)

    def derive(
        self, function: Callable[..., Any], *arguments: Any, each: Sequence[Any] | None = None
    ) -> Placement[Any]:
        """Place what a function makes of each worker's experts beside them, as `Placement.derive`."""
        return self.placement.derive(function, *arguments, each=each)

    def split(self, values: Tensor) -> list[Tensor]:
        """Cut a tensor (M, …) with one entry per expert into the parts of the workers, for `each`."""
        return sample.split_each(values, self.counts)

    def gathered(self) -> Ensemble:
        """The same ensemble in this process; itself where it is here already.

        Sparse experts come without the rows that they were conditioned on, exact ones are made of
        them.
        """
        if isinstance(self.placement, LocalPlacement) and self.placement.may_leave is None:
            return self
        return replace(self, placement=LocalPlacement(tuple(self.map(_without_rows)))).joined()

    def joined(self) -> Ensemble:
        """Make one batch of experts that share θ, where their rows are better kept as one set."""
        shared = self.shares_hyperparameters and not self.parameters.inducing_batch
        if not self.expert.joins_rows or not shared or len(self.placement) == 1:
            return self
        items = self.placement.gather().items
        shards = [shard for item in items for shard in unstack(item.rows_held())]
        return Ensemble.condition(self.expert, self.parameters, shards)

    def extended(self, posterior: Posterior) -> Ensemble:
        """The same ensemble with more experts, all of them in this process.

        Parameters
        ----------
        posterior : Posterior
            The new experts: of the same kind, with one batch dimension.

        Returns
        -------
        Ensemble
        """
        if len(posterior.batch) != 1:
            raise ValueError("an ensemble needs a batched posterior: condition on stack([shard])")
        if type(posterior) is not type(self.placement.gather().items[0]):
            raise ValueError("the experts of an ensemble must be of one kind")
        new = posterior.parameters.to(dtype=self.parameters.noise.dtype)
        items = (*self.placement.gather().items, posterior)
        return Ensemble(
            LocalPlacement(items),
            (*self.counts, posterior.count),
            self.parameters.joined(new),
            self.expert,
        ).joined()

    def without(self, which: Sequence[int]) -> Ensemble:
        """The same ensemble without these experts, all others in this process and as they are.

        Parameters
        ----------
        which : sequence of int
            Places of experts, 0 … M − 1; not all of them.

        Returns
        -------
        Ensemble
        """
        keep = [i for i in range(self.size) if i not in set(which)]
        items, counts, start = [], [], 0
        for item, count in zip(self.placement.gather().items, self.counts, strict=True):
            here = [i - start for i in keep if start <= i < start + count]
            if here:
                items.append(item.chosen(torch.tensor(here, device=self.parameters.noise.device)))
                counts.append(len(here))
            start += count
        places = torch.tensor(keep, device=self.parameters.noise.device)
        return Ensemble(
            LocalPlacement(tuple(items)), tuple(counts), self.parameters[places], self.expert
        )

    @property
    def size(self) -> int:
        """The number M of experts."""
        return sum(self.counts)

    @property
    def shares_hyperparameters(self) -> bool:
        """Whether kernel and noise are the same for all experts."""
        return not self.parameters.batch

    @property
    def shares_inducing(self) -> bool:
        """Whether the experts have sums over their rows, for the same θ and inducing inputs."""
        shared = self.shares_hyperparameters and not self.parameters.inducing_batch
        return self.expert.adds_sums and shared

    def prior(self, X: Tensor) -> Tensor:
        """k(x, x) in the dtype of X, where the experts share the kernel."""
        return self.parameters.kernel.diag(X.to(self.parameters.noise.dtype)).to(X.dtype)

    def noise(self) -> Tensor:
        """The noise variance σ²; the mean of the experts' where they differ."""
        return self.parameters.noise.mean()

    def sizes(self) -> Tensor:
        """The number n_i of rows of every shard, (M,)."""
        return sample.sizes(self.placement)

    def row_count(self) -> int:
        """The number n of rows of all shards, known even where they are no longer held."""
        return sum(self.map(_row_count))

    def central(self, size: int, seed: int) -> Shard:
        """Random rows, evenly from all shards: the same for any order of the experts."""
        return sample.central(self.placement, size, seed)


def _condition(shards: Shard, expert: Expert, parameters: Parameters) -> Posterior:
    return expert.condition(parameters, shards)


def _without_rows(posterior: Posterior) -> Posterior:
    return posterior.without_rows()


@travels("counts")
def _row_count(posterior: Posterior) -> int:
    return posterior.row_count()
