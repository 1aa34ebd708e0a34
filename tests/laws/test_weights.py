"""Rows with weights and with noise variances of their own: what must hold of every expert and engine."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from helpers import close, concrete, finite_differences, inputs, shard, value_and_gradient

import distgp
from distgp import AGGREGATORS, RBF
from distgp.aggregation import Ensemble
from distgp.data import Shard, concatenate, stack, unstack
from distgp.experts import ExactExpert, Expert, NearestExpert, Parameters, SparseExpert
from distgp.training import NearestRows, PooledBound, train

ALL = pytest.mark.parametrize(
    "expert",
    [NearestExpert(300, 300) if e.name == "nearest" else e() for e in concrete(Expert)],
    ids=lambda e: e.name,
)
"""Experts; those of nearest rows with all rows as neighbours, as copies of a row would crowd out others."""


def theta(d: int = 2) -> Parameters:
    return Parameters.of(1.3 * RBF([0.7] * d), 0.04, inputs(12, d, 5))


def weighted(n: int = 40, seed: int = 0) -> Shard:
    data = shard(n, 2, seed)
    weight = torch.arange(n, dtype=torch.float64) % 4 + 1
    return dataclasses.replace(data, weight=weight)


def copies(data: Shard) -> Shard:
    """Every row as often as its weight says."""
    assert data.weight is not None
    which = torch.arange(data.n).repeat_interleave(data.weight.long())
    return Shard.of(data.X[which], data.y[which])


@ALL
def test_integer_weights_are_copies(expert):
    data, X = weighted(), inputs(30, 2, 9)
    close(expert.objective(theta(), data), expert.objective(theta(), copies(data)), rtol=1e-9)
    one, many = (expert.condition(theta(), s).predict(X) for s in (data, copies(data)))
    close(one.mean, many.mean, rtol=1e-7, atol=1e-9)
    close(one.variance, many.variance, rtol=1e-7, atol=1e-9)


@ALL
def test_weights_of_one_change_no_bit(expert):
    data, X = shard(40, 2), inputs(30, 2, 9)
    ones = dataclasses.replace(data, weight=torch.ones(40).double(), noise=torch.ones(40).double())
    one, other = (expert.condition(theta(), s).predict(X) for s in (data, ones))
    assert torch.equal(one.mean, other.mean)
    assert torch.equal(one.variance, other.variance)


@ALL
def test_the_gradient_with_weights_equals_finite_differences(expert):
    data = dataclasses.replace(weighted(20), noise=torch.linspace(0.3, 3.0, 20).double())
    Z = None if expert.name == "exact" else inputs(5, 2, 5)
    start = dataclasses.replace(theta(), inducing=Z)
    _, gradient = value_and_gradient(lambda p: expert.objective(p, data), start)
    for name, value in finite_differences(lambda p: expert.objective(p, data), start).items():
        close(gradient[name], value, rtol=1e-6, atol=1e-6)


def test_a_rows_own_noise_stands_on_the_diagonal():
    data, X = shard(30, 2), inputs(7, 2, 3)
    factor = torch.linspace(0.1, 5.0, 30).double()
    own, t = dataclasses.replace(data, noise=factor), theta()
    K = t.kernel(data.X) + torch.diag(t.noise * factor)
    cross = t.kernel(X, data.X)
    mean = cross @ torch.linalg.solve(K, data.y)
    variance = t.kernel.diag(X) - (cross * torch.linalg.solve(K, cross.mT).mT).sum(-1)
    out = ExactExpert().condition(t, own).predict(X)
    close(out.mean, mean)
    close(out.variance, variance)
    normal = torch.distributions.MultivariateNormal(torch.zeros(30).double(), K)
    close(ExactExpert().objective(t, own), -normal.log_prob(data.y))
    nearest = NearestExpert(30, 30)
    found = nearest.condition(dataclasses.replace(t, inducing=None), own)
    close(found.predict(X).mean, mean)
    close(found.predict(X).variance, variance)
    close(nearest.objective(t, own), -normal.log_prob(data.y), rtol=1e-6)


def test_the_sparse_bound_counts_rows_own_noise():
    """It is Titsias' bound with the noise σ²v of each row, below the exact GP's log p and next to it."""
    data, t = shard(30, 2), theta()
    factor = torch.linspace(0.01, 0.5, 30).double()
    own = dataclasses.replace(data, noise=factor)
    Z = t.inducing
    assert Z is not None
    Kuf = t.kernel(Z, data.X)
    Q = Kuf.mT @ torch.linalg.inv(t.kernel(Z)) @ Kuf
    S = Q + torch.diag(t.noise * factor)
    normal = torch.distributions.MultivariateNormal(torch.zeros(30).double(), S)
    left = ((t.kernel.diag(data.X) - Q.diagonal()) / (t.noise * factor)).sum()
    found = SparseExpert().objective(t, own)
    close(found, 0.5 * left - normal.log_prob(data.y), rtol=1e-8)
    exact = float(ExactExpert().objective(t, own))
    assert float(found) >= exact
    at_rows = dataclasses.replace(t, inducing=data.X)
    assert exact - 1e-4 <= float(SparseExpert().objective(at_rows, own)) < exact + 1e-2


def test_pooled_training_counts_rows_own_noise():
    """Its objective is that of one sparse expert with all rows, with weights and noise variances."""
    factor = torch.linspace(0.01, 0.5, 40).double()
    data, t = dataclasses.replace(weighted(40), noise=factor), theta()
    parts = list(data.chunks(15))
    history = train(PooledBound(n_iter=2), SparseExpert(), t, parts).history
    assert history[1].objective == pytest.approx(float(SparseExpert().objective(t, data)), rel=1e-9)


@ALL
def test_copies_with_noise_of_their_own(expert):
    factor = torch.linspace(0.3, 3.0, 40).double()
    data = dataclasses.replace(weighted(), noise=factor)
    assert data.weight is not None
    which = torch.arange(data.n).repeat_interleave(data.weight.long())
    many = Shard.of(data.X[which], data.y[which], None, None, factor[which])
    close(expert.objective(theta(), data), expert.objective(theta(), many), rtol=1e-9)


@ALL
def test_padding_and_batching_keep_weights(expert):
    shards = [weighted(n, seed=n) for n in (9, 17)]
    X, batch = inputs(9, 2, 77), stack([*shards, shard(5, 2)])
    for before, after in zip([*shards, shard(5, 2)], unstack(batch), strict=True):
        expected = torch.ones(5) if before.weight is None else before.weight
        assert after.weight is not None and torch.equal(after.weight, expected.double())
    values, out = expert.objective(theta(), batch), expert.condition(theta(), batch).predict(X)
    for i, one in enumerate([*shards, shard(5, 2)]):
        close(values[i], expert.objective(theta(), one))
        close(out.mean[i], expert.condition(theta(), one).predict(X).mean)


@pytest.mark.parametrize("name", sorted(AGGREGATORS.keys() - {"opt-printed"}))
def test_every_aggregator_takes_integer_weights_for_copies(name):
    """With all rows where an aggregator draws some; opt-printed draws one of each shard, so not it."""
    kind = AGGREGATORS[name]
    wanted = next(n for n in ("exact", "sparse", "nearest") if n in kind.serves)
    expert = NearestExpert(300, 300) if wanted == "nearest" else distgp.EXPERTS[wanted]()
    shards = [weighted(n, seed=n) for n in (23, 31, 17)]
    t = theta() if wanted != "exact" else dataclasses.replace(theta(), inducing=None)
    options = {"n_central": 1000} if "n_central" in kind.__dataclass_fields__ else {}
    if "n_eval" in kind.__dataclass_fields__:
        options["n_eval"] = 1000
    X, found = inputs(20, 2, 9), []
    for some in (shards, [copies(s) for s in shards]):
        ensemble = Ensemble.condition(expert, t, some)
        combined = kind(**options).combine(ensemble)
        found.append(combined.predict(ensemble, X))
    close(found[0].mean, found[1].mean, rtol=1e-6, atol=1e-8)
    close(found[0].variance, found[1].variance, rtol=1e-6, atol=1e-8)


def test_training_by_nearest_rows_counts_copies():
    """With all rows as targets and neighbours it maximises the likelihood of all copies."""
    data = weighted(40)
    start = Parameters.of(1.0 * RBF([1.0, 1.0]), 0.1)
    rows = NearestRows(n_targets=100, n_neighbors=99, stages=1, search=False, copies=True)
    fitted = [train(rows, NearestExpert(), start, [s]).parameters for s in (data, copies(data))]
    values = [float(ExactExpert().objective(t, copies(data))) for t in fitted]
    assert math.isclose(*values, rel_tol=0, abs_tol=1e-4)
    assert float(ExactExpert().objective(start, copies(data))) > values[0] + 10.0


def test_rows_keep_their_weights_where_shards_are_joined():
    parts = [weighted(5), shard(3, 2, 1)]
    joined = concatenate(parts)
    assert joined.weight is not None
    assert joined.weight.tolist() == [1.0, 2.0, 3.0, 4.0, 1.0, 1.0, 1.0, 1.0]
