"""Kernels of two columns with a lengthscale along a direction and another across it."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import FLOAT, close, concrete, inputs

from distgp import DistributedGPRegressor, Matern32, RationalQuadratic, load
from distgp.kernels import (
    InputLayout,
    ParameterError,
    Stationary,
    directions,
    in_data_units,
    parse,
    rotated,
    spectrum,
)
from distgp.sparsegrid import factors

KINDS = pytest.mark.parametrize("kind", concrete(Stationary), ids=lambda kind: kind.__name__)
TEXT = "matern52(60, across=30, angle=70, columns=[east, north])"


@KINDS
def test_lengthscales_are_those_along_and_across_the_angle(kind):
    u = math.radians(30)
    steps = {120.0: [math.cos(u), math.sin(u)], 40.0: [-math.sin(u), math.cos(u)]}
    kernel = rotated(kind, 120.0, 40.0, angle=30.0)
    for length, step in steps.items():
        points = torch.tensor([[5.0, -7.0], [5.0 + 50 * step[0], -7.0 + 50 * step[1]]], dtype=FLOAT)
        plain = kind(length)(torch.tensor([[0.0], [50.0]], dtype=FLOAT))
        close(kernel(points), plain, rtol=1e-11)


@pytest.mark.parametrize("angle", [0.0, 30.0, 90.0, 179.0, 200.0, -20.0])
def test_directions_are_read_back(angle):
    along, across, found = directions(rotated(Matern32, 120.0, 40.0, angle))
    close(along, torch.tensor(120.0, dtype=FLOAT))
    close(across, torch.tensor(40.0, dtype=FLOAT))
    assert 0.0 <= float(found) < 180.0
    assert math.cos(2 * math.radians(float(found) - angle)) == pytest.approx(1.0)


def test_the_longer_lengthscale_is_the_first_that_is_read():
    along, across, angle = directions(rotated(Matern32, 40.0, 120.0, 10.0))
    assert float(along) == pytest.approx(120) and float(across) == pytest.approx(40)
    assert float(angle) == pytest.approx(100)


@KINDS
def test_without_a_preferred_direction_it_is_isotropic_and_can_leave_that(kind):
    X, numbers = inputs(6, 2), torch.ones(2, dtype=FLOAT, requires_grad=True)
    K = kind(0.7, anisotropy=numbers)(X)
    close(K, kind(0.7)(X), rtol=1e-12, atol=1e-13)
    (slope,) = torch.autograd.grad((K * inputs(6, 6, 2)).sum(), numbers)
    assert bool((slope.abs() > 1e-3).all())


def test_a_text_is_that_kernel_in_the_units_of_the_data():
    scale, X = torch.tensor([3.0, 20.0, 5.0], dtype=FLOAT), 50 * inputs(6, 3)
    layout = InputLayout(("east", "height", "north"), scale=scale.tolist())
    columns = X[:, [0, 2]]
    for text, expected in (
        (TEXT, rotated(concrete_kind("Matern52"), 60.0, 30.0, 70.0)),
        (
            "rational-quadratic(60, across=30, angle=-20, alpha=2, columns=[east, north])",
            RationalQuadratic(
                math.sqrt(1800), alpha=2, anisotropy=rotated(Matern32, 2.0, 1.0, -20.0).anisotropy
            ),
        ),
    ):
        found = parse(text).build(layout).kernel.kernel
        close(found(X / scale), expected(columns), rtol=1e-11)
        assert str(parse(str(parse(text)))) == str(parse(text))
    made = in_data_units(rotated(Matern32, 60.0, 30.0, 70.0, ("east", "north")), layout)
    close(made(X / scale), rotated(Matern32, 60.0, 30.0, 70.0)(columns), rtol=1e-11)
    start = parse("matern32(columns=[east, north], rotated)").build(layout).kernel.kernel
    assert start.anisotropy.tolist() == [1.0, 1.0] and start.active_dims == (0, 2)


def concrete_kind(name):
    return next(kind for kind in concrete(Stationary) if kind.__name__ == name)


def ridges(n=250, seed=0):
    """Ridges that lie at 30 degrees, on a map that is three times as long as wide."""
    rng = np.random.default_rng(seed)
    east, north, u = rng.uniform(0, 100, n), rng.uniform(0, 300, n), math.radians(30)
    along, across = (
        east * math.cos(u) + north * math.sin(u),
        north * math.cos(u) - east * math.sin(u),
    )
    y = np.sin(along / 60) + np.sin(across / 12) + 0.05 * rng.normal(size=n)
    return pd.DataFrame({"east": east, "north": north}), y


@pytest.mark.parametrize("expert", ["exact", "sparse", "nearest"])
@pytest.mark.parametrize("text", [TEXT, "matern52(columns=[east, north], rotated)"])
def test_training_finds_the_direction_and_files_keep_it(expert, text, tmp_path):
    table, y = ridges()
    gp = DistributedGPRegressor(kernel=text, expert=expert, n_experts=1, n_iter=60).fit(table, y)
    shown = {q.name: q.value for q in gp.summary().targets[0].quantities}
    assert shown["angle in degrees"] == pytest.approx(30, abs=5)
    assert shown["lengthscale along"] > 2.5 * shown["lengthscale across"]
    assert gp.feature_relevance_[1] > gp.feature_relevance_[0] > 0
    gp.save(tmp_path / "map.safetensors")
    again = load(tmp_path / "map.safetensors")
    assert again.kernel == text and np.array_equal(again.predict(table), gp.predict(table))
    drawn = gp.sample_y(table[:50], 3, random_state=0)
    assert drawn.shape == (50, 3) and np.isfinite(drawn).all()


def test_a_direction_can_be_held():
    table, y = ridges(80)
    gp = DistributedGPRegressor(
        kernel=TEXT, expert="exact", n_experts=1, n_iter=5, fixed=["anisotropy"]
    ).fit(table, y)
    _, _, angle = directions(gp.kernel_.kernel)
    shown = {q.name: q.value for q in gp.summary().targets[0].quantities}
    assert shown["angle in degrees"] == pytest.approx(70) and float(angle) != pytest.approx(70)
    ratio = shown["lengthscale along"] / shown["lengthscale across"]
    assert ratio == pytest.approx(2.0) and shown["lengthscale along"] != pytest.approx(60)


def test_draws_have_a_spectrum_and_a_module_of_torch_predicts_the_same():
    (term,) = spectrum(rotated(Matern32, 2.0, 1.0, 30.0))
    assert term.waves[0].located(inputs(4, 2)).shape == (4, 2)
    table, y = ridges(120)
    gp = DistributedGPRegressor(kernel=TEXT, expert="sparse", n_inducing=40, n_iter=3).fit(table, y)
    rows = torch.tensor(table.to_numpy())
    mean, _ = torch.export.export(gp.to_torch(), (rows,)).module()(rows)
    close(mean, torch.as_tensor(gp.predict(table)), rtol=1e-6, atol=1e-6)


def test_it_is_no_product_over_columns():
    assert factors(rotated(concrete_kind("RBF"), 2.0, 1.0, 30.0), 2) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("matern32(12 km, across=4, angle=30, columns=[x, y])", "on the sphere has no direction"),
        ("matern32(columns=[x, y], sphere, rotated)", "on the sphere has no direction"),
        ("matern32(12, across=4, columns=[x, y])", "one across it, and an angle in degrees, as in"),
        ("matern32(12, angle=4, columns=[x, y])", "where training is to find it, write 'rotated'"),
        ("matern32(across=12, angle=4, columns=[x, y])", "a lengthscale along it, one across"),
        ("matern32(12, across=4, angle=30)", "lies in two columns .* got 'x', 'y', 'height'"),
        ("matern32(12 days, across=4 days, angle=30, columns=[x, y])", "columns of plain numbers"),
        ("matern32(columns=[x, y], rotated, isotropic)", "isotropic kernel has no direction"),
        ("matern32(12, across=4, angle=north, columns=[x, y])", "number of degrees for angle, got"),
        ("linear(rotated)", "expected columns= for 'linear', got 'rotated'"),
    ],
)
def test_mistakes_in_texts_are_explained(text, said):
    with pytest.raises(ParameterError, match=said) as caught:
        parse(text).build(InputLayout(("x", "y", "height")))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("kernel", "said"),
    [
        (lambda: Matern32(1.0, anisotropy=[1.0, 2.0, 3.0]), "anisotropy has two numbers, got 3"),
        (lambda: Matern32(1.0, anisotropy=[1.0, -2.0]), "anisotropy must be positive"),
        (lambda: rotated(Matern32, 1.0, 0.0, 30.0), "expected two positive lengthscales and an"),
        (lambda: directions(Matern32(1.0)), "Matern32 has no anisotropy, and so no direction"),
        (lambda: Matern32(1.0, anisotropy=[1.0, 2.0])(inputs(3, 3)), "looks at two columns, got 3"),
        (lambda: Matern32([1.0, 2.0], anisotropy=[1.0, 2.0])(inputs(3, 2)), "has one lengthscale"),
        (
            lambda: Matern32(1.0, sphere=True, anisotropy=[1.0, 2.0])(inputs(3, 2)),
            "on the sphere has no direction",
        ),
    ],
)
def test_mistakes_in_objects_are_explained(kernel, said):
    with pytest.raises(ParameterError, match=said):
        kernel()
