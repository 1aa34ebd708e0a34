"""The expert with the smallest variance and the barycentre, against loops over experts and points."""

import math

import pytest
import torch
from ensembles import KINDS, build, each_point, far, full_gp, posterior
from helpers import FLOAT, close, inputs, shard

from distgp.aggregation import Barycentre, Ensemble, MinVariance, SoftmaxPoE
from distgp.aggregation.marginals import Marginals, expert_marginals
from distgp.data import Shard
from distgp.experts import ExactExpert, Parameters
from distgp.kernels import RBF

X = inputs(15, 2, 3)


def naive(marginals, rule, space):
    """The definitions, point by point, in Python floats."""
    M, means, variances = len(marginals.mean), [], []
    for mu, s2, prior in each_point(marginals, space):
        if rule == "min-variance":
            best = min(range(M), key=lambda i: s2[i])
            means.append(mu[best])
            variances.append(s2[best])
            continue
        powers = [1.0] * M
        if rule == "softmax":
            powers = [math.exp(-7.0 * s2[i] / prior[i]) for i in range(M)]
        beta = [power / sum(powers) for power in powers]
        means.append(sum(b * m for b, m in zip(beta, mu, strict=True)))
        variances.append(sum(b * math.sqrt(v) for b, v in zip(beta, s2, strict=True)) ** 2)
    return torch.tensor(means, dtype=FLOAT), torch.tensor(variances, dtype=FLOAT)


@pytest.mark.parametrize("space", ["latent", "observed"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rule", "make"),
    [
        ("min-variance", MinVariance),
        ("softmax", lambda space: Barycentre("softmax", 7.0, space)),
        ("uniform", lambda space: Barycentre("uniform", space=space)),
    ],
)
def test_against_loops(rule, make, kind, space):
    ensemble, _ = build(kind, 4)
    mean, variance = naive(expert_marginals(posterior(ensemble), X), rule, space)
    combined = make(space=space).combine(ensemble)
    out = combined.predict(ensemble, X, observed=space == "observed")
    close(out.mean, mean, rtol=1e-9)
    close(out.variance, variance, rtol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_gaussian_is_nearer_than_the_barycentre(kind):
    ensemble, _ = build(kind, 4)
    marginals = expert_marginals(posterior(ensemble), X)
    beta, out = marginals.softmax(7.0), Barycentre(temperature=7.0).merge(marginals)

    def distance(mean, deviation):
        """Σβ_i W₂² to the experts."""
        gaps = (mean - marginals.mean).square() + (deviation - marginals.variance.sqrt()).square()
        return (beta * gaps).sum(0)

    least = distance(out.mean, out.variance.sqrt())
    for a, b in ((0.01, 0.0), (-0.01, 0.0), (0.0, 0.01), (0.0, -0.01)):
        moved = distance(out.mean + a, out.variance.sqrt() + b)
        close(moved - least, torch.full_like(moved, 1e-4), rtol=1e-9)


def test_experts_with_the_same_inputs_are_tied_and_their_means_averaged():
    data = shard(20, 2)
    other = Shard.of(data.X, data.y + 1.0)  # the same variances everywhere, other means
    worse = shard(3, 2, seed=1)
    theta = Parameters.of(1.3 * RBF([0.6, 0.6]), 0.05)

    def predict(shards):
        ensemble = Ensemble.condition(ExactExpert(), theta, shards)
        return MinVariance().combine(ensemble).predict(ensemble, data.X)

    first, second = predict([data]), predict([other])
    for shards in ([data, other, worse], [worse, other, data]):
        out = predict(shards)
        close(out.mean, 0.5 * (first.mean + second.mean), rtol=1e-9)
        close(out.variance, first.variance, rtol=1e-9)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_decides_no_tie(dtype):
    mean = torch.tensor([[1.0], [3.0], [50.0]], dtype=dtype)
    error = 4 * torch.finfo(dtype).eps
    prior, none = torch.ones_like(mean), torch.zeros_like(mean)
    for rounding in (-error, 0.0, error):
        variance = torch.tensor([[0.1], [0.1 * (1 + rounding)], [0.2]], dtype=dtype)
        out = MinVariance().merge(Marginals(mean, variance, none, prior, none))
        close(out.mean, torch.tensor([2.0], dtype=dtype))


def test_the_smallest_variance_is_at_least_that_of_the_full_gp():
    ensemble, data = build("exact", 5)
    out = MinVariance().combine(ensemble).predict(ensemble, X)
    full = full_gp(ensemble, data, X)
    assert bool((out.variance >= full.variance).all())


@pytest.mark.parametrize("kind", ["exact, own θ", "sparse, own θ"])
def test_far_from_the_data_with_different_hyperparameters(kind):
    # Every expert returns its own prior; the softmax of equal ratios is uniform.
    ensemble, _ = build(kind, 4)
    points = far(2, 1e4)
    prior = expert_marginals(posterior(ensemble), points).base_variance

    def variance(aggregator):
        return aggregator.combine(ensemble).predict(ensemble, points).variance

    close(variance(MinVariance()), prior.amin(0), rtol=1e-8)
    close(variance(Barycentre()), prior.sqrt().mean(0).square(), rtol=1e-8)
    close(variance(SoftmaxPoE()), 1.0 / (1.0 / prior).mean(0), rtol=1e-8)


@pytest.mark.parametrize("make", [MinVariance, Barycentre])
def test_unknown_spaces_are_refused(make):
    with pytest.raises(ValueError, match="space must be one of 'latent', 'observed', got 'both'"):
        make(space="both")


def test_options_out_of_range_are_refused():
    with pytest.raises(ValueError, match="weights must be one of 'softmax', 'uniform'"):
        Barycentre(weights="entropy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="temperature must be finite and not negative, got -1"):
        Barycentre(temperature=-1.0)
