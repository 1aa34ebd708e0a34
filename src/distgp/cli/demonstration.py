"""The demonstration: what a user gains, and the ways to combine experts, on more rows than one GP likes."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
import typer

from distgp.cli import terminal
from distgp.diagnostics import compare as comparison
from distgp.diagnostics import metrics
from distgp.regressor import DistributedGPRegressor

if TYPE_CHECKING:
    from matplotlib.axes import Axes

N_EXPERTS = 64
N_TEST = 5_000
NOISE = 0.3
SLICE = 0.7
"""The second input along the slice of the surface that is drawn."""
DRAWN = 150
"""Rows that are drawn: those next to the slice."""


@dataclass(frozen=True)
class Gain:
    """Tell what a model is worth at new places, beside boosting.

    Attributes
    ----------
    rows, places : int
        How many rows were fitted, and how many places are new.
    seconds, boosting_seconds : float
        The time of each fit.
    error, boosting_error : float
        The root mean squared distance of each prediction from the true surface.
    inside : float
        The share of new observations inside the 90 % intervals.
    """

    rows: int
    places: int
    seconds: float
    boosting_seconds: float
    error: float
    boosting_error: float
    inside: float

    def __str__(self) -> str:
        """Say it in a few lines."""
        return (
            f"distgp fitted {self.rows:,} rows in {self.seconds:.3g} seconds, and boosting, "
            f"scikit-learn's HistGradientBoostingRegressor, in {self.boosting_seconds:.3g}. "
            f"At {self.places:,} new places, distgp is {self.error:.2g} away from the true surface "
            f"(root mean squared error), and boosting {self.boosting_error:.2g}. "
            "The surface is smooth, which suits distgp. "
            f"{100 * self.inside:.1f} % of the new observations lie inside distgp's 90 % intervals. "
            "Boosting gives no intervals."
        )


def demonstrate(rows: int, picture: Path, show: bool) -> None:
    """Fit this many rows; print what a user gains and a comparison of aggregators, and draw both."""
    X, y = make_data(rows, seed=0)
    begin = perf_counter()
    model = fitted(X, y, show)
    gain = gain_of(model, X, y, perf_counter() - begin)
    full = comparison.reference(model, X, y)
    new, observed = make_data(N_TEST, seed=1)
    results = comparison.compare(model, new, observed, full, verbose=show)
    _draw(model, (X, y), new, results, picture)
    experts = (
        f"The model is made of {model.n_experts_} experts, Gaussian processes on a part of the rows each. "
        "There are several ways to combine them. Here they are at the same places, beside one Gaussian "
        f"process of all rows, which they approximate ({full[0]}). W2 is the distance between the "
        f"predictions. RMSE is that of observations, whose noise alone is {NOISE}."
    )
    for text in (str(gain), experts):
        typer.echo(f"{textwrap.fill(text, 100)}\n")
    terminal.print_results(results, comparison.left_out(model), comparison.expert_of(model))


def truth(X: np.ndarray) -> np.ndarray:
    """Return a surface with fast and slow parts over [0, 1]²."""
    x, z = X.T
    return (
        np.sin(24.0 * x * (0.4 + x))
        + 0.7 * np.cos(20.0 * z + 9.0 * x)
        + np.exp(-40.0 * ((x - 0.3) ** 2 + (z - 0.7) ** 2))
    )


def make_data(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Observe the surface with noise at n random places, X (n, 2) and y (n,)."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, truth(X) + NOISE * rng.normal(size=n)


def fitted(X: np.ndarray, y: np.ndarray, show: bool) -> DistributedGPRegressor:
    """Fit distributed experts to these rows."""
    terminal.tell(f"fitting {len(X):,} rows with {N_EXPERTS} sparse experts", show)
    model = DistributedGPRegressor(
        expert="sparse", n_experts=N_EXPERTS, kernel="rbf", random_state=0, verbose=show
    ).fit(X, y)
    terminal.tell(f"{model.n_inducing_} inducing inputs; {model.kernel_}", show)
    return model.set_params(verbose=False)


def gain_of(model: DistributedGPRegressor, X: np.ndarray, y: np.ndarray, seconds: float) -> Gain:
    """Compare a model that was fitted to these rows in so many seconds with boosting, at new places."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    begin = perf_counter()
    boosting = HistGradientBoostingRegressor(random_state=0).fit(X, y)
    boosting_seconds = perf_counter() - begin
    new, observed = make_data(N_TEST, seed=1)
    lower, upper = model.predict_interval(new, coverage=0.9)
    return Gain(
        rows=len(X),
        places=len(new),
        seconds=seconds,
        boosting_seconds=boosting_seconds,
        error=metrics.rmse(truth(new), model.predict(new)),
        boosting_error=metrics.rmse(truth(new), boosting.predict(new)),
        inside=float(np.mean((lower <= observed) & (observed <= upper))),
    )


def _draw(
    model: DistributedGPRegressor,
    rows: tuple[np.ndarray, np.ndarray],
    new: np.ndarray,
    results: Sequence[comparison.Result],
    picture: Path,
) -> None:
    """Draw the prediction along a slice, and below it the aggregators: slice, distances, calibration."""
    from matplotlib import pyplot as plt

    from distgp.plotting import plot_calibration, plot_comparison, save_figure

    figure, axes = plt.subplot_mosaic("AAAA;BCDE", figsize=(18, 9), layout="constrained")
    _draw_prediction(model, *rows, axes["A"])
    _draw_aggregators(model, axes["B"])
    plot_comparison(results, "w2", axes["C"]).set_title(f"distance to the {results[0].name}")
    plot_comparison(results, "nlpd", axes["D"]).set_title("negative log predictive density")
    for name in ("pooled", "grbcm", "poe"):
        plot_calibration(model, new, truth(new), name, latent=True, label=name, ax=axes["E"])
    axes["E"].set_title("calibration of the function itself")
    save_figure(figure, picture)


def _on_slice() -> np.ndarray:
    """Return points along the slice, from a little before the rows to a little beyond them."""
    across = np.linspace(-0.15, 1.15, 300)
    return np.column_stack([across, np.full_like(across, SLICE)])


def _draw_prediction(model: DistributedGPRegressor, X: np.ndarray, y: np.ndarray, ax: Axes) -> None:
    """Draw what a user gains: the prediction and its interval, beside rows and the true surface."""
    points = _on_slice()
    lower, upper = model.predict_interval(points, coverage=0.9)
    near = np.argsort(np.abs(X[:, 1] - SLICE))[:DRAWN]
    ax.fill_between(points[:, 0], lower, upper, color="C0", alpha=0.2, label="90 % interval")
    ax.plot(X[near, 0], y[near], ".", color="0.4", markersize=5, label="rows next to the slice")
    ax.plot(points[:, 0], truth(points), color="black", linewidth=1, label="true surface")
    ax.plot(points[:, 0], model.predict(points), color="C0", label="prediction")
    ax.axvspan(0, 1, color="0.95", zorder=-1)
    title = f"a prediction from {len(X):,} rows, along a slice (grey: where the rows are)"
    ax.set(title=title, xlabel="first input", ylabel="target")
    ax.margins(x=0.0)
    ax.legend(loc="upper left", ncols=2)


def _draw_aggregators(model: DistributedGPRegressor, ax: Axes) -> None:
    """Draw the same slice as two aggregators see it."""
    points = _on_slice()
    ax.plot(points[:, 0], truth(points), color="black", linewidth=1, label="true surface")
    for color, name in (("C3", "poe"), ("C0", "pooled")):
        mean, std = model.predict(points, return_std=True, latent=True, aggregation=name)
        ax.plot(points[:, 0], mean, color=color, label=f"{name}, 90 % band of the surface")
        ax.fill_between(
            points[:, 0], mean - 1.645 * std, mean + 1.645 * std, color=color, alpha=0.2
        )
    ax.axvspan(0, 1, color="0.95", zorder=-1)
    ax.set(title="the same slice, experts combined in two ways", xlabel="first input")
    ax.legend(fontsize="small")
