"""How does the cost grow with one thing, everything else fixed?

    python benchmarks/growth.py [--device cuda] [--largest 10000000]    with rows; a CSV in results
    python benchmarks/growth.py --over d     with columns; or levels of a text, M experts, k neighbours
    python benchmarks/growth.py --page       writes docs/growth.png and the tables beside it

Known hyperparameters, a smooth function in four columns. Exact experts have 500 rows each, so that their
number grows with n; sparse ones share m = 128 inducing inputs; nearest rows have k = 64. One evaluation of
the training objective with gradient, conditioning, and prediction at N = 2,000 points, in seconds. Where it
is not n that grows there are 10,000 rows, and nearest rows are trained with 2,000 targets; only M experts
have 100 rows each, however many. The slope is that of log seconds in log size over the last three sizes: 1
where cost is linear, 0 where the size does not matter.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from _measure import measured_with, processor, read_csv, table_in_page, write_csv
from limits import nearest_training, step
from torch import Tensor

import distgp
from distgp.aggregation import Ensemble
from distgp.data import Shard
from distgp.experts import ExactExpert, Expert, NearestExpert, Parameters, SparseExpert
from distgp.kernels import Kernel

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
INDUCING, POINTS = 128, 2_000
Row = dict[str, object]


@dataclass(frozen=True)
class Setting:
    """The sizes of one measurement: rows, numbers, levels of a text column, rows per expert, neighbours."""

    n: int = 10_000
    d: int = 4
    levels: int = 0
    shard: int = 500
    k: int = 64

    def kernel(self) -> Kernel:
        """A kernel with a lengthscale for each number, and one for the text's columns of zeros and ones."""
        if not self.levels:
            return 1.0 * distgp.Matern52([0.7] * self.d)
        shared = (*range(self.d), *[self.d] * self.levels)
        return 1.0 * distgp.Matern52([0.7] * (self.d + 1), shared=shared)


SETTINGS: dict[str, dict[int, Setting]] = {
    "n": {n: Setting(n=n) for n in (10**power for power in range(3, 8))},
    "d": {d: Setting(d=d) for d in (5, 10, 20, 50, 100, 200, 500)},
    "levels": {levels: Setting(levels=levels) for levels in (2, 8, 32, 128, 512)},
    "M": {M: Setting(n=100 * M, shard=100) for M in (5, 10, 20, 40, 80, 160)},
    "k": {k: Setting(k=k) for k in (16, 32, 64, 128, 256)},
}
STEPS = {
    "objective_s": "objective and gradient",
    "condition_s": "condition",
    "predict_s": "predict",
}
LARGEST = {"n": 1_000_000}


def data(setting: Setting, device: str, seed: int = 0) -> Shard:
    g, n = torch.Generator(device).manual_seed(seed), setting.n
    X = torch.rand(n, setting.d, generator=g, dtype=torch.float64, device=device) * 2 - 1
    y = torch.sin(3 * X.sum(-1) / setting.d**0.5)
    if setting.levels:
        level = torch.randint(setting.levels, (n,), generator=g, device=device)
        X = torch.cat([X, torch.nn.functional.one_hot(level, setting.levels).to(X)], -1)
        y = y + 0.5 * torch.cos(level.double())
    noise = torch.randn(n, generator=g, dtype=torch.float64, device=device)
    return Shard.of(X, y + 0.1 * noise)


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


def measured(over: str, size: int, device: str) -> Iterator[Row]:
    setting = SETTINGS[over][size]
    rows = data(setting, device)
    points = data(Setting(POINTS, setting.d, setting.levels), device, seed=1).X
    kernel = setting.kernel().to(device)
    theta, sparse = Parameters.of(kernel, 0.01), Parameters.of(kernel, 0.01, points[:INDUCING])
    pieces, halves = in_parts(rows, setting.shard), in_parts(rows, (setting.n + 1) // 2)
    exact, near = ExactExpert(), NearestExpert(n_neighbors=setting.k)
    cases = {
        f"exact, {setting.shard} rows each": (exact, theta, pieces, "poe"),
        f"exact, {setting.shard} rows each, opt": (exact, theta, pieces, "opt"),
        f"sparse, m = {INDUCING}": (SparseExpert(), sparse, halves, "pooled"),
        "nearest" + (f", k = {setting.k}" if over != "k" else ""): (near, theta, [rows], "nearest"),
    }
    for name, (expert, parameters, shards, aggregation) in cases.items():
        if not wanted(over, setting.n, name):
            continue
        seconds = times(expert, parameters, shards, aggregation, points, device)
        if over != "n" and expert is near:
            training = nearest_training(theta, rows, device, min(setting.k, setting.n - 1)).run
            seconds = {"objective_s": timed(training, device), **seconds}
        yield {over: size, "expert": name, **seconds}


def wanted(over: str, n: int, name: str) -> bool:
    """Whether a case says something about this size, and fits: 10⁷ rows would hold 40 GB of factors."""
    if name.startswith("exact"):
        return over != "k" and n <= 10**6 and (over == "M") >= name.endswith("opt")
    return over not in ("M", "k") or (over == "k" and name == "nearest")


def in_parts(rows: Shard, size: int) -> list[Shard]:
    parts = zip(rows.X.split(size), rows.y.split(size), strict=True)
    return [Shard.of(X, y) for X, y in parts]


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


def file_of(over: str, device: str) -> Path:
    return RESULTS / (f"growth-{device}.csv" if over == "n" else f"growth-{over}-{device}.csv")


def slope(pairs: list[tuple[float, float]]) -> float:
    """Of log seconds in log size over the last three sizes."""
    size, s = np.log(np.array(pairs[-3:])).T
    return float(np.polyfit(size, s, 1)[0])


def page() -> None:
    """Write the picture and the table."""
    devices = ("cpu", "cuda")
    found = [read_csv(file) for device in devices if (file := file_of("n", device)).exists()]
    drawn(found, PAGE.with_name("growth.png"))
    lines = [f"| | grows | largest | {' | '.join(STEPS.values())} |", "| --- " * 6 + "|"]
    for over in SETTINGS:
        for file in (file_of(over, device) for device in devices):
            if over != "n" and file.exists():  # the picture has n
                found.append(read_csv(file))
                lines += lines_of(found[-1], over)
    said = measured_with([row for rows in found for row in rows], grows)
    table_in_page(PAGE, "growth", [said, "", *lines])


def grows(row: dict[str, str]) -> str:
    """What grows in a row of results, and the device where n grows on two."""
    over = next(name for name in SETTINGS if row.get(name))
    return f"{over} on {row['device']}" if over == "n" else over


def lines_of(rows: list[dict[str, str]], over: str) -> Iterator[str]:
    """One line for each expert: seconds at the largest size, and slopes in brackets."""
    for expert in dict.fromkeys(row["expert"] for row in rows):
        own = pairs_of(rows, expert, over)
        cells = [
            f"{own[name][-1][1]:.3g} ({slope(own[name]):.2f})" if name in own else "–"
            for name in STEPS
        ]
        largest, device = own["predict_s"][-1][0], rows[0]["device"]
        yield f"| {device}: {expert} | {over} | {largest:,.0f} | {' | '.join(cells)} |"


def pairs_of(
    rows: list[dict[str, str]], expert: str, over: str = "n"
) -> dict[str, list[tuple[float, float]]]:
    """Sizes with their seconds, for each step of an expert that was measured."""
    own = [row for row in rows if row["expert"] == expert]
    found = {name: [(float(r[over]), float(r[name])) for r in own if r[name]] for name in STEPS}
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
    parser = argparse.ArgumentParser(description="How does the cost grow?")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--over", default="n", choices=SETTINGS, help="what grows")
    parser.add_argument("--largest", type=int, help="the largest size; of rows 1,000,000")
    parser.add_argument("--page", action="store_true", help="write the page and measure nothing")
    options = parser.parse_args()
    if options.page:
        page()
        return
    on_gpu = options.device == "cuda"
    machine = torch.cuda.get_device_name() if on_gpu else processor()
    machine += "" if on_gpu else f", {torch.get_num_threads()} threads"
    rows: list[Row] = []
    largest = options.largest or LARGEST.get(options.over, max(SETTINGS[options.over]))
    for size in (size for size in SETTINGS[options.over] if size <= largest):
        for row in measured(options.over, size, options.device):
            rows.append(row | {"machine": machine})
            print(row, flush=True)
            write_csv(rows, file_of(options.over, options.device), options.device)


if __name__ == "__main__":
    main()
