"""Kernels of two columns that are longitude and latitude, and kernels with one lengthscale for all."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import close, concrete

from distgp import DistributedGPRegressor, Matern32, SparseGridGP, load
from distgp.kernels import (
    InputLayout,
    ParameterError,
    Stationary,
    coordinates,
    in_data_units,
    latitudes,
    parse,
    spectrum,
)
from distgp.kernels.sphere import EARTH

KINDS = concrete(Stationary)
QUICK = {"expert": "exact", "n_experts": 1, "n_iter": 5}


def points(n, seed=0):
    """Longitudes and latitudes, evenly over the Earth."""
    rng = np.random.default_rng(seed)
    lat = np.degrees(np.arcsin(rng.uniform(-1, 1, n)))
    return torch.tensor(np.column_stack([rng.uniform(-180, 180, n), lat]))


def chord(a, b):
    """The straight line between two points, in km, by the law of cosines of the angle between them."""
    (lon1, lat1), (lon2, lat2) = (map(math.radians, map(float, p)) for p in (a, b))
    half = math.sin((lat2 - lat1) / 2) ** 2
    half += math.cos(lat1) * math.cos(lat2) * math.sin((lon2 - lon1) / 2) ** 2
    return 2.0 * EARTH * math.sqrt(half)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_distance_is_the_chord_in_km(kind):
    X, Z = points(6), points(5, seed=1)
    square = torch.tensor([[(chord(x, z) / 900.0) ** 2 for z in Z] for x in X], dtype=torch.float64)
    kernel = kind(900.0, sphere=True)
    close(kernel(X, Z), kernel.shape(square), rtol=1e-9, atol=1e-12)
    close(coordinates(kernel, X) * 900.0, torch.stack([_xyz(x) for x in X]), rtol=1e-12, atol=1e-9)


def _xyz(x):
    lon, lat = np.radians(x.numpy())
    ring = math.cos(lat)
    at = [ring * math.cos(lon), ring * math.sin(lon), math.sin(lat)]
    return EARTH * torch.tensor(at, dtype=torch.float64)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_it_is_positive_definite_on_the_whole_sphere(kind):
    values = torch.linalg.eigvalsh(kind(8000.0, sphere=True)(points(150)))
    assert values.min() > -1e-10 * values.max()


def test_the_date_line_the_poles_and_other_turns_make_no_difference():
    kernel = Matern32(50.0, sphere=True)
    near = torch.tensor([[179.9, 10.0], [-179.9, 10.0], [180.1, 10.0]], dtype=torch.float64)
    assert float(kernel(near)[0, 1]) == pytest.approx(float(kernel(near)[0, 2]), rel=1e-12)
    assert math.dist(*coordinates(kernel, near[:2]).mul(50.0).tolist()) == pytest.approx(
        21.9, abs=0.1
    )
    poles = torch.tensor([[0.0, 90.0], [133.0, 90.0], [77.0, -90.0]], dtype=torch.float64)
    assert float(kernel(poles)[0, 1]) == pytest.approx(1.0) and float(kernel(poles)[0, 2]) < 1e-9
    X = points(9)
    turned = torch.where(X < 0, X + torch.tensor([360.0, 0.0], dtype=torch.float64), X)
    close(kernel(turned, X), kernel(X), rtol=1e-9, atol=1e-12)


def test_derivatives_are_those_of_the_formula():
    X = points(4).requires_grad_()
    length = torch.tensor([4000.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda x, v: Matern32(v, sphere=True)(x, points(3, 1)), (X, length)
    )


def test_standardised_columns_are_the_same_points():
    standard = ((10.0, 3.0), (2.0, 9.0), (48.0, 2.5))
    layout = InputLayout(("lon", "height", "lat"), scale=(3.0, 9.0, 2.5), standard=standard)
    X = torch.tensor([[9.0, 1.0, 47.0], [11.0, 5.0, 49.5]], dtype=torch.float64)
    shifts = torch.tensor(standard, dtype=torch.float64)
    kernel = in_data_units(Matern32(120.0, active_dims=["lon", "lat"], sphere=True), layout)
    assert kernel.lengthscale.tolist() == [120.0] and latitudes(2.0 * kernel + kernel, 3) == (2,)
    standardised = (X - shifts[:, 0]) / shifts[:, 1]
    close(kernel(standardised), Matern32(120.0, sphere=True)(X[:, [0, 2]]), rtol=1e-9, atol=1e-12)
    built = parse("matern32(120 km, columns=[lon, lat])").build(layout).kernel.kernel
    assert repr(built) == repr(kernel)
    metres = parse("matern32(120000 m, columns=[lon, lat])").build(layout).kernel.kernel
    assert repr(metres) == repr(kernel)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("matern32(120 km)", "name the columns of longitude and latitude, in this order"),
        ("matern32(1 km, columns=[lon, lat, height])", "longitude and latitude, in this order"),
        ("matern32(1 km, columns=[lat, lon])", "longitude comes first"),
        ("matern32(1, columns=[lon, lat], sphere)", "in km: write 1 km"),
        ("matern32(1 h, columns=[lon, lat], sphere)", "in km: write 1 km"),
        ("periodic(24 km, columns=height)", "expected a period in a unit of time, got 'km'"),
        ("matern32(24 miles, columns=height)", "there is no unit 'miles'.*'km', 'm'"),
        ("matern32(sphere=1)", "or isotropic or rotated or sphere for 'matern32', got 'sphere'"),
        ("linear(isotropic)", "expected columns= for 'linear', got 'isotropic'"),
    ],
)
def test_mistakes_are_explained(text, said):
    with pytest.raises(ParameterError, match=said):
        parse(text).build(InputLayout(("lon", "lat", "height")))


def test_objects_that_do_not_fit_are_explained():
    with pytest.raises(ParameterError, match="looks at two columns, longitude and latitude, got 3"):
        in_data_units(Matern32(1.0, sphere=True), InputLayout.of_array(3))
    with pytest.raises(ParameterError, match="has one lengthscale, in km, got 2"):
        Matern32([1.0, 2.0], sphere=True)(points(2))
    with pytest.raises(ValueError, match="no kernels on the sphere"):
        SparseGridGP(kernel=Matern32(1.0, sphere=True)).fit(points(30), np.arange(30.0))
    with pytest.raises(ParameterError, match="stretch must have a positive"):
        Matern32(1.0, stretch=(1.0, 0.0))


def stations(n=300, seed=0):
    """A table with stations around the date line, and a smooth field on the sphere with noise."""
    rng = np.random.default_rng(seed)
    lon, lat = rng.uniform(170, 190, n), rng.uniform(-25, -5, n)
    table = pd.DataFrame({"lon": np.where(lon > 180, lon - 360, lon), "lat": lat})
    table["height"] = rng.uniform(0, 2, n)
    y = np.sin(np.radians(lon) * 12) + np.cos(np.radians(lat) * 15) + table["height"]
    return table, y.to_numpy() + 0.05 * rng.normal(size=n), lon


@pytest.mark.parametrize("expert", ["exact", "sparse", "nearest"])
def test_a_map_across_the_date_line(expert, tmp_path):
    table, y, lon = stations()
    text = "matern52(800 km, columns=[lon, lat]) + linear(columns=height)"
    quick = {"expert": expert, "n_experts": 1, "n_iter": 15}
    gp = DistributedGPRegressor(kernel=text, **quick).fit(table, y)
    turned = table.assign(lon=lon)  # 170 to 190 instead
    close(gp.predict(turned), gp.predict(table), rtol=1e-6, atol=1e-6)
    edge = pd.DataFrame({"lon": [179.999, -179.999], "lat": -15.0, "height": 1.0})
    mean, std = gp.predict(edge, return_std=True)
    assert abs(mean[0] - mean[1]) < 0.01 and abs(std[0] - std[1]) < 0.01
    truth = np.sin(np.radians(180) * 12) + np.cos(np.radians(-15) * 15) + 1.0
    assert abs(mean.mean() - truth) < 0.15
    assert "lengthscale in km" in str(gp.summary()) and gp.feature_relevance_.shape == (3,)
    gp.save(tmp_path / "map.safetensors")
    again = load(tmp_path / "map.safetensors")
    assert again.kernel == text and np.array_equal(again.predict(edge), gp.predict(edge))
    with pytest.raises(ValueError, match=r"latitudes from -90 to 90 degrees in column 1.*got -91"):
        again.predict(edge.assign(lat=-91.0))


def test_latitudes_beyond_the_poles_are_refused_wherever_rows_come_from(tmp_path):
    table, y, _ = stations(60)
    table.loc[7, "lat"] = 123.0
    gp = DistributedGPRegressor(kernel="matern32(80 km, columns=[lon, lat])", **QUICK)
    with pytest.raises(ValueError, match="got 123: a kernel with a lengthscale in km"):
        gp.fit(table, y)
    table.assign(y=y).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="got 123: a kernel with a lengthscale in km"):
        gp.fit_parquet(str(tmp_path / "rows.parquet"), "y")
    gp.fit(table.drop(index=7), np.delete(y, 7))
    with pytest.raises(ValueError, match="got 123"):
        gp.partial_fit(table, y)


def test_arrays_and_objects_work_too_and_start_again_from_other_rows():
    table, y, _ = stations()
    X = table.to_numpy()
    kernel = 1.0 * Matern32(800.0, active_dims=[0, 1], sphere=True)
    gp = DistributedGPRegressor(kernel=kernel, warm_start=True, **QUICK).fit(X[:200], y[:200])
    assert gp.kernel_.kernel.sphere[1] == pytest.approx((X[:200, 1].mean(), X[:200, 1].std()))
    gp.fit(X[100:], y[100:])  # from there, but with the means and scales of these rows
    assert gp.kernel_.kernel.sphere[1] == pytest.approx((X[100:, 1].mean(), X[100:, 1].std()))
    text = "matern32(800 km, columns=[x0, x1])"
    DistributedGPRegressor(kernel=text, **QUICK).fit(X, y)
    start = DistributedGPRegressor(
        kernel="matern32(columns=[x0, x1], sphere)", **{**QUICK, "training": None}
    )
    assert 500 < float(start.fit(X, y).kernel_.kernel.lengthscale) <= EARTH


def test_a_module_of_torch_predicts_the_same():
    table, y, _ = stations()
    gp = DistributedGPRegressor(
        kernel="matern52(800 km, columns=[lon, lat])", expert="sparse", n_inducing=40, n_iter=3
    ).fit(table, y)
    mean, _ = torch.export.export(gp.to_torch(), (torch.tensor(table.to_numpy()),)).module()(
        torch.tensor(table.to_numpy())
    )
    close(mean, torch.as_tensor(gp.predict(table)), rtol=1e-6, atol=1e-6)


def test_draws_on_the_sphere_have_a_spectrum():
    (term,) = spectrum(Matern32(500.0, sphere=True))
    assert term.waves[0].located(points(2)).shape == (2, 3)


# One lengthscale for all columns, in the units of the data.


def flat(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X = np.column_stack([rng.uniform(0, 10, n), rng.uniform(0, 300, n)])
    return X, np.sin(X[:, 0] / 3) + np.cos(X[:, 1] / 40) + 0.1 * rng.normal(size=n)


@pytest.mark.parametrize("kernel", [1.0 * Matern32(30.0), "matern32(30, isotropic)"])
def test_one_lengthscale_in_the_units_of_the_data_stays_one_in_training(kernel, tmp_path):
    X, y = flat()
    gp = DistributedGPRegressor(kernel=kernel, kernel_units="data", **QUICK).fit(X, y)
    found = gp.kernel_.kernel
    assert found.lengthscale.shape == (1,) and len(found.stretch) == 2
    lengths = found.lengthscale_by_column(2).numpy() * X.std(0)
    assert lengths[0] == pytest.approx(lengths[1], rel=1e-9) and lengths[0] != pytest.approx(30.0)
    gp.save(tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.kernel_.kernel.stretch == found.stretch
    assert np.array_equal(again.predict(X), gp.predict(X))


def test_an_isotropic_kernel_is_that_of_plain_distances():
    X, y = flat(60)
    fixed = {"training": None, "noise": 0.1, "expert": "exact", "n_experts": 1}
    gp = DistributedGPRegressor(kernel="matern32(30, isotropic)", **fixed).fit(X, y)
    r = np.sqrt(3) * np.linalg.norm(X[:, None] - X, axis=-1) / 30
    K = (1 + r) * np.exp(-r)
    naive = y.mean() + K @ np.linalg.solve(K + 0.1 * np.eye(60), y - y.mean())
    close(torch.as_tensor(gp.predict(X)), torch.as_tensor(naive), rtol=1e-7, atol=1e-7)


def test_other_words_for_one_lengthscale():
    layout = InputLayout.of_array(3, scale=[2.0, 8.0, 5.0])
    both = parse("rbf(6, columns=[x0, x1], isotropic)").build(layout).kernel.kernel
    assert repr(both) == "RBF(lengthscale=[1.5], active_dims=(0, 1), stretch=(0.5, 2.0))"
    start = parse("rbf(columns=[x0, x1], isotropic)").build(layout).kernel.kernel
    assert float(start.lengthscale) == pytest.approx(math.sqrt(2))
    mixed = parse("rational-quadratic(6, alpha=2, isotropic)").build(layout).kernel.kernel
    assert mixed.lengthscale.shape == (1,) and float(mixed.alpha) == 2.0
    apart = parse("rbf(6, columns=[x0, x1])").build(layout).kernel.kernel
    assert apart.lengthscale.tolist() == [3.0, 0.75]


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_a_stretch_is_a_lengthscale_for_each_column(kind):
    X = torch.tensor(np.random.default_rng(0).normal(size=(5, 2)))
    close(kind(2.0, stretch=(0.5, 4.0))(X), kind([4.0, 0.5])(X), rtol=1e-12, atol=1e-12)
    with pytest.raises(ParameterError, match="3 values, one a column, but looks at 2"):
        kind(2.0, stretch=(0.5, 4.0, 1.0))(X)


# Names that geostatistics has for kernels.


def test_exponential_is_another_name_and_others_are_explained(tmp_path):
    X, y = flat(60)
    gp = DistributedGPRegressor(kernel="exponential(30)", **QUICK).fit(X, y)
    same = DistributedGPRegressor(kernel="matern12(30)", **QUICK).fit(X, y)
    assert np.array_equal(gp.predict(X), same.predict(X))
    gp.save(tmp_path / "model.safetensors")
    assert load(tmp_path / "model.safetensors").kernel == "exponential(30)"
    with pytest.raises(ParameterError, match="no kernel 'spherical' at character 1: 'exponential'"):
        parse("spherical(30)")
    with pytest.raises(
        ParameterError, match="no kernel 'gaussian' at character 5: 'rbf' is the Gau"
    ):
        parse("2 * gaussian(30)")
