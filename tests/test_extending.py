"""A kernel, an aggregator and an engine from outside the package, used, saved and loaded by name."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from helpers import make_data

import distgp
from distgp import DistributedGPRegressor, aggregation, engines, kernels
from distgp.aggregation.base import POSTERIORS, Aggregator, Combined
from distgp.aggregation.marginals import MarginalAggregator, expert_marginals
from distgp.engines import LocalEngine
from distgp.experts import Prediction
from distgp.files.model_file import ModelFileError

X, Y = make_data(90, noise=0.2)
NEW = make_data(7, seed=1)[0]


class Cauchy(kernels.Stationary):
    """1 / (1 + r²)."""

    name = "cauchy"

    def shape(self, square):
        return 1.0 / (1.0 + square)


@dataclass(frozen=True)
class Mean(MarginalAggregator):
    """The plain average of means and variances: a formula, and no more."""

    name: ClassVar[str] = "mean"
    space: str = "latent"

    def merge(self, marginals):
        return Prediction(marginals.mean.mean(0), marginals.variance.mean(0))


@dataclass(frozen=True, eq=False, kw_only=True)
class FirstCombined(Combined):
    """The posterior of the first expert, and a number of its own."""

    scale: torch.Tensor

    def predict_chunk(self, ensemble, X):
        found = expert_marginals(ensemble.placement.items[0], X)
        return Prediction(self.scale * found.mean[0], found.variance[0])


@dataclass(frozen=True)
class First(Aggregator):
    """An aggregator with a class of posteriors of its own."""

    name: ClassVar[str] = "first"

    def posterior(self, ensemble) -> Combined:
        return FirstCombined(scale=torch.tensor(2.0, dtype=torch.float64))


class Counting(LocalEngine):
    """An engine of one process that counts how often items are placed."""

    name: ClassVar[str] = "counting"
    placed = 0

    def scatter(self, sources, names):
        Counting.placed += 1
        return super().scatter(sources, names)


@pytest.fixture(autouse=True)
def registered():
    """Register all of them, and forget them again."""
    kernels.register(Cauchy)
    aggregation.register(Mean)
    aggregation.register(First, FirstCombined)
    engines.register("counting", lambda device: Counting())
    yield
    forget()


def forget():
    for registry, name in (
        (kernels.KERNELS, "cauchy"),
        (aggregation.AGGREGATORS, "mean"),
        (aggregation.AGGREGATORS, "first"),
        (POSTERIORS, "first"),
        (engines.ENGINES, "counting"),
    ):
        registry.pop(name, None)


@pytest.mark.parametrize("name", ["mean", "first"])
def test_kernel_aggregator_and_engine_of_ones_own(name, tmp_path):
    options = {"expert": "exact", "n_experts": 3, "n_iter": 3, "kernel": "cauchy + linear"}
    before = Counting.placed
    gp = DistributedGPRegressor(aggregation=name, engine="counting", **options).fit(X, Y)
    assert Counting.placed == before + 1
    found = gp.predict(NEW, return_std=True)
    other = DistributedGPRegressor(aggregation="poe", **options).fit(X, Y)
    np.testing.assert_array_equal(other.predict(NEW, return_std=True, aggregation=name), found)
    assert not np.allclose(other.predict(NEW), found[0])
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict(NEW, return_std=True), found)
    assert again.aggregation_ == gp.aggregation_ and "Cauchy" in str(again.kernel_)
    forget()
    with pytest.raises(ModelFileError, match=r"there is no .* in distgp: register its class"):
        distgp.load(tmp_path / "m.safetensors")


def test_names_that_were_not_registered_are_refused():
    forget()
    for name, value in (("kernel", "cauchy"), ("aggregation", "mean"), ("engine", "counting")):
        with pytest.raises(ValueError, match=f"'?{value}'?"):
            DistributedGPRegressor(**{name: value}).fit(X, Y)


def test_only_sums_gradients_and_hyperparameters_leave():
    """Pooled training and prediction, with inducing inputs agreed on beforehand."""
    Z = X[:12]
    options = {"expert": "sparse", "n_experts": 4, "n_inducing": Z, "n_iter": 5}
    allowed = ["sums", "gradients", "parameters", "counts", "moments"]
    engine = engines.DevicesEngine(["cpu", "cpu"], may_leave=allowed)
    held = DistributedGPRegressor(engine=engine, **options).fit(X, Y)
    free = DistributedGPRegressor(**options).fit(X, Y)
    np.testing.assert_allclose(held.predict(NEW), free.predict(NEW), atol=1e-8)
    assert held.model_.inputs is None and free.model_.inputs is not None
    assert set(engine.traffic.received) <= {*allowed, "settings"}
    with pytest.raises(engines.MayNotLeaveError, match="predictions"):
        held.predict(NEW, aggregation="rbcm")


def test_noise_of_observations_is_multiplied_by_the_factor_that_was_learnt():
    noise = np.linspace(0.01, 0.1, len(X))
    gp = DistributedGPRegressor(expert="exact", n_experts=1, n_iter=5).fit(
        X, Y, noise_variance=noise
    )
    factor, given = gp.noise_, np.linspace(0.5, 2.0, len(NEW))
    assert abs(factor - 1.0) > 0.01
    latent = gp.predict(NEW, return_std=True, latent=True)[1]
    std = gp.predict(NEW, return_std=True, noise_variance=given)[1]
    np.testing.assert_allclose(std**2, latent**2 + factor * given)
    typical = gp.predict(NEW, return_std=True)[1]
    np.testing.assert_allclose(typical**2, latent**2 + factor * noise.mean())
