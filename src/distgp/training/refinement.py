"""Refine a θ that nearest rows have found, as far as rows held out say that it pays.

Thirty neighbours find lengthscales that are too short where a function is smooth, and the bounds that keep
training by nearest rows safe, a floor of the noise and a cap of the signal variance, cost dearly on some
tables. So more neighbours are tried, and each bound that stops training is lifted; a step is kept if rows
are predicted better, each from the nearest of all other rows or, by one exact expert, from all others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from distgp._util.threads import on_threads
from distgp.data import shard as sample
from distgp.data.shard import Shard
from distgp.engines import Placement, travels
from distgp.experts import Expert, Parameters, Prediction
from distgp.experts.base import chunk_rows, concatenated
from distgp.experts.neighborhoods import Neighbours, OrderedRows, conditional
from distgp.experts.sums import widened
from distgp.likelihoods import noise_factor, noise_of_rows
from distgp.training.rounds import Tensors, TrainingResult

Bounds: TypeAlias = dict[str, tuple[float, float]]
"""Lowest and highest values of parameters, by name or full path."""
HELD_OUT, FEW_HELD_OUT = 2048, 512
"""Rows that are predicted from their nearest others, to tell which of two θ is better, and where many are
compared."""
GIVEN = 128
"""Nearest rows that each of them is predicted from."""
ERRORS = 2.0
"""Standard errors by which the mean log density must be better where a bound is lifted."""
MORE_SCATTER = 2.0
"""How many times more densities may scatter where a gain on average is not clear."""
LOST = 10.0
"""A lengthscale that is so many times longer than it started has left the kernel."""
APART = 30.0
"""A lengthscale that is so many times shorter than it started may set rows apart that differ in a column at
all."""
FELT = 1e3
"""The sum over rows of the variance that a column's slope adds, in units of the noise's, from which on the
likelihood surely tells whether the column matters."""
LEAST_NOISE, LEAST_EPS = 1e-8, 100.0
"""The floor of the noise in units of the target's variance, once it is lifted; and in rounding errors of
the dtype, below which factorisations fail."""
LITTLE_NOISE, MOST_NOISE, NOISE_STEP = 1e-4, 0.1, math.sqrt(10.0)
"""Noise below the first may be raised up to the second, both in units of the target's variance."""
LITTLE = 0.1
"""Nats per row by which θ must explain rows better than noise alone would, to tell something of them."""
ACTIVE = 0.01
"""The relative distance within which a parameter is at its bound."""


class Limits(NamedTuple):
    """The bounds of training, and those of ours as they may be lifted.

    These are the floor of the noise, the cap of signals, and the longest lengthscales: with hardly any
    noise a column that means nothing matters even at a thousand times its spread.
    """

    now: Bounds
    free: Bounds

    @staticmethod
    def of(
        bounds: Mapping[str, tuple[float, float]],
        uncapped: Mapping[str, tuple[float, float]],
        least: float,
        shards: Placement[Shard],
        dtype: torch.dtype,
    ) -> Limits:
        """The bounds given and a floor of the noise, and those of them that may be lifted.

        The floor is `least`, and `LEAST_NOISE` once it is lifted, in units of the target's variance.
        """
        all_noise = _noise_alone(shards)
        lowest = min(least, max(LEAST_NOISE, LEAST_EPS * torch.finfo(dtype).eps))
        floor = {"noise": (least * all_noise, math.inf)}
        free = {"noise": (lowest * all_noise, math.inf)} if "noise" not in bounds else {}
        return Limits(floor | dict(bounds), free | dict(uncapped))

    def around(self, theta: Parameters) -> Limits:
        """Lift those bounds that θ lies beyond, since an earlier fit has lifted them."""
        values = _by_full_path(theta) | {"noise": theta.noise}
        everywhere = (-math.inf, math.inf)
        ends = {path: self.now.get(path, everywhere) for path in self.free}
        beyond = {
            path: self.free[path]
            for path, (low, high) in ends.items()
            if bool(
                ((values[path] < (1 - ACTIVE) * low) | (values[path] > (1 + ACTIVE) * high)).any()
            )
        }
        return Limits(self.now | beyond, self.free)

    def lifted(self, lifts: str, theta: Parameters) -> Limits:
        """Lift the "floor" of the noise, with lengthscales, or the "cap" of signals, if it stops."""
        values = _by_full_path(theta)
        low = bool((theta.noise <= (1 + ACTIVE) * self.now["noise"][0]).any())
        wider = {}
        for path, pair in self.free.items():
            if path == "noise" or path.endswith("lengthscale"):
                stops = lifts == "floor" and low and "noise" in self.free
            else:
                near = values[path] >= (1 - ACTIVE) * self.now[path][1]
                stops = lifts == "cap" and bool(near.any())
            wider |= {path: pair} if stops else {}
        return Limits(self.now | wider, self.free)

    def all_lifted(self) -> Limits:
        """Lift all that may be lifted."""
        return Limits(self.now | self.free, self.free)


def _by_full_path(theta: Parameters) -> dict[str, Tensor]:
    """The kernel's parameters by their full paths."""
    return {f"kernel.{name}": value for name, value in theta.kernel.parameters().items()}


class Score(NamedTuple):
    """The log densities of rows held out, under one θ.

    Of one exact expert also those of `left_out` rows, each given all others of a part of the rows. Nearest
    rows of a target are often the same in the columns that matter, and do not contradict each other; all
    rows together may contradict a θ that is found from them.
    """

    densities: Tensor
    left_out: Tensor | None = None

    def beats(self, other: Score, errors: float) -> bool:
        """Whether rows are predicted better than under another θ, by so many standard errors.

        Those left out must not clearly lose more, on average, than those held out gain.
        """
        gain = self.densities - other.densities
        if not bool(torch.isfinite(gain).all()):
            return False
        mean = float(gain.mean())
        if self.left_out is not None and other.left_out is not None:
            lost = other.left_out - self.left_out
            if not float(lost.mean()) - ERRORS * _error(lost) < mean:
                return False
        return mean > errors * _error(gain)

    def safely_beats(self, other: Score) -> bool:
        """Whether rows are predicted better on average, and their densities scatter hardly more.

        Where a few rows are predicted far worse, rows to predict may be among many more of that kind.
        """
        safe = _error(self.densities) <= MORE_SCATTER * _error(other.densities)
        return safe and self.beats(other, 0.0)


def _error(values: Tensor) -> float:
    """The standard error of their mean; infinite where one value alone does not show it."""
    return float(values.std()) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def score(theta: Parameters, shards: Placement[Shard], seed: int, most: int = HELD_OUT) -> Score:
    """Score θ by so many rows, at most, that are predicted from their nearest others."""
    rows, found = from_nearest_others(theta, shards, seed, most)
    return Score(found.log_density(rows.y))


def with_noise_allowed(
    theta: Parameters, shards: Placement[Shard], scored: Callable[[Parameters], Score]
) -> Parameters:
    """Raise noise that is next to none to where rows held out are predicted best.

    Rows with the same inputs are mostly one row, written twice. To the likelihood they say that there is
    no noise at all; but a row to predict may be like another in its inputs and not in its target. The
    rows held out are predicted without such rows. A gain on average is enough: a row far from its
    prediction costs much more with too little noise than all others do with a little too much.
    """
    all_noise = _noise_alone(shards)
    if not float(theta.noise) < LITTLE_NOISE * all_noise:
        return theta
    level, best = float(theta.noise), theta
    first = least = scored(theta)
    while (level := NOISE_STEP * level) <= MOST_NOISE * all_noise:
        more = replace(theta, noise=torch.full_like(theta.noise, level))
        found = scored(more)
        if first.beats(found, ERRORS):
            break
        if found.beats(least, 0.0):
            least, best = found, more
    return best


def from_nearest_others(
    theta: Parameters, shards: Placement[Shard], seed: int, most: int = HELD_OUT
) -> tuple[Shard, Prediction]:
    """Draw rows, and predict them from their nearest others, those with the same inputs left out."""
    theta = widened(replace(theta, inducing=None))
    targets = sample.drawn(shards, most, seed + 2).to(dtype=torch.float64)
    sets = _nearest_of_all(shards.map(_nearest_others, theta, targets.X))
    same = (targets.X[:, None, :] == sets.X).all(-1)
    sets = sets._replace(real=sets.real & ~same)
    _, k, d = sets.X.shape
    size = chunk_rows(4 * k * max(k, d), sets.X.device)

    def part(start: int) -> Prediction:
        some = slice(start, start + size)
        factor = None if sets.factor is None else sets.factor[some]
        given = Neighbours(sets.X[some], sets.y[some], sets.real[some], None, factor)
        rows = targets.take(some)
        out = conditional(theta, rows.X, None, given)
        assert out.variance is not None
        return Prediction(out.mean, out.variance + noise_of_rows(rows, theta.noise))

    with torch.no_grad():
        return targets, concatenated(on_threads(part, range(0, len(sets.X), size)))


@travels("rows", theta="parameters", X="inputs")
def _nearest_others(batch: Shard, theta: Parameters, X: Tensor) -> Tensors:
    """Distances, inputs, targets and noise factors of a worker's nearest rows, (T, k) each."""
    rows = OrderedRows(theta, batch)
    with torch.no_grad():
        square, index = rows.search.nearest(rows.located(X), min(GIVEN, len(rows.X)))
    at = index.clamp_min(0)
    found = {"square": square, "X": rows.X[at], "y": rows.y[at]}
    return found if rows.factor is None else found | {"factor": rows.factor[at]}


def _nearest_of_all(found: Sequence[Mapping[str, Tensor]]) -> Neighbours:
    """The nearest rows of all workers."""
    every = {name: torch.cat([one[name] for one in found], 1) for name in found[0]}
    square, order = every["square"].topk(min(GIVEN, every["square"].shape[1]), -1, largest=False)
    at = torch.arange(len(order), device=order.device)[:, None]
    chosen = {name: values[at, order] for name, values in every.items()}
    real = torch.isfinite(square)
    return Neighbours(chosen["X"], chosen["y"], real, None, chosen.get("factor"))


def back_at_start(theta: Parameters, start: Parameters) -> Parameters:
    """Bring back lengthscales that have left the kernel: out there they get no gradient."""
    values, first = theta.kernel.parameters(), start.kernel.parameters()
    lengths = {name: value for name, value in values.items() if name.endswith("lengthscale")}
    back = {n: torch.where(v > LOST * first[n], first[n], v) for n, v in lengths.items()}
    return replace(theta, kernel=theta.kernel.with_parameters(back))


def set_apart(theta: Parameters, start: Parameters) -> list[tuple[str, int]]:
    """List the lengthscales, by name and place, that may set apart rows which differ in a column at all."""
    values, first = theta.kernel.parameters(), start.kernel.parameters()
    short = {
        name: (APART * value < first[name]).flatten()
        for name, value in values.items()
        if name.endswith("lengthscale")
    }
    return [
        (name, place) for name, which in short.items() for place in which.nonzero()[:, 0].tolist()
    ]


def with_lengthscales_back(
    theta: Parameters, start: Parameters, which: Sequence[tuple[str, int]]
) -> Parameters:
    """Put some lengthscales, by name and place, back to where they started."""
    values, first = theta.kernel.parameters(), start.kernel.parameters()
    back = {name: values[name].clone() for name, _ in which}
    for name, place in which:
        back[name].view(-1)[place] = first[name].flatten()[place]
    return replace(theta, kernel=theta.kernel.with_parameters(back))


def within_reach(theta: Parameters, start: Parameters, shards: Placement[Shard]) -> Parameters:
    """Shorten lengthscales that have left the kernel to where more rows can still bring them back.

    With the signal variance s a column at a lengthscale ℓ, both in its spread, adds a slope of variance
    s/ℓ² to f. Over n rows that is sn/ℓ², which is `FELT` times the noise σ² where they are left, but no
    nearer than they started: from there a column that matters has a gradient to follow, and one that does
    not is soon away again.
    """
    values, first = theta.kernel.parameters(), start.kernel.parameters()
    lengths = {name: value for name, value in values.items() if name.endswith("lengthscale")}
    noise = float(theta.noise) * noise_of_row(shards)
    felt = math.sqrt(sum(shards.map(_signal, theta)) / (FELT * noise))
    near = {
        name: torch.where(
            value > LOST * first[name], value.clamp_max(max(1.0, felt) * first[name]), value
        )
        for name, value in lengths.items()
    }
    return replace(theta, kernel=theta.kernel.with_parameters(near))


@travels("sums", theta="parameters")
def _signal(batch: Shard, theta: Parameters) -> float:
    """Add up the variances of f at a worker's rows."""
    return float(theta.kernel.diag(batch.flatten().without_padding().X).sum())


@travels("predictions", theta="parameters")
def left_out(
    batch: Shard, expert: Expert, theta: Parameters
) -> tuple[Shard, Prediction] | tuple[None, None]:
    """Predict each row of the only shard from all others, rows with the same inputs taken as one.

    Returns these rows and their predictions; nothing where that costs too much.
    """
    rows, _ = merged(batch[0].without_padding())
    with torch.no_grad():
        found = expert.leave_one_out(theta, rows)
    return (None, None) if found is None else (rows, found)


@travels("predictions", theta="parameters")
def each_left_out(
    batch: Shard, expert: Expert, theta: Parameters
) -> tuple[Shard, Prediction] | tuple[None, None]:
    """Predict each observation of the only shard from all rows with other inputs.

    Returns all rows and their predictions; nothing where that costs too much.
    """
    rows = batch[0].without_padding()
    one, group = merged(rows)
    with torch.no_grad():
        found = expert.leave_one_out(theta, one)
    if found is None:
        return None, None
    latent = found.variance - noise_of_rows(one, theta.noise)
    own = noise_of_rows(rows, theta.noise)
    return rows, Prediction(found.mean[group], latent[group].clamp_min_(0.0) + own)


@travels("predictions", theta="parameters")
def left_out_densities(batch: Shard, expert: Expert, theta: Parameters) -> Tensor | None:
    """The log density of each row of the only shard given all others; None where that costs too much."""
    rows, found = left_out(batch, expert, theta)
    return None if rows is None or found is None else found.log_density(rows.y)


def merged(rows: Shard) -> tuple[Shard, Tensor]:
    """Make one row of those with the same inputs, which says of f what they say together.

    Rows with noise variances σ²v are one row with their mean target, weighted by 1/v, and with the noise
    variance σ²/Σ(1/v). With them comes the place of each row among the merged ones.
    """
    X, group = rows.X.unique(dim=0, return_inverse=True)
    factor = noise_factor(rows)
    if len(X) == rows.n:
        return rows, torch.arange(rows.n, device=X.device)
    share = torch.ones_like(rows.y) if factor is None else 1.0 / factor
    total = X.new_zeros(len(X)).index_add_(0, group, share)
    y = X.new_zeros(len(X)).index_add_(0, group, share * rows.y) / total
    first = rows.rows.new_full((len(X),), rows.n).scatter_reduce_(0, group, rows.rows, "amin")
    return Shard(X, y, first, noise=1.0 / total), group


def tells_little(found: TrainingResult, shards: Placement[Shard]) -> bool:
    """Whether θ explains the rows that it was found from hardly better than noise alone would.

    With noise variances of their own, rows tell that in other units: they are taken to tell enough.
    """
    copies, variance, noise = _moments(shards)
    if noise != 1.0:
        return False
    count = (found.rows or 0) * copies / float(sample.sizes(shards).sum())
    alone = 0.5 * (1.0 + math.log(2.0 * math.pi * variance))
    return found.objective > count * (alone - LITTLE)


def noise_of_row(shards: Placement[Shard]) -> float:
    """The mean of rows' own noise variances, of which σ² is a factor; 1 where they have none."""
    return _moments(shards)[2]


def _noise_alone(shards: Placement[Shard]) -> float:
    """The noise σ² that alone would explain the variance of the targets."""
    _, variance, noise = _moments(shards)
    return variance / noise


def _moments(shards: Placement[Shard]) -> tuple[float, float, float]:
    """The number of copies, the variance of the targets or 1 where they do not vary, and `noise_of_row`."""
    n, total, squares, noise = torch.stack(shards.map(sample.target_moments)).sum(0).tolist()
    variance = squares / n - (total / n) ** 2
    return n, variance if variance > 0 else 1.0, noise / n
