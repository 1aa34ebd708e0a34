"""Solve (K + σ²I)α = y for all rows by conjugate gradients, preconditioned by the nearest rows' model.

Workers own rows of K in blocks and multiply them by the vectors of the solve; everything else is done at
the centre. The blocks are fixed by the number of rows, and each is multiplied by one thread, so that any
number of workers gives the same bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from distgp._util.machine import free_bytes
from distgp._util.progress import Progress
from distgp._util.threads import on_threads
from distgp.data.shard import even_parts
from distgp.engines import Kinds, Placement, travels
from distgp.experts import Parameters, Posterior
from distgp.experts.base import fields_alone
from distgp.experts.neighborhoods import OrderedRows, conditional
from distgp.experts.preconditioner import Preconditioner
from distgp.kernels import fused

BLOCK = {"cpu": 2**22, "cuda": 2**27}
"""Entries of the blocks of K that are worked on at a time."""
KEPT = 0.5
"""The share of free memory that K may take, so that it is kept instead of being made for every product."""
WATCHED = 256
"""Points whose predictions tell how far the solve is."""
AMONG = 8
"""Nearest rows of a row among which the other end of the way to a watched point is."""
SMALLEST_SD = 1e-3
"""The smallest posterior standard deviation that counts, in units of the noise's."""


@dataclass(frozen=True, eq=False)
class KernelRows:
    """Rows of K on a worker, by blocks: all inputs, the blocks' first rows, and the dtype of what is kept.

    Where K does not fit into memory, `kept` is None, and entries are made in float32 for every product: in
    one pass on a GPU that can do so, else block by block.
    """

    travels_as: ClassVar[Kinds] = {"X": "inputs", "parameters": "parameters", "*": "settings"}
    parameters: Parameters
    X: Tensor
    starts: tuple[int, ...]
    size: int
    kept: torch.dtype | None
    __getstate__ = fields_alone

    @cached_property
    def blocks(self) -> list[Tensor]:
        """The blocks that are kept."""
        assert self.kept is not None
        return on_threads(lambda start: self.block(start, self.kept), self.starts)

    def block(self, start: int, dtype: torch.dtype | None) -> Tensor:
        """A block of rows of K, made in this dtype."""
        wide = dtype == torch.float64
        X = self.X if wide else self._narrow[0]
        kernel = (self.parameters if wide else self._narrow[1]).kernel
        return kernel(X[start : start + self.size], X)

    @cached_property
    def _narrow(self) -> tuple[Tensor, Parameters]:
        """Inputs and θ in float32."""
        return self.X.to(torch.float32), self.parameters.to(dtype=torch.float32)

    def product(self, P: Tensor, exact: bool) -> Tensor:
        """These rows of K times a vector or columns; `exact` in float64, whatever is kept."""
        # Sums over many rows in float32 would lose what the noise is: only entries are rounded to it.
        if self.kept == torch.float64 or (self.kept is not None and not exact):
            return torch.cat(on_threads(lambda block: block.to(P.dtype) @ P, self.blocks))
        dtype = torch.float64 if exact else torch.float32
        if P.ndim == 1 and fused.has_product(self.parameters.kernel, self.X):
            X = self.X[self.starts[0] : self.starts[-1] + self.size]
            return fused.product(self.parameters.kernel, X, self.X, P, dtype).to(P.dtype)
        _ = self._narrow  # computed once, before threads ask for it at the same time
        made = on_threads(lambda start: self.block(start, dtype).to(P.dtype) @ P, self.starts)
        return torch.cat(made)


@travels(parameters="parameters", X="inputs")
def _kernel_rows(
    item: object,
    parameters: Parameters,
    X: Tensor,
    size: int,
    kept: torch.dtype | None,
    starts: tuple[int, ...],
) -> KernelRows | None:
    del item
    return KernelRows(parameters, X, starts, size, kept) if starts else None


@travels("solve", P="solve")
def _product(rows: KernelRows, P: Tensor, exact: bool) -> Tensor:
    return rows.product(P, exact)


@travels("settings")
def _free(item: object, device: str) -> float:
    del item
    return free_bytes(torch.device(device)) or math.inf


class KernelMatrix:
    """K̃ = K + noise of all rows, spread over the workers of a placement."""

    def __init__(self, workers: Placement[Posterior], rows: OrderedRows) -> None:
        n, device = len(rows.X), rows.X.device
        self.noise = rows.noise().expand(n)
        size = max(1, BLOCK.get(device.type, BLOCK["cpu"]) // n)
        starts = range(0, n, size)
        parts = [tuple(starts[i] for i in part) for part in even_parts(len(starts), len(workers))]
        parts += [()] * (len(workers) - len(parts))
        theta = Parameters(rows.parameters.kernel, rows.parameters.noise)
        free = KEPT * min(workers.map(_free, str(device)))
        kinds = (torch.float64,)  # a product in one pass is faster than reading float32 entries
        if not fused.has_product(theta.kernel, rows.X):
            kinds = (torch.float64, torch.float32)
        fits = [kind for kind in kinds if n * n * kind.itemsize <= free]
        self.kept = fits[0] if fits else None
        self._rows = workers.derive(_kernel_rows, theta, rows.X, size, self.kept, each=parts)

    def times(self, P: Tensor, exact: bool = False) -> Tensor:
        """K̃P for a vector (n,) or columns (n, c); `exact` in float64, however K is kept."""
        noise = self.noise if P.ndim == 1 else self.noise[:, None]
        return torch.cat(self._rows.map(_product, P, exact)) + noise * P


class Watched(NamedTuple):
    """Points whose means are watched: k(x) (s, n), and their nearest rows' part of a prediction."""

    cross: Tensor
    near: Tensor
    a: Tensor
    h: Tensor | None
    sd: Tensor

    @staticmethod
    def among(rows: OrderedRows, k: int, preconditioner: Preconditioner) -> Watched:
        """Points half-way between rows, which come first in the random order, and near rows.

        Their posterior variance counts what is not known of the global part: given it, a row that is an
        inducing input would have none.
        """
        first = rows.X[:WATCHED]
        k, near = min(k, len(rows.X)), min(AMONG, len(rows.X))
        _, index = rows.search.nearest(rows.located(first), near)
        which = torch.arange(len(first), device=first.device)
        x = 0.5 * (first + rows.X[index[which, which % near]])
        _, index = rows.search.nearest(rows.located(x), k)
        out = conditional(rows.parameters, x, rows.basis(x), rows.sets(index))
        assert out.a is not None
        part = preconditioner.global_part(rows.y)
        sd = (out.given(part).variance + SMALLEST_SD**2 * rows.parameters.noise).sqrt()
        return Watched(rows.parameters.kernel(x, rows.X), index.clamp_min(0), out.a, out.h, sd)

    def means(self, alpha: Tensor, r: Tensor, preconditioner: Preconditioner) -> Tensor:
        """k(x)ᵀα and the nearest rows' prediction of the residual, in posterior standard deviations."""
        found = self.cross @ alpha + (self.a * r[self.near]).sum(-1)
        part = preconditioner.global_part(r)
        if part is not None and self.h is not None:
            found = found + self.h @ part.weights
        return found / self.sd


class Solved(NamedTuple):
    """α and the residual y − K̃α, with the last change of predictions in posterior sd, and the effort."""

    alpha: Tensor
    residual: Tensor
    change: float
    iterations: int
    seconds: float


def conjugate_gradients(
    matrix: KernelMatrix,
    preconditioner: Preconditioner,
    y: Tensor,
    means: Callable[[Tensor, Tensor], Tensor],
    tolerance: float,
    n_iter: int,
    progress: Progress,
) -> Solved:
    """Solve K̃α = y until the means of watched points rest.

    It ends when these have changed by less than the tolerance, in the root mean square, in two iterations
    in a row, and the residual, computed anew in float64, confirms it; else it goes on from there.
    """
    begin, alpha, r = time.perf_counter(), torch.zeros_like(y), y
    last, before, change, used = means(alpha, r), math.inf, math.inf, 0
    p, rho = torch.zeros_like(y), math.nan  # a NaN begins anew
    while used < n_iter:
        z = preconditioner.applied(r)
        new = float(r @ z)
        p = z if math.isnan(rho) else z + (new / rho) * p
        q, rho = matrix.times(p), new
        curvature = float(p @ q)
        if not (curvature > 0 and math.isfinite(new)):
            break  # nothing is left but rounding error
        step, used = rho / curvature, used + 1
        alpha, r = alpha + step * p, r - step * q
        now = means(alpha, r)
        before, change, last = change, _distance(now, last), now
        progress.advance(text=f"means changed by {change:.1e} posterior standard deviations")
        if max(change, before) < tolerance:
            r, rho = y - matrix.times(alpha, exact=True), math.nan
            now = means(alpha, r)
            change, last = max(change, _distance(now, last)), now
            if change < tolerance:
                return Solved(alpha, r, change, used, time.perf_counter() - begin)
    if used:
        r = y - matrix.times(alpha, exact=True)
        change = max(change, _distance(means(alpha, r), last))
    elif not bool(y.any()):
        change = 0.0  # the mean of targets that are all zero is zero
    return Solved(alpha, r, change, used, time.perf_counter() - begin)


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).square().mean().sqrt())
