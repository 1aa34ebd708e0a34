"""What the commands can be told, and what the text of an option means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import distgp
from distgp.engines import Engine
from distgp.plan import open_engine as opened
from distgp.training import Gamma, LogNormal, Prior


class Dates(StrEnum):
    """What to do with dates."""

    refuse = "refuse"
    expand = "expand"


class Missing(StrEnum):
    """What to do with missing values."""

    refuse = "refuse"
    drop = "drop"
    impute = "impute"


class Validation(StrEnum):
    """Which rows are held out."""

    random = "random"
    last = "last"
    groups = "groups"


class Unknown(StrEnum):
    """What to do with categories that were not there in fitting."""

    refuse = "refuse"
    new = "new"


Data = Annotated[str, typer.Argument(help="CSV, Parquet or Arrow file; folder or glob of Parquet")]
ModelFile = Annotated[Path, typer.Argument(help="a model written by `distgp fit`")]
Target = Annotated[str, typer.Option(help="the column to predict")]
Features = Annotated[str | None, typer.Option(help="input columns, by comma; default: all others")]
Drop = Annotated[str | None, typer.Option(help="columns to leave out, by comma")]
Categorical = Annotated[str | None, typer.Option(help="number columns that are labels, by comma")]
DatesOption = Annotated[Dates, typer.Option(help="dates: refuse, or expand to days and phases")]
MissingOption = Annotated[
    Missing, typer.Option(help="missing values: refuse, drop those rows, or impute means")
]
OwnMissingOption = Annotated[
    Missing | None,
    typer.Option("--missing", help="missing values; default: as the model was fitted"),
]
OwnUnknownOption = Annotated[
    Unknown | None,
    typer.Option(
        "--unknown-categories", help="categories not seen in fitting: refuse, or take as new"
    ),
]
ValidationOption = Annotated[
    Validation,
    typer.Option(help="rows held out: at random, the last ones, or whole groups"),
]
TimeColumn = Annotated[
    str | None,
    typer.Option("--time", help="column that orders the rows for --validation last; no input"),
]
GroupsColumn = Annotated[
    str | None, typer.Option("--groups", help="column of the groups held out whole; no input")
]
Force = Annotated[bool, typer.Option("--force", help="overwrite what exists")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object instead of text")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]
ExpertOption = Annotated[str, typer.Option(help=f"auto, {', '.join(distgp.EXPERTS)}")]
Experts = Annotated[str, typer.Option(help="how many experts, auto or cv")]
InducingOption = Annotated[str, typer.Option(help="how many inducing inputs, or auto")]
NeighborsOption = Annotated[int, typer.Option(help="nearest rows per predicted point (nearest)")]
Aggregation = Annotated[str, typer.Option(help=f"auto, {', '.join(distgp.AGGREGATORS)}")]
OtherAggregation = Annotated[str | None, typer.Option(help="another aggregator than fitted")]
KernelOption = Annotated[
    str,
    typer.Option(
        help=f"auto, {', '.join(distgp.KERNELS)}, linear, periodic(24), sums and products of these, with "
        "columns by name: 'matern52 + periodic(24 h, columns=when)'"
    ),
]
WeightColumn = Annotated[
    str | None, typer.Option("--weight", help="column of the rows' weights, as copies; no input")
]
NoiseColumn = Annotated[
    str | None,
    typer.Option("--noise-variance", help="column of the targets' noise variances; no input"),
]
TransformOption = Annotated[str, typer.Option(help="none, log or yeo-johnson: of the target")]
CalibrateOption = Annotated[
    str, typer.Option(help="none, or conformal: intervals calibrated on rows held out of the fit")
]
MeanOption = Annotated[str, typer.Option(help="constant, or linear: a trend is taken out first")]
PartitionOption = Annotated[str, typer.Option(help=", ".join(distgp.PARTITIONS))]
PartitionColumn = Annotated[str | None, typer.Option(help="one expert per value of this column")]
Training = Annotated[str, typer.Option(help=f"auto, none, {', '.join(distgp.ALGORITHMS)}")]
Rounds = Annotated[int | None, typer.Option(help="rounds of training, at most")]
Rate = Annotated[float | None, typer.Option(help="learning rate, of methods that have one")]
Fixed = Annotated[
    list[str] | None,
    typer.Option(help="hyperparameters that training leaves as they are: noise, variance, …"),
]
Bounds = Annotated[
    list[str] | None,
    typer.Option(
        help="between which values training keeps a hyperparameter (of the standardised data): "
        "lengthscale=0.1:10"
    ),
]
Priors = Annotated[
    list[str] | None,
    typer.Option(
        help="prior of a hyperparameter (of the standardised data): noise=lognormal:0.1:1 (median, "
        "spread), lengthscale=gamma:2:1 (shape, rate)"
    ),
]
Device = Annotated[str, typer.Option(help="cpu or cuda")]
Dtype = Annotated[str, typer.Option(help="float64 or float32")]
Seed = Annotated[int, typer.Option(help="seed of everything random")]
EngineOption = Annotated[
    str, typer.Option(help="local, or ray: a Ray cluster; workers read Parquet")
]
Address = Annotated[
    str | None, typer.Option(help="of a Ray cluster; default: RAY_ADDRESS, else start one")
]
WorkersOption = Annotated[
    int | None, typer.Option(help="Ray workers at most; default: one per CPU")
]


def split_names(text: str | None) -> list[str]:
    """The names in a text that separates them by commas."""
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def column_options(
    features: str | None, drop: str | None, categorical: str | None, dates: Dates
) -> dict[str, Any]:
    """What is to be made of a table's columns, as keyword arguments of the functions that learn them."""
    return {
        "features": split_names(features) or None,
        "drop": split_names(drop),
        "categorical": split_names(categorical),
        "dates": dates.value,
    }


def held_out_by(
    validation: Validation, time: str | None, groups: str | None, columns: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """The columns that decide which rows are held out, and the options of the others.

    They are no inputs, unless they are listed as such.

    Parameters
    ----------
    validation : Validation
        Which rows are held out.
    time, groups : str or None
        The columns of times and of groups.
    columns : dict
        What is to be made of the columns, as of `column_options`.

    Returns
    -------
    tuple
        The names of the columns given, as "time" or "groups", and the changed options.

    Raises
    ------
    ValueError
        If a column is given that this kind does not use, or one is missing.
    """
    if time is not None and validation != Validation.last:
        raise ValueError("--time orders the rows for --validation last: give both, or neither")
    if groups is not None and validation != Validation.groups:
        raise ValueError("--groups is for --validation groups: give both, or neither")
    if groups is None and validation == Validation.groups:
        raise ValueError("--validation groups needs --groups with the column of the groups")
    given = {"time": time, "groups": groups}
    named = {kind: name for kind, name in given.items() if name is not None}
    if columns["features"] is None:
        columns = columns | {"drop": [*columns["drop"], *named.values()]}
    return named, columns


def of_rows(
    weight: str | None, noise_variance: str | None, by: dict[str, str], columns: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Add the columns of weights and noise variances to those that `held_out_by` found.

    They are no inputs. Parameters and results are those of `held_out_by`.
    """
    given = {"sample_weight": weight, "noise_variance": noise_variance}
    named = {kind: name for kind, name in given.items() if name is not None}
    return by | named, columns | {"drop": [*columns["drop"], *named.values()]}


def number_or_word(text: str) -> int | str:
    """The integer that a text spells, or the text itself where it spells none."""
    try:
        return int(text)
    except ValueError:
        return text


def parse_fixed(texts: Sequence[str] | None) -> list[str]:
    """The names given by `--fixed`, once each."""
    return list(dict.fromkeys(split_names(",".join(texts or ()))))


def parse_bounds(texts: Sequence[str] | None) -> dict[str, tuple[float, float]]:
    """The bounds given by `--bounds NAME=LOW:HIGH`, by name.

    Raises
    ------
    ValueError
        If a text has another form, or the numbers are not 0 < LOW < HIGH.
    """
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
    """The priors given by `--priors NAME=KIND:NUMBER:NUMBER`, by name.

    Raises
    ------
    ValueError
        If a text has another form, names an unknown prior, or its numbers are not positive.
    """
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


def open_engine(name: str, address: str | None, workers: int | None, device: str) -> Engine:
    """The engine of this name, started where it is a cluster's.

    Raises
    ------
    ValueError
        If there is no such engine, Ray is not installed, or an option is of another engine.
    """
    if name == "local":
        if address is not None or workers is not None:
            raise ValueError("--address and --workers are for --engine ray")
        return opened(name, device)
    if name != "ray":
        raise ValueError(f"engine must be local or ray, got {name!r}")
    try:
        from distgp.engines.ray import RayEngine
    except ImportError as error:
        raise ValueError(str(error)) from error
    return RayEngine(address=address, workers=workers)


def _assignments(expected: str, texts: Sequence[str] | None) -> dict[str, str]:
    """What follows the sign in each `NAME=…`, by name; `expected` begins the error where one is not."""
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
    """The positive, finite numbers that the texts spell; none of them if one is not."""
    try:
        values = [float(text) for text in texts]
    except ValueError:
        return []
    return values if all(0 < value < math.inf for value in values) else []
