"""The leaderboard: distgp and its peers on ten standard tables of the GP literature.

Every table has ten published splits of 90/10. RMSE, NLPD and CRPS are in units of the standard deviation of
the training targets; seconds are those of learning, hyperparameters included, and of predicting. The
models:

default     `DistributedGPRegressor()`
exact GP    `DistributedGPRegressor(expert="exact", n_experts=1)`, where the default took another way
SVGP        GPyTorch's, for ten times the default's seconds, within bounds (--svgp), with the number of
            inducing inputs and the learning rate that were best on rows held out, where --tune was run
boosting    scikit-learn's, with one spread for all rows, from rows held out
boosting 2  the same, with a second boosted model for the logarithm of the squared errors

The tables were in view when distgp's defaults were made; those of its peers were not changed by them.

    python benchmarks/uci.py [--data FOLDER] [--device cuda] [--tables kin40k …] [--splits 0]
    python benchmarks/uci.py --tune 60 [--device cuda] …       looks for SVGP's settings, 60 seconds each
    python benchmarks/uci.py --page          writes docs/leaderboard.md's table from the results

Each run is one line of results/uci-DEVICE.csv as soon as it is done; lines that are there are not
run again. Without --data the tables are downloaded. Settings of SVGP are tried at the same time, in eight
processes, into results/uci-svgp.csv.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import others
import torch
from _measure import measured_with, read_csv, table_in_page
from scipy.stats import norm
from uci_tables import TABLES, Results, Row, Split, arguments, on_every_split, split_of

import distgp
from distgp import metrics
from distgp.selection import hold_out

RESULTS = Path(__file__).parent / "results"
SETTINGS = RESULTS / "uci-svgp.csv"
PAGE = Path(__file__).parents[1] / "docs" / "leaderboard.md"
SHORT = ("rmse", "nlpd")
"""The figures that the page shows over all splits."""
MODELS = ("default", "exact GP", "SVGP", "boosting", "boosting 2")
WAY = "exact, poe"
"""What the default names itself where it is the exact GP."""
UNTUNED = 1024, 0.01
"""SVGP's number of inducing inputs and learning rate where `--tune` has not looked for better ones."""


def crps(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> float:
    """The continuous ranked probability score of normal distributions, on average."""
    z = (y - mean) / std
    each = z * (2 * norm.cdf(z) - 1) + 2 * norm.pdf(z) - 1 / np.sqrt(np.pi)
    return float(np.mean(std * each))


def figures(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Row:
    """RMSE, NLPD, CRPS and the cover of 90 % intervals."""
    variance = np.square(std)
    return {
        "rmse": metrics.rmse(y, mean),
        "nlpd": metrics.nlpd(y, mean, variance),
        "crps": crps(y, mean, std),
        "cover": metrics.coverage(y, mean, variance),
    }


def ours(data: Split, device: str, options: dict[str, object]) -> Row:
    """Fit and predict with distgp."""
    X, y, X_test, y_test = data
    begin = time.perf_counter()
    gp = distgp.DistributedGPRegressor(device=device, **options).fit(X, y)  # pyright: ignore
    fitted = time.perf_counter()
    mean, std = gp.predict(X_test, return_std=True)
    seconds = {"fit": fitted - begin, "predict": time.perf_counter() - fitted}
    way = f"{gp.experts_.expert.name}, {gp.aggregation_.name}"
    return figures(y_test, mean, std) | seconds | {"way": way}


def sparse(data: Split, device: str, seconds: float, m: int, rate: float) -> Row:
    """GPyTorch's SVGP for so many seconds; whether it had converged is said."""
    X, y, X_test, y_test = data
    rows, targets, points = (torch.as_tensor(v, device=device) for v in (X, y, X_test))
    rows, points = rows[:, rows.std(0) > 0], points[:, rows.std(0) > 0]
    out = others.svgp(rows, targets, points, seconds, device, m, rate)
    if out is None:
        return {"error": "GPyTorch is not installed"}
    note = f"m = {m}, rate {rate:g}" + (", not converged" if out.row()["note"] else "")
    return figures(y_test, out.mean, out.std) | {"fit": seconds, "way": note, "steps": out.steps}


def settings_of(table: str, path: Path) -> tuple[int, float]:
    """The number of inducing inputs and the learning rate of SVGP that `tune` found best for a table."""
    rows = read_csv(path) if path.exists() else []
    rows = [row for row in rows if row["table"] == table and not row.get("error")]
    best = min(rows, key=lambda row: float(row["nlpd"]), default=None)
    return UNTUNED if best is None else (int(best["m"]), float(best["rate"]))


def tune(given: argparse.Namespace) -> None:
    """Try all settings of SVGP at the same time; a fifth of the training rows of split 0 is held out."""
    results = Results(given.out or SETTINGS, given.device)
    pairs = list(itertools.product(others.SIZES, others.RATES))
    for table in given.tables:
        X, y, _, _ = split_of(given.data, table, 0)
        train, out = hold_out(len(y), "random", inputs=X)
        part = X[train], y[train], X[out], y[out]
        with multiprocessing.get_context("spawn").Pool(len(pairs)) as pool:
            found = pool.starmap(
                sparse, [(part, given.device, given.tune, *pair) for pair in pairs]
            )
        for (m, rate), row in zip(pairs, found, strict=True):
            results.add({"table": table, "m": m, "rate": rate}, lambda row=row: row)


def boosted(data: Split, spreads: bool) -> Row:
    """Boosting with one spread for all rows, or with one for each."""
    X, y, X_test, y_test = data
    begin = time.perf_counter()
    if spreads:
        mean, std = others.boosting_with_spreads(X, y, X_test, "random")
    else:
        mean, std = others.with_one_spread(others.boosting(), X, y, X_test, "random")
    return figures(y_test, mean, std) | {"fit": time.perf_counter() - begin}


def measured(results: Results, key: Row, data: Split, given: argparse.Namespace) -> None:
    """All models on one split."""
    first = results.add(key | {"model": "default"}, lambda: ours(data, given.device, {}))
    if given.default:
        return
    if first.get("way") != WAY:
        exact: dict[str, object] = {"expert": "exact", "n_experts": 1}
        results.add(key | {"model": "exact GP"}, lambda: ours(data, given.device, exact))
    least, most = given.svgp
    seconds = min(most, max(least, 10 * float(first["fit"])))
    if most:
        pair = settings_of(str(key["table"]), given.settings)
        run = lambda: sparse(data, given.device, seconds, *pair)  # noqa: E731
        results.add(key | {"model": "SVGP"}, run)
    results.add(key | {"model": "boosting"}, lambda: boosted(data, False))
    results.add(key | {"model": "boosting 2"}, lambda: boosted(data, True))


def lines_of(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """The table of split 0: one group of lines for each table of the collection."""
    yield "| table | rows, columns | model | RMSE | NLPD | CRPS | 90 % cover | seconds |"
    yield "| --- " * 8 + "|"
    for table in TABLES:
        here = [row for row in on_first_split(rows) if row["table"] == table]
        if here:
            yield from group_of(table, here)


def on_first_split(rows: Sequence[dict[str, str]]) -> list[dict[str, str]]:
    """The runs on split 0 that succeeded."""
    return [row for row in rows if row["split"] == "0" and not row.get("error")]


def means_of(
    rows: Sequence[dict[str, str]], names: Sequence[str] = ("rmse", "nlpd", "crps")
) -> Iterator[str]:
    """Means over all splits of a table, with their standard errors."""
    titles = ["table", "splits", "model", *(name.upper() for name in names), "90 % cover"]
    yield "| " + " | ".join(titles) + " |"
    yield "| --- " * len(titles) + "|"
    good = [row for row in rows if not row.get("error")]
    for table in TABLES:
        here = [row for row in good if row["table"] == table]
        found = {m: [row for row in here if row["model"] == m] for m in MODELS}
        splits = len(found["default"])
        if splits < 2:
            continue
        every = {model: runs for model, runs in found.items() if len(runs) == splits}
        best = {n: min(_mean(runs, n)[0] for runs in every.values()) for n in names}
        if len(every) == 1:  # the best of one is nothing to show
            best = dict.fromkeys(names, -np.inf)
        first = [table, f"{splits}"]
        for model, runs in every.items():
            cells = [*first, model, *(_with_error(runs, n, best[n]) for n in names)]
            yield "| " + " | ".join([*cells, f"{_mean(runs, 'cover')[0]:.3f}"]) + " |"
            first = ["", ""]


def _mean(runs: list[dict[str, str]], name: str) -> tuple[float, float]:
    """The mean of a figure over splits, and its standard error."""
    values = np.array([float(row[name]) for row in runs])
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def _with_error(runs: list[dict[str, str]], name: str, best: float) -> str:
    mean, error = _mean(runs, name)
    text = f"{mean:.3f} ± {error:.3f}" if name == "nlpd" else f"{mean:.3g} ± {error:.1g}"
    return f"**{text}**" if mean <= best else text


def group_of(name: str, rows: list[dict[str, str]]) -> Iterator[str]:
    """One line for each model, the best of each figure in bold; the first names the table."""
    rows.sort(key=lambda row: MODELS.index(row["model"]))
    best = {figure: min(float(row[figure]) for row in rows) for figure in ("rmse", "nlpd", "crps")}
    size = f"{int(rows[0]['n']):,}, {rows[0]['d']}"
    for row in rows:
        way = "one exact GP" if row.get("way") == WAY else row.get("way")
        took = float(row["fit"]) + float(row.get("predict") or 0.0)
        cells = [name, size, row["model"] + (f" ({way})" if way else "")]
        cells += [_bold(row, figure, best[figure]) for figure in best]
        yield "| " + " | ".join([*cells, f"{float(row['cover']):.3f}", f"{took:.1f}"]) + " |"
        name = size = ""


def _bold(row: dict[str, str], name: str, best: float) -> str:
    value = float(row[name])
    text = f"{value:.3g}" if name != "nlpd" else f"{value:.3f}"
    return f"**{text}**" if value <= best else text


def tuned(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """SVGP's best settings on rows held out, beside those that its lines have."""
    each = []
    for table in TABLES:
        here = [row for row in rows if row["table"] == table and not row.get("error")]
        found = {(int(row["m"]), float(row["rate"])): float(row["nlpd"]) for row in here}
        if found:
            best = min(found, key=found.__getitem__)
            settings = f"m = {best[0]:,}, rate {best[1]:g}"
            each.append(f"{table} {found[best]:.3f} instead of {found[UNTUNED]:.3f} ({settings})")
    yield f"NLPD: {'; '.join(each)}."


def beside(rows: Sequence[dict[str, str]], others: Sequence[dict[str, str]]) -> Iterator[str]:
    """The default on split 0 on a CPU, and its NLPD on a GPU."""
    yield "| table | default on two cores | RMSE | NLPD | on the GPU | 90 % cover | seconds |"
    yield "| --- " * 7 + "|"
    known = {row["table"]: row for row in on_first_split(others) if row["model"] == "default"}
    for table in TABLES:
        here = [row for row in on_first_split(rows) if row["table"] == table]
        for row in (row for row in here if row["model"] == "default"):
            way = "one exact GP" if row["way"] == WAY else row["way"]
            took = float(row["fit"]) + float(row.get("predict") or 0.0)
            cells = [table, way, f"{float(row['rmse']):.3g}", f"{float(row['nlpd']):.3f}"]
            cells += [f"{float(known[table]['nlpd']):.3f}", f"{float(row['cover']):.3f}"]
            yield "| " + " | ".join([*cells, f"{took:.1f}"]) + " |"


def wins(rows: Sequence[dict[str, str]]) -> str:
    """On how many tables the default has the lowest of each figure, on split 0."""
    rows = on_first_split(rows)
    places = {row["table"] for row in rows}
    count = {}
    for figure in ("rmse", "nlpd", "crps"):
        first = sorted(rows, key=lambda row: float(row[figure]))
        best = {row["table"]: row["model"] for row in reversed(first)}
        count[figure] = sum(model == "default" for model in best.values())
    return (
        f"Of {len(places)} tables, distgp's default has the lowest RMSE on {count['rmse']}, "
        f"the lowest NLPD on {count['nlpd']} and the lowest CRPS on {count['crps']}."
    )


def page() -> None:
    """Write the results into the page."""
    rows, slow = (read_csv(RESULTS / f"uci-{device}.csv") for device in ("cuda", "cpu"))
    settings = read_csv(SETTINGS)
    better = [row for row in settings if settings_of(row["table"], SETTINGS) != UNTUNED]
    parts = {
        "leaderboard": (on_first_split(rows), lines_of(rows)),
        "svgp": (settings, tuned(better)),
        "two cores": (slow, beside(slow, rows)),
        "all splits": ([row for row in rows if row["model"] != "SVGP"], means_of(rows, SHORT)),
    }
    table_in_page(PAGE, "wins", [wins(rows)])
    for mark, (shown, lines) in parts.items():
        said = measured_with(shown, lambda row: f"{row.get('model', 'SVGP')} on {row['table']}")
        table_in_page(PAGE, mark, [said, "", *lines])


def main() -> None:
    """Run what was asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--svgp", nargs=2, type=float, default=(20.0, 120.0))
    parser.add_argument("--default", action="store_true", help="run the default alone")
    parser.add_argument("--tune", type=float, help="seconds of each of SVGP's settings")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="what --tune has written")
    given = parser.parse_args()
    if given.page:
        return page()
    if given.tune:
        return tune(given)
    return on_every_split(
        given, "uci", lambda results, key, data: measured(results, key, data, given)
    )


if __name__ == "__main__":
    main()
