"""How much worse predictions become when a column tells nothing: permutation importance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from distgp import predicting
from distgp._util.checks import silenced
from distgp.data.rows import numbers_of_rows, observed_targets
from distgp.diagnostics.novelty import NoveltyWarning
from distgp.model import Model, TargetModel

MOST_NUMBERS = 20_000_000
"""Numbers of permuted rows that are predicted together."""


@dataclass(frozen=True, eq=False)
class Importance:
    """The fall of R² when the values of one column are shuffled among the rows; print it as a table.

    Parameters
    ----------
    columns : tuple of str
        The columns of the table.
    falls : ndarray of shape (columns, repeats)
        The fall of R² in each shuffle.
    shares : mapping of str to float, optional
        The share of each part of an additive kernel in the variance of the predictions; None where the
        kernel has one part, or where its parts are not known, as `decompose` says.
    """

    columns: tuple[str, ...]
    falls: np.ndarray
    shares: Mapping[str, float] | None = None

    @property
    def mean(self) -> np.ndarray:
        """The mean over the repeats."""
        return self.falls.mean(1)

    @property
    def std(self) -> np.ndarray:
        """The standard deviation over the repeats."""
        return self.falls.std(1)

    def __str__(self) -> str:
        order = np.argsort(-self.mean, kind="stable")
        falls = {self.columns[i]: f"{self.mean[i]:.3f} ± {self.std[i]:.3f}" for i in order}
        text = _table({"column": "fall of R²"} | falls)
        if self.shares is None:
            return text
        shares = {name: f"{share:.3f}" for name, share in self.shares.items()}
        title = {"part": "share of the predictions' variance"}
        return f"{text}\n\n{_table(title | shares)}"


def _table(lines: Mapping[str, str]) -> str:
    """Write names and figures below each other."""
    width = max(map(len, lines))
    return "\n".join(f"{name:{width}s}  {figure}" for name, figure in lines.items())


def shares_of(parts: Mapping[str, np.ndarray]) -> dict[str, float] | None:
    """Return the share of each part, (n,) or (n, targets), in the variance of their sum over the rows.

    The share of a part is its covariance with the sum, divided by the variance of the sum. So shares add up
    to 1, and one is negative where others undo the part. Those of several targets are averaged. Parts that
    do not vary are left out; None where fewer than two are left.
    """
    moved = {
        name: values - values.mean(0) for name, values in parts.items() if np.ptp(values, 0).any()
    }
    total = np.sum(list(moved.values()), axis=0)
    if len(moved) < 2 or not np.square(total).mean(0).all():
        return None
    variance = np.square(total).mean(0)
    return {name: float(((v * total).mean(0) / variance).mean()) for name, v in moved.items()}


def importance(
    model: Model[TargetModel],
    rows: np.ndarray,
    targets: np.ndarray,
    n_repeats: int,
    random_state: np.random.RandomState,
) -> Importance:
    """Shuffle the numbers of one column after the other among the rows, with scikit-learn's shuffles.

    Parameters
    ----------
    model : Model
        A fitted model, with the columns of its table.
    rows : ndarray of shape (n, d)
        The rows as numbers.
    targets : ndarray of shape (n,) or (n, targets)
        What was observed there.
    n_repeats : int
        The number of shuffles of each column.
    random_state : RandomState
        What shuffles; every column is shuffled alike.
    """
    order, seed = np.arange(len(rows)), random_state.randint(np.iinfo(np.int32).max + 1)
    shuffle, orders = np.random.RandomState(seed).shuffle, [np.arange(len(rows))]
    for _ in range(n_repeats):
        shuffle(order)
        orders.append(orders[-1][order])  # what was shuffled is shuffled again
    (base,) = _scores(model, rows, targets)
    places = model.schema.places
    tables = [(place, one) for place in map(list, places) for one in orders[1:]]
    at_once, found = max(1, MOST_NUMBERS // rows.size), []
    for start in range(0, len(tables), at_once):
        some = tables[start : start + at_once]
        stacked = np.tile(rows, (len(some), 1, 1))
        for table, (place, one) in zip(stacked, some, strict=True):
            table[:, place] = rows[one][:, place]
        found.append(_scores(model, stacked.reshape(-1, rows.shape[1]), targets))
    falls = base - np.concatenate(found).reshape(len(places), n_repeats)
    names = model.schema.given or tuple(f"x{j}" for j in range(model.schema.n_features))
    return Importance(names, falls)


def _scores(model: Model[TargetModel], stacked: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """Return R² of each of the tables that stand below each other."""
    with silenced(NoveltyWarning):
        (mean,) = predicting.predict(model, stacked, "mean")
    parts = np.split(mean, len(stacked) // len(targets))
    return np.array([r2_of(one, targets, None) for one in parts])


def r2_of(mean: np.ndarray, y: object, sample_weight: object) -> float:
    """R² of means, of the rows that are predicted; targets and weights are checked."""
    from sklearn.metrics import r2_score

    targets = observed_targets(y, mean.shape)
    fine = ~np.isnan(mean).reshape(len(mean), -1).any(1)
    weight = numbers_of_rows("sample_weight", sample_weight, len(mean), least=0.0)
    weight = None if weight is None else weight[fine]
    if not fine.any():
        return float("nan")
    return float(r2_score(targets[fine], mean[fine], sample_weight=weight))
