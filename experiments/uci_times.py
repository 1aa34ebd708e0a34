"""Times of table 2, and its picture: what weights and predictions take on real data, and error bars."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.datasets import UNITS
from experiments.report import average, distinct, log_scale, select, spread, table
from experiments.study import Row
from experiments.uci_page import MANY, best, published

REPEATS = 5
"""The number of turns in which times are measured."""
KEPT = "opt-local, weights kept"
"""What the table calls predictions with the weights that `fit` has found."""
DRAWN = (
    "poe, latent",
    "gpoe, latent",
    "rbcm, latent",
    "grbcm, latent",
    "opt",
    "opt-local",
    "pooled",
)
"""The methods in the picture."""
NAMES = {"seconds": "seconds", "rmse": "RMSE", "nlpd": "NLPD, in the unit of RMSE"}
"""The pictures of each task."""


def times(rows: Sequence[Row]) -> str:
    """Describe how long weights and predictions take."""
    lines, ratios = [], {"device": [], "cpu": []}
    shown = ("poe", "opt", "grbcm", "opt-local", KEPT)
    for task in distinct(rows, "task"):
        for M in [M for M in MANY if select(rows, task=task, M=M)]:
            line: list[object] = [task, M]
            line += [1e3 * published()[task, M, method, "time"][0] for method in ("poe", "opt")]
            for on, found in ratios.items():
                at = {
                    m: select(rows, task=task, M=M, model="timing", on=on, method=m) for m in shown
                }
                taken = [1e3 * average(at[m], "seconds") for m in shown]
                found.append([taken[3] / taken[0], taken[4] / taken[0]])
                line += [*taken[:4], *found[-1]]
            lines.append(line)
    head = ["task", "M", "the paper's PoE, ms", "its opt"]
    for place in ("", "CPU: "):
        head += [f"{place}PoE", "opt", "grBCM", "opt-local", "/ PoE", "weights kept / PoE"]
    device = " and ".join(
        str(name) for name in distinct(select(rows, model="timing", on="device"), "device")
    )
    cpu, gpu = (np.array(ratios[on]).reshape(-1, 2) for on in ("cpu", "device"))
    return f"""## Time

Milliseconds for weights and predictions at all test rows, medians of {REPEATS} turns, experts with their own hyperparameters (of two steps of training, which times do not depend on); on {device}, then on the CPU.

{table(head, lines)}

"opt-local" finds its weights and predicts; "weights kept" predicts with the weights that `fit` has found, as an estimator does. The weights need the experts' predictions at ten
rows per expert, beside those at thousands of test rows: with them opt-local takes {_range(cpu[:, 0])} × PoE's time on the CPU, without them {_range(cpu[:, 1])}. On the device, where PoE takes milliseconds and the
second, small pass over the experts takes as many GPU operations as the first, {_range(gpu[:, 0])} and {_range(gpu[:, 1])}. With the weights kept the work is PoE's: how far those ratios are from 1 is the
noise of the measurement. opt evaluates all experts' means on all rows. At most 1.1 × PoE's time, weights included: {(cpu[:, 0] <= 1.1).sum()} of {len(cpu)} rows on the CPU, {(gpu[:, 0] <= 1.1).sum()} of {len(gpu)} on the device; without
them {(cpu[:, 1] <= 1.1).sum()} and {(gpu[:, 1] <= 1.1).sum()}. For NOx, where ours is pooled with a linear kernel, one GP instead of M: {_range(_plane(rows, "cpu"))} × PoE's on the CPU, {_range(_plane(rows, "device"))} on the device."""


def _plane(rows: Sequence[Row], on: str) -> np.ndarray:
    """Pooled's time over PoE's with a linear kernel, for each M."""
    at = [{"model": "timing, linear", "on": on, "M": M} for M in MANY]
    pooled, poe = (
        np.array([average(select(rows, method=name, **run), "seconds") for run in at])
        for name in ("pooled", "poe")
    )
    return pooled / poe


def _range(values: np.ndarray) -> str:
    """The smallest and the largest value."""
    values = values[np.isfinite(values)]
    if not len(values):
        return "–"
    return f"{values.min():.2f} to {values.max():.2f}"


def errorbars(rows: Sequence[Row]) -> Figure:
    """Draw seconds, RMSE and NLPD against M: one row of pictures per task, as in the paper.

    Parameters
    ----------
    rows : sequence of Row
        The table.

    Returns
    -------
    Figure
    """
    tasks = distinct(rows, "task")
    figure, axes = plt.subplots(
        len(tasks), 3, figsize=(12, 2.7 * len(tasks)), squeeze=False, layout="constrained"
    )
    for line, task in zip(axes, tasks, strict=True):
        for quantity, ax in zip(NAMES, line, strict=True):
            _panel(ax, rows, task, quantity)
            ax.set_title(f"{task}: {NAMES[quantity]}", fontsize="small")
    figure.legend(
        *axes[0][1].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=8,
        fontsize="small",
    )
    return figure


def _panel(ax: Axes, rows: Sequence[Row], task: str, quantity: str) -> None:
    """One quantity of one task: a point with its bar per method and M."""
    many = [M for M in MANY if select(rows, task=task, M=M)]
    places = np.arange(len(many))
    for shift, method in enumerate(DRAWN):
        chosen = [_runs(rows, task, M, method, quantity) for M in many]
        values, bars = [[f(c, quantity) for c in chosen] for f in (average, spread)]
        x = places + 0.1 * (shift - 2.5)
        ax.errorbar(x, values, bars, fmt="o", capsize=2, markersize=4, label=method)
    if quantity != "seconds":
        units = math.log(UNITS[task]) if quantity == "nlpd" else 0.0
        theirs = [published()[task, M, "opt", quantity][0] - units for M in many]
        ax.plot(places, theirs, "k_", markersize=24, label="the paper's opt")
    ax.set(xticks=places, xticklabels=[f"M = {M}" for M in many])
    log_scale(ax, quantity == "seconds")


def _runs(rows: Sequence[Row], task: str, M: int, method: str, quantity: str) -> list[Row]:
    """The runs that measured this quantity."""
    if quantity != "seconds":
        return best(rows, task, M, method)
    name = method.removesuffix(", latent")
    return select(rows, task=task, M=M, method=name, model="timing", on="device")
