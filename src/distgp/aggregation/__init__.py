"""Aggregation: one posterior out of many."""

from distgp.aggregation.base import (
    AggregationError,
    Aggregator,
    Combined,
    MarginalAggregator,
    WeightsWarning,
)
from distgp.aggregation.central import CentralWarning
from distgp.aggregation.committee import BCM, GRBCM, RBCM
from distgp.aggregation.ensemble import Ensemble, Group
from distgp.aggregation.local import OptLocal
from distgp.aggregation.nested import NPAE
from distgp.aggregation.optimal import Opt
from distgp.aggregation.pooled import Pooled
from distgp.aggregation.printed import OptPrinted
from distgp.aggregation.product import GPoE, PoE
from distgp.aggregation.twolevel import TwoLevel

AGGREGATORS: dict[str, type[Aggregator]] = {
    kind.name: kind
    for kind in (PoE, GPoE, BCM, RBCM, GRBCM, NPAE, Opt, OptPrinted, OptLocal, TwoLevel, Pooled)
}

__all__ = [
    "AGGREGATORS",
    "BCM",
    "GRBCM",
    "NPAE",
    "RBCM",
    "AggregationError",
    "Aggregator",
    "CentralWarning",
    "Combined",
    "Ensemble",
    "GPoE",
    "Group",
    "MarginalAggregator",
    "Opt",
    "OptLocal",
    "OptPrinted",
    "PoE",
    "Pooled",
    "TwoLevel",
    "WeightsWarning",
]
