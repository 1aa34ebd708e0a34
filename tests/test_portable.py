"""Import, fit, predict, save, load and the command line need nothing that only Unix has.

The release tries this file alone, beside the wheel, on Linux, macOS and Windows. Elsewhere than on
Windows, what Windows lacks is taken away before distgp is imported.
"""

import ctypes
import subprocess
import sys

import pytest

from distgp._util import machine

TAKEN_AWAY = """
import builtins, io, os, signal, sys, warnings
import matplotlib, narwhals, numpy, pandas, pyarrow.csv, pyarrow.parquet, rich, safetensors, scipy.linalg
import sklearn.cluster, torch, typer  # other packages may use what there is

assert not any(name.startswith("distgp") for name in sys.modules)
for name in ("fcntl", "resource", "termios", "pwd", "grp", "posix", "pty", "tty", "syslog"):
    sys.modules[name] = None
for name in ("fork", "register_at_fork", "sysconf", "getuid", "geteuid", "getpgid", "killpg", "mkfifo",
             "uname", "sched_getaffinity", "fchmod", "chown", "statvfs", "getloadavg", "O_NOFOLLOW",
             "O_DIRECTORY"):
    vars(os).pop(name, None)
for name in ("SIGHUP", "SIGPIPE", "SIGALRM", "SIGUSR1", "SIGKILL", "alarm", "setitimer"):
    vars(signal).pop(name, None)
opened = io.open

def open_here(file, *given, **options):
    gone = str(file).startswith(("/proc", "/sys", "/dev"))
    if gone and file != "/proc/self/maps":  # which threadpoolctl reads
        raise FileNotFoundError(2, "no such file", file)
    return opened(file, *given, **options)

io.open = builtins.open = open_here
warnings.filterwarnings("error", category=EncodingWarning, module="distgp")  # UTF-8 is no default there
"""
USED = """
import sys
import numpy as np
import torch
import distgp
import distgp.cli
import distgp.plotting

rng = np.random.default_rng(0)
X = rng.uniform(size=(80, 2))
y = np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=80)
torch.set_num_threads(2)
for options in ({"expert": "exact", "n_experts": 1}, {"expert": "sparse", "n_experts": 2, "n_inducing": 9},
                {"expert": "nearest", "n_experts": 2}):
    gp = distgp.DistributedGPRegressor(**options, n_iter=3).fit(X, y)
    mean, std = gp.predict(X[:5], return_std=True)
    for _ in range(2):  # the second takes the place of the first
        gp.save("model.safetensors")
        loaded = distgp.load("model.safetensors")
    np.testing.assert_array_equal(loaded.predict(X[:5]), mean)
    assert (std > 0).all()
assert distgp.SparseGridGP(level=2, n_iter=3).fit(X, y).predict(X[:5]).shape == (5,)
np.savetxt("rows.csv", np.column_stack([X, y]), delimiter=",", header="a,b,y", comments="")
for line in ("fit rows.csv --target y -o m.safetensors --expert exact --n-iter 3 --force",
             "predict m.safetensors rows.csv -o out.parquet", "predict m.safetensors rows.* -o out.csv",
             "score m.safetensors rows.csv --target y", "info m.safetensors"):
    sys.argv = ["distgp", *line.split()]
    try:
        distgp.cli.main()
    except SystemExit as end:
        assert not end.code, (line, end.code)
print("all done")
"""


def used(before: str, folder) -> subprocess.CompletedProcess:
    command = [sys.executable, "-X", "warn_default_encoding", "-W", "ignore", "-c", before + USED]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, encoding="utf-8")


def test_it_works_without_what_only_unix_has(tmp_path):
    pytest.importorskip("pandas")
    done = used(TAKEN_AWAY if sys.platform != "win32" else "", tmp_path)
    assert done.returncode == 0 and done.stdout.endswith("all done\n"), done.stdout + done.stderr


def answers(status) -> int:
    """Fill a MEMORYSTATUSEX as Windows does."""
    given = status._obj
    assert ctypes.string_at(given, 4) == (64).to_bytes(4, "little") and ctypes.sizeof(given) == 64
    given[1], given[2] = 8 * machine.GIB, 3 * machine.GIB
    return 1


class Windows:
    """The library that Windows has, as far as it is asked."""

    class kernel32:
        GlobalMemoryStatusEx = staticmethod(answers)


def test_memory_is_asked_of_windows(monkeypatch, tmp_path):
    monkeypatch.setattr(ctypes, "windll", Windows, raising=False)
    for name in ("MEMORY", "STATM", "CGROUP"):
        monkeypatch.setattr(machine, name, tmp_path / "none")
    monkeypatch.setattr(machine, "resource", None)
    assert machine.total_bytes() == 8 * machine.GIB
    assert machine._of_machine() == 3 * machine.GIB


@pytest.mark.parametrize("total", [None, 2 * machine.GIB])
def test_half_of_the_memory_is_free_where_the_system_tells_no_more(monkeypatch, tmp_path, total):
    """MacOS knows how much there is, but not how much of it is free."""
    for name in ("MEMORY", "CGROUP"):
        monkeypatch.setattr(machine, name, tmp_path / "none")
    monkeypatch.setattr(machine, "_pages", {"SC_PHYS_PAGES": total}.get)
    assert machine.total_bytes() == total
    assert machine._of_machine() == (None if total is None else machine.GIB)
