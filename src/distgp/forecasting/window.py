"""A model of the rows of the last stretch of time, which moves on as rows come."""

from __future__ import annotations

from typing import Self, cast

import numpy as np
import pyarrow as pa
from sklearn.base import clone

from distgp.data import rows as frames
from distgp.data.table import TableError, pc
from distgp.data.values import as_text, kind_of, zone_of
from distgp.forecasting.series import SLACK, Length, Series, as_table, check_model
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
        check_model(gp)
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
        new, names = as_table(table), self.rows.schema.names
        if lacking := [name for name in names if name not in new.schema.names]:
            raise TableError(f"the new rows lack {lacking}; they need {names}")
        new = new.select(names)
        schema = pa.schema(
            [_common(*pair) for pair in zip(self.rows.schema, new.schema, strict=True)]
        )
        try:
            rows, new = self.rows.cast(schema), new.cast(schema)
        except pa.ArrowException as error:
            raise TableError(
                f"the new rows have values of another kind than those in the window: {error}"
            ) from error
        both = pa.concat_tables([self._without(rows, new), new])
        training = self.gp.training
        try:
            return self._take(both, self.gp.set_params(training=None))
        finally:
            self.gp.set_params(training=training)

    def _without(self, rows: pa.Table, new: pa.Table) -> pa.Table:
        """The rows in the window that do not come again among the new ones."""
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


def _common(old: pa.Field, new: pa.Field) -> pa.Field:
    """The type of a column that holds old and new values: that of the old, or fractions for integers."""
    if bool(zone_of(old.type)) != bool(zone_of(new.type)) and kind_of(new.type) == "date":
        raise TableError(
            f"column {old.name!r} holds {old.type} in the window, and {new.type} in the new rows: give "
            "times with a time zone in both, or in neither"
        )
    wider = pa.types.is_integer(old.type) and pa.types.is_floating(new.type)
    return new if wider else old
