"""The command line in this process, and a folder with real files."""

import contextlib
import json
import warnings

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from distgp.cli import app


def run_command(*arguments, cwd=".", fails=False):
    """Run a command as its own process would, but without starting one."""
    with contextlib.chdir(cwd), warnings.catch_warnings():
        warnings.simplefilter("default")  # the command shows warnings, the tests raise them
        done = CliRunner(env={"NO_COLOR": "1"}).invoke(app, [str(a) for a in arguments])
    assert done.exit_code == (2 if fails else 0), done.output
    return done


def make_frame(n, seed=0):
    rng = np.random.default_rng(seed)
    east, site = rng.uniform(-2, 2, n), rng.choice(["hill", "lake", "town"], n)
    bonus = {"hill": 3.0, "lake": 0.0, "town": -3.0}
    level = np.sin(2 * east) + np.array([bonus[s] for s in site]) + 0.1 * rng.normal(size=n)
    start = pd.Timestamp("2024-01-01")
    return pd.DataFrame(
        {
            "id": np.arange(n),
            "east": east,
            "site": site,
            "when": start + pd.to_timedelta(np.arange(n), unit="h"),
            "level": 100 + 10 * level,
        }
    )


@pytest.fixture(scope="session")
def run():
    return run_command


@pytest.fixture(scope="session")
def frame():
    return make_frame


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Data in several forms, and a model fitted by the command."""
    folder = tmp_path_factory.mktemp("cli")
    data = make_frame(400)
    data.to_csv(folder / "train.csv", index=False)
    data.to_parquet(folder / "train.parquet")
    test = make_frame(150, seed=1)
    test.to_csv(folder / "test.csv", index=False)
    test.drop(columns="level").to_parquet(folder / "new.parquet")
    holes = data.copy()
    holes.loc[[3, 5], "east"] = np.nan
    holes.loc[7, "level"] = np.nan
    holes.to_parquet(folder / "holes.parquet")
    out = run_command(
        "fit", "train.csv", "--target", "level", "--drop", "id,when", "-o", "model.safetensors",
        "--n-experts", "2", "--n-iter", "30", "--json", cwd=folder,
    )  # fmt: skip
    report = json.loads(out.stdout)
    assert report["rows"] == 400 and report["n_experts"] == 2
    assert report["features"] == ["east", "site"]
    return folder
