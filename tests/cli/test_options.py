"""What the text of an option means."""

from collections import Counter

import pytest

import distgp
from distgp.cli.options import (
    TABLE,
    Dates,
    Validation,
    column_options,
    held_out_by,
    number_or_word,
    parse_bounds,
    parse_fixed,
    parse_priors,
    split_names,
)
from distgp.training import Gamma, LogNormal


def test_names_are_separated_by_commas():
    assert split_names(" a,b ,, c d ") == ["a", "b", "c d"]
    assert split_names(None) == []


def test_no_features_means_all_columns():
    options = column_options(None, "id", None, Dates.expand)
    assert options == {"features": None, "drop": ["id"], "categorical": [], "dates": "expand"}


def test_numbers_and_words():
    assert number_or_word("16") == 16 and number_or_word("auto") == "auto"


def test_options_by_name_are_repeated_or_separated_by_commas():
    assert parse_fixed(["noise", "variance,noise"]) == ["noise", "variance"]
    bounds = {"lengthscale": (0.1, 10.0), "noise": (1e-6, 1.0)}
    assert parse_bounds(["lengthscale=0.1:10", "noise=1e-6:1"]) == bounds
    assert parse_bounds(["lengthscale = 0.1 : 10 , noise=1e-6:1"]) == bounds
    assert parse_priors(["noise=lognormal:0.1:1", "kernel.lengthscale=Gamma:2:1"]) == {
        "noise": LogNormal(0.1, 1.0),
        "kernel.lengthscale": Gamma(2.0, 1.0),
    }


def test_options_that_are_not_given_are_empty():
    assert parse_fixed(None) == [] and parse_bounds(None) == {} and parse_priors([]) == {}


@pytest.mark.parametrize(
    "text", ["lengthscale", "=1:2", "a=1", "a=1:2:3", "a=2:1", "a=0:1", "a=x:1", "a=1:inf", "a=nan:1"]
)  # fmt: skip
def test_bounds_of_another_form_are_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"such as lengthscale=0\.1:10, got ") as said:
        parse_bounds([text])
    assert text in str(said.value) and "\n" not in str(said.value)


@pytest.mark.parametrize(
    "text", ["noise", "a=", "a=lognormal", "a=lognormal:1", "a=gamma:1:2:3", "a=gamma:0:1", "a=normal:0:1"]
)  # fmt: skip
def test_priors_of_another_form_are_refused_with_an_example(text):
    with pytest.raises(ValueError, match=r"such as noise=lognormal:0\.1:1, got ") as said:
        parse_priors([text])
    assert text in str(said.value) and "\n" not in str(said.value)


def test_a_name_given_twice_is_refused():
    with pytest.raises(ValueError, match="once for each name, got noise twice"):
        parse_bounds(["noise=0.1:1", "noise=0.2:1"])


def test_columns_that_hold_rows_out_are_no_inputs_unless_listed():
    columns = column_options(None, "id", None, Dates.refuse)
    named, changed = held_out_by(Validation.last, "when", None, columns)
    assert named == {"time": "when"} and changed["drop"] == ["id", "when"]
    assert columns["drop"] == ["id"]
    columns = column_options("site,east", None, None, Dates.refuse)
    named, changed = held_out_by(Validation.groups, None, "site", columns)
    assert named == {"groups": "site"} and changed == columns
    assert held_out_by(Validation.random, None, None, columns) == ({}, columns)
    assert held_out_by(Validation.last, None, None, columns) == ({}, columns)


@pytest.mark.parametrize(
    ("kind", "time", "groups", "message"),
    [
        ("random", "when", None, "--time orders the rows for --validation last"),
        ("groups", None, None, "needs --groups with the column"),
        ("last", None, "site", "--groups is for --validation groups"),
    ],
)
def test_columns_that_would_not_be_used_are_refused(kind, time, groups, message):
    columns = column_options(None, None, None, Dates.refuse)
    with pytest.raises(ValueError, match=message):
        held_out_by(Validation(kind), time, groups, columns)


def test_a_command_has_each_option_once():
    pairs = Counter((name, row.name) for row in TABLE for name in row.commands.split())
    assert set(pairs.values()) == {1}


def test_a_regressor_of_the_default_options_is_the_default_regressor(run, folder):
    fit = ["fit", "train.csv", "--target", "level", "--drop", "id,when", "--json"]
    run(*fit, "-o", "default.safetensors", cwd=folder)
    found = distgp.load(folder / "default.safetensors").get_params(deep=False)
    alike = {"bounds": {}, "priors": {}, "verbose": False}  # None, and not that of who fitted it
    expected = distgp.DistributedGPRegressor(**alike).get_params(deep=False)
    assert {name: list(v) if v == () else v for name, v in expected.items()} == {
        name: list(v) if v == () else v for name, v in found.items()
    }


def test_the_help_of_a_time_limit_says_where_it_has_no_effect():
    (option,) = (option for option in TABLE if option.name == "time_limit")
    assert "no effect up to 1,500 rows" in option.help
