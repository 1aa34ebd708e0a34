"""What training returns: where it got, how, and why it stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from distgp.experts import Parameters
from distgp.training.steps import State

Reason: TypeAlias = Literal["iterations", "tolerance", "time limit", "interrupt", "diverged"]


@dataclass(frozen=True)
class Round:
    """One exchange: the objective and gradient norm that it found, and where it went."""

    number: int
    objective: float
    gradient_norm: float
    hyperparameters: dict[str, list[float]]
    seconds: float
    bytes: int
    accepted: bool


@dataclass(frozen=True, eq=False)
class TrainingResult:
    """θ, the rounds behind it, why training stopped, and all it takes to go on."""

    parameters: Parameters
    history: tuple[Round, ...]
    stopped: Reason
    state: State

    @property
    def objective(self) -> float:
        """The last objective that was found."""
        return self.history[-1].objective if self.history else float("nan")
