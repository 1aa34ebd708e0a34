"""Nearest experts: exact where nothing is left out, and as the formulas say where something is."""

import math

import pytest
import torch
from helpers import FLOAT, close, finite_differences, inputs, shard, value_and_gradient

import distgp
from distgp.data import Shard, stack
from distgp.data.shard import row_priority
from distgp.experts import ExactExpert, NearestExpert, Parameters, base
from distgp.experts.neighborhoods import ORDER_SEED, OrderedRows, Whitened
from distgp.training import Layout, Objective, nearest

KERNELS = [
    1.3 * distgp.Matern52([0.6, 0.9]),
    0.7 * distgp.RBF([0.5, 0.8]) + distgp.Linear([0.3, 0.2]),
    distgp.Linear([1.0, 0.5]) + distgp.Constant(0.4),
]


START = Parameters.of(KERNELS[0], 0.05)


def naive(theta, data, X, k, k_sums):
    """Section by section: order, neighbours by sorting, conditionals one by one, in a loop."""
    kernel, noise = theta.kernel, float(theta.noise)
    order = row_priority(data.rows, ORDER_SEED).argsort()
    rows, y = data.X[order], data.y[order]
    Z = theta.inducing
    L = torch.linalg.cholesky(kernel(Z) + 1e-12 * torch.eye(len(Z), dtype=FLOAT))
    v = lambda A: torch.linalg.solve(L, kernel(Z, A)).mT  # noqa: E731
    r = lambda A, B: kernel(A, B) - v(A) @ v(B).mT  # noqa: E731
    scale = kernel.parameters()["kernel.lengthscale"]

    def nearest(x, among, count):
        return ((rows[:among] - x) / scale).norm(dim=-1).argsort()[:count]

    B, b = torch.eye(len(Z), dtype=FLOAT), torch.zeros(len(Z), dtype=FLOAT)
    nll = 0.5 * len(y) * math.log(2 * math.pi)
    for i in range(len(y)):
        C, x = nearest(rows[i], i, k_sums), rows[i : i + 1]
        s2, u, t = r(x, x)[0, 0] + noise, v(x)[0], y[i]
        if i:
            S = r(rows[C], rows[C]) + noise * torch.eye(len(C), dtype=FLOAT)
            a = torch.linalg.solve(S, r(rows[C], x))[:, 0]
            s2 = s2 - a @ r(rows[C], x)[:, 0]
            u, t = u - v(rows[C]).mT @ a, t - a @ y[C]
        s = s2.sqrt()
        u, t = u / s, t / s
        B, b = B + torch.outer(u, u), b + u * t
        nll = nll + 0.5 * t**2 + s.log()
    nll = nll - 0.5 * b @ torch.linalg.solve(B, b) + 0.5 * torch.logdet(B)
    means, variances = [], []
    for x in X:
        C, x = nearest(x, len(rows), k), x[None]
        S = r(rows[C], rows[C]) + noise * torch.eye(len(C), dtype=FLOAT)
        a = torch.linalg.solve(S, r(rows[C], x))[:, 0]
        h = v(x)[0] - v(rows[C]).mT @ a
        means.append(a @ y[C] + h @ torch.linalg.solve(B, b))
        local = r(x, x)[0, 0] - a @ r(rows[C], x)[:, 0]
        variances.append(local + h @ torch.linalg.solve(B, h))
    return nll, torch.stack(means), torch.stack(variances)


def test_predictions_and_objective_equal_a_naive_loop():
    data, X = shard(40, 2), inputs(6, 2, 9)
    theta = Parameters.of(KERNELS[0], 0.05, inputs(5, 2, 3))
    expert = NearestExpert(n_neighbors=7, n_conditioning=4)
    nll, mean, variance = naive(theta, data, X, 7, 4)
    out = expert.condition(theta, data).predict(X)
    close(out.mean, mean, rtol=1e-8)
    close(out.variance, variance, rtol=1e-8)
    close(expert.objective(theta, data), nll, rtol=1e-8)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("Z", [None, inputs(6, 2, 3)], ids=["no Z", "Z"])
def test_with_all_rows_as_neighbours_it_is_the_exact_gp(kernel, Z):
    data, X = shard(50, 2), 1.3 * inputs(9, 2, 9)
    theta, exact = Parameters.of(kernel, 0.05, Z), Parameters.of(kernel, 0.05)
    expert = NearestExpert(50, 50)
    full = ExactExpert().condition(exact, data).predict(X)
    out = expert.condition(theta, data).predict(X)
    close(out.mean, full.mean, rtol=1e-7, atol=1e-9)
    close(out.variance, full.variance, rtol=1e-6, atol=1e-9)
    close(expert.objective(theta, data), ExactExpert().objective(exact, data), rtol=1e-8)


@pytest.mark.parametrize("k", [1, 5])
def test_with_all_rows_as_inducing_inputs_it_is_the_exact_gp(k):
    data, X = shard(40, 2), inputs(9, 2, 9)
    theta = Parameters.of(KERNELS[0], 0.05, data.X.clone())
    full = ExactExpert().condition(Parameters.of(KERNELS[0], 0.05), data).predict(X)
    out = NearestExpert(k, k).condition(theta, data).predict(X)
    close(out.mean, full.mean, rtol=1e-7, atol=1e-8)
    close(out.variance, full.variance, rtol=1e-6, atol=1e-8)


def test_gradients_equal_finite_differences():
    data, expert = shard(30, 2), NearestExpert(6, 6)
    theta = Parameters.of(KERNELS[0], 0.05, inputs(4, 2, 3))
    _, gradient = value_and_gradient(lambda p: expert.objective(p, data), theta)
    for name, expected in finite_differences(lambda p: expert.objective(p, data), theta).items():
        close(gradient[name], expected, rtol=1e-5, atol=1e-6)


def test_the_derivative_written_by_hand_is_autograds():
    A = inputs(12, 4).reshape(3, 4, 4)
    S = (A @ A.mT + torch.eye(4, dtype=FLOAT)).requires_grad_()
    Y = inputs(24, 1, 2).reshape(3, 4, 2).requires_grad_()

    def symmetric(S, Y):
        return Whitened.apply(0.5 * (S + S.mT), Y)

    assert torch.autograd.gradcheck(symmetric, (S, Y))


def test_a_batch_of_shards_with_padding_is_one_by_one():
    shards = [shard(n, 2, seed) for seed, n in enumerate((20, 9, 33))]
    theta, expert = Parameters.of(KERNELS[0], 0.05, inputs(5, 2, 3)), NearestExpert(8, 6)
    batch, X = stack(shards), inputs(7, 2, 4)
    together = expert.condition(theta, batch).predict(X)
    values = expert.objective(theta, batch)
    for i, one in enumerate(shards):
        alone = expert.condition(theta, one).predict(X)
        close(together.mean[i], alone.mean)
        close(together.variance[i], alone.variance)
        close(values[i], expert.objective(theta, one))


@pytest.mark.parametrize(
    "X",
    [
        torch.zeros(30, 2, dtype=FLOAT),
        inputs(3, 2).repeat(10, 1),
        torch.cat([inputs(30, 1), torch.ones(30, 1, dtype=FLOAT)], -1),
        torch.nn.functional.one_hot(torch.arange(30) % 2, 2).to(FLOAT),
    ],
    ids=["one place", "duplicates", "constant column", "one-hot"],
)
def test_hard_inputs_give_finite_numbers(X):
    data = Shard.of(X, torch.sin(torch.arange(30, dtype=FLOAT)))
    for Z in (None, X[:2]):
        theta = Parameters.of(KERNELS[0], 0.05, Z)
        out = NearestExpert(50, 10).condition(theta, data).predict(X + 0.1)
        assert bool(torch.isfinite(out.mean).all()) and bool((out.variance > 0).all())


def test_far_away_it_is_the_prior():
    data, X = shard(40, 2), torch.full((2, 2), 500.0, dtype=FLOAT)
    for Z in (None, inputs(5, 2, 3)):
        out = NearestExpert(8, 8).condition(Parameters.of(KERNELS[0], 0.05, Z), data).predict(X)
        close(out.mean, torch.zeros(2, dtype=FLOAT), atol=1e-9)
        close(out.variance, torch.full((2,), 1.3, dtype=FLOAT))


def test_the_covariance_between_points_is_the_exact_gps_where_nothing_is_left_out():
    data, X = shard(40, 2), inputs(8, 2, 5)
    theta = Parameters.of(KERNELS[0], 0.05, inputs(5, 2, 3))
    found = NearestExpert(48, 40).condition(theta, data).covariance(X)
    full = ExactExpert().condition(Parameters.of(KERNELS[0], 0.05), data).covariance(X)
    close(found, full, rtol=1e-6, atol=1e-7)


def test_numbers_of_neighbours_are_checked():
    with pytest.raises(ValueError, match="n_neighbors must be at least 1, got 0"):
        NearestExpert(0)


def test_few_targets_are_work_for_several_threads(monkeypatch):
    parts, on_threads = [], nearest.on_threads
    monkeypatch.setattr(
        nearest, "on_threads", lambda f, items: (parts.append(len(items)), on_threads(f, items))[1]
    )
    data = shard(300, 2)
    objective = Objective.of(NearestExpert(30, 20), Layout.of(START))
    rows = torch.arange(300).reshape(60, 5)
    real = torch.ones(60, 5, dtype=torch.bool)
    sets = nearest.Neighbourhoods(data.X[rows], data.y[rows], real, None, data.take(rows[:, -1]))
    nearest.evaluate(objective, objective.layout.pack(START), sets)
    assert parts == [4]


def test_threads_change_nothing():
    data, X = shard(300, 2), inputs(200, 2, 5)
    theta, expert = Parameters.of(KERNELS[0], 0.05, inputs(8, 2, 3)), NearestExpert(30, 20)
    one = expert.condition(theta, data).predict(X)
    objective = Objective.of(expert, Layout.of(START))
    start = objective.layout.pack(START)
    rows = torch.arange(300).reshape(60, 5)
    real = torch.ones(60, 5, dtype=torch.bool)
    sets = nearest.Neighbourhoods(data.X[rows], data.y[rows], real, None, data.take(rows[:, -1]))
    value, gradient = nearest.evaluate(objective, start, sets)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(base.CHUNK_ENTRIES, "cpu", 2**14)
            two = expert.condition(theta, data).predict(X)
            again = nearest.evaluate(objective, start, sets)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    close(two.mean, one.mean)
    close(two.variance, one.variance)
    close(again[0], value)
    close(again[1], gradient)


def test_wide_rows_are_gathered_for_few_points_at_a_time():
    theta = Parameters.of(distgp.RBF([1.0] * 300), 0.05)
    rows = OrderedRows(theta, Shard.of(inputs(90, 300), inputs(90, 1)[:, 0]))
    assert 1 <= rows.points_at_once(64) * 64 * 300 <= base.CHUNK_ENTRIES["cpu"] // 2
