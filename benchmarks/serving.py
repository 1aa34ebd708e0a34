"""How long does a client of `distgp serve` wait for its predictions?

A sparse model with m = 512 of 100,000 rows, d = 8, in a server process of its own, and clients on the same
machine that each keep one connection and send their next request when the last is answered. The floor
is `predict` in this process on one core, without a server.

    python benchmarks/serving.py            writes benchmarks/results/serving.csv
    python benchmarks/serving.py --page     writes the table into docs/tutorials/serving.md
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import torch
from _measure import measured_with, problem, read_csv, table_in_page, write_csv

import distgp

RESULTS = Path(__file__).parent / "results" / "serving.csv"
PAGE = Path(__file__).parents[1] / "docs" / "tutorials" / "serving.md"
FORMS = {"JSON": "application/json", "Arrow": "application/vnd.apache.arrow.stream"}

BEFORE = 3
"""Repetitions that come first and do not count."""
Points = dict[int, np.ndarray]


def model(n: int, d: int, m: int) -> distgp.DistributedGPRegressor:
    data = problem(n, d)
    kernel = 1.0 * distgp.Matern52([2.0] * d)
    gp = distgp.DistributedGPRegressor("sparse", n_inducing=m, kernel=kernel, training=None)
    return gp.fit(data.X.numpy(), data.y.numpy())


@contextmanager
def server(path: Path) -> Iterator[str]:
    """The address of a server process."""
    command = [sys.executable, "-m", "distgp", "serve", str(path), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        found = re.search(r"http://(\S+:\d+)", process.stderr.readline())
        assert found is not None
        yield found[1]
    finally:
        process.terminate()
        process.wait()


def encoded(X: np.ndarray, form: str) -> bytes:
    if form == "JSON":
        return json.dumps({"rows": X.tolist()}).encode()
    table = pa.table({f"x{j}": column for j, column in enumerate(X.T)})
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue().to_pybytes()


def seconds(action: Callable[[], object], times: int) -> list[float]:
    """How long each of several repetitions takes, after a few that do not count."""
    taken = []
    for _ in range(BEFORE + times):
        start = time.perf_counter()
        action()
        taken.append(time.perf_counter() - start)
    return taken[BEFORE:]


def ask(address: str, form: str, body: bytes, times: int) -> list[float]:
    """One client's waiting times."""

    def once() -> None:
        connection.request("POST", "/predict", body, {"Content-Type": FORMS[form]})
        answer = connection.getresponse()
        assert answer.read() and answer.status == 200

    with closing(http.client.HTTPConnection(address, timeout=600)) as connection:
        return seconds(once, times)


def measured(address: str, points: Points, alone: dict[int, float]) -> Iterator[dict[str, object]]:
    for form, rows, clients in product(FORMS, points, (1, 32)):
        body, times = encoded(points[rows], form), 500 if clients == 1 else 20
        start = time.perf_counter()
        with ThreadPoolExecutor(clients) as pool:
            jobs = [pool.submit(ask, address, form, body, times) for _ in range(clients)]
            taken = np.concatenate([job.result() for job in jobs])
        yield {
            "format": form,
            "rows": rows,
            "clients": clients,
            "requests": len(taken),
            "p50_ms": 1e3 * float(np.quantile(taken, 0.5)),
            "p99_ms": 1e3 * float(np.quantile(taken, 0.99)),
            "requests_per_s": clients * (BEFORE + times) / (time.perf_counter() - start),
            "predict_p50_ms": 1e3 * alone[rows],
        }


def shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 1_000 else f"{value:.3g}"


def page() -> None:
    """Write the table into the page, between its marks."""
    rows = read_csv(RESULTS)
    lines = [measured_with(rows), ""]
    lines += ["| | clients | p50, ms | p99, ms | requests a second |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for row in rows:
        count = int(row["rows"])
        name = f"{row['format']}, {count:,} row{'s' if count > 1 else ''}"
        values = (row[k] for k in ("p50_ms", "p99_ms", "requests_per_s"))
        cells = " | ".join(shown(float(value)) for value in values)
        lines.append(f"| {name} | {row['clients']} | {cells} |")
    table_in_page(PAGE, "table", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--page", action="store_true", help="write the page and no more")
    parser.add_argument("--rows", type=int, default=100_000, help="that the model is fitted to")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.page:
        page()
        return
    gp, rows = model(options.rows, 8, 512), []
    torch.set_num_threads(1)
    points = {n: problem(n, 8, seed=1).X.numpy() for n in (1, 1_000)}
    alone = {
        n: float(np.median(seconds(partial(gp.predict, X, True), 200))) for n, X in points.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        gp.save(path)
        with server(path) as address:
            for row in measured(address, points, alone):
                texts = {k: shown(v) if isinstance(v, float) else v for k, v in row.items()}
                print("  ".join(f"{name} {text}" for name, text in texts.items()), flush=True)
                rows.append(row)
    write_csv(rows, options.out, f"cpu, {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
