"""The exact expert on one large shard: the laws of small ones, in one or two matrices."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import FLOAT, close, concrete, example, inputs, shard, value_and_gradient

from distgp import RBF, Constant, Kernel, Matern52, linalg
from distgp.data import Shard, stack
from distgp.experts import ExactExpert, Parameters, whole
from distgp.likelihoods import copies_term, noise_of_rows

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
    wide = value_and_gradient(lambda p: EXPERT.objective(p, rows), theta)
    found = value_and_gradient(lambda p: EXPERT.objective(p, narrow), theta.to(dtype=torch.float32))
    assert found[0].dtype == torch.float32
    close(found[0].to(FLOAT), wide[0], rtol=1e-3, atol=1e-2)
    for name, slope in wide[1].items():
        close(found[1][name].to(FLOAT), slope, rtol=1e-2, atol=2e-2)


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
