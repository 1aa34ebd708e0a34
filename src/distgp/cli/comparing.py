"""compare and demo: all aggregators side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import distgp
from distgp.cli.options import (
    Address,
    AsJson,
    Categorical,
    Data,
    Dates,
    DatesOption,
    Device,
    Drop,
    EngineOption,
    ExpertOption,
    Experts,
    Features,
    Force,
    InducingOption,
    KernelOption,
    Missing,
    MissingOption,
    Quiet,
    Rounds,
    Seed,
    Target,
    Training,
    WorkersOption,
    columns_of,
    number_or_word,
    open_engine,
)
from distgp.cli.terminal import (
    plain_errors,
    print_results,
    refuse_existing,
    say,
    show,
    tell_dropped,
)


def compare(
    data: Data,
    target: Target,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="where to write: OUTPUT.csv and OUTPUT.png")
    ] = Path("comparison"),
    test: Annotated[float, typer.Option(help="share of rows held out for testing")] = 0.2,
    features: Features = None,
    drop: Drop = None,
    categorical: Categorical = None,
    dates: DatesOption = Dates.refuse,
    missing: MissingOption = Missing.refuse,
    expert: ExpertOption = "auto",
    n_experts: Experts = "auto",
    n_inducing: InducingOption = "auto",
    kernel: KernelOption = "matern52",
    training: Training = "auto",
    n_iter: Rounds = None,
    device: Device = "cpu",
    engine: EngineOption = "local",
    address: Address = None,
    workers: WorkersOption = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fit experts once and compare all aggregators, and the full GP, on held-out rows."""
    from distgp import comparison, plotting, reading

    with plain_errors():
        table, picture = Path(f"{output}.csv"), Path(f"{output}.png")
        refuse_existing(force, table, picture)
        columns = columns_of(features, drop, categorical, dates, missing)
        rows = reading.read_training(data, target, label_column=None, **columns)
        tell_dropped(rows.dropped, as_json)
        with open_engine(engine, address, workers) as where:
            model = distgp.DistributedGPRegressor(
                expert=expert,
                n_experts=number_or_word(n_experts),
                n_inducing=number_or_word(n_inducing),
                kernel=kernel,
                training=None if training == "none" else training,
                n_iter=n_iter,
                device=device,
                engine=where,
                random_state=seed,
                verbose=not quiet,
            )
            results = comparison.on_split(model, rows.X, rows.y, test, seed, say(quiet or as_json))
        comparison.write_csv(results, table)
        plotting.save_figure(plotting.comparison_figure(results), picture)
        if as_json:
            show({"results": [vars(r) for r in results], "csv": str(table)}, True)
        else:
            print_results(results)
            typer.echo(f"{table}, {picture}")


def demo(
    output: Annotated[Path, typer.Option("--output", "-o", help="the picture")] = Path("demo.png"),
    rows: Annotated[int, typer.Option(help="rows to fit")] = 120_000,
    force: Force = False,
    quiet: Quiet = False,
) -> None:
    """Fit 120,000 rows with distributed experts, compare all aggregators, draw a picture."""
    from distgp import demo as demonstration
    from distgp import plotting

    with plain_errors():
        refuse_existing(force, output)
        plotting.check_suffix(output)
        results = demonstration.run(rows, output, say(quiet), verbose=not quiet)
        print_results(results)
        typer.echo(f"picture: {output}")
