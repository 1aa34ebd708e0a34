"""Priors on hyperparameters: optional terms of the objective.

The density is that of the parameter itself (without a Jacobian for the logarithm that training works
on), summed over the entries of a vector parameter.
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
        """Compute log p(value), entry by entry."""


@dataclass(frozen=True)
class LogNormal(Prior):
    """The density of a value v with log v ~ N(log median, spread²).

    Parameters
    ----------
    median : float
        The median of v.
    spread : float, default=1.0
        The standard deviation of log v.
    """

    median: float
    spread: float = 1.0

    def log_density(self, value: Tensor) -> Tensor:
        """−½((log v − log median) / spread)² − log(v · spread · √2π)."""
        z = (value.log() - math.log(self.median)) / self.spread
        return -0.5 * z.square() - (value * (self.spread * math.sqrt(2 * math.pi))).log()


@dataclass(frozen=True)
class Gamma(Prior):
    """The gamma density, proportional to v^(shape − 1) exp(−rate · v).

    Parameters
    ----------
    shape, rate : float
        The mean is shape / rate, the variance shape / rate².
    """

    shape: float
    rate: float

    def log_density(self, value: Tensor) -> Tensor:
        """(a − 1) log v − bv + a log b − log Γ(a), with shape a and rate b."""
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        return (self.shape - 1) * value.log() - self.rate * value + constant


def log_prior(priors: Mapping[str, Prior], parameters: Parameters) -> Tensor:
    """Add up log p over parameters.

    Parameters
    ----------
    priors : mapping of str to Prior
        By full path: "noise", or "kernel." and the kernel's own path.
    parameters : Parameters
        θ, possibly one per expert.

    Returns
    -------
    Tensor of shape (*batch,)
    """
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
