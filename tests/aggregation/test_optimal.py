"""Optimal weights: the objective that they minimise, and the variances that go with them."""

import numpy as np
import pytest
import torch
from ensembles import COMMON, build, combination, objective_R, regrouped
from helpers import FLOAT, close, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

import distgp
from distgp import (
    RBF,
    Ensemble,
    ExactExpert,
    Opt,
    OptPrinted,
    Parameters,
    RandomPartition,
    Shard,
    SparseExpert,
    TwoLevel,
    WeightsWarning,
    metrics,
    split,
)
from distgp.aggregation.nested import moments
from distgp.experts import inducing

X = inputs(12, 2, 3)
few_central = pytest.mark.filterwarnings("ignore::distgp.CentralWarning")
large_weights = pytest.mark.filterwarnings("ignore::distgp.WeightsWarning")


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
def test_groups_add_up_to_the_same_equations(kind):
    ensemble, _ = build(kind, 5)
    whole, parts = Opt().equations(ensemble), Opt().equations(regrouped(ensemble, [2, 1, 2]))
    close(parts.G, whole.G)
    close(parts.b, whole.b)


@few_central
@large_weights
@settings(max_examples=12)
@given(
    M=st.integers(1, 8),
    extra=st.integers(0, 40),
    d=st.integers(1, 3),
    noise=st.sampled_from([1e-2, 0.1, 1.0]),
    seed=st.integers(0, 99),
)
@pytest.mark.parametrize("kind", COMMON)
def test_no_other_weights_have_a_smaller_R(kind, M, extra, d, noise, seed):
    ensemble, data = build(kind, M, n=M + extra, d=d, noise=noise, seed=seed)

    def R(weights):
        return float(objective_R(ensemble, data, *combination(ensemble, weights)))

    best = Opt().combine(ensemble).weights
    assert best is not None
    generator = torch.Generator().manual_seed(seed)
    rivals = [*torch.eye(M, dtype=FLOAT), torch.full((M,), 1 / M, dtype=FLOAT)]
    rivals += list(torch.randn(50, M, generator=generator, dtype=FLOAT))
    rivals.append(OptPrinted().combine(ensemble).weights)
    smallest = min(R(weights) for weights in rivals)
    assert R(best) <= smallest + 1e-8 * abs(smallest)

    two_level = TwoLevel(n_central=min(10, data.n)).combine(ensemble)
    basis, gamma = two_level.coarse  # type: ignore[attr-defined]
    P, c = combination(ensemble, two_level.weights)
    coarse = torch.linalg.solve_triangular(basis.L.mT, gamma[:, None], upper=True)[:, 0]
    joint = objective_R(ensemble, data, torch.cat([P, two_level.central]), torch.cat([c, coarse]))
    assert float(joint) <= R(best) + 1e-6 * abs(R(best))


def test_the_ridge_pulls_towards_the_best_equal_weights():
    ensemble, _ = build("exact", 5)
    equations = Opt().equations(ensemble)
    G, b = equations.G, equations.b
    expected = torch.linalg.solve(
        G + 0.3 * torch.diag(G.diagonal()), b + 0.3 * b.sum() / G.sum() * G.diagonal()
    )
    close(Opt(ridge=0.3).combine(ensemble).weights, expected, rtol=1e-8)
    huge = Opt(ridge=1e9).combine(ensemble).weights
    close(huge, (b.sum() / G.sum()).expand(5), rtol=1e-6)
    with pytest.raises(ValueError, match="ridge must be finite and not negative"):
        Opt(ridge=-1.0)


def test_a_sample_of_all_rows_is_all_rows():
    ensemble, data = build("own Z", 4)
    whole, sampled = Opt().equations(ensemble), Opt(n_eval=data.n).equations(ensemble)
    close(sampled.G, whole.G)
    close(sampled.b, whole.b)
    half = Opt(n_eval=30).equations(ensemble)
    assert 0.5 < float(half.G.trace() / whole.G.trace()) < 1.5


def test_different_hyperparameters_use_the_data_alone():
    ensemble, data = build("exact, own θ", 4)
    F = ensemble.groups[0].posterior.mean(data.X)
    equations = Opt().equations(ensemble)
    close(equations.G, F @ F.mT)
    close(equations.b, F @ data.y)
    combined = Opt().combine(ensemble)
    out, experts = combined.predict(X), ensemble.groups[0].posterior.predict(X)
    close(out.mean, combined.weights @ experts.mean)
    close(out.variance, (experts.variance + (experts.mean - out.mean).square()).mean(0))
    noise = ensemble.parameters.noise.mean()
    close(combined.predict(X, observed=True).variance, out.variance + noise)


@pytest.mark.parametrize("kind", COMMON)
def test_own_variance_is_the_error_of_this_combination(kind):
    ensemble, _ = build(kind, 4, n=80)
    best, m = ensemble.groups[0].posterior.predict(X).variance.amin(0), moments(ensemble, X)
    cut = []
    for ridge in (0.0, 10.0):  # fitted weights, then nearly equal ones
        combined = Opt(ridge=ridge, cross="exact").combine(ensemble)
        beta = combined.weights
        own = m.prior - 2 * beta @ m.to_f + torch.einsum("i,nij,j->n", beta, m.between, beta)
        close(combined.predict(X).variance, torch.minimum(own, best), rtol=1e-7, atol=1e-9)
        cut.append(float((own > best).to(FLOAT).mean()))
    assert cut[1] < 1.0  # the cut does not decide everywhere


@pytest.mark.parametrize("kind", ["exact", "own Z"])
def test_own_variance_through_all_rows_is_exact_for_exact_experts(kind):
    ensemble, data = build(kind, 4)
    through = Opt(n_central=data.n).combine(ensemble).predict(X)
    exact = Opt(cross="exact").combine(ensemble).predict(X)
    close(through.mean, exact.mean)
    if kind == "exact":
        close(through.variance, exact.variance, rtol=1e-5, atol=1e-7)


def test_weighted_variance_is_the_papers():
    ensemble, _ = build("exact", 4)
    combined = Opt(variance="weighted").combine(ensemble)
    experts = ensemble.groups[0].posterior.predict(X)
    close(combined.predict(X).variance, combined.weights.square() @ experts.variance)


@few_central
@pytest.mark.parametrize("kind", ["exact", "shared Z"])
@pytest.mark.parametrize("make", [Opt, lambda: TwoLevel(n_central=10)])
def test_a_mean_costs_one_kernel_matrix(kind, make, monkeypatch):
    ensemble, _ = build(kind, 6)
    combined = make().combine(ensemble)
    calls, gram = [], RBF.gram

    def counted(self, X1, X2):
        calls.append((len(X1), X2.shape[:-1].numel()))
        return gram(self, X1, X2)

    monkeypatch.setattr(RBF, "gram", counted)
    combined.mean(X)
    # The central functions of two-level are one more, of their own size.
    assert len(calls) == (2 if combined.central is not None and combined.coarse else 1)  # type: ignore[attr-defined]


def test_weights_are_shown_and_large_ones_reported():
    ensemble, _ = build("exact", 4)
    combined = Opt().combine(ensemble)
    assert combined.weights is not None
    assert combined.weight_sum == pytest.approx(float(combined.weights.sum()))
    assert combined.weight_norm == pytest.approx(float(combined.weights.abs().sum()))
    assert combined.central is not None and combined.central.shape[1] == 2
    crowded, _ = build("exact", 40, n=400, noise=0.25)
    with pytest.warns(WeightsWarning, match="not to be trusted"):
        OptPrinted().combine(crowded)


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
            out = aggregator.combine(ensemble).predict(points)
            covered[name].append(metrics.coverage(truth, out.mean, out.variance, 0.9))
    for name, values in covered.items():
        assert 0.85 <= np.mean(values) <= 0.98, (name, values)


def test_own_intervals_of_tiny_shards_are_wide_rather_than_narrow():
    """62 rows a shard: the weights are large, and own, cut off at the best expert's, covers too much."""
    covered = []
    for seed in range(5):
        data, kernel, points, truth = synthetic(1000, 2, 0.5, seed)
        shards = split(data, RandomPartition().assign(data.X.numpy(), 16, seed))
        ensemble = Ensemble.condition(ExactExpert(), Parameters.of(kernel, 0.25), shards)
        out = Opt().combine(ensemble).predict(points)
        covered.append(metrics.coverage(truth, out.mean, out.variance, 0.9))
    assert 0.95 <= np.mean(covered) <= 1.0


def test_the_registry_is_public():
    assert list(distgp.AGGREGATORS) == [
        "poe", "gpoe", "bcm", "rbcm", "grbcm", "npae", "opt", "opt-printed", "opt-local",
        "two-level", "pooled",
    ]  # fmt: skip


@large_weights
def test_large_weights_do_not_let_the_variance_collapse():
    """100 experts of 30 rows: Σ|β| is huge, and with it the error of covariances by Nyström."""
    data, kernel, points, truth = synthetic(3000, 2, 0.3, 0)
    shards = split(data, RandomPartition().assign(data.X.numpy(), 100, 0))
    ensemble = Ensemble.condition(ExactExpert(), Parameters.of(kernel, 0.25), shards)
    combined = Opt().combine(ensemble)
    out = combined.predict(points)
    full = ExactExpert().condition(Parameters.of(kernel, 0.25), data).predict(points)
    assert combined.weight_norm is not None and combined.weight_norm > 10
    assert bool((out.variance > 0.5 * full.variance).all())
    assert metrics.nlpd(truth, out.mean, out.variance) < 0.5


def test_covariances_through_all_rows_are_exact_where_the_cut_does_not_decide(monkeypatch):
    from distgp.aggregation import central as module

    ensemble, data = build("exact", 5, n=100)
    exact = Opt(ridge=10.0, cross="exact").combine(ensemble).predict(X).variance
    best = ensemble.groups[0].posterior.predict(X).variance.amin(0)
    assert bool((exact < 0.99 * best).any())
    through = Opt(ridge=10.0, n_central=data.n).combine(ensemble)
    close(through.predict(X).variance, exact, rtol=1e-5, atol=1e-7)
    monkeypatch.setattr(module, "EXPERTS_AT_ONCE", 2)  # in pieces: the same
    again = Opt(ridge=10.0, n_central=data.n).combine(ensemble)
    close(again.predict(X).variance, exact, rtol=1e-5, atol=1e-7)
    central = [Opt(variance="central", n_central=30).combine(ensemble).predict(X).variance]
    monkeypatch.setattr(module, "EXPERTS_AT_ONCE", 32)
    central.append(Opt(variance="central", n_central=30).combine(ensemble).predict(X).variance)
    close(central[0], central[1])


@few_central
def test_central_variance_is_the_smaller_of_central_and_best():
    ensemble, data = build("exact", 3)
    combined = Opt(variance="central", n_central=6).combine(ensemble)
    theta, best = ensemble.parameters, ensemble.groups[0].posterior.predict(X).variance.amin(0)
    sparse = SparseExpert().condition(Parameters.of(theta.kernel, 0.05, combined.central), data)
    central = sparse.predict(X).variance
    close(combined.predict(X).variance, torch.minimum(central, best), rtol=1e-8)
    assert bool((central > best).any())


def test_few_central_inputs_are_reported_by_opt_too():
    ensemble, _ = build("exact", 3, noise=1e-3)
    with pytest.warns(distgp.CentralWarning, match="raise n_central"):
        Opt(variance="central", n_central=2).combine(ensemble)


@pytest.mark.parametrize("kind", COMMON)
def test_experts_that_know_nothing_get_finite_weights(kind):
    ensemble, _ = build(kind, 3)
    (group,) = ensemble.groups
    silent = [Shard.of(s.X, 0 * s.y) for s in distgp.unstack(group.rows())]
    expert = ExactExpert() if kind == "exact" else SparseExpert()
    nothing = Ensemble.condition(expert, group.posterior.parameters, silent)
    combined = Opt().combine(nothing)
    assert bool(torch.isfinite(combined.weights).all())
    close(combined.mean(X), torch.zeros(12, dtype=FLOAT))


def test_opt_reports_weights_out_of_hand(monkeypatch):
    from distgp.aggregation import optimal

    monkeypatch.setattr(optimal, "LARGEST_NORM", 0.5)
    with pytest.warns(WeightsWarning, match="the weights of opt"):
        Opt().combine(build("exact", 3)[0])


def test_a_sample_of_rows_is_scaled_up_and_held_by_a_ridge():
    ensemble, data = build("own Z", 4)
    sample = ensemble.central(20, seed=0)
    F = ensemble.groups[0].posterior.mean(sample.X)
    whole = Opt().equations(ensemble)
    F_all = ensemble.groups[0].posterior.mean(data.X)
    inner = whole.G - F_all @ F_all.mT
    sampled = Opt(n_eval=20).equations(ensemble)
    close(sampled.G, data.n / 20 * F @ F.mT + inner, rtol=1e-8)
    close(sampled.b, data.n / 20 * F @ sample.y, rtol=1e-8)
    close(
        Opt(n_eval=20).combine(ensemble).weights,
        Opt(n_eval=20, ridge=0.1).combine(ensemble).weights,
    )
    own, _ = build("exact, own θ", 4)
    close(Opt().combine(own).weights, Opt(ridge=0.1).combine(own).weights)
    shared, _ = build("shared Z", 4)  # its sums need no sample, and no ridge
    close(Opt(n_eval=20).combine(shared).weights, Opt().combine(shared).weights)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Opt(ridge=float("nan")), "ridge"),
        (lambda: Opt(n_eval=0), "n_eval must be at least 1"),
        (lambda: Opt(n_central=0), "n_central must be at least 1"),
        (lambda: OptPrinted(lam=-1.0), "lam > 0"),
        (lambda: OptPrinted(jitter=-1.0), "jitter"),
        (lambda: TwoLevel(central=np.zeros(3)), "shape"),
        (lambda: TwoLevel(central=np.zeros((0, 2))), "shape"),
        (lambda: Opt(variance="best"), "variance must be one of"),
    ],
)
def test_options_out_of_range_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_central_inputs_may_be_an_array():
    ensemble, data = build("exact", 3)
    a = TwoLevel(central=data.X[:40].numpy()).combine(ensemble).mean(X)
    close(a, TwoLevel(central=data.X[:40]).combine(ensemble).mean(X))
