import math

import numpy as np
import pytest
import torch
from helpers import FLOAT
from scipy import stats

from distgp import metrics

Y = np.array([0.3, -1.2, 2.0, 0.7])
MEAN = np.array([0.1, -1.0, 2.5, 0.7])
VARIANCE = np.array([0.2, 0.5, 0.1, 1.0])


def test_rmse_and_smse():
    assert metrics.rmse([1, 2, 3], [1, 2, 5]) == pytest.approx(math.sqrt(4 / 3))
    assert metrics.smse(Y, np.full(4, Y.mean())) == pytest.approx(1.0)
    assert metrics.smse(Y, Y) == 0


def test_nlpd_against_scipy():
    expected = -stats.norm(MEAN, np.sqrt(VARIANCE)).logpdf(Y).mean()
    assert metrics.nlpd(Y, MEAN, VARIANCE) == pytest.approx(expected, rel=1e-12)


def test_coverage_of_a_calibrated_prediction_is_its_level():
    rng = np.random.default_rng(0)
    mean, std = rng.normal(size=200_000), rng.uniform(0.1, 2, size=200_000)
    y = mean + std * rng.normal(size=200_000)
    for level in (0.5, 0.9, 0.99):
        assert metrics.coverage(y, mean, std**2, level) == pytest.approx(level, abs=0.004)
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.coverage(y, mean, std**2, 90)


def test_pinball_is_lowest_at_the_true_quantile_and_half_the_error_at_the_median():
    assert metrics.pinball([1.0, 4.0], [2.0, 2.0], 0.9) == pytest.approx((0.1 + 0.9 * 2) / 2)
    assert metrics.pinball(Y, MEAN, 0.5) == pytest.approx(np.abs(Y - MEAN).mean() / 2)
    y, grid = np.random.default_rng(0).normal(size=20_000), np.linspace(-2, 2, 81)
    for level in (0.1, 0.8):
        loss = [metrics.pinball(y, np.full(len(y), z), level) for z in grid]
        assert grid[np.argmin(loss)] == pytest.approx(stats.norm.ppf(level), abs=0.05)
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.pinball(Y, MEAN, 1.0)


def test_wasserstein_against_the_closed_form():
    expected = math.sqrt(((0.5**2 + (1 - 2) ** 2) + 0) / 2)
    assert metrics.wasserstein2([0, 1], [1, 1], [0.5, 1], [4, 1]) == pytest.approx(expected)
    assert metrics.wasserstein2(MEAN, VARIANCE, MEAN, VARIANCE) == 0


def test_tensors_and_arrays_give_the_same():
    tensors = [torch.as_tensor(v, dtype=FLOAT, device="cpu") for v in (Y, MEAN, VARIANCE)]
    assert metrics.nlpd(*tensors) == metrics.nlpd(Y, MEAN, VARIANCE)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.rmse([1.0, 2.0], [1.0]), "one shape"),
        (lambda: metrics.rmse([], []), "at least one"),
        (lambda: metrics.rmse([float("nan")], [1.0]), "finite"),
        (lambda: metrics.nlpd([1.0], [1.0], [0.0]), "positive"),
        (lambda: metrics.coverage([1.0], [1.0], [-1.0]), "positive"),
        (lambda: metrics.wasserstein2([1.0], [-1.0], [1.0], [1.0]), "positive"),
        (lambda: metrics.smse([1.0, 1.0], [1.0, 1.0]), "undefined"),
    ],
)
def test_what_cannot_be_scored_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
