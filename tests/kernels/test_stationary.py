"""Distances, and kernels of them, against scikit-learn."""

import pytest
import torch
from helpers import FLOAT, close, inputs, naive_gram
from sklearn.gaussian_process import kernels as sk

from distgp import RBF, Constant, Linear, Matern12, Matern32, Matern52, RationalQuadratic
from distgp.kernels import shapes

X, Z = inputs(9, 3), inputs(5, 3, 1)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (RBF([0.5, 1.0, 2.0]), sk.RBF([0.5, 1.0, 2.0])),
        (Matern12([0.5, 1.0, 2.0]), sk.Matern([0.5, 1.0, 2.0], nu=0.5)),
        (Matern32(0.8), sk.Matern(0.8, nu=1.5)),
        (Matern52(0.8), sk.Matern(0.8, nu=2.5)),
        (RationalQuadratic(0.8, alpha=1.4), sk.RationalQuadratic(0.8, alpha=1.4)),
        (
            1.7 * RBF(0.6) + Constant(0.2),
            sk.ConstantKernel(1.7) * sk.RBF(0.6) + sk.ConstantKernel(0.2),
        ),
        (Linear(1.0), sk.DotProduct(sigma_0=0.0)),
    ],
    ids=lambda k: type(k).__name__,
)
def test_against_scikit_learn(ours, theirs):
    expected = torch.as_tensor(theirs(X.numpy(), Z.numpy()), dtype=FLOAT)
    close(ours(X, Z), expected, rtol=1e-11, atol=1e-12)


def test_large_offsets_do_not_spoil_distances():
    kernel = RBF(0.5)
    close(kernel(X + 1e6, Z + 1e6), kernel(X, Z), rtol=1e-7, atol=1e-8)


def test_an_outlier_among_the_training_rows_does_not_spoil_the_others():
    far = torch.cat([X, torch.full((1, 3), 1e9, dtype=FLOAT)])
    close(Matern12(0.5)(far)[:-1, :-1], Matern12(0.5)(X), rtol=1e-12, atol=1e-13)


def test_float32_distances_are_as_good_as_float32_gets():
    x = torch.linspace(0, 1000, 2000, dtype=torch.float32)[:, None]
    exact = torch.exp(-(x.to(FLOAT) - x.to(FLOAT).mT).abs())
    close(Matern12(1.0).to(dtype=torch.float32)(x).to(FLOAT), exact, rtol=0, atol=1e-4)


def test_an_outlier_among_the_test_points_does_not_spoil_the_others():
    far = torch.cat([Z, torch.full((1, 3), 1e9, dtype=FLOAT)])
    close(Matern12(0.5)(far, X)[:-1], Matern12(0.5)(Z, X), rtol=1e-12)


FAR_KERNELS = [RBF, Matern12, Matern32, Matern52, RationalQuadratic]


def clusters(gap, n=7):
    """Two clusters of rows that are this far apart, in steps that float64 holds exactly."""
    near = (inputs(n, 2) * 2**10).round() / 2**10
    return near, torch.cat([near, near + gap])


@pytest.mark.parametrize("gap", [2.0**11, 2.0**17, 2.0**27, 2.0**40])
@pytest.mark.parametrize("kind", FAR_KERNELS)
def test_clusters_far_apart_keep_their_digits(kind, gap):
    near, rows = clusters(gap)
    K, wanted = kind(0.5)(rows), kind(0.5)(near)
    close(K[:7, :7], wanted, rtol=0, atol=2e-9 if gap < 2**12 else 1e-12)
    close(K[7:, 7:], wanted, rtol=0, atol=2e-9 if gap < 2**12 else 1e-12)
    assert K.diagonal().eq(1.0).all()
    close(kind(0.5)(near + gap, rows)[:, 7:], wanted, rtol=0, atol=2e-9)


@pytest.mark.parametrize("kind", FAR_KERNELS)
def test_clusters_far_apart_have_the_gradients_of_clusters_alone(kind):
    near, rows = clusters(2.0**24)
    G = inputs(7, 7, 5)

    def slope(X, first):
        lengthscale = torch.tensor([0.5, 0.7], dtype=FLOAT, requires_grad=True)
        K = kind(lengthscale)(X)[first : first + 7, first : first + 7]
        return torch.autograd.grad((K * G).sum(), lengthscale)[0]

    for first in (0, 7):
        close(slope(rows, first), slope(near, 0), rtol=1e-6, atol=1e-7)


def test_rows_that_are_not_far_are_computed_as_ever(monkeypatch):
    found = RBF(0.01)(X, Z)
    monkeypatch.setattr(shapes, "by_differences", lambda *_: pytest.fail("not needed"))
    assert RBF(0.01)(X, Z).equal(found)


def wide_pairs():
    """Rows with few and with many columns, alone, in sets, and of two kinds."""
    for d in (3, 40):
        sets = inputs(5 * 9, d, 2).reshape(5, 9, d)
        yield from ((inputs(9, d), None), (inputs(9, d), inputs(6, d, 1)), (sets, None))
        yield from ((sets, inputs(6, d, 1)), (sets, inputs(5 * 4, d, 3).reshape(5, 4, d)))


@pytest.mark.parametrize("block", [2**18, 40], ids=["at once", "in blocks"])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind", [RBF, Matern12, Matern32, Matern52])
def test_gradients_in_lengthscales_are_those_of_all_differences(monkeypatch, kind, shared, block):
    monkeypatch.setattr(shapes, "BLOCK", block)
    for A, B in wide_pairs():
        d = A.shape[-1]
        places = [column // 2 for column in range(d)] if shared else None
        lengths = torch.linspace(2.0, 6.0, (d + 1) // 2 if shared else d, dtype=FLOAT)
        found, wanted = (lengths.clone().requires_grad_() for _ in range(2))
        variance = torch.tensor(1.7, dtype=FLOAT, requires_grad=True)
        kernel = variance * kind(found, shared=places)
        K = kernel(A) if B is None else kernel(A, B)
        columns = wanted[places] if shared else wanted
        C = A if B is None else B
        apart = (A[..., :, None, :] - C[..., None, :, :]) / columns
        square = apart.square().sum(-1)
        expected = 1.7 * kind(1.0).shape(square)
        close(K, expected, rtol=1e-11, atol=1e-12)
        G = inputs(K.shape[-2], K.shape[-1], 5).expand_as(K)
        slope, in_variance = torch.autograd.grad((K * G).sum(), [found, variance])
        close(slope, torch.autograd.grad((expected * G).sum(), wanted)[0], rtol=1e-9, atol=1e-10)
        close(in_variance, (expected * G).sum().detach() / 1.7)


def test_equal_rows_of_wide_sets_are_at_no_distance():
    X = 100.0 * inputs(4 * 6, 40).reshape(4, 6, 40)
    X[:, 3] = X[:, 1]
    K = Matern12(0.5)(X)
    assert K[:, 1, 3].eq(1.0).all() and K.diagonal(dim1=-2, dim2=-1).eq(1.0).all()
    naive = torch.stack([naive_gram(Matern12(0.5), one, one) for one in X])
    close(K, naive, rtol=1e-10, atol=1e-11)
