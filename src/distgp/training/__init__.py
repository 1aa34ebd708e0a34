"""Training: hyperparameters and inducing inputs, learnt across shards."""

from distgp.training.admm import Admm
from distgp.training.base import Algorithm
from distgp.training.fact import Fact
from distgp.training.fedavg import FedAvg
from distgp.training.fedprox import FedProx
from distgp.training.independent import Independent
from distgp.training.loop import TrainingWarning, train
from distgp.training.pooled import PooledBound
from distgp.training.priors import Gamma, LogNormal, Prior
from distgp.training.result import Round, TrainingResult
from distgp.workers import Workers

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind for kind in (Fact, FedAvg, FedProx, Admm, Independent, PooledBound)
}

__all__ = [
    "ALGORITHMS",
    "Admm",
    "Algorithm",
    "Fact",
    "FedAvg",
    "FedProx",
    "Gamma",
    "Independent",
    "LogNormal",
    "PooledBound",
    "Prior",
    "Round",
    "TrainingResult",
    "TrainingWarning",
    "Workers",
    "train",
]
