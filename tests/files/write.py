"""Write the model files that every later version must be able to read.

Run once per file format, with the version that introduces it: python tests/files/write.py [folder].
It fits small models with the distgp that is imported. The first three are files of their own, each
beside the predictions that it made, and are left as they are where they exist. All others, one for
every way to fit, go into `format1.zip`, a compressed archive that begins with `index.json`: the name
of each case, how it was fitted, and what to predict. What each predicted is in `format1.npz` by the
name of the case, as rows mean, std, latent mean and latent std, and, where the model has intervals,
lower and upper.
"""

import json
import sys
import tempfile
import warnings
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import distgp
from distgp import DistributedGPRegressor, SparseGridGP, aggregation, data, training

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(64, 2))
Y = 4 + np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * RNG.normal(size=64)
X_NEW = RNG.uniform(-0.8, 0.8, size=(8, 2))
TABLE = pd.DataFrame(
    {
        "east": X[:40, 0],
        "site": RNG.choice(["hill", "lake", "town"], 40),
        "when": pd.date_range("2025-01-01", periods=40, freq="7h"),
        "flag": X[:40, 1] > 0,
    }
)
TABLES = {"whole": TABLE.iloc[3::5].reset_index(drop=True).assign(east=X_NEW[:, 0])}
TABLES["holes"] = TABLES["whole"].assign(
    east=TABLES["whole"]["east"].where(TABLES["whole"].index != 2),
    site=["hill", None, "lake", "town", "harbour", "lake", "hill", "town"],
)
GROUPS = np.where(X[:, 0] > 0, "right", "left")
GROUPS_NEW = np.where(X_NEW[:, 0] > 0, "right", "left").tolist()
SMALL = {
    "exact": {"expert": "exact", "n_experts": 3, "n_iter": 3},
    "sparse": {"expert": "sparse", "n_experts": 2, "n_inducing": 5, "n_iter": 3},
    "nearest": {
        "expert": "nearest",
        "n_experts": 2,
        "n_inducing": 4,
        "n_neighbors": 6,
        "n_iter": 3,
    },
}
PLAIN = {"exact": "two-level", "sparse": "pooled", "nearest": "nearest"}
ROWS = 24


@dataclass(frozen=True)
class Case:
    """A model to fit, and what to ask it.

    `rows` are the arguments of `fit`. `inputs` are "array", the names of the columns of a frame of
    numbers, or one of `TABLES`. `predict` and `interval` are options of prediction, and `then` are
    calls after fitting.
    """

    name: str
    model: Any
    rows: dict[str, Any] = field(default_factory=lambda: {"X": X[:ROWS], "y": Y[:ROWS]})
    inputs: str | list[str] = "array"
    predict: dict[str, Any] = field(default_factory=dict)
    interval: dict[str, Any] = field(default_factory=dict)
    then: dict[str, Any] = field(default_factory=dict)

    def points(self) -> Any:
        """Return what to predict."""
        if isinstance(self.inputs, list):
            return pd.DataFrame(X_NEW, columns=self.inputs)
        return X_NEW if self.inputs == "array" else TABLES[self.inputs]

    def fitted(self) -> Any:
        """Fit the model."""
        model = self.model.fit(**self.rows)
        for method, arguments in self.then.items():
            getattr(model, method)(**arguments)
        return model

    def answers(self, model: Any) -> np.ndarray:
        """Return mean, std, latent mean, latent std, and lower and upper where there are intervals."""
        points = self.points()
        found = [
            *model.predict(points, return_std=True, **self.predict),
            *model.predict(points, return_std=True, latent=True, **self.predict),
        ]
        if hasattr(model, "predict_interval"):
            options = self.predict | self.interval
            found += model.predict_interval(points, coverage=0.8, **options)
        return np.stack(found)

    def entry(self) -> dict[str, Any]:
        """Return what the index says of this case."""
        given = sorted(set(self.rows) - {"X", "y"})
        told = " ".join(str(self.model).split())
        return {
            "name": self.name,
            "fitted": f"{told}.fit({', '.join(['X', 'y', *given])})"
            + "".join(f".{method}({', '.join(options)})" for method, options in self.then.items()),
            "rows": len(self.rows["X"]),
            "dtype": getattr(self.model, "dtype", "float64"),
            "inputs": self.inputs,
            "predict": self.predict,
            "interval": self.interval,
        }


def small(expert: str, **options: Any) -> DistributedGPRegressor:
    """Return a small model of these experts."""
    return DistributedGPRegressor(**(SMALL[expert] | options))


def every_aggregator() -> Iterator[Case]:
    """Every expert with every aggregator, under shared and, where it can be, independent training."""
    for expert in distgp.EXPERTS:
        for name, kind in distgp.AGGREGATORS.items():
            if expert not in kind.serves:
                continue
            yield Case(f"{expert}/{name}", small(expert, aggregation=name))
            if not kind().needs_one_prior:
                own = small(expert, aggregation=name, training="independent")
                yield Case(f"{expert}/{name}/independent", own)


def aggregators_with_options() -> Iterator[Case]:
    """Aggregators whose options change what a file holds."""
    for variance in ("weighted", "central", "nested"):
        chosen = aggregation.Opt(variance=variance, n_central=8)
        yield Case(f"exact/opt-{variance}", small("exact", aggregation=chosen))
    for expert, name, chosen in [
        ("exact", "opt-exact", aggregation.Opt(cross="exact")),
        ("exact", "opt-sampled", aggregation.Opt(n_eval=12)),
        ("exact", "opt-basis", aggregation.Opt(n_basis=8)),
        ("exact", "opt-printed-weighted", aggregation.OptPrinted(variance="weighted")),
        ("exact", "two-level-nested", aggregation.TwoLevel(variance="nested")),
        ("sparse", "two-level-few", aggregation.TwoLevel(n_central=6)),
        ("sparse", "gpoe-entropy", aggregation.GPoE(weights="entropy", space="observed")),
        ("sparse", "barycentre-uniform", aggregation.Barycentre(weights="uniform")),
    ]:
        yield Case(f"{expert}/{name}", small(expert, aggregation=chosen))


def every_transform_and_calibration() -> Iterator[Case]:
    """Every transform of the target with every calibration, for each kind of expert."""
    for expert, aggregator in PLAIN.items():
        for transform in (None, "log", "yeo-johnson"):
            for calibrate in (None, "conformal", "mondrian"):
                grouped = calibrate == "mondrian"
                n = ROWS if calibrate is None else 50
                rows = {"X": X[:n], "y": Y[:n]} | ({"groups": GROUPS[:n]} if grouped else {})
                model = small(
                    expert,
                    aggregation=aggregator,
                    target_transform=transform,
                    calibrate=calibrate,
                    n_experts=2,
                )
                name = f"{expert}/{transform or 'as it is'}/{calibrate or 'uncalibrated'}"
                asked = {"groups": GROUPS_NEW} if grouped else {}
                yield Case(name, model, rows, interval=asked)


def every_kind_of_rows() -> Iterator[Case]:
    """Weights, noise of the rows, several targets, tables, labels, float32, for each kind of expert."""
    x, y, n = X[:ROWS], Y[:ROWS], ROWS
    two, noise = np.column_stack([y, np.cos(y)]), 0.01 + 0.05 * np.square(x[:, 0])
    weights = np.arange(n) % 3.0
    frame, table = pd.DataFrame(x, columns=["a", "b"]), {"X": TABLE, "y": Y[:40]}
    holes = TABLE.assign(
        east=TABLE["east"].mask(TABLE.index % 9 == 0), site=TABLE["site"].mask(TABLE.index % 7 == 0)
    )
    asked = {"noise_variance": np.linspace(0.01, 0.1, len(X_NEW)).tolist()}
    for expert in SMALL:
        rows = {"X": x, "y": y}
        yield Case(
            f"{expert}/row noise", small(expert), rows | {"noise_variance": noise}, predict=asked
        )
        yield Case(f"{expert}/weights", small(expert), rows | {"sample_weight": weights})
        yield Case(f"{expert}/two targets", small(expert), {"X": x, "y": two})
        yield Case(f"{expert}/frame", small(expert), {"X": frame, "y": y}, ["a", "b"])
        yield Case(f"{expert}/table", small(expert, dates="expand"), table, "whole")
        yield Case(f"{expert}/linear mean", small(expert, mean="linear"))
        yield Case(f"{expert}/float32", small(expert, dtype="float32"))
        labels = small(expert, partition=np.arange(n) % 2, n_experts="auto")
        yield Case(f"{expert}/labels", labels)
        more = {"partial_fit": {"X": X[n : n + 8], "y": Y[n : n + 8]}}
        yield Case(f"{expert}/more rows", small(expert), rows, then=more)
        fewer = {"drop_experts": {"which": [0]}}
        yield Case(f"{expert}/fewer experts", small(expert), rows, then=fewer)
    imputed = small("sparse", dates="expand", missing="impute", unknown="new")
    yield Case("sparse/imputed", imputed, {"X": holes, "y": Y[:40]}, "holes")
    labelled = small("exact", dates="expand", categorical=["flag"], missing="drop", unknown="new")
    yield Case("exact/dropped", labelled, {"X": holes, "y": Y[:40]}, "holes")
    yield Case(
        "sparse/everything",
        small("sparse", target_transform="log", calibrate="conformal", training="independent"),
        {"X": X, "y": np.column_stack([Y, Y**2]), "sample_weight": 1.0 + np.arange(64) % 2},
    )


def every_kernel() -> Iterator[Case]:
    """Kernels by name, as texts and as objects, with priors, bounds and what is held."""
    for name in [*distgp.KERNELS, "linear", "matern52 + linear", "2 * rbf(0.5) + constant"]:
        yield Case(f"kernel/{name}", small("sparse", kernel=name))
    named = "matern52(columns=a) + periodic(24, columns=b)"
    frame = {"X": pd.DataFrame(X[:ROWS] * [1, 24], columns=["a", "b"]), "y": Y[:ROWS]}
    for expert in SMALL:
        yield Case(f"{expert}/named columns", small(expert, kernel=named), frame, ["a", "b"])
    dated = "matern32(columns=[east, site]) + periodic(24 h) * rbf(columns=when)"
    yield Case(
        "kernel/dates",
        small("exact", kernel=dated, dates="expand"),
        {"X": TABLE, "y": Y[:40]},
        "whole",
    )
    chosen = 0.7 * distgp.RBF([1.0, 2.0]) + distgp.Linear(0.3) * distgp.Periodic(
        1.5, active_dims=[1]
    )
    for expert in SMALL:
        yield Case(f"{expert}/kernel object", small(expert, kernel=chosen))
    mixed = 0.5 * distgp.RationalQuadratic([1.0, 1.0]) + distgp.Constant(0.2)
    yield Case("kernel/in the units of the data", small("exact", kernel=mixed, kernel_units="data"))
    product = distgp.separable(distgp.Matern32, [0.5, 2.0])
    yield Case("kernel/separable", small("exact", kernel=product, normalize=False, training=None))
    held = small(
        "exact",
        priors={
            "noise": training.LogNormal(0.1),
            "lengthscale": training.Gamma(2.0, 1.0),
        },
        bounds={"lengthscale": (0.05, 20.0)},
        fixed=["variance"],
    )
    yield Case("kernel/priors, bounds, fixed", held)


def every_parameter_object() -> Iterator[Case]:
    """Training and partitions as objects, and what was chosen by measuring."""
    for name, kind in distgp.ALGORITHMS.items():
        expert = name if name == "nearest" else "sparse"
        yield Case(f"training/{name}", small(expert, training=kind(n_iter=2), n_iter=None))
    yield Case("training/none", small("exact", training=None))
    for name in distgp.PARTITIONS:
        yield Case(f"partition/{name}", small("sparse", partition=name))
    yield Case(
        "partition/object", small("sparse", partition=data.ColumnPartition(1), aggregation="poe")
    )
    yield Case("inducing/given", small("sparse", n_inducing=X_NEW[:4]))
    yield Case("inducing/none", small("nearest", n_inducing=0))
    yield Case("one expert", small("exact", n_experts=1))
    x = np.linspace(-1, 1, 240)
    measured = {"X": np.column_stack([x, np.cos(9 * x)]), "y": np.sin(3 * x) + 0.1 * np.sin(50 * x)}
    yield Case("measured/kernel", small("sparse", kernel="auto", validation="last"), measured)
    chosen = DistributedGPRegressor(n_iter=2)
    yield Case("defaults", chosen, {"X": X, "y": Y})
    cross = small("sparse", n_experts="cv", n_inducing=3, n_iter=2)
    yield Case("cross-validated", cross, {"X": X, "y": Y})


def every_grid() -> Iterator[Case]:
    """Sparse grids."""
    two = np.column_stack([Y, np.cos(Y)])[:ROWS]
    for name in ("opticom", "ct", "full"):
        yield Case(f"grid/{name}", SparseGridGP(level=2, combination=name, n_iter=3))
    edge = SparseGridGP(level=1, boundary=True, box=[-1.5, 1.5], kernel="rbf", n_iter=2)
    yield Case("grid/boundary", edge)
    object_ = SparseGridGP(level=2, kernel=distgp.RBF([1.0, 2.0]), training=None, normalize=False)
    yield Case("grid/object", object_)
    yield Case("grid/two targets", SparseGridGP(level=2, n_iter=2), {"X": X[:ROWS], "y": two})


def cases() -> Iterator[Case]:
    """All that go into the archive."""
    yield from every_aggregator()
    yield from aggregators_with_options()
    yield from every_transform_and_calibration()
    yield from every_kind_of_rows()
    yield from every_kernel()
    yield from every_parameter_object()
    yield from every_grid()


def write_archive(folder: Path) -> None:
    """Fit every case; write `format1.zip` and `format1.npz`."""
    entries, files, answers = [], {}, {"inputs": X_NEW}
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "model.safetensors"
        for case in cases():
            model = case.fitted()
            model.save(path)
            entries.append(case.entry())
            files[case.name], answers[case.name] = path.read_bytes(), case.answers(model)
    tables = {
        name: table.assign(when=table["when"].astype(str)).to_dict("list")
        for name, table in TABLES.items()
    }
    index = {"distgp": distgp.__version__, "tables": tables, "cases": entries}
    contents = {"index.json": json.dumps(index, indent=1).encode()}
    contents |= {f"{name}.safetensors": file for name, file in files.items()}
    with zipfile.ZipFile(folder / "format1.zip", "w") as archive:
        for name, content in contents.items():  # entries of no date: the same files, the same bytes
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED, compresslevel=9)
    np.savez_compressed(folder / "format1.npz", **answers)


def write_first_three(folder: Path) -> None:
    """Write three small models of the same data, and what they predict, where they are missing."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(60, 2))
    y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=60)
    models = {
        "exact-two-level": DistributedGPRegressor(
            expert="exact", n_experts=3, aggregation="two-level", n_iter=5
        ),
        "sparse-pooled": DistributedGPRegressor(
            expert="sparse", n_experts=2, n_inducing=8, n_iter=5
        ),
        "sparse-grid": SparseGridGP(level=3, n_iter=5),
    }
    X_new = rng.uniform(-1, 1, size=(5, 2))
    for name, model in models.items():
        if (folder / f"{name}.safetensors").exists():
            continue
        model.fit(X, y).save(folder / f"{name}.safetensors")
        mean, std = model.predict(X_new, return_std=True)
        np.savez(folder / f"{name}.npz", X=X_new, mean=mean, std=std)


if __name__ == "__main__":
    to = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of models that are small and hardly trained, on purpose
        write_first_three(to)
        write_archive(to)
