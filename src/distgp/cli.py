"""The command line: parse, call, print."""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table as Grid

import distgp
from distgp.engines import Engine, EngineError, LocalEngine

app = typer.Typer(
    help="Gaussian process regression for data too large for one GP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
errors = Console(stderr=True, highlight=False)


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


@app.command()
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
        columns = {
            "features": names(features) or None,
            "drop": names(drop),
            "categorical": names(categorical),
            "dates": dates.value,
            "missing": missing.value,
        }
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


@app.command()
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


@app.command()
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


@app.command()
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
        rows = reading.read_training(
            data,
            target,
            names(features) or None,
            names(drop),
            names(categorical),
            dates.value,
            missing.value,
            None,
        )
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


@app.command()
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


@app.command()
def paper(
    study: Annotated[
        str,
        typer.Argument(
            help="opticom, training, posterior, synthetic-exact, synthetic-sparse, uci, complexity, "
            "consistency, or all"
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="folder; default: build/paper, or build/paper-quick"),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="a small version, in a minute or two")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="repetitions of each run")] = 10,
    device: Device = "cpu",
    jobs: Annotated[int, typer.Option(min=1, help="processes that share the work")] = 1,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="folder with the UCI files; default: DISTGP_DATA, else download"),
    ] = None,
    unverified: Annotated[
        bool, typer.Option("--unverified", help="take data files with another checksum")
    ] = False,
    page_only: Annotated[
        bool, typer.Option("--page-only", help="run nothing: page and pictures of what is there")
    ] = False,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of the paper: table, pictures, and a page beside the paper's numbers.

    A run that was interrupted goes on where it stopped.
    """
    from distgp.paper import (
        STUDIES,
        DataError,
        Options,
        failed_runs,
        rewrite_page,
        run_study,
        write_index,
    )

    with plain_errors():
        if study not in (*STUDIES, "all"):
            raise ValueError(f"no study {study!r}; there are {', '.join(STUDIES)} and all")
        folder = output or Path("build") / ("paper-quick" if quick else "paper")
        options = Options(quick, seeds, device, data_dir, not unverified)
        made, failed = [kind() for kind in STUDIES.values()], 0
        for one in made if study == "all" else [STUDIES[study]()]:
            begin = time.perf_counter()
            try:
                if page_only:
                    if study == "all" and not (folder / f"{one.name}.csv").exists():
                        continue
                    page = rewrite_page(one, folder)
                else:
                    page = run_study(one, folder, options, jobs, show=not quiet)
            except DataError as error:
                if study != "all":
                    raise
                tell_error(f"{one.name} is left out: {error}")
                continue
            typer.echo(f"{page}  {time.perf_counter() - begin:.0f} s")
            failed += failed_runs(one, folder)
        write_index(folder, made)
        if failed:
            tell_error(
                f"{failed} runs failed; the tables say why, and running again tries them again"
            )
            raise typer.Exit(1)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(distgp.__version__)


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


@contextmanager
def plain_errors() -> Iterator[None]:
    """One clear line and exit code 2 for what the user can mend."""
    import pyarrow as pa

    try:
        with warnings.catch_warnings():
            warnings.showwarning = tell_warning
            yield
    except (
        ValueError,
        ArithmeticError,
        OSError,
        pa.ArrowException,
        MemoryError,
        EngineError,
    ) as error:
        tell_error(str(error) or type(error).__name__)
        raise typer.Exit(2) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        tell_error(
            f"unexpected {type(error).__name__}: {error} (this is a mistake of distgp's own)"
        )
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        errors.print("distgp: interrupted", soft_wrap=True)
        raise typer.Exit(130) from None


def tell_error(said: str) -> None:
    """An error as one line."""
    errors.print(f"distgp: {' '.join(said.split())}", style="red", markup=False, soft_wrap=True)


def tell_warning(message: Warning | str, *where: object, **options: object) -> None:
    """A warning as one line."""
    del where, options
    errors.print(f"warning: {message}", style="yellow", markup=False, soft_wrap=True)


def refuse_existing(force: bool, *paths: Path) -> None:
    """Refuse to overwrite, and to write where there is no folder, before any work is done."""
    for path in paths:
        if path.is_dir():
            raise ValueError(f"{path} is a folder, expected the name of a file to write")
        if path.exists() and not force:
            raise ValueError(f"{path} exists already: choose another name, or give --force")
        if not path.parent.is_dir():
            raise ValueError(f"there is no folder {str(path.parent)!r} to write {path.name} to")


def names(text: str | None) -> list[str]:
    """Names separated by commas."""
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def number_or_word(text: str) -> int | str:
    """A number if it is one."""
    try:
        return int(text)
    except ValueError:
        return text


def tell_dropped(dropped: int, quiet: bool) -> None:
    """Say how many rows were left out."""
    if dropped and not quiet:
        errors.print(f"{dropped} rows with missing values were dropped", highlight=False)


def show(figures: dict[str, Any], as_json: bool) -> None:
    """Print figures, for people or for programs."""
    if as_json:
        typer.echo(json.dumps(figures))
        return
    for name, value in figures.items():
        if value is not None and not (name == "dropped" and not value):
            text = f"{value:.6g}" if isinstance(value, float) else value
            text = ", ".join(map(str, text)) if isinstance(text, list) else text
            typer.echo(f"{name:12s} {text}")


def print_results(results: list[Any]) -> None:
    """A comparison as a table."""
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("")
    for title in ("seconds", "RMSE", "NLPD", "90 % cover", "W2 to full"):
        grid.add_column(title, justify="right")
    for r in results:
        values = (r.seconds, r.rmse, r.nlpd, r.coverage, r.w2)
        if r.error is None:
            grid.add_row(r.name, *("" if v is None else f"{v:.4g}" for v in values))
    Console(width=100 if not sys.stdout.isatty() else None, highlight=False).print(grid)
    for r in results:
        if r.error is not None:
            typer.echo(f"{r.name}: {r.error}")


def silent(what: object) -> None:
    """Say nothing."""
    del what


def say(quiet: bool) -> Callable[[str], None]:
    """A way to tell what is being done."""
    return silent if quiet else lambda text: errors.print(text, highlight=False)


@contextmanager
def progress(verb: str, quiet: bool) -> Iterator[Callable[[int], None]]:
    """A counter of rows on a terminal."""
    if quiet or not sys.stderr.isatty():
        yield silent
        return
    with errors.status(f"0 rows {verb}") as status:
        total = 0

        def count(rows: int) -> None:
            nonlocal total
            total += rows
            status.update(f"{total:,} rows {verb}")

        yield count


def main() -> None:
    """The `distgp` command."""
    app()
