"""Runs studies: continues where it was interrupted, records failures, writes table, pictures and page."""

from __future__ import annotations

import csv
import multiprocessing
import traceback
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch

import distgp
from distgp._util.progress import Progress
from distgp.files.writing import whole
from distgp.plotting import save_figure
from experiments.download import DataError
from experiments.study import Cell, Options, Row, Study, key_of

ALONE = "alone"
"""The coordinate of runs that measure time, beside which no other may run."""
CELL = "cell"
"""The column that identifies a row's run."""
LAST_COLUMNS = ("status", "error", "distgp", "torch", "device", CELL)
QUICK = (
    "*A quick run: small sizes and few draws. What the text concludes is of the whole study.*\n\n"
)


class StudyError(ArithmeticError):
    """Every run of a study failed."""


def run_study(
    study: Study, folder: Path, options: Options, jobs: int = 1, show: bool = True
) -> Path:
    """Compute the runs of a study that its table does not hold yet, then write pictures and page.

    The table is written after every run, so that an interrupted study continues where it stopped.
    A run that fails is recorded with its error; the next call tries it again.

    Parameters
    ----------
    study : Study
        What to run.
    folder : Path
        The folder for table, pictures and page. It is made if it is missing.
    options : Options
        What the user chose.
    jobs : int, default=1
        The number of processes that share the runs.
    show : bool, default=True
        Whether to show progress.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    ValueError
        If the device is not there, or the table belongs to another study or other options.
    StudyError
        If every run failed.
    """
    _check_device(options.device)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{study.name}.csv"
    cells = study.cells(options)
    rows = _finished(path, {key_of(cell) for cell in cells})
    done = {row[CELL] for row in rows}
    missing = [cell for cell in cells if key_of(cell) not in done]
    if missing:
        study.check(options)
    with Progress(study.name, len(cells), show) as progress:
        progress.advance(len(cells) - len(missing))
        for found in _results(study, missing, options, jobs):
            rows = [*rows, *found]
            write_rows(path, rows)
            progress.advance()
    if not any(row["status"] == "ok" for row in rows):
        raise StudyError(f"every run of {study.name} failed; the first: {rows[0]['error']}")
    order = {key_of(cell): i for i, cell in enumerate(cells)}
    write_rows(path, sorted(rows, key=lambda row: order[row[CELL]]))
    return _write_page(study, folder, read_rows(path), QUICK if options.quick else "")


def rewrite_page(study: Study, folder: Path) -> Path:
    """Write pictures and page of a table that is there, be it finished or not.

    Parameters
    ----------
    study : Study
        The study that the table belongs to.
    folder : Path
        The folder of the table.

    Returns
    -------
    Path
        The page.
    """
    path = folder / f"{study.name}.csv"
    if not path.exists():
        raise FileNotFoundError(f"there is no table {path}: run the study first")
    rows = read_rows(path)
    done = {row[CELL] for row in rows if row["status"] == "ok"}
    wanted = {key_of(cell) for cell in study.cells(Options())}
    note = ""
    if done & wanted and wanted - done:
        note = f"*{len(done)} of the {len(wanted)} runs of the whole study are here.*\n\n"
    return _write_page(study, folder, rows, note)


def write_index(folder: Path, studies: Sequence[Study]) -> Path:
    """Write a page with links to those of these studies that have a page in the folder."""
    there = [study for study in studies if (folder / f"{study.name}.md").exists()]
    lines = "\n".join(f"- [{study.title}]({study.name}.md)" for study in there)
    page = folder / "index.md"
    with whole(page) as part:
        text = f"# The paper's experiments\n\nEach page puts what the paper says beside what came out here.\n\n{lines}\n"
        part.write_text(text, encoding="utf-8")
    return page


def failed_runs(study: Study, folder: Path) -> int:
    """Count the runs of a study's table that failed."""
    return sum(row["status"] == "failed" for row in read_rows(folder / f"{study.name}.csv"))


def run_cell(study: Study, cell: Cell, options: Options) -> list[Row]:
    """Compute one run.

    Parameters
    ----------
    study : Study
        The study that the run belongs to.
    cell : Cell
        The run's coordinates.
    options : Options
        What the user chose.

    Returns
    -------
    list of Row
        The results with coordinates, versions and device; one row with the error where it failed.

    Raises
    ------
    DataError
        If the data cannot be had, since then no other run can succeed either.
    """
    about = {
        "distgp": distgp.__version__,
        "torch": torch.__version__,
        "device": _device_name(options.device),
        CELL: key_of(cell),
    }
    try:
        rows = study.run(cell, options)
        return [cell | about | row | {"status": "ok", "error": ""} for row in rows]
    except DataError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{Path(last.filename).name}:{last.lineno}"
        message = f"{type(error).__name__}: {error} ({line})"
        return [cell | about | {"status": "failed", "error": message}]


def read_rows(path: Path) -> list[Row]:
    """Read a study's table, numbers as numbers.

    Parameters
    ----------
    path : Path
        The table.

    Returns
    -------
    list of Row

    Raises
    ------
    ValueError
        If the file is damaged, or not the table of a study.
    """
    remedy = "remove it, or choose another --output"
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [
                {name: value if name == CELL else _parsed(value) for name, value in row.items()}
                for row in csv.DictReader(file, restkey="beyond", strict=True)
            ]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no table of a study ({error}): {remedy}") from error
    if not rows or not {CELL, "status", "device"} <= rows[0].keys():
        raise ValueError(f"{path} is no table of a study: {remedy}")
    for line, row in enumerate(rows, 2):
        if row["status"] not in ("ok", "failed") or not row[CELL] or "beyond" in row:
            raise ValueError(f"{path} is damaged at its row {line}: {remedy}")
    return rows


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Write a study's table: coordinates and results first, versions and identity last."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    last = [name for name in LAST_COLUMNS if name in names]
    names = [name for name in names if name not in last] + last
    with whole(path) as part, part.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _finished(path: Path, wanted: set[str]) -> list[Row]:
    """The successful rows of an earlier attempt, all of runs that are wanted."""
    rows = [row for row in read_rows(path) if row["status"] == "ok"] if path.exists() else []
    if others := {row[CELL] for row in rows} - wanted:
        raise ValueError(
            f"{path} holds {len(others)} runs that do not belong to this one (another --quick, more "
            "--seeds, or another version): choose another --output, or remove the file"
        )
    return rows


def _write_page(study: Study, folder: Path, rows: Sequence[Row], note: str) -> Path:
    pictures = study.figures(rows)
    for name, figure in pictures.items():
        for suffix in ("pdf", "png"):  # the last one closes the figure
            save_figure(figure, folder / f"{study.name}-{name}.{suffix}", close=suffix == "png")
    shown = "\n\n".join(f"![{name}]({study.name}-{name}.png)" for name in pictures)
    versions = sorted(
        {f"distgp {row['distgp']}, torch {row['torch']}, {row['device']}" for row in rows}
    )
    origin = f"Made by `python -m experiments {study.name}`; every run is in `{study.name}.csv` ({'; '.join(versions)})."
    page = folder / f"{study.name}.md"
    with whole(page) as part:
        text = f"# {study.title}\n\n{note}{study.page(rows).strip()}\n\n{shown}\n\n{origin}\n"
        part.write_text(text, encoding="utf-8")
    return page


def _results(
    study: Study, cells: Sequence[Cell], options: Options, jobs: int
) -> Iterator[list[Row]]:
    """The rows of each run as it ends; those that measure time first, one at a time."""
    if jobs <= 1 or study.timed:
        for cell in cells:
            yield run_cell(study, cell, options)
        return
    for cell in cells:
        if cell.get(ALONE):
            yield run_cell(study, cell, options)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, context, _one_thread) as pool:
        together = [cell for cell in cells if not cell.get(ALONE)]
        futures = [pool.submit(run_cell, study, cell, options) for cell in together]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    torch.set_num_threads(1)


def _check_device(device: str) -> None:
    try:
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} is not available here: {error}") from error


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def _parsed(value: str | None) -> Any:
    """A cell of the table as the value that it was written from."""
    if value is None or value == "":
        return None
    if value in ("True", "False"):
        return value == "True"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
