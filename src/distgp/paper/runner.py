"""Runs a study: resumes, records failures, writes table, pictures and page; whole or not at all."""

from __future__ import annotations

import csv
import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

import distgp
from distgp.files import whole
from distgp.paper.download import DataError
from distgp.paper.study import Cell, Options, Row, Study, key_of
from distgp.plotting import save_figure

ALONE = "alone"
"""A coordinate that says that no other run may go on beside: it measures time."""
QUICK = (
    "*A quick run: small sizes and few draws. What the text concludes is of the whole study.*\n\n"
)
CELL = "cell"
"""The column that identifies a run's cell."""


class StudyError(ArithmeticError):
    """No run of a study came to anything."""


def run_study(
    study: Study, folder: Path, options: Options, jobs: int = 1, show: bool = True
) -> Path:
    """Run what is missing, then write everything; returns the page."""
    _check_device(options.device)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{study.name}.csv"
    cells = study.cells(options)
    wanted = {key_of(cell) for cell in cells}
    rows = [row for row in read_rows(path) if row["status"] == "ok"] if path.exists() else []
    if others := {row[CELL] for row in rows} - wanted:
        raise ValueError(
            f"{path} holds {len(others)} runs that do not belong to this one (another --quick, more "
            "--seeds, or another version): choose another --output, or remove the file"
        )
    done = {row[CELL] for row in rows}
    missing = [cell for cell in cells if key_of(cell) not in done]
    if missing:
        study.check(options)
    with _bar(study.name, len(cells), len(cells) - len(missing), show) as advance:
        for found in _results(study, missing, options, jobs):
            rows = [*rows, *found]
            write_rows(path, rows)
            advance()
    if not any(row["status"] == "ok" for row in rows):
        raise StudyError(f"every run of {study.name} failed; the first: {rows[0]['error']}")
    order = {key_of(cell): i for i, cell in enumerate(cells)}
    rows = sorted(rows, key=lambda row: order[row[CELL]])
    write_rows(path, rows)
    return write_page(study, folder, read_rows(path), QUICK if options.quick else "")


def write_page(study: Study, folder: Path, rows: Sequence[Row], note: str = "") -> Path:
    """The pictures and the page of these results."""
    pictures = study.figures(rows)
    for name, figure in pictures.items():
        for suffix in ("pdf", "png"):  # the last one closes the figure
            save_figure(figure, folder / f"{study.name}-{name}.{suffix}", close=suffix == "png")
    shown = "\n\n".join(f"![{name}]({study.name}-{name}.png)" for name in pictures)
    versions = sorted(
        {f"distgp {row['distgp']}, torch {row['torch']}, {row['device']}" for row in rows}
    )
    origin = f"Made by `distgp paper {study.name}`; every run is in `{study.name}.csv` ({'; '.join(versions)})."
    page = folder / f"{study.name}.md"
    with whole(page) as part:
        text = f"# {study.title}\n\n{note}{study.page(rows).strip()}\n\n{shown}\n\n{origin}\n"
        Path(part).write_text(text, encoding="utf-8")
    return page


def rewrite_page(study: Study, folder: Path) -> Path:
    """The page of a table that is there, be it whole or not."""
    path = folder / f"{study.name}.csv"
    if not path.exists():
        raise FileNotFoundError(f"there is no table {path}: run the study first")
    rows = read_rows(path)
    done = {row[CELL] for row in rows if row["status"] == "ok"}
    wanted = {key_of(cell) for cell in study.cells(Options())}
    note = ""
    if done & wanted and wanted - done:
        note = f"*{len(done)} of the {len(wanted)} runs of the whole study are here.*\n\n"
    return write_page(study, folder, rows, note)


def failed_runs(study: Study, folder: Path) -> int:
    """How many runs of a table failed."""
    return sum(row["status"] == "failed" for row in read_rows(folder / f"{study.name}.csv"))


def run_cell(study: Study, cell: Cell, options: Options) -> list[Row]:
    """One cell's rows, with versions; a failure is a row too."""
    about = {
        "distgp": distgp.__version__,
        "torch": torch.__version__,
        "device": _device_name(options.device),
        CELL: key_of(cell),
    }
    try:
        rows = study.run(cell, options)
        found = [cell | about | row | {"status": "ok", "error": ""} for row in rows]
    except DataError:
        raise  # nothing to record: no cell can run without its data
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        message = f"{type(error).__name__}: {error} ({where})"
        found = [cell | about | {"status": "failed", "error": message}]
    return found


def read_rows(path: Path) -> list[Row]:
    """A table as it was written, numbers as numbers."""
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
    """A tidy table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    last = [
        name for name in ("status", "error", "distgp", "torch", "device", CELL) if name in names
    ]
    names = [name for name in names if name not in last] + last
    with whole(path) as part, Path(part).open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)


def _results(
    study: Study, cells: Sequence[Cell], options: Options, jobs: int
) -> Iterator[list[Row]]:
    if jobs <= 1 or study.timed:
        for cell in cells:
            yield run_cell(study, cell, options)
        return
    alone = [cell for cell in cells if cell.get(ALONE)]
    for cell in alone:
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


def write_index(folder: Path, studies: Sequence[Study]) -> Path:
    """A page that names all pages that are there."""
    there = [study for study in studies if (folder / f"{study.name}.md").exists()]
    lines = "\n".join(f"- [{study.title}]({study.name}.md)" for study in there)
    page = folder / "index.md"
    with whole(page) as part:
        text = f"# The paper's experiments\n\nEach page puts what the paper says beside what came out here.\n\n{lines}\n"
        Path(part).write_text(text, encoding="utf-8")
    return page


def _check_device(device: str) -> None:
    try:
        torch.zeros((), device=device)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {device!r} is not to be had here: {error}") from error


def _one_thread() -> None:
    torch.set_num_threads(1)


def _device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else device


def _parsed(value: str | None) -> Any:
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


class _bar:
    """Progress: a bar on a terminal, else a line for every tenth of the way."""

    def __init__(self, name: str, total: int, done: int, show: bool) -> None:
        self._console = Console(stderr=True, highlight=False)
        self._show, self._name, self._total, self._done = show, name, total, done
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self._console,
            disable=not (show and self._console.is_terminal),
        )
        self._task = self._progress.add_task(name, total=total, completed=done)

    def __enter__(self) -> Callable[[], None]:
        self._progress.start()
        return self._advance

    def _advance(self) -> None:
        self._done += 1
        self._progress.update(self._task, advance=1)
        step = max(1, self._total // 10)
        if self._show and not self._console.is_terminal and self._done % step == 0:
            self._console.print(f"{self._name}: {self._done} of {self._total}")

    def __exit__(self, *error: object) -> None:
        self._progress.stop()
