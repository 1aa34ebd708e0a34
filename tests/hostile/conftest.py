"""Writes down what was tried, and ends a process that hangs where no exception can be raised in it."""

import faulthandler
import os

import pytest
from hostile import trial

LONGEST = 600.0
"""Seconds after which a test that still runs has its process ended; others go on in a new one."""


@pytest.fixture(autouse=True)
def ends():
    """End the process of a test that hangs in a library, and say where it was, if all is tried."""
    if not trial.FULL:
        yield
        return
    trial.FOLDER.mkdir(parents=True, exist_ok=True)
    with (trial.FOLDER / f"{os.getpid()}.hang").open("w") as where:
        faulthandler.dump_traceback_later(LONGEST, exit=True, file=where)
        yield
        faulthandler.cancel_dump_traceback_later()
    os.remove(where.name)


def pytest_sessionfinish():
    trial.write()
