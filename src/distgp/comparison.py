"""All aggregators on the same fitted experts, beside the full GP."""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.model_selection import train_test_split

from distgp import metrics
from distgp.aggregation import AGGREGATORS
from distgp.files import whole
from distgp.regressor import DistributedGPRegressor

FULL_EXACT_ROWS = 5_000
"""Rows up to which the reference is the exact full GP; beyond, the full sparse GP."""


@dataclass(frozen=True)
class Result:
    """One aggregator's figures on the test rows; all None but the error where it cannot serve."""

    name: str
    seconds: float | None = None  # to combine and predict
    rmse: float | None = None
    nlpd: float | None = None
    coverage: float | None = None  # of 90 % intervals
    w2: float | None = None  # 2-Wasserstein distance of the latent predictions to the full GP's
    error: str | None = None


def reference(model: DistributedGPRegressor, X: Any, y: Any) -> tuple[str, DistributedGPRegressor]:
    """The full GP with the same hyperparameters: exact, or sparse where that is out of reach."""
    kind = "exact" if len(X) <= FULL_EXACT_ROWS else "sparse"
    own = model.inducing_ is not None and model.inducing_.ndim > 2
    if np.ndim(model.noise_):
        raise ValueError("experts with different hyperparameters have no full GP to compare with")
    full = DistributedGPRegressor(
        expert=kind,
        n_experts=1,
        n_inducing="auto" if model.inducing_ is None or own else model.inducing_,
        kernel=model.kernel_,
        noise=model.noise_,
        training=None,
        normalize=model.normalize,
        device=model.device,
        dtype=model.dtype,
        random_state=model.random_state,
    )
    return f"full {kind} GP", full.fit(X, y)


def compare(
    model: DistributedGPRegressor,
    X: Any,
    y: Any,
    full: tuple[str, DistributedGPRegressor] | None = None,
    aggregators: Iterable[str] = AGGREGATORS,
    report: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Every aggregator's figures on test rows (X, y), in the target's units.

    full: the name and model of a reference, which gets a row of its own and to which the others'
    latent predictions are compared. An aggregator that cannot serve these experts says why.
    """
    y = np.asarray(y, dtype=np.float64)
    results, target = [], None
    if full is not None:
        report(full[0])
        result, target = _figures(full[0], full[1], X, y, None, None)
        results.append(result)
    for name in aggregators:
        report(name)
        try:
            results.append(_figures(name, model, X, y, name, target)[0])
        except (ValueError, ArithmeticError) as error:
            results.append(Result(name, error=str(error)))
    return results


def on_split(
    model: DistributedGPRegressor,
    X: np.ndarray,
    y: np.ndarray,
    test: float,
    seed: int,
    report: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Fit the model on a random share of the rows and compare on the others."""
    if not 0 < test < 1:
        raise ValueError(f"the share of test rows must be between 0 and 1, got {test}")
    X_train, X_test, y_train, y_test = train_test_split(X, y, test_size=test, random_state=seed)
    report(f"fitting {len(y_train):,} rows")
    model.fit(X_train, y_train)
    full = None if np.ndim(model.noise_) else reference(model, X_train, y_train)
    return compare(model, X_test, y_test, full, report=report)


def write_csv(results: Sequence[Result], path: Path) -> None:
    """One line an aggregator, failures with their reason."""
    with whole(path) as part, part.open("w", newline="") as file:
        names = [spec.name for spec in fields(Result)]
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(asdict(result) for result in results)


def noise_variance(model: DistributedGPRegressor) -> float:
    """The noise variance in the target's units; the experts' mean where they differ."""
    return float(np.mean(model.noise_)) * model.models_[0].scaling.y_scale ** 2


def _figures(
    name: str,
    model: DistributedGPRegressor,
    X: Any,
    y: np.ndarray,
    aggregation: str | None,
    target: tuple[np.ndarray, np.ndarray] | None,
) -> tuple[Result, tuple[np.ndarray, np.ndarray]]:
    begin = time.perf_counter()
    latent = model.predict(X, return_std=True, latent=True, aggregation=aggregation)
    seconds = time.perf_counter() - begin
    # By name all aggregators work in latent space: the noise comes once, on top.
    mean, variance = latent[0], np.square(latent[1]) + noise_variance(model)
    w2 = None
    if target is not None:
        w2 = metrics.wasserstein2(latent[0], latent[1] ** 2, target[0], target[1] ** 2)
    result = Result(
        name,
        seconds,
        metrics.rmse(y, mean),
        metrics.nlpd(y, mean, variance),
        metrics.coverage(y, mean, variance),
        w2,
    )
    return result, latent
