"""How near to the exact GP does conditioning on nearest rows come, and what does it cost?

Five questions, one `--part` each:

truth    Known θ, n = 30,000, against the exact GP of all rows: 2-Wasserstein distance of the latent
         marginals, beside aggregators of random shards (M = 30).
known    Known θ, n = 10⁵: error, NLPD and cost against k, without a global part.
trained  θ trained, n = 10⁵ and 10⁶: error and NLPD, lengthscales, coverage, seconds; beside the
         sparse default and GPyTorch's SVGP at the same and at ten times the time.
real     The four real tasks, random 80/20 split (of traffic one row an hour), one setting for all: on a GPU
         beside the sparse default, gradient boosting and SVGP; on a CPU beside gradient boosting and
         GPBoost's Vecchia approximation (`pip install gpboost`), for times on the same cores.
cost     Seconds and peak memory against n, k, m and the number N of predicted rows, one at a time.

Synthetic functions are draws of 2,048 random Fourier features of a Matérn-5/2 kernel with unit signal
variance on [−1, 1]^d, noise 0.2; "error" is the latent RMSE in units of the noise. `--page` writes
the tables of `truth` and `trained` into docs/experts.md, between its marks; all figures are in results/.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from _measure import (
    measured_with,
    peak_memory,
    processor,
    read_csv,
    table_in_page,
    write_csv,
)
from others import boosting, boosting_with_spreads, figures, gpboost, now, svgp, with_one_spread
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
PAGE = Path(__file__).parents[1] / "docs" / "experts.md"
SHOWN = (
    *(f"nearest, k = {k}, m = {m}" for k, m in ((50, 0), (200, 0), (200, 1024))),
    *(f"{name}, M = 30" for name in ("grbcm", "npae", "two-level")),
    "pooled, m = 1,024",
)
"""The models of `truth` that the page shows."""
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
                        row = scores(made.mean, made.std, f, y_test, noise) | made.row()
                        row |= {"seconds": factor * seconds}
                        yield base | {"model": f"SVGP, {factor} × the time"} | row


def real(device: str, data: str | None, seeds: int, peers: bool, only: list[str]) -> Iterator[Row]:
    """The four real tasks, or some of them, random split, one setting for all."""
    from experiments.datasets import TASKS

    for name in only or TASKS:
        task = TASKS[name](data, True)
        for seed in range(seeds):
            split = task.at_random(seed)
            base: Row = {"task": name, "seed": seed, "n": len(split.y), "d": split.X.shape[1]}
            parts = split.X, split.y, split.X_test
            for row in (
                *ours_of_real(*parts, device, seed),
                *boosting_of_real(*parts),
                *(others_of_real(*parts, device) if peers and not seed else ()),
            ):
                mean, std = row.pop("mean"), row.pop("std")
                yield base | row | figures(split.y_test, mean, std)  # pyright: ignore


def ours_of_real(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, device: str, seed: int
) -> Iterator[Row]:
    """Nearest rows; on a GPU also with a global part, and the sparse default."""
    settings = {"nearest": {"expert": "nearest", "n_inducing": 0, "random_state": seed}}
    if device == "cuda":
        settings["nearest + global"] = {**settings["nearest"], "n_inducing": 256}
        settings["sparse default"] = {"expert": "sparse"}
    for name, given in settings.items():
        begin = now(device)
        gp = distgp.DistributedGPRegressor(device=device, **given).fit(X, y)  # pyright: ignore
        fitted = now(device)
        mean, std = gp.predict(X_test, return_std=True)
        row: Row = {"model": name, "mean": mean, "std": std, "fit_s": fitted - begin}
        yield row | {"seconds": now(device) - begin}


def boosting_of_real(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> Iterator[Row]:
    """Boosting with one spread for all rows, and with one for each."""
    ways: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
        "gradient boosting": lambda: with_one_spread(boosting(), X, y, X_test, "random"),
        "gradient boosting, spread by row": lambda: boosting_with_spreads(X, y, X_test, "random"),
    }
    for name, predict in ways.items():
        begin = time.perf_counter()
        mean, std = predict()
        seconds = time.perf_counter() - begin
        yield {"model": name, "mean": mean, "std": std, "seconds": seconds}


def others_of_real(X: np.ndarray, y: np.ndarray, X_test: np.ndarray, device: str) -> Iterator[Row]:
    """SVGP on a GPU, GPBoost on a CPU, where they are installed."""
    if device == "cuda":
        A, b, C = (torch.as_tensor(values, device=device) for values in (X, y, X_test))
        if (made := svgp(A, b, C, SVGP_SECONDS, device)) is not None:
            row: Row = {"model": "SVGP", "mean": made.mean, "std": made.std} | made.row()
            yield row | {"seconds": SVGP_SECONDS}
    elif (peer := gpboost(X, y, X_test)) is not None:
        mean, std, seconds = peer
        yield {"model": "GPBoost, Vecchia", "mean": mean, "std": std, "seconds": seconds}


def cost(device: str, sizes: tuple[int, ...], varied: list[str], d: int) -> Iterator[Row]:
    """Seconds and peak memory of the whole job: one of n, k, m and N is varied at a time."""
    start = {"k": 128, "m": 0, "N": 10_000}
    largest = max(n for n in sizes if n <= 1_000_000)
    jobs = [{"varied": "n", **start, "n": n} for n in sizes]
    jobs += [{"varied": "k", **start, "k": k, "n": largest} for k in (32, 64, 128, 256, 512)]
    jobs += [{"varied": "m", **start, "m": m, "n": largest} for m in (64, 256, 1024)]
    jobs += [{"varied": "N", **start, "N": N, "n": largest} for N in (10_000, 100_000, 1_000_000)]
    job(min(sizes), 128, 0, 1000, device, d)  # the start of CUDA and of the threads is not counted
    for one in (one for one in jobs if one["varied"] in varied):
        yield one | job(one["n"], one["k"], one["m"], one["N"], device, d)


def job(n: int, k: int, m: int, N: int, device: str, d: int) -> Row:
    """Fit n rows of d columns and predict N."""
    X, y, X_test, *_ = draw(n, d, 0.25 if d <= 4 else 1.0, 0, device, N=N)
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
    """Write the tables of `truth` and `trained` into the page, between its marks; its text stays."""
    parts = {"truth": truth_table, "trained": trained_table}
    for part, made in parts.items():
        rows = read_csv(folder / f"nearest-{part}-cuda.csv")
        table_in_page(path, part, [measured_with(rows), "", *made(rows)])


def table(head: list[str], lines: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(line) + " |" for line in [head, ["---"] * len(head), *lines]]


def number(text: str) -> str:
    return f"{float(text):.3g}"


def truth_table(rows: list[dict[str, str]]) -> list[str]:
    """The distances of some of the models, one problem a column."""
    w2 = {(r["model"], r["d"], r["lengthscale"]): number(r["w2"]) for r in rows}
    head = ["", *(f"d = {d}, ℓ = {length:g}" for d, length in PROBLEMS)]
    return table(head, [[m, *(w2[m, str(d), str(ell)] for d, ell in PROBLEMS)] for m in SHOWN])


def trained_table(rows: list[dict[str, str]]) -> list[str]:
    """Nearest rows beside the sparse default, one problem a line."""
    models, names = ("nearest", "sparse default"), ("error", "seconds")
    cells = {(r["model"], (r["n"], r["d"], r["lengthscale"])): r for r in rows}
    lines = []
    most = max(int(r["n"]) for r in rows)
    for (model, key), r in cells.items():
        if model == "nearest" and int(r["n"]) == most:
            length = float(r["lengthscale"])
            problem = f"d = {r['d']}, ℓ = {length:g}" if length else "Friedman's"
            both = [number(cells[m, key][name]) for name in names for m in models]
            lines.append([f"{int(r['n']):,}", problem, *both])
    head = [f"{name}, {m}" for name in names for m in ("nearest", "sparse")]
    return table(["rows", "function", *head], lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=["truth", "known", "trained", "real", "cost"])
    parser.add_argument("--page", action="store_true", help="write the tables and measure nothing")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--varied", nargs="+", default=["n", "k", "m", "N"], help="of --part cost")
    parser.add_argument("--columns", type=int, default=4, help="of --part cost; keep by --out")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", default=[], help="tasks of --part real; others stay")
    parser.add_argument(
        "--busy", action="store_true", help="other work runs on the machine: keep no seconds"
    )
    parser.add_argument("--no-peers", action="store_true", help="without SVGP and GPBoost")
    parser.add_argument("--data", default=None, help="folder with the UCI files")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.page:
        page(RESULTS, PAGE)
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
        "real": lambda: real(
            options.device, options.data, options.seeds, not options.no_peers, options.only
        ),
        "cost": lambda: cost(
            options.device, tuple(options.sizes or COSTS), options.varied, options.columns
        ),
    }
    cuda = options.device == "cuda"
    cores = f"{processor()}, {torch.get_num_threads()} threads"
    machine = torch.cuda.get_device_name() if cuda else cores
    path = options.out / f"nearest-{options.part}-{options.device}.csv"
    kept = read_csv(path) if options.only and path.exists() else []
    rows: list[Row] = [dict(row) for row in kept if row["task"] not in options.only]
    for row in runs[options.part]():
        timed = dict.fromkeys(("seconds", "fit_s", "predict_us"), "") if options.busy else {}
        rows.append(row | timed)
        write_csv(rows, path, machine)  # after every row: a run that is cut short is not lost
        shown = {k: f"{v:.4g}" if isinstance(v, float) else v for k, v in row.items()}
        print("  ".join(f"{name} {value}" for name, value in shown.items()), flush=True)


if __name__ == "__main__":
    main()
