"""The command: `python -m experiments NAME`, from the repository's root."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

import experiments
from experiments import DataError, Options, Study, StudyError

app = typer.Typer(add_completion=False)


@app.command()
def main(
    study: Annotated[
        str,
        typer.Argument(
            help="opticom, training, posterior, synthetic-exact, synthetic-sparse, uci, complexity, "
            "consistency, or all"
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="folder; default: build/studies, or build/studies-quick"
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="a small version, in a minute or two")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="repetitions of each run")] = 10,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
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
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="no progress")] = False,
) -> None:
    """Run a study of the paper: table, pictures, and a page beside the paper's numbers.

    A study that was interrupted continues where it stopped.
    """
    with _plain_errors():
        studies = _chosen(study)
        folder = output or Path("build") / ("studies-quick" if quick else "studies")
        options = Options(quick, seeds, device, data_dir, not unverified)
        if page_only and study == "all":
            studies = [one for one in studies if (folder / f"{one.name}.csv").exists()]
        if data_dir is not None and not page_only:
            for one in studies:
                one.check(options)
        for one in studies:
            begin = time.perf_counter()
            try:
                if page_only:
                    page = experiments.rewrite_page(one, folder)
                else:
                    page = experiments.run_study(one, folder, options, jobs, show=not quiet)
                typer.echo(f"{page}  {time.perf_counter() - begin:.0f} s")
            except (DataError, StudyError) as error:
                if study != "all":
                    raise
                _tell(f"{one.name} is left out: {error}")
        experiments.write_index(folder, _chosen("all"))
        _report_failures(studies, folder)


def _report_failures(studies: Sequence[Study], folder: Path) -> None:
    """Exit with status 1 if any run of these studies failed."""
    there = [one for one in studies if (folder / f"{one.name}.csv").exists()]
    if failed := sum(experiments.failed_runs(one, folder) for one in there):
        _tell(f"{failed} runs failed; the tables say why, and running again tries them again")
        raise typer.Exit(1)


def _chosen(name: str) -> Sequence[Study]:
    """One study by its name, or all of them."""
    known = experiments.STUDIES
    if name not in (*known, "all"):
        raise ValueError(f"no study {name!r}; there are {', '.join(known)} and all")
    return [kind() for kind in known.values()] if name == "all" else [known[name]()]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """Say what the user can mend in one line, with exit status 2; warnings in one line too."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_: typer.echo(f"warning: {message}", err=True)
            yield
    except (ValueError, ArithmeticError, OSError) as error:
        _tell(str(error) or type(error).__name__)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        _tell("interrupted; the same command continues where it stopped")
        raise typer.Exit(130) from None


def _tell(said: str) -> None:
    typer.secho(f"experiments: {' '.join(said.split())}", err=True, fg=typer.colors.RED)


if __name__ == "__main__":
    app()
