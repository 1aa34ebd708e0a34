"""Memory and time of the exact expert on one large shard, before it begins.

A factorisation and an inverse of moderate size and a block of the kernel are measured once per process
and device; their times grow like n³ and n². A processor that is busy with other work, or that does large
matrices better than small ones, makes that a rough guess: a factor of two is to be expected.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from distgp import linalg
from distgp._util import machine
from distgp._util.machine import seconds_of
from distgp._util.threads import on_threads
from distgp.experts.base import CHUNK_ENTRIES
from distgp.kernels import Matern52

MEASURED_ROWS = {"cpu": 1_536, "cuda": 8_192}
"""Rows of the matrix whose factorisation and inverse are measured: some hundredths of a second."""
KEPT = 4_096
"""Rows up to which the likelihood with its gradient makes the kernel once, and holds it and its derivative:
as many bytes again as one matrix, for a tenth to a fifth of the time."""
BLOCKS = 8
"""Temporaries of the size of a block of rows that a kernel and its derivative hold at once."""


class Cost(NamedTuple):
    """An estimate of the memory that a computation takes at its peak, and of its time."""

    bytes: int
    seconds: float


def cost_of_objective(n: int, d: int, like: Tensor) -> Cost:
    """Estimate one evaluation of the exact likelihood of n rows with its gradient.

    Parameters
    ----------
    n, d : int
        The numbers of rows and columns.
    like : Tensor
        Any tensor with the device and the dtype of the rows.

    Returns
    -------
    Cost
        Of the Matérn-5/2 kernel, as others take about as long.
    """
    device, dtype = like.device, like.dtype
    factors = seconds_for_cholesky(n, device, dtype) + seconds_for_inverse(n, device, dtype)
    kernel = seconds_for_kernel(n * n // 2, d, device, dtype)
    slopes = seconds_for_kernel(n * n // 2, d, device, dtype, gradient=True)
    return Cost(bytes_of_objective(n, like), factors + kernel + slopes)


def cost_of_condition(n: int, d: int, like: Tensor) -> Cost:
    """Estimate conditioning an exact expert on n rows; the parameters are those of `cost_of_objective`."""
    device, dtype = like.device, like.dtype
    seconds = seconds_for_cholesky(n, device, dtype)
    seconds += seconds_for_kernel(n * n // 2, d, device, dtype)
    return Cost(bytes_of_condition(n, like), seconds)


def bytes_of_objective(n: int, like: Tensor) -> int:
    """The memory of one evaluation of the likelihood with its gradient."""
    kind = "cuda" if like.device.type == "cuda" else "cpu"
    matrices = 1 + (n <= KEPT)
    return like.element_size() * (matrices * n * n + BLOCKS * CHUNK_ENTRIES[kind])


def bytes_of_condition(n: int, like: Tensor) -> int:
    """The memory of conditioning on n rows, most of which the posterior keeps."""
    kind = "cuda" if like.device.type == "cuda" else "cpu"
    return like.element_size() * (n * n + BLOCKS * CHUNK_ENTRIES[kind])


def refuse_above_free(n: int, needed: int, device: torch.device) -> None:
    """Raise a MemoryError where an exact expert on n rows needs more bytes than may be taken."""
    instead = 'use more experts (n_experts), expert="nearest" with aggregation="exact", or expert="sparse"'
    machine.refuse_above_free(needed, device, f"an exact expert on {n:,} rows", instead)


def seconds_for_cholesky(n: int, device: torch.device, dtype: torch.dtype) -> float:
    """Estimate the time to factorise an n × n matrix, n³/3 multiplications and additions."""
    rows, seconds, _ = _factor_and_inverse(device, dtype)
    return seconds * (n / rows) ** 3


def seconds_for_inverse(n: int, device: torch.device, dtype: torch.dtype) -> float:
    """Estimate the time to invert an n × n matrix from its factor."""
    rows, _, seconds = _factor_and_inverse(device, dtype)
    return seconds * (n / rows) ** 3


@cache
def _factor_and_inverse(device: torch.device, dtype: torch.dtype) -> tuple[int, float, float]:
    """Measure the factorisation of a matrix with so many rows, and its inverse."""
    n = MEASURED_ROWS["cuda" if device.type == "cuda" else "cpu"]
    L = torch.empty(n, n, device=device, dtype=dtype)

    def fill(A: Tensor) -> None:
        A.fill_(0.5).diagonal().fill_(1.0)

    def factorise() -> None:
        linalg.cholesky_(L, fill)

    def both() -> None:
        factorise()
        linalg.invert_(L)

    first = seconds_of(factorise, device)
    return n, first, max(first, seconds_of(both, device) - first)


def seconds_for_kernel(
    entries: int, d: int, device: torch.device, dtype: torch.dtype, gradient: bool = False
) -> float:
    """Estimate the time for so many values of a Matérn-5/2 kernel of d columns, or for its gradient too."""
    each, with_gradient = _kernel_value(d, device, dtype)
    return entries * (with_gradient if gradient else each)


@cache
def _kernel_value(d: int, device: torch.device, dtype: torch.dtype) -> tuple[float, float]:
    """Measure a value of the kernel, without and with its gradient, in blocks as they are worked on."""
    kind = "cuda" if device.type == "cuda" else "cpu"
    blocks = range(2 * torch.get_num_threads() if kind == "cpu" else 1)
    X = torch.linspace(-1.0, 1.0, MEASURED_ROWS[kind] * d, device=device, dtype=dtype).reshape(
        -1, d
    )
    rows, ell = X[: len(X) // 8], X.new_ones(d).requires_grad_()

    def value(block: int) -> None:
        del block
        with torch.no_grad():
            Matern52(ell)(rows, X)

    def slope(block: int) -> None:
        del block
        with torch.enable_grad():
            K = Matern52(ell)(rows, X)
            torch.autograd.grad(K, ell, K.detach())

    entries = len(blocks) * len(rows) * len(X)
    one, other = (
        seconds_of(lambda work=work: on_threads(work, blocks), device) / entries
        for work in (value, slope)
    )
    return one, other
