"""What all estimators have in common: checked inputs, targets in columns, and files."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from distgp import metrics, persistence
from distgp.engines import Engine


class GPEstimator(RegressorMixin, BaseEstimator, ABC):
    """A scikit-learn regressor with a model for each target column, in `models_`."""

    n_features_in_: int
    feature_names_in_: np.ndarray
    models_: list[Any]
    table_: Any
    engine: Any
    engine_: Engine
    _one_target: bool
    _seed: int

    def nlpd(self, X: Any, y: Any, **options: Any) -> float:
        """The mean negative log predictive density of the targets y: lower is better.

        Options are those of `predict`.
        """
        predict: Any = self.predict  # pyright: ignore[reportAttributeAccessIssue]
        mean, std = predict(X, return_std=True, **options)
        y = np.asarray(y, dtype=np.float64)
        if y.shape != mean.shape:
            raise ValueError(f"expected targets of shape {mean.shape}, got {y.shape}")
        return metrics.nlpd(y.ravel(), mean.ravel(), np.square(std).ravel())

    def save(self, path: Path | str) -> None:
        """Write one safetensors file, whole or not at all; `distgp.load` reads it back.

        A file of exact experts holds the training rows; one of sparse experts does not, and then only
        aggregators that do without can be asked for after loading.
        """
        check_is_fitted(self)
        parameters: dict[str, Any] = self.get_params(deep=False)
        parameters |= {"engine": "local"}  # a file's experts live in the process that loads it
        if not isinstance(parameters["random_state"], Integral):
            parameters["random_state"] = self._seed
        parameters |= self._plain_parameters()
        state = {
            "estimator": type(self).__name__,
            "parameters": parameters,
            "models": [model.gathered() for model in self.models_],
            "seed": self._seed,
            "one_target": self._one_target,
            "n_features": self.n_features_in_,
            "feature_names": self._names(),
            "table": getattr(self, "table_", None),
        }
        about = {
            "estimator": type(self).__name__,
            "parameters": json.dumps({k: str(v) for k, v in parameters.items()}),
            "feature_names": json.dumps(self._names()),
            "kernel": str(self.kernel_),
        }
        persistence.save(path, state, about)

    def close(self) -> None:
        """Let go of the workers, unless others use them or they belong to an engine of your own."""
        engine = getattr(self, "engine_", None)
        if engine is None or engine is self.engine:
            return
        engine.users.discard(self)
        if not len(engine.users):
            engine.close()

    @property
    def kernel_(self) -> Any:
        """The kernel found."""
        return self._of_each(lambda model: model.parameters.kernel)

    @property
    def noise_(self) -> Any:
        """The noise variance found, of the standardised target where `normalize`."""
        return self._of_each(lambda model: _number(model.parameters.noise))

    @property
    def training_(self) -> Any:
        """How training went."""
        return self._of_each(lambda model: model.training)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "models_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @abstractmethod
    def _plain_parameters(self) -> dict[str, Any]:
        """Those parameters that a file holds in another form: numbers, names and arrays."""

    @contextmanager
    def _unchanged_on_failure(self) -> Iterator[None]:
        """A fit that fails leaves what was fitted before."""
        attributes = vars(self)
        before = attributes.copy()
        try:
            yield
        except BaseException:
            attributes.clear()
            attributes.update(before)
            raise

    def _checked(self, X: Any, y: Any, reset: bool = True) -> tuple[np.ndarray, np.ndarray]:
        checked: Any = validate_data(
            self,
            X,
            y,
            reset=reset,
            multi_output=True,
            y_numeric=True,
            dtype=[np.float64, np.float32],
            ensure_min_samples=2 if reset else 1,
        )
        X, y = checked
        return X, (y.astype(np.float64) if y.dtype.kind not in "f" else y)

    def _new_inputs(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        checked: Any = validate_data(self, X, reset=False, dtype=[np.float64, np.float32])
        return checked

    def _columns(self, parts: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
        """One array for each kind of result, the targets in its last dimension."""
        if self._one_target:
            return parts[0]
        return tuple(np.stack(kind, axis=-1) for kind in zip(*parts, strict=True))

    def _of_each(self, get: Callable[[Any], Any]) -> Any:
        if not hasattr(self, "models_"):
            raise AttributeError("this regressor is not fitted yet: call fit first")
        found = [get(model) for model in self.models_]
        return found[0] if self._one_target else found

    def _names(self) -> list[str] | None:
        names = getattr(self, "feature_names_in_", None)
        return None if names is None else [str(name) for name in names]


def _number(value: Any) -> float | np.ndarray:
    return float(value) if value.ndim == 0 else value.cpu().numpy()
