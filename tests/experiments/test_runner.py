"""The runner, with a study of its own."""

import json
import os
import time
from typing import ClassVar

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

import experiments
from experiments import (
    STUDIES,
    Options,
    Study,
    StudyError,
    failed_runs,
    rewrite_page,
    run_study,
    uci,
    write_index,
)
from experiments.__main__ import app
from experiments.report import average, select
from experiments.runner import CELL, read_rows
from experiments.study import grid


class Squares(Study):
    name: ClassVar[str] = "squares"
    title: ClassVar[str] = "Squares"
    runs: ClassVar[list] = []

    def cells(self, options):
        return grid(x=range(2 if options.quick else 4), seed=range(options.seeds))

    def run(self, cell, options):
        self.runs.append(cell)
        if cell["x"] == 1:
            raise ArithmeticError("one cannot be squared")
        return [{"method": name, "y": cell["x"] ** 2 + cell["seed"]} for name in ("a", "b")]

    def figures(self, rows):
        figure, ax = plt.subplots()
        ax.plot([row["x"] for row in select(rows, method="a")])
        return {"line": figure}

    def page(self, rows):
        return f"mean {average(select(rows, method='a', x=2), 'y'):g}"


@pytest.fixture(autouse=True)
def forget():
    Squares.runs.clear()


def test_table_pictures_and_page(tmp_path):
    page = run_study(Squares(), tmp_path, Options(seeds=2))
    text = page.read_text()
    assert text.startswith("# Squares\n\nmean 4.5\n") and "![line](squares-line.png)" in text
    assert "python -m experiments squares" in text and "torch" in text
    for suffix in ("png", "pdf"):
        assert (tmp_path / f"squares-line.{suffix}").stat().st_size > 1000
    rows = read_rows(tmp_path / "squares.csv")
    failed = [row for row in rows if row["status"] == "failed"]
    assert len(rows) == 3 * 2 * 2 + 2 and len(failed) == 2
    assert failed[0]["error"].startswith("ArithmeticError: one cannot be squared (test_runner.py:")
    assert {"seed", "distgp", "torch", "device"} <= rows[0].keys()
    assert json.loads(rows[0][CELL]) == {"x": 0, "seed": 0}


def test_it_goes_on_where_it_was_interrupted(tmp_path):
    class Stopped(Squares):
        def run(self, cell, options):
            if len(self.runs) == 5:
                raise KeyboardInterrupt
            return super().run(cell, options)

    with pytest.raises(KeyboardInterrupt):
        run_study(Stopped(), tmp_path, Options(seeds=2))
    assert len({row[CELL] for row in read_rows(tmp_path / "squares.csv")}) == 5
    assert not (tmp_path / "squares.md").exists()
    run_study(Squares(), tmp_path, Options(seeds=2))
    assert len({json.dumps(cell) for cell in Squares.runs}) == 8
    assert len(Squares.runs) == 10  # the two that failed were tried again
    page = (tmp_path / "squares.md").read_text()
    (tmp_path / "squares.md").unlink()
    again = rewrite_page(Squares(), tmp_path).read_text()
    assert "*6 of the 40 runs of the whole study are here.*" in again and len(Squares.runs) == 10
    assert again.splitlines()[4:] == page.splitlines()[2:]
    with pytest.raises(FileNotFoundError, match="run the study first"):
        rewrite_page(Squares(), tmp_path / "elsewhere")
    before = (tmp_path / "squares.csv").read_bytes()
    run_study(Squares(), tmp_path, Options(seeds=2))  # nothing is left to do but those
    assert len(Squares.runs) == 12 and (tmp_path / "squares.csv").read_bytes() == before


@pytest.mark.parametrize(
    "damage",
    [
        lambda whole: whole[: len(whole) - 20],  # in the middle of its last row
        lambda whole: whole.replace(b"ok", b"oh", 1),
        lambda whole: b"\xff\xfe" + whole,
        lambda whole: b"a,b\n1,2\n",
        lambda whole: b"",
    ],
)
def test_a_damaged_table_is_refused(tmp_path, damage):
    run_study(Squares(), tmp_path, Options(seeds=1))
    path = tmp_path / "squares.csv"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ValueError, match=r"squares\.csv .*remove it, or choose another"):
        run_study(Squares(), tmp_path, Options(seeds=1))


class Hopeless(Squares):
    name: ClassVar[str] = "hopeless"

    def run(self, cell, options):
        raise ArithmeticError("never")


def test_a_study_that_fails_does_not_keep_the_others_from_running(tmp_path, monkeypatch):
    with pytest.raises(StudyError, match=r"every run of hopeless failed; the first: .*never"):
        run_study(Hopeless(), tmp_path / "alone", Options(quick=True, seeds=1))
    monkeypatch.setattr(experiments, "STUDIES", {"hopeless": Hopeless, "squares": Squares})
    done = CliRunner().invoke(app, ["all", "--quick", "-o", str(tmp_path)])
    assert done.exit_code == 1 and (tmp_path / "squares.md").exists()
    assert not (tmp_path / "hopeless.md").exists()


def test_data_are_looked_for_before_any_work(tmp_path, monkeypatch):
    class Unready(Squares):
        def check(self, options):
            raise OSError("no data")

    with pytest.raises(OSError, match="no data"):
        run_study(Unready(), tmp_path, Options())
    assert not Squares.runs
    looked_for = []
    sources = {name: lambda folder, verify, name=name: looked_for.append(name) for name in "ab"}
    monkeypatch.setattr(uci, "TASKS", sources)
    uci.UCI().check(Options())
    assert looked_for == ["a", "b"]


def test_a_quick_page_says_so(tmp_path):
    assert "*A quick run" in run_study(Squares(), tmp_path, Options(quick=True)).read_text()
    for name in ("squares.csv", "squares.md"):
        (tmp_path / name).unlink()
    assert "*A quick run" not in run_study(Squares(), tmp_path, Options()).read_text()


def test_results_of_another_kind_are_not_mixed(tmp_path):
    run_study(Squares(), tmp_path, Options(seeds=2))
    with pytest.raises(ValueError, match="do not belong to this one"):
        run_study(Squares(), tmp_path, Options(seeds=2, quick=True))
    run_study(Squares(), tmp_path, Options(seeds=3))  # more of the same is fine
    assert len({json.dumps(cell) for cell in Squares.runs}) == 12


def test_processes_share_the_work(tmp_path):
    options = Options(quick=True, seeds=2)
    posterior = STUDIES["posterior"]()
    run_study(posterior, tmp_path / "two", options, jobs=2, show=False)
    run_study(posterior, tmp_path / "one", options, show=False)
    two, one = (read_rows(tmp_path / name / "posterior.csv") for name in ("two", "one"))
    assert [row["cell"] for row in two] == [row["cell"] for row in one]
    np.testing.assert_allclose(
        [row["w2"] for row in two if row["w2"]],
        [row["w2"] for row in one if row["w2"]],
        rtol=1e-6,
        atol=1e-9,
    )


class Clocked(Squares):
    name: ClassVar[str] = "clocked"

    def cells(self, options):
        return [*grid(x=[2], seed=range(3)), *grid(x=[2], seed=range(2), alone=[True])]

    def run(self, cell, options):
        begin = time.time()
        time.sleep(0.1)
        about = {"method": "a", "begin": begin, "end": time.time(), "pid": os.getpid()}
        return [about | {"y": cell["x"]}]


def test_what_measures_time_runs_alone(tmp_path):
    run_study(Clocked(), tmp_path, Options(), jobs=2, show=False)
    rows = read_rows(tmp_path / "clocked.csv")
    timed = [row for row in rows if row["alone"]]
    assert len(timed) == 2 and len(rows) == 5
    for row in timed:
        others = [other for other in rows if other is not row]
        assert all(o["end"] <= row["begin"] or o["begin"] >= row["end"] for o in others)
    assert os.getpid() not in {row["pid"] for row in rows if not row["alone"]}


def test_an_unknown_device_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="not available here"):
        run_study(Squares(), tmp_path, Options(device="cuda:99"))
    assert not Squares.runs


def test_every_study_has_a_page_and_is_in_the_index(tmp_path):
    run_study(Squares(), tmp_path, Options(seeds=1))
    page = write_index(tmp_path, [Squares(), *(kind() for kind in STUDIES.values())])
    assert "- [Squares](squares.md)" in page.read_text() and "uci.md" not in page.read_text()
    assert list(STUDIES) == [
        "opticom", "training", "posterior", "synthetic-exact", "synthetic-sparse", "uci",
        "complexity", "consistency",
    ]  # fmt: skip


def test_failed_runs_are_tried_again(tmp_path):
    run_study(Squares(), tmp_path, Options(seeds=1))
    assert failed_runs(Squares(), tmp_path) == 1

    class Mended(Squares):
        def run(self, cell, options):
            return super().run(cell | {"x": 5}, options)

    run_study(Mended(), tmp_path, Options(seeds=1))
    assert failed_runs(Squares(), tmp_path) == 0 and len(Squares.runs) == 5

    class Broken(Squares):
        def run(self, cell, options):
            raise RuntimeError("out of memory")

    with pytest.raises(
        StudyError, match="every run of squares failed; the first: RuntimeError: out of memory"
    ):
        run_study(Broken(), tmp_path / "new", Options(seeds=1))


def test_a_foreign_table_is_refused(tmp_path):
    (tmp_path / "squares.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="no table of a study"):
        run_study(Squares(), tmp_path, Options(seeds=1))
