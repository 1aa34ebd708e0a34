"""Threads sleep where there is nothing to do, and the user's own wishes are respected."""

import json
import os
import pickle
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

import distgp
from distgp._util.checks import silenced, warn_user
from distgp._util.threads import Abandoned, at_once, go_on, on_threads
from distgp._util.waiting import SPINS
from distgp.linalg import JitterWarning


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
    code = "import os, distgp; {}distgp.kernels; print(os.environ.get('GOMP_SPINCOUNT'))"
    for between in ("", "import torch; "):
        said = told(code.format(between))
        assert f"GOMP_SPINCOUNT = '{SPINS}'" in said and said.endswith("None\n")
    code = code.format("")
    said = told(code, GOMP_SPINCOUNT="77")
    assert "GOMP_SPINCOUNT = '77'" in said and said.endswith("77\n")
    assert f"'{SPINS}'" not in told("import distgp.kernels", OMP_WAIT_POLICY="active")


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("items", [[1, 0], [0, 1], [0, 1, 0, 0]], ids=str)
def test_calls_beside_one_that_fails_end_too(items):
    """They look whether anybody waits for them still, and are waited for until they have ended."""
    began, ended = threading.Event(), []

    def call(number: int) -> None:
        if number:
            began.wait(30)
            raise KeyboardInterrupt
        try:
            for _ in range(1000):
                began.set()
                go_on()
                time.sleep(0.01)
        except Abandoned:
            ended.append(number)
            raise

    with pytest.raises(KeyboardInterrupt):
        on_threads(call, items)
    assert ended and set(ended) == {0}
    go_on()  # of calls that are over nothing is left


@pytest.mark.usefixtures("two_threads")
def test_training_on_threads_ends_with_the_others():
    """An interrupt ends trials side by side within a round."""
    X = np.random.default_rng(0).normal(size=(200, 2))
    rounds = []

    def call(number: int) -> None:
        if number:
            time.sleep(0.3)
            raise KeyboardInterrupt
        while len(rounds) < 500:
            distgp.DistributedGPRegressor("exact", 1, n_iter=3).fit(X, np.sin(X[:, 0]))
            rounds.append(number)

    with silenced(Warning), pytest.raises(KeyboardInterrupt):
        on_threads(call, [0, 1])
    assert len(rounds) < 500


FORKED_AND_FITTED = """
import os, signal
import numpy as np, torch
import distgp

torch.set_num_threads(2)
X = np.random.default_rng(0).uniform(-2, 2, (700, 2))
gp = distgp.DistributedGPRegressor(expert=EXPERT, n_experts=2, n_iter=2)
gp.fit(X, np.sin(X[:, 0]))
mean = gp.predict(X, return_std=True)[0]
child = os.fork()
if child == 0:
    signal.alarm(120)  # a child that waits for threads that are not there is ended
    same = np.allclose(gp.predict(X, return_std=True)[0], mean)
    gp.fit(X[:300], np.sin(X[:300, 0]))
    os._exit(0 if same and torch.get_num_threads() == 1 else 1)
status = os.waitpid(child, 0)[1]
print(status, torch.get_num_threads())
"""


FORKED_IN_A_FIT = """
import os, signal, threading
import numpy as np, distgp

X = np.random.default_rng(0).uniform(-2, 2, (60, 2))
gp = distgp.DistributedGPRegressor(expert="exact", n_experts=2, training=None).fit(X, X[:, 0])
inside, done = threading.Event(), threading.Event()

class Rows:  # rows that another thread is reading when the process forks
    def __array__(self, dtype=None, copy=None):
        inside.set()
        done.wait()
        return X

thread = threading.Thread(target=gp.partial_fit, args=(Rows(), X[:, 0]))
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(120)  # a child that waits for a thread that is not there is ended
    gp.partial_fit(X, X[:, 0])
    os._exit(0 if gp.n_experts_ == 4 else 1)
print(os.waitpid(child, 0)[1])
done.set()
thread.join()
"""


FORKED_IN_A_FACTOR = """
import os, signal, threading
import numpy as np, torch, distgp
from distgp.experts import exact

X = np.random.default_rng(0).uniform(-2, 2, (60, 2))
gp = distgp.DistributedGPRegressor(expert="exact", n_experts=1, training=None).fit(X, X[:, 0])
posterior = gp.experts_.placement.items[0]
vars(posterior).pop("factor", None)
inside, done = threading.Event(), threading.Event()

def hold():  # a thread that computes a factor when the process forks
    with exact._LOCK.now:
        inside.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    signal.alarm(120)
    os._exit(0 if posterior.factor.ndim >= 2 else 1)
print(os.waitpid(child, 0)[1])
done.set()
thread.join()
"""


FORKED_WITH_A_POOL = """
import os, signal, torch
from distgp._util import threads

torch.set_num_threads(1)  # as many as a child has, which would take its parent's pool, without its thread
threads.at_once(abs, [-1])
with threads._Limit.lock.now:  # held by a thread that sets the numbers of threads when the process forks
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        with threads.blas_threads(1):
            os._exit(0 if threads.at_once(abs, [-1, -2]) == [1, 2] else 1)
    print(os.waitpid(child, 0)[1])
"""


FORKED_IN_A_LIMIT = """
import os, threading
from distgp._util import threads

inside, done = threading.Event(), threading.Event()

def hold():  # a thread that computes with a limit when the process forks
    with threads.blas_threads(1):
        inside.set()
        done.wait()

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if child == 0:
    libraries = threads._blas().lib_controllers
    for library in libraries:
        library.set_num_threads(2)
    with threads.blas_threads(1):
        limited = {library.get_num_threads() for library in libraries}
    found = limited, {library.get_num_threads() for library in libraries}
    os._exit(0 if found == ({1}, {2}) else 1)
print(os.waitpid(child, 0)[1])
done.set()
thread.join()
"""


FORKED_IN_A_PROPERTY = """
import os, signal, threading
from distgp._util import threads
from distgp.experts.exact import ExactPosterior  # noqa: F401

(first, *others) = threads._cached_properties()
if not hasattr(first, "lock"):  # from Python 3.12 on there are none
    print(0)
    raise SystemExit
taken, done = threading.Event(), threading.Event()


def hold():
    with first.lock:
        taken.set()
        done.wait()


threading.Thread(target=hold).start()
taken.wait()
child = os.fork()
if child == 0:
    signal.alarm(120)
    with first.lock:
        os._exit(0)
print(os.waitpid(child, 0)[1])
done.set()
"""

FORKED = {
    "exact": FORKED_AND_FITTED.replace("EXPERT", "'exact'"),
    "sparse": FORKED_AND_FITTED.replace("EXPERT", "'sparse'"),
    "in an update": FORKED_IN_A_FIT,
    "in a factor": FORKED_IN_A_FACTOR,
    "in a property": FORKED_IN_A_PROPERTY,
    "in a limit": FORKED_IN_A_LIMIT,
    "with a pool": FORKED_WITH_A_POOL,
}
IN_TURN = """
import contextlib, json, sys

for name, code in json.loads(sys.argv[1]).items():
    print(name, end=": ", flush=True)
    with contextlib.suppress(SystemExit):
        exec(code, {"__name__": name})
"""


@pytest.fixture(scope="module")
def forked():
    """What each of these scripts prints; one process of its own runs them in turn."""
    if not hasattr(os, "fork"):
        pytest.skip("there are no forks here")
    command = [sys.executable, "-W", "ignore", "-c", IN_TURN, json.dumps(FORKED)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = dict(line.split(": ") for line in done.stdout.splitlines())
    return {name: said.get(name, done.stderr) for name in FORKED}


@pytest.mark.parametrize("expert", ["exact", "sparse"])
def test_a_forked_child_predicts(forked, expert):
    assert forked[expert].split() == ["0", "2"]


def test_a_child_that_was_forked_in_an_update_can_update(forked):
    assert forked["in an update"] == "0"


def test_a_child_that_was_forked_while_a_factor_was_computed_computes_it(forked):
    assert forked["in a factor"] == "0"


def test_a_child_that_was_forked_while_a_value_was_computed_computes_it(forked):
    assert forked["in a property"] == "0"


def test_a_child_that_was_forked_in_a_limit_of_threads_lifts_its_own(forked):
    assert forked["in a limit"] == "0"


def test_a_child_has_threads_and_locks_of_its_own(forked):
    assert forked["with a pool"] == "0"


def test_fits_in_several_threads_leave_the_filters_of_warnings_alone():
    X = np.random.default_rng(0).uniform(-2, 2, (250, 2))
    y = np.sin(X[:, 0])

    def fit(expert):
        gp = distgp.DistributedGPRegressor(
            expert=expert, n_iter=2, n_inducing="auto", n_neighbors=8
        )
        with silenced(Warning):
            return gp.fit(X, y)

    fit("sparse")  # libraries that it loads may have filters of their own
    before = list(warnings.filters)
    with ThreadPoolExecutor(4) as pool:
        assert len(list(pool.map(fit, ["auto", "sparse", "nearest", "exact"] * 2))) == 8
    assert warnings.filters == before


def test_what_is_silenced_is_silent_in_threads_that_work_for_it(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)

    def warn(item):
        warn_user("careful", JitterWarning)
        return item

    with silenced(JitterWarning):
        assert on_threads(warn, [1, 2, 3]) == at_once(warn, [1, 2, 3]) == [1, 2, 3]
    with pytest.warns(JitterWarning):
        warn(1)


def test_nothing_that_may_run_in_threads_changes_the_filters_of_warnings():
    own = {"cli/terminal.py", "serve/answers.py"}  # a process of their own
    package = Path(distgp.__file__).parent
    found = [p for p in package.rglob("*.py") if "warnings.catch_warnings(" in p.read_text()]
    assert {path.relative_to(package).as_posix() for path in found} == own


def test_updates_in_several_threads_are_all_kept():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(90, 2))
    gp = distgp.DistributedGPRegressor("exact", 1, training=None)
    start = threading.Barrier(8)

    def update(i):
        start.wait()
        gp.partial_fit(X[10 * i : 10 * i + 10], X[10 * i : 10 * i + 10, 0])

    for begun in (False, True):  # the first call fits, also where eight are the first
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(update, range(8)))
        assert gp.experts_.row_count() == (160 if begun else 80)
    again = pickle.loads(pickle.dumps(gp)).partial_fit(X[80:], X[80:, 0])
    assert (again.experts_.row_count(), gp.experts_.row_count()) == (170, 160)
    with pytest.raises(ValueError, match="target columns"):
        again.partial_fit(X, X)
    assert again.experts_.row_count() == 170 and again.n_experts_ == 1


ELSEWHERE = """
import sys
import numpy as np, torch, distgp

X = np.random.default_rng(0).uniform(size=(60, 2))
y = np.sin(6 * X[:, 0]) + X[:, 1]


def figures(kind, **options):
    gp = getattr(distgp, kind)(n_iter=2, **options).fit(X, y)
    if kind == "DistributedGPRegressor":
        gp.partial_fit(X[:30], y[:30])
    gp.save(sys.argv[1])
    gp = distgp.load(sys.argv[1])
    found = [*gp.predict(X[:5], return_std=True), gp.predict(X[:3], return_cov=True)[1]]
    found += [gp.predict_with_interval(X[:3])[3], gp.feature_relevance_, gp.nlpd(X, y), gp.score(X, y)]
    if kind == "DistributedGPRegressor":
        found += [gp.sample_y(X[:3]), gp.novelty(X[:3]), gp.predict_quantiles(X[:3], 0.3)]
    return [*found, str(gp.summary()), gp._repr_html_()[-500:]]


def every():
    for expert in ("exact", "sparse", "nearest"):
        yield figures("DistributedGPRegressor", expert=expert, n_experts=2, n_inducing=8)
    yield figures("SparseGridGP", level=2)


here = list(every())
torch.set_default_device("meta")
for one, other in zip(here, every(), strict=True):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)
print(torch.zeros(1).device)
"""


def test_a_default_device_of_the_caller_changes_nothing(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", ELSEWHERE, str(tmp_path / "gp.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["meta"]
