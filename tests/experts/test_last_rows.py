"""The likelihood of the last rows of sets, and its derivatives by hand, against one set after another."""

import math

import pytest
import torch
from helpers import FLOAT, close, inputs

import distgp
from distgp.experts import Parameters, last_rows, neighborhoods
from distgp.experts.neighborhoods import Neighbours
from distgp.kernels.shapes import at_least_normal_

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


@pytest.mark.parametrize("own_noise", [False, True])
@pytest.mark.parametrize("d", [3, 20])
def test_sets_that_are_worked_on_a_few_at_a_time_are_all_counted(monkeypatch, own_noise, d):
    """Narrow rows and wide ones, whose distances are added up in another order."""
    given, found = sets(own_noise, d), []
    for at_once in (2**18, 2 * 9 * max(9, d)):  # all seven, or two, two, two and one
        monkeypatch.setattr(last_rows, "AT_ONCE", at_once)
        theta, values = theta_at(distgp.Matern52, torch.linspace(2.0, 3.0, d).tolist())
        value = neighborhoods.negative_log_likelihood(theta, given)
        found.append([value, *torch.autograd.grad(value, values)])
    theta, values = theta_at(distgp.Matern52, torch.linspace(2.0, 3.0, d).tolist())
    value = naive(theta, given)
    for whole, parts, wanted in zip(
        *found, [value, *torch.autograd.grad(value, values)], strict=True
    ):
        close(parts, whole, rtol=1e-11, atol=1e-12)
        close(parts, wanted, rtol=1e-8, atol=1e-9)


def test_a_later_set_that_is_too_far_sends_all_of_them_to_the_kernel(monkeypatch):
    monkeypatch.setattr(last_rows, "AT_ONCE", 2 * 9 * 9)
    given = sets()
    given.X[6, :5] += 1e6
    theta, values = theta_at(distgp.Matern52, [0.6, 0.9, 1.4])
    assert last_rows.of_last_rows(theta.kernel.kernel, values[1], values[2], given) is None
    close(neighborhoods.negative_log_likelihood(theta, given), naive(theta, given), rtol=1e-8)


@pytest.mark.parametrize("variance", [1e-120, 1e120])
def test_the_units_of_the_variance_hold_at_extremes(variance):
    """With targets of its scale and a noise that is a part of it, nothing but log v changes."""
    given, found = sets(), []
    for v in (1.0, variance):
        theta, _ = theta_at(distgp.Matern32, [0.6, 0.9, 1.4])
        values = [torch.tensor(x, dtype=FLOAT, requires_grad=True) for x in (v, 0.1 * v)]
        theta = Parameters(distgp.kernels.Scale(theta.kernel.kernel, values[0]), values[1])
        value = neighborhoods.negative_log_likelihood(theta, given._replace(y=given.y * v**0.5))
        slopes = torch.autograd.grad(value, values)
        found.append((value - 0.5 * 7 * math.log(v), *(slope * v for slope in slopes)))
    for one, other in zip(*found, strict=True):
        close(one, other, rtol=1e-10)


@pytest.mark.parametrize("others", [False, True], ids=["here", "on other processors"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_shapes_in_place_are_those_of_the_formula_where_rows_are_equal_too(
    monkeypatch, shape, dtype, others
):
    if others:
        monkeypatch.setattr("distgp.linalg.lapack.faster_here", lambda: False)
    square = torch.tensor([[0.0, 1e-30, 1e-3, 0.7, 9.0, 300.0]], dtype=dtype)
    kernel, found = shape(1.0), at_least_normal_(square.clone())
    slope = torch.empty_like(found)
    kernel.shape_(found, slope)
    alone = at_least_normal_(square.clone())
    kernel.shape_(alone, None)
    x = square.double().requires_grad_()
    wanted = kernel.shape(x)
    (steep,) = torch.autograd.grad(wanted.sum(), x)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    close(found.double(), wanted, rtol=tolerance, atol=1e-30)
    assert torch.equal(found, alone)
    if kernel.proportional is None and shape is not distgp.Matern12:  # that has none at 0
        steep[:, :2] = kernel.steepness  # where autograd goes through a root of 0
        close(kernel.steepness * slope.double(), steep, rtol=tolerance, atol=1e-30)
