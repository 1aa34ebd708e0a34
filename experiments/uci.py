"""Table 2 and its error bars: four tasks on real data, learnt from earlier years, tested on later ones."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.linear_model import RidgeCV

import distgp
from distgp.aggregation import (
    BCM,
    GRBCM,
    NPAE,
    RBCM,
    Aggregator,
    Ensemble,
    GPoE,
    Opt,
    OptLocal,
    OptPrinted,
    PoE,
    Pooled,
    TwoLevel,
)
from distgp.data import Shard, central_set
from distgp.experts import Parameters, Prediction, SparseExpert, inducing
from distgp.training import Algorithm, FedAvg, Independent, PooledBound, train
from experiments.datasets import TASKS, Prepared, Task, gas_turbine_years
from experiments.draws import random_shards
from experiments.report import failures
from experiments.study import Cell, Options, Row, Study, grid, seconds
from experiments.uci_checks import (
    CONSTANTS,
    NOT_REDUNDANT,
    ROBUST,
    constants,
    constants_name,
    drift,
    drift_facts,
)
from experiments.uci_claims import claims, without_experts
from experiments.uci_page import (
    BOUND_ROUNDS,
    INDUCING,
    LOCAL_STEPS,
    MANY,
    RATE,
    against,
    averaged,
    everything,
    introduction,
)
from experiments.uci_printed import printed, printed_name, printed_predictions
from experiments.uci_times import KEPT, REPEATS, errorbars, times

ROUNDS = 500
TIMED = ("poe", "gpoe", "rbcm", "grbcm", "opt", "opt-local")
FLAT = ("robust", "linear", "timing, linear")
"""The models with a linear kernel."""
FEWER = "full, fewer sensors"
"""The full sparse GP on sensors that do not repeat each other."""
ESTIMATORS: dict[str, dict[str, Any]] = {
    "nearest": {"expert": "nearest"},
    "default": {"validation": "last"},
}
"""The estimator's settings, by model; all else is left at its defaults."""


def rbf(d: int, device: str) -> distgp.Kernel:
    """The paper's kernel, with one lengthscale per column."""
    return (1.0 * distgp.RBF([math.sqrt(d)] * d)).to(device)


def linear(d: int, device: str) -> distgp.Kernel:
    """A kernel whose functions are planes."""
    return (distgp.Linear([1.0 / d] * d) + distgp.Constant(1.0)).to(device)


class UCI(Study):
    """Table 2: four tasks, several ways to train the experts, every aggregator."""

    name: ClassVar[str] = "uci"
    title: ClassVar[str] = "Real data, learnt from earlier years (table 2, figure 6)"

    def cells(self, options: Options) -> list[Cell]:
        """One run per task, model, M and partition; the model says how the experts are trained."""
        seeds = range(1 if options.quick else options.seeds)
        many, rounds, every = ((20,), 20, 12) if options.quick else (MANY, ROUNDS, 1)
        names, common = tuple(TASKS), {"every": [every], "seed": seeds}
        full = grid(task=names, model=["full"], M=[1], rounds=[min(rounds, BOUND_ROUNDS)], **common)
        own = grid(task=names, model=["independent"], M=many, rounds=[rounds], **common)
        robust = grid(task=["nox"], model=["robust"], M=many, rounds=[rounds], **common)
        plane = grid(
            task=["nox"], model=["linear"], M=many, rounds=[min(rounds, BOUND_ROUNDS)], **common
        )
        shared = grid(
            seed=seeds, task=names, model=["fedavg"], M=many, rounds=[rounds], every=[every]
        )
        # Times do not depend on the hyperparameters, so these experts are hardly trained. Each run is
        # alone, so that no other process disturbs it.
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
        # opt-local with other constants, on later rows of the years to learn from and on the test years.
        curved = [name for name in names if name != "nox"]
        validation = grid(
            task=curved[:1] if options.quick else curved,
            model=["forward", "afterwards"],
            M=many,
            rounds=[rounds],
            every=[every],
            seed=seeds[:3],
        )
        years = grid(task=["nox"], model=["drift"], M=[0], rounds=[0], every=[1], seed=[0])
        ridge = grid(task=names, model=["ridge"], M=[1], rounds=[0], every=[every], seed=[0])
        fewer = [cell | {"model": FEWER} for cell in full if cell["task"] == "co"]
        few = names[:1] if options.quick else names
        estimators = grid(task=few, model=ESTIMATORS, M=[1], rounds=[0], **common)
        # The experts of `own` once more, since a run that is finished is not run again.
        weights = [cell | {"model": "printed"} for cell in own]
        first = [*own, *robust, *full, *timed, *shared, *plane, *validation, *years]
        return [*first, *ridge, *fewer, *estimators, *weights]

    def check(self, options: Options) -> None:
        """Read all data sets, so that a missing or damaged file is found before any work."""
        for name in TASKS:
            _load(name, options)

    def run(self, cell: Cell, options: Options) -> list[Row]:
        """Train experts, then score or time every aggregator on them."""
        if cell.get("on") == "cpu" and options.device != "cpu":
            rows = self.run(cell, replace(options, device="cpu"))
            return [row | {"device": "cpu"} for row in rows]
        if cell["model"] == "drift":
            return drift_facts(gas_turbine_years("nox", options.data, options.verify))
        prepared = _prepared(cell, options)
        if cell["model"] == "ridge":
            return [{"method": "ridge"} | prepared.scores(_ridge(prepared))]
        if cell["model"] in ESTIMATORS:
            return [_estimated(cell, prepared, options.device)]
        theta, shards, taken = _trained(cell, prepared.data)
        ensemble = Ensemble.condition(SparseExpert(), theta, shards)
        if cell["model"].startswith("timing"):
            return _timed(ensemble, prepared, options)
        if cell["model"] == "printed":
            rows = _scored({"bcm, latent": BCM()}, ensemble, prepared, taken)
            return rows + [
                {"method": printed_name(jitter), "training_s": taken} | prepared.scores(prediction)
                for jitter, prediction in printed_predictions(ensemble, prepared.X_test).items()
            ]
        return _scored(_aggregators(cell, ensemble), ensemble, prepared, taken)

    def figures(self, rows: Sequence[Row]) -> dict[str, Figure]:
        """Draw the error bars, one row of pictures per task, as in the paper."""
        return {"errorbars": errorbars(rows)}

    def page(self, rows: Sequence[Row]) -> str:
        """Put the paper's table beside ours."""
        parts = [
            introduction(rows),
            against(rows),
            claims(rows),
            averaged(rows),
            printed(rows),
            without_experts(rows),
            constants(rows),
            everything(rows),
            drift(rows),
            times(rows),
            failures(rows),
        ]
        return "\n\n".join(parts)


@cache
def _read(name: str, folder: Path | None, verify: bool) -> Task:
    return TASKS[name](folder, verify)


def _load(name: str, options: Options) -> Task:
    """A task, read once per process."""
    return _read(name, options.data, options.verify)


def _prepared(cell: Cell, options: Options) -> Prepared:
    """The task of a run in standard units."""
    task = _load(cell["task"], options)
    if cell["model"] == "forward":
        task = task.earlier()
    columns = {"robust": ROBUST, FEWER: NOT_REDUNDANT}.get(cell["model"])
    return Prepared.of(task.every(cell["every"]), options.device, columns)


def _trained(cell: Cell, data: Shard) -> tuple[Parameters, list[Shard], float]:
    """Hyperparameters, the experts' shards, and the seconds that training took."""
    kernel = (linear if cell["model"] in FLAT else rbf)(data.d, str(data.X.device))
    sample = central_set([data], min(5000, data.n), cell["seed"]).X
    start = Parameters.of(kernel, 0.1, inducing.kmeans(sample, INDUCING, cell["seed"]))
    shards = random_shards(data, cell["M"], cell["seed"])
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = train(
            _algorithm(cell),
            SparseExpert(),
            start,
            shards,
            fixed=["inducing"],
            bounds={"noise": (1e-4, 10.0)},
            tolerance=1e-5 if cell["model"] in ("full", FEWER, "linear") else 0.0,
        )
    return result.parameters, shards, time.perf_counter() - begin


def _algorithm(cell: Cell) -> Algorithm:
    """How the experts of a run are trained."""
    rounds = cell["rounds"]
    if cell["model"] in ("full", FEWER, "linear", "timing, linear"):
        return PooledBound(n_iter=rounds)
    if cell["model"] == "fedavg":
        return FedAvg(LOCAL_STEPS, RATE, n_iter=max(1, rounds // LOCAL_STEPS))
    return Independent(n_iter=rounds, learning_rate=RATE)


def _aggregators(cell: Cell, ensemble: Ensemble) -> dict[str, Aggregator]:
    """The aggregators to score in a run."""
    if cell["model"] in ("full", FEWER):
        return {cell["model"]: Pooled()}
    if cell["model"] in ("forward", "afterwards"):
        return {
            constants_name(ridge, rows): OptLocal(ridge, rows * cell["M"])
            for ridge, rows in CONSTANTS
        }
    return _methods(ensemble.shares_hyperparameters)


def _methods(shared: bool) -> dict[str, Aggregator]:
    """The paper's baselines in observed space, as there, and in latent space; then opt and its kin."""
    methods: dict[str, Aggregator] = {
        "poe": PoE(space="observed"),
        "gpoe": GPoE("entropy", space="observed"),
        "bcm": BCM(space="observed"),
        "rbcm": RBCM(space="observed"),
        "grbcm": GRBCM(space="observed"),
        "poe, latent": PoE(),
        "gpoe, latent": GPoE(),
        "rbcm, latent": RBCM(),
        "grbcm, latent": GRBCM(),
        "opt": Opt(),
        "opt-local": OptLocal(),
    }
    if shared:
        methods |= {
            "opt-printed": OptPrinted(),
            "npae": NPAE(),
            "two-level": TwoLevel(),
            "pooled": Pooled(),
        }
    return methods


def _ridge(prepared: Prepared) -> Prediction:
    """Ridge regression, its penalty found by cross-validation, with the variance of its residuals."""
    X, y = prepared.data.X.cpu().numpy(), prepared.data.y.cpu().numpy()
    model = RidgeCV(np.logspace(-3, 5, 17)).fit(X, y)
    mean = torch.as_tensor(model.predict(prepared.X_test.cpu().numpy()))
    return Prediction(mean, torch.full_like(mean, float(np.var(y - model.predict(X)))))


def _estimated(cell: Cell, prepared: Prepared, device: str) -> Row:
    """Scores of the estimator itself, and what it has chosen where the choice is left to it."""
    settings = ESTIMATORS[cell["model"]]
    gp = distgp.DistributedGPRegressor(random_state=cell["seed"], device=device, **settings)
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp.fit(prepared.data.X.cpu().numpy(), prepared.data.y.cpu().numpy())
        taken = time.perf_counter() - begin
        mean, std = gp.predict(prepared.X_test.cpu().numpy(), return_std=True)
    scores = prepared.scores(Prediction(torch.as_tensor(mean), torch.as_tensor(std**2)))
    chosen = gp.choice_.best.name if gp.choice_ is not None else None
    return {"method": cell["model"], "training_s": taken, "chosen": chosen} | scores


def _predicted(aggregator: Aggregator, ensemble: Ensemble, prepared: Prepared) -> Prediction:
    return aggregator.combine(ensemble).predict(ensemble, prepared.X_test, observed=True)


def _scored(
    aggregators: dict[str, Aggregator], ensemble: Ensemble, prepared: Prepared, training: float
) -> list[Row]:
    """Errors of each aggregator on the test rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            {"method": name, "training_s": training}
            | prepared.scores(_predicted(aggregator, ensemble, prepared))
            for name, aggregator in aggregators.items()
        ]


def _timed(ensemble: Ensemble, prepared: Prepared, options: Options) -> list[Row]:
    """Seconds of each aggregator, all in turns."""
    shared = ensemble.shares_hyperparameters
    methods, names = _methods(shared), ("poe", "pooled") if shared else TIMED
    calls = {name: partial(_predicted, methods[name], ensemble, prepared) for name in names}
    if not shared:
        kept = methods["opt-local"].combine(ensemble)
        calls[KEPT] = partial(kept.predict, ensemble, prepared.X_test, observed=True)
    taken = seconds(calls, options.device, repeats=2 if options.quick else REPEATS)
    return [{"method": name, "seconds": value} for name, value in taken.items()]
