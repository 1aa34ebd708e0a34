"""A fitted estimator in words: experts, kernel in the units of the data, training, and relevance."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distgp.data.encoding import Columns
from distgp.data.rows import Schema
from distgp.diagnostics.hyperparameters import (
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
from distgp.diagnostics.novelty import Inputs
from distgp.diagnostics.target_summary import TargetSummary, counted
from distgp.kernels import Kernel
from distgp.model import Model, TargetModel
from distgp.selection.trials import Choice
from distgp.sparsegrid.posterior import SparseGridModel
from distgp.training import Algorithm

STOPPED = {"tolerance": "converged", "iterations": "reached n_iter", "diverged": "could not go on"}
"""The reasons why training stopped, in words."""
NOT_FITTED = "this %(name)s is not fitted yet: call fit first"

AnyTarget: TypeAlias = TargetModel | SparseGridModel
"""The fitted model of one target, of any estimator."""


@dataclass(frozen=True)
class Summary:
    """A fitted estimator in words; `print` it, or look at it in a notebook.

    It has the class of the `estimator`, the names of its input `columns`, one `TargetSummary` per target in
    `targets`, in `choices` the candidates that were measured on rows held out, where there were any, and in
    `shared` the columns that stand for several features with one lengthscale, and the places of these.
    """

    estimator: str
    columns: tuple[str, ...]
    targets: tuple[TargetSummary, ...]
    choices: tuple[Choice, ...] = ()
    shared: Shared = field(default_factory=dict)

    @staticmethod
    def of(
        estimator: str,
        model: Model[AnyTarget],
        choice: Choice | None = None,
        training: Algorithm | str | None = "auto",
    ) -> Summary:
        """Describe a fitted model of an estimator of this class.

        `choice` is there where candidates were measured, and `training` is the method that was asked
        for: an object, a name, or "auto".
        """
        table, columns = model.schema.table, column_names(model.schema)
        names = {} if table is None else {found: name for name, found in table.places.items()}
        shared = shared_columns((t.parameters.kernel for t in model.targets), columns, names)
        pairs = zip(model.targets, target_names(len(model.targets), table), strict=True)
        each = tuple(
            _summarise(target, name, columns, shared, training, model.inputs)
            for target, name in pairs
        )
        return Summary(estimator, columns, each, () if choice is None else (choice,), shared)

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
        counts = counted(len(self._lines()), "column"), counted(len(self.targets), "target")
        return f"{self.estimator}: {', '.join(counts)}"

    def _left_out(self, lines: Sequence[Sequence[str]]) -> list[str]:
        others = len(self._lines()) - len(lines)
        return [f"and {others:,} columns of less relevance"] if others else []


class Estimator(Protocol):
    """A scikit-learn estimator that describes itself once it is fitted."""

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
    >>> from distgp.diagnostics.summary import summary
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
    >>> from distgp.diagnostics.summary import feature_relevance
    >>> X = np.random.default_rng(0).normal(size=(50, 2))
    >>> gp = distgp.DistributedGPRegressor(kernel=distgp.RBF([1.0, 3.0]), training=None)
    >>> feature_relevance(gp.fit(X, X[:, 0]))
    array([0.75, 0.25])
    """
    check_is_fitted(estimator, msg=NOT_FITTED)
    return estimator.feature_relevance_


# One target.


def relevance_of(model: AnyTarget, inputs: Inputs | None) -> np.ndarray:
    """Return the relevance of each column to one target, (d,), given what the inputs look like."""
    varies = None
    if inputs is not None:  # L Lᵀ is the covariance of standardised columns: 1 or 0 on its diagonal
        varies = inputs.L.cpu().square().sum(1).numpy() > 0.5
    return relevance(model.parameters.kernel, model.scaling, varies)


def noise_sd(model: AnyTarget) -> float:
    """Return the noise's standard deviation in the target's units; the median where experts differ."""
    return _noise(model).value


def _noise(model: AnyTarget) -> Quantity:
    level = 1.0  # where rows have noise variances of their own, σ² is a factor of them
    if not isinstance(model, SparseGridModel) and model.likelihood.row_noise:
        level = model.likelihood.row_noise
    sd = np.sqrt(per_expert(model.parameters.noise) * level) * model.scaling.y_scale
    return Quantity.of(0, "", "noise sd", None, sd)


def _summarise(
    model: AnyTarget,
    name: str,
    columns: tuple[str, ...],
    shared: Shared,
    method: Algorithm | str | None,
    inputs: Inputs | None,
) -> TargetSummary:
    kernel, scaling, training = model.parameters.kernel, model.scaling, model.training
    structure = _grids(model) if isinstance(model, SparseGridModel) else _experts(model)
    named = [[_name(f, columns, shared) for f in part.factors] for part in parts_of(kernel)]
    return TargetSummary(
        target=name,
        mean="constant" if scaling.slope is None else "linear",
        kernel=tuple(" × ".join(names) or "Constant" for names in named),
        quantities=quantities_of(kernel, scaling, columns, shared),
        noise=_noise(model),
        training=None if training is None else _method(model, method),
        rounds=0 if training is None else len(training.history),
        training_rows=None if training is None else training.rows,
        stopped=None if training is None else STOPPED.get(training.stopped, training.stopped),
        relevance=tuple(relevance_of(model, inputs).tolist()),
        **structure,
    )


def _name(factor: Kernel, columns: Sequence[str], shared: Shared) -> str:
    """Return a factor's class, with its columns where they are not all."""
    active = active_columns(factor, len(columns))
    if len(active) == len(columns):
        return type(factor).__name__
    labels = labelled(active, columns, shared)
    return f"{type(factor).__name__}({', '.join(label for label, _ in labels)})"


def _experts(model: TargetModel) -> dict[str, Any]:
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


def _holds(model: TargetModel) -> str:
    """Tell what a file of the model holds of the data.

    The rules that choose inducing inputs and central inputs take them from the rows, without targets.
    """
    if model.ensemble.expert.holds_rows:
        return "the training rows"
    central = model.combined.central
    inputs = "inducing inputs"
    if central is not None:
        inputs = f"inducing and {len(central):,} central inputs"
    return f"{inputs} (which can be inputs of training rows) and sums, no targets"


def _method(model: AnyTarget, given: Algorithm | str | None) -> str:
    """Return the name of the training method."""
    if isinstance(given, Algorithm):
        return given.name
    if isinstance(model, SparseGridModel):
        return "pooled"
    if given is not None and given != "auto":
        return given
    if model.parameters.batch:
        return "independent"
    return model.ensemble.expert.default_training


def column_names(schema: Schema) -> tuple[str, ...]:
    """Return the names of the input columns; x0, x1, … where they have none."""
    return schema.names or tuple(f"x{j}" for j in range(schema.n_features))


def target_names(count: int, table: Columns | None = None) -> list[str]:
    """Return the names of the targets: y0, y1, … of several, and that of the table's column of one."""
    if count > 1:
        return [f"y{i}" for i in range(count)]
    return ["y" if table is None else table.target or "y"]


# Tables in text and HTML.


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
