"""What every command can be told, and what an option's text means."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

import distgp
from distgp.engines import Engine, LocalEngine


class Dates(StrEnum):
    """What to do with dates."""

    refuse = "refuse"
    expand = "expand"


class Missing(StrEnum):
    """What to do with missing values."""

    refuse = "refuse"
    drop = "drop"


class Unknown(StrEnum):
    """What to do with categories that were not there in fitting."""

    refuse = "refuse"
    zero = "zero"


Data = Annotated[str, typer.Argument(help="CSV, Parquet or Arrow file; folder or glob of Parquet")]
ModelFile = Annotated[Path, typer.Argument(help="a model written by `distgp fit`")]
Target = Annotated[str, typer.Option(help="the column to predict")]
Features = Annotated[str | None, typer.Option(help="input columns, by comma; default: all others")]
Drop = Annotated[str | None, typer.Option(help="columns to leave out, by comma")]
Categorical = Annotated[str | None, typer.Option(help="number columns that are labels, by comma")]
DatesOption = Annotated[Dates, typer.Option(help="dates: refuse, or expand to days and phases")]
MissingOption = Annotated[Missing, typer.Option(help="rows with missing values: refuse or drop")]
UnknownOption = Annotated[
    Unknown,
    typer.Option("--unknown-categories", help="new categories: refuse, or none of the known"),
]
Force = Annotated[bool, typer.Option("--force", help="overwrite what exists")]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object instead of text")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="no progress")]
ExpertOption = Annotated[str, typer.Option(help="exact, sparse or auto")]
Experts = Annotated[str, typer.Option(help="how many experts, auto or cv")]
InducingOption = Annotated[str, typer.Option(help="how many inducing inputs, or auto")]
Aggregation = Annotated[str, typer.Option(help=f"auto, {', '.join(distgp.AGGREGATORS)}")]
KernelOption = Annotated[str, typer.Option(help=", ".join(distgp.KERNELS))]
PartitionOption = Annotated[str, typer.Option(help=", ".join(distgp.PARTITIONS))]
PartitionColumn = Annotated[str | None, typer.Option(help="one expert a value of this column")]
Training = Annotated[str, typer.Option(help=f"auto, none, {', '.join(distgp.ALGORITHMS)}")]
Rounds = Annotated[int | None, typer.Option(help="rounds of training, at most")]
Rate = Annotated[float | None, typer.Option(help="learning rate, of methods that have one")]
Device = Annotated[str, typer.Option(help="cpu or cuda")]
Dtype = Annotated[str, typer.Option(help="float64 or float32")]
Seed = Annotated[int, typer.Option(help="seed of everything random")]
EngineOption = Annotated[
    str, typer.Option(help="local, or ray: a Ray cluster; workers read Parquet")
]
Address = Annotated[
    str | None, typer.Option(help="of a Ray cluster; default: RAY_ADDRESS, else start one")
]
WorkersOption = Annotated[int | None, typer.Option(help="Ray workers at most; default: one a CPU")]


def names(text: str | None) -> list[str]:
    """Names separated by commas."""
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def columns_of(
    features: str | None, drop: str | None, categorical: str | None, dates: Dates, missing: Missing
) -> dict[str, Any]:
    """What is to be read of a table, as the readers want it."""
    return {
        "features": names(features) or None,
        "drop": names(drop),
        "categorical": names(categorical),
        "dates": dates.value,
        "missing": missing.value,
    }


def number_or_word(text: str) -> int | str:
    """A number if it is one."""
    try:
        return int(text)
    except ValueError:
        return text


def open_engine(name: str, address: str | None, workers: int | None) -> Engine:
    """An engine by its name."""
    if name == "local":
        if address is not None or workers is not None:
            raise ValueError("--address and --workers are for --engine ray")
        return LocalEngine()
    if name != "ray":
        raise ValueError(f"engine must be local or ray, got {name!r}")
    try:
        from distgp.engines.ray import RayEngine
    except ImportError as error:
        raise ValueError(str(error)) from error
    return RayEngine(address=address, workers=workers)
