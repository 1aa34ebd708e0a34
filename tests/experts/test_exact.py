"""The exact expert against scikit-learn, and its hand-written gradient against autograd."""

import math

import pytest
import torch
from helpers import FLOAT, close, inputs, shard, value_and_gradient
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk

from distgp import RBF, Matern32, Matern52, RationalQuadratic, linalg
from distgp.experts import ExactExpert, Parameters
from distgp.experts.exact import GaussianNLL, covariance_and_noise

ARD = [0.5, 0.9, 1.4]
PAIRS = [
    (lambda: RBF(ARD), sk.RBF(ARD)),
    (lambda: Matern32(ARD), sk.Matern(ARD, nu=1.5)),
    (lambda: Matern52(ARD), sk.Matern(ARD, nu=2.5)),
    (lambda: RationalQuadratic(0.8, alpha=1.3), sk.RationalQuadratic(0.8, alpha=1.3)),
]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda k: type(k).__name__)
def test_equals_scikit_learn_to_1e_8(ours, theirs):
    data, X = shard(60, 3), inputs(25, 3, 9)
    theta = Parameters.of(1.6 * ours(), 0.07)
    kernel = sk.ConstantKernel(1.6) * theirs + sk.WhiteKernel(0.07)
    reference = GaussianProcessRegressor(kernel, alpha=0.0, optimizer=None)
    reference.fit(data.X.numpy(), data.y.numpy())

    prediction = ExactExpert().condition(theta, data).predict(X).observed(theta.noise)
    mean, std = reference.predict(X.numpy(), return_std=True)
    close(prediction.mean, torch.as_tensor(mean), rtol=1e-8)
    close(prediction.std, torch.as_tensor(std), rtol=1e-8)

    value, gradient = value_and_gradient(lambda p: ExactExpert().objective(p, data), theta)
    likelihood, slope = reference.log_marginal_likelihood(
        reference.kernel_.theta, eval_gradient=True
    )
    close(-value, torch.tensor(likelihood, dtype=FLOAT), rtol=1e-8)
    # Both gradients are in log-parameters; scikit-learn orders them by name within a kernel.
    order = ["kernel.variance", "kernel.kernel.alpha", "kernel.kernel.lengthscale", "noise"]
    flat = torch.cat([gradient[name].reshape(-1) for name in order if name in gradient])
    close(-flat, torch.as_tensor(slope), rtol=1e-8, atol=1e-8)


def test_hand_written_gradient_equals_autograd_through_the_factorisation():
    data, theta = shard(30, 2), Parameters.of(1.3 * Matern52([0.6, 0.8]), 0.05)

    def plain(p: Parameters) -> torch.Tensor:
        L = torch.linalg.cholesky(linalg.add_diagonal(*covariance_and_noise(p, data)))
        half = torch.linalg.solve_triangular(L, data.y[:, None], upper=False)
        log_det = 2 * L.diagonal().log().sum()
        return 0.5 * (half.square().sum() + log_det + data.n * math.log(2 * math.pi))

    ours = value_and_gradient(lambda p: ExactExpert().objective(p, data), theta)
    theirs = value_and_gradient(plain, theta)
    close(ours[0], theirs[0], rtol=1e-12)
    for name in theirs[1]:
        close(ours[1][name], theirs[1][name], rtol=1e-9)


@pytest.mark.parametrize("n", [6, 70])  # below and above the smallest that LAPACK is called for
def test_gradient_of_the_likelihood_in_all_arguments(n):
    A = inputs(n, n)
    K = (A @ A.mT + torch.eye(n, dtype=FLOAT)).requires_grad_()
    noise = (0.1 + inputs(n, 1)[:, 0].abs()).requires_grad_()
    y = inputs(n, 1)[:, 0].clone().requires_grad_()

    def symmetric(K: torch.Tensor, noise: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return GaussianNLL.apply(0.5 * (K + K.mT), noise, y)  # type: ignore[return-value]

    assert torch.autograd.gradcheck(symmetric, (K, noise, y), fast_mode=n > 10)


def test_no_autograd_through_the_factorisation(monkeypatch):
    data, theta = shard(10, 2), Parameters.of(1.3 * RBF(0.6), 0.05)
    calls = {"cholesky": 0, "inverse": 0}
    cholesky, inverse = torch.linalg.cholesky_ex, torch.cholesky_inverse

    def counted_cholesky(A):
        assert not torch.is_grad_enabled()
        calls["cholesky"] += 1
        return cholesky(A)

    def counted_inverse(L):
        calls["inverse"] += 1
        return inverse(L)

    monkeypatch.setattr(torch.linalg, "cholesky_ex", counted_cholesky)
    monkeypatch.setattr(torch, "cholesky_inverse", counted_inverse)
    value_and_gradient(lambda p: ExactExpert().objective(p, data), theta)
    assert calls == {"cholesky": 1, "inverse": 1}
    with torch.no_grad():
        ExactExpert().objective(theta, data)
    assert calls == {"cholesky": 2, "inverse": 1}


def test_nothing_is_measured_where_few_rows_leave_nothing_to_polish(monkeypatch):
    """Measuring the kernel takes seconds where there are thousands of columns."""
    monkeypatch.setattr("distgp.experts.cost.cost_of_objective", lambda *_: pytest.fail("measured"))
    assert ExactExpert().polish_for(60, 6000, torch.zeros(()), 100.0) == 0
