"""Joint draws without a covariance between points have the mean and the covariance that they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import close, concrete, example, inputs, make_data, shard

from distgp import RBF, DistributedGPRegressor, Kernel, Linear, Matern12, Matern32, Matern52, model
from distgp.aggregation import AGGREGATORS, RBCM, Ensemble, GPoE, Nearest, PoE, Pooled
from distgp.aggregation.base import with_diagonal
from distgp.data import Shard, split
from distgp.experts import ExactExpert, NearestExpert, Parameters, SparseExpert, joint
from distgp.kernels import Constant, Stationary, Sum, prior, prior_draws

SIZE = 4_000


class Unknown(Stationary):
    """A kernel of a user, whose spectrum nobody has told."""

    def shape(self, square):
        return 1.0 / (1.0 + square)


OTHERS = {
    "columns": Matern32([0.5, 0.8], active_dims=[2, 0]),
    "shared": Matern52([0.5, 0.9], shared=(0, 1, 1)),
    "linear times wave": Linear([0.6, 1.0, 1.4]) * RBF(0.7),
    "linear times linear": Linear([0.6, 1.0, 1.4]) * Linear(0.5),
    "brackets": (RBF(0.5) + Linear()) * (Constant(2.0) + Matern12(0.3)),
}


def deviations(draws, mean, covariance):
    """The largest error of mean and covariance, in standard errors measured from the draws."""
    left = draws - mean[:, None]
    products = left[:, None, :] * left[None, :, :]
    root = draws.shape[-1] ** 0.5
    of_mean = left.mean(-1) / left.std(-1) * root
    of_covariance = (products.mean(-1) - covariance) / products.std(-1) * root
    return max(float(of_mean.abs().max()), float(of_covariance.abs().max()))


def expected(draws, mean, covariance):
    assert deviations(draws, mean, covariance) < 4.5


def of_kernel(kernel, X, seed=0):
    found = prior_draws(kernel, X.shape[-1], SIZE, seed, X)
    assert found is not None
    return found.at(X)


@pytest.mark.parametrize("cls", concrete(Kernel), ids=lambda cls: cls.__name__)
def test_prior_draws_of_every_kernel_have_its_covariance(cls):
    X, kernel = inputs(6, 3), example(cls, 3)
    expected(of_kernel(kernel, X), X.new_zeros(6), kernel(X))


@pytest.mark.parametrize("name", OTHERS)
def test_prior_draws_of_products_and_columns_have_the_kernels_covariance(name):
    X, kernel = inputs(6, 3), OTHERS[name]
    expected(of_kernel(kernel, X), X.new_zeros(6), kernel(X))


@pytest.mark.parametrize("cls", concrete(Kernel), ids=lambda cls: cls.__name__)
def test_the_covariance_given_the_frequencies_is_the_kernel_on_average(cls):
    """A sharper test of the spectrum: Σ_j ½ρ_j² cos ω_jᵀ(z − z′) varies far less than f f′."""
    X, kernel = inputs(6, 3), example(cls, 3)
    for part in prior_draws(kernel, 3, SIZE // 2, 0, X).parts:
        if cls not in (Sum, Constant, Linear):
            Z = torch.cat([located(X) for located in part.located], -1)
            apart = (Z[:1] - Z[1:]) @ part.frequencies[:, :-1]
            given = (apart.cos() @ (0.5 * part.amplitudes.square()))[..., 0]
            error = (given.mean(0) - kernel(X)[0, 1:]) / given.std(0) * len(given) ** 0.5
            assert float(error.abs().max()) < 4.5


def test_frequencies_that_all_draws_share_would_give_another_covariance():
    X, kernel = inputs(6, 3), Matern52(0.5)
    made = prior_draws(kernel, 3, SIZE, 0, X)
    (part,) = made.parts
    # All draws with the frequencies of the first, and with amplitudes and phases of their own.
    shared = part.frequencies.clone()
    shared[:, :-1] = shared[:1, :-1]
    found = replace(made, parts=(replace(part, frequencies=shared),)).at(X)
    assert deviations(found, X.new_zeros(6), kernel(X)) > 5.0


def test_kernels_without_a_known_spectrum_have_no_draws():
    X = inputs(3, 2)
    for kernel in (Unknown(), Unknown() + RBF(), 2.0 * (RBF() * Unknown())):
        assert prior_draws(kernel, 2, 5, 0, X) is None
    theta = Parameters.of(Unknown(0.5), 0.1)
    assert ExactExpert().condition(theta, shard(10, 2)).draws(X, 5, 0) is None


def test_a_draw_is_one_function_however_it_is_evaluated(monkeypatch):
    X, kernel = inputs(300, 3), OTHERS["brackets"] + Matern52(0.4)
    made = prior_draws(kernel, 3, 7, 1, X)
    whole = made.at(X)
    close(torch.cat([made.at(part) for part in X.split(41)]), whole)
    monkeypatch.setitem(prior.POINTS, "cpu", 16)
    monkeypatch.setitem(prior.BLOCK, "cpu", 2**14)
    close(made.at(X), whole)
    close(prior_draws(kernel, 3, 7, 1, X).at(X), whole)
    assert not torch.equal(prior_draws(kernel, 3, 7, 2, X).at(X), whole)


def test_draws_near_many_rows_have_no_heavy_tails():
    """Only the longest frequencies tell such points apart: they must be there in every draw."""
    theta = Parameters.of(1.0 * Matern52([1.0, 1.0]), 1e-4)
    X, posterior = inputs(8, 2, seed=5), ExactExpert().condition(theta, shard(300, 2))
    left = posterior.draws(X, SIZE, 0) - posterior.predict(X).mean[:, None]
    kurtosis = left.pow(4).mean(-1) / left.square().mean(-1).square()
    assert float(kurtosis.max()) < 4.0


def uneven(n, d):
    """Rows with weights and noise of their own."""
    rows = shard(n, d)
    weight, noise = inputs(n, 1, seed=7)[:, 0] + 2.0, inputs(n, 1, seed=8)[:, 0].exp() * 3.0
    return Shard.of(rows.X, rows.y, weight=weight, noise=noise)


@pytest.mark.parametrize("rows", [shard(60, 2), uneven(60, 2)], ids=["plain", "uneven"])
def test_draws_of_one_exact_expert(rows):
    theta, X = Parameters.of(1.3 * Matern52([0.5, 0.8]), 0.05), inputs(6, 2, seed=5)
    ensemble = Ensemble.condition(ExactExpert(), theta, [rows])
    combined = PoE().combine(ensemble)
    found = combined.draws(ensemble, X, SIZE, 0)
    expected(found, combined.mean(ensemble, X), combined.covariance(ensemble, X))
    close(combined.draws(ensemble, X, SIZE, 0), found, rtol=0, atol=0)
    assert not torch.equal(combined.draws(ensemble, X, SIZE, 1), found)


def test_padding_has_no_influence_on_draws():
    theta, X, rows = Parameters.of(1.0 * RBF([0.5, 0.8]), 0.05), inputs(5, 2, seed=5), shard(20, 2)
    padded = replace(rows, mask=torch.arange(20) < 15)
    posterior = ExactExpert().condition(theta, padded)
    expected(posterior.draws(X, SIZE, 0), posterior.predict(X).mean, posterior.covariance(X))


@pytest.mark.parametrize("aggregator", [RBCM(), GPoE("entropy")], ids=["rbcm", "gpoe"])
def test_an_aggregator_that_changes_a_single_expert_leaves_draws_to_the_covariance(aggregator):
    theta = Parameters.of(1.0 * RBF([0.5, 0.8]), 0.05)
    ensemble = Ensemble.condition(ExactExpert(), theta, [shard(20, 2)])
    assert aggregator.combine(ensemble).draws(ensemble, inputs(3, 2), 2, 0) is None


def test_several_experts_combined_from_marginals_have_no_draws():
    theta = Parameters.of(1.0 * RBF([0.5, 0.8]), 0.05)
    ensemble = Ensemble.condition(ExactExpert(), theta, [shard(20, 2), shard(20, 2, seed=1)])
    for name in ("poe", "bcm", "min-variance", "barycentre"):
        combined = AGGREGATORS[name]().combine(ensemble)
        assert combined.draws(ensemble, inputs(3, 2), 2, 0) is None


def test_draws_of_pooled_experts():
    rows, X = uneven(90, 2), inputs(6, 2, seed=5)
    theta = Parameters.of(1.3 * Matern32([0.5, 0.8]), 0.05, inputs(12, 2, seed=9))
    shards = split(rows, np.arange(90) % 3)
    ensemble = Ensemble.condition(SparseExpert(), theta, shards)
    combined = Pooled().combine(ensemble)
    found = combined.draws(ensemble, X, SIZE, 0)
    expected(found, combined.mean(ensemble, X), combined.covariance(ensemble, X))
    close(combined.draws(ensemble, X, SIZE, 0), found, rtol=0, atol=0)


@pytest.mark.parametrize("m", [0, 10])
def test_draws_of_nearest_rows_are_the_exact_gps_where_nothing_is_left_out(m):
    rows, X = uneven(40, 2), inputs(6, 2, seed=5)
    theta = Parameters.of(1.3 * Matern52([0.5, 0.8]), 0.05, inputs(m, 2, seed=9) if m else None)
    shards = split(rows, np.arange(40) % 2)
    ensemble = Ensemble.condition(NearestExpert(46, 40), theta, shards)
    combined = Nearest().combine(ensemble)
    found = combined.draws(ensemble, X, SIZE, 0)
    expected(found, combined.mean(ensemble, X), combined.covariance(ensemble, X))
    exact = ExactExpert().condition(Parameters.of(theta.kernel, 0.05), rows)
    expected(found, exact.predict(X).mean, exact.covariance(X))
    close(combined.draws(ensemble, X, SIZE, 0), found, rtol=0, atol=0)


@pytest.mark.parametrize("m", [0, 10])
def test_draws_of_nearest_rows_follow_their_chain(m, monkeypatch):
    """With few neighbours: the correlations of the same chain, and the variances that are predicted."""
    rows, X = shard(30, 2), inputs(12, 2, seed=5)
    theta = Parameters.of(1.3 * Matern52([0.5, 0.8]), 0.05, inputs(m, 2, seed=9) if m else None)
    posterior = NearestExpert(4, 4).condition(theta, rows)
    monkeypatch.setattr(joint, "LEVELLED_AT_ONCE", 5)
    order = joint.order_of_points(12, 3)
    covariance = posterior.covariance(X[order])[order.argsort()][:, order.argsort()]
    found, wanted = posterior.draws(X, SIZE, 3), posterior.predict(X)
    expected(found, wanted.mean, with_diagonal(covariance, wanted.variance))


def test_points_of_a_level_depend_on_earlier_levels_alone():
    rows = NearestExpert(5, 5).condition(Parameters.of(1.0 * RBF([0.3, 0.3]), 0.1), shard(20, 2))
    places = joint.chain(rows.flat, inputs(200, 2, seed=5), 5).places
    level = torch.empty(200, dtype=torch.int64)
    for number, points in enumerate(joint.levels(places)):
        level[points] = number
    for i, near in enumerate(places):
        known = [int(level[j]) for j in near if j >= 0]
        assert int(level[i]) == (max(known) + 1 if known else 0)


def test_draws_of_nearest_rows_need_no_spectrum():
    theta = Parameters.of(RBF(0.5) * Linear() + Unknown(0.4), 0.05)
    posterior, X = NearestExpert(30, 30).condition(theta, shard(20, 2)), inputs(5, 2, seed=5)
    expected(posterior.draws(X, SIZE, 0), posterior.predict(X).mean, posterior.covariance(X))


def fitted(**parameters):
    X, y = make_data(200)
    return DistributedGPRegressor(kernel="matern52", n_iter=3, **parameters).fit(X, y)


EXPERTS = {
    "exact": {"expert": "exact", "n_experts": 1},
    "sparse": {"expert": "sparse", "n_inducing": 20},
    "nearest": {"expert": "nearest", "n_neighbors": 20},
}


@pytest.mark.parametrize("kind", EXPERTS)
def test_sample_y_at_many_points(kind):
    gp, X = fitted(**EXPERTS[kind]), make_data(2_500, seed=1)[0]
    X[-1] = X[0] + 1e-5
    mean, std = gp.predict(X, return_std=True)
    draws = gp.sample_y(X, 40, random_state=3)
    assert draws.shape == (2_500, 40)
    np.testing.assert_array_equal(draws, gp.sample_y(X, 40, random_state=3))
    assert not np.array_equal(draws, gp.sample_y(X, 40, random_state=4))
    score = (draws - mean[:, None]) / std[:, None]
    assert abs(score.mean()) < 0.1 and score.std() == pytest.approx(1.0, abs=0.1)
    latent, f_std = (
        gp.sample_y(X, 40, random_state=3, latent=True),
        gp.predict(X, True, latent=True)[1],
    )
    score = (latent - mean[:, None]) / f_std[:, None]
    assert score.std() == pytest.approx(1.0, abs=0.15)
    assert np.abs(latent[-1] - latent[0]).max() < 0.1 * f_std.min()  # of two points that are near


def test_many_points_are_drawn_without_their_covariance(monkeypatch):
    def refused(*given):
        raise AssertionError("a covariance between all points was asked for")

    X = make_data(2_500, seed=1)[0]
    for kind in EXPERTS.values():
        gp = fitted(**kind)
        combined = type(gp.model_.targets[0].combined)
        monkeypatch.setattr(combined, "between", refused)
        assert gp.sample_y(X, 2).shape == (2_500, 2)
        with pytest.raises(AssertionError, match="was asked for"):
            gp.sample_y(X[: model.DENSE_POINTS], 2)


def test_draws_as_functions_and_from_the_covariance_agree(monkeypatch):
    """In the target's units, with a trend, noise and a transform."""
    X, y = make_data(80)
    gp = DistributedGPRegressor(
        kernel="rbf", n_iter=3, expert="exact", n_experts=1, mean="linear", target_transform="log"
    ).fit(X, np.exp(y))
    one, other = (np.log(gp.sample_y(X[:5], SIZE)) for _ in range(2))
    monkeypatch.setattr(model, "DENSE_POINTS", 1)
    functions = torch.as_tensor(np.log(gp.sample_y(X[:5], SIZE)))
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(functions.numpy(), one)
    monkeypatch.undo()
    target = gp.model_.targets[0]
    mean, covariance = target._joint(model.Points(X[:5], target.scaling.inputs(X[:5], functions)))
    expected(functions, torch.as_tensor(mean), torch.as_tensor(covariance))


def test_results_that_do_not_fit_are_refused_at_once():
    X, y = make_data(60)
    gp = DistributedGPRegressor(expert="exact", n_experts=1, training=None).fit(X, y)
    many = np.zeros((3_000_000, X.shape[1]))
    with pytest.raises(
        MemoryError, match=r"10,000,000 draws at 3,000,000 points needs [\d,.e+]+ GiB"
    ):
        gp.sample_y(many, n_samples=10**7)
    with pytest.raises(MemoryError, match=r"between 3,000,000 points needs [\d,.e+]+ GiB"):
        gp.predict(many, return_cov=True)
