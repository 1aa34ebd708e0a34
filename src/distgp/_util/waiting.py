"""The way in which OpenMP's threads wait: PyTorch reads it from the environment once, when it is loaded."""

from __future__ import annotations

import os
import sys

SPINS = "1000"
"""Times that a thread of OpenMP looks for work before it sleeps. By default it looks 300,000 times: beside
other busy processes a fit then takes several times as long, as `benchmarks/contention.py` measures."""

# Not where PyTorch is loaded already, or the user has said how its threads should wait.
SAID = "torch" not in sys.modules and not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys()
if SAID:
    os.environ["GOMP_SPINCOUNT"] = SPINS


def forget() -> None:
    """Leave the environment as it was, once PyTorch is loaded."""
    if SAID:
        os.environ.pop("GOMP_SPINCOUNT", None)
