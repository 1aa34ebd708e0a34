"""Table 1: what a prediction costs, beside measured slopes of the time in n, M and m."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import distgp
from distgp.aggregation import Aggregator, Ensemble
from distgp.data import Shard
from distgp.experts import Parameters, Prediction
from experiments.draws import Draws, random_shards, rbf
from experiments.report import average, distinct, failures, select, table
from experiments.study import Cell, Options, Row, Study, seconds

METHODS = ("poe", "gpoe", "bcm", "rbcm", "grbcm", "npae", "opt", "two-level")
REPEATS = 3
"""The number of turns in which times are measured."""
TESTS = 200
"""Few test points, so that conditioning the experts weighs as much as it does in the paper's table."""
AXES: dict[str, dict[str, dict[str, Any]]] = {
    "sparse": {
        "n": {"M": 20, "m": 256, "n": (20_000, 40_000, 80_000, 160_000)},
        "M": {"n": 80_000, "m": 256, "M": (10, 20, 40, 80)},
        "m": {"n": 40_000, "M": 10, "m": (128, 256, 512, 1024)},
    },
    "exact": {
        "n": {"M": 4, "m": 0, "n": (3000, 6000, 12_000, 24_000)},
        "M": {"n": 12_000, "m": 0, "M": (2, 4, 8, 16)},
    },
}
QUICK: dict[str, dict[str, dict[str, Any]]] = {
    "sparse": {
        "n": {"M": 4, "m": 64, "n": (4000, 16_000)},
        "M": {"n": 8000, "m": 64, "M": (4, 16)},
        "m": {"n": 8000, "M": 4, "m": (64, 256)},
    },
    "exact": {"n": {"M": 4, "m": 0, "n": (800, 2400)}, "M": {"n": 2000, "m": 0, "M": (4, 16)}},
}
EXPECTED = {
    ("sparse", "n"): "m²n: 1",
    ("sparse", "M"): "m²n + m³M: 0, later 1; NPAE and opt add M² and M³",
    ("sparse", "m"): "m²n + m³M: 2, later 3",
    ("exact", "n"): "n³/M²: 3; opt and two-level add n²",
    ("exact", "M"): "n³/M²: −2; grBCM's n_c grows with the shards; NPAE and opt add n² whatever M",
}


class Complexity(Study):
    """Times of one process that does the work of all experts."""

    name: ClassVar[str] = "complexity"
    title: ClassVar[str] = "Complexity (table 1)"
    timed: ClassVar[bool] = True

    def cells(self, options: Options) -> list[Cell]:
        """Vary one size at a time."""
        cells = []
        for kind, axes in (QUICK if options.quick else AXES).items():
            for axis, sizes in axes.items():
                for value in sizes[axis]:
                    fixed = {name: size for name, size in sizes.items() if name != axis}
                    cells.append({"expert": kind, "axis": axis, **fixed, axis: value, "seed": 0})
        return cells

    def run(self, cell: Cell, options: Options) -> list[Row]:
        """Time conditioning, combination and prediction, for every aggregator."""
        draws, d = Draws(cell["seed"], options.device), 4
        X, X_test = draws.box(cell["n"], d), draws.box(TESTS, d)
        y = torch.sin(3 * X).sum(-1) + 0.1 * draws.normal(cell["n"])
        Z = X[draws.choice(cell["n"], cell["m"])] if cell["expert"] == "sparse" else None
        theta = Parameters.of(rbf(options.device, 1.0), 0.1, Z)
        expert = distgp.EXPERTS[cell["expert"]]()
        shards = random_shards(Shard.of(X, y), cell["M"], cell["seed"])

        def once(aggregator: Aggregator) -> Prediction:
            ensemble = Ensemble.condition(expert, theta, shards)
            return aggregator.combine(ensemble).predict(ensemble, X_test)

        calls = {name: partial(once, distgp.AGGREGATORS[name]()) for name in METHODS}
        taken = seconds(calls, options.device, repeats=1 if options.quick else REPEATS)
        return [{"method": name, "seconds": value} for name, value in taken.items()]

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Draw seconds against each size."""
        shown = [
            (kind, axis)
            for kind in distinct(rows, "expert")
            for axis in distinct(select(rows, expert=kind), "axis")
        ]
        figure, axes = plt.subplots(
            1, len(shown), figsize=(3.4 * len(shown), 3.6), layout="constrained", squeeze=False
        )
        for ax, (kind, axis) in zip(axes[0], shown, strict=True):
            sizes: list[float] = []
            for method in METHODS:
                sizes, times = _line(rows, kind, axis, method)
                ax.plot(sizes, times, "o-", markersize=3, label=method)
            ax.set(xscale="log", yscale="log", xlabel=axis, title=f"{kind} experts")
            ax.set_xticks(sizes, [f"{size:,.0f}" for size in sizes], fontsize="small")
            ax.minorticks_off()
        axes[0][0].set_ylabel("seconds")
        axes[0][0].legend(fontsize="x-small")
        return {"slopes": figure}

    def page(self, rows: Sequence[Row]) -> str:
        """Put the slopes beside table 1."""
        lines = []
        for kind in distinct(rows, "expert"):
            for axis in distinct(select(rows, expert=kind), "axis"):
                slopes = [_slopes(*_line(rows, kind, axis, method)) for method in METHODS]
                lines.append([f"{kind}, {axis}", EXPECTED[kind, axis], *slopes])
        return f"""
How the time to condition all experts, combine them and predict {TESTS} points grows, in one process, with one size varied at a time: the slope of log time against log
size over all sizes, and in brackets that of the last step. Times are medians of {REPEATS} turns. Table 1 counts the work of one expert after perfect parallelisation; one process does the work of all M, so the table's m²n_i is m²n here, and its n_i³ is n³/M².

{table(["varied", "table 1, for one process", *METHODS], lines)}

**What differs**: times contain lower powers too, above all kernel values (nm for sparse experts, n²/M for exact ones), and larger matrices use the processor better, so that slopes lie between
the powers. Sparse experts cost m²n until the m³M of their factorisations counts, which the last steps over M and m show. Table 1 leaves out the n² kernel values that the Gram matrix of exact
experts costs opt (and two-level): they show in the slopes over M. Two-level's cost with sparse experts is mostly that of its own 512 central inputs, until m exceeds them. NPAE's
n² per test point is done in matrix products here. {failures(rows)}
"""


def _line(
    rows: Sequence[Row], kind: str, axis: str, method: str
) -> tuple[list[float], list[float]]:
    """The sizes along one axis, and a method's seconds at each."""
    own = select(rows, expert=kind, axis=axis, method=method)
    sizes = sorted({float(row[axis]) for row in own})
    return sizes, [average([r for r in own if r[axis] == size], "seconds") for size in sizes]


def _slopes(sizes: Sequence[float], times: Sequence[float]) -> str:
    return f"{_slope(sizes, times):.2f} ({_slope(sizes[-2:], times[-2:]):.2f})"


def _slope(sizes: Sequence[float], times: Sequence[float]) -> float:
    """The slope of log time against log size, by least squares; NaN for fewer than two sizes."""
    if len(sizes) < 2:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])
