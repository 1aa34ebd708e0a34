"""Priors on hyperparameters."""

from __future__ import annotations

import pytest
import torch
from helpers import FLOAT, close, shard
from scipy import stats

from distgp.data import RandomPartition, split
from distgp.experts import ExactExpert, Parameters
from distgp.kernels import RBF
from distgp.training import Admm, Fact, FedAvg, Gamma, LogNormal, train
from distgp.training.objective import log_prior

DATA = shard(40, 2)
SHARDS = split(DATA, RandomPartition().assign(DATA.X.numpy(), 3, 0))
THETA = Parameters.of(0.8 * RBF([0.5, 0.9]), 0.1)


def test_densities_are_scipys():
    values = torch.tensor([0.3, 1.7, 4.0], dtype=FLOAT)
    expected = stats.lognorm(s=0.7, scale=1.5).logpdf(values.numpy())
    close(LogNormal(1.5, 0.7).log_density(values), torch.as_tensor(expected))
    expected = stats.gamma(a=2.5, scale=1 / 3.0).logpdf(values.numpy())
    close(Gamma(2.5, 3.0).log_density(values), torch.as_tensor(expected))


def test_priors_are_added_once_whatever_the_number_of_experts():
    priors = {"kernel.kernel.lengthscale": LogNormal(3.0, 0.2), "noise": Gamma(2.0, 1.0)}
    for algorithm in (Fact(n_iter=1), FedAvg(n_iter=1), Admm(n_iter=1)):
        plain = train(algorithm, ExactExpert(), THETA, SHARDS)
        priored = train(algorithm, ExactExpert(), THETA, SHARDS, priors=priors)
        difference = plain.history[0].objective - priored.history[0].objective
        assert difference == pytest.approx(float(log_prior(priors, THETA)), rel=1e-8)


def test_a_strong_prior_decides():
    strong = {"kernel.kernel.lengthscale": LogNormal(3.0, 0.01)}
    result = train(Fact(n_iter=100), ExactExpert(), THETA, SHARDS, priors=strong)
    lengthscales = result.parameters.kernel.parameters()["kernel.lengthscale"]
    close(lengthscales, torch.full((2,), 3.0, dtype=FLOAT), rtol=0.05)
