"""How near to the exact GP does conditioning on nearest rows come, and what does it cost?

Five questions, one `--part` each:

truth    Known θ, n = 30,000, against the exact GP of all rows: 2-Wasserstein distance of the latent
         marginals, beside aggregators of random shards (M = 30).
known    Known θ, n = 10⁵: error, NLPD and cost against k, without a global part.
trained  θ trained, n = 10⁵ and 10⁶: error and NLPD, lengthscales, coverage, seconds; beside the
         sparse default and GPyTorch's SVGP at the same and at ten times the time.
real     The four real tasks, random 80/20 split, one setting for all: on a GPU beside the sparse
         default, gradient boosting and SVGP; on a CPU beside gradient boosting and GPBoost's Vecchia
         approximation (`pip install gpboost`), for a comparison of times on the same cores.
cost     Seconds and peak memory against n, k, m and the number N of predicted rows, one at a time.

Synthetic functions are draws of 2,048 random Fourier features of a Matérn-5/2 kernel with unit signal
variance on [−1, 1]^d, noise 0.2; "error" is the latent RMSE in units of the noise. `--page` writes
docs/nearest.md from the tables.
"""

from __future__ import annotations

import argparse
import importlib
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import peak_memory, read_csv, write_csv
from torch import Tensor

import distgp
from distgp import metrics
from distgp.aggregation import AGGREGATORS, Ensemble, Nearest
from distgp.data import RandomPartition, Shard, split
from distgp.experts import (
    ExactExpert,
    NearestExpert,
    Parameters,
    Prediction,
    SparseExpert,
    inducing,
)

NOISE = 0.2
PROBLEMS = ((2, 0.05), (4, 0.25), (4, 0.5), (8, 1.0))
TRAINED = ((4, 0.25), (8, 1.0), (4, 2.0))
KNOWN = (50, 100, 200, 400)
SVGP_ROWS = 200_000
"""Rows up to which SVGP gets ten times the time, too."""
COSTS = (10_000, 100_000, 1_000_000, 10_000_000)
SVGP_SECONDS = 20.0
"""Time that SVGP gets on the real tasks: on an H200 ten times what nearest rows take."""
RESULTS = Path(__file__).parent / "results"
Row = dict[str, object]


def fourier(d: int, lengthscale: float, seed: int, device: str) -> Callable[[Tensor], Tensor]:
    """A random function with the Matérn-5/2 kernel: frequencies are Student-t with 5 degrees."""
    rng, size = np.random.default_rng(seed), 2048
    frequency = rng.normal(size=(size, d)) * np.sqrt(5.0 / rng.chisquare(5, size=(size, 1)))
    W = torch.as_tensor(frequency / lengthscale, device=device)
    b = torch.as_tensor(rng.uniform(0, 2 * math.pi, size), device=device)

    def f(X: Tensor) -> Tensor:
        parts = [torch.cos(x @ W.mT + b).sum(-1) for x in X.split(8192)]
        return torch.cat(parts) * math.sqrt(2.0 / size)

    return f


def friedman(X: Tensor) -> Tensor:
    """Friedman's function of five of ten columns on [−1, 1]^10, in units of its noise times five."""
    U = 0.5 * (X + 1.0)
    value = 10 * torch.sin(math.pi * U[:, 0] * U[:, 1]) + 20 * (U[:, 2] - 0.5) ** 2
    return value + 10 * U[:, 3] + 5 * U[:, 4]


def draw(
    n: int, d: int, lengthscale: float, seed: int, device: str, N: int = 10_000
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
    """X, y, X_test, f_test, y_test and the noise; lengthscale 0 stands for Friedman's function."""
    f = friedman if lengthscale == 0 else fourier(d, lengthscale, seed, device)
    noise = 1.0 if lengthscale == 0 else NOISE
    rng = np.random.default_rng(seed + 1000)
    X = torch.as_tensor(rng.uniform(-1, 1, size=(n + N, d)), device=device)
    value = f(X)
    y = value + noise * torch.as_tensor(rng.normal(size=n + N), device=device)
    return X[:n], y[:n], X[n:], value[n:], y[n:], noise


def scores(mean: np.ndarray, std: np.ndarray, f: Tensor, y: Tensor, noise: float) -> Row:
    """Error, NLPD and coverage of observations, from mean and standard deviation of y."""
    truth, seen = f.cpu().numpy(), y.cpu().numpy()
    return {
        "error": metrics.rmse(truth, mean) / noise,
        "nlpd": metrics.nlpd(seen, mean, np.square(std)),
        "cover": metrics.coverage(seen, mean, np.square(std), 0.9),
    }


def now(device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def truth(device: str, n: int) -> Iterator[Row]:
    """Known θ, against the exact GP of all rows."""
    for d, lengthscale in PROBLEMS:
        X, y, X_test, f, y_test, _ = draw(n, d, lengthscale, 0, device, N=2000)
        kernel = (1.0 * distgp.Matern52([lengthscale] * d)).to(device)
        data, theta = Shard.of(X, y), Parameters.of(kernel, NOISE**2)
        full = ExactExpert().condition(theta, data).predict(X_test)
        base: Row = {"d": d, "lengthscale": lengthscale, "n": n}
        yield base | {"model": "exact GP of all rows"} | compared(full, full, f, y_test)
        Z = inducing.kmeans(X, 1024, 0)
        for k, m in ((50, 0), (50, 1024), (200, 0), (200, 1024)):
            own = Parameters(kernel, theta.noise, Z if m else None)
            made = Ensemble.condition(NearestExpert(k, 50), own, [data])
            out = Nearest().combine(made).predict(made, X_test)
            yield base | {"model": f"nearest, k = {k}, m = {m}"} | compared(out, full, f, y_test)
        shards = split(data, RandomPartition().assign(X.cpu().numpy(), 30, 0))
        exact = Ensemble.condition(ExactExpert(), theta, shards)
        sparse = Ensemble.condition(SparseExpert(), Parameters(kernel, theta.noise, Z), shards)
        for name, kind in AGGREGATORS.items():
            made = sparse if name == "pooled" else exact
            if name == "nearest" or (name == "npae" and device == "cpu"):
                continue
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                out = kind().combine(made).predict(made, X_test)
            label = f"{name}, {'m = 1,024' if name == 'pooled' else 'M = 30'}"
            yield base | {"model": label} | compared(out, full, f, y_test)


def compared(out: Prediction, full: Prediction, f: Tensor, y: Tensor) -> Row:
    mean, std = out.mean.cpu().numpy(), (out.variance + NOISE**2).sqrt().cpu().numpy()
    a, b = (value.cpu() for value in (full.mean, full.variance))
    w2 = metrics.wasserstein2(out.mean.cpu(), out.variance.cpu(), a, b)
    return scores(mean, std, f, y, NOISE) | {"w2": w2}


def known(device: str, n: int) -> Iterator[Row]:
    """Known θ, n rows: what does a point gain by more neighbours? Three draws of each problem."""
    for d, lengthscale in ((4, 0.25), (8, 1.0)):
        for seed in range(3):
            X, y, X_test, f, y_test, _ = draw(n, d, lengthscale, seed, device)
            kernel = (1.0 * distgp.Matern52([lengthscale] * d)).to(device)
            theta = Parameters.of(kernel, NOISE**2)
            for k in KNOWN:
                made = Ensemble.condition(NearestExpert(k), theta, [Shard.of(X, y)])
                begin = now(device)
                out = Nearest().combine(made).predict(made, X_test)
                taken = {"predict_us": (now(device) - begin) / len(X_test) * 1e6}
                std = (out.variance + NOISE**2).sqrt().cpu().numpy()
                row = scores(out.mean.cpu().numpy(), std, f, y_test, NOISE) | taken
                yield {"n": n, "d": d, "lengthscale": lengthscale, "seed": seed, "k": k} | row


def trained(device: str, sizes: tuple[int, ...], seeds: int, peers: bool) -> Iterator[Row]:
    """θ trained; with `peers` beside the sparse default and GPyTorch's SVGP."""
    problems = [*TRAINED, (10, 0.0)]
    for n in sizes:
        for seed in range(seeds):
            for d, lengthscale in problems:
                X, y, X_test, f, y_test, noise = draw(n, d, lengthscale, seed, device)
                base: Row = {"n": n, "d": d, "lengthscale": lengthscale, "seed": seed}
                arrays = [value.cpu().numpy() for value in (X, y, X_test)]
                begin = now(device)
                gp = distgp.DistributedGPRegressor(
                    expert="nearest", n_neighbors=200, n_inducing=256, device=device
                ).fit(arrays[0], arrays[1])
                fitted = now(device)
                mean, std = gp.predict(arrays[2], return_std=True)
                seconds = now(device) - begin
                found = gp.kernel_.parameters()["kernel.lengthscale"].cpu().numpy()
                found = found * gp.model_.targets[0].scaling.x_scale
                lengths = {"shortest": found.min(), "longest": found.max()}
                row = scores(mean, std, f, y_test, noise) | {"seconds": seconds}
                yield base | {"model": "nearest", "fit_s": fitted - begin} | row | lengths
                if seed or not peers:
                    continue
                begin = now(device)
                sparse = distgp.DistributedGPRegressor(expert="sparse", device=device)
                mean, std = sparse.fit(*arrays[:2]).predict(arrays[2], return_std=True)
                taken = {"seconds": now(device) - begin}
                yield (
                    base | {"model": "sparse default"} | scores(mean, std, f, y_test, noise) | taken
                )
                for factor in (1, 10) if n <= SVGP_ROWS else (1,):
                    made = svgp(X, y, X_test, factor * seconds, device)
                    if made is not None:
                        row = scores(*made, f, y_test, noise) | {"seconds": factor * seconds}
                        yield base | {"model": f"SVGP, {factor} × the time"} | row


def svgp(
    X: Tensor, y: Tensor, X_test: Tensor, seconds: float, device: str, m: int = 1024
) -> tuple[np.ndarray, np.ndarray] | None:
    """GPyTorch's SVGP with minibatches of 1,024 for so many seconds; None where it is missing."""
    try:
        gpytorch: Any = importlib.import_module("gpytorch")
    except ImportError:
        return None
    torch.manual_seed(0)
    dtype = torch.float32
    x_mean, x_std, y_mean, y_std = X.mean(0), X.std(0), y.mean(), y.std()
    rows, targets = ((X - x_mean) / x_std).to(dtype), ((y - y_mean) / y_std).to(dtype)
    points = ((X_test - x_mean) / x_std).to(dtype)

    class Sparse(gpytorch.models.ApproximateGP):
        def __init__(self, Z: Tensor) -> None:
            posterior = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(
                gpytorch.variational.VariationalStrategy(
                    self, Z, posterior, learn_inducing_locations=True
                )
            )
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.MaternKernel(2.5, ard_num_dims=Z.shape[-1])
            )

        def forward(self, x: Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    Z = rows[torch.randperm(len(rows), device=rows.device)[:m]].clone()
    model, likelihood = Sparse(Z).to(device), gpytorch.likelihoods.GaussianLikelihood().to(device)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(rows))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=0.01)
    begin = now(device)
    while now(device) - begin < seconds:
        which = torch.randint(len(rows), (1024,), device=rows.device)
        optimizer.zero_grad()
        loss = -bound(model(rows[which]), targets[which])
        loss.backward()
        optimizer.step()
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        parts = [likelihood(model(chunk)) for chunk in points.split(4096)]
    mean = torch.cat([part.mean for part in parts]) * y_std + y_mean
    std = torch.cat([part.variance for part in parts]).sqrt() * y_std
    return mean.double().cpu().numpy(), std.double().cpu().numpy()


def real(device: str, data: str | None, seeds: int, peers: bool) -> Iterator[Row]:
    """The four real tasks, random split, one setting for all."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    from experiments.datasets import TASKS

    on_gpu = device == "cuda"
    for name, load in TASKS.items():
        task = load(data, True)
        X, y = np.concatenate([task.X, task.X_test]), np.concatenate([task.y, task.y_test])
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(y))
            train, test = np.split(order, [4 * len(y) // 5])
            base: Row = {"task": name, "seed": seed, "n": len(train), "d": X.shape[1]}
            for label, m in (("nearest", 0), ("nearest + global", 256))[: 2 if on_gpu else 1]:
                begin = now(device)
                gp = distgp.DistributedGPRegressor(
                    expert="nearest", n_inducing=m, device=device, random_state=seed
                ).fit(X[train], y[train])
                fitted = now(device)
                mean, std = gp.predict(X[test], return_std=True)
                taken = {"fit_s": fitted - begin, "seconds": now(device) - begin}
                yield base | {"model": label} | figures(y[test], mean, std) | taken
            begin = time.perf_counter()
            boosted = HistGradientBoostingRegressor(random_state=seed).fit(X[train], y[train])
            mean, spread = boosted.predict(X[test]), held_out_spread(X[train], y[train], seed)
            taken = {"seconds": time.perf_counter() - begin}
            std = np.full(len(mean), spread)
            yield base | {"model": "gradient boosting"} | figures(y[test], mean, std) | taken
            if not on_gpu:
                if peers and (peer := gpboost(X[train], y[train], X[test])) is not None:
                    mean, std, seconds = peer
                    row = figures(y[test], mean, std) | {"seconds": seconds}
                    yield base | {"model": "GPBoost, Vecchia"} | row
                continue
            begin = now(device)
            sparse = distgp.DistributedGPRegressor(expert="sparse", device=device)
            mean, std = sparse.fit(X[train], y[train]).predict(X[test], return_std=True)
            taken = {"seconds": now(device) - begin}
            yield base | {"model": "sparse default"} | figures(y[test], mean, std) | taken
            A, b, C = (torch.as_tensor(v, device=device) for v in (X[train], y[train], X[test]))
            if not seed and (made := svgp(A, b, C, SVGP_SECONDS, device)) is not None:
                row = figures(y[test], *made) | {"seconds": SVGP_SECONDS}
                yield base | {"model": "SVGP"} | row


def held_out_spread(X: np.ndarray, y: np.ndarray, seed: int) -> float:
    """The standard deviation of boosting's errors on a fifth of the rows held out."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.model_selection import train_test_split

    parts = train_test_split(X, y, test_size=0.2, random_state=seed)
    rows, out, targets, wanted = (np.asarray(part) for part in parts)
    model = HistGradientBoostingRegressor(random_state=seed).fit(rows, targets)
    return float(np.std(wanted - model.predict(out)))


def gpboost(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float] | None:
    """GPBoost's Vecchia approximation, ARD Matérn-5/2; None where it is not installed."""
    try:
        import gpboost as gpb  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    x_mean, x_std, y_mean, y_std = X.mean(0), X.std(0), y.mean(), y.std()
    begin = time.perf_counter()
    model = gpb.GPModel(
        gp_coords=(X - x_mean) / x_std,
        cov_function="matern_ard",
        cov_fct_shape=2.5,
        gp_approx="vecchia",
        likelihood="gaussian",
    )
    model.fit(y=(y - y_mean) / y_std)
    out = model.predict(
        gp_coords_pred=(X_test - x_mean) / x_std, predict_var=True, predict_response=True
    )
    seconds = time.perf_counter() - begin
    return out["mu"] * y_std + y_mean, np.sqrt(out["var"]) * y_std, seconds


def figures(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Row:
    variance = np.square(std)
    return {
        "rmse": metrics.rmse(y, mean),
        "nlpd": metrics.nlpd(y, mean, variance),
        "cover": metrics.coverage(y, mean, variance, 0.9),
    }


def cost(device: str, sizes: tuple[int, ...], varied: list[str]) -> Iterator[Row]:
    """Seconds and peak memory of the whole job, d = 4: one of n, k, m and N is varied at a time."""
    start = {"k": 128, "m": 0, "N": 10_000}
    largest = max(n for n in sizes if n <= 1_000_000)
    jobs = [{"varied": "n", **start, "n": n} for n in sizes]
    jobs += [{"varied": "k", **start, "k": k, "n": largest} for k in (32, 64, 128, 256, 512)]
    jobs += [{"varied": "m", **start, "m": m, "n": largest} for m in (64, 256, 1024)]
    jobs += [{"varied": "N", **start, "N": N, "n": largest} for N in (10_000, 100_000, 1_000_000)]
    job(min(sizes), 128, 0, 1000, device)  # the start of CUDA and of the threads is not counted
    for one in (one for one in jobs if one["varied"] in varied):
        yield one | job(one["n"], one["k"], one["m"], one["N"], device)


def job(n: int, k: int, m: int, N: int, device: str) -> Row:
    """Fit n rows and predict N."""
    X, y, X_test, *_ = draw(n, 4, 0.25, 0, device, N=N)
    arrays = [value.cpu().numpy() for value in (X, y, X_test)]
    del X, y, X_test
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    begin = now(device)
    gp = distgp.DistributedGPRegressor(
        expert="nearest", n_neighbors=k, n_inducing=m, device=device
    ).fit(arrays[0], arrays[1])
    fitted = now(device)
    gp.predict(arrays[2], return_std=True)
    done = now(device)
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else peak_memory()
    return {
        "fit_s": fitted - begin,
        "predict_s": done - fitted,
        "predict_us": (done - fitted) / N * 1e6,
        "peak_gb": peak / 2**30,
    }


def page(folder: Path, path: Path) -> None:
    """Write the page of the tables that are there."""

    def rows(part: str, device: str = "cuda") -> list[dict[str, str]]:
        return read_csv(folder / f"nearest-{part}-{device}.csv")

    def table(head: list[str], lines: list[list[str]]) -> str:
        return "\n".join(
            "| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]
        )

    def number(text: str) -> str:
        return f"{float(text):.3g}" if text else ""

    truths, models = rows("truth"), []
    for row in truths:
        if row["model"] not in models:
            models.append(row["model"])
    cells = {(r["model"], r["d"], r["lengthscale"]): r for r in truths}
    head = ["", *(f"d = {d}, ℓ = {length:g}: error, W2" for d, length in PROBLEMS)]
    lines = [
        [m, *(_pair(cells.get((m, str(d), str(length))), number) for d, length in PROBLEMS)]
        for m in models
    ]
    known = table(head, lines)
    head = ["n", "problem", "model", "error", "NLPD", "90 % cover", "seconds", "lengthscales"]
    lines = []
    for r in rows("trained"):
        friedman_row = float(r["lengthscale"]) == 0
        problem = "Friedman" if friedman_row else f"d = {r['d']}, ℓ = {float(r['lengthscale']):g}"
        spread = "" if friedman_row else f"{number(r['shortest'])} – {number(r['longest'])}"
        figures_ = [number(r[name]) for name in ("error", "nlpd", "cover", "seconds")]
        found = spread if r["shortest"] else ""
        lines.append([f"{int(r['n']):,}", problem, r["model"], *figures_, found])
    learnt = table(head, sorted(lines, key=lambda line: (len(line[0]), *line[:2])))
    costs = "\n\n".join(
        f"On {where}:\n\n{cost_table(rows('cost', device), table)}"
        for device, where in (("cuda", "the GPU"), ("cpu", "two CPU cores"))
    )
    by_k = {}
    for r in rows("known"):
        by_k.setdefault((r["d"], r["lengthscale"], r["k"]), []).append(r)
    head = ["problem", "k", "error, three draws", "NLPD", "µs per point"]
    lines = [
        [f"d = {d}, ℓ = {float(length):g}", k]
        + [", ".join(number(r[name]) for r in some) for name in ("error", "nlpd")]
        + [number(min((r["predict_us"] for r in some), key=float))]
        for (d, length, k), some in by_k.items()
    ]
    more = table(head, lines)
    eight = [r for r in rows("trained") if r["d"] == "8" and r["shortest"]]
    short = max(1.0 - float(r["shortest"]) / float(r["lengthscale"]) for r in eight)
    head = ["task", "model", "RMSE", "NLPD", "90 % cover", "seconds"]
    names = ("rmse", "nlpd", "cover", "seconds")
    on_cpu, on_gpu = (
        table(head, [[r["task"], r["model"], *(number(r[name]) for name in names)] for r in found])
        for found in (rows("real", "cpu"), rows("real"))
    )
    text = TEXT.format(
        on_cpu=on_cpu,
        on_gpu=on_gpu,
        known=known,
        more=more,
        learnt=learnt,
        costs=costs,
        short=short,
    )
    path.write_text(text, encoding="utf-8")


def cost_table(rows: list[dict[str, str]], table: Callable[..., str]) -> str:
    """The jobs, and after each block the slope of log time against the log of what was varied."""
    lines = []
    for varied in dict.fromkeys(r["varied"] for r in rows):
        block = [r for r in rows if r["varied"] == varied]
        for r in block:
            sizes = [f"{int(r[name]):,}" for name in ("n", "k", "m", "N")]
            lines.append(
                [*sizes, *(f"{float(r[c]):.3g}" for c in ("fit_s", "predict_s", "peak_gb"))]
            )
        if len(block) > 1:
            x = np.log([float(r[varied]) for r in block[-2:]])
            slopes = [
                f"slope {np.diff(np.log([float(r[c]) for r in block[-2:]]))[0] / np.diff(x)[0]:.2f}"
                for c in ("fit_s", "predict_s")
            ]
            lines.append([f"*in {varied}*", "", "", "", *slopes, ""])
    return table(["n", "k", "m", "N", "fit, s", "predict, s", "peak GB"], lines)


def _pair(row: dict[str, str] | None, number: Callable[[str], str]) -> str:
    return "" if row is None else f"{number(row['error'])}, {number(row['w2'])}"


TEXT = """# Nearest rows and a global part

`DistributedGPRegressor(expert="nearest")` conditions every predicted point on the rows that are nearest to it, of all shards, and ties
everything together by a sparse GP on a few hundred inducing inputs. It comes nearer to the exact GP of all rows than any aggregation of experts on
random shards, at any n, and how rows are divided over workers changes nothing.

With v(x) = L_u⁻¹k_u(x) for m inducing inputs, f(x) = v(x)ᵀw + e(x), w ~ N(0, I), e with the residual kernel k − vᵀv: that is the GP itself. The
approximation is Vecchia's: rows are put in a random order, and each depends on those before it through its k nearest alone (with a global part: Gyger,
Furrer and Sigrist, 2025). `n_inducing=0` leaves the global part out. Nearest means by the kernel: in units of its lengthscales.

- `n_neighbors=128` rows per predicted point; 50 for the sums of the global part. The model holds its rows, and so does its file.
- `training="nearest"`, also for exact and sparse experts: L-BFGS on the likelihood of 8,192 rows, each given 30 rows before it, in three stages,
  neighbours found anew for each. Half of these rows are the last in the order, whose neighbours are as near as those of rows to predict. Two descents start,
  from long and from shorter lengthscales, and the one that explains the rows better goes on. Where there are more than 16,384 rows a third of the neighbours come from the first 2,048 rows in the
  order: the nearest of a million rows are so near that they say nothing of what is slow in the function.
- poe, gpoe, softmax-poe, bcm, rbcm, grbcm, min-variance, barycentre and opt-local combine nearest experts, too, each expert with the rows of its own shard; other aggregators refuse them.
- On a cluster rows are moved once into cells of nearby rows. A point asks its own cell, then those that a sphere around them cannot rule out; these answer
  with distances, and only the rows that win travel.
- Between rows it is hard to beat. Beyond them (next year's rows) the nearest rows are of no help, and experts of their own are better: leave `expert` at
  "auto" with `validation="last"`, and both are measured ([defaults on real tables](defaults.md)).

## Known hyperparameters, against the exact GP of 30,000 rows

`python benchmarks/nearest.py --part truth --device cuda` (one H200). Error: latent RMSE in units of the noise; W2: 2-Wasserstein distance of the latent marginals to the
exact GP's. M = 30 random shards of exact experts, unless m says that they are sparse.

{known}

## Known hyperparameters, 100,000 rows: what more neighbours give

`python benchmarks/nearest.py --part known --device cuda` (one H200, m = 0, three draws). In four columns 100 neighbours are all that is needed; in eight each doubling still helps.

{more}

## Trained

`python benchmarks/nearest.py --part trained --device cuda` (one H200, k = 200, m = 256; one draw each). Seconds: fit and 10,000 predictions. SVGP is GPyTorch's with
m = 1,024 and minibatches of 1,024, given the time that nearest took, or ten times that. The true lengthscales are in the second column: in eight columns those found are up to {short:.0%} short. Where the
function is smooth (ℓ = 2, Friedman) the sparse default is better and, from a million rows on, faster.

{learnt}

## Real tables

`python benchmarks/nearest.py --part real` on two CPU cores: random split 80/20, one seed, m = 0, one setting for all; RMSE and NLPD in the units of the paper's tables. GPBoost
(1.8.0, its defaults: Vecchia with 20 neighbours, ARD Matérn-5/2) was run once, before our training got faster; our rows are of a later run on the same machine, which other work
slowed down at times. Of traffic GPBoost was not run to its end. [Defaults on real tables](defaults.md) has Ridge, boosting, a forest and the other experts beside these.

{on_cpu}

The same with `--device cuda` on one H200, beside GPyTorch's SVGP (m = 1,024) in 20 seconds each:

{on_gpu}

## Cost

`python benchmarks/nearest.py --part cost`, d = 4, ℓ = 0.25: the whole job, n rows to fit and N to predict, of which one size is varied at a time. The slope is that of the
last two lines of each block on a log-log scale. Training looks at the same number of rows whatever n is, so that fitting grows with n through the search for neighbours alone; the
sums of a global part (m > 0) are over all rows, each given rows before it. Memory on the CPU is the process's largest resident size so far.

{costs}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["truth", "known", "trained", "real", "cost"])
    parser.add_argument("--page", action="store_true", help="write docs/nearest.md and no more")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--varied", nargs="+", default=["n", "k", "m", "N"], help="of --part cost")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--no-peers", action="store_true", help="without SVGP and GPBoost")
    parser.add_argument("--data", default=None, help="folder with the UCI files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.page:
        page(RESULTS, Path(__file__).parents[1] / "docs" / "nearest.md")
        return
    if options.part is None:
        parser.error("give --part or --page")
    runs = {
        "truth": lambda: truth(options.device, (options.sizes or [30_000])[0]),
        "known": lambda: known(options.device, (options.sizes or [100_000])[0]),
        "trained": lambda: trained(
            options.device,
            tuple(options.sizes or (100_000, 1_000_000)),
            options.seeds,
            not options.no_peers,
        ),
        "real": lambda: real(options.device, options.data, options.seeds, not options.no_peers),
        "cost": lambda: cost(options.device, tuple(options.sizes or COSTS), options.varied),
    }
    cuda = options.device == "cuda"
    machine = torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads"
    path = options.out / f"nearest-{options.part}-{options.device}.csv"
    rows = []
    for row in runs[options.part]():
        rows.append(row)
        write_csv(rows, path, machine)  # after every row: a run that is cut short is not lost
        shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
        print("  ".join(f"{name} {value}" for name, value in shown.items()), flush=True)


if __name__ == "__main__":
    main()
