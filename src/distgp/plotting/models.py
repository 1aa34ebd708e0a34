"""How a model came to be: the choice between candidates, training, and aggregators compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from distgp._util.checks import one_of
from distgp.diagnostics.compare import Result
from distgp.diagnostics.summary import column_names
from distgp.experts import Parameters
from distgp.kernels import Constant, Linear, Product, Scale, Sum
from distgp.mixin import ModelMixin
from distgp.plotting.figures import check_model, given_axes, grid_of_axes, one_axes, short
from distgp.selection.trials import Choice, Trial
from distgp.training import Round, TrainingResult

LEAST_BAR = 1e-3
"""The share of the longest bar that the shortest on a logarithmic axis has."""
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
BARS: dict[str, dict[str, Any]] = {
    "aggregator": {"facecolor": "C0"},
    "full GP": {"facecolor": "C1"},
    "baseline": {"facecolor": "0.8", "edgecolor": "0.4", "hatch": "///"},
}
"""The marks of the trials of a choice, and the bars of the results of a comparison."""
MOST_NAMES = 10
"""Lines that have a colour and a name in one panel; the others are grey."""
INSIDE = 3
"""Names that a legend has at most inside a panel; of more, it is beside the panel."""
COLORS = (*(f"C{i}" for i in (0, 1, 2, 3, 4, 5, 6, 8, 9)), "0.15")
"""Matplotlib's colours but for grey, which is the others', and near black."""
BY_COLUMN = ("lengthscale", "period")
"""Hyperparameters that are measured along columns, by the last part of their names."""
DEVIATIONS = {Constant: "offset sd", Linear: "slope sd"}
"""The name of the root of a kernel's variance, where it is not "signal sd"."""


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
    """
    if metric not in ("nlpd", "rmse", "cover", "seconds"):
        raise ValueError(
            f"metric must be one of 'nlpd', 'rmse', 'cover', 'seconds', got {metric!r}"
        )
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
    ax.legend(handles=marks, ncols=3, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
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
    return "taken" if trial.chosen else "baseline" if trial.baseline else "candidate"


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
    style["fontweight"] = "bold" if trial.chosen else "normal"
    ax.annotate(f"{value:.4g}", (value, place), **style)


def plot_comparison(
    results: Sequence[Result], metric: str = "rmse", ax: Axes | None = None
) -> Axes:
    """Draw one bar per aggregator that did not fail, the best at the top; baselines are hatched.

    Parameters
    ----------
    results : sequence of Result
        The results that `distgp.diagnostics.compare.compare` returns.
    metric : str, default="rmse"
        A field of `Result`: "rmse", "nlpd", "w2", "seconds" or "coverage".
    ax : Axes, optional
        Where to draw.
    """
    _check_results(results)
    one_of("rmse", "nlpd", "w2", "seconds", "coverage")("metric", metric)
    shown = [result for result in results if getattr(result, metric) is not None]
    if not shown:
        raise ValueError(f"none of these results has a {metric} to draw")
    ax = one_axes(ax)
    shown.sort(key=lambda result: getattr(result, metric), reverse=True)
    names, values = [r.name for r in shown], np.array([getattr(r, metric) for r in shown])
    wide = values.min() > 0 and values.max() / values.min() > 20
    ends = np.maximum(values, LEAST_BAR * values.max()) if wide else values
    for bar, result, value, end in zip(ax.barh(names, ends), shown, values, ends, strict=True):
        bar.set(**BARS[_kind_of_result(result)])
        place = (max(end, 0.0), result.name)
        ax.annotate(f" {value:.3g}", place, va="center", fontsize="small")
    if wide:
        ax.set_xscale("log")
    else:
        ax.locator_params(axis="x", nbins=5)
    ax.tick_params(axis="y", labelsize="small")
    ax.set_xlabel(LABELS.get(metric, metric))
    ax.margins(x=0.18)
    return ax


def comparison_figure(results: Sequence[Result]) -> Figure:
    """Draw RMSE, NLPD and distance to the full GP of all aggregators in one figure.

    Parameters
    ----------
    results : sequence of Result
        The results that `distgp.diagnostics.compare.compare` returns.
    """
    _check_results(results)
    shown = [m for m in ("rmse", "nlpd", "w2") if any(getattr(r, m) is not None for r in results)]
    if not shown:
        raise ValueError("none of these results has figures to draw")
    across, rows = min(2, len(shown)), (len(shown) + 1) // 2
    done = [_kind_of_result(result) for result in results if result.error is None]
    height = max(2.4, 0.7 + 0.24 * len(done))
    axes = grid_of_axes(len(shown), across, (4.3 * across, 0.3 + rows * height))
    for ax, metric in zip(axes, shown, strict=True):
        plot_comparison(results, metric, ax)
    figure: Any = axes[0].figure
    if "baseline" in done:
        handles = [Patch(label=kind, **style) for kind, style in BARS.items() if kind in done]
        figure.legend(handles=handles, loc="outside lower center", ncols=len(handles))
    return figure


def _check_results(results: object) -> None:
    """Refuse what is no list of results."""
    if not isinstance(results, Sequence) or not all(isinstance(one, Result) for one in results):
        raise TypeError(
            "expected the results that distgp.diagnostics.compare.compare returns, got "
            f"{type(results).__name__}"
        )


def _kind_of_result(result: Result) -> str:
    full = result.name.startswith("full")
    return "baseline" if result.baseline else "full GP" if full else "aggregator"


def plot_training(
    model: ModelMixin | TrainingResult, axes: Sequence[Axes] | None = None, target: int = 0
) -> list[Axes]:
    """Draw the objective and the hyperparameters, round by round, of accepted rounds.

    Three panels show the objective, that of all stages but the last in grey; the lengthscales, of which
    those that end shortest have a name; and the standard deviations of noise and signal. Where experts
    have hyperparameters of their own, geometric means are drawn.

    Parameters
    ----------
    model : ModelMixin or TrainingResult
        A fitted model, or its attribute `training_`. Of a model, lengthscales are in standard deviations of
        their columns, which makes them comparable, and noise and signal are in units of the target; of
        a `TrainingResult` all are in the units that were trained in, and columns have numbers.
    axes : sequence of Axes, optional
        Where to draw, three of them; by default on a new figure. On a figure with a layout, such as
        "constrained", long legends are beside the panels.
    target : int, default=0
        Which target of the model to draw, where there are several.
    """
    result, names, unit, standardised = _trained(model, target)
    rounds = [round_ for round_ in result.history if round_.accepted]
    if not rounds:
        raise ValueError("training took no step, so there is nothing to draw")
    traces = [t for t in _traces(result, rounds, names, unit) if t.kind != "anisotropy"]
    lengths = sorted((t for t in traces if t.kind in BY_COLUMN), key=lambda t: t.values[-1])
    others = [t for t in traces if t.kind not in BY_COLUMN]
    others.sort(key=lambda t: t.kind != "noise sd")
    if axes is None:  # objective and deviations, and below them lengthscales with a long legend
        made = plt.subplot_mosaic("OD;LL", figsize=(8.4, 5.8), layout="constrained")[1]
        axes = [made[name] for name in "OLD"]
    drawn = given_axes(3, axes)
    _draw_objective(drawn[0], result, rounds)
    numbers = [round_.number for round_ in rounds]
    of_column = ", in sd of the column" if standardised else ""
    of_target = "" if isinstance(model, TrainingResult) else ", in units of the target"
    _draw_traces(drawn[1], numbers, lengths, f"lengthscale{of_column}")
    _draw_traces(drawn[2], numbers, others, f"sd{of_target}")
    return drawn


class _Trace(NamedTuple):
    """The values of one hyperparameter in every round; a lengthscale has the name of its column alone."""

    kind: str
    kernel: str
    name: str
    values: np.ndarray


def _trained(
    model: ModelMixin | TrainingResult, target: int
) -> tuple[TrainingResult, Sequence[str] | None, float, bool]:
    """Return the training, names of columns, the target's scale, and whether columns are standardised."""
    if isinstance(model, TrainingResult):
        return model, None, 1.0, False
    one = check_model(model, target).model_.targets[target]
    if one.training is None:
        raise ValueError(
            "this model was fitted with training=None, so there are no rounds to draw: leave `training` at "
            "its default"
        )
    owners = [
        _owner(one.parameters, f"kernel.{path}") for path in one.parameters.kernel.parameters()
    ]
    in_km = any(getattr(owner, "sphere", None) is not None for owner in owners)
    standardised = bool(model.get_params(deep=False)["normalize"]) and not in_km
    return one.training, column_names(model.model_.schema), float(one.scaling.y_scale), standardised


def _traces(
    result: TrainingResult, rounds: Sequence[Round], names: Sequence[str] | None, unit: float
) -> Iterator[_Trace]:
    """Yield all hyperparameters; variances as standard deviations in the unit given."""
    for path in rounds[0].hyperparameters:
        values = np.array([round_.hyperparameters[path] for round_ in rounds])
        owner, kind = _owner(result.parameters, path), path.rpartition(".")[2]
        if kind in ("noise", "variance"):
            values = unit * np.sqrt(values)
            kind = "noise sd" if kind == "noise" else DEVIATIONS.get(type(owner), "signal sd")
        columns: Sequence[str] = [""]
        if kind in BY_COLUMN or values.shape[1] > 1:
            columns = _columns(owner, values.shape[1], names)
        for column, line in zip(columns, values.T, strict=True):
            name = f"{'' if kind == 'lengthscale' else kind} {short(column)}".strip()
            yield _Trace(kind, short(_kernel_name(owner)), name, line)


def _owner(parameters: Parameters, path: str) -> object:
    """Return the kernel that a parameter belongs to, by a path such as "kernel.kernels.0.lengthscale"."""
    found: Any = parameters
    for part in path.split(".")[:-1]:
        found = found[int(part)] if part.isdigit() else getattr(found, part)
    return found


def _kernel_name(kernel: object) -> str:
    """Return a kernel's class, or those that it is made of."""
    if isinstance(kernel, Scale):
        return _kernel_name(kernel.kernel)
    if isinstance(kernel, Sum | Product):
        sign = " + " if isinstance(kernel, Sum) else " × "
        return sign.join(_kernel_name(child) for child in kernel.kernels)
    return type(kernel).__name__


def _columns(kernel: object, count: int, names: Sequence[str] | None) -> Sequence[str]:
    """Name the columns that each of `count` values belongs to; one value may belong to several."""
    active: Any = getattr(kernel, "active_dims", None)
    shared: Any = getattr(kernel, "shared", None)
    if active is None and count == 1 and (names is None or len(names) > 1):
        return ["all columns"]
    width = count if shared is None else len(shared)
    places = range(width if names is None else len(names)) if active is None else active
    found = [f"x{i}" if names is None else names[i] for i in places]
    if shared is not None:
        owners = [[n for n, i in zip(found, shared, strict=True) if i == k] for k in range(count)]
        return [own[0] if len(own) == 1 else own[0].split("=")[0] for own in owners]
    return found if len(found) == count else [", ".join(found)]


def _draw_objective(ax: Axes, result: TrainingResult, rounds: Sequence[Round]) -> None:
    """Draw the objective, that of earlier stages in grey."""
    before = 0 if result.last_stage is None else len(result.history) - result.last_stage
    late = [(r.number, r.objective) for r in rounds if r.number > before]
    early = [(r.number, r.objective) for r in rounds if r.number <= before]
    for own, color, label in ((late, "C0", "last stage"), (early, "0.6", "earlier stages")):
        if own:
            ax.plot(*zip(*own, strict=True), color=color, label=label)
    if early:
        ax.legend(fontsize="small")
    ax.set(xlabel="round", ylabel="objective (lower is better)")


def _draw_traces(ax: Axes, numbers: Sequence[int], traces: Sequence[_Trace], ylabel: str) -> None:
    """Draw the traces, of which the first have names, in the order in which they end."""
    ax.set(xlabel="round", ylabel=ylabel)
    if not traces:
        ax.text(0.5, 0.5, "none in this kernel", ha="center", va="center", transform=ax.transAxes)
        ax.set(xticks=[], yticks=[])
        return
    labels = _labels(traces)
    named = sorted(range(len(traces))[:MOST_NAMES], key=lambda i: -traces[i].values[-1])
    for i, color, dashes in zip(named, COLORS, cycle(("-", "--")), strict=False):
        ax.plot(numbers, traces[i].values, dashes, color=color, label=labels[i])
    for place, trace in enumerate(traces[MOST_NAMES:]):
        note = f"{len(traces) - MOST_NAMES} more" if place == 0 else None
        ax.plot(numbers, trace.values, color="0.8", linewidth=1, zorder=1, label=note)
    _scale(ax, np.stack([trace.values for trace in traces]))
    figure: Any = ax.figure
    if len(traces) > INSIDE and figure.get_layout_engine() is not None:
        ax.legend(fontsize="small", loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    else:
        ax.legend(fontsize="small", ncols=1 if len(traces) <= INSIDE else 2)


def _labels(traces: Sequence[_Trace]) -> list[str]:
    """Name the traces; where some are alike, with the kernel, and if need be with a number."""
    found = [trace.name for trace in traces]
    for more in ([trace.kernel for trace in traces], range(1, len(traces) + 1)):
        alike = {name for name, times in Counter(found).items() if times > 1}
        both = zip(found, more, strict=True)
        found = [f"{name}, {extra}" if name in alike else name for name, extra in both]
    return found


def _scale(ax: Axes, values: np.ndarray) -> None:
    """Make the axis logarithmic where values differ much, with ticks in plain numbers if they are few."""
    ratio = values.max() / values.min()
    if ratio < 10:
        return
    ax.set_yscale("log")
    if ratio < 1e3:
        ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ax.yaxis.set_minor_formatter(NullFormatter())
