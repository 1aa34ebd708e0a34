"""fit, predict, score: a model and its table."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

import distgp
from distgp.cli.options import (
    Address,
    Aggregation,
    AsJson,
    Categorical,
    Data,
    Dates,
    DatesOption,
    Device,
    Drop,
    Dtype,
    EngineOption,
    ExpertOption,
    Experts,
    Features,
    Force,
    InducingOption,
    KernelOption,
    Missing,
    MissingOption,
    ModelFile,
    PartitionColumn,
    PartitionOption,
    Quiet,
    Rate,
    Rounds,
    Seed,
    Target,
    Training,
    Unknown,
    UnknownOption,
    WorkersOption,
    columns_of,
    number_or_word,
    open_engine,
)
from distgp.cli.terminal import (
    plain_errors,
    progress,
    refuse_existing,
    show,
    tell_dropped,
)


def fit(
    data: Data,
    target: Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="the model file to write")],
    features: Features = None,
    drop: Drop = None,
    categorical: Categorical = None,
    dates: DatesOption = Dates.refuse,
    missing: MissingOption = Missing.refuse,
    expert: ExpertOption = "auto",
    n_experts: Experts = "auto",
    n_inducing: InducingOption = "auto",
    aggregation: Aggregation = "auto",
    kernel: KernelOption = "matern52",
    partition: PartitionOption = "random",
    partition_column: PartitionColumn = None,
    training: Training = "auto",
    n_iter: Rounds = None,
    learning_rate: Rate = None,
    device: Device = "cpu",
    dtype: Dtype = "float64",
    engine: EngineOption = "local",
    address: Address = None,
    workers: WorkersOption = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit a model to a table and write it to a file."""
    from distgp import reading

    with plain_errors():
        refuse_existing(force, output)
        begin = time.perf_counter()
        columns = columns_of(features, drop, categorical, dates, missing)
        with open_engine(engine, address, workers) as where:
            model = distgp.DistributedGPRegressor(
                expert=expert,
                n_experts=number_or_word(n_experts),
                n_inducing=number_or_word(n_inducing),
                aggregation=aggregation,
                kernel=kernel,
                partition=partition,
                training=None if training == "none" else training,
                n_iter=n_iter,
                learning_rate=learning_rate,
                device=device,
                dtype=dtype,
                engine=where,
                random_state=seed,
                verbose=not quiet,
            )
            dropped = reading.fit_table(model, data, target, partition_column, columns)
            tell_dropped(dropped, as_json)
            model.save(output)
            report = {
                "model": str(output),
                "rows": model.experts_.row_count(),
                "dropped": dropped,
                "features": model.table_.features,
                "n_experts": model.n_experts_,
                "n_inducing": model.n_inducing_,
                "aggregation": model.aggregation_.name,
                "kernel": str(model.kernel_),
                "bytes": where.traffic.total() or None,
                "seconds": time.perf_counter() - begin,
            }
        show(report, as_json)


def predict(
    model: ModelFile,
    data: Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="the table to write, by suffix")],
    interval: Annotated[float, typer.Option(help="probability between lower and upper")] = 0.9,
    latent: Annotated[
        bool, typer.Option("--latent", help="of the function, without noise")
    ] = False,
    aggregation: Annotated[str | None, typer.Option(help="another aggregator than fitted")] = None,
    prefix: Annotated[str, typer.Option(help="before mean, std, lower, upper")] = "",
    missing: MissingOption = Missing.refuse,
    unknown: UnknownOption = Unknown.refuse,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Predict a table of any length in pieces: its columns, and mean, std, lower and upper."""
    from distgp import reading

    with plain_errors():
        refuse_existing(force, output)
        fitted = distgp.load(model)
        begin = time.perf_counter()
        with progress("predicted", quiet or as_json) as count:
            rows, dropped = reading.predict_table(
                fitted,
                data,
                output,
                interval=interval,
                latent=latent,
                aggregation=aggregation,
                prefix=prefix,
                missing=missing.value,
                unknown=unknown.value,
                count=count,
            )
        tell_dropped(dropped, as_json)
        seconds = time.perf_counter() - begin
        show({"output": str(output), "rows": rows, "dropped": dropped, "seconds": seconds}, as_json)


def score(
    model: ModelFile,
    data: Data,
    aggregation: Annotated[str | None, typer.Option(help="another aggregator than fitted")] = None,
    missing: MissingOption = Missing.refuse,
    unknown: UnknownOption = Unknown.refuse,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Compare predictions with the target column of a table: RMSE, R², NLPD, coverage."""
    from distgp import reading

    with plain_errors():
        fitted = distgp.load(model)
        with progress("scored", quiet or as_json) as count:
            figures = reading.score_table(
                fitted, data, aggregation, missing.value, unknown.value, count
            )
        tell_dropped(figures["dropped"], as_json)
        show(figures, as_json)
