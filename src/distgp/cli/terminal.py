"""What is said to the user: figures, progress, and errors as one line."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from distgp.engines import EngineError

errors = Console(stderr=True, highlight=False)


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
