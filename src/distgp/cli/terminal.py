"""Figures, tables and one-line errors for the user to read."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.table import Table as Grid

from distgp.data.encoding import NewTextWarning
from distgp.diagnostics.calibration import NegativeBoundWarning
from distgp.diagnostics.novelty import NoveltyWarning
from distgp.engines import EngineError
from distgp.files.writing import check_writable

if TYPE_CHECKING:
    from distgp.diagnostics.compare import Result

LONGEST = 160
"""Characters that people are shown of one figure; --json has all of it."""
errors = Console(stderr=True, highlight=False, width=100)  # lines are not wrapped at it


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors and warnings of the block into one line each, and errors into an exit code.

    2 is for what the user can mend, 1 for a mistake of our own, 130 for an interruption, and 128 and the
    signal's number where the process is told to end. Readers that leave, as `head` does, are no error.
    """
    try:
        with warnings.catch_warnings(), _ended_by_signals():
            warnings.showwarning = _teller()
            yield
            _flush()
    except BrokenPipeError:
        _leave_output()
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        code, text = _judged(error)
        _print_line(f"distgp: {in_options(text)}", "red")
        raise typer.Exit(code) from None
    except KeyboardInterrupt:
        _print_line("distgp: interrupted")
        raise typer.Exit(130) from None


def _flush() -> None:
    """Write out what was printed, where there is a standard output that can be written to."""
    if sys.stdout is None:  # closed by whoever started us
        return
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _leave_output()
        raise OSError(f"cannot write to standard output: {error.strerror}") from error


def _leave_output() -> None:
    """Have what is flushed at exit go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def printable(text: str) -> str:
    """Return a text with its control characters, by which a file could write to the terminal, spelt out."""
    return "".join(c if c.isprintable() or c == "\n" else ascii(c)[1:-1] for c in text)


SAME = ("missing", "dates", "categorical", "validation", "calibrate", "expert", "kernel", "mean")
LONGER = ("n_iter", "n_experts", "n_inducing", "time_limit", "noise_variance", "target_transform")
OPTIONS = {name: f"--{name.replace('_', '-')}" for name in (*SAME, *LONGER, "groups")}
OPTIONS |= {"unknown": "--unknown-categories", "sample_weight": "--weight"}
"""The options by which the command line says what parameters say in messages of the library."""
OF_COLUMNS = ("noise_variance", "sample_weight", "groups")
"""Parameters with a value for each row, whose options take the name of a column."""
QUOTED = r"""(?<!\w)(?:'(?:[^'\\]|\\.|'(?=\w))*'|"(?:[^"\\]|\\.)*")"""
"""A text in quotes, as Python writes it. An apostrophe within a word neither begins nor ends it."""
NOT_IN_A_PATH = r"(?<![\w./\\-])"
GIVEN = (
    rf"{NOT_IN_A_PATH}(?P<name>{'|'.join(OPTIONS)})=(?P<value>{QUOTED}|\[{QUOTED}(?:, {QUOTED})*\])"
)
NAMED = (
    rf"{NOT_IN_A_PATH}(?P<bare>{'|'.join(LONGER)}|sample_weight|groups(?==))"
    r"(?:(?P<equals>=)(?!\S*/)|\b(?![=/\\-]|\.\w))"
)
MEANT = re.compile(f"{GIVEN}|{NAMED}|{QUOTED}")


def in_options(text: str) -> str:
    """Say in options of the command line what a message of the library says in parameters.

    What is in quotes, such as names of columns, and paths stay as they are.
    """
    column = re.match(f"column ({QUOTED})", text)
    text = MEANT.sub(lambda found: _in_option(found, text[found.end() :]), text)
    drop = "" if column is None else f" (--drop {_values(column[1])})"
    return text.replace("leave it out", f"leave it out{drop}")


def _in_option(found: re.Match[str], rest: str) -> str:
    """The option for a parameter that was found, with its value or before the rest of the text."""
    if found["name"]:
        return f"{OPTIONS[found['name']]} {_values(found['value'])}"
    if not found["bare"]:
        return found[0]
    if not found["equals"] or not re.match(r"\w|…", rest):
        return OPTIONS[found["bare"]]
    per_row = found["bare"] in OF_COLUMNS and rest[0] != "…"
    return f"{OPTIONS[found['bare']]} {'with a column of ' * per_row}"


def _values(text: str) -> str:
    """Return texts without their quotes, separated by commas, as a shell takes them."""
    found = ",".join(quoted[1:-1] for quoted in re.findall(QUOTED, text))
    return shlex.quote(found)


def _judged(error: Exception) -> tuple[int, str]:
    """Return the exit code of an error, and the text that tells of it."""
    import pyarrow as pa

    kind, said = type(error).__name__, str(error)
    if isinstance(error, (ValueError, ArithmeticError, OSError, pa.ArrowException, EngineError)):
        return 2, said or kind
    marks = ("allocate memory", "out of memory", "bad_alloc")  # PyTorch says it in the text alone
    if isinstance(error, MemoryError) or any(mark in said.lower() for mark in marks):
        return 2, f"out of memory: use fewer rows or inducing inputs, or more experts ({said})"
    return 1, f"unexpected {kind}: {said} (this is a bug in distgp)"


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the block as an exception does, unless `nohup` has them ignored."""

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


ABOUT_ROWS = (NoveltyWarning, NewTextWarning, NegativeBoundWarning)
"""Warnings that every piece of a large table to predict would repeat."""


def _teller() -> Callable[..., None]:
    """Return a function that prints warnings as one line each; about new rows, of a first piece alone."""
    told: set[type[Warning]] = set()

    def tell_warning(message: Warning | str, category: type[Warning], *details: object) -> None:
        del details
        if not (issubclass(category, ABOUT_ROWS) and category in told):
            _print_line(f"warning: {in_options(str(message))}", "yellow")
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
    """Refuse to overwrite, and to write where nothing can be written, before any work is done."""
    for path in paths:
        if path.is_file() and not force:
            raise ValueError(f"{path} exists already: choose another name, or give --force")
        check_writable(path)


def refuse_input(output: Path, *inputs: Path | str) -> None:
    """Refuse to write the result over what it is made from, under any of its names, even with --force."""
    for path in inputs:
        if output.exists() and os.path.exists(path) and output.samefile(path):
            raise ValueError(f"{output} is read by this command: give another name to write to")


def print_figures(figures: dict[str, Any], as_json: bool) -> None:
    """Print named figures: one line each for people, long ones cut, one JSON object for programs."""
    if as_json:  # JSON has no infinity and no NaN: null stands for them
        finite = json.loads(json.dumps(figures), parse_constant=lambda _: None)
        typer.echo(json.dumps(finite))
        return
    width = max(12, *map(len, figures))
    for name, value in figures.items():
        if value is not None and not (name == "dropped" and not value):
            text = f"{value:.6g}" if isinstance(value, float) else value
            text = ", ".join(map(str, text)) if isinstance(text, list) else str(text)
            text = text if name == "model" or len(text) <= LONGEST else f"{text[:LONGEST]} …"
            typer.echo(printable(f"{name:{width}s} {text}"))


def print_results(
    results: Sequence[Result], left_out: Sequence[str] = (), expert: str = ""
) -> None:
    """Print a comparison as a table, baselines last, and below it why some aggregators are not there."""
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
