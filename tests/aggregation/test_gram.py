"""The normal equations of optimal weights, against their definition."""

import pytest
import torch
from ensembles import COMMON, build, combination, posterior, regrouped
from helpers import FLOAT, close

from distgp.aggregation import Opt
from distgp.experts import base


@pytest.mark.parametrize("kind", COMMON)
def test_normal_equations_are_those_of_R(kind):
    ensemble, data = build(kind, 4)
    equations = Opt().equations(ensemble)
    k, noise = ensemble.parameters.kernel, ensemble.parameters.noise
    for i in range(4):
        for j in range(4):
            (P, c), (Q, e) = (
                combination(ensemble, torch.eye(4, dtype=FLOAT)[row]) for row in (i, j)
            )
            f, g = k(data.X, P) @ c, k(data.X, Q) @ e
            close(equations.G[i, j], f @ g + noise * c @ k(P, Q) @ e, rtol=1e-6, atol=1e-8)
            close(equations.b[i], data.y @ f, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", ["exact", "own Z"])
def test_workers_add_up_to_the_same_equations(kind):
    ensemble, _ = build(kind, 5)
    whole, parts = Opt().equations(ensemble), Opt().equations(regrouped(ensemble, [2, 1, 2]))
    close(parts.G, whole.G)
    close(parts.b, whole.b)


@pytest.mark.parametrize("kind", ["exact", "own Z"])
def test_chunks_of_rows_add_up_to_the_same_equations(kind, monkeypatch):
    ensemble, _ = build(kind, 5)
    whole = Opt().equations(ensemble)
    monkeypatch.setitem(base.CHUNK_ENTRIES, "cpu", 100)
    parts = Opt().equations(ensemble)
    close(parts.G, whole.G)
    close(parts.b, whole.b)


def test_a_sample_of_all_rows_is_all_rows():
    ensemble, data = build("own Z", 4)
    whole, sampled = Opt().equations(ensemble), Opt(n_eval=data.n).equations(ensemble)
    close(sampled.G, whole.G)
    close(sampled.b, whole.b)
    half = Opt(n_eval=30).equations(ensemble)
    assert 0.5 < float(half.G.trace() / whole.G.trace()) < 1.5


def test_a_sample_of_rows_is_scaled_up_and_held_by_a_ridge():
    ensemble, data = build("own Z", 4)
    sample = ensemble.central(20, seed=0)
    F = posterior(ensemble).mean(sample.X)
    whole = Opt().equations(ensemble)
    F_all = posterior(ensemble).mean(data.X)
    inner = whole.G - F_all @ F_all.mT
    sampled = Opt(n_eval=20).equations(ensemble)
    close(sampled.G, data.n / 20 * F @ F.mT + inner, rtol=1e-8)
    close(sampled.b, data.n / 20 * F @ sample.y, rtol=1e-8)

    def weights(ensemble, **options):
        found = Opt(**options).combine(ensemble).weights
        assert found is not None
        return found

    close(weights(ensemble, n_eval=20), weights(ensemble, n_eval=20, ridge=0.1))
    own, _ = build("exact, own θ", 4)
    close(weights(own), weights(own, ridge=0.1))
    shared, _ = build("shared Z", 4)  # its sums need no sample, and no ridge
    close(weights(shared, n_eval=20), weights(shared))
