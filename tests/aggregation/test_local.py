"""Weights for experts that differ."""

import pytest
import torch
from ensembles import KINDS, build
from helpers import FLOAT, inputs

from distgp import OptLocal, PoE, central_set, unstack
from distgp.aggregation.local import constrained, precision_shares
from distgp.workers import Workers

X = inputs(25, 2, seed=9)


@pytest.mark.parametrize("ridge", [0.0, 0.3, 10.0])
def test_weights_solve_the_constrained_problem(ridge):
    generator = torch.Generator().manual_seed(0)
    A = torch.randn(30, 6, generator=generator, dtype=FLOAT)
    y = torch.randn(30, generator=generator, dtype=FLOAT)
    G, b = A.mT @ A, A.mT @ y
    D = ridge * G.diagonal().diag()
    ones = torch.ones(6, 1, dtype=FLOAT)
    kkt = torch.cat([torch.cat([G + D, ones], 1), torch.cat([ones.mT, torch.zeros(1, 1)], 1)])
    right = torch.cat([b + D.diagonal() / 6, torch.ones(1)])
    wanted = torch.linalg.solve(kkt, right)[:6]
    torch.testing.assert_close(constrained(G, b, ridge), wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_formula(kind):
    ensemble, data = build(kind, 4)
    combined = OptLocal(ridge=0.5, n_eval=60).combine(ensemble)
    rows = ensemble.groups[0].posterior.predict(data.X)
    g = 4 * precision_shares(rows.variance) * rows.mean
    beta = constrained(g @ g.mT, g @ data.y, 0.5)
    torch.testing.assert_close(combined.weights, beta, rtol=1e-8, atol=1e-10)
    assert float(combined.weights.sum()) == pytest.approx(1.0)
    at = ensemble.groups[0].posterior.predict(X)
    share = (1 / at.variance) / (1 / at.variance).sum(0)
    mean = (4 * beta[:, None] * share * at.mean).sum(0)
    variance = (share * (at.variance + (at.mean - mean) ** 2)).sum(0)
    out = combined.predict(X)
    torch.testing.assert_close(out.mean, mean)
    torch.testing.assert_close(out.variance, variance)


def test_a_strong_ridge_gives_the_mean_of_poe():
    ensemble, _ = build("sparse, own θ", 5)
    strong = OptLocal(ridge=1e9).combine(ensemble)
    torch.testing.assert_close(
        strong.mean(X), PoE().combine(ensemble).mean(X), rtol=1e-6, atol=1e-8
    )


def test_options_are_checked():
    with pytest.raises(ValueError, match="ridge"):
        OptLocal(ridge=-1.0)
    with pytest.raises(ValueError, match="n_eval"):
        OptLocal(n_eval=0)


def test_the_draw_of_rows_is_that_of_the_central_set():
    ensemble, _ = build("exact", 5, n=61)
    shards = unstack(ensemble.groups[0].rows())
    for size in (1, 7, 23, 61):
        wanted = central_set(shards, size, 3)
        for found in (ensemble.central(size, 3), Workers.of(shards).central(size, 3)):
            assert found.rows.tolist() == wanted.rows.tolist()
            torch.testing.assert_close(found.X, wanted.X)
            torch.testing.assert_close(found.y, wanted.y)
