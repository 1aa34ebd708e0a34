"""What a user meets: priors, bounds, stopping, trouble, files."""

from __future__ import annotations

import dataclasses
import itertools
import os
import signal

import numpy as np
import pytest
import torch
from helpers import FLOAT, close, inputs, shard
from scipy import stats

from distgp import RBF, ExactExpert, Parameters, RandomPartition, Shard, split
from distgp.training import (
    Admm,
    Fact,
    FedAvg,
    FedProx,
    Gamma,
    Independent,
    LogNormal,
    TrainingWarning,
    train,
)
from distgp.training.priors import log_prior

DATA = shard(60, 2)
SHARDS = split(DATA, RandomPartition().assign(DATA.X.numpy(), 3, 0))


def theta(noise: float = 0.1) -> Parameters:
    return Parameters.of(0.8 * RBF([0.5, 0.9]), noise)


def test_prior_densities_are_scipys():
    values = torch.tensor([0.3, 1.7, 4.0], dtype=FLOAT)
    expected = stats.lognorm(s=0.7, scale=1.5).logpdf(values.numpy())
    close(LogNormal(1.5, 0.7).log_density(values), torch.as_tensor(expected))
    expected = stats.gamma(a=2.5, scale=1 / 3.0).logpdf(values.numpy())
    close(Gamma(2.5, 3.0).log_density(values), torch.as_tensor(expected))


def test_priors_are_added_once_whatever_the_number_of_experts():
    priors = {"kernel.kernel.lengthscale": LogNormal(3.0, 0.2), "noise": Gamma(2.0, 1.0)}
    for algorithm in (Fact(n_iter=1), FedAvg(n_iter=1), Admm(n_iter=1)):
        plain = train(algorithm, ExactExpert(), theta(), SHARDS)
        priored = train(algorithm, ExactExpert(), theta(), SHARDS, priors=priors)
        difference = plain.history[0].objective - priored.history[0].objective
        assert difference == pytest.approx(float(log_prior(priors, theta())), rel=1e-8)
    strong = {"kernel.kernel.lengthscale": LogNormal(3.0, 0.01)}
    result = train(Fact(n_iter=100), ExactExpert(), theta(), SHARDS, priors=strong)
    lengthscales = result.parameters.kernel.parameters()["kernel.lengthscale"]
    close(lengthscales, torch.full((2,), 3.0, dtype=FLOAT), rtol=0.05)


@pytest.mark.parametrize(
    "algorithm",
    [Fact(n_iter=40), Fact("adam", n_iter=40), FedAvg(n_iter=20), Admm(n_iter=20)],
    ids=str,
)
def test_bounds_hold(algorithm):
    bounds = {"noise": (0.05, 0.2), "kernel.kernel.lengthscale": (1e-3, 0.4)}
    result = train(algorithm, ExactExpert(), theta(), SHARDS, bounds=bounds)
    for round_ in result.history:
        assert 0.05 * (1 - 1e-9) <= round_.hyperparameters["noise"][0] <= 0.2 * (1 + 1e-9)
        assert max(round_.hyperparameters["kernel.kernel.lengthscale"]) <= 0.4 * (1 + 1e-9)


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match=r"no parameter 'lengthscale'; there are kernel\.variance"):
        train(Fact(), ExactExpert(), theta(), SHARDS, fixed=["lengthscale"])
    with pytest.raises(ValueError, match="nothing to train"):
        train(Fact(), ExactExpert(), theta(), SHARDS, fixed=list(theta().unconstrained()))
    with pytest.raises(ValueError, match="bounds of noise"):
        train(Fact(), ExactExpert(), theta(), SHARDS, bounds={"noise": (1.0, 0.1)})
    with pytest.raises(ValueError, match="rho must be positive"):
        Admm(rho=0.0)


class Fragile(ExactExpert):
    """An exact expert whose factorisation fails where the noise is small."""

    def objective(self, parameters, shard):
        from distgp import NotPositiveDefiniteError

        if bool((parameters.noise < 0.05).any()):
            raise NotPositiveDefiniteError("too little noise")
        return super().objective(parameters, shard)


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
    class Hopeless(ExactExpert):
        def objective(self, parameters, shard):
            return super().objective(parameters, shard) * float("nan")

    with pytest.warns(TrainingWarning):
        result = train(Fact(n_iter=200), Hopeless(), theta(), SHARDS)
    assert result.stopped == "diverged"


def test_ctrl_c_ends_after_the_round():
    class Interrupting(ExactExpert):
        calls = 0

        def objective(self, parameters, shard):
            Interrupting.calls += 1
            if Interrupting.calls == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return super().objective(parameters, shard)

    before = signal.getsignal(signal.SIGINT)
    result = train(Fact("adam", n_iter=50), Interrupting(), theta(), SHARDS)
    assert result.stopped == "interrupt" and len(result.history) == 3
    assert signal.getsignal(signal.SIGINT) is before


def test_other_ways_to_stop():
    assert train(Fact(n_iter=3), ExactExpert(), theta(), SHARDS).stopped == "iterations"
    assert train(Fact(n_iter=500), ExactExpert(), theta(), SHARDS).stopped == "tolerance"
    quick = train(Fact("adam", n_iter=10_000), ExactExpert(), theta(), SHARDS, time_limit=0.05)
    assert quick.stopped == "time limit"


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
    train(Fact(n_iter=3), ExactExpert(), theta(), SHARDS, verbose=True)
    captured = capfd.readouterr()
    assert captured.out == captured.err == ""


def test_foreign_and_damaged_checkpoints_are_refused(tmp_path):
    file = tmp_path / "run.safetensors"
    file.write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match="not a checkpoint, or is damaged"):
        train(Fact(n_iter=2), ExactExpert(), theta(), SHARDS, checkpoint=file)
    file.unlink()
    train(FedAvg(n_iter=1), ExactExpert(), theta(), SHARDS, checkpoint=file)
    with pytest.raises(ValueError, match="written by 'fedavg'"):
        train(Fact(n_iter=2), ExactExpert(), theta(), SHARDS, checkpoint=file)


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


@pytest.mark.filterwarnings("ignore::distgp.TrainingWarning")
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
    slow = Fact("adam", learning_rate=0.03, n_iter=800)
    adam = train(slow, ExactExpert(), theta(), SHARDS, bounds=bounds, tolerance=0.0)
    assert ours.objective <= adam.objective + 1e-3
    values = [r.objective for r in ours.history]
    assert all(b <= a for a, b in itertools.pairwise(values))


@pytest.mark.parametrize(
    "algorithm", [Fact(n_iter=3), FedAvg(n_iter=3), FedProx(n_iter=3), Admm(n_iter=3)], ids=str
)
def test_float32_parameters_stay_float32(algorithm):
    narrow = [s.to(dtype=torch.float32) for s in SHARDS]
    result = train(algorithm, ExactExpert(), theta().to(dtype=torch.float32), narrow)
    assert result.parameters.noise.dtype == torch.float32


@pytest.mark.filterwarnings("ignore::distgp.TrainingWarning")
@pytest.mark.parametrize(
    "algorithm", [Admm(n_iter=80), Independent(n_iter=80), FedAvg(n_iter=80)], ids=str
)
def test_everyone_says_so_when_nothing_works(algorithm):
    class Hopeless(ExactExpert):
        def objective(self, parameters, shard):
            return super().objective(parameters, shard) * float("nan")

    assert train(algorithm, Hopeless(), theta(), SHARDS).stopped == "diverged"


def test_a_state_of_another_problem_is_refused(tmp_path):
    file = tmp_path / "run.safetensors"
    result = train(Fact(n_iter=2), ExactExpert(), theta(), SHARDS, checkpoint=file)
    for call in (
        lambda: train(Fact(n_iter=4), ExactExpert(), theta(), SHARDS[:2], checkpoint=file),
        lambda: train(Fact(n_iter=4), ExactExpert(), theta(), SHARDS[:2], start=result),
        lambda: train(FedAvg(n_iter=4), ExactExpert(), theta(), SHARDS, start=result),
        lambda: train(
            Fact(n_iter=4), ExactExpert(), theta(), SHARDS, start=result, fixed=["noise"]
        ),
    ):
        with pytest.raises(ValueError, match="belongs to another algorithm, other shards"):
            call()


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (FedAvg(local_steps=0), {}, "must be positive"),
        (FedAvg(learning_rate=-0.1), {}, "must be positive"),
        (FedAvg(optimizer="lbfgs"), {}, "no optimizer 'lbfgs'"),  # type: ignore[arg-type]
        (Fact(), {"priors": {"lengthscale": Gamma(1.0, 1.0)}}, "for a prior"),
        (Fact(), {"bounds": {"noise": (-2.0, 0.0)}}, "bounds of noise"),
    ],
)
def test_options_that_cannot_work_are_refused(algorithm, options, message):
    with pytest.raises(ValueError, match=message):
        train(algorithm, ExactExpert(), theta(), SHARDS, **options)
