"""The one table of all options, and the commands that are made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from inspect import Parameter, Signature
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import typer

import distgp
from distgp.cli import options as o
from distgp.cli.terminal import plain_errors


def _plain(value: object) -> object:
    """Return a value as it is, and a member of an enumeration as its text."""
    return value.value if isinstance(value, StrEnum) else value


@dataclass(frozen=True)
class Option:
    """One option of some commands.

    Where the table gives no default, it is that of the regressor's parameter of the same name; without such
    a parameter it is False or None where the kind allows that, and else the option is required. `read`
    makes the value of what typer found, and `limits` are the smallest and the largest number.
    """

    name: str
    kind: object
    help: str
    commands: str
    default: object = ...
    read: Callable[[Any], object] = _plain
    limits: tuple[int | None, int | None] = (None, None)

    def parameter(self) -> Parameter:
        """Return the parameter by which a function tells typer of this option."""
        if self.name in ARGUMENTS:
            declared = typer.Argument(help=self.help)
        else:
            names = [f"--{self.name.replace('_', '-')}", *SHORT.get(self.name, ())]
            low, high = self.limits
            declared = typer.Option(self._default(), *names, help=self.help, min=low, max=high)
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=declared, annotation=self.kind)

    def _default(self) -> object:
        """Return the value of an option that is not given; typer takes `...` for none."""
        if self.default is not ...:
            return self.default
        if self.name in o.PARAMETERS:
            mirrored = o.PARAMETERS[self.name].default
            absent = "none" if self.kind is str else None
            return absent if mirrored in (None, ()) else mirrored
        if self.kind is bool:
            return False
        return None if NoneType in get_args(self.kind) else ...


ARGUMENTS = ("model", "data")
SHORT = {"output": ["-o"], "quiet": ["-q"]}
FITS, READS = "fit compare", "predict score"
Text = str | None
Texts = list[str] | None

TABLE = (
    Option("model", Path, "a model written by `distgp fit`", "predict score info serve"),
    Option(
        "data",
        str,
        "CSV, Parquet or Arrow file; folder or glob of Parquet",
        "fit compare predict score",
    ),
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
    Option("latent", bool, "of the function, without noise", "predict"),
    Option("aggregation", Text, "another aggregator than fitted", READS, None),
    Option("prefix", str, "before mean, std, lower, upper", "predict", ""),
    Option(
        "missing", o.Missing | None, "missing values; default: as the model was fitted", READS, None
    ),
    Option(
        "unknown_categories",
        o.Unknown | None,
        "categories not seen in fitting: refuse, or take as new",
        READS,
    ),
    # Columns and rows.
    Option("features", Text, "input columns, by comma; default: all others", FITS),
    Option("drop", Text, "columns to leave out, by comma", FITS),
    Option("categorical", Text, "number columns that are labels, by comma", FITS),
    Option("dates", o.Dates, "dates: refuse, or expand to days and phases", FITS),
    Option("missing", o.Missing, "missing values: refuse, drop those rows, or impute means", FITS),
    Option(
        "validation", o.Validation, "rows held out: at random, the last ones, or whole groups", FITS
    ),
    Option("time", Text, "column that orders the rows for --validation last; no input", FITS),
    Option("groups", Text, "column of the groups held out whole; no input", FITS),
    Option("weight", Text, "column of the rows' weights, as copies; no input", "fit"),
    Option("noise_variance", Text, "column of the targets' noise variances; no input", "fit"),
    Option(
        "target_transform",
        str,
        "none, log or yeo-johnson: of the target",
        "fit",
        read=o.word_or_none,
    ),
    Option(
        "calibrate",
        str,
        "none, or conformal: intervals calibrated on rows held out of the fit",
        "fit",
        read=o.word_or_none,
    ),
    # The model and its training.
    Option("expert", str, f"auto, {', '.join(distgp.EXPERTS)}", FITS),
    Option("n_experts", str, "how many experts, auto or cv", FITS, read=o.number_or_word),
    Option("n_inducing", str, "how many inducing inputs, or auto", FITS, read=o.number_or_word),
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
    Option(
        "training", str, f"auto, none, {', '.join(distgp.ALGORITHMS)}", FITS, read=o.word_or_none
    ),
    Option("n_iter", int | None, "rounds of training, at most", FITS),
    Option("learning_rate", float | None, "learning rate, of methods that have one", "fit"),
    Option(
        "fixed",
        Texts,
        "hyperparameters that training leaves as they are: noise, variance, …",
        FITS,
        read=o.parse_fixed,
    ),
    Option(
        "bounds",
        Texts,
        "between which values training keeps a hyperparameter (of the standardised data): "
        "lengthscale=0.1:10",
        FITS,
        read=o.parse_bounds,
    ),
    Option(
        "priors",
        Texts,
        "prior of a hyperparameter (of the standardised data): noise=lognormal:0.1:1 (median, "
        "spread), lengthscale=gamma:2:1 (shape, rate)",
        FITS,
        read=o.parse_priors,
    ),
    # Where it runs.
    Option(
        "host", str, "address to listen at; 0.0.0.0 for other machines too", "serve", "127.0.0.1"
    ),
    Option("port", int, "port to listen at; 0 for a free one", "serve", 8000, limits=(0, 65_535)),
    Option("max_rows", int, "rows of one request, at most", "serve", 100_000, limits=(1, None)),
    Option("max_bytes", int, "bytes of one request, at most", "serve", 2**26, limits=(1, None)),
    Option("device", str, "cpu or cuda", FITS),
    Option("device", Text, "cpu or cuda; default: where the model was fitted", "serve", None),
    Option("dtype", str, "float64 or float32", "fit"),
    Option("engine", str, "local, or ray: a Ray cluster; workers read Parquet", FITS),
    Option("address", Text, "of a Ray cluster; default: RAY_ADDRESS, else start one", FITS),
    Option("workers", int | None, "Ray workers at most; default: one per CPU", FITS),
    Option("seed", int, "seed of everything random", FITS, o.PARAMETERS["random_state"].default),
    # What is told.
    Option("force", bool, "overwrite what exists", "fit predict compare demo"),
    Option("json", bool, "print one JSON object instead of text", "fit predict score compare info"),
    Option("quiet", bool, "no progress", "fit predict score compare serve demo"),
)


def command(run: Callable[[o.Given], None]) -> Callable[..., None]:
    """Return the function that typer makes a command of: it has the options of the table."""
    rows = [row for row in TABLE if run.__name__ in row.commands.split()]

    def called(**found: object) -> None:
        with plain_errors():
            run(o.Given(**{row.name: row.read(found[row.name]) for row in rows}))

    called.__name__, called.__doc__ = run.__name__, run.__doc__
    vars(called)["__signature__"] = Signature([row.parameter() for row in rows])
    return called
