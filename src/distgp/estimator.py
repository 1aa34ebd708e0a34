"""What the estimators have in common: checked parameters and inputs, targets in columns, and files."""

from __future__ import annotations

import json
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import torch
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from distgp import metrics, persistence
from distgp.checks import is_integer, is_number
from distgp.data import frames
from distgp.data.encoding import Columns
from distgp.engines import DevicesEngine, Engine, LocalEngine
from distgp.experts import Parameters
from distgp.kernels import KERNELS, InputLayout, Kernel, Stationary, in_data_units, parse
from distgp.summary import Described, Summary, column_names, relevance_of

DTYPES = {"float64": torch.float64, "float32": torch.float32}
REACH = 1e3
"""How far training may take the parameters of a named kernel from where they start."""
LARGEST_SIGNAL = 1.0
"""The largest signal variance of a named kernel, in units of the target's variance. Beyond it, where
columns nearly repeat each other, the variance runs away with the lengthscales for next to nothing, and
the model extrapolates without limit along directions in which its rows hardly vary."""
ESTIMATORS: dict[str, type[GPEstimator]] = {}
"""Every estimator by the name that files know it by."""
Named = TypeVar("Named")
Check: TypeAlias = Callable[[str, Any], None]
"""Raises a ValueError with what was expected where a parameter of this name has another value."""


class GPEstimator(RegressorMixin, BaseEstimator, ABC):
    """A scikit-learn regressor with one model per target column, in `models_`."""

    checks: ClassVar[Mapping[str, Check]]
    """What each parameter may be. `fit` checks all of them before any work is done."""
    n_features_in_: int
    feature_names_in_: np.ndarray
    models_: list[Any]
    table_: Any
    choice_: Any
    settled_: dict[str, Any]
    engine: Any
    engine_: Engine
    _one_target: bool
    _seed: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        ESTIMATORS[cls.__name__] = cls

    def nlpd(self, X: Any, y: Any, **options: Any) -> float:
        """The mean negative log predictive density of observed targets. Lower is better.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.
        y : array-like of shape (N,) or (N, targets)
            What was observed there.
        **options
            Options of `predict`.

        Returns
        -------
        float
        """
        mean, std = self._gaussian(X, **options)
        y = observed(y, mean.shape)
        fine = ~np.isnan(mean).reshape(len(mean), -1).any(1)  # rows that are not predicted
        y, mean, std = y[fine], mean[fine], std[fine]
        z, log_slope = self._transformed(y)
        return metrics.nlpd(z.ravel(), mean.ravel(), np.square(std).ravel()) - log_slope

    def _gaussian(self, X: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of what is Gaussian: the target, or its transform."""
        return self.predict(X, return_std=True, **options)  # pyright: ignore[reportAttributeAccessIssue]

    def _transformed(self, y: np.ndarray) -> tuple[np.ndarray, float]:
        """Targets as the model sees them, and the mean of the logarithm of the transform's slope."""
        return y, 0.0

    def save(self, path: Path | str) -> None:
        """Write one safetensors file, whole or not at all; `distgp.load` reads it back.

        A file of exact experts holds the training rows. One of sparse experts does not, and after
        loading only aggregators that do without rows can be asked for.

        Parameters
        ----------
        path : path-like
            The file to write.
        """
        check_is_fitted(self)
        parameters: dict[str, Any] = self.get_params(deep=False)
        parameters |= {"engine": "local"}  # a file's experts live in the process that loads it
        if not is_integer(parameters["random_state"]):
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
            "choice": getattr(self, "choice_", None),
            "settled": getattr(self, "settled_", None),
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
        """The `TrainingResult`: how training went."""
        return self._of_each(lambda model: model.training)

    def summary(self) -> Summary:
        """Describe the fitted model in words, its hyperparameters in the units of the data.

        Returns
        -------
        Summary
            To be printed, or shown by a notebook.
        """
        check_is_fitted(self)
        settled = getattr(self, "settled_", None) or {}
        return Summary.of(
            Described(
                type(self).__name__,
                self.models_,
                column_names(self),
                getattr(self, "table_", None),
                getattr(self, "choice_", None),
                settled.get("training", getattr(self, "training", "auto")),
            )
        )

    @property
    def feature_relevance_(self) -> np.ndarray:
        """The relevance of each column, (d,) or (targets, d): `distgp.summary.feature_relevance`."""
        return np.asarray(self._of_each(relevance_of))

    def _html_repr(self) -> str:
        """What notebooks show: scikit-learn's diagram, and the summary where there is one."""
        diagram = super()._html_repr()
        return diagram + self.summary().html() if hasattr(self, "models_") else diagram

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "models_")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @abstractmethod
    def _plain_parameters(self) -> dict[str, Any]:
        """Those parameters that a file holds in another form: numbers, names and arrays."""

    def _check_parameters(self) -> None:
        """Refuse parameters that cannot be meant, before any work is done."""
        for name, check in self.checks.items():
            check(name, getattr(self, name))

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
        _refuse_dates(X)
        with _as_numbers("X and y"):
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
            return X, (y if y.dtype in (np.float64, np.float32) else y.astype(np.float64))

    def _new_inputs(self, X: Any) -> np.ndarray:
        """Rows to predict, as numbers: arrays, or tables of numbers with the names seen in fitting."""
        check_is_fitted(self)
        names = self._names()
        if names is not None and frames.is_table(X) and not frames.is_plain(X):
            return frames.encoded(X, Columns.of_numbers(names), "refuse", "refuse")[0]
        _refuse_dates(X)
        with _as_numbers("X"):
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


def _refuse_dates(X: Any) -> None:
    """Refuse arrays of dates, which NumPy would turn into numbers of nanoseconds."""
    if getattr(getattr(X, "dtype", None), "kind", "") in ("m", "M"):
        raise ValueError(
            'X holds dates or times: give a table with a column of them and dates="expand", such as '
            'pandas.DataFrame({"when": X})'
        )


@contextmanager
def _as_numbers(names: str) -> Iterator[None]:
    """Tell what was expected where values that are no numbers fail deep below."""
    try:
        yield
    except (TypeError, OverflowError) as error:
        raise type(error)(f"{names} must be arrays or tables of numbers: {error}") from error
    except ValueError as error:
        if "could not convert" in str(error):
            raise ValueError(
                f"{names} must be numbers, {error}: convert them, by pandas.to_numeric for one; columns of "
                "X may hold text where X is a table"
            ) from error
        what, found, _ = str(error).partition("contains NaN.")
        if not found:
            raise
        raise ValueError(
            f"{what}contains NaN: leave those rows out or fill them in; given a table (pandas, polars, "
            'pyarrow), missing="drop" or missing="impute" does it'
        ) from error


def load(path: Path | str, device: str | None = None) -> Any:
    """Read an estimator that `save` wrote, ready to predict.

    Parameters
    ----------
    path : path-like
        The model file.
    device : str, optional
        Where to put its tensors; by default where they were when it was saved, if that exists here.

    Returns
    -------
    DistributedGPRegressor or SparseGridGP
    """
    if device is not None and str(device).startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"device {device!r} is not to be had here: give device='cpu'")
    state = persistence.load(path, device)
    with persistence.readable(path):
        return _restored(path, state, device)


def _restored(path: Path | str, state: dict[str, Any], device: str | None) -> GPEstimator:
    """The estimator that `save` described."""
    kind = state["estimator"]
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
    if "validation" in made.get_params(deep=False):
        made.choice_, made.settled_ = state.get("choice"), state.get("settled") or {}
    return made


# What parameters may be. Each function returns a check for a declaration such as
# `checks = {"n_iter": a_count(None), "noise": a_positive_number()}`.


def a_count(*others: str | None) -> Check:
    """A positive integer, or one of the other values."""

    def check(name: str, value: Any) -> None:
        if value is None or isinstance(value, str):
            fine = value in others
        else:
            fine = is_integer(value) and value >= 1
        if not fine:
            expected = " or ".join(["a positive integer", *(repr(other) for other in others)])
            raise ValueError(f"{name} must be {expected}, got {value!r}")

    return check


def a_positive_number(
    what: str = "a positive, finite number", *others: None, most: float = sys.float_info.max
) -> Check:
    """A positive number up to a largest one, or None where that is allowed."""

    def check(name: str, value: Any) -> None:
        if value is None and None in others:
            return
        if not is_number(value) or not 0 < value <= most:
            either = ", or None" if others else ""
            raise ValueError(f"{name} must be {what}{either}, got {value!r}")

    return check


def a_name(registry: Mapping[str, Any], base: type, *others: str | None) -> Check:
    """A name in a registry, an object of its kind, or one of the other values."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, base) or (value is None and None in others):
            return
        if not (isinstance(value, str) and (value in registry or value in others)):
            named = ", ".join(repr(choice) for choice in (*registry, *others))
            article = "an" if base.__name__[0] in "AEIOU" else "a"
            raise ValueError(
                f"{name} must be one of {named} or {article} {base.__name__} object, got {value!r}"
            )

    return check


def a_kernel(*others: str) -> Check:
    """A kernel object, a text such as "matern52 + linear", or one of the other values."""

    def check(name: str, value: Any) -> None:
        if isinstance(value, Kernel) or (isinstance(value, str) and value in others):
            return
        if isinstance(value, str):
            parse(value)
            return
        known = ", ".join(repr(choice) for choice in (*KERNELS, "linear", *others))
        raise ValueError(
            f"{name} must be one of {known}, a text such as 'matern52 + periodic(24)', or a Kernel object, "
            f"got {value!r}"
        )

    return check


def one_of(*choices: Any) -> Check:
    """One of a few values."""

    def check(name: str, value: Any) -> None:
        none = value is None and None in choices
        if not none and (not isinstance(value, str | bool | np.bool_) or value not in choices):
            named = ", ".join(repr(choice) for choice in choices)
            raise ValueError(f"{name} must be one of {named}, got {value!r}")

    return check


def an_engine(name: str, value: Any) -> None:
    """Refuse what is no engine."""
    named = isinstance(value, str) and value in ("local", "ray")
    if not named and not isinstance(value, Engine):
        raise ValueError(f"{name} must be 'local', 'ray' or an Engine object, got {value!r}")


def opened(engine: str | Engine, device: Any = "cpu") -> Engine:
    """The engine, started if it was given by name; "local" with several GPUs has one worker on each."""
    if isinstance(engine, Engine):
        return engine
    if engine == "ray":
        from distgp.engines.ray import shared_engine

        return shared_engine()
    if str(device) == "cuda" and torch.cuda.device_count() > 1:
        return DevicesEngine()
    return LocalEngine()


def by_name(kind: str, value: Any, registry: Mapping[str, type[Named]], base: type[Named]) -> Named:
    """An object as it is, or the one that a name in a registry stands for, with its defaults."""
    if isinstance(value, base):
        return value
    a_name(registry, base)(kind, value)
    return registry[value]()


def seed_of(random_state: Any) -> int:
    """One seed from what scikit-learn accepts as a random state."""
    if isinstance(random_state, int | np.integer) and random_state >= 0:
        return int(random_state)
    try:
        return int(check_random_state(random_state).randint(2**31 - 1))
    except ValueError as error:
        raise ValueError(
            f"random_state must be an integer from 0, None or a RandomState, got {random_state!r}"
        ) from error


def tensor_like(device: Any, dtype: torch.dtype) -> Tensor:
    """A tensor of this dtype on this device, if the device exists."""
    if not isinstance(device, str | torch.device):
        raise ValueError(f"device must be a name such as 'cpu' or 'cuda', got {device!r}")
    try:
        return torch.zeros((), dtype=dtype, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise ValueError(f"device {device!r} is not to be had here: {error}") from error


@dataclass(frozen=True, eq=False)
class Start:
    """Where training starts.

    Parameters
    ----------
    parameters : Parameters
        Kernel and noise variance.
    named : bool
        Whether the kernel was given as a text, so that bounds and the search for lengthscales are ours.
    fixed, signals : tuple of str
        Full paths of parameters that training leaves as they are, and of signal variances.
    """

    parameters: Parameters
    named: bool
    fixed: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()

    def bounds(self, capped: bool = False) -> dict[str, tuple[float, float]]:
        """A named kernel's parameters stay within a factor of 1,000 of where they start.

        Parameters
        ----------
        capped : bool, default=False
            Whether signal variances stay at or below the target's variance, which is 1 where the target
            is standardised.

        Returns
        -------
        dict of str to (float, float)
            Bounds by the full path of a parameter; none for a kernel object.
        """
        if not self.named:
            return {}
        bounds = {
            f"kernel.{name}": (float(value.min()) / REACH, float(value.max()) * REACH)
            for name, value in self.parameters.kernel.parameters().items()
        }
        for path in self.signals if capped else ():
            bounds[path] = (bounds[path][0], max(LARGEST_SIGNAL, bounds[path][1] / REACH))
        return bounds


def start_of(
    kernel: Any,
    noise: float,
    layout: InputLayout,
    like: Tensor,
    units: str = "auto",
    build: Callable[[type[Stationary], list[float]], Kernel] | None = None,
) -> Start:
    """Where training starts.

    Parameters
    ----------
    kernel : str or Kernel
        A kernel, or a text of `distgp.kernels.parse`. A name gets a signal variance and one lengthscale
        per column.
    noise : float
        The noise variance.
    layout : InputLayout
        What the columns are.
    like : Tensor
        A tensor of the dtype and on the device of the data.
    units : {"auto", "data", "standardised"}, default="auto"
        The units of lengthscales and periods: by default those of the data in texts, and standardised
        ones in objects.
    build : callable, optional
        Makes a named kernel from its class and its lengthscales.

    Returns
    -------
    Start
    """
    if units == "standardised" or (units == "auto" and isinstance(kernel, Kernel)):
        layout = replace(layout, scale=())
    fixed, signals, named = (), (), isinstance(kernel, str)
    if isinstance(kernel, str) and build is not None and kernel in KERNELS:
        # Points of standardised data are √d apart, so that is a lengthscale to start from.
        kernel = 1.0 * build(KERNELS[kernel], [math.sqrt(layout.d)] * layout.d)
        signals = ("kernel.variance",)
    elif isinstance(kernel, str):
        built = parse(kernel).build(layout)
        kernel, fixed, signals = built.kernel, built.fixed, built.signals
    else:
        kernel = in_data_units(kernel, layout)
    start = Parameters.of(kernel, float(noise)).to(like.device, like.dtype)
    start.kernel(like.new_zeros(1, layout.d))  # refuses a kernel of another width
    return Start(start, named, fixed, signals)


def check_varies(targets: np.ndarray) -> None:
    """Refuse a target (a column of targets) that does not vary."""
    constant = np.flatnonzero(np.ptp(targets, axis=0) == 0)
    if len(constant):
        which = "y" if targets.shape[1] == 1 else f"target column {constant[0]}"
        raise ValueError(
            f"{which} is constant ({targets[0, constant[0]]:g} in all {len(targets)} rows), so there is "
            "nothing to learn: check the target, or give normalize=False and training=None"
        )


def observed(y: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Targets that were observed, as numbers of this shape."""
    try:
        found = np.asarray(y, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"y must be numbers of shape {shape}, got {y!r:.60}") from error
    if found.shape != shape:
        raise ValueError(f"y must have the shape of the predictions, {shape}, got {found.shape}")
    return found


def row_numbers(name: str, values: Any, n: int, least: float | None = None) -> np.ndarray | None:
    """One finite number per row, in float64; None where nothing is given.

    Parameters
    ----------
    name : str
        What the user calls them.
    values : array-like of shape (n,) or None
        The numbers.
    n : int
        The number of rows.
    least : float, optional
        The least that they may be; by default they must be positive.

    Returns
    -------
    ndarray of shape (n,) or None
    """
    if values is None:
        return None
    try:
        found = np.array(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} must be one number for each row, got {values!r:.60}") from error
    if found.ndim == 0:
        found = np.full(n, float(found))
    if found.shape != (n,):
        raise ValueError(f"{name} must have one number for each of the {n} rows, got {found.shape}")
    bad = ~np.isfinite(found) | (found <= 0.0 if least is None else found < least)
    if bad.any():
        expected = "positive" if least is None else f"at least {least:g}"
        place = int(np.argmax(bad))
        raise ValueError(
            f"{name} must be {expected} and finite, got {found[place]:g} in row {place}"
        )
    if not found.any():
        raise ValueError(f"{name} is zero in all rows: give some rows a positive weight")
    return found


def column_of(X: Any, value: Any, name: str) -> Any:
    """Values as given, or those of a named column of a table."""
    if not isinstance(value, str):
        return value
    if not frames.is_table(X) or value not in frames.names_of(X):
        raise ValueError(
            f"{name}={value!r} names a column, but X has no column of that name: give one value per row"
        )
    return X[value] if hasattr(X[value], "iloc") else np.asarray(X[value])


def labels_of(values: Any) -> np.ndarray:
    """Any labels as numbers 0 … M − 1."""
    labels = np.asarray(values)
    try:
        return np.unique(labels, return_inverse=True)[1]
    except TypeError as error:
        raise ValueError(
            f"the labels in partition cannot be told apart, some may be missing: {error}"
        ) from error


def names_given(name: str, value: Any) -> None:
    """Refuse what is not a sequence of parameter names."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ValueError(
            f"{name} must be a sequence of parameter names such as ['noise'], got {value!r}"
        )


def _number(value: Any) -> float | np.ndarray:
    return float(value) if value.ndim == 0 else value.cpu().numpy()
