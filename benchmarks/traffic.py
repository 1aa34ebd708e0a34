"""What travels between workers and the centre, by kind, for every training method and aggregator?

240 rows on two workers, each step by itself: training, combining, predicting, and what a fit exchanges
beside these. It takes seconds and needs no cluster: devices count what Ray counts.

    python benchmarks/traffic.py           prints the bytes, and writes the tables into docs/engines.md
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from _measure import problem, table_in_page

import distgp
from distgp.aggregation import Ensemble
from distgp.data import Shard, place, split
from distgp.engines import KINDS, DevicesEngine, Placement
from distgp.experts import Parameters
from distgp.training import train

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"
ROWS, POINTS = problem(240, 2), problem(20, 2, seed=1).X
INDUCING = problem(12, 2, seed=2).X
FITS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("fit", "exact", {}),
    ("fit", "sparse", {"n_inducing": 12}),
    ("fit with n_inducing=Z", "sparse", {"n_inducing": INDUCING.numpy()}),
    ("fit", "nearest", {"n_inducing": 12}),
    ("fit_parquet with n_inducing=Z", "sparse", {"n_inducing": INDUCING.numpy()}),
)


class Step(NamedTuple):
    """A step of a fit, the experts that it is for, and the bytes that went out and came back."""

    stage: str
    name: str
    expert: str
    sent: dict[str, int]
    received: dict[str, int]


def measured(
    engine: DevicesEngine, stage: str, name: str, expert: str, step: Callable[[], object]
) -> Step:
    engine.traffic.sent.clear()
    engine.traffic.received.clear()
    step()
    return Step(stage, name, expert, dict(+engine.traffic.sent), dict(+engine.traffic.received))


SOLVED = distgp.aggregation.Exact(variance="nearest")
"""The exact aggregator as it is for many rows, by conjugate gradients."""


def placed(expert: str) -> tuple[DevicesEngine, Parameters, Placement[Shard]]:
    """Two workers with two shards each, and θ for experts of this kind."""
    engine = DevicesEngine(["cpu", "cpu"])
    theta = Parameters.of(
        1.0 * distgp.RBF([0.7, 0.7]), 0.05, INDUCING if expert == "sparse" else None
    )
    return engine, theta, place(engine, split(ROWS, np.arange(ROWS.n) % 4))


def training() -> Iterator[Step]:
    algorithms: dict[str, Any] = dict(distgp.ALGORITHMS)
    for name, algorithm in algorithms.items():
        for expert in algorithm.serves:
            engine, theta, shards = placed(expert)
            step = partial(train, algorithm(n_iter=5), distgp.EXPERTS[expert](), theta, shards)
            yield measured(engine, "training", name, expert, step)


def aggregation() -> Iterator[Step]:
    for expert, kind in distgp.EXPERTS.items():
        engine, theta, shards = placed(expert)
        ensemble = Ensemble.condition(kind(), theta, shards)
        for name, aggregator in distgp.AGGREGATORS.items():
            if expert in aggregator.serves:
                made = SOLVED if name == "exact" else aggregator()
                yield from combined(engine, made, ensemble, name, expert)


def combined(
    engine: DevicesEngine,
    aggregator: distgp.aggregation.Aggregator,
    ensemble: Ensemble,
    name: str,
    expert: str,
) -> Iterator[Step]:
    posterior = []
    combine = lambda: posterior.append(aggregator.combine(ensemble))  # noqa: E731
    yield measured(engine, "combining", name, expert, combine)
    predict = lambda: posterior[0].predict(ensemble, POINTS)  # noqa: E731
    yield measured(engine, "predicting", name, expert, predict)


def whole_fits() -> Iterator[Step]:
    """Fit with θ given and an aggregator that combines nothing, so that all else is left; then save."""
    with tempfile.TemporaryDirectory() as folder:
        table, model = Path(folder) / "rows.parquet", Path(folder) / "model.safetensors"
        frame = pd.DataFrame(ROWS.X.numpy(), columns=["a", "b"]).assign(y=ROWS.y.numpy())
        frame.to_parquet(table, row_group_size=60)
        for name, expert, own in FITS:
            engine = DevicesEngine(["cpu", "cpu"])
            given = {"kernel": "rbf", "noise": 0.05, "training": None, "aggregation": "poe"}
            gp = distgp.DistributedGPRegressor(
                expert=expert, n_experts=4, engine=engine, **given, **own
            )
            fit = partial(gp.fit, ROWS.X.numpy(), ROWS.y.numpy())
            if name.startswith("fit_parquet"):
                fit = partial(gp.fit_parquet, str(table), "y")
            yield measured(engine, "all else", name, expert, fit)
            if not model.with_stem(expert).exists():
                save = partial(gp.save, model.with_stem(expert))
                yield measured(engine, "all else", "save", expert, save)


def steps() -> list[Step]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # five rounds are few
        return [*training(), *aggregation(), *whole_fits()]


def kinds(found: dict[str, int]) -> str:
    """Name the kinds in the order of `KINDS`; settings go along with any call and are left out."""
    return ", ".join(kind for kind in KINDS if kind in found and kind != "settings") or "–"


def table(head: str, cells: dict[tuple[str, str], list[str]]) -> list[str]:
    """Make a table from cells by name and expert, with names and experts that say the same as one."""
    experts: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (name, expert), said in cells.items():
        experts.setdefault((name, tuple(said)), []).append(expert)
    names, order = {}, [name for name, _ in cells]
    for name, said in sorted(experts, key=lambda one: order.index(one[0])):
        names.setdefault((", ".join(experts[name, said]), *said), []).append(name)
    lines = [f"| {', '.join(alike)} | {' | '.join(said)} |" for said, alike in names.items()]
    return [head, "| --- " * head.count(" | ") + "| --- |", *lines]


def tables(found: list[Step]) -> dict[str, list[str]]:
    """Make the tables of the page, by their marks: the kinds, and which of them leave the workers."""
    cells: dict[str, dict[tuple[str, str], list[str]]] = {}
    for step in found:
        cells.setdefault(step.stage, {})[step.name, step.expert] = [kinds(step.received)]
    both = {key: [*own, *cells["predicting"][key]] for key, own in cells["combining"].items()}
    return {
        "kinds": [f"- **{kind}**: {covers}" for kind, covers in KINDS.items()],
        "training": table("| training | experts | leaves the workers |", cells["training"]),
        "aggregation": table("| aggregator | experts | combining | predicting |", both),
        "all else": table("| step | experts | leaves the workers |", cells["all else"]),
    }


def main() -> None:
    found = steps()
    for step in found:
        print(
            f"{step.stage:12s}{step.name:34s}{step.expert:10s}sent {step.sent}  back {step.received}"
        )
    for mark, lines in tables(found).items():
        table_in_page(PAGE, mark, lines)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
