"""How near does `gp.to_torch()` come to the estimator?

    python benchmarks/to_torch.py --page    writes the table into docs/to-torch.md

2,000 rows in two columns, hyperparameters given, 400 points among the rows and far beyond them. Largest
differences to `gp.predict`, in units of the target's standard deviation: mean, std, and latent std of the
module in float64, and mean and std of the module rounded to float32.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _measure import table_in_page

import distgp
from distgp import RBF, Matern52
from distgp.kernels import Kernel

PAGE = Path(__file__).parents[1] / "docs" / "to-torch.md"


def rows() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.7, 1.7, size=(2000, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=2000)


def in_pairs(Z: np.ndarray, apart: float) -> np.ndarray:
    return np.concatenate([Z[: len(Z) // 2], Z[: len(Z) // 2] + apart])


def cases(X: np.ndarray) -> dict[str, tuple[Kernel, float, np.ndarray]]:
    few, many = X[:60], X[:80]
    return {
        "Matérn-5/2, noise 0.02, m = 60": (Matern52([1.0, 1.0]), 0.02, few),
        "RBF, noise 0.02, m = 60": (RBF([1.0, 1.0]), 0.02, few),
        "RBF, lengthscale 10, noise 1e-6, m = 80": (RBF([10.0, 10.0]), 1e-6, many),
        "Matérn-5/2, noise 1e-6, inducing inputs in pairs 1e-7 apart": (
            Matern52([1.0, 1.0]),
            1e-6,
            in_pairs(many, 1e-7),
        ),
    }


def differences(kernel: Kernel, noise: float, Z: np.ndarray) -> list[float]:
    X, y = rows()
    gp = distgp.DistributedGPRegressor(
        expert="sparse", kernel=kernel, noise=noise, n_inducing=Z, training=None
    ).fit(X, y)
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.uniform(-2, 2, (200, 2)), rng.uniform(-20, 20, (200, 2))])
    module: Any = gp.to_torch()
    at = torch.as_tensor(points)
    mean, std = gp.predict(points, return_std=True)
    _, latent = gp.predict(points, return_std=True, latent=True)
    found = [*module(at)]
    module.latent = True
    found.append(module(at)[1])
    module.latent = False
    found += [*module.to(torch.float32)(at.float())]
    expected = (mean, std, latent, mean, std)
    return [
        float(np.abs(a.detach().double().numpy() - b).max() / y.std())
        for a, b in zip(found, expected, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="How near does a module come to the estimator?")
    parser.add_argument("--page", action="store_true", help="write the table into docs/to-torch.md")
    options = parser.parse_args()
    lines = [
        "| model | mean | std | latent std | float32: mean | float32: std |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, case in cases(rows()[0]).items():
            cells = " | ".join(f"{value:.0e}" for value in differences(*case))
            lines.append(f"| {name} | {cells} |")
            print(lines[-1], flush=True)
    if options.page:
        table_in_page(PAGE, "table", lines)


if __name__ == "__main__":
    main()
