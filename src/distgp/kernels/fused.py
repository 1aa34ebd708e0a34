"""Products of a kernel matrix and a vector on a GPU, without the matrix.

Where a matrix is too large to be kept, its blocks would be made, written and read for every product. Here
each entry is made where it is needed and forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, singledispatch
from typing import NamedTuple

import torch
from torch import Tensor

from distgp.kernels.base import Kernel, Scale
from distgp.kernels.shapes import FixedShape

MOST_COLUMNS = 32
"""Columns up to which a row fits into the registers of a thread."""
ROWS, TOGETHER = 128, 64
"""Rows of a group of threads, one each, and rows of the other side that they read at a time."""
SOURCE = """
typedef {entry} T;
extern "C" __global__ void product(
    const double* A, const double* B, const double* p, double* out, int n1, int n2)
{{
    __shared__ double b[{together} * {columns}];
    __shared__ T q[{together}];
    double a[{columns}], total = 0.0;
    long long i = (long long) blockIdx.x * {rows} + threadIdx.x;
    for (int c = 0; c < {columns}; c++) a[c] = i < n1 ? A[i * {columns} + c] : 0.0;
    for (int start = 0; start < n2; start += {together}) {{
        int count = min({together}, n2 - start);
        __syncthreads();
        for (int t = threadIdx.x; t < count * {columns}; t += {rows})
            b[t] = B[(long long) start * {columns} + t];
        for (int t = threadIdx.x; t < count; t += {rows}) q[t] = T(p[start + t]);
        __syncthreads();
        T part = T(0);
        #pragma unroll 4
        for (int j = 0; j < count; j++) {{
            double square = 0.0;
            #pragma unroll
            for (int c = 0; c < {columns}; c++) {{
                double apart = a[c] - b[j * {columns} + c];
                square += apart * apart;
            }}
            T s = T(square);
            part += ({formula}) * q[j];
        }}
        total += double(part);
    }}
    if (i < n1) out[i] = total;
}}
"""


class Shaped(NamedTuple):
    """A kernel that is a variance times a shape of the scaled distance."""

    variance: Tensor
    kernel: FixedShape


@singledispatch
def shaped(kernel: Kernel) -> Shaped | None:
    """Write a kernel without batch dimensions as a variance times a shape; None where it is not one."""
    del kernel
    return None


@shaped.register
def _(kernel: FixedShape) -> Shaped | None:
    return Shaped(kernel.lengthscale.new_ones(()), kernel) if kernel.formula else None


@shaped.register
def _(kernel: Scale) -> Shaped | None:
    inner = shaped(kernel.kernel)
    return None if inner is None else Shaped(kernel.variance * inner.variance, inner.kernel)


def has_product(kernel: Kernel, X: Tensor) -> bool:
    """Whether `product` can be had for a kernel and rows of these columns, where they are.

    Examples
    --------
    >>> from distgp import Matern52
    >>> has_product(2.0 * Matern52(0.5), torch.zeros(3, 2))  # not on a CPU
    False
    """
    found = shaped(kernel)
    if not X.is_cuda or found is None or found.variance.ndim or found.kernel.lengthscale.ndim > 1:
        return False
    columns = found.kernel.scaled(X[:1]).shape[-1]
    return columns <= MOST_COLUMNS and _compiled(found.kernel, columns, "float", X) is not None


def product(kernel: Kernel, X1: Tensor, X2: Tensor, p: Tensor, dtype: torch.dtype) -> Tensor:
    """Compute k(X1, X2)p for a vector p, with distances and sums in float64 and the shape in `dtype`."""
    found = shaped(kernel)
    assert found is not None
    A, B = (found.kernel.scaled(X.to(torch.float64)).contiguous() for X in (X1, X2))
    entry = "double" if dtype == torch.float64 else "float"
    launch = _compiled(found.kernel, A.shape[-1], entry, A)
    assert launch is not None
    out = torch.empty(len(A), dtype=torch.float64, device=A.device)
    grid, block = (-(-len(A) // ROWS), 1, 1), (ROWS, 1, 1)
    given = [A, B, p.to(torch.float64).contiguous(), out, len(A), len(B)]
    with torch.cuda.device(A.device):
        launch(grid=grid, block=block, args=given)
    return found.variance.to(torch.float64) * out


def _compiled(
    kernel: FixedShape, columns: int, entry: str, like: Tensor
) -> Callable[..., None] | None:
    """Return the program for the device of a tensor."""
    with torch.cuda.device(like.device):
        return _program(str(kernel.formula), columns, entry, torch.cuda.current_device())


@cache
def _program(formula: str, columns: int, entry: str, device: int) -> Callable[..., None] | None:
    """Compile the product for a shape and a number of columns; None where this PyTorch cannot."""
    del device  # a program belongs to the device that it was compiled on
    try:
        from torch.cuda import _compile_kernel
    except ImportError:
        return None
    source = SOURCE.format(
        entry=entry, formula=formula, columns=columns, rows=ROWS, together=TOGETHER
    )
    try:
        return _compile_kernel(source, "product")
    except (RuntimeError, OSError):
        return None  # without the compiler's library
