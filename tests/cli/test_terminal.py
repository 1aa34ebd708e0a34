"""Errors as one line and an exit code."""

import json
import warnings

import pytest
import typer

from distgp.cli.terminal import in_options, plain_errors, print_figures
from distgp.diagnostics.novelty import NoveltyWarning
from distgp.engines import EngineError

NO_MEMORY = "out of memory: use fewer rows or inducing inputs, or more experts"


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ValueError("two\nlines"), 2, "distgp: two lines\n"),
        (MemoryError("no room"), 2, f"distgp: {NO_MEMORY} (no room)\n"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"), 2,
         f"distgp: {NO_MEMORY} ([enforce fail] DefaultCPUAllocator: can't allocate memory)\n"),
        (RuntimeError("k"), 1, "distgp: unexpected RuntimeError: k (this is a bug in distgp)\n"),
        (EngineError("lost"), 2, "distgp: lost\n"),
        (KeyError("k"), 1, "distgp: unexpected KeyError: 'k' (this is a bug in distgp)\n"),
        (KeyboardInterrupt(), 130, "distgp: interrupted\n"),
    ],
)  # fmt: skip
def test_every_error_is_one_line_and_an_exit_code(capsys, error, code, line):
    with pytest.raises(typer.Exit) as left, plain_errors():
        raise error
    assert left.value.exit_code == code and capsys.readouterr().err == line


def test_figures_that_are_not_there_are_left_out(capsys):
    print_figures(
        {"rows": 3, "dropped": 0, "r2": None, "rmse": 0.123456789, "f": ["a", "b"]}, False
    )
    assert capsys.readouterr().out == "rows         3\nrmse         0.123457\nf            a, b\n"


def test_long_figures_are_cut_for_people_alone(capsys):
    features = [f"column{i}" for i in range(99)]
    print_figures({"features": features}, False)
    shown = capsys.readouterr().out
    assert (
        len(shown) < 180 and shown.startswith("features     column0, ") and shown.endswith(" …\n")
    )
    print_figures({"features": features}, True)
    assert json.loads(capsys.readouterr().out) == {"features": features}


def test_rows_unlike_the_training_rows_are_told_of_once(capsys):
    with plain_errors():
        warnings.simplefilter("always")
        for text in ("12 % of the rows", "15 % of the rows"):
            warnings.warn(text, NoveltyWarning, stacklevel=1)
            warnings.warn(f"else {text}", UserWarning, stacklevel=1)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        f"warning: {t}"
        for t in ("12 % of the rows", "else 12 % of the rows", "else 15 % of the rows")
    ]


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "column 'my day' holds dates: leave it out, or say dates='expand'",
            "column 'my day' holds dates: leave it out (--drop 'my day'), or say --dates expand",
        ),
        ("say that they are labels by categorical=['zip']", "--categorical zip"),
        (
            "with missing='drop', or by missing='impute'",
            "with --missing drop, or by --missing impute",
        ),
        ("take them as new ones with unknown='new'", "as new ones with --unknown-categories new"),
        ("a neighbour, leave it out", "a neighbour, leave it out"),
        ("give validation='groups' and groups=", "give --validation groups and --groups"),
        ("give calibrate='conformal'; or n_iter=200", "--calibrate conformal; or --n-iter 200"),
        (
            'Take expert="nearest", or a larger time_limit',
            "--expert nearest, or a larger --time-limit",
        ),
        ("weights (sample_weight) per group", "weights (--weight) per group"),
        (
            "column 'n_iter' is text with 999 different values: leave it out",
            "column 'n_iter' is text with 999 different values: leave it out (--drop n_iter)",
        ),
        ('column "it\'s" is empty: leave it out', "leave it out (--drop 'it'\"'\"'s')"),
        ("column 'it's' is empty: leave it out", "leave it out (--drop 'it'\"'\"'s')"),
        (
            "there is no model file 'data/sample_weight.safetensors'",
            "there is no model file 'data/sample_weight.safetensors'",
        ),
        ("data/n_iter.csv exists already", "data/n_iter.csv exists already"),
        ("n_iter.csv and n_iter/a.csv are there", "n_iter.csv and n_iter/a.csv are there"),
        ("groups=1/a.csv and b/groups='b'", "groups=1/a.csv and b/groups='b'"),
        (
            "give noise_variance=1 / number in place of sample_weight; if not",
            "give --noise-variance with a column of 1 / number in place of --weight; if not",
        ),
        ("labels by categorical=['a b', 'c']", "labels by --categorical 'a b,c'"),
        (
            "the rows' noise: give n_iter, not the 'n_iter' of rows'",
            "--n-iter, not the 'n_iter' of rows'",
        ),
        (
            "give groups=…, a column; groups= is for others",
            "--groups …, a column; --groups is for others",
        ),
        ("by warm_start=True, or n_iter. More by time_limit", "or --n-iter. More by --time-limit"),
    ],
)
def test_remedies_are_said_in_options(said, told):
    assert in_options(said).endswith(told)
