"""What a backtest found: forecasts beside what came, and their figures by steps ahead and by folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from distgp._util.checks import one_of
from distgp.diagnostics import metrics
from distgp.forecasting.peers import Forecast
from distgp.forecasting.series import Fold, Series

if TYPE_CHECKING:
    import pandas

WAYS = ("horizon", "fold", "all")
"""The ways in which the rows forecast can be put together for a table of figures."""


@dataclass(frozen=True, eq=False, repr=False)
class Backtest:
    """Forecasts from several moments of the past, and what came.

    Parameters
    ----------
    target : str
        The column that was forecast.
    step : str
        A step ahead, in words.
    season : str
        What the seasonal naive forecast repeated, in words.
    levels : tuple of float
        The probabilities of the quantiles that were forecast.
    folds : tuple of Fold
        The rows learnt from and forecast in each fold.
    times : pyarrow.ChunkedArray
        The times of the rows that were forecast, those of all folds one after the other.
    observed : ndarray of shape (N,)
        What came at these times.
    forecasts : mapping of str to Forecast
        Means, negative log densities and quantiles of these rows, by each model.
    """

    target: str
    step: str
    season: str
    levels: tuple[float, ...]
    folds: tuple[Fold, ...]
    times: pa.ChunkedArray
    observed: np.ndarray
    forecasts: Mapping[str, Forecast]

    @staticmethod
    def of(
        series: Series,
        folds: Sequence[Fold],
        levels: tuple[float, ...],
        season: str,
        found: Sequence[Mapping[str, Forecast]],
    ) -> Backtest:
        """Join the forecasts of all folds."""
        rows = np.concatenate([fold.test for fold in folds])
        joined = {
            name: Forecast(*map(np.concatenate, zip(*(one[name] for one in found), strict=True)))
            for name in found[0]
        }
        times, step = series.times.take(pa.array(rows)), series.said(series.step)
        return Backtest(
            series.target, step, season, levels, tuple(folds), times, series.y[rows], joined
        )

    def table(self, by: str = "horizon") -> pa.Table:
        """Figures of each model: RMSE, NLPD, pinball losses, and cover of the central intervals.

        `pinball` is the mean over all quantiles. Rows that the model could not forecast, since they are
        incomplete, count for nobody.

        Parameters
        ----------
        by : {"horizon", "fold", "all"}, default="horizon"
            Whether figures are those of each part of the horizon, of each fold, or of all rows together.

        Returns
        -------
        pyarrow.Table
        """
        one_of(*WAYS)("by", by)
        steps = np.concatenate([fold.step for fold in self.folds])
        if by == "horizon":
            key = np.concatenate([fold.bin for fold in self.folds])
        elif by == "fold":
            key = np.repeat([f.number for f in self.folds], [len(f.test) for f in self.folds])
        else:
            key = np.zeros_like(steps)
        known = np.all([np.isfinite(one.mean) for one in self.forecasts.values()], axis=0)
        lines = []
        for group in np.unique(key[known]):
            rows = np.flatnonzero(known & (key == group))
            about: dict[str, object] = {"fold": int(group)} if by == "fold" else {}
            if by == "horizon":
                about = {"first_step": int(steps[rows].min()), "last_step": int(steps[rows].max())}
            lines += [about | self._figures(name, rows) for name in self.forecasts]
        return pa.Table.from_pylist(lines)

    def to_frame(self, by: str = "horizon") -> pandas.DataFrame:
        """The same figures as a frame of pandas, which must be installed."""
        return self.table(by).to_pandas()

    def _figures(self, name: str, rows: np.ndarray) -> dict[str, object]:
        """The figures of one model on some rows."""
        y, one = self.observed[rows], self.forecasts[name]
        quantiles = one.quantiles[rows].T
        losses = [metrics.pinball(y, z, q) for q, z in zip(self.levels, quantiles, strict=True)]
        found: dict[str, object] = {
            "model": name,
            "rows": len(rows),
            "rmse": metrics.rmse(y, one.mean[rows]),
            "nlpd": float(one.density[rows].mean()),
            "pinball": float(np.mean(losses)),
        }
        found |= {f"pinball_{q:g}": loss for q, loss in zip(self.levels, losses, strict=True)}
        for low, high in self._intervals():
            inside = (quantiles[low] <= y) & (y <= quantiles[high])
            cover = round(self.levels[high] - self.levels[low], 10)
            found[f"cover_{cover:g}"] = float(inside.mean())
        return found

    def _intervals(self) -> list[tuple[int, int]]:
        """The places of each two quantiles that are the ends of a central interval, the widest first."""
        q = np.array(self.levels)
        pairs = [(i, int(np.argmin(np.abs(1.0 - q[i] - q)))) for i in np.flatnonzero(q < 0.5)]
        return [(int(i), j) for i, j in pairs if abs(q[i] + q[j] - 1.0) < 1e-9]

    def __str__(self) -> str:
        learnt = [len(fold.train) for fold in self.folds]
        least, most = min(learnt), max(learnt)
        rows = f"{most:,}" if least == most else f"{least:,} to {most:,}"
        count = len(self.folds)
        lines = [
            f"forecasts of {self.target!r} in {count} fold{'s' if count > 1 else ''}, each learnt from "
            f"{rows} rows; a step is {self.step}",
            f"season of the seasonal naive: {self.season}",
            *_printed("all steps", self.table("all")),
        ]
        by_steps = self.table("horizon").to_pylist()
        parts = dict.fromkeys((line["first_step"], line["last_step"]) for line in by_steps)
        for first, last in parts if len(parts) > 1 else ():
            own = [line for line in by_steps if line["first_step"] == first]
            name = f"step {first}" if first == last else f"steps {first} to {last}"
            lines += _printed(name, pa.Table.from_pylist(own), header=False)
        return "\n".join(lines)

    __repr__ = __str__


def _printed(name: str, figures: pa.Table, header: bool = True) -> list[str]:
    """The figures of all models under a name, in columns."""
    covers = [column for column in figures.column_names if column.startswith("cover_")]
    lines = []
    if header:
        shown = "".join(f"{100 * float(c[6:]):.4g} % cover".rjust(13) for c in covers)
        lines.append(f"{'':22s}{'RMSE':>10s}{'NLPD':>10s}{'pinball':>10s}{shown}")
    lines.append(f"{name}, {figures.column('rows')[0].as_py():,} rows")
    for line in figures.to_pylist():
        shown = "".join(f"{line[c]:13.3f}" for c in covers)
        numbers = "".join(f"{line[c]:10.4g}" for c in ("rmse", "nlpd", "pinball"))
        lines.append(f"  {line['model']:20s}{numbers}{shown}")
    return lines
