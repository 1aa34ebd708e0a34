"""A kernel of one's own, with bounds, priors and fixed hyperparameters.

Learn here how kernels are added and multiplied, and how training is told what is known about their
hyperparameters: by the name of the parameter, or by its full path where a name occurs twice.

    python examples/own_kernel_and_priors.py [rows]
"""

import sys

import numpy as np

import distgp
from distgp import RBF, Linear, Periodic
from distgp.training import LogNormal

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000
rng = np.random.default_rng(0)
years = np.sort(rng.uniform(0, 10, size=rows))
season = np.sin(2 * np.pi * years)
y = 0.3 * years + season + 0.2 * rng.normal(size=rows)
X = years[:, None]

# A trend, plus a yearly pattern that may slowly change.
kernel = Linear([1.0]) + 1.0 * Periodic([1.0], [1.0]) * RBF([5.0])
print("parameters:", ", ".join(f"kernel.{name}" for name in kernel.parameters()))

gp = distgp.DistributedGPRegressor(
    expert="exact",
    n_experts=4,
    kernel=kernel,
    noise=0.1,
    normalize=False,  # the kernel is in the data's own units, so that a period of 1 is a year
    fixed=["period"],
    bounds={"noise": (1e-3, 1.0)},
    priors={
        "noise": LogNormal(0.05, 0.5),
        "kernel.kernels.1.kernels.1.lengthscale": LogNormal(10.0),
    },
    n_iter=30,
    random_state=0,
).fit(X, y)
print("found:", gp.kernel_, f"and a noise of {np.sqrt(gp.noise_):.2f} (the truth is 0.2)")

ahead = np.array([[10.25], [10.5], [10.75]])
mean, std = gp.predict(ahead, return_std=True)
for t, m, s in zip(ahead[:, 0], mean, std, strict=True):
    truth = 0.3 * t + np.sin(2 * np.pi * t)
    print(f"year {t:.2f}: {m:.2f} ± {s:.2f}, without noise the truth is {truth:.2f}")
