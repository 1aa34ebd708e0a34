"""Figures 4 and 5: every aggregator on a draw from the prior, hyperparameters known, M = 2 … 100."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

import distgp
from distgp import metrics
from distgp.experts import inducing
from distgp.paper.draws import Draws
from distgp.paper.study import (
    Cell,
    Options,
    Row,
    Study,
    average,
    distinct,
    failures,
    grid,
    log_scale,
    seconds,
    select,
    spread,
    table,
    with_spread,
)

MANY = (2, 4, 8, 10, 20, 40, 80, 100)
NOISE = 0.25
LENGTHSCALE = 0.3
INDUCING = 128
QUANTITIES = {
    "seconds": "seconds",
    "rmse": "RMSE",
    "nlpd": "NLPD",
    "w2": "2-Wasserstein distance to the full GP",
}
DRAWN = ("poe", "gpoe", "bcm", "rbcm", "grbcm", "npae", "opt", "opt-printed", "two-level", "pooled")


def kernel(device: str, lengthscale: float = LENGTHSCALE) -> distgp.Kernel:
    """RBF with the paper's hyperparameters."""
    return (1.0 * distgp.RBF(lengthscale)).to(device)


def draw(
    n: int, seed: int, device: str, side: int = 50, d: int = 2, lengthscale: float = LENGTHSCALE
) -> tuple[distgp.Shard, Tensor, Tensor]:
    """Rows in [−1, 1]^d with noise, test points, and the latent truth there: one draw from the prior.

    Test points: side² on [−1.2, 1.2]² in two columns, else 1,000 at random in [−1.1, 1.1]^d.
    """
    draws = Draws(seed, device)
    X, test = draws.box(n, d), 1.1 * draws.box(1000, d)
    if d == 2:
        line = torch.linspace(-1.2, 1.2, side, dtype=torch.float64, device=device)
        test = torch.cartesian_prod(line, line)
    points = torch.cat([X, test])
    f = draws.prior(kernel(device, lengthscale), points)
    y = f[:n] + NOISE**0.5 * draws.normal(n)
    return distgp.Shard.of(points[:n], y), points[n:], f[n:]


class Synthetic(Study):
    """One kind of expert."""

    kind: ClassVar[str]

    @abstractmethod
    def parameters(self, data: distgp.Shard, seed: int, device: str) -> distgp.Parameters:
        """θ, with inducing inputs where the experts need them."""

    def cells(self, options: Options) -> list[Cell]:
        """A number of experts and a draw each; times by themselves, undisturbed by other processes."""
        n, side, many = ([1200], [20], (2, 8, 20)) if options.quick else ([10_000], [50], MANY)
        seeds = range(1 if options.quick else options.seeds)
        timed = grid(seed=seeds, n=n, side=side, M=many, alone=[True])
        return [*timed, *grid(seed=seeds, n=n, side=side, M=many)]

    def run(self, cell: Cell, options: Options) -> list[Row]:
        """All aggregators on the same experts, and the full GP: scores, or times."""
        device = options.device
        data, X, f = draw(cell["n"], cell["seed"], device, cell["side"])
        theta, expert = self.parameters(data, cell["seed"], device), distgp.EXPERTS[self.kind]()
        full = expert.condition(theta, data).predict(X)
        labels = distgp.RandomPartition().assign(data.X.cpu().numpy(), cell["M"], cell["seed"])
        ensemble = distgp.Ensemble.condition(expert, theta, distgp.split(data, labels))
        methods = {name: make() for name, make in distgp.AGGREGATORS.items()}
        if self.kind == "exact":
            methods.pop("pooled")

        def once(method: distgp.Aggregator) -> distgp.Prediction:
            return method.combine(ensemble).predict(X)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if cell.get("alone"):
                calls: dict[str, Callable[[], distgp.Prediction]] = {
                    "full": lambda: expert.condition(theta, data).predict(X)
                }
                calls |= {name: partial(once, method) for name, method in methods.items()}
                taken = seconds(calls, device, repeats=1 if options.quick else 3)
                return [{"method": name, "seconds": value} for name, value in taken.items()]
            rows: list[Row] = [{"method": "full"} | _scores(f, full, None)]
            for name, method in methods.items():
                combined = method.combine(ensemble)
                row = {"method": name} | _scores(f, combined.predict(X), full)
                rows.append(
                    row | {"weight_sum": combined.weight_sum, "weight_norm": combined.weight_norm}
                )
        return rows

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Means above, standard deviations below, as in the paper."""
        return {"metrics": _figure(rows)}

    def page(self, rows: Sequence[Row]) -> str:
        """A table a quantity."""
        many, methods = distinct(rows, "M"), distinct(rows, "method")
        parts = [self.introduction(rows)]
        for quantity, label in QUANTITIES.items():
            label, unit = ("milliseconds", 1e-3) if quantity == "seconds" else (label, 1.0)
            lines = [
                [
                    method,
                    *(with_spread(select(rows, M=M, method=method), quantity, unit) for M in many),
                ]
                for method in methods
            ]
            parts.append(f"## {label}\n\n" + table(["", *(f"M = {M}" for M in many)], lines))
        return "\n\n".join([*parts, self.verdict(rows), failures(rows)])

    def introduction(self, rows: Sequence[Row]) -> str:
        """What was done."""
        n, seeds = distinct(rows, "n")[0], len(distinct(rows, "seed"))
        return f"""
{n:,} rows in [−1, 1]² from the prior of an RBF kernel (lengthscale 0.3, σ_f² = 1, σ² = 0.25), test points evenly spaced on
[−1.2, 1.2]², hyperparameters known, mean ± standard deviation over {seeds} draws. RMSE and NLPD are of the latent truth; times are for what an aggregator
computes once and for all predictions, the experts being conditioned; the full GP's include conditioning. All aggregate latent variances, where the noise is counted once, and gPoE has
weights 1/M; the paper's baselines aggregate observed variances, which suits them less. The paper prints figures without numbers here."""

    @abstractmethod
    def verdict(self, rows: Sequence[Row]) -> str:
        """What the paper says, and what came out."""


class SyntheticExact(Synthetic):
    """Figure 4."""

    name: ClassVar[str] = "synthetic-exact"
    title: ClassVar[str] = "Aggregation of exact GPs (figure 4)"
    kind: ClassVar[str] = "exact"

    def parameters(self, data: distgp.Shard, seed: int, device: str) -> distgp.Parameters:
        """θ."""
        del data, seed
        return distgp.Parameters.of(kernel(device), NOISE)

    def verdict(self, rows: Sequence[Row]) -> str:
        """grBCM best, opt comparable?"""
        M = distinct(rows, "M")[-1]
        names = ("grbcm", "opt", "opt-printed", "two-level")
        at, taken = (
            {m: average(select(rows, M=M, method=m), quantity) for m in names}
            for quantity in ("w2", "seconds")
        )
        return f"""
**The paper says**: grBCM is best, opt comparable at lower cost. **Ours**: at M = {M} the distances to the full GP are grBCM {at["grbcm"]:.3g},
opt {at["opt"]:.3g}, opt with the printed weights {at["opt-printed"]:.3g}, two-level {at["two-level"]:.3g};
the times {1e3 * taken["grbcm"]:.3g}, {1e3 * taken["opt"]:.3g}, {1e3 * taken["opt-printed"]:.3g} and {1e3 * taken["two-level"]:.3g} ms: opt is not the cheaper one there. **What differs**: the printed weights are
computed from one row a shard and b = diag G, and fail as M grows; over all rows (opt) they do not, at the price of n² kernel values; two-level adds
central inputs and comes far closer than grBCM. opt-local is made for experts whose hyperparameters differ, and has nothing to gain here."""


class SyntheticSparse(Synthetic):
    """Figure 5."""

    name: ClassVar[str] = "synthetic-sparse"
    title: ClassVar[str] = "Aggregation of sparse GPs (figure 5)"
    kind: ClassVar[str] = "sparse"

    def parameters(self, data: distgp.Shard, seed: int, device: str) -> distgp.Parameters:
        """θ with 128 of the rows' inputs as inducing inputs."""
        del seed
        Z = inducing.random_subset(data.X, INDUCING, seed=0)
        return distgp.Parameters.of(kernel(device), NOISE, Z)

    def verdict(self, rows: Sequence[Row]) -> str:
        """opt and grBCM ahead?"""
        M = distinct(rows, "M")[-1]
        names = ("poe", "rbcm", "grbcm", "opt", "opt-printed", "two-level", "pooled")
        at = {m: average(select(rows, M=M, method=m), "w2") for m in names}
        listed = ", ".join(f"{m} {value:.3g}" for m, value in at.items())
        return f"""
**The paper says**: opt and grBCM significantly outperform the others. **Ours**: distances to the full sparse GP at M = {M}: {listed}.
**What differs**: `pooled` adds the experts' sums and *is* the full sparse GP, so no aggregator is needed where θ and the inducing inputs are
shared; `two-level` has inducing inputs of its own and is therefore nearer to the exact GP than to the full sparse one; `opt-local` is made for experts
whose hyperparameters differ."""


def _scores(f: Tensor, out: distgp.Prediction, full: distgp.Prediction | None) -> Row:
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
    many, repeated = distinct(rows, "M"), len(distinct(rows, "seed")) > 1
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
                ax.plot(
                    many,
                    values,
                    style,
                    marker="o",
                    color=color,
                    label=method,
                    markersize=3,
                    linewidth=1.2,
                )
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
