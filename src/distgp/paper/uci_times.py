"""What weights and predictions take on real data."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from distgp.paper.published import published
from distgp.paper.study import Row, average, distinct, select, table
from distgp.paper.uci_page import MANY

KEPT = "opt-local, weights kept"
"""Predictions with the weights that `fit` has found."""


def times(rows: Sequence[Row]) -> str:
    """What weights and predictions take."""
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

Milliseconds for weights and predictions at all test rows, medians in turns, experts with their own hyperparameters (of two steps of training, which times do not depend on); on {device}, then on the CPU.

{table(head, lines)}

"opt-local" finds its weights and predicts; "weights kept" predicts with the weights that `fit` has found, as an estimator does. The weights need the experts' predictions at ten
rows an expert, beside those at thousands of test rows: with them {_range(cpu[:, 0])} × PoE's time on the CPU, without {_range(cpu[:, 1])}. On the device, where PoE takes milliseconds and a
second, small pass over the experts as many launches as the first, {_range(gpu[:, 0])} and {_range(gpu[:, 1])}. With the weights kept the work is PoE's: how far those ratios are from 1 is the
noise of the measurement. opt evaluates all experts' means on all rows. At most 1.1 × PoE's time, weights included: {(cpu[:, 0] <= 1.1).sum()} of {len(cpu)} rows on the CPU, {(gpu[:, 0] <= 1.1).sum()} of {len(gpu)} on the device; without
them {(cpu[:, 1] <= 1.1).sum()} and {(gpu[:, 1] <= 1.1).sum()}. For NOx, where ours is pooled with a linear kernel, one GP instead of M: {_range(_plane(rows, "cpu"))} × PoE's on the CPU, {_range(_plane(rows, "device"))} on the device."""


def _plane(rows: Sequence[Row], on: str) -> np.ndarray:
    """Pooled's time over PoE's with a linear kernel, for each M."""
    at = [{"model": "timing, linear", "on": on, "M": M} for M in MANY]
    pooled, poe = (
        np.array([average(select(rows, method=name, **where), "seconds") for where in at])
        for name in ("pooled", "poe")
    )
    return pooled / poe


def _range(values: np.ndarray) -> str:
    """The smallest and the largest."""
    values = values[np.isfinite(values)]
    if not len(values):
        return "–"
    return f"{values.min():.2f} to {values.max():.2f}"
