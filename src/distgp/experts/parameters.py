"""θ: the hyperparameters of experts, shared or one set for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from distgp import linalg
from distgp.engines import Kinds
from distgp.kernels.base import Kernel, TensorLike, check_positive, scalar


@dataclass(frozen=True, eq=False)
class Parameters:
    """θ: kernel, noise variance and, for sparse experts, inducing inputs.

    Every tensor may carry leading batch dimensions, one entry per expert; without them the
    experts share it.

    Parameters
    ----------
    kernel : Kernel
        The covariance function.
    noise : Tensor of shape (*batch,)
        The noise variance σ².
    inducing : Tensor of shape (*batch, m, d), optional
        The inducing inputs Z.
    """

    travels_as: ClassVar[Kinds] = {"inducing": "inducing", "*": "parameters"}
    kernel: Kernel
    noise: Tensor
    inducing: Tensor | None = None

    @staticmethod
    def of(
        kernel: Kernel, noise: TensorLike, inducing: Tensor | np.ndarray | None = None
    ) -> Parameters:
        """Build θ from plain numbers, checked, in the dtype and on the device of the kernel's."""
        like = next(iter(kernel.parameters().values()))
        noise = scalar(noise).to(like)
        check_positive("noise", noise)
        return Parameters(kernel, noise, None if inducing is None else _inputs(inducing, like))

    @property
    def batch(self) -> tuple[int, ...]:
        """The batch dimensions of kernel and noise: empty where the experts share them."""
        return linalg.broadcast(self.noise.shape, *self.kernel.batches().values())

    @property
    def inducing_batch(self) -> torch.Size:
        """The batch dimensions of Z: empty where the experts share it, or have none."""
        return torch.Size() if self.inducing is None else self.inducing.shape[:-2]

    def __getitem__(self, index: int | slice | Tensor) -> Parameters:
        """θ of these experts of a batch; what they share stays shared."""
        values, batches = self.kernel.parameters(), self.kernel.batches()
        own = {name: values[name][index] for name, batch in batches.items() if batch}
        noise = self.noise[index] if self.noise.ndim else self.noise
        Z = self.inducing
        if Z is not None and self.inducing_batch:
            Z = Z[index]
        return Parameters(self.kernel.with_parameters(own), noise, Z)

    def unsqueezed(self) -> Parameters:
        """The same θ with one leading batch dimension of size one on every tensor."""
        own = {name: value[None] for name, value in self.kernel.parameters().items()}
        Z = None if self.inducing is None else self.inducing[None]
        return Parameters(self.kernel.with_parameters(own), self.noise[None], Z)

    def averaged(self) -> Parameters:
        """One θ for all experts: the geometric mean of kernel and noise, without inducing inputs."""
        values, batches = self.kernel.parameters(), self.kernel.batches()
        shared = {name: values[name].log().mean(0).exp() for name, b in batches.items() if b}
        noise = self.noise.log().mean().exp() if self.noise.ndim else self.noise
        return Parameters(self.kernel.with_parameters(shared), noise)

    def paths(self, name: str) -> list[str]:
        """The full names, such as "kernel.kernel.lengthscale", that end with a name, or the name itself."""
        known = list(self.unconstrained())
        if name in known:
            return [name]
        found = [path for path in known if path.rpartition(".")[2] == name]
        if not found:
            raise ValueError(f"no parameter {name!r}; there are {', '.join(known)}")
        return found

    def joined(self, other: Parameters) -> Parameters:
        """The experts of this θ followed by those of the other; what they share must be the same."""
        values, more = self.kernel.parameters(), other.kernel.parameters()
        differ = [name for name, batch in self.kernel.batches().items() if batch]
        own = {name: torch.cat([values[name], more[name]]) for name in differ}
        noise = torch.cat([self.noise, other.noise]) if self.noise.ndim else self.noise
        Z = self.inducing
        if Z is not None and other.inducing is not None and self.inducing_batch:
            Z = torch.cat([Z, other.inducing])
        return Parameters(self.kernel.with_parameters(own), noise, Z)

    def unconstrained(self) -> dict[str, Tensor]:
        """The view that optimisers work on: logarithms of the positive parameters, Z as it is."""
        positive = {f"kernel.{name}": value for name, value in self.kernel.parameters().items()}
        view = {name: value.log() for name, value in (positive | {"noise": self.noise}).items()}
        return view if self.inducing is None else view | {"inducing": self.inducing}

    def with_unconstrained(self, view: Mapping[str, Tensor]) -> Parameters:
        """The inverse of `unconstrained`; what the view leaves out stays."""
        prefix, noise = "kernel.", self.noise
        named = {k.removeprefix(prefix): v.exp() for k, v in view.items() if k.startswith(prefix)}
        if "noise" in view:
            noise = view["noise"].exp()
            check_positive("noise", noise)
        kernel, Z = self.kernel.with_parameters(named), view.get("inducing", self.inducing)
        return Parameters(kernel, noise, Z)

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Parameters:
        """The same θ on another device or in another dtype."""
        Z = None if self.inducing is None else self.inducing.to(device=device, dtype=dtype)
        noise = self.noise.to(device=device, dtype=dtype)
        return Parameters(self.kernel.to(device, dtype), noise, Z)


def _inputs(inducing: Tensor | np.ndarray, like: Tensor) -> Tensor:
    Z = torch.as_tensor(inducing).to(like)
    if Z.ndim < 2 or not Z.numel() or not bool(torch.isfinite(Z).all()):
        raise ValueError(f"expected finite inducing inputs of shape (m, d), got {tuple(Z.shape)}")
    return Z
