"""The nearest aggregator: neighbours from all shards, whatever the division, the order, the workers."""

import numpy as np
import pytest
import torch
from ensembles import Elsewhere
from helpers import close, inputs, shard

import distgp
from distgp.aggregation import AGGREGATORS, AggregationError, Ensemble, Nearest
from distgp.data import KMeansPartition, RandomPartition, split, stack
from distgp.engines import LocalPlacement
from distgp.experts import ExactExpert, NearestExpert, Parameters

KERNEL = 1.3 * distgp.Matern52([0.6, 0.9])
DATA, POINTS = shard(90, 2), 1.2 * inputs(11, 2, 9)


def ensemble(Z=None, M=1, k=12, partition=None, expert=None, workers=1, seed=0):
    labels = (partition or RandomPartition()).assign(DATA.X.numpy(), M, seed)
    shards, theta = split(DATA, labels), Parameters.of(KERNEL, 0.05, Z)
    if workers > 1:
        cuts = np.array_split(np.arange(M), workers)
        shards = LocalPlacement(tuple(stack([shards[i] for i in cut]) for cut in cuts))
    return Ensemble.condition(expert or NearestExpert(k, 7), theta, shards)


def predicted(made):
    return Nearest().combine(made).predict(made, POINTS)


@pytest.mark.parametrize("Z", [None, inputs(6, 2, 3)], ids=["no Z", "Z"])
@pytest.mark.parametrize(
    "options",
    [
        {"M": 5},
        {"M": 5, "seed": 3},
        {"M": 4, "partition": KMeansPartition()},
        {"M": 6, "workers": 3},
        {"M": 7, "workers": 2, "partition": KMeansPartition()},
    ],
    ids=str,
)
def test_the_division_of_rows_changes_nothing(Z, options):
    one, other = predicted(ensemble(Z)), predicted(ensemble(Z, **options))
    close(other.mean, one.mean)
    close(other.variance, one.variance)


def test_kernels_without_coordinates_ask_every_cell():
    kernel = distgp.Linear([1.0, 0.5]) * distgp.Matern52(1.0)
    labels = RandomPartition().assign(DATA.X.numpy(), 4, 0)
    shards, theta = split(DATA, labels), Parameters.of(kernel, 0.05, inputs(3, 2, 3))
    one = Ensemble.condition(NearestExpert(9, 5), theta, shards)
    cells = LocalPlacement((stack(shards[:1]), stack(shards[1:])))
    two = Ensemble.condition(NearestExpert(9, 5), theta, cells)
    close(predicted(two).mean, predicted(one).mean)
    close(predicted(two).variance, predicted(one).variance)


@pytest.mark.parametrize("Z", [None, inputs(6, 2, 3)], ids=["no Z", "Z"])
@pytest.mark.parametrize("workers", [1, 2])
def test_with_all_rows_as_neighbours_it_is_the_exact_gp(Z, workers):
    made = ensemble(Z, M=4, expert=NearestExpert(90, 90), workers=workers)
    full = ExactExpert().condition(Parameters.of(KERNEL, 0.05), DATA)
    out = predicted(made)
    close(out.mean, full.predict(POINTS).mean, rtol=1e-7, atol=1e-9)
    close(out.variance, full.predict(POINTS).variance, rtol=1e-6, atol=1e-9)


def test_gathered_from_workers_it_predicts_the_same():
    labels = RandomPartition().assign(DATA.X.numpy(), 4, 0)
    shards = split(DATA, labels)
    theta = Parameters.of(KERNEL, 0.05, inputs(6, 2, 3))
    there = Elsewhere((stack(shards[:2]), stack(shards[2:])))
    made = Ensemble.condition(NearestExpert(12, 7), theta, there)
    combined = Nearest().combine(made)
    here, brought = made.gathered(), combined.gathered()
    assert len(here.placement) == 1
    close(brought.predict(here, POINTS).mean, combined.predict(made, POINTS).mean)
    close(brought.predict(here, POINTS).variance, combined.predict(made, POINTS).variance)
    covariance = combined.covariance(made, POINTS)
    close(covariance.diagonal(), combined.predict(made, POINTS).variance)
    assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-9


def test_far_away_it_is_the_prior():
    for Z in (None, inputs(6, 2, 3)):
        made = ensemble(Z, M=3)
        out = Nearest().combine(made).predict(made, POINTS + 1e3)
        close(out.mean, torch.zeros_like(out.mean), atol=1e-9)
        close(out.variance, torch.full_like(out.mean, 1.3))


@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_every_aggregator_serves_nearest_experts_or_says_what_does(name):
    made = ensemble(inputs(6, 2, 3), M=3)
    kind = AGGREGATORS[name]
    if "nearest" in kind.serves:
        out = kind().combine(made).predict(made, POINTS)
        assert bool(torch.isfinite(out.mean).all()) and bool((out.variance > 0).all())
    else:
        with pytest.raises(ValueError, match="cannot combine nearest experts; use poe, .*nearest"):
            kind().combine(made).predict(made, POINTS)


def test_other_experts_are_refused():
    labels = RandomPartition().assign(DATA.X.numpy(), 3, 0)
    made = Ensemble.condition(ExactExpert(), Parameters.of(KERNEL, 0.05), split(DATA, labels))
    with pytest.raises(
        AggregationError, match="nearest cannot combine exact experts; use poe, .*two-level"
    ):
        Nearest().combine(made)
