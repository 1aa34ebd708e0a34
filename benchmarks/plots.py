"""The pictures of docs/plots.md, docs/kernels.md and docs/maps.md, on made-up tables. Takes seconds.

The demand for electricity in 800 hours depends on the temperature, the hour, the wind, and on whether it
is a weekend; three more columns mean nothing. A quarter of the rows are held out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import distgp
from distgp import maps, plotting
from distgp.diagnostics.compare import compare, reference

ROWS = 800


def table(seed: int = 0) -> tuple[pd.DataFrame, np.ndarray]:
    """Rows with names, and the demand."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "temperature": rng.normal(12.0, 8.0, ROWS),
            "hour": rng.integers(0, 24, ROWS).astype(float),
            "wind": rng.gamma(3.0, 1.5, ROWS),
            "weekend": (rng.random(ROWS) < 2 / 7).astype(float),
            "humidity": rng.uniform(30.0, 100.0, ROWS),
            "pressure": rng.normal(1013.0, 9.0, ROWS),
            "sensor": rng.integers(1, 40, ROWS).astype(float),
        }
    )
    heating = 1.2 * np.logaddexp(0.0, (15.0 - X["temperature"]) / 2.0) + 0.03 * X["wind"] ** 2
    daily = 6.0 * np.sin(np.pi * (X["hour"] - 7.0) / 12.0) * (1.0 - 0.5 * X["weekend"])
    demand = 40.0 + heating + daily - 3.0 * X["weekend"] + 1.5 * rng.normal(size=ROWS)
    return X, np.asarray(demand)


def figure_of(drawn: Axes | Sequence[Axes]) -> Figure:
    first: Any = drawn if isinstance(drawn, Axes) else drawn[0]
    return first.figure


def one_input() -> Figure:
    """A model with one input, and the observations that it was fitted to."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0.0, 4.0, 60), rng.uniform(6.0, 10.0, 60)])[:, None]
    y = np.sin(x[:, 0]) + 0.3 * x[:, 0] + 0.2 * rng.normal(size=len(x))
    gp = distgp.DistributedGPRegressor(random_state=0).fit(x, y)
    return figure_of(plotting.plot_prediction(gp, x, y))


DRAWN: dict[str, distgp.Kernel] = {
    "rbf": distgp.RBF(1.0),
    "matern52": distgp.Matern52(1.0),
    "matern32": distgp.Matern32(1.0),
    "matern12": distgp.Matern12(1.0),
    "rational-quadratic": distgp.RationalQuadratic(1.0, alpha=0.2),
    "periodic(2.5)": distgp.Periodic(1.0, period=2.5),
    "linear": distgp.Linear(0.1),
    "constant": distgp.Constant(1.0),
    "linear + 0.1 * rbf": distgp.Linear(0.1) + 0.1 * distgp.RBF(1.0),
    "rbf(3) + 0.1 * matern12": distgp.RBF(3.0) + 0.1 * distgp.Matern12(1.0),
    "periodic(2.5) * rbf(3)": distgp.Periodic(1.0, period=2.5) * distgp.RBF(3.0),
    "linear * periodic(2.5)": distgp.Linear(0.1) * distgp.Periodic(1.0, period=2.5),
}
"""The kernels of docs/kernels.md by their texts; lengthscales that are not given are 1, and α is 0.2."""


def draws() -> Figure:
    """Three functions drawn from each kernel."""
    x = torch.linspace(-5.0, 5.0, 400, dtype=torch.float64)[:, None]
    figure, axes = plt.subplots(
        3, 4, figsize=(9.3, 6.0), sharex=True, sharey=True, layout="constrained"
    )
    for ax, (name, kernel) in zip(axes.flat, DRAWN.items(), strict=True):
        normal = np.random.default_rng(4).standard_normal((len(x), 3))
        L = np.linalg.cholesky(kernel(x).numpy() + 1e-8 * np.eye(len(x)))
        ax.plot(x[:, 0].numpy(), L @ normal, linewidth=1.1)
        ax.set_title(name, fontsize=10, family="monospace")
        ax.set(xlim=(-5.0, 5.0), ylim=(-3.7, 3.7))
        ax.tick_params(labelsize=9)
    return figure


def mapped() -> Figure:
    """The mean and the standard deviation of a field, and one simulation of it."""
    rng = np.random.default_rng(0)
    places = pd.DataFrame({"lon": rng.uniform(5, 15, 150), "lat": rng.uniform(46, 55, 150)})
    y = np.sin(places["lon"]) + np.cos(places["lat"]) + 0.2 * rng.normal(size=150)
    text = "matern32(200 km, columns=[lon, lat])"
    gp = distgp.DistributedGPRegressor(kernel=text, expert="exact", n_experts=1).fit(places, y)
    grid = maps.grid({"lon": np.linspace(5, 15, 80), "lat": np.linspace(46, 55, 100)})
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.4), layout="constrained")
    # Labels of bars stay apart from "lat", and that on the page.
    pads = {"w_pad": 0.1, "wspace": 0.06}
    cast(Any, figure.get_layout_engine()).set(**pads)
    field = maps.predict_grid(gp, grid, latent=True)
    plotting.plot_map(field, "mean", points=places, ax=axes[0])
    plotting.plot_map(field, "std", points=places, ax=axes[1])
    plotting.plot_map(maps.simulate(gp, grid, latent=True), "simulation", ax=axes[2])
    return figure


def pictures() -> Iterator[tuple[str, Figure]]:
    """Every picture and its name."""
    yield "kernels", draws()
    yield "map", mapped()
    X, y = table()
    train, test, y_train, y_test = X[200:], X[:200], y[200:], y[:200]
    gp = distgp.DistributedGPRegressor(random_state=0).fit(train, y_train)
    yield "prediction", one_input()
    yield "slices", figure_of(plotting.plot_slices(gp, train))
    yield "partial-dependence", figure_of(plotting.plot_partial_dependence(gp, train))
    yield "relevance", figure_of(plotting.plot_relevance(gp))
    yield "residuals", figure_of(plotting.plot_residuals(gp, test, y_test))
    yield "calibration", figure_of(plotting.plot_calibration(gp, test, y_test))
    kernels = distgp.DistributedGPRegressor(kernel="auto", random_state=0).fit(train, y_train)
    yield "choice", figure_of(plotting.plot_choice(kernels))
    yield "training", figure_of(plotting.plot_training(gp))
    experts = distgp.DistributedGPRegressor(expert="exact", n_experts=4, random_state=0)
    experts.fit(train, y_train)
    names = ["poe", "gpoe", "rbcm", "two-level"]
    results = compare(experts, test, y_test, reference(experts, train, y_train), names)
    yield "comparison", plotting.comparison_figure(results)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    folder = Path(__file__).resolve().parents[1] / "docs" / "plots"
    parser.add_argument("--out", type=Path, default=folder, help="folder for the pictures")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for name, figure in pictures():
        plotting.save_figure(figure, options.out / f"{name}.png")
        print(options.out / f"{name}.png")
