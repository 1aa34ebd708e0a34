"""Refinement of θ: rows left out, bounds lifted where it pays, and the exact GP taken at once."""

import dataclasses
import math
import warnings

import numpy as np
import pytest
import torch
from helpers import close, inputs, make_data, shard

import distgp
from distgp import DistributedGPRegressor
from distgp.data import Shard, stack
from distgp.data.shard import concatenate, placed, sizes
from distgp.engines import LocalPlacement, travels
from distgp.experts import ExactExpert, NearestExpert, Parameters
from distgp.experts.exact import MOST_POLISH
from distgp.kernels import Matern52
from distgp.likelihoods import noise_of_rows
from distgp.plan import resolve
from distgp.selection import candidates
from distgp.training import Fact, NearestRows, learning, objective_value, refinement
from distgp.training.curvature import Curvature
from distgp.training.refinement import (
    Limits,
    Score,
    each_left_out,
    from_nearest_others,
    left_out,
    merged,
)

THETA = Parameters.of(1.3 * Matern52([0.6, 0.9]), 0.05)
pytestmark = pytest.mark.filterwarnings("ignore::distgp.diagnostics.findings.BoundWarning")


@pytest.fixture
def few_are_many(monkeypatch):
    """Ways to fit are taken at once from 100 rows on."""
    monkeypatch.setattr("distgp.selection.EXACT_ALONE", 100)
    monkeypatch.setattr(candidates, "EXACT_ALONE", 100)


@pytest.fixture
def few_are_refined(monkeypatch):
    """Training is refined from 50 rows on."""
    monkeypatch.setattr("distgp.plan.LEAST_MEASURED", 50)


def with_noise(n, seed=0):
    data, generator = shard(n, 2, seed), torch.Generator().manual_seed(seed)
    weight, noise = (0.5 + torch.rand(n, generator=generator, dtype=data.X.dtype) for _ in "wn")
    return dataclasses.replace(data, weight=weight, noise=noise)


@pytest.mark.parametrize("variance", [1e-9, 1e6, 1e9])
def test_the_unit_of_noise_variances_changes_no_prediction(variance):
    """Limits of the noise are in units of the targets' variance, of which it is a factor of the rows'."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    y, P = np.sin(X[:, 0]) + 0.1 * rng.normal(size=150), rng.normal(size=(20, 2))
    gp = DistributedGPRegressor("exact", 1).fit(X, y, noise_variance=np.ones(150))
    other = DistributedGPRegressor("exact", 1).fit(X, y, noise_variance=np.full(150, variance))
    close(other.predict(P), gp.predict(P), rtol=0, atol=2e-3)
    close(other.noise_ * variance / gp.noise_, 1.0, rtol=1e-2)


def test_the_floor_of_the_noise_is_one_that_its_dtype_can_hold():
    rows = placed([shard(50, 2, 0)])
    floors = [
        Limits.of({}, {}, 1e-4, rows, dtype).free["noise"][0]
        / Limits.of({}, {}, 1.0, rows, dtype).now["noise"][0]
        for dtype in (torch.float64, torch.float32)
    ]
    close(floors, [1e-8, 100 * torch.finfo(torch.float32).eps])


def test_one_row_left_out_shows_no_error():
    one, other = (Score(torch.tensor([value])) for value in (1.0, 2.0))
    assert not other.beats(one, 2.0)


@pytest.mark.parametrize("n", [30, 1_100], ids=["small", "large"])
def test_leaving_out_a_row_is_fitting_without_it(n):
    data = with_noise(n)
    out = ExactExpert().leave_one_out(THETA, data)
    for i in (0, 7, n - 1):
        others = torch.arange(n) != i
        one = ExactExpert().condition(THETA, data.take(others)).predict(data.X[i : i + 1])
        noise = THETA.noise * data.noise[i] / data.weight[i]
        close(out.mean[i], one.mean[0], rtol=1e-7, atol=1e-7)
        close(out.variance[i], one.variance[0] + noise, rtol=1e-7, atol=1e-9)
    normal = torch.distributions.Normal(out.mean, out.std)
    close(out.log_density(data.y), normal.log_prob(data.y))


def test_rows_with_the_same_inputs_are_left_out_together():
    data = with_noise(40)
    twice = data.take(torch.cat([torch.arange(40), torch.arange(10)]))
    twice = dataclasses.replace(twice, y=twice.y + 0.01 * torch.arange(50), rows=torch.arange(50))
    one, group = merged(twice)
    assert one.n == 40 and merged(data)[0] is data
    assert (one.X[group] == twice.X).all() and merged(data)[1].tolist() == list(range(40))
    close(
        ExactExpert().condition(THETA, one).predict(inputs(9, 2, 5)).mean,
        ExactExpert().condition(THETA, twice).predict(inputs(9, 2, 5)).mean,
    )
    rows, found = left_out(stack([twice]), ExactExpert(), THETA)
    i = int((rows.rows == 3).nonzero())
    without = twice.take((data.X[3] != twice.X).any(-1))
    assert without.n == 48
    wanted = ExactExpert().condition(THETA, without).predict(data.X[3:4])
    close(found.mean[i], wanted.mean[0], rtol=1e-7, atol=1e-7)
    each, alone = each_left_out(stack([twice]), ExactExpert(), THETA)
    assert each.n == 50 and (each.y == twice.y).all()
    for row in (3, 43):  # the observation of a row, and that of its copy
        at = without.to(dtype=torch.float64)
        f = ExactExpert().condition(THETA, at).predict(data.X[3:4])
        close(alone.mean[row], f.mean[0], rtol=1e-7, atol=1e-7)
        own = noise_of_rows(twice, THETA.noise)[row]
        close(alone.variance[row], f.variance[0] + own, rtol=1e-7, atol=1e-7)
    assert left_out(stack([twice]), NearestExpert(), THETA) == (None, None)
    assert each_left_out(stack([twice]), NearestExpert(), THETA) == (None, None)


@pytest.mark.parametrize("workers", [1, 2])
def test_rows_are_predicted_from_their_nearest_others(workers):
    data = with_noise(90)
    copies = dataclasses.replace(data.take(torch.arange(5)), rows=torch.arange(90, 95))
    parts = [data.take(slice(0, 40)), data.take(slice(40, 90)), copies]
    shards = placed(parts)
    if workers == 2:
        shards = LocalPlacement((stack(parts[:1]), stack(parts[1:])))
    rows, found = from_nearest_others(THETA, shards, 0)
    for i in (0, 11):
        others = concatenate([data, copies])
        others = others.take((rows.X[i] != others.X).any(-1))
        wanted = ExactExpert().condition(THETA, others).predict(rows.X[i : i + 1])
        noise = THETA.noise * rows.noise[i] / rows.weight[i]
        close(found.mean[i], wanted.mean[0], rtol=1e-6, atol=1e-6)
        close(found.variance[i], wanted.variance[0] + noise, rtol=1e-6, atol=1e-8)


def test_a_score_must_be_better_by_standard_errors():
    noise = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    base = Score(torch.zeros(400, dtype=torch.float64))
    clear, doubtful = Score(0.5 + noise), Score(0.05 + 0.0 * noise + (noise - noise.mean()))
    assert clear.beats(base, 2.0) and not doubtful.beats(base, 2.0) and doubtful.beats(base, 0.0)
    assert not Score(noise * torch.nan).beats(base, 0.0)


@pytest.mark.parametrize(
    ("lost", "spread", "beats"), [(0.3, 1.0, True), (0.7, 1.0, False), (0.7, 9.0, True)]
)
def test_rows_left_out_must_not_clearly_lose_more_than_others_gain(lost, spread, beats):
    noise = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    zero, noise = torch.zeros_like(noise), (noise - noise.mean()) / noise.std()
    new, old = Score(zero + 0.5, spread * noise - lost), Score(zero, zero)
    assert new.beats(old, 2.0) == beats
    assert new._replace(left_out=None).beats(old, 2.0)


@pytest.mark.parametrize(("worst", "safe"), [(0.0, True), (-30.0, True), (-130.0, False)])
def test_a_gain_on_average_is_not_taken_where_densities_scatter_far_more(worst, safe):
    """One row of 400 that is predicted far worse may stand for many that were not drawn."""
    noise = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gain = torch.full_like(noise, 0.5)
    gain[0] = worst
    old, new = Score(noise), Score(noise + gain)
    assert new.beats(old, 0.0) and new.safely_beats(old) is safe
    assert not old.safely_beats(new)


@pytest.mark.parametrize("noise", [0.1, 0.0])
def test_noise_that_is_next_to_none_is_raised_where_rows_held_out_allow(noise):
    told = []
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.uniform(size=(300, 1)))
    y = torch.sin(5 * X[:, 0]) + torch.tensor(noise * rng.normal(size=300))
    shards = placed([Shard.of(X, y)])
    theta = Parameters.of(1.0 * Matern52([0.5]), 1e-8)

    def scored(theta):
        told.append(theta)
        return refinement.score(theta, shards, 0)

    found = refinement.with_noise_allowed(theta, shards, scored)
    if noise:
        assert 0.003 < float(found.noise) < 0.03
    else:
        assert found is theta and len(told) == 2, (
            "it is over with the first level that is clearly worse"
        )
    enough = dataclasses.replace(theta, noise=torch.full_like(theta.noise, 1e-3))
    assert refinement.with_noise_allowed(enough, shards, scored) is enough


def test_noise_is_raised_for_a_gain_on_average():
    """Predictions gain 0.01 at a noise of 1e-3, and the standard error of that is 0.1."""
    shards = placed([Shard.of(torch.zeros(100, 1).double(), torch.arange(100).double())])
    theta = Parameters.of(1.0 * Matern52([0.5]), 1e-8 * 833.25)  # of the targets' variance
    spread = torch.arange(100).double() % 2 - 0.5

    def scored(one):
        level = float(one.noise / theta.noise)
        return Score(-0.01 * abs(math.log10(level) - 5.0) + 2.0 * spread * (level > 1.0))

    found = refinement.with_noise_allowed(theta, shards, scored)
    assert float(found.noise / theta.noise) == pytest.approx(1e5)


def test_copies_of_rows_do_not_say_that_there_is_no_noise(few_are_refined):
    """Of a rough function hardly more is known than its copies; a row to predict may be unlike its copy."""
    rng = np.random.default_rng(0)
    X, noise = rng.uniform(size=(240, 3)), rng.normal(size=240)
    y = np.sin(9 * X).sum(1) + 0.3 * noise
    X, y = np.concatenate([X, X[:60]]), np.concatenate([y, y[:60]])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
        held = DistributedGPRegressor(expert="exact", n_experts=1, fixed=["noise"], noise=1e-8)
        held.fit(X, y)
    assert gp.noise_ > 1e-3 and held.noise_ == pytest.approx(1e-8)


@pytest.mark.parametrize("objects", [False, True])
def test_a_part_of_the_rows_may_object_to_what_nearest_rows_have_found(
    few_are_refined, monkeypatch, objects
):
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 100)
    monkeypatch.setattr(ExactExpert, "first_rows", 40)
    sizes, densities = [], learning.left_out_densities

    def worse_each_time(batch, expert, theta):
        sizes.append(batch.n)
        return densities(batch, expert, theta) - (1e3 * len(sizes) if objects else 0.0)

    monkeypatch.setattr(learning, "left_out_densities", worse_each_time)
    told = noted_training(monkeypatch)
    X, y = make_data(150, noise=0.0)
    DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    polish = next(options for algorithm, options, _ in told[-2:] if algorithm.name == "fact")
    assert sizes[:2] == [80, 80]
    assert (polish["bounds"]["noise"][0] < 1e-5) != objects  # the floor is lifted


def test_bounds_are_lifted_where_they_stop_training():
    now = {"noise": (0.05, math.inf), "kernel.variance": (0.1, 1.3), "other": (0.0, 1.0)}
    free = {"noise": (1e-8, math.inf), "kernel.variance": (0.1, 1e3)}
    free |= {"kernel.kernel.lengthscale": (0.1, 1e6)}
    limits = Limits(now, free)
    assert limits.lifted("", THETA) == limits
    assert limits.lifted("cap", THETA).now == now | {"kernel.variance": (0.1, 1e3)}
    floor = limits.lifted("floor", THETA).now
    assert floor["noise"] == (1e-8, math.inf) and floor["kernel.variance"] == (0.1, 1.3)
    assert floor["kernel.kernel.lengthscale"] == (0.1, 1e6)
    inside = dataclasses.replace(THETA, noise=torch.tensor(0.2).double())
    assert limits.lifted("floor", inside) == limits
    assert Limits(now, {}).lifted("floor", THETA).now == now


def test_lengthscales_that_left_the_kernel_come_back():
    start = Parameters.of(1.0 * Matern52([1.0, 1.0, 1.0]), 0.1)
    lost = Parameters.of(0.7 * Matern52([0.5, 200.0, 8.0]), 0.1)
    back = refinement.back_at_start(lost, start).kernel.parameters()
    assert back["kernel.lengthscale"].tolist() == [0.5, 1.0, 8.0] and float(back["variance"]) == 0.7


def nearest(X, y, **options):
    return DistributedGPRegressor(expert="nearest", n_inducing=0, **options).fit(X, y)


@pytest.mark.filterwarnings("ignore::distgp.selection.RepeatsWarning")
def test_the_floor_of_the_noise_is_lifted_for_functions_but_not_for_copies(few_are_refined):
    X, y = make_data(120, noise=0.0)
    assert float(nearest(X, y).noise_) < 1e-5
    X, y = make_data(50, noise=0.3)
    three = nearest(np.repeat(X, 3, 0), np.repeat(y, 3))
    assert float(three.noise_) >= 0.99 * NearestRows.least_noise  # of a standardised target


def test_nothing_is_refined_that_the_user_has_said(few_are_refined):
    X, y = make_data(100, noise=0.0)
    for given in (
        {"bounds": {"noise": (1e-4, 10.0)}},
        {"training": NearestRows()},
        {"validation": "last"},
        {"n_iter": 99},
    ):
        assert float(nearest(X, y, **given).noise_) >= 0.99e-4, given


def test_a_refinement_that_does_not_pay_is_not_kept(few_are_refined, monkeypatch):
    X, y = make_data(100)
    monkeypatch.setattr(Score, "beats", lambda *given: False)
    plain = nearest(X, y, training=NearestRows())
    tried = nearest(X, y)
    assert tried.training_.history[-1].objective == plain.training_.history[-1].objective
    np.testing.assert_array_equal(tried.predict(X), plain.predict(X))


def test_one_exact_expert_is_polished_and_freed_of_its_bounds(few_are_refined, monkeypatch):
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 160)
    told, train = [], learning.train

    def noted(algorithm, expert, theta, shards, **options):
        found = train(algorithm, expert, theta, shards, **options)
        told.append((algorithm.name, options["bounds"], float(theta.noise), found))
        return found

    monkeypatch.setattr(learning, "train", noted)
    X, y = make_data(220, noise=0.05)
    gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    names = [name for name, *_ in told]
    assert names[0] == "nearest" and names[-2:] == ["fact", "fact"]
    polish, last = told[-2:]
    assert 4 <= len(polish[3].history) <= 20 and polish[1]["kernel.variance"][1] < 1e3
    assert last[1]["kernel.variance"][1] == pytest.approx(1e3)
    assert gp.training_.rows == 220 and gp.training_.last_stage <= 20


def large_from_50_rows(monkeypatch):
    """Let exact experts of more than 100 rows be large ones, which learn from 50 of them first."""
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 100)
    monkeypatch.setattr(ExactExpert, "first_rows", 50)


def steep():
    """Rows of a steep trend with waves, whose signal the cap would hold down."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(310, 2))
    y = 20 * X[:, 0] + 10 * X[:, 1] ** 2 + np.sin(12 * X[:, 1]) + 0.3 * rng.normal(size=310)
    return X, y


@pytest.mark.parametrize("agree", [True, False])
def test_blocks_tell_where_bounds_may_be_lifted_before_all_rows_are_looked_at(
    few_are_refined, monkeypatch, agree
):
    """The cap of the signal binds for a steep trend; all rows then begin where blocks have ended.

    Rows held out see no difference.
    """
    large_from_50_rows(monkeypatch)
    monkeypatch.setattr(learning, "score", lambda *given: Score(torch.zeros(9)))
    told, train, value = [], learning.train, learning.objective_value

    def noted(algorithm, expert, theta, shards, **options):
        found = train(algorithm, expert, theta, shards, **options)
        told.append((algorithm.name, int(sizes(shards).sum()), theta, found.parameters))
        return found

    def objective(expert, theta, shards, priors=None):
        lifted = float(theta.kernel.parameters()["variance"]) > 1.5
        refuse = not agree and lifted and int(sizes(shards).sum()) == 310
        return math.inf if refuse else value(expert, theta, shards, priors)

    monkeypatch.setattr(learning, "train", noted)
    monkeypatch.setattr(learning, "objective_value", objective)
    DistributedGPRegressor(expert="exact", n_experts=1).fit(*steep())
    of_all = [one for one in told if one[:2] == ("fact", 310)]
    in_blocks = [one for one in told if one[:2] == ("fact", 300)]
    assert len(of_all) == 1, "no polish within bounds and another without"
    assert (of_all[0][2] is in_blocks[-1][3]) == agree
    assert float(of_all[0][3].kernel.parameters()["variance"]) > 1.5


@pytest.mark.parametrize("sure", [True, False])
def test_blocks_lift_bounds_where_rows_held_out_are_sure_and_no_time_is_left_for_all_rows(
    few_are_refined, monkeypatch, sure
):
    large_from_50_rows(monkeypatch)
    monkeypatch.setattr(ExactExpert, "polish_for", lambda *given: 0)
    if not sure:
        monkeypatch.setattr(learning, "score", lambda *given: Score(torch.zeros(9)))
    gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(*steep())
    capped = float(gp.kernel_.variance) / float(np.var(steep()[1])) < 1.5
    assert capped != sure and gp.training_.rows == 300, "θ is that of blocks"


def test_bounds_are_lifted_where_the_likelihood_gains_and_rows_left_out_do_not_object():
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (220, 2))
    y = np.exp(3 * X[:, 0]) * (1 + 0.3 * np.sin(2 * X[:, 1])) + 0.3 * rng.normal(size=220)
    gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    assert (
        float(gp.kernel_.variance) > 10.0
    )  # the cap is 1, the gain of rows left out one standard error


@pytest.mark.parametrize(("worse", "stay"), [(0.05, True), (0.02, False)])
def test_bounds_stay_where_rows_left_out_object(monkeypatch, worse, stay):
    """The standard error of the difference is 0.034."""
    asked = []

    def a_little_worse_each_time(batch, expert, theta):
        asked.append(theta)
        alternating = torch.arange(batch.n) % 2 - 0.5
        return (alternating - worse) * len(asked)

    fake = travels("predictions", theta="parameters")(a_little_worse_each_time)
    monkeypatch.setattr(learning, "left_out_densities", fake)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (220, 2))
    y = np.exp(3 * X[:, 0]) + 0.1 * rng.normal(size=220)
    gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    assert len(asked) == 2 and (float(gp.kernel_.variance) <= 1.0) == stay


def noted_training(monkeypatch):
    """The name, options and start of every training from now on."""
    told, train = [], learning.train

    def noted(algorithm, expert, theta, shards, **options):
        told.append((algorithm, options, theta))
        return train(algorithm, expert, theta, shards, **options)

    monkeypatch.setattr(learning, "train", noted)
    return told


def test_the_polish_begins_where_refinement_has_ended(few_are_refined, monkeypatch):
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 100)
    told = noted_training(monkeypatch)
    X, y = make_data(150, noise=0.0)
    DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    first, polish = told[0], next(one for one in told if one[0].name == "fact")
    floor = first[1]["bounds"]["noise"][0]
    assert polish[1]["bounds"]["noise"][0] < floor  # it was lifted, for a function without noise
    assert float(polish[2].noise) < floor


@pytest.mark.parametrize("few", [True, False])
def test_after_blocks_of_few_of_the_rows_nearest_rows_of_all_come_first(
    few_are_refined, monkeypatch, few
):
    """They begin with all columns in the kernel, and what comes after is tried though they do not pay."""
    large_from_50_rows(monkeypatch)
    # Four blocks of 100 rows would be 1.29 times the rows.
    monkeypatch.setattr(learning, "SEEN", 1.3 if few else 1.28)
    monkeypatch.setattr(learning, "score", lambda *given: Score(torch.zeros(9)))
    told = noted_training(monkeypatch)
    X, y = make_data(310, d=4, noise=0.3)
    DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    steps = [(one[0].n_neighbors, one[2]) for one in told if one[0].name == "nearest"]
    assert [k for k, _ in steps] == ([30, 64] if few else [64])
    first = told[0][2].kernel.parameters()["kernel.lengthscale"]
    starts = [start.kernel.parameters()["kernel.lengthscale"] for _, start in steps]
    lost = [bool((start > refinement.LOST * first).any()) for start in starts]
    assert lost == ([False, True] if few else [True])


def test_a_column_sets_rows_apart_only_where_rows_held_out_mind(monkeypatch):
    """The first column needs its short lengthscale; the second, which few rows have, means nothing."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.uniform(-1, 1, 500), np.arange(500) < 2])
    y = np.sin(60 * X[:, 0]) + 0.05 * rng.normal(size=500)
    shards = placed([Shard.of(torch.tensor(X), torch.tensor(y))])
    start = Parameters.of(1.0 * Matern52([1.4, 1.4]), 0.01)
    theta = Parameters.of(1.0 * Matern52([0.04, 0.004]), 0.0025)
    learner, expert = learning.Learning(Fact(), start), ExactExpert()
    assert [place for _, place in refinement.set_apart(theta, start)] == [0, 1]
    found = learner._together(expert, shards, theta, learner._scored(expert, shards, theta))
    assert found.kernel.parameters()["kernel.lengthscale"].tolist() == [0.04, 1.4]
    monkeypatch.setattr(learning, "MOST_APART", 1)  # the first alone
    assert learner._together(expert, shards, theta, learner._scored(expert, shards, theta)) is theta
    near = Parameters.of(1.0 * Matern52([0.05, 0.05]), 0.0025)
    assert learner._together(expert, shards, near, learner._scored(expert, shards, near)) is near


@pytest.mark.parametrize("joined", [True, False])
def test_nearest_rows_begin_anew_where_columns_are_joined(few_are_refined, monkeypatch, joined):
    large_from_50_rows(monkeypatch)
    monkeypatch.setattr(learning, "SEEN", 0.0)
    monkeypatch.setattr(learning, "score", lambda *given: Score(torch.zeros(9)))
    told, known = noted_training(monkeypatch), []

    def together(self, expert, shards, theta, best):
        if not joined:
            return theta
        known.append(
            refinement.with_lengthscales_back(theta, self.start, [("kernel.lengthscale", 1)])
        )
        return known[0]

    monkeypatch.setattr(learning.Learning, "_together", together)
    DistributedGPRegressor(expert="exact", n_experts=1).fit(*make_data(310, d=2, noise=0.3))
    steps = [(one[0].n_neighbors, one[2]) for one in told if one[0].name == "nearest"]
    assert [k for k, _ in steps] == ([30, 64] if joined else [64])
    if joined:
        lengths = [one.kernel.parameters()["kernel.lengthscale"] for one in (known[0], steps[0][1])]
        close(*lengths)


@pytest.mark.parametrize("worse", [0.1, 0.01, math.nan])
def test_what_all_rows_have_found_is_left_where_rows_held_out_are_clearly_worse(
    few_are_refined, monkeypatch, worse
):
    """The standard error of the difference is 0.018. A fit that goes on from this one is judged too."""
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 160)
    told, train = [], learning.train
    spread = torch.linspace(-1.0, 1.0, 1_000, dtype=torch.float64)

    def noted(algorithm, expert, theta, shards, **options):
        found = train(algorithm, expert, theta, shards, **options)
        told.append((algorithm.name, theta, found.parameters))
        return found

    def scored(theta, *given):
        by_all_rows = any(name == "fact" and end is theta for name, _, end in told)
        return Score(spread - worse if by_all_rows else torch.zeros_like(spread))

    monkeypatch.setattr(learning, "train", noted)
    monkeypatch.setattr(learning, "score", scored)
    gp = DistributedGPRegressor(expert="exact", n_experts=1, warm_start=True)
    data = make_data(220, noise=0.05)
    for fits in (1, 2):
        told.clear()
        theta = gp.fit(*data).training_.parameters
        of_all = [one for one in told if one[0] == "fact"]
        assert len(of_all) == 3 - fits and all(one[2] is not one[1] for one in of_all)
        assert theta is (of_all[-1][2] if worse == 0.01 else of_all[0][1])


def test_more_neighbours_begin_with_lengthscales_that_have_not_run_away(monkeypatch):
    told = noted_training(monkeypatch)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 3))  # the last two columns mean nothing
    nearest(X, np.sin(4 * X[:, 0]) + 0.01 * rng.normal(size=400))
    first = told[0][2].kernel.parameters()["kernel.lengthscale"]
    more = [start for algorithm, _, start in told[1:] if algorithm.n_neighbors > 30]
    assert more
    for start in more:
        moved = start.kernel.parameters()["kernel.lengthscale"] / first
        assert float(moved.max()) <= refinement.LOST


@pytest.mark.parametrize(("gain", "tried"), [(-0.1, [64]), (0.01, [64]), (0.2, [64, 128])])
def test_still_more_neighbours_are_tried_where_the_last_ones_were_clearly_worth_it(
    gain, tried, few_are_refined, monkeypatch
):
    """Standard errors of the mean are 0.01 here, and the floor of the noise is not lifted first."""
    spread = torch.linspace(-1.0, 1.0, 3_000, dtype=torch.float64)
    first, later = Score(torch.zeros_like(spread)), Score(gain + spread)
    told, scores = noted_training(monkeypatch), iter([first, later, later, later])
    monkeypatch.setattr(learning, "score", lambda *given: next(scores))
    nearest(*make_data(150, noise=0.3))
    numbers = [algorithm.n_neighbors for algorithm, _, _ in told]
    assert [k for k in dict.fromkeys(numbers) if k > 30] == tried


@pytest.mark.parametrize(("worst", "kept"), [(0.0, True), (-250.0, False)])
def test_more_neighbours_that_predict_a_row_far_worse_are_not_kept(
    worst, kept, few_are_refined, monkeypatch
):
    """The gain is 0.1 for all rows but one of 3,000; with that one it is 0.02, and doubtful."""
    spread = torch.linspace(-1.0, 1.0, 3_000, dtype=torch.float64)
    gain = torch.full_like(spread, 0.1)
    gain[7] = worst
    scores = iter([Score(spread), *[Score(spread + gain)] * 3])
    monkeypatch.setattr(learning, "score", lambda *given: next(scores))
    ends, train = {}, learning.train

    def noted(algorithm, *given, **options):
        found = train(algorithm, *given, **options)
        ends.setdefault(algorithm.n_neighbors, found)
        return found

    monkeypatch.setattr(learning, "train", noted)
    gp = nearest(*make_data(150, noise=0.3))
    assert float(gain.mean()) > 0.0 and (128 in ends) is kept
    assert gp.training_.parameters is (ends[64] if kept else ends[30]).parameters


def rows_of_training(monkeypatch):
    """The rows, bounds and start of every training from now on."""
    told, train = [], learning.train

    def noted(algorithm, expert, theta, shards, **options):
        told.append((int(sizes(shards).sum()), options["bounds"], theta, algorithm.n_iter))
        return train(algorithm, expert, theta, shards, **options)

    monkeypatch.setattr(learning, "train", noted)
    return told


def test_one_exact_expert_begins_with_a_part_of_its_rows_and_ends_where_all_of_them_lead(
    monkeypatch,
):
    X, y = make_data(320, noise=0.3)
    whole = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    told = rows_of_training(monkeypatch)
    monkeypatch.setattr(ExactExpert, "first_rows", 200)
    gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    assert [rows for rows, *_ in told] == [160, 160, 320]  # half of them, if that is fewer
    assert [rounds for *_, rounds in told] == [50, 25, 50]
    monkeypatch.setattr(ExactExpert, "first_rows", 321)
    told.clear()
    again = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    assert {rows for rows, *_ in told} == {320}
    wanted = whole.training_.objective
    assert gp.training_.objective == pytest.approx(wanted, abs=0.005 * 320)
    assert gp.training_.rows == 320
    assert again.training_.objective == pytest.approx(wanted, rel=1e-9)


def test_training_that_the_user_has_said_looks_at_all_rows(monkeypatch):
    told = rows_of_training(monkeypatch)
    monkeypatch.setattr(ExactExpert, "first_rows", 100)
    X, y = make_data(200, noise=0.3)
    DistributedGPRegressor(expert="exact", n_experts=1, training="fact", n_iter=5).fit(X, y)
    assert [rows for rows, *_ in told] == [200]
    told.clear()
    gp = DistributedGPRegressor(expert="exact", n_experts=1, warm_start=True).fit(X, y)
    assert [rows for rows, *_ in told] == [100, 100, 200]
    gp.fit(X, y)  # begins where the last fit has ended
    assert {rows for rows, *_ in told[3:]} == {200}


@pytest.mark.parametrize("object_", [False, True])
def test_all_rows_have_the_bounds_that_the_part_has_chosen(monkeypatch, object_):
    told = rows_of_training(monkeypatch)
    monkeypatch.setattr(ExactExpert, "first_rows", 100)
    if object_:
        monkeypatch.setattr(Score, "beats", lambda self, other, errors: False)
    X, y = make_data(200, noise=0.0)
    DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    part, free, last = (bounds["noise"][0] for _, bounds, *_ in told)
    assert free < part and last == (part if object_ else free)


def test_many_rows_are_reached_by_doubling_a_part_of_them(monkeypatch):
    told = rows_of_training(monkeypatch)
    monkeypatch.setattr(ExactExpert, "first_rows", 50)
    X, y = make_data(300, noise=0.3)
    DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    assert [rows for rows, *_ in told] == [50, 50, 100, 200, 300]
    assert told[-1][3] == 50  # rounds at most


def test_one_large_exact_expert_learns_in_blocks_and_ends_near_the_likelihood_of_all_rows(
    few_are_refined, monkeypatch
):
    """The rows of the parts double, and those of the blocks are nearly all of them."""
    X, y = make_data(310, noise=0.3)
    whole = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    told = rows_of_training(monkeypatch)
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 100)
    monkeypatch.setattr("distgp.experts.exact.LEAST_POLISH", 1000)
    monkeypatch.setattr(ExactExpert, "first_rows", 50)
    gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    parts = [rows for rows, *_ in told if rows != 310]
    assert [*dict.fromkeys(parts)] == [50, 100, 300]
    assert float(gp.noise_) == pytest.approx(float(whole.noise_), rel=0.3)
    told.clear()
    DistributedGPRegressor(expert="exact", n_experts=1, training="nearest").fit(X, y)
    assert {rows for rows, *_ in told} == {310}, "where the user has said how to train"


def test_many_rounds_given_are_no_way_to_train(few_are_refined, monkeypatch):
    """They limit each stage, and leave out none."""
    X, y = make_data(310, noise=0.3)
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 100)
    monkeypatch.setattr(ExactExpert, "first_rows", 50)
    told = rows_of_training(monkeypatch)
    for rounds in (None, 100, 1000, 99):
        told.clear()
        DistributedGPRegressor(expert="exact", n_experts=1, n_iter=rounds).fit(X, y)
        assert {rows for rows, *_ in told} == ({310} if rounds == 99 else {50, 100, 300, 310}), (
            rounds
        )


@pytest.mark.parametrize("chosen", ["far", "near"])
def test_blocks_of_rows_say_which_of_two_starts_goes_on(few_are_refined, monkeypatch, chosen):
    """A part of the rows may be too small to show that a function is rough: it does not decide."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(310, 1))
    y = np.sin(60 * X[:, 0]) + 0.1 * rng.normal(size=310)
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 100)
    monkeypatch.setattr("distgp.experts.exact.LEAST_POLISH", 1000)
    monkeypatch.setattr(ExactExpert, "first_rows", 50)
    asked, trained, train = [], [], learning.train

    def value(expert, theta, rows, priors):
        asked.append((theta, int(sizes(rows).sum())))
        return 0.0 if (len(asked) == 1) == (chosen == "far") else 10.0

    monkeypatch.setattr(learning, "objective_value", value)
    monkeypatch.setattr(learning, "train", lambda *a, **k: trained.append(a[2]) or train(*a, **k))
    monkeypatch.setattr(learning, "faint", lambda *given: None)
    DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    (far, rows), (near, same) = asked[:2]
    assert rows == same == 300
    assert trained[2] is (far if chosen == "far" else near)


def weak(n):
    """Rows that say little: a small signal in two of five columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 5))
    return X, 0.3 * np.sin(X[:, 0]) + 0.2 * X[:, 1] + rng.normal(size=n)


@pytest.mark.parametrize("first_rows", [None, 300])
def test_training_ends_at_the_optimum_where_noise_is_large(monkeypatch, first_rows):
    monkeypatch.setattr(ExactExpert, "first_rows", first_rows)
    X, y = weak(1_200)
    gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    long = DistributedGPRegressor(expert="exact", n_experts=1, training=Fact(n_iter=300)).fit(X, y)
    assert gp.training_.objective < long.training_.objective + 1.0


@pytest.mark.parametrize("first_rows", [None, 100])
def test_a_faint_signal_is_found(monkeypatch, first_rows):
    """From strong signals training ends where nothing is left, or where the kernel itself is noise."""
    monkeypatch.setattr(ExactExpert, "first_rows", first_rows)
    rng = np.random.default_rng(1)
    X = rng.normal(size=(1_200, 3))
    truth = 0.25 * np.sin(2 * X[:, 0])
    y = truth + rng.normal(size=1_200)
    gp = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    assert np.sqrt(np.mean((gp.predict(X) - truth) ** 2)) < 0.8 * truth.std()


def test_curvature_is_that_of_as_many_rows_as_are_looked_at(few_are_refined, monkeypatch):
    """50, 100 and 3 times 100 rows, then all 310; more neighbours of a fourth and an eighth of them."""
    X, y = make_data(310, noise=0.3)
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 100)
    monkeypatch.setattr(ExactExpert, "first_rows", 50)
    monkeypatch.setattr(refinement.Score, "beats", lambda *given: True)
    told, scale = {}, Curvature.scale

    def noted(self, factor):
        told.setdefault(self, []).append(factor)
        scale(self, factor)

    monkeypatch.setattr(Curvature, "scale", noted)
    DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    blocks, refined = told.values()
    assert blocks == pytest.approx([2.0, 3.0, 310 / 300])
    looked_at = np.cumprod(refined)
    assert len(refined) == 2 and set(looked_at.round()) <= {310, 256} and refined[0] > 1.0


def test_going_on_from_a_fit_that_ended_never_leads_upwards(few_are_refined, monkeypatch):
    """Only the objective of all rows is looked at: nearest rows would lead away from its minimum."""
    X, y = make_data(310, noise=0.3)
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 100)
    monkeypatch.setattr(ExactExpert, "first_rows", 50)
    gp = DistributedGPRegressor(expert="exact", n_experts=1, warm_start=True).fit(X, y)
    before, told = gp.training_.objective, rows_of_training(monkeypatch)
    gp.fit(X, y)
    assert {rows for rows, *_ in told} == {310} and len(told) <= 2
    assert gp.training_.objective <= before + 1e-6
    assert all(round_.objective <= before + 1e-6 for round_ in gp.training_.history)


def test_going_on_from_an_interrupted_fit_takes_the_steps_of_a_whole_one(
    few_are_refined, monkeypatch
):
    X, y = make_data(310, noise=0.3)
    monkeypatch.setattr("distgp.experts.exact.DIRECT_ROWS", 100)
    monkeypatch.setattr(ExactExpert, "first_rows", 50)
    whole = DistributedGPRegressor(expert="exact", n_experts=1).fit(X, y)
    gp = DistributedGPRegressor(expert="exact", n_experts=1, warm_start=True)
    train = learning.train

    def stopped(algorithm, *given, **options):
        if algorithm.name == "nearest":  # after the blocks
            raise KeyboardInterrupt
        return train(algorithm, *given, **options)

    with monkeypatch.context() as patched:
        patched.setattr(learning, "train", stopped)
        with pytest.raises(KeyboardInterrupt):
            gp.fit(X, y)
    told = rows_of_training(monkeypatch)
    gp.fit(X, y)
    assert [*dict.fromkeys(rows for rows, *_ in told)] == [50, 100, 300, 310]
    assert gp.training_.objective == pytest.approx(whole.training_.objective, abs=0.5)


def placed_rows(n, slope):
    """Rows whose second column has a slope, in the units of training."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 2))
    y = np.sin(2 * X[:, 0]) + slope * X[:, 1] + 0.1 * rng.normal(size=n)
    return placed([Shard.of(torch.tensor(X), torch.tensor(y))])


@pytest.mark.parametrize(("slope", "comes_back"), [(0.05, True), (0.0, False)])
@pytest.mark.parametrize("variance", [1.0, 400.0])
def test_lengthscales_that_a_part_of_the_rows_has_lost_come_back_if_they_matter(
    slope, comes_back, variance
):
    shards = placed_rows(300, slope)
    start = Parameters.of(variance * Matern52([1.4, 1.4]), 0.01)
    first = 0.7 * variance**0.2  # as the function is that smooth
    lost = Parameters.of(variance * Matern52([first, 1e6]), 0.01)
    theta = refinement.within_reach(lost, start, shards)
    lengths = theta.kernel.parameters()["kernel.lengthscale"]
    longest = 1.4 * math.sqrt(300 * variance / (refinement.FELT * 0.01))
    assert lengths.tolist() == pytest.approx([first, longest])
    before = [objective_value(ExactExpert(), one, shards) for one in (lost, theta)]
    assert (before[1] < before[0] - 1.0) == comes_back
    found = learning.train(Fact(), ExactExpert(), theta, shards, fixed=["variance"])
    end = found.parameters.kernel.parameters()["kernel.lengthscale"]
    assert (float(end[1]) < 20.0 * longest) == comes_back
    assert found.objective < min(before)


def test_lengthscales_that_have_not_left_the_kernel_stay_where_they_are():
    shards = placed_rows(2_000, 0.0)
    start = Parameters.of(1.0 * Matern52([1.4, 1.4]), 0.9)
    near, far = (Parameters.of(0.1 * Matern52([2.0, length]), 0.9) for length in (4.0, 1e3))
    lengths = [
        refinement.within_reach(one, start, shards).kernel.parameters()["kernel.lengthscale"]
        for one in (near, far)
    ]
    assert lengths[0].tolist() == [2.0, 4.0]
    assert lengths[1].tolist() == [2.0, 1.4], "so few rows would feel it below where it started"


def test_more_rows_find_what_columns_say_that_fewer_rows_have_lost():
    rng = np.random.default_rng(0)
    X = torch.tensor(rng.normal(size=(600, 6)))
    noise = torch.tensor(0.1 * rng.normal(size=600))
    y = torch.sin(2 * X[:, 0]) + 0.1 * torch.sin(2 * X[:, 1:]).sum(1) + noise
    few, every = (placed([Shard.of(X[:n], y[:n])]) for n in (100, 600))
    start = Parameters.of(1.0 * Matern52([2.4] * 6), 0.1)
    lost = Parameters.of(1.0 * Matern52([0.7] + [2e3] * 5), 0.1)
    known, fact, expert = Curvature(), Fact(), ExactExpert()
    tolerance = learning.PART_TOLERANCE
    part = learning.train(fact, expert, lost, few, tolerance=tolerance, curvature=known).parameters
    known.scale(6.0)
    near = refinement.within_reach(part, start, every)
    found = learning.train(fact, expert, near, every, tolerance=tolerance, curvature=known)
    best = learning.train(fact, expert, start, every)
    assert found.objective < best.objective + 1.0


def plan_of(n, **options):
    given = DistributedGPRegressor(**options).get_params()
    return resolve(given, distgp.data.rows.Schema(3), n)


def test_work_is_chosen_that_fits_time_and_memory(monkeypatch):
    way, said = candidates.affordable(plan_of(5_000), 3)
    assert way.settings is candidates.EXACT and "taken" in said[0]
    slow = plan_of(5_000, time_limit=1e-9)
    way, said = candidates.affordable(slow, 3)
    assert way is None and len(said) == 2 and all("left out by time_limit=1e-09" in s for s in said)
    monkeypatch.setattr(candidates, "free_bytes", lambda device: 10**6)
    assert candidates.affordable(plan_of(5_000), 3)[0] is None
    for wrong in (0, -1.0, math.nan, "none", True):
        expected = "time_limit must be a positive number of seconds, or None, got"
        with pytest.raises(ValueError, match=expected):
            plan_of(5_000, time_limit=wrong)


def test_no_time_limit_is_none_or_infinity(tmp_path):
    for limit in (None, math.inf, 1e308):
        plan = plan_of(5_000, expert="exact", n_experts=1, time_limit=limit)
        assert plan.algorithm.polish == MOST_POLISH
        assert candidates.affordable(plan_of(5_000, time_limit=limit), 3)[0] is not None
        X = np.random.default_rng(0).uniform(size=(30, 2))
        gp = DistributedGPRegressor(time_limit=limit, n_iter=2).fit(X, X[:, 0])
        gp.save(tmp_path / "gp.safetensors")
        assert distgp.load(tmp_path / "gp.safetensors").time_limit == limit


def test_a_time_limit_that_changes_nothing_is_told(capsys):
    X = np.random.default_rng(0).uniform(size=(30, 2))
    for options, told in (({"time_limit": 1.0}, True), ({}, False)):
        DistributedGPRegressor(n_iter=1, verbose=True, **options).fit(X, X[:, 0])
        assert ("time_limit changes nothing up to 1,500 rows" in capsys.readouterr().err) is told


def test_the_exact_gp_is_taken_at_once_and_measured_row_by_row(few_are_many, capsys):
    X, y = make_data(500, noise=0.3)
    gp = DistributedGPRegressor(verbose=True).fit(X, y)
    assert gp.settled_ == candidates.EXACT and gp.experts_.expert.name == "exact"
    assert gp.choice_.validation == "one by one" and gp.choice_.held_out == 500
    assert 0.28 < gp.choice_.best.rmse < 0.34 and 0.86 < gp.choice_.best.cover < 0.94
    assert {t.name for t in gp.choice_.trials if t.baseline} == {
        "training mean",
        "ridge regression",
    }
    assert "exact GP: less than 1 s and" in capsys.readouterr().err
    truth = make_data(500, noise=0.0)[1]
    assert np.sqrt(np.mean((gp.predict(X) - truth) ** 2)) < 0.1


def test_the_exact_mean_is_taken_where_the_factor_does_not_fit(few_are_many, monkeypatch):
    monkeypatch.setattr(
        candidates, "cost_of_condition", lambda n, d, like: candidates.Cost(1, math.inf)
    )
    X, y = make_data(220, noise=0.3)
    gp = DistributedGPRegressor().fit(X, y)
    assert gp.settled_ == candidates.EXACT_MEAN and gp.aggregation_.name == "exact"
    assert gp.choice_.best.name == "nearest rows with the exact mean"
    assert gp.choice_.held_out == 220 and 0.28 < gp.choice_.best.rmse < 0.36
    again = DistributedGPRegressor(expert="exact", n_experts=1, training=None).fit(X, y)
    assert again.choice_ is None, "what is given is not measured"


def test_forecasts_are_still_measured(few_are_many):
    X, y = make_data(240, noise=0.3)
    gp = DistributedGPRegressor(validation="last", n_iter=5).fit(X, y)
    names = {trial.name for trial in gp.choice_.trials}
    assert "exact GP" in names and "nearest rows" in names


@pytest.mark.filterwarnings("ignore")
def test_repeated_rows_are_kept_together_in_the_figures_of_one_exact_gp(few_are_many):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 2))
    y = rng.normal(size=150)  # nothing to learn: a copy of a row would tell its target
    three = DistributedGPRegressor().fit(np.repeat(X, 3, 0), np.repeat(y, 3))
    assert three.settled_ == candidates.EXACT
    assert three.choice_.best.rmse > 0.9 and three.choice_.held_out == 450


@pytest.mark.parametrize("values", [2, 6])
def test_a_column_with_few_values_is_not_taken_for_rough(values):
    """With little noise at the start, rows of equal values look as if the function jumped between them."""
    rng = np.random.default_rng(values)
    X = np.column_stack([rng.gamma(4.0, 25.0, 300), rng.integers(0, values, 300)])
    y = 0.008 * X[:, 0] + 0.6 / values * X[:, 1] + 0.35 * rng.normal(size=300)
    found = distgp.DistributedGPRegressor("exact", 1).fit(X, y)
    known = distgp.DistributedGPRegressor("exact", 1, noise=0.5).fit(X, y)
    assert found.training_.objective < known.training_.objective + 0.1


def test_a_function_that_changes_fast_is_not_taken_for_noise():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 2))
    y = np.sin(40.0 * X[:, 0]) + np.cos(9.0 * X[:, 1]) + 0.1 * rng.normal(size=400)
    found = distgp.DistributedGPRegressor("exact", 1).fit(X, y)
    assert found.noise_ < 0.02 * np.var(y)


def test_a_start_that_leads_further_is_kept():
    """With few rounds the start alone decides, and those of the other are not in the history."""
    rng = np.random.default_rng(1)
    X = rng.uniform(size=(200, 1))
    y = np.sin(40.0 * X[:, 0]) + 0.1 * rng.normal(size=200)
    for rounds in (4, 40):
        found = distgp.DistributedGPRegressor("exact", 1, n_iter=rounds).fit(X, y)
        objectives = [round_.objective for round_ in found.training_.history]
        assert len(objectives) <= rounds
        assert objectives == sorted(objectives, reverse=True)


def test_few_rows_are_all_drawn_to_be_predicted():
    data = shard(50, 2)
    out = from_nearest_others(THETA, placed([Shard.of(data.X, data.y)]), 0)[0]
    assert sorted(out.rows.tolist()) == list(range(50))


def test_going_on_from_a_fit_keeps_the_bounds_lifted_that_it_lifted():
    X, y = steep()
    gp = DistributedGPRegressor(expert="exact", n_experts=1, warm_start=True).fit(X, y)
    first, variance = gp.training_.objective, float(gp.kernel_.variance)
    assert variance > 10.0, "the cap is 1"
    gp.fit(X, y)
    assert gp.training_.objective <= first + 1e-6
    assert gp.training_.history[0].objective < first + 1.0, "it begins where the last one ended"
