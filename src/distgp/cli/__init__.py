"""The command line: parse, call, print."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

import distgp
from distgp.cli.commands import compare, demo, fit, info, predict, score, serve, version
from distgp.cli.options import command

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(distgp.__version__)
        raise typer.Exit


@app.callback(help="Gaussian process regression for data too large for one GP.")
def before_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_print_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Take what is given before a command."""
    del version


for run in (fit, predict, score, compare, info, serve, demo, version):
    app.command()(command(run))


def main() -> None:
    """Run the `distgp` command with the arguments of this process."""
    for stream in (sys.stdout, sys.stderr):  # what their encoding lacks is shown as "?"
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except KeyboardInterrupt:  # before or after the command's own work
        sys.exit(130)
