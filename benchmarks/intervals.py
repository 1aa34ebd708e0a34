"""Do intervals cover what they promise, before and after conformal calibration?

The paper's four tasks, each with a random split (80/20, of traffic one row an hour) and the paper's split
by years, and the default estimator with `calibrate="conformal"`: a fifth of its training rows is held out
of the fit, at random or, by years, from the end (`validation="last"`). One model gives both intervals:
those of its normal distributions, and those with the multiples that calibration found.

    python benchmarks/intervals.py --data FOLDER [--only co/years …] [--out FILE]
    python benchmarks/intervals.py --page            writes the table into docs/results.md
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path

import numpy as np
import torch
from _measure import measured_with, processor, read_csv, table_in_page, write_csv
from defaults import held_out, splits
from scipy.stats import norm

import distgp
from experiments.datasets import TASKS

RESULTS = Path(__file__).parent / "results" / "intervals.csv"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
COVERAGES = (0.5, 0.9, 0.95)
SHOWN = COVERAGES[:2]
"""The page's table has these; its last sentence is of all."""
Row = dict[str, object]


def measured(
    kind: str,
    time_limit: float,
    X: np.ndarray,
    y: np.ndarray,
    X_test: np.ndarray,
    y_test: np.ndarray,
) -> Row:
    """Coverage and mean width of both intervals on the test rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = distgp.DistributedGPRegressor(
            validation=held_out(kind), calibrate="conformal", time_limit=time_limit
        ).fit(X, y)
        mean, std = gp.predict(X_test, return_std=True)
        assert gp.choice_ is not None
        row: Row = {"chosen": gp.choice_.best.name, "held_out": len(y) - gp.experts_.row_count()}
        for coverage in COVERAGES:
            half = norm.ppf(0.5 + 0.5 * coverage) * std
            lower, upper = gp.predict_interval(X_test, coverage)
            for name, (low, high) in {
                "normal": (mean - half, mean + half),
                "conformal": (lower, upper),
            }.items():
                row[f"{name}_{coverage}"] = float(np.mean((low <= y_test) & (y_test <= high)))
                row[f"{name}_width_{coverage}"] = float(np.mean(high - low))
    return row


def page() -> None:
    """Write the table into the page, between its marks."""
    rows = read_csv(RESULTS)
    head = ["", *(f"{c:.0%}: normal → conformal" for c in SHOWN)]
    lines = ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head))]
    for row in rows:
        pairs = [
            f"{float(row[f'normal_{c}']):.3f} → {float(row[f'conformal_{c}']):.3f}" for c in SHOWN
        ]
        split = f"{row['task']}, {row['split']}"
        lines.append("| " + " | ".join([split, *pairs]) + " |")
    worst = {
        (kind, split): max(
            abs(float(r[f"{kind}_{c}"]) - c) for r in rows if r["split"] == split for c in COVERAGES
        )
        for kind in ("normal", "conformal")
        for split in ("random", "years")
    }
    plain = [row | {"device": ""} for row in rows]  # no times, so that threads do not matter
    told = measured_with(plain, lambda row: f"{row['task']} ({row['split']})")
    said = (
        "Largest distance from the coverage asked: on random splits "
        f"{worst['normal', 'random']:.3f} before, {worst['conformal', 'random']:.3f} after; "
        f"by years {worst['normal', 'years']:.3f} before, {worst['conformal', 'years']:.3f} after."
    )
    table_in_page(PAGE, "intervals", [*lines, "", said, told])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=None, help="folder with the UCI files")
    parser.add_argument("--page", action="store_true", help="write docs/results.md and no more")
    parser.add_argument("--only", nargs="+", default=[], help="such as co/years nox/random")
    parser.add_argument(
        "--time-limit", type=float, default=180.0, help="more than the default on a busy machine"
    )
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.page:
        page()
        return
    kept = read_csv(options.out) if options.only and options.out.exists() else []
    rows: list[Row] = [dict(r) for r in kept if f"{r['task']}/{r['split']}" not in options.only]
    for task, kind, split in splits(options.data):
        if "d = " in task or (options.only and f"{task}/{kind}" not in options.only):
            continue
        made = measured(kind, options.time_limit, *split)
        rows.append({"task": task, "split": kind, "n": len(split[1])} | made)
        print(rows[-1], flush=True)
        rows.sort(key=lambda row: (list(TASKS).index(str(row["task"])), str(row["split"])))
        write_csv(rows, options.out, f"{processor()}, {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()
