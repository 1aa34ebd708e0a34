"""Estimators on a Ray cluster give what they give in one process, also when workers are killed."""

import os
import pickle
import signal
import threading

import numpy as np
import pandas as pd
import pytest
from helpers import make_data
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'distgp[ray]'")

from on_workers import SlowExpert, late

import distgp
from distgp import DistributedGPRegressor
from distgp.data import Shard, place, split
from distgp.engines import EngineError, LocalPlacement
from distgp.engines.ray import RayEngine
from distgp.experts import ExactExpert, Parameters
from distgp.selection import CoverWarning
from distgp.training import Fact, train

KERNEL, NOISE = 1.5 * distgp.RBF([0.6, 0.9]), 0.04
X, Y = make_data(300, noise=0.2)
X_NEW = make_data(40, seed=1)[0]


def given(**options):
    wanted = {
        "kernel": KERNEL,
        "noise": NOISE,
        "training": None,
        "normalize": False,
        "n_experts": 5,
    }
    return DistributedGPRegressor(**wanted | options)


def close(got, wanted, tolerance=1e-8):
    for a, b in zip(got, wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=tolerance)


@pytest.mark.parametrize("expert", sorted(distgp.EXPERTS))
def test_every_aggregator_is_as_in_one_process(engine, expert):
    local = given(expert=expert, n_inducing=40).fit(X, Y)
    remote = given(expert=expert, n_inducing=40, engine=engine).fit(X, Y)
    assert remote.n_experts_ == 5
    for name, kind in distgp.AGGREGATORS.items():
        if expert not in kind.serves:
            continue
        close(
            remote.predict(X_NEW, return_std=True, aggregation=name),
            local.predict(X_NEW, return_std=True, aggregation=name),
            1e-6 if name == "opt-printed" else 1e-8,
        )
        close(
            [remote.predict(X_NEW, aggregation=name)],
            [local.predict(X_NEW, aggregation=name)],
            1e-6,
        )
    one = "nearest" if expert == "nearest" else "two-level"
    close(
        remote.predict(X_NEW, return_cov=True, aggregation=one),
        local.predict(X_NEW, return_cov=True, aggregation=one),
    )


@pytest.mark.parametrize("expert", ["exact", "sparse"])
@pytest.mark.parametrize("training", sorted(distgp.ALGORITHMS))
def test_every_training_method_is_as_in_one_process(engine, training, expert):
    if (training, expert) == ("pooled", "exact"):
        pytest.skip("pooled trains sparse experts")
    options = {
        "expert": expert,
        "n_experts": 4,
        "n_inducing": 20,
        "training": training,
        "n_iter": 4,
    }
    local = DistributedGPRegressor(**options).fit(X, Y)
    remote = DistributedGPRegressor(**options, engine=engine).fit(X, Y)
    found = [r.objective for r in remote.training_.history]
    np.testing.assert_allclose(found, [r.objective for r in local.training_.history], rtol=1e-6)
    np.testing.assert_allclose(remote.noise_, local.noise_, rtol=1e-5)
    close(remote.predict(X_NEW, return_std=True), local.predict(X_NEW, return_std=True), 1e-4)


def test_copies_and_searches_use_the_same_engine(engine):
    options = {"expert": "exact", "n_experts": 2, "n_iter": 2}
    gp = DistributedGPRegressor(**options, engine=engine).fit(X, Y)
    assert clone(gp).engine is engine
    search = GridSearchCV(gp, {"n_experts": [1, 3]}, cv=2).fit(X, Y)
    assert search.best_estimator_.score(X, Y) > 0.8
    assert DistributedGPRegressor(engine=engine, n_experts="cv", n_iter=1).fit(X, Y).n_experts_ >= 2
    both = DistributedGPRegressor(**options, engine=engine).fit(X, np.column_stack([Y, Y**2]))
    local = DistributedGPRegressor(**options).fit(X, np.column_stack([Y, Y**2]))
    close(both.predict(X_NEW, return_std=True), local.predict(X_NEW, return_std=True), 1e-5)
    both.fit(X, Y)
    close(gp.predict(X_NEW, return_std=True), both.predict(X_NEW, return_std=True))


def test_gathered_and_saved(engine, tmp_path):
    for expert in ("exact", "sparse"):
        remote = given(expert=expert, n_inducing=30, engine=engine).fit(X, Y)
        wanted = remote.predict(X_NEW, return_std=True)
        with pytest.raises(TypeError, match=r"call gather\(\) on the regressor"):
            pickle.dumps(remote)
        engine.traffic.received.clear()
        remote.save(tmp_path / f"{expert}.safetensors")
        assert bool(engine.traffic.received["rows"]) is (expert == "exact")
        close(
            distgp.load(tmp_path / f"{expert}.safetensors").predict(X_NEW, return_std=True), wanted
        )
        close(remote.gather().predict(X_NEW, return_std=True), wanted)
        assert isinstance(remote.experts_.placement, LocalPlacement)


def killed_meanwhile(placement, delay, action):
    """Run the action while one of the workers is killed; its result."""
    victim = placement.pids()[1]
    timer = threading.Timer(delay, os.kill, (victim, signal.SIGKILL))
    timer.start()
    result = action()
    timer.join()
    assert victim not in placement.pids(), "the worker was not killed"
    return result


def test_a_worker_killed_during_training(engine):
    start = Parameters.of(KERNEL, 0.1)
    placement = place(engine, split(Shard.of(X, Y), np.arange(len(X)) % 4))
    wanted = train(Fact(n_iter=8), ExactExpert(), start, placement)
    found = killed_meanwhile(
        placement, 0.7, lambda: train(Fact(n_iter=8), SlowExpert(), start, placement)
    )
    assert [r.objective for r in found.history] == [r.objective for r in wanted.history]


def test_workers_killed_during_and_before_prediction(engine, parquet):
    options = [{"expert": expert, "n_inducing": 30} for expert in ("exact", "sparse")]
    local = [given(**own, aggregation="two-level").fit(X, Y) for own in options]
    remote = [given(**own, engine=engine, aggregation="rbcm").fit(X, Y) for own in options]
    reading = given(expert="sparse", n_inducing=X_NEW, engine=engine, aggregation="rbcm")
    reading.fit_parquet(str(parquet), "level", features=["east", "north"])
    wanted = [predicted(gp) for gp in (*remote, reading)]
    placement = remote[0].experts_.placement
    killed_meanwhile(placement, 0.3, lambda: placement.map(late, 1.0))
    for gp, before in zip((*remote, reading), wanted, strict=True):
        close(predicted(gp), before, 1e-12)
    os.kill(placement.pids()[0], signal.SIGKILL)
    close(predicted(reading), wanted[2], 1e-12)
    for gp, other in zip(remote, local, strict=True):
        close(predicted(gp, aggregation="two-level"), predicted(other))


def predicted(gp, **options):
    """Mean and standard deviation at X_NEW, with names where the model has names."""
    new = pd.DataFrame(X_NEW, columns=["east", "north"]) if hasattr(gp, "table_") else X_NEW
    return gp.predict(new, return_std=True, **options)


def test_after_closing(engine):
    own = RayEngine(workers=1, cpus=0)
    gp = given(engine=own).fit(X, Y)
    gp.close()  # does nothing: the engine is not the regressor's own
    wanted = gp.predict(X_NEW)
    own.close()
    own.close()
    with pytest.raises(EngineError, match=r"this engine is closed.*gather\(\) before"):
        gp.predict(X_NEW)
    with pytest.raises(EngineError, match="this engine is closed"):
        gp.fit(X, Y)
    assert ray.is_initialized(), "a cluster that the engine did not start was stopped"
    close([given(engine=engine).fit(X, Y).predict(X_NEW)], [wanted])


def test_what_travels_is_counted(engine):
    engine.traffic.sent.clear()
    engine.traffic.received.clear()
    remote = given(expert="sparse", n_inducing=X_NEW, engine=engine).fit(X, Y)
    remote.predict(X_NEW, return_std=True)
    assert engine.traffic.sent["rows"] >= 300 * 3 * 8 and not engine.traffic.received["rows"]
    assert "means" not in engine.traffic.total()
    exact = given(expert="exact", engine=engine).fit(X, Y)
    assert isinstance(exact.aggregation_, distgp.aggregation.TwoLevel)
    assert engine.traffic.received["means"] > 0 and engine.traffic.received["rows"] > 0


def test_workers_read_parquet_by_themselves(engine, parquet, tmp_path):
    options = {"expert": "sparse", "n_inducing": X_NEW}
    local = given(**options).fit(X, Y)
    remote = given(**options, engine=engine)
    engine.traffic.sent.clear()
    remote.fit_parquet(str(parquet), "level", features=["east", "north"])
    assert not engine.traffic.sent["rows"]
    close(predicted(remote), predicted(local))
    full = DistributedGPRegressor(engine=engine, expert="sparse", n_inducing=30, n_iter=8)
    full.fit_parquet(f"file://{parquet}/*.parquet", "level")
    assert list(full.feature_names_in_) == ["east", "north", "site"]
    full.save(tmp_path / "m.safetensors")
    assert distgp.load(tmp_path / "m.safetensors").n_experts_ == full.n_experts_
    scaled = full.model_.targets[0].scaling
    np.testing.assert_allclose(scaled.x_mean[:2], X.mean(0), rtol=1e-12)
    np.testing.assert_allclose(scaled.x_scale[:2], X.std(0), rtol=1e-12)
    assert scaled.y_scale == pytest.approx(Y.std())


def test_workers_read_what_is_given_for_each_row(engine, tmp_path):
    """Sums of sparse experts do not depend on how rows are divided over workers."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(X, columns=["a", "b"]).assign(
        y=np.exp(Y), w=rng.choice([0.5, 2.0], len(X))
    )
    table["site"] = rng.choice(["hill", "lake"], len(X))
    table.to_parquet(tmp_path / "rows.parquet", row_group_size=50)
    options = {"expert": "sparse", "n_inducing": X[:20], "training": None, "kernel": "rbf"}
    options |= {"mean": "linear", "target_transform": "yeo-johnson", "calibrate": "mondrian"}
    given = {"features": ["a", "b"], "sample_weight": "w", "groups": "site"}
    found = []
    for where in ("local", engine):
        gp = DistributedGPRegressor(engine=where, **options)
        gp.fit_parquet(str(tmp_path / "rows.parquet"), "y", **given)
        found.append(gp.predict_interval(table[["a", "b"]], groups=table["site"]))
    np.testing.assert_allclose(*found, rtol=1e-8)
    wrong = DistributedGPRegressor(engine=engine, **options | {"target_transform": "log"})
    table.assign(y=Y).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ValueError, match="needs positive targets"):
        wrong.fit_parquet(str(tmp_path / "rows.parquet"), "y", **given)


def test_parquet_that_cannot_be_used(engine, parquet, tmp_path):
    gp = DistributedGPRegressor(engine=engine, n_iter=2)
    for arguments, message in [
        (("nowhere.parquet", "level"), "there is no file"),
        ((str(parquet), "height"), "no column 'height'"),
        ((str(parquet), "site"), "the target 'site' is"),
    ]:
        with pytest.raises(ValueError, match=message):
            gp.fit_parquet(*arguments)
    for choice, message in [
        ({"missing": "dorp"}, "missing must be 'refuse' or 'drop' or 'impute', got 'dorp'"),
        ({"dates": "days"}, "dates must be 'refuse' or 'expand', got 'days'"),
    ]:
        with pytest.raises(ValueError, match=message):
            gp.fit_parquet(str(parquet), "level", **choice)
    holes = pd.DataFrame({"x": [1.0, None, 3.0, 4.0], "y": [1.0, 2.0, 3.0, 5.0]})
    holes.to_parquet(tmp_path / "holes.parquet")
    with pytest.raises(ValueError, match=r"1 of . rows have missing values"):
        gp.fit_parquet(str(tmp_path / "holes.parquet"), "y")
    with pytest.warns(CoverWarning, match="3 rows are too few to learn from"):
        gp.fit_parquet(str(tmp_path / "holes.parquet"), "y", missing="drop")
    assert gp.experts_.row_count() == 3


def test_a_thousand_experts_on_two_workers(engine):
    X, y = make_data(20_000, noise=0.2)
    remote = DistributedGPRegressor(
        expert="sparse", n_experts=1000, n_inducing=20, n_iter=4, engine=engine, aggregation="rbcm"
    ).fit(X, y)
    assert remote.n_experts_ == 1000
    assert np.isfinite(remote.predict(X_NEW)).all()
    truth = np.sin(2 * X_NEW[:, 0]) + np.cos(X_NEW[:, 1])
    assert np.abs(remote.predict(X_NEW, aggregation="pooled") - truth).mean() < 0.1


@pytest.mark.parametrize("combination", ["opticom", "full"])
def test_sparse_grids(engine, combination, tmp_path):
    here = distgp.SparseGridGP(level=4, n_iter=10, combination=combination).fit(X, Y)
    there = distgp.SparseGridGP(level=4, n_iter=10, combination=combination, engine=engine)
    there.fit(X, Y)
    for a, b in zip(
        here.predict(X_NEW, return_std=True), there.predict(X_NEW, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert engine.traffic.total()["sums"] > 0
    there.save(tmp_path / "m.safetensors")
    assert distgp.load(tmp_path / "m.safetensors").engine == "local"


@pytest.mark.parametrize("n_inducing", [0, 20])
def test_nearest_experts_from_parquet_are_the_same_after_a_worker_is_killed(
    engine, parquet, n_inducing
):
    gp = given(expert="nearest", n_inducing=n_inducing, n_neighbors=25, engine=engine)
    gp.fit_parquet(str(parquet), "level", features=["east", "north"])
    before = predicted(gp)
    cells = gp.model_.targets[0].combined.cells.placement
    os.kill(cells.pids()[0], signal.SIGKILL)
    close(predicted(gp), before)
    local = given(expert="nearest", n_inducing=n_inducing, n_neighbors=25)
    local.fit_parquet(str(parquet), "level", features=["east", "north"])
    close(predicted(local), before)


@pytest.mark.parametrize("expert", sorted(distgp.EXPERTS))
def test_weights_noise_tables_and_intervals_are_as_in_one_process(engine, expert):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(X, columns=["a", "b"]).assign(site=rng.choice(["hill", "lake"], len(X)))
    weight, noise = rng.integers(0, 3, len(X)), rng.uniform(0.01, 0.1, len(X))
    options = {"expert": expert, "n_experts": 3, "n_inducing": 20, "n_iter": 5}
    options |= {"calibrate": "conformal", "kernel": "matern52(columns=[a, b]) + linear"}
    found = []
    for where in ("local", engine):
        gp = DistributedGPRegressor(engine=where, **options)
        gp.fit(table, Y, weight, noise_variance=noise)
        found.append([*gp.predict_interval(table), gp.predict(table, noise_variance=noise)])
        gp.partial_fit(table[:50], Y[:50], noise_variance=noise[:50]).drop_experts(0)
        found[-1] += [gp.predict(table)]
    close(*found, 1e-5)
