"""Write the model files that every later version must be able to read.

Run once per file format, with the version that introduces it: python tests/files/write.py
"""

from pathlib import Path

import numpy as np

import distgp

FOLDER = Path(__file__).parent


def main() -> None:
    """Three small models of the same data, and what they predict."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(60, 2))
    y = np.sin(3 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=60)
    models = {
        "exact-two-level": distgp.DistributedGPRegressor(
            expert="exact", n_experts=3, aggregation="two-level", n_iter=5
        ),
        "sparse-pooled": distgp.DistributedGPRegressor(
            expert="sparse", n_experts=2, n_inducing=8, n_iter=5
        ),
        "sparse-grid": distgp.SparseGridGP(level=3, n_iter=5),
    }
    X_new = rng.uniform(-1, 1, size=(5, 2))
    for name, model in models.items():
        model.fit(X, y).save(FOLDER / f"{name}.safetensors")
        mean, std = model.predict(X_new, return_std=True)
        np.savez(FOLDER / f"{name}.npz", X=X_new, mean=mean, std=std)


if __name__ == "__main__":
    main()
