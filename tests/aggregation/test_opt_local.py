"""Weights for experts that differ."""

import pytest
import torch
from ensembles import KINDS, build, posterior
from helpers import FLOAT, inputs

from distgp.aggregation import OptLocal, PoE
from distgp.aggregation.optimal import constrained, precision_shares

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
    assert combined.weights is not None
    rows = posterior(ensemble).predict(data.X)
    g = 4 * precision_shares(rows.variance) * rows.mean
    beta = constrained(g @ g.mT, g @ data.y, 0.5)
    torch.testing.assert_close(combined.weights, beta, rtol=1e-8, atol=1e-10)
    assert float(combined.weights.sum()) == pytest.approx(1.0)
    at = posterior(ensemble).predict(X)
    share = (1 / at.variance) / (1 / at.variance).sum(0)
    mean = (4 * beta[:, None] * share * at.mean).sum(0)
    variance = (share * (at.variance + (at.mean - mean) ** 2)).sum(0)
    out = combined.predict(ensemble, X)
    torch.testing.assert_close(out.mean, mean)
    torch.testing.assert_close(out.variance, variance)


def test_a_strong_ridge_gives_the_mean_of_poe():
    ensemble, _ = build("sparse, own θ", 5)
    strong = OptLocal(ridge=1e9).combine(ensemble).mean(ensemble, X)
    wanted = PoE().combine(ensemble).mean(ensemble, X)
    torch.testing.assert_close(strong, wanted, rtol=1e-6, atol=1e-8)


def test_the_ridge_is_ten_where_none_is_given():
    ensemble, data = build("sparse, own θ", 4)
    rows = posterior(ensemble).predict(data.X)
    g = 4 * precision_shares(rows.variance) * rows.mean
    combined = OptLocal(n_eval=60).combine(ensemble)
    assert combined.weights is not None
    wanted = constrained(g @ g.mT, g @ data.y, 10.0)
    torch.testing.assert_close(combined.weights, wanted, rtol=1e-8, atol=1e-10)


def test_options_are_checked():
    with pytest.raises(ValueError, match="ridge"):
        OptLocal(ridge=-1.0)
    with pytest.raises(ValueError, match="n_eval"):
        OptLocal(n_eval=0)
