"""Figures 4 and 5: every aggregator on a draw from the prior, with known hyperparameters, M = 2 … 100."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

import distgp
from distgp import metrics
from distgp.aggregation import Aggregator, Ensemble, Nearest
from distgp.data import Shard
from distgp.experts import NearestExpert, Parameters, Prediction, inducing
from experiments.draws import NOISE, prior_problem, random_shards, rbf
from experiments.report import (
    average,
    distinct,
    failures,
    log_scale,
    select,
    spread,
    table,
    with_spread,
)
from experiments.study import Cell, Options, Row, Study, grid, seconds

MANY = (2, 4, 8, 10, 20, 40, 80, 100)
INDUCING = 128
QUANTITIES = {
    "seconds": "seconds",
    "rmse": "RMSE",
    "nlpd": "NLPD",
    "w2": "2-Wasserstein distance to the full GP",
}
METHODS = {
    "exact": (
        "poe", "gpoe", "bcm", "rbcm", "grbcm", "npae", "opt", "opt-printed", "opt-local", "two-level",
    ),
    "sparse": (
        "poe", "gpoe", "bcm", "rbcm", "grbcm", "npae", "opt", "opt-printed", "opt-local", "two-level",
        "pooled",
    ),
}  # fmt: skip
"""The aggregators of each kind of expert."""
DRAWN = ("poe", "gpoe", "bcm", "rbcm", "grbcm", "npae", "opt", "opt-printed", "two-level", "pooled")
"""The aggregators in the pictures, each with its own colour."""
ONE = 1
"""The M of what does not depend on the number of experts: nearest rows, and the estimator's default."""
REPEATS = 3
"""The number of turns in which times are measured."""


class Synthetic(Study):
    """All aggregators of one kind of expert.

    Attributes
    ----------
    kind : str
        The name of the experts.
    nearest : str
        What nearest rows have beside the rows, in words.
    """

    kind: ClassVar[str]
    nearest: ClassVar[str]

    @abstractmethod
    def parameters(self, data: Shard, device: str) -> Parameters:
        """The true θ, with inducing inputs from the rows where the experts need them."""

    def cells(self, options: Options) -> list[Cell]:
        """One run per number of experts and draw, and one for its times, beside which no other runs."""
        n, side, many = ([1200], [20], (2, 8, 20)) if options.quick else ([10_000], [50], MANY)
        seeds = range(1 if options.quick else options.seeds)
        timed = grid(seed=seeds, n=n, side=side, M=many, alone=[True])
        whole = grid(seed=seeds, n=n, side=side, M=[ONE], model=["nearest", "default"])
        alone = [cell | {"alone": True} for cell in whole if cell["model"] == "nearest"]
        return [*timed, *grid(seed=seeds, n=n, side=side, M=many), *alone, *whole]

    def run(self, cell: Cell, options: Options) -> list[Row]:
        """Score or time all aggregators on the same experts, and the full GP."""
        device = options.device
        data, X, f = prior_problem(cell["n"], cell["seed"], device, cell["side"])
        theta, expert = self.parameters(data, device), distgp.EXPERTS[self.kind]()
        if cell["M"] == ONE:
            full = expert.condition(theta, data).predict(X)
            return _whole(cell, options, theta, data, X, f, full)
        shards = random_shards(data, cell["M"], cell["seed"])
        ensemble = Ensemble.condition(expert, theta, shards)
        aggregators = {name: distgp.AGGREGATORS[name]() for name in METHODS[self.kind]}

        def whole() -> Prediction:
            return expert.condition(theta, data).predict(X)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if cell.get("alone"):
                calls: dict[str, Callable[[], object]] = {"full": whole}
                calls |= {name: partial(_once, a, ensemble, X) for name, a in aggregators.items()}
                taken = seconds(calls, device, repeats=1 if options.quick else REPEATS)
                return [{"method": name, "seconds": value} for name, value in taken.items()]
            full = whole()
            rows: list[Row] = [{"method": "full"} | _scores(f, full, None)]
            for name, aggregator in aggregators.items():
                combined = aggregator.combine(ensemble)
                scores = _scores(f, combined.predict(ensemble, X), full)
                weights = {"weight_sum": combined.weight_sum, "weight_norm": combined.weight_norm}
                rows.append({"method": name} | scores | weights)
        return rows

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Draw means above and standard deviations below, as in the paper."""
        return {"metrics": _figure(rows)}

    def page(self, rows: Sequence[Row]) -> str:
        """Write one table per quantity."""
        many, methods = _many(rows), distinct(rows, "method")
        parts = [self.introduction(rows)]
        for quantity, label in QUANTITIES.items():
            label, unit = ("milliseconds", 1e-3) if quantity == "seconds" else (label, 1.0)
            lines = [
                [
                    method,
                    *(with_spread(_at(rows, M, method), quantity, unit) for M in many),
                ]
                for method in methods
            ]
            parts.append(f"## {label}\n\n" + table(["", *(f"M = {M}" for M in many)], lines))
        return "\n\n".join([*parts, self.verdict(rows), failures(rows)])

    def introduction(self, rows: Sequence[Row]) -> str:
        """Say what was done."""
        n, seeds = distinct(rows, "n")[0], len(distinct(rows, "seed"))
        return f"""
{n:,} rows in [−1, 1]² from the prior of an RBF kernel (lengthscale 0.3, σ_f² = 1, σ² = 0.25), test points evenly spaced on
[−1.2, 1.2]², hyperparameters known, mean ± standard deviation over {seeds} draws. RMSE and NLPD are of the latent truth. Times are of what an aggregator
computes once plus all predictions, with experts that are conditioned already; the full GP's include conditioning; medians of {REPEATS} turns. All aggregators combine latent variances, so that the noise is counted once, and gPoE has
weights 1/M; the paper's equation (4) has observed variances, which suits its baselines less. The paper prints figures without numbers here.

Two rows do not depend on M. `nearest` conditions each test point on its nearest rows of all shards{self.nearest}, with the same θ. `default` is `DistributedGPRegressor()`, which has to find
hyperparameters, with a kernel of its own, and is here for comparison: all others are told the true ones. {_chosen(rows)}"""

    @abstractmethod
    def verdict(self, rows: Sequence[Row]) -> str:
        """Say what the paper claims, and what came out."""


class SyntheticExact(Synthetic):
    """Figure 4: exact experts."""

    name: ClassVar[str] = "synthetic-exact"
    title: ClassVar[str] = "Aggregation of exact GPs (figure 4)"
    kind: ClassVar[str] = "exact"
    nearest: ClassVar[str] = " (128 of them, few for this much noise; there is no global part)"

    def parameters(self, data: Shard, device: str) -> Parameters:
        """The true θ."""
        del data
        return Parameters.of(rbf(device), NOISE)

    def verdict(self, rows: Sequence[Row]) -> str:
        """Ask whether grBCM is best, and opt comparable at lower cost."""
        M = _many(rows)[-1]
        names = ("grbcm", "opt", "opt-printed", "two-level")
        at, taken = (
            {m: average(select(rows, M=M, method=m), quantity) for m in names}
            for quantity in ("w2", "seconds")
        )
        return f"""
**The paper says**: grBCM is best, opt comparable at lower cost. **Ours**: at M = {M} the distances to the full GP are grBCM {at["grbcm"]:.3g},
opt {at["opt"]:.3g}, opt with the printed weights {at["opt-printed"]:.3g}, two-level {at["two-level"]:.3g};
the times are {1e3 * taken["grbcm"]:.3g}, {1e3 * taken["opt"]:.3g}, {1e3 * taken["opt-printed"]:.3g} and {1e3 * taken["two-level"]:.3g} ms: opt is not the cheaper one there. **What differs**: the printed weights are
computed from one row per shard and b = diag G, and fail as M grows; computed over all rows (opt) they do not, at the price of n² kernel values; two-level adds
central inputs and comes far closer than grBCM. opt-local is made for experts whose hyperparameters differ, and has nothing to gain here.{_against_nearest(rows, M)}"""


class SyntheticSparse(Synthetic):
    """Figure 5: sparse experts that share their inducing inputs."""

    name: ClassVar[str] = "synthetic-sparse"
    title: ClassVar[str] = "Aggregation of sparse GPs (figure 5)"
    kind: ClassVar[str] = "sparse"
    nearest: ClassVar[str] = " (128 of them), and on the inducing inputs as its global part"

    def parameters(self, data: Shard, device: str) -> Parameters:
        """The true θ, with 128 of the rows' inputs as inducing inputs."""
        return Parameters.of(rbf(device), NOISE, inducing.random_subset(data.X, INDUCING, seed=0))

    def verdict(self, rows: Sequence[Row]) -> str:
        """Ask whether opt and grBCM are ahead of the others."""
        M = _many(rows)[-1]
        names = ("poe", "rbcm", "grbcm", "opt", "opt-printed", "two-level", "pooled")
        at = {m: average(select(rows, M=M, method=m), "w2") for m in names}
        listed = ", ".join(f"{m} {value:.3g}" for m, value in at.items())
        return f"""
**The paper says**: opt and grBCM significantly outperform the others. **Ours**: distances to the full sparse GP at M = {M}: {listed}.
**What differs**: `pooled` adds the experts' sums and *is* the full sparse GP, so no aggregator is needed where θ and the inducing inputs are
shared; `two-level` has inducing inputs of its own and is therefore nearer to the exact GP than to the full sparse one; `opt-local` is made for experts
whose hyperparameters differ.{_against_nearest(rows, M)}"""


def _many(rows: Sequence[Row]) -> list[int]:
    """The numbers of experts of the runs in which it matters."""
    return [M for M in distinct(rows, "M") if M != ONE]


def _against_nearest(rows: Sequence[Row], M: int) -> str:
    """Compare nearest rows with two-level, in error and distance."""
    if not select(rows, method="nearest"):
        return ""
    said = []
    for quantity, label in (("rmse", "RMSE"), ("w2", "distance to the full GP")):
        near, two = (average(_at(rows, M, name), quantity) for name in ("nearest", "two-level"))
        said.append(f"{label} {near:.3g} against {two:.3g}")
    return f"\nNearest rows, at any M, beside two-level at M = {M}: {', '.join(said)}; over a third of the test points lie outside of the rows' square."


def _chosen(rows: Sequence[Row]) -> str:
    """Say what the estimator has chosen."""
    found = Counter(row["chosen"] for row in select(rows, method="default"))
    listed = ", ".join(f"{n} × {name}" for name, n in found.most_common())
    return f"It has chosen: {listed}." if listed else ""


def _at(rows: Sequence[Row], M: int, method: str) -> list[Row]:
    """The runs of a method with M experts, or with any number where that does not matter."""
    return select(rows, M=M, method=method) or select(rows, M=ONE, method=method)


def _whole(
    cell: Cell,
    options: Options,
    theta: Parameters,
    data: Shard,
    X: Tensor,
    f: Tensor,
    full: Prediction,
) -> list[Row]:
    """Score or time nearest rows with the true θ, or score the estimator, which has to find it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if cell["model"] == "default":
            gp = distgp.DistributedGPRegressor(random_state=cell["seed"], device=options.device)
            gp.fit(data.X.cpu().numpy(), data.y.cpu().numpy())
            mean, std = gp.predict(X.cpu().numpy(), return_std=True, latent=True)
            out = Prediction(torch.as_tensor(mean).to(X), torch.as_tensor(std).square().to(X))
            chosen = gp.choice_.best.name if gp.choice_ is not None else None
            return [{"method": "default", "chosen": chosen} | _scores(f, out, full)]
        ensemble = Ensemble.condition(NearestExpert(), theta, [data])
        if cell.get("alone"):
            call = partial(_once, Nearest(), ensemble, X)
            taken = seconds({"nearest": call}, options.device, 1 if options.quick else REPEATS)
            return [{"method": "nearest", "seconds": taken["nearest"]}]
        return [{"method": "nearest"} | _scores(f, _once(Nearest(), ensemble, X), full)]


def _once(aggregator: Aggregator, ensemble: Ensemble, X: Tensor) -> Prediction:
    return aggregator.combine(ensemble).predict(ensemble, X)


def _scores(f: Tensor, out: Prediction, full: Prediction | None) -> Row:
    """Errors against the true f, and the distance to the full GP where that is given."""
    distance = None
    if full is not None:
        distance = metrics.wasserstein2(out.mean, out.variance, full.mean, full.variance)
    return {
        "rmse": metrics.rmse(f, out.mean),
        "nlpd": metrics.nlpd(f, out.mean, out.variance),
        "w2": distance,
        "coverage": metrics.coverage(f, out.mean, out.variance, 0.9),
    }


def _figure(rows: Sequence[Row]) -> Figure:
    """A column of pictures per quantity, a line per method."""
    many, repeated = _many(rows), len(distinct(rows, "seed")) > 1
    statistics = {"mean": average, "standard deviation": spread} if repeated else {"mean": average}
    figure, axes = plt.subplots(
        len(statistics), 4, figsize=(16, 3.4 * len(statistics)), squeeze=False, layout="constrained"
    )
    methods = [name for name in ("full", *DRAWN) if select(rows, method=name)]
    for line, (label, statistic) in zip(axes, statistics.items(), strict=True):
        for ax, (quantity, title) in zip(line, QUANTITIES.items(), strict=True):
            for method in methods:
                values = [statistic(select(rows, M=M, method=method), quantity) for M in many]
                color = "black" if method == "full" else f"C{DRAWN.index(method)}"
                style = "--" if method == "full" else "-"
                look = {"marker": "o", "color": color, "markersize": 3, "linewidth": 1.2}
                ax.plot(many, values, style, label=method, **look)
            ax.set(xscale="log", xlabel="M")
            if quantity == "nlpd" and label == "mean":
                ax.set_yscale("symlog")
            else:
                log_scale(ax)
            if quantity == "w2":
                ax.set_ylim(bottom=1e-5)  # below are rounding errors
            ax.set_title(f"{title}, {label}", fontsize="small")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), loc="outside upper center", ncols=len(methods)
    )
    return figure
