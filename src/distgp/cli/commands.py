"""fit, predict, score, compare and info: a model and its table."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import typer

import distgp
from distgp.cli import options as o
from distgp.cli.terminal import (
    plain_errors,
    print_figures,
    print_results,
    refuse_existing,
    refuse_input,
    tell,
    tell_dropped,
)


def fit(
    data: o.Data,
    target: o.Target,
    output: Annotated[Path, typer.Option("--output", "-o", help="the model file to write")],
    features: o.Features = None,
    drop: o.Drop = None,
    categorical: o.Categorical = None,
    dates: o.DatesOption = o.Dates.refuse,
    missing: o.MissingOption = o.Missing.refuse,
    validation: o.ValidationOption = o.Validation.random,
    time: o.TimeColumn = None,
    groups: o.GroupsColumn = None,
    weight: o.WeightColumn = None,
    noise_variance: o.NoiseColumn = None,
    target_transform: o.TransformOption = "none",
    calibrate: o.CalibrateOption = "none",
    expert: o.ExpertOption = "auto",
    n_experts: o.Experts = "auto",
    n_inducing: o.InducingOption = "auto",
    n_neighbors: o.NeighborsOption = 128,
    aggregation: o.Aggregation = "auto",
    kernel: o.KernelOption = "matern52",
    mean: o.MeanOption = "constant",
    partition: o.PartitionOption = "random",
    partition_column: o.PartitionColumn = None,
    training: o.Training = "auto",
    n_iter: o.Rounds = None,
    learning_rate: o.Rate = None,
    fixed: o.Fixed = None,
    bounds: o.Bounds = None,
    priors: o.Priors = None,
    device: o.Device = "cpu",
    dtype: o.Dtype = "float64",
    engine: o.EngineOption = "local",
    address: o.Address = None,
    workers: o.WorkersOption = None,
    seed: o.Seed = 0,
    force: o.Force = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Fit a model to a table and write it to a file."""
    from distgp.cli.streaming import fit_table
    from distgp.data.locate import find

    with plain_errors():
        refuse_existing(force, output)
        refuse_input(output, *find(data).paths)
        columns = o.column_options(features, drop, categorical, dates)
        by, columns = o.held_out_by(validation, time, groups, columns)
        ordering = [name for name in by.values() if name in columns["drop"]]
        by, columns = o.of_rows(weight, noise_variance, by, columns)
        begin = perf_counter()
        model = distgp.DistributedGPRegressor(
            expert=expert,
            n_experts=o.number_or_word(n_experts),
            n_inducing=o.number_or_word(n_inducing),
            n_neighbors=n_neighbors,
            aggregation=aggregation,
            kernel=kernel,
            mean=mean,
            partition=partition,
            training=None if training == "none" else training,
            validation=validation.value,
            target_transform=None if target_transform == "none" else target_transform,
            calibrate=None if calibrate == "none" else calibrate,
            missing=missing.value,
            dates=dates.value,
            categorical=columns["categorical"],
            n_iter=n_iter,
            learning_rate=learning_rate,
            fixed=o.parse_fixed(fixed),
            bounds=o.parse_bounds(bounds),
            priors=o.parse_priors(priors),
            device=device,
            dtype=dtype,
            random_state=seed,
            verbose=not (quiet or as_json),
        )
        with o.open_engine(engine, address, workers, device) as opened:
            model.set_params(engine=opened)
            dropped = fit_table(model, data, target, partition_column, missing.value, by, **columns)
            tell_dropped(dropped, as_json)
            tell(
                f"{', '.join(ordering)}: says which rows are held out, and is not an input; --features can "
                "list it as one",
                bool(ordering) and not as_json,
            )
            model.save(output)
            report = {
                "model": str(output),
                "rows": model.experts_.row_count(),
                "dropped": dropped,
                "features": model.table_.features,
                "n_experts": model.n_experts_,
                "n_inducing": model.n_inducing_,
                "aggregation": model.aggregation_.name,
                **_about_fit(model, as_json),
                "bytes": opened.traffic.total() or None,
                "seconds": perf_counter() - begin,
            }
        print_figures(report, as_json)


def predict(
    model: o.ModelFile,
    data: o.Data,
    output: Annotated[Path, typer.Option("--output", "-o", help="the table to write, by suffix")],
    interval: Annotated[float, typer.Option(help="probability between lower and upper")] = 0.9,
    latent: Annotated[
        bool, typer.Option("--latent", help="of the function, without noise")
    ] = False,
    aggregation: o.OtherAggregation = None,
    prefix: Annotated[str, typer.Option(help="before mean, std, lower, upper")] = "",
    missing: o.OwnMissingOption = None,
    unknown: o.OwnUnknownOption = None,
    force: o.Force = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Predict a table of any length in pieces: its columns, and mean, std, lower and upper."""
    from distgp.cli.streaming import predict_table

    with plain_errors():
        refuse_existing(force, output)
        refuse_input(output, model)
        fitted = distgp.load(model)
        begin = perf_counter()
        rows, dropped = predict_table(
            fitted,
            data,
            output,
            interval=interval,
            prefix=prefix,
            missing=missing.value if missing else fitted.missing,
            unknown=unknown.value if unknown else fitted.unknown,
            show=not (quiet or as_json),
            latent=latent,
            aggregation=aggregation,
        )
        tell_dropped(dropped, as_json)
        seconds = perf_counter() - begin
        report = {"output": str(output), "rows": rows, "dropped": dropped, "seconds": seconds}
        print_figures(report, as_json)


def score(
    model: o.ModelFile,
    data: o.Data,
    target: Annotated[
        str | None, typer.Option(help="the column of the target; default: that of fitting")
    ] = None,
    aggregation: o.OtherAggregation = None,
    missing: o.OwnMissingOption = None,
    unknown: o.OwnUnknownOption = None,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Compare predictions with the target column of a table: RMSE, R², NLPD, coverage."""
    from distgp.cli.streaming import score_table

    with plain_errors():
        fitted = distgp.load(model)
        figures = score_table(
            fitted,
            data,
            target=target,
            missing=missing.value if missing else fitted.missing,
            unknown=unknown.value if unknown else fitted.unknown,
            show=not (quiet or as_json),
            aggregation=aggregation,
        )
        tell_dropped(figures["dropped"], as_json)
        print_figures(figures, as_json)


def compare(
    data: o.Data,
    target: o.Target,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="where to write: OUTPUT.csv and OUTPUT.png")
    ] = Path("comparison"),
    test: Annotated[float, typer.Option(help="share of rows held out for testing")] = 0.2,
    features: o.Features = None,
    drop: o.Drop = None,
    categorical: o.Categorical = None,
    dates: o.DatesOption = o.Dates.refuse,
    missing: o.MissingOption = o.Missing.refuse,
    validation: o.ValidationOption = o.Validation.random,
    time: o.TimeColumn = None,
    groups: o.GroupsColumn = None,
    expert: o.ExpertOption = "auto",
    n_experts: o.Experts = "auto",
    n_inducing: o.InducingOption = "auto",
    n_neighbors: o.NeighborsOption = 128,
    kernel: o.KernelOption = "matern52",
    mean: o.MeanOption = "constant",
    training: o.Training = "auto",
    n_iter: o.Rounds = None,
    fixed: o.Fixed = None,
    bounds: o.Bounds = None,
    priors: o.Priors = None,
    device: o.Device = "cpu",
    engine: o.EngineOption = "local",
    address: o.Address = None,
    workers: o.WorkersOption = None,
    seed: o.Seed = 0,
    force: o.Force = False,
    as_json: o.AsJson = False,
    quiet: o.Quiet = False,
) -> None:
    """Fit experts once and compare aggregators, the full GP and baselines on held-out rows."""
    from distgp.cli.streaming import row_values, training_rows
    from distgp.compare import expert_of, left_out, on_split, write_csv
    from distgp.data.table import Table
    from distgp.plotting import comparison_figure, save_figure

    with plain_errors():
        csv, picture = Path(f"{output}.csv"), Path(f"{output}.png")
        refuse_existing(force, csv, picture)
        columns = o.column_options(features, drop, categorical, dates)
        by, columns = o.held_out_by(validation, time, groups, columns)
        model = distgp.DistributedGPRegressor(
            expert=expert,
            n_experts=o.number_or_word(n_experts),
            n_inducing=o.number_or_word(n_inducing),
            n_neighbors=n_neighbors,
            kernel=kernel,
            mean=mean,
            training=None if training == "none" else training,
            validation=validation.value,
            n_iter=n_iter,
            fixed=o.parse_fixed(fixed),
            bounds=o.parse_bounds(bounds),
            priors=o.parse_priors(priors),
            device=device,
            random_state=seed,
            verbose=not (quiet or as_json),
        )
        source = Table.open(data)
        for written in (csv, picture):
            refuse_input(written, *source.paths)
        table = source.read(columns["categorical"])
        X, y, learnt, keep = training_rows(table, target, missing.value, **columns)
        tell_dropped(int((~keep).sum()), as_json)
        show = not (quiet or as_json)
        with o.open_engine(engine, address, workers, device) as opened:
            if expert == "auto":  # all aggregators are to be compared, not ways to fit
                model.set_params(expert=auto.expert(len(X)))
            results = on_split(
                model.set_params(engine=opened),
                X,
                y,
                test,
                seed,
                verbose=show,
                validation=validation.value,
                columns=learnt,
                **row_values(table, by, keep),
            )
            others, kind = left_out(model), expert_of(model)
        write_csv(results, csv)
        save_figure(comparison_figure(results), picture)
        if as_json:
            listed = [vars(result) for result in results]
            print_figures({"results": listed, "left_out": others, "csv": str(csv)}, True)
        else:
            print_results(results, others, kind)
            typer.echo(f"{csv}, {picture}")


def info(model: o.ModelFile, as_json: o.AsJson = False) -> None:
    """Describe a model file: experts, kernel in the data's units, training, relevance of columns."""
    from distgp import persistence
    from distgp.summary import summary

    with plain_errors():
        said = summary(distgp.load(model, device="cpu"))
        header = persistence.header(model)
        figures: dict[str, Any] = {
            "model": str(model),
            "format": int(header["format"]),
            "distgp": header.get("distgp"),
            "bytes": model.stat().st_size,
        }
        if as_json:
            print_figures(figures | said.as_dict(), True)
        else:
            print_figures(figures, False)
            typer.echo(f"\n{said}")


def _about_fit(model: distgp.DistributedGPRegressor, as_json: bool) -> dict[str, Any]:
    """How training and the choice of a model with one target went: figures for the report."""
    from distgp.summary import STOPPED, noise_sd, summary

    fitted = model.model_.targets[0]
    found: dict[str, Any] = {"kernel": str(model.kernel_), "noise_sd": noise_sd(fitted)}
    if not as_json:
        said = summary(model).targets[0]
        found |= {"kernel": " + ".join(said.kernel), "file_holds": said.holds}
    if fitted.training is not None:
        found["stopped"] = STOPPED.get(fitted.training.stopped, fitted.training.stopped)
    choice = getattr(model, "choice_", None)
    if choice is None:
        return found | ({"choice": None} if as_json else {})
    best = choice.best
    found |= {
        "held_out_rmse": best.rmse,
        "held_out_nlpd": best.nlpd,
        "held_out_cover": best.cover,
    }
    if as_json:
        found["choice"] = [asdict(trial) for trial in choice.trials]
    return found


def version() -> None:
    """Print the version."""
    typer.echo(distgp.__version__)
