"""Pooled models as plain PyTorch modules, for programs that predict without distgp.

With a pooled model's L_u, B and w (see `experts.sparse`) the prediction at x is

    μ(x) = k_u(x)ᵀ a,                            a = L_u⁻ᵀ w,
    s²(x) = k(x, x) − ‖Rᵀ k_u(x)‖²,              R = L_u⁻ᵀ F with F Fᵀ = I − B⁻¹,

one matrix of kernel values times (a, R), which every runtime that multiplies matrices can do. The
estimator itself solves, with v = L_u⁻¹k_u and s² = k − ‖v‖² + ‖L_B⁻¹v‖². With an explicit L_u⁻¹ that form
would lose digits: K_uu is almost singular, and what its small pivots blow up cancels only between the two
norms. In R it has cancelled beforehand: I − B⁻¹ ≤ AAᵀ gives ‖R‖ ≤ ‖K_uu⁻¹K_uf‖ / σ, and K_uu⁻¹k_u(x) are
only the weights with which the inducing inputs interpolate f(x).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from distgp import linalg
from distgp.aggregation.gram import PooledCombined
from distgp.experts.base import latent_variance
from distgp.experts.sparse import SparsePosterior, inducing
from distgp.kernels import Kernel, Stationary
from distgp.model import TargetModel


def to_module(
    models: Sequence[TargetModel], one_target: bool, latent: bool = False
) -> PooledModule:
    """Make one module of the pooled models of all targets, on their device, in float64."""
    return PooledModule([PooledTarget(model) for model in models], one_target, latent)


class PooledModule(nn.Module):
    """Means and standard deviations of all targets, (N,) or (N, targets), in the units of the data.

    The standard deviation is that of an observation or, with `latent`, of the function f; the attribute may
    be changed, but an exported program keeps the value that it was exported with.
    """

    def __init__(
        self, targets: Sequence[PooledTarget], one_target: bool, latent: bool = False
    ) -> None:
        super().__init__()
        self.targets = nn.ModuleList(targets)
        self.one_target = one_target
        self.latent = latent

    def forward(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Predict at all rows of X at once."""
        parts = [target(X, self.latent) for target in self.targets]
        if self.one_target:
            return parts[0]
        means, stds = zip(*parts, strict=True)
        return torch.stack(means, -1), torch.stack(stds, -1)


class PooledTarget(nn.Module):
    """The prediction of one target, from a pooled model. All numbers are buffers."""

    x_mean: Tensor
    x_scale: Tensor
    y_mean: Tensor
    y_scale: Tensor
    slope: Tensor
    noise: Tensor
    inducing: Tensor
    weights: Tensor
    root: Tensor

    def __init__(self, model: TargetModel) -> None:
        super().__init__()
        posterior, noise = _pooled(model)
        scaling, F = model.scaling, linalg.cholesky(posterior.shrinkage(), "I − B⁻¹")
        slope = np.zeros_like(scaling.x_mean) if scaling.slope is None else scaling.slope
        units = ("x_mean", "x_scale", "y_mean", "y_scale")
        buffers = {name: getattr(scaling, name) for name in units} | {
            "slope": slope,
            "noise": noise,
            "inducing": inducing(posterior.parameters),
            "weights": posterior.representer()[1],
            "root": linalg.solve_upper(posterior.Lu, F),
        }
        self._kernel = posterior.parameters.kernel
        buffers |= {_buffer(path): value for path, value in self._kernel.parameters().items()}
        for name, value in buffers.items():
            self.register_buffer(name, _copied(value, posterior.Lu))

    def forward(self, X: Tensor, latent: bool) -> tuple[Tensor, Tensor]:
        """Predict mean and standard deviation at all rows of X (N, d), of f where `latent`, else of y."""
        d = len(self.x_mean)
        if X.ndim != 2 or X.shape[1] != d:
            raise ValueError(f"expected X of shape (N, {d}), got {tuple(X.shape)}")
        if X.device != self.x_mean.device:
            raise ValueError(
                f"the module is on {self.x_mean.device} and X on {X.device}: move one of them, "
                "by module.to(X.device) or X.to(device)"
            )
        X = (X.to(self.x_mean.dtype) - self.x_mean) / self.x_scale
        kernel = self.kernel()
        K = kernel(X, self.inducing)
        mean = (K @ self.weights) * self.y_scale + (self.y_mean + X @ self.slope)
        variance = latent_variance(kernel.diag(X), (K @ self.root).square().sum(-1))
        variance = variance if latent else variance + self.noise
        return mean, variance.sqrt() * self.y_scale

    def kernel(self) -> Kernel:
        """Return the kernel of standardised inputs, with the buffers as its parameters."""
        values = {path: self.get_buffer(_buffer(path)) for path in self._kernel.parameters()}
        return _with_tensors(self._kernel, values)


def _pooled(model: TargetModel) -> tuple[SparsePosterior, Tensor]:
    """The posterior given all rows and the noise variance of a pooled model; others are refused."""
    combined = model.combined
    posterior = combined.posterior if isinstance(combined, PooledCombined) else None
    if posterior is None or posterior.sums is None:
        raise ValueError(
            'to_torch expects aggregation="pooled" with sparse experts that share their inducing '
            f"inputs, got aggregation={model.aggregation.name!r} with {model.ensemble.expert.name} "
            'experts: fit with expert="sparse", aggregation="pooled"'
        )
    if model.transform is not None:
        raise ValueError(
            f"expected a model of the target itself, got target_transform={model.transform.name!r}: fit "
            "without it, and transform the targets and the module's output yourself"
        )
    return cast(SparsePosterior, posterior), model.likelihood.noise * (
        model.likelihood.row_noise or 1.0
    )


def _copied(value: Tensor | np.ndarray | float, like: Tensor) -> Tensor:
    """A tensor of its own: float64, and dense in the order of its rows, as it is written to a file."""
    tensor = value if isinstance(value, Tensor) else torch.as_tensor(np.asarray(value))
    return tensor.to(like).clone(memory_format=torch.contiguous_format)


def _buffer(path: str) -> str:
    """The name of a kernel parameter's buffer, where dots are not allowed."""
    return "kernel_" + path.replace(".", "_")


def _with_tensors(kernel: Kernel, values: Mapping[str, Tensor], prefix: str = "") -> Kernel:
    """The same kernel with other tensors, by path, unchecked, and in plain operations.

    `Kernel.with_parameters` looks at values, which whoever traces a module for export does not know. The
    derivative that `FixedShape` has written by hand is for training: it holds for first derivatives only,
    and neither torch.func nor torch.compile can look inside.
    """
    made = object.__new__(type(kernel))
    for name, value in vars(kernel).items():
        path = prefix + name
        if isinstance(value, Tensor):
            value = values[path]
        elif isinstance(value, Kernel):
            value = _with_tensors(value, values, f"{path}.")
        elif isinstance(value, tuple):  # of kernels, or of active columns
            value = tuple(
                _with_tensors(part, values, f"{path}.{i}.") if isinstance(part, Kernel) else part
                for i, part in enumerate(value)
            )
        object.__setattr__(made, name, value)
    if isinstance(made, Stationary):
        object.__setattr__(made, "gram", partial(Stationary.gram, made))
        object.__setattr__(made, "multiple", partial(Kernel.multiple, made))
    return made
