"""The part that all estimators share: files, summary, tags, and the attributes of any fitted model."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from types import FunctionType
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import (
    check_array,
    check_is_fitted,
    check_X_y,
    validate_data,
)

from distgp._util.checks import is_integer, silenced
from distgp._util.progress import told_with
from distgp._util.threads import Lock, gradients, on_named_devices
from distgp.data import rows as frames
from distgp.data.encoding import Columns
from distgp.data.rows import Schema, as_numbers, refuse_dates
from distgp.data.table import TableError
from distgp.diagnostics.summary import AnyTarget, Summary, relevance_of
from distgp.engines import Engine
from distgp.files import model_file
from distgp.model import Model
from distgp.plan import tensor_like

FLOATS = [np.float64, np.float32]
FEW_ROWS = 2_000
"""Training rows up to which a loaded model is asked for a variance before it is given out."""
_UNNAMED: ContextVar[bool] = ContextVar("unnamed", default=False)
ESTIMATORS: dict[str, type[ModelMixin]] = {}
"""Every estimator by the name that files know it by."""


def _on_named_devices(cls: type) -> None:
    """Have the public methods of a class make tensors on the CPU, unless they name another device."""
    for name, member in dict(vars(cls)).items():
        if isinstance(member, FunctionType) and not name.startswith("_"):
            setattr(cls, name, on_named_devices(member))
        elif isinstance(member, property) and member.fget is not None:
            setattr(cls, name, member.getter(on_named_devices(member.fget)))


class ModelMixin(BaseEstimator, ABC):
    """An estimator with a fitted `Model` in `model_`, that can be saved, described and closed."""

    model_: Model[Any]
    n_features_in_: int
    feature_names_in_: np.ndarray
    engine: str | Engine
    engine_: Engine
    _reached: dict[str, Any]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        ESTIMATORS[cls.__name__] = cls
        _on_named_devices(cls)

    def save(self, path: Path | str) -> None:
        """Write the model to one safetensors file, whole or not at all; `distgp.load` reads it back.

        A file of exact experts holds the training rows. A file of sparse experts does not; a model loaded
        from it can only use aggregators that need no rows.

        Parameters
        ----------
        path : str or Path
            The file to write.

        Examples
        --------
        >>> import distgp
        >>> X, y = [[0.0], [1.0], [2.0], [3.0], [4.0], [5.0]], [0.0, 0.8, 0.9, 0.1, -0.8, -1.0]
        >>> gp = distgp.DistributedGPRegressor("exact").fit(X, y)
        >>> gp.save("model.safetensors")
        >>> bool((distgp.load("model.safetensors").predict(X) == gp.predict(X)).all())
        True
        """
        check_is_fitted(self)
        parameters: dict[str, Any] = self.get_params(deep=False)
        parameters |= {"engine": "local"}  # a file's experts live in the process that loads it
        if not is_integer(parameters["random_state"]):
            parameters["random_state"] = self.model_.seed
        parameters |= self._plain_parameters()
        state = {
            "estimator": type(self).__name__,
            "parameters": parameters,
            "model": self.model_.gathered(),
            "choice": getattr(self, "choice_", None),
            "settled": getattr(self, "settled_", None),
        }
        names = self.model_.schema.names
        about = {
            "estimator": type(self).__name__,
            "parameters": json.dumps({k: str(v) for k, v in parameters.items()}),
            "feature_names": json.dumps(None if names is None else list(names)),
            "kernel": str(self.kernel_),
        }
        model_file.save(path, state, about)

    def close(self) -> None:
        """Let go of the workers, unless other models use them or they belong to an engine of your own."""
        engine = getattr(self, "engine_", None)
        if engine is None or engine is self.engine:
            return
        engine.users.discard(self)
        if not len(engine.users):
            engine.close()

    @property
    def kernel_(self) -> Any:
        """The kernel found."""
        return self._of_each(lambda target: target.parameters.kernel)

    @property
    def noise_(self) -> Any:
        """The noise variance found, of the standardised target where `normalize`."""
        return self._of_each(lambda target: _number(target.parameters.noise))

    @property
    def training_(self) -> Any:
        """The `TrainingResult`: how training went."""
        return self._of_each(lambda target: target.training)

    @property
    def feature_relevance_(self) -> np.ndarray:
        """The inverse lengthscale of each column, as shares that sum to 1: how fast the function changes.

        The shape is (columns,) or (targets, columns); `diagnostics.summary.feature_relevance` explains the
        numbers. They do not say how much a column matters for predictions: see `importance`.
        """
        places = self.model_.schema.places

        def by_column(one: AnyTarget) -> list[float]:
            shares = relevance_of(one, self.model_.inputs)
            return [float(shares[list(place)].sum()) for place in places]

        return np.asarray(self._of_each(by_column))

    def summary(self) -> Summary:
        """Describe the fitted model in words, its hyperparameters in the units of the data.

        Returns
        -------
        Summary
            To be printed, or shown by a notebook.
        """
        check_is_fitted(self)
        settled = getattr(self, "settled_", None) or {}
        training = settled.get("training", getattr(self, "training", "auto"))
        choice = getattr(self, "choice_", None)
        return Summary.of(type(self).__name__, self.model_, choice, training)

    def _html_repr(self) -> str:
        """Show scikit-learn's diagram in notebooks, and the summary where there is one."""
        diagram = super()._html_repr()
        return diagram + self.summary().html() if hasattr(self, "model_") else diagram

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "model_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def _takes_tables(self) -> bool:
        """Whether tables may hold text, dates and missing values, as parameters say."""
        return hasattr(self, "missing")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Change what is fitted, one thread at a time, with gradients whatever the caller has.

        A change that fails leaves what was fitted before. One that is interrupted leaves what it had
        reached beside it, for a fit with `warm_start`.
        """
        attributes = vars(self)
        with attributes.setdefault("_lock", Lock()).now:
            before = attributes.copy()
            try:
                with gradients():
                    yield
            except BaseException as error:
                new = told_with(error).get("reached", {})
                reached = {**attributes.get("_reached", {}), **new}
                for name in attributes.keys() - before.keys():
                    del attributes[name]
                attributes.update(before)
                if new:
                    self._reached = reached
                raise

    def __getstate__(self) -> dict[str, Any]:
        """All but the lock, which is of this process."""
        state: Any = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_lock"}

    @abstractmethod
    def _plain_parameters(self) -> dict[str, Any]:
        """Those parameters that a file holds in another form: numbers, names and arrays."""

    def _of_each(self, get: Callable[[Any], Any]) -> Any:
        """A value of each target's model: one, or a list where there are several targets."""
        if not hasattr(self, "model_"):
            raise AttributeError("this regressor is not fitted yet: call fit first")
        return self.model_.each(get)

    def _validated(
        self, X: object, y: object, reset: bool = False
    ) -> tuple[np.ndarray, np.ndarray]:
        """Inputs and targets as arrays of floating-point numbers, checked by scikit-learn."""
        refuse_dates(X, y, self._takes_tables)
        options: dict[str, Any] = {"multi_output": True, "y_numeric": True, "dtype": FLOATS}
        with as_numbers("X and y", self._takes_tables):
            if reset:
                checked: Any = validate_data(self, X, y, ensure_min_samples=2, **options)  # pyright: ignore
            else:  # numbers by now, whose columns need no names
                checked = check_X_y(X, y, estimator=self, **options)
                self.model_.schema.check_width(checked[0], type(self).__name__)
            floats = checked[1].dtype in (np.float64, np.float32)
            targets = checked[1] if floats else checked[1].astype(np.float64)
            if np.isnan(targets).any():  # None, which scikit-learn takes for an object
                raise ValueError("Input y contains NaN.")
            return checked[0], targets

    def _new_inputs(self, X: object) -> np.ndarray:
        """Rows to predict, as numbers: arrays, or tables of numbers with the names seen in fitting."""
        check_is_fitted(self)
        names = self.model_.schema.names
        if names is not None and frames.is_table(X) and not frames.is_plain(X, names):
            values, keep = frames.encoded(X, Columns.of_numbers(names), "drop", "refuse")
            if lacking := int((~keep).sum()):
                raise TableError(
                    f"{lacking} of {len(keep)} rows have missing values: fill them in, or leave those "
                    "rows out"
                )
            return values
        refuse_dates(X, tables=self._takes_tables)
        with as_numbers("X", self._takes_tables):
            if self.model_.schema.table is None and not _UNNAMED.get():
                return validate_data(self, X, reset=False, dtype=FLOATS)  # pyright: ignore
            checked = check_array(X, dtype=FLOATS, estimator=self)  # pyright: ignore
        self.model_.schema.check_width(checked, type(self).__name__)
        return checked


_on_named_devices(ModelMixin)


@contextmanager
def unnamed_columns() -> Iterator[None]:
    """Take arrays whose columns are known to be in order, though a model was fitted to named ones."""
    token = _UNNAMED.set(True)
    try:
        yield
    finally:
        _UNNAMED.reset(token)


def names_of(estimator: ModelMixin) -> tuple[str, ...] | None:
    """The names of the input columns that it was fitted to; None for arrays."""
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else tuple(str(name) for name in names)


def set_features(made: Any, schema: Schema) -> None:
    """Set the attributes that scikit-learn gives the columns of the rows, as their user knows them."""
    made.n_features_in_ = len(schema.places)
    vars(made).pop("feature_names_in_", None)
    if schema.given is not None:
        made.feature_names_in_ = np.array(schema.given, dtype=object)


@on_named_devices
def load(path: Path | str, device: str | None = None) -> Any:
    """Read an estimator that `save` wrote, ready to predict.

    Parameters
    ----------
    path : str or Path
        The model file.
    device : str, optional
        Where to put its tensors; by default where they were when it was saved, if that exists here.

    Returns
    -------
    DistributedGPRegressor or SparseGridGP
    """
    if device is not None:
        tensor_like(device, torch.float64)  # refuses one that does not exist here
    state = model_file.load(path, device)
    with model_file.readable(path):
        return _restored(path, state, device)


def _restored(path: Path | str, state: dict[str, Any], device: str | None) -> ModelMixin:
    """The estimator that `save` described."""
    kind = state["estimator"]
    if kind not in ESTIMATORS:
        raise model_file.ModelFileError(f"{path} holds a {kind}, which this distgp does not know")
    parameters = _mapping(state, "parameters")
    parameters["verbose"] = False  # those who fitted it may not be those who load it
    if device is not None:
        parameters["device"] = device
    elif parameters["device"] != "cpu" and not torch.cuda.is_available():
        parameters["device"] = "cpu"
    made: Any = ESTIMATORS[kind](**parameters)
    made.model_ = model = _checked(state["model"])
    set_features(made, model.schema)
    made.choice_, made.settled_ = state.get("choice"), _mapping(state, "settled")
    _try(made)
    return made


def _mapping(state: dict[str, Any], name: str) -> dict[str, Any]:
    """Values by their names; an object of another kind might go on for ever where it is read as one."""
    found = state.get(name) or {}
    if not isinstance(found, dict):
        raise ValueError(f"expected {name} to be values by name, got {type(found).__name__}")
    return dict(found)


def _try(made: Any) -> None:
    """Describe a loaded model and predict a few rows: parts whose sizes do not fit are found here.

    Of many rows the mean alone is asked for: an exact expert may have to compute its factor for more.
    """
    target, found = made.model_.targets[0], np.zeros(1)
    rows = np.repeat(target.scaling.x_mean[None], 5, axis=0)
    with unnamed_columns(), silenced(Warning), np.errstate(invalid="ignore"):
        few = made.summary().targets[0].rows <= FEW_ROWS
        if getattr(target, "transform", None) is None:
            found = made.predict(rows, return_std=few)
        elif few:  # means of a transformed target may be too large to compute, but not its median
            found = made.predict_quantiles(rows, 0.5)
    if np.isnan(found).any():
        raise ValueError("its predictions are no numbers")


def _checked(model: Model[Any]) -> Model[Any]:
    """Return a model whose parts belong together; others were put together by hand."""
    if not isinstance(model, Model) or not model.targets:
        raise ValueError("there is no model in it")
    if model.one_target and len(model.targets) > 1:
        raise ValueError(f"one target was expected, but there are {len(model.targets)}")
    schema = model.schema
    widths = {len(target.scaling.x_mean) for target in model.targets}
    widths |= {len(target.scaling.x_scale) for target in model.targets}
    widths |= set() if schema.names is None else {len(schema.names)}
    widths |= set() if schema.table is None else {len(schema.table.features)}
    if widths != {schema.n_features}:
        raise ValueError(
            f"its {schema.n_features} columns are not those of its parts, {sorted(widths)}"
        )
    return model


def _number(value: torch.Tensor) -> float | np.ndarray:
    return float(value) if value.ndim == 0 else value.cpu().numpy()
