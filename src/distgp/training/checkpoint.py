"""A checkpoint: the state's tensors and the history, in one safetensors file, whole or not at all."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from distgp.files import whole
from distgp.training.result import Round
from distgp.training.steps import State

FORMAT = "distgp-training-1"


def save(path: Path, name: str, state: State, history: list[Round]) -> None:
    """Write to a temporary file beside it, then rename."""
    tensors = {key: value.detach().cpu().contiguous().clone() for key, value in state.items()}
    rounds = json.dumps([dataclasses.asdict(round_) for round_ in history])
    metadata = {"format": FORMAT, "algorithm": name, "history": rounds}
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as part:
        save_file(tensors, part, metadata)


def load(path: Path, name: str) -> tuple[State, list[Round]]:
    """State and history of a checkpoint of the same algorithm."""
    try:
        with safe_open(str(path), framework="pt") as file:
            metadata = file.metadata() or {}
            tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is not a checkpoint, or is damaged: {error}") from error
    if metadata.get("format") != FORMAT:
        raise ValueError(f"{path} is not a training checkpoint of distgp ({FORMAT})")
    if metadata.get("algorithm") != name:
        raise ValueError(
            f"{path} was written by {metadata.get('algorithm')!r}, this is {name!r}: continue with the "
            "same algorithm, or remove the file"
        )
    return tensors, [Round(**record) for record in json.loads(metadata["history"])]


def fitted(state: State, like: State, origin: str) -> State:
    """The state on the device of `like`, if it belongs to the same problem."""
    growing = {"S", "Y"}  # L-BFGS's pairs: their number grows
    same = state.keys() == like.keys() and all(
        state[key].shape[key in growing :] == like[key].shape[key in growing :] for key in like
    )
    if not same or not bool((state["sizes"].to(like["sizes"]) == like["sizes"]).all()):
        raise ValueError(
            f"{origin} belongs to another algorithm, other shards or other parameters: continue with "
            "what it was made with, or start anew"
        )
    return {key: value.to(like[key].device) for key, value in state.items()}
