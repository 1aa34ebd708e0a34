"""The model of nearest rows with a global part as a preconditioner of K̃ = K + σ²I.

It is a Gaussian distribution of the targets whose covariance P is near K̃, and whose inverse is cheap. With
A the sparse matrix of the rows' coefficients a_i, S the diagonal matrix of their s_i², the rows of U their
u_i and B = I + Σu_iu_iᵀ (see `distgp.experts.neighborhoods`):

    P⁻¹ = (I − A)ᵀ S^(−½) (I − U B⁻¹ Uᵀ) S^(−½) (I − A).

The nearest rows know what is near, the inducing inputs what is far: a domain decomposition in the sense of
numerical analysis.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distgp import linalg
from distgp.experts.neighborhoods import Conditional, GlobalPart, GlobalSums, OrderedRows

GATHERED = {"cpu": 2**24, "cuda": 2**28}
"""Entries of neighbours that are gathered at a time, where there are many columns."""


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """P⁻¹ of n rows in their order, each given its k nearest before it.

    `index` and `a` (n, k) are neighbours, -1 for none, and coefficients, `s` (n,) standard deviations; `U`
    (n, m) and `L`, the factor of B, are None without a global part.
    """

    index: Tensor
    a: Tensor
    s: Tensor
    U: Tensor | None
    L: Tensor | None

    @staticmethod
    def of(rows: OrderedRows, k: int) -> Preconditioner:
        """Condition every row on its k nearest before it."""
        n, k = len(rows.X), min(k, max(1, len(rows.X) - 1))
        a, s = rows.X.new_zeros(n, k), rows.X.new_zeros(n)
        U = None if rows.Lu is None else rows.X.new_zeros(n, len(rows.Lu))

        def keep(some: Tensor, out: Conditional) -> None:
            assert out.a is not None and out.variance is not None
            a[some], s[some] = out.a, (out.variance + rows.noise(some)).sqrt()
            if U is not None and out.h is not None:
                U[some] = out.h / s[some, None]

        index, parts = rows.given_before(k, keep)
        for _ in parts:
            pass
        if U is None:
            return Preconditioner(index, a, s, None, None)
        B = GlobalPart.of(GlobalSums(U.mT @ U, U.new_zeros(U.shape[1])))
        return Preconditioner(index, a, s, U, B.L)

    def applied(self, R: Tensor) -> Tensor:
        """P⁻¹R for a vector (n,) or columns (n, c)."""
        T = self.whitened(R)
        if self.U is not None:
            T = T - self.U @ self._global_weights(T)
        return self._turned(T)

    def global_part(self, r: Tensor) -> GlobalPart | None:
        """The posterior of w given targets r (n,); None without a global part."""
        if self.L is None:
            return None
        return GlobalPart(self.L, self._global_weights(self.whitened(r)))

    def whitened(self, R: Tensor) -> Tensor:
        """S^(−½)(I − A)R: what each row has that the rows before it do not explain, in units of s."""
        at = self.index.clamp_min(0)
        parts = [part - (self._a(part) * part[at]).sum(1) for part in self._columns(R)]
        return torch.cat(parts, -1) / self.s.reshape(-1, *[1] * (R.ndim - 1))

    def _turned(self, T: Tensor) -> Tensor:
        """(I − A)ᵀS^(−½)T."""
        W = T / self.s.reshape(-1, *[1] * (T.ndim - 1))
        at, found = self.index.clamp_min(0).reshape(-1), []
        for part in self._columns(W):
            back = (self._a(part) * part[:, None]).reshape(-1, *part.shape[1:])
            found.append(part.index_add(0, at, back, alpha=-1.0))
        return torch.cat(found, -1)

    def _global_weights(self, T: Tensor) -> Tensor:
        """B⁻¹UᵀT."""
        assert self.U is not None and self.L is not None
        b = self.U.mT @ T
        return linalg.cholesky_solve(self.L, b.reshape(len(b), -1)).reshape(b.shape)

    def _a(self, part: Tensor) -> Tensor:
        """The coefficients, with a dimension for columns where there are any."""
        return self.a if part.ndim == 1 else self.a[:, :, None]

    def _columns(self, R: Tensor) -> tuple[Tensor, ...]:
        """A few columns at a time, so that memory stays bounded."""
        most = GATHERED.get(R.device.type, GATHERED["cpu"]) // self.a.numel()
        return (R,) if R.ndim == 1 else R.split(max(1, most), -1)
