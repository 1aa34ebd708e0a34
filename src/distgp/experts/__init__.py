"""Experts: Gaussian processes on one shard, exact, sparse, or conditioned on nearest rows."""

from distgp.experts import inducing
from distgp.experts.base import Expert, Parameters, Posterior, Prediction
from distgp.experts.exact import ExactExpert, ExactPosterior
from distgp.experts.linear import LinearPosterior
from distgp.experts.nearest import NearestExpert, NearestPosterior
from distgp.experts.sparse import SparseExpert, SparsePosterior
from distgp.experts.sums import SparseSums

EXPERTS: dict[str, type[Expert]] = {
    kind.name: kind for kind in (ExactExpert, SparseExpert, NearestExpert)
}

__all__ = [
    "EXPERTS",
    "ExactExpert",
    "ExactPosterior",
    "Expert",
    "LinearPosterior",
    "NearestExpert",
    "NearestPosterior",
    "Parameters",
    "Posterior",
    "Prediction",
    "SparseExpert",
    "SparsePosterior",
    "SparseSums",
    "inducing",
]
