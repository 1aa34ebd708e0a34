"""How good are the defaults on real tables, beside what anyone would try first?

The paper's four tasks, each with a random split (80/20, of traffic one row an hour) and the paper's split
by years, and two synthetic families. `distgp, default` leaves all to the estimator but how rows are held
out for its choice: `validation="random"` on random splits, `validation="last"` by years. The ways that it
can try are fitted in full too, so that the loss of the choice shows. Ridge regression, gradient boosting
and the random forest predict Gaussians with the standard deviation of their errors on training rows held
out in the same way, boosting also with a second model's standard deviation for every row.

    python benchmarks/defaults.py --data FOLDER      writes benchmarks/results/defaults.csv as it goes;
                                                     --only and --models leave the other rows as they are
    python benchmarks/defaults.py --page             writes the tables into docs/results.md
    python benchmarks/defaults.py --data FOLDER --seeds 10 --only co/years
                                                     ten seeds of the default alone, defaults-seeds.csv
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import measured_with, processor, read_csv, table_in_page, write_csv
from nearest import draw
from others import boosting, boosting_with_spreads, figures, with_one_spread
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import distgp
from distgp.selection.candidates import ways_to_fit
from experiments.datasets import TASKS

RESULTS = Path(__file__).parent / "results" / "defaults.csv"
SEEDS = RESULTS.with_name("defaults-seeds.csv")
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
SYNTHETIC = {"rough, d = 4": (4, 0.25), "smooth, d = 4": (4, 2.0)}
PEERS = {
    "ridge regression": "ridge",
    "gradient boosting": "boosting",
    "gradient boosting, spread by row": "boosting 2",
    "random forest": "forest",
    "training mean": "mean",
}
"""The others, and what the page calls them."""
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
Row = dict[str, object]


def splits(data: str | None) -> Iterator[tuple[str, str, Split]]:
    """Each task with each of its splits: name, kind, and X, y, X_test, y_test."""
    for name, load in TASKS.items():
        task = load(data, True)
        for kind, part in (("random", task.at_random()), ("years", task)):
            yield name, kind, (part.X, part.y, part.X_test, part.y_test)
    for name, (d, lengthscale) in SYNTHETIC.items():
        X, y, X_test, _, y_test, _ = draw(20_000, d, lengthscale, 0, "cpu", N=4_000)
        yield name, "random", (X.numpy(), y.numpy(), X_test.numpy(), y_test.numpy())


def held_out(kind: str) -> str:
    """How rows are held out of the training rows, as the rows to predict are."""
    return "last" if kind == "years" else "random"


def default(kind: str, X: np.ndarray, y: np.ndarray, seed: int, options: argparse.Namespace):
    """Fit the default."""
    return distgp.DistributedGPRegressor(
        validation=held_out(kind),
        random_state=seed,
        device=options.device,
        time_limit=options.time_limit,
    ).fit(X, y)


def ours(kind: str, split: Split, options: argparse.Namespace) -> Iterator[Row]:
    """The default; a way that was taken at once has no seconds of choosing."""
    X, y, X_test, y_test = split
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gp = default(kind, X, y, 0, options)
        fitted = time.perf_counter()
        mean, std = gp.predict(X_test, return_std=True)
    seconds = {"seconds": time.perf_counter() - begin, "fit_s": fitted - begin}
    found = ", ".join(sorted({type(w.message).__name__ for w in told}))
    assert gp.choice_ is not None
    row: Row = {"model": "distgp, default", "chosen": gp.choice_.best.name, "warnings": found}
    if gp.choice_.validation != "one by one":
        row["choice_s"] = sum(trial.seconds for trial in gp.choice_.trials)
    yield row | figures(y_test, mean, std) | seconds


def candidates(split: Split, device: str) -> Iterator[Row]:
    """The ways that the default can try, each fitted in full."""
    X, y, X_test, y_test = split
    for candidate in ways_to_fit(len(X)):
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            settings: Any = dict(candidate.settings)
            one = distgp.DistributedGPRegressor(device=device, **settings)
            mean, std = one.fit(X, y).predict(X_test, return_std=True)
        taken = {"seconds": time.perf_counter() - begin}
        yield {"model": f"distgp, {candidate.name}"} | figures(y_test, mean, std) | taken


def others(kind: str, split: Split) -> Iterator[Row]:
    """What anyone would try first."""
    X, y, X_test, y_test = split
    ridge = make_pipeline(StandardScaler(), RidgeCV(np.logspace(-3, 5, 17)))
    forest = RandomForestRegressor(n_jobs=2, random_state=0)
    arrays = X, y, X_test, held_out(kind)
    peers: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
        "ridge regression": lambda: with_one_spread(ridge, *arrays),
        "gradient boosting": lambda: with_one_spread(boosting(), *arrays),
        "gradient boosting, spread by row": lambda: boosting_with_spreads(*arrays),
        "random forest": lambda: with_one_spread(forest, *arrays),
    }
    for name, predict in peers.items():
        begin = time.perf_counter()
        mean, std = predict()
        taken = {"seconds": time.perf_counter() - begin}
        yield {"model": name} | figures(y_test, mean, std) | taken
    mean, std = np.full(len(y_test), y.mean()), np.full(len(y_test), y.std())
    yield {"model": "training mean"} | figures(y_test, mean, std)


def measured(kind: str, split: Split, options: argparse.Namespace) -> Iterator[Row]:
    """The models that were asked for, on one split."""
    if "default" in options.models:
        yield from ours(kind, split, options)
    if "candidates" in options.models:
        yield from candidates(split, options.device)
    if "others" in options.models:
        yield from others(kind, split)


def split_rows(rows: list[dict[str, str]]) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """Each split's name, and its rows by their models."""
    for task, kind in dict.fromkeys((row["task"], row["split"]) for row in rows):
        own = [row for row in rows if (row["task"], row["split"]) == (task, kind)]
        yield f"{task.removesuffix(', d = 4')}, {kind}", {row["model"]: row for row in own}


def matrix(
    rows: list[dict[str, str]], figure: str, bold: bool, without: tuple[str, ...] = ()
) -> list[str]:
    """One line per split with a figure of every model, the lowest in bold where that is the best."""
    shown = {"distgp, default": "distgp"} | PEERS
    shown = {name: short for name, short in shown.items() if short not in without}
    lines = [f"| | {' | '.join(shown.values())} |", "| --- " * (1 + len(shown)) + "|"]
    for split, models in split_rows(rows):
        values = [float(models[name][figure]) for name in shown]
        cells = [
            f"**{value:.3g}**" if bold and value == min(values) else f"{value:.3g}"
            for value in values
        ]
        lines.append(f"| {split} | {' | '.join(cells)} |")
    return lines


def chosen(rows: list[dict[str, str]]) -> list[str]:
    """The splits of each way that the default took, and the most that it lost to another way."""
    taken: dict[str, list[str]] = {}
    lost: dict[str, float] = {}
    for split, models in split_rows(rows):
        default = models["distgp, default"]
        taken.setdefault(default["chosen"], []).append(split)
        ours = [nlpd(row) for name, row in models.items() if name.startswith("distgp")]
        if len(ours) > 1:
            lost[split] = nlpd(default) - min(ours)
    ways = [row for row in rows if row["model"].startswith("distgp, ")]
    fitted = {row["distgp"] for row in ways if row["model"] != "distgp, default"}
    now = {row["distgp"] for row in rows if row["model"] == "distgp, default"}
    worst = max(lost, key=lost.__getitem__)
    others = [split for split, _ in split_rows(rows) if split not in lost]
    left = f" (all but {'; '.join(others)})" if others else ""
    return [
        "| the default took | on |",
        "| --- | --- |",
        *(f"| {way} | {'; '.join(splits)} |" for way, splits in taken.items()),
        "",
        f"Other ways were fitted on {len(lost)} splits{left}, with distgp "
        f"{', '.join(sorted(fitted))}. Compared with them, the default of distgp "
        f"{', '.join(sorted(now))} lost most on {worst}: "
        f"its NLPD is {lost[worst]:.3f} above that of the best way.",
    ]


def wins(rows: list[dict[str, str]]) -> str:
    """On how many splits the default has the lowest NLPD."""
    found = [
        min((models[name] for name in ("distgp, default", *PEERS)), key=nlpd)
        for _, models in split_rows(rows)
    ]
    won = sum(row["model"] == "distgp, default" for row in found)
    beaten = [
        f"{split} (NLPD {nlpd(models['training mean']):.3g})"
        for split, models in split_rows(rows)
        if nlpd(models["training mean"]) < nlpd(models["distgp, default"])
    ]
    plain = f" Predicting the training mean is better on {'; '.join(beaten)}." if beaten else ""
    return f"distgp's default has the lowest NLPD on {won} of these {len(found)} splits.{plain}"


def told(rows: list[dict[str, str]]) -> str:
    """What the default and the others were measured with, named where they differ.

    The three tables are of the same fits, and have no times, so that threads do not matter.
    """

    def named(row: dict[str, str]) -> str:
        return PEERS.get(row["model"]) or row["task"].removesuffix(", d = 4")

    shown = [row | {"device": ""} for row in rows if row["model"] in ("distgp, default", *PEERS)]
    return measured_with(shown, named)


def half(rows: list[dict[str, str]]) -> str:
    """The covers of the default's 50 % intervals on random splits of real tables."""
    ours = [row for row in rows if row["model"] == "distgp, default" and row["task"] in TASKS]
    found = [float(row["cover50"]) for row in ours if row["split"] == "random"]
    return (
        "On the random splits of the four real tables, distgp's 50 % intervals cover "
        f"{min(found):.2f} to {max(found):.2f} of the test rows."
    )


def nlpd(row: dict[str, str]) -> float:
    return float(row["nlpd"])


def page() -> None:
    """Write the tables into the page, between its marks."""
    rows = read_csv(RESULTS)
    said = f"{wins(rows)} {told(rows)}"
    table_in_page(PAGE, "nlpd", [*matrix(rows, "nlpd", True, ("mean",)), "", said])
    table_in_page(PAGE, "rmse", matrix(rows, "rmse", True, ("boosting 2", "mean")))
    cover = matrix(rows, "cover", False, ("ridge", "forest", "mean"))
    table_in_page(PAGE, "cover", [*cover, "", half(rows)])
    table_in_page(PAGE, "chosen", chosen(rows))
    found = read_csv(SEEDS)
    table_in_page(PAGE, "seeds", [*of_every_seed(found), "", measured_with(found)])


def of_every_seed(found: list[dict[str, str]]) -> list[str]:
    """For each split the lowest and the highest figures of its seeds, and the ways that they took."""
    lines = []
    for task, kind in dict.fromkeys((row["task"], row["split"]) for row in found):
        own = [row for row in found if (row["task"], row["split"]) == (task, kind)]
        spans = []
        for name, said in (("rmse", "RMSE"), ("nlpd", "NLPD"), ("cover", "90 % cover")):
            values = [float(row[name]) for row in own]
            spans.append(f"{said} from {min(values):.3g} to {max(values):.3g}")
        ways = Counter(row["chosen"] for row in own).items()
        taken = "; ".join(f"{way} ({n} times)" if n > 1 else f"{way} (once)" for way, n in ways)
        lines.append(f"- {task}, {kind}, {len(own)} seeds: {', '.join(spans)}. Chosen: {taken}.")
    return lines


MODELS = ("default", "candidates", "others")
ORDER = ("distgp, default", "distgp, ", "ridge", "gradient", "random", "training")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=None, help="folder with the UCI files")
    parser.add_argument("--page", action="store_true", help="write the tables and measure nothing")
    parser.add_argument("--only", nargs="+", default=[], help="such as co/years nox/random")
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--seeds", type=int, default=0, help="seeds of the default alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument(
        "--time-limit", type=float, default=180.0, help="more than the default on a busy machine"
    )
    parser.add_argument(
        "--busy", action="store_true", help="other work runs on the machine: keep no seconds"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def key(row: Row) -> list[str]:
    """What a row is the figures of."""
    return [str(row.get(name, "")) for name in ("task", "split", "model", "seed")]


def place(row: Row) -> tuple[int, int, int]:
    """Where a row belongs in the table: by task, split and model."""
    tasks, kinds = [*TASKS, *SYNTHETIC], ("random", "years")
    model = next(i for i, start in enumerate(ORDER) if str(row["model"]).startswith(start))
    return tasks.index(str(row["task"])), kinds.index(str(row["split"])), model


def main() -> None:
    options = arguments()
    if options.page:
        page()
        return
    machine = f"{processor()}, {torch.get_num_threads()} threads"
    path = SEEDS if options.seeds else options.out
    rows: list[Row] = [dict(row) for row in read_csv(path)] if path.exists() else []
    for task, kind, split in splits(options.data):
        if options.only and f"{task}/{kind}" not in options.only:
            continue
        base: Row = {"task": task, "split": kind, "n": len(split[1]), "d": split[0].shape[1]}
        for row in (
            of_seeds(kind, split, options) if options.seeds else measured(kind, split, options)
        ):
            timed = dict.fromkeys(("seconds", "fit_s", "choice_s"), "") if options.busy else {}
            made = base | row | timed
            kept = [one for one in rows if key(one) != key(made)]
            rows = [*kept, made] if options.seeds else sorted([*kept, made], key=place)
            shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in made.items()}
            print("  ".join(f"{name} {value}" for name, value in shown.items()), flush=True)
            write_csv(rows, path, machine)


def of_seeds(kind: str, split: Split, options: argparse.Namespace) -> Iterator[Row]:
    """The default alone, with other seeds."""
    X, y, X_test, y_test = split
    for seed in range(options.seeds):
        gp = default(kind, X, y, seed, options)
        mean, std = gp.predict(X_test, return_std=True)
        assert gp.choice_ is not None
        row: Row = {"seed": seed, "chosen": gp.choice_.best.name}
        yield row | figures(y_test, mean, std)


if __name__ == "__main__":
    main()
