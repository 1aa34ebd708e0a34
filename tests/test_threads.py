"""Threads sleep where there is nothing to do, and the user's own wishes are respected."""

import os
import subprocess
import sys

import pytest

from distgp._util.threads import SPINS


def told(code: str, **environment: str) -> str:
    """What OpenMP says of its settings when it is loaded, and what the program prints."""
    plain = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    command = [sys.executable, "-c", code]
    environment = plain | {"OMP_DISPLAY_ENV": "VERBOSE"} | environment
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    if "GOMP_SPINCOUNT" not in done.stderr:
        pytest.skip("PyTorch's OpenMP is not GNU's here")
    return done.stderr + done.stdout


def test_threads_wait_for_a_little_and_then_sleep():
    code = "import os, distgp; print(os.environ.get('GOMP_SPINCOUNT'))"
    said = told(code)
    assert f"GOMP_SPINCOUNT = '{SPINS}'" in said and said.endswith("None\n")
    said = told(code, GOMP_SPINCOUNT="77")
    assert "GOMP_SPINCOUNT = '77'" in said and said.endswith("77\n")
    assert f"'{SPINS}'" not in told("import distgp", OMP_WAIT_POLICY="active")
