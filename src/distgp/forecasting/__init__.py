"""Backtests: how good earlier forecasts of a model would have been.

`backtest` fits a model on the rows before each of several moments, and judges its forecasts of the rows
after it, beside the seasonal naive forecast and gradient boosting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import pyarrow as pa
from sklearn.base import clone

from distgp._util.checks import a_count, probabilities, silenced
from distgp.data import rows as frames
from distgp.diagnostics.novelty import NoveltyWarning
from distgp.forecasting.peers import Forecast, Peers
from distgp.forecasting.result import Backtest
from distgp.forecasting.series import Fold, Length, Series, check_model
from distgp.forecasting.window import MovingWindow
from distgp.regressor import DistributedGPRegressor

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
"""The probabilities whose quantiles are forecast, where no others are asked for."""

__all__ = ["QUANTILES", "Backtest", "Fold", "Forecast", "MovingWindow", "backtest"]


def backtest(
    gp: DistributedGPRegressor,
    table: frames.Frame,
    *,
    time: str,
    target: str,
    horizon: Length,
    folds: int = 5,
    window: Length | None = None,
    season: Length | None = None,
    quantiles: Sequence[float] = QUANTILES,
) -> Backtest:
    """Forecast from several moments of the past, and compare with what came.

    The last `folds` stretches of the table, each as long as the horizon, are forecast one by one, by a
    clone of the model that is fitted to the rows before it alone. All columns but the target are inputs,
    and are taken as known at the time of the forecast: leave out those that are not.

    Beside the model stand two forecasts that cost little. The seasonal naive one repeats the last season
    known (the mean of the rows, where several have the same time); it is normal, and as uncertain as such
    repetitions were on the rows learnt from. The other is scikit-learn's gradient boosting on the same
    columns and on the time within the year, the week and the day; it is normal too, with the spread of its
    errors on the last fifth of the rows learnt from, when it had learnt from the others.

    Parameters
    ----------
    gp : DistributedGPRegressor
        The model, fitted or not; it is not changed. With validation="last" each clone is given the times.
    table : table
        Rows of pandas, polars or pyarrow, in any order.
    time : str
        The column of times: dates, or numbers.
    target : str
        The column to forecast.
    horizon : int, str or timedelta
        How far ahead to forecast: steps, where a step is the median distance of successive times; or a
        duration such as "1 week" or "36 h", where the times are dates.
    folds : int, default=5
        The number of stretches that are forecast. Errors within a stretch go together, so that the cover
        of a few steps in 5 stretches may be 0.1 off: give more before you judge by it.
    window : int, str or timedelta, optional
        How far back rows are learnt from, by default all the way.
    season : int, str or timedelta, optional
        What the seasonal naive forecast repeats. By default a week or a day where times are less than a
        day apart, a week for days, a year for longer steps, and the last value where nothing fits or the
        times are numbers; the result says which.
    quantiles : sequence of float, default=(0.05, 0.25, 0.5, 0.75, 0.95)
        The probabilities whose pinball losses are taken. Each two that add up to 1 give an interval whose
        cover is counted.

    Returns
    -------
    Backtest
        Print it, or take its `table()` or `to_frame()`, by steps ahead or by folds.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa, distgp
    >>> from distgp.forecasting import backtest
    >>> hours = np.arange(200.0)
    >>> table = pa.table({"hour": hours, "load": np.sin(hours * np.pi / 12) + 0.01 * hours})
    >>> gp = distgp.DistributedGPRegressor(expert="exact", kernel="periodic(24) + linear")
    >>> found = backtest(gp, table, time="hour", target="load", horizon=24, folds=2, season=24)
    >>> found.table("all").column("model").to_pylist()
    ['GP', 'seasonal naive', 'gradient boosting']
    """
    check_model(gp)
    if gp.validation == "groups":
        raise ValueError(
            "backtest expects a model whose validation is 'last' or 'random', since forecasts are of rows "
            f"to come, got {gp!r:.200}"
        )
    levels = tuple(sorted(set(probabilities("quantiles", quantiles))))
    a_count()("folds", folds)
    series = Series.of(table, time, target, drop=gp.missing == "drop")
    parts = series.folds(
        series.length("horizon", horizon), folds, _length(series, "window", window)
    )
    peers = Peers.of(series, _length(series, "season", season), gp, levels)
    found = [_forecast(gp, series, fold, peers, quiet=fold is not parts[-1]) for fold in parts]
    return Backtest.of(series, parts, levels, peers.season_said, found)


def _length(series: Series, name: str, value: Length | None) -> float | None:
    return None if value is None else series.length(name, value)


def _forecast(
    gp: DistributedGPRegressor, series: Series, fold: Fold, peers: Peers, quiet: bool
) -> dict[str, Forecast]:
    """Forecast a fold by the model and its peers; of all folds, the last may speak of its fit.

    That rows to come are new is no news here: how well they are forecast is what is measured.
    """
    try:
        with silenced(Warning if quiet else NoveltyWarning):
            own = _of_model(gp, series, fold, peers.levels)
        return {"GP": own, **peers.forecasts(fold)}
    except ValueError as error:
        raise ValueError(f"{fold}: {error}") from error


def _of_model(
    gp: DistributedGPRegressor, series: Series, fold: Fold, levels: Sequence[float]
) -> Forecast:
    """Fit a clone to the rows before a moment, and forecast those after it."""
    model = cast(DistributedGPRegressor, clone(gp))
    times = {"time": series.when[fold.train]} if gp.validation == "last" else {}
    try:
        model.fit(series.rows(fold.train), series.y[fold.train], **times)
        rows, y = series.rows(fold.test), series.y[fold.test]
        mean, quantiles = model.predict(rows), model.predict_quantiles(rows, levels)
        if np.isinf(quantiles).any():
            raise ValueError(
                "some quantiles are infinite, since calibration had too few rows for them: give quantiles "
                "nearer to 0.5, more rows, or a model without calibrate"
            )
        density = np.full(len(y), np.nan)
        for some in (np.flatnonzero(fold.bin == one) for one in np.unique(fold.bin)):
            known = some[np.isfinite(mean[some])]  # incomplete rows are not predicted
            if len(known):
                density[known] = model.nlpd(rows.take(pa.array(known)), y[known])
        return Forecast(mean, density, quantiles)
    finally:
        model.close()
