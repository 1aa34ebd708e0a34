"""The Ray engine on a real cluster: real processes, really killed."""

import copy
import importlib
import os
import pickle
import signal
import sys
import threading
import time

import pytest
import torch

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'distgp[ray]'")

from helpers import make_data
from on_workers import Numbers, Once, dies, fails, late, plus, targets_plus, total

from distgp.data import ContiguousPartition, Shard, place, split
from distgp.engines import EngineError
from distgp.engines.ray import RayEngine

N = 40
DATA = Shard.of(*make_data(N))


@pytest.fixture
def placement(engine):
    """Four shards on two workers."""
    return place(engine, split(DATA, ContiguousPartition().assign(DATA.X.numpy(), 4, 0)))


def test_a_worker_killed_at_work_makes_again_what_it_held(placement):
    """From its source, through every step, with the arguments of all workers and with its own."""
    moved = placement.derive(targets_plus, 1.0, each=[10.0, 20.0])
    wide = moved.derive(plus, each=[torch.ones(9000, 1, 1), torch.full((9000, 1, 1), 2.0)])
    other = placement.derive(targets_plus, each=[7.0, 8.0])
    wanted = moved.map(total), wide.map(total), other.map(total)
    assert len({*wanted[0], *wanted[1], *wanted[2]}) == 6
    del moved  # `wide` remembers what it was made of
    before = placement.pids()
    timer = threading.Timer(0.3, os.kill, (before[1], signal.SIGKILL))
    timer.start()
    assert wide.map(late, 1.0) == [1.0, 1.0]
    timer.join()
    assert before[0] == placement.pids()[0] and before[1] != placement.pids()[1]
    assert (wide.map(total), other.map(total)) == wanted[1:]
    assert placement.derive(targets_plus, 1.0, each=[10.0, 20.0]).map(total) == wanted[0]


def test_errors_name_the_shards_and_the_cause(engine, monkeypatch):
    one = engine.scatter([Numbers(0.0)], ["shards 0 to 3"])
    with pytest.raises(ValueError, match="no good rows") as caught:
        one.map(fails, "no good rows")
    assert "on the worker with shards 0 to 3" in caught.value.__notes__[0]
    begin = time.monotonic()
    with monkeypatch.context() as changed:
        changed.setattr(engine.pool, "time_limit", 0.5)
        message = r"longer than its limit of 0\.5 s; still at work: shards 0 to 3"
        with pytest.raises(EngineError, match=message):
            one.map(late, 60.0)
    assert one.map(total) == [3.0]
    assert time.monotonic() - begin < 55, "late workers must not hold up the next round"
    assert engine.pool.retries == 3
    monkeypatch.setattr(engine.pool, "retries", 1)
    message = r"worker with shards 0 to 3 was lost 2 times in one round, and 1 retries are allowed"
    with pytest.raises(EngineError, match=message):
        one.map(dies)


def test_what_cannot_be_made_again_is_said(engine, tmp_path):
    one = engine.scatter([Once(tmp_path / "made")], ["the only shard"])
    message = r"worker with the only shard was lost, and making its part again failed: .*exists"
    with pytest.raises(EngineError, match=message):
        one.map(dies)


def test_what_travels_is_counted_where_it_goes(engine, placement):
    engine.traffic.sent.clear()
    engine.traffic.received.clear()
    placement.map(targets_plus, torch.zeros(10), each=[torch.zeros(1), torch.zeros(10)])
    assert engine.traffic.total() == {"other": 2 * 40 + 4 + 40 + N * 8}
    engine.traffic.received.clear()
    placement.derive(targets_plus)
    assert not engine.traffic.received
    placement.gather()
    assert engine.traffic.received["rows"] == N * (2 + 1 + 1) * 8
    place(engine, [DATA])
    assert engine.traffic.sent["rows"] == N * (2 + 1 + 1) * 8


def test_engines_are_neither_copied_nor_pickled(engine, placement):
    assert copy.deepcopy(engine) is engine
    with pytest.raises(TypeError, match="an engine cannot be pickled"):
        pickle.dumps(engine)
    with pytest.raises(TypeError, match=r"cannot be pickled: call gather\(\) on the regressor"):
        pickle.dumps(placement)


def test_clusters_that_cannot_be_had(engine):
    with pytest.raises(EngineError, match=r"connected to a Ray cluster already.*'nowhere:1'"):
        RayEngine(address="nowhere:1")
    with pytest.raises(
        EngineError, match="no worker with 1000 CPUs and 0 GPUs fits on the cluster"
    ):
        RayEngine(cpus=1000).workers  # noqa: B018
    assert RayEngine(cpus=0.5).workers == 8 and RayEngine(cpus=3).workers == 1
    with pytest.raises(ValueError, match="expected at most 2 sources, got 3"):
        engine.scatter([Numbers(0.0)] * 3, ["a", "b", "c"])


def test_without_ray_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "distgp.engines.ray")
    with pytest.raises(
        ImportError, match=r"needs Ray, .*not installed: pip install 'distgp\[ray\]'"
    ):
        importlib.import_module("distgp.engines.ray")
