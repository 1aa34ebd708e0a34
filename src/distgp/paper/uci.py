"""Table 2 and its error bars: four tasks on real data, learnt from earlier years, tested on later ones."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

import distgp
from distgp import metrics
from distgp.experts import inducing
from distgp.paper import drift, uci_constants, uci_page, uci_picture, uci_times
from distgp.paper.datasets import TASKS, Task, gas_turbine_years
from distgp.paper.study import (
    Cell,
    Options,
    Row,
    Study,
    failures,
    grid,
    seconds,
)
from distgp.paper.uci_page import BOUND_ROUNDS, INDUCING, LOCAL_STEPS, MANY, RATE

ROUNDS = 500
TIMED = ("poe", "gpoe", "rbcm", "grbcm", "opt", "opt-local")
FLAT = ("robust", "linear", "timing, linear")
"""Models with a linear kernel."""


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
        centre, width = X.mean(0), np.where(X.std(0) > 0, X.std(0), 1.0)
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


def earlier(task: Task) -> Task:
    """Only what is known before the test: the first two thirds of its rows, to predict the last third."""
    cut = 2 * len(task.y) // 3
    return replace(task, X=task.X[:cut], y=task.y[:cut], X_test=task.X[cut:], y_test=task.y[cut:])


def rbf(d: int, device: str) -> distgp.Kernel:
    """The paper's kernel, one lengthscale a column."""
    return (1.0 * distgp.RBF([math.sqrt(d)] * d)).to(device)


def linear(d: int, device: str) -> distgp.Kernel:
    """A plane."""
    return (distgp.Linear([1.0 / d] * d) + distgp.Constant(1.0)).to(device)


class UCI(Study):
    """Table 2."""

    name: ClassVar[str] = "uci"
    title: ClassVar[str] = "Real data, learnt from earlier years (table 2, figure 6)"

    def cells(self, options: Options) -> list[Cell]:
        """The full sparse GP; then every M, kind of training and partition."""
        seeds = range(1 if options.quick else options.seeds)
        many, rounds, every = ((20,), 20, 12) if options.quick else (MANY, ROUNDS, 1)
        names, common = tuple(TASKS), {"every": [every], "seed": seeds}
        full = grid(task=names, model=["full"], M=[1], rounds=[min(rounds, BOUND_ROUNDS)], **common)
        own = grid(task=names, model=["independent"], M=many, rounds=[rounds], **common)
        robust = grid(task=["nox"], model=["robust"], M=many, rounds=[rounds], **common)
        plane = grid(
            task=["nox"], model=["linear"], M=many, rounds=[min(rounds, BOUND_ROUNDS)], **common
        )
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
        timed += [cell | {"model": "timing, linear"} for cell in timed if cell["task"] == "nox"]
        # The constants of opt-local: on later rows of the years to learn from, and on the test years.
        curved = [name for name in names if name != "nox"]
        constants = grid(
            task=curved[:1] if options.quick else curved,
            model=["forward", "afterwards"],
            M=many,
            rounds=[rounds],
            every=[every],
            seed=seeds[:3],
        )
        years = grid(task=["nox"], model=["drift"], M=[0], rounds=[0], every=[1], seed=[0])
        return [*own, *robust, *full, *timed, *averaged, *plane, *constants, *years]

    def check(self, options: Options) -> None:
        """All data sets are there, and are what they should be."""
        for name in TASKS:
            _load(name, str(options.data) if options.data else None, options.verify)

    def run(self, cell: Cell, options: Options) -> list[Row]:
        """Train, then every aggregator on the same experts."""
        if cell.get("on") == "cpu" and options.device != "cpu":
            rows = self.run(cell, replace(options, device="cpu"))
            return [row | {"device": "cpu"} for row in rows]
        if cell["model"] == "drift":
            return drift.facts(gas_turbine_years("nox", options.data, options.verify))
        task = _load(cell["task"], str(options.data) if options.data else None, options.verify)
        if cell["model"] == "forward":
            task = earlier(task)
        robust = cell["model"] == "robust"
        prepared = Prepared.of(
            task, options.device, drift.ROBUST if robust else None, cell["every"]
        )
        data = prepared.data
        kernel = (linear if cell["model"] in FLAT else rbf)(data.d, options.device)
        sample = distgp.central_set([data], min(5000, data.n), cell["seed"]).X
        Z = inducing.kmeans(sample, INDUCING, cell["seed"])
        start = distgp.Parameters.of(kernel, 0.1, Z)
        labels = distgp.RandomPartition().assign(data.X.cpu().numpy(), cell["M"], cell["seed"])
        shards = distgp.split(data, labels)
        theta, taken = _trained(cell, start, shards)
        ensemble = distgp.Ensemble.condition(distgp.SparseExpert(), theta, shards)
        if cell["model"].startswith("timing"):
            return _timed(ensemble, prepared, options)
        methods: dict[str, distgp.Aggregator]
        if cell["model"] == "full":
            methods = {"full": distgp.Pooled()}
        elif cell["model"] in ("forward", "afterwards"):
            methods = {
                uci_constants.constants_name(ridge, rows): distgp.OptLocal(ridge, rows * cell["M"])
                for ridge, rows in uci_constants.CONSTANTS
            }
        else:
            methods = _methods(ensemble.shares_hyperparameters)
        return _scored(methods, ensemble, prepared, taken)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Error bars, a row of pictures a task, as in the paper."""
        return {"errorbars": uci_picture.errorbars(rows)}

    def page(self, rows: Sequence[Row]) -> str:
        """The paper's table beside ours."""
        parts = [
            uci_page.introduction(rows),
            uci_page.against(rows),
            uci_page.averaged(rows),
            uci_constants.constants(rows),
            uci_page.everything(rows),
            drift.page(rows),
            uci_times.times(rows),
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
        "timing, linear": distgp.PooledBound(n_iter=cell["rounds"]),
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


def _predicted(
    method: distgp.Aggregator, ensemble: distgp.Ensemble, prepared: Prepared
) -> distgp.Prediction:
    return method.combine(ensemble).predict(prepared.X_test, observed=True)


def _scored(
    methods: dict[str, distgp.Aggregator],
    ensemble: distgp.Ensemble,
    prepared: Prepared,
    training: float,
) -> list[Row]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            {"method": name, "training_s": training}
            | prepared.scores(_predicted(method, ensemble, prepared))
            for name, method in methods.items()
        ]


def _timed(ensemble: distgp.Ensemble, prepared: Prepared, options: Options) -> list[Row]:
    """Seconds of the methods, in turns."""
    shared = ensemble.shares_hyperparameters
    methods, names = _methods(shared), ("poe", "pooled") if shared else TIMED
    calls = {name: partial(_predicted, methods[name], ensemble, prepared) for name in names}
    if not shared:
        kept = methods["opt-local"].combine(ensemble)
        calls[uci_times.KEPT] = partial(kept.predict, prepared.X_test, observed=True)
    taken = seconds(calls, options.device, repeats=2 if options.quick else 5)
    return [{"method": name, "seconds": value} for name, value in taken.items()]
