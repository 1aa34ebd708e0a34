"""The printed weights for experts with hyperparameters of their own, against a naive version."""

import numpy as np
import torch

import distgp
from distgp.aggregation import Ensemble
from distgp.data import Shard
from distgp.experts import Parameters, SparseExpert
from experiments.uci_printed import JITTERS, printed_name, printed_predictions, printed_weights


def test_predictions_equal_a_naive_version():
    rng = np.random.default_rng(0)
    X, Z, X_test = rng.uniform(size=(3, 12, 2)), rng.uniform(size=(5, 2)), rng.uniform(size=(7, 2))
    y = np.sin(4.0 * X.sum(-1)) + 0.1 * rng.normal(size=(3, 12))
    scales, lengths, noises = (1.0, 1.5, 0.7), (0.4, 0.6, 0.9), (0.1, 0.2, 0.3)
    kernel = torch.tensor(scales).double() * distgp.RBF(torch.tensor(lengths).double()[:, None])
    theta = Parameters.of(kernel, torch.tensor(noises).double(), torch.tensor(Z))
    shards = [Shard.of(torch.tensor(a), torch.tensor(b)) for a, b in zip(X, y, strict=True)]
    ensemble = Ensemble.condition(SparseExpert(), theta, shards)
    central = ensemble.central(3, seed=0).X.numpy()

    def k(i, A, B):
        squares = ((A[:, None] - B[None]) ** 2).sum(-1)
        return scales[i] * np.exp(-0.5 * squares / lengths[i] ** 2)

    def expert(i, at):
        """The mean of equation (2), and the printed term K M⁻¹ K."""
        Kuf, s2 = k(i, Z, X[i]), noises[i]
        M = np.linalg.inv(k(i, Z, Z) + Kuf @ Kuf.T / s2)
        K = k(i, at, Z)
        return K @ M @ Kuf @ y[i] / s2, np.einsum("nm,mk,nk->n", K, M, K)

    F = np.array([expert(i, central)[0] for i in range(3)])
    G = np.array([[(F[i] * F[j]).sum() for j in range(3)] for i in range(3)])
    found = printed_predictions(ensemble, torch.tensor(X_test), jitters=(1e-3, 1.0))
    for jitter, prediction in found.items():
        left = G + jitter * np.diag(G).mean() * np.eye(3)
        beta = np.linalg.solve(left, np.diag(G))
        np.testing.assert_allclose(printed_weights(torch.tensor(F), jitter), beta, rtol=1e-8)
        means, terms = zip(*(expert(i, X_test) for i in range(3)), strict=True)
        np.testing.assert_allclose(prediction.mean, beta @ np.array(means), rtol=1e-5)
        variance = beta**2 @ np.array(terms) + np.mean(noises)
        np.testing.assert_allclose(prediction.variance, variance, rtol=1e-5)


def test_a_large_jitter_brings_the_weights_down():
    F = torch.eye(4, dtype=torch.float64) + 1.0
    sums = [float(printed_weights(F, jitter).abs().sum()) for jitter in (1e-6, 1.0, 1e3)]
    assert sums[0] > sums[1] > sums[2]
    assert len({printed_name(jitter) for jitter in JITTERS}) == len(JITTERS)
