"""Priors on hyperparameters: optional terms of the objective.

The density is that of the parameter itself (no Jacobian for the logarithm that training works on),
summed over the entries of a vector parameter.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from distgp.experts import Parameters


class Prior(ABC):
    """A density on positive numbers."""

    @abstractmethod
    def log_density(self, value: Tensor) -> Tensor:
        """log p(value), entry by entry."""


@dataclass(frozen=True)
class LogNormal(Prior):
    """log value ~ N(log median, spread²)."""

    median: float
    spread: float = 1.0

    def log_density(self, value: Tensor) -> Tensor:
        """−½((log v − log median) / spread)² − log(v · spread · √2π)."""
        z = (value.log() - math.log(self.median)) / self.spread
        return -0.5 * z.square() - (value * (self.spread * math.sqrt(2 * math.pi))).log()


@dataclass(frozen=True)
class Gamma(Prior):
    """Density ∝ v^(shape − 1) exp(−rate · v)."""

    shape: float
    rate: float

    def log_density(self, value: Tensor) -> Tensor:
        """(a − 1) log v − bv + a log b − log Γ(a)."""
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        return (self.shape - 1) * value.log() - self.rate * value + constant


def log_prior(priors: Mapping[str, Prior], parameters: Parameters) -> Tensor:
    """Σ log p over the named parameters, (*batch,)."""
    total = torch.zeros((), dtype=parameters.noise.dtype, device=parameters.noise.device)
    batches = parameters.kernel.batches()
    for name, prior in priors.items():
        if name == "noise":
            total = total + prior.log_density(parameters.noise)
            continue
        path = name.removeprefix("kernel.")
        density = prior.log_density(parameters.kernel.parameters()[path])
        total = total + density.reshape(*batches[path], -1).sum(-1)
    return total
