"""Processes that are interrupted, told to end, killed, or have no room: no file is ever half written."""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hostile.trial import FULL, LIMIT, count, data, times, tiny

import distgp

COMMAND = str(Path(sys.executable).parent / "distgp")
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL)
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129, signal.SIGKILL: -9}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A table, a larger one to predict, and a model."""
    made = tmp_path_factory.mktemp("processes")
    X, y = data(1500)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=y)
    frame.to_csv(made / "t.csv", index=False)
    pd.concat([frame] * 133).to_csv(made / "many.csv", index=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        tiny(n_iter=5).fit(frame[["a", "b"]], y).save(made / "m.safetensors")
    return made


def heard():
    """Have a new process hear all signals, also where these tests run in the background of a shell."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def started(*arguments, before=heard):
    """A command in a process of its own."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [COMMAND, *map(str, arguments)]
    return subprocess.Popen(command, text=True, env=environment, preexec_fn=before, **pipes)


def fit(folder, output, *options):
    return "fit", folder / "t.csv", "--target", "y", "-o", output, "--force", *options


def predict(folder, output):
    return "predict", folder / "m.safetensors", folder / "many.csv", "-o", output, "--force"


LONG = (
    "--expert",
    "exact",
    "--n-experts",
    "2",
    "--n-iter",
    "100000",
    "--training",
    "fedavg",
    "--json",
)


def whole(path):
    """Whether what lies there is nothing, or a whole file of its kind."""
    if not path.exists():
        return True
    if path.suffix == ".csv":
        return len(pd.read_csv(path)) == 199_500
    return distgp.load(path).predict(pd.DataFrame({"a": [0.0], "b": [0.0]})).shape == (1,)


@pytest.mark.parametrize("number", SIGNALS if FULL else SIGNALS[:1])
def test_training_that_is_ended_by_a_signal_writes_nothing(folder, tmp_path, number):
    process = started(*fit(folder, tmp_path / "m.safetensors", *LONG))
    time.sleep(6)  # in the middle of training, or of starting
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode in (
        CODES[number],
        -number,
    )  # before the command is there, Python's own
    left = [path.name for path in tmp_path.iterdir()]
    assert left == [] or number == signal.SIGKILL, left
    count("signals", "held: ended, nothing half written")


@pytest.mark.parametrize("part", range(times(1, 6)))
def test_signals_at_any_moment(folder, tmp_path, part):
    rng = np.random.default_rng(part)
    for i in range(times(1, 8)):
        kind = ("fit", "predict")[i % 2]
        output = tmp_path / ("m.safetensors" if kind == "fit" else "o.csv")
        few = ("--expert", "exact", "--n-experts", "2", "--n-iter", "20", "-q")
        arguments = fit(folder, output, *few) if kind == "fit" else predict(folder, output)
        number = SIGNALS[int(rng.integers(len(SIGNALS)))]
        process = started(*arguments)
        time.sleep(rng.uniform(1.0, 7.0))
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode in (0, CODES[number], -number), said
        assert whole(output) and "mistake of distgp's own" not in said, said
        parts = [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
        assert not parts or number == signal.SIGKILL
        for path in parts:
            shutil.rmtree(path)
        done = (
            "held: finished first"
            if process.returncode == 0
            else "held: ended, nothing half written"
        )
        count("signals", done)


def test_ctrl_c_in_python_stops_every_stage(folder):
    code = """
import _thread, sys, threading, time, warnings, numpy as np, distgp
from distgp.training import rounds
warnings.simplefilter("ignore")
rng = np.random.default_rng(0)
X = rng.uniform(size=(600, 2)); y = np.sin(9 * X[:, 0]) + 0.1 * rng.normal(size=600)
Y = np.column_stack([y, y, y])
real, seen = rounds.Rounds.exchange, []
def exchange(self, message):
    seen.append(1)
    if len(seen) == stop:
        _thread.interrupt_main()
    if len(seen) > stop + 5:
        print("went on"); sys.exit(3)
    return real(self, message)
rounds.Rounds.exchange = exchange
for stop in (1, 3, 8, 15, 40):
    seen.clear()
    gp = distgp.DistributedGPRegressor(expert="sparse", n_experts=2, n_inducing=16, n_iter=60)
    try:
        gp.fit(X, Y); print("finished"); sys.exit(4)
    except KeyboardInterrupt:
        assert not hasattr(gp, "model_")
print("stopped")
"""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment,
        preexec_fn=heard,
        timeout=LIMIT,
    )
    assert done.stdout.strip() == "stopped", done.stdout + done.stderr[-2000:]
    count("signals", "held: ended, nothing half written", 5)


@pytest.mark.parametrize("kind", ["fit", "predict"] if FULL else ["fit"])
def test_no_room_on_the_disk(folder, tmp_path, kind):
    def small():
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**12, 2**12))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    few = ("--expert", "exact", "--n-experts", "2", "--n-iter", "2", "-q")
    output = tmp_path / ("m.safetensors" if kind == "fit" else "o.csv")
    arguments = fit(folder, output, *few) if kind == "fit" else predict(folder, output)
    process = started(*arguments, before=small)
    _, said = process.communicate(timeout=100)
    errors = [line for line in said.splitlines() if line.startswith("distgp: ")]
    assert process.returncode == 2 and len(errors) == 1, said
    assert "mistake" not in said and not [*tmp_path.iterdir()]
    count("no room on the disk", "held: a clear error")


@pytest.mark.skipif(not FULL, reason="takes long: `make hostile` runs it")
def test_no_memory_left(folder, tmp_path):
    wide = pd.read_csv(folder / "t.csv")
    pd.concat([wide] * 16).to_csv(tmp_path / "t.csv", index=False)
    output = tmp_path / "m.safetensors"

    def small():
        resource.setrlimit(resource.RLIMIT_AS, (5 * 2**30, 5 * 2**30))

    process = started("fit", tmp_path / "t.csv", "--target", "y", "-o", output, "--expert", "exact",
                      "--n-experts", "1", "--n-iter", "2", "-q", before=small)  # fmt: skip
    _, said = process.communicate(timeout=200)
    assert process.returncode == 2 and "out of memory" in said and "mistake" not in said, said
    assert not output.exists()
    count("no memory left", "held: a clear error")


@pytest.mark.skipif(not FULL, reason="takes long: `make hostile` runs it")
def test_a_server_told_to_end(folder):
    process = started("serve", folder / "m.safetensors", "--port", "0")
    line = process.stderr.readline()
    assert "serving m.safetensors at" in line, line
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode in (0, 143, -signal.SIGTERM)
    count("signals", "held: ended, nothing half written")


def test_readers_that_leave_and_terminals_without_width(folder):
    first = subprocess.run(
        f"{COMMAND} info {folder / 'm.safetensors'} | true; echo ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, text=True,
    )  # fmt: skip
    assert first.stdout.strip() == "0" and not first.stderr, first.stderr
    environment = os.environ | {"COLUMNS": "0"}
    done = subprocess.run(
        [COMMAND, "info", "nowhere"], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 2 and "there is no model file 'nowhere'" in done.stderr


@pytest.mark.skipif(not FULL, reason="takes long: `make hostile` runs it")
def test_outputs_are_looked_at_before_any_work(folder):
    for output in ("/proc/m.safetensors", os.devnull, str(folder))[: times(1, 3)]:
        begin = time.monotonic()
        process = started(*fit(folder, output, *LONG))
        _, said = process.communicate(timeout=60)
        assert process.returncode == 2 and time.monotonic() - begin < 50
        assert "cannot write" in said or "expected the name of a file to write" in said
