"""A first regression: fit, predict with uncertainty, save, load.

Learn here how a model is fitted to more rows than one exact GP would like, what its standard
deviations mean, and how it is kept in a file.

    python examples/first_regression.py [rows]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import distgp

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
rng = np.random.default_rng(0)
X = rng.uniform(size=(rows, 2))
y = np.sin(12 * X[:, 0]) + np.cos(9 * X[:, 1]) + 0.3 * rng.normal(size=rows)
X_new = rng.uniform(size=(5, 2))

# The defaults choose the kind and the number of experts, and how they are combined.
gp = distgp.DistributedGPRegressor(random_state=0).fit(X, y)
print(f"{gp.n_experts_} experts, combined by {gp.aggregation_.name}; R² = {gp.score(X, y):.3f}")

# The standard deviation is that of an observation; with latent=True, that of the function itself.
mean, std = gp.predict(X_new, return_std=True)
_, latent = gp.predict(X_new, return_std=True, latent=True)
for x, m, s, f in zip(X_new.round(2), mean, std, latent, strict=True):
    print(f"at {x}: {m:.2f} ± {s:.2f} for an observation, ± {f:.2f} for the function")

# A file holds everything that predictions need, and a loaded model predicts the same numbers.
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "model.safetensors"
    gp.save(path)
    again, _ = distgp.load(path).predict(X_new, return_std=True)
    print("the loaded model predicts the same:", np.array_equal(again, mean))
