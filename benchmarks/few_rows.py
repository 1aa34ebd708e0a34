"""Do the intervals of the default estimator hold where rows are few for their columns?

Sums and compositions of sines of inputs spread evenly over [−1, 1]^d, with noise of standard deviation 0.1,
learnt by `DistributedGPRegressor()` from n rows, with the priors that few rows get and without them.
Written are, for each function and number of rows, the share of 500 new targets in their 90 % intervals,
and the NLPD in units of the training targets' standard deviation, as means over seeds with the lowest
cover of all; and how often a `CoverWarning` said that rows are too few.

    python benchmarks/few_rows.py [--seeds 10] [--only 15x8 …]     writes benchmarks/results/few-rows.csv
    python benchmarks/few_rows.py --page                           writes the table into docs/results.md
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import numpy as np
from _measure import measured_with, read_csv, table_in_page, write_csv

import distgp
from distgp.diagnostics import metrics
from distgp.plan import Plan
from distgp.selection import CoverWarning

RESULTS = Path(__file__).parent / "results" / "few-rows.csv"
PAGE = Path(__file__).parents[1] / "docs" / "results.md"
CASES = ((15, 8), (30, 8), (49, 8), (60, 60), (150, 60))
TESTED = 500
NOISE = 0.1


def of_the_sum(X: np.ndarray) -> np.ndarray:
    """A sine of the sum of all columns, which so few rows cannot show."""
    return np.sin(3 * X.sum(1) / np.sqrt(X.shape[1]))


def summed(X: np.ndarray) -> np.ndarray:
    """The sum of a sine of each column."""
    return np.sin(3 * X).sum(1) / np.sqrt(X.shape[1] / 2)


def of_two_columns(X: np.ndarray) -> np.ndarray:
    """Sines of two columns; the others mean nothing."""
    return np.sin(3 * X[:, 0]) + np.sin(2 * X[:, 1])


def of_one_column(X: np.ndarray) -> np.ndarray:
    """A sine of one column; the others mean nothing."""
    return np.sin(3 * X[:, 0])


FUNCTIONS = (of_the_sum, summed, of_two_columns, of_one_column)
SAID = {
    "of_the_sum": "sine of a sum",
    "summed": "sum of sines",
    "of_two_columns": "two columns",
    "of_one_column": "one column",
}
"""What the page calls them."""


def measured(
    function: Callable[[np.ndarray], np.ndarray], n: int, d: int, seed: int
) -> tuple[float, float, bool]:
    """Cover, NLPD, and whether there was a warning, of one fit."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n + TESTED, d))
    y = function(X) + NOISE * rng.standard_normal(n + TESTED)
    y = (y - y[:n].mean()) / y[:n].std()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        gp = distgp.DistributedGPRegressor().fit(X[:n], y[:n])
        mean, std = gp.predict(X[n:], return_std=True)
    warned = any(issubclass(one.category, CoverWarning) for one in told)
    figures = (y[n:], mean, np.square(std))
    return metrics.coverage(*figures), metrics.nlpd(*figures), warned


def measured_case(function: Callable[[np.ndarray], np.ndarray], n: int, d: int, seeds: int) -> dict:
    """The figures of one function and number of rows and columns, with the priors and without them."""
    row: dict[str, object] = {"rows": n, "columns": d, "function": function.__name__}
    for kind, few_rows in (("without", False), ("", Plan.few_rows)):
        with patch.object(Plan, "few_rows", few_rows):
            found = np.array([measured(function, n, d, seed) for seed in range(seeds)])
        ending = f"_{kind}" if kind else ""
        row |= {
            f"cover{ending}": f"{found[:, 0].mean():.4f}",
            f"nlpd{ending}": f"{found[:, 1].mean():.4f}",
        }
        row |= {f"lowest_cover{ending}": f"{found[:, 0].min():.4f}"}
        if not kind:
            row |= {"warned": f"{found[:, 2].mean():.2f}", "seeds": seeds}
    return row


def page() -> None:
    """Write the table into the page, between its marks."""
    rows = read_csv(RESULTS)
    head = ["rows × columns", "cover without priors", "cover", "hardest function", "NLPD", "warned"]
    lines = ["| " + " | ".join(line) + " |" for line in (head, ["---"] * len(head))]
    for case in dict.fromkeys((row["rows"], row["columns"]) for row in rows):
        some = [row for row in rows if (row["rows"], row["columns"]) == case]

        def mean(name: str, some: list[dict[str, str]] = some) -> float:
            return float(np.mean([float(row[name]) for row in some]))

        lowest = min(some, key=lambda row: float(row["cover"]))
        cells = [" × ".join(case), f"{mean('cover_without'):.2f}", f"{mean('cover'):.2f}"]
        cells += [f"{float(lowest['cover']):.2f} ({SAID[lowest['function']]})"]
        cells += [f"{mean('nlpd'):.2f}", f"{100 * mean('warned'):.0f} %"]
        lines.append("| " + " | ".join(cells) + " |")
    table_in_page(
        PAGE, "few rows", [*lines, "", measured_with([row | {"device": ""} for row in rows])]
    )


def main() -> None:
    """Measure, or write what was measured into the page."""
    parser = argparse.ArgumentParser(description="Do intervals hold where rows are few?")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[f"{n}x{d}" for n, d in CASES])
    parser.add_argument("--page", action="store_true", help="write the table and measure nothing")
    asked = parser.parse_args()
    if asked.page:
        page()
        return
    found = []
    for name in asked.only:
        n, d = map(int, name.split("x"))
        for function in FUNCTIONS:
            found.append(measured_case(function, n, d, asked.seeds))
            print(found[-1], flush=True)
            write_csv(found, RESULTS, "cpu")


if __name__ == "__main__":
    main()
