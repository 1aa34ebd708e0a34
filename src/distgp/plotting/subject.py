"""The model, the columns and the target that a picture is about, checked, and its predictions."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from distgp.data import frames
from distgp.mixin import ModelMixin
from distgp.novelty import NoveltyWarning
from distgp.summary import column_names, target_names

Columns: TypeAlias = Sequence[int | str] | int | str
"""Columns by their names or their numbers, which count from 0."""


@dataclass(frozen=True, eq=False)
class Subject:
    """A fitted model, the places of the columns to draw, and the number of the target."""

    model: ModelMixin
    columns: list[int]
    target: int

    @staticmethod
    def of(model: ModelMixin, features: Columns | None = None, target: int = 0) -> Subject:
        """Check the arguments of a picture."""
        check_model(model, target)
        return Subject(model, _places(model, features), target)

    @property
    def names(self) -> list[str]:
        """The names of the columns to draw."""
        names = column_names(self.model.model_.schema)
        return [names[column] for column in self.columns]

    def label(self, text: str) -> str:
        """Name the target in a text, where there are several."""
        count = len(self.model.model_.targets)
        return text if count == 1 else f"{text} of {target_names(count)[self.target]}"

    def of_target(self, values: np.ndarray) -> np.ndarray:
        """Return the target's values, (N,), of those of all targets."""
        return values if values.ndim == 1 else values[:, self.target]

    def rows(self, X: ArrayLike) -> np.ndarray:
        """Return rows as numbers, their columns in the order that the model was fitted to.

        Columns of a table are found by name, so that they may be in any order and have others among them.
        """
        rows = np.asarray(_numbers(self.model, X), dtype=np.float64)
        d = self.model.n_features_in_
        if rows.ndim != 2 or rows.shape[1] != d:
            raise ValueError(f"expected X with rows of {d} columns, got shape {rows.shape}")
        return rows


def check_model(model: object, target: object = 0) -> ModelMixin:
    """Refuse what is no estimator of ours, one that is not fitted, and a target that it does not have."""
    if not isinstance(model, ModelMixin):
        raise TypeError(
            "expected a fitted DistributedGPRegressor or SparseGridGP, got "
            f"{type(model).__name__}: of a pipeline or a search, give the estimator in it"
        )
    check_is_fitted(model)
    count = len(model.model_.targets)
    if not isinstance(target, int | np.integer) or not 0 <= target < count:
        numbers = "0, the only one" if count == 1 else f"from 0 to {count - 1}"
        raise ValueError(f"expected the number of a target, {numbers}, got {target!r}")
    return model


def _numbers(model: ModelMixin, X: ArrayLike) -> ArrayLike:
    """Return an array as it is, and of a table the columns that the model was fitted to."""
    if not frames.is_table(X):
        return X
    frame: Any = X
    table, names = model.model_.schema.table, model.model_.schema.names
    if table is not None and frames.is_raw(frame, table):
        policy: Any = model  # only models with these parameters are fitted to tables
        rows, keep = frames.encoded(frame, table, policy.missing, policy.unknown)
        if not keep.all():
            raise ValueError(
                f"{int((~keep).sum())} of {len(keep)} rows have missing values: leave them out of the plot"
            )
        return rows
    if names is None:
        return X
    there = set(frames.names_of(frame))
    if missing := [name for name in names if name not in there]:
        raise ValueError(
            f"X has no column {', '.join(map(repr, missing))}: give the columns that the model was "
            "fitted to"
        )
    return frame.select(list(names)) if hasattr(X, "column_names") else frame[list(names)]


def _places(model: ModelMixin, features: Columns | None) -> list[int]:
    """Return the places of columns that are given by name or number; by default of all columns."""
    names = column_names(model.model_.schema)
    if features is None:
        return list(range(len(names)))
    given = [features] if isinstance(features, int | str | np.integer) else list(features)
    if not given:
        raise ValueError("features names no column: give one at least, or None for all")
    known: dict[int | str, Sequence[int]] = {name: [place] for place, name in enumerate(names)}
    if (table := model.model_.schema.table) is not None:
        known |= table.places  # a column of text or dates stands for all its numbers
    known |= {place: [place % len(names)] for place in range(-len(names), len(names))}
    for feature in given:
        if not isinstance(feature, int | str | np.integer) or feature not in known:
            some = ", ".join(map(repr, names[:10])) + (", …" if len(names) > 10 else "")
            raise ValueError(
                f"unknown column {feature!r}: expected one of {some}, or a number from 0 to "
                f"{len(names) - 1}"
            )
    return [place for feature in given for place in known[feature]]


def predicted(
    model: ModelMixin, X: ArrayLike, made_up: bool = False, **options: object
) -> tuple[np.ndarray, np.ndarray]:
    """Return means and standard deviations."""
    with quietly(made_up):
        return model.predict(X, return_std=True, **options)  # pyright: ignore[reportAttributeAccessIssue]


@contextmanager
def quietly(made_up: bool = True) -> Iterator[None]:
    """Accept arrays for a model of a table, and points of a grid that are `made_up` and unlike any row."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        if made_up:
            warnings.simplefilter("ignore", NoveltyWarning)
        yield
