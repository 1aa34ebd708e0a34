"""opt-local's two constants: what they would be, chosen without the test years."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from distgp.paper.study import Row, average, distinct, select, table
from distgp.paper.uci_page import mean_of

CONSTANTS = tuple(itertools.product((0.1, 1.0, 10.0, 100.0), (10, 50)))
"""Ridges and rows an expert that opt-local is tried with."""
DEFAULTS = (10.0, 10)
"""Those that it has."""


def constants_name(ridge: float, rows: int) -> str:
    """opt-local with these constants."""
    return f"opt-local, ridge {ridge:g}, {rows} rows"


def constants(rows: Sequence[Row]) -> str:
    """opt-local's two constants, forward in time and on the test years."""
    usual = constants_name(*DEFAULTS)
    names = [constants_name(*pair) for pair in CONSTANTS]
    tasks = distinct(select(rows, model="forward"), "task")
    lines: list[list[object]] = [
        [
            name.removeprefix("opt-local, "),
            *(
                f"{mean_of(at, task, 'rmse'):.3f} / {mean_of(at, task, 'nlpd'):.3f}"
                for task in tasks
                for model in ("forward", "afterwards")
                for at in [select(rows, task=task, model=model, method=name)]
            ),
        ]
        for name in names
    ]
    head = ["", *(f"{task}, {when}" for task in tasks for when in ("forward", "test years"))]
    said = []
    for task in tasks:
        errors = {
            name: average(select(rows, task=task, model="forward", method=name), "rmse")
            for name in names
        }
        best = min(errors, key=errors.__getitem__)
        worse = 100 * (errors[usual] / errors[best] - 1)
        said.append(
            f"on {task} {best.removeprefix('opt-local, ')}"
            + (f" (the default is {worse:.1f} % above it)" if best != usual else ", the default")
        )
    seeds = len(distinct(select(rows, model="forward"), "seed"))
    return f"""## opt-local's constants

RMSE / NLPD of opt-local with other ridges and rows an expert, experts with their own hyperparameters, mean over M and {seeds} partition{"s" if seeds > 1 else ""}. "Forward": learnt from the first two thirds of the
rows before the test years, in time, and tested on the last third, so that no test year is seen; beside it the test years.

{table(head, lines)}

Lowest RMSE forward: {"; ".join(said)}."""
