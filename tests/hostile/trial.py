"""What the hostile tests have in common: how often they try, what counts as a clear error, the tally."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import sklearn

import distgp
from distgp.engines import EngineError

FULL = os.environ.get("DISTGP_HOSTILE") == "full"
"""Whether all is tried (`make hostile`), or a part that ends soon (`make test`)."""
TALLY: Counter[tuple[str, str]] = Counter()
"""How often each kind of trial ended in each way."""
FOLDER = Path("build").absolute() / "hostile"
"""Where the tally of each process is written."""
LIMIT = 120.0
"""Seconds after which a try that has not ended counts as broken; the slowest takes a few."""
CLEAR = (ValueError, TypeError, OverflowError, OSError, EngineError, MemoryError)
"""What users may be told of: each names what was expected, what came, and what to do."""
OURS = tuple(os.path.dirname(os.path.abspath(package.__file__)) for package in (distgp, sklearn))
"""Folders of those whose code may raise it: our own, and scikit-learn's checks of inputs."""


def times(quick: int, full: int) -> int:
    """How often to try something."""
    return full if FULL else quick


def outcome(kind: str | None, call: Callable[[], Any]) -> Any:
    """What a call returns, or None where it refuses with a clear error; fails on any other.

    Parameters
    ----------
    kind : str, optional
        What the tally counts it as; None for a call that others are compared with, which is not counted.
    call : callable
        What is tried. Warnings are allowed.
    """
    return ending(kind, call)[0]


def ending(kind: str | None, call: Callable[[], Any]) -> tuple[Any, str | None]:
    """What `outcome` returns, and the text of the clear error with which a call refused."""
    try:
        with warnings.catch_warnings(), within(LIMIT):
            warnings.simplefilter("ignore")
            found = call()
    except Late as late:
        count(kind, "broke")
        raise AssertionError(f"a try had not ended after {LIMIT:g} seconds") from late
    except Exception as error:
        why = unclear(error)
        count(kind, "held: a clear error" if why is None else "broke")
        if why is not None:
            raise AssertionError(f"{why}: {type(error).__name__}: {error}") from error
        return None, str(error)
    count(kind, "held: a result")
    return found, None


class Late(BaseException):
    """A try has not ended in time; no `except Exception` on the way hides it."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raise `Late` in a block that has not ended after so many seconds, in the main thread alone."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(number: int, frame: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def alike(one: str | None, other: str | None, what: str, documented: tuple[str, ...] = ()) -> bool:
    """Whether two calls that should say the same both gave a result; fails where only one refused.

    Parameters
    ----------
    one, other : str, optional
        The errors with which they refused.
    what : str
        What was tried, in words.
    documented : tuple of str, optional
        Parts of errors with which the pages say that one of the two is refused.
    """
    for error, ended in ((one, other), (other, one)):
        known = error is not None and any(part in error for part in documented)
        assert error is None or ended is not None or known, (
            f"only one of two refused {what}: {error}"
        )
    return one is None and other is None


def count(kind: str | None, ending: str, tries: int = 1) -> None:
    """Add trials to the tally, unless they are of no kind, and write it where a second has passed."""
    global _written
    if kind is not None:
        TALLY[kind, ending] += tries
        if time.monotonic() > _written + 1.0:
            _written = time.monotonic()
            write()


_written = 0.0


def write() -> None:
    """Write the tally of this process where all is tried: a run that is ended has its tally too."""
    if FULL and TALLY:
        FOLDER.mkdir(parents=True, exist_ok=True)
        found = [[*key, tries] for key, tries in sorted(TALLY.items())]
        part = FOLDER / f"{os.getpid()}.part"
        part.write_text(json.dumps(found))
        os.replace(part, part.with_suffix(".json"))


def unclear(error: Exception) -> str | None:
    """Why an error is not fit for a user; None where it is."""
    if not isinstance(error, CLEAR):
        return "of a kind that tells of a mistake of our own"
    where = traceback.extract_tb(error.__traceback__)[-1].filename
    if not os.path.abspath(where).startswith(tuple(folder + os.sep for folder in OURS)):
        return f"raised below us, in {where}"
    text = str(error)
    if not text.strip() or len(text) > 2000:
        return f"with {len(text)} characters"
    return None


def data(n: int = 24, d: int = 2, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A few rows of a smooth function with noise."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, d))
    return X, np.sin(3 * X[:, 0]) + 0.1 * rng.normal(size=n)


def tiny(**parameters: Any) -> distgp.DistributedGPRegressor:
    """A regressor that fits a few rows in no time."""
    few = {"expert": "exact", "n_experts": 2, "n_iter": 2, "n_inducing": 4, "n_neighbors": 8}
    return distgp.DistributedGPRegressor(**{**few, **parameters})
