"""The distance of rows to predict from the training rows.

The uncertainty of such rows is that of the prior, which the training rows never put to the test. Two
distances tell them. The Mahalanobis distance √((x − μ)ᵀ Σ⁻¹ (x − μ)) from the mean of all training rows
needs d² numbers and notices columns that drift, alone or against each other. The distance to the nearest
training row needs the rows, and notices gaps between them. A ratio of 1 is the distance that 99 % of the
training rows keep to the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp._util.checks import warn_user
from distgp.aggregation import Ensemble
from distgp.data import shard as sample
from distgp.data.neighbors import Neighbors
from distgp.data.shard import HoldsRows, Shard
from distgp.engines import Placement, travels
from distgp.experts.base import chunk_rows, in_chunks

QUANTILE = 0.99
"""The share of the training rows that are no more unlike the others than a ratio of 1."""
RIDGE = 1e-6
"""Added to the variance of every standardised column: constant columns have none."""
SAMPLE = 4096
"""Rows at most that the quantiles are taken from."""
LEAST_SAMPLE, SAMPLE_PAIRS = 512, 2**27
"""Of many rows, as many are asked for their nearest row as make this number of pairs, but at least 512."""
ALONE = 0.999
"""The share of n − 1, the largest squared distance that n rows can have from their mean, from which a row
is alone in some direction."""
FEW_COLUMNS = 100
"""Columns up to which their covariance is kept, however few the rows are."""
SMALLEST = 1e-9
"""Quantiles below this, of rows that are all the same, are taken as this."""
TOLD_SHARE, TOLD_ROWS = 0.1, 20
"""`warn_of_novelty` speaks where more than this share of at least so many rows are unlike the others."""
ADVICE = {
    "last": 'validation="last" where the data change with time',
    "groups": 'validation="groups" where they come in groups',
}
"""The ways to hold out rows that are unlike the others, and when each is of use."""
LEAST_ROWS = 50
"""Training rows below which nothing is told: the 99 % quantile of so few is a guess."""


class NoveltyWarning(UserWarning):
    """Many of the rows to predict are unlike the rows that the model was trained on."""


@dataclass(frozen=True, eq=False)
class TrainingInputs:
    """The training inputs: their moments, and the distances that they keep to each other.

    `mean` and `scale` (d,) are those of the columns as the experts see them, the scale 1 where a column
    does not vary; `L` (d, d) is the Cholesky factor of the covariance of (x − mean) / scale plus 10⁻⁶·I,
    or, where there are more columns than rows and than 100, so that every row is alone in some direction,
    that of its diagonal, (d,).
    `far` is the 99 % quantile of the Mahalanobis distance of a training row, `apart` that of the distance
    to its nearest other row in standardised units, None where it was not asked for.

    The columns `time` go on in every forecast, so that warnings leave them out; `far_besides` is the
    quantile of the distance in the other columns, None where there are none. `validation` is how rows were
    held out, which a warning need not recommend again.
    """

    travels_as: ClassVar[str] = "moments"
    mean: Tensor
    scale: Tensor
    L: Tensor
    rows: int
    far: float
    apart: float | None = None
    time: tuple[int, ...] = ()
    far_besides: float | None = None
    validation: str = "random"

    @staticmethod
    def of(shards: Placement[Shard], seed: int, nearest: bool = True) -> TrainingInputs:
        """Measure the rows where they are: sums of d² numbers at most and the distances of a sample travel.

        With `nearest` some rows travel too. Every row of the sample is compared with the others without
        itself: removing a row from mean and covariance turns its squared distance D² into
        nD² / (n − 1 − D²), since a row is always closer to moments that contain it.
        """
        sums = [torch.stack(parts).sum(0) for parts in zip(*shards.map(_sums), strict=True)]
        n, mean = int(sums[0]), sums[1] / sums[0]
        wide = len(mean) > max(n, FEW_COLUMNS)
        covariance = torch.stack(shards.map(_squares if wide else _products, mean)).sum(0) / n
        variance = covariance if wide else covariance.diagonal()
        # What is left of a constant column's variance is the rounding error of its mean.
        varies = variance > (1e-12 * mean).square()
        scale = torch.where(varies, variance, 1.0).sqrt()
        if wide:
            L = (variance / scale.square() + RIDGE).sqrt()
        else:
            standard = linalg.add_diagonal(
                covariance / torch.outer(scale, scale), mean.new_tensor(RIDGE)
            )
            L = linalg.cholesky(standard, "the covariance of the inputs")
        far, apart = TrainingInputs(mean, scale, L, n, 1.0)._far(shards, seed), None
        if nearest and n > 1:
            count = min(SAMPLE, max(LEAST_SAMPLE, SAMPLE_PAIRS // n))
            few = sample.drawn(shards, count, seed)
            found = shards.map(_nearest_other, mean, scale, few.X, few.rows)
            apart = _quantile(torch.stack([distance.cpu() for distance in found]).amin(0))
        return TrainingInputs(mean, scale, L, n, far, apart)

    def forecasting(
        self, shards: Placement[Shard], time: Iterable[int], validation: str, seed: int
    ) -> TrainingInputs:
        """The same, with the columns of time, which are new in every forecast, told apart from others."""
        found = replace(self, time=tuple(sorted(time)), validation=validation)
        if not found.time or not found.columns_besides:
            return found
        return replace(
            found, far_besides=found.besides_time(1.0)._far(shards, seed, found.columns_besides)
        )

    @property
    def columns_besides(self) -> list[int]:
        """The places of the columns that are not of time."""
        return [place for place in range(len(self.mean)) if place not in self.time]

    def besides_time(self, far: float) -> TrainingInputs:
        """The moments of the columns that are not of time, with a quantile of the distance in them."""
        own = self.columns_besides
        L = self.L[own] if self.L.ndim == 1 else (self.L @ self.L.mT)[own][:, own]
        L = L if L.ndim == 1 else linalg.cholesky(L, "the covariance of the inputs")
        return TrainingInputs(self.mean[own], self.scale[own], L, self.rows, far)

    def _far(
        self, shards: Placement[Shard], seed: int, columns: Sequence[int] | None = None
    ) -> float:
        """The 99 % quantile of the distance of a training row, in some of its columns."""
        n = self.rows
        some = sample.sampled(shards, min(1.0, SAMPLE / n), seed)
        square = torch.cat(some.map(_square_distances, self, columns))
        # The mean without a row is n / (n − 1) times as far from it.
        wide = self.L.ndim == 1
        others = square * (n / max(n - 1, 1)) ** 2 if wide else _without_itself(square, n)
        return _quantile(others.sqrt())

    @property
    def variance(self) -> Tensor:
        """The variance of each column in units of its scale, (d,): 1, or 0 where it does not vary."""
        return self.L.square() if self.L.ndim == 1 else self.L.square().sum(1)

    def mahalanobis(self, X: Tensor) -> Tensor:
        """The Mahalanobis distance of rows, as a ratio to its 99 % quantile."""
        return torch.cat(in_chunks(self.distances, X, X.shape[-1])) / self.far

    def distances(self, X: Tensor) -> Tensor:
        """The Mahalanobis distance of rows, of all at once."""
        standard = standardised(X, self.mean, self.scale)
        if self.L.ndim == 1:
            return (standard / self.L.to(X.device)).square_().sum(-1).sqrt_()
        return linalg.solve_lower(self.L.to(X.device), standard.mT).square_().sum(0).sqrt_()


def novelty(inputs: TrainingInputs, ensemble: Ensemble, X: Tensor) -> np.ndarray:
    """Tell how unlike the training rows each row is."""
    ratio = inputs.mahalanobis(X).cpu()
    if inputs.apart is not None and ensemble.expert.holds_rows:
        found = ensemble.placement.map(_nearest, inputs.mean, inputs.scale, X)
        nearest = torch.stack([distance.cpu() for distance in found]).amin(0)
        ratio = torch.maximum(ratio, nearest / inputs.apart)
    return ratio.numpy()


def warn_of_novelty(inputs: TrainingInputs, X: Tensor) -> None:
    """Warn where many rows (N, d) are unlike the training rows, by the Mahalanobis distance alone.

    Rows that are new by columns of time alone do not count: those of a forecast always are.
    """
    if inputs.rows < LEAST_ROWS or len(X) < TOLD_ROWS:
        return
    new = inputs.mahalanobis(X) > 1.0
    if inputs.time:
        if inputs.far_besides is None:
            return
        besides = inputs.besides_time(inputs.far_besides)
        new &= besides.mahalanobis(X[:, inputs.columns_besides]) > 1.0
    share = float(new.double().mean())
    if share > TOLD_SHARE:
        warn_user(
            f"{100 * share:.0f} % of the {len(X):,} rows to predict lie farther from the centre of the "
            "training rows than 99 % of those do. Predictions there are extrapolation, and their "
            "uncertainty cannot be trusted. gp.novelty(X) rates each row: those above 1 lie that far out, "
            "or in a gap between training rows. To choose a model for such rows, hold out rows that are "
            "as unlike the others: "
            + ", ".join(text for way, text in ADVICE.items() if way != inputs.validation),
            NoveltyWarning,
        )


def standardised(X: Tensor, mean: Tensor, scale: Tensor) -> Tensor:
    """(X − mean) / scale in float64, on the device of X."""
    return (X.double() - mean.to(X.device)) / scale.to(X.device)


def _in_parts(batch: Shard) -> Iterator[Tensor]:
    """The inputs of a worker's rows without padding, some at a time, so that no copy of all is made."""
    X, real = batch.X.flatten(0, -2), batch.rows.flatten() >= 0
    size = chunk_rows(X.shape[-1], X.device)
    return (part[own] for part, own in zip(X.split(size), real.split(size), strict=True))


@travels("distances")
def _square_distances(
    batch: Shard, inputs: TrainingInputs, columns: Sequence[int] | None = None
) -> Tensor:
    """Squared Mahalanobis distances of a worker's rows, in all or some of their columns."""
    parts = (X if columns is None else X[:, columns] for X in _in_parts(batch))
    return torch.cat([inputs.distances(X).square().cpu() for X in parts])


@travels("moments")
def _sums(batch: Shard) -> tuple[Tensor, Tensor]:
    """n and Σx of a worker's rows."""
    parts = [(len(X), X.sum(0, dtype=torch.float64).cpu()) for X in _in_parts(batch)]
    total = torch.stack([part for _, part in parts]).sum(0)
    return total.new_tensor(sum(n for n, _ in parts)), total


@travels("moments", mean="moments")
def _products(batch: Shard, mean: Tensor) -> Tensor:
    """Σ(x − μ)(x − μ)ᵀ of a worker's rows, (d, d)."""
    centred = (X.double() - mean.to(X.device) for X in _in_parts(batch))
    return torch.stack([part.mT @ part for part in centred]).sum(0).cpu()


@travels("moments", mean="moments")
def _squares(batch: Shard, mean: Tensor) -> Tensor:
    """Σ(x − μ)² of a worker's rows, (d,)."""
    centred = (X.double() - mean.to(X.device) for X in _in_parts(batch))
    return torch.stack([part.square().sum(0) for part in centred]).sum(0).cpu()


@travels("distances", mean="moments", scale="moments", X="points")
def _nearest(item: HoldsRows, mean: Tensor, scale: Tensor, X: Tensor) -> Tensor:
    """The distance of every row of X to the nearest of a worker's rows, (N,)."""
    held = item.rows_held()
    search = Neighbors(standardised(held.X[held.rows >= 0], mean, scale))
    queries = standardised(X.to(held.X.device), mean, scale)
    return search.nearest(queries, 1)[0][:, 0].sqrt()


@travels("distances", mean="moments", scale="moments", X="inputs", numbers="inputs")
def _nearest_other(batch: Shard, mean: Tensor, scale: Tensor, X: Tensor, numbers: Tensor) -> Tensor:
    """The distance of rows with these numbers to the nearest of a worker's rows with another number.

    Among the two nearest rows at least one is another; one that repeats the row counts, with distance 0.
    """
    real = batch.rows >= 0
    search = Neighbors(standardised(batch.X[real], mean, scale))
    square, index = search.nearest(standardised(X.to(batch.X.device), mean, scale), 2)
    same = batch.rows[real][index.clamp_min(0)] == numbers.to(batch.rows.device)[:, None]
    return torch.where(same | (index < 0), torch.inf, square).amin(-1).sqrt()


def _without_itself(square: Tensor, n: int) -> Tensor:
    """Squared distances of rows to the n − 1 others, from those to moments that contain them.

    A row that is alone in a direction, with a text that no other has, is infinitely far from the others
    whatever else it is. Such rows are left out, unless most rows are like that.
    """
    alone = square > ALONE * (n - 1)
    if 2 * int(alone.sum()) < len(square):
        square = square[~alone]
    return n * square / (n - 1 - square).clamp_min(RIDGE**2)


def _quantile(distances: Tensor) -> float:
    return max(SMALLEST, float(torch.quantile(distances, QUANTILE)))
