"""What a study is: cells to run, each by itself, and a page with pictures made of all results."""

from __future__ import annotations

import itertools
import json
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

Cell: TypeAlias = dict[str, Any]
"""The coordinates of one run, plain values; `seed` among them."""
Row: TypeAlias = dict[str, Any]
"""One line of a study's table: coordinates and results."""


@dataclass(frozen=True)
class Options:
    """What the user chooses."""

    quick: bool = False
    seeds: int = 10
    device: str = "cpu"
    data: Path | None = None
    verify: bool = True


class Study(ABC):
    """One experiment of the paper."""

    name: ClassVar[str]
    title: ClassVar[str]
    timed: ClassVar[bool] = False
    """Whether every run measures time, so that none may go on beside another."""

    @abstractmethod
    def cells(self, options: Options) -> list[Cell]:
        """Everything to run, in order."""

    def check(self, options: Options) -> None:
        """Refuse, before any work, what cannot be run: data that are not to be had."""
        del options

    @abstractmethod
    def run(self, cell: Cell, options: Options) -> list[Row]:
        """The results of one cell: values that are not among its coordinates."""

    @abstractmethod
    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Pictures of the results, by name."""

    @abstractmethod
    def page(self, rows: Sequence[Row]) -> str:
        """Markdown: what was done, what the paper says, what came out, what differs and why."""


def key_of(cell: Cell) -> str:
    """A cell's identity."""
    return json.dumps(cell, sort_keys=True)


def grid(**values: Iterable[Any]) -> list[Cell]:
    """All combinations, the last name varying fastest."""
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def seconds(
    calls: Mapping[str, Callable[[], object]], device: str, repeats: int = 5
) -> dict[str, float]:
    """Median seconds of each call, taken in turns so that a noisy machine disturbs all alike."""

    def now() -> float:
        if device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter()

    times: dict[str, list[float]] = {name: [] for name in calls}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call in calls.values():
            call()
        for _ in range(repeats):
            for name, call in calls.items():
                start = now()
                call()
                times[name].append(now() - start)
    return {name: float(np.median(values)) for name, values in times.items()}


def select(rows: Sequence[Row], **wanted: Any) -> list[Row]:
    """The successful rows with these values."""
    return [
        row
        for row in rows
        if row.get("status") == "ok"
        and all(row.get(name) == value for name, value in wanted.items())
    ]


def values_of(rows: Sequence[Row], quantity: str) -> np.ndarray:
    """One quantity of all rows that have it."""
    found = [row[quantity] for row in rows if row.get(quantity) not in (None, "")]
    return np.array(found, dtype=float)


def average(rows: Sequence[Row], quantity: str) -> float:
    """Its mean; NaN where there is none."""
    found = values_of(rows, quantity)
    return float(found.mean()) if len(found) else float("nan")


def spread(rows: Sequence[Row], quantity: str) -> float:
    """Its standard deviation over the runs."""
    found = values_of(rows, quantity)
    return float(found.std()) if len(found) else float("nan")


def with_spread(rows: Sequence[Row], quantity: str, unit: float = 1.0) -> str:
    """Mean ± standard deviation; of one run the value alone."""
    deviation = spread(rows, quantity) / unit
    tail = f" ± {deviation:.2g}" if len(values_of(rows, quantity)) > 1 else ""
    return shown(average(rows, quantity) / unit) + tail


def distinct(rows: Sequence[Row], name: str) -> list[Any]:
    """The values of a coordinate, in order of appearance."""
    return list(dict.fromkeys(row[name] for row in rows if row.get(name) not in (None, "")))


def log_scale(ax: Axes, wanted: bool = True) -> None:
    """A logarithmic y axis, where there is anything that it can show."""
    shown = [line.get_ydata() for line in ax.get_lines()]
    if wanted and any((np.asarray(values, dtype=float) > 0).any() for values in shown):
        ax.set_yscale("log")


def table(head: Sequence[str], lines: Iterable[Sequence[object]]) -> str:
    """A Markdown table."""
    body = [[shown(value) for value in line] for line in lines]
    parts = [list(head), ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(part) + " |" for part in parts)


def shown(value: object) -> str:
    """A number with three or four digits that count; – where there is none."""
    if not isinstance(value, float):
        return str(value).replace("|", "&#124;")
    if np.isnan(value):
        return "–"
    if 1.0 <= abs(value) < 1000.0:
        return f"{value:.3f}".rstrip("0").rstrip(".")
    return f"{value:,.0f}" if 1000.0 <= abs(value) < 1e6 else f"{value:.3g}"


def failures(rows: Sequence[Row]) -> str:
    """A sentence on the runs that failed."""
    failed = [row for row in rows if row.get("status") == "failed"]
    if not failed:
        return "No run failed."
    kinds = sorted({str(row.get("error", ""))[:120] for row in failed})
    return f"{len(failed)} runs failed and are recorded in the table: " + "; ".join(kinds) + "."
