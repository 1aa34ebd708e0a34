"""The scikit-learn estimator. A user's parameters and input are checked here, once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import KFold
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from distgp import auto, calibration, choice, findings, torch_module
from distgp import novelty as new
from distgp.aggregation import (
    AGGREGATORS,
    GRBCM,
    AggregationError,
    Aggregator,
    Combined,
    Ensemble,
)
from distgp.auto import Rows, is_auto
from distgp.calibration import Calibration
from distgp.data import frames, parquet, sample
from distgp.data.column import CHOICES, Column
from distgp.data.encoding import Columns
from distgp.data.partition import PARTITIONS, Partition, split, with_communication
from distgp.data.scaling import Scaling
from distgp.data.shard import Shard
from distgp.data.source import place
from distgp.data.transforms import TRANSFORMS, Transform, transform_of
from distgp.engines import Engine, Placement
from distgp.estimator import (
    DTYPES,
    Check,
    GPEstimator,
    Start,
    a_count,
    a_kernel,
    a_name,
    a_positive_number,
    an_engine,
    by_name,
    check_varies,
    labels_of,
    names_given,
    one_of,
    opened,
    row_numbers,
    seed_of,
    start_of,
    tensor_like,
)
from distgp.experts import EXPERTS, Expert, NearestExpert, Parameters, SparseExpert
from distgp.fit import Inducing, fit_model, new_expert
from distgp.kernels import InputLayout, Kernel
from distgp.model import Model
from distgp.training import ALGORITHMS, Algorithm, Independent, Prior

LEAST_CALIBRATED = 50
"""Rows that calibration needs at least."""


def _inducing_inputs(name: str, value: Any) -> None:
    """A number of inducing inputs, or the inputs themselves, whose width `fit` checks."""
    if np.ndim(value) == 0:
        fine = isinstance(value, Integral) and not isinstance(value, bool) and int(value) == 0
        if not fine:  # 0: nearest experts without a global part
            a_count("auto")(name, value)


def _partition(name: str, value: Any) -> None:
    """A partition by name or as an object, or labels, whose number `fit` checks."""
    if isinstance(value, str):
        a_name(PARTITIONS, Partition)(name, value)


def _bounds(name: str, value: Any) -> None:
    """Pairs (low, high) by parameter name, which training checks further."""
    fine = value is None or isinstance(value, Mapping)
    if not fine or not all(np.shape(pair) == (2,) for pair in (value or {}).values()):
        raise ValueError(
            f"{name} must map parameter names to (low, high), such as {{'lengthscale': (0.1, 10)}}, "
            f"got {value!r}"
        )


def _priors(name: str, value: Any) -> None:
    """Priors by parameter name."""
    fine = value is None or isinstance(value, Mapping)
    if not fine or not all(isinstance(prior, Prior) for prior in (value or {}).values()):
        raise ValueError(
            f"{name} must map parameter names to priors, such as "
            f"{{'noise': distgp.training.LogNormal(0.1)}}, got {value!r}"
        )


class DistributedGPRegressor(GPEstimator):
    """Gaussian process regression on any number of rows: experts on shards, combined into one.

    Parameters
    ----------
    expert : {"auto", "exact", "sparse", "nearest"} or Expert, default="auto"
        The kind of expert. "nearest" conditions every point on the rows that are nearest to it, with a
        global sparse part. "auto" measures: where aggregation, training, partition and the numbers of
        experts and inducing inputs are left to us too, rows are held out as `validation` says, and the
        best of a few candidates on them is fitted to all rows; `choice_` is the table. Below 200 rows,
        or where one of those is given, a rule decides: exact experts up to 20,000 rows, sparse ones
        beyond.
    n_experts : int, "auto" or "cv", default="auto"
        The number of experts. "auto": exact experts have at most 1,000 rows, as have experts with
        hyperparameters of their own; other sparse ones have 32 rows per inducing input. "cv": the best
        of the paper's ⌊√n/4⌋, ⌊√n/5⌋, ⌊√n/6⌋ in 3-fold cross-validation.
    n_inducing : int, "auto" or array-like of shape (m, d), default="auto"
        For sparse experts: the number of inducing inputs, or the inputs themselves. "auto" chooses by
        the greedy rule, at most 1,024. For nearest experts: of the global part, 256 by default, 0 for
        none.
    n_neighbors : int, default=128
        For nearest experts: the number of rows that each predicted point is conditioned on.
    aggregation : str or Aggregator, default="auto"
        A name in `distgp.AGGREGATORS` or an object. "auto": pooled where sparse experts share all
        parameters, nearest for nearest experts, opt-local where hyperparameters differ, two-level
        otherwise.
    kernel : str or Kernel, default="matern52"
        A kernel object, or a text: a name in `distgp.KERNELS`, which gets one lengthscale per column and a
        signal variance, "linear", "periodic(24)", and sums and products of such, with columns by name:
        "matern52(columns=temp) + periodic(24 h, columns=when)" (see `distgp.kernels.parse`). A text column
        has one lengthscale. Values are where training starts; a period given in a text stays. "auto"
        measures Matérn-5/2 and RBF, each with and without a linear part, and linear alone.
    kernel_units : {"auto", "data", "standardised"}, default="auto"
        The units of the kernel's lengthscales and periods. "auto": those of the data in a text, and
        standard deviations of the columns in an object.
    noise : float, default=0.1
        The noise variance that training starts from.
    mean : {"constant", "linear"}, default="constant"
        What the GP's deviations are counted from: the target's mean, or a linear trend, fitted by least
        squares before anything else. It needs `normalize`.
    partition : str, Partition or array-like of shape (n,), default="random"
        How rows are divided: a name in `distgp.PARTITIONS`, an object, or one label per row.
    training : str, Algorithm or None, default="auto"
        A name in `distgp.ALGORITHMS` or an object; None keeps the hyperparameters as given. "auto":
        pooled for sparse experts, nearest for nearest ones, fact for exact ones.
    n_iter : int, optional
        The number of rounds of training, at most; by default the method's own.
    learning_rate : float, optional
        The learning rate of methods that have one; by default the method's own. With it, fact takes
        Adam's steps instead of L-BFGS's.
    training_rows : int, "auto" or None, default="auto"
        The number of rows that training looks at, None for all. "auto": 10,000 for sparse experts,
        all for exact ones. Experts are always conditioned on every row.
    priors : mapping of str to Prior, optional
        Priors on hyperparameters, by name: "lengthscale", "variance", "noise", or a full path such as
        "kernel.kernel.lengthscale". They are densities of the standardised data's parameters where
        `normalize`.
    bounds : mapping of str to (float, float), optional
        Bounds of hyperparameters in training, by name. By default those of a named kernel stay within
        a factor of 1,000 of where they start, and its signal variance is at most the target's.
    fixed : sequence of str, default=()
        Names of hyperparameters that training leaves as given.
    warm_start : bool, default=False
        Whether another call of `fit` starts training from the hyperparameters found by the last.
    validation : {"random", "last", "groups"}, default="random"
        How "auto" holds out rows: at random, for predictions between the rows; the last third, in the
        order of the rows or of `time` in `fit`, for predictions beyond them; or whole groups.
    target_transform : {"log", "yeo-johnson"} or None, default=None
        What is modelled instead of the target: its logarithm, or Yeo and Johnson's power transform with
        the power found by maximum likelihood. Predictions are of the target itself: quantiles are mapped
        back exactly, and means are means of the target.
    calibrate : {"conformal", "mondrian"} or None, default=None
        Whether a fifth of the rows, at most 10,000, is held out of the fit as `validation` says, to learn
        how far intervals must reach: split-conformal prediction, for all rows together, or ("mondrian")
        for each of the `groups` given in `fit`. It changes intervals and quantiles of observations, not
        means and standard deviations.
    missing : {"refuse", "drop", "impute"}, default="refuse"
        Missing values of tables: an error, rows left out (and predicted as NaN), or the mean of the
        training rows in their place; for text, the share of each text.
    unknown : {"refuse", "new"}, default="refuse"
        Texts that were not there in fitting: an error, or a new text, as unlike each of the known as they
        are unlike each other.
    dates : {"refuse", "expand"}, default="refuse"
        Columns of dates in tables: an error, or days since 1970 and phases of year, week and day.
    categorical : sequence of str, default=()
        Columns of tables whose numbers are labels.
    engine : {"local", "ray"} or Engine, default="local"
        Where the experts live: in this process, on a Ray cluster (that of RAY_ADDRESS, or one started
        on this machine), or on an engine of your own, which stays yours to close.
    device : str, default="cpu"
        Where tensors live: "cpu", "cuda", …
    dtype : {"float64", "float32"}, default="float64"
        The precision of the data.
    normalize : bool, default=True
        Whether inputs and target are standardised first. Kernel and noise are then those of the
        standardised data; predictions are always in the target's units.
    random_state : int, RandomState or None, default=0
        The seed of everything random.
    verbose : bool, default=False
        Whether to show progress.

    Attributes
    ----------
    kernel_, noise_ : Kernel, float
        The hyperparameters found; with batch dimensions where experts differ.
    experts_ : Ensemble
        The conditioned experts.
    n_experts_ : int
        The number of experts.
    aggregation_ : Aggregator
        The aggregator in use.
    weights_ : ndarray of shape (n_experts,) or None
        Its weights, one per expert; None where they change from point to point.
    training_ : TrainingResult or None
        How training went.
    inducing_, n_inducing_ : ndarray of shape (m, d), int
        The inducing inputs in the units of the data, and their number; None for exact experts.
    cv_results_ : dict
        With n_experts="cv", the NLPD of each candidate.
    choice_ : Choice or None
        The candidates that "auto" measured and two baselines, with RMSE, NLPD, cover and seconds; print
        it as a table. None where nothing was measured.
    settled_ : dict of str to object
        The parameters that the choice set, by name.

    With several targets each column has a model of its own, and these attributes are lists.

    Examples
    --------
    >>> import numpy as np
    >>> import distgp
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> gp = distgp.DistributedGPRegressor(n_experts=4).fit(X, np.sin(6 * X[:, 0]))
    >>> mean, std = gp.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(3)) < 0.01)
    True
    """

    checks: ClassVar[Mapping[str, Check]] = {
        "expert": a_name(EXPERTS, Expert, "auto"),
        "n_experts": a_count("auto", "cv"),
        "n_inducing": _inducing_inputs,
        "n_neighbors": a_count(),
        "aggregation": a_name(AGGREGATORS, Aggregator, "auto"),
        "kernel": a_kernel("auto"),
        "kernel_units": one_of("auto", "data", "standardised"),
        "noise": a_positive_number("a positive, finite variance"),
        "mean": one_of("constant", "linear"),
        "partition": _partition,
        "training": a_name(ALGORITHMS, Algorithm, "auto", None),
        "n_iter": a_count(None),
        "learning_rate": a_positive_number("positive and finite", None),
        "training_rows": a_count(None, "auto"),
        "priors": _priors,
        "bounds": _bounds,
        "fixed": names_given,
        "warm_start": one_of(True, False),
        "validation": one_of(*choice.VALIDATIONS),
        "target_transform": one_of(None, *TRANSFORMS),
        "calibrate": one_of(None, *calibration.KINDS),
        "missing": one_of(*CHOICES["missing"]),
        "unknown": one_of(*CHOICES["unknown"]),
        "dates": one_of(*CHOICES["dates"]),
        "categorical": names_given,
        "engine": an_engine,
        "dtype": one_of(*DTYPES),
        "normalize": one_of(True, False),
        "verbose": one_of(True, False),
    }
    models_: list[Model]
    _transforms: Sequence[Transform | None]
    _row_noise: float | None

    def __init__(
        self,
        expert: str | Expert = "auto",
        n_experts: int | str = "auto",
        n_inducing: Any = "auto",
        n_neighbors: int = 128,
        aggregation: str | Aggregator = "auto",
        kernel: str | Kernel = "matern52",
        kernel_units: str = "auto",
        noise: float = 0.1,
        mean: str = "constant",
        partition: Any = "random",
        training: str | Algorithm | None = "auto",
        n_iter: int | None = None,
        learning_rate: float | None = None,
        training_rows: int | str | None = "auto",
        priors: Mapping[str, Prior] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        fixed: Sequence[str] = (),
        warm_start: bool = False,
        validation: str = "random",
        target_transform: str | None = None,
        calibrate: str | None = None,
        missing: str = "refuse",
        unknown: str = "refuse",
        dates: str = "refuse",
        categorical: Sequence[str] = (),
        engine: str | Engine = "local",
        device: str = "cpu",
        dtype: str = "float64",
        normalize: bool = True,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.expert = expert
        self.n_experts = n_experts
        self.n_inducing = n_inducing
        self.n_neighbors = n_neighbors
        self.aggregation = aggregation
        self.kernel = kernel
        self.kernel_units = kernel_units
        self.noise = noise
        self.mean = mean
        self.partition = partition
        self.training = training
        self.n_iter = n_iter
        self.learning_rate = learning_rate
        self.training_rows = training_rows
        self.priors = priors
        self.bounds = bounds
        self.fixed = fixed
        self.warm_start = warm_start
        self.validation = validation
        self.target_transform = target_transform
        self.calibrate = calibrate
        self.missing = missing
        self.unknown = unknown
        self.dates = dates
        self.categorical = categorical
        self.engine = engine
        self.device = device
        self.dtype = dtype
        self.normalize = normalize
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        *,
        noise_variance: Any = None,
        time: Any = None,
        groups: Any = None,
    ) -> DistributedGPRegressor:
        """Choose where the choice is left to us; divide the rows over experts, train, combine.

        Parameters
        ----------
        X : array-like or table of shape (n, d)
            Inputs. A table of pandas, polars or pyarrow may hold text, categories, dates, booleans and
            missing values: see `missing`, `dates` and `categorical`.
        y : array-like of shape (n,) or (n, targets)
            Targets.
        sample_weight : array-like of shape (n,), optional
            How many copies each row counts as; rows with weight 0 are left out. Weights are not
            normalised: twice the weights are twice the data.
        noise_variance : array-like of shape (n,), optional
            The noise variance of each target, in its units, squared. The noise of the model is then a
            factor of these, which starts at 1 and is trained; `fixed=["noise"]` holds it there.
        time : array-like of shape (n,) or str, optional
            For validation="last": when each row was observed, as numbers or dates, or the name of a
            column of X, which stays an input. By default rows are in the order of time.
        groups : array-like of shape (n,) or str, optional
            For validation="groups" and calibrate="mondrian": the group of each row, or the name of a
            column of X.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.
        """
        values = {
            "sample_weight": sample_weight,
            "noise_variance": noise_variance,
            "time": _column(X, time, "time"),
            "groups": _column(X, groups, "groups"),
        }
        with self._unchanged_on_failure():
            self._check_parameters()
            columns = None
            if frames.is_table(X) and not (frames.is_plain(X) and not len(self.categorical)):
                names = tuple(self.categorical)
                X, y, columns, keep = frames.learnt(
                    X, y, missing=self.missing, dates=self.dates, categorical=names
                )
                values = {name: _kept(value, keep, name) for name, value in values.items()}
            return self.fit_columns(X, y, columns, **values)

    def fit_columns(
        self, X: Any, y: Any, columns: Columns | None = None, **values: Any
    ) -> DistributedGPRegressor:
        """Fit numbers that were made of the columns of a table.

        Parameters
        ----------
        X, y : array-like
            Inputs and targets, as for `fit`.
        columns : Columns, optional
            What the inputs were made of; the model's file holds it.
        **values
            What `fit` takes for each row.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.
        """
        with self._unchanged_on_failure():
            vars(self).pop("table_", None)
            vars(self).pop("cv_results_", None)
            X, y = self._checked(X, y)
            self._check_parameters()
            if columns is not None:
                self.table_ = columns
                self.feature_names_in_ = np.array(columns.features, dtype=object)
            rows = self._training_rows(X, y, **values)
            seed = seed_of(self.random_state)
            if self.calibrate is None:
                self._fit(rows, seed)
                return self
            train, held = self._calibration_rows(rows, seed)
            self._fit(rows.take(train), seed)
            self._calibrate(rows.take(held))
            return self

    def _training_rows(
        self,
        X: np.ndarray,
        y: np.ndarray,
        sample_weight: Any = None,
        noise_variance: Any = None,
        time: Any = None,
        groups: Any = None,
    ) -> Rows:
        """Check what there is for each row, and transform the targets."""
        if self.mean == "linear" and not self.normalize:
            raise ValueError("mean='linear' needs normalize=True, got normalize=False")
        if time is not None and self.validation != "last":
            raise ValueError(
                "time= says which rows are held out where validation='last', but validation is "
                f"{self.validation!r}"
            )
        if groups is not None and self.validation != "groups" and self.calibrate != "mondrian":
            raise ValueError(
                "groups= says which rows are held out where validation='groups', or calibrated together "
                f"where calibrate='mondrian', but validation is {self.validation!r} and calibrate is "
                f"{self.calibrate!r}"
            )
        if noise_variance is not None and self.target_transform is not None:
            raise ValueError(
                "noise_variance is in the target's units, and target_transform leaves them: give one of "
                "the two"
            )
        weight = row_numbers("sample_weight", sample_weight, len(X), least=0.0)
        noise = row_numbers("noise_variance", noise_variance, len(X))
        targets = y[:, None] if y.ndim == 1 else y
        if self.normalize or self.training is not None:
            check_varies(targets)
        self._transforms = [transform_of(self.target_transform, column) for column in targets.T]
        parts = zip(self._transforms, targets.T, strict=True)
        z = np.stack([column if t is None else t.forward(column) for t, column in parts], -1)
        rows = Rows(X, z[:, 0] if y.ndim == 1 else z, weight, noise, time, groups)
        if weight is None or (weight > 0).all():
            return rows
        if self._labels(len(X)) is not None:
            raise ValueError(
                "sample_weight has zeros and partition one label per row: leave those rows out of X, y "
                "and partition"
            )
        return rows.take(np.flatnonzero(weight))

    def _fit(self, rows: Rows, seed: int) -> None:
        """Fit rows whose targets are transformed."""
        X, y, n = rows.X, rows.y, len(rows.X)
        targets = y[:, None] if y.ndim == 1 else y
        self._choose(rows, seed)
        expert, like = self._expert(n), self._like()
        n_experts = self._cross_validated(rows, seed) if self.n_experts == "cv" else self.n_experts
        linear, blocks = self.mean == "linear", self._blocks()
        scalings = [
            Scaling.of(X, column, self.normalize, linear, rows.weight, blocks)
            for column in targets.T
        ]
        engine = opened(self.engine)
        n_experts = self._value("n_experts") if is_auto(n_experts) else n_experts
        M = self._number_of_experts(n_experts, n, expert, engine.workers)
        columns = zip(scalings, targets.T, strict=True)
        scaled = torch.stack([s.targets(column, X, like) for s, column in columns], -1)
        inputs = scalings[0].inputs(X, like)
        weight, noise = (None if v is None else torch.as_tensor(v).to(like) for v in rows.own_noise)
        numbers = torch.arange(n, device=inputs.device)
        data = Shard(inputs, scaled, numbers, None, weight, noise)
        shards = place(engine, self._divided(data, M, seed))
        del data, scaled, inputs
        self._row_noise = None if rows.noise is None else float(np.mean(rows.noise))
        self._fit_placed(engine, shards, scalings, expert, seed, y.ndim == 1)

    def _calibration_rows(self, rows: Rows, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Which rows to fit, and which to hold out for calibration, as `validation` says."""
        n = len(rows.X)
        if self._labels(n) is not None:
            raise ValueError(
                "calibrate holds out rows, and partition has one label per row: name a partition"
            )
        if self.calibrate == "mondrian" and rows.groups is None:
            raise ValueError(
                "calibrate='mondrian' needs the group of each row: fit(X, y, groups=…)"
            )
        if n < LEAST_CALIBRATED:
            raise ValueError(
                f"calibrate needs {LEAST_CALIBRATED} rows at least to hold some out, got {n}: leave it "
                "at None"
            )
        kind = "random" if self.calibrate == "mondrian" else self.validation
        given = {"time": rows.time} if kind == "last" else {}
        given |= {"groups": rows.groups} if kind == "groups" else {}
        share = calibration.held_out(n) / n
        return choice.hold_out(n, kind, share=share, seed=seed + 1, **given)

    def _calibrate(self, rows: Rows) -> None:
        """Score the model's predictions of rows that it never saw."""
        targets = rows.y[:, None] if rows.y.ndim == 1 else rows.y
        groups = rows.groups if self.calibrate == "mondrian" else None
        models = []
        for model, column in zip(self.models_, targets.T, strict=True):
            mean, variance = model.gaussian(rows.X, latent=False, noise=rows.noise)
            scores = Calibration.of(column, mean, np.sqrt(variance), groups)
            models.append(replace(model, calibration=scores))
        self.models_ = models

    def fit_parquet(
        self,
        path: str,
        target: str,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        categorical: Sequence[str] = (),
        dates: str = "refuse",
        missing: str = "refuse",
    ) -> DistributedGPRegressor:
        """Fit rows that the engine's workers read by themselves; this process never holds them.

        Each worker has consecutive rows, dealt out to its experts at random. Text becomes one column
        of 0 and 1 per value. Where the choice is left to us, it is made on a sample of 20,000 rows, in
        this process; the files are then read twice.

        Parameters
        ----------
        path : str
            A Parquet file, a folder, a glob, or a URI such as ``s3://…``.
        target : str
            The column to predict.
        features : sequence of str, optional
            The input columns; by default all others.
        drop : sequence of str, default=()
            Columns to leave out.
        categorical : sequence of str, default=()
            Columns of numbers that are labels.
        dates : {"refuse", "expand"}, default="refuse"
            Whether to make days and phases of year, week and day of dates.
        missing : {"refuse", "drop"}, default="refuse"
            What to do with rows that have missing values.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.
        """
        columns = {"features": features, "drop": drop, "categorical": categorical, "dates": dates}
        with self._unchanged_on_failure():
            return self._fit_parquet(str(path), target, columns, missing)

    def _fit_parquet(
        self, path: str, target: str, options: dict[str, Any], missing: str
    ) -> DistributedGPRegressor:
        self._check_parameters()
        if not isinstance(self.partition, str) or self.partition != "random":
            raise ValueError(
                "workers divide the rows that they read at random: leave partition at 'random'"
            )
        if self.n_experts == "cv":
            raise ValueError(
                "n_experts='cv' needs the rows in this process: give a number, or 'auto'"
            )
        if self.mean == "linear":
            raise ValueError("mean='linear' needs the rows in this process: call fit instead")
        if self.validation == "groups" and self._left_to_us():
            raise ValueError(
                "validation='groups' needs the groups of the rows in this process: call fit instead"
            )
        for name in ("target_transform", "calibrate"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} needs the rows in this process: call fit instead")
        self._transforms, self._row_noise = [None], None
        data = parquet.ParquetRows.open(path)
        seed, engine = seed_of(self.random_state), opened(self.engine)
        again = self._chosen_before()
        if not again:
            self.settled_, self.choice_ = {}, None
        if self._left_to_us() and not again:
            few = min(engine.workers, data.n)
            stretches, columns = parquet.place(engine, data, few, target, **options)
            self.table_ = columns
            raw = parquet.read(stretches, columns, missing, seed)
            some = sample.drawn(raw, auto.TRIAL_SAMPLE, seed)
            del stretches, raw
            X, y = (value.cpu().numpy() for value in (some.X, some.y))
            self._choose(Rows(X, y, time=some.rows.cpu().numpy()), seed)
        expert = self._expert(data.n)
        n_experts = self._value("n_experts")
        M = self._number_of_experts(n_experts, data.n, expert, engine.workers)
        stretches, columns = parquet.place(engine, data, M, target, **options)
        raw = parquet.read(stretches, columns, missing, seed)
        d = len(columns.features)
        self.n_features_in_, self.table_ = d, columns
        scaling = parquet.scaling_of(raw, self.normalize, d, self._blocks())
        shards = parquet.standardise(raw, scaling, self._like())
        del raw
        self.feature_names_in_ = np.array(columns.features, dtype=object)
        vars(self).pop("cv_results_", None)
        self._fit_placed(engine, shards, [scaling], expert, seed, one_target=True)
        return self

    def _fit_placed(
        self,
        engine: Engine,
        shards: Placement[Shard],
        scalings: list[Scaling],
        expert: Expert,
        seed: int,
        one_target: bool,
    ) -> None:
        """Train, condition and combine where the rows are; only then is anything replaced."""
        algorithm = self._algorithm(expert, seed)
        models = []
        for column, scaling in enumerate(scalings):
            one = shards.derive(Shard.target, column)
            if self._row_noise is not None:
                one = one.derive(_noise_in_units, scaling.y_scale**2)
            start, search = self._start(column, scaling.x_scale)
            options = self._training_options(expert, scaling, seed) | {"search": search}
            models.append(
                fit_model(one, scaling, expert, start, algorithm, self._aggregator, **options)
            )
        inputs = new.Inputs.of(shards, seed, nearest=not isinstance(expert, SparseExpert))
        level = self._row_noise
        models = [
            replace(
                model,
                inputs=inputs,
                transform=transform,
                row_noise=None if level is None else level / model.scaling.y_scale**2,
            )
            for model, transform in zip(models, self._transforms, strict=True)
        ]
        self.models_, self._one_target, self._seed = models, one_target, seed
        self._combinations: dict[str, Sequence[Combined]] = {}
        self.engine_ = engine
        engine.users.add(self)
        findings.tell(models, self.bounds, models[0].ensemble.row_count(), targets=None)

    def partial_fit(
        self, X: Any, y: Any, sample_weight: Any = None, *, noise_variance: Any = None
    ) -> DistributedGPRegressor:
        """Add rows as one new expert; the first call fits.

        Scaling, transform, hyperparameters and inducing inputs stay; with independent training the new
        expert learns its own. The weights of the aggregator are computed anew. Experts on a cluster are
        brought into this process first, as by `gather`. Calibration stays that of `fit`, and its
        guarantee is that of the rows seen there.

        Parameters
        ----------
        X, y, sample_weight, noise_variance
            New rows, as for `fit`.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.
        """
        if not hasattr(self, "models_"):
            return self.fit(X, y, sample_weight, noise_variance=noise_variance)
        columns = getattr(self, "table_", None)
        if columns is not None and frames.is_table(X) and self._is_raw(X, columns):
            X, keep = frames.encoded(X, columns, self.missing, self.unknown)
            X, y = X[keep], np.asarray(y)[keep]
            sample_weight = _kept(sample_weight, keep, "sample_weight")
            noise_variance = _kept(noise_variance, keep, "noise_variance")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="X does not have valid feature names")
            X, y = self._checked(X, y, reset=False)
        targets = y[:, None] if y.ndim == 1 else y
        if targets.shape[1] != len(self.models_):
            raise ValueError(
                f"expected {len(self.models_)} target columns as in fit, got {targets.shape[1]}"
            )
        self._check_parameters()
        weight = row_numbers("sample_weight", sample_weight, len(X))
        noise = row_numbers("noise_variance", noise_variance, len(X))
        models = []
        for model, column in zip([m.gathered() for m in self.models_], targets.T, strict=True):
            shard = self._new_shard(model, X, column, weight, noise)
            expert = model.ensemble.expert
            options = self._training_options(expert, model.scaling, self._seed)
            options |= {"search": not isinstance(self.kernel, Kernel)}
            posterior = new_expert(
                shard,
                expert,
                model.parameters,
                self._starting(model.scaling.x_scale).parameters,
                self._algorithm(expert, self._seed),
                **options,
            )
            models.append(model.with_expert(posterior, self._aggregator))
        self.models_, self._combinations = models, {}
        return self

    def _new_shard(
        self,
        model: Model,
        X: np.ndarray,
        y: np.ndarray,
        weight: np.ndarray | None,
        noise: np.ndarray | None,
    ) -> Shard:
        """New rows in the units of a fitted model."""
        like, seen = model.parameters.noise, model.ensemble.row_count()
        z = y if model.transform is None else model.transform.forward(y)
        inputs, scaled = model.scaling.inputs(X, like), model.scaling.targets(z, X, like)
        if noise is not None:
            noise = noise / model.scaling.y_scale**2
            if model.row_noise is None:  # σ² is no factor here: the rows' own noise takes its place
                noise = noise / float(model.combined.noise)
        elif model.row_noise is not None:
            noise = np.full(len(X), model.row_noise)
        own = (None if v is None else torch.as_tensor(v).to(like) for v in (weight, noise))
        rows = torch.arange(seen, seen + len(X), device=like.device)
        return Shard.of(inputs, scaled, rows, *own)

    def drop_experts(self, which: Any) -> DistributedGPRegressor:
        """Forget the rows of some experts; the others are combined anew.

        With `partial_fit`, which adds the newest rows as the last expert, this makes a window that
        moves over a stream: ``gp.drop_experts(0)`` forgets the oldest. Experts on a cluster are brought
        into this process first, as by `gather`.

        Parameters
        ----------
        which : int or sequence of int
            Places of experts: 0 … n_experts_ − 1, or negative ones from the end. Not all of them.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.
        """
        check_is_fitted(self)
        M = self.n_experts_
        asked = np.atleast_1d(np.asarray(which))
        fine = (
            asked.dtype.kind in "iu" and asked.ndim == 1 and bool((np.abs(asked + 0.5) < M).all())
        )
        places = sorted({int(i) % M for i in asked}) if fine else []
        if not places or len(places) == M:
            raise ValueError(
                f"which must be places of some of the {M} experts, 0 to {M - 1}, not of all, got {which!r}"
            )
        gathered = [model.gathered() for model in self.models_]
        self.models_ = [model.without_experts(places, self._aggregator) for model in gathered]
        self._combinations = {}
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        latent: bool = False,
        aggregation: str | Aggregator | None = None,
        noise_variance: Any = None,
    ) -> Any:
        """Predict at the rows of X, in the target's units.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points. Of a table, columns that the model does not need are ignored; with missing="drop"
            the predictions of incomplete rows are NaN.
        return_std : bool, default=False
            Whether to return the standard deviation too.
        return_cov : bool, default=False
            Whether to return the covariance between all points too.
        latent : bool, default=False
            Whether the uncertainty is that of the function f; by default it is that of an
            observation y = f + noise.
        aggregation : str or Aggregator, optional
            Another aggregator of the same experts, without fitting again.
        noise_variance : array-like of shape (N,), optional
            The noise variance of the observations to be predicted, in the target's units, squared. Where
            rows had noise variances in fitting, the trained factor applies, and by default their mean.

        Returns
        -------
        mean : ndarray of shape (N,) or (N, targets)
            With a target_transform, the mean of the target itself.
        std : ndarray of the same shape
            Where `return_std`.
        covariance : ndarray of shape (N, N) or (N, N, targets)
            Where `return_cov`.
        """
        if return_std and return_cov:
            raise ValueError("give return_std or return_cov, not both")
        X, keep = self._points(X)
        noise = row_numbers("noise_variance", noise_variance, len(X))
        pairs = list(zip(self.models_, self._combined(aggregation), strict=True))
        if return_cov:
            return self._columns([m.covariance(X, latent, one, noise) for m, one in pairs])
        if not return_std and not latent and noise is None:
            return _blanked(self._columns([(m.mean(X, one),) for m, one in pairs])[0], keep)
        mean, variance = self._columns([m.predict(X, latent, one, noise) for m, one in pairs])
        mean = _blanked(mean, keep)
        return (mean, _blanked(np.sqrt(variance), keep)) if return_std else mean

    def predict_interval(
        self,
        X: Any,
        coverage: float = 0.9,
        *,
        latent: bool = False,
        noise_variance: Any = None,
        groups: Any = None,
        aggregation: str | Aggregator | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """The central interval that holds an observation with this probability.

        With `calibrate` it reaches as far as errors on rows held out say; else it is that of the
        predicted normal distribution. A target_transform is mapped back exactly.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.
        coverage : float, default=0.9
            The probability, between 0 and 1.
        latent : bool, default=False
            Whether the interval is one for the function f. It is never calibrated: nobody observes f.
        noise_variance : array-like of shape (N,), optional
            As for `predict`.
        groups : array-like of shape (N,), optional
            The group of each point, for calibrate="mondrian".
        aggregation : str or Aggregator, optional
            Another aggregator of the same experts. Calibration is that of the model's own.

        Returns
        -------
        lower, upper : ndarray of shape (N,) or (N, targets)
        """
        q = [0.5 - 0.5 * _probability("coverage", coverage), 0.5 + 0.5 * float(coverage)]
        found = self.predict_quantiles(
            X,
            q,
            latent=latent,
            noise_variance=noise_variance,
            groups=groups,
            aggregation=aggregation,
        )
        return found[..., 0], found[..., 1]

    def predict_quantiles(
        self,
        X: Any,
        q: Any,
        *,
        latent: bool = False,
        noise_variance: Any = None,
        groups: Any = None,
        aggregation: str | Aggregator | None = None,
    ) -> np.ndarray:
        """Quantiles of an observation, or of the function f.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.
        q : float or array-like of shape (Q,)
            Probabilities between 0 and 1.
        latent, noise_variance, groups, aggregation
            As for `predict_interval`.

        Returns
        -------
        ndarray of shape (N, Q) or (N, targets, Q)
            Without the last dimension where q is a number.
        """
        levels = [_probability("q", one) for one in np.atleast_1d(q)]
        X, keep = self._points(X)
        noise = row_numbers("noise_variance", noise_variance, len(X))
        pairs = zip(self.models_, self._combined(aggregation), strict=True)
        parts = [
            model.quantiles(*model.gaussian(X, latent, one, noise), levels, groups, latent)
            for model, one in pairs
        ]
        out = _blanked(parts[0] if self._one_target else np.stack(parts, 1), keep)
        return out if np.ndim(q) else out[..., 0]

    def predict_with_interval(
        self,
        X: Any,
        coverage: float = 0.9,
        *,
        latent: bool = False,
        aggregation: str | Aggregator | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Mean, standard deviation and interval at once, for the price of one prediction.

        Parameters
        ----------
        X, coverage, latent, aggregation
            As for `predict_interval`.

        Returns
        -------
        mean, std, lower, upper : ndarray of shape (N,) or (N, targets)
        """
        q = [0.5 - 0.5 * _probability("coverage", coverage), 0.5 + 0.5 * float(coverage)]
        X, keep = self._points(X)
        parts = []
        for model, one in zip(self.models_, self._combined(aggregation), strict=True):
            z, variance = model.gaussian(X, latent, one)
            lower, upper = model.quantiles(z, variance, q, None, latent).T
            mean, variance = model.of_target(z, variance)
            parts.append((mean, np.sqrt(variance), lower, upper))
        mean, std, lower, upper = (_blanked(values, keep) for values in self._columns(parts))
        return mean, std, lower, upper

    def _points(self, X: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows to predict as numbers, and which of them are complete; None for all."""
        check_is_fitted(self)
        keep, columns = None, getattr(self, "table_", None)
        if columns is not None and frames.is_table(X) and self._is_raw(X, columns):
            values, found = frames.encoded(X, columns, self.missing, self.unknown)
            keep = None if found.all() else found
            values = values if keep is None else np.where(keep[:, None], values, values[keep][:1])
        else:
            values = self._new_inputs(X)
        new.tell_novelty(self.models_[0], values)
        return values, keep

    def _is_raw(self, X: Any, columns: Columns) -> bool:
        """Whether a table has the columns of fitting, and not the numbers made of them."""
        names = {str(name) for name in getattr(X, "column_names", X.columns)}
        return not names.issuperset(columns.features) or names.issuperset(columns.places)

    def _gaussian(self, X: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
        if all(model.transform is None for model in self.models_):
            return self.predict(X, return_std=True, **options)
        X, _ = self._points(X)
        combined = self._combined(options.pop("aggregation", None))
        pairs = zip(self.models_, combined, strict=True)
        latent = options.pop("latent", False)
        mean, variance = self._columns([m.gaussian(X, latent, one, **options) for m, one in pairs])
        return mean, np.sqrt(variance)

    def _transformed(self, y: np.ndarray) -> tuple[np.ndarray, float]:
        columns = y[:, None] if y.ndim == 1 else y
        z, slopes = columns.astype(np.float64), np.zeros(columns.shape)
        for i, model in enumerate(self.models_):
            if model.transform is not None:
                z[:, i] = model.transform.forward(columns[:, i])
                slopes[:, i] = model.transform.log_slope(columns[:, i])
        return z.reshape(y.shape), float(slopes.mean())

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, latent: bool = False
    ) -> np.ndarray:
        """Draw from the joint posterior at the rows of X.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.
        n_samples : int, default=1
            The number of draws.
        random_state : int, RandomState or None, default=0
            The seed.
        latent : bool, default=False
            Whether to draw the function f instead of observations.

        Returns
        -------
        ndarray of shape (N, n_samples) or (N, targets, n_samples)
        """
        X, _ = self._points(X)
        sequence = np.random.SeedSequence(seed_of(random_state))
        seeds = sequence.generate_state(len(self.models_))
        draws = [
            m.sample(X, n_samples, int(seed), latent)
            for m, seed in zip(self.models_, seeds, strict=True)
        ]
        return draws[0] if self._one_target else np.stack(draws, axis=1)

    def novelty(self, X: Any) -> np.ndarray:
        """How unlike the training rows each row is; above 1, more so than 99 % of those are.

        It is the larger of two ratios to the 99 % quantile of the training rows: of the Mahalanobis
        distance to their mean, and, where the model holds its rows, of the distance to the nearest.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.

        Returns
        -------
        ndarray of shape (N,)
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", new.NoveltyWarning)
            points, _ = self._points(X)
        return new.novelty(self.models_[0], points)

    def gather(self) -> DistributedGPRegressor:
        """Bring the experts from the workers of a cluster into this process, and let those go.

        Rows travel for exact experts, which are made of them, and stay behind for sparse ones.
        """
        check_is_fitted(self)
        self.models_ = [model.gathered() for model in self.models_]
        self._combinations = {}
        self.close()
        return self

    @property
    def experts_(self) -> Any:
        """The conditioned experts, an `Ensemble`."""
        return self._of_each(lambda model: model.ensemble)

    @property
    def aggregation_(self) -> Any:
        """The aggregator in use."""
        return self._of_each(lambda model: model.aggregation)

    @property
    def weights_(self) -> Any:
        """The aggregator's weights, one per expert; None where they change from point to point."""
        return self._of_each(lambda model: _array(model.combined.weights))

    @property
    def inducing_(self) -> Any:
        """The inducing inputs in the units of the data, (m, d) or one set per expert; or None."""
        return self._of_each(_original_inducing)

    @property
    def n_inducing_(self) -> Any:
        """The number of inducing inputs per expert; None for exact experts."""
        return self._of_each(lambda model: _count(model.parameters))

    @property
    def n_experts_(self) -> int:
        """The number of experts."""
        check_is_fitted(self)
        return self.models_[0].ensemble.size

    def to_torch(self, latent: bool = False) -> torch.nn.Module:
        """A module of plain PyTorch that predicts as this model does, for use without distgp.

        For models whose sparse experts are pooled. Called with inputs (N, d) as numbers, in the units of
        the data, it returns means and standard deviations.

        Parameters
        ----------
        latent : bool, default=False
            Whether the standard deviation is that of the function f.

        Returns
        -------
        torch.nn.Module
        """
        check_is_fitted(self)
        return torch_module.of(self.models_, self._one_target, latent)

    # What "auto" stands for: what was measured, or a rule.

    def _value(self, name: str) -> Any:
        """A parameter as the choice settled it, or as given."""
        given = getattr(self, name)
        return getattr(self, "settled_", {}).get(name, given) if is_auto(given) else given

    def _left_to_us(self) -> bool:
        """Whether the way to fit, or the kernel, is to be chosen by measuring."""
        return auto.way_is_left(self) or is_auto(self.kernel)

    def _choose(self, rows: Rows, seed: int) -> None:
        """Measure the candidates on rows held out, and settle what was left to us."""
        if self._chosen_before():
            return
        self.settled_, self.choice_ = {}, None
        n = len(rows.X)
        if n < choice.LEAST_ROWS or not self._left_to_us():
            return
        self._check_before_trials()
        groups = rows.groups if self.validation == "groups" else None
        divisions = choice.divisions(
            n, self.validation, auto.TRIAL_TEST, time=rows.time, groups=groups, seed=seed
        )
        kind, kernel = self._expert(n).name, self._kernel()
        columns = self._named_columns()
        best, self.choice_ = auto.choose(self, kind, kernel, columns, rows, divisions, seed)
        self.settled_ = dict(best.settings)
        if self.verbose:
            print(self.choice_, file=sys.stderr)
        if self.choice_.better_baselines:
            new.warn_user(choice.outdone(self.choice_), choice.ChoiceWarning)

    def _chosen_before(self) -> bool:
        """Whether an earlier choice still holds: with `warm_start`, while all that it set is left to us."""
        settled = getattr(self, "settled_", {})
        return bool(self.warm_start and settled) and all(is_auto(getattr(self, k)) for k in settled)

    def _check_before_trials(self) -> None:
        """Refuse what would fail in every trial."""
        self._like()
        if not is_auto(self.kernel):
            start = self._starting().parameters
            for name in (*(self.bounds or {}), *(self.priors or {}), *self.fixed):
                start.paths(name)

    # Names turned into objects.

    def _blocks(self) -> list[tuple[int, ...]]:
        """The places of the numbers made of each text column."""
        columns = getattr(self, "table_", None)
        return [] if columns is None else columns.blocks

    def _like(self) -> Tensor:
        """A tensor of the dtype, on the device, that the experts work in."""
        return tensor_like(self.device, DTYPES[self.dtype])

    def _expert(self, n: int) -> Expert:
        given = self._value("expert")
        name = auto.expert(n) if is_auto(given) else given
        expert = by_name("expert", name, EXPERTS, Expert)
        if isinstance(expert, NearestExpert) and isinstance(name, str):
            expert = replace(expert, n_neighbors=int(self.n_neighbors))
        m = self._value("n_inducing")
        if np.ndim(m) == 0 and not is_auto(m) and m == 0 and isinstance(expert, SparseExpert):
            raise ValueError(
                "sparse experts need inducing inputs, got n_inducing=0: give 1 or more"
            )
        self._check_serves(expert)
        return expert

    def _check_serves(self, expert: Expert) -> None:
        """Refuse an aggregator that cannot serve these experts, before any work is done."""
        given = self._value("aggregation")
        if is_auto(given):
            return
        method = by_name("aggregation", given, AGGREGATORS, Aggregator)
        if expert.name not in method.serves:
            able = [name for name, kind in AGGREGATORS.items() if expert.name in kind.serves]
            raise AggregationError(
                f"{method.name} cannot combine {expert.name} experts; use {', '.join(able)} or 'auto'"
            )

    def _aggregator(self, ensemble: Ensemble) -> Aggregator:
        given = self._value("aggregation")
        if is_auto(given):
            return auto.aggregator(ensemble)
        return by_name("aggregation", given, AGGREGATORS, Aggregator)

    def _algorithm(self, expert: Expert, seed: int) -> Algorithm | None:
        given_name = self._value("training")
        if given_name is None:
            return None
        name = auto.TRAINING[expert.name] if is_auto(given_name) else given_name
        algorithm = by_name("training", name, ALGORITHMS, Algorithm)
        known = {spec.name for spec in fields(algorithm)}  # pyright: ignore[reportArgumentType]
        if self.learning_rate is not None and "learning_rate" not in known:
            raise ValueError(f"{algorithm.name} has no learning rate: leave learning_rate at None")
        given = {"n_iter": self.n_iter, "learning_rate": self.learning_rate}
        if isinstance(name, str):
            given["seed"] = seed
            if self.learning_rate is not None and getattr(algorithm, "optimizer", "") == "lbfgs":
                given["optimizer"] = "adam"  # L-BFGS finds its own step
        changes = {k: v for k, v in given.items() if v is not None and k in known}
        return replace(algorithm, **changes)  # pyright: ignore[reportArgumentType]

    def _starting(self, scale: Iterable[float] = ()) -> Start:
        """Where training starts, with inputs divided by these scales."""
        # Where rows have noise variances of their own, the noise is a factor of them.
        noise = self.noise if getattr(self, "_row_noise", None) is None else 1.0
        layout = self._layout(scale)
        return start_of(self._kernel(), noise, layout, self._like(), self.kernel_units)

    def _layout(self, scale: Iterable[float]) -> InputLayout:
        """What the columns are, for kernels that name them or have units."""
        columns, scale = self._named_columns(), tuple(float(value) for value in scale)
        if columns is None:
            return InputLayout.of_array(self.n_features_in_, scale)
        groups = columns.groups if columns.blocks else None
        return InputLayout(tuple(columns.features), columns.places, columns.days, groups, scale)

    def _named_columns(self) -> Columns | None:
        """The columns of the table that was fitted, or those of a frame of numbers; None for arrays."""
        names = self._names()
        if (columns := getattr(self, "table_", None)) is not None or names is None:
            return columns
        return Columns("", tuple(Column(name, "number") for name in names))

    def _kernel(self) -> str | Kernel:
        """The kernel as given, or as chosen."""
        given = self._value("kernel")
        return auto.KERNELS_TRIED[0] if is_auto(given) else given

    def _start(self, column: int, scale: Iterable[float]) -> tuple[Parameters, bool]:
        """Where training of a target starts, and whether shorter lengthscales may be tried."""
        start = self._starting(scale).parameters
        if not self.warm_start or not hasattr(self, "models_"):
            return start, not isinstance(self.kernel, Kernel)
        before = self.models_[min(column, len(self.models_) - 1)].parameters.averaged()
        old, new_ = before.kernel.parameters(), start.kernel.parameters()
        same = {k: v.shape for k, v in old.items()} == {k: v.shape for k, v in new_.items()}
        return (before.to(start.noise.device, start.noise.dtype), False) if same else (start, True)

    def _training_options(self, expert: Expert, scaling: Scaling, seed: int) -> dict[str, Any]:
        """Options of `fit.learn`."""
        rows = self.training_rows
        if is_auto(rows):
            rows = auto.TRAINING_ROWS if isinstance(expert, SparseExpert) else None
        start = self._starting(scaling.x_scale)
        bounds = start.bounds(capped=bool(self.normalize))
        for name, (low, high) in (self.bounds or {}).items():
            bounds |= dict.fromkeys(start.parameters.paths(name), (float(low), float(high)))
        return {
            "inducing": self._inducing(scaling),
            "training_rows": rows,
            "priors": self.priors,
            "bounds": bounds,
            "fixed": [*self.fixed, *start.fixed],
            "seed": seed,
            "verbose": bool(self.verbose),
        }

    def _inducing(self, scaling: Scaling) -> Inducing:
        """How many, "auto", or the inputs themselves, standardised."""
        given = self._value("n_inducing")
        if np.ndim(given) == 0:
            return "auto" if is_auto(given) else int(given)
        Z, d = np.asarray(given, dtype=np.float64), self.n_features_in_
        if Z.ndim != 2 or Z.shape[1] != d or not np.isfinite(Z).all() or not len(Z):
            raise ValueError(
                f"n_inducing must be a number, 'auto', or finite inducing inputs of shape (m, {d}), "
                f"got shape {Z.shape}"
            )
        return scaling.inputs(Z, self._like())

    def _number_of_experts(self, asked: int | str, n: int, expert: Expert, workers: int) -> int:
        """M, from what was asked for and the number of rows."""
        labels = self._labels(n)
        if labels is not None:
            found = int(labels.max()) + 1
            if self.n_experts == "cv" or not (is_auto(asked) or asked == found):
                raise ValueError(
                    f"the labels in partition make {found} experts, but n_experts is "
                    f"{self.n_experts!r}: leave it at 'auto', or name a partition"
                )
            return found
        if not isinstance(asked, str):
            if asked > n:
                raise ValueError(
                    f"n_experts={asked} is more than the {n} rows: every expert needs one "
                    "row at least, and predicts well with hundreds"
                )
            return int(asked)
        m: Any = self._value("n_inducing")
        largest = auto.LARGEST_INDUCING if is_auto(m) else len(m) if np.ndim(m) else int(m)
        training = self._value("training")
        alone = isinstance(training, Independent) or training == Independent.name
        return auto.number_of_experts(n, expert.name, max(1, largest), workers, alone)

    def _labels(self, n: int) -> np.ndarray | None:
        """Labels as given, made 0 … M − 1; None where the partition is a name or an object."""
        if isinstance(self.partition, str | Partition):
            return None
        labels = np.asarray(self.partition)
        if labels.shape != (n,):
            raise ValueError(
                f"partition must be one of {', '.join(map(repr, PARTITIONS))}, a Partition object, or "
                f"one label for each of the {n} rows; got "
                f"{f'an array of shape {labels.shape}' if labels.ndim else repr(self.partition)}"
            )
        return labels_of(labels)

    def _divided(self, data: Shard, n_experts: int, seed: int) -> list[Shard]:
        """The shards, one per expert."""
        labels = self._labels(data.n)
        if labels is not None:
            return split(data, labels)
        partition = by_name("partition", self.partition, PARTITIONS, Partition)
        if isinstance(self.aggregation, GRBCM) or self.aggregation == GRBCM.name:
            return with_communication(data, n_experts, partition, seed)
        return split(data, partition.assign(data.X.cpu().numpy(), n_experts, seed))

    def _cross_validated(self, rows: Rows, seed: int) -> int:
        """The number of experts with the lowest NLPD over three folds."""
        X, y = rows.X, rows.y
        if self._labels(len(X)) is not None:
            self._number_of_experts("cv", len(X), self._expert(len(X)), 1)  # refuses
        candidates = auto.cross_validated_experts(len(X))
        folds = list(KFold(3, shuffle=True, random_state=seed % 2**32).split(X))
        scores = []
        for n_experts in candidates:
            copy: Any = clone(self)
            trial = copy.set_params(
                n_experts=n_experts,
                random_state=seed,
                kernel=self._kernel(),
                target_transform=None,
                calibrate=None,
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = [
                    trial.fit(X[a], y[a], **rows.take(a).options).nlpd(X[b], y[b]) for a, b in folds
                ]
            scores.append(float(np.mean(found)))
        self.cv_results_ = {"n_experts": candidates, "nlpd": scores}
        return candidates[int(np.argmin(scores))]

    def _combined(self, aggregation: str | Aggregator | None) -> Sequence[Combined | None]:
        """The combination of each target's experts by another aggregator; None for the model's own.

        Combinations asked for by name are kept for the next time.
        """
        if aggregation is None:
            return [None] * len(self.models_)
        if is_auto(aggregation):
            methods = [auto.aggregator(model.ensemble) for model in self.models_]
        else:
            method = by_name("aggregation", aggregation, AGGREGATORS, Aggregator)
            methods = [method] * len(self.models_)
        kept: dict[str, Sequence[Combined]] = vars(self).setdefault("_combinations", {})
        if isinstance(aggregation, str) and aggregation in kept:
            return kept[aggregation]
        made = [
            model.combined if method == model.aggregation else method.combine(model.ensemble)
            for model, method in zip(self.models_, methods, strict=True)
        ]
        if isinstance(aggregation, str):
            kept[aggregation] = made
        return made

    def _plain_parameters(self) -> dict[str, Any]:
        """Those parameters that a file holds in another form: numbers, names and arrays."""
        plain: dict[str, Any] = {"device": str(self.device), "fixed": list(self.fixed)}
        if isinstance(self.expert, Expert):
            plain["expert"] = self.expert.name
        if not isinstance(self.partition, str | Partition):
            plain["partition"] = labels_of(self.partition)
        if np.ndim(self.n_inducing):
            plain["n_inducing"] = np.asarray(self.n_inducing, dtype=np.float64)
        return plain


def _column(X: Any, value: Any, name: str) -> Any:
    """Values as given, or those of a named column of a table."""
    if not isinstance(value, str):
        return value
    if not hasattr(X, "columns") or value not in list(X.columns):
        raise ValueError(
            f"{name}={value!r} names a column, but X has no column of that name: give one value per row"
        )
    return np.asarray(X[value])


def _kept(value: Any, keep: np.ndarray, name: str) -> Any:
    """What was given for each row of a table, for the rows that are kept."""
    if value is None or keep.all():
        return value
    if np.shape(value) != keep.shape:
        raise ValueError(f"{name} must have one value for each of the {len(keep)} rows")
    return np.asarray(value)[keep]


def _probability(name: str, value: Any) -> float:
    if not isinstance(value, Real) or not 0.0 < float(value) < 1.0:
        raise ValueError(f"{name} must be a probability between 0 and 1 such as 0.9, got {value!r}")
    return float(value)


def _blanked(values: np.ndarray, keep: np.ndarray | None) -> np.ndarray:
    """NaN for the rows that are not to be predicted."""
    if keep is not None:
        values[~keep] = np.nan
    return values


def _noise_in_units(batch: Shard, square: float) -> Shard:
    """A shard whose rows' noise variances are divided by a square of units."""
    assert batch.noise is not None
    return replace(batch, noise=batch.noise / square)


def _array(value: Tensor | None) -> np.ndarray | None:
    return None if value is None else value.cpu().numpy()


def _original_inducing(model: Model) -> np.ndarray | None:
    Z = model.parameters.inducing
    return None if Z is None else model.scaling.original(Z)


def _count(parameters: Parameters) -> int | None:
    return None if parameters.inducing is None else parameters.inducing.shape[-2]


def unnamed(predict: Callable[..., Any], X: Any, *arguments: Any, **options: Any) -> Any:
    """Predictions for arrays whose columns are known to be in order, though they have no names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return predict(X, *arguments, **options)


def predict_unnamed(model: GPEstimator, X: Any, **options: Any) -> Any:
    """What `predict` says of arrays whose columns are known to be in order."""
    return unnamed(model.predict, X, **options)  # pyright: ignore[reportAttributeAccessIssue]
