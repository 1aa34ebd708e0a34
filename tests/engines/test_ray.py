"""A real Ray cluster: real processes, really killed."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'distgp[ray]'")

import distgp
from distgp import DistributedGPRegressor
from distgp.engines import EngineError
from distgp.engines.ray import RayEngine
from distgp.shards import Shard
from distgp.sources import place, with_target

pytestmark = pytest.mark.filterwarnings("ignore")
KERNEL, NOISE = 1.5 * distgp.RBF([0.6, 0.9]), 0.04


def make_data(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) + 0.2 * rng.normal(size=n)


X, Y = make_data(300)
X_NEW = make_data(40, seed=1)[0]


@pytest.fixture(scope="module")
def engine():
    """One small cluster for all tests here."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    with RayEngine(workers=2, time_limit=120) as made:
        yield made
    ray.shutdown()


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


@pytest.mark.parametrize("expert", ["exact", "sparse"])
def test_every_aggregator_is_as_in_one_process(engine, expert):
    local = given(expert=expert, n_inducing=40).fit(X, Y)
    remote = given(expert=expert, n_inducing=40, engine=engine).fit(X, Y)
    assert remote.n_experts_ == 5
    for name in distgp.AGGREGATORS:
        if (expert, name) == ("exact", "pooled"):
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
    close(remote.predict(X_NEW, return_cov=True, aggregation="two-level"),
          local.predict(X_NEW, return_cov=True, aggregation="two-level"))  # fmt: skip


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
            __import__("pickle").dumps(remote)
        engine.traffic.received.clear()
        remote.save(tmp_path / f"{expert}.safetensors")
        assert bool(engine.traffic.received["rows"]) is (expert == "exact")
        close(
            distgp.load(tmp_path / f"{expert}.safetensors").predict(X_NEW, return_std=True), wanted
        )
        close(remote.gather().predict(X_NEW, return_std=True), wanted)
        assert isinstance(remote.experts_.where, distgp.engines.Local)


def workers_of(engine, n_experts=4):
    data = torch.as_tensor(X)
    labels = np.arange(len(X)) % n_experts
    shards = distgp.split(Shard(data, torch.zeros(len(X)).double(), torch.arange(len(X))), labels)
    return with_target(place(engine, shards, torch.as_tensor(Y)[:, None]), 0)


def killed_meanwhile(workers, delay, action):
    """The action's result, one of the workers killed while it runs."""
    victim = workers.pids()[1]
    timer = threading.Timer(delay, os.kill, (victim, signal.SIGKILL))
    timer.start()
    result = action()
    timer.join()
    assert victim not in workers.pids(), "the worker was not killed"
    return result


def slow_objective(group, *arguments):
    from distgp.training.loop import _local

    time.sleep(0.2)
    return _local(group, *arguments)


def test_a_worker_killed_during_training(engine, monkeypatch):
    theta = distgp.Parameters.of(KERNEL, 0.1)
    wanted = distgp.train(distgp.Fact(n_iter=8), distgp.ExactExpert(), theta, workers_of(engine))
    monkeypatch.setattr("distgp.training.loop._local", slow_objective)
    workers = workers_of(engine)

    def train():
        return distgp.train(distgp.Fact(n_iter=8), distgp.ExactExpert(), theta, workers)

    found = killed_meanwhile(workers.where, 0.7, train)
    assert [r.objective for r in found.history] == [r.objective for r in wanted.history]


def slow_rows(group, seconds):
    time.sleep(seconds)
    return float(group.shards.y.sum())


def test_a_worker_killed_during_prediction(engine):
    for expert in ("exact", "sparse"):
        remote = given(expert=expert, n_inducing=30, engine=engine, aggregation="rbcm").fit(X, Y)
        wanted = remote.predict(X_NEW, return_std=True)
        where = remote.experts_.where
        killed_meanwhile(where, 0.3, lambda where=where: where.map(slow_rows_of_experts, 1.0))
        close(remote.predict(X_NEW, return_std=True), wanted, 1e-12)
        os.kill(where.pids()[0], signal.SIGKILL)
        close(remote.predict(X_NEW, return_std=True, aggregation="two-level"),
              given(expert=expert, n_inducing=30, aggregation="two-level").fit(X, Y)
              .predict(X_NEW, return_std=True))  # fmt: skip


def slow_rows_of_experts(group, seconds):
    time.sleep(seconds)
    return group.size


def dies(group):
    os._exit(1)


def fails(group):
    raise ValueError("no good rows")


def test_errors_name_the_shard_and_the_cause(engine):
    where = workers_of(engine).where
    begin = time.monotonic()
    with pytest.raises(
        EngineError, match=r"worker with shards . to . was lost 4 times in one round"
    ):
        where.map(dies)
    with pytest.raises(ValueError, match="no good rows") as caught:
        where.map(fails)
    assert "on the worker with shards" in caught.value.__notes__[0]
    engine.time_limit = 0.5
    try:
        with pytest.raises(
            EngineError, match=r"longer than its limit of 0\.5 s; still at work: shards"
        ):
            where.map(slow_rows, 30.0)
    finally:
        engine.time_limit = 120
    assert where.map(slow_rows, 0.0), "late workers must not hold up the next round"
    assert time.monotonic() - begin < 100


def test_after_closing(engine):
    own = RayEngine(workers=1, cpus=0)
    gp = given(engine=own).fit(X, Y)
    gp.close()  # does nothing: the engine is not the regressor's own
    wanted = gp.predict(X_NEW)
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
    assert isinstance(exact.aggregation_, distgp.TwoLevel)
    assert engine.traffic.received["means"] > 0 and engine.traffic.received["rows"] > 0


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    frame = pd.DataFrame({"east": X[:, 0], "north": X[:, 1], "level": Y})
    frame["site"] = np.where(np.arange(300) < 150, "hill", "lake")
    for i in range(3):
        frame[100 * i : 100 * (i + 1)].to_parquet(folder / f"{i}.parquet", row_group_size=40)
    return folder


def test_workers_read_parquet_by_themselves(engine, parquet, tmp_path):
    options = {"expert": "sparse", "n_inducing": X_NEW}
    local = given(**options).fit(X, Y)
    remote = given(**options, engine=engine)
    engine.traffic.sent.clear()
    remote.fit_parquet(str(parquet), "level", features=["east", "north"])
    assert not engine.traffic.sent["rows"]
    new = pd.DataFrame(X_NEW, columns=["east", "north"])
    close(remote.predict(new, return_std=True), local.predict(X_NEW, return_std=True))
    before = remote.predict(new, return_std=True, aggregation="rbcm")
    os.kill(remote.experts_.where.pids()[0], signal.SIGKILL)
    close(remote.predict(new, return_std=True, aggregation="rbcm"), before, 1e-12)
    full = DistributedGPRegressor(engine=engine, expert="sparse", n_inducing=30, n_iter=8)
    full.fit_parquet(f"file://{parquet}/*.parquet", "level")
    assert list(full.feature_names_in_) == ["east", "north", "site=hill", "site=lake"]
    full.save(tmp_path / "m.safetensors")
    assert distgp.load(tmp_path / "m.safetensors").n_experts_ == full.n_experts_
    scaled = full.models_[0].scaling
    np.testing.assert_allclose(scaled.x_mean[:2], X.mean(0), rtol=1e-12)
    np.testing.assert_allclose(scaled.x_scale[:2], X.std(0), rtol=1e-12)
    assert scaled.y_scale == pytest.approx(Y.std())


def test_parquet_that_cannot_be_used(engine, parquet, tmp_path):
    gp = DistributedGPRegressor(engine=engine, n_iter=2)
    for arguments, message in [
        (("nowhere.parquet", "level"), "there is no file"),
        ((str(parquet), "height"), "no column 'height'"),
        ((str(parquet), "site"), "the target 'site' is"),
    ]:
        with pytest.raises(ValueError, match=message):
            gp.fit_parquet(*arguments)
    holes = pd.DataFrame({"x": [1.0, None, 3.0, 4.0], "y": [1.0, 2.0, 3.0, 5.0]})
    holes.to_parquet(tmp_path / "holes.parquet")
    with pytest.raises(ValueError, match=r"1 of . rows have missing values"):
        gp.fit_parquet(str(tmp_path / "holes.parquet"), "y")
    assert (
        gp.fit_parquet(str(tmp_path / "holes.parquet"), "y", missing="drop").experts_.row_count()
        == 3
    )


def test_a_thousand_experts_on_two_workers(engine):
    X, y = make_data(20_000)
    remote = DistributedGPRegressor(
        expert="sparse", n_experts=1000, n_inducing=20, n_iter=4, engine=engine, aggregation="rbcm"
    ).fit(X, y)
    assert remote.n_experts_ == 1000
    assert np.isfinite(remote.predict(X_NEW)).all()
    assert np.abs(remote.predict(X_NEW, aggregation="pooled") - np.sin(2 * X_NEW[:, 0])
                  - np.cos(X_NEW[:, 1])).mean() < 0.1  # fmt: skip


def test_the_command_line(parquet, tmp_path):
    command = [Path(sys.executable).parent / "distgp", "fit"]
    options = ["--engine", "ray", "--workers", "2", "--n-iter", "4", "--n-inducing", "20", "--json"]
    frame = pd.read_parquet(parquet)
    frame.to_csv(tmp_path / "t.csv", index=False)
    for data in (parquet, tmp_path / "t.csv"):
        model = tmp_path / f"{data.name}.safetensors"
        done = subprocess.run(
            [*command, data, "--target", "level", "--expert", "sparse", "-o", model, *options],
            capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["rows"] == 300 and report["bytes"]["sums"] > 0
        assert distgp.load(model).score(frame_of(frame), Y) > 0.5


def frame_of(frame):
    dummies = pd.get_dummies(frame["site"]).astype(float)
    columns = {"site=hill": dummies["hill"], "site=lake": dummies["lake"]}
    return frame[["east", "north"]].assign(**columns)


def script(code, *arguments, **options):
    """A driver of its own, in another process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        **options,
    )


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


DRIVER = """
    import sys, numpy as np, distgp, time
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(2000, 2)); y = np.sin(9 * X[:, 0]) + 0.1 * rng.normal(size=2000)
    gp = distgp.DistributedGPRegressor(engine="ray", n_experts=4, n_iter=3).fit(X, y)
    print(*gp.experts_.where.pids(), flush=True)
    if sys.argv[1] == "close":
        import ray
        gp.close()
        print(ray.is_initialized(), flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, "close"], ids=str)
def test_no_process_is_left_behind(how):
    driver = script(DRIVER, how)
    pids = [int(pid) for pid in driver.stdout.readline().split()]
    assert 1 <= len(pids) <= 4, "one process a CPU, for four experts at most"
    if how == "close":
        assert driver.stdout.readline().strip() == "False"
    else:
        assert all(alive(pid) for pid in pids)
        driver.send_signal(how)
    deadline = time.monotonic() + 40
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(alive(pid) for pid in pids)
    driver.kill()
    driver.communicate()


TWO_NODES = """
    import sys, numpy as np, pandas as pd, ray, distgp
    from ray.cluster_utils import Cluster
    from distgp.engines.ray import RayEngine
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    other = cluster.add_node(num_cpus=2)
    with RayEngine(address=cluster.address, workers=4, time_limit=100) as engine:
        assert engine.workers == 4
        gp = distgp.DistributedGPRegressor(
            engine=engine, expert="sparse", n_experts=4, n_inducing=25, n_iter=6
        )
        gp.fit_parquet(sys.argv[1], "level", features=["east", "north"])
        new = pd.DataFrame(np.random.default_rng(0).uniform(-2, 2, (30, 2)), columns=["east", "north"])
        before = gp.predict(new, return_std=True, aggregation="rbcm")
        nodes = {a["NodeID"] for a in ray.nodes() if a["Alive"]}
        cluster.remove_node(other)
        after = gp.predict(new, return_std=True, aggregation="rbcm")
        print(len(nodes), *(float(np.abs(a - b).max()) for a, b in zip(before, after)), flush=True)
    cluster.shutdown()
"""


def test_a_node_is_lost(parquet):
    driver = script(TWO_NODES, parquet)
    out, errors = driver.communicate(timeout=200)
    assert driver.returncode == 0, errors[-3000:]
    nodes, *gaps = out.split()
    assert nodes == "2" and all(float(gap) < 1e-10 for gap in gaps)


PEAK = """
    import resource, sys, distgp
    gp = distgp.DistributedGPRegressor(
        engine="ray", expert="sparse", n_inducing=16, n_iter=4, training_rows=2000
    ).fit_parquet(sys.argv[1], "y")
    gp.save(sys.argv[1] + ".safetensors")
    print(gp.experts_.row_count(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
    gp.close()
"""


def test_the_drivers_memory_stays_flat(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    peaks = []
    for rows in (200_000, 5_000_000):
        path = tmp_path / f"{rows}.parquet"
        schema = pa.schema([("a", pa.float64()), ("b", pa.float64()), ("y", pa.float64())])
        with pq.ParquetWriter(path, schema) as writer:
            for start in range(0, rows, 200_000):
                rng = np.random.default_rng(start)
                a, b = rng.uniform(size=(2, 200_000))
                y = np.sin(6 * a) + b + 0.1 * rng.normal(size=200_000)
                writer.write_table(pa.table([a, b, y], schema=schema))
        driver = script(PEAK, path)
        out, errors = driver.communicate(timeout=300)
        assert driver.returncode == 0, errors[-3000:]
        count, peak = map(int, out.split())
        assert count == rows
        peaks.append(peak / 1024)
    # The longer file's rows are 114 MiB.
    assert peaks[1] < peaks[0] + 50, peaks


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
