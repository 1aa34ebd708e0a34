"""A model of the rows of the last stretch of time, which moves on as rows come."""

from __future__ import annotations

from typing import Self, cast

import numpy as np
import pyarrow as pa
from sklearn.base import clone

from distgp.data import rows as frames
from distgp.data.table import TableError, pc
from distgp.data.values import as_text
from distgp.forecasting.series import SLACK, Length, Series
from distgp.regressor import DistributedGPRegressor


class MovingWindow:
    """Keep a model up to date with the rows of the last stretch of time, and forget older ones.

    `fit` learns hyperparameters. `update` takes new rows, forgets those that are too old, and conditions
    the model on what is left with the hyperparameters that it has: it costs no training, and knows nothing
    of rows that left the window. Call `fit` again, with or without rows, to have hyperparameters follow.

    Parameters
    ----------
    gp : DistributedGPRegressor
        The model, fitted or not; it is not changed.
    time : str
        The column of times: dates, or numbers.
    target : str
        The column to forecast; all others are inputs.
    length : int, str or timedelta
        How far back rows are kept, from the newest: steps, where a step is the median distance of
        successive times; or a duration such as "3 weeks", where the times are dates.

    Attributes
    ----------
    gp : DistributedGPRegressor
        The model of the window, to predict with.
    rows : pyarrow.Table
        The rows in the window, in the order of their time.

    Examples
    --------
    >>> import numpy as np, pyarrow as pa, distgp
    >>> from distgp.forecasting import MovingWindow
    >>> hours = np.arange(200.0)
    >>> table = pa.table({"hour": hours, "load": np.sin(hours * np.pi / 12)})
    >>> gp = distgp.DistributedGPRegressor(expert="exact", kernel="periodic(24) + linear")
    >>> window = MovingWindow(gp, time="hour", target="load", length=96).fit(table[:150])
    >>> _ = window.update(table[150:])
    >>> window.rows.num_rows, window.rows.column("hour")[0].as_py()
    (96, 104.0)
    """

    def __init__(
        self, gp: DistributedGPRegressor, *, time: str, target: str, length: Length
    ) -> None:
        self.gp = cast(DistributedGPRegressor, clone(gp)).set_params(warm_start=True)
        self.time, self.target, self.length = time, target, length
        self.rows: pa.Table | None = None

    def fit(self, table: frames.Frame | None = None) -> Self:
        """Learn hyperparameters from the newest rows of a table, or anew from those in the window.

        Parameters
        ----------
        table : table, optional
            Rows of pandas, polars or pyarrow, in any order; by default those in the window.
        """
        if table is None and self.rows is None:
            raise ValueError("fit expects a table the first time, since no rows are in the window")
        return self._take(self.rows if table is None else table, self.gp)

    def update(self, table: frames.Frame) -> Self:
        """Take new rows, and forget those that are older than the window.

        Parameters
        ----------
        table : table
            Rows with the columns of `fit`, in any order. Rows that are too old are forgotten at once.
            A row that is in the window already takes the place of the old one, as a correction: it is the
            row of the same time, or, where several rows have the same time, that of the same inputs.
        """
        if self.rows is None:
            raise ValueError("update expects a window that was fitted: call fit first")
        new, schema = frames.to_arrow(table), self.rows.schema
        if lacking := [name for name in schema.names if name not in new.schema.names]:
            raise TableError(f"the new rows lack {lacking}; they need {schema.names}")
        new = new.select(schema.names).cast(schema)
        both = pa.concat_tables([self._without(new), new])
        training = self.gp.training
        try:
            return self._take(both, self.gp.set_params(training=None))
        finally:
            self.gp.set_params(training=training)

    def _without(self, new: pa.Table) -> pa.Table:
        """The rows in the window that do not come again among the new ones."""
        rows = cast(pa.Table, self.rows)
        once = all(len(pc.unique(one.column(self.time))) == len(one) for one in (rows, new))
        names = [self.time] if once else [n for n in rows.schema.names if n != self.target]
        old, again = (
            list(zip(*(as_text(one.column(n)).to_pylist() for n in names), strict=True))
            for one in (rows, new)
        )
        known = set(again)
        return rows.filter(pa.array([key not in known for key in old], pa.bool_()))

    def _take(self, table: frames.Frame, gp: DistributedGPRegressor) -> Self:
        """Fit the model to the rows of a table that are in the window, and keep them."""
        series = Series.of(table, self.time, self.target, drop=gp.missing == "drop")
        oldest = series.when[-1] - series.length("length", self.length) + SLACK * series.step
        kept = np.flatnonzero(series.when > oldest)
        inputs, y = series.rows(kept), series.y[kept]
        times = {"time": series.when[kept]} if gp.validation == "last" else {}
        gp.fit(inputs, y, **times)
        self.rows = inputs.append_column(self.target, pa.array(y))
        return self
