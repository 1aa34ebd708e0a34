"""The exact expert on one large shard: the laws of small ones, in one or two matrices."""

import math
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import FLOAT, close, concrete, example, inputs, shard, value_and_gradient

import distgp
from distgp import AGGREGATORS, RBF, Constant, DistributedGPRegressor, Kernel, Matern52, linalg
from distgp._util import machine
from distgp.aggregation import Ensemble
from distgp.data import Shard, stack
from distgp.experts import ExactExpert, Parameters, base, cost, exact, whole
from distgp.likelihoods import copies_term, noise_of_rows
from distgp.training import learning

KERNELS = pytest.mark.parametrize("cls", concrete(Kernel), ids=lambda cls: cls.__name__)
EXPERT = ExactExpert()


@pytest.fixture
def _small_is_large(monkeypatch):
    """Shards of a few rows are worked on as large ones are, in more than one block."""
    monkeypatch.setattr(whole, "LARGE", 2)


large = pytest.mark.usefixtures("_small_is_large")


def plain(p: Parameters, rows: Shard) -> torch.Tensor:
    """−log p(y) straight from its formula, for autograd to differentiate."""
    K = p.kernel(rows.X) + torch.diag(noise_of_rows(rows, p.noise))
    value = rows.y @ torch.linalg.solve(K, rows.y) + torch.logdet(K)
    value = value + rows.n * math.log(2 * math.pi)
    return 0.5 * value + copies_term(rows, p.noise)


def with_weights(n: int, d: int) -> Shard:
    weight, noise = 1.0 + inputs(n, 1, 3)[:, 0].abs(), 0.5 + inputs(n, 1, 4)[:, 0].abs()
    return replace(shard(n, d), weight=weight, noise=noise)


@large
@KERNELS
@pytest.mark.parametrize("rows", [shard(61, 2), with_weights(61, 2)], ids=["plain", "weights"])
def test_value_and_gradient_are_those_of_the_formula(cls, rows):
    theta = Parameters.of(example(cls, 2), 0.1)
    value, gradient = value_and_gradient(lambda p: EXPERT.objective(p, rows), theta)
    wanted, slopes = value_and_gradient(lambda p: plain(p, rows), theta)
    close(value, wanted)
    assert gradient.keys() == slopes.keys()
    for name, slope in slopes.items():
        close(gradient[name], slope, rtol=1e-8, atol=1e-8)


@large
@KERNELS
def test_float32_agrees_to_its_digits(cls):
    rows, theta = shard(61, 2), Parameters.of(example(cls, 2), 0.1)
    narrow = rows.to(dtype=torch.float32)
    wide = value_and_gradient(lambda p: plain(p, rows), theta)
    found = value_and_gradient(lambda p: EXPERT.objective(p, narrow), theta.to(dtype=torch.float32))
    assert found[0].dtype == torch.float32
    close(found[0].to(FLOAT), wide[0], rtol=1e-3, atol=1e-2)
    for name, slope in wide[1].items():
        close(found[1][name].to(FLOAT), slope, rtol=1e-2, atol=2e-2)


@large
@pytest.mark.parametrize(("kept", "times"), [(61, 1), (60, 2)])
def test_the_kernel_of_moderately_many_rows_is_made_once(monkeypatch, kept, times):
    monkeypatch.setattr(cost, "KEPT", kept)
    rows, theta, made = shard(61, 2), Parameters.of(1.3 * Matern52([0.5, 0.8]), 0.1), []
    wanted = value_and_gradient(lambda p: plain(p, rows), theta)
    gram = Matern52.multiple

    def counted(self, variance, X1, X2):
        made.append(len(X1))
        return gram(self, variance, X1, X2)

    monkeypatch.setattr(Matern52, "multiple", counted)
    found = value_and_gradient(lambda p: EXPERT.objective(p, rows), theta)
    assert sum(made) == times * 61
    close(found[0], wanted[0])
    for name, slope in wanted[1].items():
        close(found[1][name], slope, rtol=1e-8, atol=1e-8)
    more = cost.bytes_of_objective(61, rows.X) - cost.bytes_of_condition(61, rows.X)
    assert more == (2 - times) * 8 * 61**2


def test_a_large_shard_is_as_the_batched_path_has_it(monkeypatch):
    # 1,100 rows: the blocks are more than one, and the factorisation is divided over threads.
    rows, theta = stack([with_weights(1_100, 3)]), Parameters.of(1.3 * Matern52([0.5] * 3), 0.02)
    X = inputs(20, 3, 7)
    found = value_and_gradient(lambda p: EXPERT.objective(p, rows), theta)
    posterior = EXPERT.condition(theta, rows)
    monkeypatch.setattr(whole, "LARGE", 10_000)
    wanted = value_and_gradient(lambda p: EXPERT.objective(p, rows), theta)
    close(found[0], wanted[0], rtol=1e-12)
    for name, slope in wanted[1].items():
        close(found[1][name], slope, rtol=1e-8, atol=1e-8)
    before = EXPERT.condition(theta, rows)
    assert posterior.L.shape == before.L.shape == (1, 1_100, 1_100)
    close(posterior.L, before.L, rtol=1e-10, atol=1e-12)
    close(posterior.predict(X).mean, before.predict(X).mean)
    close(posterior.predict(X).variance, before.predict(X).variance)


@large
@pytest.mark.parametrize("batch", ["none", "rows", "parameters", "both", "padding"])
def test_a_batch_of_one_is_one(batch):
    rows, theta = shard(40, 2), Parameters.of(1.3 * RBF([0.5, 0.8]), 0.05)
    alone, slopes = value_and_gradient(lambda p: plain(p, rows), theta)
    data = stack([rows]) if batch in ("rows", "both") else rows
    data = stack([rows, shard(45, 2, 1)])[:1] if batch == "padding" else data
    theta = theta.unsqueezed() if batch in ("parameters", "both") else theta
    assert EXPERT.objective(theta, data).shape == (() if batch == "none" else (1,))
    value, gradient = value_and_gradient(lambda p: EXPERT.objective(p, data), theta)
    close(value, alone)
    for name, slope in slopes.items():
        close(gradient[name].reshape(slope.shape), slope, rtol=1e-8)


@large
def test_two_shards_are_not_one(monkeypatch):
    monkeypatch.setattr(whole, "negative_log_likelihood", None)
    rows = stack([shard(30, 2), shard(30, 2, 1)])
    assert EXPERT.objective(Parameters.of(RBF([0.5, 0.8]), 0.05), rows).shape == (2,)


@large
def test_only_what_is_learnt_is_differentiated(monkeypatch):
    rows, kernel = shard(40, 2), RBF([0.5, 0.8])
    inversions, invert = [], linalg.invert_

    def counted(L):
        inversions.append(len(L))
        invert(L)

    monkeypatch.setattr(linalg, "invert_", counted)
    noise = torch.tensor(0.1, dtype=FLOAT, requires_grad=True)
    value = EXPERT.objective(Parameters(kernel, noise), rows)
    (slope,) = torch.autograd.grad(3.0 * value, noise)
    (wanted,) = torch.autograd.grad(3.0 * plain(Parameters(kernel, noise), rows), noise)
    close(slope, wanted)
    assert inversions == [40]
    with torch.no_grad():
        EXPERT.objective(Parameters(kernel, noise), rows)
    EXPERT.objective(Parameters.of(kernel, 0.1), rows)
    assert inversions == [40]


@large
def test_learnt_rows_keep_their_gradient():
    rows, theta = shard(20, 2), Parameters.of(RBF([0.5, 0.8]), 0.1)
    y = rows.y.clone().requires_grad_()
    (slope,) = torch.autograd.grad(EXPERT.objective(theta, replace(rows, y=y)), y)
    K = theta.kernel(rows.X) + 0.1 * torch.eye(20, dtype=FLOAT)
    close(slope, torch.linalg.solve(K, rows.y))


@large
def test_a_singular_matrix_gets_jitter_and_one_of_nan_an_error():
    base = shard(20, 2)
    rows = Shard.of(base.X.repeat(4, 1), base.y.repeat(4))
    singular = Parameters.of(1.0 * RBF([50.0, 50.0]), 1e-16)
    value, gradient = value_and_gradient(lambda p: EXPERT.objective(p, rows), singular)
    assert torch.isfinite(value) and all(torch.isfinite(g).all() for g in gradient.values())
    huge = Parameters.of(1e308 * (RBF(1.0) + Constant(1.0)), 0.1)
    with pytest.raises(linalg.NotPositiveDefiniteError, match="contains NaN or infinity"):
        EXPERT.objective(huge, rows)


@large
@pytest.mark.parametrize("call", ["objective", "condition"])
def test_too_many_rows_for_the_memory_are_refused_before_any_work(call, monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda device: 2**20)
    monkeypatch.setattr(whole, "factor_and_weights", None)
    with pytest.raises(MemoryError) as caught:
        getattr(EXPERT, call)(Parameters.of(RBF(1.0), 0.1), shard(30, 2))
    said = str(caught.value)
    assert "30 rows" in said and "0.125 GiB" in said and "0.000977 GiB are free" in said
    assert "n_experts" in said and 'expert="nearest"' in said and 'expert="sparse"' in said


@large
def test_too_many_rows_are_refused_before_training(monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda device: 2**20)
    monkeypatch.setattr(learning, "train", None)
    X, y = inputs(400, 2).numpy(), inputs(400, 1)[:, 0].numpy()
    with pytest.raises(MemoryError, match="an exact expert on 400 rows"):
        DistributedGPRegressor(expert="exact", n_experts=1, training="nearest").fit(X, y)


@large
def test_unknown_memory_refuses_nothing(monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda device: None)
    assert torch.isfinite(EXPERT.objective(Parameters.of(RBF(1.0), 0.1), shard(30, 2)))


@large
@pytest.mark.parametrize("kernel", ["auto", "rbf"])
def test_the_estimator_passes_the_memory_error_on(kernel, monkeypatch):
    monkeypatch.setattr(machine, "free_bytes", lambda device: 2**20)
    X, y = inputs(400, 2).numpy(), inputs(400, 1)[:, 0].numpy()
    gp = DistributedGPRegressor(expert="exact", n_experts=1, kernel=kernel, n_iter=3)
    with pytest.raises(MemoryError, match="an exact expert on"):
        gp.fit(X, y)


def test_costs_grow_with_the_rows():
    like = torch.empty(0, dtype=FLOAT)
    few, many = cost.cost_of_objective(2_000, 3, like), cost.cost_of_objective(20_000, 3, like)
    assert few.seconds > 0 and 100 * few.seconds < many.seconds <= 1001 * few.seconds
    # Of few rows the kernel is held too.
    assert many.bytes - few.bytes == 8 * (20_000**2 - 2 * 2_000**2)
    for seconds_for in (cost.seconds_for_cholesky, cost.seconds_for_inverse):
        once, eightfold = (seconds_for(n, like.device, like.dtype) for n in (1_000, 2_000))
        assert eightfold == pytest.approx(8 * once)
    condition = cost.cost_of_condition(20_000, 3, like)
    assert 0 < condition.seconds < many.seconds and condition.bytes <= many.bytes


@pytest.fixture
def _no_factor_is_kept(monkeypatch):
    monkeypatch.setattr(exact, "ROWS_WITH_FACTOR", 30)
    monkeypatch.setattr("distgp.mixin.FEW_ROWS", 0)  # so that loading asks for no variance


def factorisations(monkeypatch) -> list[int]:
    """Count them from here on."""
    counted, conditioned = [], exact._conditioned

    def watched(parameters, rows):
        counted.append(rows.n)
        time.sleep(0.02)  # so that others ask meanwhile
        return conditioned(parameters, rows)

    monkeypatch.setattr(exact, "_conditioned", watched)
    return counted


@pytest.mark.usefixtures("_no_factor_is_kept")
@pytest.mark.parametrize("way", ["file", "pickle"])
def test_a_large_factor_is_left_out_and_computed_when_it_is_needed(way, tmp_path, monkeypatch):
    rows, options = shard(80, 2), {"n_experts": 1, "kernel": "rbf", "n_iter": 3}
    gp = DistributedGPRegressor(expert="exact", **options).fit(rows.X.numpy(), rows.y.numpy())
    new = inputs(50, 2, 9).numpy()
    mean, std = gp.predict(new, return_std=True)
    gp.save(tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").stat().st_size < 8 * 80 * 80
    again = pickle.loads(pickle.dumps(gp)) if way == "pickle" else None
    again = again or distgp.load(tmp_path / "m.safetensors")
    counted = factorisations(monkeypatch)
    np.testing.assert_allclose(again.predict(new), mean, rtol=1e-12, atol=1e-12)
    assert counted == []
    monkeypatch.setitem(base.CHUNK_ENTRIES, "cpu", 80 * 7)  # several chunks of points
    for _ in range(2):
        found = again.predict(new, return_std=True)
        np.testing.assert_allclose(found[0], mean, rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(found[1], std, rtol=1e-12, atol=1e-12)
    assert counted == [80]


@pytest.mark.usefixtures("_no_factor_is_kept")
def test_posteriors_without_a_factor_do_everything_else():
    rows, theta = stack([shard(40, 2), shard(35, 2, 1)]), Parameters.of(1.3 * RBF([0.5, 0.8]), 0.1)
    held, X = EXPERT.condition(theta, rows), inputs(9, 2, 3)
    bare = held.stored()
    assert bare.L is None and held.L is not None
    for call in ("covariance", "printed_variance"):
        close(getattr(bare.stored(), call)(X), getattr(held, call)(X), rtol=1e-12)
    for a, b in zip(bare.stored().projection(X), held.projection(X), strict=True):
        close(a, b, rtol=1e-12)
    one = torch.tensor([1])
    close(bare.stored().chosen(one).predict(X).variance, held.chosen(one).predict(X).variance)


def test_threads_that_need_the_factor_at_once_compute_it_once(monkeypatch):
    held = EXPERT.condition(Parameters.of(RBF([0.5, 0.8]), 0.1), shard(300, 2))
    bare, counted = replace(held, L=None), factorisations(monkeypatch)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: bare.factor, range(8)))
    assert counted == [300] and all(one is found[0] for one in found)


def test_small_factors_are_kept():
    held = EXPERT.condition(Parameters.of(RBF([0.5, 0.8]), 0.1), shard(40, 2))
    assert held.stored() is held and pickle.loads(pickle.dumps(held)).L is not None


@pytest.mark.parametrize("name", [n for n, a in AGGREGATORS.items() if "keeps_mean" in dir(a)])
def test_the_mean_of_one_expert_takes_no_variance_where_it_stays_as_it_is(name, monkeypatch):
    theta, X = Parameters.of(1.3 * RBF([0.5, 0.8]), 0.1), inputs(9, 2, 3)
    ensemble = Ensemble.condition(EXPERT, theta, [shard(40, 2)])
    combined = AGGREGATORS[name]().combine(ensemble)
    wanted, keeps = combined.predict(ensemble, X).mean, AGGREGATORS[name].keeps_mean
    expert = ensemble.here[0].mean(X)[0]
    if keeps:
        monkeypatch.setattr(linalg, "solve_lower", None)
        close(combined.mean(ensemble, X), expert, rtol=0, atol=0)
        close(wanted, expert)
    else:
        close(combined.mean(ensemble, X), wanted, rtol=0, atol=0)
        assert name != "rbcm" or not torch.allclose(wanted, expert)


PEAK = """
from pathlib import Path
from _measure import objective_with_gradient, problem
from distgp import Matern52
from distgp.experts import ExactExpert, Parameters, base, cost

def peak():  # the largest size of this program; that of getrusage may be its parent's
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

base.CHUNK_ENTRIES["cpu"] = 2**18  # blocks that are small beside the matrix
cost.KEPT = 0  # the kernel is made again for the gradient, as it is of more rows
theta = Parameters.of(1.2 * Matern52([0.8] * 4), 0.05)
objective_with_gradient(ExactExpert(), theta, problem(1_200, 4))
before = peak()
objective_with_gradient(ExactExpert(), theta, problem(3_000, 4))
print((peak() - before) / (8 * 3_000**2))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells the peak")
def test_the_likelihood_with_its_gradient_takes_fewer_than_two_matrices():
    found = subprocess.run(
        [sys.executable, "-c", PEAK], capture_output=True, text=True, env=environment(), check=True
    )
    assert 0.5 < float(found.stdout) < 2.0


def environment() -> dict[str, str]:
    """Two threads, each of which has its blocks, and the modules that are found here."""
    return os.environ | {"OMP_NUM_THREADS": "2", "PYTHONPATH": os.pathsep.join(sys.path)}
