"""What a study is: runs that are independent of each other, and a page with pictures of their results."""

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
from matplotlib.figure import Figure

Cell: TypeAlias = dict[str, Any]
"""The coordinates of one run as plain values, its seed among them."""
Row: TypeAlias = dict[str, Any]
"""One line of a study's table: a run's coordinates and one of its results."""


@dataclass(frozen=True)
class Options:
    """What the user chooses for a run of studies.

    Parameters
    ----------
    quick : bool, default=False
        Run a small version, in a minute or two.
    seeds : int, default=10
        The number of repetitions of each run.
    device : str, default="cpu"
        The PyTorch device to compute on.
    data : Path, optional
        The folder with the published data files. By default the one that the environment variable
        DISTGP_DATA names, else a download.
    verify : bool, default=True
        Refuse data files whose content is not the one that the results were made with.
    """

    quick: bool = False
    seeds: int = 10
    device: str = "cpu"
    data: Path | None = None
    verify: bool = True


class Study(ABC):
    """One experiment of the paper.

    A study declares its runs (`cells`), computes each of them by itself (`run`), and makes pictures and
    a page from the table of all results. It holds no state: the runner may compute runs in any order
    and in several processes.

    Attributes
    ----------
    name : str
        What the command line and the files call it.
    title : str
        The heading of its page.
    timed : bool
        Whether every run measures time, so that no two may run at once.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    timed: ClassVar[bool] = False

    @abstractmethod
    def cells(self, options: Options) -> list[Cell]:
        """List the runs, in the order of the table.

        Parameters
        ----------
        options : Options
            What the user chose; a quick study has fewer and smaller runs.

        Returns
        -------
        list of Cell
            The coordinates of every run, no two alike.
        """

    def check(self, options: Options) -> None:
        """Raise `DataError`, before any work is done, where data that the study needs cannot be had."""
        del options

    @abstractmethod
    def run(self, cell: Cell, options: Options) -> list[Row]:
        """Compute one run.

        Parameters
        ----------
        cell : Cell
            The run's coordinates.
        options : Options
            What the user chose.

        Returns
        -------
        list of Row
            The results, without the coordinates.
        """

    @abstractmethod
    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Draw the results: a figure per name."""

    @abstractmethod
    def page(self, rows: Sequence[Row]) -> str:
        """Describe in Markdown what was done, what the paper says, what came out and what differs."""


def key_of(cell: Cell) -> str:
    """Identify a run: its coordinates as JSON, in alphabetical order."""
    return json.dumps(cell, sort_keys=True)


def grid(**values: Iterable[Any]) -> list[Cell]:
    """All combinations of coordinates, the last name varying fastest.

    Parameters
    ----------
    **values : iterable
        The values of each coordinate.

    Returns
    -------
    list of Cell

    Examples
    --------
    >>> grid(M=[2, 4], seed=[0])
    [{'M': 2, 'seed': 0}, {'M': 4, 'seed': 0}]
    """
    return [
        dict(zip(values, chosen, strict=True)) for chosen in itertools.product(*values.values())
    ]


def seconds(
    calls: Mapping[str, Callable[[], object]], device: str = "cpu", repeats: int = 5
) -> dict[str, float]:
    """Measure several calls side by side.

    Each call runs once unmeasured. Then all take turns, so that a noisy machine disturbs them alike.

    Parameters
    ----------
    calls : mapping of str to callable
        What to measure.
    device : str, default="cpu"
        The device that they compute on; a GPU is waited for.
    repeats : int, default=5
        The number of turns.

    Returns
    -------
    dict of str to float
        The median seconds of each call.
    """

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
