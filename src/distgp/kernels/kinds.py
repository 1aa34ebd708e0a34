"""The kernels: RBF, Matérn, rational quadratic; constant, linear and periodic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import singledispatch
from typing import ClassVar

import torch
from torch import Tensor

from distgp.kernels.base import (
    Columns,
    Kernel,
    Product,
    Scale,
    Sum,
    columns,
    field,
    safe_sqrt,
    scalar,
    select,
    vector,
)
from distgp.kernels.shapes import FixedShape
from distgp.kernels.stationary import Stationary, squared_distance
from distgp.linalg import lapack

PER_NAT, ROOT3, ROOT5 = 1.0 / math.log(2.0), math.sqrt(3.0), math.sqrt(5.0)


def root_(square: Tensor) -> Tensor:
    """Replace r² by r; none may be less than the smallest normal number.

    PyTorch's roots and powers of e are those of Intel's library, which take twice as long on processors of
    others as r² · 1/r and powers of two, which are PyTorch's own; on Intel's, a third to half as long.
    """
    if square.device.type != "cpu" or not lapack.faster_here():
        return square.sqrt_()
    return square.mul_(torch.rsqrt(square))


def decay(r: Tensor, rate: float, out: Tensor | None = None) -> Tensor:
    """Compute exp(−rate · r), perhaps in `out`."""
    if r.device.type != "cpu" or not lapack.faster_here():
        return torch.mul(r, -rate, out=out).exp_()
    return torch.mul(r, -rate * PER_NAT, out=out).exp2_()


def falling(square: Tensor, rate: float, out: Tensor | None = None) -> tuple[Tensor, float, Tensor]:
    """Compute p, u and exp(−t), perhaps in `out`, with t = rate · r = u · p; r² stays as it is."""
    if square.device.type != "cpu" or not lapack.faster_here():
        r = square.sqrt()
        return r, rate, torch.mul(r, -rate, out=out).exp_()
    power = torch.rsqrt(square)
    torch.addcmul(
        square.new_zeros(()), square, power, value=-rate * PER_NAT, out=power
    )  # in one pass
    return power, -1.0 / PER_NAT, torch.exp2(power, out=out)


class RBF(FixedShape):
    """The squared exponential kernel, k = exp(−r² / 2), with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are infinitely smooth. It is the product of its columns' kernels, which sparse
    grids make use of.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, default=None
        The columns that the kernel looks at, by place or name; all by default.
    shared : sequence of int, default=None
        Which of the lengthscales each of these columns has, so that several can share one.
    stretch : sequence of float, default=None
        A number for each of these columns that it is multiplied by; it is not trained. An estimator sets
        it where columns with one lengthscale in the units of the data have different scales.
    sphere : bool, default=False
        Whether two columns are longitude and latitude in degrees. The distance is the straight line
        between points on the Earth's sphere, and the one lengthscale is in km.
    anisotropy : pair of float, default=None
        The direction of a kernel of two columns, with one lengthscale; `distgp.kernels.rotated` makes it.

    Examples
    --------
    >>> import torch
    >>> from distgp import RBF
    >>> X = torch.tensor([[0.0], [1.0]], dtype=torch.float64)
    >>> round(float(RBF(1.0)(X)[0, 1]), 4)  # exp(−1/2)
    0.6065
    """

    proportional: ClassVar[float | None] = -0.5
    formula: ClassVar[str | None] = "exp(T(-0.5) * s)"

    def shape(self, square: Tensor) -> Tensor:
        """Compute exp(−r² / 2)."""
        return (-0.5 * square).exp_()

    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Compute exp(−r² / 2), whose derivative is −½ of it."""
        del slope
        decay(square, 0.5, out=square)


class Matern12(FixedShape):
    """The Matérn kernel with ν = 1/2, k = exp(−r), with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are continuous and nowhere differentiable. Its parameters are those of `RBF`.

    Examples
    --------
    >>> from distgp import Matern12
    >>> Matern12(0.5, active_dims=[2])  # looks at the third column alone
    Matern12(lengthscale=[0.5], active_dims=(2,))
    """

    formula: ClassVar[str | None] = "exp(-sqrt(s))"

    def shape(self, square: Tensor) -> Tensor:
        """Compute exp(−r)."""
        return torch.exp(-safe_sqrt(square))

    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Compute exp(−r) and −exp(−r) / 2r, taken as 0 at r = 0, where there is no derivative."""
        if slope is None:
            decay(root_(square), 1.0, out=square)
            return
        apart = square > torch.finfo(square.dtype).tiny
        slope.copy_(root_(square))
        decay(square, 1.0, out=square)
        slope.copy_(torch.where(apart, -0.5 * square / slope, 0.0))


class Matern32(FixedShape):
    """The Matérn kernel with ν = 3/2, k = (1 + √3 r) exp(−√3 r), with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are differentiable once. Its parameters are those of `RBF`.

    Examples
    --------
    >>> from distgp import Matern32
    >>> Matern32([0.5, 2.0])  # a lengthscale for each of two columns
    Matern32(lengthscale=[0.5, 2.0])
    """

    formula: ClassVar[str | None] = "(T(1) + sqrt(T(3) * s)) * exp(-sqrt(T(3) * s))"
    steepness: ClassVar[float] = -1.5

    def shape(self, square: Tensor) -> Tensor:
        """Compute (1 + t) exp(−t) with t = √3 r."""
        t = math.sqrt(3.0) * safe_sqrt(square)
        return (1.0 + t) * torch.exp(-t)

    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Compute (1 + t) exp(−t), and exp(−t) for its derivative."""
        part, unit, fallen = falling(square, ROOT3, out=slope)
        torch.add(square.new_ones(()), part, alpha=unit, out=square).mul_(fallen)


class Matern52(FixedShape):
    """The Matérn kernel with ν = 5/2, k = (1 + √5 r + 5r²/3) exp(−√5 r), r² = Σ_j (x_j − x′_j)² / ℓ_j².

    Its functions are differentiable twice. It is the estimators' default, and has `RBF`'s parameters.

    Examples
    --------
    >>> from distgp import DistributedGPRegressor, Matern52
    >>> gp = DistributedGPRegressor(kernel=2.0 * Matern52([0.5, 2.0]))
    """

    formula: ClassVar[str | None] = (
        "(T(1) + sqrt(T(5) * s) + T(5.0 / 3.0) * s) * exp(-sqrt(T(5) * s))"
    )
    steepness: ClassVar[float] = -5.0 / 6.0

    def shape(self, square: Tensor) -> Tensor:
        """Compute (1 + t + t²/3) exp(−t) with t = √5 r."""
        t = math.sqrt(5.0) * safe_sqrt(square)
        return (1.0 + t + (5.0 / 3.0) * square) * torch.exp(-t)

    def shape_(self, square: Tensor, slope: Tensor | None) -> None:
        """Compute (1 + t + t²/3) exp(−t), and (1 + t) exp(−t) for its derivative."""
        part, unit, fallen = falling(square, ROOT5)
        first = torch.add(
            square.new_ones(()), part, alpha=unit, out=part if slope is None else slope
        )
        torch.add(first, square, alpha=5.0 / 3.0, out=square).mul_(fallen)
        if slope is not None:
            slope.mul_(fallen)


class RationalQuadratic(Stationary):
    """The rational quadratic kernel, k = (1 + r² / 2α)^−α, with r² = Σ_j (x_j − x′_j)² / ℓ_j².

    It is a mixture of RBF kernels over lengthscales, and tends to the RBF kernel as α grows. Its other
    parameters are those of `RBF`.

    Parameters
    ----------
    alpha : float or Tensor, default=1.0
        The mixture parameter α, (*batch,).

    Examples
    --------
    >>> from distgp import RationalQuadratic
    >>> RationalQuadratic(0.8, alpha=1.4)
    RationalQuadratic(lengthscale=[0.8], alpha=1.4)
    """

    alpha: Tensor = field(default=1.0, converter=scalar)

    def shape(self, square: Tensor) -> Tensor:
        """Compute exp(−α log(1 + r² / 2α))."""
        alpha = self.alpha[..., None, None]
        return torch.exp(-alpha * torch.log1p(square / (2.0 * alpha)))


class Constant(Kernel):
    """The constant kernel, k(x, x′) = v: an unknown offset with prior variance v.

    Parameters
    ----------
    variance : float or Tensor, default=1.0
        The variance v of the offset, (*batch,).

    Examples
    --------
    >>> from distgp import RBF, Constant
    >>> RBF(0.5) + Constant(10.0)
    Sum(kernels=(RBF(lengthscale=[0.5]), Constant(variance=10.0)))
    """

    variance: Tensor = field(default=1.0, converter=scalar)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Repeat the variance for all pairs."""
        pairs = X1.new_ones(X1.shape[:-1])[..., :, None] * X2.new_ones(X2.shape[:-1])[..., None, :]
        return self.variance[..., None, None] * pairs

    def diag(self, X: Tensor) -> Tensor:
        """Repeat the variance for all rows."""
        return self.variance[..., None] * X.new_ones(X.shape[:-1])


class Linear(Kernel):
    """The linear kernel, k(x, x′) = Σ_j v_j x_j x′_j: linear regression with weights of variance v_j.

    Add a `Constant` for an offset.

    Parameters
    ----------
    variance : float, sequence or Tensor, default=1.0
        The variances v of the weights: one per column, (*batch, d), or one for all, (*batch, 1).
    active_dims : sequence of int or str, default=None
        The columns that the kernel looks at, by place or name; all by default.

    Examples
    --------
    >>> import torch
    >>> from distgp import Linear
    >>> Linear(4.0)(torch.tensor([[1.0], [3.0]], dtype=torch.float64)).tolist()
    [[4.0, 12.0], [12.0, 36.0]]
    """

    units: ClassVar[Mapping[str, int]] = {"variance": -2}
    variance: Tensor = field(default=1.0, converter=vector)
    active_dims: Columns = field(default=None, converter=columns)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Multiply two scaled factors, X1 diag(√v) and X2 diag(√v), so that it stays symmetric."""
        return self.scaled(X1) @ self.scaled(X2).mT

    def diag(self, X: Tensor) -> Tensor:
        """Compute Σ_j v_j x_j²."""
        return self.scaled(X).square().sum(-1)

    def scaled(self, X: Tensor) -> Tensor:
        """Return the active columns times the roots of their variances, x √v."""
        return select(X, self.active_dims, self.variance) * self.variance[..., None, :].sqrt()


class Periodic(Kernel):
    """The periodic kernel, k(x, x′) = exp(−2 Σ_j sin²(π(x_j − x′_j) / p_j) / ℓ_j²).

    On the circle φ(x) = (cos 2πx/p, sin 2πx/p), ‖φ(x) − φ(x′)‖² = 4 sin²(π(x − x′)/p). So this is the
    RBF kernel of the embedded inputs, and its distances too come from one matrix product.

    Parameters
    ----------
    lengthscale : float, sequence or Tensor, default=1.0
        The lengthscales ℓ on the circle: one per column, (*batch, d), or one for all, (*batch, 1).
    period : float, sequence or Tensor, default=1.0
        The periods p, likewise.
    active_dims : sequence of int or str, default=None
        The columns that the kernel looks at, by place or name; all by default.

    Examples
    --------
    >>> from distgp import RBF, Periodic
    >>> Periodic(1.0, period=24.0) * RBF(100.0)  # a daily rhythm that changes slowly
    Product(kernels=(Periodic(lengthscale=[1.0], period=[24.0]), RBF(lengthscale=[100.0])))
    """

    units: ClassVar[Mapping[str, int]] = {"period": 1}
    lengthscale: Tensor = field(default=1.0, converter=vector)
    period: Tensor = field(default=1.0, converter=vector)
    active_dims: Columns = field(default=None, converter=columns)

    def gram(self, X1: Tensor, X2: Tensor) -> Tensor:
        """Evaluate the RBF kernel of the embedded inputs."""
        A = self.embedded(X1)
        B = A if X2 is X1 else self.embedded(X2)
        return (-0.5 * squared_distance(A, B)).exp_()

    def diag(self, X: Tensor) -> Tensor:
        """Return ones."""
        each = self.lengthscale[..., :1] * self.period[..., :1]
        return torch.ones_like(X[..., 0] * each, dtype=X.dtype)

    def embedded(self, X: Tensor) -> Tensor:
        """Return the active columns on circles, (cos 2πx/p, sin 2πx/p) / ℓ."""
        X = select(X, self.active_dims, self.lengthscale, self.period)
        angle = X * (2.0 * math.pi / self.period[..., None, :])
        scale = self.lengthscale[..., None, :]
        return torch.cat([angle.cos() / scale, angle.sin() / scale], -1)


@singledispatch
def coordinates(kernel: Kernel, X: Tensor) -> Tensor | None:
    """Place points so that for a kernel the nearer two are, the larger is their correlation.

    For a stationary kernel these are x / ℓ, for a periodic one points on circles. A sum is ordered by
    its first part that has coordinates; a product of RBF and periodic kernels by all of its parts. None
    where no such coordinates (n, q) of points X (n, d) are known: then only the kernel can tell.

    Examples
    --------
    >>> coordinates(2.0 * Matern52([0.5, 2.0]), torch.ones(1, 2, dtype=torch.float64)).tolist()
    [[2.0, 0.5]]
    """
    del kernel, X
    return None


@coordinates.register
def _(kernel: Stationary, X: Tensor) -> Tensor:
    return kernel.scaled(X)


@coordinates.register
def _(kernel: Periodic, X: Tensor) -> Tensor:
    return kernel.embedded(X)


@coordinates.register
def _(kernel: Scale, X: Tensor) -> Tensor | None:
    return coordinates(kernel.kernel, X)


@coordinates.register
def _(kernel: Sum, X: Tensor) -> Tensor | None:
    found = (coordinates(part, X) for part in kernel.kernels)
    return next((values for values in found if values is not None), None)


@coordinates.register
def _(kernel: Product, X: Tensor) -> Tensor | None:
    """exp(−r₁²/2) exp(−r₂²/2) = exp(−(r₁² + r₂²)/2), so coordinates are joined; other shapes differ."""
    parts = [part.kernel if isinstance(part, Scale) else part for part in kernel.kernels]
    if not all(isinstance(part, RBF | Periodic) for part in parts):
        return None
    found = [coordinates(part, X) for part in parts]
    return torch.cat([values for values in found if values is not None], -1)
