"""Compare all aggregators on the same fitted experts with the full GP of the same hyperparameters.

Baselines that are no Gaussian processes stand beside them: what a model must beat to be worth its time.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from distgp._util.progress import Progress
from distgp.aggregation import AGGREGATORS
from distgp.data.encoding import Columns
from distgp.data.rows import Rows, Schema
from distgp.diagnostics import metrics
from distgp.files import whole
from distgp.mixin import unnamed_columns
from distgp.regressor import DistributedGPRegressor
from distgp.selection import hold_out, trials
from distgp.selection.trials import Trial

FULL_EXACT_ROWS = 5_000
"""Rows up to which the reference is the exact full GP; beyond, the full sparse GP."""


@dataclass(frozen=True)
class Result:
    """One aggregator's figures on the test rows, or why it cannot combine these experts.

    `name` is that of the aggregator, the reference or a baseline, `seconds` the time to combine the experts
    (to fit, of a baseline) and to predict. RMSE and NLPD are in the target's units, `coverage` is that of
    90 % intervals, `w2` the 2-Wasserstein distance of the latent predictions to those of the full GP, None
    for baselines. `error` is the reason of a failure; all figures are then None.
    """

    name: str
    seconds: float | None = None
    rmse: float | None = None
    nlpd: float | None = None
    coverage: float | None = None
    w2: float | None = None
    error: str | None = None
    baseline: bool = False

    @staticmethod
    def of(trial: Trial, w2: float | None = None) -> Result:
        """Take over the figures of a trial, or its error alone."""
        if trial.error:
            return Result(trial.name, error=trial.error, baseline=trial.baseline)
        figures = (trial.seconds, trial.rmse, trial.nlpd, trial.cover, w2)
        return Result(trial.name, *figures, baseline=trial.baseline)


def expert_of(model: DistributedGPRegressor) -> str:
    """Return the kind of a fitted model's experts, such as "exact"."""
    return model.model_.targets[0].ensemble.expert.name


def serving(model: DistributedGPRegressor) -> list[str]:
    """Name the aggregators that can combine experts of a fitted model's kind."""
    return [name for name, rule in AGGREGATORS.items() if expert_of(model) in rule.serves]


def left_out(model: DistributedGPRegressor) -> list[str]:
    """Name the aggregators that are for other kinds of experts than a fitted model's."""
    return [name for name in AGGREGATORS if name not in serving(model)]


def reference(
    model: DistributedGPRegressor, X: ArrayLike, y: ArrayLike
) -> tuple[str, DistributedGPRegressor]:
    """Fit the full GP with the hyperparameters of a model: one expert with all rows.

    It is exact up to `FULL_EXACT_ROWS` rows, and sparse with the model's inducing inputs beyond. Returned
    are what it is called, and the fitted reference.

    Parameters
    ----------
    model : DistributedGPRegressor
        A fitted model whose experts share their hyperparameters.
    X, y : array-like of shapes (n, d) and (n,)
        The rows that it was fitted to.
    """
    if np.ndim(model.noise_):
        raise ValueError("experts with different hyperparameters have no full GP to compare with")
    kind = "exact" if np.shape(X)[0] <= FULL_EXACT_ROWS else "sparse"
    inducing = model.inducing_
    same = ("mean", "normalize", "device", "dtype", "random_state")
    full = DistributedGPRegressor(
        expert=kind,
        n_experts=1,
        n_inducing="auto" if inducing is None or inducing.ndim != 2 else inducing,
        kernel=model.kernel_,
        noise=model.noise_,
        training=None,
        **{name: getattr(model, name) for name in same},
    )
    return f"full {kind} GP", full.fit_rows(Rows(np.asarray(X), np.asarray(y), model.model_.schema))


def compare(
    model: DistributedGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    full: tuple[str, DistributedGPRegressor] | None = None,
    aggregators: Iterable[str] | None = None,
    verbose: bool = False,
) -> list[Result]:
    """Measure every aggregator of the same experts on test rows, in the target's units.

    An aggregator that cannot combine these experts says why.

    Parameters
    ----------
    model : DistributedGPRegressor
        The fitted model whose experts are combined.
    X, y : array-like of shapes (n, d) and (n,)
        The test rows and their targets.
    full : tuple, optional
        What `reference` returns: the first result is its own, and the others are compared with it.
    aggregators : iterable of str, optional
        Names of `distgp.AGGREGATORS`; by default all that serve this kind of experts.
    verbose : bool, default=False
        Whether to show progress.
    """
    y = np.asarray(y, dtype=np.float64)
    names = serving(model) if aggregators is None else list(aggregators)
    results: list[Result] = []
    target: list[np.ndarray] = []
    with Progress("comparing", len(names) + (full is not None), show=verbose) as progress:
        if full is not None:
            result, target = _measured(full[0], full[1], X, y)
            results.append(result)
            progress.advance(text=full[0])
        for name in names:
            results.append(_measured(name, model, X, y, name, target)[0])
            progress.advance(text=name)
    return results


def _measured(
    name: str,
    model: DistributedGPRegressor,
    X: ArrayLike,
    y: np.ndarray,
    aggregation: str | None = None,
    target: Sequence[np.ndarray] = (),
) -> tuple[Result, list[np.ndarray]]:
    """Measure latent means and variances against y and the target, if there is one, and return them too."""
    latent: list[np.ndarray] = []

    def predict() -> tuple[np.ndarray, np.ndarray]:
        mean, std = model.predict(X, return_std=True, latent=True, aggregation=aggregation)
        latent.extend((mean, np.square(std)))
        # By name all aggregators work in latent space: the noise comes once, on top.
        return mean, np.sqrt(latent[1] + noise_variance(model))

    trial = trials.measure(name, predict, y)
    if trial.error:
        return Result.of(trial), []
    return Result.of(trial, metrics.wasserstein2(*latent, *target) if target else None), latent


def on_split(
    model: DistributedGPRegressor,
    X: ArrayLike,
    y: ArrayLike,
    test: float,
    seed: int,
    verbose: bool = False,
    validation: str = "random",
    columns: Columns | None = None,
    **options: ArrayLike | None,
) -> list[Result]:
    """Fit a model on a share of the rows, and compare its aggregators, then baselines, on the others.

    Where the experts share their hyperparameters the full GP is the reference.

    Parameters
    ----------
    model : DistributedGPRegressor
        The model to fit.
    X, y : array-like of shapes (n, d) and (n,)
        All rows and their targets.
    test : float
        The share of the rows to hold out, between 0 and 1.
    seed : int
        The seed of the division.
    verbose : bool, default=False
        Whether to show the progress of the comparison.
    validation : {"random", "last", "groups"}, default="random"
        Which rows are held out: rows drawn at random, the last ones, or whole groups.
    columns : Columns, optional
        The columns that the inputs were made of, where they come from a table.
    **options : array-like of shape (n,)
        For "last", `time`: when each row was observed; for "groups", `groups`: the group of each row.
    """
    X, y = np.asarray(X), np.asarray(y)
    if not 0 < test < 1:
        raise ValueError(f"the share of test rows must be between 0 and 1, got {test}")
    train, out = hold_out(len(X), validation, inputs=X, share=test, seed=seed, **options)
    needed = {"last": "time", "groups": "groups"}.get(model.validation, "")
    values = options.get(needed)  # for the model's own choice
    given = {} if values is None else {needed: np.asarray(values)[train]}
    schema = Schema(X.shape[1]) if columns is None else Schema.of(columns)
    model.fit_rows(Rows.of(X[train], y[train], schema, **given))
    full = None if np.ndim(model.noise_) else reference(model, X[train], y[train])
    with unnamed_columns():  # rows of a table are numbers here, in the order of its columns
        found = compare(model, X[out], y[out], full, verbose=verbose)
    return [*found, *baselines(X[train], y[train], X[out], y[out], seed)]


def baselines(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, seed: int = 0
) -> list[Result]:
    """Measure predictors that are no GPs: the training mean, ridge regression, gradient boosting.

    Each predicts a Gaussian. The standard deviation is that of the training targets for their mean, and
    that of the errors on a fifth of the training rows, left out for that, for the others.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    def boosting() -> tuple[np.ndarray, np.ndarray]:
        model = HistGradientBoostingRegressor(random_state=seed % 2**32)
        return trials.with_spread(model, X, y, X_test, seed)

    both = Rows(np.concatenate([X, X_test]), np.concatenate([y, y_test]), Schema(X.shape[1]))
    parts = [(np.arange(len(X)), np.arange(len(X), len(X) + len(X_test)))]
    found = trials.baselines(both, parts, seed)
    found.append(trials.measure("gradient boosting", boosting, y_test, baseline=True))
    return [Result.of(trial) for trial in found]


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write one line per result, failures with their reason; the file appears whole or not at all."""
    with whole(path) as part, part.open("w", newline="") as file:
        writer = csv.DictWriter(file, [spec.name for spec in fields(Result)])
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)


def noise_variance(model: DistributedGPRegressor) -> float:
    """Return the noise variance in the target's units; the experts' mean where they differ."""
    return float(np.mean(model.noise_)) * model.model_.targets[0].scaling.y_scale ** 2
