"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

LINE_SECONDS = 10.0  # where there is no terminal, at most one line is written in this many seconds


class Progress:
    """A counter of steps that tells the user, on standard error and if to `show`, how far the work is."""

    def __init__(self, title: str, total: int | None = None, show: bool = True) -> None:
        self.title, self.total, self.show = title, total, show
        self.done = 0
        self._said, self._text = 0, ""
        self._console = Console(stderr=True, highlight=False)
        self._last_line = time.monotonic()
        self._bar = self._make_bar() if show and self._console.is_terminal else None

    def _make_bar(self) -> RichProgress:
        """A bar where the total is known, else a count with the time that has passed."""
        title, text = TextColumn("{task.description}"), TextColumn("{task.fields[text]}")
        if self.total is None:
            columns = title, TextColumn("{task.completed:,.0f}"), TimeElapsedColumn(), text
        else:
            columns = title, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), text
        bar = RichProgress(*columns, console=self._console, transient=self.total is None)
        self._task = bar.add_task(self.title, total=self.total, text="")
        return bar

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self.show and error is None and self.done != self._said:
            self._write_line()  # work may end before the last step, or sooner than a line is due

    def advance(self, amount: int = 1, text: str = "") -> None:
        """Count steps done since the last call, and show a text, such as the objective, beside them."""
        self.done += amount
        if self._bar is not None:
            self._bar.update(self._task, advance=amount, text=text)
        elif self.show:
            self._text = text
            finished = self.done == self.total
            if finished or time.monotonic() - self._last_line >= LINE_SECONDS:
                self._write_line()

    def _write_line(self) -> None:
        """Say in one plain line how far the work has come."""
        self._last_line, self._said = time.monotonic(), self.done
        of_all = "" if self.total is None else f" of {self.total:,}"
        said = f": {self._text}" if self._text else ""
        self._console.print(f"{self.title}: {self.done:,}{of_all}{said}", soft_wrap=True)
