"""A search that begins with the curvature that an earlier one has learnt."""

from __future__ import annotations

import math

import numpy as np
import torch
from helpers import FLOAT, close

from distgp.training.curvature import Curvature
from distgp.training.fact import LONGEST, Lbfgs

P = 12
ROOM = torch.full((P,), 50.0, dtype=FLOAT)


def valley(centre, factor=1.0):
    """A function with a long and narrow valley, whose minimum is at a point and has the value 0."""
    generator = torch.Generator().manual_seed(0)
    axes, _ = torch.linalg.qr(torch.randn(P, P, generator=generator, dtype=FLOAT))
    steepness = torch.logspace(-1, 3, P, dtype=FLOAT)

    def function(x):
        along = axes.T @ (x - centre)
        return factor * ((steepness * along.square()).sum() + 0.1 * along.pow(4).sum())

    return function


def search_of(function, start, curvature, low=-ROOM, high=ROOM, least=1e-6):
    """The search, and the points that it tried."""
    search, tried = Lbfgs(start, low, high, curvature), []

    def evaluate(x):
        point = x.clone().requires_grad_()
        value = function(point)
        (gradient,) = torch.autograd.grad(value, point)
        tried.append(x)
        assert len(tried) < 400, "the search does not end"
        search.offer(x, value.item(), gradient)
        return value.item(), gradient

    search.minimise(evaluate, least)
    return search, tried


def learnt():
    """The curvature that a first search has learnt, and where it ended."""
    curvature = Curvature()
    search, _ = search_of(valley(torch.zeros(P)), torch.ones(P, dtype=FLOAT), curvature)
    return curvature, search.x


def test_a_known_curvature_saves_most_evaluations():
    curvature, end = learnt()
    curvature.scale(3.0)
    other = valley(0.3 * torch.ones(P), 3.0)
    begun, few = search_of(other, end, curvature)
    anew, many = search_of(other, end, None)
    assert begun.value < 1e-5 and anew.value < 1e-5
    assert 3 * len(few) <= len(many)


def test_steps_by_a_known_curvature_are_short_and_lead_downwards():
    curvature, end = learnt()
    curvature.scale(1e-3)  # steps that are far too long
    far = valley(10.0 * torch.ones(P))
    search, tried = search_of(far, end, curvature)
    begins = [end, *tried]
    assert all(
        float((b - a).abs().max()) <= 2 * LONGEST for a, b in zip(begins, tried, strict=False)
    )
    close(search.x, 10.0 * torch.ones(P, dtype=FLOAT), rtol=0, atol=0.01)


def test_bounds_hold_with_a_known_curvature():
    curvature, end = learnt()
    high = torch.where(torch.arange(P) < 4, 0.1, 50.0).to(FLOAT)
    other = valley(0.3 * torch.ones(P))
    begun, few = search_of(other, end.clamp(max=0.1), curvature, high=high)
    anew, _ = search_of(other, end.clamp(max=0.1), None, high=high)
    assert all(bool((x <= high).all()) for x in few)
    assert anew.value > 1e-3 and abs(begun.value - anew.value) < 1e-4


def test_a_place_without_a_value_is_stepped_back_from():
    curvature, end = learnt()
    curvature.scale(1e-2)  # the first steps are too long
    inner, refused = valley(0.8 * torch.ones(P)), []

    def function(x):
        beyond = bool((x > 1.2).any())
        refused.append(beyond)
        return inner(x) * (math.nan if beyond else 1.0)

    search, _ = search_of(function, end, curvature)
    assert any(refused)
    close(search.x, 0.8 * torch.ones(P, dtype=FLOAT), rtol=0, atol=0.01)


def test_steps_along_which_nothing_bends_teach_nothing():
    curvature = Curvature()
    curvature.learn(np.ones(3), -np.ones(3))
    curvature.learn(np.zeros(3), np.zeros(3))
    assert not curvature.knows(3)
    curvature.learn(np.array([2.0, 0.0, 0.0]), np.array([8.0, 0.0, 0.0]))
    assert curvature.knows(3) and not curvature.knows(4)
    step = curvature.step(np.array([4.0, 4.0, 4.0]), np.array([True, True, False]), longest=10.0)
    close(torch.tensor(step), torch.tensor([-1.0, -1.0, 0.0], dtype=FLOAT))
    assert curvature.gain(np.array([4.0, 4.0, 4.0]), step) == 4.0
    assert not curvature.step(np.ones(3), np.zeros(3, dtype=bool), longest=1.0).any()
