"""Several devices in one process: here the CPU counts as two, and where there is a GPU both are mixed."""

import numpy as np
import pytest
import torch
from helpers import close, shard

from distgp import DistributedGPRegressor
from distgp.engines import DevicesEngine, opened
from distgp.engines.devices import moved
from distgp.experts import Parameters
from distgp.kernels import RBF

PAIRS = [("cpu", "cpu")]
if torch.cuda.is_available():
    PAIRS += [("cuda:0", "cuda:0"), ("cuda:0", "cpu")]
WAYS = [
    {"expert": "exact", "aggregation": "two-level"},
    {"expert": "exact", "aggregation": "rbcm", "training": "fact"},
    {"expert": "exact", "aggregation": "grbcm"},
    {"expert": "exact", "aggregation": "opt"},
    {"expert": "exact", "training": "admm", "aggregation": "npae"},
    {"expert": "sparse", "aggregation": "pooled", "n_inducing": 20},
    {"expert": "sparse", "training": "independent", "aggregation": "opt-local", "n_inducing": 20},
    {"expert": "nearest", "n_neighbors": 16, "n_inducing": 10},
]


def rows(n: int) -> tuple[np.ndarray, np.ndarray]:
    data = shard(n, 2)
    return data.X.numpy(), data.y.numpy()


@pytest.mark.parametrize("devices", PAIRS, ids="-".join)
@pytest.mark.parametrize("way", WAYS, ids=lambda way: f"{way['expert']}-{way.get('aggregation')}")
def test_two_devices_give_what_one_gives(way, devices, tmp_path):
    X, y = rows(240)
    settings = {"n_experts": 4, "n_iter": 5, "random_state": 0, "device": devices[0]} | way
    one = DistributedGPRegressor(**settings).fit(X, y)
    two = DistributedGPRegressor(engine=DevicesEngine(devices), **settings).fit(X, y)
    points = X[:50] + 0.01
    for a, b in zip(
        one.predict(points, return_std=True), two.predict(points, return_std=True), strict=True
    ):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    two.save(tmp_path / "model.safetensors")
    before = two.predict(points)
    two.gather()
    np.testing.assert_allclose(two.predict(points), before, rtol=1e-9, atol=1e-11)


def test_what_travels_is_counted():
    X, y = rows(120)
    engine = DevicesEngine(["cpu", "cpu"])
    DistributedGPRegressor(expert="exact", n_experts=4, n_iter=3, engine=engine).fit(X, y)
    assert engine.traffic.total()["parameters"] > 0


def test_values_of_any_kind_are_moved_whole():
    theta = Parameters.of(2.0 * RBF([0.5, 1.0]), 0.1)
    other = moved({"theta": theta, "numbers": [1, "two"]}, torch.device("meta"))
    assert other["numbers"] == [1, "two"] and other["theta"].noise.device.type == "meta"
    close(theta.noise, torch.tensor(0.1, dtype=torch.float64))


def test_all_visible_gpus_are_used_by_name(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    engine = opened("local", "cuda")
    assert isinstance(engine, DevicesEngine) and engine.workers == 3
    assert opened("local", "cuda:1").name == "local"
    assert opened("local", "cpu").name == "local"


def test_no_gpu_is_said(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(ValueError, match="no GPU is visible"):
        DevicesEngine()
