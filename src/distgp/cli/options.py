"""The options of all commands, and the values that their texts stand for."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import fields
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType, SimpleNamespace
from typing import Any, NamedTuple, TypeAlias, cast, get_args

import typer

import distgp
from distgp.cli.terminal import plain_errors
from distgp.data.encoding import CHOICES
from distgp.engines import Engine, opened
from distgp.plan import VALIDATIONS
from distgp.training import Algorithm, Gamma, LogNormal, Prior

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
    if own.get("learning_rate") is not None and given.training in distgp.ALGORITHMS:
        own["training"] = _with_rate(given.training, own.pop("learning_rate"))
    return distgp.DistributedGPRegressor(**own, verbose=shows_progress(given))


def _with_rate(training: str, rate: float) -> Algorithm:
    """Return a method of training with a learning rate; L-BFGS, which has none, gives way to Adam."""
    kind, options = distgp.ALGORITHMS[training], {"learning_rate": rate}
    known = {spec.name: spec.default for spec in fields(cast(Any, kind))}
    if "learning_rate" not in known:
        raise ValueError(f"{training} has no learning rate: leave --learning-rate out")
    adam = {"optimizer": "adam"} if known.get("optimizer") == "lbfgs" else {}
    return kind(**options, **adam)


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
    """Return the columns of what `fit` takes for each row, by parameter, and the options of the inputs."""
    columns = column_options(given.features, given.drop, given.categorical, given.dates)
    by, columns = held_out_by(given.validation, given.time, given.groups, columns)
    options = {"sample_weight": "weight", "noise_variance": "noise_variance"}
    named = {kind: vars(given).get(option) for kind, option in options.items()}
    return _without_inputs(named, by, columns)


def column_options(
    features: str | None, drop: str | None, categorical: str | None, dates: str
) -> dict[str, Any]:
    """Return keyword arguments for the functions that learn the columns of a table."""
    if features is not None and not split_names(features):
        raise ValueError(
            f"--features names the input columns, got {features!r}: leave it out for all"
        )
    return {
        "features": split_names(features) or None,
        "drop": split_names(drop),
        "categorical": split_names(categorical),
        "dates": str(dates),
    }


def held_out_by(
    validation: str, time: str | None, groups: str | None, columns: dict[str, Any]
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the columns that say which rows are held out, no inputs unless listed, and those options."""
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


def _plain(value: object) -> object:
    """Return a value as it is, and a member of an enumeration as its text."""
    return value.value if isinstance(value, StrEnum) else value


class Option(NamedTuple):
    """One option of some commands.

    The default is that of the regressor's parameter of the same name, where the table gives none; without
    such a parameter False or None where the kind allows that, and else the option is required.
    """

    name: str
    kind: object
    help: str
    commands: str
    default: object = ...

    def parameter(self) -> Parameter:
        """Return the parameter by which a function tells typer of this option."""
        if self.name in ARGUMENTS:
            declared = typer.Argument(help=self.help)
        else:
            names = [f"--{self.name.replace('_', '-')}", *SHORT.get(self.name, ())]
            low, high = LIMITS.get(self.name, (None, None))
            declared = typer.Option(self._default(), *names, help=self.help, min=low, max=high)
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=declared, annotation=self.kind)

    def _default(self) -> object:
        """Return the value of an option that is not given; typer takes `...` for none."""
        if self.default is not ...:
            return self.default
        if self.name in PARAMETERS:
            mirrored = PARAMETERS[self.name].default
            absent = "none" if self.kind is str else None
            return absent if mirrored in (None, ()) else mirrored
        if self.kind is bool:
            return False
        return None if NoneType in get_args(self.kind) else ...


ARGUMENTS = ("model", "data")
SHORT = {"output": ["-o"], "quiet": ["-q"]}
LIMITS = {"port": (0, 65_535), "max_rows": (1, None), "max_bytes": (1, None)}
READERS: dict[str, Callable[[Any], object]] = {
    **dict.fromkeys(("n_experts", "n_inducing"), number_or_word),
    **dict.fromkeys(("target_transform", "calibrate", "training"), word_or_none),
    "fixed": parse_fixed,
    "bounds": parse_bounds,
    "priors": parse_priors,
}
"""The functions that make a value of what typer found, by the names of options."""
FITS, READS = "fit compare", "predict score"
TABLES = f"{FITS} {READS}"
Text = str | None
Texts = list[str] | None

TABLE = (
    Option("model", Path, "a model written by `distgp fit`", "predict score info serve"),
    Option("data", str, "CSV, Parquet or Arrow file; folder or glob of Parquet", TABLES),
    # What is read and written.
    Option("target", str, "the column to predict", FITS),
    Option("target", Text, "the column of the target; default: that of fitting", "score"),
    Option("output", Path, "the model file to write", "fit"),
    Option("output", Path, "the table to write, by suffix", "predict"),
    Option(
        "output", Path, "where to write: OUTPUT.csv and OUTPUT.png", "compare", Path("comparison")
    ),
    Option("output", Path, "the picture", "demo", Path("demo.png")),
    Option("rows", int, "rows to fit", "demo", 120_000),
    Option("test", float, "share of rows held out for testing", "compare", 0.2),
    # Prediction.
    Option("interval", float, "probability between lower and upper", "predict", 0.9),
    Option("latent", bool, "predict the function, without the noise of observations", "predict"),
    Option("aggregation", Text, "another aggregator than fitted", READS, None),
    Option("prefix", str, "text in front of the new columns' names", "predict", ""),
    Option(
        "missing", Missing | None, "missing values; default: as the model was fitted", READS, None
    ),
    Option(
        "unknown_categories",
        Unknown | None,
        "texts not seen in fitting: new, or refuse; default: as fitted",
        READS,
    ),
    # Columns and rows.
    Option("features", Text, "input columns, by comma; default: all others", FITS),
    Option("drop", Text, "columns to leave out, by comma", FITS),
    Option("categorical", Text, "number columns that are labels, by comma", FITS),
    Option("dates", Dates, "dates: refuse, or expand to days and phases", FITS),
    Option("missing", Missing, "missing values: refuse, drop those rows, or impute means", FITS),
    Option(
        "validation", Validation, "rows held out: at random, the last ones, or whole groups", FITS
    ),
    Option(
        "time",
        Text,
        "column that orders the rows for --validation last; not used as an input",
        FITS,
    ),
    Option("groups", Text, "column of the groups held out whole; not used as an input", FITS),
    Option("weight", Text, "column of the rows' weights, as copies; not used as an input", "fit"),
    Option(
        "noise_variance",
        Text,
        "column of the targets' noise variances; not used as an input",
        "fit",
    ),
    Option(
        "target_transform", str, "none, log, yeo-johnson, or auto: log if that is better", "fit"
    ),
    Option(
        "calibrate",
        str,
        "none, or conformal: intervals calibrated on rows held out of the fit",
        "fit",
    ),
    # The model and its training.
    Option("expert", str, f"auto, {', '.join(distgp.EXPERTS)}", FITS),
    Option("n_experts", str, "how many experts, auto or cv", FITS),
    Option("n_inducing", str, "how many inducing inputs, or auto", FITS),
    Option("n_neighbors", int, "nearest rows per predicted point (nearest)", FITS),
    Option("aggregation", str, f"auto, {', '.join(distgp.AGGREGATORS)}", "fit"),
    Option(
        "kernel",
        str,
        f"auto, {', '.join(distgp.KERNELS)}, linear, periodic(24), sums and products of these, with "
        "columns by name: 'matern52 + periodic(24 h, columns=when)'",
        FITS,
    ),
    Option("mean", str, "constant, or linear: a trend is taken out first", FITS),
    Option("partition", str, ", ".join(distgp.PARTITIONS), "fit"),
    Option("partition_column", Text, "one expert per value of this column", "fit"),
    Option("training", str, f"auto, none, {', '.join(distgp.ALGORITHMS)}", FITS),
    Option(
        "time_limit",
        float,
        "seconds that a fit should take, by an estimate; longer work is not stopped; inf for no limit; no "
        "effect up to 1,500 rows",
        FITS,
    ),
    Option("n_iter", int | None, "rounds of training, at most", FITS),
    Option(
        "learning_rate",
        float | None,
        "learning rate of a --training that has one",
        "fit",
    ),
    Option(
        "fixed",
        Texts,
        "hyperparameters that training leaves as they are: noise, variance, …",
        FITS,
    ),
    Option(
        "bounds",
        Texts,
        "between which values training keeps a hyperparameter (of the standardised data): "
        "lengthscale=0.1:10",
        FITS,
    ),
    Option(
        "priors",
        Texts,
        "prior of a hyperparameter (of the standardised data): noise=lognormal:0.1:1 (median, "
        "spread), lengthscale=gamma:2:1 (shape, rate)",
        FITS,
    ),
    # Where it runs.
    Option(
        "host", str, "address to listen at; 0.0.0.0 for other machines too", "serve", "127.0.0.1"
    ),
    Option("port", int, "port to listen at; 0 for a free one", "serve", 8000),
    Option(
        "names",
        Text,
        "host names that the server answers to, by comma; default: localhost and IP addresses only",
        "serve",
    ),
    Option(
        "allow",
        Text,
        "changes that clients may make, by comma: observe (POST /observe adds rows), reload (POST "
        "/reload loads the file again); default: none",
        "serve",
    ),
    Option("access_log", bool, "write a line for each request to standard error", "serve"),
    Option("max_rows", int, "rows of one request, at most", "serve", 100_000),
    Option("max_bytes", int, "bytes of one request, at most", "serve", 2**26),
    Option("device", str, "cpu or cuda", FITS),
    Option("device", Text, "cpu or cuda; default: where the model was fitted", "serve", None),
    Option("dtype", str, "float64 or float32", "fit"),
    Option("engine", str, "local, or ray: a Ray cluster; workers read Parquet", FITS),
    Option("address", Text, "of a Ray cluster; default: RAY_ADDRESS, else start one", FITS),
    Option("workers", int | None, "Ray workers at most; default: one per CPU", FITS),
    Option("seed", int, "seed of everything random", FITS, PARAMETERS["random_state"].default),
    # What is told.
    Option("force", bool, "overwrite what exists", "fit predict compare demo"),
    Option("json", bool, "print one JSON object instead of text", "fit predict score compare info"),
    Option("quiet", bool, "show no progress", "fit predict score compare serve demo"),
)


def command(run: Callable[[Given], None]) -> Callable[..., None]:
    """Return the function that typer makes a command of: it has the options of the table."""
    rows = [row for row in TABLE if run.__name__ in row.commands.split()]

    def called(**found: object) -> None:
        with plain_errors():
            run(Given(**{name: READERS.get(name, _plain)(v) for name, v in found.items()}))

    called.__name__, called.__doc__ = run.__name__, run.__doc__
    vars(called)["__signature__"] = Signature([row.parameter() for row in rows])
    return called
