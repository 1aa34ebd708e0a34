"""Maps beside PyKrige and GSTools: error, cover and time at 2,000, 20,000 and 10⁶ observations.

The field is a draw with an exponential covariance, of variance (partial sill) 1 and lengthscale 10, on a
square of side 100: 4,096 random Fourier features. Observations are at random places, with a noise variance
(nugget) of 0.09. All models know that the covariance is exponential and isotropic, and nothing else; all
predict the same 2,000 further observations.

PyKrige and GSTools are not installed with distgp: `pip install pykrige gstools`. Both fit a variogram by
least squares; PyKrige to 60 lags with more weight on short ones, which of the settings tried, 6 to 100 lags
with and without weights, gave it the best predictions from 2,000 observations. PyKrige solves the equations
of all observations up to 2,000, and those of the 64 nearest (`n_closest_points`) beyond; its matrix of all
pairs of observations is made in either case. GSTools has no such neighbourhoods, and inverts the matrix of
all observations. So the largest size is for distgp alone: the table says of the others how large such a
matrix would be. Give the largest sizes to a process of their own, since the memory is the most that it had.

Figures measured again replace those in the table of results, and others stay. With `--page` the table goes
into docs/maps.md.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.metadata
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import measured_with, read_csv, table_in_page, write_csv

import distgp
from distgp import metrics

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results" / "maps-cpu.csv"
PAGE = HERE.parent / "docs" / "maps.md"
SIZES = (2_000, 20_000, 1_000_000)
SIDE, LENGTH, NUGGET, TESTED = 100.0, 10.0, 0.09, 2_000
MOST = {"PyKrige": 20_000, "GSTools": 20_000}
"""Observations up to which a peer is run: of more, its matrices of all pairs do not fit into memory."""
DENSE = 2_000
"""Observations up to which PyKrige solves the equations of all of them."""
FIGURES = ("rmse", "cover", "nlpd")
Predicted = tuple[np.ndarray, np.ndarray]
Way = Callable[[np.ndarray, np.ndarray, np.ndarray], Predicted]


def field(X: np.ndarray, seed: int) -> np.ndarray:
    """A draw at the rows of X: frequencies of an exponential covariance are Student-t with 1 degree."""
    rng, size = np.random.default_rng(seed), 4096
    frequency = rng.normal(size=(size, 2)) / np.sqrt(rng.chisquare(1, size=(size, 1)))
    W = torch.as_tensor(frequency / LENGTH)
    phase = torch.as_tensor(rng.uniform(0, 2 * math.pi, size))
    parts = [torch.cos(x @ W.mT + phase).sum(-1) for x in torch.as_tensor(X).split(8192)]
    return (torch.cat(parts) * math.sqrt(2.0 / size)).numpy()


def problem(n: int, seed: int) -> tuple[np.ndarray, ...]:
    """Places and observations, and those to be predicted, with the field itself there."""
    rng = np.random.default_rng(seed + 1000)
    X = rng.uniform(0, SIDE, size=(n + TESTED, 2))
    f = field(X, seed)
    y = f + math.sqrt(NUGGET) * rng.normal(size=len(X))
    return X[:n], y[:n], X[n:], y[n:], f[n:]


def by_distgp(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Predicted:
    """Defaults but for the kernel."""
    gp = distgp.DistributedGPRegressor(kernel="exponential(isotropic)").fit(X, y)
    return gp.predict(new, return_std=True)


def by_pykrige(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Predicted:
    """Ordinary kriging, of all observations or of the 64 nearest."""
    module = _peer("pykrige.ok")
    model = module.OrdinaryKriging(
        X[:, 0], X[:, 1], y, variogram_model="exponential", nlags=60, weight=True
    )
    near: dict[str, Any] = {} if len(X) <= DENSE else {"n_closest_points": 64, "backend": "loop"}
    mean, variance = model.execute("points", new[:, 0], new[:, 1], **near)
    return np.asarray(mean), np.sqrt(np.asarray(variance))


def by_gstools(X: np.ndarray, y: np.ndarray, new: np.ndarray) -> Predicted:
    """Ordinary kriging of all observations, with the variogram fitted by GSTools."""
    gs = _peer("gstools")
    bins, gamma = gs.vario_estimate(X.T, y, np.linspace(0, SIDE / 3, 31))
    model = gs.Exponential(dim=2)
    model.fit_variogram(bins, gamma, nugget=True)
    krige = gs.krige.Ordinary(model, X.T, y, exact=False, pseudo_inv=False)
    mean, variance = krige(new.T)
    return mean, np.sqrt(variance)


WAYS: dict[str, Way] = {"distgp": by_distgp, "PyKrige": by_pykrige, "GSTools": by_gstools}


def _peer(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise SystemExit(
            f"{name} is not installed: pip install pykrige gstools, or --only distgp"
        ) from error


def measured(n: int, seed: int, name: str, note: str) -> dict[str, object]:
    """Error of the field, cover of observations by 90 % intervals, NLPD and time of one model."""
    X, y, new, seen, f = problem(n, seed)
    begin = time.perf_counter()
    mean, std = WAYS[name](X, y, new)
    seconds = time.perf_counter() - begin
    return {
        "n": n,
        "seed": seed,
        "model": name,
        "version": importlib.metadata.version(name.lower()) if name in MOST else distgp.__version__,
        "rmse": metrics.rmse(f, mean),
        "cover": metrics.coverage(seen, mean, np.square(std), 0.9),
        "nlpd": metrics.nlpd(seen, mean, np.square(std)),
        "seconds": seconds,
        "gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "note": note,
    }


def not_run(n: int, name: str) -> dict[str, object]:
    """The line of a peer whose matrix of all pairs does not fit, with its size in numbers of 8 bytes."""
    size = f"not run: its matrix of all pairs would take {8 * n**2 / 2**30:,.0f} GiB"
    figures = dict.fromkeys(("version", *FIGURES, "seconds", "gigabytes"), "")
    return {"n": n, "seed": 0, "model": name, **figures, "note": size}


def page() -> None:
    """Write the table into docs/maps.md."""
    rows = read_csv(RESULTS)
    lines = [
        measured_with(rows),
        "",
        "| observations | | RMSE of the field | 90 % cover | NLPD | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        if not row["seconds"]:
            lines.append(f"| {int(row['n']):,} | {row['model']} | {row['note']} | | | |")
            continue
        figures = [f"{float(row[name]):.3f}" for name in FIGURES]
        name = f"{row['model']} {row['version']}" if row["model"] in MOST else row["model"]
        cells = [f"{int(row['n']):,}", name, *figures, f"{float(row['seconds']):.3g}"]
        lines.append(f"| {' | '.join(cells)} |")
    table_in_page(PAGE, "table", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument("--note", default="", help="what the times were measured beside")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--page", action="store_true", help="write docs/maps.md and no more")
    options = parser.parse_args()
    if options.page:
        return page()
    before = read_csv(options.out) if options.out.exists() else []
    rows: dict[tuple[int, int, int], dict[str, Any]] = {_key(row): row for row in before}
    for n in options.sizes:
        for name in options.only:
            fits = n <= MOST.get(name, n)
            for seed in range(options.seeds if fits else 1):
                row = measured(n, seed, name, options.note) if fits else not_run(n, name)
                print(row, flush=True)
                rows[_key(row)] = row
                written = [rows[key] for key in sorted(rows)]
                write_csv(written, options.out, f"cpu, {torch.get_num_threads()} threads")
    return None


def _key(row: dict[str, Any]) -> tuple[int, int, int]:
    """The order of rows in the table; those measured again replace others."""
    return int(row["n"]), list(WAYS).index(row["model"]), int(row["seed"])


if __name__ == "__main__":
    main()
