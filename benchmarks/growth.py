"""How does the cost grow with the number of rows, everything else fixed?

    python benchmarks/growth.py [--device cuda] [--largest 10000000]    writes a CSV in benchmarks/results
    python benchmarks/growth.py --page                     writes docs/growth.png and the table beside it

Known hyperparameters, a smooth function in four columns. Exact experts have 500 rows each, so that their
number grows with n; sparse ones share m = 128 inducing inputs; nearest rows have k = 64. One evaluation of
the training objective with gradient, conditioning, and prediction at N = 2,000 points, in seconds.
The slope is that of log seconds in log n over the last three sizes: 1 where cost is linear, 0 where n
does not matter.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from _measure import processor, read_csv, table_in_page, write_csv
from limits import step
from torch import Tensor

import distgp
from distgp.aggregation import Ensemble
from distgp.data import Shard
from distgp.experts import ExactExpert, Expert, NearestExpert, Parameters, SparseExpert

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
SHARD, INDUCING, NEIGHBOURS, POINTS, D = 500, 128, 64, 2_000, 4
Row = dict[str, object]


def data(n: int, device: str, seed: int = 0) -> Shard:
    g = torch.Generator(device).manual_seed(seed)
    X = torch.rand(n, D, generator=g, dtype=torch.float64, device=device) * 2 - 1
    noise = torch.randn(n, generator=g, dtype=torch.float64, device=device)
    return Shard.of(X, torch.sin(3 * X.sum(-1) / 2) + 0.1 * noise)


def timed(run: Callable[[], object], device: str) -> float:
    """Seconds of a second run, or of the first where that is long."""
    taken = 0.0
    for _ in range(2):
        begin = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        taken = time.perf_counter() - begin
        if taken > 5.0:
            break
    return taken


def measured(n: int, device: str) -> Iterator[Row]:
    rows, points = data(n, device), data(POINTS, device, seed=1).X
    kernel = (1.0 * distgp.Matern52([0.7] * D)).to(device)
    theta, sparse = Parameters.of(kernel, 0.01), Parameters.of(kernel, 0.01, points[:INDUCING])
    pieces = [
        Shard.of(*part) for part in zip(rows.X.split(SHARD), rows.y.split(SHARD), strict=True)
    ]
    halves = [Shard.of(*part) for part in zip(rows.X.chunk(2), rows.y.chunk(2), strict=True)]
    cases = {
        "exact, 500 rows each": (ExactExpert(), theta, pieces, "poe"),
        "sparse, m = 128": (SparseExpert(), sparse, halves, "pooled"),
        "nearest, k = 64": (NearestExpert(n_neighbors=NEIGHBOURS), theta, [rows], "nearest"),
    }
    for name, (expert, parameters, shards, aggregation) in cases.items():
        if n <= 10**6 or not name.startswith("exact"):  # 10⁷ rows would hold 40 GB of factors
            seconds = times(expert, parameters, shards, aggregation, points, device)
            yield {"n": n, "expert": name, **seconds}


def times(
    expert: Expert,
    parameters: Parameters,
    shards: list[Shard],
    aggregation: str,
    points: Tensor,
    device: str,
) -> Row:
    """Seconds of one evaluation in training, of conditioning, and of prediction."""
    found: Row = {}
    if not isinstance(expert, NearestExpert):
        found["objective_s"] = timed(step(expert, parameters, shards), device)
    found["condition_s"] = timed(lambda: Ensemble.condition(expert, parameters, shards), device)
    ensemble = Ensemble.condition(expert, parameters, shards)
    combined = distgp.AGGREGATORS[aggregation]().combine(ensemble)
    combined.predict(ensemble, points[:10])  # what is made once is made
    found["predict_s"] = timed(lambda: combined.predict(ensemble, points), device)
    return found


def slope(pairs: list[tuple[float, float]]) -> float:
    """Of log seconds in log n over the last three sizes."""
    n, s = np.log(np.array(pairs[-3:])).T
    return float(np.polyfit(n, s, 1)[0])


STEPS = {
    "objective_s": "objective and gradient",
    "condition_s": "condition",
    "predict_s": "predict",
}


def page() -> None:
    """Write the picture and the table."""
    files = [RESULTS / f"growth-{device}.csv" for device in ("cpu", "cuda")]
    found = [read_csv(file) for file in files if file.exists()]
    drawn(found, PAGE.with_name("growth.png"))
    lines = [f"| | largest n | {' | '.join(STEPS.values())} |", "| --- " * 5 + "|"]
    for rows in found:
        for expert in dict.fromkeys(row["expert"] for row in rows):
            own = pairs_of(rows, expert)
            cells = [
                f"{own[name][-1][1]:.3g} ({slope(own[name]):.2f})" if name in own else "–"
                for name in STEPS
            ]
            largest, device = own["predict_s"][-1][0], rows[0]["device"]
            lines.append(f"| {device}: {expert} | {largest:,.0f} | {' | '.join(cells)} |")
    table_in_page(PAGE, "growth", lines)


def pairs_of(rows: list[dict[str, str]], expert: str) -> dict[str, list[tuple[float, float]]]:
    """Numbers of rows with their seconds, for each step of an expert that was measured."""
    own = [row for row in rows if row["expert"] == expert]
    found = {name: [(float(r["n"]), float(r[name])) for r in own if r[name]] for name in STEPS}
    return {name: pairs for name, pairs in found.items() if pairs}


def drawn(found: list[list[dict[str, str]]], path: Path) -> None:
    """Draw seconds against rows, one panel for each device."""
    figure, axes = plt.subplots(
        1, len(found), figsize=(5.5 * len(found), 5.0), squeeze=False, layout="constrained"
    )
    styles = {"objective_s": "o-", "condition_s": "s--", "predict_s": "^:"}
    for rows, panel in zip(found, axes[0], strict=True):
        experts = dict.fromkeys(row["expert"] for row in rows)
        for expert, colour in zip(experts, ("C0", "C1", "C2"), strict=False):
            for name, pairs in pairs_of(rows, expert).items():
                label = f"{expert}: {STEPS[name]}"
                panel.loglog(*zip(*pairs, strict=True), styles[name], color=colour, label=label)
        panel.set(title=rows[0]["machine"], xlabel="rows", ylabel="seconds")
        panel.grid(alpha=0.3)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description="How does the cost grow with the rows?")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--largest", type=int, default=1_000_000)
    parser.add_argument("--page", action="store_true", help="write the page and measure nothing")
    options = parser.parse_args()
    if options.page:
        page()
        return
    on_gpu = options.device == "cuda"
    machine = torch.cuda.get_device_name() if on_gpu else processor()
    machine += "" if on_gpu else f", {torch.get_num_threads()} threads"
    rows: list[Row] = []
    n = 1_000
    while n <= options.largest:
        for row in measured(n, options.device):
            rows.append(row | {"machine": machine})
            print(row, flush=True)
            write_csv(rows, RESULTS / f"growth-{options.device}.csv", options.device)
        n *= 10


if __name__ == "__main__":
    main()
