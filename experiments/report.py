"""From rows to pages: selecting results, averaging them over runs, and writing them as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.study import Row


def select(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """Choose the rows of runs that succeeded and have these values.

    Parameters
    ----------
    rows : sequence of Row
        A study's table.
    **wanted : object
        The value that each named column must have.

    Returns
    -------
    list of Row
    """
    chosen = [row for row in rows if row.get("status") == "ok"]
    for name, value in wanted.items():  # one name at a time: pages select a thousand times
        chosen = [row for row in chosen if row.get(name) == value]
    return chosen


def values_of(rows: Sequence[Row], quantity: str) -> np.ndarray:
    """The values of one column, of the rows that have it."""
    found = [row[quantity] for row in rows if row.get(quantity) not in (None, "")]
    return np.array(found, dtype=float)


def average(rows: Sequence[Row], quantity: str) -> float:
    """The mean of one column; NaN where no row has it."""
    found = values_of(rows, quantity)
    return float(found.mean()) if len(found) else float("nan")


def spread(rows: Sequence[Row], quantity: str) -> float:
    """The standard deviation of one column; NaN where no row has it."""
    found = values_of(rows, quantity)
    return float(found.std()) if len(found) else float("nan")


def with_spread(rows: Sequence[Row], quantity: str, unit: float = 1.0) -> str:
    """Write mean ± standard deviation of one column; of a single run the value alone.

    Parameters
    ----------
    rows : sequence of Row
        The repetitions of one run.
    quantity : str
        The column.
    unit : float, default=1.0
        The unit to state the values in: 1e-3 turns seconds into milliseconds.

    Returns
    -------
    str
    """
    deviation = spread(rows, quantity) / unit
    tail = f" ± {deviation:.2g}" if len(values_of(rows, quantity)) > 1 else ""
    return shown(average(rows, quantity) / unit) + tail


def distinct(rows: Sequence[Row], name: str) -> list[Any]:
    """The different values of a column, in order of appearance."""
    return list(dict.fromkeys(row[name] for row in rows if row.get(name) not in (None, "")))


def log_scale(ax: Axes, wanted: bool = True) -> None:
    """Make the y axis logarithmic, if it is wanted and there is a positive value to show."""
    drawn = [line.get_ydata() for line in ax.get_lines()]
    if wanted and any((np.asarray(values, dtype=float) > 0).any() for values in drawn):
        ax.set_yscale("log")


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """Write a Markdown table.

    Parameters
    ----------
    head : sequence of str
        The titles of the columns.
    lines : iterable of sequences
        The cells of each line, numbers as numbers: `shown` writes them.

    Returns
    -------
    str
    """
    body = [[shown(value) for value in line] for line in lines]
    parts = [list(head), ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(part) + " |" for part in parts)


def shown(value: object) -> str:
    """Write a number with three or four significant digits, and – for NaN; text stays as it is."""
    if not isinstance(value, float):
        return str(value).replace("|", "&#124;")
    if np.isnan(value):
        return "–"
    if 1.0 <= abs(value) < 1000.0:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{value:,.0f}" if 1000.0 <= abs(value) < 1e6 else f"{value:.3g}"


def failures(rows: Sequence[Row]) -> str:
    """Say how many runs failed, and with which errors."""
    failed = [row for row in rows if row.get("status") == "failed"]
    if not failed:
        return "No run failed."
    kinds = sorted({str(row.get("error", ""))[:120] for row in failed})
    return f"{len(failed)} runs failed and are recorded in the table: " + "; ".join(kinds) + "."
