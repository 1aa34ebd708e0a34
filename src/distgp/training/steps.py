"""Optimisers as plain functions of tensors, so that their state can be sent, saved and resumed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

State = dict[str, Tensor]


@dataclass(frozen=True)
class Adam:
    """Adam (Kingma and Ba), over any leading batch dimensions."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def start(self, x: Tensor) -> State:
        """Zero moments."""
        count = torch.zeros(x.shape[:-1], dtype=x.dtype, device=x.device)
        return {"m": torch.zeros_like(x), "v": torch.zeros_like(x), "t": count}

    def step(self, state: State, gradient: Tensor, rate: Tensor) -> tuple[Tensor, State]:
        """The move, and the moments after it."""
        t = state["t"] + 1
        m = self.beta1 * state["m"] + (1 - self.beta1) * gradient
        v = self.beta2 * state["v"] + (1 - self.beta2) * gradient.square()
        mean = m / (1 - self.beta1**t)[..., None]
        scale = (v / (1 - self.beta2**t)[..., None]).sqrt() + self.epsilon
        return -rate[..., None] * mean / scale, {"m": m, "v": v, "t": t}


@dataclass(frozen=True)
class Sgd:
    """Plain gradient steps."""

    def start(self, x: Tensor) -> State:
        """Nothing to remember but how often."""
        return {"t": torch.zeros(x.shape[:-1], dtype=x.dtype, device=x.device)}

    def step(self, state: State, gradient: Tensor, rate: Tensor) -> tuple[Tensor, State]:
        """−rate · gradient."""
        return -rate[..., None] * gradient, {"t": state["t"] + 1}


STEPPERS: dict[str, Adam | Sgd] = {"adam": Adam(), "sgd": Sgd()}


def finite(value: Tensor, gradient: Tensor) -> Tensor:
    """Whether value and gradient are usable, over leading batch dimensions."""
    return torch.isfinite(value) & torch.isfinite(gradient).all(-1)
