"""The variances of weighted combinations: their formulas, their bounds, what they cover."""

import numpy as np
import pytest
import torch
from ensembles import COMMON, build, posterior, shards_of
from helpers import FLOAT, close, inputs

from distgp import metrics
from distgp.aggregation import CentralWarning, Ensemble, Opt, OptPrinted, TwoLevel, variance
from distgp.aggregation.nested import moments
from distgp.data import RandomPartition, Shard, split
from distgp.experts import ExactExpert, Parameters, SparseExpert, inducing
from distgp.kernels import RBF

X = inputs(12, 2, 3)
few_central = pytest.mark.filterwarnings("ignore::distgp.aggregation.CentralWarning")
large_weights = pytest.mark.filterwarnings("ignore::distgp.aggregation.WeightsWarning")


def variance_of(aggregator, ensemble):
    return aggregator.combine(ensemble).predict(ensemble, X).variance


@pytest.mark.parametrize("kind", COMMON)
def test_own_variance_is_the_error_of_this_combination(kind):
    ensemble, _ = build(kind, 4, n=80)
    best, m = posterior(ensemble).predict(X).variance.amin(0), moments(ensemble, X)
    cut = []
    for ridge in (0.0, 10.0):  # fitted weights, then nearly equal ones
        combined = Opt(ridge=ridge, cross="exact").combine(ensemble)
        beta = combined.weights
        own = m.prior - 2 * beta @ m.to_f + torch.einsum("i,nij,j->n", beta, m.between, beta)
        found = combined.predict(ensemble, X).variance
        close(found, torch.minimum(own, best), rtol=1e-7, atol=1e-9)
        cut.append(float((own > best).to(FLOAT).mean()))
    assert cut[1] < 1.0  # the cut does not decide everywhere


@pytest.mark.parametrize("kind", ["exact", "own Z"])
def test_own_variance_through_all_rows_is_exact_for_exact_experts(kind):
    ensemble, data = build(kind, 4)
    through = Opt(n_central=data.n).combine(ensemble).predict(ensemble, X)
    exact = Opt(cross="exact").combine(ensemble).predict(ensemble, X)
    close(through.mean, exact.mean)
    if kind == "exact":
        close(through.variance, exact.variance, rtol=1e-5, atol=1e-7)


def test_covariances_through_all_rows_are_exact_where_the_cut_does_not_decide(monkeypatch):
    ensemble, data = build("exact", 5, n=100)
    exact = variance_of(Opt(ridge=10.0, cross="exact"), ensemble)
    best = posterior(ensemble).predict(X).variance.amin(0)
    assert bool((exact < 0.99 * best).any())
    through, central = Opt(ridge=10.0, n_central=data.n), Opt(variance="central", n_central=30)
    whole = variance_of(central, ensemble)
    close(variance_of(through, ensemble), exact, rtol=1e-5, atol=1e-7)
    monkeypatch.setattr(variance, "EXPERTS_AT_ONCE", 2)  # in pieces: the same
    close(variance_of(through, ensemble), exact, rtol=1e-5, atol=1e-7)
    close(variance_of(central, ensemble), whole)


def test_weighted_variance_is_the_papers():
    ensemble, _ = build("exact", 4)
    combined = Opt(variance="weighted").combine(ensemble)
    experts = posterior(ensemble).predict(X)
    found = combined.predict(ensemble, X).variance
    close(found, combined.weights.square() @ experts.variance)


@large_weights
@pytest.mark.parametrize("kind", ["exact", "shared Z"])
def test_the_printed_variances(kind):
    ensemble, _ = build(kind, 4)
    combined = OptPrinted().combine(ensemble)
    beta, theta, shards = combined.weights, ensemble.parameters, shards_of(ensemble)
    k, noise = theta.kernel, theta.noise
    expected = torch.zeros(12, dtype=FLOAT)
    for b, s in zip(beta, shards, strict=True):
        if kind == "exact":
            K, A = k(s.X, X), k(s.X) + noise * torch.eye(s.n, dtype=FLOAT)
        else:
            K = k(theta.inducing, X)
            A = k(theta.inducing) + k(theta.inducing, s.X) @ k(s.X, theta.inducing) / noise
        expected += b.square() * (K * torch.linalg.solve(A, K)).sum(0)
    close(combined.predict(ensemble, X).variance, expected, rtol=1e-5, atol=1e-8)
    weighted = variance_of(OptPrinted(variance="weighted"), ensemble)
    close(weighted, beta.square() @ posterior(ensemble).predict(X).variance)


@few_central
def test_central_variance_is_the_smaller_of_central_and_best():
    ensemble, data = build("exact", 3)
    combined = Opt(variance="central", n_central=6).combine(ensemble)
    theta, best = ensemble.parameters, posterior(ensemble).predict(X).variance.amin(0)
    sparse = SparseExpert().condition(Parameters.of(theta.kernel, 0.05, combined.central), data)
    central = sparse.predict(X).variance
    close(combined.predict(ensemble, X).variance, torch.minimum(central, best), rtol=1e-8)
    assert bool((central > best).any())


def test_few_central_inputs_are_reported_by_opt_too():
    ensemble, _ = build("exact", 3, noise=1e-3)
    with pytest.warns(CentralWarning, match="raise n_central"):
        Opt(variance="central", n_central=2).combine(ensemble)


def synthetic(n: int, d: int, lengthscale: float, seed: int):
    """A draw from the prior: rows, test points inside and around them, the latent truth."""
    generator = torch.Generator().manual_seed(seed)
    points = torch.rand(n + 300, d, generator=generator, dtype=FLOAT) * 2 - 1
    points[n:] *= 1.1
    kernel = 1.0 * RBF(lengthscale)
    L = torch.linalg.cholesky(kernel(points) + 1e-8 * torch.eye(n + 300, dtype=FLOAT))
    f = L @ torch.randn(n + 300, generator=generator, dtype=FLOAT)
    y = f[:n] + 0.5 * torch.randn(n, generator=generator, dtype=FLOAT)
    return Shard.of(points[:n], y), kernel, points[n:], f[n:]


@pytest.mark.parametrize("kind", ["exact", "sparse"])
@pytest.mark.parametrize(("d", "lengthscale", "M"), [(2, 0.3, 8), (4, 0.7, 8), (6, 1.5, 5)])
def test_intervals_cover_the_latent_truth(kind, d, lengthscale, M):
    covered = {"own": [], "central": []}
    for seed in range(5):
        data, kernel, points, truth = synthetic(1000, d, lengthscale, seed)
        Z = inducing.greedy(data.X, kernel, 0.25, seed=0) if kind == "sparse" else None
        expert = SparseExpert() if kind == "sparse" else ExactExpert()
        shards = split(data, RandomPartition().assign(data.X.numpy(), M, seed))
        ensemble = Ensemble.condition(expert, Parameters.of(kernel, 0.25, Z), shards)
        for name, aggregator in {"own": Opt(), "central": TwoLevel()}.items():
            out = aggregator.combine(ensemble).predict(ensemble, points)
            covered[name].append(metrics.coverage(truth, out.mean, out.variance, 0.9))
    for name, values in covered.items():
        assert 0.85 <= np.mean(values) <= 0.98, (name, values)


def test_own_intervals_of_tiny_shards_are_wide_rather_than_narrow():
    """62 rows per shard: the weights are large, and own, cut off at the best expert's, covers too much."""
    covered = []
    for seed in range(5):
        data, kernel, points, truth = synthetic(1000, 2, 0.5, seed)
        shards = split(data, RandomPartition().assign(data.X.numpy(), 16, seed))
        ensemble = Ensemble.condition(ExactExpert(), Parameters.of(kernel, 0.25), shards)
        out = Opt().combine(ensemble).predict(ensemble, points)
        covered.append(metrics.coverage(truth, out.mean, out.variance, 0.9))
    assert 0.95 <= np.mean(covered) <= 1.0


@large_weights
def test_large_weights_do_not_let_the_variance_collapse():
    """100 experts of 30 rows: Σ|β| is huge, and with it the error of covariances by Nyström."""
    data, kernel, points, truth = synthetic(3000, 2, 0.3, 0)
    shards = split(data, RandomPartition().assign(data.X.numpy(), 100, 0))
    ensemble = Ensemble.condition(ExactExpert(), Parameters.of(kernel, 0.25), shards)
    combined = Opt().combine(ensemble)
    out = combined.predict(ensemble, points)
    full = ExactExpert().condition(Parameters.of(kernel, 0.25), data).predict(points)
    assert combined.weight_norm is not None and combined.weight_norm > 10
    assert bool((out.variance > 0.5 * full.variance).all())
    assert metrics.nlpd(truth, out.mean, out.variance) < 0.5
