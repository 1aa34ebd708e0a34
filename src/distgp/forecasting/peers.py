"""Forecasts that cost little, for a model to be compared with: the seasonal naive, and boosting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import norm

from distgp._util.checks import a_seed
from distgp.data.encoding import CYCLES, learn
from distgp.forecasting.series import Fold, Series
from distgp.regressor import DistributedGPRegressor

LAST_SHARE = 0.2
"""The share of the rows learnt from, at their end, on which the errors of boosting are taken."""


class Forecast(NamedTuple):
    """Means (N,), negative log densities of what came (N,), quantiles (N, levels); NaN for no forecast."""

    mean: np.ndarray
    density: np.ndarray
    quantiles: np.ndarray

    @staticmethod
    def normal(
        y: np.ndarray, mean: np.ndarray, std: np.ndarray, levels: Sequence[float]
    ) -> Forecast:
        """A forecast whose errors are normal."""
        std = np.maximum(std, 1e-12 * (1.0 + np.abs(mean).max()))
        steps = norm.ppf(levels)
        return Forecast(mean, -norm.logpdf(y, mean, std), mean[:, None] + std[:, None] * steps)


@dataclass(frozen=True, eq=False)
class Peers:
    """The forecasts beside a model's, of the same folds of a series.

    `season` is what the seasonal naive forecast repeats, in words `season_said`.
    """

    series: Series
    season: float
    season_said: str
    categorical: tuple[str, ...]
    seed: int
    levels: tuple[float, ...]

    @staticmethod
    def of(
        series: Series, season: float | None, gp: DistributedGPRegressor, levels: tuple[float, ...]
    ) -> Peers:
        """Find the season where none is given."""
        length, why = (_guessed(series), "guessed") if season is None else (season, "given")
        said = f"{series.said(length)} ({why})"
        if length == series.step and season is None:
            said = (
                "none (the last value is repeated: no season was given, and none could be guessed)"
            )
        seed = a_seed("random_state", gp.random_state) % 2**32
        return Peers(series, length, said, tuple(gp.categorical), seed, levels)

    def forecasts(self, fold: Fold) -> dict[str, Forecast]:
        """Forecast a fold by each of them."""
        y = self.series.y[fold.test]
        found = {"seasonal naive": self._naive(fold), "gradient boosting": self._boosting(fold)}
        return {name: Forecast.normal(y, *one, self.levels) for name, one in found.items()}

    def _naive(self, fold: Fold) -> tuple[np.ndarray, np.ndarray]:
        """Repeat the last season before the fold that has a value at the same phase; mean and deviation."""
        when, y = self.series.when, self.series.y
        times, place = np.unique(when[fold.train], return_inverse=True)
        values = np.bincount(place, y[fold.train]) / np.bincount(place)
        test = when[fold.test]
        mean, lag = np.full(len(test), np.nan), np.ones(len(test))
        while (open_ := np.isnan(mean) & (test - lag * self.season >= times[0] - self._near)).any():
            mean[open_] = self._at(times, values, test[open_] - lag[open_] * self.season)
            lag[np.isnan(mean)] += 1
        spread = np.full(len(test), values.std())
        for one in np.unique(lag):
            errors = values - self._at(times, values, times - one * self.season)
            if np.isfinite(errors).sum() > 1:
                spread[lag == one] = np.sqrt(np.nanmean(np.square(errors)))
        return np.where(np.isnan(mean), values[-1], mean), spread

    @property
    def _near(self) -> float:
        """The distance within which times are taken for the same: half a step."""
        return 0.5 * self.series.step

    def _at(self, times: np.ndarray, values: np.ndarray, asked: np.ndarray) -> np.ndarray:
        """The values at times that were observed; NaN at others."""
        right = np.clip(np.searchsorted(times, asked), 1, max(1, len(times) - 1))
        right = np.minimum(right, len(times) - 1)
        left = np.maximum(right - 1, 0)
        place = np.where(asked - times[left] < times[right] - asked, left, right)
        return np.where(np.abs(times[place] - asked) < self._near, values[place], np.nan)

    def _boosting(self, fold: Fold) -> tuple[np.ndarray, np.ndarray]:
        """Boost trees on the columns and on phases of the time; one spread, of errors at the end."""
        from sklearn.ensemble import HistGradientBoostingRegressor

        series, rows = self.series, self.series.rows(fold.train)
        columns = learn(rows, None, categorical=self.categorical, dates="expand")

        def features(places: np.ndarray) -> np.ndarray:
            X = columns.matrix(series.rows(places), unknown="new")
            days = [X[:, place] for place in sorted(columns.days)]
            phases = [(one - first) % length for one in days for first, length in CYCLES.values()]
            if not series.dated:
                phases.append(series.when[places] % self.season)
            return np.column_stack([X, *phases])

        X, y = features(fold.train), series.y[fold.train]
        model = HistGradientBoostingRegressor(random_state=self.seed)
        cut = len(y) - max(1, round(LAST_SHARE * len(y)))
        errors = y[cut:] - model.fit(X[:cut], y[:cut]).predict(X[cut:])
        mean = np.asarray(model.fit(X, y).predict(features(fold.test)))
        return mean, np.full(len(mean), np.sqrt(np.mean(np.square(errors))))


def _guessed(series: Series) -> float:
    """A season of the calendar of which there are two at least; a step where there is none."""
    span = series.when[-1] - series.when[0]
    if not series.dated:
        return series.step
    likely = (
        [7.0, 1.0] if series.step < 0.75 else [7.0] if series.step < 1.5 else [CYCLES["year"][1]]
    )
    return next((days for days in likely if 2 * days <= span and days > series.step), series.step)
