"""Tables of README and docs are those of the benchmarks, with fair peers; tests/docs runs the code."""

import csv
from pathlib import Path

import choice
import contention
import defaults
import exact
import few_rows
import first_minute
import gpu
import growth
import home
import intervals
import jobs
import limits
import nearest
import numpy as np
import precision
import pytest
import uci
from matplotlib import pyplot as plt
from others import boosting, boosting_with_spreads, figures, with_one_spread

from experiments.datasets import TASKS

README = Path(__file__).parent.parent / "README.md"
RESULTS = README.parent / "benchmarks" / "results"


def rows_of(name):
    with (RESULTS / name).open(newline="") as file:
        return list(csv.DictReader(file))


def test_figures_in_words_are_those_of_the_results():
    """How plain intervals cover, and on how many standard tables boosting describes noise better."""
    text = README.read_text()
    ours = [r for r in rows_of("jobs-cpu.csv") if r["task"] in TASKS and r["model"] == "distgp"]
    cover = [float(row["cover50"]) for row in ours]
    assert len(cover) == 4 and f"covered {min(cover):.2f} to {max(cover):.2f} of" in text
    first = uci.on_first_split(rows_of("uci-cuda.csv"))
    nlpd = {(r["table"], r["model"]): float(r["nlpd"]) for r in first}
    tables = {table for table, _ in nlpd}
    lost = sum(nlpd[table, "boosting 2"] < nlpd[table, "default"] for table in tables)
    words = {3: "three", 4: "four", 5: "five"}
    assert len(tables) == 10 and f"on {words[lost]} of the ten tables" in text


def test_the_picture_shows_every_table_with_many_rows():
    """Of the left one, nothing but that it can be drawn."""
    figure, (left, right) = plt.subplots(1, 2)
    home.prediction(left)
    home.errors(right, rows_of("uci-cuda.csv"))
    shown = [label.get_text().split("\n")[0] for label in right.get_xticklabels()]
    many = {row["table"] for row in rows_of("uci-cuda.csv") if int(row["n"]) > 10_000}
    assert set(shown) == many and len(shown) == len(many) == len(right.containers[0])
    labels = [label.get_text().split("\n")[1:] for label in right.get_xticklabels()]
    assert all(rows.endswith(" rows") and float(s.removesuffix(" s")) > 1 for rows, s in labels)
    heights = {patch.get_height() for bars in right.containers for patch in bars}
    first = uci.on_first_split(rows_of("uci-cuda.csv"))
    assert {float(r["rmse"]) for r in first if r["table"] == "pol"} - heights == set()
    assert not {text.get_text() for text in right.texts} - {""}, "all bars can be seen"
    small = [row | {"rmse": "0.0001"} if row["table"] == "bike" else row for row in first]
    home.errors(left, small)
    assert {text.get_text() for text in left.texts} - {""} == {"0.0001"}
    seconds = [float(r["fit"]) for r in first if r["model"] == "boosting" and r["table"] in many]
    assert "takes about one second" in README.read_text()
    assert {f"{one:.0f}" for one in seconds} == {"1"}
    plt.close(figure)


@pytest.mark.parametrize("name", ["jobs-cpu.csv", "jobs-cuda.csv", "defaults.csv", "intervals.csv"])
def test_no_figure_is_of_a_split_that_leaks(name):
    """The traffic table has 40,575 hours, of which four fifths are learnt from in a random split."""
    for row in rows_of(name):
        if row["task"] == "traffic" and row.get("split", "random") == "random":
            assert int(row["n"]) == 32_460


@pytest.mark.parametrize("benchmark", [exact, nearest])
def test_a_benchmark_writes_its_tables_and_leaves_the_text(benchmark, tmp_path):
    text = benchmark.PAGE.read_text(encoding="utf-8").replace("# Experts", "# Another title", 1)
    page = tmp_path / "experts.md"
    page.write_text(text, encoding="utf-8")
    benchmark.page(RESULTS, page)
    assert page.read_text(encoding="utf-8") == text and "# Another title" in text


@pytest.mark.parametrize(
    "script",
    [
        choice,
        contention,
        defaults,
        few_rows,
        first_minute,
        gpu,
        growth,
        intervals,
        jobs,
        limits,
        precision,
        uci,
    ],
    ids=lambda script: script.__name__,
)
def test_pages_show_the_results(script, tmp_path, monkeypatch):
    """Writing a benchmark's tables into its page changes nothing: nobody typed a figure there."""
    text = script.PAGE.read_text(encoding="utf-8")
    page = tmp_path / script.PAGE.name
    page.write_text(text, encoding="utf-8")
    monkeypatch.setattr(script, "PAGE", page)
    script.page()
    assert page.read_text(encoding="utf-8") == text


def test_the_lowest_figure_of_each_split_is_bold_and_losses_are_told():
    """Of two splits the default wins one; on the other its own best way has 0.5 less."""
    known = {"task": "a", "split": "random", "chosen": "", "distgp": "2"}
    peers = [known | {"model": name, "nlpd": "2.0"} for name in defaults.PEERS]
    ours = [known | {"model": "distgp, default", "nlpd": "1.0", "chosen": "exact GP"}]
    lost = [known | {"model": "distgp, sparse", "nlpd": "2.5", "distgp": "1"}]
    rows = [*ours, *peers, *(row | {"task": "b"} for row in [*ours, *peers, *lost])]
    rows[1 + len(peers)]["nlpd"] = "3.0"
    _, _, first, second = defaults.matrix(rows, "nlpd", True)
    assert first == "| a, random | **1** | 2 | 2 | 2 | 2 | 2 |"
    assert second == "| b, random | 3 | **2** | **2** | **2** | **2** | **2** |"
    assert "the lowest NLPD on 1 of these 2 splits" in defaults.wins(rows)
    assert defaults.chosen(rows)[2] == "| exact GP | a, random; b, random |"
    said = (
        "Other ways were fitted on 1 splits (all but a, random), with distgp 1. Compared with them, "
        "the default of distgp 2 lost most on b, random: its NLPD is 0.500 above that of the best way."
    )
    assert defaults.chosen(rows)[-1] == said


def test_what_was_measured_earlier_is_named():
    known = {"task": "a", "processor": "one"}
    ours = known | {"model": "distgp, default", "distgp": "3"}
    earlier = [known | {"model": name, "distgp": "2"} for name in defaults.PEERS]
    said = "Measured with distgp 3, one; ridge, boosting, boosting 2, forest, mean with 2, one."
    assert defaults.told([ours, *earlier]) == said
    now = [row | {"distgp": "3"} for row in earlier]
    assert defaults.told([ours, *now]) == "Measured with distgp 3, one."


def test_boosting_has_a_spread_for_every_row():
    """Noise that grows with x: one spread for all rows is too wide here and too narrow there."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(4_000, 1))
    y = (0.1 + X[:, 0]) * rng.normal(size=4_000)
    _, std = boosting_with_spreads(X[:3_000], y[:3_000], X[3_000:], "random")
    assert np.corrcoef(std, 0.1 + X[3_000:, 0])[0, 1] > 0.8
    mean, one = with_one_spread(boosting(), X[:3_000], y[:3_000], X[3_000:], "random")
    assert figures(y[3_000:], mean, std)["nlpd"] < figures(y[3_000:], mean, one)["nlpd"]


@pytest.mark.parametrize(
    "spread", [lambda *a: with_one_spread(boosting(), *a), boosting_with_spreads]
)
def test_the_spread_of_the_last_rows_is_that_of_the_last_rows(spread):
    """The last third is ten times as noisy as the rows before it."""
    rng = np.random.default_rng(0)
    X, noise = rng.uniform(size=(3_000, 1)), np.repeat([0.1, 1.0], [2_000, 1_000])
    y = noise * rng.normal(size=3_000)
    _, last = spread(X, y, X[:500], "last")
    _, drawn = spread(X, y, X[:500], "random")
    assert 0.9 < np.median(last) < 1.3 and np.median(drawn) < 0.8
