"""Figures: Axes in rows, their labels and legends, points, and files."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backend_bases import FigureCanvasBase
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from distgp._util.checks import did_you_mean, silenced
from distgp.data import rows as frames
from distgp.data.encoding import kind_of, listed
from distgp.diagnostics.novelty import NoveltyWarning
from distgp.diagnostics.summary import column_names, target_names
from distgp.files.writing import whole
from distgp.mixin import ModelMixin, unnamed_columns

BAND = 0.9
"""The probability that a band shows."""
MOST_POINTS = 5_000
"""Observations that are drawn: more would hide each other, and the picture would take megabytes."""
MANY_POINTS = 1_000
"""Observations from which on each is drawn small."""
PANELS_IN_A_ROW = 4
"""Panels side by side, at most; more go into further rows."""
WIDTHS = (4.8, 7.0, 8.4, 8.8)
"""The width of a figure of so many panels side by side, in inches."""
MOST_PANELS = 12
"""Columns that are drawn where none are named; of more, the most relevant."""
LONGEST_NAME = 22
"""Letters of a column's name that fit under a panel; longer names are cut in the middle."""


def one_axes(ax: Axes | None, size: tuple[float, float] | None = None) -> Axes:
    """Return the Axes given, or those of a new figure."""
    return plt.subplots(figsize=size, layout="constrained")[1] if ax is None else ax


def panels(count: int, axes: Sequence[Axes] | None) -> list[Axes]:
    """Return the Axes given, as many as are needed, or those of a new figure in rows of equal length."""
    if axes is not None:
        return given_axes(count, axes)
    rows = math.ceil(count / PANELS_IN_A_ROW)
    across = math.ceil(count / rows)
    width = WIDTHS[across - 1]
    size = (width, 0.6 + rows * min(3.0, 0.95 * width / across))
    return grid_of_axes(count, across, size, sharey=True)


def grid_of_axes(
    count: int, across: int, size: tuple[float, float], sharey: bool = False
) -> list[Axes]:
    """Make a figure of this many Axes, so many of them side by side."""
    figure = plt.figure(figsize=size, layout="constrained")
    made = figure.subplots(math.ceil(count / across), across, squeeze=False, sharey=sharey)
    for spare in made.flat[count:]:
        figure.delaxes(spare)
    return list(made.flat[:count])


def given_axes(count: int, axes: Sequence[Axes]) -> list[Axes]:
    """Return the Axes given, which must be this many."""
    given = list(np.ravel(np.asarray(axes, dtype=object)))
    if len(given) != count:
        raise ValueError(f"expected {count} Axes, got {len(given)}")
    return given


def label_panels(
    axes: Sequence[Axes], names: Sequence[str], ylabel: str, own: bool, title: str | None = None
) -> None:
    """Name the axes; add a legend, above the panels of a figure of our `own`, else in the first panel."""
    for ax, name in zip(axes, names, strict=True):
        ax.set_xlabel(short(name))
        if isinstance(ax.xaxis.get_major_locator(), MaxNLocator):  # texts have places of their own
            ax.locator_params(axis="x", nbins=4)
        place = ax.get_subplotspec()
        if ax is axes[0] or (own and place is not None and place.is_first_col()):
            ax.set_ylabel(ylabel)
    handles, labels = axes[0].get_legend_handles_labels()
    small = {"fontsize": "small", "title": title, "title_fontsize": "small"}
    if own:
        figure: Any = axes[0].figure
        ncols = 2 if len(axes) == 1 else len(labels)
        figure.legend(handles, labels, loc="outside upper center", ncols=ncols, **small)
    else:
        axes[0].legend(**small)


def short(name: str, longest: int = LONGEST_NAME) -> str:
    """Cut a name so that it fits: of a long one, its beginning and its end stay."""
    if len(name) <= longest:
        return name
    begin = longest // 2
    return f"{name[:begin]}…{name[begin + 1 - longest :]}"


def draw_points(
    ax: Axes, x: np.ndarray, y: np.ndarray, what: str = "observations", **style: Any
) -> None:
    """Draw observations, or a sample of them where they are many."""
    some = np.random.default_rng(0).permutation(len(x))[:MOST_POINTS]
    label = what if len(x) <= MOST_POINTS else f"{MOST_POINTS:,} of {len(x):,} {what}"
    size = 2 if len(x) > MANY_POINTS else 4
    style = {"color": "0.5", "markersize": size, "linestyle": "none", "marker": "."} | style
    ax.plot(x[some], y[some], label=label, rasterized=True, **style)


def quantile(level: float) -> float:
    """Return half the width of the central interval of this level, in standard deviations."""
    return NormalDist().inv_cdf(0.5 + level / 2)


def coordinate(X: object, along: str | ArrayLike | None, n: int) -> tuple[np.ndarray, str]:
    """Return what n rows are drawn over, and its name: a column of X, or values that are given."""
    if along is None and not frames.is_table(X):
        return np.asarray(X)[:, 0], "x0"
    if along is None:
        schema = frames.to_arrow(X).schema  # pyright: ignore[reportArgumentType]
        dates = (field.name for field in schema if kind_of(field.type) == "date")
        along = next(dates, schema.names[0])
    values = np.asarray(frames.column_of(X, along, "along"))
    if values.shape != (n,):
        raise ValueError(f"along must have one value for each of the {n} rows, got {values.shape}")
    return values, along if isinstance(along, str) else ""


def check_suffix(path: Path | str) -> str:
    """Return the kind of picture that a path's suffix names, such as "png", if it can be written."""
    kind = Path(path).suffix.removeprefix(".").lower()
    known = FigureCanvasBase.get_supported_filetypes()
    if kind not in known:
        name, kinds = Path(path).name, ", ".join(known)
        raise ValueError(f"cannot draw {name!r}: expected a suffix of {kinds}")
    return kind


def save_figure(figure: Figure, path: Path | str, close: bool = True) -> None:
    """Write a figure, whole or not at all, and close it; the same figure always becomes the same file.

    Parameters
    ----------
    figure : Figure
        The figure to write.
    path : str or Path
        The file to write to; the suffix names the kind of picture.
    close : bool, default=True
        Whether to close the figure afterwards.
    """
    if not isinstance(figure, Figure):
        own = ": give its attribute `figure`" if isinstance(figure, Axes) else ""
        raise TypeError(f"expected a Figure to write, got {type(figure).__name__}{own}")
    path, kind = Path(path), check_suffix(path)
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with whole(path) as part:
        figure.savefig(part, format=kind, dpi=150, metadata=undated)
    if close:
        plt.close(figure)


Columns: TypeAlias = Sequence[int | str] | int | str
"""Columns by their names or their numbers, which count from 0."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A fitted model, the columns to draw by the places of their numbers, and the number of the target.

    A column of text has one number for each of its texts.
    """

    model: ModelMixin
    columns: list[tuple[int, ...]]
    target: int

    @staticmethod
    def of(model: ModelMixin, features: Columns | None = None, target: int = 0) -> Subject:
        """Check the arguments of a picture."""
        check_model(model, target)
        return Subject(model, _places(model, features), target)

    @property
    def names(self) -> list[str]:
        """The names of the columns to draw."""
        names, texts = column_names(self.model.model_.schema), _texts(self.model)
        return [texts.get(column) or names[column[0]] for column in self.columns]

    def levels(self, column: tuple[int, ...]) -> list[str]:
        """The texts of a column of text; none of other columns."""
        if column not in (texts := _texts(self.model)):
            return []
        names = column_names(self.model.model_.schema)
        return [names[place].removeprefix(f"{texts[column]}=") for place in column]

    def values(self, rows: np.ndarray, column: tuple[int, ...], size: int) -> np.ndarray:
        """Numbers of a column to draw: over its range but for the outermost 2 %, or of each text."""
        if column in _texts(self.model):
            return np.eye(len(column))
        low, high = np.quantile(rows[:, column[0]], [0.01, 0.99])
        return np.linspace(low, high, size)[:, None]

    def middle(self, rows: np.ndarray) -> np.ndarray:
        """A row of medians, and of the most frequent texts."""
        found = np.median(rows, axis=0)
        for column in map(list, _texts(self.model)):
            found[column] = np.eye(len(column))[rows[:, column].sum(0).argmax()]
        return found

    def label(self, text: str) -> str:
        """Name the target in a text, where there are several."""
        count = len(self.model.model_.targets)
        return text if count == 1 else f"{text} of {target_names(count)[self.target]}"

    def of_target(self, values: np.ndarray) -> np.ndarray:
        """Return the target's values, (N,), of those of all targets."""
        return values if values.ndim == 1 else values[:, self.target]

    def rows(self, X: ArrayLike) -> np.ndarray:
        """Return rows as numbers; columns of a table are found by name, in any order, among others."""
        with frames.as_numbers("X"):
            rows = np.asarray(_numbers(self.model, X), dtype=np.float64)
        schema = self.model.model_.schema
        if rows.ndim != 2 or not len(rows):
            d = len(schema.places)
            raise ValueError(f"expected X with rows of {d} columns, got shape {rows.shape}")
        schema.check_width(rows, type(self.model).__name__)
        return rows


def check_model(model: object, target: object = 0) -> ModelMixin:
    """Refuse what is no estimator of ours, one that is not fitted, and a target that it does not have."""
    if not isinstance(model, ModelMixin):
        raise TypeError(
            "expected a fitted DistributedGPRegressor or SparseGridGP, got "
            f"{type(model).__name__}: of a pipeline or a search, give the estimator in it"
        )
    check_is_fitted(model)
    count = len(model.model_.targets)
    if not isinstance(target, int | np.integer) or not 0 <= target < count:
        numbers = "0, the only one" if count == 1 else f"from 0 to {count - 1}"
        raise ValueError(f"expected the number of a target, {numbers}, got {target!r}")
    return model


def _numbers(model: ModelMixin, X: ArrayLike) -> ArrayLike:
    """Return an array as it is, and of a table the columns that the model was fitted to."""
    if not frames.is_table(X):
        return X
    frame: Any = X
    table, names = model.model_.schema.table, model.model_.schema.names
    if table is not None and frames.is_raw(frame, table):
        policy: Any = model  # only models with these parameters are fitted to tables
        rows, keep = frames.encoded(frame, table, policy.missing, policy.unknown)
        if not keep.all():
            raise ValueError(
                f"{int((~keep).sum())} of {len(keep)} rows have missing values: leave them out of the plot"
            )
        return rows
    if names is None:
        return X
    there = set(frames.names_of(frame))
    if missing := [name for name in names if name not in there]:
        raise ValueError(
            f"X has no column {', '.join(map(repr, missing))}: give the columns that the model was "
            f"fitted to; X has {listed(sorted(there))}"
        )
    return frame.select(list(names)) if hasattr(X, "column_names") else frame[list(names)]


def _texts(model: ModelMixin) -> dict[tuple[int, ...], str]:
    """The columns of text, by the places of their numbers."""
    schema = model.model_.schema
    named = {} if schema.table is None else {at: name for name, at in schema.table.places.items()}
    return {block: named[block] for block in schema.blocks}


def _most_relevant(model: ModelMixin) -> list[tuple[int, ...]]:
    """All columns, or the twelve along which the function changes most, in their order."""
    texts = _texts(model)
    of_texts = {place for column in texts for place in column}
    names = column_names(model.model_.schema)
    columns = [*texts, *((place,) for place in range(len(names)) if place not in of_texts)]
    if len(columns) > MOST_PANELS:
        shares = np.mean([target.relevance for target in model.summary().targets], axis=0)
        columns.sort(key=lambda column: -float(sum(shares[place] for place in column)))
    return sorted(columns[:MOST_PANELS])


def _places(model: ModelMixin, features: Columns | None) -> list[tuple[int, ...]]:
    """Return the columns that are given by name or number; by default the most relevant."""
    names = column_names(model.model_.schema)
    if features is None:
        return _most_relevant(model)
    given = [features] if isinstance(features, int | str | np.integer) else list(features)
    if not given:
        raise ValueError("features names no column: give one at least, or None for all")
    known: dict[int | str, list[tuple[int, ...]]] = {n: [(at,)] for at, n in enumerate(names)}
    if (table := model.model_.schema.table) is not None:  # a date stands for all its numbers
        known |= {name: [(at,) for at in places] for name, places in table.places.items()}
    known |= {name: [column] for column, name in _texts(model).items()}
    known |= {place: [(place % len(names),)] for place in range(-len(names), len(names))}
    for feature in given:
        if not isinstance(feature, int | str | np.integer) or feature not in known:
            some = ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
            raise ValueError(
                f"unknown column {feature!r}{did_you_mean(feature, known, ':')} expected one of "
                f"{some}, or a number from 0 to {len(names) - 1}"
            )
    return [column for feature in given for column in known[feature]]


def predicted(
    model: ModelMixin, X: ArrayLike, made_up: bool = False, **options: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations."""
    with quietly(made_up):
        return model.predict(X, return_std=True, **options)  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def quietly(made_up: bool = True) -> Iterator[None]:
    """Accept arrays for a model of a table, and points of a grid that are `made_up` and unlike any row."""
    with unnamed_columns(), silenced(*([NoveltyWarning] if made_up else [])):
        yield
