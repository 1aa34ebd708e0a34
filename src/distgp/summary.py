"""A fitted estimator in words: experts, kernel in the units of the data, training, and relevance.

A kernel is taken apart into a sum of products, k = Σ_t σ_t² Π_f k_tf: products of sums are multiplied
out. Each product is a part, with one signal variance σ_t² and factors k_tf that are no sums or products
themselves. The quantities that are shown follow from that form and from the scaling of the data:

- a lengthscale ℓ_j and a period p_j are multiplied by the scale of their column. The lengthscale of a
  periodic kernel is one on the circle, which has no unit, and stays as it is;
- the standard deviation σ_t of a part, and that of the noise, are multiplied by the target's scale;
- the variance v_j of a linear kernel's weight becomes the standard deviation σ_t √v_j of a slope, in
  units of the target per unit of the column, as is the slope of a linear trend.

Where the features of one column share a lengthscale, as those of a text do, the column has one line: with
the geometric mean of their lengthscales in the units of the data, and the sum of their relevances.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from distgp.data.scaling import Scaling
from distgp.kernels import Constant, Kernel, Linear, Periodic, Product, Scale, Stationary, Sum
from distgp.selection.trials import Choice
from distgp.training import Algorithm

STOPPED = {
    "tolerance": "converged",
    "iterations": "reached n_iter",
    "diverged": "could not go on",
}
"""Why training stopped, in words."""
MOST_COLUMNS = 30
"""Columns that the text lists; of more, it lists the most relevant."""

Values: TypeAlias = np.ndarray
"""One number for each expert, (M,), or one for all, (1,)."""


@dataclass(frozen=True)
class Quantity:
    """One hyperparameter in the units of the data.

    Parameters
    ----------
    part : int
        The part of the kernel that it belongs to, from 1; 0 for the noise and the linear trend.
    factor : str
        The kernel that it belongs to, such as "Matern52"; "" for the noise and for a part's signal.
    name : str
        What it is: "lengthscale", "period", "slope sd", "signal sd", "offset sd", "noise sd", "trend
        slope", or the name of a parameter that has no unit.
    column : str or None
        The column that it belongs to, or the text column whose features share it; None where it belongs
        to all.
    value : float
        The value; the median where experts have values of their own.
    low, high : float
        The range over the experts; both are the value where they share it.
    """

    part: int
    factor: str
    name: str
    column: str | None
    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.value:.4g}"
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"


@dataclass(frozen=True)
class TargetSummary:
    """The model of one target.

    Parameters
    ----------
    target : str
        What the target is called.
    rows : int
        The number of rows that the experts were conditioned on.
    n_experts : int
        The number of experts, or of grids.
    expert : str
        Their kind: "exact", "sparse", "nearest" or "sparse grid".
    n_inducing, n_neighbors : int or None
        The number of inducing inputs, and of neighbours of each point, where there are any.
    aggregation : str
        How they are combined.
    mean : str
        What the kernel's function is added to: "constant", or a "linear" trend.
    kernel : tuple of str
        The parts of the kernel, which is their sum.
    quantities : tuple of Quantity
        Their hyperparameters in the units of the data.
    noise : Quantity
        The noise's standard deviation in the target's units.
    training : str or None
        The training method; None where the hyperparameters were given.
    rounds : int
        The number of rounds of training.
    training_rows : int or None
        The number of rows that training looked at, where it is known.
    stopped : str or None
        Why training stopped, in words.
    relevance : tuple of float
        The relevance of each column, as of `feature_relevance`.
    holds : str
        What a file of the model holds of the data.
    transform : str or None
        What is modelled instead of the target, whose units are then those of the transform.
    calibration_rows : int or None
        The number of rows that intervals were calibrated on.
    """

    target: str
    rows: int
    n_experts: int
    expert: str
    n_inducing: int | None
    n_neighbors: int | None
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
        """What is said of the model as a whole: pairs of a title and a text."""
        counted = "grids" if self.expert == "sparse grid" else f"{self.expert} experts"
        experts = f"{self.n_experts:,} {counted}"
        if self.n_experts == 1:
            experts = experts[:-1]
        if self.n_inducing is not None:
            experts += f", {self.n_inducing:,} inducing inputs"
        if self.n_neighbors is not None:
            experts += f", {self.n_neighbors:,} neighbours of each point"
        found = [
            ("rows", f"{self.rows:,}"),
            ("experts", experts),
            ("aggregation", self.aggregation),
        ]
        if self.transform is not None:
            found.append(
                ("target", f"its {self.transform} transform, in whose units signal and noise are")
            )
        if self.calibration_rows is not None:
            found.append(("intervals", f"calibrated on {self.calibration_rows:,} other rows"))
        if self.mean != "constant":
            found.append(("mean", f"a {self.mean} trend"))
        for part, text in enumerate(self.kernel, start=1):
            own = [q for q in self.quantities if q.part == part and q.column is None]
            values = "".join(f", {q.name} {q}" for q in own)
            found.append(("kernel" if part == 1 else "  +", f"{text}{values}"))
        found.append((self.noise.name, str(self.noise)))
        if self.training is None:
            found.append(("training", "none, the hyperparameters were given"))
        else:
            rounds = f"{self.rounds:,} round" + ("" if self.rounds == 1 else "s")
            looked_at = "" if self.training_rows is None else f" on {self.training_rows:,} rows"
            found.append(("training", f"{self.training}, {rounds}{looked_at}, {self.stopped}"))
        return [*found, ("a file holds", self.holds)]

    def shares(self, lines: Sequence[tuple[str, list[int]]]) -> np.ndarray:
        """The relevance of what each line stands for, all of its features together."""
        return np.array([sum(self.relevance[j] for j in features) for _, features in lines])

    def table(
        self, columns: Sequence[str], shared: Mapping[str, tuple[int, ...]] | None = None
    ) -> tuple[list[str], list[list[str]]]:
        """What is said of each column: titles, and one line for each column.

        Columns that share a lengthscale have one line. Of very many lines only the most relevant are
        there.
        """
        cells: dict[tuple[int, str, str], dict[str, Quantity]] = {}
        for q in self.quantities:
            if q.column is None:
                continue
            key, again = (q.part, q.factor, q.name), 1
            while q.column in cells.get(key, {}):
                again += 1
                key = (q.part, f"{q.factor} {again}", q.name)
            cells.setdefault(key, {})[q.column] = q
        titles = ["column", *_titles(list(cells)), "relevance"]
        found = _lines(range(len(columns)), columns, shared or {})
        shares = self.shares(found)
        order = np.arange(len(found))
        if len(found) > MOST_COLUMNS:
            order = np.argsort(-shares, kind="stable")[:MOST_COLUMNS]
        lines: list[list[str]] = []
        for i in map(int, order):
            label, features = found[i]
            names = dict.fromkeys([label, *(columns[j] for j in features)])
            texts = [_cell([by[n] for n in names if n in by]) for by in cells.values()]
            lines.append([label, *texts, f"{shares[i]:.3f}"])
        return titles, lines


@dataclass(frozen=True)
class Summary:
    """A fitted estimator in words; `print` it, or look at it in a notebook.

    Parameters
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
    shared: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

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
        blocks += [f"{choice}" for choice in self.choices]
        return "\n\n".join(blocks)

    def html(self) -> str:
        """The summary as HTML, for notebooks: tables without a style of their own."""
        parts = [f"<p><b>{html.escape(self._title())}</b></p>"]
        for target in self.targets:
            if len(self.targets) > 1:
                parts.append(f"<p><b>{html.escape(f'target {target.target}')}</b></p>")
            parts.append(_html_table([], [list(pair) for pair in target.lines()]))
            titles, lines = target.table(self.columns, self.shared)
            parts.append(_html_table(titles, lines))
            parts += [f"<p>{html.escape(line)}</p>" for line in self._left_out(lines)]
        parts += [f"<pre>{html.escape(str(choice))}</pre>" for choice in self.choices]
        return f"<div>{''.join(parts)}</div>"

    def as_dict(self) -> dict[str, Any]:
        """The summary as plain numbers, texts, lists and dictionaries, for JSON.

        Numbers that are not finite become None.
        """
        found = _plain(asdict(self))
        for target in found["targets"]:
            target["relevance"] = dict(zip(self.columns, target["relevance"], strict=True))
        return found

    def _repr_html_(self) -> str:
        return self.html()

    def _title(self) -> str:
        columns = len(_lines(range(len(self.columns)), self.columns, self.shared))
        counts = (columns, "column"), (len(self.targets), "target")
        said = [f"{count} {what}{'' if count == 1 else 's'}" for count, what in counts]
        return f"{self.estimator}: {', '.join(said)}"

    def relevance_by_column(self) -> tuple[list[str], np.ndarray]:
        """Names of columns, one for all features of a text, and their relevance, (targets, columns)."""
        found = _lines(range(len(self.columns)), self.columns, self.shared)
        shares = np.stack([target.shares(found) for target in self.targets])
        return [label for label, _ in found], shares

    def _left_out(self, lines: Sequence[Any]) -> list[str]:
        others = len(_lines(range(len(self.columns)), self.columns, self.shared)) - len(lines)
        return [f"and {others:,} columns of less relevance"] if others else []


def summary(estimator: Any) -> Summary:
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
    _check_fitted(estimator)
    columns = column_names(estimator)
    names = _target_names(estimator)
    shared = _shared(estimator, columns)
    targets = tuple(
        _target(estimator, model, name, columns, shared)
        for model, name in zip(estimator.model_.targets, names, strict=True)
    )
    return Summary(type(estimator).__name__, columns, targets, _choices(estimator), shared)


def feature_relevance(estimator: Any) -> np.ndarray:
    """How much each column matters to the function, from its prior alone; the shares add up to 1.

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
    _check_fitted(estimator)
    found = [_relevance(m) for m in estimator.model_.targets]
    one = estimator.model_.one_target
    return found[0] if one else np.stack(found)


def column_names(estimator: Any) -> tuple[str, ...]:
    """The names of the input columns; x0, x1, … where they have none."""
    names = getattr(estimator, "feature_names_in_", None)
    if names is None:
        return tuple(f"x{j}" for j in range(estimator.n_features_in_))
    return tuple(str(name) for name in names)


def noise_sd(model: Any) -> float:
    """The noise's standard deviation in the target's units; the median where experts differ."""
    noise = _values(model.parameters.noise)
    level = getattr(model, "row_noise", None) or 1.0
    return float(np.median(np.sqrt(noise * level))) * model.scaling.y_scale


# Kernels as sums of products.


@dataclass(frozen=True, eq=False)
class _Part:
    """σ² Π_f k_f, with no sum or product among the factors."""

    variance: Values
    factors: tuple[Kernel, ...]

    def times(self, other: _Part) -> _Part:
        return _Part(self.variance * other.variance, (*self.factors, *other.factors))


def _parts(kernel: Kernel) -> list[_Part]:
    """The parts of a kernel."""
    if isinstance(kernel, Sum):
        return [part for child in kernel.kernels for part in _parts(child)]
    if isinstance(kernel, Product):
        found = [_Part(np.ones(1), ())]
        for child in kernel.kernels:
            found = [a.times(b) for a in found for b in _parts(child)]
        return found
    if isinstance(kernel, Scale):
        scale = _Part(_values(kernel.variance), ())
        return [scale.times(part) for part in _parts(kernel.kernel)]
    if isinstance(kernel, Constant):
        return [_Part(_values(kernel.variance), ())]
    return [_Part(np.ones(1), (kernel,))]


def _values(tensor: Tensor) -> Values:
    """A parameter that is one number per kernel, (M,) or (1,)."""
    return np.atleast_1d(tensor.detach().cpu().double().numpy())


def _by_column(tensor: Tensor, count: int) -> np.ndarray:
    """A parameter with one number per column or one for all, (M, count) or (1, count)."""
    values = np.atleast_2d(tensor.detach().cpu().double().numpy())
    return np.broadcast_to(values, (len(values), count))


def _active(kernel: Any, d: int) -> list[int]:
    """The columns that a factor looks at."""
    active = getattr(kernel, "active_dims", None)
    return list(range(d)) if active is None else [column % d for column in active]


def _lengthscales(factor: Stationary, count: int) -> np.ndarray:
    """The lengthscale of each of `count` columns, (M, count) or (1, count)."""
    return _by_column(factor.lengthscale_by_column(count), count)


def _shared(estimator: Any, columns: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Columns that stand for several features with one lengthscale, and the places of these.

    They go by their name in the table, or else by those of the features. Where kernels disagree the first
    counts.
    """
    place = {name: j for j, name in enumerate(columns)}
    inputs = getattr(estimator.model_.schema.table, "inputs", ())
    names = {tuple(place.get(f, -1) for f in column.features): column.name for column in inputs}
    found: dict[str, tuple[int, ...]] = {}
    for group in _groups(estimator, len(columns)):
        if not any(set(group) & set(other) for other in found.values()):
            found[names.get(group, ", ".join(columns[j] for j in group))] = group
    return found


def _groups(estimator: Any, d: int) -> Iterator[tuple[int, ...]]:
    """The sets of columns that share a lengthscale in a kernel of any model."""
    parts = (part for model in estimator.model_.targets for part in _parts(model.parameters.kernel))
    for factor in (factor for part in parts for factor in part.factors):
        if isinstance(factor, Stationary) and factor.shared is not None:
            pairs = list(zip(factor.shared, _active(factor, d), strict=True))
            groups = [tuple(sorted(j for k, j in pairs if k == i)) for i in set(factor.shared)]
            yield from (group for group in groups if len(group) > 1)


def _lines(
    places: Sequence[int], columns: Sequence[str], shared: Mapping[str, tuple[int, ...]]
) -> list[tuple[str, list[int]]]:
    """The labels of these columns, and the columns of each: one label for those that share."""
    owner = {j: label for label, features in shared.items() for j in features}
    found: dict[str, list[int]] = {}
    for j in places:
        found.setdefault(owner.get(j, columns[j]), []).append(j)
    return list(found.items())


def _cell(quantities: Sequence[Quantity]) -> str:
    """What a table says of the quantities in one place; of several that differ, their range."""
    texts = dict.fromkeys(map(str, quantities))
    if len(texts) < 2:
        return "".join(texts)
    return f"{min(q.low for q in quantities):.4g} to {max(q.high for q in quantities):.4g}"


def _name(factor: Kernel, columns: Sequence[str], shared: Mapping[str, tuple[int, ...]]) -> str:
    """A factor's class, with its columns where they are not all."""
    active = getattr(factor, "active_dims", None)
    if active is None or len(active) == len(columns):
        return type(factor).__name__
    labels = _lines(_active(factor, len(columns)), columns, shared)
    return f"{type(factor).__name__}({', '.join(label for label, _ in labels)})"


def _part_quantities(
    number: int,
    part: _Part,
    scaling: Scaling,
    columns: Sequence[str],
    shared: Mapping[str, tuple[int, ...]],
) -> Iterator[Quantity]:
    """The hyperparameters of one part in the units of the data."""
    d, scale = len(columns), scaling.x_scale
    amplitude = np.sqrt(part.variance) * scaling.y_scale
    linear = next((f for f in part.factors if isinstance(f, Linear)), None)
    if linear is None:
        yield _quantity(number, "", "signal sd" if part.factors else "offset sd", None, amplitude)
    for factor in part.factors:
        kind, active = type(factor).__name__, _active(factor, d)
        each: list[tuple[str, np.ndarray]] = []
        others = dict(factor.own_parameters())
        if isinstance(factor, Stationary):
            lengths = _lengthscales(factor, len(active)) * scale[active]
            if factor.shared is None:
                each = [("lengthscale", lengths)]
            else:
                yield from _shared_lengths(number, kind, lengths, active, columns, shared)
            del others["lengthscale"]
        elif isinstance(factor, Periodic):
            on_circle = _by_column(factor.lengthscale, len(active))
            period = _by_column(factor.period, len(active)) * scale[active]
            each, others = [("period", period), ("lengthscale on the circle", on_circle)], {}
        elif isinstance(factor, Linear):
            slope = np.sqrt(_by_column(factor.variance, len(active))) / scale[active]
            # The part's own amplitude can go to one factor alone.
            own = amplitude[:, None] if factor is linear else 1.0
            each, others = [("slope sd", slope * own)], {}
        else:
            others = factor.parameters()
        for name, values in each:
            for place, column in enumerate(active):
                yield _quantity(number, kind, name, columns[column], values[:, place])
        for name, tensor in others.items():
            yield _quantity(number, kind, name, None, _values(tensor).reshape(-1))


def _shared_lengths(
    number: int,
    kind: str,
    lengths: np.ndarray,
    active: list[int],
    columns: Sequence[str],
    shared: Mapping[str, tuple[int, ...]],
) -> Iterator[Quantity]:
    """The lengthscales of columns; the geometric mean of those of the features of one column."""
    for label, features in _lines(active, columns, shared):
        own = lengths[:, [active.index(j) for j in features]]
        yield _quantity(number, kind, "lengthscale", label, np.exp(np.log(own).mean(1)))


def _quantity(part: int, factor: str, name: str, column: str | None, values: Values) -> Quantity:
    low, middle, high = float(values.min()), float(np.median(values)), float(values.max())
    return Quantity(part, factor, name, column, middle, low, high)


def _relevance(model: Any) -> np.ndarray:
    """Shares of the slopes' root mean squares, (d,); a column that did not vary has none."""
    parameters, scaling, inputs = model.parameters, model.scaling, getattr(model, "inputs", None)
    d = len(scaling.x_scale)
    slopes: Any = 0.0 if scaling.slope is None else (scaling.slope[None] / scaling.y_scale) ** 2
    for part in _parts(parameters.kernel):
        sizes = [_mean_variance(factor, d) for factor in part.factors]
        for i, factor in enumerate(part.factors):
            others = math.prod(sizes[:i] + sizes[i + 1 :], start=part.variance)
            slopes = slopes + others[:, None] * _squared_slopes(factor, d)
    root = np.sqrt(np.broadcast_to(slopes, np.broadcast_shapes(np.shape(slopes), (1, d))))
    if (
        inputs is not None
    ):  # L Lᵀ is the covariance of the standardised columns: 1 or 0 on its diagonal
        root = root * (inputs.L.cpu().square().sum(1).numpy() > 0.5)
    total = root.sum(1, keepdims=True)
    shares = np.median(np.divide(root, total, out=np.zeros_like(root), where=total > 0), axis=0)
    return shares / shares.sum() if shares.sum() > 0 else shares


def _squared_slopes(factor: Kernel, d: int) -> np.ndarray:
    """The variance of the slope along each column, (M, d) or (1, d), of a factor on its own."""
    active = _active(factor, d)
    if isinstance(factor, Stationary):
        own = _lengthscales(factor, len(active)) ** -2.0
        if factor.shared is not None:  # a text counts as one column, however many texts there are
            own = own / np.bincount(factor.shared)[list(factor.shared)] ** 2
    elif isinstance(factor, Periodic):
        length, period = (_by_column(t, len(active)) for t in (factor.lengthscale, factor.period))
        own = (2.0 * math.pi / (length * period)) ** 2
    elif isinstance(factor, Linear):
        own = _by_column(factor.variance, len(active))
    else:
        return np.zeros((1, d))
    found = np.zeros((len(own), d))
    for place, column in enumerate(active):
        found[:, column] += own[:, place]
    return found


def _mean_variance(factor: Kernel, d: int) -> Values:
    """The mean of k(x, x) over standardised rows: Σ_j v_j for a linear kernel, 1 for those that decay."""
    if isinstance(factor, Linear):
        return _by_column(factor.variance, len(_active(factor, d))).sum(1)
    return np.ones(1)


# Estimators.


def _target(
    estimator: Any,
    model: Any,
    name: str,
    columns: Sequence[str],
    shared: Mapping[str, tuple[int, ...]],
) -> TargetSummary:
    scaling, parameters = model.scaling, model.parameters
    parts = _parts(parameters.kernel)
    quantities = [
        quantity
        for number, part in enumerate(parts, start=1)
        for quantity in _part_quantities(number, part, scaling, columns, shared)
    ]
    level = getattr(model, "row_noise", None) or 1.0  # σ² is a factor of the rows' own noise then
    sd = np.sqrt(_values(parameters.noise) * level) * scaling.y_scale
    transform, scores = (getattr(model, name, None) for name in ("transform", "calibration"))
    if scaling.slope is not None:
        gains = scaling.slope / scaling.x_scale
        quantities += [
            _quantity(0, "trend", "trend slope", column, np.array([gain]))
            for column, gain in zip(columns, gains, strict=True)
        ]
    about = _grid_of(model) if hasattr(model, "posterior") else _ensemble_of(model)
    training = model.training
    return TargetSummary(
        target=name,
        mean="constant" if scaling.slope is None else "linear",
        kernel=tuple(
            " × ".join(_name(factor, columns, shared) for factor in part.factors) or "Constant"
            for part in parts
        ),
        quantities=tuple(quantities),
        noise=_quantity(0, "", "noise sd", None, sd),
        training=None if training is None else _method(estimator, model, about["expert"]),
        rounds=0 if training is None else len(training.history),
        training_rows=None if training is None else training.rows,
        stopped=None if training is None else STOPPED.get(training.stopped, training.stopped),
        relevance=tuple(map(float, _relevance(model))),
        holds=_holds(model, about["expert"]),
        transform=None if transform is None else transform.name,
        calibration_rows=None if scores is None else len(scores.scores),
        **about,
    )


def _ensemble_of(model: Any) -> dict[str, Any]:
    ensemble = model.ensemble
    inducing = model.parameters.inducing
    return {
        "rows": int(ensemble.row_count()),
        "n_experts": int(ensemble.size),
        "expert": ensemble.expert.name,
        "n_inducing": None if inducing is None else int(inducing.shape[-2]),
        "n_neighbors": getattr(ensemble.expert, "n_neighbors", None),
        "aggregation": model.aggregation.name,
    }


def _grid_of(model: Any) -> dict[str, Any]:
    posterior = model.posterior
    grid = posterior.basis.grid
    if posterior.equations is not None:
        combination = "opticom"
    else:
        combination = "full" if len(grid.levels) == 1 else "ct"
    return {
        "rows": int(posterior.n),
        "n_experts": len(grid.levels),
        "expert": "sparse grid",
        "n_inducing": None,
        "n_neighbors": None,
        "aggregation": f"{combination}, level {grid.level}",
    }


def _holds(model: Any, expert: str) -> str:
    """What a file of the model holds of the data.

    The rules that choose inducing inputs and central inputs take them from the rows, without targets.
    """
    if expert == "sparse grid":
        return "grid points and sums, no rows"
    if expert != "sparse":
        return "the training rows"
    central = getattr(model.combined, "central", None)
    inputs = (
        "inducing inputs" if central is None else f"inducing and {len(central):,} central inputs"
    )
    return f"{inputs} (which can be inputs of training rows) and sums, no targets"


def _method(estimator: Any, model: Any, expert: str) -> str:
    """The name of the training method."""
    settled = getattr(estimator, "settled_", None) or {}
    given = settled.get("training", getattr(estimator, "training", "auto"))
    if isinstance(given, Algorithm):
        return given.name
    if expert == "sparse grid":
        return "pooled"
    if isinstance(given, str) and given != "auto":
        return given
    if model.parameters.batch:
        return "independent"
    return model.ensemble.expert.default_training


def _target_names(estimator: Any) -> list[str]:
    count = len(estimator.model_.targets)
    if count > 1:
        return [f"y{i}" for i in range(count)]
    table = estimator.model_.schema.table
    return [getattr(table, "target", "") or "y"]


def _choices(estimator: Any) -> tuple[Choice, ...]:
    found = getattr(estimator, "choice_", None)
    several = found if isinstance(found, list | tuple) else [found]
    return tuple(choice for choice in several if isinstance(choice, Choice))


def _check_fitted(estimator: Any) -> None:
    if not hasattr(estimator, "model_"):
        raise ValueError(f"this {type(estimator).__name__} is not fitted yet: call fit first")


# Tables in text and HTML.


def _titles(keys: Sequence[tuple[int, str, str]]) -> list[str]:
    """The shortest titles that tell hyperparameters apart: by name, factor and part."""
    makers: list[Callable[[tuple[int, str, str]], str]] = [
        lambda key: key[2],
        lambda key: f"{key[1]} {key[2]}",
        lambda key: f"{key[1]} {key[2]} (part {key[0]})",
    ]
    found = ([make(key) for key in keys] for make in makers)
    return next((titles for titles in found if len(set(titles)) == len(titles)), [])


def _grid(lines: Sequence[Sequence[str]]) -> list[str]:
    """Columns of text, the first to the left and the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]


def _html_table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    head = f"<thead>{row(titles, 'th')}</thead>" if titles else ""
    return f"<table>{head}<tbody>{''.join(row(line, 'td') for line in lines)}</tbody></table>"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
