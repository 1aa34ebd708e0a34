"""The same model on a Ray cluster.

Learn here how an engine is opened and closed, that the numbers do not depend on where the experts
live, and how to see what has travelled between the processes.

    python examples/ray_cluster.py [rows]
"""

import sys

import numpy as np

import distgp

try:
    from distgp.engines.ray import RayEngine
except ImportError:
    print("Ray is not installed: pip install 'distgp[ray]'")
    sys.exit(0)

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000
rng = np.random.default_rng(0)
X = rng.uniform(size=(rows, 2))
y = np.sin(12 * X[:, 0]) + np.cos(9 * X[:, 1]) + 0.3 * rng.normal(size=rows)
settings = {"expert": "sparse", "n_experts": 8, "n_inducing": 64, "random_state": 0}

# Without an address it takes the cluster of RAY_ADDRESS, or starts one on this machine.
with RayEngine(workers=2) as engine:
    remote = distgp.DistributedGPRegressor(**settings, engine=engine).fit(X, y)
    mean, std = remote.predict(X[:5], return_std=True)
    print("bytes that travelled, by kind:", dict(engine.traffic.total()))

here = distgp.DistributedGPRegressor(**settings).fit(X, y)
print("predictions:", mean.round(3), "±", std.round(3))
print("the same as in one process:", np.allclose(mean, here.predict(X[:5]), rtol=1e-6))
