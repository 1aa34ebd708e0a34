"""Ray clusters that fail, or are not what they seem: the same numbers, or one clear error."""

import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress

import numpy as np
import pandas as pd
import pytest
from hostile.trial import FULL, count, data, times, tiny

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'distgp[ray]'")

from on_workers import Once, dies, plus
from ray.exceptions import RayError

from distgp.engines import EngineError, EngineWarning, ray_pool
from distgp.engines.ray import RayEngine


@pytest.fixture(scope="module")
def parquet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    X, y = data(300)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(y=y)
    for i in range(3):
        frame[100 * i : 100 * (i + 1)].to_parquet(folder / f"{i}.parquet", row_group_size=40)
    return folder


def killed(placement, i=0):
    os.kill(placement.pids()[i], signal.SIGKILL)


def test_files_that_changed_since_the_fit_are_not_read_again(engine, parquet, tmp_path):
    for path in parquet.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    gp = tiny(expert="sparse", n_experts=4, engine=engine).fit_parquet(tmp_path, "y")
    new = pd.DataFrame(data(5, seed=1)[0], columns=["a", "b"])
    before = gp.predict(new, aggregation="rbcm")
    killed(gp.experts_.placement)
    np.testing.assert_array_equal(gp.predict(new, aggregation="rbcm"), before)
    frame = pd.read_parquet(tmp_path / "0.parquet")
    frame.assign(y=frame["y"] + 3).to_parquet(tmp_path / "0.parquet", row_group_size=40)
    killed(gp.experts_.placement)
    with pytest.raises(EngineError, match=r"0\.parquet was changed after the fit began.*fit again"):
        gp.predict(new, aggregation="rbcm")
    other = tiny(expert="sparse", n_experts=4, engine=engine).fit_parquet(parquet, "y")
    killed(other.experts_.placement)
    other.predict(new, aggregation="rbcm")  # which is not held up by what cannot be made again
    count("Ray faults", "held: a clear error")


def test_more_workers_than_fit_are_not_waited_for(engine):
    wide = RayEngine(workers=9)
    with pytest.warns(EngineWarning, match="9 workers with 1 CPUs were asked for, and 4 fit"):
        assert wide.workers == 4
    assert wide.workers == 4, "said once"


def test_options_that_cannot_be_meant(engine):
    for name, values in {
        "workers": (1.5, 0, True, "2"),
        "retries": ("a", -1, 1.5),
        "cpus": (-1, None),
        "gpus": ("x", float("inf")),
        "time_limit": (0, float("nan")),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name} must be .*, got"):
                RayEngine(**{name: value})


def test_an_engine_that_was_closed(engine):
    closed = RayEngine(workers=1)
    closed.close()
    with pytest.raises(EngineError, match=r"this engine is closed .*fit again with a new one"):
        tiny(engine=closed).fit(*data())


def test_what_cannot_be_made_again_tells_the_first_reason(engine, tmp_path, capfd):
    one = engine.scatter([Once(tmp_path / "made")], ["the only shard"])
    kept = one.derive(plus, 1.0).derive(plus, 2.0)
    with pytest.raises(EngineError, match=r"making its part again failed: .*exists"):
        kept.map(dies)
    assert "Traceback" not in capfd.readouterr().err


def test_addresses_where_no_cluster_is(monkeypatch):
    begin = time.monotonic()
    silent = "nothing answers there"
    for wrong, said in {
        "nowhere": "expected 'auto'",
        "127.0.0.1:1": silent,
        "127.0.0.1:99999": silent,
        "ray://127.0.0.1:1": silent,
    }.items():
        with pytest.raises(ConnectionError, match=said):
            ray_pool.check_reachable(wrong)
    assert time.monotonic() - begin < 10
    with socket.create_server(("127.0.0.1", 0)) as other:  # accepts, and never says a word
        monkeypatch.setattr(ray_pool, "ANSWER_LIMIT", 3.0)
        with pytest.raises(ConnectionError, match="something answers there, but not as Ray"):
            ray_pool.check_reachable(f"127.0.0.1:{other.getsockname()[1]}")
    count("Ray faults", "held: a clear error", 5)


OWN = """
    import os, socket, subprocess, sys, warnings
    warnings.simplefilter("error")
    from distgp.engines.ray import RayEngine, ray
    with RayEngine(workers=1) as engine:
        host, port = ray.get_runtime_context().gcs_address.split(":")
        tables = [open(f"/proc/net/{name}").read().splitlines()[1:] for name in ("tcp", "tcp6")]
        ports = {line.split()[1].split(":")[1]: line.split()[1].split(":")[0]
                 for table in tables for line in table if line.split()[3] == "0A"}
        print(host, ports[f"{int(port):04X}"][-8:])
        code = "import sys; from ray._raylet import GcsClient; GcsClient(address=sys.argv[1])"
        environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
        tried = subprocess.run([sys.executable, "-c", code, f"{host}:{port}"], env=environment,
                               capture_output=True, text=True)
        print("AuthenticationError" in tried.stderr, tried.returncode)
"""


@pytest.mark.skipif(not FULL, reason="takes long: `make hostile` runs it")
def test_a_cluster_of_our_own_is_reached_from_here_alone_and_with_its_token():
    out = driver(OWN)
    assert out.split("\n")[:2] == ["127.0.0.1 0100007F", "True 1"], out
    count("Ray faults", "held: a clear error")


TOKEN = """
    import os, stat, sys
    from pathlib import Path
    from distgp.engines import ray_pool
    folder, kind = Path.home() / ".ray", sys.argv[1]
    token = folder / "auth_token"
    if kind == "open":
        folder.mkdir()
        token.write_text("f" * 64)
        token.chmod(0o644)
    ray_pool.ray.init = lambda **options: (_ for _ in ()).throw(KeyboardInterrupt)
    try:
        ray_pool.start()
    except KeyboardInterrupt:
        from ray._raylet import AuthenticationTokenLoader
        known = AuthenticationTokenLoader.instance().has_token()
        print(oct(stat.S_IMODE(token.stat().st_mode)), len(token.read_text()), known)
"""


@pytest.mark.parametrize("kind", ["new", "open"])
def test_the_token_of_a_cluster_of_our_own_is_for_its_owner_alone(kind, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    assert driver(TOKEN, kind) == "0o600 64 True\n"


OPEN = """
    import os, warnings
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray
    from ray.cluster_utils import Cluster
    from distgp.engines.ray import RayEngine
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with RayEngine(address=cluster.address) as engine:
            print(engine.workers, [str(w.message)[:70] for w in said if "token" in str(w.message)])
    cluster.shutdown()
"""


@pytest.mark.skipif(not FULL, reason="takes long: `make hostile` runs it")
def test_a_cluster_without_a_token_is_warned_of():
    out = driver(OPEN)
    assert out.startswith("1 ['the Ray cluster at") and "asks for no token" in out, out


def driver(code, *arguments, limit=300):
    """What a process of its own prints."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=limit)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_workers_killed_at_any_moment_of_every_phase(engine, parquet):
    """A soak: a worker is killed while rows are read, experts trained, conditioned, asked."""
    new = pd.DataFrame(data(50, seed=1)[0], columns=["a", "b"])
    ways = {
        "sparse": {"expert": "sparse", "n_experts": 4, "n_inducing": 12, "n_iter": 8},
        "exact": {"expert": "exact", "n_experts": 4, "n_iter": 6, "aggregation": "rbcm"},
        "nearest": {"expert": "nearest", "n_experts": 2, "n_inducing": 12, "n_iter": 4},
    }
    wanted = {}
    for name, options in ways.items():
        begin = time.monotonic()
        gp = tiny(engine=engine, **options).fit_parquet(parquet, "y")
        wanted[name] = gp.predict(new, return_std=True), time.monotonic() - begin
    draw, kills = random.Random(0), 0
    for turn in range(times(1, 50)):
        name = [*ways][turn % len(ways)]
        (mean, std), took = wanted[name]
        victim = draw.choice(alive(engine))
        stop = threading.Timer(draw.uniform(0.0, took), os.kill, (victim, signal.SIGKILL))
        stop.start()
        gp = tiny(engine=engine, **ways[name]).fit_parquet(parquet, "y")
        found = gp.predict(new, return_std=True)
        stop.join()
        kills += 1
        np.testing.assert_array_equal(found[0], mean)
        np.testing.assert_array_equal(found[1], std)
        count("Ray faults", "held: the same numbers")
    assert kills >= times(1, 50)


def alive(engine):
    """The processes of the workers that are there."""
    found = []
    for actor in engine.pool.actors:
        with suppress(RayError):
            found.append(ray.get(actor.pid.remote()))
    return found


NODES = """
    import sys, threading, random, time, warnings, numpy as np, pandas as pd, ray
    warnings.simplefilter("ignore")
    from ray.cluster_utils import Cluster
    from distgp.engines.ray import RayEngine
    import distgp
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    new = pd.DataFrame(np.random.default_rng(0).uniform(-1, 1, (30, 2)), columns=["a", "b"])
    options = dict(expert="sparse", n_experts=4, n_inducing=12, n_iter=8)
    draw = random.Random(0)
    with RayEngine(address=cluster.address, workers=2, time_limit=100) as engine:
        first = distgp.DistributedGPRegressor(engine=engine, **options).fit_parquet(sys.argv[1], "y")
        wanted = first.predict(new, return_std=True)
        for turn in range(int(sys.argv[2])):
            other = cluster.add_node(num_cpus=1)
            stop = threading.Timer(draw.uniform(0, 2), cluster.remove_node, (other,))
            stop.start()
            gp = distgp.DistributedGPRegressor(engine=engine, **options).fit_parquet(sys.argv[1], "y")
            found = gp.predict(new, return_std=True)
            stop.join()
            assert all((a == b).all() for a, b in zip(found, wanted)), "other numbers"
            print("same", flush=True)
    cluster.shutdown()
"""


@pytest.mark.skipif(not FULL, reason="takes long: `make hostile` runs it")
def test_nodes_lost_at_any_moment(parquet):
    out = driver(NODES, parquet, 6)
    assert out.split() == ["same"] * 6
    count("Ray faults", "held: the same numbers", 6)
