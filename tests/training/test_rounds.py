"""What a user of `train` meets: stopping, trouble, the history, starts that differ."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from helpers import FLOAT, close, inputs, shard

from distgp.data import RandomPartition, Shard, split
from distgp.experts import ExactExpert, Parameters
from distgp.kernels import RBF
from distgp.linalg import NotPositiveDefiniteError
from distgp.training import (
    Admm,
    Fact,
    FedAvg,
    FedProx,
    Independent,
    TrainingWarning,
    train,
)

DATA = shard(60, 2)
SHARDS = split(DATA, RandomPartition().assign(DATA.X.numpy(), 3, 0))


def theta(noise: float = 0.1) -> Parameters:
    return Parameters.of(0.8 * RBF([0.5, 0.9]), noise)


class Fragile(ExactExpert):
    """An exact expert whose factorisation fails where the noise is small."""

    def objective(self, parameters, shard):
        if bool((parameters.noise < 0.05).any()):
            raise NotPositiveDefiniteError("too little noise")
        return super().objective(parameters, shard)


class Hopeless(ExactExpert):
    """An exact expert whose objective can be computed nowhere."""

    def objective(self, parameters, shard):
        return super().objective(parameters, shard) * float("nan")


@pytest.mark.parametrize(
    "algorithm",
    [
        Fact(n_iter=60),
        Fact("adam", learning_rate=0.5, n_iter=60),
        FedAvg(learning_rate=0.5, n_iter=30),
        FedProx(learning_rate=0.5, n_iter=30),
        Admm(learning_rate=0.5, rho=5.0, n_iter=30),
        Independent(learning_rate=0.5, n_iter=60),
    ],
    ids=str,
)
def test_trouble_is_stepped_back_from_and_said_once(algorithm):
    with pytest.warns(TrainingWarning, match="taken back") as caught:
        result = train(algorithm, Fragile(), theta(), SHARDS)
    assert len(caught) == 1
    assert np.isfinite(result.objective)
    assert result.history[-1].objective < result.history[0].objective
    noise = result.parameters.noise
    assert bool(torch.isfinite(noise).all()) and float(noise.min()) > 0.02


def test_a_hopeless_start_ends_without_a_traceback():
    with pytest.warns(TrainingWarning):
        result = train(Fact(n_iter=200), Hopeless(), theta(), SHARDS)
    assert result.stopped == "diverged"


@pytest.mark.filterwarnings("ignore::distgp.training.TrainingWarning")
@pytest.mark.parametrize(
    "algorithm",
    [
        Admm(n_iter=80, local_steps=1),
        Independent(n_iter=80),
        FedAvg(n_iter=80, local_steps=1),
        Fact("adam", n_iter=80),
    ],
    ids=str,
)
def test_everyone_says_so_when_nothing_works(algorithm):
    assert train(algorithm, Hopeless(), theta(), SHARDS).stopped == "diverged"


def test_ctrl_c_ends_training_at_once():
    class Interrupted(ExactExpert):
        def objective(self, parameters, shard):
            raise KeyboardInterrupt

    for optimizer in ("lbfgs", "adam"):
        with pytest.raises(KeyboardInterrupt):
            train(Fact(optimizer, n_iter=50), Interrupted(), theta(), SHARDS)  # type: ignore[arg-type]


def test_why_training_stops():
    assert train(Fact(n_iter=3), ExactExpert(), theta(), SHARDS).stopped == "iterations"
    assert train(Fact(n_iter=500), ExactExpert(), theta(), SHARDS).stopped == "tolerance"
    unmoved = train(Fact(n_iter=0), ExactExpert(), theta(), SHARDS)
    assert unmoved.stopped == "iterations" and unmoved.history == ()
    close(unmoved.parameters.noise, theta().noise)


def test_the_tolerance_counts_five_accepted_rounds_in_a_row():
    loose = train(Fact("adam", n_iter=50), ExactExpert(), theta(), SHARDS, tolerance=1e9)
    assert loose.stopped == "tolerance" and len(loose.history) == 6


def test_the_history_tells_what_happened():
    result = train(FedAvg(n_iter=3, local_steps=2), ExactExpert(), theta(), SHARDS)
    first, *_, last = result.history
    start = sum(float(ExactExpert().objective(theta(), s)) for s in SHARDS)
    assert first.objective == pytest.approx(start, rel=1e-10)
    assert [r.number for r in result.history] == [1, 2, 3]
    final = result.parameters.kernel.parameters()["kernel.lengthscale"].tolist()
    assert last.hyperparameters["kernel.kernel.lengthscale"] == pytest.approx(final)
    assert all(r.seconds > 0 and r.gradient_norm > 0 for r in result.history)
    # θ to each of 3 experts; to each its rate, share, step count and two moments (P = 4); back the
    # same without the share, and point, good point, value, gradient, failures.
    assert first.bytes == 8 * (3 * 4 + 3 * (3 + 8) + 3 * (2 + 8) + 3 * (4 + 4 + 1 + 4 + 1))


def test_nothing_is_printed_where_nobody_looks(capfd):
    train(Fact(n_iter=3), ExactExpert(), theta(), SHARDS)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""
    train(Fact(n_iter=3), ExactExpert(), theta(), SHARDS, verbose=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    last = captured.err.splitlines()[-1]
    assert last.startswith("training by joint (FACT): 3 of at most 3: objective ")


def test_each_expert_may_start_elsewhere():
    starts = Parameters.of(0.8 * RBF([[0.5, 0.9], [0.6, 0.8], [0.7, 0.7]]), [0.1, 0.2, 0.3])  # type: ignore[list-item]
    result = train(Independent(n_iter=1, learning_rate=1e-9), ExactExpert(), starts, SHARDS)
    close(result.parameters.noise, starts.noise, rtol=1e-6)
    with pytest.raises(ValueError, match=r"has a batch of \(3,\) for 4 shards"):
        train(Independent(n_iter=1), ExactExpert(), starts, [*SHARDS, SHARDS[0]])
    with pytest.raises(ValueError, match="cannot share or keep fixed"):
        train(Fact(n_iter=1), ExactExpert(), starts, SHARDS)
    with pytest.raises(ValueError, match="cannot share or keep fixed"):
        train(Independent(n_iter=1), ExactExpert(), starts, SHARDS, fixed=["noise"])


def test_own_hyperparameters_start_where_they_are_told_to():
    starts = Parameters.of(0.8 * RBF([0.5, 0.9]), [0.1, 0.2, 0.3])  # type: ignore[arg-type]
    for optimizer in ("lbfgs", "adam"):
        fact = Fact(optimizer, n_iter=1, learning_rate=1e-9)  # type: ignore[arg-type]
        result = train(fact, ExactExpert(), starts, SHARDS, own=["noise"])
        close(result.parameters.noise, starts.noise, rtol=1e-6)
        assert not any(result.parameters.kernel.batches().values())
    result = train(Fact(n_iter=40), ExactExpert(), starts, SHARDS, own=["noise"])
    assert result.objective < result.history[0].objective - 1.0


def test_training_recovers_known_hyperparameters():
    """400 rows from the prior itself: within three standard errors of the truth."""
    generator = torch.Generator().manual_seed(0)
    X = inputs(400, 1)
    truth = Parameters.of(1.0 * RBF(0.3), 0.04)
    K = truth.kernel(X) + 0.04 * torch.eye(400, dtype=FLOAT)
    y = torch.linalg.cholesky(K) @ torch.randn(400, generator=generator, dtype=FLOAT)
    start = Parameters.of(0.3 * RBF(1.0), 0.5)
    result = train(Fact(n_iter=200), ExactExpert(), start, [Shard.of(X, y)])
    assert float(result.parameters.noise) == pytest.approx(0.04, rel=0.25)
    lengthscale = float(result.parameters.kernel.parameters()["kernel.lengthscale"])
    assert lengthscale == pytest.approx(0.3, rel=0.3)


def test_algorithms_are_values():
    assert Fact(n_iter=5) == dataclasses.replace(Fact(), n_iter=5)


@pytest.mark.filterwarnings("ignore::distgp.training.TrainingWarning")
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(optimizer="sgd", learning_rate=300.0, local_steps=1, n_iter=5),
        Fact("sgd", learning_rate=300.0, n_iter=5),
        Fact("adam", learning_rate=300.0, n_iter=5),
        Admm(optimizer="sgd", learning_rate=30.0, n_iter=5),
        Independent(optimizer="sgd", learning_rate=300.0, n_iter=5),
    ],
    ids=str,
)
def test_a_wild_step_is_no_traceback(algorithm):
    result = train(algorithm, ExactExpert(), theta(), SHARDS)
    assert bool(torch.isfinite(result.parameters.noise).all())


@pytest.mark.parametrize(
    "bounds",
    [
        {"kernel.kernel.lengthscale": (1e-3, 0.3)},
        {"noise": (0.6, 2.0)},
        {"kernel.variance": (1e-3, 0.1), "noise": (0.01, 0.1)},
    ],
    ids=str,
)
def test_lbfgs_reaches_the_optimum_within_bounds(bounds):
    ours = train(Fact(n_iter=150), ExactExpert(), theta(), SHARDS, bounds=bounds, tolerance=1e-12)
    slow = Fact("adam", learning_rate=0.05, n_iter=150)
    adam = train(slow, ExactExpert(), theta(), SHARDS, bounds=bounds, tolerance=0.0)
    assert abs(ours.objective - adam.objective) <= 1e-3
    values = [r.objective for r in ours.history]
    assert all(b <= a for a, b in itertools.pairwise(values))


@pytest.mark.parametrize(
    "algorithm", [Fact(n_iter=3), FedAvg(n_iter=3), FedProx(n_iter=3), Admm(n_iter=3)], ids=str
)
def test_float32_parameters_stay_float32(algorithm):
    narrow = [s.to(dtype=torch.float32) for s in SHARDS]
    result = train(algorithm, ExactExpert(), theta().to(dtype=torch.float32), narrow)
    assert result.parameters.noise.dtype == torch.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FedAvg(local_steps=0), "must be positive"),
        (lambda: FedAvg(learning_rate=-0.1), "must be positive"),
        (lambda: Fact("adam", learning_rate=0.0), "must be positive"),
        (lambda: FedAvg(optimizer="lbfgs"), "no optimizer 'lbfgs'; there are adam, sgd"),  # type: ignore[arg-type]
        (lambda: Fact(optimizer="newton"), "no optimizer 'newton'; there are lbfgs, adam, sgd"),  # type: ignore[arg-type]
        (lambda: Independent(optimizer="lbfgs"), "no optimizer 'lbfgs'"),  # type: ignore[arg-type]
        (lambda: FedProx(mu=-1.0), "mu ≥ 0"),
        (lambda: Admm(rho=0.0), "rho must be positive"),
    ],
)
def test_options_that_cannot_work_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
