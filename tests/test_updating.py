"""Weights, noise per row, new rows and forgotten ones, through the estimator."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

import distgp
from distgp import DistributedGPRegressor
from distgp._util import machine

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


@pytest.mark.filterwarnings("ignore::distgp.selection.RepeatsWarning")
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
    assert gp.n_experts_ == 6 and gp.experts_.row_count() == 90
    gp.drop_experts([0, 1])
    assert gp.n_experts_ == 4 and gp.experts_.row_count() == 60
    fresh = DistributedGPRegressor(**GIVEN, **EXPERTS[name], partition=np.repeat(np.arange(4), 15))
    fresh.fit(X[30:], y[30:])
    X_new = data(20, seed=1)[0]
    for a, b in zip(
        gp.predict(X_new, return_std=True), fresh.predict(X_new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7)
    gp.drop_experts([-1, -2, -3])
    assert gp.n_experts_ == 1


def exact_gp(X, y, X_new, noise):
    """Mean and standard deviation of an observation by the exact GP, in NumPy."""
    K, cross, prior = (
        KERNEL(*map(torch.as_tensor, of)).numpy() for of in ((X,), (X_new, X), (X_new,))
    )
    solved = np.linalg.solve(K + np.diag(noise), np.column_stack([y, cross.T]))
    return cross @ solved[:, 0], np.sqrt(np.diag(prior - cross @ solved[:, 1:]) + GIVEN["noise"])


def sparse_gp(X, y, X_new, noise):
    """The same by Titsias' sparse GP."""
    Z = EXPERTS["sparse"]["n_inducing"]
    Kuu, Kuf, Kus = (KERNEL(*map(torch.as_tensor, of)).numpy() for of in ((Z,), (Z, X), (Z, X_new)))
    S = Kuu + Kuf / noise @ Kuf.T
    prior = KERNEL(torch.as_tensor(X_new)).numpy()
    explained = Kus.T @ np.linalg.solve(Kuu, Kus) - Kus.T @ np.linalg.solve(S, Kus)
    mean = Kus.T @ np.linalg.solve(S, Kuf @ (y / noise))
    return mean, np.sqrt(np.diag(prior - explained) + GIVEN["noise"])


@ALL
@pytest.mark.parametrize("weighted", [False, True])
def test_many_small_updates_are_one_of_all_rows(name, weighted, tmp_path):
    X, y = data(200)
    weight = np.where(np.arange(200) % 3, 1.0, 2.0) if weighted else np.ones(200)
    given = {} if not weighted else {"sample_weight": weight[:100]}
    fitted = DistributedGPRegressor(**GIVEN, **EXPERTS[name], n_experts=1).fit(
        X[:100], y[:100], **given
    )
    fitted.save(tmp_path / "first.safetensors")
    many, one = (distgp.load(tmp_path / "first.safetensors") for _ in range(2))
    for start in range(100, 200, 2):
        some = slice(start, start + 2)
        many.partial_fit(X[some], y[some], weight[some] if weighted else None)
    one.partial_fit(X[100:], y[100:], weight[100:] if weighted else None)
    X_new = data(30, seed=1)[0]
    naive = sparse_gp if name == "sparse" else exact_gp  # all rows are neighbours
    wanted = naive(X, y, X_new, GIVEN["noise"] / weight)
    found = many.predict(X_new, return_std=True)
    for a, b, c in zip(found, one.predict(X_new, return_std=True), wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)
        np.testing.assert_allclose(a, c, rtol=0, atol=1e-6 if name == "sparse" else 1e-8)
    assert many.n_experts_ == one.n_experts_ == 1
    many.save(tmp_path / "many.safetensors")
    fitted.fit(X, y, weight if weighted else None).save(tmp_path / "all.safetensors")
    sizes = [(tmp_path / f"{file}.safetensors").stat().st_size for file in ("many", "all")]
    assert sizes[0] < 1.05 * sizes[1]


@ALL
def test_experts_of_many_small_updates_stay_few(name, tmp_path):
    """Experts are full with as many rows as those of `fit`, also where a stream goes through a file."""
    X, y = data(160)
    gp = DistributedGPRegressor(**GIVEN, **EXPERTS[name], n_experts=3, partition="contiguous")
    gp.fit(X[:60], y[:60])
    one = DistributedGPRegressor(**gp.get_params()).fit(X[:60], y[:60]).partial_fit(X[60:], y[60:])
    for start in range(60, 160, 2):
        gp.partial_fit(X[start : start + 2], y[start : start + 2])
        if start == 100:
            gp.save(tmp_path / "m.safetensors")
            gp = distgp.load(tmp_path / "m.safetensors")
    assert gp.n_experts_ == one.n_experts_ == 8
    assert gp.experts_.row_counts().tolist() == [20] * 8
    X_new = data(30, seed=1)[0]
    for a, b in zip(
        gp.predict(X_new, return_std=True), one.predict(X_new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-8)


@pytest.mark.parametrize(
    ("options", "full"),
    [
        ({"expert": "exact"}, 1_000),
        ({"expert": "sparse", "n_inducing": 20}, 640),
        ({"expert": "nearest", "n_inducing": 0}, None),
        ({"expert": "sparse", "n_inducing": 20, "training": "independent", "n_iter": 2}, 1_000),
        ({"expert": "exact", "n_experts": 1}, None),
    ],
)
def test_where_the_number_of_experts_is_left_to_us_they_are_as_large_as_the_rule_says(
    options, full
):
    X, y = data(1_300)
    gp = DistributedGPRegressor(**GIVEN | options).fit(X[:200], y[:200])
    before = gp.experts_.row_counts().tolist()
    gp.partial_fit(X[200:], y[200:])
    first = sum(before[:-1])
    expected = [*before[:-1], min(full or 1_300, 1_300 - first)]
    while sum(expected) < 1_300:
        expected.append(min(full, 1_300 - sum(expected)))
    assert gp.experts_.row_counts().tolist() == expected


def test_one_exact_gp_becomes_two_experts_where_memory_does_not_suffice(monkeypatch):
    X, y = data(1_200)
    gp = DistributedGPRegressor(**GIVEN, expert="exact", n_experts=1).fit(X[:1_100], y[:1_100])
    monkeypatch.setattr(machine, "free_bytes", lambda device: 2**20)
    gp.partial_fit(X[1_100:1_150], y[1_100:1_150]).partial_fit(X[1_150:], y[1_150:])
    assert gp.experts_.row_counts().tolist() == [1_100, 100]


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
