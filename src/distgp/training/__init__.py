"""Training: learning hyperparameters and inducing inputs across shards."""

from distgp.training.fact import Fact
from distgp.training.federated import Admm, FedAvg, FedProx, Independent
from distgp.training.learning import Learning
from distgp.training.nearest import NearestRows
from distgp.training.objective import Gamma, Layout, LogNormal, Objective, Prior, objective_value
from distgp.training.pooled import PooledBound
from distgp.training.rounds import Algorithm, Message, Reply, Round, TrainingResult
from distgp.training.stage import TrainingWarning, train

ALGORITHMS: dict[str, type[Algorithm]] = {
    kind.name: kind for kind in (Fact, FedAvg, FedProx, Admm, Independent, PooledBound, NearestRows)
}
"""The training algorithms by name."""

__all__ = [
    "ALGORITHMS",
    "Admm",
    "Algorithm",
    "Fact",
    "FedAvg",
    "FedProx",
    "Gamma",
    "Independent",
    "Layout",
    "Learning",
    "LogNormal",
    "Message",
    "NearestRows",
    "Objective",
    "PooledBound",
    "Prior",
    "Reply",
    "Round",
    "TrainingResult",
    "TrainingWarning",
    "objective_value",
    "train",
]
