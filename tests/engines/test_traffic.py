"""What travels says what it is, is counted alike on every engine, and can be held back."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import pandas as pd
import pytest
import torch
import traffic as benchmark
from helpers import make_data
from on_workers import Numbers, as_numbers, kept, plus, scaled_sum, values_and_count

import distgp
from distgp import DistributedGPRegressor
from distgp.data import Shard, place, split
from distgp.engines import (
    ENGINES,
    KINDS,
    DevicesEngine,
    EngineError,
    LocalEngine,
    MayNotLeaveError,
    opened,
    register,
    travels,
)
from distgp.engines.base import Traffic, bytes_by_kind
from distgp.experts import ExactExpert, Parameters
from distgp.training import NearestRows, train

X, Y = make_data(300, noise=0.2)


def two_devices(**options):
    return DevicesEngine(["cpu", "cpu"], **options)


@pytest.fixture(params=["local", "devices", "ray"])
def placement(request):
    makers = {"local": LocalEngine, "devices": two_devices}
    name = request.param
    engine = makers[name]() if name in makers else request.getfixturevalue("engine")
    return engine.scatter([Numbers(0.0), Numbers(10.0)], ["shard 0", "shard 1"])


def test_only_what_is_allowed_leaves(placement):
    sums = placement.only("sums", "counts")
    assert [float(one) for one in sums.map(scaled_sum, torch.ones(3))] == [3.0, 33.0]
    assert float(sums.on_first(scaled_sum)) == 3.0
    message = (
        r"rows \(12 bytes\) would leave a worker as the result of on_workers.values_and_count, and "
        r"only counts, sums may leave: choose a method that keeps it there, or add to may_leave"
    )
    for leave in (sums.map, sums.on_first):
        with pytest.raises(MayNotLeaveError, match=message):
            leave(values_and_count)
        with pytest.raises(EngineError, match=r"other \(24 bytes\)"):
            leave(as_numbers)
    with pytest.raises(MayNotLeaveError, match=r"other \(12 bytes\).*itself"):
        sums.gather()
    assert len(placement.map(values_and_count)) == len(placement.gather()) == 2, "not restricted"


def test_restrictions_are_inherited_and_can_only_be_narrowed(placement):
    derived = placement.only("sums", "rows").derive(plus, 1.0).derive(kept, each=[True, False])
    assert len(derived) == 1 and derived.may_leave == {"sums", "rows"}
    assert [float(one) for one in derived.map(scaled_sum)] == [6.0]
    wider = derived.only("rows", "counts", "other")
    with pytest.raises(MayNotLeaveError, match=r"sums .4 bytes.* only rows may leave"):
        wider.map(scaled_sum)
    with pytest.raises(MayNotLeaveError, match="only nothing may leave"):
        derived.only().map(scaled_sum)
    assert derived.only().derive(kept, False).map(scaled_sum) == []


def test_what_may_leave_is_gathered_without_restriction(placement):
    here = placement.only("other").gather()
    assert here.may_leave is None and len(here.map(values_and_count)) == 2


def test_refusals_happen_on_the_worker(engine):
    from distgp.engines.ray_pool import Worker

    worker = Worker("cpu", 1)
    worker.make(0, Numbers(0.0))
    with pytest.raises(MayNotLeaveError):
        worker.apply(0, values_and_count, (), (), frozenset({"sums"}))
    placed = engine.scatter([Numbers(0.0)], ["shard 7"])
    engine.traffic.received.clear()
    with pytest.raises(MayNotLeaveError) as caught:
        placed.only("sums").map(values_and_count)
    assert "on the worker with shard 7" in caught.value.__notes__[0]
    assert not engine.traffic.received


def test_unknown_kinds_are_refused():
    for kinds in (["row"], "rows"):
        with pytest.raises(ValueError, match=r"expected kinds among rows, inputs, .*got"):
            LocalEngine(may_leave=kinds)
    with pytest.raises(ValueError, match="expected kinds among"):
        travels("row")
    with pytest.raises(ValueError, match=r"expected kinds among rows, .*got row"):
        bytes_by_kind(1.0, "row")


ALLOWED = {"counts", "moments", "distances", "gradients", "parameters", "sums", "basis"}
GUARDED = {"local": LocalEngine, "devices": two_devices}


@pytest.mark.parametrize("name", [*GUARDED, "ray"])
def test_a_fit_from_which_no_rows_leave(name, request, tmp_path):
    if name == "ray":
        request.getfixturevalue("engine")
        from distgp.engines.ray import RayEngine

        guarded = RayEngine(workers=2, cpus=0, may_leave=ALLOWED)
    else:
        guarded = GUARDED[name](may_leave=ALLOWED)
    options = {"expert": "sparse", "training": "fact", "aggregation": "pooled", "n_iter": 3}
    options |= {"n_inducing": make_data(20, seed=3)[0], "n_experts": 4}
    with guarded:
        gp = DistributedGPRegressor(engine=guarded, **options).fit(X, Y)
        free = DistributedGPRegressor(**options).fit(X, Y)
        np.testing.assert_allclose(gp.predict(X[:9]), free.predict(X[:9]), atol=1e-6)
        for leave in (
            lambda: gp.save(tmp_path / "never.safetensors"),
            lambda: gp.gather(),
            lambda: gp.predict(X[:9], aggregation="rbcm"),
            lambda: gp.partial_fit(X[:9], Y[:9]),
            lambda: DistributedGPRegressor(engine=guarded, n_experts=4).fit(X, Y),
        ):
            with pytest.raises(MayNotLeaveError):
                leave()
    assert not list(tmp_path.iterdir())


@dataclass(frozen=True, eq=False)
class Named:
    """Names the kinds of its parts, with one that has a kind of its own."""

    travels_as: ClassVar[Any] = {"inner": "inputs", "own": "inputs", "*": "means"}
    inner: Any
    own: Any
    rest: Any = 1.0
    cached: dict = field(default_factory=dict)


def test_all_that_is_sent_is_measured():
    one = torch.zeros(3)
    assert bytes_by_kind([one, (one.numpy(),)]) == {"other": 24}
    assert bytes_by_kind({"a": 1, "b": [True, 2.5], "c": "text", "d": None, "e": {"x", "yz"}}) == {
        "other": 24 + 4 + 3
    }
    assert bytes_by_kind((one, "text", 1), "sums", "settings") == {"sums": 12 + 4 + 8}
    assert bytes_by_kind((one, "text", 1), plain="settings") == {"other": 12, "settings": 12}
    parts = Named([one], Shard.of(torch.zeros(2, 1), torch.zeros(2)), cached={"inner": (2.0,)})
    assert bytes_by_kind(parts) == {"inputs": 12 + 8, "rows": 8 + 8 + 16, "means": 8}
    assert bytes_by_kind(object())["other"] > 0, "what cannot be looked into is something"
    engine = LocalEngine()
    engine.users.add(engine)
    engine.itself = engine  # a circle
    assert bytes_by_kind(engine).keys() == {"other"}


def test_devices_and_ray_count_the_same(engine, parquet):
    found = []
    for where in (two_devices(), engine):
        where.traffic.sent.clear()
        where.traffic.received.clear()
        for expert in distgp.EXPERTS:
            gp = DistributedGPRegressor(
                expert=expert, n_experts=4, n_iter=2, n_inducing=12, n_neighbors=10, engine=where
            )
            gp.fit(X, Y).predict(X[:9], return_std=True)
        gp = DistributedGPRegressor(expert="exact", n_experts=3, n_iter=2, engine=where)
        gp.fit_parquet(str(parquet), "level").gather()
        found.append((dict(where.traffic.sent), dict(where.traffic.received)))
    assert found[0] == found[1]
    assert {"rows", "gradients", "categories", "counts", "settings"} <= {*found[0][0], *found[0][1]}


class Recording(Traffic):
    """Remembers which functions sent or returned what has no kind."""

    def __init__(self):
        super().__init__()
        self.unnamed = set()

    def call(self, function, arguments, each, copies):
        before = self.sent["other"]
        super().call(function, arguments, each, copies)
        if self.sent["other"] > before:
            self.unnamed.add(f"arguments of {function.__module__}.{function.__qualname__}")

    def receive(self, value, function):
        before = self.received["other"]
        super().receive(value, function)
        if self.received["other"] > before:
            self.unnamed.add(f"result of {function.__module__}.{function.__qualname__}")


def recording():
    engine = two_devices()
    engine.traffic = Recording()
    return engine


@pytest.mark.filterwarnings("ignore::distgp.diagnostics.calibration.NegativeBoundWarning")  # Y²
@pytest.mark.parametrize("expert", sorted(distgp.EXPERTS))
def test_nothing_travels_without_a_kind(expert, parquet, tmp_path):
    engine = recording()
    rng = np.random.default_rng(0)
    table = pd.DataFrame(X, columns=["a", "b"]).assign(site=rng.choice(["hill", "lake"], len(X)))
    weight, noise = rng.integers(1, 3, len(X)), rng.uniform(0.01, 0.1, len(X))
    options = {"expert": expert, "n_experts": 4, "n_inducing": 15, "n_iter": 2, "engine": engine}
    for name, algorithm in distgp.ALGORITHMS.items():
        if expert in algorithm.serves:
            DistributedGPRegressor(training=name, **options).fit(X, Y).summary()
    gp = DistributedGPRegressor(calibrate="conformal", **options)
    gp.fit(table, np.column_stack([Y, Y**2]), weight, noise_variance=noise)
    gp.predict_interval(table[:5])
    gp = DistributedGPRegressor(kernel="rbf", noise=0.05, training=None, **options).fit(X, Y)
    for name, aggregator in distgp.AGGREGATORS.items():
        if expert in aggregator.serves:
            gp.predict(X[:5], return_std=True, aggregation=name)
            gp.predict(X[:5], aggregation=name)
    gp.predict(X[:5], return_cov=True)
    gp.save(tmp_path / "model.safetensors")
    gp.partial_fit(X[:20], Y[:20]).drop_experts(0)
    gp = DistributedGPRegressor(**options | {"n_experts": 3}).fit_parquet(str(parquet), "level")
    gp.gather()
    assert not engine.traffic.unnamed
    assert engine.traffic.total().keys() <= KINDS.keys() - {"other"}


@pytest.mark.parametrize("combination", ["opticom", "full"])
def test_nothing_of_sparse_grids_travels_without_a_kind(combination):
    engine = recording()
    gp = distgp.SparseGridGP(level=3, n_iter=2, combination=combination, engine=engine)
    gp.fit(X, Y).predict(X[:5], return_std=True)
    assert engine.traffic.total() and not engine.traffic.unnamed


def test_training_by_nearest_rows_brings_rows_and_says_so():
    engine = two_devices()
    shards = place(engine, split(Shard.of(X, Y), np.arange(len(X)) % 4))
    train(NearestRows(n_iter=4), ExactExpert(), Parameters.of(distgp.RBF([0.5, 0.5]), 0.1), shards)
    brought = engine.traffic.received
    assert brought["rows"] > len(X) * 4 * 8 and brought["distances"] > 0
    assert "gradients" not in brought


def test_the_page_says_what_travels():
    """`python benchmarks/traffic.py` writes the tables."""
    page = benchmark.PAGE.read_text(encoding="utf-8")
    for mark, lines in benchmark.tables(benchmark.steps()).items():
        said = page.split(f"<!-- {mark} -->")[1].split(f"<!-- end of {mark} -->")[0]
        assert said.strip().splitlines() == lines


class Mine(LocalEngine):
    """An engine of one's own."""


def test_engines_have_names(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert list(ENGINES) == ["local", "ray"]
    assert isinstance(opened("local"), LocalEngine)
    assert isinstance(opened("local", "cuda"), DevicesEngine)
    mine = Mine()
    assert opened(mine) is mine
    with monkeypatch.context() as changed:
        changed.setitem(ENGINES, "mine", None)
        register("mine", lambda device: Mine(["sums"] if device == "cpu" else None))
        assert opened("mine", "cpu").may_leave == {"sums"}
        assert opened("mine", "cuda").may_leave is None
    for wrong in ("mine", None):
        with pytest.raises(ValueError, match="engine must be 'local', 'ray' or an Engine object"):
            opened(wrong)


def test_ray_has_a_name(engine):
    there = opened("ray")
    assert there.name == "ray" and opened("ray", "cuda") is there
    there.close()
