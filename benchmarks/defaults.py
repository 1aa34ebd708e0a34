"""How good are the defaults on real tables, beside what anyone would try first?

The paper's four tasks, each with a random split (80/20) and the paper's split by years, and two synthetic
families. `distgp, default` leaves all to the estimator but how rows are held out for its choice:
`validation="random"` on random splits, `validation="last"` by years. Its candidates are fitted in full
too, so that the loss of the choice shows. Ridge regression, gradient boosting and the random forest
predict Gaussians with the standard deviation of their errors on a fifth of the training rows held out.

    python benchmarks/defaults.py --data FOLDER      writes benchmarks/results/defaults.csv as it goes
    python benchmarks/defaults.py --page             writes the tables into docs/defaults.md
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
from _measure import read_csv, write_csv
from nearest import draw, figures
from sklearn.ensemble import HistGradientBoostingRegressor, RandomForestRegressor
from sklearn.linear_model import RidgeCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import distgp
from distgp.selection.candidates import ways_to_fit
from distgp.selection.trials import with_spread
from experiments.datasets import TASKS

RESULTS = Path(__file__).parent / "results" / "defaults.csv"
SEEDS = RESULTS.with_name("defaults-seeds.csv")
PAGE = Path(__file__).parents[1] / "docs" / "defaults.md"
SYNTHETIC = {"rough, d = 4": (4, 0.25), "smooth, d = 4": (4, 2.0)}
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


def default(kind: str, X: np.ndarray, y: np.ndarray, seed: int, device: str):
    validation = "last" if kind == "years" else "random"
    return distgp.DistributedGPRegressor(
        validation=validation, random_state=seed, device=device
    ).fit(X, y)


def measured(kind: str, split: Split, device: str) -> Iterator[Row]:
    """Every model on one split."""
    X, y, X_test, y_test = split
    begin = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gp = default(kind, X, y, 0, device)
        fitted = time.perf_counter()
        mean, std = gp.predict(X_test, return_std=True)
    seconds = {"seconds": time.perf_counter() - begin, "fit_s": fitted - begin}
    found = ", ".join(sorted({type(w.message).__name__ for w in told}))
    assert gp.choice_ is not None
    row: Row = {"model": "distgp, default", "chosen": gp.choice_.best.name, "warnings": found}
    row["choice_s"] = sum(trial.seconds for trial in gp.choice_.trials)
    yield row | figures(y_test, mean, std) | seconds
    for candidate in ways_to_fit(len(X)):
        begin = time.perf_counter()
        if candidate.name != gp.choice_.best.name:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                settings: Any = dict(candidate.settings)
                one = distgp.DistributedGPRegressor(device=device, **settings)
                mean, std = one.fit(X, y).predict(X_test, return_std=True)
            taken = {"seconds": time.perf_counter() - begin}
            yield {"model": f"distgp, {candidate.name}"} | figures(y_test, mean, std) | taken
    peers: dict[str, Callable[[], Any]] = {
        "ridge regression": lambda: make_pipeline(
            StandardScaler(), RidgeCV(np.logspace(-3, 5, 17))
        ),
        "gradient boosting": lambda: HistGradientBoostingRegressor(random_state=0),
        "random forest": lambda: RandomForestRegressor(n_jobs=2, random_state=0),
    }
    for name, make in peers.items():
        begin = time.perf_counter()
        mean, std = with_spread(make(), X, y, X_test)
        taken = {"seconds": time.perf_counter() - begin}
        yield {"model": name} | figures(y_test, mean, np.asarray(std)) | taken
    mean, std = np.full(len(y_test), y.mean()), np.full(len(y_test), y.std())
    yield {"model": "training mean"} | figures(y_test, mean, std)


def glance(rows: list[dict[str, str]]) -> list[str]:
    """One line per split: the default beside the best of its candidates and the best of the others."""
    lines = ["| | default | best candidate | best of the others |", "| --- | --- | --- | --- |"]
    below, splits_ = 0, list(dict.fromkeys((row["task"], row["split"]) for row in rows))
    for task, kind in splits_:
        own = [row for row in rows if (row["task"], row["split"]) == (task, kind)]
        ours = [row for row in own if row["model"].startswith("distgp")]
        others = [row for row in own if row not in ours]
        best, peer = (min(some, key=lambda row: float(row["nlpd"])) for some in (ours, others))
        name = best["chosen"] or best["model"].removeprefix("distgp, ")
        below += float(ours[0]["nlpd"]) < float(peer["nlpd"])
        cells = [f"{float(ours[0]['nlpd']):.3f} ({ours[0]['chosen']})"]
        cells += [f"{float(best['nlpd']):.3f} ({name})"]
        cells += [f"{float(peer['nlpd']):.3f} ({peer['model']})"]
        lines.append(f"| {task}, {kind} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        f"The default is below all others on {below} of these {len(splits_)} splits.",
    ]


def page() -> None:
    """Write the tables into the page, between its marks."""
    rows = read_csv(RESULTS)
    lines = ["", "## At a glance: NLPD", "", *glance(rows)]
    for task, kind in dict.fromkeys((row["task"], row["split"]) for row in rows):
        lines += ["", f"### {task}, {'split by years' if kind == 'years' else 'random split'}", ""]
        lines += ["| | RMSE | NLPD | 90 % cover | seconds | of these the choice |"]
        lines += ["| --- | --- | --- | --- | --- | --- |"]
        for row in rows:
            if (row["task"], row["split"]) == (task, kind):
                name = row["model"] + (f" ({row['chosen']})" if row["chosen"] else "")
                values = [row[n] for n in ("rmse", "nlpd", "cover", "seconds", "choice_s")]
                cells = " | ".join(f"{float(v):.3g}" if v else "" for v in values)
                lines.append(f"| {name} | {cells} |")
    found = read_csv(SEEDS)
    lines += ["", "## Seeds", "", "The default alone, with other seeds, split by years.", ""]
    lines += [
        "| task | seeds | RMSE | NLPD | 90 % cover | chosen |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for task in dict.fromkeys(row["task"] for row in found):
        own = [row for row in found if row["task"] == task]
        spans = []
        for name in ("rmse", "nlpd", "cover"):
            values = [float(row[name]) for row in own]
            spans.append(f"{min(values):.3g} – {max(values):.3g}")
        taken = ", ".join(f"{n} × {c}" for c, n in Counter(row["chosen"] for row in own).items())
        lines.append(f"| {task} | {len(own)} | {' | '.join(spans)} | {taken} |")
    text = PAGE.read_text(encoding="utf-8")
    head = text[: text.index("<!-- tables -->")]
    PAGE.write_text(head + "<!-- tables -->\n" + "\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=None, help="folder with the UCI files")
    parser.add_argument("--page", action="store_true", help="write docs/defaults.md and no more")
    parser.add_argument("--only", nargs="+", default=[], help="such as co/years nox/random")
    parser.add_argument("--seeds", type=int, default=0, help="seeds of the default alone")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.page:
        page()
        return
    rows: list[Row] = []
    seeds: list[Row] = []
    for task, kind, split in splits(options.data):
        if options.only and f"{task}/{kind}" not in options.only:
            continue
        base: Row = {"task": task, "split": kind, "n": len(split[1]), "d": split[0].shape[1]}
        for seed in range(options.seeds):
            gp = default(kind, split[0], split[1], seed, options.device)
            mean, std = gp.predict(split[2], return_std=True)
            assert gp.choice_ is not None
            row = {"seed": seed, "chosen": gp.choice_.best.name} | figures(split[3], mean, std)
            seeds.append(base | row)
            print(seeds[-1], flush=True)
            write_csv(seeds, SEEDS, f"{options.device}, {torch.get_num_threads()} threads")
        for row in () if options.seeds else measured(kind, split, options.device):
            rows.append(base | row)
            shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in rows[-1].items()}
            print("  ".join(f"{name} {value}" for name, value in shown.items()), flush=True)
            machine = f"{options.device}, {torch.get_num_threads()} threads"
            write_csv(rows, options.out, machine)


if __name__ == "__main__":
    main()
