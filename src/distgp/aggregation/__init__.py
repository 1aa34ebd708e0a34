"""Aggregation: one posterior out of many experts'."""

from distgp.aggregation.base import (
    AGGREGATORS,
    AggregationError,
    Aggregator,
    Combined,
    WeightsWarning,
    default_aggregator,
    register,
)
from distgp.aggregation.committees import (
    BCM,
    GRBCM,
    RBCM,
    Barycentre,
    GPoE,
    MinVariance,
    PoE,
    SoftmaxPoE,
)
from distgp.aggregation.ensemble import Ensemble
from distgp.aggregation.marginals import MarginalAggregator
from distgp.aggregation.nearest import Nearest
from distgp.aggregation.nested import NPAE
from distgp.aggregation.opt_local import OptLocal
from distgp.aggregation.optimal import Opt, OptPrinted, TwoLevel
from distgp.aggregation.pooled import Pooled
from distgp.aggregation.variance import CentralWarning

for kind in (
    PoE,
    GPoE,
    SoftmaxPoE,
    BCM,
    RBCM,
    GRBCM,
    MinVariance,
    Barycentre,
    NPAE,
    Opt,
    OptPrinted,
    OptLocal,
    TwoLevel,
    Pooled,
    Nearest,
):
    register(kind)

__all__ = [
    "AGGREGATORS",
    "BCM",
    "GRBCM",
    "NPAE",
    "RBCM",
    "AggregationError",
    "Aggregator",
    "Barycentre",
    "CentralWarning",
    "Combined",
    "Ensemble",
    "GPoE",
    "MarginalAggregator",
    "MinVariance",
    "Nearest",
    "Opt",
    "OptLocal",
    "OptPrinted",
    "PoE",
    "Pooled",
    "SoftmaxPoE",
    "TwoLevel",
    "WeightsWarning",
    "default_aggregator",
    "register",
]
