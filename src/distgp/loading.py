"""Models read back from files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from distgp import persistence
from distgp.estimator import GPEstimator
from distgp.regressor import DistributedGPRegressor
from distgp.sparsegrid import SparseGridGP

ESTIMATORS: dict[str, type[GPEstimator]] = {
    kind.__name__: kind for kind in (DistributedGPRegressor, SparseGridGP)
}


def load(path: Path | str, device: str | None = None) -> Any:
    """The estimator that `save` wrote, ready to predict; `device` overrides where it was fitted."""
    if device is not None and str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} is not to be had here: give device='cpu'")
    state = persistence.load(path, device)
    kind = state.get("estimator", DistributedGPRegressor.__name__)
    if kind not in ESTIMATORS:
        raise persistence.ModelFileError(f"{path} holds a {kind}, which this distgp does not know")
    parameters = dict(state["parameters"])
    if device is not None:
        parameters["device"] = device
    elif parameters["device"] != "cpu" and not torch.cuda.is_available():
        parameters["device"] = "cpu"
    made = ESTIMATORS[kind](**parameters)
    made.models_ = state["models"]
    made._seed, made._one_target = state["seed"], state["one_target"]
    made.n_features_in_ = state["n_features"]
    if state["feature_names"] is not None:
        made.feature_names_in_ = np.array(state["feature_names"], dtype=object)
    if state["table"] is not None:
        made.table_ = state["table"]
    return made
