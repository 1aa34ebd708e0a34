"""The objective of training, with its gradient in the flat vector of θ."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from distgp._util.threads import on_threads
from distgp.data.sample import placed
from distgp.data.shard import Shard
from distgp.engines import Placement, travels
from distgp.experts import Expert, Parameters
from distgp.experts.base import chunk_rows
from distgp.kernels import ParameterError
from distgp.linalg import JitterWarning, NotPositiveDefiniteError, lapack
from distgp.training.layout import Layout, by_path


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


@dataclass(frozen=True, eq=False)
class Objective:
    """What training minimises: −log p(y_i) (or the negative bound) per expert, less the log prior.

    Parameters
    ----------
    expert : Expert
        The kind of expert.
    layout : Layout
        What the entries of a vector mean.
    priors : dict of str to Prior
        Densities of parameters, by full path.
    """

    travels_as: ClassVar[str] = "parameters"
    expert: Expert
    layout: Layout
    priors: Mapping[str, Prior]

    @staticmethod
    def of(expert: Expert, layout: Layout, priors: Mapping[str, Prior] | None = None) -> Objective:
        """Build the objective, the names of the priors resolved."""
        return Objective(expert, layout, _priors_by_path(priors, layout.template))

    def evaluate(
        self, shard: Shard, vectors: Tensor, prior_weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the objective of every expert of a batch, and the gradient.

        Parameters
        ----------
        shard : Shard
            The rows of M experts, with one leading batch dimension.
        vectors : Tensor of shape (P,) or (M, P)
            One vector for all experts, or one per expert.
        prior_weight : Tensor of shape (M,)
            The share of the log prior that each expert's objective contains.

        Returns
        -------
        values : Tensor of shape (M,)
            NaN where the objective cannot be computed: a factorisation fails, or a number overflows.
        gradient : Tensor of shape (P,) or (M, P)
            Of the sum of the values for one vector; of each expert's own value for one per expert.
        """
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", JitterWarning
            )  # what training meets on its way is no news
            # A few experts at a time: matrices that fit into the cache are worth more than one call.
            size = chunk_rows(self.expert.entries(shard.n), vectors.device)
            if shard.count <= size:
                return self._evaluated(shard, vectors, prior_weight)
            return self._in_parts(shard, vectors, prior_weight, size)

    def _evaluated(
        self, shard: Shard, vectors: Tensor, prior_weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`evaluate` for all experts in one call, or where one of them fails one by one."""
        try:
            return self._at_once(shard, vectors, prior_weight)
        except (NotPositiveDefiniteError, ParameterError):
            if vectors.ndim == 1 or len(vectors) == 1:
                return prior_weight * torch.nan, vectors * torch.nan
        return self._in_parts(shard, vectors, prior_weight, 1)  # the others still have their values

    def _in_parts(
        self, shard: Shard, vectors: Tensor, prior_weight: Tensor, size: int
    ) -> tuple[Tensor, Tensor]:
        """`evaluate` for `size` experts at a time at most; on a CPU each thread with its own."""
        shared, threads = vectors.ndim == 1, _threads(shard)
        share = -(-shard.count // (2 * threads)) if threads > 1 else size
        starts = range(0, shard.count, min(size, share))

        def part(start: int) -> tuple[Tensor, Tensor]:
            some = slice(start, start + starts.step)
            point = vectors if shared else vectors[some]
            return self._evaluated(shard[some], point, prior_weight[some])

        found = on_threads(part, starts) if threads > 1 else [part(start) for start in starts]
        values, gradients = zip(*found, strict=True)
        return torch.cat(values), torch.stack(gradients).sum(0) if shared else torch.cat(gradients)

    def _at_once(
        self, shard: Shard, vectors: Tensor, prior_weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """`evaluate` for all experts in one call."""
        point = vectors.detach().requires_grad_()
        theta = self.layout.unpack(point)
        values = self.expert.objective(theta, shard).to(vectors.dtype)
        if self.priors:
            values = values - prior_weight * log_prior(self.priors, theta)
        (gradient,) = torch.autograd.grad(values.sum(), point)
        return values.detach(), gradient


def _threads(shard: Shard) -> int:
    """How many threads take experts of their own: all, unless a few large ones keep them busy."""
    threads = torch.get_num_threads()
    many = shard.count >= 2 * threads and shard.n < lapack.DIVIDED
    return threads if many and shard.X.device.type == "cpu" else 1


def _priors_by_path(priors: Mapping[str, Prior] | None, parameters: Parameters) -> dict[str, Prior]:
    """Priors by full path; inducing inputs cannot have one."""
    try:
        return by_path(priors or {}, replace(parameters, inducing=None))
    except ValueError as error:
        raise ValueError(f"cannot find the parameter for a prior: {error}") from error


def objective_value(
    expert: Expert,
    parameters: Parameters,
    shards: Placement[Shard] | Sequence[Shard],
    priors: Mapping[str, Prior] | None = None,
) -> float:
    """Compute the objective at one θ that all experts share, without training.

    Parameters
    ----------
    expert : Expert
        The kind of expert.
    parameters : Parameters
        θ, without batch dimensions.
    shards : Placement of Shard, or sequence of Shard
        One shard per expert.
    priors : mapping of str to Prior, optional
        Densities of parameters, by name, as for `train`.

    Returns
    -------
    float
        The sum of the experts' objectives less the log prior; NaN where it cannot be computed.
    """
    named = _priors_by_path(priors, parameters)
    total = sum(placed(shards).map(_summed_value, expert, parameters))
    return total - float(log_prior(named, parameters))


@travels("gradients")
def _summed_value(shard: Shard, expert: Expert, parameters: Parameters) -> float:
    """The sum of the objectives of one worker's experts, a few experts at a time."""
    size = chunk_rows(expert.entries(shard.n), shard.X.device)
    parts = [shard[start : start + size] for start in range(0, shard.count, size)]
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", JitterWarning)
            return sum(float(expert.objective(parameters, part).sum()) for part in parts)
    except (NotPositiveDefiniteError, ParameterError):
        return math.nan
