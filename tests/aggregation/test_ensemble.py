"""Ensembles: conditioned where the shards are, checked, extended, gathered."""

import pytest
import torch
from ensembles import KINDS, build, posterior, regrouped, shards_of
from helpers import close, inputs

from distgp.aggregation import Ensemble
from distgp.data import central_set, stack
from distgp.data import shard as sample
from distgp.data.shard import placed
from distgp.engines import LocalPlacement
from distgp.experts import ExactExpert

X = inputs(10, 2, seed=9)


def test_an_ensemble_checks_its_experts():
    ensemble, data = build("exact", 2)
    single = ExactExpert().condition(ensemble.parameters, data)
    with pytest.raises(ValueError, match="batched posterior"):
        ensemble.extended(single)
    other, _ = build("shared Z", 2)
    with pytest.raises(ValueError, match="of one kind"):
        ensemble.extended(posterior(other))
    with pytest.raises(ValueError, match="one number of experts per worker, got 2 numbers for 1"):
        Ensemble(ensemble.placement, (1, 1), ensemble.parameters, ensemble.expert)


@pytest.mark.parametrize("kind", KINDS[2:])
def test_parameters_of_another_number_of_experts_are_refused(kind):
    ensemble, _ = build(kind, 4)
    with pytest.raises(ValueError, match=r"parameters that 3 experts share.*dimensions \(4,\)"):
        Ensemble.condition(ensemble.expert, ensemble.parameters, shards_of(ensemble)[:3])


@pytest.mark.parametrize("kind", KINDS)
def test_every_worker_gets_its_own_parameters(kind):
    ensemble, _ = build(kind, 5)
    divided = regrouped(ensemble, [2, 1, 2])
    assert divided.counts == (2, 1, 2) and divided.size == 5
    assert isinstance(divided.placement, LocalPlacement)
    means = torch.cat([part.mean(X) for part in divided.placement.items])
    close(means, posterior(ensemble).mean(X))
    assert divided.row_count() == ensemble.row_count() == 60
    assert divided.sizes().tolist() == ensemble.sizes().tolist()
    assert [len(part) for part in divided.split(torch.arange(5))] == [2, 1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_an_extended_ensemble_is_that_of_all_shards(kind):
    ensemble, _ = build(kind, 5)
    shards, theta = shards_of(ensemble), ensemble.parameters
    some = Ensemble.condition(ensemble.expert, theta[:3], shards[:3])
    more = some.extended(ensemble.expert.condition(theta[3:], stack(shards[3:])))
    assert more.counts == (3, 2)
    assert more.parameters.batch == theta.batch
    assert more.parameters.inducing_batch == theta.inducing_batch
    assert isinstance(more.placement, LocalPlacement)
    means = torch.cat([part.mean(X) for part in more.placement.items])
    close(means, posterior(ensemble).mean(X))
    close(more.noise(), ensemble.noise())


@pytest.mark.parametrize("kind", KINDS)
def test_sparse_experts_are_gathered_without_their_rows(kind):
    ensemble, _ = build(kind, 5)
    assert ensemble.gathered() is ensemble
    gathered = regrouped(ensemble, [2, 3], elsewhere=True).gathered()
    assert isinstance(gathered.placement, LocalPlacement)
    assert all(
        (part.shard is not None) is gathered.expert.holds_rows for part in gathered.placement.items
    )
    assert gathered.row_count() == 60
    if not gathered.expert.holds_rows:
        with pytest.raises(ValueError, match="needs the training rows"):
            gathered.sizes()


def test_the_draw_of_rows_is_that_of_the_central_set():
    ensemble, _ = build("exact", 5, n=61)
    shards = shards_of(ensemble)
    for size in (1, 7, 23, 61):
        wanted = central_set(shards, size, 3)
        for found in (ensemble.central(size, 3), sample.central(placed(shards), size, 3)):
            assert found.rows.tolist() == wanted.rows.tolist()
            torch.testing.assert_close(found.X, wanted.X)
            torch.testing.assert_close(found.y, wanted.y)
