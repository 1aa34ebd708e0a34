"""The parameters of kernels, and what a kernel refuses."""

import pytest
import torch
from helpers import FLOAT, close, inputs

from distgp import RBF
from distgp.kernels import ParameterError

X, Z = inputs(9, 3), inputs(5, 3, 1)


def test_active_dims_select_columns():
    close(RBF([0.5, 2.0], active_dims=[2, 0])(X, Z), RBF([0.5, 2.0])(X[:, [2, 0]], Z[:, [2, 0]]))
    additive = RBF(0.5, active_dims=(0,)) + RBF(0.7, active_dims=(1,))
    close(additive(X, Z), RBF(0.5)(X[:, :1], Z[:, :1]) + RBF(0.7)(X[:, 1:2], Z[:, 1:2]))


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), [1.0, -2.0]])
def test_parameters_out_of_range_are_refused(value):
    with pytest.raises(ParameterError, match="lengthscale must be positive and finite"):
        RBF(value)


def test_columns_that_do_not_fit_are_explained():
    with pytest.raises(ParameterError, match="2 values, one a column, but looks at 3 columns"):
        RBF([1.0, 2.0])(X)
    with pytest.raises(ParameterError, match="reach past the last of the 3"):
        RBF(1.0, active_dims=[3])(X)


def test_widths_and_dtypes_must_agree():
    with pytest.raises(ParameterError, match=r"3 columns of torch\.float64 and 1 of"):
        RBF(0.5)(X, Z[:, :1])
    with pytest.raises(ParameterError, match="same columns and dtype"):
        RBF(0.5)(X, Z.to(torch.float32))


def test_repr_shows_the_parameters():
    assert repr(1.5 * RBF([0.5, 2.0])) == "Scale(kernel=RBF(lengthscale=[0.5, 2.0]), variance=1.5)"


def test_names_that_a_kernel_has_not_are_explained():
    with pytest.raises(ParameterError, match=r"no parameter .'lenghtscale'."):
        RBF().with_parameters({"lenghtscale": torch.ones(1, dtype=FLOAT)})
    with pytest.raises(ParameterError, match="at least one column"):
        RBF(active_dims=[])
