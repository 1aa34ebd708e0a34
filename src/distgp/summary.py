"""A fitted estimator in words: experts, kernel in the units of the data, training, and relevance."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distgp import auto
from distgp.choice import Choice
from distgp.data.encoding import Columns
from distgp.hyperparameters import (
    Quantity,
    Shared,
    active_columns,
    labelled,
    parts_of,
    per_expert,
    quantities_of,
    relevance,
    shared_columns,
)
from distgp.kernels import Kernel
from distgp.model import Model
from distgp.sparsegrid.model import SparseGridModel
from distgp.training import Algorithm

STOPPED = {
    "tolerance": "converged",
    "iterations": "reached n_iter",
    "diverged": "could not go on",
}
"""The reasons why training stopped, in words."""
NOT_FITTED = "this %(name)s is not fitted yet: call fit first"
MOST_COLUMNS = 30
"""Columns that the text lists; of more, it lists the most relevant."""

FittedModel: TypeAlias = Model | SparseGridModel
"""The fitted model of one target."""


@dataclass(frozen=True, eq=False)
class Described:
    """The values of a fitted estimator that its summary is made from.

    `estimator` is its class, `models` has one model per target, `columns` the names of the input columns.
    `table` is there where they were made of the columns of a table, and `choice` where candidates were
    measured. `training` is the method that was asked for: an object, a name, or "auto".
    """

    estimator: str
    models: Sequence[FittedModel]
    columns: tuple[str, ...]
    table: Columns | None = None
    choice: Choice | None = None
    training: Algorithm | str | None = "auto"


@dataclass(frozen=True, kw_only=True)
class TargetSummary:
    """The model of one target.

    `rows` are those that the experts (or grids) were conditioned on, `training_rows` and `calibration_rows`
    those that were looked at for these, where it is known. `kernel` has the parts that the kernel is the
    sum of, `quantities` their hyperparameters in the units of the data. `training` is None where the
    hyperparameters were given; `holds` says what a file of the model holds of the data; `transform` is what
    is modelled instead of the target, and the units are then those of the transform.
    """

    target: str
    rows: int
    n_experts: int
    expert: str
    n_inducing: int | None = None
    n_neighbors: int | None = None
    aggregation: str
    mean: str
    kernel: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    noise: Quantity
    training: str | None
    rounds: int
    training_rows: int | None
    stopped: str | None
    relevance: tuple[float, ...]
    holds: str
    transform: str | None = None
    calibration_rows: int | None = None

    def lines(self) -> list[tuple[str, str]]:
        """Describe the model as a whole by pairs of a title and a text."""
        found = [
            ("rows", f"{self.rows:,}"),
            ("experts", self._experts()),
            ("aggregation", self.aggregation),
        ]
        if self.transform is not None:
            units = f"its {self.transform} transform, in whose units signal and noise are"
            found.append(("target", units))
        if self.calibration_rows is not None:
            found.append(("intervals", f"calibrated on {self.calibration_rows:,} other rows"))
        if self.mean != "constant":
            found.append(("mean", f"a {self.mean} trend"))
        for part, text in enumerate(self.kernel, start=1):
            own = [q for q in self.quantities if q.part == part and q.column is None]
            values = "".join(f", {q.name} {q}" for q in own)
            found.append(("kernel" if part == 1 else "  +", f"{text}{values}"))
        found += [(self.noise.name, str(self.noise)), ("training", self._training())]
        return [*found, ("a file holds", self.holds)]

    def _experts(self) -> str:
        kind = "grid" if self.expert == "sparse grid" else f"{self.expert} expert"
        said = _counted(self.n_experts, kind)
        if self.n_inducing is not None:
            said += f", {self.n_inducing:,} inducing inputs"
        if self.n_neighbors is not None:
            said += f", {self.n_neighbors:,} neighbours of each point"
        return said

    def _training(self) -> str:
        if self.training is None:
            return "none, the hyperparameters were given"
        looked_at = "" if self.training_rows is None else f" on {self.training_rows:,} rows"
        return f"{self.training}, {_counted(self.rounds, 'round')}{looked_at}, {self.stopped}"

    def shares(self, lines: Sequence[tuple[str, list[int]]]) -> np.ndarray:
        """Add up the relevance of the columns that each line stands for."""
        return np.array([sum(self.relevance[j] for j in features) for _, features in lines])

    def table(
        self, columns: Sequence[str], shared: Shared | None = None
    ) -> tuple[list[str], list[list[str]]]:
        """Describe each column: titles, and one line for each column or those that share a lengthscale.

        Of very many lines only the most relevant are there.
        """
        cells = self._by_column()
        found = labelled(range(len(columns)), columns, shared or {})
        shares = self.shares(found)
        order = np.arange(len(found))
        if len(found) > MOST_COLUMNS:
            order = np.argsort(-shares, kind="stable")[:MOST_COLUMNS]
        lines: list[list[str]] = []
        for label, features, share in ((*found[i], shares[i]) for i in order):
            names = dict.fromkeys([label, *(columns[j] for j in features)])
            texts = [_cell([by[n] for n in names if n in by]) for by in cells.values()]
            lines.append([label, *texts, f"{share:.3f}"])
        return ["column", *_titles(list(cells)), "relevance"], lines

    def _by_column(self) -> dict[tuple[int, str, str], dict[str, Quantity]]:
        """Return the quantities of columns by part, factor and name; factors that are alike get numbers."""
        cells: dict[tuple[int, str, str], dict[str, Quantity]] = {}
        for q in self.quantities:
            if q.column is None:
                continue
            key, again = (q.part, q.factor, q.name), 1
            while q.column in cells.get(key, {}):
                again += 1
                key = (q.part, f"{q.factor} {again}", q.name)
            cells.setdefault(key, {})[q.column] = q
        return cells


@dataclass(frozen=True)
class Summary:
    """A fitted estimator in words; `print` it, or look at it in a notebook.

    Attributes
    ----------
    estimator : str
        The class of the estimator.
    columns : tuple of str
        The names of the input columns.
    targets : tuple of TargetSummary
        The model of each target.
    choices : tuple of Choice
        The candidates that were measured on rows held out, where there were any.
    shared : mapping of str to tuple of int
        The columns that stand for several features with one lengthscale, and the places of these.
    """

    estimator: str
    columns: tuple[str, ...]
    targets: tuple[TargetSummary, ...]
    choices: tuple[Choice, ...] = ()
    shared: Shared = field(default_factory=dict)

    @staticmethod
    def of(about: Described) -> Summary:
        """Describe a fitted estimator by its values."""
        places = {} if about.table is None else about.table.places
        names = {features: name for name, features in places.items()}
        kernels = (model.parameters.kernel for model in about.models)
        shared = shared_columns(kernels, about.columns, names)
        targets = target_names(len(about.models), about.table)
        pairs = zip(about.models, targets, strict=True)
        each = tuple(_summarise(model, name, about, shared) for model, name in pairs)
        choices = () if about.choice is None else (about.choice,)
        return Summary(about.estimator, about.columns, each, choices, shared)

    def __str__(self) -> str:
        blocks = [self._title()]
        for target in self.targets:
            pairs = target.lines()
            width = max(len(title) for title, _ in pairs)
            head = [f"target {target.target}"] if len(self.targets) > 1 else []
            text = [f"{title:{width}s}  {said}" for title, said in pairs]
            blocks.append("\n".join([*head, *text]))
            titles, lines = target.table(self.columns, self.shared)
            blocks.append("\n".join([*_grid([titles, *lines]), *self._left_out(lines)]))
        return "\n\n".join([*blocks, *map(str, self.choices)])

    def html(self) -> str:
        """Return the summary as HTML, for notebooks: tables without a style of their own."""
        parts = [f"<p><b>{html.escape(self._title())}</b></p>"]
        for target in self.targets:
            if len(self.targets) > 1:
                parts.append(f"<p><b>{html.escape(f'target {target.target}')}</b></p>")
            titles, lines = target.table(self.columns, self.shared)
            parts += [_html_table([], target.lines()), _html_table(titles, lines)]
            parts += [f"<p>{html.escape(line)}</p>" for line in self._left_out(lines)]
        parts += [f"<pre>{html.escape(str(choice))}</pre>" for choice in self.choices]
        return f"<div>{''.join(parts)}</div>"

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, texts, lists and dictionaries, for JSON.

        Numbers that are not finite become None.
        """
        found = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        for target in found["targets"]:
            target["relevance"] = dict(zip(self.columns, target["relevance"], strict=True))
        return found

    def relevance_by_column(self) -> tuple[list[str], np.ndarray]:
        """Return names of columns, one for all features of a text, and relevance, (targets, columns)."""
        lines = self._lines()
        return [label for label, _ in lines], np.stack([t.shares(lines) for t in self.targets])

    def _repr_html_(self) -> str:
        return self.html()

    def _lines(self) -> list[tuple[str, list[int]]]:
        return labelled(range(len(self.columns)), self.columns, self.shared)

    def _title(self) -> str:
        counts = _counted(len(self._lines()), "column"), _counted(len(self.targets), "target")
        return f"{self.estimator}: {', '.join(counts)}"

    def _left_out(self, lines: Sequence[Sequence[str]]) -> list[str]:
        others = len(self._lines()) - len(lines)
        return [f"and {others:,} columns of less relevance"] if others else []


class Estimator(Protocol):
    """A scikit-learn estimator that describes itself once it is fitted."""

    n_features_in_: int
    summary: Callable[[], Summary]

    @property
    def feature_relevance_(self) -> np.ndarray: ...  # noqa: D102


def summary(estimator: Estimator) -> Summary:
    """Describe a fitted estimator in words, with its hyperparameters in the units of the data.

    Parameters
    ----------
    estimator : DistributedGPRegressor or SparseGridGP
        A fitted estimator.

    Returns
    -------
    Summary

    Examples
    --------
    >>> import numpy as np
    >>> import distgp
    >>> from distgp.summary import summary
    >>> X = np.linspace(0, 10, 50)[:, None]
    >>> gp = distgp.DistributedGPRegressor(kernel=distgp.RBF(0.5), training=None, normalize=False)
    >>> print(summary(gp.fit(X, np.sin(X[:, 0]))))
    DistributedGPRegressor: 1 column, 1 target
    <BLANKLINE>
    rows          50
    experts       1 exact expert
    aggregation   poe
    kernel        RBF, signal sd 1
    noise sd      0.3162
    training      none, the hyperparameters were given
    a file holds  the training rows
    <BLANKLINE>
    column  lengthscale  relevance
    x0              0.5      1.000
    """
    check_is_fitted(estimator, msg=NOT_FITTED)
    return estimator.summary()


def feature_relevance(estimator: Estimator) -> np.ndarray:
    """Return how much each column matters to the function, from its prior alone; shares add up to 1.

    The relevance of a column is the root mean square, under the prior, of the function's slope along it,
    in standardised units. A stationary kernel with lengthscales ℓ_j gives 1 / ℓ_j, so columns with
    the same lengthscale, or one lengthscale for all, have equal shares; a linear one gives √v_j, a
    periodic one 2π / (p_j ℓ_j). (For kernels other than RBF the slope has another constant factor,
    and Matérn-1/2 has no slope; 1 / ℓ_j is taken for all of them.) Variances of slopes add in sums of
    kernels, weighted by the signal variance of each part; in a product those of one factor are
    multiplied by the mean variance of the others. The squared slopes of a linear trend (mean="linear") are
    added. A column that neither a kernel nor the trend looks at has relevance 0. The features of a text
    with one lengthscale have 1 / ℓ together, in equal parts. A column that did not vary in the training
    rows has relevance 0.

    The lengthscales of standardised data are comparable. With normalize=False the shares depend on the
    units that the columns are in.

    Parameters
    ----------
    estimator : DistributedGPRegressor or SparseGridGP
        A fitted estimator.

    Returns
    -------
    ndarray of shape (d,) or (targets, d)
        In the order of the columns. Where experts have hyperparameters of their own, the median of
        their shares, made to add up to 1 again.

    Examples
    --------
    >>> import numpy as np
    >>> import distgp
    >>> from distgp.summary import feature_relevance
    >>> X = np.random.default_rng(0).normal(size=(50, 2))
    >>> gp = distgp.DistributedGPRegressor(kernel=distgp.RBF([1.0, 3.0]), training=None)
    >>> feature_relevance(gp.fit(X, X[:, 0]))
    array([0.75, 0.25])
    """
    check_is_fitted(estimator, msg=NOT_FITTED)
    return estimator.feature_relevance_


# One target.


def relevance_of(model: FittedModel) -> np.ndarray:
    """Return the relevance of each column to one target, (d,)."""
    inputs = None if isinstance(model, SparseGridModel) else model.inputs
    varies = None
    if inputs is not None:  # L Lᵀ is the covariance of standardised columns: 1 or 0 on its diagonal
        varies = inputs.L.cpu().square().sum(1).numpy() > 0.5
    return relevance(model.parameters.kernel, model.scaling, varies)


def noise_sd(model: FittedModel) -> float:
    """Return the noise's standard deviation in the target's units; the median where experts differ."""
    return _noise(model).value


def _noise(model: FittedModel) -> Quantity:
    level = 1.0  # where rows have noise variances of their own, σ² is a factor of them
    if not isinstance(model, SparseGridModel) and model.row_noise:
        level = model.row_noise
    sd = np.sqrt(per_expert(model.parameters.noise) * level) * model.scaling.y_scale
    return Quantity.of(0, "", "noise sd", None, sd)


def _summarise(model: FittedModel, name: str, about: Described, shared: Shared) -> TargetSummary:
    kernel, scaling, training = model.parameters.kernel, model.scaling, model.training
    structure = _grids(model) if isinstance(model, SparseGridModel) else _experts(model)
    named = [[_name(f, about.columns, shared) for f in part.factors] for part in parts_of(kernel)]
    return TargetSummary(
        target=name,
        mean="constant" if scaling.slope is None else "linear",
        kernel=tuple(" × ".join(names) or "Constant" for names in named),
        quantities=quantities_of(kernel, scaling, about.columns, shared),
        noise=_noise(model),
        training=None if training is None else _method(model, about.training),
        rounds=0 if training is None else len(training.history),
        training_rows=None if training is None else training.rows,
        stopped=None if training is None else STOPPED.get(training.stopped, training.stopped),
        relevance=tuple(relevance_of(model).tolist()),
        **structure,
    )


def _name(factor: Kernel, columns: Sequence[str], shared: Shared) -> str:
    """Return a factor's class, with its columns where they are not all."""
    active = active_columns(factor, len(columns))
    if len(active) == len(columns):
        return type(factor).__name__
    labels = labelled(active, columns, shared)
    return f"{type(factor).__name__}({', '.join(label for label, _ in labels)})"


def _experts(model: Model) -> dict[str, Any]:
    """Describe an ensemble of experts, and what is done with its target."""
    ensemble, inducing = model.ensemble, model.parameters.inducing
    return {
        "rows": int(ensemble.row_count()),
        "n_experts": int(ensemble.size),
        "expert": ensemble.expert.name,
        "n_inducing": None if inducing is None else int(inducing.shape[-2]),
        "n_neighbors": getattr(ensemble.expert, "n_neighbors", None),
        "aggregation": model.aggregation.name,
        "holds": _holds(model),
        "transform": None if model.transform is None else model.transform.name,
        "calibration_rows": None if model.calibration is None else len(model.calibration.scores),
    }


def _grids(model: SparseGridModel) -> dict[str, Any]:
    """Describe a sparse grid."""
    posterior, grid = model.posterior, model.posterior.basis.grid
    combination = "full" if len(grid.levels) == 1 else "ct"
    if posterior.equations is not None:
        combination = "opticom"
    return {
        "rows": int(posterior.n),
        "n_experts": len(grid.levels),
        "expert": "sparse grid",
        "aggregation": f"{combination}, level {grid.level}",
        "holds": "grid points and sums, no rows",
    }


def _holds(model: Model) -> str:
    """Tell what a file of the model holds of the data.

    The rules that choose inducing inputs and central inputs take them from the rows, without targets.
    """
    if model.ensemble.expert.keeps_rows:
        return "the training rows"
    central = model.combined.central
    inputs = "inducing inputs"
    if central is not None:
        inputs = f"inducing and {len(central):,} central inputs"
    return f"{inputs} (which can be inputs of training rows) and sums, no targets"


def _method(model: FittedModel, given: Algorithm | str | None) -> str:
    """Return the name of the training method."""
    if isinstance(given, Algorithm):
        return given.name
    if isinstance(model, SparseGridModel):
        return "pooled"
    if given is not None and given != "auto":
        return given
    if model.parameters.batch:
        return "independent"
    return auto.TRAINING.get(model.ensemble.expert.name, "auto")


def column_names(estimator: Estimator) -> tuple[str, ...]:
    """Return the names of a fitted estimator's input columns; x0, x1, … where they have none."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return tuple(f"x{j}" for j in range(estimator.n_features_in_))
    return tuple(str(name) for name in names)


def target_names(count: int, table: Columns | None = None) -> list[str]:
    """Return the names of the targets: y0, y1, … of several, and that of the table's column of one."""
    if count > 1:
        return [f"y{i}" for i in range(count)]
    return ["y" if table is None else table.target or "y"]


# Texts, and tables in text and HTML.


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _cell(quantities: Sequence[Quantity]) -> str:
    """Write the quantities in one place of a table; of several that differ, their range."""
    texts = dict.fromkeys(map(str, quantities))
    if len(texts) < 2:
        return "".join(texts)
    return f"{min(q.low for q in quantities):.4g} to {max(q.high for q in quantities):.4g}"


def _titles(keys: Sequence[tuple[int, str, str]]) -> list[str]:
    """Return the shortest titles that tell hyperparameters apart: by name, factor and part."""
    forms = ("{2}", "{1} {2}", "{1} {2} (part {0})")
    found = ([form.format(*key) for key in keys] for form in forms)
    return next(titles for titles in found if len(set(titles)) == len(titles))


def _grid(lines: Sequence[Sequence[str]]) -> list[str]:
    """Align columns of text, the first to the left and the others to the right."""
    first, *others = (list(column) for column in zip(*lines, strict=True))
    aligned = [[cell.ljust(max(map(len, first))) for cell in first]]
    aligned += [[cell.rjust(max(map(len, column))) for cell in column] for column in others]
    return ["  ".join(line) for line in zip(*aligned, strict=True)]


def _html_table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    head = f"<thead>{row(titles, 'th')}</thead>" if titles else ""
    return f"<table>{head}<tbody>{''.join(row(line, 'td') for line in lines)}</tbody></table>"
