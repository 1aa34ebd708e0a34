"""Progress on a terminal: round, objective, time left. Silent where nobody looks."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """A progress bar on standard error, if that is a terminal and `show` asks for it."""

    def __init__(self, name: str, rounds: int, show: bool) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[objective]}"),
            TimeRemainingColumn(),
            console=console,
            disable=not (show and sys.stderr.isatty()),
        )
        self._task = self._bar.add_task(name, total=rounds, objective="")

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.stop()

    def advance(self, objective: float) -> None:
        """One round more."""
        self._bar.update(self._task, advance=1, objective=f"objective {objective:.6g}")
