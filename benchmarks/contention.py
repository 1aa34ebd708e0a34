"""A fit alone and beside other busy processes, with threads that wait in different ways.

    python benchmarks/contention.py [--busy 2]

OpenMP's threads look for work again and again before they sleep (GOMP_SPINCOUNT). distgp has them look
1,000 times, the default is 300,000. Each line is the median of three fits of 5,000 rows in processes of
their own: alone, and beside as many processes as `--busy` says, which multiply matrices.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

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


def main() -> None:
    parser = argparse.ArgumentParser(description="Threads that wait, beside other processes.")
    parser.add_argument("--busy", type=int, default=2)
    options = parser.parse_args()
    alone = {name: seconds(way) for name, way in WAYS.items()}
    single = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    others = [
        subprocess.Popen([sys.executable, "-c", BUSY], env=single) for _ in range(options.busy)
    ]
    try:
        beside = {name: seconds(way) for name, way in WAYS.items()}
    finally:
        for process in others:
            process.kill()
    print(
        f"| threads wait | alone, s | beside {options.busy} busy processes, s |\n| --- | --- | --- |"
    )
    for name in WAYS:
        print(f"| {name} | {alone[name]:.1f} | {beside[name]:.1f} |")


if __name__ == "__main__":
    main()
