"""A fit alone and beside other busy processes, with threads that wait in different ways.

    python benchmarks/contention.py            writes benchmarks/results/contention.csv
    python benchmarks/contention.py --page     writes the table into docs/speed.md

OpenMP's threads look for work again and again before they sleep (GOMP_SPINCOUNT). distgp has them look
1,000 times, the default is 300,000. Each line is the median of three fits of 5,000 rows in processes of
their own: alone, and beside two processes that multiply matrices.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from pathlib import Path

from _measure import measured_with, read_csv, table_in_page, write_csv

RESULTS = Path(__file__).parent / "results" / "contention.csv"
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
PROCESSES = 2
FIT = """
import time, warnings
warnings.simplefilter("ignore")
from sklearn.datasets import make_friedman1
import distgp
X, y = make_friedman1(5_000, n_features=5, noise=1.0, random_state=0)
begin = time.perf_counter()
distgp.DistributedGPRegressor(expert="sparse", n_iter=15).fit(X, y)
print(time.perf_counter() - begin)
"""
BUSY = "import numpy as np; A = np.random.rand(500, 500)\nwhile True: A @ A"
WAYS = {
    "OpenMP's default": {"GOMP_SPINCOUNT": "300000"},
    "as distgp sets it": {},
    "asleep at once": {"OMP_WAIT_POLICY": "passive"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}


def seconds(way: dict[str, str]) -> float:
    fits = [
        subprocess.run(
            [sys.executable, "-c", FIT], env=os.environ | way, capture_output=True, check=True
        )
        for _ in range(3)
    ]
    return statistics.median(float(fit.stdout) for fit in fits)


def measure() -> None:
    alone = {name: seconds(way) for name, way in WAYS.items()}
    single = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    others = [subprocess.Popen([sys.executable, "-c", BUSY], env=single) for _ in range(PROCESSES)]
    try:
        beside = {name: seconds(way) for name, way in WAYS.items()}
    finally:
        for process in others:
            process.kill()
    rows = [{"wait": name, "alone_s": alone[name], "beside_s": beside[name]} for name in WAYS]
    write_csv(rows, RESULTS, "cpu")


def page() -> None:
    found = read_csv(RESULTS)
    lines = [
        f"- {row['wait']}: {float(row['alone_s']):.1f} s alone, "
        f"{float(row['beside_s']):.1f} s beside other work"
        for row in found
    ]
    table_in_page(PAGE, "contention", [measured_with(found), "", *lines])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Threads that wait, beside other processes.")
    parser.add_argument("--page", action="store_true", help="write the page from the results")
    page() if parser.parse_args().page else measure()
