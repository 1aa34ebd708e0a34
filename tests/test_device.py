"""The same numbers on a GPU as on the CPU, for every expert and aggregator."""

import numpy as np
import pytest
import torch
from ensembles import KINDS, build, expert, parameters
from helpers import close, inputs, shard, value_and_gradient

import distgp
from distgp import AGGREGATORS
from distgp.aggregation import AggregationError, Ensemble, solve
from distgp.data import unstack
from distgp.experts import NearestExpert
from distgp.kernels import fused

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
    pytest.mark.filterwarnings("ignore::distgp.aggregation.WeightsWarning"),
    pytest.mark.filterwarnings("ignore::distgp.aggregation.CentralWarning"),
]


def on_gpu(ensemble: Ensemble, kind: str) -> Ensemble:
    (posterior,) = ensemble.placement.gather().items
    shards = [shard.to("cuda") for shard in unstack(posterior.rows_held())]
    return Ensemble.condition(expert(kind), ensemble.parameters.to("cuda"), shards)


@pytest.mark.parametrize("kind", KINDS)
def test_experts(kind):
    ensemble, _ = build(kind, 4)
    (posterior,), X = ensemble.placement.gather().items, inputs(20, 2, 3)
    shards, theta = posterior.rows_held(), ensemble.parameters
    value, gradient = value_and_gradient(lambda p: expert(kind).objective(p, shards), theta)
    value2, gradient2 = value_and_gradient(
        lambda p: expert(kind).objective(p, shards.to("cuda")), theta.to("cuda")
    )
    close(value2.cpu(), value, rtol=1e-8)
    for name in gradient:
        close(gradient2[name].cpu(), gradient[name], rtol=1e-6, atol=1e-7)
    out = expert(kind).condition(theta.to("cuda"), shards.to("cuda")).predict(X.to("cuda"))
    assert out.mean.is_cuda
    close(out.mean.cpu(), posterior.predict(X).mean, rtol=1e-7, atol=1e-8)
    close(out.variance.cpu(), posterior.predict(X).variance, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_aggregators(name, kind):
    ensemble, _ = build(kind, 4)
    X = inputs(20, 2, 3)
    try:
        here = AGGREGATORS[name]().combine(ensemble).predict(ensemble, X)
    except AggregationError:
        pytest.skip("does not serve these experts")
    moved = on_gpu(ensemble, kind)
    there = AGGREGATORS[name]().combine(moved).predict(moved, X.to("cuda"))
    assert there.mean.is_cuda
    close(there.mean.cpu(), here.mean, rtol=1e-5, atol=1e-6)
    close(there.variance.cpu(), here.variance, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("expert", sorted(distgp.EXPERTS))
def test_the_estimator_on_the_device_is_that_on_the_cpu(expert, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(400, 2))
    y = 5 + np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) + 0.2 * rng.normal(size=400)
    options = {"expert": expert, "n_experts": 4, "n_inducing": 40, "training": None}
    options |= {"kernel": 1.0 * distgp.RBF([0.5, 0.7])}
    here = distgp.DistributedGPRegressor(**options).fit(X, y)
    there = distgp.DistributedGPRegressor(**options, device="cuda").fit(X, y)
    for name, kind in distgp.AGGREGATORS.items():
        if expert not in kind.serves:
            continue
        got = there.predict(X[:30], return_std=True, aggregation=name)
        wanted = here.predict(X[:30], return_std=True, aggregation=name)
        np.testing.assert_allclose(got, wanted, atol=1e-5, err_msg=name)
    there.save(tmp_path / "m.safetensors")
    for device in (None, "cpu"):
        again = distgp.load(tmp_path / "m.safetensors", device)
        np.testing.assert_allclose(again.predict(X), there.predict(X), atol=1e-8)
    trained = distgp.DistributedGPRegressor(
        expert=expert, n_experts=3, device="cuda", n_iter=8
    ).fit(X, y)
    assert trained.score(X, y) > 0.9


@pytest.mark.parametrize("combination", ["opticom", "ct", "full"])
@pytest.mark.parametrize("kernel", [distgp.RBF([0.5, 0.7]), distgp.Matern32([0.5, 0.7])])
@pytest.mark.filterwarnings("ignore::distgp.sparsegrid.VarianceWarning")
def test_sparse_grids(kernel, combination, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(400, 2))
    y = 5 + np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) + 0.2 * rng.normal(size=400)
    options = {"level": 4, "kernel": kernel, "training": None, "combination": combination}
    here = distgp.SparseGridGP(**options).fit(X, y)
    there = distgp.SparseGridGP(**options, device="cuda").fit(X, y)
    np.testing.assert_allclose(
        there.predict(X, return_std=True), here.predict(X, return_std=True), atol=1e-6
    )
    there.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors", "cpu")
    np.testing.assert_allclose(again.predict(X), here.predict(X), atol=1e-6)
    assert distgp.SparseGridGP(device="cuda", n_iter=10).fit(X, y).score(X, y) > 0.9


@pytest.mark.filterwarnings("ignore::distgp.diagnostics.calibration.NegativeBoundWarning")
@pytest.mark.parametrize("kind", ["exact", "sparse", "nearest"])
def test_weights_noise_and_intervals(kind):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 2))
    y = np.exp(np.sin(2 * X[:, 0]) + 0.1 * rng.normal(size=400))
    weight, noise = rng.integers(1, 4, 400), rng.uniform(0.01, 0.1, 400)
    found = []
    for device in ("cpu", "cuda"):
        gp = distgp.DistributedGPRegressor(
            expert=kind, n_experts=2, n_iter=5, device=device, calibrate="conformal"
        ).fit(X, y, weight, noise_variance=noise)
        found.append([gp.predict_interval(X), gp.predict(X, return_std=True, noise_variance=noise)])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [distgp.RBF, distgp.Matern12, distgp.Matern32, distgp.Matern52])
@pytest.mark.parametrize("d", [1, 5, 32])
def test_a_product_in_one_pass_is_that_with_the_matrix(kind, d):
    X, p = inputs(700, d, 0), inputs(700, 1, 1)[:, 0]
    kernel = 1.7 * kind([0.5 + 0.1 * j for j in range(d)])
    K, moved = kernel(X, X), kernel.to(torch.device("cuda"))
    assert fused.has_product(moved, X.cuda())
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 1e-6)):
        found = fused.product(moved, X[:301].cuda(), X.cuda(), p.cuda(), dtype).cpu()
        assert (found - K[:301] @ p).norm() < tolerance * (K[:301] @ p).norm()


@pytest.mark.parametrize(
    "kernel", [distgp.Matern52(0.5) + distgp.Linear(1.0), distgp.Matern52(0.5) * distgp.RBF(0.7)]
)
def test_other_kernels_have_no_product_in_one_pass(kernel):
    X = inputs(50, 2, 0).cuda()
    assert not fused.has_product(kernel.to(torch.device("cuda")), X)


def test_the_exact_mean_without_the_matrix(monkeypatch):
    monkeypatch.setattr(solve, "KEPT", 0.0)
    nearest, theta = NearestExpert(n_neighbors=20), parameters("shared Z", 1, 2)
    exact = distgp.aggregation.Exact(variance="nearest", tolerance=1e-9)
    rows, X = shard(60, 2, 0), inputs(20, 2, 3)
    means = []
    for device in ("cpu", "cuda"):
        ensemble = Ensemble.condition(nearest, theta.to(device), [rows.to(device)])
        found = exact.combine(ensemble).predict(ensemble, X.to(device))
        assert found.mean.device.type == device
        means.append(found.mean.cpu())
    close(means[1], means[0], atol=1e-5)
