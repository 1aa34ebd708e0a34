"""What happens to NOx between the years, and which simple models see it coming."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sklearn.linear_model import LinearRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from distgp import metrics
from distgp.paper.datasets import SENSORS
from distgp.paper.published import published
from distgp.paper.study import Row, average, select, table

ROBUST = ("AT", "AP", "AH", "TIT", "TAT", "TEY")
"""Ambient air, the two temperatures of the turbine, and its load, once."""
CANDIDATES = (
    SENSORS,
    ROBUST,
    ("AT", "AP", "AH", "AFDP", "TIT", "TAT"),
    ("AT", "AP", "AH", "TAT", "TEY", "CDP"),
    ("AT", "AP", "AH", "GTEP", "TIT", "TAT"),
    ("AT", "AP", "AH", "TEY"),
    ("AT", "AP", "AH"),
    ("AT",),
)
BEFORE, AFTER = (2011, 2012, 2013), (2014, 2015)
Years = dict[int, tuple[np.ndarray, np.ndarray]]


def facts(years: Years) -> list[Row]:
    """Means of each year, redundancy of the sensors, and every model that was tried, with its errors."""
    rows: list[Row] = []
    for year, (X, y) in years.items():
        means = dict(zip(SENSORS, X.mean(0).tolist(), strict=True))
        rows.append(
            {
                "method": "year",
                "year": year,
                "nox": float(y.mean()),
                "tit": means["TIT"],
                "tey": means["TEY"],
            }
        )
    X, y = _joined(years, BEFORE)
    inflation = _inflation(X, SENSORS)
    rows += [
        {"method": "redundancy", "sensor": sensor, "vif": v} for sensor, v in inflation.items()
    ]
    rows.append({"method": "kept", "sensors": " ".join(_not_redundant(X))})
    later = _joined(years, AFTER)[1]
    rows.append(
        {"method": "mean of the years", "rmse": metrics.rmse(later, np.full(len(later), y.mean()))}
    )
    for sensors in CANDIDATES:
        for degree in (1, 2):
            row: Row = {"method": "candidate", "sensors": " ".join(sensors), "degree": degree}
            for name, learn, test in (
                ("forward_2012", (2011,), (2012,)),
                ("forward_2013", (2011, 2012), (2013,)),
                ("rmse", BEFORE, AFTER),
            ):
                row[name] = _error(years, sensors, degree, learn, test)
            rows.append(row)
    return rows


def _inflation(X: np.ndarray, sensors: Sequence[str]) -> dict[str, float]:
    """Variance inflation factors: 1 / (1 − R²) of each sensor on the others."""
    found = {}
    for sensor in sensors:
        rest = X[:, [SENSORS.index(other) for other in sensors if other != sensor]]
        column = X[:, SENSORS.index(sensor)]
        found[sensor] = 1.0 / (1.0 - LinearRegression().fit(rest, column).score(rest, column))
    return found


def _not_redundant(X: np.ndarray, largest: float = 10.0) -> list[str]:
    """The sensors left when the most redundant is dropped until no inflation factor is above this."""
    left: list[str] = list(SENSORS)
    while (inflation := _inflation(X, left))[
        worst := max(left, key=inflation.__getitem__)
    ] > largest:
        left.remove(worst)
    return left


def _joined(years: Years, which: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([years[k][0] for k in which]), np.concatenate(
        [years[k][1] for k in which]
    )


def _error(
    years: Years, sensors: Sequence[str], degree: int, learn: Sequence[int], test: Sequence[int]
) -> float:
    columns = [SENSORS.index(sensor) for sensor in sensors]
    model = make_pipeline(StandardScaler(), PolynomialFeatures(degree), LinearRegression())
    (X, y), (X_test, y_test) = _joined(years, learn), _joined(years, test)
    return metrics.rmse(y_test, model.fit(X[:, columns], y).predict(X_test[:, columns]))


def page(rows: Sequence[Row]) -> str:
    """NOx, year by year, and what was tried."""
    drift = select(rows, model="drift")
    if not drift or not select(rows, model="robust"):
        return ""
    years = {row["year"]: row for row in select(drift, method="year")}
    shown = [[year, 10 * row["nox"], row["tit"], row["tey"]] for year, row in years.items()]
    inflation = {row["sensor"]: row["vif"] for row in select(drift, method="redundancy")}
    redundant = ", ".join(f"{s} {v:.0f}" for s, v in inflation.items() if v > 100)
    tried = [
        [
            row["sensors"],
            {1: "plane", 2: "quadratic"}[row["degree"]],
            row["forward_2012"],
            row["forward_2013"],
            row["rmse"],
        ]
        for row in select(drift, method="candidate")
    ]
    found = {
        (model, method): average(select(rows, task="nox", model=model, method=method), "rmse")
        for model, method in (("independent", "opt-local"), ("linear", "pooled"), ("robust", "opt"))
    }
    mean = average(select(drift, method="mean of the years"), "rmse")
    planes, curves = (
        min(
            select(drift, method="candidate", **chosen),
            key=lambda row: row["forward_2012"] + row["forward_2013"],
        )
        for chosen in ({"degree": 1}, {})
    )
    kept = select(drift, method="kept")[0]["sensors"].replace(" ", ", ")
    fall, theirs = (
        100 * (1 - years[2014]["nox"] / years[2013]["nox"]),
        published()["nox", 20, "opt", "rmse"][0],
    )
    return f"""## NOx drifts

{table(["year", "mean NOx, mg/m³", "mean TIT, °C", "mean TEY, MWh"], shown)}

NOx falls by {fall:.0f} % from 2013 to 2014 while the load (TEY) stays and the turbine inlet temperature (TIT) goes on falling: the plant is run differently. Nothing in the years to
learn from is like it, and there the sensors are nearly redundant (variance inflation factors: {redundant}). Our reading: a flexible kernel learns from differences between redundant
sensors, and where they drift apart it leaves the data. The RBF kernel on all nine has RMSE {found["independent", "opt-local"]:.3f} (opt-local, mean over M), where predicting the mean of the years to
learn from has {mean:.3f}. A linear kernel extrapolates a plane. On all nine sensors, with shared hyperparameters and `pooled`, which is then the full GP: {found["linear", "pooled"]:.3f};
the paper's opt has {theirs} at M = 20. That is the model in the table above. No choice of sensors is in it; that a plane is the right shape is
known from the test years, since least squares does so well on them, not from the years to learn from, where curved models do better from one year to the next.

With the test years in view one can do better: experts with a linear kernel on {", ".join(ROBUST)} (one sensor of the load) reach {found["robust", "opt"]:.3f} with opt. Rules on the
years to learn from do not lead there: dropping the most redundant sensor until all inflation factors are below 10 keeps {kept}; forward validation (the sum of its two
columns below) picks {planes["sensors"]} among planes, but over all a {("plane", "quadratic")[curves["degree"] - 1]} in {curves["sensors"]}, which has {curves["rmse"]:.3f} on the test years: not the shape that lasts. These rows are shown, not
counted as ours. Least squares, forward in time and on the test years (10 mg/m³), of all that was tried:

{table(["sensors", "model", "2011 → 2012", "2011–12 → 2013", "test years"], tried)}"""
