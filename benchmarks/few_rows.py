"""Do the intervals of the default estimator hold where rows are few for their columns?

Sums and compositions of sines of inputs spread evenly over [−1, 1]^d, with noise of standard deviation 0.1,
learnt by `DistributedGPRegressor()` from n rows, with the priors that few rows get and without them.
Printed are the share of 500 new targets in their 90 % intervals, and the NLPD in units of the training
targets' standard deviation, each as a mean over functions and seeds with its standard error; and how
often a `CoverWarning` said that rows are too few.

    python benchmarks/few_rows.py [--seeds 10] [--only 15x8 …]
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from unittest.mock import patch

import numpy as np

import distgp
from distgp.diagnostics import metrics
from distgp.plan import Plan
from distgp.selection import CoverWarning

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


def line(n: int, d: int, seeds: int) -> str:
    """The figures of one number of rows and columns, without and with the priors."""
    cells = [f"{n}", f"{d}"]
    for few_rows in (False, Plan.few_rows):
        with patch.object(Plan, "few_rows", few_rows):
            found = np.array([[measured(f, n, d, s) for s in range(seeds)] for f in FUNCTIONS])
        found = found.reshape(-1, 3)
        error = found.std(0, ddof=1) / np.sqrt(len(found))
        cells += [f"{found[:, i].mean():.3f} ± {error[i]:.3f}" for i in (0, 1)]
        cells += [f"{100 * found[:, 2].mean():.0f} %"]
    return "| " + " | ".join([*cells[:4], *cells[5:]]) + " |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--only", nargs="*", default=[f"{n}x{d}" for n, d in CASES])
    asked = parser.parse_args()
    print("| rows | columns | cover without | NLPD without | cover | NLPD | warned |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name in asked.only:
        n, d = map(int, name.split("x"))
        print(line(n, d, asked.seeds), flush=True)


if __name__ == "__main__":
    main()
