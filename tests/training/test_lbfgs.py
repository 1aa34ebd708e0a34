"""SciPy's L-BFGS-B on functions that are known, with places where they cannot be computed."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from helpers import FLOAT, close

from distgp.training.fact import Lbfgs

START = torch.tensor([-1.2, 1.0], dtype=FLOAT)
FREE = torch.full((2,), math.inf, dtype=FLOAT)


def rosenbrock(x):
    return 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2


def evaluated(function, x):
    """The function's value and gradient."""
    point = x.clone().requires_grad_()
    value = function(point)
    (gradient,) = torch.autograd.grad(value, point)
    return value.item(), gradient


def minimised(function, start=START, low=-FREE, high=FREE, limit=400):
    """The search, and all points that it tried with their values."""
    search, tried = Lbfgs(start, low, high), []

    def evaluate(x):
        value, gradient = evaluated(function, x)
        tried.append((x, value))
        assert len(tried) < limit, "the search does not end"
        search.offer(x, value, gradient)
        return value, gradient

    search.minimise(evaluate)
    return search, tried


def test_it_finds_the_minimum():
    search, tried = minimised(rosenbrock)
    close(search.x, torch.ones(2, dtype=FLOAT), rtol=0, atol=1e-6)
    assert search.value == min(value for _, value in tried)
    assert search.gradient_norm < 1e-4


def test_the_first_step_is_no_longer_than_one():
    for function in (rosenbrock, lambda x: 1e8 * rosenbrock(x)):
        for high in (FREE, 50 * torch.ones(2, dtype=FLOAT)):
            _, tried = minimised(function, low=-high, high=high)
            assert float((tried[1][0] - tried[0][0]).norm()) <= 1 + 1e-9


def test_it_stays_within_bounds_and_finds_the_minimum_there():
    low, high = torch.tensor([-1.5, -1.0], dtype=FLOAT), torch.tensor([0.5, 2.0], dtype=FLOAT)
    search, tried = minimised(rosenbrock, low=low, high=high)
    assert all(bool(((low <= x) & (x <= high)).all()) for x, _ in tried)
    close(search.x, torch.tensor([0.5, 0.25], dtype=FLOAT), rtol=0, atol=1e-6)
    assert search.gradient_norm < 1e-4  # the entry at its bound does not count


@pytest.mark.parametrize("radius", [2.0, 1.6])
def test_it_steps_back_from_where_the_function_has_no_value(radius):
    """On the way to the minimum the first steps fail; the minimum itself is within reach."""

    def partial(x):
        inside = bool(x.norm() < radius)
        return rosenbrock(x) if inside else rosenbrock(x) * math.nan

    search, tried = minimised(partial)
    close(search.x, torch.ones(2, dtype=FLOAT), rtol=0, atol=1e-5)
    assert any(math.isnan(value) for _, value in tried)


def test_it_ends_where_the_minimum_cannot_be_reached():
    def partial(x):
        return rosenbrock(x) if x[0].item() < 0.5 else rosenbrock(x) * math.nan

    search, tried = minimised(partial, limit=2000)
    assert any(math.isnan(value) for _, value in tried)
    assert float(search.x[0]) < 0.5
    assert search.value < 0.5  # 0.25 at the edge


def test_a_hopeless_start_is_tried_once():
    search, tried = minimised(lambda x: rosenbrock(x) * math.nan)
    assert len(tried) == 1 and math.isnan(search.value)
    assert torch.equal(search.x, START)


def test_gradients_of_refused_trials_are_not_needed():
    search, counts = Lbfgs(START, -FREE, FREE), [0, 0]

    def evaluate(x):
        value, gradient = evaluated(rosenbrock, x)
        counts[0] += 1
        if not search.hopeful(value):
            return value, None
        counts[1] += 1
        search.offer(x, value, gradient)
        return value, gradient

    search.minimise(evaluate)
    close(search.x, torch.ones(2, dtype=FLOAT), rtol=0, atol=1e-6)
    assert counts[1] < counts[0] < 100


def test_the_best_point_never_gets_worse():
    bests = []
    search = Lbfgs(START, -FREE, FREE)

    def evaluate(x):
        value, gradient = evaluated(rosenbrock, x)
        better = search.offer(x, value, gradient)
        assert better == (not bests or value < bests[-1])
        bests.append(search.value)
        return value, gradient

    search.minimise(evaluate)
    assert all(b <= a for a, b in itertools.pairwise(bests))
