"""The demonstration: more rows than one GP would like, and every aggregator beside the full sparse GP."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import typer

from distgp.cli.options import Given
from distgp.cli.terminal import print_results, refuse_existing, tell
from distgp.diagnostics.compare import Result, compare, expert_of, left_out, reference
from distgp.regressor import DistributedGPRegressor

N_EXPERTS = 64
N_TEST = 5_000
NOISE = 0.3


def demo(given: Given) -> None:
    """Fit 120,000 rows with distributed experts, compare all aggregators, draw a picture."""
    from distgp.plotting import check_suffix

    refuse_existing(given.force, given.output)
    check_suffix(given.output)
    model, full = _fitted(given.rows, show=not given.quiet)
    X, y = make_data(N_TEST, seed=1)
    results = compare(model, X, y, full, verbose=not given.quiet)
    _draw(model, X, results, given.output)
    print_results(results, left_out(model), expert_of(model))
    typer.echo(f"picture: {given.output}")


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


def _fitted(
    rows: int, show: bool
) -> tuple[DistributedGPRegressor, tuple[str, DistributedGPRegressor]]:
    """Fit distributed experts to this many rows, and the full GP with the same hyperparameters."""
    X, y = make_data(rows, seed=0)
    tell(f"fitting {rows:,} rows with {N_EXPERTS} sparse experts", show)
    model = DistributedGPRegressor(
        expert="sparse", n_experts=N_EXPERTS, kernel="rbf", random_state=0, verbose=show
    ).fit(X, y)
    tell(f"{model.n_inducing_} inducing inputs; {model.kernel_}", show)
    return model, reference(model, X, y)


def _draw(
    model: DistributedGPRegressor, X: np.ndarray, results: list[Result], picture: Path
) -> None:
    """Draw a slice of the surface, all aggregators' distance to the full GP and NLPD, and calibration."""
    from matplotlib import pyplot as plt

    from distgp.plotting import plot_calibration, plot_comparison, save_figure

    figure, axes = plt.subplots(1, 4, figsize=(18, 4.4), layout="constrained")
    across = np.linspace(-0.15, 1.15, 300)
    points = np.column_stack([across, np.full_like(across, 0.7)])
    axes[0].plot(across, truth(points), color="black", linewidth=1, label="truth")
    for color, name in (("C3", "poe"), ("C0", "pooled")):
        mean, std = model.predict(points, return_std=True, latent=True, aggregation=name)
        axes[0].plot(across, mean, color=color, label=f"{name}, with 90 % of f")
        axes[0].fill_between(across, mean - 1.645 * std, mean + 1.645 * std, color=color, alpha=0.2)
    axes[0].axvspan(0, 1, color="0.95", zorder=-1)
    axes[0].set(xlabel="x, with z = 0.7 (grey: where the data are)", title="a slice")
    axes[0].legend(fontsize="small")
    plot_comparison(results, "w2", axes[1]).set_title(f"distance to the {results[0].name}")
    plot_comparison(results, "nlpd", axes[2]).set_title("negative log predictive density")
    for name in ("pooled", "grbcm", "poe"):
        plot_calibration(model, X, truth(X), name, latent=True, label=name, ax=axes[3])
    axes[3].set_title("calibration of the function itself")
    save_figure(figure, picture)
