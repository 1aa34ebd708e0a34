"""Table 2 and its error bars: four tasks on real data, learnt from earlier years, tested on later ones."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ClassVar

import numpy as np
import torch
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from torch import Tensor

import distgp
from distgp import metrics
from distgp.experts import inducing
from distgp.paper import drift
from distgp.paper.datasets import TASKS, Task, gas_turbine_years
from distgp.paper.published import published
from distgp.paper.study import (
    Cell,
    Options,
    Row,
    Study,
    average,
    distinct,
    failures,
    grid,
    seconds,
    select,
    spread,
    table,
)

MANY = (20, 40, 60)
INDUCING = 128
ROUNDS = 500
RATE = 0.05
LOCAL_STEPS = 5
"""Of FedAvg between two exchanges; its iterations are counted as local steps."""
BASELINES = ("poe", "gpoe", "bcm", "rbcm", "grbcm")
NAMES = {"seconds": "seconds", "rmse": "RMSE", "nlpd": "NLPD, in the unit of RMSE"}
TIMED = ("poe", "gpoe", "rbcm", "grbcm", "opt", "opt-local")
MODELS = {
    "independent": "own hyperparameters",
    "fedavg": "FedAvg",
    "linear": "shared hyperparameters, linear kernel",
    "robust": "own hyperparameters, linear kernel, six sensors",
}


@dataclass(frozen=True, eq=False)
class Prepared:
    """A task in standard units, on a device."""

    task: Task
    data: distgp.Shard
    X_test: Tensor
    mean: float
    scale: float

    @staticmethod
    def of(
        task: Task, device: str, columns: Sequence[str] | None = None, every: int = 1
    ) -> Prepared:
        """Standardised by the years to learn from; some of the columns and every so many rows, or all."""
        task = replace(
            task,
            X=task.X[::every],
            y=task.y[::every],
            X_test=task.X_test[::every],
            y_test=task.y_test[::every],
        )
        names = task.features if columns is None else columns
        which = [task.features.index(name) for name in names]
        X, X_test = task.X[:, which], task.X_test[:, which]
        centre, width = X.mean(0), X.std(0)
        mean, scale = float(task.y.mean()), float(task.y.std())

        def tensor(values: np.ndarray) -> Tensor:
            return torch.as_tensor(values, dtype=torch.float64, device=device)

        data = distgp.Shard.of(tensor((X - centre) / width), tensor((task.y - mean) / scale))
        return Prepared(task, data, tensor((X_test - centre) / width), mean, scale)

    def scores(self, out: distgp.Prediction) -> Row:
        """RMSE and NLPD of the observed targets, in the task's units."""
        mean = out.mean.cpu().numpy() * self.scale + self.mean
        variance = out.variance.cpu().numpy() * self.scale**2
        y = self.task.y_test
        return {
            "rmse": metrics.rmse(y, mean),
            "nlpd": metrics.nlpd(y, mean, variance),
            "coverage": metrics.coverage(y, mean, variance, 0.9),
        }


def rbf(d: int, device: str) -> distgp.Kernel:
    """The paper's kernel, one lengthscale a column."""
    return (1.0 * distgp.RBF([math.sqrt(d)] * d)).to(device)


def linear(d: int, device: str) -> distgp.Kernel:
    """A plane."""
    return (distgp.Linear([1.0 / d] * d) + distgp.Constant(1.0)).to(device)


class UCI(Study):
    """Table 2."""

    name: ClassVar[str] = "uci"
    title: ClassVar[str] = "Real data, learnt from earlier years (table 2)"

    def cells(self, options: Options) -> list[Cell]:
        """The full sparse GP; then every M, kind of training and partition."""
        seeds = range(1 if options.quick else options.seeds)
        many, rounds, every = ((20,), 20, 12) if options.quick else (MANY, ROUNDS, 1)
        names, common = tuple(TASKS), {"every": [every], "seed": seeds}
        full = grid(task=names, model=["full"], M=[1], rounds=[min(rounds, 100)], **common)
        own = grid(task=names, model=["independent"], M=many, rounds=[rounds], **common)
        robust = grid(task=["nox"], model=["robust"], M=many, rounds=[rounds], **common)
        plane = grid(task=["nox"], model=["linear"], M=many, rounds=[min(rounds, 100)], **common)
        averaged = grid(
            seed=seeds, task=names, model=["fedavg"], M=many, rounds=[rounds], every=[every]
        )
        # Times, of experts that are hardly trained: each by itself, undisturbed by other processes.
        timed = grid(
            task=names,
            model=["timing"],
            M=many,
            rounds=[2],
            every=[every],
            seed=[0],
            alone=[True],
            on=["device", "cpu"],
        )
        years = grid(task=["nox"], model=["drift"], M=[0], rounds=[0], every=[1], seed=[0])
        return [*own, *robust, *full, *timed, *averaged, *plane, *years]

    def run(self, cell: Cell, options: Options) -> list[Row]:
        """Train, then every aggregator on the same experts."""
        if cell.get("on") == "cpu":
            options = replace(options, device="cpu")
        if cell["model"] == "drift":
            return drift.facts(gas_turbine_years("nox", options.data, options.verify))
        task = _load(cell["task"], str(options.data) if options.data else None, options.verify)
        robust = cell["model"] == "robust"
        prepared = Prepared.of(
            task, options.device, drift.ROBUST if robust else None, cell["every"]
        )
        data = prepared.data
        flat = cell["model"] in ("robust", "linear")
        kernel = (linear if flat else rbf)(data.d, options.device)
        sample = distgp.central_set([data], min(5000, data.n), cell["seed"]).X
        Z = inducing.kmeans(sample, INDUCING, cell["seed"])
        start = distgp.Parameters.of(kernel, 0.1, Z)
        labels = distgp.RandomPartition().assign(data.X.cpu().numpy(), cell["M"], cell["seed"])
        shards = distgp.split(data, labels)
        theta, taken = _trained(cell, start, shards)
        ensemble = distgp.Ensemble.condition(distgp.SparseExpert(), theta, shards)
        if cell["model"] == "full":
            methods: dict[str, distgp.Aggregator] = {"full": distgp.Pooled()}
        else:
            methods = _methods(ensemble.shares_hyperparameters)
        return _measured(methods, ensemble, prepared, taken, options, cell["model"] == "timing")

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Error bars, a row of pictures a task, as in the paper."""
        return {"errorbars": _errorbars(rows)}

    def page(self, rows: Sequence[Row]) -> str:
        """The paper's table beside ours."""
        parts = [
            _introduction(rows),
            _against(rows),
            _everything(rows),
            drift.page(rows),
            _times(rows),
            failures(rows),
        ]
        return "\n\n".join(parts)


@cache
def _load(name: str, folder: str | None, verify: bool) -> Task:
    return TASKS[name](folder, verify)


def _trained(
    cell: Cell, start: distgp.Parameters, shards: list[distgp.Shard]
) -> tuple[distgp.Parameters, float]:
    algorithms: dict[str, distgp.Algorithm] = {
        "full": distgp.PooledBound(n_iter=cell["rounds"]),
        "linear": distgp.PooledBound(n_iter=cell["rounds"]),
        "fedavg": distgp.FedAvg(LOCAL_STEPS, RATE, n_iter=max(1, cell["rounds"] // LOCAL_STEPS)),
        "independent": distgp.Independent(n_iter=cell["rounds"], learning_rate=RATE),
    }
    algorithm = algorithms.get(cell["model"], algorithms["independent"])
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = distgp.train(
            algorithm,
            distgp.SparseExpert(),
            start,
            shards,
            fixed=["inducing"],
            bounds={"noise": (1e-4, 10.0)},
            tolerance=1e-5 if cell["model"] in ("full", "linear") else 0.0,
        )
    return result.parameters, time.perf_counter() - begin


def _methods(shared: bool) -> dict[str, distgp.Aggregator]:
    """The paper's baselines aggregate observed variances, as it does; and in latent space beside them."""
    methods: dict[str, distgp.Aggregator] = {
        "poe": distgp.PoE(space="observed"),
        "gpoe": distgp.GPoE("entropy", space="observed"),
        "bcm": distgp.BCM(space="observed"),
        "rbcm": distgp.RBCM(space="observed"),
        "grbcm": distgp.GRBCM(space="observed"),
        "poe, latent": distgp.PoE(),
        "gpoe, latent": distgp.GPoE(),
        "rbcm, latent": distgp.RBCM(),
        "grbcm, latent": distgp.GRBCM(),
        "opt": distgp.Opt(),
        "opt-local": distgp.OptLocal(),
    }
    if shared:
        methods |= {
            "opt-printed": distgp.OptPrinted(),
            "npae": distgp.NPAE(),
            "two-level": distgp.TwoLevel(),
            "pooled": distgp.Pooled(),
        }
    return methods


def _measured(
    methods: dict[str, distgp.Aggregator],
    ensemble: distgp.Ensemble,
    prepared: Prepared,
    training: float,
    options: Options,
    timed: bool,
) -> list[Row]:
    """Scores of every method; or, of experts that are there for that alone, times."""

    def once(method: distgp.Aggregator) -> distgp.Prediction:
        return method.combine(ensemble).predict(prepared.X_test, observed=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if timed:
            calls = {name: partial(once, methods[name]) for name in TIMED}
            slow = options.quick or options.device == "cpu"
            taken = seconds(calls, options.device, repeats=2 if slow else 5)
            return [{"method": name, "seconds": value} for name, value in taken.items()]
        return [
            {"method": name, "training_s": training} | prepared.scores(once(method))
            for name, method in methods.items()
        ]


def harsher_nlpd(task: str, nlpd: float) -> float:
    """In published units, where the number is larger: so that a win holds in either reading."""
    tens = {"co": 1.0, "nox": 10.0, "pm2.5": 10.0, "traffic": 100.0}[task]
    return nlpd + math.log(tens)


def _introduction(rows: Sequence[Row]) -> str:
    rounds = max(row["rounds"] for row in rows)
    seeds = {name: len(distinct(select(rows, model=name), "seed")) for name in MODELS}
    return f"""
Sparse experts with m = {INDUCING} inducing inputs (k-means centres, the same for all experts), RBF kernel with a lengthscale a column,
rows dealt out at random, {rounds} steps of Adam with rate {RATE}; {seeds["independent"]} partitions ({seeds["fedavg"]} with FedAvg). The paper says both that hyperparameters are not shared and that FedAvg
trains them: both are here, "own" and "FedAvg". Baselines aggregate observed variances as the paper does; "latent" counts the
noise once. Features: the nine sensors (gas turbine); dew point, temperature, pressure, wind, hours of wind, snow and rain, time of day and of
year (PM2.5); time of day, week and year, holidays, weather (traffic): what is known at the hour, no year, no other target.

The paper states no units. RMSE fits CO in mg/m³, NOx and PM2.5 in tens of the published unit and traffic in hundreds; its traffic NLPD
fits vehicles/h alone. NLPD is given in published units here, which is the larger reading (by log 10 for NOx and PM2.5, log 100 for
traffic): what is below the paper's in this reading is below it in any."""


def _best(rows: Sequence[Row], task: str, M: int, method: str) -> list[Row]:
    """Ours: experts with their own hyperparameters; for NOx those that share them and a linear kernel."""
    return select(
        rows, task=task, M=M, method=method, model="linear" if task == "nox" else "independent"
    )


def automatic(task: str) -> str:
    """What `aggregation="auto"` takes for these experts."""
    return "pooled" if task == "nox" else "opt-local"


def compared(rows: Sequence[Row]) -> Iterator[tuple[str, int, str, float, float, float]]:
    """Task, M, quantity; the paper's opt, ours, and our opt, NLPD in the harsher reading."""
    for task in distinct(rows, "task"):
        for M in [M for M in MANY if _best(rows, task, M, automatic(task))]:
            for quantity in ("rmse", "nlpd"):
                found = [
                    average(_best(rows, task, M, m), quantity) for m in (automatic(task), "opt")
                ]
                ours, opt = (harsher_nlpd(task, v) if quantity == "nlpd" else v for v in found)
                yield task, M, quantity, published()[task, M, "opt", quantity][0], ours, opt


def _against(rows: Sequence[Row]) -> str:
    lines, wins, opt_wins = [], {"rmse": 0, "nlpd": 0}, {"rmse": 0, "nlpd": 0}
    for task, M, quantity, theirs, ours, opt in compared(rows):
        wins[quantity] += ours < theirs
        opt_wins[quantity] += opt < theirs
        part = [theirs, ours, ours / theirs, opt]
        if quantity == "rmse":
            lines.append([task, M, automatic(task), *part])
        else:
            lines[-1] += part
    head = [
        "task", "M", "ours is", "RMSE: the paper's opt", "ours", "ratio", "our opt",
        "NLPD: the paper's opt", "ours", "ratio", "our opt",
    ]  # fmt: skip
    count = len(lines)
    full, theirs = (
        average(select(rows, task="co", method="full"), "rmse"),
        published()["co", 20, "svgp", "rmse"][0],
    )
    return f"""## The paper's opt, and ours

Mean over the partitions. "Ours" is what `aggregation="auto"` takes: opt-local for experts with their own hyperparameters, and pooled for
NOx, where the experts share a linear kernel (see below).

{table(head, lines)}

Ours is below the paper's opt in RMSE in {wins["rmse"]} of {count} rows and in NLPD in {wins["nlpd"]}; our opt, on the same experts, in {opt_wins["rmse"]} and {opt_wins["nlpd"]}. What differs from the
paper: the noise is counted once; weights are fitted on rows of all shards, not on one row a shard; opt-local lets each expert count where its own
variance is small, which helps where experts leave their data (CO); the variance is the mixture's, which grows where experts disagree, instead of Σβ²s², which
shrinks like 1/M. The features are ours too, and account for much of the gain on PM2.5 and traffic: PoE with them is already below the paper's PoE.
What they are not: the best in every row. In latent space, with the noise counted once, the baselines come close, and in RMSE rBCM (CO) and grBCM (traffic) are ahead; the
tables below have them all. opt-local's two constants, a ridge of 10 and ten rows an expert, were set while looking at CO; they hold for all tasks. The full sparse
GP, trained to the end of its bound, is far off on CO in the test years (RMSE {full:.2f}, the paper's {theirs}): it extrapolates; experts that disagree do not."""


def _everything(rows: Sequence[Row]) -> str:
    parts = [
        "## All methods",
        "RMSE / NLPD (published units), mean ± standard deviation over the partitions; the paper's numbers above ours.",
    ]
    for task in distinct(rows, "task"):
        many = [M for M in MANY if select(rows, task=task, M=M)]
        lines: list[list[object]] = []
        for method in ("svgp", *BASELINES, "opt"):
            cells = [
                " / ".join(
                    "{:.3f} ± {:.3f}".format(*published()[task, M, method, q])
                    for q in ("rmse", "nlpd")
                )
                for M in many
            ]
            lines.append([f"the paper's {method}", *cells])
        full = select(rows, task=task, method="full")
        lines.append(["full sparse GP, ours", *[_pair(task, full)] * len(many)])
        for model, label in MODELS.items():
            for method in distinct(select(rows, task=task, model=model), "method"):
                cells = [
                    _pair(task, select(rows, task=task, model=model, method=method, M=M))
                    for M in many
                ]
                lines.append([f"{method}, {label}", *cells])
        parts.append(f"### {task}\n\n" + table(["", *(f"M = {M}" for M in many)], lines))
    return "\n\n".join(parts)


def _pair(task: str, rows: Sequence[Row]) -> str:
    if not rows:
        return "–"
    rmse, nlpd = average(rows, "rmse"), harsher_nlpd(task, average(rows, "nlpd"))
    if len(rows) == 1:
        return f"{rmse:.3f} / {nlpd:.3f} (one run)"
    return f"{rmse:.3f} ± {spread(rows, 'rmse'):.3f} / {nlpd:.3f} ± {spread(rows, 'nlpd'):.3f}"


def _times(rows: Sequence[Row]) -> str:
    lines, ratios = [], {"device": [], "cpu": []}
    shown = ("poe", "opt", "opt-local", "grbcm")
    for task in distinct(rows, "task"):
        for M in [M for M in MANY if select(rows, task=task, M=M)]:
            line: list[object] = [task, M]
            line += [1e3 * published()[task, M, method, "time"][0] for method in ("poe", "opt")]
            for on, found in ratios.items():
                at = {
                    m: select(rows, task=task, M=M, model="timing", on=on, method=m) for m in shown
                }
                taken = [1e3 * average(at[m], "seconds") for m in shown]
                found.append(taken[2] / taken[0])
                line += [*taken, found[-1]]
            lines.append(line)
    head = ["task", "M", "the paper's PoE, ms", "its opt"]
    for place in ("", "CPU: "):
        head += [f"{place}PoE", "opt", "opt-local", "grBCM", "opt-local / PoE"]
    device = " and ".join(
        str(name) for name in distinct(select(rows, model="timing", on="device"), "device")
    )
    low, high = (max(ratios[on], default=math.nan) for on in ("cpu", "device"))
    return f"""## Time

Milliseconds for weights and predictions at all test rows, medians in turns, experts with their own hyperparameters (of two steps of training, which times do not depend on); on {device}, then on the CPU.

{table(head, lines)}

opt-local's weights need the experts' predictions at ten rows an expert, beside those at thousands of test rows: at most {low:.2f} × PoE's time on the
CPU. On a GPU, where PoE takes milliseconds, launches decide, and it is {high:.2f} × at most. opt evaluates all experts' means on all rows."""


def _errorbars(rows: Sequence[Row]) -> Figure:
    tasks = distinct(rows, "task")
    figure, axes = plt.subplots(
        len(tasks), 3, figsize=(12, 2.7 * len(tasks)), squeeze=False, layout="constrained"
    )
    methods = (
        "poe, latent",
        "gpoe, latent",
        "rbcm, latent",
        "grbcm, latent",
        "opt",
        "opt-local",
        "pooled",
    )
    for line, task in zip(axes, tasks, strict=True):
        for quantity, ax in zip(("seconds", "rmse", "nlpd"), line, strict=True):
            many = [M for M in MANY if select(rows, task=task, M=M)]
            for shift, method in enumerate(methods):
                timed = quantity == "seconds"
                chosen = [
                    select(
                        rows,
                        task=task,
                        M=M,
                        method=method.removesuffix(", latent"),
                        model="timing",
                        on="device",
                    )
                    if timed
                    else _best(rows, task, M, method)
                    for M in many
                ]
                values, bars = [[f(c, quantity) for c in chosen] for f in (average, spread)]
                x = np.arange(len(many)) + 0.1 * (shift - 2.5)
                ax.errorbar(x, values, bars, fmt="o", capsize=2, markersize=4, label=method)
            if quantity != "seconds":
                theirs = [published()[task, M, "opt", quantity][0] for M in many]
                tens = harsher_nlpd(task, 0.0) if quantity == "nlpd" else 0.0
                ax.plot(
                    np.arange(len(many)),
                    [v - tens for v in theirs],
                    "k_",
                    markersize=24,
                    label="the paper's opt",
                )
            ax.set(
                xticks=range(len(many)),
                xticklabels=[f"M = {M}" for M in many],
                yscale="log" if quantity == "seconds" else "linear",
            )
            ax.set_title(f"{task}: {NAMES[quantity]}", fontsize="small")
    figure.legend(
        *axes[0][1].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=8,
        fontsize="small",
    )
    return figure
