import pytest
import torch
from helpers import FLOAT, inputs, shard

from distgp import RBF, Linear, Matern52, linalg
from distgp.data import Shard, placed
from distgp.experts import ExactExpert, Parameters, SparseExpert, inducing


@pytest.mark.parametrize("choose", [inducing.random_subset, inducing.kmeans])
def test_m_inputs_deterministic_by_seed(choose):
    X = inputs(200, 3)
    Z = choose(X, 20, 1)
    assert Z.shape == (20, 3) and Z.dtype == X.dtype
    assert torch.equal(Z, choose(X, 20, 1))
    assert not torch.equal(Z, choose(X, 20, 2))
    with pytest.raises(ValueError, match="between 1 and 200 inducing inputs"):
        choose(X, 201, 0)


def test_random_subset_takes_distinct_rows():
    X = inputs(50, 2)
    Z = inducing.random_subset(X, 50, 3)
    assert sorted(map(tuple, Z.tolist())) == sorted(map(tuple, X.tolist()))


def test_kmeans_of_repeated_rows_does_not_fail():
    assert inducing.kmeans(inputs(3, 2).repeat(10, 1), 5, 0).shape == (5, 2)


@pytest.mark.parametrize("share", [0.1, 0.01, 0.001])
def test_greedy_stops_by_its_rule(share):
    data, kernel, noise = shard(500, 2), 1.3 * RBF(0.6), 0.05
    Z = inducing.greedy(data.X, kernel, noise, seed=0, share=share)
    residual = SparseExpert().condition(Parameters.of(kernel, noise, Z), data).residual()
    assert residual <= share
    one_less = Parameters.of(kernel, noise, Z[:-1])
    before = SparseExpert().condition(one_less, data).residual()
    assert float(before) * 500 / (500 - len(Z) + 1) > share


def test_greedy_needs_more_for_shorter_lengthscales_and_is_capped():
    X = inputs(500, 2)
    sizes = [len(inducing.greedy(X, 1.0 * RBF(s), 0.05, seed=0)) for s in (2.0, 0.7, 0.3)]
    assert sizes[0] < sizes[1] < sizes[2]
    with pytest.warns(inducing.InducingWarning, match="30 inducing inputs leave"):
        assert len(inducing.greedy(X, 1.0 * RBF(0.1), 0.05, seed=0, largest=30)) == 30
    with pytest.raises(ValueError, match="0 < share < 1"):
        inducing.greedy(X, RBF(), 0.1, seed=0, share=2.0)


def test_greedy_bound_is_close_to_the_likelihood():
    data, kernel, noise = shard(400, 2), 1.3 * RBF(0.6), 0.05
    Z = inducing.greedy(data.X, kernel, noise, seed=0)
    p = Parameters.of(kernel, noise, Z)
    gap = SparseExpert().objective(p, data) - ExactExpert().objective(p, data)
    assert 0 <= gap < 0.01 * data.n  # n·share/2, and as much again for the fit
    assert len(Z) < 100


def test_greedy_looks_at_a_sample_of_a_long_shard(monkeypatch):
    monkeypatch.setattr(inducing, "SAMPLE", 100)
    sizes, factorise = [], linalg.pivoted_cholesky

    def recorded(diagonal, *rest):
        sizes.append(len(diagonal))
        return factorise(diagonal, *rest)

    monkeypatch.setattr(linalg, "pivoted_cholesky", recorded)
    inducing.greedy(inputs(5000, 2), 1.0 * RBF(1.0), 0.05, seed=0, largest=25)
    assert sizes == [100]


def test_greedy_keeps_its_promise_in_float32():
    X, kernel = inputs(1000, 2), 1.0 * Matern52(0.5)
    wide = inducing.greedy(X, kernel, 1e-2, seed=0)
    narrow = inducing.greedy(X.to(torch.float32), kernel.to(dtype=torch.float32), 1e-2, seed=0)
    assert abs(len(wide) - len(narrow)) <= 2


def test_greedy_with_a_prior_that_vanishes():
    assert len(inducing.greedy(torch.zeros(10, 2, dtype=FLOAT), Linear(), 0.1, seed=0)) == 1
    with pytest.raises(ValueError, match="noise > 0"):
        inducing.greedy(inputs(10, 2), RBF(), -1.0, seed=0)


def test_greedy_each_gives_every_shard_its_own_and_as_many():
    shards = [shard(60 + 10 * i, 2, i) for i in range(3)]
    shards[0] = Shard.of(shards[0].X * 0.01, shards[0].y)  # needs few: filled up with other rows
    Z = inducing.greedy_each(1.0 * RBF(0.5), placed(shards), 30, None, seed=0)
    assert Z.shape == (3, 30, 2)
    assert inducing.greedy_each(RBF(), placed(shards), None, None, seed=0).shape[1] == 16
    assert inducing.greedy_each(RBF(), placed(shards), 99, None, seed=0).shape[1] == 60
    assert inducing.greedy_each(RBF(), placed(shards), 50, 20, seed=0).shape[1] == 20
    for one, z in zip(shards, Z, strict=True):
        assert {tuple(p) for p in z.tolist()} <= {tuple(p) for p in one.X.tolist()}
        assert len({tuple(p) for p in z.tolist()}) == len(z)
