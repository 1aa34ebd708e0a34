"""Forecasting hourly traffic with periods in hours.

The traffic of Interstate 94 (Metro_Interstate_Traffic_Volume.csv of the paper's data), from 2017 on, hour
by hour: the first 80 % are learnt, the rest is forecast from the time alone. Kernels are texts, and periods
in hours as anyone would write them; beside them the same numbers taken for standardised units, a kernel
without periods, and gradient boosting on hour, weekday and time.

    python benchmarks/timeseries.py --data FOLDER    writes benchmarks/results/timeseries.csv
    python benchmarks/timeseries.py --page           writes the table into docs/tutorials/time-series.md
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from _measure import measured_with, read_csv, table_in_page, write_csv
from others import figures
from sklearn.ensemble import HistGradientBoostingRegressor

import distgp
from distgp.selection.trials import with_spread

RESULTS = Path(__file__).parent / "results" / "timeseries.csv"
PAGE = Path(__file__).parents[1] / "docs" / "tutorials" / "time-series.md"
PERIODS = "periodic(24) + periodic(168) + matern52"
DATES = "periodic(24 h) + periodic(1 week) + matern52(columns=when)"
MODELS: dict[str, dict[str, Any]] = {
    f"hours as numbers, `{PERIODS}`": {"kernel": PERIODS},
    f"dates, `{DATES}`": {"kernel": DATES, "dates": "expand"},
    "hours as numbers, the same with kernel_units='standardised'": {
        "kernel": PERIODS,
        "kernel_units": "standardised",
    },
    "hours as numbers, `matern52`": {"kernel": "matern52"},
}
Row = dict[str, object]


def series(folder: str) -> pd.DataFrame:
    """Time and traffic, one row per hour that was measured."""
    table = pd.read_csv(Path(folder) / "Metro_Interstate_Traffic_Volume.csv")
    table = pd.DataFrame(
        {
            "when": pd.to_datetime(table["date_time"]),
            "traffic": table["traffic_volume"].astype(float),
        }
    )
    table = table.drop_duplicates("when").sort_values("when")
    return table.loc[table["when"] >= "2017-01-01"].reset_index(drop=True)


def run(folder: str, out: Path) -> None:
    """Fit every model and write the table."""
    table = series(folder)
    y, n = table["traffic"].to_numpy(), int(0.8 * len(table))
    hours = ((table["when"] - table["when"].iloc[0]) / pd.Timedelta(hours=1)).to_numpy()[:, None]
    rows: list[Row] = []
    for name, options in MODELS.items():
        X: Any = table[["when"]] if "dates" in options else hours
        begin = time.perf_counter()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            gp = distgp.DistributedGPRegressor(expert="sparse", n_inducing=256, **options)
            mean, std = gp.fit(X[:n], y[:n]).predict(X[n:], return_std=True)
        row: Row = {
            "model": name,
            **figures(y[n:], mean, std),
            "seconds": time.perf_counter() - begin,
        }
        row["noise"] = gp.noise_
        row["warnings"] = ", ".join(sorted({type(w.message).__name__ for w in told}))
        rows.append(row)
        print(row, flush=True)
        write_csv(rows, out, f"cpu, {torch.get_num_threads()} threads")
    features = np.column_stack([table["when"].dt.hour, table["when"].dt.weekday, hours[:, 0]])
    begin = time.perf_counter()
    boosting = HistGradientBoostingRegressor(random_state=0)
    mean, std = with_spread(boosting, features[:n], y[:n], features[n:])
    row = {"model": "gradient boosting on hour, weekday and time"}
    row |= figures(y[n:], mean, np.asarray(std)) | {"seconds": time.perf_counter() - begin}
    rows.append(row)
    print(row, flush=True)
    write_csv(rows, out, f"cpu, {torch.get_num_threads()} threads")


def page() -> None:
    """Write the table into the page, between its marks."""
    rows = read_csv(RESULTS)
    lines = [measured_with(rows), "", "| | RMSE | NLPD | 90 % cover | seconds |"]
    lines += ["| --- | --- | --- | --- | --- |"]
    for row in rows:
        cells = [f"{float(row['rmse']):,.0f}"]
        cells += [f"{float(row[name]):.3g}" for name in ("nlpd", "cover", "seconds")]
        lines.append(f"| {row['model']} | {' | '.join(cells)} |")
    table_in_page(PAGE, "table", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", help="folder with Metro_Interstate_Traffic_Volume.csv")
    parser.add_argument("--page", action="store_true", help="write the page and no more")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.page:
        page()
    elif options.data is None:
        parser.error("give --data or --page")
    else:
        run(options.data, options.out)


if __name__ == "__main__":
    main()
