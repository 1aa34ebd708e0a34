"""The commands with real files: what they write, print and refuse."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import distgp
from distgp.cli import demonstration
from distgp.cli.commands import _about_fit
from distgp.cli.terminal import print_figures
from distgp.selection.trials import Choice, Trial

COMMAND = Path(sys.executable).parent / "distgp"


def test_predictions_beside_the_other_columns(run, folder):
    run("predict", "model.safetensors", "test.csv", "-o", "out.parquet", cwd=folder)
    out, test = pd.read_parquet(folder / "out.parquet"), pd.read_csv(folder / "test.csv")
    assert list(out.columns) == [*test.columns, "mean", "std", "lower", "upper"]
    assert list(out["id"]) == [str(i) for i in test["id"]], "what is not used is text, as written"
    model = distgp.load(folder / "model.safetensors")
    X = np.column_stack([test["east"], *(test["site"] == s for s in ("hill", "lake", "town"))])
    mean, std = model.predict(pd.DataFrame(X, columns=model.model_.schema.names), return_std=True)
    np.testing.assert_allclose(out["mean"], mean, rtol=1e-12)
    np.testing.assert_allclose(out["std"], std, rtol=1e-9)
    np.testing.assert_allclose(out["upper"] - out["lower"], 2 * 1.6448536 * std, rtol=1e-6)
    inside = test["level"].between(out["lower"], out["upper"]).mean()
    assert 0.8 < inside <= 1 and np.abs(mean - test["level"]).mean() < 1.5


def test_columns_that_are_not_used_are_written_as_they_were(run, folder):
    text = "id,note,site,east\n007,1.50,hill,0.5\n1e3,,lake,1\n"
    (folder / "odd.csv").write_text(text)
    run("predict", "model.safetensors", "odd.csv", "-o", "odd-out.csv", cwd=folder)
    title, *lines = (folder / "odd-out.csv").read_text().splitlines()
    assert title == "id,note,site,east,mean,std,lower,upper"
    assert [line.split(",")[:4] for line in lines] == [
        ["007", "1.50", "hill", "0.5"],
        ["1e3", "", "lake", "1"],
    ]


def test_a_table_in_the_place_of_the_model_is_told(run, folder):
    said = run("predict", "test.csv", "model.safetensors", "-o", "p.csv", cwd=folder, fails=True)
    assert "test.csv is not a model file of distgp" in said.stderr
    assert "give a file that `save` or `distgp fit` wrote" in said.stderr


def test_score_and_another_aggregator(run, folder):
    figures = json.loads(run("score", "model.safetensors", "test.csv", "--json", cwd=folder).stdout)
    assert figures["rows"] == 150 and figures["r2"] > 0.98 and 0.8 < figures["coverage_90"] <= 1
    text = run("score", "model.safetensors", "test.csv", "--aggregation", "rbcm", cwd=folder).stdout
    assert "rmse" in text and "nlpd" in text


def test_csv_and_arrow_out_and_no_overwriting(run, folder):
    predict = ["predict", "model.safetensors"]
    run(*predict, "new.parquet", "-o", "p.csv", "--interval", "0.5", cwd=folder)
    half = pd.read_csv(folder / "p.csv")
    run(*predict, "new.parquet", "-o", "p.arrow", "--prefix", "gp_", cwd=folder)
    with pa.ipc.open_file(folder / "p.arrow") as reader:
        wide = reader.read_all().to_pandas()
    np.testing.assert_allclose(wide["gp_mean"], half["mean"])
    ratio = (wide["gp_upper"] - wide["gp_lower"]) / (half["upper"] - half["lower"])
    np.testing.assert_allclose(ratio, 1.6448536 / 0.6744898, rtol=1e-6)
    before = (folder / "p.csv").read_bytes()
    said = run(*predict, "test.csv", "-o", "p.csv", cwd=folder, fails=True)
    assert "p.csv exists already: choose another name, or give --force" in said.stderr
    assert (folder / "p.csv").read_bytes() == before
    run(*predict, "test.csv", "-o", "p.csv", "--force", cwd=folder)
    assert (folder / "p.csv").read_bytes() != before


def test_missing_values_dates_and_categories(run, folder):
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


FIT = ["fit", "train.csv", "--target", "level", "--drop", "id,when", "-o", "x.safetensors"]
BAD = [
    (["fit", "train.csv", "--target", "height", "-o", "x.safetensors"], "no column 'height'; the"),
    (["fit", "nowhere.csv", "--target", "level", "-o", "x.safetensors"], "there is no file 'nowhere.csv'"),
    (["fit", "empty.csv", "--target", "level", "-o", "x.safetensors"], "empty"),
    (["fit", "train.csv", "--target", "level", "-o", "no/x.safetensors"], "there is no folder 'no'"),
    ([*FIT, "--n-experts", "500"], "--n-experts 500 is more than the 400 rows"),
    ([*FIT, "--aggregation", "best"], "aggregation must be one of"),
    ([*FIT, "--partition-column", "county"], "no column 'county'; there are id, east"),
    ([*FIT, "--workers", "2"], "--address and --workers are for --engine ray"),
    ([*FIT, "--engine", "cloud"], "engine must be local or ray, got 'cloud'"),
    ([*FIT, "--bounds", "lengthscale=10:0.1"], "0 < LOW < HIGH, such as lengthscale=0.1:10, got length"),
    ([*FIT, "--priors", "noise=normal:0:1"], "--priors expects NAME=lognormal:MEDIAN:SPREAD or NAME=gamma"),
    ([*FIT, "--fixed", "nugget"], "nugget"),
    (["predict", "train.csv", "test.csv", "-o", "x.csv"], "not a model file of distgp"),
    (["predict", "model.safetensors", "narrow.csv", "-o", "x.csv"], "lacks the column(s) 'site'"),
    (
        ["predict", "model.safetensors", "strange.csv", "-o", "x.csv", "--unknown-categories=refuse"],
        "such as 'moon'",
    ),
    (["predict", "model.safetensors", "words.csv", "-o", "x.csv"], "words.csv as csv: In CSV column #0:"),
    (["predict", "model.safetensors", "test.csv", "-o", "x.xlsx"], "expected a suffix of .csv"),
    (["predict", "model.safetensors", "test.csv", "-o", "x.csv", "--interval", "90"], "0 and 1, got 90"),
    (["score", "model.safetensors", "new.parquet"], "lacks the target 'level' that predictions"),
    (["compare", "train.csv", "--target", "level", "--features", "east", "--test", "2"], "0 and 1, got 2"),
    (["compare", "train.csv", "--target", "level", "--time", "when"], "--time orders the rows for"),
    ([*FIT, "--validation", "groups"], "--validation groups needs --groups with the column"),
    ([*FIT, "--validation", "groups", "--groups", "county"], "no column 'county'; the table has 'id'"),
    ([*FIT, "--validation", "last", "--time", "site"], "expected numbers or dates such as 2024-12-31"),
    (["info", "train.csv"], "not a model file of distgp"),
    (["info", "nowhere.safetensors"], "there is no model file 'nowhere.safetensors'"),
    (["demo", "-o", "demo.doc"], "cannot draw 'demo.doc': expected a suffix of"),
    (["fit", "train.csv"], "--target"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), BAD, ids=[str(i) for i in range(len(BAD))])
def test_bad_input_gets_one_line_and_code_2(run, folder, arguments, message):
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


def test_a_process_of_its_own_ends_with_one_line_and_code_2(folder):
    done = subprocess.run(
        [COMMAND, *BAD[0][0]],
        capture_output=True,
        text=True,
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"},
    )
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("distgp: no column 'height'; the")
    assert len(done.stderr.splitlines()) == 1


def test_unknown_categories_are_new_ones(run, folder):
    (folder / "moon.csv").write_text("east,site\n1.0,moon\n1.0,hill\n")
    run("predict", "model.safetensors", "moon.csv", "-o", "moon.parquet", cwd=folder)
    out = pd.read_parquet(folder / "moon.parquet")
    assert out["std"][0] > out["std"][1]


def test_what_was_fitted_from_csv_is_predicted_from_csv(run, folder):
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
    assert json.loads(done.stdout)["features"] == ["flag", "zip", "text", "näme with space"]
    predict = ["predict", "odd.safetensors", "odd.csv", "-o", "odd.parquet"]
    run(*predict, "--missing", "drop", cwd=folder)
    assert len(pd.read_parquet(folder / "odd.parquet")) == 59
    names = distgp.load(folder / "odd.safetensors").model_.schema.names
    assert list(names)[:2] == ["flag", "zip=01"]


def test_a_frames_index_and_types_that_differ_between_files(run, frame, folder):
    parts = folder / "mixed"
    parts.mkdir()
    frame(50).drop(columns="when").sample(frac=1, random_state=0).to_parquet(parts / "a.parquet")
    other = frame(50, seed=1).drop(columns="when").astype({"id": float, "site": "category"})
    other[["site", "level", "east", "id"]].sample(frac=1, random_state=0).to_parquet(
        parts / "b.parquet"
    )
    done = run(
        "fit", "mixed", "--target", "level", "-o", "mixed.safetensors", "--n-iter", "3", "--json",
        cwd=folder,
    )  # fmt: skip
    assert json.loads(done.stdout)["features"][:2] == ["id", "east"]
    assert not any("index" in name for name in json.loads(done.stdout)["features"])
    run("predict", "mixed.safetensors", "mixed", "-o", "mixed.arrow", cwd=folder)
    with pa.ipc.open_file(folder / "mixed.arrow") as reader:
        assert reader.read_all().num_rows == 100


def test_folder_of_parquet_and_partition_by_column(run, frame, folder):
    parts = folder / "parts"
    parts.mkdir()
    for i, site in enumerate(["hill", "lake", "town"]):
        frame(100, seed=i).assign(site=site).to_parquet(parts / f"{site}.parquet")
    done = run(
        "fit", "parts", "--target", "level", "--features", "east,site", "--partition-column", "site",
        "-o", "parts.safetensors", "--n-iter", "3", "--json", cwd=folder,
    )  # fmt: skip
    assert json.loads(done.stdout)["n_experts"] == 3


def test_fixed_bounds_and_priors_reach_the_training(run, folder):
    fit = ["fit", "train.csv", "--target", "level", "--features", "east", "--n-iter", "20"]
    fit += ["--n-experts", "1"]
    run(
        *fit, "--fixed", "noise,variance", "--bounds", "lengthscale=0.5:0.6", "-o", "held.safetensors",
        cwd=folder,
    )  # fmt: skip
    held = distgp.load(folder / "held.safetensors")
    assert held.noise_ == pytest.approx(0.1) and float(held.kernel_.variance) == pytest.approx(1.0)
    assert 0.5 * (1 - 1e-9) <= float(held.kernel_.kernel.lengthscale) <= 0.6 * (1 + 1e-9)
    run(*fit, "--priors", "noise=lognormal:0.01:0.001", "-o", "prior.safetensors", cwd=folder)
    assert distgp.load(folder / "prior.safetensors").noise_ == pytest.approx(0.01, rel=0.01)


def test_aggregators_for_other_experts_are_left_out_of_a_comparison_in_one_line(run, folder):
    done = run(
        "compare", "train.csv", "--target", "level", "--features", "east", "-o", "few",
        "--expert", "exact", "--n-experts", "3", "--n-iter", "3", cwd=folder,
    )  # fmt: skip
    assert "left out, not for exact experts: pooled, nearest\n" in done.stdout
    table = pd.read_csv(folder / "few.csv")
    assert table["error"].isna().all() and not {"pooled", "nearest"} & set(table["name"])


BASELINES = {"training mean", "ridge regression", "gradient boosting"}


def test_compare(run, folder):
    done = run(
        "compare", "train.parquet", "--target", "level", "--drop", "id,when", "-o", "cmp",
        "--expert", "sparse", "--n-experts", "4", "--n-inducing", "40", "--n-iter", "10", cwd=folder,
    )  # fmt: skip
    table = pd.read_csv(folder / "cmp.csv").set_index("name")
    expected = {name for name, kind in distgp.AGGREGATORS.items() if "sparse" in kind.serves}
    assert expected | {"full exact GP"} | BASELINES == set(table.index)
    assert pd.isna(table.loc["pooled", "error"])
    assert table.loc["pooled", "rmse"] < table.loc["poe", "rmse"] * 1.5
    assert set(table.index[table["baseline"]]) == BASELINES
    assert table.loc[list(BASELINES), "w2"].isna().all()
    assert table.loc["pooled", "rmse"] < table.loc["training mean", "rmse"] / 5
    assert (folder / "cmp.png").read_bytes()[:4] == b"\x89PNG"
    assert "two-level" in done.stdout and "W2 to full" in done.stdout
    assert "ridge regression (baseline)" in done.stdout


def test_a_comparison_whose_picture_cannot_be_written_leaves_no_table(folder, tmp_path):
    """A limit on the size of files, which the table keeps and the picture does not."""
    limited = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (2**14, 2**14)); "
        "from distgp.cli import main; main()"
    )
    arguments = ["compare", f"{folder}/train.csv", "--target", "level", "--features", "east", "-q"]
    arguments += ["--expert", "exact", "--n-experts", "2", "--training", "none"]
    arguments += ["-o", f"{tmp_path}/few"]
    done = subprocess.run(
        [sys.executable, "-c", limited, *arguments], capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert [*tmp_path.iterdir()] == []


def test_compare_prints_one_object_for_programs(run, folder):
    done = run(
        "compare", "train.csv", "--target", "level", "--features", "east", "-o", "json",
        "--expert", "exact", "--n-experts", "2", "--training", "none", "--json", cwd=folder,
    )  # fmt: skip
    report = json.loads(done.stdout)
    assert report["csv"] == "json.csv" and done.stderr == ""
    assert report["left_out"] == ["pooled", "nearest"]
    named = {r["name"] for r in report["results"]}
    assert named == set(distgp.AGGREGATORS) - {"pooled", "nearest"} | {"full exact GP"} | BASELINES


def test_rows_are_held_out_from_the_end_or_in_groups(run, folder):
    compare = ["compare", "train.csv", "--target", "level", "--drop", "id", "--training", "none"]
    by = {
        "rows": ["--drop", "id,when", "--validation", "last"],
        "last": ["--validation", "last", "--time", "when"],
        "groups": ["--drop", "id,when", "--validation", "groups", "--groups", "site"],
        "random": ["--drop", "id,when"],
    }
    found = {}
    for name, options in by.items():
        run(*compare, *options, "-q", "-o", f"by-{name}", cwd=folder)
        table = pd.read_csv(folder / f"by-{name}.csv").set_index("name")
        found[name] = table.loc[["training mean", "ridge regression"], "rmse"].to_numpy()
    data = pd.read_csv(folder / "train.csv")
    late, early = data["level"][320:], data["level"][:320]
    assert found["last"][0] == pytest.approx(np.sqrt(np.square(late - early.mean()).mean()))
    np.testing.assert_allclose(found["rows"], found["last"])  # its rows are in the order of time
    assert found["random"][0] != pytest.approx(found["last"][0])
    assert found["groups"][0] > 8  # a site's level is unlike that of the others


def test_the_model_is_told_which_rows_to_hold_out(run, folder, monkeypatch):
    seen, original = {}, distgp.DistributedGPRegressor.fit_rows

    def fit_rows(self, rows):
        if rows.schema.table.target == "level" and not seen:
            given = {name: getattr(rows, name) for name in ("time", "groups")}
            given = {name: values for name, values in given.items() if values is not None}
            seen.update(given, validation=self.validation, columns=rows.X.shape[1])
        return original(self, rows)

    monkeypatch.setattr(distgp.DistributedGPRegressor, "fit_rows", fit_rows)
    start = [
        "fit",
        "train.csv",
        "--target",
        "level",
        "--n-iter",
        "2",
        "--force",
        "-o",
        "v.safetensors",
    ]
    run(*start, "--drop", "id", "--validation", "last", "--time", "when", cwd=folder)
    assert seen["validation"] == "last" and seen["columns"] == 4 and seen["time"].shape == (400,)
    assert (
        seen["time"].dtype.kind == "M" and (np.diff(seen["time"]) > np.timedelta64(0, "ns")).all()
    )
    seen.clear()
    run(*start, "--drop", "id,when", "--validation", "groups", "--groups", "site", cwd=folder)
    assert seen["validation"] == "groups" and set(seen["groups"]) == {"hill", "lake", "town"}
    assert seen["columns"] == 1 and "time" not in seen
    seen.clear()
    run(*start, "--features", "east,id", "--validation", "last", "--time", "id", cwd=folder)
    assert seen["columns"] == 2 and (seen["time"] == np.arange(400)).all()


def test_fit_tells_how_it_went_and_what_was_chosen(run, folder):
    start = [
        "fit",
        "train.csv",
        "--target",
        "level",
        "--drop",
        "id,when",
        "--force",
    ]
    start += ["--validation", "last", "-o", "told.safetensors"]
    done = run(*start, cwd=folder)
    assert done.stderr.count("learnt from 267 rows, measured on 133 held out from the end\n") == 1
    assert "→ " in done.stderr and "ridge regression" in done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines())
    assert {"held_out_rmse", "held_out_nlpd", "held_out_cover", "stopped"} <= set(lines)
    model = distgp.load(folder / "told.safetensors")
    assert float(lines["held_out_rmse"]) == pytest.approx(model.choice_.best.rmse, rel=1e-5)
    spread = pd.read_csv(folder / "train.csv")["level"].std(ddof=0)
    assert float(lines["noise_sd"]) == pytest.approx(
        np.median(np.sqrt(model.noise_)) * spread, rel=1e-4
    )
    assert "choice" not in lines
    done = run(*start, "--json", cwd=folder)
    report = json.loads(done.stdout)
    assert done.stderr == "" and report["held_out_nlpd"] == model.choice_.best.nlpd
    assert [t["name"] for t in report["choice"]] == [t.name for t in model.choice_.trials]
    assert [t["chosen"] for t in report["choice"]].count(True) == 1
    assert "held out from the end" in run("info", "told.safetensors", cwd=folder).stdout


def test_nothing_is_said_of_a_choice_that_was_none(run, folder):
    start = ["fit", "train.csv", "--target", "level", "--features", "east", "--training", "none"]
    report = json.loads(run(*start, "--json", "-o", "none.safetensors", cwd=folder).stdout)
    assert report["choice"] is None and "held_out_rmse" not in report and "stopped" not in report


def test_what_could_not_be_measured_is_null_for_programs(capsys):
    X = np.linspace(0, 1, 20)[:, None]
    model = distgp.DistributedGPRegressor(training=None).fit(X, X[:, 0])
    trials = (
        Trial("matern52", 1.25, 2.5, 0.9, 0.1, chosen=True),
        Trial("rbf", np.nan, np.nan, np.nan, 0.1, error="no"),
    )
    model.choice_ = Choice("random", 16, 4, trials)
    print_figures(_about_fit(model, as_json=True), as_json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["choice"][1]["rmse"] is None and found["choice"][1]["error"] == "no"


def test_fit_says_why_training_stopped(run, folder):
    start = ["fit", "train.csv", "--target", "level", "--features", "east", "--force", "--json"]
    start += ["-o", "s.safetensors"]
    report = json.loads(run(*start, "--n-iter", "2", cwd=folder).stdout)
    assert report["stopped"] == "reached n_iter" and report["noise_sd"] > 0


def test_info(run, folder):
    said = run("info", "model.safetensors", cwd=folder).stdout
    assert said.startswith("model        model.safetensors\nformat       2\n")
    assert "2 exact experts" in said and "site " in said and "a file holds" in said
    report = json.loads(run("info", "model.safetensors", "--json", cwd=folder).stdout)
    assert report["format"] == 2 and report["distgp"] == distgp.__version__
    assert report["bytes"] == (folder / "model.safetensors").stat().st_size
    (target,) = report["targets"]
    assert target["target"] == "level" and target["rows"] == 400
    assert list(target["relevance"]) == ["east", "site=hill", "site=lake", "site=town"]
    assert sum(target["relevance"].values()) == pytest.approx(1)
    assert 0.5 < target["noise"]["value"] < 2  # the data's noise has a deviation of 1


def test_demo(run, tmp_path, monkeypatch):
    monkeypatch.setattr(demonstration, "N_EXPERTS", 4)
    monkeypatch.setattr(demonstration, "N_TEST", 100)
    picture = tmp_path / "demo.png"
    done = run("demo", "-o", picture, "--rows", "300")
    assert picture.read_bytes()[:4] == b"\x89PNG" and f"picture: {picture}" in done.stdout
    assert all(name in done.stdout for name in (*distgp.AGGREGATORS, "full exact GP"))
    assert "fitting 300 rows with 4 sparse experts" in done.stderr
    gain, _, comparison = done.stdout.partition("\n\n")
    assert gain.startswith("distgp fitted 300 rows in ") and gain.endswith("gives no intervals.")
    assert comparison.startswith("The model is made of 4 experts") and "W2 to full" in comparison


def test_the_demonstration_measures_what_a_user_gains(monkeypatch):
    """Errors are those from the true surface, and intervals hold observations."""
    monkeypatch.setattr(demonstration, "N_TEST", 1_000)
    X, y = demonstration.make_data(400, seed=0)
    model = distgp.DistributedGPRegressor("exact", kernel="rbf", n_iter=30).fit(X, y)
    gain = demonstration.gain_of(model, X, y, seconds=1.5)
    assert (gain.rows, gain.places, gain.seconds) == (400, 1_000, 1.5) and gain.boosting_seconds > 0
    new, _ = demonstration.make_data(1_000, seed=1)
    off = model.predict(new) - demonstration.truth(new)
    assert (
        gain.error == pytest.approx(np.sqrt(np.mean(off**2))) and gain.error < gain.boosting_error
    )
    assert 0.86 < gain.inside < 0.94
    told = " ".join(str(gain).split())
    assert (
        f"{gain.error:.2g} away from the true surface" in told
        and f"{100 * gain.inside:.1f} %" in told
    )


def test_help_and_version_are_there(run):
    commands = run("--help").stdout
    assert all(name in commands for name in ("fit", "predict", "score", "compare", "info", "demo"))
    assert "--aggregation" in run("fit", "--help").stdout
    assert run("version").stdout == f"{distgp.__version__}\n"
    assert run("--version").stdout == run("version").stdout


def test_the_module_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "distgp", "--help"], capture_output=True, text=True, check=True
    )
    assert "compare" in done.stdout and "python -m distgp" in done.stdout


def test_weights_noise_transform_and_calibration_are_columns_and_options(run, folder):
    table = pd.read_csv(folder / "train.csv")[["east", "site", "level"]].dropna()
    table["level"] = np.exp(table["level"] / table["level"].std())
    table["copies"], table["var"] = np.arange(len(table)) % 3, 0.5
    table.to_csv(folder / "w.csv", index=False)
    fit = [
        "fit",
        "w.csv",
        "--target",
        "level",
        "--expert",
        "sparse",
        "--n-iter",
        "3",
        "-o",
        "w.safetensors",
    ]
    done = run(*fit, "--weight", "copies", "--noise-variance", "var", "--json", cwd=folder)
    found = json.loads(done.stdout)
    assert not any(name in ("copies", "var") for name in found["features"])
    assert found["rows"] == table["copies"].sum()
    gp = distgp.load(folder / "w.safetensors")
    assert gp.model_.targets[0].likelihood.row_noise is not None
    run(*fit, "--force", "--target-transform", "log", "--calibrate", "conformal", cwd=folder)
    gp = distgp.load(folder / "w.safetensors")
    run("predict", "w.safetensors", "w.csv", "-o", "p.parquet", "--interval", "0.8", cwd=folder)
    out = pd.read_parquet(folder / "p.parquet")
    lower, upper = gp.predict_interval(table, 0.8)
    np.testing.assert_allclose(out["lower"], lower)
    np.testing.assert_allclose(out["upper"], upper)
    assert (out["lower"] > 0).all()
    scores = json.loads(run("score", "w.safetensors", "w.csv", "--json", cwd=folder).stdout)
    np.testing.assert_allclose(scores["nlpd"], gp.nlpd(table, table["level"]))
    bad = run(*fit, "--force", "--target-transform", "root", cwd=folder, fails=True).stderr
    assert "--target-transform must be one of None, 'auto', 'log', 'yeo-johnson', got 'root'" in bad


def test_what_was_said_in_fitting_holds_in_python_and_on_the_command_line(run, folder):
    table = pd.read_csv(folder / "train.csv")[["east", "site", "level"]].dropna()
    holes = table.copy()
    holes.loc[holes.index[2], "east"] = None
    holes.to_csv(folder / "holes.csv", index=False)
    fit = ["fit", "holes.csv", "--target", "level", "--expert", "sparse", "--n-iter", "3"]
    run(*fit, "--missing", "drop", "-o", "policy.safetensors", cwd=folder)
    gp = distgp.load(folder / "policy.safetensors")
    assert gp.missing == "drop" and np.isnan(gp.predict(holes)[2])
    run("predict", "policy.safetensors", "holes.csv", "-o", "policy.parquet", cwd=folder)
    assert len(pd.read_parquet(folder / "policy.parquet")) == len(table) - 1
    gp = distgp.DistributedGPRegressor(expert="sparse", n_inducing=20, n_iter=3, missing="impute")
    gp.fit(holes[["east", "site"]], holes["level"]).save(folder / "py.safetensors")
    said = run("score", "py.safetensors", "holes.csv", cwd=folder, fails=True).stderr
    assert "fitted in Python, where targets have no names: give --target COLUMN" in said
    done = run("score", "py.safetensors", "holes.csv", "--target", "level", "--json", cwd=folder)
    assert json.loads(done.stdout)["rows"] == len(table)


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    """A table of numbers, as CSV and as an Arrow file of polars with a column of text."""
    import polars as pl

    folder = tmp_path_factory.mktemp("numbers")
    x = np.linspace(-2, 2, 60)
    table = pd.DataFrame({"a": x, "b": np.cos(3 * x), "y": np.sin(x) + 0.1 * np.cos(40 * x)})
    table.to_csv(folder / "n.csv", index=False)
    pl.from_pandas(table.assign(site=["hill", "lake"] * 30)).write_ipc(folder / "t.arrow")
    return folder


FIT = (
    "--target",
    "y",
    "--expert",
    "exact",
    "--n-iter",
    "3",
    "-q",
    "--force",
    "-o",
    "m.safetensors",
)


def test_sparse_grids_predict_and_score_tables(run, numbers):
    table = pd.read_csv(numbers / "n.csv")
    gp = distgp.SparseGridGP(level=2, n_iter=2).fit(table[["a", "b"]], table["y"])
    gp.save(numbers / "g.safetensors")
    run("predict", "g.safetensors", "n.csv", "-o", "g.parquet", cwd=numbers)
    out = pd.read_parquet(numbers / "g.parquet")
    mean, std = gp.predict(table[["a", "b"]], return_std=True)
    np.testing.assert_allclose(out["mean"], mean)
    np.testing.assert_allclose(out["upper"] - out["lower"], 2 * 1.6448536269514722 * std)
    done = run("score", "g.safetensors", "n.csv", "--target", "y", "--json", cwd=numbers)
    assert json.loads(done.stdout)["rows"] == 60
    asked = ("predict", "g.safetensors", "n.csv", "-o", "h.csv", "--aggregation", "poe")
    assert "no aggregators" in run(*asked, cwd=numbers, fails=True).stderr


def test_arrow_files_of_polars_with_text_are_read(run, numbers):
    run("fit", "t.arrow", *FIT, cwd=numbers)
    run("predict", "m.safetensors", "t.arrow", "-o", "p.arrow", cwd=numbers)
    assert set(distgp.load(numbers / "m.safetensors").feature_names_in_) >= {"site"}
    assert len(pd.read_feather(numbers / "p.arrow")) == 60


def test_infinite_intervals_are_told(run, numbers):
    run("fit", "n.csv", *FIT, "--calibrate", "conformal", cwd=numbers)
    asked = ("predict", "m.safetensors", "n.csv", "-o", "i.csv", "--interval", "0.99")
    said = run(*asked, cwd=numbers).stderr
    assert "60 of 60 intervals are infinite: calibration had too few rows" in said


def test_no_names_are_not_all_names(run, numbers):
    said = run("fit", "n.csv", *FIT, "--features", " , ", cwd=numbers, fails=True).stderr
    assert "--features names the input columns, got" in said
    gp = distgp.DistributedGPRegressor()
    pd.read_csv(numbers / "n.csv").to_parquet(numbers / "n.parquet")
    with pytest.raises(ValueError, match=r"drop must be a list of columns, such as \['ab'\], got"):
        gp.fit_parquet(numbers / "n.parquet", "y", drop="ab")


def test_control_characters_of_a_file_do_not_reach_the_terminal(run, numbers):
    table = pd.read_csv(numbers / "n.csv").rename(columns={"a": "a\x1b[2J\x07"})
    table.to_parquet(numbers / "control.parquet")
    run("fit", "control.parquet", *FIT, cwd=numbers)
    said = run("info", "m.safetensors", cwd=numbers).stdout
    assert "\x1b" not in said and "\x07" not in said and "a\\x1b[2J" in said


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no full device here")
def test_standard_output_that_is_closed_full_or_of_few_letters(run, numbers):
    run("fit", "n.csv", *FIT, cwd=numbers)
    asked = f"{COMMAND} predict m.safetensors n.csv --force -o out.csv"
    for end, code in ((">&-", 0), (">/dev/full", 2)):
        done = subprocess.run(
            f"{asked} {end}", shell=True, cwd=numbers, capture_output=True, text=True, check=False
        )
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr
        assert "Exception ignored" not in done.stderr and (numbers / "out.csv").exists()
    few = os.environ | {"PYTHONIOENCODING": "cp1252"}
    command = [COMMAND, "info", "m.safetensors"]
    done = subprocess.run(command, cwd=numbers, capture_output=True, env=few, check=False)
    assert done.returncode == 0, done.stderr
