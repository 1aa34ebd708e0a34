"""The commands: each is a function of the options that were given."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import typer

import distgp
from distgp.cli import options as o
from distgp.cli import terminal
from distgp.diagnostics import compare as comparison
from distgp.diagnostics.compare import Result
from distgp.plan import expert_for
from distgp.regressor import DistributedGPRegressor


def fit(given: o.Given) -> None:
    """Fit a model to a table and write it to a file."""
    from distgp.cli.streaming import fit_table
    from distgp.data.table import find
    from distgp.files.model_file import check_name

    check_name(given.output)
    terminal.refuse_existing(given.force, given.output)
    terminal.refuse_input(given.output, *find(given.data).paths)
    by, columns = o.columns_given(given)
    ordering = [name for name in (given.time, given.groups) if name in columns["drop"]]
    begin, model = perf_counter(), o.regressor(given)
    with o.open_engine(given) as engine:
        model.set_params(engine=engine)
        dropped = fit_table(
            model, given.data, given.target, given.partition_column, given.missing, by, **columns
        )
        terminal.tell_dropped(dropped, given.json)
        terminal.tell(
            f"{', '.join(ordering)}: says which rows are held out, and is not an input; --features can "
            "list it as one",
            bool(ordering) and not given.json,
        )
        model.save(given.output)
        report = {
            "model": str(given.output),
            "rows": model.experts_.row_count(),
            "dropped": dropped,
            "features": list(model.feature_names_in_),
            "n_experts": model.n_experts_,
            "n_inducing": model.n_inducing_,
            "aggregation": model.aggregation_.name,
            **_about_fit(model, given.json),
            "bytes": engine.traffic.total() or None,
            "seconds": perf_counter() - begin,
        }
    terminal.print_figures(report, given.json)


def predict(given: o.Given) -> None:
    """Predict a table of any length in pieces: its columns, and mean, std, lower and upper."""
    from distgp.cli.streaming import predict_table

    terminal.refuse_existing(given.force, given.output)
    terminal.refuse_input(given.output, given.model)
    model, begin = distgp.load(given.model), perf_counter()
    options = {name: vars(given)[name] for name in ("interval", "prefix", "latent")}
    options |= _reading(given, model)
    rows, dropped = predict_table(model, given.data, given.output, **options)
    terminal.tell_dropped(dropped, given.json)
    seconds = perf_counter() - begin
    report = {"output": str(given.output), "rows": rows, "dropped": dropped, "seconds": seconds}
    terminal.print_figures(report, given.json)


def score(given: o.Given) -> None:
    """Compare predictions with the target column of a table: RMSE, R², NLPD, coverage."""
    from distgp.cli.streaming import score_table

    model = distgp.load(given.model)
    figures = score_table(model, given.data, target=given.target, **_reading(given, model))
    terminal.tell_dropped(figures["dropped"], given.json)
    terminal.print_figures(figures, given.json)


def _reading(given: o.Given, model: DistributedGPRegressor) -> dict[str, Any]:
    """Return the options with which tables are predicted and scored; some default to the model's own."""
    return {
        "missing": given.missing or getattr(model, "missing", "refuse"),
        "unknown": given.unknown_categories or getattr(model, "unknown", "refuse"),
        "show": o.shows_progress(given),
        "aggregation": given.aggregation,
    }


def compare(given: o.Given) -> None:
    """Fit experts once and compare aggregators, the full GP and baselines on held-out rows."""
    from distgp.cli.streaming import row_values
    from distgp.data import rows
    from distgp.data.table import Table

    csv, picture = (Path(f"{given.output}{suffix}") for suffix in (".csv", ".png"))
    terminal.refuse_existing(given.force, csv, picture)
    by, columns = o.columns_given(given)
    model, source = o.regressor(given), Table.open(given.data)
    for written in (csv, picture):
        terminal.refuse_input(written, *source.paths)
    table = source.read(columns["categorical"])
    X, y, learnt, keep = rows.learnt(
        table, None, missing=given.missing, target=given.target, **columns
    )
    terminal.tell_dropped(int((~keep).sum()), given.json)
    if given.expert == "auto":  # all aggregators are to be compared, not ways to fit
        model.set_params(expert=expert_for(len(X)))
    with o.open_engine(given) as engine:
        results = comparison.on_split(
            model.set_params(engine=engine),
            X,
            y,
            given.test,
            given.seed,
            verbose=o.shows_progress(given),
            validation=given.validation,
            columns=learnt,
            **row_values(table, by, keep),
        )
        others, kind = comparison.left_out(model), comparison.expert_of(model)
    _write_both(results, csv, picture)
    if given.json:
        listed = [vars(result) for result in results]
        terminal.print_figures({"results": listed, "left_out": others, "csv": str(csv)}, True)
    else:
        terminal.print_results(results, others, kind)
        typer.echo(f"{csv}, {picture}")


def _write_both(results: list[Result], csv: Path, picture: Path) -> None:
    """Write the table of a comparison and its picture, or none of them."""
    from distgp.files.writing import whole
    from distgp.plotting import comparison_figure, save_figure

    with whole(csv) as one, whole(picture) as other:
        comparison.write_csv(results, one)
        save_figure(comparison_figure(results), other)


def info(given: o.Given) -> None:
    """Describe a model file: experts, kernel in the data's units, training, relevance of columns."""
    from distgp.files import model_file

    said = distgp.load(given.model, device="cpu").summary()
    header = model_file.header(given.model)
    figures = {
        "model": str(given.model),
        "format": int(header["format"]),
        "distgp": header.get("distgp"),
        "bytes": given.model.stat().st_size,
    }
    if given.json:
        terminal.print_figures(figures | said.as_dict(), True)
    else:
        terminal.print_figures(figures, False)
        typer.echo(terminal.printable(f"\n{said}"))


def serve(given: o.Given) -> None:
    """Answer predictions over HTTP: POST /predict with JSON or Arrow, GET /info, GET /health."""
    try:
        from distgp import serve as server
    except ImportError as error:
        raise ValueError(str(error)) from error

    def ready(url: str) -> None:
        terminal.tell(f"serving {given.model.name} at {url}, until Ctrl-C", not given.quiet)

    limits = {"max_rows": given.max_rows, "max_bytes": given.max_bytes}
    names, allow = o.split_names(given.names), o.split_names(given.allow)
    log = partial(typer.echo, err=True) if given.access_log else None
    server.serve(
        given.model,
        given.host,
        given.port,
        given.device,
        ready,
        names=names,
        allow=allow,
        log=log,
        **limits,
    )


def version(given: o.Given) -> None:
    """Print the version."""
    del given
    typer.echo(distgp.__version__)


def _about_fit(model: DistributedGPRegressor, as_json: bool) -> dict[str, Any]:
    """Return the figures of a fitted model with one target: its kernel, training and choice."""
    said, choice = model.summary().targets[0], getattr(model, "choice_", None)
    found: dict[str, Any] = {"kernel": str(model.kernel_), "noise_sd": said.noise.value}
    if not as_json:
        found |= {"kernel": " + ".join(said.kernel), "file_holds": said.holds}
    if said.stopped is not None:
        found["stopped"] = said.stopped
    if choice is not None:
        named = ("rmse", "nlpd", "cover")
        found |= {f"held_out_{name}": getattr(choice.best, name) for name in named}
    if as_json:
        found["choice"] = None if choice is None else [asdict(trial) for trial in choice.trials]
    return found


def demo(given: o.Given) -> None:
    """Fit 120,000 rows, compare with boosting, compare all aggregators, draw a picture."""
    from distgp.cli.demonstration import demonstrate
    from distgp.plotting import check_suffix

    terminal.refuse_existing(given.force, given.output)
    check_suffix(given.output)
    demonstrate(given.rows, given.output, show=not given.quiet)
    typer.echo(f"picture: {given.output}")
