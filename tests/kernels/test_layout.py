"""From a user's columns and units to those of kernels."""

import pytest
import torch
from helpers import FLOAT, close, concrete, example, inputs
from hypothesis import given
from hypothesis import strategies as st

from distgp import RBF, Constant, Kernel, Linear, Matern52, Periodic, RationalQuadratic
from distgp.kernels import (
    InputLayout,
    ParameterError,
    coordinates,
    in_data_units,
    resolved,
)
from distgp.sparsegrid import factors

NAMES = ("temp", "sky=clear", "sky=grey", "sky=rain", "when.days", "when.week_sin", "when.week_cos")
TABLE = InputLayout(
    names=NAMES,
    columns={"temp": (0,), "sky": (1, 2, 3), "when": (4, 5, 6)},
    days=frozenset({4}),
    groups=(0, 1, 1, 1, 2, 3, 4),
    scale=(7.0, 0.5, 0.3, 0.4, 30.0, 0.7, 0.71),
)
SCALE = torch.tensor(TABLE.scale, dtype=FLOAT)
MEAN = torch.linspace(-20, 50, 7, dtype=FLOAT)
X, Z = inputs(8, 7) * SCALE, inputs(5, 7, 1) * SCALE


def of(kernel, X, Z):
    """The kernel, in the data's units, on standardised inputs."""
    scaled = in_data_units(kernel, TABLE)
    return scaled((X - MEAN) / SCALE, (Z - MEAN) / SCALE)


KERNELS = {
    "one for each": RBF([3.0, 0.4, 0.5, 0.6, 20.0, 1.0, 2.0]),
    "one for all": Matern52(5.0),
    "of one column": 2.0 * Matern52(5.0, active_dims=[0]) + Constant(3.0),
    "shared": RationalQuadratic(
        [4.0, 0.8, 9.0], [0, 1, 2, 3, -3], alpha=1.7, shared=(0, 1, 1, 1, 2)
    ),
    "periodic": Periodic(0.8, 7.0, active_dims=[4]) * RBF(90.0, active_dims=[4]),
    "periods": Periodic([0.8, 0.9], [7.0, 3.0], active_dims=[4, 0]),
    "one period": Periodic(0.8, 5.0, active_dims=[4, 0]),
}


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_in_the_datas_units_is_the_same_on_standardised_inputs(name):
    close(of(KERNELS[name], X, Z), KERNELS[name](X, Z), rtol=1e-9, atol=1e-10)


def test_a_linear_kernel_is_the_same_on_centred_inputs():
    for kernel in (Linear(0.7), Linear([2.0, 0.1], active_dims=[0, 4])):
        close(of(3.0 * kernel, X, Z), 3.0 * kernel(X - MEAN, Z - MEAN), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", concrete(Kernel), ids=lambda kind: kind.__name__)
def test_there_and_back_is_the_same_kernel(kind):
    back = InputLayout(NAMES, scale=[1.0 / scale for scale in TABLE.scale])
    kernel = example(kind, 7)
    again = in_data_units(in_data_units(kernel, TABLE), back)
    assert again.parameters().keys() == kernel.parameters().keys()
    close(again(X), kernel(X), rtol=1e-9, atol=1e-10)


def test_one_lengthscale_stays_one():
    layout = InputLayout.of_array(3, scale=[2.0, 2.0, 5.0])
    assert repr(in_data_units(RBF(4.0, active_dims=[0, 1]), layout)) == repr(RBF(2.0, [0, 1]))
    assert repr(in_data_units(RBF([4.0] * 3), layout)) == "RBF(lengthscale=[2.0, 2.0, 0.8])"
    tied = in_data_units(
        RBF(4.0, active_dims=[0, 2]), InputLayout.of_array(3, scale=[2.0, 9.0, 8.0])
    )
    assert repr(tied) == "RBF(lengthscale=[1.0], active_dims=(0, 2), stretch=(0.5, 2.0))"
    shared = RBF([4.0, 5.0], shared=(0, 0, 1))
    assert repr(in_data_units(shared, layout)) == "RBF(lengthscale=[2.0, 1.0], shared=(0, 0, 1))"
    apart = RBF([4.0, 5.0], shared=(0, 1, 1))
    wide = InputLayout.of_array(3, scale=[2.0, 2.0, 8.0])
    found = "RBF(lengthscale=[2.0, 1.25], shared=(0, 1, 1), stretch=(1.0, 0.5, 2.0))"
    assert repr(in_data_units(apart, wide)) == found


def test_batches_and_dtypes_stay():
    lengths = torch.tensor([[1.0], [2.0]], dtype=torch.float32)
    found = in_data_units(RBF(lengths), TABLE)
    assert found.lengthscale.shape == (2, 1) and found.lengthscale.dtype == torch.float32
    assert in_data_units(RBF([1.0], shared=(0,) * 7), TABLE).shared == (0,) * 7


def test_a_width_that_does_not_fit_is_explained():
    for kernel in (RBF([1.0, 2.0]), Linear([1.0, 2.0]), Periodic(1.0, [1.0, 2.0])):
        with pytest.raises(ParameterError, match="2 values, one a column, but looks at 7"):
            in_data_units(kernel, TABLE)


def test_names_become_places():
    found = resolved(
        2.0 * Matern52(active_dims=["temp", "sky"]) + Linear(active_dims="when"), TABLE
    )
    assert found.kernels[0].kernel.active_dims == (0, 1, 2, 3)
    assert found.kernels[1].active_dims == (4, 5, 6)
    by_feature = resolved(RBF(active_dims=["sky=rain", 0]), TABLE)
    assert by_feature.active_dims == (3, 0)
    assert resolved(RBF(active_dims=["x1"]), InputLayout.of_array(2)).active_dims == (1,)
    assert resolved(RBF(active_dims=["1"]), InputLayout.of_array(2)).active_dims == (1,)


def test_a_date_in_a_periodic_kernel_is_its_days_and_text_is_refused():
    assert resolved(Periodic(1.0, 7.0, ["when"]), TABLE).active_dims == (4,)
    with pytest.raises(ParameterError, match="column 'sky' is text"):
        resolved(Periodic(1.0, 7.0, ["sky"]), TABLE)


def test_one_parameter_for_each_named_column_goes_to_all_of_its_features():
    found = resolved(RBF([2.0, 3.0], active_dims=["sky", "temp"]), TABLE)
    assert found.shared == (0, 0, 0, 1) and found.lengthscale.tolist() == [2.0, 3.0]
    close(found(X), RBF([2.0, 2.0, 2.0, 3.0], [1, 2, 3, 0])(X))
    weights = resolved(Linear([2.0, 3.0], active_dims=["sky", "temp"]), TABLE)
    assert weights.variance.tolist() == [2.0, 2.0, 2.0, 3.0]
    same = resolved(RBF([2.0, 3.0], active_dims=["sky", "temp", 4], shared=[0, 1, 1]), TABLE)
    assert same.shared == (0, 0, 0, 1, 1)
    one = resolved(RBF(2.0, active_dims=["sky"]), TABLE)
    assert one.shared is None and one.lengthscale.tolist() == [2.0]


def test_nothing_changes_without_names():
    kernel = 2.0 * RBF(1.0, [0]) * Periodic(1.0, 2.0) + Linear()
    assert repr(resolved(kernel, TABLE)) == repr(kernel)


def test_unknown_names_are_refused_with_those_there_are():
    with pytest.raises(
        ParameterError, match=r"no column 'tmp'; did you mean 'temp'\? there are 'temp'"
    ):
        resolved(RBF(active_dims=["tmp"]), TABLE)
    with pytest.raises(ParameterError, match=r"no column 'zzz': there are 'temp', 'sky', 'when'$"):
        resolved(RBF(active_dims=["zzz"]), TABLE)
    with pytest.raises(ParameterError, match=r"no column '0'"):  # tables have names
        resolved(RBF(active_dims=["0"]), TABLE)
    with pytest.raises(ParameterError, match=r"… \(50 in all\)$"):
        resolved(RBF(active_dims=["zzz"]), InputLayout.of_array(50))


@pytest.mark.parametrize(
    "use",
    [
        lambda kernel: kernel(X),
        lambda kernel: kernel(X, Z),
        lambda kernel: coordinates(kernel, X),
        lambda kernel: factors(kernel, 7),
    ],
)
@pytest.mark.parametrize("kind", [RBF, Periodic, lambda **given: 2.0 * RBF(**given)])
def test_names_that_were_not_looked_up_are_explained_in_one_line(use, kind):
    with pytest.raises(ParameterError, match=r"active_dims \('temp',\) has names") as caught:
        use(kind(active_dims=["temp"]))
    assert "\n" not in str(caught.value)


@given(st.lists(st.integers(0, 6), min_size=1, max_size=7, unique=True))
def test_sharing_is_that_of_the_groups(features):
    found = TABLE.sharing(features)
    groups = [TABLE.groups[j] for j in features]
    if found is None:
        assert len(set(groups)) == len(groups)
    else:
        assert set(found) == set(range(len(set(groups))))
        for i in range(len(found)):
            for j in range(len(found)):
                assert (found[i] == found[j]) == (groups[i] == groups[j])
