"""The likelihood of the last rows of sets, and its derivatives by hand, against one set after another."""

import math

import pytest
import torch
from helpers import FLOAT, close, inputs

import distgp
from distgp.experts import Parameters, last_rows, neighborhoods
from distgp.experts.neighborhoods import Neighbours

SHAPES = [distgp.RBF, distgp.Matern12, distgp.Matern32, distgp.Matern52]


def sets(own_noise=False, d=3, far=0.0):
    """Seven sets of nine rows, some not real, two of them equal."""
    X = inputs(7 * 9, d).reshape(7, 9, d)
    X[:, 3] = X[:, 4]
    X[:, 5:] += far
    y = inputs(7 * 9, 1, 1).reshape(7, 9)
    real = inputs(7 * 9, 1, 2).reshape(7, 9) > -0.5
    real[:, -1] = True
    factor = 0.5 + inputs(7 * 9, 1, 3).reshape(7, 9).abs() if own_noise else None
    return Neighbours(X, y, real, None, factor)


def theta_at(shape, lengths, **options):
    """θ with gradients, and the tensors that they are wanted in."""
    values = [torch.tensor(v, dtype=FLOAT, requires_grad=True) for v in (lengths, 1.3, 0.1)]
    kernel = distgp.kernels.Scale(shape(values[0], **options), values[1])
    return Parameters(kernel, values[2]), values


def naive(theta, given):
    """−log p of the real rows of each set, less that of those without the last, by differences."""

    def joint(X, y, noise):
        square = (X[:, None, :] - X[None, :, :]).square().sum(-1)
        S = theta.kernel.variance * theta.kernel.kernel.shape(square) + torch.diag(noise)
        quadratic = y @ torch.linalg.solve(S, y)
        return 0.5 * (quadratic + torch.logdet(S) + len(y) * math.log(2 * math.pi))

    total = 0.0
    for i, real in enumerate(given.real):
        X, y = theta.kernel.kernel.scaled(given.X[i][real]), given.y[i][real]
        factor = torch.ones_like(y) if given.factor is None else given.factor[i][real]
        noise = theta.noise * factor
        total = total + joint(X, y, noise)
        if len(y) > 1:
            total = total - joint(X[:-1], y[:-1], noise[:-1])
    return total


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        ([0.6, 0.9, 1.4], {}),
        ([0.7], {}),
        ([0.8, 0.5], {"active_dims": [2, 0]}),
        ([0.8, 0.5], {"shared": [1, 0, 1]}),
        ([90.0], {"active_dims": [0, 1], "sphere": True}),
        ([0.8], {"active_dims": [2, 0], "anisotropy": [1.4, 0.8], "stretch": [0.5, 2.0]}),
    ],
    ids=["one each", "one", "some columns", "shared", "sphere", "direction"],
)
@pytest.mark.parametrize("own_noise", [False, True])
def test_value_and_derivatives_are_those_of_a_naive_loop(shape, lengths, options, own_noise):
    given = sets(own_noise)
    found = []
    for function in (neighborhoods.negative_log_likelihood, naive):
        theta, values = theta_at(shape, lengths, **options)
        value = function(theta, given)
        found.append((value, torch.autograd.grad(value, values)))
    (value, gradient), (wanted, slopes) = found
    close(value, wanted, rtol=1e-10)
    for mine, theirs in zip(gradient, slopes, strict=True):
        close(mine, theirs, rtol=1e-8, atol=1e-9)


def test_a_direction_that_is_trained_has_its_derivative():
    given, found = sets(d=2), []
    for function in (neighborhoods.negative_log_likelihood, naive):
        direction = torch.tensor([1.4, 0.8], dtype=FLOAT, requires_grad=True)
        theta, values = theta_at(distgp.Matern32, [0.8], anisotropy=direction)
        found.append(torch.autograd.grad(function(theta, given), [direction, *values]))
    for mine, theirs in zip(*found, strict=True):
        close(mine, theirs, rtol=1e-8, atol=1e-9)


def test_it_is_what_training_uses(monkeypatch):
    monkeypatch.setattr(neighborhoods, "residual_matrix", None)
    theta, _ = theta_at(distgp.Matern52, [0.6, 0.9, 1.4])
    assert bool(torch.isfinite(neighborhoods.negative_log_likelihood(theta, sets())))


def test_rows_too_far_for_products_are_left_to_the_kernel():
    given = sets(far=1e6)
    theta, values = theta_at(distgp.Matern52, [0.6, 0.9, 1.4])
    assert last_rows.of_last_rows(theta.kernel.kernel, values[1], values[2], given) is None
    close(neighborhoods.negative_log_likelihood(theta, given), naive(theta, given), rtol=1e-8)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("q", [20, 64, 70])
def test_the_lower_triangle_is_that_of_the_kernel(shape, q):
    X = inputs(5 * q, 3).reshape(5, q, 3)
    X[:, 1] = X[:, q - 1]
    for kernel in (
        1.7 * shape([0.5, 0.8], active_dims=[2, 0]),
        1.7 * shape(90.0, active_dims=[2, 0], sphere=True),
        1.7 * shape(0.7, active_dims=[2, 0], anisotropy=[1.4, 0.8]),
    ):
        close(last_rows.lower_kernel(kernel, X).tril(), kernel(X).tril(), rtol=1e-12, atol=1e-14)


def test_predictions_with_many_neighbours_are_those_of_the_whole_matrix(monkeypatch):
    given = inputs(4 * 70, 3).reshape(4, 70, 3)
    real = torch.ones(4, 70, dtype=torch.bool)
    real[1, 50:] = False
    some = Neighbours(given, inputs(4 * 70, 1, 1).reshape(4, 70), real)
    theta = Parameters.of(1.3 * distgp.Matern32([0.6, 0.9, 1.4]), 0.05)
    out = neighborhoods.conditional(theta, inputs(4, 3, 5), None, some)
    monkeypatch.setattr(last_rows, "TILE", 1000)
    whole = neighborhoods.conditional(theta, inputs(4, 3, 5), None, some)
    close(out.mean, whole.mean, rtol=1e-9)
    close(out.variance, whole.variance, rtol=1e-9)


@pytest.mark.parametrize("k", [9, 70])
@pytest.mark.parametrize("own_noise", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_predictions_are_those_of_one_point_after_another(shape, own_noise, k):
    X, x = inputs(5 * k, 3).reshape(5, k, 3), inputs(5, 3, 5)
    X[:, 3], X[2, 4] = X[:, 5], x[2]
    real = inputs(5 * k, 1, 2).reshape(5, k) > -0.5
    real[0] = True
    factor = 0.5 + inputs(5 * k, 1, 3).reshape(5, k).abs() if own_noise else None
    given = Neighbours(X, inputs(5 * k, 1, 1).reshape(5, k), real, None, factor)
    theta = Parameters.of(1.3 * shape([0.6, 0.9, 1.4]), 0.05)
    out = neighborhoods.conditional(theta, x, None, given)
    for i, mine in enumerate(real):
        rows, kernel = X[i][mine] / theta.kernel.kernel.lengthscale, theta.kernel.kernel
        point = x[i] / kernel.lengthscale
        noise = 0.05 * (torch.ones(len(rows), dtype=FLOAT) if factor is None else factor[i][mine])
        S = 1.3 * kernel.shape((rows[:, None] - rows).square().sum(-1)) + torch.diag(noise)
        c = 1.3 * kernel.shape((rows - point).square().sum(-1))
        close(out.mean[i], c @ torch.linalg.solve(S, given.y[i][mine]), rtol=1e-10, atol=1e-12)
        close(out.variance[i], 1.3 - c @ torch.linalg.solve(S, c), rtol=1e-10, atol=1e-12)


def test_neighbours_that_are_all_the_same_get_the_jitter_of_the_whole_matrix(monkeypatch):
    X = torch.ones(2, 70, 3, dtype=FLOAT)
    y = torch.ones(2, 70, dtype=FLOAT)
    given = Neighbours(X, y, torch.ones(2, 70, dtype=torch.bool))
    theta = Parameters.of(1.3 * distgp.Matern32([0.6, 0.9, 1.4]), 1e-17)
    found = neighborhoods.conditional(theta, X[:, 0], None, given)
    monkeypatch.setattr(last_rows, "TILE", 1000)
    whole = neighborhoods.conditional(theta, X[:, 0], None, given)
    close(found.mean, whole.mean, rtol=1e-9)
    close(found.mean, torch.ones(2, dtype=FLOAT), rtol=1e-9)
