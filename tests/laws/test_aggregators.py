"""What must hold of every aggregator, for every kind of expert that it serves."""

from __future__ import annotations

import itertools
import pickle

import pytest
import torch
from ensembles import (
    COMMON,
    KINDS,
    build,
    expert,
    far,
    full_gp,
    posterior,
    regrouped,
    shards_of,
    shuffled,
)
from helpers import FLOAT, close, concrete, inputs, shard
from hypothesis import given, settings
from hypothesis import strategies as st

from distgp.aggregation import (
    AGGREGATORS,
    BCM,
    GRBCM,
    NPAE,
    RBCM,
    AggregationError,
    Aggregator,
    Barycentre,
    Ensemble,
    Exact,
    GPoE,
    MarginalAggregator,
    MinVariance,
    Nearest,
    Opt,
    OptLocal,
    OptPrinted,
    PoE,
    Pooled,
    SoftmaxPoE,
    TwoLevel,
)
from distgp.data import RandomPartition, split, unstack
from distgp.engines import LocalPlacement
from distgp.experts import ExactExpert, NearestExpert, Parameters, SparseExpert, base
from distgp.kernels import RBF, Linear

pytestmark = [
    pytest.mark.filterwarnings("ignore::distgp.aggregation.WeightsWarning"),
    pytest.mark.filterwarnings("ignore::distgp.aggregation.CentralWarning"),
    pytest.mark.filterwarnings("ignore::distgp.linalg.JitterWarning"),
]

OPTIONS: dict[str, list[Aggregator]] = {
    "poe": [PoE(), PoE(space="observed")],
    "gpoe": [
        GPoE(weights=weights, space=space)
        for weights in ("uniform", "normalised", "entropy")
        for space in ("latent", "observed")
    ],
    "softmax-poe": [SoftmaxPoE(), SoftmaxPoE(temperature=5.0, space="observed")],
    "bcm": [BCM(), BCM(space="observed")],
    "rbcm": [RBCM(), RBCM(space="observed")],
    "grbcm": [GRBCM(), GRBCM(space="observed")],
    "min-variance": [MinVariance(), MinVariance(space="observed")],
    "barycentre": [
        Barycentre(weights=weights, space=space)
        for weights in ("softmax", "uniform")
        for space in ("latent", "observed")
    ],
    "npae": [NPAE()],
    "opt": [
        Opt(n_central=20),
        Opt(cross="exact"),
        Opt(variance="weighted"),
        Opt(variance="central", n_central=20),
        Opt(variance="nested"),
        Opt(ridge=0.1),
        Opt(n_eval=30),
        Opt(n_basis=40, ridge=0.1),
    ],
    "opt-printed": [OptPrinted(), OptPrinted(lam=1.0, variance="weighted")],
    "opt-local": [OptLocal(), OptLocal(ridge=0.0, n_eval=30)],
    "two-level": [TwoLevel(n_central=15), TwoLevel(n_central=15, variance="nested")],
    "pooled": [Pooled()],
    "nearest": [Nearest()],
    "exact": [
        Exact(),
        Exact(variance="nearest", tolerance=1e-9, n_neighbors=12, n_conditioning=8, n_inducing=9),
    ],
}
EVERY = list(itertools.chain(*OPTIONS.values()))
BARYCENTRES = [Barycentre(), Barycentre(weights="uniform")]


def serves(aggregator: Aggregator, kind: str) -> bool:
    """Which aggregator serves which experts, as the documentation says."""
    if aggregator.name == "nearest":  # tests/aggregation/test_nearest.py has its laws
        return False
    if aggregator.name == "exact":
        return kind == "exact"
    if kind not in COMMON:
        return isinstance(aggregator, MarginalAggregator | OptLocal) or (
            isinstance(aggregator, Opt)
            and aggregator.variance in ("own", "weighted")
            and aggregator.n_basis is None
        )
    return kind == "shared Z" or aggregator.name != "pooled"


PAIRS = [(a, kind) for a in EVERY for kind in KINDS if serves(a, kind)]
ALL = pytest.mark.parametrize(("aggregator", "kind"), PAIRS, ids=str)


def test_every_aggregator_is_tried():
    assert set(AGGREGATORS.values()) == set(concrete(Aggregator))
    assert OPTIONS.keys() == AGGREGATORS.keys()


@pytest.mark.parametrize(
    ("aggregator", "kind"),
    [(a, kind) for a in EVERY for kind in KINDS if not serves(a, kind)],
    ids=str,
)
def test_experts_that_are_not_served_are_refused_with_alternatives(aggregator, kind):
    ensemble, _ = build(kind, 3)
    with pytest.raises(AggregationError, match=rf"{aggregator.name} .*use .* instead"):
        aggregator.combine(ensemble)


@ALL
@pytest.mark.parametrize("M", [1, 2, 7])
def test_finite_and_positive_at_any_distance(aggregator, kind, M):
    ensemble, data = build(kind, M)
    X = torch.cat([data.X, far(2, 1.5), far(2, 5.0), far(2, 50.0), far(2, 1e6)])
    combined = aggregator.combine(ensemble)
    for observed in (False, True):
        out = combined.predict(ensemble, X, observed=observed)
        assert bool(torch.isfinite(out.mean).all())
        assert bool((torch.isfinite(out.variance) & (out.variance > 0)).all())
    close(combined.mean(ensemble, X), combined.predict(ensemble, X).mean, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", COMMON)
@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_two_hundred_experts(name, kind):
    aggregator = OPTIONS[name][0]
    if not serves(aggregator, kind):
        pytest.skip("does not serve these experts")
    ensemble, data = build(kind, 200, n=260)
    X = torch.cat([data.X[:20], far(2, 3.0), far(2, 1e4)])
    out = aggregator.combine(ensemble).predict(ensemble, X)
    assert bool(torch.isfinite(out.mean).all() & (out.variance > 0).all())


@settings(max_examples=10)
@given(
    M=st.integers(1, 12),
    extra=st.integers(0, 40),
    d=st.integers(1, 4),
    noise=st.sampled_from([1e-4, 1e-2, 1.0]),
    seed=st.integers(0, 99),
)
@pytest.mark.parametrize("name", list(AGGREGATORS))
def test_finite_and_positive_whatever_the_sizes(name, M, extra, d, noise, seed):
    kind = "shared Z" if name == "pooled" else "exact"
    ensemble, data = build(kind, M, n=M + extra, d=d, noise=noise, seed=seed)
    if name == "nearest":
        shards = unstack(ensemble.placement.gather().items[0].rows_held())
        ensemble = Ensemble.condition(NearestExpert(9, 5), ensemble.parameters, shards)
    out = OPTIONS[name][0].combine(ensemble).predict(ensemble, torch.cat([data.X, far(d, 2.0)]))
    assert bool(torch.isfinite(out.mean).all() & torch.isfinite(out.variance).all())
    assert bool((out.variance > 0).all())


@ALL
def test_the_division_over_workers_changes_nothing(aggregator, kind):
    ensemble, _ = build(kind, 5)
    X = inputs(12, 2, 3)
    whole = aggregator.combine(ensemble).predict(ensemble, X)
    for sizes in ([2, 3], [1, 3, 1]):
        divided = regrouped(ensemble, sizes)
        combined = aggregator.combine(divided)
        out = combined.predict(divided, X)
        close(out.mean, whole.mean, rtol=1e-6, atol=1e-7)
        close(out.variance, whole.variance, rtol=1e-6, atol=1e-8)
        close(combined.mean(divided, X), whole.mean, rtol=1e-6, atol=1e-7)


@ALL
def test_gathered_from_other_processes_it_predicts_the_same(aggregator, kind):
    ensemble, X = regrouped(build(kind, 5)[0], [2, 3], elsewhere=True), inputs(12, 2, 3)
    combined = aggregator.combine(ensemble)
    remote = combined.predict(ensemble, X)
    here, gathered = ensemble.gathered(), combined.gathered()
    assert isinstance(here.placement, LocalPlacement)
    for part in (here, gathered):
        assert b"Elsewhere" not in pickle.dumps(part)
    out = gathered.predict(here, X)
    close(out.mean, remote.mean, rtol=0, atol=0)
    close(out.variance, remote.variance, rtol=0, atol=0)


@ALL
def test_the_order_of_experts_does_not_matter(aggregator, kind):
    if aggregator.name == "grbcm":
        pytest.skip("the first augmented expert of grBCM has β = 1")
    ensemble, _ = build(kind, 5)
    other = shuffled(ensemble, [3, 0, 4, 1, 2])
    X = inputs(12, 2, 3)
    a = aggregator.combine(ensemble).predict(ensemble, X)
    b = aggregator.combine(other).predict(other, X)
    close(b.mean, a.mean, rtol=1e-6, atol=1e-7)
    close(b.variance, a.variance, rtol=1e-6, atol=1e-8)


@ALL
def test_chunks_change_nothing(aggregator, kind, monkeypatch):
    ensemble, _ = build(kind, 4)
    combined, X = aggregator.combine(ensemble), inputs(30, 2, 3)
    whole = combined.predict(ensemble, X)
    monkeypatch.setitem(base.CHUNK_ENTRIES, "cpu", 4 * combined.entries(ensemble))
    parts = combined.predict(ensemble, X)
    close(parts.mean, whole.mean, rtol=1e-8, atol=1e-9)
    close(parts.variance, whole.variance, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("aggregator", "kind"),
    [
        *[(a, k) for a in (PoE(), GPoE(), GPoE(weights="normalised"), BCM()) for k in KINDS],
        *[(a, k) for a in (SoftmaxPoE(), MinVariance(), *BARYCENTRES) for k in KINDS],
        *[(NPAE(), kind) for kind in COMMON],
        *[(GRBCM(), kind) for kind in KINDS],
        (Pooled(), "shared Z"),
        (Opt(), "exact"),
        (Opt(cross="exact"), "exact"),
        (TwoLevel(n_central=60), "exact"),
    ],
    ids=str,
)
@pytest.mark.parametrize("space", ["latent", "observed"])
def test_one_expert_alone_is_returned(aggregator, kind, space):
    if hasattr(aggregator, "space"):
        aggregator = type(aggregator)(**{**vars(aggregator), "space": space})
    ensemble, _ = build(kind, 1)
    X = torch.cat([inputs(20, 2, 3), far(2, 2.0)])
    alone = posterior(ensemble).predict(X)
    out = aggregator.combine(ensemble).predict(ensemble, X)
    close(out.mean, alone.mean[0], rtol=1e-6, atol=1e-7)
    close(out.variance, alone.variance[0], rtol=1e-6, atol=1e-7)


RETURN_TO_PRIOR = [
    *(BCM(), RBCM(), GRBCM(), NPAE(), TwoLevel(n_central=15), GPoE(), Pooled()),
    *(SoftmaxPoE(), MinVariance(), *BARYCENTRES),
]


@pytest.mark.parametrize("kind", COMMON)
@pytest.mark.parametrize(
    "aggregator", [*RETURN_TO_PRIOR, GPoE(weights="normalised")], ids=lambda a: str(a)
)
def test_far_from_the_data_the_prior_returns(aggregator, kind):
    if not serves(aggregator, kind):
        pytest.skip("does not serve these experts")
    ensemble, _ = build(kind, 5)
    out = aggregator.combine(ensemble).predict(ensemble, far(2, 40.0))
    close(out.mean, torch.zeros(3, dtype=FLOAT), atol=1e-8)
    close(out.variance, torch.full((3,), 1.3, dtype=FLOAT), rtol=1e-8)


@pytest.mark.parametrize("kind", COMMON)
def test_far_field_of_the_others(kind):
    ensemble, _ = build(kind, 5)
    X = far(2, 40.0)

    def variance(aggregator):
        return aggregator.combine(ensemble).predict(ensemble, X).variance

    close(variance(PoE()), torch.full((3,), 1.3 / 5, dtype=FLOAT))
    weighted = Opt(variance="weighted")
    weights = weighted.combine(ensemble).weights
    assert weights is not None
    expected = float(weights.square().sum()) * 1.3
    close(variance(weighted), torch.full((3,), expected, dtype=FLOAT))
    assert float(variance(GPoE(weights="entropy")).min()) > 1e6
    assert float(variance(OptPrinted()).max()) < 1e-12


@pytest.mark.parametrize("kind", COMMON)
def test_the_noise_is_added_once(kind):
    ensemble, _ = build(kind, 4)
    X = inputs(9, 2, 3)
    for aggregator in EVERY:
        if not serves(aggregator, kind) or getattr(aggregator, "space", "") == "observed":
            continue
        combined = aggregator.combine(ensemble)
        latent = combined.predict(ensemble, X)
        observed = combined.predict(ensemble, X, observed=True)
        close(observed.variance - latent.variance, torch.full((9,), 0.05, dtype=FLOAT))


def test_grbcm_of_two_shards_is_the_full_gp():
    ensemble, data = build("exact", 2)
    X = inputs(20, 2, 3)
    out, full = GRBCM().combine(ensemble).predict(ensemble, X), full_gp(ensemble, data, X)
    close(out.mean, full.mean)
    close(out.variance, full.variance, rtol=1e-8)


@pytest.mark.parametrize("kind", ["exact", "shared Z"])
def test_float32_runs(kind):
    ensemble, _ = build(kind, 4)
    narrow = [shard.to(dtype=torch.float32) for shard in shards_of(ensemble)]
    theta = ensemble.parameters.to(dtype=torch.float32)
    ensemble32 = Ensemble.condition(expert(kind), theta, narrow)
    X = inputs(9, 2, 3)
    for aggregator in EVERY:
        if not serves(aggregator, kind) or aggregator.name == "opt-printed":
            continue
        out = aggregator.combine(ensemble32).predict(ensemble32, X.to(torch.float32))
        assert out.mean.dtype == torch.float32, aggregator
        assert out.variance.dtype == torch.float32, aggregator
        wide = aggregator.combine(ensemble).predict(ensemble, X)
        close(out.mean.to(FLOAT), wide.mean, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("aggregator", EVERY, ids=str)
@pytest.mark.parametrize("name", ["linear", "linear times RBF"])
def test_where_the_prior_vanishes_nothing_breaks(aggregator, name):
    data = shard(40, 2)
    kernel = Linear(1.0) if name == "linear" else Linear(1.0) * RBF(0.7)
    pooled = aggregator.name == "pooled"
    theta = Parameters.of(kernel, 0.1, inputs(5, 2, 5) if pooled else None)
    shards = split(data, RandomPartition().assign(data.X.numpy(), 3, 0))
    special = {"pooled": SparseExpert(), "nearest": NearestExpert(9, 5)}
    expert = special.get(aggregator.name, ExactExpert())
    ensemble = Ensemble.condition(expert, theta, shards)
    out = aggregator.combine(ensemble).predict(ensemble, torch.zeros(2, 2, dtype=FLOAT))
    assert bool(torch.isfinite(out.mean).all())
    assert bool((torch.isfinite(out.variance) & (out.variance > 0)).all())
