"""What the user reads: figures and tables, and every error as one line."""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from distgp.compare import Result
from distgp.engines import EngineError
from distgp.files import check_writable
from distgp.novelty import NoveltyWarning

LONGEST = 160
"""Characters that people are shown of one figure; --json has all of it."""
errors = Console(stderr=True, highlight=False, width=100)  # lines are not wrapped at it


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors and warnings of the block into one line each, and errors into an exit code.

    2 is for what the user can mend, 1 for a mistake of our own, 130 for an interruption, and 128 and the
    signal's number where the process is told to end; what was being written is removed then. Readers
    that leave before the end, as `head` does, are no error.
    """
    import pyarrow as pa

    mendable = (ValueError, ArithmeticError, OSError, pa.ArrowException, EngineError)
    try:
        with warnings.catch_warnings(), _ended_by_signals():
            warnings.showwarning = _teller()
            yield
            sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for what is flushed at exit
        raise typer.Exit(0) from None
    except mendable as error:
        tell_error(str(error) or type(error).__name__)
        raise typer.Exit(2) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if _out_of_memory(error):
            tell_error(
                f"out of memory: use fewer rows or inducing inputs, or more experts ({error})"
            )
            raise typer.Exit(2) from None
        kind = type(error).__name__
        tell_error(f"unexpected {kind}: {error} (this is a mistake of distgp's own)")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        _print_line("distgp: interrupted")
        raise typer.Exit(130) from None


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the block as an exception does, so that it can tidy up.

    A signal that is ignored, as SIGHUP is under `nohup`, stays so.
    """

    def end(number: int, frame: object) -> None:
        del frame
        raise SystemExit(128 + number)

    numbers = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    heard = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    try:
        before = {number: signal.signal(number, end) for number in heard}
    except ValueError:  # only the main thread may
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _out_of_memory(error: Exception) -> bool:
    """Whether Python, PyTorch or a GPU had no memory left; PyTorch says so in the text alone."""
    said = str(error).lower()
    marks = ("allocate memory", "out of memory", "bad_alloc")
    return isinstance(error, MemoryError) or any(mark in said for mark in marks)


def tell_error(text: str) -> None:
    """Print an error as one line."""
    _print_line(f"distgp: {text}", "red")


def _teller() -> Callable[..., None]:
    """What prints warnings as one line each, without the place in the code that Python would name.

    Tables are predicted in pieces; that rows are unlike the training rows is said of the first alone.
    """
    told: set[type[Warning]] = set()

    def tell_warning(message: Warning | str, category: type[Warning], *details: object) -> None:
        del details
        if not (issubclass(category, NoveltyWarning) and category in told):
            _print_line(f"warning: {message}", "yellow")
        told.add(category)

    return tell_warning


def _print_line(text: str, style: str | None = None) -> None:
    """Print a text as one line on standard error, however many lines it has."""
    errors.print(" ".join(text.split()), style=style, markup=False, soft_wrap=True)


def tell(text: str, show: bool = True) -> None:
    """Print what is being done, beside the results: on standard error."""
    if show:
        _print_line(text)


def tell_dropped(dropped: int, as_json: bool) -> None:
    """Print how many rows were left out, where the results do not say so themselves."""
    tell(f"{dropped} rows with missing values were dropped", bool(dropped) and not as_json)


def refuse_existing(force: bool, *paths: Path) -> None:
    """Refuse to overwrite, and to write where nothing can be written, before any work is done.

    Raises
    ------
    ValueError
        If a path holds a file and `force` was not given.
    OSError
        If a path cannot be written to.
    """
    for path in paths:
        if path.is_file() and not force:
            raise ValueError(f"{path} exists already: choose another name, or give --force")
        check_writable(path)


def refuse_input(output: Path, *inputs: Path | str) -> None:
    """Refuse to write the result over what it is made from, even with --force.

    Raises
    ------
    ValueError
        If the output is one of the inputs, under any of their names.
    """
    for path in inputs:
        if output.exists() and os.path.exists(path) and output.samefile(path):
            raise ValueError(f"{output} is read by this command: give another name to write to")


def print_figures(figures: dict[str, Any], as_json: bool) -> None:
    """Print named figures: one line each for people, long ones cut, one JSON object for programs."""
    if as_json:
        typer.echo(json.dumps(_finite(figures), allow_nan=False))
        return
    width = max(12, *map(len, figures))
    for name, value in figures.items():
        if value is not None and not (name == "dropped" and not value):
            text = f"{value:.6g}" if isinstance(value, float) else value
            text = ", ".join(map(str, text)) if isinstance(text, list) else str(text)
            text = text if name == "model" or len(text) <= LONGEST else f"{text[:LONGEST]} …"
            typer.echo(f"{name:{width}s} {text}")


def _finite(value: Any) -> Any:
    """The same with null for numbers that JSON does not have: infinity and NaN."""
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def print_results(
    results: Sequence[Result], left_out: Sequence[str] = (), expert: str = ""
) -> None:
    """Print a comparison as a table, and below it why some aggregators did not take part.

    Parameters
    ----------
    results : sequence of Result
        One line each, baselines last.
    left_out : sequence of str, default=()
        The aggregators that are for other kinds of experts.
    expert : str, default=""
        The kind of the experts.
    """
    grid = Grid(box=None, pad_edge=False)
    grid.add_column("")
    for title in ("seconds", "RMSE", "NLPD", "90 % cover", "W2 to full"):
        grid.add_column(title, justify="right")
    for r in sorted(results, key=lambda r: r.baseline):
        values = (r.seconds, r.rmse, r.nlpd, r.coverage, r.w2)
        if r.error is None:
            name = f"{r.name} (baseline)" if r.baseline else r.name
            grid.add_row(name, *("" if v is None else f"{v:.4g}" for v in values))
    Console(width=100 if not sys.stdout.isatty() else None, highlight=False).print(grid)
    if left_out:
        typer.echo(f"left out, not for {expert} experts: {', '.join(left_out)}")
    for r in results:
        if r.error is not None:
            typer.echo(f"{r.name}: {r.error}")
