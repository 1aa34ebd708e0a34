"""The error bars of table 2."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from distgp.paper.datasets import UNITS
from distgp.paper.published import published
from distgp.paper.study import Row, average, distinct, log_scale, select, spread
from distgp.paper.uci_page import MANY, best

NAMES = {"seconds": "seconds", "rmse": "RMSE", "nlpd": "NLPD, in the unit of RMSE"}


def errorbars(rows: Sequence[Row]) -> Figure:
    """A row of pictures a task, as in the paper."""
    tasks = distinct(rows, "task")
    figure, axes = plt.subplots(
        len(tasks), 3, figsize=(12, 2.7 * len(tasks)), squeeze=False, layout="constrained"
    )
    methods = (
        "poe, latent",
        "gpoe, latent",
        "rbcm, latent",
        "grbcm, latent",
        "opt",
        "opt-local",
        "pooled",
    )
    for line, task in zip(axes, tasks, strict=True):
        for quantity, ax in zip(("seconds", "rmse", "nlpd"), line, strict=True):
            many = [M for M in MANY if select(rows, task=task, M=M)]
            for shift, method in enumerate(methods):
                timed = quantity == "seconds"
                chosen = [
                    select(
                        rows,
                        task=task,
                        M=M,
                        method=method.removesuffix(", latent"),
                        model="timing",
                        on="device",
                    )
                    if timed
                    else best(rows, task, M, method)
                    for M in many
                ]
                values, bars = [[f(c, quantity) for c in chosen] for f in (average, spread)]
                x = np.arange(len(many)) + 0.1 * (shift - 2.5)
                ax.errorbar(x, values, bars, fmt="o", capsize=2, markersize=4, label=method)
            if quantity != "seconds":
                theirs = [published()[task, M, "opt", quantity][0] for M in many]
                tens = math.log(UNITS[task]) if quantity == "nlpd" else 0.0
                ax.plot(
                    np.arange(len(many)),
                    [v - tens for v in theirs],
                    "k_",
                    markersize=24,
                    label="the paper's opt",
                )
            ax.set(
                xticks=range(len(many)),
                xticklabels=[f"M = {M}" for M in many],
            )
            log_scale(ax, quantity == "seconds")
            ax.set_title(f"{task}: {NAMES[quantity]}", fontsize="small")
    figure.legend(
        *axes[0][1].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=8,
        fontsize="small",
    )
    return figure
