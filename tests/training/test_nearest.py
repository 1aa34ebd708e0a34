"""Training by nearest rows: Vecchia's likelihood of a sample, neighbours from all rows before."""

import math
import warnings

import numpy as np
import pytest
import torch
from helpers import close, shard

import distgp
from distgp.data import RandomPartition, Shard, split, stack
from distgp.data.shard import row_priority
from distgp.engines import LocalPlacement
from distgp.experts import ExactExpert, NearestExpert, Parameters, SparseExpert
from distgp.experts.neighborhoods import ORDER_SEED
from distgp.training import LogNormal, NearestRows, train
from distgp.training.nearest import _priority_of_first, _without_copies
from distgp.training.refinement import LEAST_NOISE

DATA = shard(120, 2)
SHARDS = split(DATA, RandomPartition().assign(DATA.X.numpy(), 4, 0))
START = Parameters.of(0.8 * distgp.Matern52([0.7, 0.9]), 0.1)


def test_with_all_rows_as_targets_and_neighbours_it_is_the_exact_likelihood():
    algorithm = NearestRows(n_targets=120, n_neighbors=119, stages=1, search=False, n_iter=3)
    result = train(algorithm, ExactExpert(), START, SHARDS)
    exact = float(ExactExpert().objective(START, DATA))
    assert result.history[0].objective == pytest.approx(exact, rel=1e-10)


def test_it_finds_the_optimum_of_the_exact_likelihood_where_nothing_is_left_out():
    algorithm = NearestRows(n_targets=120, n_neighbors=119, stages=1, n_iter=100)
    found = train(algorithm, ExactExpert(), START, SHARDS, tolerance=1e-9).parameters
    central = train(distgp.training.Fact(n_iter=200), ExactExpert(), START, [DATA], tolerance=1e-9)
    for name, value in found.kernel.parameters().items():
        close(value, central.parameters.kernel.parameters()[name], rtol=2e-2, atol=1e-3)
    close(found.noise, central.parameters.noise, rtol=1e-2)


@pytest.mark.parametrize("coarse", [2048, 10], ids=["nearest alone", "and coarse rows"])
def test_shards_and_workers_change_nothing(monkeypatch, coarse):
    monkeypatch.setattr("distgp.training.nearest.COARSE_ROWS", coarse)
    algorithm = NearestRows(n_targets=50, n_neighbors=8, n_iter=12)
    one = train(algorithm, NearestExpert(), START, [DATA])
    placement = LocalPlacement((stack(SHARDS[:1]), stack(SHARDS[1:])))
    for shards in (SHARDS, placement):
        other = train(algorithm, NearestExpert(), START, shards)
        np.testing.assert_allclose(
            [r.objective for r in other.history], [r.objective for r in one.history], rtol=1e-9
        )


def test_a_third_of_the_neighbours_are_the_nearest_of_the_first_rows(monkeypatch):
    """Naive: of the rows before a target in the order, the nearest of the first, and of the others."""
    monkeypatch.setattr("distgp.training.nearest.COARSE_ROWS", 14)
    found, look = [], NearestRows._neighbourhoods

    def noted(self, *arguments):
        found.append(look(self, *arguments))
        return found[-1]

    monkeypatch.setattr(NearestRows, "_neighbourhoods", noted)
    algorithm = NearestRows(n_targets=120, n_neighbors=9, stages=1, search=False, n_iter=1)
    train(algorithm, ExactExpert(), START, SHARDS)
    (sets,) = found
    place = row_priority(DATA.rows, ORDER_SEED)
    first = place < _priority_of_first(14, 120.0)
    assert 5 < int(first.sum()) < 30
    scaled = DATA.X / torch.tensor([0.7, 0.9], dtype=DATA.X.dtype)
    for X, real, limit in zip(sets.X, sets.real, sets.targets.rows, strict=True):
        target = int((place == limit).nonzero()[0, 0])
        far = (scaled - scaled[target]).square().sum(-1)
        wanted = {target}
        for some, k in ((first, 3), (~first, 6)):
            before = (some & (place < limit)).nonzero()[:, 0]
            wanted |= set(before[far[before].argsort()[:k]].tolist())
        same = (X[real][:, None] == DATA.X).all(-1).nonzero()[:, 1]
        assert set(same.tolist()) == wanted


@pytest.mark.parametrize("scale", [1.0, 1e3])
@pytest.mark.parametrize(("training", "floor"), [("nearest", 1e-4), ("fact", 1e-6)])
def test_the_noise_has_a_floor_in_units_of_the_targets_variance(training, floor, scale):
    """A target without noise brings it there; with n_iter given, no refinement lifts the floor."""
    X = np.random.default_rng(0).uniform(-1, 1, (150, 1))
    y = scale * np.sin(2 * X[:, 0])
    kernel, noise = scale**2 * distgp.RBF([1.0]), 1e-3 * scale**2
    given = {"expert": "exact", "n_experts": 1, "normalize": False, "n_iter": 200}
    gp = distgp.DistributedGPRegressor(training=training, kernel=kernel, noise=noise, **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp.fit(X, y)
    assert gp.noise_ == pytest.approx(floor * np.var(y), rel=0.01)


def test_a_floor_that_is_lifted_leaves_another():
    X = np.random.default_rng(0).uniform(-1, 1, (250, 1))
    y = 1e3 * np.sin(2 * X[:, 0])
    gp = distgp.DistributedGPRegressor(expert="exact", n_experts=1, kernel="rbf")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gp.fit(X, y)
    assert gp.noise_ == pytest.approx(LEAST_NOISE, rel=0.05) and LEAST_NOISE == 1e-8


def test_priors_bounds_and_fixed_parameters_hold():
    algorithm = NearestRows(n_targets=60, n_neighbors=8, n_iter=30, search=False)
    result = train(
        algorithm,
        SparseExpert(),
        START,
        SHARDS,
        fixed=["variance"],
        bounds={"noise": (0.05, 0.2)},
        priors={"lengthscale": LogNormal(3.0, 0.01)},
    )
    theta = result.parameters
    close(theta.kernel.parameters()["variance"], START.kernel.parameters()["variance"])
    assert 0.05 * (1 - 1e-9) <= float(theta.noise) <= 0.2 * (1 + 1e-9)
    lengths = theta.kernel.parameters()["kernel.lengthscale"]
    close(lengths, torch.full_like(lengths, 3.0), rtol=0.05)


def test_the_truth_is_found_from_a_start_that_is_far_too_long():
    """A draw from the prior, lengthscales 0.15 and 0.3 where training starts at 1.4."""
    rng = np.random.default_rng(0)
    X = torch.as_tensor(rng.uniform(-1, 1, size=(1500, 2)))
    kernel = 1.0 * distgp.Matern52([0.15, 0.3])
    L = torch.linalg.cholesky(kernel(X) + 1e-10 * torch.eye(1500, dtype=X.dtype))
    y = L @ torch.as_tensor(rng.normal(size=1500)) + 0.2 * torch.as_tensor(rng.normal(size=1500))
    start = Parameters.of(1.0 * distgp.Matern52([math.sqrt(2.0)] * 2), 0.1)
    algorithm = NearestRows(n_targets=600, n_neighbors=20)
    theta = train(algorithm, NearestExpert(), start, [distgp.data.Shard.of(X, y)]).parameters
    found = theta.kernel.parameters()["kernel.lengthscale"]
    close(found, torch.tensor([0.15, 0.3], dtype=X.dtype), rtol=0.35)
    assert float(theta.noise) == pytest.approx(0.04, rel=0.3)


def test_one_theta_for_each_expert_is_refused():
    with pytest.raises(ValueError, match="one θ for all experts"):
        train(NearestRows(n_iter=2), ExactExpert(), START, SHARDS, own=["noise"])
    with pytest.raises(ValueError, match="n_targets must be at least 1"):
        NearestRows(n_targets=0)


def noise_learnt_from(X, y):
    """The noise variance that training by nearest rows finds for these rows."""
    rows = Shard.of(torch.as_tensor(X), torch.as_tensor(y))
    start = Parameters.of(1.0 * distgp.Matern52([2.0] * X.shape[1]), 0.1)
    algorithm = NearestRows(n_targets=400, n_neighbors=20, stages=2, n_iter=60)
    return float(train(algorithm, NearestExpert(), start, [rows]).parameters.noise)


def test_rows_that_were_written_twice_do_not_say_that_there_is_no_noise():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 4))
    y = np.sin(X[:, 0]) + 0.5 * rng.standard_normal(600)
    twice = noise_learnt_from(np.repeat(X, 2, axis=0), np.repeat(y, 2))
    assert twice == pytest.approx(0.25, rel=0.3)


def test_copies_are_no_neighbours_unless_there_are_no_others():
    X = torch.tensor([[0.0, 1.0, 2.0, 1.0], [1.0, 1.0, 1.0, 1.0], [1.0, 1.0, 0.0, 1.0]])[..., None]
    real = torch.tensor([[True] * 4, [True] * 4, [True, True, False, True]])
    kept = [[True, False, True, True], [True] * 4, [True, True, False, True]]
    assert _without_copies(X, real).tolist() == kept
