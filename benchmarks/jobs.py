"""The whole job: fit and predict with defaults, beside GPyTorch's SVGP, GPBoost and gradient boosting.

    python benchmarks/jobs.py --data FOLDER [--device cuda]     writes benchmarks/results/jobs-DEVICE.csv
    python benchmarks/jobs.py --page                            writes the tables into docs/speed.md, and
                                                                the README's table and picture

The four real tasks, random split 80/20; Friedman's first function (five columns, noise 1) with 10⁴ and
2 · 10⁴ rows; and draws of a rough Gaussian process in four columns (lengthscale 0.25, noise 0.1) with
10⁵ and 10⁶ rows; 10,000 more to predict; one seed. distgp has its
defaults and nothing else. SVGP (1,024 inducing inputs, minibatches of 1,024, Adam) gets as many seconds
as distgp took, 10 at least. GPBoost has its Vecchia approximation with its defaults and is stopped
after `--limit` seconds; it runs on the CPU alone, up to 50,000 rows. Boosting is scikit-learn's; its
standard deviation is that of its errors on a fifth of the rows held out.
"""

from __future__ import annotations

import argparse
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import processor, read_csv, table_in_page, write_csv
from matplotlib import pyplot as plt
from nearest import draw, figures, gpboost, held_out_spread, svgp
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor

import distgp
from distgp.plotting import save_figure
from experiments.datasets import TASKS

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
README = Path(__file__).parents[1] / "README.md"
TITLES = {
    "co": "CO of a gas turbine",
    "nox": "NOx of a gas turbine",
    "pm2.5": "PM2.5 in Beijing",
    "traffic": "traffic on a highway",
}
SMOOTH = {"smooth, 10⁴ rows": 10_000, "smooth, 2 · 10⁴ rows": 20_000}
ROUGH = {"rough, 10⁵ rows": 100_000, "rough, 10⁶ rows": 1_000_000}
GPBOOST_ROWS = 50_000
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Row = dict[str, object]


def tasks(data: str | None) -> Iterator[tuple[str, Callable[[], Split]]]:
    """Names and splits, each made when it is asked for."""
    for name, load in TASKS.items():

        def real(load: Callable[..., Any] = load) -> Split:
            task = load(data, True).at_random()
            return task.X, task.y, task.X_test, task.y_test

        yield name, real
    for name, n in SMOOTH.items():

        def smooth(n: int = n) -> Split:
            X, y = make_friedman1(n + 10_000, n_features=5, noise=1.0, random_state=0)
            return X[:n], y[:n], X[n:], y[n:]

        yield name, smooth
    for name, n in ROUGH.items():

        def rough(n: int = n) -> Split:
            X, y, X_test, _, y_test, _ = draw(n, 4, 0.25, 0, "cpu", N=10_000)
            return X.numpy(), y.numpy(), X_test.numpy(), y_test.numpy()

        yield name, rough


def measured(split: Split, device: str, limit: float) -> Iterator[Row]:
    X, y, X_test, y_test = split
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = distgp.DistributedGPRegressor(random_state=0, device=device).fit(X, y)
        fitted = time.perf_counter()
        mean, std = gp.predict(X_test, return_std=True)
    done = time.perf_counter()
    seconds = {"fit_s": fitted - begin, "predict_us": (done - fitted) / len(y_test) * 1e6}
    chosen = "" if gp.choice_ is None else gp.choice_.best.name
    row: Row = {"model": "distgp", "chosen": chosen, "seconds": done - begin}
    yield row | seconds | figures(y_test, mean, std)
    given = max(10.0, done - begin)
    A, b, C = (torch.as_tensor(values, device=device) for values in (X, y, X_test))
    if (made := svgp(A, b, C, given, device)) is not None:
        yield {"model": "SVGP", "seconds": given} | figures(y_test, *made)
    begin = time.perf_counter()
    boosted = HistGradientBoostingRegressor(random_state=0).fit(X, y)
    mean, spread = boosted.predict(X_test), held_out_spread(X, y, 0)
    taken: Row = {"model": "gradient boosting", "seconds": time.perf_counter() - begin}
    yield taken | figures(y_test, mean, np.full(len(mean), spread))
    if device == "cpu" and len(X) <= GPBOOST_ROWS:
        found = within(limit, X, y, X_test)
        if found is None:
            yield {"model": "GPBoost", "note": f"stopped after {limit:.0f} s"}
        else:
            yield {"model": "GPBoost", "seconds": found[2]} | figures(y_test, found[0], found[1])


def within(limit: float, *arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray, float] | None:
    """GPBoost's prediction, from a process that is stopped after so many seconds."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        try:
            return pool.apply_async(gpboost, arrays).get(limit)
        except multiprocessing.TimeoutError:
            pool.terminate()
            return None


def file_of(device: str) -> Path:
    return Path(__file__).parent / "results" / f"jobs-{device}.csv"


def page() -> None:
    for device in ("cpu", "cuda"):
        if not file_of(device).exists():
            continue
        rows = read_csv(file_of(device))
        lines = [
            f"{rows[0]['machine']}.",
            "",
            "| task | model | seconds | RMSE | NLPD | 90 % cover |",
            "| --- | --- | --- | --- | --- | --- |",
        ]
        for row in rows:
            name = row["model"] + (f" ({row['chosen']})" if row["chosen"] else "")
            task = f"{row['task']} ({int(row['n']):,} × {row['d']})"
            if row.get("note"):
                lines.append(f"| {task} | {name} | {row['note']} | – | – | – |")
                continue
            cells = " | ".join(f"{float(row[k]):.3g}" for k in ("seconds", "rmse", "nlpd", "cover"))
            lines.append(f"| {task} | {name} | {cells} |")
        table_in_page(PAGE, f"jobs {device}", lines)


def readme() -> None:
    """The table and the picture of the README: the real tasks on the CPU."""
    rows = [row for row in read_csv(file_of("cpu")) if row["task"] in TASKS and not row["note"]]
    found = {(row["task"], row["model"]): row for row in rows}
    models = list(dict.fromkeys(row["model"] for row in rows))
    heads = [f"{TITLES[name]}, {int(found[name, models[0]]['n']):,} rows" for name in TASKS]
    lines = [f"| RMSE / NLPD | {' | '.join(heads)} |", "| --- " * (len(TASKS) + 1) + "|"]
    for model in models:
        cells = [found[name, model] for name in TASKS]
        texts = [f"{float(c['rmse']):.3g} / {float(c['nlpd']):.3g}" for c in cells]
        lines.append(f"| {model} | " + " | ".join(texts) + " |")
    taken = [f"{float(found[name, models[0]]['seconds']):.0f}" for name in TASKS]
    lines.append("| seconds of distgp, and given to SVGP | " + " | ".join(taken) + " |")
    table_in_page(README, "jobs", lines)
    figure, axes = plt.subplots(1, len(TASKS), figsize=(10, 2.6), layout="constrained")
    for ax, name in zip(axes, TASKS, strict=True):
        heights = [float(found[name, model]["nlpd"]) for model in models]
        ax.bar(range(len(models)), heights, color=["C0", "0.7", "0.55"])
        ax.bar_label(ax.containers[0], fmt="{:.2f}")
        ax.set_xticks(range(len(models)), [m.replace("gradient ", "gradient\n") for m in models])
        ax.set(title=TITLES[name], ylim=(0, 1.15 * max(heights)))
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylabel("NLPD, lower is better")
    save_figure(figure, README.parent / "docs" / "gain.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="The whole job, beside its peers")
    parser.add_argument("--data", default=None, help="folder with the UCI files")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds that GPBoost may take")
    parser.add_argument("--only", nargs="+", default=[], help="names of tasks; others stay")
    parser.add_argument("--page", action="store_true", help="write the tables and measure nothing")
    options = parser.parse_args()
    if options.page:
        page()
        readme()
        return
    device = options.device
    if device == "cuda":
        machine = torch.cuda.get_device_name()
    else:
        machine = f"{processor()}, {torch.get_num_threads()} threads"
    kept = read_csv(file_of(device)) if options.only and file_of(device).exists() else []
    rows: list[Row] = [dict(row) for row in kept if row["task"] not in options.only]
    for name, make in tasks(options.data):
        if options.only and name not in options.only:
            continue
        split = make()
        base: Row = {"task": name, "n": len(split[1]), "d": split[0].shape[1], "machine": machine}
        for row in measured(split, device, options.limit):
            print(base | row, flush=True)
            order = [name for name, _ in tasks(None)]
            rows = sorted([*rows, base | row], key=lambda row: order.index(str(row["task"])))
            write_csv(rows, file_of(device), device)


if __name__ == "__main__":
    main()
