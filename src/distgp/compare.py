"""All aggregators on the same fitted experts, beside the full GP with the same hyperparameters.

Baselines that are no Gaussian processes stand beside them: what a model must beat to be worth its time.
"""

from __future__ import annotations

import csv
import time
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from distgp import metrics
from distgp.aggregation import AGGREGATORS
from distgp.data.encoding import Columns
from distgp.data.rows import Rows, Schema
from distgp.files import whole
from distgp.progress import Progress
from distgp.regressor import DistributedGPRegressor
from distgp.selection import hold_out
from distgp.selection import trials as choice

FULL_EXACT_ROWS = 5_000
"""Rows up to which the reference is the exact full GP; beyond, the full sparse GP."""


@dataclass(frozen=True)
class Result:
    """One aggregator's figures on the test rows, or why it cannot combine these experts.

    Parameters
    ----------
    name : str
        The aggregator, the reference, or a baseline.
    seconds : float
        Time to combine the experts and to predict the test rows; of a baseline, to fit and to predict.
    rmse, nlpd : float
        Root mean squared error and mean negative log predictive density, in the target's units.
    coverage : float
        The share of the targets inside their 90 % intervals.
    w2 : float
        2-Wasserstein distance of the latent predictions to those of the full GP; None for baselines.
    error : str
        The reason of a failure; all figures are then None.
    baseline : bool, default=False
        Whether this is no aggregator, and only there to be compared with.
    """

    name: str
    seconds: float | None = None
    rmse: float | None = None
    nlpd: float | None = None
    coverage: float | None = None
    w2: float | None = None
    error: str | None = None
    baseline: bool = False


def expert_of(model: DistributedGPRegressor) -> str:
    """The kind of a fitted model's experts, such as "exact"."""
    return model.model_.targets[0].ensemble.expert.name


def serving(model: DistributedGPRegressor) -> list[str]:
    """The names of the aggregators that can combine experts of a fitted model's kind."""
    kind = expert_of(model)
    return [name for name, aggregator in AGGREGATORS.items() if kind in aggregator.serves]


def left_out(model: DistributedGPRegressor) -> list[str]:
    """The names of the aggregators that are for other kinds of experts than a fitted model's."""
    able = serving(model)
    return [name for name in AGGREGATORS if name not in able]


def reference(model: DistributedGPRegressor, X: Any, y: Any) -> tuple[str, DistributedGPRegressor]:
    """Fit the full GP with the hyperparameters of a model: one expert with all rows.

    It is exact up to `FULL_EXACT_ROWS` rows, and sparse with the model's inducing inputs beyond.

    Parameters
    ----------
    model : DistributedGPRegressor
        A fitted model whose experts share their hyperparameters.
    X, y : array-like
        The rows that it was fitted to.

    Returns
    -------
    tuple
        What the reference is called, and the fitted reference.

    Raises
    ------
    ValueError
        If the experts have hyperparameters of their own.
    """
    if np.ndim(model.noise_):
        raise ValueError("experts with different hyperparameters have no full GP to compare with")
    kind = "exact" if len(X) <= FULL_EXACT_ROWS else "sparse"
    shared = model.inducing_ is not None and model.inducing_.ndim == 2
    full = DistributedGPRegressor(
        expert=kind,
        n_experts=1,
        n_inducing=model.inducing_ if shared else "auto",
        kernel=model.kernel_,
        noise=model.noise_,
        mean=model.mean,
        training=None,
        normalize=model.normalize,
        device=model.device,
        dtype=model.dtype,
        random_state=model.random_state,
    )
    return f"full {kind} GP", full.fit_rows(Rows(X, y, model.model_.schema))


def compare(
    model: DistributedGPRegressor,
    X: Any,
    y: Any,
    full: tuple[str, DistributedGPRegressor] | None = None,
    aggregators: Iterable[str] | None = None,
    verbose: bool = False,
) -> list[Result]:
    """Measure every aggregator of the same experts on test rows.

    Parameters
    ----------
    model : DistributedGPRegressor
        The fitted model whose experts are combined.
    X, y : array-like
        The test rows and their targets.
    full : tuple, optional
        The name and the model of a reference, as `reference` returns them. It gets a result of its
        own, the first, and the others' latent predictions are compared with it.
    aggregators : iterable of str, optional
        Names of `distgp.AGGREGATORS`; by default all that serve this kind of experts.
    verbose : bool, default=False
        Whether to show progress.

    Returns
    -------
    list of Result
        In the target's units. An aggregator that cannot combine these experts says why.
    """
    y = np.asarray(y, dtype=np.float64)
    names = serving(model) if aggregators is None else list(aggregators)
    results, target = [], None
    with Progress("comparing", len(names) + (full is not None), show=verbose) as progress:
        if full is not None:
            result, target = _figures(full[0], full[1], X, y, None, None)
            results.append(result)
            progress.advance(text=full[0])
        for name in names:
            try:
                results.append(_figures(name, model, X, y, name, target)[0])
            except (ValueError, ArithmeticError) as error:
                results.append(Result(name, error=str(error)))
            progress.advance(text=name)
    return results


def on_split(
    model: DistributedGPRegressor,
    X: np.ndarray,
    y: np.ndarray,
    test: float,
    seed: int,
    verbose: bool = False,
    validation: str = "random",
    time: Any = None,
    groups: Any = None,
    columns: Columns | None = None,
) -> list[Result]:
    """Fit a model on a share of the rows, and compare its aggregators and baselines on the others.

    Where the experts share their hyperparameters the full GP is the reference.

    Parameters
    ----------
    model : DistributedGPRegressor
        The model to fit.
    X, y : array-like
        All rows and their targets.
    test : float
        The share of the rows to hold out, between 0 and 1.
    seed : int
        The seed of the division.
    verbose : bool, default=False
        Whether to show the progress of the comparison.
    validation : {"random", "last", "groups"}, default="random"
        Which rows are held out: rows drawn at random, the last ones, or whole groups.
    time : array-like of shape (n,), optional
        When each row was observed, for "last": numbers or dates. By default the rows are in order.
    groups : array-like of shape (n,), optional
        The group of each row, for "groups".
    columns : Columns, optional
        What the inputs were made of, where they come from a table.

    Returns
    -------
    list of Result
        Those of `compare`, then those of the baselines.

    Raises
    ------
    ValueError
        If the share is not between 0 and 1, or the groups are missing.
    """
    X, y = np.asarray(X), np.asarray(y)
    if not 0 < test < 1:
        raise ValueError(f"the share of test rows must be between 0 and 1, got {test}")
    train, out = hold_out(len(X), validation, time=time, groups=groups, share=test, seed=seed)
    needed = {"last": ("time", time), "groups": ("groups", groups)}  # by the model's own choice
    name, values = needed.get(model.validation, ("", None))
    given = {} if values is None else {name: np.asarray(values)[train]}
    names = None if columns is None else tuple(columns.features)
    model.fit_rows(Rows(X[train], y[train], Schema(X.shape[1], names, columns), **given))
    full = None if np.ndim(model.noise_) else reference(model, X[train], y[train])
    with warnings.catch_warnings():  # rows of a table are numbers here, in the order of its columns
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        found = compare(model, X[out], y[out], full, verbose=verbose)
    return [*found, *baselines(X[train], y[train], X[out], y[out], seed)]


def baselines(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, y_test: np.ndarray, seed: int = 0
) -> list[Result]:
    """Measure what is no Gaussian process: the training mean, ridge regression, gradient boosting.

    Each predicts a Gaussian. The standard deviation is that of the training targets for their mean, and
    that of the errors on a fifth of the training rows, left out for that, for the others.

    Parameters
    ----------
    X, y : ndarray
        The rows to learn from, and their targets.
    X_test, y_test : ndarray
        The rows to be measured on, and their targets.
    seed : int, default=0
        The seed of what is random.

    Returns
    -------
    list of Result
        With `baseline` true.
    """
    from sklearn.ensemble import HistGradientBoostingRegressor

    def boosting() -> tuple[np.ndarray, np.ndarray]:
        model = HistGradientBoostingRegressor(random_state=seed % 2**32)
        return choice.with_spread(model, X, y, X_test, seed)

    trials = choice.baselines(
        Rows(np.concatenate([X, X_test]), np.concatenate([y, y_test]), Schema(X.shape[1])),
        [(np.arange(len(X)), np.arange(len(X), len(X) + len(X_test)))],
        seed,
    )
    trials.append(choice.measure("gradient boosting", boosting, y_test, baseline=True))
    return [
        Result(t.name, error=t.error, baseline=True)
        if t.error
        else Result(t.name, t.seconds, t.rmse, t.nlpd, t.cover, baseline=True)
        for t in trials
    ]


def write_csv(results: Sequence[Result], path: Path) -> None:
    """Write one line per result, failures with their reason; the file appears whole or not at all."""
    with whole(path) as part, part.open("w", newline="") as file:
        writer = csv.DictWriter(file, [spec.name for spec in fields(Result)])
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)


def noise_variance(model: DistributedGPRegressor) -> float:
    """The noise variance of a fitted model in the target's units; the experts' mean where they differ."""
    return float(np.mean(model.noise_)) * model.model_.targets[0].scaling.y_scale ** 2


def _figures(
    name: str,
    model: DistributedGPRegressor,
    X: Any,
    y: np.ndarray,
    aggregation: str | None,
    target: tuple[np.ndarray, np.ndarray] | None,
) -> tuple[Result, tuple[np.ndarray, np.ndarray]]:
    """The result, and the latent means and standard deviations that it was computed from."""
    begin = time.perf_counter()
    mean, std = model.predict(X, return_std=True, latent=True, aggregation=aggregation)
    seconds = time.perf_counter() - begin
    # By name all aggregators work in latent space: the noise comes once, on top.
    latent, observed = np.square(std), np.square(std) + noise_variance(model)
    w2 = None
    if target is not None:
        w2 = metrics.wasserstein2(mean, latent, target[0], np.square(target[1]))
    result = Result(
        name,
        seconds,
        metrics.rmse(y, mean),
        metrics.nlpd(y, mean, observed),
        metrics.coverage(y, mean, observed),
        w2,
    )
    return result, (mean, std)
