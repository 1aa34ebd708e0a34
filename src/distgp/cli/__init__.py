"""The command line: parse, call, print."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from distgp._version import __version__

COMMANDS = {
    "fit": "Fit a model to a table and write it to a file.",
    "predict": "Predict a table of any length in pieces: its columns, and mean, std, lower and upper.",
    "score": "Compare predictions with the target column of a table: RMSE, R², NLPD, coverage.",
    "compare": "Fit experts once and compare aggregators, the full GP and baselines on held-out rows.",
    "info": "Describe a model file: experts, kernel in the data's units, training, relevance of columns.",
    "serve": "Answer predictions over HTTP: POST /predict with JSON or Arrow, GET /info, GET /health.",
    "demo": "Fit 120,000 rows, compare with boosting, compare all aggregators, draw a picture.",
    "version": "Print the version.",
}
"""What each command does, in the order in which they are listed."""


class Commands(TyperGroup):
    """Commands of which the one that is called gets its options: they take seconds to import."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[Any, Any, list[str]]:
        """Find the command that is called, and give it its options."""
        name, found, rest = super().resolve_command(ctx, args)
        return name, None if found is None else _with_options(str(found.name)), rest


def _with_options(name: str) -> object:
    """Return the command of this name, with its options."""
    from distgp.cli import commands
    from distgp.cli.options import command

    alone = _app()
    alone.command()(command(getattr(commands, name)))
    return typer.main.get_command(alone)


def _app(**options: Any) -> typer.Typer:
    """Return commands in plain text."""
    plain: dict[str, Any] = {"pretty_exceptions_enable": False, "rich_markup_mode": None}
    return typer.Typer(add_completion=False, **plain, **options)


app = _app(no_args_is_help=True, cls=Commands)


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(__version__)
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


for name, does in COMMANDS.items():
    app.command(name, help=does)(lambda: None)


def main() -> None:
    """Run the `distgp` command with the arguments of this process."""
    for stream in (sys.stdout, sys.stderr):  # what their encoding lacks is shown as "?"
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app()
    except KeyboardInterrupt:  # before or after the command's own work
        sys.exit(130)
