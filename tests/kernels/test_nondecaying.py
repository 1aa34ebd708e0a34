"""Constant, linear and periodic kernels."""

import torch
from helpers import close, inputs
from sklearn.gaussian_process import kernels as sk

from distgp import Periodic

X, Z = inputs(9, 3), inputs(5, 3, 1)


def test_periodic_against_scikit_learn_in_one_dimension():
    x, z = X[:, :1], Z[:, :1]
    theirs = sk.ExpSineSquared(length_scale=0.8, periodicity=1.3)
    close(Periodic(0.8, 1.3)(x, z), torch.as_tensor(theirs(x.numpy(), z.numpy())), rtol=1e-10)
    close(Periodic(0.8, 1.3)(x, z + 1.3), Periodic(0.8, 1.3)(x, z), rtol=1e-10)
