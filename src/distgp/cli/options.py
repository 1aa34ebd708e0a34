"""The values that the texts of options stand for."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, TypeAlias

import distgp
from distgp.data.column import CHOICES
from distgp.engines import Engine
from distgp.plan import VALIDATIONS
from distgp.plan import open_engine as opened
from distgp.training import Gamma, LogNormal, Prior

Dates = StrEnum("Dates", CHOICES["dates"])
Missing = StrEnum("Missing", CHOICES["missing"])
Unknown = StrEnum("Unknown", CHOICES["unknown"])
Validation = StrEnum("Validation", VALIDATIONS)

Given: TypeAlias = SimpleNamespace
"""The values of a command's options, by name."""
PARAMETERS = inspect.signature(distgp.DistributedGPRegressor).parameters


def regressor(given: Given) -> distgp.DistributedGPRegressor:
    """Return a regressor with the options that are named as its parameters are."""
    own = {name: value for name, value in vars(given).items() if name in PARAMETERS}
    own |= {"categorical": split_names(given.categorical), "random_state": given.seed}
    return distgp.DistributedGPRegressor(**own, verbose=shows_progress(given))


def shows_progress(given: Given) -> bool:
    """Return whether progress is shown: not to programs, nor to those who asked for quiet."""
    return not (given.quiet or given.json)


def open_engine(given: Given) -> Engine:
    """Return the engine that was asked for, started where it is a cluster's."""
    if given.engine == "local":
        if given.address is not None or given.workers is not None:
            raise ValueError("--address and --workers are for --engine ray")
        return opened("local", given.device)
    if given.engine != "ray":
        raise ValueError(f"engine must be local or ray, got {given.engine!r}")
    try:
        from distgp.engines.ray import RayEngine
    except ImportError as error:
        raise ValueError(str(error)) from error
    return RayEngine(address=given.address, workers=given.workers)


def columns_given(given: Given) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the columns of what `fit` takes for each row, by parameter, and the options of the inputs.

    Columns of weights and noise variances, which `compare` does not take, are never inputs.
    """
    columns = column_options(given.features, given.drop, given.categorical, given.dates)
    by, columns = held_out_by(given.validation, given.time, given.groups, columns)
    options = {"sample_weight": "weight", "noise_variance": "noise_variance"}
    named = {kind: vars(given).get(option) for kind, option in options.items()}
    return _without_inputs(named, by, columns)


def column_options(
    features: str | None, drop: str | None, categorical: str | None, dates: str
) -> dict[str, Any]:
    """Return keyword arguments for the functions that learn the columns of a table."""
    return {
        "features": split_names(features) or None,
        "drop": split_names(drop),
        "categorical": split_names(categorical),
        "dates": str(dates),
    }


def held_out_by(
    validation: str, time: str | None, groups: str | None, columns: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the columns that decide which rows are held out, and the options of the inputs.

    They are no inputs, unless they are listed as such. Columns that would not be used are refused.
    """
    if time is not None and validation != "last":
        raise ValueError("--time orders the rows for --validation last: give both, or neither")
    if groups is not None and validation != "groups":
        raise ValueError("--groups is for --validation groups: give both, or neither")
    if groups is None and validation == "groups":
        raise ValueError("--validation groups needs --groups with the column of the groups")
    by, others = _without_inputs({"time": time, "groups": groups}, {}, columns)
    return by, others if columns["features"] is None else columns


def _without_inputs(
    named: dict[str, str | None], by: dict[str, str], columns: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Add the columns that have a name to `by`, and take them out of the inputs."""
    found = {kind: name for kind, name in named.items() if name is not None}
    return by | found, columns | {"drop": [*columns["drop"], *found.values()]}


def split_names(text: str | None) -> list[str]:
    """Return the names in a text that separates them by commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def number_or_word(text: str) -> int | str:
    """Return the integer that a text spells, or the text itself where it spells none."""
    try:
        return int(text)
    except ValueError:
        return text


def word_or_none(text: str) -> str | None:
    """Return None for the word none, and any other word as it is."""
    return None if text == "none" else text


def parse_fixed(texts: Sequence[str] | None) -> list[str]:
    """Return the names given by `--fixed`, once each."""
    return list(dict.fromkeys(split_names(",".join(texts or ()))))


def parse_bounds(texts: Sequence[str] | None) -> dict[str, tuple[float, float]]:
    """Return the bounds given by `--bounds NAME=LOW:HIGH`, by name."""
    expected = "--bounds expects NAME=LOW:HIGH with 0 < LOW < HIGH, such as lengthscale=0.1:10"
    bounds: dict[str, tuple[float, float]] = {}
    for name, value in _assignments(expected, texts).items():
        match _positive(value.split(":")):
            case [low, high] if low < high:
                bounds[name] = low, high
            case _:
                raise ValueError(
                    f"{expected}, got {name}={value}; --fixed {name} keeps it where training starts"
                )
    return bounds


def parse_priors(texts: Sequence[str] | None) -> dict[str, Prior]:
    """Return the priors given by `--priors NAME=KIND:NUMBER:NUMBER`, by name."""
    expected = (
        "--priors expects NAME=lognormal:MEDIAN:SPREAD or NAME=gamma:SHAPE:RATE with positive numbers, "
        "such as noise=lognormal:0.1:1"
    )
    priors: dict[str, Prior] = {}
    for name, value in _assignments(expected, texts).items():
        kind, *numbers = value.split(":")
        match kind.strip().lower(), _positive(numbers):
            case "lognormal", [median, spread]:
                priors[name] = LogNormal(median, spread)
            case "gamma", [shape, rate]:
                priors[name] = Gamma(shape, rate)
            case _:
                raise ValueError(f"{expected}, got {name}={value}")
    return priors


def _assignments(expected: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Return the value in each `NAME=VALUE`, by name; `expected` begins the message of an error."""
    found: dict[str, str] = {}
    for text in split_names(",".join(texts or ())):
        name, sign, value = (part.strip() for part in text.partition("="))
        if not (name and sign):
            raise ValueError(f"{expected}, got {text}")
        if name in found:
            raise ValueError(f"{expected}, once for each name, got {name} twice")
        found[name] = value
    return found


def _positive(texts: Sequence[str]) -> list[float]:
    """Return the positive, finite numbers that the texts spell, or none of them if one is not."""
    try:
        values = [float(text) for text in texts]
    except ValueError:
        return []
    return values if all(0 < value < math.inf for value in values) else []
