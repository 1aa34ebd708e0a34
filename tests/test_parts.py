"""The parts of a function whose kernel is a sum: against the formulas, written out in float64."""

import numpy as np
import pandas as pd
import pytest
import torch
from matplotlib import pyplot as plt

import distgp
from distgp import DistributedGPRegressor
from distgp.plotting import plot_parts

TEXT = "periodic(24, columns=hour) + matern52(columns=warm) + 0.5 * rbf(80, columns=hour)"
NAMES = ["Periodic(hour)", "Matern52(warm)", "RBF(hour)"]


def series(n=150):
    rng = np.random.default_rng(0)
    hour, warm = np.arange(n) / 1.0, rng.normal(size=n)
    y = 20 + 3 * np.sin(hour * np.pi / 12) + np.sin(2 * warm) + 0.02 * hour
    return pd.DataFrame({"hour": hour, "warm": warm}), y + 0.1 * rng.normal(size=n)


def standard(gp, X):
    scaling = gp.model_.targets[0].scaling
    return torch.as_tensor((X.to_numpy() - scaling.x_mean) / scaling.x_scale)


def check_sum(gp, X):
    found = gp.decompose(X)
    total = sum(mean for mean, _ in found.values())
    np.testing.assert_allclose(total, gp.predict(X), rtol=1e-9, atol=1e-9)
    assert all(std.shape == total.shape for _, std in found.values())
    return found


@pytest.mark.parametrize("mean", ["constant", "linear"])
def test_parts_of_one_exact_expert_are_those_of_the_formula(mean):
    X, y = series()
    gp = DistributedGPRegressor("exact", 1, kernel=TEXT, mean=mean, n_iter=5).fit(X[:120], y[:120])
    found = check_sum(gp, X)
    assert list(found) == ["level", *NAMES]
    scaling, Z, P = gp.model_.targets[0].scaling, standard(gp, X[:120]), standard(gp, X)
    level = scaling.trend(X.to_numpy())
    np.testing.assert_allclose(found["level"][0], np.broadcast_to(level, 150))
    assert not found["level"][1].any()
    target = (y[:120] - np.broadcast_to(level, 150)[:120]) / scaling.y_scale
    K = (gp.kernel_(Z) + gp.noise_ * torch.eye(120, dtype=torch.float64)).numpy()
    for kernel, name in zip(gp.kernel_.kernels, NAMES, strict=True):
        cross, prior = kernel(P, Z).numpy(), kernel.diag(P).numpy()
        wanted = cross @ np.linalg.solve(K, target) * scaling.y_scale
        np.testing.assert_allclose(found[name][0], wanted, rtol=1e-7, atol=1e-9)
        variance = prior - np.einsum("ij,ji->i", cross, np.linalg.solve(K, cross.T))
        np.testing.assert_allclose(found[name][1] ** 2, variance * scaling.y_scale**2, rtol=1e-5)


@pytest.mark.parametrize("n_experts", [1, 3])
def test_parts_of_pooled_sparse_experts_are_those_of_the_formula(n_experts, tmp_path):
    X, y = series()
    gp = DistributedGPRegressor("sparse", n_experts, n_inducing=40, kernel=TEXT, n_iter=5)
    found = check_sum(gp.fit(X[:120], y[:120]), X)
    scaling, rows, P = gp.model_.targets[0].scaling, standard(gp, X[:120]), standard(gp, X)
    Z = torch.as_tensor((gp.inducing_ - scaling.x_mean) / scaling.x_scale)
    target = (y[:120] - scaling.y_mean) / scaling.y_scale
    Kzz, Kzx = gp.kernel_(Z).numpy(), gp.kernel_(Z, rows).numpy()
    S = Kzz + Kzx @ Kzx.T / gp.noise_
    for kernel, name in zip(gp.kernel_.kernels, NAMES, strict=True):
        cross, prior = kernel(P, Z).numpy(), kernel.diag(P).numpy()
        wanted = cross @ np.linalg.solve(S, Kzx @ target) / gp.noise_ * scaling.y_scale
        np.testing.assert_allclose(found[name][0], wanted, rtol=1e-4, atol=1e-4)
        known = np.linalg.solve(Kzz, cross.T) - np.linalg.solve(S, cross.T)
        variance = (prior - np.einsum("ij,ji->i", cross, known)) * scaling.y_scale**2
        np.testing.assert_allclose(found[name][1] ** 2, variance, rtol=1e-3, atol=1e-5)
    gp.save(tmp_path / "model")
    again = distgp.load(tmp_path / "model").decompose(X)
    for name, pair in found.items():
        np.testing.assert_array_equal(again[name], pair)


def test_a_large_factor_that_was_left_out_is_that_of_all_parts(monkeypatch):
    X, y = series()
    gp = DistributedGPRegressor("exact", 1, kernel=TEXT, training=None).fit(X, y)
    found = gp.decompose(X)
    monkeypatch.setattr("distgp.experts.exact.ROWS_WITH_FACTOR", 10)
    (posterior,) = gp.model_.targets[0].ensemble.here
    bare = posterior.stored()
    assert bare.L is None
    kernel = gp.kernel_.kernels[0]
    P = standard(gp, X)
    for one, other in zip(
        vars(bare.part(kernel).predict(P)).values(),
        vars(posterior.part(kernel).predict(P)).values(),
        strict=True,
    ):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert found[NAMES[0]][0].std() > 0


def test_products_of_sums_several_targets_dates_and_incomplete_rows():
    X, y = series()
    when = pd.date_range("2026-01-01", periods=150, freq="h")
    table = X.assign(hour=when).rename(columns={"hour": "when"})
    table.loc[7, "warm"] = np.nan
    kernel = "periodic(24 h, columns=when) + linear(columns=warm) + periodic(1 week, columns=when)"
    gp = DistributedGPRegressor(
        "sparse", 1, n_inducing=30, kernel=kernel, dates="expand", missing="drop", n_iter=3
    ).fit(table, np.column_stack([y, -y]))
    found = gp.decompose(table)
    names = ["level", "Periodic(when.days)", "Linear(warm)", "Periodic(when.days) #2"]
    assert list(found) == names and found["Linear(warm)"][0].shape == (150, 2)
    assert np.isnan(found["level"][0][7]).all() and np.isfinite(found["level"][0][:7]).all()
    total = sum(mean for mean, _ in found.values())
    np.testing.assert_allclose(total, gp.predict(table), rtol=1e-8)
    product = distgp.RBF(1.0, active_dims=[0]) * (distgp.Linear(0.5) + distgp.Constant(2.0))
    both = DistributedGPRegressor("exact", 1, kernel=product + distgp.Constant(1.0), training=None)
    check_sum(both.fit(X, y), X)
    assert list(both.decompose(X)) == ["level", "RBF(hour) × Linear", "RBF(hour)", "Constant"]
    one = DistributedGPRegressor("exact", 1, training=None).fit(X, y)
    assert list(check_sum(one, X)) == ["level", "Matern52"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"expert": "exact", "n_experts": 3}, "3 exact experts, combined by 'two-level'"),
        ({"expert": "nearest", "n_neighbors": 20}, "expert='sparse'"),
        ({"expert": "exact", "n_experts": 1, "target_transform": "log"}, "target_transform"),
    ],
)
def test_models_without_one_posterior_say_what_to_use(options, said):
    X, y = series()
    gp = DistributedGPRegressor(kernel=TEXT, training=None, **options).fit(X, y)
    with pytest.raises(ValueError, match=said):
        gp.decompose(X)


def test_parts_are_drawn_with_their_bands():
    X, y = series()
    table = X.assign(when=pd.date_range("2026-01-01", periods=150, freq="h")).drop(columns="hour")
    kernel = "periodic(24 h, columns=when) + matern52(columns=warm)"
    gp = DistributedGPRegressor("exact", 1, training=None, kernel=kernel, dates="expand")
    gp.fit(table, y)
    mixed = table.sample(frac=1.0, random_state=0)
    axes = plot_parts(gp, mixed)
    assert [ax.get_title(loc="left") for ax in axes] == ["Periodic(when.days)", "Matern52(warm)"]
    assert axes[-1].get_xlabel() == "when"
    mean, std = gp.decompose(table)["Periodic(when.days)"]
    line = axes[0].lines[0]
    np.testing.assert_array_equal(line.get_xdata(), table["when"].to_numpy())
    np.testing.assert_allclose(line.get_ydata(), mean, rtol=1e-9)
    (band,) = axes[0].collections
    top = band.get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx((mean + 1.6448536 * std).max(), rel=1e-6)
    given = plt.subplots(2)[1]
    assert plot_parts(gp, table, along="warm", axes=given)[1].get_xlabel() == "warm"
    plot_parts(gp, table, along=np.arange(150.0), axes=given)
    with pytest.raises(ValueError, match="one value for each of the 150 rows"):
        plot_parts(gp, table, along=np.arange(3))
    with pytest.raises(ValueError, match="along='cold' names a column"):
        plot_parts(gp, table, along="cold")
    with pytest.raises(ValueError, match="expected 2 Axes, got 1"):
        plot_parts(gp, table, axes=[given[0]])
    plt.close("all")
