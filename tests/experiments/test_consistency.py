"""When a gap counts as falling."""

import numpy as np
import pytest

from experiments.consistency import falls_within_spread


@pytest.mark.parametrize(
    ("means", "falls"),
    [
        ([3.0, 2.0, 1.0], True),
        ([3.0, 3.05, 1.0], True),
        ([1.0, 2.0, 3.0], False),
        ([3.0, 1.0, 1.5], False),
    ],
)
def test_falling_within_the_spread(means, falls):
    rng = np.random.default_rng(0)
    assert falls_within_spread([mean + 0.1 * rng.normal(size=10) for mean in means]) is falls


def test_slow_growth_does_not_pass_for_falling():
    rng = np.random.default_rng(1)
    means = [
        1.0,
        0.5,
        0.25,
        0.4,
        0.6,
        0.8,
    ]  # each step within two standard errors of the one before
    assert not falls_within_spread([mean + 0.2 * rng.normal(size=6) for mean in means])
