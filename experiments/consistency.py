"""Section 4.3: does the combination approach the full GP as n grows, with M = √n experts?"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

import distgp
from distgp import metrics
from distgp.aggregation import Ensemble
from distgp.data import RandomPartition, with_communication
from distgp.experts import ExactExpert, Parameters, Prediction
from experiments.draws import NOISE, rbf, wave_problem
from experiments.report import average, distinct, failures, select, table, values_of
from experiments.study import Cell, Options, Row, Study

MANY = (500, 1000, 2000, 5000, 10_000, 20_000, 50_000)
METHODS = ("opt-printed", "opt", "two-level", "grbcm")
NEGLIGIBLE = 1e-6
"""Gaps below this number count as equal."""
QUANTITIES = {
    "weight_gap": "|Σβ − 1|",
    "weight_norm": "Σ|β|",
    "mean_gap": "distance of the means",
    "variance_gap": "mean |s² − s²_full|",
    "coverage": "coverage of 90 % intervals",
}


class Consistency(Study):
    """Gaps between aggregated predictions and those of the full GP."""

    name: ClassVar[str] = "consistency"
    title: ClassVar[str] = "Consistency (section 4.3)"

    def cells(self, options: Options) -> list[Cell]:
        """One run per number of rows and draw."""
        many = MANY[:3] if options.quick else MANY
        seeds = range(2 if options.quick else options.seeds)
        return [{"n": n, "M": round(math.sqrt(n)), "seed": seed} for seed in seeds for n in many]

    def run(self, cell: Cell, options: Options) -> list[Row]:
        """Compare each aggregator with the full GP."""
        data, X, f = wave_problem(cell["n"], cell["seed"], options.device)
        theta, expert = Parameters.of(rbf(options.device), NOISE), ExactExpert()
        full = expert.condition(theta, data).predict(X)
        shards = with_communication(data, cell["M"], RandomPartition(), cell["seed"])
        rows: list[Row] = [{"method": "full", "coverage": _coverage(f, full)}]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ensemble = Ensemble.condition(expert, theta, shards)
            for name in METHODS:
                combined = distgp.AGGREGATORS[name]().combine(ensemble)
                out, total = combined.predict(ensemble, X), combined.weight_sum
                rows.append(
                    {
                        "method": name,
                        "weight_gap": abs(total - 1.0)
                        if total and name.startswith("opt")
                        else None,
                        "mean_gap": float((out.mean - full.mean).square().mean().sqrt()),
                        "variance_gap": float((out.variance - full.variance).abs().mean()),
                        "coverage": _coverage(f, out),
                        "weight_norm": combined.weight_norm,
                    }
                )
        return rows

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Draw each quantity against n."""
        figure, axes = plt.subplots(1, 5, figsize=(18, 3.8), layout="constrained")
        many = distinct(rows, "n")
        for ax, (quantity, label) in zip(axes, QUANTITIES.items(), strict=True):
            for name in [m for m in METHODS if values_of(_of(rows, m, quantity), quantity).size]:
                found = [values_of(select(rows, n=n, method=name), quantity) for n in many]
                found = [v if len(v) else np.array([np.nan]) for v in found]
                means = np.array([v.mean() for v in found])
                ends = [means - [v.min() for v in found], [v.max() for v in found] - means]
                ax.errorbar(many, means, ends, marker="o", capsize=2, markersize=4, label=name)
            ax.set(xscale="log", xlabel="n, with M = √n", title=label)
            if quantity == "coverage":
                ax.axhline(0.9, color="0.5", linestyle=":")
            else:
                ax.set_yscale("log")
        axes[2].legend(fontsize="small")
        return {"gaps": figure}

    def page(self, rows: Sequence[Row]) -> str:
        """List the gaps, and say of each whether it falls."""
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
        text = "\n\n".join(parts)
        printed = [
            average(select(rows, n=n, method="opt-printed"), "mean_gap")
            for n in (many[0], many[-1])
        ]
        norm = average(select(rows, n=many[-1], method="opt"), "weight_norm")
        return f"""
Exact experts, M = √n, RBF kernel with lengthscale 0.3, σ_f² = 1, σ² = 0.25, 500 test points in [−1, 1]²; mean over {len(distinct(rows, "seed"))} draws.
Gaps are differences to the full GP on all rows. Two-level combines its experts with central inputs (512 of them: at n = 500 these are all rows), and grBCM's weights change from point to point: neither has a
Σβ of the paper's kind.

{text}

## Do they fall?

A gap falls if it is smaller at the end than at the beginning and never above the least so far by more than two standard errors; gaps below
10⁻⁶ count as equal. Two-level's are below that from the beginning: they consist of what 512 central inputs leave out, and of rounding.

{table(["", "gap", "falls"], _judged(rows))}

**The paper proves** that the mean is consistent if Σβ → 1 and the weights stay bounded, and claims nothing of the variance. **Ours**: the means
of opt, two-level and grBCM approach the full GP's, as the table says, and so do the variances of two-level and grBCM; opt's variance approaches it slowly and stays far too large. opt's Σβ does not go to 1 and need not, since its experts are
shrunken functions on few rows each. Its intervals are too wide for its ever better mean, while grBCM's are too narrow. **The printed weights**: their mean differs from the full GP's by {printed[0]:.3g} at n = {many[0]:,} and by {printed[1]:.3g} at n = {many[-1]:,}: the condition that the
weights stay bounded is not met by a system of M equations from M rows. Nor is it met by opt: Σ|β| grows to {norm:.0f}. But its weights are fitted on all rows, where large ones cancel, and its mean approaches
the full GP's nevertheless. {failures(rows)}
"""


def _judged(rows: Sequence[Row]) -> list[list[str]]:
    """For every method and gap, whether it falls."""
    judged = []
    for name, quantity in itertools.product(METHODS, ("weight_gap", "mean_gap", "variance_gap")):
        if not (own := _of(rows, name, quantity)):
            continue
        found = [values_of(select(own, n=n), quantity) for n in distinct(rows, "n")]
        found = [sample for sample in found if len(sample)]
        verdict = "yes" if falls_within_spread(found) else "no"
        if max(sample.max() for sample in found) < NEGLIGIBLE:
            verdict = "nothing left to fall"
        judged.append([name, QUANTITIES[quantity], verdict])
    return judged


def falls_within_spread(samples: Sequence[np.ndarray]) -> bool:
    """Whether the means of successive samples fall.

    They do if the last is below the first, and none is above the least before it by more than two
    standard errors. Values below 10⁻⁶ count as equal.

    Parameters
    ----------
    samples : sequence of ndarray
        The repetitions at each size, sizes in ascending order.

    Returns
    -------
    bool
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


def _coverage(f: Tensor, prediction: Prediction) -> float:
    """The share of true values in the 90 % intervals."""
    return metrics.coverage(f, prediction.mean, prediction.variance, 0.9)


def _of(rows: Sequence[Row], method: str, quantity: str) -> list[Row]:
    """A method's rows; none where the quantity is of weights and the method has none of the paper's kind."""
    weights = quantity.startswith("weight") and not method.startswith("opt")
    return [] if weights else select(rows, method=method)
