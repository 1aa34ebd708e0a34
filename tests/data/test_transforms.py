"""Transforms of the target: inverses, slopes, and moments against sampling and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from distgp import DistributedGPRegressor
from distgp.likelihoods.transforms import Log, YeoJohnson, transform_of

Y = np.array([-300.0, -2.0, -1e-6, 0.0, 1e-6, 0.5, 3.0, 1e4])


@given(power=st.floats(-3, 5), scale=st.floats(1e-3, 1e3))
def test_the_inverse_brings_targets_back(power, scale):
    y = np.array([-3.0, -0.5, 0.0, 1e-6, 0.7, 4.0]) * scale
    transform = YeoJohnson(power, scale)
    np.testing.assert_allclose(transform.inverse(transform.forward(y)), y, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("power", [-1.5, 0.0, 0.4, 1.0, 2.0, 2.5])
def test_yeo_johnson_is_scipys(power):
    y = Y[1:-1]
    np.testing.assert_allclose(
        YeoJohnson(power, 1.0).forward(y), stats.yeojohnson(y, power), rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize("transform", [Log(), YeoJohnson(0.3, 2.0), YeoJohnson(-0.5, 1.0)])
def test_the_slope_is_the_derivative(transform):
    y, step = np.array([0.2, 1.0, 5.0]), 1e-6
    slope = (transform.forward(y + step) - transform.forward(y - step)) / (2 * step)
    np.testing.assert_allclose(np.exp(transform.log_slope(y)), slope, rtol=1e-7)


def test_the_power_found_is_scipys_and_does_not_depend_on_units():
    y = np.random.default_rng(0).normal(0.5, 1.0, 2000) ** 3 + 2.0
    y = y / np.sqrt(np.mean(y**2))
    found, other = transform_of("yeo-johnson", y), transform_of("yeo-johnson", 1000 * y)
    assert isinstance(found, YeoJohnson) and isinstance(other, YeoJohnson)
    assert abs(found.power - stats.yeojohnson(y)[1]) < 1e-3
    assert abs(found.power - other.power) < 1e-3


@pytest.mark.parametrize("transform", [Log(), YeoJohnson(0.3, 2.0), YeoJohnson(1.7, 1.0)])
def test_moments_are_those_of_a_sample(transform):
    mean, variance = np.array([0.3, 1.0]), np.array([0.04, 0.3])
    z = np.random.default_rng(0).standard_normal((400_000, 1)) * np.sqrt(variance) + mean
    y = transform.inverse(z)
    first, second = transform.moments(mean, variance)
    np.testing.assert_allclose(first, y.mean(0), rtol=5e-3)
    np.testing.assert_allclose(second, y.var(0), rtol=2e-2)


def test_quadrature_gives_the_log_normals_moments():
    mean, variance = np.array([-1.0, 0.5]), np.array([0.5, 0.01])
    closed, naive = Log().moments(mean, variance), super(Log, Log()).moments(mean, variance)
    np.testing.assert_allclose(closed, naive, rtol=1e-9)


def test_the_logarithm_refuses_what_is_not_positive():
    with pytest.raises(ValueError, match=r"needs positive targets, got 2 of 3 at or below 0"):
        transform_of("log", np.array([1.0, 0.0, -2.0]))


def test_the_power_counts_weights_as_copies():
    rng = np.random.default_rng(0)
    y = np.r_[rng.lognormal(size=60), rng.normal(size=40)]
    weight = np.r_[np.ones(60), np.full(40, 9.0)]
    plain, found = YeoJohnson.of(y), YeoJohnson.of(y, weight)
    copied = YeoJohnson.of(np.repeat(y, weight.astype(int)))
    np.testing.assert_allclose([found.power, found.scale], [copied.power, copied.scale], rtol=1e-6)
    assert abs(found.power - plain.power) > 0.1
    assert YeoJohnson.of(y, np.full(100, 3.0)) == plain
    assert YeoJohnson.of(y, 0.1 * weight).power == pytest.approx(found.power, 1e-6)


def test_models_of_transformed_targets_count_weights_as_copies():
    rng = np.random.default_rng(1)
    X = rng.uniform(-1, 1, size=(40, 1))
    y = np.exp(2 * X[:, 0] + 0.3 * rng.normal(size=40))
    weight = 1 + np.arange(40) % 2
    which = np.repeat(np.arange(40), weight)
    gp = DistributedGPRegressor("exact", 1, training=None, target_transform="yeo-johnson")
    one = gp.fit(X, y, weight).predict(X, return_std=True)
    many = gp.fit(X[which], y[which]).predict(X, return_std=True)
    np.testing.assert_allclose(one, many, rtol=1e-6)
