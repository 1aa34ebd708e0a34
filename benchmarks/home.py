"""The picture of the README and of the home page. Takes seconds, and measures nothing.

On the left a model fitted to 120 rows, with the interval that should hold nine of ten observations. On the
right the errors on all standard tables of the leaderboard with more than 10,000 rows, and the seconds in
which distgp learnt and predicted each, from results/uci-cuda.csv.

    python benchmarks/home.py [--out FILE]    writes docs/home.png
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from _measure import read_csv
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

import distgp
from distgp import plotting

RESULTS = Path(__file__).parent / "results" / "uci-cuda.csv"
PICTURE = Path(__file__).parents[1] / "docs" / "home.png"
MANY = 10_000
MODELS = {"default": ("distgp", "C0"), "SVGP": ("SVGP", "0.55"), "boosting": ("boosting", "0.78")}
"""Names of models in the results, and what they are called and coloured in the picture."""
LEAST = 0.02
"""The part of the highest bar below which a bar cannot be seen, and has its number written on it."""


def prediction(ax: Axes) -> None:
    """Draw a prediction with its band: narrow where rows are, wide in the gap between them."""
    rng = np.random.default_rng(0)
    x = np.concatenate([rng.uniform(0.0, 4.0, 60), rng.uniform(6.0, 10.0, 60)])[:, None]
    y = np.sin(x[:, 0]) + 0.3 * x[:, 0] + 0.2 * rng.normal(size=len(x))
    points = np.linspace(-0.5, 10.5, 400)[:, None]
    gp = distgp.DistributedGPRegressor(random_state=0).fit(x, y)
    mean = gp.predict(points)
    lower, upper = gp.predict_interval(points, coverage=0.9)
    ax.fill_between(points[:, 0], lower, upper, alpha=0.25, label="90 % interval")
    ax.plot(points[:, 0], mean, label="prediction")
    ax.plot(x[:, 0], y, "k.", markersize=4, label="rows")
    ax.set(title="A prediction and how sure it is", xlabel="input", ylabel="target")
    ax.legend(frameon=False, loc="upper left")


def errors(ax: Axes, rows: list[dict[str, str]]) -> None:
    """Draw the error of each model on each table with many rows, and write distgp's seconds below."""
    many = [row for row in rows if int(row["n"]) > MANY and row["split"] == "0"]
    many.sort(key=lambda row: int(row["n"]))
    tables = list(dict.fromkeys(row["table"] for row in many))
    found = {(row["table"], row["model"]): float(row["rmse"]) for row in many}
    highest = max(found[table, model] for table in tables for model in MODELS)
    for place, (model, (name, color)) in enumerate(MODELS.items()):
        heights = [found[table, model] for table in tables]
        x = np.arange(len(tables)) + 0.27 * (place - 1)
        bars = ax.bar(x, heights, 0.25, color=color, label=name)
        small = [f"{height:.1g}" if height < LEAST * highest else "" for height in heights]
        ax.bar_label(bars, small, fontsize=7, rotation=90, padding=2, color=color)
    ours = {row["table"]: row for row in many if row["model"] == "default"}
    ax.set_xticks(range(len(tables)), [_below(ours[table]) for table in tables], fontsize=8)
    ax.set(title="Error on six standard tables: lower is better", ylabel="error / spread of target")
    ax.legend(frameon=False)


def _below(row: dict[str, str]) -> str:
    """Say which table a result of distgp is on, how large that is, and how long it took."""
    seconds = float(row["fit"]) + float(row["predict"])
    return f"{row['table']}\n{int(row['n']):,} rows\n{seconds:.0f} s"


def main() -> None:
    """Draw and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=PICTURE)
    options = parser.parse_args()
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(11, 3.6), layout="constrained", width_ratios=[1.0, 1.4]
    )
    prediction(left)
    errors(right, read_csv(RESULTS))
    for ax in (left, right):
        ax.spines[["top", "right"]].set_visible(False)
    plotting.save_figure(figure, options.out)
    print(options.out)


if __name__ == "__main__":
    main()
