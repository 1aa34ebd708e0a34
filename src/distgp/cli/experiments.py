"""paper: the experiments."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from distgp.cli.options import (
    Device,
    Quiet,
)
from distgp.cli.terminal import (
    plain_errors,
    tell_error,
)


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
        StudyError,
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
        chosen = made if study == "all" else [STUDIES[study]()]
        if data_dir is not None and not page_only:
            for one in chosen:
                one.check(options)
        for one in chosen:
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
            except StudyError as error:
                if study != "all":
                    raise
                tell_error(str(error))
                failed += failed_runs(one, folder)
                continue
            typer.echo(f"{page}  {time.perf_counter() - begin:.0f} s")
            failed += failed_runs(one, folder)
        write_index(folder, made)
        if failed:
            tell_error(
                f"{failed} runs failed; the tables say why, and running again tries them again"
            )
            raise typer.Exit(1)
