"""How far is the default from the exact GP of all rows, on the field's standard tables?

Ten UCI tables with their published splits of 90/10. "default" is `DistributedGPRegressor()`; "reference"
is the exact GP (Matérn-5/2, one lengthscale per column) whose θ goes on from the default's by up to 20 more
evaluations (10 from 20,000 rows on) of the likelihood of all rows, without a cap of the signal variance,
and with a floor of the noise of 1e-8. RMSE and NLPD are in units of the training targets' standard
deviation. The tables were in view when the defaults were made.

    python benchmarks/exact.py [--data FOLDER] [--device cuda] [--tables kin40k …] [--splits 0 1 2]
    python benchmarks/exact.py --solve [--device cuda]     the exact mean of 10⁵ and 10⁶ rows, by iterations
    python benchmarks/exact.py --page                      writes a table into docs/experts.md

Each run is one line of the CSV as soon as it is done; lines that are there are not run again.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from _measure import measured_with, read_csv, table_in_page
from uci_tables import TABLES, Results, Row, Split, split_of

import distgp
from distgp.aggregation import Ensemble, Exact
from distgp.data import Shard
from distgp.diagnostics import metrics
from distgp.experts import ExactExpert, NearestExpert, Parameters
from distgp.kernels.prior import prior_draws
from distgp.training import Fact, train

NEAR = 0.02
"""Tables whose NLPD differs by more from the reference's are named on the page."""
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "experts.md"
MORE, MORE_OF_MANY, MANY = 20, 10, 20_000
"""Evaluations by which the reference goes on from the default, and those of so many rows or more."""
DRAWS = 32
"""Draws of the prior, of 128 random features each, that are added up to one of many."""


def figures(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Row:
    """RMSE, NLPD, CRPS and the cover of 90 % intervals."""
    variance = np.square(std)
    return {
        "rmse": metrics.rmse(y, mean),
        "nlpd": metrics.nlpd(y, mean, variance),
        "cover": metrics.coverage(y, mean, variance),
    }


def default(
    data: Split, device: str, **options: object
) -> tuple[Row, distgp.DistributedGPRegressor]:
    """Fit and predict with everything left to the estimator, but for these options."""
    X, y, X_test, y_test = data
    begin = time.perf_counter()
    gp = distgp.DistributedGPRegressor(device=device, **options).fit(X, y)  # pyright: ignore
    fitted = time.perf_counter()
    mean, std = gp.predict(X_test, return_std=True)
    row = figures(y_test, mean, std)
    seconds = {"fit": fitted - begin, "predict": time.perf_counter() - fitted}
    way = f"{gp.experts_.expert.name}, {gp.aggregation_.name}"
    return row | seconds | {"way": way, "noise": float(np.mean(gp.noise_))}, gp


def reference(data: Split, gp: distgp.DistributedGPRegressor) -> Row:
    """The exact GP whose θ goes on from that of a fitted estimator, without bounds of ours."""
    X, y, X_test, y_test = data
    begin, target = time.perf_counter(), gp.model_.targets[0]
    scaling, theta = target.scaling, target.parameters.averaged()
    theta = Parameters(theta.kernel, theta.noise)
    like = theta.noise
    shard = Shard.of(scaling.inputs(X, like), scaling.targets(y, X, like))
    free = dict.fromkeys(theta.unconstrained(), (1e-06, 1000000.0)) | {"noise": (1e-8, 1e6)}
    more = MORE if len(y) < MANY else MORE_OF_MANY
    result = train(Fact(n_iter=more), ExactExpert(), theta, [shard], bounds=free)
    posterior = ExactExpert().condition(result.parameters, shard)
    out = posterior.predict(scaling.inputs(X_test, like))
    variance = scaling.variance(out.variance + result.parameters.noise)
    row = figures(y_test, scaling.mean(out.mean, X_test), np.sqrt(variance))
    ended = {"noise": float(result.parameters.noise), "way": f"{len(result.history)} evaluations"}
    return row | ended | {"fit": time.perf_counter() - begin}


def solved(n: int, d: int, lengthscale: float, device: str, tolerance: float) -> Row:
    """Solve for the exact mean of n rows of a function drawn from the GP, at the θ it was drawn with."""
    generator = torch.Generator().manual_seed(0)
    X = torch.rand(n, d, generator=generator, dtype=torch.float64).to(device) * 2 - 1
    theta = Parameters.of(1.0 * distgp.Matern52([lengthscale] * d), 0.04).to(torch.device(device))
    draws = prior_draws(theta.kernel, d, DRAWS, 0, X)
    assert draws is not None
    f = torch.cat([draws.at(part).sum(-1) for part in X.split(2**14)]) / DRAWS**0.5
    y = f + 0.2 * torch.randn(n, generator=generator, dtype=torch.float64).to(device)
    ensemble = Ensemble.condition(NearestExpert(), theta, [Shard.of(X, y)])
    exact, begin = Exact(variance="nearest", tolerance=tolerance, verbose=True), time.perf_counter()
    combined = exact.combine(ensemble)
    seconds = time.perf_counter() - begin
    found = {name: getattr(combined, name) for name in ("change", "iterations")}
    return found | {"fit": seconds, "solve": getattr(combined, "seconds")}  # noqa: B009


def run_tables(results: Results, given: argparse.Namespace) -> None:
    """The default and the reference on every table and split asked for."""
    for table in given.tables:
        for split in given.splits:
            data = split_of(given.data, table, split)
            key: Row = {"table": table, "split": split, "n": len(data[1]), "d": data[0].shape[1]}
            fitted: list[distgp.DistributedGPRegressor] = []

            def fit(
                data: Split = data, fitted: list[distgp.DistributedGPRegressor] = fitted
            ) -> Row:
                row, gp = default(data, given.device, **dict(given.option))
                fitted.append(gp)
                return row

            results.add(key | {"method": given.name}, fit)
            if given.reference and fitted:
                run = lambda data=data, gp=fitted[0]: reference(data, gp)  # noqa: E731
                results.add(key | {"method": "reference"}, run)


def run_solves(results: Results, sizes: Sequence[int], device: str) -> None:
    """The exact mean of many rows, in four and in eight columns."""
    for n in sizes:
        for d, lengthscale in ((4, 0.5), (8, 1.0)):
            key: Row = {"table": "drawn", "n": n, "d": d, "method": "solve", "tolerance": 1e-3}
            run = lambda n=n, d=d, ell=lengthscale: solved(n, d, ell, device, 1e-3)  # noqa: E731
            results.add(key, run)


def option(text: str) -> tuple[str, object]:
    """A parameter of the estimator, such as time_limit=60, as a pair."""
    name, _, value = text.partition("=")
    try:
        return name, float(value) if "." in value else int(value)
    except ValueError:
        return name, value


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tables", nargs="*", default=list(TABLES))
    parser.add_argument("--splits", nargs="*", type=int, default=[0])
    parser.add_argument("--reference", action="store_true")
    parser.add_argument("--name", default="default")
    parser.add_argument("--option", nargs="*", type=option, default=[])
    parser.add_argument("--solve", nargs="*", type=int)
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.page:
        return page(RESULTS, PAGE)
    results = Results(given.out or RESULTS / f"exact-{given.device}.csv", given.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if given.solve is not None:
            run_solves(results, given.solve or (10**5, 10**6), given.device)
        else:
            run_tables(results, given)
    return None


def page(folder: Path, path: Path) -> None:
    """Write the default beside the reference into the page, one line a table."""
    rows = [row for row in read_csv(folder / "exact-cuda.csv") if row.get("split")]
    nlpd = {(r["table"], r["split"], r["method"]): float(r["nlpd"]) for r in rows if r["nlpd"]}
    less: dict[str, list[float]] = {}
    for (table, split, method), value in nlpd.items():
        if method == "default":
            less.setdefault(table, []).append(value - nlpd[table, split, "reference"])
    far = {table: found for table, found in less.items() if max(map(abs, found)) > NEAR}
    near = max(abs(value) for table, found in less.items() if table not in far for value in found)
    splits = sum(len(found) for found in less.values())
    lines = [f"- {splits} splits of {len(less)} tables were measured."]
    for table, found in far.items():
        told = ", ".join(f"{'worse' if v > 0 else 'better'} by {abs(v):.3f}" for v in found)
        lines.append(f"- On the splits of {table}, the default's NLPD is {told}.")
    lines.append(f"- On all others the two differ by at most {near:.3f}.")
    table_in_page(path, "exact", [measured_with(rows), "", *lines])


if __name__ == "__main__":
    main()
