"""The augmented experts of grBCM."""

from dataclasses import replace

from ensembles import build, full_gp, posterior, regrouped
from helpers import close, inputs

from distgp.aggregation import GRBCM
from distgp.aggregation.nested import augmented_experts
from distgp.engines import LocalPlacement

X = inputs(15, 2, 3)


def test_augmented_variances_bound_the_full_gps():
    ensemble, data = build("exact", 4)
    (augmented,) = augmented_experts(ensemble).gather().items
    full = full_gp(ensemble, data, X)
    assert bool((augmented.posterior.predict(X).variance >= full.variance - 1e-10).all())
    alone = posterior(ensemble).predict(X)
    assert bool((alone.variance.amin(0) >= full.variance - 1e-10).all())


def test_the_communication_expert_alone_on_its_worker_augments_nobody():
    ensemble, _ = build("exact", 4)
    assert [item.posterior.count for item in augmented_experts(ensemble).gather().items] == [3]
    divided = regrouped(ensemble, [1, 2, 1])
    assert [item.posterior.count for item in augmented_experts(divided).gather().items] == [2, 1]


def test_grbcm_of_sparse_experts_needs_no_rows():
    ensemble, _ = build("shared Z", 4)
    without = LocalPlacement((posterior(ensemble).without_rows(),))
    bare = replace(ensemble, placement=without)
    a, b = GRBCM().combine(ensemble), GRBCM().combine(bare)
    close(a.predict(ensemble, X).mean, b.predict(bare, X).mean, rtol=0, atol=0)
