"""What belongs to the whole process: every public call leaves it as it was, and does not depend on it.

Calls are tried in the odd states that a user's program may be in, in several threads, and after a fork.
"""

import contextlib
import decimal
import gc
import os
import random
import signal
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import sklearn
import torch
from hostile import calls
from hostile.trial import LIMIT, count, data, outcome, times, tiny
from threadpoolctl import ThreadpoolController

import distgp

MODELS = dict(calls.models())
LIBRARIES = ThreadpoolController()


@pytest.fixture(scope="module", params=MODELS)
def case(request, tmp_path_factory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return calls.case_of(MODELS[request.param], tmp_path_factory.mktemp(request.param))


def test_values_are_known_for_every_argument():
    for kind in calls.ESTIMATORS.values():
        for name in calls.methods(kind):
            lacking = calls.takes(kind, name).keys() - calls.VALUES.keys()
            assert not lacking, (
                f"add values for {lacking} of {kind.__name__}.{name} to calls.VALUES"
            )


def state():
    """All that is the process's and not the call's."""
    return {
        "warnings": (list(warnings.filters), warnings.showwarning),
        "torch": (
            torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(),
            torch.get_num_threads(), torch.get_default_device(), torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled(),
        ),
        "numpy": (np.geterr(), np.geterrcall(), np.get_printoptions()),
        "random": (random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist()),  # noqa: NPY002
        "blas": [(one["filepath"], one["num_threads"]) for one in LIBRARIES.info()],
        "process": (dict(os.environ), os.getcwd(), sys.getrecursionlimit(), gc.isenabled()),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "others": (sklearn.get_config(), decimal.getcontext().prec),
    }  # fmt: skip


@contextlib.contextmanager
def put(get, put_, value):
    before = get()
    put_(value)
    try:
        yield
    finally:
        put_(before)


@contextlib.contextmanager
def elsewhere():
    with contextlib.chdir("/"):
        yield


@contextlib.contextmanager
def seeded():
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)
    torch.manual_seed(3)
    yield


@contextlib.contextmanager
def said():
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda *told: None
        yield


STATES = {
    "no gradients": torch.no_grad,
    "inference mode": torch.inference_mode,
    "float32 by default": lambda: put(
        torch.get_default_dtype, torch.set_default_dtype, torch.float32
    ),
    "float64 by default": lambda: put(
        torch.get_default_dtype, torch.set_default_dtype, torch.float64
    ),
    "NumPy raises": lambda: np.errstate(over="raise", invalid="raise", divide="raise"),
    "NumPy warns": lambda: np.errstate(all="warn"),
    "warnings are shown": said,
    "another folder": elsewhere,
    "another seed": seeded,
    "scikit-learn's pandas": lambda: sklearn.config_context(transform_output="pandas"),
    "scikit-learn trusts": lambda: sklearn.config_context(assume_finite=True),
    "scikit-learn routes": lambda: sklearn.config_context(enable_metadata_routing=True),
    "few digits": lambda: decimal.localcontext(decimal.Context(prec=2)),
    "no collector": lambda: put(gc.isenabled, lambda on: gc.enable() if on else gc.disable(), False),
}  # fmt: skip


def chosen(case, rng):
    """The name of a method; those that change a model, which take long, less often."""
    names = calls.methods(type(case.gp))
    name = str(rng.choice(names))
    return str(rng.choice(names)) if name in calls.CHANGES and rng.random() < 0.8 else name


def settled(case, rng):
    """A call, what it is, and what it gave in the state that the tests are in; None where it is refused."""
    run, what = calls.call(case, chosen(case, rng), rng)

    def plain():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return calls.numbers(run(), case.points)

    try:
        return plain, what, plain()
    except (ValueError, TypeError):
        return plain, what, None


def same(found, expected, what, rtol=0.0):
    """Fail unless two answers are the same, to the last bit by default."""
    assert (found is None) == (expected is None), what
    for one, other in zip(found or [], expected or [], strict=True):
        np.testing.assert_allclose(one, other, rtol, atol=rtol, err_msg=what)


def test_every_call_leaves_the_state_of_the_process_and_is_the_same_in_any(case):
    rng = np.random.default_rng(0)
    for _ in range(times(30, 1100)):
        plain, what, expected = settled(case, rng)
        name = str(rng.choice([*STATES]))
        with STATES[name]():
            before = state()
            found = outcome("states of the process", plain)
            after = state()
        changed = [part for part in before if before[part] != after[part]]
        assert not changed, f"{what} with {name} changed {changed}"
        same(found, expected, f"{what} with {name}")


def test_calls_in_several_threads_are_those_of_one(case):
    rng = np.random.default_rng(1)
    with ThreadPoolExecutor(4) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(times(2, 30)):
            made = [settled(case, rng) for _ in range(16)]
            before = state()
            found = list(pool.map(lambda one: attempt(one[0]), made))
            after = state()
            assert [part for part in before if before[part] != after[part]] == []
            for (_, what, expected), one in zip(made, found, strict=True):
                same(one, expected, what)
                count("threads", f"held: a {'clear error' if one is None else 'result'}")


def attempt(plain):
    """What a call gives in a thread, whose filters of warnings are those of all; None where it refuses."""
    try:
        return plain()
    except (ValueError, TypeError):
        return None


FORKED = """
import os, pathlib, signal, sys, tempfile, threading, warnings
import numpy as np, torch
warnings.simplefilter("ignore")
torch.set_num_threads(2)
from hostile import calls, test_state
name, tries = sys.argv[1], int(sys.argv[2])
case = calls.case_of(test_state.MODELS[name], pathlib.Path(tempfile.mkdtemp()))
rng = np.random.default_rng(2)
made = [test_state.settled(case, rng) for _ in range(tries)]
stop = threading.Event()
def busy():  # the fork comes in the middle of this
    while not stop.is_set():
        test_state.attempt(made[0][0])
        if hasattr(case.gp, "partial_fit"):
            before = case.gp.n_experts_
            added = range(before, case.gp.partial_fit(case.X, case.y).n_experts_)
            if added:
                case.gp.drop_experts([*added])
def held():  # whether another thread changes the model at this moment
    locks = [lock.now for name, lock in [*vars(case.gp).items()] if name == "_lock"]
    free = [lock.acquire(blocking=False) for lock in locks]
    for lock, mine in zip(locks, free):
        if mine:
            lock.release()
    return not all(free)
def change():
    case.gp.fit(case.X, case.y)
thread = threading.Thread(target=busy if sys.argv[3] == "busy" else lambda: None)
thread.start()
while sys.argv[3] == "busy" and hasattr(case.gp, "partial_fit") and not held():
    pass
child = os.fork()
if child == 0:
    signal.alarm(60)  # a child that waits for a thread that is not there is ended
    if sys.argv[3] == "busy":
        change()
    else:
        for run, what, expected in made:
            # A child computes with one thread, and sums in another order than two.
            test_state.same(test_state.attempt(run), expected, what, rtol=1e-12)
    os._exit(0)
status = os.waitpid(child, 0)[1]
stop.set()
thread.join()
sys.exit(0 if status == 0 else 1)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.parametrize("name", [*MODELS][: times(1, len(MODELS))])
@pytest.mark.parametrize("kind", ["busy", "quiet"][: times(1, 2)])
def test_calls_after_a_fork(name, kind):
    tries = times(20, 150) if kind == "quiet" else 1
    for _ in range(1 if kind == "quiet" else times(1, 5)):
        command = [sys.executable, "-W", "ignore", "-c", FORKED, name, str(tries), kind]
        path = os.pathsep.join(map(str, sys.path))  # where pytest finds these tests
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": path},
            timeout=2 * LIMIT,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        count("after a fork", "held: a result", tries)


def test_a_state_that_is_changed_is_seen():
    before = state()
    with np.errstate(all="raise"):
        assert state() != before
    tiny().fit(*data()).predict(data()[0])
    assert state() == before and distgp is not None
