"""θ as a flat vector, and which part of it the experts share.

Optimisers, averages and messages work on vectors; `Layout` knows what their entries mean. A vector
holds the shared parameters first, then each expert's own (inducing inputs, say).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from distgp.experts import Parameters

LARGEST_LOG = 50.0
"""Positive parameters stay within e^±50, so that no step leads out of the numbers."""


@dataclass(frozen=True, eq=False)
class Layout:
    """The trained parameters of a template θ (without batch): shared ones, then own ones.

    What is in neither tuple stays as the template has it. `low` and `high` bound the unconstrained
    vector: training never leaves them.
    """

    template: Parameters
    shared: tuple[str, ...]
    own: tuple[str, ...]
    low: Tensor
    high: Tensor

    @staticmethod
    def of(
        template: Parameters,
        own: Collection[str] = (),
        fixed: Collection[str] = (),
        bounds: Mapping[str, tuple[float, float]] | None = None,
    ) -> Layout:
        """Check the names; bounds are of the parameters themselves, not of their logarithms."""
        view, bounds = template.unconstrained(), bounds or {}
        for name in (*own, *fixed, *bounds):
            if name not in view:
                raise ValueError(f"no parameter {name!r}; there are {', '.join(view)}")
        trained = [name for name in view if name not in fixed]
        if not trained:
            raise ValueError("every parameter is fixed: there is nothing to train")
        shared = tuple(name for name in trained if name not in own)
        ordered = (*shared, *(name for name in trained if name in own))
        low, high = [], []
        for name in ordered:
            below, above = bounds.get(name, (-math.inf, math.inf))
            if not below < above or (name != "inducing" and above <= 0):
                raise ValueError(
                    f"bounds of {name} must be (low, high) with room for a value, got "
                    f"({below}, {above})"
                )
            if name != "inducing":
                below = max(-LARGEST_LOG, math.log(below) if below > 0 else -math.inf)
                above = min(LARGEST_LOG, math.log(above))
            low.append(torch.full_like(view[name], below).reshape(-1))
            high.append(torch.full_like(view[name], above).reshape(-1))
        return Layout(template, shared, ordered[len(shared) :], torch.cat(low), torch.cat(high))

    @property
    def names(self) -> tuple[str, ...]:
        """All trained parameters, in the order of the vector."""
        return (*self.shared, *self.own)

    @property
    def n_shared(self) -> int:
        """Entries of the shared part."""
        view = self.template.unconstrained()
        return sum(view[name].numel() for name in self.shared)

    @property
    def n_own(self) -> int:
        """Entries of each expert's own part."""
        view = self.template.unconstrained()
        return sum(view[name].numel() for name in self.own)

    def pack(self, parameters: Parameters) -> Tensor:
        """The vector of an unbatched θ, within the bounds."""
        view = parameters.unconstrained()
        flat = torch.cat([view[name].reshape(-1) for name in self.names])
        return self.clamp(flat.detach())

    def clamp(self, vector: Tensor) -> Tensor:
        """The nearest vector within the bounds."""
        return torch.minimum(torch.maximum(vector, self.low), self.high)

    def unpack(self, vector: Tensor) -> Parameters:
        """θ of a vector (P,), or of a batch of them (M, P)."""
        view, shapes = {}, self.template.unconstrained()
        sizes = [shapes[name].numel() for name in self.names]
        for name, part in zip(self.names, vector.split(sizes, -1), strict=True):
            view[name] = part.reshape((*vector.shape[:-1], *shapes[name].shape))
        return self.template.with_unconstrained(view)

    def unpack_shared(self, vectors: Tensor) -> Parameters:
        """θ of every expert's vector (M, P) where they agree on the shared part: that has no batch."""
        view, shapes = {}, self.template.unconstrained()
        sizes = [shapes[name].numel() for name in self.names]
        for name, part in zip(self.names, vectors.split(sizes, -1), strict=True):
            shape = shapes[name].shape
            view[name] = (
                part[0].reshape(shape) if name in self.shared else part.reshape((-1, *shape))
            )
        return self.template.with_unconstrained(view)

    def values(self, vector: Tensor) -> dict[str, list[float]]:
        """The hyperparameters themselves, by name, without inducing inputs: for the history."""
        theta = self.unpack(vector)
        named = {f"kernel.{name}": value for name, value in theta.kernel.parameters().items()}
        named["noise"] = theta.noise
        return {name: value.detach().reshape(-1).tolist() for name, value in named.items()}
