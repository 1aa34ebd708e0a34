"""Progress of long work: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as RichProgress

LINE_SECONDS = 10.0
"""Where there is no terminal, at most one line is written in this many seconds."""


class Progress:
    """A counter of steps that tells the user, on standard error, how far the work has come.

    Parameters
    ----------
    title : str
        What is being done.
    total : int, optional
        The number of steps, where it is known.
    show : bool, default=True
        Whether to say anything at all.

    Examples
    --------
    >>> with Progress("training", total=3, show=False) as progress:
    ...     for _ in range(3):
    ...         progress.advance(text="objective 1.5")
    """

    def __init__(self, title: str, total: int | None = None, show: bool = True) -> None:
        self.title, self.total, self.show = title, total, show
        self.done = 0
        self._said, self._text = 0, ""
        self._console = Console(stderr=True, highlight=False)
        self._last_line = time.monotonic()
        terminal = show and self._console.is_terminal
        self._bar = self._make_bar() if terminal else None

    def _make_bar(self) -> RichProgress:
        """A bar where the total is known, else a count with the time that has passed."""
        known = self.total is not None
        columns = (
            (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            if known
            else (TextColumn("{task.completed:,.0f}"), TimeElapsedColumn())
        )
        text = TextColumn("{task.fields[text]}")
        bar = RichProgress(
            TextColumn("{task.description}"),
            *columns,
            text,
            console=self._console,
            transient=not known,
        )
        self._task = bar.add_task(self.title, total=self.total, text="")
        return bar

    def __enter__(self) -> Progress:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
        elif self.show and error is None and self.done != self._said:
            self._write_line()  # work may end before the last step, or sooner than a line is due

    def advance(self, amount: int = 1, text: str = "") -> None:
        """Count steps.

        Parameters
        ----------
        amount : int, default=1
            The number of steps done since the last call.
        text : str, optional
            What to show beside the count, such as the current objective.
        """
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
