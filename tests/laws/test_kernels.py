"""What must hold of every kernel, over all that distgp defines."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from helpers import FLOAT, close, concrete, directed, example, inputs, naive_gram
from hypothesis import given, settings
from hypothesis import strategies as st

from distgp import Kernel
from distgp.kernels import Stationary

FORMS = {cls.__name__: partial(example, cls) for cls in concrete(Kernel)}
FORMS |= {f"{cls.__name__}, directed": partial(directed, cls) for cls in concrete(Stationary)}
ALL = pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)


def test_discovery_finds_the_kernels():
    assert len(FORMS) >= 11 + 5


@ALL
@pytest.mark.parametrize("d", [1, 2, 5])
def test_equals_naive_loop(form, d):
    kernel, X, Z = form(d), inputs(7, d), inputs(4, d, seed=1)
    close(kernel(X, Z), naive_gram(kernel, X, Z), rtol=1e-12, atol=1e-13)
    close(kernel.diag(X), naive_gram(kernel, X, X).diagonal(), rtol=1e-12, atol=1e-13)


@ALL
@settings(max_examples=20)
@given(
    n=st.integers(1, 25),
    d=st.integers(1, 6),
    seed=st.integers(0, 1000),
    spread=st.floats(1e-3, 1e3),
)
def test_symmetric_and_positive_semidefinite(form, n, d, seed, spread):
    K = form(d)(inputs(n, d, seed) * spread)
    close(K, K.mT, rtol=1e-9, atol=1e-9 * float(K.abs().max()))
    eigenvalues = torch.linalg.eigvalsh(K)
    assert eigenvalues[0] >= -1e-12 * max(1.0, float(eigenvalues[-1]))


@ALL
def test_diag_is_the_diagonal_exactly_where_rows_repeat(form):
    X = inputs(6, 3).repeat(2, 1) * 50 + 1000  # duplicates, far from the origin
    kernel = form(3)
    K = kernel(X)
    close(K.diagonal(), kernel.diag(X), rtol=1e-14, atol=0)
    close(K[:6, 6:].diagonal(), kernel.diag(X[:6]), rtol=1e-14, atol=0)


@ALL
def test_gradient_is_finite_and_right_at_zero_distance(form):
    X = torch.cat([inputs(4, 2), inputs(4, 2)])
    kernel = form(2)
    weights = inputs(8, 8, seed=3)

    def value(*parameters):
        named = dict(zip(kernel.parameters(), parameters, strict=True))
        return (kernel.with_parameters(named)(X) * weights).sum()

    points = tuple(p.clone().requires_grad_() for p in kernel.parameters().values())
    assert torch.autograd.gradcheck(value, points)


@ALL
def test_gradient_in_the_inputs(form):
    kernel, X, Z = form(2), inputs(4, 2).requires_grad_(), inputs(3, 2, seed=1)
    assert torch.autograd.gradcheck(lambda X: kernel(X, Z), (X,))
    at_zero_distance = (kernel(X, X.detach().clone()) + 0 * X.sum()).sum()
    (gradient,) = torch.autograd.grad(at_zero_distance, X)
    assert bool(torch.isfinite(gradient).all())


@ALL
def test_batches_of_parameters_and_inputs_equal_loops(form):
    kernel = form(2)
    factors = torch.tensor([0.5, 1.0, 2.0], dtype=FLOAT)
    batched = kernel.with_parameters(
        {
            name: factors.reshape(-1, *[1] * value.ndim) * value
            for name, value in kernel.parameters().items()
        }
    )
    X, Z = torch.stack([inputs(5, 2, s) for s in range(3)]), inputs(4, 2, 9)
    K, k = batched(X, Z), batched.diag(X)
    shared, shared_diag = batched(Z), batched.diag(Z)
    for i, factor in enumerate(factors):
        one = kernel.with_parameters({n: factor * v for n, v in kernel.parameters().items()})
        close(K[i], one(X[i], Z))
        close(k[i], one.diag(X[i]))
        close(shared[i], one(Z))
        close(shared_diag[i], one.diag(Z))


@ALL
def test_parameters_round_trip_and_are_positive(form):
    kernel = form(3)
    again = kernel.with_parameters(kernel.parameters())
    assert again.parameters().keys() == kernel.parameters().keys()
    X = inputs(4, 3)
    close(again(X), kernel(X), rtol=0, atol=0)
    for name in kernel.parameters():
        with pytest.raises(ValueError, match="must be positive"):
            kernel.with_parameters({name: -kernel.parameters()[name]})


@ALL
def test_float32_runs_and_stays_in_float32(form):
    kernel, X = form(2), inputs(10, 2)
    narrow = kernel.to(dtype=torch.float32)
    K = narrow(X.to(torch.float32))
    assert K.dtype == torch.float32
    close(K.to(FLOAT), kernel(X), rtol=1e-5, atol=1e-6)


@ALL
def test_a_kernel_cannot_be_changed(form):
    kernel = form(2)
    for name in kernel.own_parameters() or ["kernels"]:
        with pytest.raises(AttributeError):
            setattr(kernel, name, 1.0)
