"""The exact aggregator: the GP of all rows, whatever the division, and what it says of its solve."""

import dataclasses

import numpy as np
import pytest
import torch
from ensembles import Elsewhere
from helpers import close, concrete, example, inputs, shard

import distgp
from distgp._util import machine
from distgp.aggregation import AggregationError, Ensemble, Exact, SolveWarning, solve
from distgp.aggregation.exact import cost_of_solve
from distgp.data import RandomPartition, Shard, split, stack
from distgp.engines import LocalPlacement
from distgp.experts import ExactExpert, NearestExpert, Parameters
from distgp.experts.cost import seconds_for_kernel
from distgp.experts.neighborhoods import OrderedRows
from distgp.experts.preconditioner import Preconditioner
from distgp.kernels import Kernel, Matern52

SOLVED = Exact(variance="nearest", tolerance=1e-9, n_inducing=60, n_conditioning=20, n_neighbors=30)
KERNEL = 1.3 * Matern52([0.6, 0.9])


def rows_with_weights(n, d=2, seed=0):
    data, generator = shard(n, d, seed), torch.Generator().manual_seed(seed)
    weight, noise = (0.5 + torch.rand(n, generator=generator, dtype=data.X.dtype) for _ in "wn")
    return dataclasses.replace(data, weight=weight, noise=noise)


def ensemble(data, theta, expert=None, M=3, workers=1):
    shards = split(data, RandomPartition().assign(data.X.numpy(), M, 0))
    if workers > 1:
        cuts = np.array_split(np.arange(M), workers)
        shards = LocalPlacement(tuple(stack([shards[i] for i in cut]) for cut in cuts))
    return Ensemble.condition(expert or NearestExpert(), theta, shards)


def in_posterior_sd(found, wanted):
    return float(((found.mean - wanted.mean) / wanted.std).abs().max())


@pytest.mark.parametrize("cls", concrete(Kernel), ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("expert", [NearestExpert(), ExactExpert()], ids=lambda e: e.name)
def test_mean_and_variance_are_those_of_the_gp_of_all_rows(cls, expert):
    data, points = rows_with_weights(400), 1.1 * inputs(30, 2, 9)
    theta = Parameters.of(example(cls, 2), 0.03)
    wanted = ExactExpert().condition(theta, data).predict(points)
    made = ensemble(data, theta, expert)
    solved = SOLVED.combine(made)
    assert solved.change < 1e-9
    assert in_posterior_sd(solved.predict(made, points), wanted) < 1e-6
    close(solved.mean(made, points), wanted.mean, rtol=1e-6, atol=1e-7)
    factor = Exact(variance="factor").combine(made).predict(made, points)
    close(factor.mean, wanted.mean, rtol=1e-6, atol=1e-9)
    close(factor.variance, wanted.variance, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("cls", concrete(Kernel), ids=lambda cls: cls.__name__)
def test_the_same_with_three_thousand_rows(cls):
    data, points = rows_with_weights(3_000, 3), inputs(50, 3, 9)
    theta = Parameters.of(example(cls, 3), 0.03)
    wanted = ExactExpert().condition(theta, data).predict(points)
    made = ensemble(data, theta)
    solved = Exact(variance="nearest", tolerance=1e-8).combine(made).predict(made, points)
    assert in_posterior_sd(solved, wanted) < 1e-6
    factor = Exact(variance="factor").combine(made).predict(made, points)
    close(factor.mean, wanted.mean, rtol=1e-6, atol=1e-9)
    close(factor.variance, wanted.variance, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("Z", [None, inputs(12, 2, 3)], ids=["no Z", "Z"])
def test_the_preconditioner_given_all_rows_before_is_the_inverse(Z):
    data = rows_with_weights(60)
    theta = Parameters.of(KERNEL, 0.05, Z)
    rows = OrderedRows(theta, data)
    K = theta.kernel(rows.X) + torch.diag(rows.noise())
    R = inputs(60, 4, 5)
    whole = Preconditioner.of(rows, 60)
    close(whole.applied(R), torch.linalg.solve(K, R), rtol=1e-8, atol=1e-8)
    few = Preconditioner.of(rows, 5)
    P = few.applied(torch.eye(60, dtype=R.dtype))
    close(P, P.mT)
    assert float(torch.linalg.eigvalsh(P).min()) > 0
    close(torch.stack([few.applied(r) for r in R.mT], 1), few.applied(R))


def test_before_the_first_iteration_it_is_the_nearest_rows_answer():
    data, points = shard(200, 2), inputs(20, 2, 9)
    made = ensemble(data, Parameters.of(KERNEL, 0.05))
    with pytest.warns(SolveWarning, match="after 0 iterations"):
        none = dataclasses.replace(SOLVED, n_iter=0, n_inducing=0).combine(made)
    nearest = NearestExpert(SOLVED.n_neighbors, SOLVED.n_conditioning)
    alone = nearest.condition(Parameters.of(KERNEL, 0.05), data).predict(points)
    close(none.predict(made, points).mean, alone.mean)
    close(none.mean(made, points), alone.mean)
    close(none.predict(made, points).variance, alone.variance)


def test_an_early_end_is_said_and_is_nearer_than_without_the_residual():
    data, points = shard(500, 2), inputs(40, 2, 9)
    theta = Parameters.of(1.0 * Matern52([1.5, 1.5]), 1e-4)
    made = ensemble(data, theta)
    early = dataclasses.replace(SOLVED, n_iter=2, n_inducing=0, n_conditioning=5)
    with pytest.warns(SolveWarning, match=r"after 2 iterations .* more than the tolerance 1e-09"):
        found = early.combine(made)
    assert found.iterations == 2 and found.change > 1e-9
    wanted = ExactExpert().condition(theta, data).predict(points)
    without = found._mean(points)
    assert in_posterior_sd(found.predict(made, points), wanted) < 0.2 * float(
        ((without - wanted.mean) / wanted.std).abs().max()
    )


def test_watched_points_have_their_posterior_standard_deviation():
    data = rows_with_weights(400)
    theta = dataclasses.replace(Parameters.of(1.0 * Matern52(0.7), 0.1), inducing=data.X[:100])
    rows = OrderedRows(theta, data)
    preconditioner = Preconditioner.of(rows, 399)
    watched = solve.Watched.among(rows, 400, preconditioner)
    assert (
        len(watched.sd) == 256
    )  # every eighth of them is a row, and a quarter of these inducing inputs
    mean = watched.means(torch.zeros_like(rows.y), rows.y, preconditioner) * watched.sd
    K = theta.kernel(rows.X, rows.X) + torch.diag(rows.noise())
    close(mean, watched.cross @ torch.linalg.solve(K, rows.y), atol=1e-8)
    explained = (watched.cross @ torch.linalg.inv(K) * watched.cross).sum(-1)
    close(watched.sd.square(), 1.0 - explained, rtol=1e-5, atol=2e-7)


@pytest.mark.parametrize("workers", [2, 3])
def test_any_number_of_workers_gives_the_same_bits(workers, monkeypatch):
    monkeypatch.setitem(solve.BLOCK, "cpu", 7 * 90)
    data, points = shard(90, 2), inputs(20, 2, 9)
    theta, exact = Parameters.of(KERNEL, 0.05), dataclasses.replace(SOLVED, n_inducing=10)
    one, several = ensemble(data, theta, M=6), ensemble(data, theta, M=6, workers=workers)
    assert torch.equal(exact.combine(one).alpha, exact.combine(several).alpha)
    away = Ensemble.condition(
        NearestExpert(), theta, Elsewhere([item.rows_held() for item in several.placement.items])
    )
    there = exact.combine(away)
    assert torch.equal(exact.combine(one).alpha, there.alpha)
    close(there.predict(away, points).mean, exact.combine(one).predict(one, points).mean)


@pytest.mark.parametrize("free", [90 * 90 * 8, 10], ids=["float32 is kept", "nothing is kept"])
def test_less_memory_gives_the_same_mean(free, monkeypatch):
    monkeypatch.setattr(solve, "free_bytes", lambda device: free)
    monkeypatch.setitem(solve.BLOCK, "cpu", 7 * 90)
    data, points = shard(90, 2), inputs(20, 2, 9)
    theta = Parameters.of(KERNEL, 0.05)
    made, wanted = ensemble(data, theta), ExactExpert().condition(theta, data).predict(points)
    found = dataclasses.replace(SOLVED, n_inducing=10).combine(made)
    assert in_posterior_sd(found.predict(made, points), wanted) < 1e-6


def test_experts_and_options_that_do_not_fit_are_refused():
    data = shard(40, 2)
    own = Parameters.of(torch.tensor([1.0, 2.0]).double() * Matern52([0.6, 0.9]), 0.05)
    shards = split(data, np.arange(40) % 2)
    with pytest.raises(AggregationError, match="exact needs one prior"):
        Exact().combine(Ensemble.condition(ExactExpert(), own, shards))
    for options in ({"tolerance": -1.0}, {"n_iter": 1.5}, {"variance": "none"}, {"n_inducing": -1}):
        with pytest.raises(ValueError, match=next(iter(options))):
            Exact(**options)


def test_repeated_rows_and_hardly_any_noise_are_solved_or_said(recwarn):
    X = inputs(60, 2, 1).repeat(3, 1)
    data = Shard.of(X, torch.sin(3 * X.sum(-1)))
    theta = Parameters.of(KERNEL, 1e-9)
    made = ensemble(data, theta)
    found = dataclasses.replace(SOLVED, tolerance=0.01).combine(made)
    out = found.predict(made, inputs(20, 2, 9))
    assert bool(torch.isfinite(out.mean).all() & (out.variance > 0).all())
    wanted = ExactExpert().condition(theta, data).predict(inputs(20, 2, 9))
    said = any(issubclass(one.category, SolveWarning) for one in recwarn)
    assert said or float((out.mean - wanted.mean).abs().max()) < 1e-3


def test_the_estimate_grows_with_the_rows_and_shrinks_with_memory(monkeypatch):
    like = torch.zeros(1, dtype=torch.float64)
    small, large = cost_of_solve(2_000, 4, like), cost_of_solve(8_000, 4, like)
    made = seconds_for_kernel(8_000**2, 4, like.device, like.dtype)
    monkeypatch.setattr("distgp.aggregation.exact.ITERATIONS", 0)
    monkeypatch.setattr("distgp.aggregation.exact.SLOW", 0.0)
    assert cost_of_solve(8_000, 4, like).seconds == pytest.approx(
        made
    )  # K is made once where it is kept
    monkeypatch.undo()
    assert large.seconds > 8 * small.seconds and large.bytes > 8 * small.bytes
    monkeypatch.setattr("distgp.aggregation.exact.free_bytes", lambda device: 1)
    made_anew = cost_of_solve(8_000, 4, like)
    assert made_anew.bytes < large.bytes and made_anew.seconds > large.seconds
    assert machine.free_bytes(like.device) is not None


def test_the_estimator_solves_saves_and_loads(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(500, 2))
    y = np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) + 0.1 * rng.normal(size=500)
    options = {"training": None, "kernel": 1.0 * Matern52([1.0, 1.0]), "noise": 0.02}
    whole = distgp.DistributedGPRegressor(expert="exact", n_experts=1, **options).fit(X, y)
    solved = distgp.DistributedGPRegressor(expert="nearest", aggregation=SOLVED, **options)
    solved.fit(X, y).save(tmp_path / "model.safetensors")
    again = distgp.load(tmp_path / "model.safetensors")
    np.testing.assert_allclose(solved.predict(X[:50]), whole.predict(X[:50]), atol=1e-6)
    for one, other in zip(
        solved.predict(X[:50], return_std=True), again.predict(X[:50], return_std=True), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    assert "conjugate gradients" in str(solved.summary())
    assert again.model_.targets[0].combined.iterations > 0


def test_a_verbose_fit_shows_the_iterations(capsys):
    X, y = inputs(300, 2, 1).numpy(), shard(300, 2).y.numpy()
    options = {"expert": "nearest", "training": None, "aggregation": SOLVED}
    quiet = distgp.DistributedGPRegressor(**options).fit(X, y)
    assert "solving" not in capsys.readouterr().err
    told = distgp.DistributedGPRegressor(verbose=True, **options).fit(X, y)
    assert "posterior standard deviations" in capsys.readouterr().err
    assert not told.aggregation_.verbose and quiet.aggregation_ == told.aggregation_
