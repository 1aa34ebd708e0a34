"""Figures side by side: aggregators, the candidates of a choice, and the relevance of columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from distgp.diagnostics.compare import Result
from distgp.mixin import ModelMixin
from distgp.plotting.figures import check_model, grid_of_axes, one_axes, short
from distgp.selection.trials import Choice, Trial

LEAST_BAR = 1e-3
"""On a logarithmic axis the shortest bar stands for anything below this share of the longest."""
LABELS = {
    "rmse": "RMSE",
    "nlpd": "NLPD",
    "seconds": "seconds",
    "coverage": "coverage of 90 % intervals",
    "cover": "coverage of 90 % intervals",
    "w2": "2-Wasserstein distance to the full GP",
}
MARKS = {
    "taken": {"marker": "D", "color": "C1", "markersize": 8},
    "candidate": {"marker": "o", "color": "C0"},
    "baseline": {"marker": "s", "color": "0.5"},
}
"""The marks of the trials of a choice."""
BARS: dict[str, dict[str, Any]] = {
    "aggregator": {"facecolor": "C0"},
    "full GP": {"facecolor": "C1"},
    "baseline": {"facecolor": "0.8", "edgecolor": "0.4", "hatch": "///"},
}
"""The bars of the results of a comparison."""


def plot_relevance(model: ModelMixin, most: int = 20, ax: Axes | None = None) -> Axes:
    """Draw the relevance of each column, the most relevant at the top; all shares add up to 1.

    `distgp.diagnostics.summary.feature_relevance` explains what relevance is. A text column has one bar.
    With several targets each column has one bar per target, and columns are in the order of their mean
    relevance.

    Parameters
    ----------
    model : ModelMixin
        A fitted model.
    most : int, default=20
        The number of columns to draw, at most; a note tells how many are left out.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    check_model(model)
    if most < 1:
        raise ValueError(f"expected `most` to be 1 at least, got {most}")
    about = model.summary()
    names, shares = about.relevance_by_column()
    order = np.argsort(-shares.mean(0), kind="stable")[:most]
    several = len(shares) > 1
    ax = one_axes(ax, (7.0, 1.1 + len(order) * max(0.3, 0.13 * len(shares))))
    places, height = np.arange(len(order)), 0.8 / len(shares)
    for i, (target, share) in enumerate(zip(about.targets, shares, strict=True)):
        middle = places + (i - (len(shares) - 1) / 2) * height
        bars = ax.barh(middle, share[order], height, color=f"C{i % 10}", label=target.target)
        if not several:
            ax.bar_label(bars, fmt=" {:.3f}", fontsize="small")
    ax.set_yticks(places, [short(names[j], 30) for j in order])
    ax.invert_yaxis()
    ax.margins(x=0.12, y=0.02)
    left_out = len(names) - len(order)
    columns = "column" if left_out == 1 else "columns"
    note = f"\nleft out: {left_out:,} {columns} of less relevance" if left_out else ""
    ax.set_xlabel(f"relevance{note}")
    if several:
        ax.legend(title="target", fontsize="small", loc="lower right")
    return ax


def plot_choice(model: ModelMixin | Choice, metric: str = "nlpd", ax: Axes | None = None) -> Axes:
    """Draw the figures of the candidates, and of the baselines below them, on the rows held out.

    Parameters
    ----------
    model : ModelMixin or Choice
        A fitted model that made a choice, or its attribute `choice_`.
    metric : {"nlpd", "rmse", "cover", "seconds"}, default="nlpd"
        The figure to draw. The candidate with the lowest NLPD was taken.
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    metrics = ("nlpd", "rmse", "cover", "seconds")
    if metric not in metrics:
        raise ValueError(f"metric must be one of {', '.join(map(repr, metrics))}, got {metric!r}")
    choice = _choice(model)
    ax = one_axes(ax, (7.0, 1.6 + 0.34 * len(choice.trials)))
    for place, trial in enumerate(choice.trials):
        _draw_trial(ax, place, trial, getattr(trial, metric))
    ax.axvline(getattr(choice.best, metric), color="C1", linewidth=1, linestyle=":", zorder=0)
    names = [short(trial.name, 40) for trial in choice.trials]
    ax.set_yticks(range(len(names)), names, fontsize="small")
    ax.grid(axis="y", color="0.9")
    ax.set_axisbelow(True)
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.margins(x=0.16)
    lower = "" if metric == "cover" else " (lower is better)"
    ax.set_xlabel(f"{LABELS[metric]} of {choice.held_out:,} rows held out{lower}")
    kinds = {_kind_of_trial(trial) for trial in choice.trials}
    marks = [Line2D([], [], linestyle="", label=k, **MARKS[k]) for k in MARKS if k in kinds]
    above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
    ax.legend(handles=marks, ncols=3, frameon=False, **above)
    return ax


def _choice(model: ModelMixin | Choice) -> Choice:
    """Return the choice that a model made."""
    found = model if isinstance(model, Choice) else getattr(check_model(model), "choice_", None)
    if found is None:
        raise ValueError(
            "this model was fitted without a choice between candidates, so there is nothing to draw: "
            "leave expert, aggregation and their sizes at 'auto', or give kernel='auto', with 200 rows or "
            "more"
        )
    return found


def _kind_of_trial(trial: Trial) -> str:
    if trial.chosen:
        return "taken"
    return "baseline" if trial.baseline else "candidate"


def _draw_trial(ax: Axes, place: int, trial: Trial, value: float) -> None:
    """Draw one trial's figure, or say in its place that there is none."""
    style: dict[str, Any] = {"va": "center", "fontsize": "small"}
    if trial.error:
        box = {"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 1}
        style |= {"transform": ax.get_yaxis_transform(), "color": "0.4", "bbox": box}
        ax.text(0.02, place, "could not be fitted", **style)
        return
    ax.plot([value], [place], linestyle="", **MARKS[_kind_of_trial(trial)])
    style |= {"xytext": (8, 0), "textcoords": "offset points"}
    weight = "bold" if trial.chosen else "normal"
    ax.annotate(f"{value:.4g}", (value, place), fontweight=weight, **style)


def plot_comparison(
    results: Sequence[Result], metric: str = "rmse", ax: Axes | None = None
) -> Axes:
    """Draw one bar per aggregator, the best at the top, without those that failed.

    The full GP has another colour, and baselines are grey and hatched.

    Parameters
    ----------
    results : sequence of Result
        The results that `distgp.diagnostics.compare.compare` returns.
    metric : str, default="rmse"
        A field of `Result`: "rmse", "nlpd", "w2", "seconds" or "coverage".
    ax : Axes, optional
        Where to draw.

    Returns
    -------
    Axes
    """
    shown = [result for result in results if getattr(result, metric) is not None]
    if not shown:
        raise ValueError(f"none of these results has a {metric} to draw")
    ax = one_axes(ax)
    shown.sort(key=lambda result: getattr(result, metric), reverse=True)
    names, values = [r.name for r in shown], np.array([getattr(r, metric) for r in shown])
    wide = values.min() > 0 and values.max() / values.min() > 20
    ends = np.maximum(values, LEAST_BAR * values.max()) if wide else values
    for bar, result in zip(ax.barh(names, ends), shown, strict=True):
        bar.set(**BARS[_kind_of_result(result)])
    if wide:
        ax.set_xscale("log")
    else:
        ax.locator_params(axis="x", nbins=5)
    for name, value, end in zip(names, values, ends, strict=True):
        ax.annotate(f" {value:.3g}", (max(end, 0.0), name), va="center", fontsize="small")
    ax.tick_params(axis="y", labelsize="small")
    ax.set_xlabel(LABELS.get(metric, metric))
    ax.margins(x=0.18)
    return ax


def comparison_figure(results: Sequence[Result]) -> Figure:
    """Draw RMSE, NLPD and distance to the full GP of all aggregators in one figure.

    A legend explains the colours where there are baselines, which have no distance to the full GP.

    Parameters
    ----------
    results : sequence of Result
        The results that `distgp.diagnostics.compare.compare` returns.

    Returns
    -------
    Figure
    """
    shown = [m for m in ("rmse", "nlpd", "w2") if any(getattr(r, m) is not None for r in results)]
    if not shown:
        raise ValueError("none of these results has figures to draw")
    across, rows = min(2, len(shown)), (len(shown) + 1) // 2
    height = max(2.4, 0.7 + 0.24 * sum(r.error is None for r in results))
    axes = grid_of_axes(len(shown), across, (4.3 * across, 0.3 + rows * height))
    for ax, metric in zip(axes, shown, strict=True):
        plot_comparison(results, metric, ax)
    figure: Any = axes[0].figure
    kinds = {_kind_of_result(result) for result in results if result.error is None}
    if "baseline" in kinds:
        handles = [Patch(label=kind, **BARS[kind]) for kind in BARS if kind in kinds]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _kind_of_result(result: Result) -> str:
    if result.baseline:
        return "baseline"
    return "full GP" if result.name.startswith("full") else "aggregator"
