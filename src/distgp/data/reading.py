"""Reading of what users give to an estimator: arrays and tables, made into rows of numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from distgp.data import rows as frames
from distgp.data.rows import Rows, Schema, kept


@dataclass(frozen=True)
class Reading:
    """The parameters of an estimator that say what a table may hold; it describes them."""

    missing: str
    unknown: str
    dates: str
    categorical: tuple[str, ...]

    def rows(
        self,
        X: Any,
        y: ArrayLike,
        given: Mapping[str, Any],
        validated: Callable[[object, object], tuple[np.ndarray, np.ndarray]],
        names: Callable[[], tuple[str, ...] | None],
    ) -> tuple[Rows, np.ndarray | None]:
        """Make numbers of training rows, with what was given for each, and learn their columns.

        `validated` checks arrays, and `names` then tells the names of their columns. With the rows is told
        which of those given were kept; None for all.
        """
        frames.refuse_texts(X)
        frames.refuse_text_targets(y)
        table, keep, is_table = None, None, frames.is_table(X)
        if self.categorical and not is_table:
            raise ValueError(
                f"categorical names columns of a table, got {list(self.categorical)} and X without names: "
                "give a table, or leave it out"
            )
        if is_table and (self.categorical or self.missing == "impute" or not frames.is_plain(X)):
            options: dict[str, Any] = {"missing": self.missing, "dates": self.dates}
            X, y, table, keep = frames.learnt(X, y, categorical=self.categorical, **options)
        elif is_table and self.missing == "drop":
            X, y, keep = frames.with_targets(X, y, keep)
        X, y = validated(X, y)
        schema = Schema(X.shape[1], names()) if table is None else Schema.of(table)
        return Rows.of(X, y, schema, **_kept(given, keep)), keep

    def more_rows(
        self,
        X: Any,
        y: ArrayLike,
        given: Mapping[str, Any],
        schema: Schema,
        validated: Callable[[object, object], tuple[np.ndarray, np.ndarray]],
        plain: Callable[[object], np.ndarray],
    ) -> Rows:
        """Make numbers of rows that are added to those with a schema; `plain` reads those without text."""
        keep = None
        if frames.is_table(X):
            X, keep = self.inputs(X, schema, plain)
            if self.missing == "drop":
                X, y, keep = frames.with_targets(X, y, keep)
        return Rows.of(*validated(X, y), schema, **_kept(given, keep))

    def inputs(
        self, X: Any, schema: Schema, plain: Callable[[object], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Make the numbers of a fitted model of rows, and tell which are complete; None for all."""
        frames.refuse_texts(X)
        columns, is_table = schema.columns, frames.is_table(X)
        numbers = schema.table is None and frames.is_plain(X, schema.names)
        if columns is None or not is_table or numbers or not frames.is_raw(X, columns):
            return plain(X), None
        values, found = frames.encoded(X, columns, self.missing, self.unknown)
        return values, None if found.all() else found


def _kept(given: Mapping[str, Any], keep: np.ndarray | None) -> dict[str, Any]:
    """Take what was given for the rows that are kept."""
    if keep is None:
        return dict(given)
    return {name: kept(values, keep, name) for name, values in given.items()}


def blanked(values: np.ndarray, keep: np.ndarray | None) -> np.ndarray:
    """Put NaN into the predictions of rows that are not complete."""
    if keep is not None:
        values[~keep] = np.nan
    return values
