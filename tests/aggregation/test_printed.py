"""opt-printed against a transcription of the paper's algorithms, its failure included."""

import pytest
import torch
from ensembles import build
from helpers import FLOAT, close, inputs

from distgp import (
    RBF,
    Ensemble,
    ExactExpert,
    Opt,
    OptPrinted,
    Parameters,
    PoE,
    RandomPartition,
    Shard,
    metrics,
    split,
    unstack,
)

X = inputs(10, 2, 3)
pytestmark = pytest.mark.filterwarnings("ignore::distgp.WeightsWarning")


def algorithm_5(ensemble, Xc, lam):
    """Algorithm 5, entry by entry, k(X_c, X_i) read as k(X_c, X_j) and λ put back."""
    shards, k = unstack(ensemble.groups[0].rows()), ensemble.parameters.kernel
    noise = ensemble.parameters.noise
    alpha = []
    for s in shards:
        L = torch.linalg.cholesky(k(s.X) + noise * torch.eye(s.n, dtype=FLOAT))
        R = torch.linalg.solve_triangular(L, s.y[:, None], upper=False)
        alpha.append(torch.linalg.solve_triangular(L.mT, R, upper=True)[:, 0])
    A = torch.zeros(len(shards), len(shards), dtype=FLOAT)
    for i, si in enumerate(shards):
        for j, sj in enumerate(shards):
            Mc = lam * k(si.X, sj.X) + k(si.X, Xc) @ k(Xc, sj.X)
            A[i, j] = alpha[i] @ Mc @ alpha[j]
    return A


def algorithm_3(ensemble, Xc):
    """Algorithm 3, entry by entry."""
    shards, theta = unstack(ensemble.groups[0].rows()), ensemble.parameters
    k, noise, Z = theta.kernel, theta.noise, theta.inducing
    Mc = k(Z) + k(Z, Xc) @ k(Xc, Z) / noise
    alpha = []
    for s in shards:
        Mi = k(Z) + k(Z, s.X) @ k(s.X, Z) / noise
        alpha.append(torch.linalg.solve(Mi, k(Z, s.X) @ s.y))
    return torch.stack([torch.stack([a @ Mc @ c / noise for c in alpha]) for a in alpha])


@pytest.mark.parametrize("lam", [None, 1.0])
@pytest.mark.parametrize("kind", ["exact", "shared Z"])
def test_the_printed_system(kind, lam):
    if kind != "exact" and lam is not None:
        pytest.skip("algorithm 3 has λ = σ² built in")
    ensemble, _ = build(kind, 5)
    aggregator = OptPrinted(lam=lam)
    equations, Xc = aggregator.equations(ensemble)
    assert len(Xc) == 5
    noise = float(ensemble.parameters.noise)
    A = algorithm_5(ensemble, Xc, lam or noise) if kind == "exact" else algorithm_3(ensemble, Xc)
    close(equations.G, A, rtol=1e-6, atol=1e-8)
    close(equations.b, A.diagonal(), rtol=1e-6, atol=1e-8)
    jittered = A + 1e-6 * A.diagonal().mean() * torch.eye(5, dtype=FLOAT)
    combined = aggregator.combine(ensemble)
    close(combined.weights, torch.linalg.solve(jittered, A.diagonal()), rtol=1e-4, atol=1e-6)


def test_one_central_row_a_shard():
    ensemble, _ = build("exact", 5)
    _, Xc = OptPrinted().equations(ensemble)
    owners = [
        next(
            i for i, s in enumerate(unstack(ensemble.groups[0].rows())) if (x == s.X).all(-1).any()
        )
        for x in Xc
    ]
    assert sorted(owners) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["exact", "shared Z"])
def test_the_printed_variances(kind):
    ensemble, _ = build(kind, 4)
    combined = OptPrinted().combine(ensemble)
    beta, theta, shards = combined.weights, ensemble.parameters, unstack(ensemble.groups[0].rows())
    k, noise = theta.kernel, theta.noise
    expected = torch.zeros(10, dtype=FLOAT)
    for b, s in zip(beta, shards, strict=True):
        if kind == "exact":
            K, A = k(s.X, X), k(s.X) + noise * torch.eye(s.n, dtype=FLOAT)
        else:
            K = k(theta.inducing, X)
            A = k(theta.inducing) + k(theta.inducing, s.X) @ k(s.X, theta.inducing) / noise
        expected += b.square() * (K * torch.linalg.solve(A, K)).sum(0)
    close(combined.predict(X).variance, expected, rtol=1e-5, atol=1e-8)
    weighted = OptPrinted(variance="weighted").combine(ensemble).predict(X).variance
    experts = ensemble.groups[0].posterior.predict(X)
    close(weighted, beta.square() @ experts.variance)


def test_the_printed_weights_fail_as_the_number_of_experts_grows():
    """M = 40 on the paper's synthetic task: the printed weights lose to PoE, `opt` does not."""
    generator = torch.Generator().manual_seed(0)
    grid = torch.linspace(-1.2, 1.2, 25, dtype=FLOAT)
    points = torch.cat(
        [
            torch.rand(2000, 2, generator=generator, dtype=FLOAT) * 2 - 1,
            torch.cartesian_prod(grid, grid),
        ]
    )
    kernel = 1.0 * RBF(0.3)
    L = torch.linalg.cholesky(kernel(points) + 1e-8 * torch.eye(len(points), dtype=FLOAT))
    f = L @ torch.randn(len(points), generator=generator, dtype=FLOAT)
    y = f[:2000] + 0.5 * torch.randn(2000, generator=generator, dtype=FLOAT)
    data = Shard.of(points[:2000], y)
    shards = split(data, RandomPartition().assign(data.X.numpy(), 40, 0))
    ensemble = Ensemble.condition(ExactExpert(), Parameters.of(kernel, 0.25), shards)
    error = {
        a.name: metrics.rmse(f[2000:], a.combine(ensemble).mean(points[2000:]))
        for a in (PoE(), Opt(), OptPrinted())
    }
    assert error["opt"] < error["poe"] < error["opt-printed"]
