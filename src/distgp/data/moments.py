"""The units of rows on workers, by the moments of each worker's, and the rows in these units."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp.data.scaling import (
    Scaling,
    common_scale,
    refuse_beyond_poles,
    refuse_far,
    refuse_hardly_any_rows,
    refuse_lost,
    scale_of,
)
from distgp.data.shard import Shard
from distgp.data.shard import sizes as sizes_of
from distgp.data.table import TableError
from distgp.engines import Placement, travels

MOMENT_ROWS = 2**16  # rows that are looked at together when columns are measured


def scaling_of(
    placement: Placement[Shard],
    normalize: bool,
    d: int,
    blocks: Sequence[Sequence[int]] = (),
    linear: bool = False,
) -> Scaling:
    """Measure `Scaling.of` all rows together, with d input columns, from the moments of each worker's."""
    if not normalize:
        return Scaling.identity(d)
    counts, means, squares, vary = map(np.stack, zip(*placement.map(_moments), strict=True))
    n, sizes, vary = counts.sum(), counts[:, None], vary.any(0) | (np.ptp(means, axis=0) > 0)
    mean = (sizes * means).sum(0) / n
    # Chan's formula: within the parts, and between them.
    with np.errstate(over="ignore", invalid="ignore"):
        square = (squares + sizes * np.square(means - mean)).sum(0) / n
    refuse_lost(square, vary)
    # The mean of many equal numbers is not that number: its sum was rounded.
    mean, deviation = np.where(vary, mean, means[0]), np.sqrt(np.where(vary, square, 0.0))
    scale, varies = scale_of(mean, deviation)
    if not varies[-1]:
        raise TableError(f"the target is constant ({mean[-1]:g}): there is nothing to learn")
    x_scale = common_scale(scale[:-1], blocks)
    found = Scaling(mean[:-1], x_scale, float(mean[-1]), float(scale[-1]))
    if not linear:
        return found
    refuse_hardly_any_rows(int(sizes_of(placement).sum()), int(varies[:-1].sum()))
    return _with_slope(placement, found, float(n))


def _with_slope(placement: Placement[Shard], scaling: Scaling, n: float) -> Scaling:
    """Take a linear trend of n rows out of the target: by least squares, from a triangle of each worker's.

    The inputs have the mean 0, so that the trend leaves the target's mean as it is.
    """
    rows = np.concatenate(placement.map(_triangle, scaling))
    slope = linalg.least_squares(rows[:, :-1], rows[:, -1])
    deviation = np.sqrt(np.square(rows[:, -1] - rows[:, :-1] @ slope).sum() / n)
    scale, _ = scale_of(np.array(scaling.y_mean), deviation)
    return replace(scaling, y_scale=float(scale), slope=slope)


def mean_noise(placement: Placement[Shard]) -> float:
    """Compute the mean noise variance of all rows, which have noise variances of their own."""
    counts, sums = zip(*placement.map(_noise_moments), strict=True)
    return sum(sums) / sum(counts)


def never_negative(placement: Placement[Shard]) -> bool:
    """Tell whether no target of all rows is below 0."""
    return all(placement.map(_never_negative))


def standardise(placement: Placement[Shard], scaling: Scaling, like: Tensor) -> Placement[Shard]:
    """Bring rows into the units that experts work in, and the dtype of `like`, where they are."""
    return placement.derive(_standardised, scaling, str(like.dtype).removeprefix("torch."))


@travels("moments")
def _never_negative(batch: Shard) -> bool:
    """Tell whether no target of a worker's rows is below 0; that of padding is 0."""
    return bool((batch.y >= 0).all())


@travels("moments")
def _moments(batch: Shard) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """Compute n, the mean, Σ(x − mean)² of every input column and the target, and whether they vary.

    Rows count as often as their weights say. The mean of a column that does not vary is its number.
    """

    def summed(of: Callable[[Tensor], Tensor]) -> Tensor:
        return torch.stack([of(values).mul(w).sum(0) for values, w in _pieces(batch)]).sum(0)

    n = float(summed(lambda values: torch.ones_like(values[:, :1])))
    mean = summed(lambda values: values) / n
    square = summed(lambda values: (values - mean).square())
    low, high = torch.full_like(mean, torch.inf), torch.full_like(mean, -torch.inf)
    for values, w in _pieces(batch):
        counted = values[w[:, 0] > 0]
        low = torch.cat([low[None], counted]).amin(0)
        high = torch.cat([high[None], counted]).amax(0)
    mean, varies = torch.where(high > low, mean, low), high > low
    return n, mean.cpu().numpy(), square.cpu().numpy(), varies.cpu().numpy()


def _pieces(batch: Shard) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and target of some rows at a time, in columns, and the rows' weights as a column."""
    for part in batch.flatten().chunks(MOMENT_ROWS):
        rows = part.without_padding()
        values = torch.cat([rows.X, rows.y[:, None]], -1).double()
        yield (
            values,
            torch.ones_like(values[:, :1]) if rows.weight is None else rows.weight[:, None],
        )


@travels("moments", scaling="moments")
def _triangle(batch: Shard, scaling: Scaling) -> np.ndarray:
    """Compute R with RᵀR = AᵀA, where A has the standardised inputs and the centred target of all rows."""
    mean = torch.as_tensor(np.append(scaling.x_mean, scaling.y_mean)).to(batch.X.device)
    scale = torch.as_tensor(np.append(scaling.x_scale, 1.0)).to(mean)
    R = mean.new_zeros(0, len(mean))
    for values, weight in _pieces(batch):
        R = linalg.triangle(torch.cat([R, (values - mean) / scale * weight.sqrt()]))
    return R.cpu().numpy()


@travels("moments")
def _noise_moments(batch: Shard) -> tuple[float, float]:
    """Compute the number of rows, with their weights, and the sum of their noise variances."""
    rows = batch.flatten().without_padding()
    assert rows.noise is not None
    weight = torch.ones_like(rows.noise) if rows.weight is None else rows.weight
    return float(weight.sum()), float((weight * rows.noise).sum())


@travels(scaling="moments")
def _standardised(batch: Shard, scaling: Scaling, dtype: str) -> Shard:
    """Standardise the rows of a batch; the targets of padding stay 0."""
    x_mean, x_scale = (torch.as_tensor(v).to(batch.X) for v in (scaling.x_mean, scaling.x_scale))
    X = (batch.X - x_mean).div_(x_scale)
    y = batch.y - scaling.y_mean
    if scaling.slope is not None:
        y = y - X @ torch.as_tensor(scaling.slope).to(X)
    y = y / scaling.y_scale
    wanted = getattr(torch, dtype)
    refuse_beyond_poles(batch.X, scaling.latitudes)
    for what, given, standard in (("an input", batch.X, X), ("a target", batch.y, y)):
        refuse_far(what, given, standard, wanted)
    if batch.mask is not None:
        y = torch.where(batch.mask, y, 0.0)
    return replace(batch, X=X, y=y).to(dtype=wanted)
