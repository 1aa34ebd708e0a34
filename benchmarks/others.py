"""The models of others that distgp is compared with, each given what it needs to do well.

Boosting, ridge regression and the forest predict a number; their standard deviation is that of their
errors on training rows held out as the rows to predict are: at random, or the last ones. Boosting can also
have a standard deviation for every row, from a second model of its log squared errors. SVGP is GPyTorch's;
its learning rate and its number of inducing inputs are 0.01 and 1,024 where nobody has looked for better
ones (`jobs.py --tune`, `uci.py --tune`). GPBoost is its own Vecchia approximation.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold, cross_val_predict
from torch import Tensor

from distgp import metrics
from distgp.selection import hold_out
from distgp.selection.trials import PointRegressor

Row = dict[str, object]
FOLDS = 5
SETTLED = 0.01
"""Nats a row by which SVGP's objective may change between two fifths of its time to have converged."""
RATES, SIZES = (0.003, 0.01, 0.03, 0.1), (512, 1024)
"""Learning rates and numbers of inducing inputs among which SVGP's are looked for."""


def figures(y: np.ndarray, mean: np.ndarray, std: np.ndarray) -> Row:
    """RMSE, NLPD, and the cover of 90 % and 50 % intervals."""
    variance = np.square(std)
    return {
        "rmse": metrics.rmse(y, mean),
        "nlpd": metrics.nlpd(y, mean, variance),
        "cover": metrics.coverage(y, mean, variance, 0.9),
        "cover50": metrics.coverage(y, mean, variance, 0.5),
    }


def now(device: str) -> float:
    """The time in seconds, when the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def boosting(seed: int = 0) -> HistGradientBoostingRegressor:
    """scikit-learn's gradient boosting with its defaults."""
    return HistGradientBoostingRegressor(random_state=seed)


def with_one_spread(
    model: PointRegressor, X: np.ndarray, y: np.ndarray, X_test: np.ndarray, validation: str
) -> tuple[np.ndarray, np.ndarray]:
    """Predict numbers, with the root mean square of the errors on rows held out for all of them."""
    train, out = hold_out(len(y), validation, inputs=X)
    errors = y[out] - model.fit(X[train], y[train]).predict(X[out])
    mean = np.asarray(model.fit(X, y).predict(X_test))
    return mean, np.full(len(mean), np.sqrt(np.mean(np.square(errors))))


def boosting_with_spreads(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray, validation: str
) -> tuple[np.ndarray, np.ndarray]:
    """Predict by boosting, with a standard deviation for every row by a second boosted model.

    The second model learns the logarithm of the squared errors on rows held out: on all rows, in five
    folds, or on the last ones. Its variances are scaled so that the squared errors of rows that it did not
    see are as large as it says, on average.
    """
    errors, folds = np.empty(len(y)), KFold(FOLDS, shuffle=True, random_state=0)
    parts = list(folds.split(X))
    if validation == "last":
        parts = [hold_out(len(y), "last")]
    for train, out in parts:
        errors[out] = y[out] - boosting().fit(X[train], y[train]).predict(X[out])
    rows = np.sort(np.concatenate([out for _, out in parts]))
    squares = np.square(errors[rows])
    logs = np.log(squares + 1e-4 * squares.mean())
    unseen = np.asarray(cross_val_predict(boosting(), X[rows], logs, cv=folds))
    scale = np.mean(squares / np.exp(unseen))
    variance = scale * np.exp(boosting().fit(X[rows], logs).predict(X_test))
    return boosting().fit(X, y).predict(X_test), np.sqrt(variance)


class Sparse(NamedTuple):
    """What SVGP predicts, and how its objective changed.

    `change` is by how much its objective fell between the third and the fourth fifth of its time, in nats a
    row; `loss` is the objective in the fourth fifth, and `steps` how many steps it took.
    """

    mean: np.ndarray
    std: np.ndarray
    change: float
    loss: float
    steps: int

    def row(self) -> Row:
        """The figures of its descent, for a table."""
        note = "" if abs(self.change) < SETTLED else "not converged"
        return {"steps": self.steps, "loss": self.loss, "change": self.change, "note": note}


def svgp(
    X: Tensor,
    y: Tensor,
    X_test: Tensor,
    seconds: float,
    device: str,
    m: int = 1024,
    rate: float = 0.01,
) -> Sparse | None:
    """GPyTorch's SVGP with minibatches of 1,024 for so many seconds; None where it is missing.

    The learning rate is constant for four fifths of the time, and a tenth of it in the last fifth.
    """
    try:
        gpytorch: Any = importlib.import_module("gpytorch")
    except ImportError:
        return None
    torch.manual_seed(0)
    x_mean, x_std, y_mean, y_std = X.mean(0), X.std(0), y.mean(), y.std()
    rows, targets = ((X - x_mean) / x_std).float(), ((y - y_mean) / y_std).float()
    points = ((X_test - x_mean) / x_std).float()
    Z = rows[torch.randperm(len(rows), device=rows.device)[:m]].clone()
    model = sparse_model(gpytorch, Z).to(device)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().to(device)
    bound = gpytorch.mlls.VariationalELBO(likelihood, model, num_data=len(rows))
    optimizer = torch.optim.Adam([*model.parameters(), *likelihood.parameters()], lr=rate)
    losses: list[list[float]] = [[] for _ in range(5)]
    for fifth in fifths(seconds, device):
        for group in optimizer.param_groups:
            group["lr"] = 0.1 * rate if fifth == 4 else rate
        which = torch.randint(len(rows), (1024,), device=rows.device)
        optimizer.zero_grad()
        loss = -bound(model(rows[which]), targets[which])
        loss.backward()
        optimizer.step()
        losses[fifth].append(float(loss.detach()))
    third, fourth = (float(np.mean(some)) if some else np.nan for some in losses[2:4])
    model.eval()
    likelihood.eval()
    with torch.no_grad():
        parts = [likelihood(model(chunk)) for chunk in points.split(4096)]
    mean = torch.cat([part.mean for part in parts]) * y_std + y_mean
    std = torch.cat([part.variance for part in parts]).sqrt() * y_std
    arrays = mean.double().cpu().numpy(), std.double().cpu().numpy()
    return Sparse(*arrays, third - fourth, fourth, sum(map(len, losses)))


def fifths(seconds: float, device: str) -> Iterator[int]:
    """Yield, again and again, which fifth of the time it is, from 0 to 4, until it is over."""
    begin = now(device)
    while (passed := now(device) - begin) < seconds:
        yield int(5 * passed / seconds)


def sparse_model(gpytorch: Any, Z: Tensor) -> Any:
    """A Matérn-5/2 kernel with one lengthscale for each column, and inducing inputs that are learnt."""

    class Model(gpytorch.models.ApproximateGP):
        def __init__(self) -> None:
            posterior = gpytorch.variational.CholeskyVariationalDistribution(len(Z))
            super().__init__(
                gpytorch.variational.VariationalStrategy(
                    self, Z, posterior, learn_inducing_locations=True
                )
            )
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(
                gpytorch.kernels.MaternKernel(2.5, ard_num_dims=Z.shape[-1])
            )

        def forward(self, x: Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    return Model()


def gpboost(
    X: np.ndarray, y: np.ndarray, X_test: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float] | None:
    """GPBoost's Vecchia approximation, ARD Matérn-5/2; None where it is not installed."""
    try:
        import gpboost as gpb  # pyright: ignore[reportMissingImports]
    except ImportError:
        return None
    x_mean, x_std, y_mean, y_std = X.mean(0), X.std(0), y.mean(), y.std()
    begin = time.perf_counter()
    model = gpb.GPModel(
        gp_coords=(X - x_mean) / x_std,
        cov_function="matern_ard",
        cov_fct_shape=2.5,
        gp_approx="vecchia",
        likelihood="gaussian",
    )
    model.fit(y=(y - y_mean) / y_std)
    out = model.predict(
        gp_coords_pred=(X_test - x_mean) / x_std, predict_var=True, predict_response=True
    )
    seconds = time.perf_counter() - begin
    return out["mu"] * y_std + y_mean, np.sqrt(out["var"]) * y_std, seconds
