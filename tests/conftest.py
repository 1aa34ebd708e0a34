"""Every run of the suite tries the same examples: a failure in CI is a failure here."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from distgp.aggregation.base import AGGREGATORS, POSTERIORS
from distgp.engines import ENGINES
from distgp.kernels.names import KERNELS, OTHERS

settings.register_profile("repeatable", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("repeatable")
# The problems are small and two processes share the cores: more threads would only wait for each other.
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def engine():
    """Two workers on a cluster with room for two others."""
    ray = pytest.importorskip("ray", reason="Ray is an extra: pip install 'distgp[ray]'")
    from distgp.engines.ray import RayEngine

    with pytest.MonkeyPatch.context() as changed:  # workers import what tests send them
        tests = str(Path(__file__).parent)
        changed.setenv("PYTHONPATH", tests, prepend=os.pathsep)
        ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    with RayEngine(workers=2, time_limit=120) as made:
        yield made
    ray.shutdown()


@pytest.fixture(autouse=True)
def registries_as_before():
    """A test, or a page of the documentation, that registers something leaves nothing behind."""
    registries = (KERNELS, OTHERS, AGGREGATORS, POSTERIORS, ENGINES)
    before = [dict(registry) for registry in registries]
    yield
    for registry, entries in zip(registries, before, strict=True):
        registry.clear()
        registry.update(entries)
