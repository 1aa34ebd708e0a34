"""One exact and one sparse expert on a small data set, beside scikit-learn's full GP.

Trains the hyperparameters of each by L-BFGS, prints test metrics, and saves a picture to
build/demo.png.
"""

from __future__ import annotations

import time
from pathlib import Path

import matplotlib
import numpy as np
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

import distgp
from distgp import metrics
from distgp.experts import inducing

matplotlib.use("Agg")
import matplotlib.pyplot as plt

PICTURE = Path(__file__).parent.parent / "build" / "demo.png"


def truth(x: np.ndarray) -> np.ndarray:
    return np.sin(3 * x) + 0.4 * np.sin(11 * x) * np.exp(-(x**2))


def make_data(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(-2, 2, size=n)
    x = x[(x < 0.5) | (x > 1.1)]  # a gap, to see the uncertainty grow
    return x[:, None], truth(x) + 0.2 * rng.normal(size=len(x))


def main() -> None:
    X, y = make_data(600, seed=0)
    X_test, y_test = make_data(2000, seed=1)
    shard = distgp.Shard.of(torch.as_tensor(X), torch.as_tensor(y))
    kernel, noise = 1.0 * distgp.RBF(0.5), 0.1
    Z = inducing.greedy(shard.X, 1.0 * distgp.RBF(0.2), noise, seed=0)

    print(
        f"{shard.n} training rows, {len(y_test)} test rows; sparse: m = {len(Z)}, chosen by itself"
    )
    columns = ("seconds", "RMSE", "NLPD", "90 % cover", "log evidence")
    print(f"{'':22s}" + "".join(f"{column:>14s}" for column in columns))
    fitted = {}
    for expert in (distgp.ExactExpert(), distgp.SparseExpert()):
        begin = time.perf_counter()
        start = distgp.Parameters.of(kernel, noise, Z if expert.name == "sparse" else None)
        result = distgp.train(distgp.Fact(n_iter=100), expert, start, [shard])
        theta, evidence = result.parameters, -result.objective
        posterior = expert.condition(theta, shard)
        out = posterior.predict(torch.as_tensor(X_test)).observed(theta.noise)
        report(f"distgp {expert.name}", begin, y_test, out.mean, out.variance, evidence)
        fitted[expert.name] = posterior

    begin = time.perf_counter()
    reference = GaussianProcessRegressor(
        sk.ConstantKernel(1.0) * sk.RBF(0.5) + sk.WhiteKernel(noise), alpha=0.0
    ).fit(X, y)
    mean, std = map(np.asarray, reference.predict(X_test, return_std=True))
    evidence = float(np.asarray(reference.log_marginal_likelihood_value_))
    report("scikit-learn exact", begin, y_test, mean, np.square(std), evidence)
    draw(shard, fitted, reference)
    print(f"picture: {PICTURE.relative_to(PICTURE.parent.parent)}")


def report(name: str, begin: float, y, mean, variance, evidence: float) -> None:
    cells = (
        time.perf_counter() - begin,
        metrics.rmse(y, mean),
        metrics.nlpd(y, mean, variance),
        metrics.coverage(y, mean, variance),
        evidence,
    )
    print(f"{name:22s}" + "".join(f"{cell:14.4f}" for cell in cells))


def draw(
    shard: distgp.Shard,
    fitted: dict[str, distgp.Posterior],
    reference: GaussianProcessRegressor,
) -> None:
    x = torch.linspace(-2.6, 2.6, 500, dtype=torch.float64)[:, None]
    full = reference.predict(x.numpy())
    figure, axes = plt.subplots(1, 2, figsize=(12, 4), sharey=True, layout="constrained")
    for axis, (name, posterior) in zip(axes, fitted.items(), strict=True):
        out = posterior.predict(x)
        low, high = out.mean - 1.645 * out.std, out.mean + 1.645 * out.std
        axis.plot(shard.X[:, 0], shard.y, ".", color="0.75", markersize=3, label="observations")
        axis.plot(x, truth(x.numpy()), color="black", linewidth=1, label="truth")
        axis.fill_between(x[:, 0], low, high, color="C0", alpha=0.25, label="90 % of f")
        axis.plot(x, out.mean, color="C0", label="mean")
        axis.plot(x, full, "--", color="C3", linewidth=1, label="scikit-learn mean")
        Z = posterior.parameters.inducing
        if Z is not None:
            bottom = np.full(len(Z), -2.3)
            axis.plot(Z[:, 0].detach(), bottom, "|", color="C2", label="inducing inputs")
        axis.set(title=f"{name} expert", xlabel="x", xlim=(-2.6, 2.6), ylim=(-2.5, 2.5))
        axis.legend(loc="upper right", fontsize=8, ncols=2)
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=120)


if __name__ == "__main__":
    main()
