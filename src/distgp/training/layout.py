"""θ as a flat vector, and the names of its parameters."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from distgp.experts import Parameters

Value = TypeVar("Value")
LARGEST_LOG = 50.0
"""Positive parameters stay within e^±50, so that no step leads out of the numbers."""


def by_path(named: Mapping[str, Value], parameters: Parameters) -> dict[str, Value]:
    """What is given by parameter names, by their full paths.

    A name is a full path or the last part of it, which stands for every parameter of that name. What
    is given for a full path outranks what is given for its last part.
    """
    return {
        path: value
        for name, value in named.items()
        for path in parameters.paths(name)
        if path == name or path not in named
    }


@dataclass(frozen=True, eq=False)
class Layout:
    """θ as a flat vector: optimisers, averages and messages work on vectors, whatever θ is made of.

    A vector has P entries: the parameters that the experts share, then those that each expert keeps
    for itself. Its entries are unconstrained: logarithms of the positive parameters, inducing inputs
    as they are.

    Parameters
    ----------
    template : Parameters
        θ without batch dimensions. Parameters that are not trained stay as it has them.
    shared, own : tuple of str
        The trained parameters that the experts share, and those that each keeps for itself.
    shapes : dict of str to Size
        The shape of each trained parameter, in the order of the vector.
    low, high : Tensor of shape (P,)
        Bounds of the vector, which training never leaves.
    """

    template: Parameters
    shared: tuple[str, ...]
    own: tuple[str, ...]
    shapes: dict[str, torch.Size]
    low: Tensor
    high: Tensor

    @staticmethod
    def of(
        template: Parameters,
        own: Collection[str] = (),
        fixed: Collection[str] = (),
        bounds: Mapping[str, tuple[float, float]] | None = None,
    ) -> Layout:
        """Build the layout; names and bounds are as `distgp.training.train` explains them."""
        keeps, stays = (
            by_path(dict.fromkeys(own), template),
            by_path(dict.fromkeys(fixed), template),
        )
        limits, view = by_path(bounds or {}, template), template.unconstrained()
        trained = [name for name in view if name not in stays]
        if not trained:
            raise ValueError("every parameter is fixed: there is nothing to train")
        names = sorted(trained, key=lambda name: name in keeps)  # shared ones first
        low, high = [], []
        for name in names:
            below, above = _unconstrained_bounds(name, limits.get(name, (-math.inf, math.inf)))
            low.append(torch.full_like(view[name], below).reshape(-1))
            high.append(torch.full_like(view[name], above).reshape(-1))
        return Layout(
            template,
            tuple(name for name in names if name not in keeps),
            tuple(name for name in names if name in keeps),
            {name: view[name].shape for name in names},
            torch.cat(low),
            torch.cat(high),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """All trained parameters, in the order of the vector."""
        return (*self.shared, *self.own)

    @property
    def n_shared(self) -> int:
        """The number of entries that the experts share."""
        return sum(self.shapes[name].numel() for name in self.shared)

    def pack(self, parameters: Parameters) -> Tensor:
        """The vector (P,) of a θ without batch dimensions, moved into the bounds."""
        view = parameters.unconstrained()
        flat = torch.cat([view[name].reshape(-1) for name in self.names])
        return self.clamp(flat.detach())

    def clamp(self, vector: Tensor) -> Tensor:
        """The nearest vector within the bounds; of a shared part (n_shared,), its nearest."""
        k = vector.shape[-1]
        return torch.clamp(vector, self.low[:k], self.high[:k])

    def unpack(self, vectors: Tensor, agreed: bool = False) -> Parameters:
        """θ of one vector (P,), or of one per expert (M, P).

        With `agreed`, all experts have the same shared part, which then gets no batch dimension.
        """
        view = {}
        sizes = [shape.numel() for shape in self.shapes.values()]
        for (name, shape), part in zip(self.shapes.items(), vectors.split(sizes, -1), strict=True):
            one = part[0] if agreed and vectors.ndim == 2 and name in self.shared else part
            view[name] = one.reshape((*one.shape[:-1], *shape))
        return self.template.with_unconstrained(view)

    def split(self, start: Tensor, M: int) -> tuple[Tensor, Tensor]:
        """The shared part (n_shared,) and the experts' own parts (M, P − n_shared) of a start."""
        each = start.expand(M, -1) if start.ndim == 1 else start
        k = self.n_shared
        return each[:, :k].mean(0), each[:, k:].clone()

    def join(self, shared: Tensor, own: Tensor) -> Tensor:
        """The vector (P,) where nothing is an expert's own, else one per expert (M, P)."""
        return self.join_each(shared, own) if self.own else shared

    def join_each(self, shared: Tensor, own: Tensor) -> Tensor:
        """One vector per expert, (M, P)."""
        return torch.cat([shared.expand(len(own), -1), own], -1)

    def values(self, vector: Tensor) -> dict[str, list[float]]:
        """Kernel parameters and noise of a vector (P,), by name: for the history."""
        theta = self.unpack(vector)
        named = {f"kernel.{name}": value for name, value in theta.kernel.parameters().items()}
        named["noise"] = theta.noise
        return {name: value.detach().reshape(-1).tolist() for name, value in named.items()}


def _unconstrained_bounds(name: str, bounds: tuple[float, float]) -> tuple[float, float]:
    """Bounds of the parameter itself, checked, as bounds of the vector's entries."""
    below, above = bounds
    if not below < above or (name != "inducing" and above <= 0):
        raise ValueError(
            f"bounds of {name} must be (low, high) with room for a value, got ({below}, {above})"
        )
    if name == "inducing":
        return below, above
    least = math.log(below) if below > 0 else -math.inf
    return max(-LARGEST_LOG, least), min(LARGEST_LOG, math.log(above))
