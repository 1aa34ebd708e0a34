"""The aggregators from marginals against loops over experts and points."""

import math

import numpy as np
import pytest
import torch
from ensembles import KINDS, build, each_point, full_gp, parameters, posterior, shards_of
from helpers import FLOAT, close, inputs, shard

from distgp.aggregation import BCM, GRBCM, RBCM, Ensemble, GPoE, PoE, SoftmaxPoE
from distgp.aggregation.marginals import expert_marginals
from distgp.data import RandomPartition, Shard, concatenate, with_communication
from distgp.experts import ExactExpert, Parameters
from distgp.kernels import RBF

X = inputs(15, 2, 3)


def naive(marginals, rule, space):
    """Equation (4), point by point: β, precision and mean in Python floats."""
    M, means, variances = len(marginals.mean), [], []
    for mu, s, prior in each_point(marginals, space):
        gain = [0.5 * (math.log(prior[i]) - math.log(s[i])) for i in range(M)]
        powers = [math.exp(-7.0 * s[i] / prior[i]) for i in range(M)]
        beta = {
            "poe": [1.0] * M,
            "uniform": [1.0 / M] * M,
            "normalised": [g / sum(gain) for g in gain],
            "entropy": gain,
            "softmax": [power / sum(powers) for power in powers],
            "bcm": [1.0] * M,
            "rbcm": gain,
        }[rule]
        precision = sum(b / v for b, v in zip(beta, s, strict=True))
        if rule in ("bcm", "rbcm"):
            precision -= sum(b / p for b, p in zip(beta, prior, strict=True))
            precision += sum(1 / p for p in prior) / M  # the mean prior precision
        means.append(sum(b * m / v for b, m, v in zip(beta, mu, s, strict=True)) / precision)
        variances.append(1 / precision)
    return torch.tensor(means, dtype=FLOAT), torch.tensor(variances, dtype=FLOAT)


@pytest.mark.parametrize("space", ["latent", "observed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rule", "make"),
    [
        ("poe", PoE),
        ("uniform", lambda space: GPoE("uniform", space)),
        ("normalised", lambda space: GPoE("normalised", space)),
        ("entropy", lambda space: GPoE("entropy", space)),
        ("softmax", lambda space: SoftmaxPoE(7.0, space)),
        ("bcm", BCM),
        ("rbcm", RBCM),
    ],
)
def test_against_loops(rule, make, kind, space):
    ensemble, _ = build(kind, 4)
    mean, variance = naive(expert_marginals(posterior(ensemble), X), rule, space)
    combined = make(space=space).combine(ensemble)
    out = combined.predict(ensemble, X, observed=space == "observed")
    close(out.mean, mean, rtol=1e-9)
    close(out.variance, variance, rtol=1e-9)


@pytest.mark.parametrize("space", ["latent", "observed"])
@pytest.mark.parametrize("kind", KINDS)
def test_bcm_is_the_prior_conditioned_on_equivalent_observations(kind, space):
    ensemble, _ = build(kind, 4)
    marginals = expert_marginals(posterior(ensemble), X)
    marginals = marginals.observed() if space == "observed" else marginals
    mu, s2, prior = (
        v.numpy() for v in (marginals.mean, marginals.variance, marginals.base_variance)
    )
    means, variances = [], []
    for x in range(len(X)):
        precision = 1.0 / s2[:, x] - 1.0 / prior[:, x]
        value = mu[:, x] / s2[:, x] / precision
        # Each one by itself makes its expert's marginal of the prior ...
        for i in range(4):
            gain = prior[i, x] / (prior[i, x] + 1.0 / precision[i])
            np.testing.assert_allclose(gain * value[i], mu[i, x], rtol=1e-10, atol=1e-13)
            np.testing.assert_allclose((1.0 - gain) * prior[i, x], s2[i, x], rtol=1e-10)
        # ... and all of them, observed at one point, BCM's. Where priors differ, theirs is the mean.
        common = 1.0 / np.mean(1.0 / prior[:, x])
        gains = common * np.linalg.solve(common + np.diag(1.0 / precision), np.ones(4))
        means.append(gains @ value)
        variances.append(common - common * gains.sum())
    combined = BCM(space=space).combine(ensemble)
    out = combined.predict(ensemble, X, observed=space == "observed")
    close(out.mean, torch.tensor(np.array(means)), rtol=1e-10, atol=1e-12)
    close(out.variance, torch.tensor(np.array(variances)), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_softmax_weights_lie_between_equal_ones_and_the_most_certain_expert(kind):
    ensemble, _ = build(kind, 4)
    marginals = expert_marginals(posterior(ensemble), X)
    uniform, equal = GPoE().merge(marginals), SoftmaxPoE(temperature=0.0).merge(marginals)
    close(equal.mean, uniform.mean, rtol=1e-12)
    close(equal.variance, uniform.variance, rtol=1e-12)
    first = (marginals.variance / marginals.base_variance).argmin(0)[None]
    alone = SoftmaxPoE(temperature=1e12).merge(marginals)
    close(alone.mean, marginals.mean.gather(0, first)[0], rtol=1e-12)
    close(alone.variance, marginals.variance.gather(0, first)[0], rtol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("space", ["latent", "observed"])
def test_grbcm_against_its_definition(kind, space):
    ensemble, _ = build(kind, 4)
    shards, theta = shards_of(ensemble), ensemble.parameters

    def predict(i, rows):
        out = ensemble.expert.condition(theta[i], rows).predict(X)
        return out.observed(theta[i].noise) if space == "observed" else out

    precision = torch.zeros(15, dtype=FLOAT)
    weighted = torch.zeros(15, dtype=FLOAT)
    for i in (1, 2, 3):
        plus = predict(i, concatenate([shards[0], shards[i]]))
        c = predict(i, shards[0])  # seen through expert i's own hyperparameters
        beta = 1.0 if i == 1 else 0.5 * (c.variance.log() - plus.variance.log())
        precision += beta * (1 / plus.variance - 1 / c.variance) + 1 / (3 * c.variance)
        weighted += beta * (plus.mean / plus.variance - c.mean / c.variance)
        weighted += c.mean / (3 * c.variance)
    combined = GRBCM(space=space).combine(ensemble)
    out = combined.predict(ensemble, X, observed=space == "observed")
    close(out.variance, 1 / precision, rtol=1e-8)
    close(out.mean, weighted / precision, rtol=1e-7)


def test_where_hyperparameters_differ_the_precision_is_positive_without_the_floor():
    # Variances far from alike: one common prior made the mean explode here.
    scales = torch.tensor([0.01, 1.0, 100.0], dtype=FLOAT)
    theta = Parameters.of(scales * RBF(torch.full((3, 1), 0.5, dtype=FLOAT)), scales * 0.1)
    data = [Shard.of(inputs(10, 1, s), inputs(10, 1, s + 1)[:, 0]) for s in range(3)]
    ensemble = Ensemble.condition(ExactExpert(), theta, data)
    points = torch.linspace(-3, 3, 50, dtype=FLOAT)[:, None]
    for aggregator in (BCM(), RBCM(), GRBCM()):
        out = aggregator.combine(ensemble).predict(ensemble, points)
        assert float(out.mean.abs().max()) < 3.0
        assert float(out.variance.max()) < 101.0


def test_with_communication_feeds_grbcm():
    data = shard(60, 2)
    shards = with_communication(data, 3, RandomPartition(), seed=0)
    ensemble = Ensemble.condition(ExactExpert(), parameters("exact", 3, 2), shards)
    out, full = GRBCM().combine(ensemble).predict(ensemble, X), full_gp(ensemble, data, X)
    assert float((out.mean - full.mean).abs().max()) < 0.3


@pytest.mark.parametrize("temperature", [-1.0, float("nan"), float("inf")])
def test_temperatures_out_of_range_are_refused(temperature):
    with pytest.raises(ValueError, match="temperature must be finite and not negative"):
        SoftmaxPoE(temperature=temperature)


@pytest.mark.parametrize("make", [PoE, BCM, RBCM, GRBCM, GPoE, SoftmaxPoE])
def test_unknown_options_are_refused(make):
    with pytest.raises(ValueError, match="space must be one of 'latent', 'observed', got 'both'"):
        make(space="both")
