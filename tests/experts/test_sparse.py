"""The sparse expert against a naive dense implementation of the paper's equation (2)."""

import math
import pickle

import pytest
import torch
from helpers import close, inputs, shard, value_and_gradient

from distgp import Matern32
from distgp.data import Shard, stack
from distgp.experts import Parameters, SparseExpert, SparsePosterior, base, sums

EXPERT = SparseExpert()


def theta(m: int = 9) -> Parameters:
    return Parameters.of(1.4 * Matern32([0.6, 0.9]), 0.06, inputs(m, 2, 5))


def naive(p: Parameters, data: Shard, X: torch.Tensor):
    """Bound and prediction with explicit inverses, as printed: M_uu = K_uu + σ⁻² K_uf K_fu."""
    Z, noise, k = p.inducing, p.noise, p.kernel
    assert Z is not None
    Kuu, Kuf, Kus = k(Z), k(Z, data.X), k(Z, X)
    Muu = Kuu + Kuf @ Kuf.mT / noise
    mean = Kus.mT @ torch.linalg.inv(Muu) @ Kuf @ data.y / noise
    middle = torch.linalg.inv(Kuu) - torch.linalg.inv(Muu)
    variance = k.diag(X) - (Kus * (middle @ Kus)).sum(0)
    Q = Kuf.mT @ torch.linalg.inv(Kuu) @ Kuf
    S = Q + noise * torch.eye(data.n, dtype=Q.dtype)
    log_normal = -0.5 * (
        data.y @ torch.linalg.inv(S) @ data.y
        + torch.linalg.slogdet(S)[1]
        + data.n * math.log(2 * math.pi)
    )
    bound = log_normal - 0.5 * (k.diag(data.X).sum() - Q.trace()) / noise
    return bound, mean, variance


@pytest.mark.parametrize("n", [1, 7, 50])
def test_equals_the_naive_dense_version(n):
    data, X, p = shard(n, 2), inputs(20, 2, 3), theta()
    bound, mean, variance = naive(p, data, X)
    out = EXPERT.condition(p, data).predict(X)
    close(EXPERT.objective(p, data), -bound, rtol=1e-9)
    close(out.mean, mean, rtol=1e-8)
    close(out.variance, variance, rtol=1e-8)


def test_gradient_equals_autograd_through_the_naive_version():
    data, X = shard(25, 2), inputs(2, 2, 3)
    _, ours = value_and_gradient(lambda p: EXPERT.objective(p, data), theta())
    _, theirs = value_and_gradient(lambda p: -naive(p, data, X)[0], theta())
    for name in theirs:
        close(ours[name], theirs[name], rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("batched", [False, True])
def test_chunks_of_rows_change_nothing(monkeypatch, batched):
    data = stack([shard(40, 2), shard(33, 2, 1)]) if batched else shard(73, 2)
    p, X = theta(), inputs(20, 2, 3)
    value, gradient = value_and_gradient(lambda q: EXPERT.objective(q, data), p)
    whole = EXPERT.condition(p, data).predict(X)
    sizes, chunk_sums = [], sums.chunk_sums

    def recorded(theta, Lu, rows):
        sizes.append(rows.n)
        return chunk_sums(theta, Lu, rows)

    monkeypatch.setattr(sums, "chunk_sums", recorded)
    monkeypatch.setitem(base.CHUNK_ENTRIES, "cpu", 150)
    value2, gradient2 = value_and_gradient(lambda q: EXPERT.objective(q, data), p)
    once = -(-data.n // max(sizes))
    assert max(sizes) <= 150 // 9 and len(sizes) == 2 * once  # again in the backward pass
    parts = EXPERT.condition(p, data).predict(X)
    assert len(sizes) == 3 * once
    close(value2, value, rtol=1e-12)
    for name in gradient:
        close(gradient2[name], gradient[name], rtol=1e-9)
    close(parts.mean, whole.mean)
    close(parts.variance, whole.variance)


def test_sums_are_float64_whatever_the_data_are():
    narrow = EXPERT.condition(theta().to(dtype=torch.float32), shard(20, 2, dtype=torch.float32))
    assert narrow.sums.AAt.dtype == torch.float64
    assert narrow.predict(inputs(3, 2, 1, torch.float32)).mean.dtype == torch.float32


def test_a_stream_of_pieces_conditions_like_the_whole():
    data, p, X = shard(50, 2), theta(), inputs(20, 2, 3)
    whole = EXPERT.condition(p, data).predict(X)
    streamed = EXPERT.condition(p, (piece for piece in data.chunks(7))).predict(X)
    close(streamed.mean, whole.mean)
    close(streamed.variance, whole.variance)
    with pytest.raises(ValueError, match="at least one row"):
        EXPERT.condition(p, iter([]))


def test_sums_of_shards_are_the_sums_of_all_rows():
    data, p, X = shard(50, 2), theta(), inputs(20, 2, 3)
    pieces = [EXPERT.condition(p, piece) for piece in data.chunks(20)]
    total = sum((q.sums for q in pieces[1:]), pieces[0].sums)
    pooled = SparsePosterior.of(p, pieces[0].Lu, total).predict(X)
    whole = EXPERT.condition(p, data).predict(X)
    close(pooled.mean, whole.mean)
    close(pooled.variance, whole.variance)


def test_residual_is_what_the_inducing_inputs_leave():
    data, p = shard(30, 2), theta()
    assert p.inducing is not None
    Kuf = p.kernel(p.inducing, data.X)
    Q = Kuf.mT @ torch.linalg.inv(p.kernel(p.inducing)) @ Kuf
    expected = (p.kernel.diag(data.X).sum() - Q.trace()) / (30 * p.noise)
    close(EXPERT.condition(p, data).residual(), expected, rtol=1e-8)


def test_inducing_inputs_are_asked_for():
    with pytest.raises(ValueError, match="needs inducing inputs"):
        EXPERT.objective(Parameters.of(Matern32(), 0.1), shard(5, 2))


def test_shared_and_own_inducing_inputs_broadcast():
    shards = [shard(20, 2, s) for s in range(3)]
    Z = torch.stack([inputs(6, 2, s) for s in range(3)])
    own = Parameters.of(1.4 * Matern32(0.8), 0.06, Z)
    X = inputs(10, 2, 9)
    batch = EXPERT.condition(own, stack(shards)).predict(X)
    for i in range(3):
        alone = EXPERT.condition(Parameters.of(own.kernel, 0.06, Z[i]), shards[i]).predict(X)
        close(batch.mean[i], alone.mean)
        close(batch.variance[i], alone.variance)


def test_what_can_be_derived_does_not_travel():
    posterior = EXPERT.condition(theta(), shard(30, 2))
    before = pickle.dumps(posterior)
    wanted = posterior.predict(inputs(5, 2, 9))
    assert "weights" in vars(posterior) and pickle.dumps(posterior) == before
    close(pickle.loads(before).predict(inputs(5, 2, 9)).mean, wanted.mean)
