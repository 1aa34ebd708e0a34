"""Two-level, and the exactness that it promises although its Gram matrix is singular."""

import pytest
import torch
from ensembles import COMMON, build, combination, full_gp
from helpers import FLOAT, close, inputs, shard

from distgp.aggregation import NPAE, CentralWarning, Ensemble, Pooled, TwoLevel
from distgp.data import RandomPartition, split
from distgp.experts import ExactExpert, Parameters, SparseExpert
from distgp.kernels import RBF, Matern32

X = inputs(15, 2, 3)


@pytest.mark.parametrize("kernel", [1.3 * RBF(0.6), 1.3 * RBF(2.0), 1.0 * Matern32(0.7)], ids=repr)
@pytest.mark.parametrize("M", [1, 4, 9])
def test_all_rows_central_is_the_full_gp(kernel, M):
    data = shard(150, 2)
    shards = split(data, RandomPartition().assign(data.X.numpy(), M, 0))
    ensemble = Ensemble.condition(ExactExpert(), Parameters.of(kernel, 0.05), shards)
    full = full_gp(ensemble, data, X)
    for aggregator in (TwoLevel(n_central=150), TwoLevel(central=data.X)):
        out = aggregator.combine(ensemble).predict(ensemble, X)
        close(out.mean, full.mean, rtol=1e-6, atol=1e-6)
        close(out.variance, full.variance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("M", [2, 7])
def test_central_inputs_at_Z_is_pooled(M):
    data = shard(300, 2)
    shards = split(data, RandomPartition().assign(data.X.numpy(), M, 0))
    theta = Parameters.of(1.3 * RBF(0.6), 0.05, inputs(30, 2, 5))
    ensemble = Ensemble.condition(SparseExpert(), theta, shards)
    out = TwoLevel(central=theta.inducing).combine(ensemble).predict(ensemble, X)
    pooled = Pooled().combine(ensemble).predict(ensemble, X)
    close(out.mean, pooled.mean, rtol=1e-6, atol=1e-6)
    close(out.variance, pooled.variance, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore::distgp.aggregation.CentralWarning")
@pytest.mark.parametrize("kind", COMMON)
def test_elimination_solves_the_joint_normal_equations(kind):
    """Against least squares on the joint Gram matrix, in the coefficients of k(·, z_c) itself."""
    ensemble, data = build(kind, 3)
    central = inputs(5, 2, 8)
    k, noise = ensemble.parameters.kernel, ensemble.parameters.noise
    functions = [combination(ensemble, row) for row in torch.eye(3, dtype=FLOAT)]
    functions += [(z[None], torch.ones(1, dtype=FLOAT)) for z in central]
    values = torch.stack([k(data.X, P) @ c for P, c in functions])
    inner = torch.stack(
        [torch.stack([c @ k(P, Q) @ e for Q, e in functions]) for P, c in functions]
    )
    G, b = values @ values.mT + noise * inner, values @ data.y
    solution = torch.linalg.lstsq(G, b[:, None], driver="gelsd").solution[:, 0]
    expected = sum(w * (k(X, P) @ c) for w, (P, c) in zip(solution, functions, strict=True))
    out = TwoLevel(central=central).combine(ensemble).mean(ensemble, X)
    close(out, expected, rtol=1e-5, atol=1e-6)


def test_nested_is_an_upper_bound_and_central_reports_its_residual():
    ensemble, data = build("exact", 5)
    nested = TwoLevel(n_central=10, variance="nested").combine(ensemble).predict(ensemble, X)
    close(nested.variance, NPAE().combine(ensemble).predict(ensemble, X).variance)
    assert bool((nested.variance >= full_gp(ensemble, data, X).variance - 1e-9).all())
    combined = TwoLevel(n_central=30).combine(ensemble)
    k, noise, Z = ensemble.parameters.kernel, ensemble.parameters.noise, combined.central
    Q = k(data.X, Z) @ torch.linalg.solve(k(Z), k(Z, data.X))
    expected = (k.diag(data.X).sum() - Q.trace()) / (data.n * noise)
    assert combined.rule.residual == pytest.approx(float(expected), rel=1e-5)  # type: ignore[attr-defined]


def test_too_few_central_inputs_are_reported():
    ensemble, _ = build("exact", 3, noise=1e-3)
    with pytest.warns(CentralWarning, match="raise n_central"):
        TwoLevel(n_central=2).combine(ensemble)
    with pytest.raises(ValueError, match="n_central must be at least 1"):
        TwoLevel(n_central=0)


def test_central_inputs_come_from_the_rows():
    ensemble, data = build("exact", 4)
    central = TwoLevel(n_central=20).combine(ensemble).central
    rows = {tuple(row) for row in data.X.tolist()}
    assert central is not None and {tuple(z) for z in central.tolist()} <= rows
    assert len(central) == 20


def test_central_inputs_may_be_an_array():
    ensemble, data = build("exact", 3)
    a = TwoLevel(central=data.X[:40].numpy()).combine(ensemble).mean(ensemble, X)
    close(a, TwoLevel(central=data.X[:40]).combine(ensemble).mean(ensemble, X))
