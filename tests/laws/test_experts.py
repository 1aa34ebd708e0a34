"""What must hold of every expert, over all that distgp defines."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers import (
    FLOAT,
    close,
    concrete,
    example,
    finite_differences,
    inputs,
    shard,
    value_and_gradient,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from precision import clustered

import distgp
from distgp import EXPERTS, RBF, Kernel, Scale, linalg
from distgp.data import Shard, stack, unstack
from distgp.experts import Expert, Parameters, base, inducing

ALL = pytest.mark.parametrize("expert", [cls() for cls in concrete(Expert)], ids=lambda e: e.name)
KERNELS = pytest.mark.parametrize("cls", concrete(Kernel), ids=lambda cls: cls.__name__)


def parameters(d: int, m: int = 12, seed: int = 5) -> Parameters:
    return Parameters.of(1.3 * RBF([0.7] * d), 0.04, inputs(m, d, seed))


def test_discovery_agrees_with_the_registry():
    assert {e.name for e in concrete(Expert)} == EXPERTS.keys() == {"exact", "sparse", "nearest"}


@ALL
@KERNELS
def test_gradient_equals_finite_differences(expert, cls):
    data = shard(20, 2)
    theta = Parameters.of(example(cls, 2), 0.1, inputs(5, 2, seed=5))

    def objective(p: Parameters):
        return expert.objective(p, data)

    if expert.name == "exact":
        theta = dataclasses.replace(theta, inducing=None)
    _, gradient = value_and_gradient(objective, theta)
    expected = finite_differences(objective, theta)
    assert gradient.keys() == expected.keys()
    for name, value in expected.items():
        close(gradient[name], value, rtol=1e-6, atol=1e-6)


@ALL
@KERNELS
@settings(max_examples=5)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5), d=st.integers(1, 4))
def test_padding_and_batching_change_nothing(expert, cls, lengths, d):
    shards = [shard(n, d, seed=i) for i, n in enumerate(lengths)]
    theta, X = Parameters.of(example(cls, d), 0.04, inputs(12, d, 5)), inputs(9, d, 77)
    batch = stack(shards)
    values = expert.objective(theta, batch)
    posterior = expert.condition(theta, batch).predict(X)
    for i, one in enumerate(shards):
        close(values[i], expert.objective(theta, one))
        alone = expert.condition(theta, one).predict(X)
        close(posterior.mean[i], alone.mean)
        close(posterior.variance[i], alone.variance)


@ALL
def test_batched_gradient_is_each_experts_own(expert):
    shards = [shard(n, 2, seed=n) for n in (5, 9)]
    thetas = [
        Parameters.of(Scale(RBF([0.5 * s, 0.8]), 1.0 * s), 0.1 * s, inputs(4, 2, int(s)))
        for s in (1, 2)
    ]
    views = [theta.unconstrained() for theta in thetas]
    together = thetas[0].with_unconstrained(
        {name: torch.stack([view[name] for view in views]) for name in views[0]}
    )
    _, gradient = value_and_gradient(lambda p: expert.objective(p, stack(shards)), together)
    for i in range(2):
        _, own = value_and_gradient(lambda p, i=i: expert.objective(p, shards[i]), thetas[i])
        for name, value in own.items():
            close(gradient[name][i], value)


@ALL
@pytest.mark.parametrize("kernel_batch", [False, True])
@pytest.mark.parametrize("noise_batch", [False, True])
@pytest.mark.parametrize("inducing_batch", [False, True])
@pytest.mark.parametrize("shard_batch", [False, True])
def test_anything_may_be_batched_or_shared(
    expert, kernel_batch, noise_batch, inducing_batch, shard_batch
):
    scales = torch.tensor([[0.5], [0.8]], dtype=FLOAT)
    noises, Zs = torch.tensor([0.1, 0.2], dtype=FLOAT), torch.stack([inputs(6, 2), inputs(6, 2, 1)])
    shards, X = [shard(9, 2), shard(7, 2, 1)], inputs(5, 2, 3)
    theta = Parameters.of(
        RBF(scales if kernel_batch else scales[0]),
        noises if noise_batch else noises[0],
        Zs if inducing_batch else Zs[0],
    )
    data = stack(shards) if shard_batch else shards[0]
    out = expert.condition(theta, data).predict(X)
    value = expert.objective(theta, data)
    if not any((kernel_batch, noise_batch, inducing_batch, shard_batch)):
        assert out.mean.shape == (5,)
        return
    for i in range(2):
        own = theta[i]
        one = shards[i] if shard_batch else shards[0]
        alone = expert.condition(own, one).predict(X)
        if out.mean.ndim > 1:
            close(out.mean[i], alone.mean)
            close(out.variance[i], alone.variance)
            close(value[i], expert.objective(own, one))
        else:  # exact experts take no notice of Z
            close(out.mean, alone.mean)


@ALL
def test_predictions_come_in_chunks_and_do_not_depend_on_them(expert, monkeypatch):
    posterior = expert.condition(parameters(2), stack([shard(20, 2), shard(30, 2, 1)]))
    X = inputs(50, 2, 3)
    whole = posterior.predict(X)
    sizes, predict_chunk = [], type(posterior).predict_chunk

    def recorded(self, chunk):
        sizes.append(len(chunk))
        return predict_chunk(self, chunk)

    monkeypatch.setattr(type(posterior), "predict_chunk", recorded)
    monkeypatch.setitem(base.CHUNK_ENTRIES, "cpu", 7 * posterior.entries)
    parts = posterior.predict(X)
    assert sizes == [7] * 7 + [1]
    close(parts.mean, whole.mean, rtol=1e-12)
    close(parts.variance, whole.variance, rtol=1e-12)


@ALL
def test_mean_only_does_no_variance_work(expert, monkeypatch):
    posterior, X = expert.condition(parameters(2), shard(20, 2)), inputs(5, 2, 3)
    full, solves, solve_lower = posterior.predict(X), [], linalg.solve_lower

    def counted(L, B, overwrite=False):
        solves.append(B.shape)
        return solve_lower(L, B, overwrite)

    def forbidden(self, X):
        raise AssertionError("variance work")

    monkeypatch.setattr(linalg, "solve_lower", counted)
    monkeypatch.setattr(Scale, "diag", forbidden)
    close(posterior.mean(X), full.mean, rtol=0, atol=0)
    assert len(solves) == (0 if expert.name == "exact" else 1)  # others: v(x), once


@ALL
@KERNELS
@pytest.mark.filterwarnings("ignore::distgp.linalg.JitterWarning")
def test_variances_are_positive_for_every_kernel(expert, cls):
    data = shard(30, 2)
    theta = Parameters.of(example(cls, 2), 1e-6, inputs(8, 2, 5))
    X = torch.cat([data.X, torch.zeros(1, 2, dtype=FLOAT), inputs(10, 2, 3) + 5])
    out = expert.condition(theta, data).predict(X)
    prior = theta.kernel.diag(X)
    assert bool(torch.isfinite(out.mean).all())
    assert bool((out.variance > 0).all() & torch.isfinite(1 / out.variance).all())
    assert bool((out.variance <= prior * (1 + 1e-9) + 1e-9).all())


def test_the_floor_of_a_variance():
    prior = torch.tensor([4.0, 0.0], dtype=FLOAT)
    floored = base.latent_variance(prior, prior + 1e-12)
    close(floored, torch.tensor([4 * 2.0**-52, 2.0**-511], dtype=FLOAT), rtol=1e-12, atol=0)


@ALL
@settings(max_examples=25)
@given(
    n=st.integers(1, 40),
    noise=st.floats(1e-6, 10.0),
    lengthscale=st.floats(0.05, 20.0),
    distance=st.sampled_from([0.0, 1.0, 1e3, 1e8]),
)
@pytest.mark.filterwarnings("ignore::distgp.linalg.JitterWarning")
def test_variances_are_positive_and_at_most_the_prior(expert, n, noise, lengthscale, distance):
    data = shard(n, 2)
    theta = Parameters.of(2.0 * RBF(lengthscale), noise, inputs(8, 2, 5))
    X = torch.cat([data.X, inputs(10, 2, 3) + distance])
    out = expert.condition(theta, data).predict(X)
    assert bool(torch.isfinite(out.mean).all())
    assert bool((out.variance > 0).all())
    assert bool((out.variance <= 2.0 * (1 + 1e-9)).all())
    if distance == 1e8:
        close(out.mean[-10:], torch.zeros(10, dtype=FLOAT))
        close(out.variance[-10:], torch.full((10,), 2.0, dtype=FLOAT))


@ALL
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("d", [1, 100])
def test_one_row_and_many_columns(expert, n, d):
    data, X = shard(n, d), inputs(3, d, 3)
    theta = Parameters.of(1.3 * RBF([2.0] * d), 0.1, inputs(1, d, 4))
    value, gradient = value_and_gradient(lambda p: expert.objective(p, data), theta)
    out = expert.condition(theta, data).predict(X)
    assert torch.isfinite(value) and all(torch.isfinite(g).all() for g in gradient.values())
    assert bool(torch.isfinite(out.mean).all()) and bool((out.variance > 0).all())


@ALL
def test_duplicate_rows_and_constant_columns(expert):
    base = shard(15, 3)
    X = base.X.clone()
    X[:, 1] = 4.0
    data = Shard.of(X.repeat(4, 1), base.y.repeat(4))
    theta = Parameters.of(1.3 * RBF([0.5] * 3), 0.01, X[:6])
    value, gradient = value_and_gradient(lambda p: expert.objective(p, data), theta)
    out = expert.condition(theta, data).predict(X)
    assert torch.isfinite(value) and all(torch.isfinite(g).all() for g in gradient.values())
    assert bool(torch.isfinite(out.mean).all()) and bool((out.variance > 0).all())


def test_repeats_condition_like_one_row_with_less_noise():
    # r equal rows with noise σ² carry what one row with noise σ²/r and their mean carries.
    X, y = inputs(10, 2), torch.linspace(-1, 1, 10, dtype=FLOAT)
    kernel, Xs = 1.3 * RBF(0.6), inputs(6, 2, 8)
    repeated = Shard.of(X.repeat(4, 1), y.repeat(4))
    for expert in (cls() for cls in concrete(Expert)):
        many = expert.condition(Parameters.of(kernel, 0.4, X), repeated).predict(Xs)
        once = expert.condition(Parameters.of(kernel, 0.1, X), Shard.of(X, y)).predict(Xs)
        close(many.mean, once.mean, rtol=1e-8)
        close(many.variance, once.variance, rtol=1e-7)


@pytest.mark.filterwarnings("ignore::distgp.linalg.JitterWarning")
@pytest.mark.parametrize(
    ("name", "mean_error", "std_error"), [("exact", 0.15, 0.02), ("sparse", 1e-4, 1e-4)]
)
def test_float32_on_clustered_points_with_little_noise(name, mean_error, std_error):
    """1,000 points in ten tight clusters, noise 1e-4: benchmarks/precision.py prints the errors."""
    data, Xs = clustered()
    kernel = 1.0 * RBF(0.5)
    theta = Parameters.of(kernel, 1e-4, inducing.greedy(data.X, kernel, 1e-4, seed=0))
    expert = EXPERTS[name]()
    wide = expert.condition(theta, data).predict(Xs)
    data32, theta32 = data.to(dtype=torch.float32), theta.to(dtype=torch.float32)
    narrow = expert.condition(theta32, data32).predict(Xs.to(torch.float32))
    value, gradient = value_and_gradient(lambda p: expert.objective(p, data32), theta32)
    assert torch.isfinite(value) and all(torch.isfinite(g).all() for g in gradient.values())
    assert narrow.mean.dtype == narrow.variance.dtype == torch.float32
    assert float((narrow.mean.to(FLOAT) - wide.mean).abs().max()) < mean_error
    assert float((narrow.std.to(FLOAT) - wide.std).abs().max()) < std_error


@pytest.mark.filterwarnings("ignore::distgp.linalg.JitterWarning")
def test_a_float32_bound_stays_below_the_likelihood():
    # 128 inducing inputs under a long lengthscale: K_uu is singular to far more than float32.
    data = shard(1000, 2)
    theta = Parameters.of(1.0 * RBF(1.0), 0.01, inducing.kmeans(data.X, 128, 0))
    exact = distgp.experts.ExactExpert().objective(theta, data)
    narrow = theta.to(dtype=torch.float32), data.to(dtype=torch.float32)
    bound = distgp.experts.SparseExpert().objective(*narrow)
    assert exact - 0.01 < bound < exact + 1.0


def test_unstack_undoes_stack():
    shards = [shard(n, 2, seed=n) for n in (3, 7, 5)]
    for one, again in zip(shards, unstack(stack(shards)), strict=True):
        close(one.X, again.X, rtol=0, atol=0)
        close(one.y, again.y, rtol=0, atol=0)
        assert torch.equal(one.rows, again.rows)


@KERNELS
def test_sparse_with_every_row_inducing_is_exact(cls):
    data, X = shard(40, 2), inputs(20, 2, 3)
    theta = Parameters.of(example(cls, 2), 0.05, data.X)
    exact, sparse = distgp.experts.ExactExpert(), distgp.experts.SparseExpert()
    close(sparse.objective(theta, data), exact.objective(theta, data), rtol=1e-9)
    a, b = exact.condition(theta, data).predict(X), sparse.condition(theta, data).predict(X)
    close(b.mean, a.mean, rtol=1e-7, atol=1e-8)
    close(b.variance, a.variance, rtol=1e-6, atol=1e-8)


@KERNELS
@settings(max_examples=8)
@given(
    n=st.integers(2, 60),
    m=st.integers(1, 20),
    noise=st.floats(1e-3, 1.0),
    seed=st.integers(0, 100),
)
def test_bound_is_below_the_likelihood_and_grows_with_inducing_inputs(cls, n, m, noise, seed):
    data, kernel = shard(n, 2, seed), example(cls, 2)
    Z = inputs(m, 2, seed + 1)
    exact = distgp.experts.ExactExpert().objective(Parameters.of(kernel, noise), data)
    few = distgp.experts.SparseExpert().objective(Parameters.of(kernel, noise, Z), data)
    more = distgp.experts.SparseExpert().objective(
        Parameters.of(kernel, noise, torch.cat([Z, inputs(3, 2, seed + 2)])), data
    )
    slack = 1e-7 * (1 + float(exact.abs()))
    assert few >= exact - slack
    assert more <= few + slack
