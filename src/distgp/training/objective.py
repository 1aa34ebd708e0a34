"""θ as a flat vector, and the objective of training with its gradient in that vector."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from distgp._util.checks import silenced
from distgp._util.threads import on_threads
from distgp.data.shard import Shard, placed
from distgp.engines import Placement, travels
from distgp.experts import Expert, Parameters
from distgp.experts.base import chunk_rows
from distgp.kernels import ParameterError
from distgp.linalg import JitterWarning, NotPositiveDefiniteError, lapack

Value = TypeVar("Value")
LARGEST_LOG = 50.0
"""Positive parameters stay within e^±50 of their start, so that no step leads out of the numbers."""
UNUSABLE = (NotPositiveDefiniteError, ParameterError)
"""Errors at a θ where the objective cannot be computed."""


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
    """Add up log p over parameters, whose priors are given by full path; (*batch,)."""
    total, kernel = parameters.noise.new_zeros(()), parameters.kernel
    for name, prior in priors.items():
        if name == "noise":
            total = total + prior.log_density(parameters.noise)
        else:
            path = name.removeprefix("kernel.")
            density = prior.log_density(kernel.parameters()[path])
            total = total + density.reshape(*kernel.batches()[path], -1).sum(-1)
    return total


def by_path(named: Mapping[str, Value], parameters: Parameters) -> dict[str, Value]:
    """Replace names by full paths; what is given for a full path outranks what is for its last part."""
    return {
        path: value
        for name, value in named.items()
        for path in parameters.paths(name)
        if path == name or path not in named
    }


class Layout(NamedTuple):
    """θ as a flat vector with P entries between `low` and `high`, on which optimisers work.

    First come the parameters that the experts share, then those that each keeps for itself: logarithms
    of the positive ones, inducing inputs as they are. What is not trained stays as in the `template`, a θ
    without batch dimensions.
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
        keeps = by_path(dict.fromkeys(own), template)
        stays = by_path(dict.fromkeys(fixed), template)
        limits, view = by_path(bounds or {}, template), template.unconstrained()
        trained = [name for name in view if name not in stays]
        if not trained:
            raise ValueError("every parameter is fixed: there is nothing to train")
        shared = tuple(name for name in trained if name not in keeps)
        kept = tuple(name for name in trained if name in keeps)
        free = (-math.inf, math.inf)
        ends = {n: _ends(n, view[n].detach(), limits.get(n, free)) for n in (*shared, *kept)}
        low, high = (torch.cat([pair[i].reshape(-1) for pair in ends.values()]) for i in (0, 1))
        return Layout(template, shared, kept, {n: view[n].shape for n in ends}, low, high)

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
        return self.clamp(torch.cat([view[name].reshape(-1) for name in self.names]).detach())

    def clamp(self, vector: Tensor) -> Tensor:
        """The nearest vector within the bounds; of a shared part (n_shared,), its nearest."""
        k = vector.shape[-1]
        return torch.clamp(vector, self.low[:k], self.high[:k])

    def unpack(self, vectors: Tensor, agreed: bool = False) -> Parameters:
        """θ of one vector, or one per expert; a shared part that is `agreed` gets no batch dimension."""
        view, sizes = {}, [shape.numel() for shape in self.shapes.values()]
        for (name, shape), part in zip(self.shapes.items(), vectors.split(sizes, -1), strict=True):
            one = part[0] if agreed and vectors.ndim == 2 and name in self.shared else part
            view[name] = one.reshape((*one.shape[:-1], *shape))
        return self.template.with_unconstrained(view)

    def split(self, start: Tensor, M: int) -> tuple[Tensor, Tensor]:
        """The shared part (n_shared,) and the experts' own parts (M, P − n_shared) of a start."""
        each, k = start.expand(M, -1), self.n_shared
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


def _ends(name: str, start: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor]:
    """Bounds of the parameter itself, checked, as bounds of the vector's entries, which `start` so."""
    below, above = bounds
    if not below < above or (name != "inducing" and above <= 0):
        raise ValueError(
            f"bounds of {name} must be (low, high) with room for a value, got ({below}, {above})"
        )
    if name == "inducing":
        return torch.full_like(start, below), torch.full_like(start, above)
    least = math.log(below) if below > 0 else -math.inf
    most = math.log(above)
    start = start.clamp(least, most)
    return (start - LARGEST_LOG).clamp_min(least), (start + LARGEST_LOG).clamp_max(most)


class Objective(NamedTuple):
    """The sum that training minimises: −log p(y_i), or the negative bound, less the log prior."""

    expert: Expert
    layout: Layout
    priors: Mapping[str, Prior]
    travels_as = "parameters"

    @staticmethod
    def of(expert: Expert, layout: Layout, priors: Mapping[str, Prior] | None = None) -> Objective:
        """Build the objective, the names of the priors resolved."""
        return Objective(expert, layout, _priors_by_path(priors, layout.template))

    def evaluate(
        self, shard: Shard, vectors: Tensor, prior_weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Compute the objectives (M,) of a batch of experts, and the gradient; NaN where that fails.

        For one vector (P,), the gradient is that of the sum; for one per expert (M, P), each expert's
        own. Each objective contains the share `prior_weight` (M,) of the log prior.
        """
        # What training meets on its way is no news.
        with silenced(JitterWarning):
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
            point = vectors.detach().requires_grad_()
            theta = self.layout.unpack(point)
            values = self.expert.objective(theta, shard).to(vectors.dtype)
            if self.priors:
                values = values - prior_weight * log_prior(self.priors, theta)
            (gradient,) = torch.autograd.grad(values.sum(), point)
            return values.detach(), gradient
        except UNUSABLE:
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


def _threads(shard: Shard) -> int:
    """The number of threads that take experts of their own: all, unless a few large ones use them."""
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
    """Compute the objective of `train` at one θ that all experts share; NaN where that fails."""
    named = _priors_by_path(priors, parameters)
    total = sum(placed(shards).map(_summed_value, expert, parameters))
    return total - float(log_prior(named, parameters))


@travels("gradients")
def _summed_value(shard: Shard, expert: Expert, parameters: Parameters) -> float:
    """The sum of the objectives of one worker's experts, a few experts at a time."""
    size = chunk_rows(expert.entries(shard.n), shard.X.device)
    parts = [shard[start : start + size] for start in range(0, shard.count, size)]
    try:
        with torch.no_grad(), silenced(JitterWarning):
            return sum(float(expert.objective(parameters, part).sum()) for part in parts)
    except UNUSABLE:
        return math.nan
