"""Optimal weights: the objective that they minimise, and the paper's printed ones beside them."""

import numpy as np
import pytest
import torch
from ensembles import COMMON, build, combination, objective_R, posterior, shards_of
from helpers import FLOAT, close, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

import distgp
from distgp import metrics
from distgp.aggregation import (
    Ensemble,
    Opt,
    OptPrinted,
    PoE,
    TwoLevel,
    WeightsWarning,
    optimal,
)
from distgp.aggregation.gram import projected_equations
from distgp.aggregation.variance import Basis
from distgp.data import RandomPartition, Shard, split
from distgp.experts import ExactExpert, Parameters
from distgp.kernels import RBF, Scale

X = inputs(12, 2, 3)
few_central = pytest.mark.filterwarnings("ignore::distgp.aggregation.CentralWarning")
large_weights = pytest.mark.filterwarnings("ignore::distgp.aggregation.WeightsWarning")


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


def test_different_hyperparameters_use_the_data_alone():
    ensemble, data = build("exact, own θ", 4)
    F = posterior(ensemble).mean(data.X)
    equations = Opt().equations(ensemble)
    close(equations.G, F @ F.mT)
    close(equations.b, F @ data.y)
    combined = Opt().combine(ensemble)
    out, experts = combined.predict(ensemble, X), posterior(ensemble).predict(X)
    close(out.mean, combined.weights @ experts.mean)
    close(out.variance, (experts.variance + (experts.mean - out.mean).square()).mean(0))
    noise = ensemble.parameters.noise.mean()
    close(combined.predict(ensemble, X, observed=True).variance, out.variance + noise)


@few_central
@pytest.mark.parametrize("kind", ["exact", "shared Z"])
@pytest.mark.parametrize("make", [Opt, lambda: TwoLevel(n_central=10)])
def test_a_mean_costs_one_kernel_matrix(kind, make, monkeypatch):
    ensemble, _ = build(kind, 6)
    combined = make().combine(ensemble)
    calls, gram = [], Scale.gram

    def counted(self, X1, X2):
        calls.append((len(X1), X2.shape[:-1].numel()))
        return gram(self, X1, X2)

    monkeypatch.setattr(Scale, "gram", counted)
    combined.mean(ensemble, X)
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
    with pytest.warns(WeightsWarning, match="an error of one expert can grow"):
        OptPrinted().combine(crowded)


def test_opt_reports_weights_out_of_hand(monkeypatch):
    monkeypatch.setattr(optimal, "LARGEST_NORM", 0.5)
    with pytest.warns(WeightsWarning, match="the weights of opt"):
        Opt().combine(build("exact", 3)[0])


@pytest.mark.parametrize("kind", COMMON)
def test_experts_that_know_nothing_get_finite_weights(kind):
    ensemble, _ = build(kind, 3)
    silent = [Shard.of(s.X, 0 * s.y) for s in shards_of(ensemble)]
    nothing = Ensemble.condition(ensemble.expert, ensemble.parameters, silent)
    combined = Opt().combine(nothing)
    assert combined.weights is not None and bool(torch.isfinite(combined.weights).all())
    close(combined.mean(nothing, X), torch.zeros(12, dtype=FLOAT))


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


def test_the_registry_is_public():
    assert list(distgp.AGGREGATORS) == [
        "poe", "gpoe", "softmax-poe", "bcm", "rbcm", "grbcm", "min-variance", "barycentre", "npae",
        "opt", "opt-printed", "opt-local", "two-level", "pooled", "nearest", "exact",
    ]  # fmt: skip


def algorithm_5(ensemble, Xc, lam):
    """Algorithm 5, entry by entry, k(X_c, X_i) read as k(X_c, X_j) and λ put back."""
    shards, k = shards_of(ensemble), ensemble.parameters.kernel
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
    shards, theta = shards_of(ensemble), ensemble.parameters
    k, noise, Z = theta.kernel, theta.noise, theta.inducing
    Mc = k(Z) + k(Z, Xc) @ k(Xc, Z) / noise
    alpha = []
    for s in shards:
        Mi = k(Z) + k(Z, s.X) @ k(s.X, Z) / noise
        alpha.append(torch.linalg.solve(Mi, k(Z, s.X) @ s.y))
    return torch.stack([torch.stack([a @ Mc @ c / noise for c in alpha]) for a in alpha])


@large_weights
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


def test_one_central_row_per_shard():
    ensemble, _ = build("exact", 5)
    _, Xc = OptPrinted().equations(ensemble)
    owners = [
        next(i for i, s in enumerate(shards_of(ensemble)) if (x == s.X).all(-1).any()) for x in Xc
    ]
    assert sorted(owners) == [0, 1, 2, 3, 4]


@large_weights
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
        a.name: metrics.rmse(f[2000:], a.combine(ensemble).mean(ensemble, points[2000:]))
        for a in (PoE(), Opt(), OptPrinted())
    }
    assert error["opt"] < error["poe"] < error["opt-printed"]


def test_projections_on_all_rows_are_the_means_themselves():
    ensemble, data = build("exact", 4)
    whole = Opt().equations(ensemble)
    basis = Basis.of(ensemble.parameters, data.X)
    found = projected_equations(ensemble, basis)
    close(found.G, whole.G, rtol=1e-5, atol=1e-6 * float(whole.G.abs().max()))
    close(found.b, whole.b, rtol=1e-5, atol=1e-6 * float(whole.b.abs().max()))


def test_a_few_central_inputs_give_nearly_the_best_weights_of_smooth_means():
    ensemble, data = build("exact", 4)
    exact, cheap = Opt().combine(ensemble), Opt(n_basis=50).combine(ensemble)
    full = ExactExpert().condition(ensemble.parameters, data).mean(X)
    best = (exact.mean(ensemble, X) - full).norm()
    assert (cheap.mean(ensemble, X) - full).norm() < 1.05 * best


def test_two_ways_to_find_the_weights_are_one_too_many():
    with pytest.raises(ValueError, match="give one of them"):
        Opt(n_eval=10, n_basis=10)
