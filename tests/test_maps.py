"""Grids, block averages, simulations and rows left out, against naive computations in float64."""

import sys

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import norm

from distgp import DistributedGPRegressor, maps, plotting

QUICK = {"expert": "exact", "n_experts": 1, "n_iter": 10}


def wells(n=120, seed=0):
    """A table with places, a height, and levels of water."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"east": rng.uniform(0, 10, n), "north": rng.uniform(0, 5, n)})
    table["height"] = rng.uniform(0, 1, n)
    y = np.sin(table["east"]) + np.cos(table["north"]) + table["height"]
    return table, y.to_numpy() + 0.1 * rng.normal(size=n)


@pytest.fixture(scope="module")
def gp():
    return DistributedGPRegressor(kernel="matern32", **QUICK).fit(*wells())


@pytest.fixture(scope="module")
def flat():
    table, y = wells()
    return DistributedGPRegressor(**QUICK).fit(table[["east", "north"]].to_numpy(), y)


def small_grid(**columns):
    return maps.grid({"east": np.linspace(1, 9, 7), "north": np.linspace(1, 4, 5)}, **columns)


def test_a_grid_is_predicted_as_its_points_are(gp):
    pytest.importorskip("xarray")
    height = np.linspace(0.1, 0.9, 35).reshape(7, 5)
    height[2, 3] = np.nan
    mask = np.ones((7, 5), bool)
    mask[0] = False
    data = maps.predict_grid(gp, small_grid(height=height, mask=mask), coverage=0.9, chunk=11)
    assert data["mean"].dims == ("east", "north") and list(data) == [
        "mean",
        "std",
        "lower",
        "upper",
    ]
    east, north = np.meshgrid(data["east"], data["north"], indexing="ij")
    table = pd.DataFrame({"north": north.ravel(), "height": height.ravel(), "east": east.ravel()})
    inside = (mask & ~np.isnan(height)).ravel()
    mean, std, lower, upper = gp.predict_with_interval(table[inside], 0.9)
    for name, values in (("mean", mean), ("std", std), ("lower", lower), ("upper", upper)):
        found = data[name].values.ravel()
        assert np.isnan(found[~inside]).all()
        np.testing.assert_allclose(found[inside], values, rtol=1e-10)
    latent = maps.predict_grid(gp, small_grid(height=height, mask=mask), latent=True)
    assert (latent["std"] < data["std"]).values.ravel()[inside].all()


def test_a_grid_from_a_dataset_and_for_a_model_of_arrays(gp, flat):
    xarray = pytest.importorskip("xarray")
    north, east = np.linspace(1, 4, 5), np.linspace(1, 9, 7)
    height = np.linspace(0, 1, 5) + np.zeros((7, 1))
    heights = xarray.Dataset(
        {"soil": ("north", np.ones(5)), "height": (("east", "north"), height)},
        coords={"north": north, "east": east},
    )
    made = maps.grid(heights)
    assert list(made.axes) == ["north", "east"] and np.array_equal(made.columns["height"], height.T)
    data = maps.predict_grid(gp, made)
    want = gp.predict(pd.DataFrame({"east": [east[2]], "north": north[1], "height": 0.25}))
    assert float(data["mean"].sel(east=east[2], north=north[1])) == pytest.approx(want[0])
    plain = maps.predict_grid(flat, small_grid())
    assert float(plain["mean"][2, 1]) == pytest.approx(flat.predict([[1 + 8 / 3, 1.75]])[0])


def test_the_map_is_drawn_with_the_axes_as_people_expect(gp):
    pytest.importorskip("xarray")
    table, _ = wells()
    data = maps.predict_grid(gp, small_grid(height=0.5))
    for shown in (data, data.transpose("north", "east")):
        ax = plotting.plot_map(shown, points=table)
        assert (ax.get_xlabel(), ax.get_ylabel()) == ("east", "north")
        assert ax.collections[0].get_array().shape == (5, 7)
    assert ax.get_aspect() == "auto" and ax.get_xlim()[0] < 1.0  # whole cells
    turned = plotting.plot_map(
        data.rename(east="lon", north="lat").assign_coords(lat=data["north"].values + 57.5)
    )
    assert turned.get_aspect() == pytest.approx(2.0)
    assert plotting.plot_map(data, "std", points=table[["east", "north"]].to_numpy()).lines
    draws = maps.simulate(gp, small_grid(height=0.5), 2)
    assert plotting.plot_map(draws, "simulation", draw=1).get_xlabel() == "east"
    with pytest.raises(ValueError, match="expected one of mean, std, got variable='sd'"):
        plotting.plot_map(data, "sd")
    with pytest.raises(ValueError, match="a map has two axes, got 1"):
        plotting.plot_map(data.isel(east=0))
    for wrong in (data["mean"], gp):
        with pytest.raises(TypeError, match=r"as returned by maps\.predict_grid or maps\.simulate"):
            plotting.plot_map(wrong)
    with pytest.raises(ValueError, match="draw must be a number from 0 to 1, got 5"):
        plotting.plot_map(draws, "simulation", draw=5)
    renamed = table.rename(columns={"east": "x"})
    with pytest.raises(ValueError, match=r"points has no column 'east'; it has 'x', 'north'"):
        plotting.plot_map(data, points=renamed)
    with pytest.raises(ValueError, match=r"an array of shape \(n, 2\), got shape \(3,\)"):
        plotting.plot_map(data, points=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="points must be numbers"):
        plotting.plot_map(data, points=[["a", "b"]])


def test_simulations_have_the_mean_and_the_covariance_of_the_posterior(gp):
    pytest.importorskip("xarray")
    mask = np.ones((7, 5), bool)
    mask[3, 2] = False
    grid = small_grid(height=0.5, mask=mask)
    data = maps.simulate(gp, grid, 4000, latent=True, random_state=1)
    assert data["simulation"].dims == ("draw", "east", "north")
    drawn = data["simulation"].values.reshape(4000, -1)
    assert np.isnan(drawn[:, ~mask.ravel()]).all()
    X = grid.points(gp, np.flatnonzero(mask))
    mean, covariance = gp.predict(X, return_cov=True, latent=True)
    drawn = drawn[:, mask.ravel()]
    error = np.sqrt(np.diag(covariance) / 4000)
    assert (np.abs(drawn.mean(0) - mean) < 5 * error).all()
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    assert (np.abs(np.cov(drawn.T) - covariance) < 6 * scale / np.sqrt(4000)).all()


def test_a_hundred_thousand_points_are_drawn_without_a_covariance(flat):
    pytest.importorskip("xarray")
    grid = maps.grid({"east": np.linspace(0, 10, 500), "north": np.linspace(0, 5, 200)})
    data = maps.simulate(flat, grid, 2, latent=True)
    assert data["simulation"].shape == (2, 500, 200)
    steps = np.diff(data["simulation"].values, axis=1)
    assert np.abs(steps).max() < 0.5  # neighbours are drawn together, not one by one


def test_block_averages_are_those_of_the_joint_covariance():
    table, y = wells(80)
    X = table[["east", "north"]].to_numpy()
    fixed = {"training": None, "noise": 0.1, "normalize": False, "kernel_units": "data"}
    options = {"kernel": "matern12(2, isotropic)", "expert": "exact", "n_experts": 1, **fixed}
    gp = DistributedGPRegressor(**options).fit(X, y)
    points = np.random.default_rng(1).uniform(0, 5, (40, 2))
    blocks = np.repeat(["b", "a"], [25, 15])
    labels, mean, std = maps.block_average(gp, points, blocks)

    def k(A, B):
        return np.exp(-np.linalg.norm(A[:, None] - B, axis=-1) / 2)

    inverse = np.linalg.inv(k(X, X) + 0.1 * np.eye(80))
    for label, m, s in zip(labels, mean, std, strict=True):
        P = points[blocks == label]
        assert m == pytest.approx((k(P, X) @ inverse @ y).mean(), rel=1e-7)
        covariance = k(P, P) - k(P, X) @ inverse @ k(X, P)
        assert s == pytest.approx(np.sqrt(covariance.mean()), rel=1e-6)
        assert s < np.sqrt(np.diag(covariance).mean())
    assert list(labels) == ["a", "b"]


def test_blocks_of_a_grid_and_of_a_table_are_the_same(gp):
    height = np.full((7, 5), 0.5)
    height[0, 0] = np.nan
    grid = small_grid(height=height)
    cells = np.arange(35).reshape(7, 5) // 5
    found = maps.block_average(gp, grid, cells)
    table = grid.points(gp, np.flatnonzero(grid.inside)).to_pandas()
    same = maps.block_average(gp, table, cells[grid.inside])
    assert all(np.array_equal(a, b) for a, b in zip(found, same, strict=True))
    with pytest.raises(ValueError, match=r"one label for each of 34 points, got \(3,\)"):
        maps.block_average(gp, table, [1, 2, 3])


@pytest.mark.parametrize("expert", ["exact", "sparse", "nearest"])
def test_rows_left_out_are_those_of_models_fitted_without_them(expert):
    table, y = wells(60)
    fitted = DistributedGPRegressor(expert=expert, n_experts=1, n_iter=5).fit(table, y)
    found = maps.leave_one_out(fitted, table, y)
    assert np.array_equal(found.places, np.arange(60)) and np.array_equal(found.y, y)
    X, scaling = table.to_numpy(), fitted.model_.targets[0].scaling
    S = (X - scaling.x_mean) / scaling.x_scale
    K = fitted.kernel_(torch.tensor(S)).numpy()
    z = (y - scaling.y_mean) / scaling.y_scale
    for i in (0, 17, 59):
        rest = np.delete(np.arange(60), i)
        A = K[np.ix_(rest, rest)] + float(fitted.noise_) * np.eye(59)
        mean = K[i, rest] @ np.linalg.solve(A, z[rest]) * scaling.y_scale + scaling.y_mean
        left = K[i, i] + float(fitted.noise_) - K[i, rest] @ np.linalg.solve(A, K[rest, i])
        assert found.mean[i] == pytest.approx(mean, rel=1e-6)
        assert found.std[i] == pytest.approx(np.sqrt(left) * scaling.y_scale, rel=1e-6)
        assert found.z[i] == pytest.approx((y[i] - found.mean[i]) / found.std[i])


def test_of_many_rows_some_are_left_out(flat, monkeypatch):
    table, y = wells()
    X = table[["east", "north"]].to_numpy()
    every = maps.leave_one_out(flat, X, y)
    monkeypatch.setattr(maps, "EVERY_ROW", 100)
    some = maps.leave_one_out(flat, X, y)  # from their 119 nearest others: from all
    assert len(some.places) == 120
    np.testing.assert_allclose(some.mean, every.mean[some.places], rtol=1e-6)
    np.testing.assert_allclose(some.std, every.std[some.places], rtol=1e-6)


def test_residuals_of_a_transformed_target_are_those_of_the_transform():
    table, y = wells()
    options = {**QUICK, "target_transform": "log"}
    fitted = DistributedGPRegressor(**options).fit(table, np.exp(y))
    found = maps.leave_one_out(fitted, table, np.exp(y))
    plain = DistributedGPRegressor(**QUICK).fit(table, y)
    np.testing.assert_allclose(found.z, maps.leave_one_out(plain, table, y).z, rtol=1e-6)
    assert (found.mean > 0).all() and np.mean(np.abs(found.z) < norm.ppf(0.95)) > 0.8


def test_mistakes_are_explained(gp, monkeypatch):
    table, y = wells()
    with pytest.raises(
        ValueError, match=r"height must be one value, or values of .* shape \(7, 5\)"
    ):
        small_grid(height=[1.0, 2.0])
    for axes in ({}, {"east": []}, {"east": [[1.0]]}):
        with pytest.raises(ValueError, match="a grid needs one axis at least"):
            maps.grid(axes)
    two = DistributedGPRegressor(**QUICK).fit(table, np.column_stack([y, y + table["east"]]))
    with pytest.raises(ValueError, match="maps are of one target, and this model has 2"):
        maps.leave_one_out(two, table, y)
    own = DistributedGPRegressor(expert="exact", n_experts=2, training="independent", n_iter=2)
    with pytest.raises(ValueError, match="needs experts that share their hyperparameters"):
        maps.leave_one_out(own.fit(table, y), table, y)
    pytest.importorskip("xarray")
    with pytest.raises(ValueError, match="lacks the column"):
        maps.predict_grid(gp, small_grid())
    monkeypatch.setitem(sys.modules, "xarray", None)
    with pytest.raises(ImportError, match="pip install xarray"):
        maps.predict_grid(gp, small_grid(height=0.5))


def test_rows_without_weight_are_left_out_of_those_left_out(flat):
    table, y = wells()
    X, weight = table[["east", "north"]].to_numpy(), np.ones(len(y))
    weight[[3, 7]] = 0.0
    found, some = maps.leave_one_out(flat, X, y, weight), np.flatnonzero(weight)
    expected = maps.leave_one_out(flat, X[some], y[some])
    np.testing.assert_array_equal(found.places, some)
    for name in ("y", "mean", "std", "z"):
        np.testing.assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-9)


def test_what_cannot_be_meant_is_refused(gp):
    table, y = wells()
    mixed = [pd.Timestamp("2024-01-01"), pd.Timestamp("2024-01-01", tz="UTC")] * (len(y) // 2)
    for error, said, call in (
        (TypeError, "axes must map names", lambda: maps.grid([1.0, 2.0])),
        (ValueError, "one axis at least", lambda: maps.grid({"a": 1.0})),
        (ValueError, "mask must be True or False", lambda: small_grid(mask=pd.NA)),
        (ValueError, "mask must be True or False", lambda: small_grid(mask=np.nan)),
        (TypeError, "labels of one kind", lambda: maps.block_average(gp, table, mixed)),
        (TypeError, "a fitted DistributedGPRegressor", lambda: maps.block_average(3, table, y)),
        (
            ValueError,
            "expecting 3 features",
            lambda: maps.leave_one_out(gp, [[1.0], [2.0]], [1, 2]),
        ),
        (ValueError, "y must be numbers", lambda: maps.leave_one_out(gp, table, ["much"] * len(y))),
        (TypeError, "X must be arrays", lambda: maps.leave_one_out(gp, [object()], [1.0])),
        (
            ValueError,
            "X holds dates",
            lambda: maps.leave_one_out(gp, np.array(["2024"], "M8"), [1]),
        ),
    ):
        with pytest.raises(error, match=said):
            call()


def test_a_grid_is_one_that_was_made_as_such(gp):
    pytest.importorskip("xarray")
    for call in (maps.predict_grid, maps.simulate):
        for wrong in (None, {"east": [1.0], "north": [2.0]}):
            with pytest.raises(TypeError, match=r"expected a grid as made by maps\.grid"):
                call(gp, wrong)
