"""The paper's own numbers."""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources


@cache
def published() -> dict[tuple[str, int, str, str], tuple[float, float]]:
    """Table 2 as printed: mean and standard deviation by task, M, method and quantity."""
    text = resources.files("distgp.paper").joinpath("table2.csv").read_text("utf-8")
    return {
        (row["task"], int(row["M"]), row["method"], row["quantity"]): (
            float(row["mean"]),
            float(row["std"]),
        )
        for row in csv.DictReader(text.splitlines())
    }
