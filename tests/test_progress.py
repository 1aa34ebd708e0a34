"""Progress without a terminal: plain lines, few of them, and always one at the end."""

import pytest

from distgp import DistributedGPRegressor
from distgp._util import progress
from distgp._util.progress import Progress


def test_where_there_is_no_terminal_the_end_is_told_in_one_line(capsys):
    with Progress("training", total=3) as counter:
        for i in range(3):
            counter.advance(text=f"objective {i}")
    assert capsys.readouterr().err == "training: 3 of 3: objective 2\n"


def test_work_that_ends_early_is_told_too(capsys):
    with Progress("training", total=100) as counter:
        counter.advance(text="objective 1.5")
    with Progress("rows") as counter:
        counter.advance(1_500)
    assert capsys.readouterr().err == "training: 1 of 100: objective 1.5\nrows: 1,500\n"


def test_there_is_a_line_every_few_seconds(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with Progress("rows") as counter:
        for _ in range(2):
            counter.advance()
    assert capsys.readouterr().err == "rows: 1\nrows: 2\n"


def test_nothing_is_said_of_nothing_of_a_failure_or_where_it_is_not_asked_for(capsys):
    with Progress("rows"):
        pass
    with Progress("rows", show=False) as counter:
        counter.advance()
    with pytest.raises(ValueError, match="invalid literal"), Progress("rows") as counter:
        [counter.advance(int(text)) for text in ("1", "three")]
    assert capsys.readouterr().err == ""


def test_a_verbose_fit_writes_plain_lines(capsys):
    X = [[0.0], [0.3], [0.7], [1.0], [1.5], [2.0]]
    DistributedGPRegressor(verbose=True).fit(X, [0.0, 0.3, 0.6, 0.8, 1.0, 0.9])
    said = capsys.readouterr().err
    assert "fact: " in said and "objective" in said and "\x1b" not in said
