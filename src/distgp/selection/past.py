"""The past of a model: what an earlier fit leaves to the next one, and to rows that are added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from distgp._util.checks import is_auto
from distgp.data.partition import Partition
from distgp.data.rows import Schema, kept
from distgp.experts import Parameters
from distgp.model import Model, TargetModel
from distgp.plan import Plan, resolve
from distgp.selection.trials import Choice


@dataclass(frozen=True, eq=False)
class Past:
    """The last fit, or where one was interrupted: a fit with `warm_start` goes on from there.

    It has θ of each target that was found, the choice that was made, and the parameters that it set.
    """

    found: tuple[Parameters, ...] = ()
    choice: Choice | None = None
    settled: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(attributes: Mapping[str, Any]) -> Past:
        """Read it from the attributes of a fitted estimator, those reached by an interrupted fit first."""
        known: dict[str, Any] = {}
        if "model_" in attributes:
            known["found"] = tuple(one.parameters for one in attributes["model_"].targets)
            known["choice"] = attributes.get("choice_")
            known["settled"] = attributes.get("settled_") or {}
        return Past(**known | attributes.get("_reached", {}))

    def holds(self, parameters: Mapping[str, Any]) -> bool:
        """Tell whether the choice still holds: while all that it set is "auto"."""
        return bool(self.settled) and all(is_auto(parameters[name]) for name in self.settled)

    def plan(
        self,
        parameters: Mapping[str, Any],
        schema: Schema | None,
        n: int,
        keep: np.ndarray | None = None,
    ) -> Plan:
        """Make the plan of a fit of n rows, of those to `keep`, that goes on from here."""
        given = dict(parameters)
        if keep is not None and not isinstance(given["partition"], str | Partition):
            given["partition"] = kept(given["partition"], keep, "partition")
        plan = resolve(given, schema, n)
        if self.holds(parameters):
            plan = plan.settled(self.settled)
        return plan.starting_from(self.found) if self.found else plan


def plan_of_update(
    parameters: Mapping[str, Any], settled: Mapping[str, Any], model: Model[TargetModel]
) -> Plan:
    """Make the plan of a change to a model: its experts, and all else as given or chosen."""
    given, ensemble = dict(parameters), model.targets[0].ensemble
    given |= {name: value for name, value in settled.items() if is_auto(given[name])}
    M = given["n_experts"]
    if M == "cv" or not isinstance(given["partition"], str | Partition):
        M = ensemble.size
    given |= {"expert": ensemble.expert, "n_experts": M, "partition": "random"}
    n = max(ensemble.row_count(), 0 if isinstance(M, str) else M)
    return resolve(given, model.schema, n)
