"""What must hold of the training algorithms, to rounding."""

from __future__ import annotations

import dataclasses
import itertools

import pytest
import torch
from helpers import FLOAT, close, concrete, inputs, shard, value_and_gradient

from distgp.data import RandomPartition, split, stack
from distgp.engines import LocalPlacement
from distgp.experts import ExactExpert, Parameters, SparseExpert
from distgp.kernels import RBF
from distgp.training import (
    ALGORITHMS,
    Admm,
    Algorithm,
    Fact,
    FedAvg,
    FedProx,
    Independent,
    Layout,
    LogNormal,
    Message,
    NearestRows,
    Objective,
    PooledBound,
    train,
)

DATA = shard(50, 2)


def shards(M: int):
    return split(DATA, RandomPartition().assign(DATA.X.numpy(), M, 0))


def theta(kind: str = "exact", m: int = 5) -> Parameters:
    Z = inputs(m, 2, 5) if kind == "sparse" else None
    return Parameters.of(0.8 * RBF([0.5, 0.9]), 0.1, Z)


def expert(kind: str):
    return ExactExpert() if kind == "exact" else SparseExpert()


QUICK: list[Algorithm] = [
    Fact(n_iter=8),
    Fact("adam", n_iter=6),
    Fact("sgd", learning_rate=1e-2, n_iter=6),
    FedAvg(n_iter=3, local_steps=3),
    FedAvg(n_iter=4, local_steps=2, optimizer="sgd", learning_rate=1e-2),
    FedProx(n_iter=5, local_steps=2),
    Admm(n_iter=3, local_steps=3, rho=20.0, learning_rate=0.02),
    Independent(n_iter=5),
    PooledBound(n_iter=12),
]
EVERY = pytest.mark.parametrize("algorithm", QUICK, ids=str)
SHARING = pytest.mark.parametrize("algorithm", QUICK[:-1], ids=str)
"""Those that also serve exact experts and experts with their own inducing inputs."""
KINDS = pytest.mark.parametrize("kind", ["exact", "sparse"])


def skip_if_not_served(algorithm, kind):
    if isinstance(algorithm, PooledBound) and kind == "exact":
        pytest.skip("pooled training is for sparse experts")


def vectors(result):
    return {name: v.detach() for name, v in result.parameters.unconstrained().items()}


def same(a, b, rtol=1e-9, atol=1e-9):
    for x, y in zip(vectors(a).values(), vectors(b).values(), strict=True):
        close(x, y, rtol=rtol, atol=atol)
    assert [r.accepted for r in a.history] == [r.accepted for r in b.history]
    close(
        torch.tensor([r.objective for r in a.history]),
        torch.tensor([r.objective for r in b.history]),
        rtol=rtol,
        atol=1e-6,
    )


def test_every_algorithm_is_tried():
    tried = {type(a) for a in QUICK} | {NearestRows}  # tests/training/test_nearest.py has its laws
    assert set(ALGORITHMS.values()) == set(concrete(Algorithm)) == tried


@KINDS
def test_fact_with_one_shard_is_central_training(kind):
    start = theta(kind)
    ours = train(Fact("adam", learning_rate=0.05, n_iter=12), expert(kind), start, [DATA])
    view = {name: v.clone().requires_grad_() for name, v in start.unconstrained().items()}
    adam = torch.optim.Adam(view.values(), lr=0.05)
    for round_ in ours.history:
        adam.zero_grad()
        value = expert(kind).objective(start.with_unconstrained(view), DATA)
        value.backward()
        adam.step()
        assert round_.objective == pytest.approx(value.item(), rel=1e-10)
    for name, value in vectors(ours).items():
        close(value, view[name].detach(), rtol=1e-8)


@KINDS
def test_one_plain_step_of_fedavg_is_facts_step_per_row(kind):
    fed = FedAvg(n_iter=5, local_steps=1, optimizer="sgd", learning_rate=0.02)
    fact = Fact("sgd", learning_rate=0.02, n_iter=5)
    same(*(train(a, expert(kind), theta(kind), shards(4)) for a in (fed, fact)))


@KINDS
def test_fedprox_without_pull_and_with_everyone_is_fedavg(kind):
    prox = FedProx(mu=0.0, fraction=1.0, n_iter=4, local_steps=3)
    fed = FedAvg(n_iter=4, local_steps=3)
    same(*(train(a, expert(kind), theta(kind), shards(4)) for a in (prox, fed)), rtol=1e-12)


def test_the_proximal_term_holds_experts_back():
    free, held = (
        train(
            FedProx(mu=mu, fraction=1.0, n_iter=1, local_steps=10),
            ExactExpert(),
            theta(),
            shards(4),
        )
        for mu in (0.0, 1e4)
    )
    start = theta().unconstrained()
    moved = [
        sum(float((vectors(r)[n] - start[n]).square().sum()) for n in start) for r in (free, held)
    ]
    assert moved[1] < 0.5 * moved[0]


def test_fedprox_samples_the_fraction_it_is_told_to():
    for fraction, size in ((0.5, 5), (0.25, 3), (1.0, 10), (0.01, 1)):
        drawn = [set(FedProx(fraction=fraction).sampled(r, 10)) for r in range(60)]
        assert {len(s) for s in drawn} == {size}
        assert set().union(*drawn) == set(range(10))
    prox, start = FedProx(fraction=0.5, n_iter=1, local_steps=1), theta("sparse")
    result = train(prox, SparseExpert(), start, shards(4), own=["inducing"])
    assert result.parameters.inducing is not None
    moved = (result.parameters.inducing != start.inducing).any(-1).any(-1)
    assert sorted(torch.nonzero(moved)[:, 0].tolist()) == sorted(prox.sampled(0, 4).tolist())
    with pytest.raises(ValueError, match="fraction"):
        FedProx(fraction=0.0)


def fact_optimum(start, pieces):
    return train(Fact(n_iter=300), ExactExpert(), start, pieces, tolerance=1e-13)


def test_a_stationary_point_of_fact_is_a_fixed_point_of_admm():
    pieces = shards(3)
    best = fact_optimum(theta(), pieces).parameters
    gradients = []
    for piece in pieces:
        _, g = value_and_gradient(lambda p, s=piece: ExactExpert().objective(p, s), best)
        gradients.append(torch.cat([v.reshape(-1) for v in g.values()]))
    admm = Admm(rho=50.0, optimizer="sgd", learning_rate=1e-3, local_steps=5)
    objective = Objective.of(ExactExpert(), Layout.of(best))
    layout, ones = objective.layout, torch.ones(3, dtype=FLOAT)
    shared, psi = layout.pack(best), -torch.stack(gradients)
    each = {"x": shared.expand(3, -1), "good": shared.expand(3, -1), "rate": 1e-3 * ones}
    for _ in range(10):
        sent = each | {"psi": psi, "prior_weight": ones / 3}
        reply = admm.on_worker(objective, stack(pieces), Message({"shared": shared}, sent)).each
        each = {name: reply[name] for name in each}
        shared, psi = admm.consensus(layout, each["x"], psi)
    close(shared, layout.pack(best), rtol=0, atol=1e-6)


def test_admm_reaches_facts_optimum():
    data = shard(60, 1)
    pieces = split(data, RandomPartition().assign(data.X.numpy(), 3, 0))
    start = Parameters.of(0.8 * RBF([0.5]), 0.1)
    best = fact_optimum(start, pieces)
    admm = Admm(rho=10.0, optimizer="sgd", learning_rate=1 / 50, local_steps=5, n_iter=100)
    result = train(admm, ExactExpert(), start, pieces, tolerance=0.0)
    assert result.history[-1].residuals["primal"] < 1e-4
    assert result.history[-1].residuals["dual"] < 1e-2
    for name, value in vectors(result).items():
        close(value, vectors(best)[name], rtol=0, atol=1e-3)


@KINDS
def test_lbfgs_never_rises_and_reaches_a_stationary_point(kind):
    result = train(Fact(n_iter=200), expert(kind), theta(kind, 3), shards(2), tolerance=1e-12)
    values = [r.objective for r in result.history]
    assert all(b <= a for a, b in itertools.pairwise(values))
    start = result.history[0].gradient_norm
    assert result.history[-1].gradient_norm < (1e-4 if kind == "exact" else 1e-2) * start
    assert result.stopped == "tolerance"


@EVERY
@KINDS
def test_the_same_seed_gives_the_same_history(algorithm, kind):
    skip_if_not_served(algorithm, kind)
    a, b = (train(algorithm, expert(kind), theta(kind), shards(3)) for _ in range(2))
    same(a, b, rtol=0, atol=0)


@EVERY
@KINDS
def test_batched_and_looped_shards_give_the_same_history(algorithm, kind):
    skip_if_not_served(algorithm, kind)
    pieces = shards(4)
    one = train(algorithm, expert(kind), theta(kind), pieces)
    several = LocalPlacement((stack(pieces[:1]), stack(pieces[1:3]), stack(pieces[3:])))
    looped = train(algorithm, expert(kind), theta(kind), several)
    same(one, looped, rtol=1e-7, atol=1e-8)
    assert [r.bytes for r in one.history] == [r.bytes for r in looped.history]


@SHARING
def test_own_inducing_inputs_stay_each_experts_own(algorithm):
    result = train(algorithm, SparseExpert(), theta("sparse"), shards(3), own=["inducing"])
    Z = result.parameters.inducing
    assert Z is not None and Z.shape == (3, 5, 2)
    assert not torch.equal(Z[0], Z[1])
    own = isinstance(algorithm, Independent)
    assert result.parameters.batch == (torch.Size([3]) if own else torch.Size())
    assert result.parameters.inducing_batch == torch.Size([3])


def test_own_inducing_inputs_with_fact_minimise_the_joint_objective():
    pieces, start = shards(2), theta("sparse", 3)
    result = train(Fact(n_iter=60), SparseExpert(), start, pieces, own=["inducing"])
    total = sum(float(SparseExpert().objective(result.parameters[i], pieces[i])) for i in range(2))
    assert total == pytest.approx(result.objective, rel=1e-8)
    together = train(Fact(n_iter=60), SparseExpert(), start, pieces)
    assert result.objective < together.objective


@EVERY
def test_fixed_parameters_stay(algorithm):
    result = train(
        algorithm, SparseExpert(), theta("sparse"), shards(3), fixed=["inducing", "noise"]
    )
    assert torch.equal(result.parameters.inducing, theta("sparse").inducing)
    assert torch.equal(result.parameters.noise, theta("sparse").noise)


@EVERY
def test_training_improves_the_objective(algorithm):
    longer = dataclasses.replace(algorithm, n_iter=20)
    result = train(longer, SparseExpert(), theta("sparse"), shards(3))
    assert result.history[-1].objective < result.history[0].objective - 1.0


def test_pooled_training_is_central_training_of_the_sparse_gp():
    pieces, start = shards(4), theta("sparse", 4)
    pooled = train(PooledBound(n_iter=400), SparseExpert(), start, pieces, tolerance=1e-10)
    central = train(Fact(n_iter=200), SparseExpert(), start, [DATA], tolerance=1e-10)
    for round_ in (0, 1):
        value = pooled.history[2 * round_ + 1].objective
        assert value == pytest.approx(central.history[round_].objective, rel=1e-9)
        norm = pooled.history[2 * round_ + 1].gradient_norm
        assert norm == pytest.approx(central.history[round_].gradient_norm, rel=1e-6)
    assert pooled.objective == pytest.approx(central.objective, rel=1e-4)
    values = [r.objective for r in pooled.history if r.accepted]
    assert all(b <= a for a, b in itertools.pairwise(values))


@pytest.mark.parametrize(
    "fixed",
    [
        ["inducing"],
        ["noise"],
        ["inducing", "variance"],
        ["inducing", "lengthscale", "variance"],
        ["inducing", "lengthscale", "noise"],
    ],
    ids=" ".join,
)
def test_the_gradient_of_pooled_training_is_the_central_one_whatever_is_fixed(fixed):
    start = theta("sparse", 4)
    pooled = train(PooledBound(n_iter=2), SparseExpert(), start, shards(3), fixed=fixed)
    central = train(Fact(n_iter=1), SparseExpert(), start, [DATA], fixed=fixed)
    norm = pooled.history[1].gradient_norm
    assert norm == pytest.approx(central.history[0].gradient_norm, rel=1e-7)


def test_pooled_training_with_priors_and_refused_experts():
    priors = {"noise": LogNormal(0.5, 0.1)}
    pooled = train(
        PooledBound(n_iter=20), SparseExpert(), theta("sparse"), shards(3), priors=priors
    )
    central = train(Fact(n_iter=10), SparseExpert(), theta("sparse"), [DATA], priors=priors)
    assert pooled.history[1].objective == pytest.approx(central.history[0].objective, rel=1e-9)
    assert pooled.history[1].gradient_norm == pytest.approx(
        central.history[0].gradient_norm, rel=1e-6
    )
    with pytest.raises(ValueError, match="pooled training needs sparse experts that share"):
        train(PooledBound(), ExactExpert(), theta(), shards(3))
