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

import distgp
from distgp import EXPERTS, RBF, Expert, Kernel, Parameters, Scale, Shard, stack, unstack
from distgp.experts import base, inducing

ALL = pytest.mark.parametrize("expert", [cls() for cls in concrete(Expert)], ids=lambda e: e.name)
KERNELS = pytest.mark.parametrize("cls", concrete(Kernel), ids=lambda cls: cls.__name__)


def parameters(d: int, m: int = 12, seed: int = 5) -> Parameters:
    return Parameters.of(1.3 * RBF([0.7] * d), 0.04, inputs(m, d, seed))


def test_discovery_agrees_with_the_registry():
    assert {e.name for e in concrete(Expert)} == EXPERTS.keys() == {"exact", "sparse"}


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
@settings(deadline=None, max_examples=15)
@given(lengths=st.lists(st.integers(1, 30), min_size=1, max_size=5), d=st.integers(1, 4))
def test_padding_and_batching_change_nothing(expert, lengths, d):
    shards = [shard(n, d, seed=i) for i, n in enumerate(lengths)]
    theta, X = parameters(d), inputs(9, d, 77)
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
def test_predictions_do_not_depend_on_chunks(expert, monkeypatch):
    posterior = expert.condition(parameters(2), stack([shard(20, 2), shard(30, 2, 1)]))
    X = inputs(50, 2, 3)
    whole = posterior.predict(X)
    monkeypatch.setitem(base.CHUNK_ENTRIES, "cpu", 7 * posterior.columns)
    parts = posterior.predict(X)
    close(parts.mean, whole.mean, rtol=1e-12)
    close(parts.variance, whole.variance, rtol=1e-12)


@ALL
def test_mean_only_does_no_variance_work(expert, monkeypatch):
    posterior, X = expert.condition(parameters(2), shard(20, 2)), inputs(5, 2, 3)
    full = posterior.predict(X)

    def forbidden(*args):
        raise AssertionError("variance work")

    monkeypatch.setattr("distgp.experts.exact.latent_variance", forbidden)
    monkeypatch.setattr("distgp.experts.sparse.latent_variance", forbidden)
    monkeypatch.setattr(distgp.Kernel, "diag", forbidden)
    close(posterior.mean(X), full.mean, rtol=0, atol=0)


@ALL
@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(1, 40),
    noise=st.floats(1e-6, 10.0),
    lengthscale=st.floats(0.05, 20.0),
    distance=st.sampled_from([0.0, 1.0, 1e3, 1e8]),
)
@pytest.mark.filterwarnings("ignore::distgp.JitterWarning")
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


@pytest.mark.parametrize(
    ("name", "mean_error", "std_error"), [("exact", 0.05, 0.02), ("sparse", 0.02, 0.005)]
)
def test_float32_on_clustered_points_with_little_noise(name, mean_error, std_error):
    """1,000 points in ten tight clusters, noise 1e-4; benchmarks/precision.py prints the errors."""
    data, theta, Xs = clustered_problem()
    expert = EXPERTS[name]()
    wide = expert.condition(theta, data).predict(Xs)
    data32, theta32 = data.to(dtype=torch.float32), theta.to(dtype=torch.float32)
    narrow = expert.condition(theta32, data32).predict(Xs.to(torch.float32))
    value, gradient = value_and_gradient(lambda p: expert.objective(p, data32), theta32)
    assert torch.isfinite(value) and all(torch.isfinite(g).all() for g in gradient.values())
    assert narrow.mean.dtype == torch.float32
    assert float((narrow.mean.to(FLOAT) - wide.mean).abs().max()) < mean_error
    assert float((narrow.std.to(FLOAT) - wide.std).abs().max()) < std_error


def clustered_problem():
    generator = torch.Generator().manual_seed(0)
    X = inputs(10, 2, 1).repeat(100, 1)
    X = X + 1e-3 * torch.randn(1000, 2, generator=generator, dtype=FLOAT)
    y = torch.sin(3 * X.sum(-1)) + 0.01 * torch.randn(1000, generator=generator, dtype=FLOAT)
    kernel = 1.0 * RBF(0.5)
    theta = Parameters.of(kernel, 1e-4, inducing.greedy(X, kernel, 1e-4, seed=0))
    return Shard.of(X, y), theta, inputs(200, 2, 9)


def test_unstack_undoes_stack():
    shards = [shard(n, 2, seed=n) for n in (3, 7, 5)]
    for one, again in zip(shards, unstack(stack(shards)), strict=True):
        close(one.X, again.X, rtol=0, atol=0)
        close(one.y, again.y, rtol=0, atol=0)
        assert torch.equal(one.rows, again.rows)


def test_sparse_with_every_row_inducing_is_exact():
    data, X = shard(40, 2), inputs(20, 2, 3)
    theta = Parameters.of(1.3 * distgp.Matern32([0.7, 0.9]), 0.05, data.X)
    exact, sparse = distgp.ExactExpert(), distgp.SparseExpert()
    close(sparse.objective(theta, data), exact.objective(theta, data), rtol=1e-9)
    a, b = exact.condition(theta, data).predict(X), sparse.condition(theta, data).predict(X)
    close(b.mean, a.mean, rtol=1e-8)
    close(b.variance, a.variance, rtol=1e-7)


@settings(deadline=None, max_examples=25)
@given(
    n=st.integers(2, 60),
    m=st.integers(1, 20),
    noise=st.floats(1e-3, 1.0),
    seed=st.integers(0, 100),
)
def test_bound_is_below_the_likelihood_and_grows_with_inducing_inputs(n, m, noise, seed):
    data, kernel = shard(n, 2, seed), 1.3 * distgp.Matern32(0.7)
    Z = inputs(m, 2, seed + 1)
    exact = distgp.ExactExpert().objective(Parameters.of(kernel, noise), data)
    few = distgp.SparseExpert().objective(Parameters.of(kernel, noise, Z), data)
    more = distgp.SparseExpert().objective(
        Parameters.of(kernel, noise, torch.cat([Z, inputs(3, 2, seed + 2)])), data
    )
    slack = 1e-7 * (1 + float(exact.abs()))
    assert few >= exact - slack
    assert more <= few + slack
