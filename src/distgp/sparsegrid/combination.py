"""The coefficients of a combination of grids, and what they minimise."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from distgp import linalg


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """G_lk = ⟨f_l, f_k⟩, b_l = ⟨f*, f_l⟩ and yᵀy, with ⟨g, h⟩ = g(X)ᵀh(X) + σ²⟨g, h⟩_H.

    f_l is the projection of the full GP's mean f* onto grid l's functions, so that yᵀf_l(X) = ⟨f*, f_l⟩ =
    ‖f_l‖² = G_ll: the paper's right-hand side and the normal equations' own are the same.
    """

    G: Tensor
    b: Tensor
    yy: Tensor

    def risk(self, c: Tensor) -> Tensor:
        """R(Σc_l f_l) = ‖y − Σc_l f_l(X)‖² + σ²‖Σc_l f_l‖²_H."""
        return self.yy - 2.0 * c @ self.b + c @ self.G @ c

    def opticom(self) -> Tensor:
        """The coefficients of least risk: Gc = b, algorithm 1."""
        if len(self.b) == 1:
            return self.b.new_ones(1)
        return linalg.truncated_solve(self.G, self.b, self.G.diagonal())
