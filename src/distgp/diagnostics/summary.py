"""A fitted estimator in words: experts, kernel in the units of the data, training, and relevance."""

from __future__ import annotations

import html
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from textwrap import fill
from typing import Any, Protocol, TypeAlias

import numpy as np
from sklearn.utils.validation import check_is_fitted

from distgp._util.progress import counted, in_words, stacked
from distgp.data.encoding import Columns
from distgp.data.rows import Schema
from distgp.diagnostics import hyperparameters as h
from distgp.diagnostics.hyperparameters import Quantity, Shared
from distgp.diagnostics.novelty import TrainingInputs
from distgp.model import Model, TargetModel
from distgp.selection.sentences import why
from distgp.selection.trials import WIDEST, Choice
from distgp.sparsegrid.posterior import SparseGridModel
from distgp.training import Algorithm

STOPPED = {"tolerance": "converged", "iterations": "reached n_iter", "diverged": "could not go on"}
"""The reasons why training stopped, in words."""
MOST_COLUMNS = 30
"""Columns that the text lists; of more, it lists the most relevant."""
NOT_FITTED = "this %(name)s is not fitted yet: call fit first"
AnyTarget: TypeAlias = TargetModel | SparseGridModel


@dataclass(frozen=True, kw_only=True)
class TargetSummary:
    """The model of one target.

    `kernel` has the parts that the kernel is the sum of, `quantities` their hyperparameters in the units of
    the data, or of the `transform` that is modelled instead of the target. `training` is None where the
    hyperparameters were given; `holds` says what a file of the model holds of the data.
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
        found = [("rows", f"{self.rows:,}"), ("experts", self._experts())]
        if self.n_experts > 1 or self.expert != "exact":  # one exact expert is the GP itself
            name, *more = self.aggregation.split(", ")
            found.append(("aggregation", ", ".join([in_words(name), *more])))
        if self.transform is not None:
            said = f"its {self.transform} transform, in whose units signal and noise are"
            found.append(("target", said))
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
        said = counted(self.n_experts, kind)
        if self.n_inducing is not None:
            said += f", {self.n_inducing:,} inducing inputs"
        if self.n_neighbors is not None:
            said += f", {self.n_neighbors:,} neighbours of each point"
        return said

    def _training(self) -> str:
        if self.training is None:
            return "none, the hyperparameters were given"
        looked_at = "" if self.training_rows is None else f" on {self.training_rows:,} rows"
        rounds = f"{counted(self.rounds, 'round')}{looked_at}"
        return f"{in_words(self.training)}, {rounds}, {self.stopped}"

    def shares(self, lines: Sequence[tuple[str, list[int]]]) -> np.ndarray:
        """Add up the relevance of the columns that each line stands for."""
        return np.array([sum(self.relevance[j] for j in features) for _, features in lines])

    def table(
        self, columns: Sequence[str], shared: Shared | None = None
    ) -> tuple[list[str], list[list[str]]]:
        """Return titles, and a line for each column, or those with one lengthscale; the most relevant."""
        cells = h.by_column(self.quantities)
        found = h.labelled(range(len(columns)), columns, shared or {})
        shares = self.shares(found)
        order = np.arange(len(found))
        if len(found) > MOST_COLUMNS:
            order = np.argsort(-shares, kind="stable")[:MOST_COLUMNS]
        lines: list[list[str]] = []
        for (label, features), share in ((found[i], shares[i]) for i in order):
            names = dict.fromkeys([label, *(columns[j] for j in features)])
            texts = [h.cell([by[n] for n in names if n in by]) for by in cells.values()]
            lines.append([label, *texts, f"{share:.3f}"])
        return ["column", *h.titles(list(cells)), "relevance"], lines


@dataclass(frozen=True, repr=False)
class Summary:
    """A fitted estimator in words; `print` it, or look at it in a notebook or at a prompt.

    Its text is ``str(summary)``, of which ``"converged" in summary`` tells whether it says something, and
    which ``Path("summary.txt").write_text(str(summary))`` keeps.

    It has the class of the `estimator`, the names of its input `columns`, one `TargetSummary` per target in
    `targets`, the candidates that were measured in `choices`, and in `shared` the columns that stand for
    several features with one lengthscale, and the places of these.
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
        """Describe a fitted model, the `choice` that was made, and the `training` that was asked for."""
        table, columns = model.schema.table, column_names(model.schema)
        names = {} if table is None else {at: name for name, at in table.places.items()}
        shared = h.shared_columns((t.parameters.kernel for t in model.targets), columns, names)
        pairs = zip(model.targets, target_names(len(model.targets), table), strict=True)
        each = tuple(_summarise(*pair, columns, shared, training, model.inputs) for pair in pairs)
        return Summary(estimator, columns, each, () if choice is None else (choice,), shared)

    def __str__(self) -> str:
        blocks = [self._title(), *(fill(why(choice), WIDEST) for choice in self.choices)]
        for target in self.targets:
            pairs = target.lines()
            width = max(len(title) for title, _ in pairs)
            head = [f"target {target.target}"] if len(self.targets) > 1 else []
            hanging = {"subsequent_indent": " " * (width + 2), "break_on_hyphens": False}
            said = [
                fill(text, WIDEST, initial_indent=f"{title:{width}s}  ", **hanging)
                for title, text in pairs
            ]
            blocks.append("\n".join([*head, *said]))
            titles, lines = target.table(self.columns, self.shared)
            blocks.append("\n".join([*stacked([titles, *lines], WIDEST), *self._left_out(lines)]))
        return "\n\n".join([*blocks, *map(str, self.choices)])

    def __repr__(self) -> str:
        return str(self)

    def __contains__(self, text: str) -> bool:
        return text in str(self)

    def html(self) -> str:
        """Return the summary as HTML, for notebooks: tables without a style of their own."""
        parts = [f"<p><b>{html.escape(self._title())}</b></p>"]
        parts += [f"<p>{html.escape(why(choice))}</p>" for choice in self.choices]
        for target in self.targets:
            if len(self.targets) > 1:
                parts.append(f"<p><b>{html.escape(f'target {target.target}')}</b></p>")
            titles, lines = target.table(self.columns, self.shared)
            parts += [_html_table([], target.lines()), _html_table(titles, lines)]
            parts += [f"<p>{html.escape(line)}</p>" for line in self._left_out(lines)]
        parts += [f"<pre>{html.escape(str(choice))}</pre>" for choice in self.choices]
        return f"<div>{''.join(parts)}</div>"

    _repr_html_ = html

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, texts, lists and dictionaries, for JSON; None for what is not finite."""
        found = json.loads(json.dumps(asdict(self)), parse_constant=lambda _: None)
        for target in found["targets"]:
            target["relevance"] = dict(zip(self.columns, target["relevance"], strict=True))
        return found

    def relevance_by_column(self) -> tuple[list[str], np.ndarray]:
        """Return names of columns, one for all features of a text, and relevance, (targets, columns)."""
        lines = self._lines()
        return [label for label, _ in lines], np.stack([t.shares(lines) for t in self.targets])

    def _lines(self) -> list[tuple[str, list[int]]]:
        return h.labelled(range(len(self.columns)), self.columns, self.shared)

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
    in standardised units (with normalize=False: in those of the columns). A stationary kernel with
    lengthscales ℓ_j gives 1 / ℓ_j, a linear one √v_j, a periodic one 2π / (p_j ℓ_j); the features of a text
    with one lengthscale have 1 / ℓ together, in equal parts. Variances of slopes add in sums of kernels,
    weighted by the signal variance of each part; in a product those of one factor are multiplied by the
    mean variance of the others. The squared slopes of a linear trend (mean="linear") are added. A column
    that nothing looks at, or that did not vary in the training rows, has relevance 0.

    Parameters
    ----------
    estimator : DistributedGPRegressor or SparseGridGP
        A fitted estimator.

    Returns
    -------
    ndarray of shape (d,) or (targets, d)
        In the order of the columns; of experts with hyperparameters of their own, the scaled medians.

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


def relevance_of(model: AnyTarget, inputs: TrainingInputs | None) -> np.ndarray:
    """Return the relevance of each column to one target, (d,), given what the inputs look like."""
    varies = None
    if inputs is not None:  # L Lᵀ is the covariance of standardised columns: 1 or 0 on its diagonal
        varies = inputs.variance.cpu().numpy() > 0.5
    return h.relevance(model.parameters.kernel, model.scaling, varies)


def noise_sd(model: AnyTarget) -> float:
    """Return the noise's standard deviation in the target's units; the median where experts differ."""
    return _noise(model).value


def _noise(model: AnyTarget) -> Quantity:
    # Where rows have noise variances of their own, σ² is a factor of them.
    level = None if isinstance(model, SparseGridModel) else model.likelihood.row_noise
    sd = np.sqrt(h.per_expert(model.parameters.noise) * (level or 1.0)) * model.scaling.y_scale
    return Quantity.of(0, "", "noise sd", None, sd)


def _summarise(
    model: AnyTarget,
    name: str,
    columns: tuple[str, ...],
    shared: Shared,
    method: Algorithm | str | None,
    inputs: TrainingInputs | None,
) -> TargetSummary:
    kernel, scaling, training = model.parameters.kernel, model.scaling, model.training
    structure = _grids(model) if isinstance(model, SparseGridModel) else _experts(model)
    return TargetSummary(
        target=name,
        mean="constant" if scaling.slope is None else "linear",
        kernel=tuple(h.name_of(part, columns, shared) for part in h.parts_of(kernel)),
        quantities=h.quantities_of(kernel, scaling, columns, shared),
        noise=_noise(model),
        training=None if training is None else _method(model, method),
        rounds=0 if training is None else len(training.history),
        training_rows=None if training is None else training.rows,
        stopped=None if training is None else STOPPED.get(training.stopped, training.stopped),
        relevance=tuple(relevance_of(model, inputs).tolist()),
        **structure,
    )


def _experts(model: TargetModel) -> dict[str, Any]:
    """Describe an ensemble of experts, and what is done with its target."""
    ensemble, inducing = model.ensemble, model.parameters.inducing
    return {
        "rows": int(ensemble.row_count()),
        "n_experts": int(ensemble.size),
        "expert": ensemble.expert.name,
        "n_inducing": None if inducing is None else int(inducing.shape[-2]),
        "n_neighbors": getattr(ensemble.expert, "n_neighbors", None),
        "aggregation": ", ".join(filter(None, (model.aggregation.name, model.combined.effort))),
        "holds": _holds(model),
        "transform": None if model.transform is None else model.transform.name,
        "calibration_rows": None if model.calibration is None else len(model.calibration.scores),
    }


def _grids(model: SparseGridModel) -> dict[str, Any]:
    """Describe a sparse grid."""
    grid = model.posterior.basis.grid
    combination = "full" if len(grid.levels) == 1 else "ct"
    combination = combination if model.posterior.equations is None else "opticom"
    return {
        "rows": int(model.posterior.n),
        "n_experts": len(grid.levels),
        "expert": "sparse grid",
        "aggregation": f"{combination}, level {grid.level}",
        "holds": "grid points and sums, no rows",
    }


def _holds(model: TargetModel) -> str:
    """Tell what a file of the model holds of the data."""
    if model.ensemble.expert.holds_rows:
        return "the training rows"
    central = model.combined.central
    also = "" if central is None else f" and {len(central):,} central"
    return f"inducing{also} inputs (which can be inputs of training rows) and sums, no targets"


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


def _html_table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    head = f"<thead>{row(titles, 'th')}</thead>" if titles else ""
    return f"<table>{head}<tbody>{''.join(row(line, 'td') for line in lines)}</tbody></table>"
