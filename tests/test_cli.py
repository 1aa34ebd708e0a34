"""The command line, as a real process with real files."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import distgp

COMMAND = Path(sys.executable).parent / "distgp"
PEAK = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def run(*arguments, cwd=None, fails=False):
    environment = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(
        [COMMAND, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, env=environment
    )
    assert (done.returncode == 2) if fails else (done.returncode == 0), done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    return done


def frame(n, seed=0):
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data in several forms, and a model fitted by the command."""
    folder = tmp_path_factory.mktemp("cli")
    data = frame(400)
    data.to_csv(folder / "train.csv", index=False)
    data.to_parquet(folder / "train.parquet")
    test = frame(150, seed=1)
    test.to_csv(folder / "test.csv", index=False)
    test.drop(columns="level").to_parquet(folder / "new.parquet")
    holes = data.copy()
    holes.loc[[3, 5], "east"] = np.nan
    holes.loc[7, "level"] = np.nan
    holes.to_parquet(folder / "holes.parquet")
    out = run(
        "fit", "train.csv", "--target", "level", "--drop", "id,when", "-o", "model.safetensors",
        "--n-experts", "2", "--n-iter", "30", "--json", cwd=folder,
    )  # fmt: skip
    report = json.loads(out.stdout)
    assert report["rows"] == 400 and report["n_experts"] == 2
    assert report["features"] == ["east", "site=hill", "site=lake", "site=town"]
    return folder


def test_predictions_beside_the_other_columns(folder):
    run("predict", "model.safetensors", "test.csv", "-o", "out.parquet", cwd=folder)
    out, test = pd.read_parquet(folder / "out.parquet"), pd.read_csv(folder / "test.csv")
    assert list(out.columns) == [*test.columns, "mean", "std", "lower", "upper"]
    np.testing.assert_array_equal(out["id"], test["id"])
    model = distgp.load(folder / "model.safetensors")
    X = np.column_stack([test["east"], *(test["site"] == s for s in ("hill", "lake", "town"))])
    mean, std = model.predict(pd.DataFrame(X, columns=model.feature_names_in_), return_std=True)
    np.testing.assert_allclose(out["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(out["std"], std, rtol=1e-9)
    np.testing.assert_allclose(out["upper"] - out["lower"], 2 * 1.6448536 * std, rtol=1e-6)
    inside = test["level"].between(out["lower"], out["upper"]).mean()
    assert 0.8 < inside <= 1 and np.abs(mean - test["level"]).mean() < 1.5


def test_score_and_another_aggregator(folder):
    figures = json.loads(run("score", "model.safetensors", "test.csv", "--json", cwd=folder).stdout)
    assert figures["rows"] == 150 and figures["r2"] > 0.98 and 0.8 < figures["coverage_90"] <= 1
    text = run("score", "model.safetensors", "test.csv", "--aggregation", "rbcm", cwd=folder).stdout
    assert "rmse" in text and "nlpd" in text


def test_csv_and_arrow_out_and_no_overwriting(folder):
    run(
        "predict",
        "model.safetensors",
        "new.parquet",
        "-o",
        "p.csv",
        "--interval",
        "0.5",
        cwd=folder,
    )
    half = pd.read_csv(folder / "p.csv")
    run(
        "predict",
        "model.safetensors",
        "new.parquet",
        "-o",
        "p.arrow",
        "--prefix",
        "gp_",
        cwd=folder,
    )
    with pa.ipc.open_file(folder / "p.arrow") as reader:
        wide = reader.read_all().to_pandas()
    np.testing.assert_allclose(wide["gp_mean"], half["mean"])
    ratio = (wide["gp_upper"] - wide["gp_lower"]) / (half["upper"] - half["lower"])
    np.testing.assert_allclose(ratio, 1.6448536 / 0.6744898, rtol=1e-6)
    before = (folder / "p.csv").read_bytes()
    said = run("predict", "model.safetensors", "test.csv", "-o", "p.csv", cwd=folder, fails=True)
    assert "p.csv exists already: choose another name, or give --force" in said.stderr
    assert (folder / "p.csv").read_bytes() == before
    run("predict", "model.safetensors", "test.csv", "-o", "p.csv", "--force", cwd=folder)
    assert (folder / "p.csv").read_bytes() != before


def test_missing_values_dates_and_categories(folder):
    fit = ["fit", "holes.parquet", "--target", "level", "--drop", "id", "-o", "h.safetensors"]
    quick = ["--n-iter", "2", "--n-experts", "1"]
    said = run(*fit, *quick, cwd=folder, fails=True).stderr
    assert "column 'when' holds dates" in said and "--dates expand" in said
    said = run(*fit, *quick, "--dates", "expand", cwd=folder, fails=True).stderr
    assert "3 of 400 rows have missing values (2 in 'east', 1 in 'level')" in said
    assert not (folder / "h.safetensors").exists()
    done = run(*fit, *quick, "--dates", "expand", "--missing", "drop", cwd=folder)
    assert "3 rows with missing values were dropped" in done.stderr
    done = run(
        "predict", "h.safetensors", "holes.parquet", "-o", "h.parquet", "--missing", "drop", "--json",
        cwd=folder,
    )  # fmt: skip
    assert json.loads(done.stdout)["rows"] == 398 and json.loads(done.stdout)["dropped"] == 2
    assert len(pd.read_parquet(folder / "h.parquet")) == 398


BAD = [
    (["fit", "train.csv", "--target", "height", "-o", "x.safetensors"], "no column 'height'; the"),
    (["fit", "nowhere.csv", "--target", "level", "-o", "x.safetensors"], "there is no file 'nowhere.csv'"),
    (["fit", "empty.csv", "--target", "level", "-o", "x.safetensors"], "empty"),
    (["fit", "train.csv", "--target", "level", "-o", "no/x.safetensors"], "there is no folder 'no'"),
    (
        ["fit", "train.csv", "--target", "level", "--drop", "id,when", "-o", "x.safetensors",
         "--n-experts", "500"],
        "n_experts=500 is more than the 400 rows",
    ),
    (
        ["fit", "train.csv", "--target", "level", "--drop", "id,when", "-o", "x.safetensors",
         "--aggregation", "best"],
        "aggregation must be one of",
    ),
    (["predict", "train.csv", "test.csv", "-o", "x.csv"], "not a model file of distgp"),
    (["predict", "model.safetensors", "narrow.csv", "-o", "x.csv"], "lacks the column(s) 'site'"),
    (["predict", "model.safetensors", "strange.csv", "-o", "x.csv"], "such as 'moon'"),
    (["predict", "model.safetensors", "words.csv", "-o", "x.csv"], "cannot read words.csv as csv"),
    (["predict", "model.safetensors", "test.csv", "-o", "x.xlsx"], "expected a suffix of .csv"),
    (["score", "model.safetensors", "new.parquet"], "lacks the column(s) 'level'"),
    (["fit", "train.csv"], "--target"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_gets_one_line_and_code_2(folder, arguments, message):
    (folder / "empty.csv").write_text("")
    (folder / "narrow.csv").write_text("east\n1.0\n")
    (folder / "strange.csv").write_text("east,site\n1.0,moon\n")
    (folder / "words.csv").write_text("east,site\nfar,hill\n")
    before = sorted(folder.iterdir())
    said = run(*arguments, cwd=folder, fails=True).stderr
    assert message in " ".join(said.split()), said
    if "--target" not in message:
        assert len(said.strip().splitlines()) == 1 and said.startswith("distgp: ")
    assert sorted(folder.iterdir()) == before


def test_unknown_categories_on_request(folder):
    (folder / "moon.csv").write_text("east,site\n1.0,moon\n1.0,hill\n")
    run(
        "predict", "model.safetensors", "moon.csv", "-o", "moon.parquet", "--unknown-categories", "zero",
        cwd=folder,
    )  # fmt: skip
    out = pd.read_parquet(folder / "moon.parquet")
    assert out["std"][0] > out["std"][1]


def test_what_was_fitted_from_csv_is_predicted_from_csv(folder):
    rng = np.random.default_rng(0)
    odd = pd.DataFrame(
        {
            "flag": rng.choice([True, False], 60),
            "zip": rng.choice(["01", "02", "10"], 60),
            "text": rng.choice(["a", "b"], 60),
            "näme with space": rng.uniform(size=60),
            "y": np.where(np.arange(60) == 50, 1.5, np.arange(60)),
        }
    )
    odd.loc[3, "text"] = None
    odd.to_csv(folder / "odd.csv", index=False)
    fit = ["fit", "odd.csv", "--target", "y", "-o", "odd.safetensors", "--categorical", "zip"]
    assert "1 of 60 rows have missing" in run(*fit, cwd=folder, fails=True).stderr
    done = run(*fit, "--missing", "drop", "--n-iter", "3", "--json", cwd=folder)
    assert json.loads(done.stdout)["features"] == [
        "flag", "zip=01", "zip=02", "zip=10", "text=a", "text=b", "näme with space",
    ]  # fmt: skip
    run(
        "predict",
        "odd.safetensors",
        "odd.csv",
        "-o",
        "odd.parquet",
        "--missing",
        "drop",
        cwd=folder,
    )
    assert len(pd.read_parquet(folder / "odd.parquet")) == 59
    names = distgp.load(folder / "odd.safetensors").feature_names_in_
    assert list(names)[:2] == ["flag", "zip=01"]


def test_a_frames_index_and_types_that_differ_between_files(folder):
    parts = folder / "mixed"
    parts.mkdir()
    frame(50).drop(columns="when").sample(frac=1, random_state=0).to_parquet(parts / "a.parquet")
    other = frame(50, seed=1).drop(columns="when").astype({"id": float, "site": "category"})
    other[["site", "level", "east", "id"]].sample(frac=1, random_state=0).to_parquet(
        parts / "b.parquet"
    )
    done = run(
        "fit",
        "mixed",
        "--target",
        "level",
        "-o",
        "mixed.safetensors",
        "--n-iter",
        "3",
        "--json",
        cwd=folder,
    )
    assert json.loads(done.stdout)["features"][:2] == ["id", "east"]
    assert not any("index" in name for name in json.loads(done.stdout)["features"])
    run("predict", "mixed.safetensors", "mixed", "-o", "mixed.arrow", cwd=folder)
    with pa.ipc.open_file(folder / "mixed.arrow") as reader:
        assert reader.read_all().num_rows == 100


def test_an_aggregator_that_fails_does_not_end_the_comparison(folder):
    done = run(
        "compare", "train.csv", "--target", "level", "--features", "east", "-o", "few",
        "--expert", "exact", "--n-experts", "3", "--n-iter", "3", cwd=folder,
    )  # fmt: skip
    assert "pooled: pooled needs sparse experts" in done.stdout
    assert pd.read_csv(folder / "few.csv")["error"].notna().sum() == 1


def test_compare(folder):
    done = run(
        "compare", "train.parquet", "--target", "level", "--drop", "id,when", "-o", "cmp",
        "--expert", "sparse", "--n-experts", "4", "--n-inducing", "40", "--n-iter", "10", cwd=folder,
    )  # fmt: skip
    table = pd.read_csv(folder / "cmp.csv").set_index("name")
    assert set(distgp.AGGREGATORS) | {"full exact GP"} == set(table.index)
    assert pd.isna(table.loc["pooled", "error"])
    assert table.loc["pooled", "rmse"] < table.loc["poe", "rmse"] * 1.5
    assert (folder / "cmp.png").read_bytes()[:4] == b"\x89PNG"
    assert "two-level" in done.stdout and "W2 to full" in done.stdout


def test_folder_of_parquet_and_partition_by_column(folder):
    parts = folder / "parts"
    parts.mkdir()
    for i, site in enumerate(["hill", "lake", "town"]):
        frame(100, seed=i).assign(site=site).to_parquet(parts / f"{site}.parquet")
    done = run(
        "fit", "parts", "--target", "level", "--features", "east,site", "--partition-column", "site",
        "-o", "parts.safetensors", "--n-iter", "3", "--json", cwd=folder,
    )  # fmt: skip
    assert json.loads(done.stdout)["n_experts"] == 3


def test_help_is_there():
    commands = run("--help").stdout
    assert all(name in commands for name in ("fit", "predict", "score", "compare", "demo"))
    assert "--aggregation" in run("fit", "--help").stdout


@pytest.fixture(scope="module")
def small_model(tmp_path_factory):
    path = tmp_path_factory.mktemp("memory") / "model.safetensors"
    rng = np.random.default_rng(0)
    X = pd.DataFrame({"a": rng.uniform(size=300), "b": rng.uniform(size=300)})
    distgp.DistributedGPRegressor(expert="sparse", n_inducing=12, n_iter=4).fit(
        X, np.sin(6 * X["a"]) + 0.1 * rng.normal(size=300)
    ).save(path)
    return path


def write_parquet(path, rows):
    """In pieces, but as few row groups as Parquet writers make by default (a million rows each)."""
    schema = pa.schema([("a", pa.float64()), ("b", pa.float64()), ("note", pa.string())])
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, 1_000_000):
            rng, n = np.random.default_rng(start), min(1_000_000, rows - start)
            notes = pa.array(["row"]).take(pa.array(np.zeros(n, dtype=np.int64)))
            columns = [rng.uniform(size=n), rng.uniform(size=n), notes]
            writer.write_table(pa.table(columns, schema=schema), row_group_size=1_000_000)


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "distgp", "--help"], capture_output=True, text=True, check=True
    )
    assert "paper" in done.stdout and "python -m distgp" in done.stdout


def test_memory_does_not_grow_with_the_file(small_model, tmp_path):
    peaks = {}
    for rows in (1_000_000, 4_000_000):
        data, out = tmp_path / f"{rows}.parquet", tmp_path / f"out-{rows}.parquet"
        write_parquet(data, rows)
        command = [COMMAND, "predict", small_model, data, "-o", out]
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *map(str, command)],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks[rows] = int(done.stdout) / 1024
        assert pq.ParquetFile(out).metadata.num_rows == rows
    # The rows that the longer file has more take 48 MiB alone, their predictions as much again.
    assert peaks[4_000_000] < peaks[1_000_000] + 60, peaks
