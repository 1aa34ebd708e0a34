"""The whole job: fit and predict with defaults, beside gradient boosting, GPyTorch's SVGP and GPBoost.

    python benchmarks/jobs.py --data FOLDER [--device cuda]     writes benchmarks/results/jobs-DEVICE.csv
    python benchmarks/jobs.py --data FOLDER --tune [--device cuda]     looks for SVGP's settings first
    python benchmarks/jobs.py --page                            writes the tables into docs/speed.md

The four real tasks, random split 80/20 (of traffic one row an hour); Friedman's first function (five
columns, noise 1) with 10⁴ and 2 · 10⁴ rows; and draws of a rough Gaussian process in four columns
(lengthscale 0.25, noise 0.2) with 10⁵ and 10⁶ rows, and in eight (lengthscale 1); 10,000 more to predict;
and tables with many columns, numbers and texts, most of which mean nothing, with a tenth of the rows to
predict (`table`); one seed. distgp has its defaults and nothing else; of rough draws also nearest rows with
256 inducing inputs ("nearest"). The others get a column of 0 and 1 for every text. Seconds are
those of the wall and, beside them, those of all processor cores together. Boosting is scikit-learn's,
once with one standard deviation for all rows, that of its errors on a fifth of the rows held out, and once
with one for each row (`benchmarks/others.py`).
SVGP (minibatches of 1,024, Adam) gets ten times the seconds that distgp took, and the learning rate and
number of inducing inputs that `--tune` found best on rows held out of the training rows; where its
objective still changed it is "not converged". GPBoost has its Vecchia approximation with its defaults; it
runs on the CPU alone, up to 50,000 rows. SVGP and GPBoost are stopped after `--limit` seconds.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from _measure import measured_with, processor, read_csv, table_in_page, write_csv
from nearest import draw
from others import (
    RATES,
    SIZES,
    boosting,
    boosting_with_spreads,
    figures,
    gpboost,
    now,
    svgp,
    with_one_spread,
)
from sklearn.datasets import make_friedman1

import distgp
from distgp.selection import hold_out
from experiments.datasets import TASKS

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
SETTINGS = Path(__file__).parent / "results" / "svgp.csv"
SMOOTH = {"smooth, 10⁴ rows": 10_000, "smooth, 2 · 10⁴ rows": 20_000}
ROUGH = {
    "rough, 10⁵ rows": (100_000, 4, 0.25),
    "rough, 10⁶ rows": (1_000_000, 4, 0.25),
    "rough, 10⁶ rows, 8 columns": (1_000_000, 8, 1.0),
}
"""Rows, columns and the lengthscale."""
NEAREST_ROWS = 'expert="nearest"'
NEAREST = {"expert": "nearest", "n_inducing": 256}
"""What is given where it is not the default that is measured, and its name."""
TABLES = {
    "40 texts and 33 numbers": (2_344, 33, 40, 7),
    "9 texts and 14 numbers": (12_321, 14, 9, 4),
    "26 numbers": (3_724, 26, 0, 0),
}
"""Rows, numbers, texts and levels of each text, of tables that `table` makes."""
GPBOOST_ROWS = 50_000
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Table = tuple[pd.DataFrame, np.ndarray, pd.DataFrame, np.ndarray]
Row = dict[str, object]


def table(n: int, numbers: int, texts: int, levels: int) -> Table:
    """Make a table of so many columns, of which four numbers and the first six texts matter.

    y = sin 2x₀ + ½x₁x₂ + x₃ + 0.3 Σ(an effect of each text) + 0.3ε; numbers, effects and ε are standard
    normal. The last tenth of the rows is to be predicted.
    """
    rng = np.random.default_rng(0)
    X = {f"x{j}": rng.normal(size=n) for j in range(numbers)}
    codes = rng.integers(max(1, levels), size=(n, texts))
    effects = rng.normal(size=(texts, levels))
    names = np.array([f"level {code}" for code in range(levels)], dtype=object)
    X |= {f"t{j}": names[codes[:, j]] for j in range(texts)}
    y = np.sin(2 * X["x0"]) + 0.5 * X["x1"] * X["x2"] + X["x3"] + 0.3 * rng.normal(size=n)
    for j in range(min(texts, 6)):
        y = y + 0.3 * effects[j][codes[:, j]]
    rows, last = pd.DataFrame(X), n - n // 10
    return rows.iloc[:last], y[:last], rows.iloc[last:], y[last:]


def in_numbers(split: Split | Table) -> Split:
    """The same rows with a column of 0 and 1 for every text."""
    X, y, X_test, y_test = split
    both = pd.get_dummies(pd.concat([pd.DataFrame(X), pd.DataFrame(X_test)]), dtype=float)
    numbers = both.to_numpy(float)
    return numbers[: len(y)], y, numbers[len(y) :], y_test


def tasks(data: str | None) -> Iterator[tuple[str, Callable[[], Split | Table]]]:
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
    for name, drawn in ROUGH.items():

        def rough(drawn: tuple[int, int, float] = drawn) -> Split:
            X, y, X_test, _, y_test, _ = draw(*drawn, 0, "cpu", N=10_000)
            return X.numpy(), y.numpy(), X_test.numpy(), y_test.numpy()

        yield name, rough
    for name, sizes in TABLES.items():

        def made(sizes: tuple[int, int, int, int] = sizes) -> Table:
            return table(*sizes)

        yield name, made


def cpu_seconds() -> float:
    """The seconds of all cores in this process so far, and in those that it started and that have ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


def with_cpu(rows: Iterator[Row]) -> Iterator[Row]:
    """Note the seconds of all cores that each row took to make."""
    begin = cpu_seconds()
    for row in rows:
        yield row | {"cpu_s": cpu_seconds() - begin}
        begin = cpu_seconds()


def ours(
    split: Split | Table,
    device: str,
    time_limit: float,
    name: str = "distgp",
    given: dict[str, Any] | None = None,
) -> Iterator[Row]:
    """The default, or what is given."""
    X, y, X_test, y_test = split
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = distgp.DistributedGPRegressor(
            random_state=0, device=device, time_limit=time_limit, **(given or {})
        ).fit(X, y)
        fitted = time.perf_counter()
        mean, std = gp.predict(X_test, return_std=True)
    done = time.perf_counter()
    seconds = {"fit_s": fitted - begin, "predict_us": (done - fitted) / len(y_test) * 1e6}
    chosen = "" if gp.choice_ is None else gp.choice_.best.name
    row: Row = {"model": name, "chosen": chosen, "seconds": done - begin}
    yield row | seconds | figures(y_test, mean, std)


def boosted(split: Split) -> Iterator[Row]:
    """Boosting with one standard deviation for all rows, and with one for each."""
    X, y, X_test, y_test = split
    ways: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
        "gradient boosting": lambda: with_one_spread(boosting(), X, y, X_test, "random"),
        "gradient boosting, spread by row": lambda: boosting_with_spreads(X, y, X_test, "random"),
    }
    for name, predict in ways.items():
        begin = time.perf_counter()
        mean, std = predict()
        seconds = time.perf_counter() - begin
        yield {"model": name, "seconds": seconds} | figures(y_test, mean, std)


def sparse(split: Split, device: str, seconds: float, given: Row) -> Iterator[Row]:
    """SVGP with these settings, where GPyTorch is installed."""
    X, y, X_test, y_test = split
    A, b, C = (torch.as_tensor(values, device=device) for values in (X, y, X_test))
    settings: dict[str, Any] = {"m": int(str(given["m"])), "rate": float(str(given["rate"]))}
    if (made := svgp(A, b, C, seconds, device, **settings)) is not None:
        row: Row = {"model": "SVGP", "seconds": seconds} | settings | made.row()
        yield row | figures(y_test, made.mean, made.std)


def settings_of(task: str) -> Row:
    """The settings of SVGP that `--tune` found best for a task."""
    rows = [row for row in read_csv(SETTINGS) if row["task"] == task] if SETTINGS.exists() else []
    return dict(
        min(rows, key=lambda row: float(row["nlpd"]), default={"m": "1024", "rate": "0.01"})
    )


def tune(name: str, split: Split, device: str, seconds: float) -> Iterator[Row]:
    """Every setting of SVGP, measured on a fifth of the training rows."""
    X, y = split[:2]
    train, out = hold_out(len(y), "random")
    part = (X[train], y[train], X[out], y[out])
    for m in SIZES:
        for rate in RATES:
            for row in sparse(part, device, seconds, {"m": m, "rate": rate}):
                yield {"task": name} | row


def vecchia(split: Split, limit: float) -> Iterator[Row]:
    """GPBoost, where it is installed and there are not too many rows."""
    X, y, X_test, y_test = split
    if importlib.util.find_spec("gpboost") is None or len(X) > GPBOOST_ROWS:
        return
    found = within(limit, X, y, X_test)
    if found is None:
        yield {"model": "GPBoost", "note": f"stopped after {limit:.0f} s"}
    else:
        yield {"model": "GPBoost", "seconds": found[2]} | figures(y_test, found[0], found[1])


def measured(
    task: str, split: Split | Table, options: argparse.Namespace, took: float
) -> Iterator[Row]:
    """The models that were asked for; `took` are distgp's seconds of an earlier run."""
    device, models = options.device, options.models
    if "distgp" in models:
        begin = now(device)
        yield from with_cpu(ours(split, device, options.time_limit))
        took = now(device) - begin
    if "nearest" in models and task in ROUGH:
        yield from with_cpu(ours(split, device, options.time_limit, NEAREST_ROWS, NEAREST))
    plain = in_numbers(split)
    if "boosting" in models:
        yield from with_cpu(boosted(plain))
    if "svgp" in models and took:
        seconds = min(max(10.0, 10 * took), options.limit)
        yield from with_cpu(sparse(plain, device, seconds, settings_of(task)))
    if "gpboost" in models and device == "cpu":
        yield from with_cpu(vecchia(plain, options.limit))


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


def number(text: str) -> str:
    if not text:
        return "–"
    return f"{float(text):.3g}" if float(text) < 1000 else f"{float(text):,.0f}"


COLUMNS = {
    "seconds": "seconds",
    "cpu_s": "CPU seconds",
    "rmse": "RMSE",
    "nlpd": "NLPD",
    "cover": "90 % cover",
}
NAMES = {"gradient boosting": "boosting", "gradient boosting, spread by row": "boosting 2"}
"""What the page calls models that have long names."""


def named(row: dict[str, str]) -> str:
    return NAMES.get(row["model"], row["model"])


def shared_notes(rows: list[dict[str, str]]) -> dict[str, str]:
    """The notes that all rows of a model have."""
    notes: dict[str, set[str]] = {}
    for row in rows:
        notes.setdefault(named(row), set()).add(row.get("note", ""))
    return {model: found.pop() for model, found in notes.items() if len(found) == 1}


def lines_of(rows: list[dict[str, str]]) -> list[str]:
    """The table: one group of lines for each task."""
    notes, last = shared_notes(rows), ""
    said = [f"{model}: {note}." for model, note in notes.items() if note]
    head = ["task", "model", *COLUMNS.values()]
    lines = [" ".join([measured_with(rows, named), *said]), ""]
    lines += ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for row in rows:
        note = "" if named(row) in notes else row.get("note", "")
        own = ", ".join(filter(None, (row["chosen"], note)))
        model = named(row) + (f" ({own})" if own else "")
        task = f"{row['task']} ({int(row['n']):,}×{row['d']})" if row["task"] != last else ""
        cells = [task, model, *(number(row.get(name, "")) for name in COLUMNS)]
        lines.append("| " + " | ".join(cells) + " |")
        last = row["task"]
    return lines


def page() -> None:
    """Write the tables into the page.

    Boosting, which uses no GPU, stands in the CPU's alone. SVGP had little time on the GPU and was not
    tuned there: the leaderboard has it.
    """
    for device in ("cpu", "cuda"):
        if file_of(device).exists():
            rows = read_csv(file_of(device))
            left_out = [] if device == "cpu" else [*NAMES.values(), "SVGP"]
            shown = [row for row in rows if named(row) not in left_out]
            table_in_page(PAGE, f"jobs {device}", lines_of(shown))


MODELS = ("distgp", "nearest", "boosting", "svgp", "gpboost")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="The whole job, beside its peers")
    parser.add_argument("--data", default=None, help="folder with the UCI files")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument(
        "--limit", type=float, default=1800.0, help="most seconds of SVGP and GPBoost"
    )
    parser.add_argument("--only", nargs="+", default=[], help="names of tasks; others stay")
    parser.add_argument(
        "--models", nargs="+", default=MODELS, choices=MODELS, help="others stay as they are"
    )
    parser.add_argument(
        "--time-limit", type=float, default=180.0, help="more than the default on a busy machine"
    )
    parser.add_argument(
        "--busy",
        action="store_true",
        help="other work runs on the machine: keep no seconds but the CPU's",
    )
    parser.add_argument("--tune", action="store_true", help="look for SVGP's settings alone")
    parser.add_argument("--seconds", type=float, default=30.0, help="of each setting, with --tune")
    parser.add_argument("--page", action="store_true", help="write the tables and measure nothing")
    return parser.parse_args()


def main() -> None:
    options = arguments()
    device = options.device
    cores = f"{processor()}, {torch.get_num_threads()} threads"
    machine = torch.cuda.get_device_name() if device == "cuda" else cores
    chosen = [task for task in tasks(options.data) if not options.only or task[0] in options.only]
    if options.page:
        page()
    elif options.tune:
        kept = read_csv(SETTINGS) if SETTINGS.exists() else []
        rows: list[Row] = [dict(row) for row in kept if row["task"] not in dict(chosen)]
        for name, make in chosen:
            for row in tune(name, in_numbers(make()), device, options.seconds):
                print(row, flush=True)
                rows.append(row | {"machine": machine})
                write_csv(rows, SETTINGS, device)
    else:
        measure(chosen, options, machine)


def measure(
    chosen: list[tuple[str, Callable[[], Split | Table]]], options: argparse.Namespace, machine: str
) -> None:
    """Measure tasks, and write the table after every model; a model takes the place of its earlier row."""
    path = file_of(options.device)
    rows: list[Row] = [dict(row) for row in read_csv(path)] if path.exists() else []
    order = [name for name, _ in tasks(None)]
    models = ["distgp", NEAREST_ROWS, *NAMES, "GPBoost", "SVGP"]
    for name, make in chosen:
        split = make()
        took = [row["seconds"] for row in rows if (row["task"], row["model"]) == (name, "distgp")]
        base: Row = {"task": name, "n": len(split[1]), "d": split[0].shape[1], "machine": machine}
        for row in measured(name, split, options, float(str(*took) or 0.0)):
            print(base | row, flush=True)
            same = (name, row["model"])
            kept = [one for one in rows if (one["task"], one["model"]) != same]
            timed = {"seconds": "", "fit_s": "", "predict_us": ""} if options.busy else {}
            rows = sorted(
                [*kept, base | row | timed],
                key=lambda one: (order.index(str(one["task"])), models.index(str(one["model"]))),
            )
            write_csv(rows, path, options.device)


if __name__ == "__main__":
    main()
