"""Rows in this process, as numbers, with all that was given for each, and the schema of their columns."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from distgp.data import frames
from distgp.data.encoding import Columns


@dataclass(frozen=True, eq=False)
class Schema:
    """The columns of the inputs.

    Parameters
    ----------
    n_features : int
        The number of columns, as numbers.
    names : tuple of str, optional
        Their names; None for arrays.
    table : Columns, optional
        The columns of the table that the numbers were made of, where there was more to do than to
        take its numbers as they are.
    """

    n_features: int
    names: tuple[str, ...] | None = None
    table: Columns | None = None

    @staticmethod
    def of(columns: Columns) -> Schema:
        """The schema of the numbers that were made of the columns of a table."""
        names = tuple(columns.features)
        return Schema(len(names), names, columns)

    @property
    def columns(self) -> Columns | None:
        """The columns of the table, or those of a frame of numbers; None for arrays."""
        if self.table is not None or self.names is None:
            return self.table
        return Columns.of_numbers(self.names)

    @property
    def blocks(self) -> list[tuple[int, ...]]:
        """The places of the numbers made of each text column."""
        return [] if self.table is None else self.table.blocks


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows in this process, as numbers, with all that was given for each.

    Parameters
    ----------
    X, y : ndarray of shape (n, d) and (n,) or (n, targets)
        Inputs and targets.
    schema : Schema
        What the columns of X are.
    weight, noise : ndarray of shape (n,), optional
        How many copies each row counts as, and the noise variance of its target.
    time, groups : array-like of shape (n,), optional
        When each row was observed, and the group that it belongs to.
    """

    X: np.ndarray
    y: np.ndarray
    schema: Schema
    weight: np.ndarray | None = None
    noise: np.ndarray | None = None
    time: ArrayLike | None = None
    groups: ArrayLike | None = None

    @staticmethod
    def of(
        X: np.ndarray,
        y: np.ndarray,
        schema: Schema,
        sample_weight: ArrayLike | None = None,
        noise_variance: ArrayLike | None = None,
        time: ArrayLike | None = None,
        groups: ArrayLike | None = None,
    ) -> Rows:
        """Build rows from what `fit` takes for each, checked."""
        weight = numbers_of_rows("sample_weight", sample_weight, len(X), least=0.0)
        noise = numbers_of_rows("noise_variance", noise_variance, len(X))
        return Rows(X, y, schema, weight, noise, time, groups)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def targets(self) -> np.ndarray:
        """The targets in columns, (n, targets)."""
        return self.y[:, None] if self.y.ndim == 1 else self.y

    def take(self, which: np.ndarray) -> Rows:
        """Some of the rows."""
        more = {name: getattr(self, name) for name in ("weight", "noise", "time", "groups")}
        kept = {name: None if v is None else taken(v, which) for name, v in more.items()}
        return replace(self, X=self.X[which], y=self.y[which], **kept)

    def with_weight(self) -> Rows:
        """The rows whose weight is not zero."""
        if self.weight is None or (self.weight > 0).all():
            return self
        return self.take(np.flatnonzero(self.weight))


def taken(values: ArrayLike, which: np.ndarray) -> ArrayLike:
    """Some of an array's values; of pandas' as a Series, since an array would lose time zones."""
    series = getattr(values, "iloc", None)
    return np.asarray(values)[which] if series is None else series[which]


def kept(values: ArrayLike | None, keep: np.ndarray, name: str) -> ArrayLike | None:
    """The values given for those rows of a table that are kept."""
    if values is None or keep.all():
        return values
    if np.shape(values) != keep.shape:
        raise ValueError(f"{name} must have one value for each of the {len(keep)} rows")
    return taken(values, np.flatnonzero(keep))


def column_of(X: object, value: object, name: str) -> ArrayLike | None:
    """Values as given, or those of a named column of a table."""
    if not isinstance(value, str):
        return value  # pyright: ignore[reportReturnType]
    if not frames.is_table(X) or value not in frames.names_of(X):
        raise ValueError(
            f"{name}={value!r} names a column, but X has no column of that name: give one value per row"
        )
    column = X[value]  # pyright: ignore[reportIndexIssue]
    return column if hasattr(column, "iloc") else np.asarray(column)


def numbers_of_rows(
    name: str, values: object, n: int, least: float | None = None
) -> np.ndarray | None:
    """One finite number per row, in float64; None where nothing is given.

    They must be at least `least`, or positive by default; a single number stands for all rows.
    """
    if values is None:
        return None
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be one number for each row, got {values!r:.60}") from error
    if found.ndim == 0:
        found = np.full(n, float(found))
    if found.shape != (n,):
        raise ValueError(f"{name} must have one number for each of the {n} rows, got {found.shape}")
    bad = ~np.isfinite(found) | (found <= 0.0 if least is None else found < least)
    if bad.any():
        expected = "positive" if least is None else f"at least {least:g}"
        place = int(np.argmax(bad))
        raise ValueError(
            f"{name} must be {expected} and finite, got {found[place]:g} in row {place}"
        )
    if not found.any():
        raise ValueError(f"{name} is zero in all rows: give some rows a positive weight")
    return found


def observed_targets(y: object, shape: tuple[int, ...]) -> np.ndarray:
    """Targets that were observed, as numbers of this shape."""
    try:
        found = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"y must be numbers of shape {shape}, got {y!r:.60}") from error
    if found.shape != shape:
        raise ValueError(f"y must have the shape of the predictions, {shape}, got {found.shape}")
    return found


def check_varies(targets: np.ndarray) -> None:
    """Refuse a target (a column of targets) that does not vary."""
    constant = np.flatnonzero(np.ptp(targets, axis=0) == 0)
    if len(constant):
        which = "y" if targets.shape[1] == 1 else f"target column {constant[0]}"
        raise ValueError(
            f"{which} is constant ({targets[0, constant[0]]:g} in all {len(targets)} rows), so there is "
            "nothing to learn: check the target, or give normalize=False and training=None"
        )


def refuse_dates(X: object) -> None:
    """Refuse arrays of dates, which NumPy would turn into numbers of nanoseconds."""
    if getattr(getattr(X, "dtype", None), "kind", "") in ("m", "M"):
        raise ValueError(
            'X holds dates or times: give a table with a column of them and dates="expand", such as '
            'pandas.DataFrame({"when": X})'
        )


@contextmanager
def as_numbers(names: str) -> Iterator[None]:
    """Say what was expected where values that are no numbers fail in a block."""
    try:
        yield
    except (TypeError, OverflowError) as error:
        raise type(error)(f"{names} must be arrays or tables of numbers: {error}") from error
    except ValueError as error:
        if "could not convert" in str(error):
            raise ValueError(
                f"{names} must be numbers, {error}: convert them, by pandas.to_numeric for one; columns of "
                "X may hold text where X is a table"
            ) from error
        what, found, _ = str(error).partition("contains NaN.")
        if not found:
            raise
        raise ValueError(
            f"{what}contains NaN: leave those rows out or fill them in; given a table (pandas, polars, "
            'pyarrow), missing="drop" or missing="impute" does it'
        ) from error
