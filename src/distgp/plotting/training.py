"""The objective and the hyperparameters of training, round by round."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from distgp.diagnostics.summary import column_names
from distgp.experts import Parameters
from distgp.kernels import Constant, Linear, Product, Scale, Sum
from distgp.mixin import ModelMixin
from distgp.plotting.figures import check_model, given_axes, short
from distgp.training import Round, TrainingResult

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


def plot_training(
    model: ModelMixin | TrainingResult, axes: Sequence[Axes] | None = None, target: int = 0
) -> list[Axes]:
    """Draw the objective and the hyperparameters, round by round, of accepted rounds.

    Three panels show the objective; the lengthscales, by the names of their columns; and the standard
    deviations of noise and signal. Of many lengthscales, those that end shortest have a colour and a
    name, the others are grey. Where training has stages, each with an objective of its own, all but the
    last are grey in the first panel. Where experts have hyperparameters of their own, geometric means
    are drawn.

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

    Returns
    -------
    list of Axes
        Of objective, lengthscales, and noise and signal.
    """
    result, names, unit, standardised = _trained(model, target)
    rounds = [round_ for round_ in result.history if round_.accepted]
    if not rounds:
        raise ValueError("training took no step, so there is nothing to draw")
    traces = list(_traces(result, rounds, names, unit))
    lengths = sorted((t for t in traces if t.kind in BY_COLUMN), key=lambda t: t.values[-1])
    others = [t for t in traces if t.kind not in BY_COLUMN]
    others.sort(key=lambda t: t.kind != "noise sd")
    if axes is None:  # objective and deviations, and below them lengthscales with a long legend
        made = plt.subplot_mosaic("OD;LL", figsize=(8.4, 5.8), layout="constrained")[1]
        axes = [made[name] for name in "OLD"]
    drawn = given_axes(3, axes)
    _draw_objective(drawn[0], result, rounds)
    numbers = [round_.number for round_ in rounds]
    lengthscale = "lengthscale, in sd of the column" if standardised else "lengthscale"
    deviation = "sd" if isinstance(model, TrainingResult) else "sd, in units of the target"
    _draw_traces(drawn[1], numbers, lengths, lengthscale)
    _draw_traces(drawn[2], numbers, others, deviation)
    return drawn


@dataclass(frozen=True, eq=False)
class _Trace:
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
    normalize = bool(model.get_params(deep=False)["normalize"])
    return one.training, column_names(model.model_.schema), float(one.scaling.y_scale), normalize


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
    width = len(names) if names is not None else count if shared is None else len(shared)
    places = range(width) if active is None else active
    found = [f"x{i}" if names is None else names[i] for i in places]
    if shared is not None:
        owners = [[n for n, i in zip(found, shared, strict=True) if i == k] for k in range(count)]
        return [own[0] if len(own) == 1 else own[0].split("=")[0] for own in owners]
    return found if len(found) == count else [", ".join(found)]


def _draw_objective(ax: Axes, result: TrainingResult, rounds: Sequence[Round]) -> None:
    """Draw the objective, that of earlier stages in grey."""
    before = 0 if result.last_stage is None else len(result.history) - result.last_stage
    late = [round_ for round_ in rounds if round_.number > before]
    early = [round_ for round_ in rounds if round_.number <= before]
    for own, color, label in ((late, "C0", "last stage"), (early, "0.6", "earlier stages")):
        if own:
            ax.plot([r.number for r in own], [r.objective for r in own], color=color, label=label)
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
    for place, i in enumerate(named):
        dashes = "-" if place % 2 == 0 else "--"
        ax.plot(numbers, traces[i].values, dashes, color=COLORS[place], label=labels[i])
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
        pairs = zip(found, more, strict=True)
        found = [f"{name}, {extra}" if name in alike else name for name, extra in pairs]
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
