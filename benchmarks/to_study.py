"""Takes results of the benchmarks over into the studies of the paper that ask for the same.

`aggregation.py` runs the paper's synthetic prediction task on the same draws, partitions and inducing
inputs as the studies `synthetic-exact` and `synthetic-sparse`, so its rows with d = 2 are runs of
theirs. Rows that are taken over name their source; what a table has already stays.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import distgp
from distgp.paper import STUDIES
from distgp.paper.runner import CELL, read_rows, write_page, write_rows
from distgp.paper.study import Cell, Row, key_of

RESULTS = Path(__file__).parent / "results"


def finished(cell: Cell, row: Row, original: dict[str, str], source: str) -> Row:
    about = {"status": "ok", "error": "", "source": source, CELL: key_of(cell)}
    return cell | row | about | {name: original[name] for name in ("distgp", "torch", "device")}


def aggregation(kind: str) -> list[Row]:
    """Scores of every draw, and times of the first."""
    found: list[Row] = []
    with (RESULTS / "aggregation.csv").open() as file:
        originals = [r for r in csv.DictReader(file) if r["d"] == "2" and r["expert"] == kind]
    many = sorted({int(r["M"]) for r in originals} - {1})
    for original in originals:
        method = original["aggregator"]
        if method not in (*distgp.AGGREGATORS, "full"):
            continue
        scores: Row = {
            name: original[name] or None
            for name in ("rmse", "nlpd", "w2", "coverage", "weight_sum", "weight_norm")
        }
        if method == "full":
            scores["w2"] = None
        for M in many if method == "full" else [int(original["M"])]:
            cell = {"seed": int(original["seed"]), "n": int(original["n"]), "side": 50, "M": M}
            row = {"method": method} | scores
            found.append(finished(cell, row, original, "benchmarks/aggregation.py"))
            if cell["seed"] == 0 and method != "full":  # which was timed in another way
                taken = float(original["combine_s"] or 0.0) + float(original["predict_s"])
                timed = cell | {"alone": True}
                row = {"method": method, "seconds": taken}
                found.append(finished(timed, row, original, "benchmarks/aggregation.py"))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where the studies' tables are")
    folder = parser.parse_args().folder
    taken = {f"synthetic-{kind}": aggregation(kind) for kind in ("exact", "sparse")}
    for name, rows in taken.items():
        path = folder / f"{name}.csv"
        before = read_rows(path) if path.exists() else []
        done = {row[CELL] for row in before}
        write_rows(path, [*before, *(row for row in rows if row[CELL] not in done)])
        print(write_page(STUDIES[name](), folder, read_rows(path)))
