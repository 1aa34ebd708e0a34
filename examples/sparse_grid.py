"""Inducing inputs on a sparse grid, for few columns.

Learn here what a level costs before any work is done, how optimal coefficients (OptiCom) compare with
those of the combination technique, and how hyperparameters are found once and used again.

    python examples/sparse_grid.py [rows]
"""

import sys

import numpy as np

import distgp
from distgp import metrics

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
rng = np.random.default_rng(0)


def surface(X: np.ndarray) -> np.ndarray:
    """Griewank's function: many waves on a wide bowl."""
    i = np.arange(1, X.shape[1] + 1)
    return 1.0 + np.square(X).sum(1) / 4000.0 - np.cos(X / np.sqrt(i)).prod(1)


X, X_test = rng.uniform(-5, 5, (rows, 2)), rng.uniform(-5, 5, (1000, 2))
y = surface(X) + 0.1 * rng.normal(size=rows)

trained = distgp.SparseGridGP(level=4, box=(-5, 5), n_iter=20).fit(X, y)
settings = {"kernel": trained.kernel_, "noise": trained.noise_, "training": None, "box": (-5, 5)}
for level in (3, 4, 5):
    cost = distgp.SparseGridGP(level=level).describe(*X.shape)
    errors = {}
    for combination in ("ct", "opticom"):
        gp = distgp.SparseGridGP(level=level, combination=combination, **settings).fit(X, y)
        errors[combination] = metrics.rmse(surface(X_test), gp.predict(X_test))
    print(
        f"level {level}: {cost.grids} grids, {cost.union} points, RMSE {errors['ct']:.3f} with the "
        f"combination technique, {errors['opticom']:.3f} with OptiCom"
    )
