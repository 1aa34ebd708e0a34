"""Progress of long work, what was done by then where the user interrupts it, and words for people."""

from __future__ import annotations

import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from threading import Lock, Timer
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress


FIRST_SECONDS = 1.0
"""What is done is told when it has taken this long, even if no step of it is over."""
_BARS = Lock()
"""Held while a bar begins or ends: it may begin in a thread that has waited for that."""
LINE_SECONDS = 10.0
"""Where there is no terminal, steps are told in at most one line in this many seconds."""


class Progress:
    """A counter of steps that tells the user, on standard error and if to `show`, how far the work is.

    One bar is shown at a time: that of work inside other work hides that of the other. None is shown of
    work that is over within a second. A total that is `at_most` that many steps is told as such.
    """

    live: ClassVar[Progress | None] = None
    """The one whose bar is on the terminal."""

    def __init__(
        self, title: str, total: int | None = None, show: bool = True, *, at_most: bool = False
    ) -> None:
        self.title, self.total, self.show = title, total, show
        self.done = 0
        self._limit = "" if total is None else f" of {'at most ' if at_most else ''}{total:,}"
        self._said, self._text, self._written = 0, "", ""
        self._last_line = time.monotonic()
        self._timer: Timer | None = None
        self._bar: RichProgress | None = None
        if show:
            from rich.console import Console

            self._console = Console(stderr=True, highlight=False)
            self._bar = self._make_bar() if self._console.is_terminal else None

    def _make_bar(self) -> RichProgress:
        """A bar where the total is known, and always the time that has passed."""
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        title, count, text = (
            TextColumn(f"{{task.fields[{name}]}}") for name in ("title", "count", "text")
        )
        bar = [] if self.total is None else [BarColumn()]
        columns = (title, *bar, count, TimeElapsedColumn(), text)
        # What is printed to standard output stays there: it may go into a file.
        shown = RichProgress(*columns, console=self._console, transient=True, redirect_stdout=False)
        self._task = shown.add_task("", total=self.total, title=self.title, count="", text="")
        return shown

    def __enter__(self) -> Progress:
        self._outer = _SHOWN.get()
        self._began = time.monotonic() if self._outer is None else self._outer._began
        if self._bar is not None and Progress.live is not self._outer:
            self.show, self._bar = False, None  # another thread has the terminal
        if self.show:
            self._token = _SHOWN.set(self)
            if self._outer is not None:
                self._outer._pause()
            self._show_bar()
            self._tell_soon()
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if not self.show:
            return
        _SHOWN.reset(self._token)
        self._pause()
        if self._bar is None and error is None and self.done != self._said:
            self._write_line()  # work may end before the last step, or sooner than a line is due
        if self._outer is not None:
            self._outer._show_bar()

    def _show_bar(self) -> None:
        """Show the bar, where there is one, as soon as all the work has taken a second."""
        if self._bar is None:
            return
        Progress.live, left = self, self._began + FIRST_SECONDS - time.monotonic()
        if left <= 0.0:
            self._begin_bar()
        else:
            self._in(left, self._begin_bar)

    def _begin_bar(self) -> None:
        """Begin to show the bar, unless it is not its turn any more."""
        with _BARS:
            if Progress.live is self and self._bar is not None:
                self._bar.start()

    def _in(self, seconds: float, then: Callable[[], None]) -> None:
        """Do something in so many seconds, in another thread."""
        self._timer = Timer(seconds, then)
        self._timer.daemon = True
        self._timer.start()

    def _pause(self) -> None:
        """Show nothing for now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._bar is not None:
            with _BARS:
                Progress.live = None
                if self._bar.live.is_started:
                    self._bar.stop()

    def advance(self, amount: int = 1, text: str = "") -> None:
        """Count steps done since the last call, and show a text, such as the objective, beside them."""
        self.done += amount
        self._text = text
        if self._bar is not None:
            self._update(amount)
        elif self.show:
            finished = self.done == self.total
            if finished or time.monotonic() - self._last_line >= LINE_SECONDS:
                self._write_line()

    def begin(self, title: str = "", text: str = "") -> None:
        """Tell what is done next: a new title, or a text beside the old one."""
        self.title, self._text = title or self.title, text
        if self._bar is not None:
            self._update(0)
        elif self.show:
            self._tell_soon()

    def _update(self, amount: int) -> None:
        """Show on the bar how far the work has come."""
        assert self._bar is not None
        count = f"{self.done:,}{self._limit}" if self.done or self.total else ""
        self._bar.update(self._task, advance=amount, title=self.title, count=count, text=self._text)

    def _tell_soon(self) -> None:
        """Write a line in a second from now, if the work goes on until then and nothing else is told."""
        if self._bar is None and self._timer is None:
            self._in(FIRST_SECONDS, self._tell)

    def _tell(self) -> None:
        """Write a line, unless the last one said the same."""
        self._timer = None
        if self._line() != self._written:
            self._write_line()

    def _line(self) -> str:
        """Say in one line how far the work has come."""
        count = f"{self.done:,}{self._limit}" if self.done or self.total else ""
        return ": ".join(part for part in (self.title, count, self._text) if part)

    def _write_line(self) -> None:
        """Say in one plain line how far the work has come."""
        self._last_line, self._said, self._written = time.monotonic(), self.done, self._line()
        self._console.print(self._written, soft_wrap=True)


_SHOWN: ContextVar[Progress | None] = ContextVar("shown", default=None)
"""The progress that is shown now, of the innermost work that shows some."""


def is_shown(verbose: object) -> bool:
    """Whether progress is shown: for "auto" on a terminal, by its first process; else as is said."""
    if verbose != "auto":
        return bool(verbose)
    try:
        terminal = sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, it is closed, or it is no file
        return False
    return terminal and multiprocessing.parent_process() is None


def doing(what: str) -> None:
    """Tell what is done now beside the progress that is shown, if any is."""
    shown = _SHOWN.get()
    if shown is not None:
        shown.begin(text=what)


@contextmanager
def untold() -> Iterator[None]:
    """Tell nothing of what is done inside: several do it at the same time."""
    token = _SHOWN.set(None)
    try:
        yield
    finally:
        _SHOWN.reset(token)


@contextmanager
def telling(name: str, known: Callable[[dict[str, Any]], object]) -> Iterator[None]:
    """Tell under a name, with the interrupt, what is known by then if the user interrupts the block.

    It need not be computed again. The function gets what was told further inside, by name.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        inside = told_with(stop)
        vars(stop)["told"] = {**inside, name: known(inside)}
        raise


def told_with(error: BaseException) -> dict[str, Any]:
    """Return what was told with an interrupt, by name; nothing with other errors."""
    return vars(error).get("told", {})


WORDS = {
    "fact": "joint (FACT)",
    "opt-local": "opt-local (each expert counts where it is certain)",
}


def in_words(name: str) -> str:
    """Say what a name in a registry means, where it does not say so itself."""
    return WORDS.get(name, name)


def counted(count: int, noun: str) -> str:
    """Write a number of things, in the plural if it is not one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Align columns of text, the first to the left and the others to the right."""
    first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
    form = f"{{:<{first}}}" + "".join(f"  {{:>{width}}}" for width in others)
    return [form.format(*line) for line in lines]


def stacked(lines: Sequence[Sequence[str]], widest: int) -> list[str]:
    """Align columns of text, in tables below each other where they are wider than `widest` side by side.

    Each of these begins with the first column, with long names cut in the middle, and leaves out the lines
    that it has nothing to say of.
    """
    if len((found := aligned(lines))[0]) <= widest:
        return found
    half = widest // 4
    names = [n if len(n) <= 2 * half else f"{n[:half]}…{n[1 - half :]}" for n, *_ in lines]

    def table(places: Sequence[int]) -> list[str]:
        own = [[n, *(line[i] for i in places)] for n, line in zip(names, lines, strict=True)]
        return aligned([line for line in own if any(line[1:])])

    groups = [[1]]
    for place in range(2, len(lines[0])):
        if len(table([*groups[-1], place])[0]) > widest:
            groups.append([])
        groups[-1].append(place)
    return "\n\n".join("\n".join(table(group)) for group in groups).split("\n")
