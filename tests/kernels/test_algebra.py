"""Sums, products and scaled kernels."""

import numpy as np
import pytest
import torch
from helpers import FLOAT

from distgp import RBF, Constant, Linear, Product, Scale, Sum


def test_algebra_flattens_and_names_parameters():
    kernel = 2.0 * RBF(0.5) + Linear() + Constant()
    assert isinstance(kernel, Sum) and len(kernel.kernels) == 3
    assert list(kernel.parameters()) == [
        "kernels.0.variance",
        "kernels.0.kernel.lengthscale",
        "kernels.1.variance",
        "kernels.2.variance",
    ]
    assert isinstance(RBF() * Linear() * Constant(), Product)
    assert isinstance(RBF() * 3.0, Scale)
    changed = kernel.with_parameters({"kernels.1.variance": torch.tensor([9.0], dtype=FLOAT)})
    assert changed.parameters()["kernels.1.variance"].item() == 9.0
    assert kernel.parameters()["kernels.1.variance"].item() == 1.0


def test_mistakes_in_the_algebra_are_explained():
    with pytest.raises(TypeError, match="at least one kernel"):
        Sum(())
    assert isinstance(np.float64(2.0) * RBF(), Scale)
