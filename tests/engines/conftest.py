"""One small Ray cluster for all tests of this folder."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from helpers import make_data


@pytest.fixture(scope="session")
def engine():
    """Two workers on a cluster with room for two others."""
    ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'distgp[ray]'")
    from distgp.engines.ray import RayEngine

    with pytest.MonkeyPatch.context() as changed:  # workers import what tests send them
        tests = str(Path(__file__).parents[1])
        changed.setenv("PYTHONPATH", tests, prepend=os.pathsep)
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    with RayEngine(workers=2, time_limit=120) as made:
        yield made
    ray.shutdown()


@pytest.fixture(scope="session")
def parquet(tmp_path_factory):
    """A folder of three files with 300 rows: east, north and level of `make_data`, and a text."""
    folder = tmp_path_factory.mktemp("parquet")
    X, y = make_data(300, noise=0.2)
    frame = pd.DataFrame({"east": X[:, 0], "north": X[:, 1], "level": y})
    frame["site"] = np.where(np.arange(300) < 150, "hill", "lake")
    for i in range(3):
        frame[100 * i : 100 * (i + 1)].to_parquet(folder / f"{i}.parquet", row_group_size=40)
    return folder
