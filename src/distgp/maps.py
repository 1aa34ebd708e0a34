"""Maps: predictions and draws on grids, averages of blocks, and rows predicted without themselves.

Results on a grid are xarray Datasets, with the axes of the grid as coordinates. xarray is not installed
with distgp: `pip install xarray`, or `pip install "distgp[maps]"`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_array, check_is_fitted

from distgp import pipeline
from distgp._util.checks import a_count
from distgp.data import rows as frames
from distgp.data.rows import Rows
from distgp.data.shard import Shard, placed
from distgp.experts import ExactExpert, Parameters, Prediction
from distgp.mixin import ModelMixin
from distgp.regressor import DistributedGPRegressor, Inputs
from distgp.training.refinement import from_nearest_others

if TYPE_CHECKING:
    import xarray

EVERY_ROW = 10_000
"""Rows up to which `leave_one_out` predicts every row from all others: its time grows with their cube."""


@dataclass(frozen=True, eq=False)
class Grid:
    """The points of a grid, made by `grid`.

    Parameters
    ----------
    axes : mapping of str to ndarray
        The values along each axis.
    columns : mapping of str to ndarray
        The other columns of the inputs, each of the grid's shape.
    inside : ndarray of bool
        The points that are predicted, of the grid's shape; others are NaN.
    """

    axes: Mapping[str, np.ndarray]
    columns: Mapping[str, np.ndarray]
    inside: np.ndarray

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of points along each axis."""
        return self.inside.shape

    def points(self, gp: DistributedGPRegressor, some: np.ndarray) -> pa.Table | np.ndarray:
        """Return the points of these places, counted along all axes, as rows that a model takes."""
        places = np.unravel_index(some, self.shape)
        along = zip(self.axes.items(), places, strict=True)
        found = {name: values[index] for (name, values), index in along}
        found |= {name: values.reshape(-1)[some] for name, values in self.columns.items()}
        if gp.model_.schema.names is None:
            return np.column_stack(list(found.values()))
        return pa.table({name: pa.array(values) for name, values in found.items()})


class LeftOut(NamedTuple):
    """Rows that were predicted without themselves.

    Parameters
    ----------
    places : ndarray of shape (m,)
        The places of these rows among those given.
    y : ndarray of shape (m,)
        What was observed there.
    mean, std : ndarray of shape (m,)
        What the other rows predict.
    z : ndarray of shape (m,)
        The standardised residuals, (y − mean) / std; of the transformed target where there is a
        target_transform. Those of a good model have mean 0 and variance 1.
    """

    places: np.ndarray
    y: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    z: np.ndarray


def grid(
    axes: Mapping[str, ArrayLike] | xarray.Dataset,
    mask: ArrayLike | None = None,
    **columns: ArrayLike,
) -> Grid:
    """Make a grid from the values along its axes.

    Parameters
    ----------
    axes : mapping of str to array-like, or xarray.Dataset
        The values along each axis, by the names of the columns that the model was fitted to; for a model
        of arrays, in their order. Of a Dataset, its dimensions are the axes and its variables columns.
    mask : array-like of bool, optional
        Where to predict, of the grid's shape; by default everywhere.
    **columns : float or array-like of the grid's shape
        The other columns that the model needs: one value for all points, or one for each. Points where one
        of them is NaN are not predicted.

    Returns
    -------
    Grid

    Examples
    --------
    >>> from distgp import maps
    >>> maps.grid({"lon": [0.0, 1.0, 2.0], "lat": [50.0, 51.0]}, height=200.0).shape
    (3, 2)
    """
    along, given = _parts(axes)
    shape = tuple(values.size for values in along.values())
    if not along or 0 in shape or any(values.ndim != 1 for values in along.values()):
        raise ValueError(
            "a grid needs one axis at least, each with values in one dimension, such as "
            f"{{'lon': [0, 1], 'lat': [50, 51]}}, got { ({k: v.shape for k, v in along.items()}) }"
        )
    full = {n: _filled(n, v, shape) for n, v in (given | columns).items()}
    inside = np.ones(shape, bool) if mask is None else _truths(_filled("mask", mask, shape))
    for values in full.values():
        if values.dtype.kind in "fM":
            inside = inside & ~np.isnan(values)
    return Grid(along, full, inside)


def _parts(
    axes: Mapping[str, ArrayLike] | xarray.Dataset,
) -> tuple[dict[str, np.ndarray], dict[str, ArrayLike]]:
    """Return the axes, and the columns that a Dataset holds beside them."""
    known: Any = axes
    if not hasattr(known, "items"):
        raise TypeError(f"axes must map names to the values along them, got {axes!r:.200}")
    if not hasattr(known, "data_vars"):
        return {str(name): np.asarray(values) for name, values in axes.items()}, {}
    dims = list(known.sizes)
    wide = {str(n): v.broadcast_like(known).transpose(*dims) for n, v in known.data_vars.items()}
    return {str(dim): known[dim].values for dim in dims}, {n: v.values for n, v in wide.items()}


def _filled(name: str, values: ArrayLike, shape: tuple[int, ...]) -> np.ndarray:
    """Return one value for each point of a grid; one for all is repeated."""
    found = np.asarray(values)
    if found.shape not in ((), shape):
        raise ValueError(
            f"{name} must be one value, or values of the grid's shape {shape}, got {found.shape}"
        )
    return np.broadcast_to(found, shape)


def _truths(mask: np.ndarray) -> np.ndarray:
    """Return a mask as truth values; refuse one that holds something else."""
    if mask.dtype.kind not in "biuf" or not np.isfinite(mask).all():
        raise ValueError(f"mask must be True or False, got values of {mask.dtype}, or missing ones")
    return mask.astype(bool)


def predict_grid(
    gp: DistributedGPRegressor,
    grid: Grid,
    *,
    latent: bool = False,
    coverage: float | None = None,
    chunk: int = 100_000,
) -> xarray.Dataset:
    """Predict at all points of a grid, some at a time.

    Parameters
    ----------
    gp : DistributedGPRegressor
        A fitted model of one target.
    grid : Grid
        The points.
    latent : bool, default=False
        Whether the uncertainty is that of the function f (without the nugget); by default it is that of
        an observation.
    coverage : float, optional
        Where given, the bounds of the central interval of this probability are returned too.
    chunk : int, default=100_000
        The number of points that are predicted at a time.

    Returns
    -------
    xarray.Dataset
        With variables `mean` and `std`, and `lower` and `upper` where asked for; NaN outside the mask.
    """
    xarray = _xarray()
    _check_one_target(gp)
    _check_grid(grid)
    a_count()("chunk", chunk)
    names = ("mean", "std") if coverage is None else ("mean", "std", "lower", "upper")
    values = {name: np.full(grid.shape, np.nan) for name in names}
    inside = np.flatnonzero(grid.inside)
    for some in (inside[start : start + chunk] for start in range(0, len(inside), chunk)):
        X = grid.points(gp, some)
        if coverage is None:
            found = gp.predict(X, return_std=True, latent=latent)
        else:
            found = gp.predict_with_interval(X, coverage, latent=latent)
        for name, part in zip(names, found, strict=True):
            values[name].reshape(-1)[some] = part
    dims = tuple(grid.axes)
    return xarray.Dataset({n: (dims, v) for n, v in values.items()}, coords=dict(grid.axes))


def simulate(
    gp: DistributedGPRegressor,
    grid: Grid,
    n: int = 1,
    *,
    latent: bool = False,
    random_state: int | np.random.RandomState | None = 0,
) -> xarray.Dataset:
    """Draw from the joint posterior at all points of a grid: conditional simulations.

    Parameters
    ----------
    gp : DistributedGPRegressor
        A fitted model of one target. Exact, sparse and nearest experts draw without a covariance between
        all points, so that a grid may have hundreds of thousands.
    grid : Grid
        The points.
    n : int, default=1
        The number of draws.
    latent : bool, default=False
        Whether to draw the function f instead of observations.
    random_state : int, RandomState or None, default=0
        The seed.

    Returns
    -------
    xarray.Dataset
        With the variable `simulation`, along the dimension "draw" and the axes; NaN outside the mask.
    """
    xarray = _xarray()
    _check_one_target(gp)
    _check_grid(grid)
    a_count()("n", n)
    values, some = np.full((n, *grid.shape), np.nan), np.flatnonzero(grid.inside)
    if len(some):
        X = grid.points(gp, some)
        drawn = gp.sample_y(X, n, random_state=random_state, latent=latent)
        values.reshape(n, -1)[:, some] = drawn.T
    dims = ("draw", *grid.axes)
    return xarray.Dataset({"simulation": (dims, values)}, coords=dict(grid.axes))


def block_average(
    gp: DistributedGPRegressor, X: Inputs | Grid, blocks: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average the function f over blocks of points: block kriging.

    The mean of a block is that of its points' means. Its variance is the mean of the whole covariance
    between its points, which is less than that of one point, and more than if they were independent.

    Parameters
    ----------
    gp : DistributedGPRegressor
        A fitted model of one target, whose experts have a joint covariance.
    X : array-like, table of shape (N, d), or Grid
        Points that fill the blocks; some tens or hundreds in each.
    blocks : array-like of shape (N,), or of the grid's shape
        The block that each point belongs to. Points of a grid outside its mask belong to none.

    Returns
    -------
    labels : ndarray of shape (B,)
        The blocks, sorted.
    mean, std : ndarray of shape (B,)
        The mean and the standard deviation of the average of f over each.
    """
    _check_one_target(gp)
    belongs = np.asarray(blocks)
    if isinstance(X, Grid):
        belongs = _filled("blocks", blocks, X.shape)[X.inside]
        X = X.points(gp, np.flatnonzero(X.inside))
    points: Any = frames.to_arrow(X) if frames.is_table(X) else np.asarray(X)
    count = len(points)
    if belongs.shape != (count,):
        raise ValueError(
            f"blocks must have one label for each of {count} points, got {belongs.shape}"
        )
    labels, of = _labels(belongs)
    found = [_average(gp, points, np.flatnonzero(of == i)) for i in range(len(labels))]
    mean, variance = np.array(found).reshape(-1, 2).T
    return labels, mean, np.sqrt(np.maximum(variance, 0.0))


def _labels(belongs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the different labels, sorted, and the place among them of each point's."""
    try:
        return np.unique(belongs, return_inverse=True)
    except TypeError as error:
        raise TypeError(
            f"blocks must be labels of one kind, which can be sorted: {error}"
        ) from error


def _average(
    gp: DistributedGPRegressor, points: pa.Table | np.ndarray, some: np.ndarray
) -> tuple[float, float]:
    """Return the mean and the variance of the average of f over some of the points."""
    part = points[some] if isinstance(points, np.ndarray) else points.take(some)
    mean, covariance = gp.predict(part, return_cov=True, latent=True)
    return float(mean.mean()), float(covariance.mean())


def leave_one_out(
    gp: DistributedGPRegressor,
    X: Inputs,
    y: ArrayLike,
    sample_weight: ArrayLike | None = None,
    *,
    noise_variance: ArrayLike | None = None,
    random_state: int = 0,
) -> LeftOut:
    """Predict each row from the others, with the hyperparameters that were found with all of them.

    Up to 10,000 rows every row is predicted from all others, as one exact GP does, whatever the experts
    of the model are. Of more rows 2,048 are drawn, and each is predicted from its 128 nearest others.

    Parameters
    ----------
    gp : DistributedGPRegressor
        A fitted model of one target.
    X, y, sample_weight, noise_variance
        The rows that it was fitted to, as they were given to `fit`. Rows of weight 0 are left out.
    random_state : int, default=0
        The seed of the rows that are drawn.

    Returns
    -------
    LeftOut
        What was observed and predicted, and the standardised residuals.

    Examples
    --------
    >>> import numpy as np
    >>> from distgp import DistributedGPRegressor, maps
    >>> X = np.random.default_rng(0).uniform(0, 9, (60, 2))
    >>> gp = DistributedGPRegressor(expert="exact", n_iter=20).fit(X, np.sin(X).sum(1))
    >>> maps.leave_one_out(gp, X, np.sin(X).sum(1)).z.shape
    (60,)
    """
    _check_one_target(gp)
    target, values = gp.model_.targets[0], _numbers(gp, X)
    with frames.as_numbers("y", tables=False):
        observed = frames.targets_of(len(values), y).astype(np.float64)
    rows = Rows.of(values, observed, gp.model_.schema, sample_weight, noise_variance)
    own = np.flatnonzero(np.ones(len(rows)) if rows.weight is None else rows.weight)
    rows = rows.with_weight()
    theta = replace(target.parameters, inducing=None)
    if theta.batch:
        raise ValueError(
            "leave_one_out needs experts that share their hyperparameters, and training='independent' "
            "gives each its own: fit with another training"
        )
    some, found = _left_out(theta, pipeline.new_shard(target, rows), random_state)
    places = some.rows.cpu().numpy() - target.ensemble.row_count()
    mean = target.scaling.mean(found.mean, rows.X[places])
    variance = target.scaling.variance(found.variance)
    y = rows.y[places]
    z = (target.log_slope(y)[0] - mean) / np.sqrt(variance)
    mean, variance = target.of_target(mean, variance)
    return LeftOut(own[places], y, mean, np.sqrt(variance), z)


def _left_out(theta: Parameters, shard: Shard, seed: int) -> tuple[Shard, Prediction]:
    """Predict all rows from all others, or of very many some from their nearest."""
    if shard.n > EVERY_ROW:
        return from_nearest_others(theta, placed([shard]), seed)
    with torch.no_grad():
        return shard, ExactExpert().leave_one_out(theta, shard)


def _numbers(gp: DistributedGPRegressor, X: Inputs) -> np.ndarray:
    """Return rows as the numbers of a fitted model."""
    columns = gp.model_.schema.columns
    if columns is None or not frames.is_table(X):
        frames.refuse_dates(X)
        with frames.as_numbers("X"):
            values = check_array(X, dtype="float64")
        gp.model_.schema.check_width(values, type(gp).__name__)
        return values
    table: Any = X
    values, keep = frames.encoded(table, columns, gp.missing, gp.unknown)
    if not keep.all():
        raise ValueError(f"{int((~keep).sum())} rows have missing values: leave them out")
    return values


def _check_grid(grid: object) -> None:
    """Refuse what is no grid."""
    if not isinstance(grid, Grid):
        raise TypeError(f"expected a grid as made by maps.grid, got {grid!r:.200}")


def _check_one_target(gp: DistributedGPRegressor) -> None:
    """Refuse a model that is not fitted, or has several targets."""
    if not isinstance(gp, ModelMixin):
        raise TypeError(f"maps are of a fitted DistributedGPRegressor, got {gp!r:.200}")
    check_is_fitted(gp)
    if not gp.model_.one_target:
        raise ValueError(
            f"maps are of one target, and this model has {len(gp.model_.targets)}: fit one model for each"
        )


def _xarray() -> Any:
    """Import xarray, which is not installed with distgp."""
    try:
        return importlib.import_module("xarray")
    except ImportError as error:
        raise ImportError(
            "results on a grid are xarray Datasets, and xarray is not installed: pip install xarray"
        ) from error
