"""NPAE against a naive version, one test point at a time."""

import pytest
import torch
from ensembles import COMMON, build, full_gp, posterior, shards_of
from helpers import FLOAT, close, inputs

from distgp.aggregation import NPAE, Pooled, nested
from distgp.experts import SparsePosterior, base

X = inputs(12, 2, 3)


def naive_exact(ensemble, x):
    """Section 2.2.2 of the paper, with explicit inverses and noise on the diagonal blocks."""
    shards, theta = shards_of(ensemble), ensemble.parameters
    k, noise = theta.kernel, theta.noise
    a = [
        torch.linalg.inv(k(s.X) + noise * torch.eye(s.n, dtype=FLOAT)) @ k(s.X, x[None])[:, 0]
        for s in shards
    ]
    mean = torch.stack([ai @ s.y for ai, s in zip(a, shards, strict=True)])
    k_A = torch.stack([ai @ k(s.X, x[None])[:, 0] for ai, s in zip(a, shards, strict=True)])
    K_A = torch.zeros(len(a), len(a), dtype=FLOAT)
    for i, si in enumerate(shards):
        for j, sj in enumerate(shards):
            block = k(si.X, sj.X)
            if i == j:
                block = block + noise * torch.eye(si.n, dtype=FLOAT)
            K_A[i, j] = a[i] @ block @ a[j]
    return mean, k_A, K_A


def naive_sparse(ensemble, x):
    """The same for y_i = Q_i u + noise: what a sparse expert believes of its rows."""
    shards, theta = shards_of(ensemble), ensemble.parameters
    k, noise = theta.kernel, theta.noise
    means, to_f, weights, designs, Zs = [], [], [], [], []
    for i, s in enumerate(shards):
        one = theta[i] if theta.inducing_batch else theta
        Z = one.inducing
        D = k(s.X, Z) @ torch.linalg.inv(k(Z))  # f(X_i) ≈ D u
        Q = D @ k(Z) @ D.mT
        q = D @ k(Z, x[None])[:, 0]
        a = torch.linalg.inv(Q + noise * torch.eye(s.n, dtype=FLOAT)) @ q
        means.append(a @ s.y)
        to_f.append(a @ q)
        weights.append(a)
        designs.append(D)
        Zs.append(Z)
    M = len(shards)
    K_A = torch.zeros(M, M, dtype=FLOAT)
    for i in range(M):
        for j in range(M):
            block = designs[i] @ k(Zs[i], Zs[j]) @ designs[j].mT
            if i == j:
                block = block + noise * torch.eye(shards[i].n, dtype=FLOAT)
            K_A[i, j] = weights[i] @ block @ weights[j]
    return torch.stack(means), torch.stack(to_f), K_A


@pytest.mark.parametrize("kind", COMMON)
def test_moments_and_prediction_against_the_naive_version(kind):
    ensemble, _ = build(kind, 4)
    m = nested.moments(ensemble, X)
    out = NPAE().combine(ensemble).predict(ensemble, X)
    for x in range(len(X)):
        reference = naive_exact if kind == "exact" else naive_sparse
        mean, k_A, K_A = reference(ensemble, X[x])
        close(m.mean[:, x], mean, rtol=1e-6, atol=1e-8)
        close(m.to_f[:, x], k_A, rtol=1e-6, atol=1e-8)
        close(m.between[x], K_A, rtol=1e-6, atol=1e-8)
        close(K_A.diagonal(), k_A, rtol=1e-6, atol=1e-8)  # diag K_A = k_A
        weights = torch.linalg.solve(K_A, k_A)
        prior = ensemble.parameters.kernel.diag(X[x : x + 1])[0]
        close(out.mean[x], weights @ mean, rtol=1e-6, atol=1e-7)
        close(out.variance[x], prior - weights @ k_A, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("M", [2, 5, 9])
def test_nested_variance_bounds_the_full_gps(M):
    ensemble, data = build("exact", M)
    out, full = NPAE().combine(ensemble).predict(ensemble, X), full_gp(ensemble, data, X)
    best = posterior(ensemble).predict(X).variance.amin(0)
    assert bool((out.variance >= full.variance - 1e-9).all())
    assert bool((out.variance <= best + 1e-9).all())


def test_nested_variance_of_sparse_experts_bounds_the_pooled():
    ensemble, _ = build("shared Z", 5)
    assert isinstance(posterior(ensemble), SparsePosterior)
    out, pooled = (
        NPAE().combine(ensemble).predict(ensemble, X),
        Pooled().combine(ensemble).predict(ensemble, X),
    )
    assert bool((out.variance >= pooled.variance - 1e-9).all())


def test_blocks_of_experts_change_nothing(monkeypatch):
    ensemble, _ = build("exact", 6)
    whole = nested.moments(ensemble, X)
    monkeypatch.setitem(base.CHUNK_ENTRIES, "cpu", 2 * len(X) * 60)
    close(nested.moments(ensemble, X).between, whole.between)
