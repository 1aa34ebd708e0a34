"""Ways to combine the posteriors of many experts into one."""

from distgp.aggregation.base import (
    AGGREGATORS,
    AggregationError,
    Aggregator,
    Combined,
    Ensemble,
    default_aggregator,
    register,
)
from distgp.aggregation.exact import Exact, SolveWarning
from distgp.aggregation.gram import Pooled
from distgp.aggregation.marginals import (
    BCM,
    RBCM,
    Barycentre,
    GPoE,
    MarginalAggregator,
    MinVariance,
    PoE,
    SoftmaxPoE,
)
from distgp.aggregation.nearest import Nearest
from distgp.aggregation.nested import GRBCM, NPAE
from distgp.aggregation.optimal import Opt, OptLocal, OptPrinted, TwoLevel, WeightsWarning
from distgp.aggregation.variance import CentralWarning

for kind in (
    PoE, GPoE, SoftmaxPoE, BCM, RBCM, GRBCM, MinVariance, Barycentre, NPAE,
    Opt, OptPrinted, OptLocal, TwoLevel, Pooled, Nearest, Exact,
):  # fmt: skip
    register(kind)

__all__ = [
    "AGGREGATORS", "BCM", "GRBCM", "NPAE", "RBCM", "AggregationError", "Aggregator", "Barycentre",
    "CentralWarning", "Combined", "Ensemble", "Exact", "GPoE", "MarginalAggregator", "MinVariance",
    "Nearest", "Opt", "OptLocal", "OptPrinted", "PoE", "Pooled", "SoftmaxPoE", "SolveWarning", "TwoLevel",
    "WeightsWarning", "default_aggregator", "register",
]  # fmt: skip
