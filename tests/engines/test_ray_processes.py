"""Processes of their own that use Ray: what they leave behind, what they hold, what they survive."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'distgp[ray]'")

import distgp


def test_the_command_line_joins_a_cluster(engine, parquet, tmp_path):
    command = [Path(sys.executable).parent / "distgp", "fit"]
    options = ["--engine", "ray", "--workers", "2", "--n-iter", "4", "--n-inducing", "20", "--json"]
    environment = os.environ | {"RAY_ADDRESS": ray.get_runtime_context().gcs_address}
    frame = pd.read_parquet(parquet)
    frame.to_csv(tmp_path / "t.csv", index=False)
    for data in (parquet, tmp_path / "t.csv"):
        model = tmp_path / f"{data.name}.safetensors"
        done = subprocess.run(
            [*command, data, "--target", "level", "--expert", "sparse", "-o", model, *options],
            capture_output=True, text=True, timeout=120, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["rows"] == 300 and report["bytes"]["sums"] > 0
        assert distgp.load(model).score(frame_of(frame), frame["level"]) > 0.5


def frame_of(frame):
    dummies = pd.get_dummies(frame["site"]).astype(float)
    columns = {"site=hill": dummies["hill"], "site=lake": dummies["lake"]}
    return frame[["east", "north"]].assign(**columns)


def script(code, *arguments):
    """Start a driver of its own, in another process."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, text=True, env=environment, **pipes)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split(")")[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


DRIVER = """
    import signal, sys, numpy as np, distgp, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in the background of a shell
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(200, 2)); y = np.sin(9 * X[:, 0]) + 0.1 * rng.normal(size=200)
    gp = distgp.DistributedGPRegressor(engine="ray", n_experts=2, n_iter=3).fit(X, y)
    print(*gp.experts_.placement.pids(), flush=True)
    if sys.argv[1] == "close":
        import ray
        gp.close()
        print(ray.is_initialized(), flush=True)
    time.sleep(300)
"""


@pytest.mark.slow
def test_no_process_is_left_behind():
    drivers = {how: script(DRIVER, how) for how in (signal.SIGINT, signal.SIGKILL, "close")}
    for how, driver in drivers.items():
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        assert 1 <= len(pids) <= 2, "one process a CPU, for two experts at most"
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
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    other = cluster.add_node(num_cpus=1)
    with RayEngine(address=cluster.address, workers=2, time_limit=100) as engine:
        gp = distgp.DistributedGPRegressor(
            engine=engine, expert="sparse", n_experts=4, n_inducing=25, n_iter=6
        )
        gp.fit_parquet(sys.argv[1], "level", features=["east", "north"])
        new = pd.DataFrame(np.random.default_rng(0).uniform(-2, 2, (30, 2)), columns=["east", "north"])
        before = gp.predict(new, return_std=True, aggregation="rbcm")
        nodes = {a["NodeID"] for a in ray.nodes() if a["Alive"]}
        pids = gp.experts_.placement.pids()
        cluster.remove_node(other)
        after = gp.predict(new, return_std=True, aggregation="rbcm")
        kept = len({*pids} & {*gp.experts_.placement.pids()})
        gaps = (float(np.abs(a - b).max()) for a, b in zip(before, after))
        print(len(nodes), len(gp.experts_.placement), kept, *gaps, flush=True)
    cluster.shutdown()
"""


def test_a_node_is_lost(parquet):
    driver = script(TWO_NODES, parquet)
    out, errors = driver.communicate(timeout=200)
    assert driver.returncode == 0, errors[-3000:]
    nodes, workers, kept, *gaps = out.split()
    assert (nodes, workers, kept) == ("2", "2", "1"), "one worker of two was on the lost node"
    assert all(float(gap) < 1e-10 for gap in gaps)


PEAK = """
    import resource, sys, distgp
    for path in sys.argv[1:]:
        gp = distgp.DistributedGPRegressor(
            engine="ray", expert="sparse", n_inducing=16, n_experts=64, n_iter=4, training_rows=2000
        ).fit_parquet(path, "y")
        gp.save(path + ".safetensors")
        print(gp.experts_.row_count(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
    gp.close()
"""


@pytest.mark.slow
def test_the_drivers_memory_stays_flat(tmp_path):
    paths = [tmp_path / f"{rows}.parquet" for rows in (100_000, 2_000_000)]
    schema = pa.schema([("a", pa.float64()), ("b", pa.float64()), ("y", pa.float64())])
    for path in paths:
        with pq.ParquetWriter(path, schema) as writer:
            for start in range(0, int(path.stem), 100_000):
                rng = np.random.default_rng(start)
                a, b = rng.uniform(size=(2, 100_000))
                y = np.sin(6 * a) + b + 0.1 * rng.normal(size=100_000)
                writer.write_table(pa.table([a, b, y], schema=schema))
    driver = script(PEAK, *paths)
    out, errors = driver.communicate(timeout=300)
    assert driver.returncode == 0, errors[-3000:]
    counts, peaks = zip(*(map(int, line.split()) for line in out.splitlines()), strict=True)
    assert counts == (100_000, 2_000_000)
    # The longer file's rows are 46 MiB.
    assert (peaks[1] - peaks[0]) / 1024 < 20, peaks
