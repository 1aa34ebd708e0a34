"""Names of parameters, bounds, and the objective itself."""

from __future__ import annotations

import math

import pytest
import torch
from helpers import FLOAT, close, inputs, shard

from distgp.data import RandomPartition, split, stack
from distgp.engines import LocalPlacement
from distgp.experts import ExactExpert, Parameters, SparseExpert
from distgp.kernels import RBF, Linear, Matern32
from distgp.linalg import NotPositiveDefiniteError
from distgp.training import Admm, Fact, FedAvg, Gamma, LogNormal, objective_value, train
from distgp.training.objective import Layout, Objective, log_prior

DATA = shard(40, 2)
SHARDS = split(DATA, RandomPartition().assign(DATA.X.numpy(), 3, 0))


def theta(noise: float = 0.1) -> Parameters:
    return Parameters.of(0.8 * RBF([0.5, 0.9]), noise)


def several() -> Parameters:
    return Parameters.of(RBF([0.5, 0.9]) + 0.7 * Matern32(1.5) + Linear(0.3), 0.1, inputs(4, 2))


def test_a_vector_holds_shared_parameters_first():
    layout = Layout.of(several(), own=["noise", "inducing"], fixed=["variance"])
    assert set(layout.own) == {"noise", "inducing"}
    assert layout.names == (*layout.shared, *layout.own)
    assert not any(name.endswith("variance") for name in layout.names)
    assert layout.n_shared == 3 and len(layout.low) == 3 + 1 + 8
    vector = layout.pack(several())
    back = layout.unpack(vector).unconstrained()
    for name, value in several().unconstrained().items():
        close(back[name], value)
    each = torch.stack([vector, vector + torch.arange(12) * (torch.arange(12) > 2)])
    assert layout.unpack(each).batch == layout.unpack(each).inducing_batch == torch.Size([2])
    agreed = layout.unpack(each, agreed=True)
    assert all(not batch for batch in agreed.kernel.batches().values())
    assert agreed.noise.shape == agreed.inducing_batch == torch.Size([2])
    shared, own = layout.split(vector, 2)
    close(layout.join(shared, own), vector.expand(2, -1))


def test_the_last_part_of_a_name_stands_for_all_of_that_name():
    start = several()
    lengths = [name for name in start.unconstrained() if name.endswith("lengthscale")]
    assert len(lengths) == 2
    short, full = Layout.of(start, fixed=["lengthscale"]), Layout.of(start, fixed=lengths)
    assert short.names == full.names
    bounds = {"lengthscale": (0.1, 2.0), lengths[0]: (0.2, 3.0)}  # the full path outranks
    for order in (bounds, dict(reversed(bounds.items()))):
        layout = Layout.of(start, fixed=["inducing", "noise", "variance"], bounds=order)
        assert layout.names == tuple(lengths)
        close(layout.low.exp(), torch.tensor([0.2, 0.2, 0.1], dtype=FLOAT))
        close(layout.high.exp(), torch.tensor([3.0, 3.0, 2.0], dtype=FLOAT))
    result = train(Fact(n_iter=3), ExactExpert(), theta(), SHARDS, fixed=["lengthscale"])
    found = result.parameters.kernel.parameters()["kernel.lengthscale"]
    assert torch.equal(found, torch.tensor([0.5, 0.9], dtype=FLOAT))


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"no parameter 'period'; there are kernel\.variance"):
        train(Fact(), ExactExpert(), theta(), SHARDS, fixed=["period"])
    with pytest.raises(ValueError, match=r"no parameter 'kernel\.lengthscale'"):
        train(Fact(), ExactExpert(), theta(), SHARDS, own=["kernel.lengthscale"])
    with pytest.raises(ValueError, match="nothing to train"):
        train(Fact(), ExactExpert(), theta(), SHARDS, fixed=list(theta().unconstrained()))
    with pytest.raises(ValueError, match="bounds of noise"):
        train(Fact(), ExactExpert(), theta(), SHARDS, bounds={"noise": (1.0, 0.1)})
    with pytest.raises(ValueError, match="bounds of noise"):
        train(Fact(), ExactExpert(), theta(), SHARDS, bounds={"noise": (-2.0, 0.0)})
    for name in ("period", "inducing"):
        with pytest.raises(ValueError, match="for a prior: no parameter"):
            train(Fact(), SparseExpert(), several(), SHARDS, priors={name: Gamma(1.0, 1.0)})


@pytest.mark.parametrize(
    "algorithm",
    [Fact(n_iter=40), Fact("adam", n_iter=40), FedAvg(n_iter=10), Admm(n_iter=10)],
    ids=str,
)
def test_bounds_hold(algorithm):
    bounds = {"noise": (0.05, 0.2), "kernel.kernel.lengthscale": (1e-3, 0.4)}
    result = train(algorithm, ExactExpert(), theta(), SHARDS, bounds=bounds)
    for round_ in result.history:
        assert 0.05 * (1 - 1e-9) <= round_.hyperparameters["noise"][0] <= 0.2 * (1 + 1e-9)
        assert max(round_.hyperparameters["kernel.kernel.lengthscale"]) <= 0.4 * (1 + 1e-9)


class PartlyFailing(ExactExpert):
    """An exact expert whose factorisation fails where the noise is small."""

    def objective(self, parameters, shard):
        if bool((parameters.noise < 0.05).any()):
            raise NotPositiveDefiniteError("too little noise")
        return super().objective(parameters, shard)


def test_one_expert_that_fails_does_not_spoil_the_others():
    objective = Objective.of(PartlyFailing(), Layout.of(theta()))
    vectors = torch.stack([objective.layout.pack(theta(noise)) for noise in (0.1, 0.01, 0.2)])
    batch, weight = stack(SHARDS), torch.ones(3, dtype=FLOAT)
    values, gradient = objective.evaluate(batch, vectors, weight)
    assert torch.isfinite(values).tolist() == [True, False, True]
    assert torch.isfinite(gradient).all(-1).tolist() == [True, False, True]
    alone, slope = objective.evaluate(batch[2:], vectors[2:], weight[2:])
    close(values[2:], alone)
    close(gradient[2:], slope)
    values, gradient = objective.evaluate(batch, vectors[1], weight)
    assert torch.isnan(values).all() and torch.isnan(gradient).all()


def test_the_objectives_value_is_that_of_training():
    priors = {"lengthscale": LogNormal(1.0, 0.3)}
    for kind, start in ((ExactExpert(), theta()), (SparseExpert(), several())):
        first = train(Fact(n_iter=1), kind, start, SHARDS).objective
        assert objective_value(kind, start, SHARDS) == pytest.approx(first, rel=1e-10)
        placement = LocalPlacement((stack(SHARDS[:1]), stack(SHARDS[1:])))
        assert objective_value(kind, start, placement) == pytest.approx(first, rel=1e-10)
        first = train(Fact(n_iter=1), kind, start, SHARDS, priors=priors).objective
        assert objective_value(kind, start, SHARDS, priors) == pytest.approx(first, rel=1e-10)
    full = {"kernel.kernel.lengthscale": LogNormal(1.0, 0.3)}
    less = objective_value(ExactExpert(), theta(), SHARDS) - objective_value(
        ExactExpert(), theta(), SHARDS, priors
    )
    assert less == pytest.approx(float(log_prior(full, theta())), rel=1e-9)
    assert math.isnan(objective_value(PartlyFailing(), theta(0.01), SHARDS))
