"""What a training algorithm is: a half that runs on the workers and a half at the centre.

A round is one exchange: the centre sends a message, every worker answers for its shards, the centre
merges the answers. Workers keep nothing between rounds; all state is at the centre, in a dictionary
of tensors, so that a lost worker loses nothing and a checkpoint is a file of tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from distgp.training.layout import Layout
from distgp.training.steps import State
from distgp.training.task import Task
from distgp.workers import ShardGroup


@dataclass(frozen=True, eq=False)
class Message:
    """What the centre sends: `shared` to every expert, of `each` (M, …) its own row to each."""

    travels_as: ClassVar[str] = "parameters"
    shared: State
    each: State

    def part(self, group: ShardGroup) -> Message:
        """What a group needs of it."""
        rows = slice(group.first, group.first + group.size)
        return Message(self.shared, {name: value[rows] for name, value in self.each.items()})


@dataclass(frozen=True, eq=False)
class Reply:
    """What the workers answer: `summed` over experts, and `each` (M, …) expert's own."""

    travels_as: ClassVar[str] = "gradients"
    summed: State
    each: State

    @staticmethod
    def gather(replies: list[Reply]) -> Reply:
        """The answer of all groups."""
        first = replies[0]
        summed = {
            name: torch.stack([r.summed[name] for r in replies]).sum(0) for name in first.summed
        }
        each = {name: torch.cat([r.each[name] for r in replies]) for name in first.each}
        return Reply(summed, each)


def traffic(message: Message, reply: Reply, experts: int) -> int:
    """Bytes of a round, if every expert were a machine of its own."""
    common = sum(value.nbytes for value in (message.shared | reply.summed).values())
    own = sum(value.nbytes for value in (*message.each.values(), *reply.each.values()))
    return experts * common + own


class Algorithm(ABC):
    """A way to learn θ across shards. State always holds `objective`, `gradient_norm`, `accepted`.

    `objective` and `gradient_norm` are of the last point that the workers evaluated; `accepted`
    counts the rounds that moved θ.
    """

    name: ClassVar[str]
    agrees: ClassVar[bool] = True
    """Whether the experts end up with one value of the shared parameters."""
    n_iter: int

    @abstractmethod
    def start(self, layout: Layout, vector: Tensor, sizes: Tensor) -> State:
        """The state before the first round, from a start (P,) or (M, P) and the shards' sizes."""

    @abstractmethod
    def message(self, layout: Layout, state: State) -> Message:
        """What the workers need for the next round."""

    @abstractmethod
    def local(self, task: Task, group: ShardGroup, message: Message) -> Reply:
        """The worker's half."""

    @abstractmethod
    def merge(self, task: Task, state: State, reply: Reply) -> State:
        """The centre's half."""

    @abstractmethod
    def vectors(self, layout: Layout, state: State) -> Tensor:
        """Where training stands: one vector (P,) where all is shared, else one each (M, P)."""


def split_start(layout: Layout, vector: Tensor, M: int) -> tuple[Tensor, Tensor]:
    """Shared part (P_s,) and own parts (M, P_o) of a start."""
    each = vector.expand(M, -1) if vector.ndim == 1 else vector
    if len(each) != M:
        raise ValueError(f"expected one start, or one for each of {M} shards, got {len(each)}")
    k = layout.n_shared
    return each[:, :k].mean(0), each[:, k:].clone()


def joined(layout: Layout, shared: Tensor, own: Tensor) -> Tensor:
    """One vector where nothing is own, else every expert's."""
    if layout.n_own == 0:
        return shared
    return torch.cat([shared.expand(len(own), -1), own], -1)


def counters(vector: Tensor) -> State:
    """The entries that every state has."""
    nan = torch.full((), torch.nan, dtype=vector.dtype, device=vector.device)
    zero = torch.zeros((), dtype=torch.int64, device=vector.device)
    return {
        "objective": nan,
        "gradient_norm": nan,
        "accepted": zero,
        "round": zero,
        "failures": zero,
    }
