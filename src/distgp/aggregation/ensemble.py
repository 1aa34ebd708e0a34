"""The conditioned experts of one kind, wherever they live."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import torch
from torch import Tensor

from distgp.data import shard as sample
from distgp.data.shard import Shard, unstack
from distgp.engines import LocalPlacement, Placement, travels
from distgp.experts import Expert, Parameters, Posterior


@dataclass(frozen=True, eq=False)
class Ensemble:
    """M conditioned experts of one kind; `Ensemble.condition` makes one from shards.

    Each item of the placement is a posterior with one batch dimension, a worker's own experts, of which
    there are as many as `counts` says. θ has a batch dimension of M wherever the experts differ.
    Aggregators reach experts on any engine through the placement, by functions with small results.
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
        placement = sample.placed(shards)
        counts = tuple(sample.counts(placement))
        if parameters.batch or parameters.inducing_batch:
            ends = zip(counts, accumulate(counts), strict=True)
            own = [parameters[stop - count : stop] for count, stop in ends]
            made = placement.derive(_condition, expert, each=own)
        else:
            made = placement.derive(_condition, expert, parameters)
        return Ensemble(made, counts, parameters, expert)

    def split(self, values: Tensor) -> list[Tensor]:
        """Cut a tensor (M, …) with one entry per expert into the parts of the workers, for `each`."""
        return list(values.split(list(self.counts)))

    def gathered(self) -> Ensemble:
        """The same ensemble in this process, without rows that its experts can do without."""
        if self.here:
            return self
        items = tuple(self.placement.map(_without_rows))
        return _one_batch(replace(self, placement=LocalPlacement(items)))

    def extended(self, posterior: Posterior) -> Ensemble:
        """The same ensemble in this process with more experts: a batch of the same kind."""
        items = self.placement.gather().items
        if len(posterior.batch) != 1:
            raise ValueError("an ensemble needs a batched posterior: condition on stack([shard])")
        if type(posterior) is not type(items[0]):
            raise ValueError("the experts of an ensemble must be of one kind")
        new = posterior.parameters.to(dtype=self.parameters.noise.dtype)
        counts, theta = (*self.counts, posterior.count), self.parameters.joined(new)
        return _one_batch(Ensemble(LocalPlacement((*items, posterior)), counts, theta, self.expert))

    def filled(self, shard: Shard) -> Ensemble:
        """The same ensemble in this process, whose last expert has the rows of a shard too."""
        *items, last = self.placement.gather().items
        if last.count > 1:
            places = torch.arange(last.count, device=self.parameters.noise.device)
            items, last = [*items, last.chosen(places[:-1])], last.chosen(places[-1:])
        items = (*items, last.with_rows(shard))
        counts = tuple(item.count for item in items)
        return _one_batch(replace(self, placement=LocalPlacement(items), counts=counts))

    def without(self, which: Sequence[int]) -> Ensemble:
        """The same ensemble in this process without some experts, by their places 0 … M − 1."""
        theta = self.parameters
        kept = torch.tensor([i not in which for i in range(self.size)], device=theta.noise.device)
        parts = [part.nonzero()[:, 0] for part in self.split(kept)]
        pairs = zip(self.placement.gather().items, parts, strict=True)
        items = tuple(item.chosen(part) for item, part in pairs if len(part))
        counts = tuple(len(part) for part in parts if len(part))
        return Ensemble(LocalPlacement(items), counts, theta[kept.nonzero()[:, 0]], self.expert)

    @property
    def here(self) -> tuple[Posterior, ...]:
        """The experts in this process, whose answers may leave: they can be asked directly."""
        placed = self.placement
        if isinstance(placed, LocalPlacement) and placed.may_leave is None:
            return placed.items
        return ()

    @property
    def size(self) -> int:
        """The number M of experts."""
        return sum(self.counts)

    @property
    def entries(self) -> int:
        """Entries of temporary matrices per test point: a handful per expert, and those of experts here."""
        # Workers elsewhere bound their memory themselves, so that points go to them in few messages.
        here = self.placement.items if isinstance(self.placement, LocalPlacement) else ()
        return 4 * self.size + max((item.entries for item in here), default=0)

    @property
    def shares_hyperparameters(self) -> bool:
        """Whether kernel and noise are the same for all experts."""
        return not self.parameters.batch

    @property
    def shares_inducing(self) -> bool:
        """Whether the experts have sums over their rows, for the same θ and inducing inputs."""
        shared = not self.parameters.batch and not self.parameters.inducing_batch
        return self.expert.adds_sums and shared

    def noise(self) -> Tensor:
        """The noise variance σ²; the mean of the experts' where they differ."""
        return self.parameters.noise.mean()

    def sizes(self) -> Tensor:
        """The number n_i of rows of every shard, (M,)."""
        return sample.sizes(self.placement)

    def row_counts(self) -> Tensor:
        """The number of rows of every expert, (M,), known even where they are no longer held."""
        return torch.cat(self.placement.map(_row_counts))

    def row_count(self) -> int:
        """The number n of rows of all shards, known even where they are no longer held."""
        return sum(self.placement.map(_row_count))

    def central(self, size: int, seed: int) -> Shard:
        """Random rows, evenly from all shards: the same for any order of the experts."""
        return sample.central(self.placement, size, seed)


def _condition(shards: Shard, expert: Expert, parameters: Parameters) -> Posterior:
    return expert.condition(parameters, shards)


def _one_batch(ensemble: Ensemble) -> Ensemble:
    """Make one batch of experts that share θ, where their rows are better kept as one set."""
    theta = ensemble.parameters
    differ = theta.batch or theta.inducing_batch
    if not ensemble.expert.joins_rows or differ or len(ensemble.placement) == 1:
        return ensemble
    items = ensemble.placement.gather().items
    shards = [shard for item in items for shard in unstack(item.rows_held())]
    return Ensemble.condition(ensemble.expert, theta, shards)


def _without_rows(posterior: Posterior) -> Posterior:
    return posterior.without_rows()


@travels("counts")
def _row_counts(posterior: Posterior) -> Tensor:
    return posterior.row_counts()


@travels("counts")
def _row_count(posterior: Posterior) -> int:
    return posterior.row_count()
