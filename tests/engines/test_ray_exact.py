"""The exact mean on a Ray cluster: workers multiply, and the bits are those of one process."""

import os
import signal

import pytest
import torch
from helpers import inputs, shard

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'distgp[ray]'")

from distgp.aggregation import Ensemble, Exact, solve
from distgp.data import RandomPartition, place, split
from distgp.experts import NearestExpert, Parameters
from distgp.kernels import Matern52

EXACT = Exact(variance="nearest", tolerance=1e-6, n_inducing=20, n_conditioning=10, n_neighbors=20)
THETA = Parameters.of(1.3 * Matern52([0.6, 0.9]), 0.02)
DATA = shard(400, 2)


def shards(count):
    return split(DATA, RandomPartition().assign(DATA.X.numpy(), count, 0))


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of 23 rows, so that every worker has several; the centre says how large they are."""
    monkeypatch.setitem(solve.BLOCK, "cpu", 23 * 400)


def test_the_solve_on_workers_has_the_bits_of_one_process(engine, small_blocks):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = Ensemble.condition(NearestExpert(), THETA, shards(4))
        one = EXACT.combine(here)
        engine.traffic.sent.clear()
        engine.traffic.received.clear()
        there = Ensemble.condition(NearestExpert(), THETA, place(engine, shards(4)))
        found = EXACT.combine(there)
    finally:
        torch.set_num_threads(threads)
    assert found.iterations == one.iterations > 1
    assert torch.equal(found.alpha, one.alpha)
    points = inputs(15, 2, 9)
    assert torch.equal(found.predict(there, points).mean, one.predict(here, points).mean)
    assert engine.traffic.sent["inputs"] >= 2 * DATA.X.nbytes
    assert engine.traffic.sent["solve"] > 0 and engine.traffic.received["solve"] > 0


def test_a_worker_that_is_killed_changes_no_bit(engine, small_blocks, monkeypatch):
    there = Ensemble.condition(NearestExpert(), THETA, place(engine, shards(4)))
    whole = EXACT.combine(there)
    times, calls = solve.KernelMatrix.times, []

    def killing(matrix, P, exact=False):
        calls.append(1)
        if len(calls) == 2:
            os.kill(matrix._rows.pids()[0], signal.SIGKILL)
        return times(matrix, P, exact)

    monkeypatch.setattr(solve.KernelMatrix, "times", killing)
    again = EXACT.combine(there)
    assert len(calls) > 2 and again.iterations == whole.iterations
    assert torch.equal(again.alpha, whole.alpha)
