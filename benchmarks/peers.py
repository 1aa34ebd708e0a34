"""How fast is distgp beside GPyTorch and scikit-learn, at the same work with the same result?

Four pieces of work, float64, on as many threads as PyTorch has (set OMP_NUM_THREADS, or pin the
process to cores with taskset):

W1  collapsed bound and gradient of a sparse GP, n = 10⁴, d = 2, m = 128
W2  exact likelihood and gradient, n = 2,000, d = 8
W3  one step of FACT: the same for 20 experts of 500 rows, d = 8, added up
W4  mean and variance at 2,500 points from those experts, combined as a product of experts

GPyTorch is measured in several ways, as a batch and as a loop over experts, with its fast and its plain
settings, and the fastest counts. All results must agree to ten digits; those of W1 up to the jitter
that GPyTorch adds. The floor is the time of the matrix products that the work cannot avoid, measured
in the same run: W1 three of m × m × n; W2 n³ and W3 Mn³ multiplications and additions in all (a third
for the factor, two thirds for the inverse); W4 n² for each point and expert. What is not our own code
is timed in the same run too: the products, factors, inverses and triangular solves of PyTorch's library,
and the exponentials of the kernel. With `--page` the table goes into docs/speed.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import platform
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from _measure import measured_with, problem, processor, read_csv, table_in_page, write_csv
from sklearn.gaussian_process import GaussianProcessRegressor
from torch import Tensor

import distgp
from distgp import linalg
from distgp.aggregation import Ensemble
from distgp.data import Shard, stack
from distgp.experts import ExactExpert, Expert, Parameters, SparseExpert
from distgp.training.objective import Layout, Objective

gpytorch: Any = importlib.import_module("gpytorch")
sk: Any = importlib.import_module("sklearn.gaussian_process.kernels")
Work = Callable[[], float]
VARIANCE, LENGTHSCALE, NOISE = 1.2, 0.8, 0.05
RESULTS = Path(__file__).parent / "results" / "peers.csv"
INTEL = RESULTS.with_name("peers-intel.csv")
PAGE = Path(__file__).parents[1] / "docs" / "speed.md"


class PeerGP(gpytorch.models.ExactGP):
    """GPyTorch's exact GP with mean zero."""

    def __init__(self, X: Tensor, y: Tensor, likelihood: Any, kernel: Any) -> None:
        super().__init__(X, y, likelihood)
        self.mean_module, self.covar_module = gpytorch.means.ZeroMean(), kernel

    def forward(self, x: Tensor) -> Any:
        """The prior at some points."""
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


def peer(X: Tensor, y: Tensor, Z: Tensor | None = None) -> Any:
    base = gpytorch.kernels.RBFKernel(ard_num_dims=X.shape[-1])
    base.lengthscale = torch.full((1, X.shape[-1]), LENGTHSCALE)
    kernel = gpytorch.kernels.ScaleKernel(base)
    kernel.outputscale = VARIANCE
    likelihood = gpytorch.likelihoods.GaussianLikelihood()
    likelihood.noise = NOISE
    if Z is not None:
        kernel = gpytorch.kernels.InducingPointKernel(kernel, Z.clone(), likelihood)
    return PeerGP(X, y, likelihood, kernel).double()


def fast(way: bool) -> Any:
    return gpytorch.settings.fast_computations(way, way, way)


def peer_step(models: list[Any], way: bool) -> Work:
    """−log likelihood of all models, and the gradient."""
    losses = [gpytorch.mlls.ExactMarginalLogLikelihood(m.likelihood, m) for m in models]

    def run() -> float:
        total = 0.0
        with fast(way), gpytorch.settings.max_cholesky_size(10**6):
            for model, loss in zip(models, losses, strict=True):
                model.train()
                model.zero_grad()
                n = model.train_targets.shape[-1]
                value = -n * loss(model(*model.train_inputs), model.train_targets).sum()
                value.backward()
                total += float(value)
        return total

    return run


def peer_prediction(models: list[Any], X: Tensor, way: bool) -> Work:
    """The product of experts from the models' means and variances, their caches filled before."""
    for model in models:
        model.eval()
        model.likelihood.eval()

    def run() -> float:
        means, variances = [], []
        plain = gpytorch.settings.fast_pred_var(way)
        with torch.no_grad(), plain, fast(way), gpytorch.settings.max_cholesky_size(10**6):
            for model in models:
                batch = model.train_targets.shape[:-1]
                out = model(X.expand(*batch, *X.shape))
                means.append(out.mean.reshape(-1, len(X)))
                variances.append(out.variance.reshape(-1, len(X)))
        return product_of_experts(torch.cat(means), torch.cat(variances))

    return run


def product_of_experts(mean: Tensor, variance: Tensor) -> float:
    """One number for the means and variances of the product."""
    precision = variance.reciprocal().sum(0)
    return float((((mean / variance).sum(0) + 1.0) / precision).sum())


def sk_models(shards: list[Shard]) -> list[Any]:
    def kernel(d: int) -> Any:
        return VARIANCE * sk.RBF([LENGTHSCALE] * d) + sk.WhiteKernel(NOISE)

    return [
        cast(Any, GaussianProcessRegressor)(kernel(shard.d), alpha=0.0, optimizer=None).fit(
            shard.X.numpy(), shard.y.numpy()
        )
        for shard in shards
    ]


def sk_step(models: list[Any]) -> Work:
    def run() -> float:
        found = [m.log_marginal_likelihood(m.kernel_.theta, eval_gradient=True) for m in models]
        return -sum(float(value) for value, _ in found)

    return run


def sk_prediction(models: list[Any], X: Tensor) -> Work:
    def run() -> float:
        found = [model.predict(X.numpy(), return_std=True) for model in models]
        mean, std = (torch.from_numpy(np.stack(part)) for part in zip(*found, strict=True))
        return product_of_experts(mean, std.square() - NOISE)

    return run


def our_step(expert: Expert, theta: Parameters, shards: list[Shard]) -> Work:
    """What one evaluation in training does."""
    layout, rows = Layout.of(theta), stack(shards)
    objective, point = Objective.of(expert, layout), layout.pack(theta)
    weight = torch.zeros(len(shards), dtype=torch.float64)
    return lambda: float(objective.evaluate(rows, point, weight)[0].sum())


def our_prediction(theta: Parameters, shards: list[Shard], X: Tensor) -> Work:
    ensemble = Ensemble.condition(ExactExpert(), theta, shards)
    combined = distgp.AGGREGATORS["poe"]().combine(ensemble)

    def run() -> float:
        out = combined.predict(ensemble, X)
        return float((out.mean + out.variance).sum())

    return run


def products(*shapes: tuple[int, int, int]) -> Callable[[], object]:
    """Matrix products of these sizes (rows, columns, terms)."""
    pairs = [
        (torch.rand(m, k, dtype=torch.float64), torch.rand(k, n, dtype=torch.float64))
        for m, n, k in shapes
    ]
    return lambda: [a @ b for a, b in pairs]


def exponentials(count: int, at_once: int = 2**17) -> Callable[[], object]:
    """Exponentials of so many numbers, a cacheful at a time."""
    values, turns = torch.rand(at_once, dtype=torch.float64).neg_(), count // at_once
    out = torch.empty_like(values)
    return lambda: [torch.exp(values, out=out) for _ in range(turns)]


def factors(batch: int, n: int) -> tuple[Callable[[], object], Tensor]:
    """A step that factorises matrices and inverts them, and their factors."""
    K = distgp.RBF([LENGTHSCALE] * 8)(problem(n, 8).X) + NOISE * torch.eye(n, dtype=torch.float64)
    K = K.expand(batch, n, n).clone() if batch > 1 else K
    return lambda: linalg.half_inverse(linalg.cholesky(K)), linalg.cholesky(K)


def works() -> dict[str, tuple[dict[str, Work], dict[str, Callable[[], object]], float]]:
    """For each piece of work those who do it, its parts, and the relative difference allowed.

    The parts are the products that are its floor, and what PyTorch's routines and exponentials are of it.
    """
    theta8 = Parameters.of(VARIANCE * distgp.RBF([LENGTHSCALE] * 8), NOISE)
    one, many, points = problem(2000, 8), problem(10_000, 8), problem(2500, 8, seed=1).X
    shards = [Shard.of(X, y) for X, y in zip(many.X.split(500), many.y.split(500), strict=True)]
    plane = problem(10_000, 2)
    Z = plane.X[:128].clone()
    theta2 = Parameters.of(VARIANCE * distgp.RBF([LENGTHSCALE] * 2), NOISE, Z)
    batch = (many.X.reshape(20, 500, 8), many.y.reshape(20, 500))
    loop, fitted = [peer(s.X, s.y) for s in shards], sk_models(shards)
    w1: dict[str, Work] = {"distgp": our_step(SparseExpert(), theta2, [plane])}
    w2: dict[str, Work] = {
        "distgp": our_step(ExactExpert(), theta8, [one]),
        "scikit-learn": sk_step(sk_models([one])),
    }
    w3: dict[str, Work] = {
        "distgp": our_step(ExactExpert(), theta8, shards),
        "scikit-learn": sk_step(fitted),
    }
    w4: dict[str, Work] = {
        "distgp": our_prediction(theta8, shards, points),
        "scikit-learn": sk_prediction(fitted, points),
    }
    for way in (False, True):
        name = f"GPyTorch {'fast' if way else 'plain'}"
        if way:  # else the whole matrix of 10⁴ rows would be factorised
            w1[name] = peer_step([peer(plane.X, plane.y, Z)], way)
        w2[name] = peer_step([peer(one.X, one.y)], way)
        w3[f"{name} loop"] = peer_step(loop, way)
        w3[f"{name} batch"] = peer_step([peer(*batch)], way)
        w4[f"{name} loop"] = peer_prediction([peer(s.X, s.y) for s in shards], points, way)
        w4[f"{name} batch"] = peer_prediction([peer(*batch)], points, way)
    thrice, right = (
        products(*[(128, 10_000, 128)] * 3),
        torch.rand(500, 2500, dtype=torch.float64),
    )
    (step2, _), (step3, L) = factors(1, 2000), factors(20, 500)
    solves = lambda: [linalg.solve_lower(one, right) for one in L]  # noqa: E731
    sizes = {"W2": (1000, 2000, 2000), "W3": (250, 500, 500), "W4": (250, 2500, 500)}
    floors = {name: products(*[size] * (1 if name == "W2" else 20)) for name, size in sizes.items()}
    return {
        name: (runs, {"floor": floor, "routines": routines, "exp": exponentials(count)}, allowed)
        for name, runs, floor, routines, count, allowed in (
            ("W1", w1, thrice, thrice, 10_000 * 128, 1e-5),
            ("W2", w2, floors["W2"], step2, 2000**2 // 2, 1e-10),
            ("W3", w3, floors["W3"], step3, 20 * 500**2, 1e-10),
            ("W4", w4, floors["W4"], solves, 20 * 500 * 2500, 1e-10),
        )
    }


def measured(runs: Mapping[str, Callable[[], object]], turns: int) -> dict[str, float]:
    """The median seconds of each, all in turn, so that a slow moment hits all of them."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if turn:
                times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def compared(turns: int, only: str) -> list[dict[str, object]]:
    rows = []
    for name, (runs, parts, allowed) in works().items():
        if name not in only.split(","):
            continue
        ours = runs["distgp"]()
        for peer_name, run in runs.items():
            value = run()
            if abs(value - ours) > allowed * abs(ours):
                raise SystemExit(f"{name}: distgp found {ours!r}, {peer_name} {value!r}")
        times = measured({**runs, **parts}, turns)
        bottom, routines, powers = (times.pop(part) for part in parts)
        mine = times["distgp"]
        best = min(taken for peer_name, taken in times.items() if peer_name != "distgp")
        torch_s = min(taken for who, taken in times.items() if who.startswith("GPyTorch"))
        rows.append(
            {
                "work": name,
                "distgp_s": f"{mine:.4f}",
                "gpytorch_s": f"{torch_s:.4f}",
                "sklearn_s": f"{times['scikit-learn']:.4f}" if "scikit-learn" in times else "",
                "ratio": f"{mine / best:.3f}",
                "floor_s": f"{bottom:.4f}",
                "times_floor": f"{mine / bottom:.2f}",
                "library_s": f"{routines + powers:.4f}",
                "exp_s": f"{powers:.4f}",
                "all": " ".join(f"{who}={taken:.4f}" for who, taken in times.items()),
            }
        )
        print(rows[-1], flush=True)
    return rows


TITLES = {
    "W1": "collapsed bound and gradient, n = 10⁴, d = 2, m = 128",
    "W2": "exact likelihood and gradient, n = 2,000, d = 8",
    "W3": "FACT step, 20 exact experts of 500 rows, d = 8",
    "W4": "mean and variance at 2,500 points from those, PoE",
}


def page_table(rows: list[dict[str, str]], others: list[dict[str, str]]) -> list[str]:
    """The table of a page: seconds; here and on another processor ratios and the parts of the library."""
    second = {row["work"]: row for row in others}
    last = measured_with(others).removeprefix("Measured with ")

    def shares(row: dict[str, str]) -> str:
        powers, both = (float(row.get(name) or 0) for name in ("exp_s", "library_s"))
        found = [100 * value / float(row["distgp_s"]) for value in (both - powers, powers)]
        each = " + ".join(f"{share:.0f} %" for share in found if share)
        return f"{row['ratio']} | {each}"

    return [
        f"{measured_with(rows)} The last two columns: {last}",
        "",
        "| work | GPyTorch | scikit-learn | distgp | distgp / best peer | PyTorch's routines "
        "| distgp / best peer | PyTorch's routines |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {TITLES[row['work']]} | {row['gpytorch_s']} | {row['sklearn_s'] or '–'} | "
            f"{row['distgp_s']} | {shares(row)} | {shares(second[row['work']])} |"
            for row in rows
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="How fast is distgp beside its peers?")
    parser.add_argument("--turns", type=int, default=9, help="how often each is timed")
    parser.add_argument("--only", default="W1,W2,W3,W4", help="names of works, with commas")
    parser.add_argument("--page", action="store_true", help="write the table and measure nothing")
    arguments = parser.parse_args()
    if arguments.page:
        table_in_page(PAGE, "peers", page_table(read_csv(RESULTS), read_csv(INTEL)))
        return
    warnings.simplefilter("ignore")
    torch.set_default_dtype(torch.float64)
    threads = torch.get_num_threads()
    peers = {name: importlib.metadata.version(name) for name in ("gpytorch", "scikit-learn")}
    print(f"{processor()}, {threads} threads, torch {torch.__version__}, {peers}", flush=True)
    rows = compared(arguments.turns, arguments.only)
    common = {"processor": processor(), "threads": threads, "python": platform.python_version()}
    rows = [{**row, **common, **peers} for row in rows]
    if len(rows) == len(TITLES):
        write_csv(rows, INTEL if "Intel" in processor() else RESULTS, "cpu")


if __name__ == "__main__":
    main()
