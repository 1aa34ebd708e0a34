"""The command line: parse, call, print."""

from __future__ import annotations

import typer

import distgp
from distgp.cli.comparing import compare, demo
from distgp.cli.experiments import paper
from distgp.cli.models import fit, predict, score

app = typer.Typer(
    help="Gaussian process regression for data too large for one GP.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def version() -> None:
    """Print the version."""
    typer.echo(distgp.__version__)


for command in (fit, predict, score, compare, demo, paper, version):
    app.command()(command)


def main() -> None:
    """The `distgp` command."""
    app()
