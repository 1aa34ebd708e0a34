"""Section 4.3: does the combination come to the full GP as n grows, with M ~ √n experts?"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

import distgp
from distgp import metrics
from distgp.paper.draws import Draws
from distgp.paper.study import (
    Cell,
    Options,
    Row,
    Study,
    average,
    distinct,
    failures,
    select,
    table,
    values_of,
)
from distgp.paper.synthetic import LENGTHSCALE, NOISE, kernel

MANY = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
METHODS = ("opt-printed", "opt", "two-level", "grbcm")
WAVES = 2000
NEGLIGIBLE = 1e-6
"""Gaps below are not told apart."""
QUANTITIES = {
    "weight_gap": "|Σβ − 1|",
    "weight_norm": "Σ|β|",
    "mean_gap": "distance of the means",
    "variance_gap": "mean |s² − s²_full|",
    "coverage": "coverage of 90 % intervals",
}


def draw(n: int, seed: int, device: str, tests: int = 500) -> tuple[distgp.Shard, Tensor, Tensor]:
    """Rows and test points in [−1, 1]², with a function that is a sum of random waves.

    The sum of many is a draw from the prior of the RBF kernel, for any number of rows.
    """
    draws = Draws(seed, device)
    W, phase = draws.normal(2, WAVES) / LENGTHSCALE, math.pi * draws.box(WAVES)
    heights = math.sqrt(2 / WAVES) * draws.normal(WAVES)
    points = draws.box(tests + n, 2)
    f = torch.cat([torch.cos(part @ W + phase) @ heights for part in points.split(5000)])
    y = f[tests:] + NOISE**0.5 * draws.normal(n)
    return distgp.Shard.of(points[tests:], y), points[:tests], f[:tests]


class Consistency(Study):
    """Gaps to the full GP."""

    name: ClassVar[str] = "consistency"
    title: ClassVar[str] = "Consistency (section 4.3)"

    def cells(self, options: Options) -> list[Cell]:
        """A number of rows and a draw each."""
        many = MANY[:3] if options.quick else MANY
        seeds = range(2 if options.quick else options.seeds)
        return [{"n": n, "M": round(math.sqrt(n)), "seed": seed} for seed in seeds for n in many]

    def run(self, cell: Cell, options: Options) -> list[Row]:
        """The full GP, then each aggregator."""
        data, X, f = draw(cell["n"], cell["seed"], options.device)
        theta, expert = distgp.Parameters.of(kernel(options.device), NOISE), distgp.ExactExpert()
        full = expert.condition(theta, data).predict(X)
        shards = distgp.with_communication(data, cell["M"], distgp.RandomPartition(), cell["seed"])
        rows = [{"method": "full", "coverage": metrics.coverage(f, full.mean, full.variance, 0.9)}]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ensemble = distgp.Ensemble.condition(expert, theta, shards)
            for name in METHODS:
                combined = distgp.AGGREGATORS[name]().combine(ensemble)
                out, total = combined.predict(X), combined.weight_sum
                rows.append(
                    {
                        "method": name,
                        "weight_gap": abs(total - 1.0)
                        if name.startswith("opt") and total
                        else None,
                        "mean_gap": float((out.mean - full.mean).square().mean().sqrt()),
                        "variance_gap": float((out.variance - full.variance).abs().mean()),
                        "coverage": metrics.coverage(f, out.mean, out.variance, 0.9),
                        "weight_norm": combined.weight_norm,
                    }
                )
        return rows

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Each quantity against n."""
        figure, axes = plt.subplots(1, 5, figsize=(18, 3.8), layout="constrained")
        many = distinct(rows, "n")
        for ax, (quantity, label) in zip(axes, QUANTITIES.items(), strict=True):
            for name in [m for m in METHODS if values_of(_of(rows, m, quantity), quantity).size]:
                found = [values_of(select(rows, n=n, method=name), quantity) for n in many]
                found = [v if len(v) else np.array([np.nan]) for v in found]
                means = np.array([v.mean() for v in found])
                ends = [means - [v.min() for v in found], [v.max() for v in found] - means]
                ax.errorbar(
                    many,
                    means,
                    ends,
                    marker="o",
                    capsize=2,
                    markersize=4,
                    label=name,
                )
            ax.set(xscale="log", xlabel="n, with M = √n", title=label)
            if quantity == "coverage":
                ax.axhline(0.9, color="0.5", linestyle=":")
            else:
                ax.set_yscale("log")
        axes[2].legend(fontsize="small")
        return {"gaps": figure}

    def page(self, rows: Sequence[Row]) -> str:
        """The gaps, and a verdict on each."""
        many = distinct(rows, "n")
        parts = []
        for quantity, label in QUANTITIES.items():
            lines = [
                [m, *(average(select(found, n=n), quantity) for n in many)]
                for m in METHODS
                if values_of(found := _of(rows, m, quantity), quantity).size
            ]
            if quantity == "coverage":
                lines.append(
                    ["full", *(average(select(rows, n=n, method="full"), quantity) for n in many)]
                )
            parts.append(f"## {label}\n\n" + table(["", *(f"n = {n:,}" for n in many)], lines))
        judged = []
        for name in METHODS:
            for quantity in ("weight_gap", "mean_gap", "variance_gap"):
                if not _of(rows, name, quantity):
                    continue
                found = [values_of(select(rows, n=n, method=name), quantity) for n in many]
                found = [sample for sample in found if len(sample)]
                verdict = "yes" if falls_within_spread(found) else "no"
                if max(sample.max() for sample in found) < NEGLIGIBLE:
                    verdict = "nothing left to fall"
                judged.append([name, QUANTITIES[quantity], verdict])
        text = "\n\n".join(parts)
        printed = [
            average(select(rows, n=n, method="opt-printed"), "mean_gap")
            for n in (many[0], many[-1])
        ]
        norm = average(select(rows, n=many[-1], method="opt"), "weight_norm")
        return f"""
Exact experts, M = √n, RBF kernel with lengthscale 0.3, σ_f² = 1, σ² = 0.25, 500 test points in [−1, 1]²; mean over {len(distinct(rows, "seed"))} draws.
Gaps are to the full GP on all rows. Two-level's experts share the work with central inputs (512: at n = 500 these are all rows), and grBCM's weights change from point to point: they have no
Σβ of the paper's kind.

{text}

## Do they fall?

A gap falls within its spread if it is smaller at the end than at the beginning and never above the least so far by more than two standard errors; gaps below
10⁻⁶ count as equal. Two-level's are below that from the beginning: what 512 central inputs leave out, and rounding.

{table(["", "gap", "falls"], judged)}

**The paper proves** that the mean is consistent if Σβ → 1 and the weights stay bounded, and does not claim it of the variance. **Ours**: means
of opt, two-level and grBCM come to the full GP's, as the table says, and variances of two-level and grBCM; opt's comes slowly and stays far too large; opt's Σβ does not go to 1 and need not, since its experts are
shrunken functions on few rows each, and its intervals are too wide for its ever better mean, while grBCM's are too narrow. **The printed weights**: their mean is {printed[0]:.3g} from the full GP's at n = {many[0]:,} and {printed[1]:.3g} at n = {many[-1]:,}: the condition that the
weights stay bounded is not met by a system of M equations from M rows. Nor is it by opt: Σ|β| grows to {norm:.0f}. But its weights are fitted on all rows, where large ones cancel, and its mean comes
to the full GP's nevertheless. {failures(rows)}
"""


def falls_within_spread(samples: Sequence[np.ndarray]) -> bool:
    """Whether means fall: from first to last, and never above the least so far by two standard errors.

    Gaps below 10⁻⁶ count as equal.
    """
    samples = [np.maximum(sample, NEGLIGIBLE) for sample in samples]
    least = samples[0]
    for sample in samples[1:]:
        error = math.sqrt(
            sum(v.var(ddof=1) / len(v) if len(v) > 1 else 0.0 for v in (least, sample))
        )
        if not sample.mean() <= least.mean() + 2.0 * error:
            return False
        least = min(least, sample, key=np.mean)
    return bool(samples[-1].mean() < samples[0].mean())


def _of(rows: Sequence[Row], method: str, quantity: str) -> list[Row]:
    """A method's rows, where the quantity is of the paper's kind."""
    weights = quantity.startswith("weight") and not method.startswith("opt")
    return [] if weights else select(rows, method=method)
