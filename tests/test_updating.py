"""Weights, noise per row, new rows and forgotten ones, through the estimator."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm

import distgp
from distgp import DistributedGPRegressor

KERNEL = 1.5 * distgp.RBF([0.6, 0.9])
GIVEN = {"kernel": KERNEL, "noise": 0.04, "training": None, "normalize": False}
EXPERTS = {
    "exact": {"expert": "exact"},
    "sparse": {"expert": "sparse", "n_inducing": np.random.default_rng(9).uniform(-2, 2, (40, 2))},
    "nearest": {"expert": "nearest", "n_inducing": 0, "n_neighbors": 500},
}
ALL = pytest.mark.parametrize("name", EXPERTS)


def data(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) + 0.2 * rng.normal(size=n)


@ALL
def test_integer_weights_are_copies_of_rows_in_the_same_shards(name):
    X, y = data(60)
    weight, label = np.arange(60) % 3 + 1, np.arange(60) % 2
    one = DistributedGPRegressor(**GIVEN, **EXPERTS[name], partition=label).fit(X, y, weight)
    which = np.repeat(np.arange(60), weight)
    many = DistributedGPRegressor(**GIVEN, **EXPERTS[name], partition=label[which])
    many.fit(X[which], y[which])
    X_new = data(20, seed=1)[0]
    for a, b in zip(
        one.predict(X_new, return_std=True), many.predict(X_new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)


@ALL
def test_weights_of_one_change_no_bit(name):
    X, y = data(60)
    gp = DistributedGPRegressor(**EXPERTS[name], n_iter=5)
    plain = gp.fit(X, y).predict(X, return_std=True)
    np.testing.assert_array_equal(gp.fit(X, y, np.ones(60)).predict(X, return_std=True), plain)


def test_trained_on_weights_as_on_copies():
    X, y = data(150)
    weight = np.arange(150) % 3
    which = np.repeat(np.arange(150), weight)
    one = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y, weight)
    many = DistributedGPRegressor(expert="exact", n_experts=1).fit(X[which], y[which])
    np.testing.assert_allclose(one.noise_, many.noise_, rtol=1e-3)
    np.testing.assert_allclose(one.predict(X), many.predict(X), atol=1e-4)


@ALL
def test_noise_variances_are_those_of_a_naive_gp(name, tmp_path):
    X, y = data(60)
    noise = np.linspace(0.01, 0.5, 60)
    given = GIVEN | {"noise": 0.1}
    gp = DistributedGPRegressor(**given, **EXPERTS[name]).fit(X, y, noise_variance=noise)
    X_new = data(15, seed=1)[0]
    import torch

    K = KERNEL(torch.as_tensor(X)).numpy()
    cross = KERNEL(torch.as_tensor(X_new), torch.as_tensor(X)).numpy()
    if name == "sparse":
        Z = torch.as_tensor(EXPERTS["sparse"]["n_inducing"])
        Kuu, Kuf = KERNEL(Z).numpy(), KERNEL(Z, torch.as_tensor(X)).numpy()
        Ku = KERNEL(Z, torch.as_tensor(X_new)).numpy()
        mean = Ku.T @ np.linalg.solve(Kuu + Kuf / noise @ Kuf.T, Kuf @ (y / noise))
    else:
        mean = cross @ np.linalg.solve(K + np.diag(noise), y)  # the factor starts at 1 and stays
    np.testing.assert_allclose(gp.predict(X_new), mean, rtol=1e-5, atol=1e-6)
    latent = gp.predict(X_new, return_std=True, latent=True)[1]
    observed = gp.predict(X_new, return_std=True)[1]
    np.testing.assert_allclose(observed**2, latent**2 + noise.mean())
    asked = gp.predict(X_new, return_std=True, noise_variance=np.full(15, 0.3))[1]
    np.testing.assert_allclose(asked**2, latent**2 + 0.3)
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict(X_new, return_std=True)[1], observed)


def test_the_trained_factor_multiplies_noise_variances_that_are_given():
    """Rows are told a quarter of their noise: the factor of four is found, and holds for new rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (300, 1))
    noise = np.linspace(0.01, 0.2, 300)
    y = np.sin(3 * X[:, 0]) + np.sqrt(4 * noise) * rng.normal(size=300)
    gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y, noise_variance=noise)
    assert 3.0 < gp.noise_ < 5.0
    latent = gp.predict(X[:9], return_std=True, latent=True)[1]
    asked = gp.predict(X[:9], return_std=True, noise_variance=np.full(9, 0.3))[1]
    np.testing.assert_allclose(asked**2, latent**2 + 0.3 * gp.noise_)
    observed = gp.predict(X[:9], return_std=True)[1]
    np.testing.assert_allclose(observed**2, latent**2 + noise.mean() * gp.noise_)
    lower, upper = gp.predict_interval(X[:9], noise_variance=np.full(9, 0.3))
    np.testing.assert_allclose(upper - lower, 2 * norm.ppf(0.95) * asked)


def test_noise_variances_are_found_to_matter():
    """Half of the rows are a hundred times noisier; told so, the model is nearer to the truth."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (400, 1))
    noise = np.where(np.arange(400) % 2, 4.0, 0.01)
    truth = np.sin(3 * X[:, 0])
    y = truth + np.sqrt(noise) * rng.normal(size=400)
    plain = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    told = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y, noise_variance=noise)
    error = [np.sqrt(np.mean((gp.predict(X) - truth) ** 2)) for gp in (plain, told)]
    assert error[1] < 0.3 * error[0]
    assert 0.7 < told.noise_ < 1.4  # the factor
    fixed = DistributedGPRegressor(expert="exact", n_experts=1, fixed=["noise"])
    assert fixed.fit(X, y, noise_variance=noise).noise_ == 1.0


@ALL
def test_new_rows_join_and_old_ones_are_forgotten(name):
    X, y = data(90)
    gp = DistributedGPRegressor(**GIVEN, **EXPERTS[name], partition=np.arange(30) % 2)
    gp.fit(X[:30], y[:30])
    gp.partial_fit(X[30:60], y[30:60]).partial_fit(X[60:], y[60:])
    assert gp.n_experts_ == 4 and gp.experts_.row_count() == 90
    gp.drop_experts([0, 1])
    assert gp.n_experts_ == 2 and gp.experts_.row_count() == 60
    fresh = DistributedGPRegressor(**GIVEN, **EXPERTS[name], partition=np.repeat([0, 1], 30))
    fresh.fit(X[30:], y[30:])
    X_new = data(20, seed=1)[0]
    for a, b in zip(
        gp.predict(X_new, return_std=True), fresh.predict(X_new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    gp.drop_experts(-1)
    assert gp.n_experts_ == 1


def test_experts_with_hyperparameters_of_their_own_are_forgotten():
    X, y = data(120)
    gp = DistributedGPRegressor(
        expert="sparse", training="independent", n_experts=3, n_inducing=10, n_iter=5
    )
    gp.fit(X, y)
    kept = gp.experts_.parameters.noise[1:].tolist()
    assert gp.drop_experts(0).experts_.parameters.noise.tolist() == kept
    assert np.isfinite(gp.predict(X)).all()


def test_rows_with_weights_join(tmp_path):
    X, y = data(60)
    gp = DistributedGPRegressor(**GIVEN, expert="exact", n_experts=1).fit(X[:30], y[:30])
    gp.partial_fit(X[30:], y[30:], np.full(30, 2.0), noise_variance=np.full(30, 0.08))
    plain = DistributedGPRegressor(**GIVEN, expert="exact", n_experts=1).fit(X[:30], y[:30])
    plain.partial_fit(X[30:], y[30:])
    # Two copies with twice the noise say as much as one row.
    np.testing.assert_allclose(gp.predict(X), plain.predict(X))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"sample_weight": np.ones(3)}, r"one number for each of the 60 rows, got \(3,\)"),
        ({"sample_weight": -np.ones(60)}, "must be at least 0 and finite, got -1 in row 0"),
        ({"sample_weight": np.zeros(60)}, "sample_weight is zero in all rows"),
        (
            {"noise_variance": np.zeros(60)},
            "noise_variance must be positive and finite, got 0 in row 0",
        ),
    ],
)
def test_mistakes_are_told(call, message):
    X, y = data(60)
    with pytest.raises(ValueError, match=message):
        DistributedGPRegressor(**GIVEN).fit(X, y, **call)


def test_mistakes_in_forgetting_are_told():
    X, y = data(60)
    gp = DistributedGPRegressor(**GIVEN, expert="exact", n_experts=2).fit(X, y)
    for which in (2, -3, [0, 1], [], "first", 0.5):
        with pytest.raises(ValueError, match="places of some of the 2 experts, 0 to 1, not of all"):
            gp.drop_experts(which)


def test_a_target_that_is_constant_among_the_rows_that_count_is_refused():
    X, y = data(30)
    weight = (np.arange(30) % 3 > 0).astype(float)
    with pytest.raises(ValueError, match=r"y is constant \(2 in all 20 rows\)"):
        DistributedGPRegressor().fit(X, np.where(weight > 0, 2.0, y), weight)
