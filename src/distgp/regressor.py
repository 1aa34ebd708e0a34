"""The scikit-learn estimator. A user's parameters and input are checked here, once."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from distgp import auto, calibration, choice, findings
from distgp import novelty as new
from distgp.aggregation import (
    AGGREGATORS,
    Aggregator,
    Combined,
)
from distgp.auto import Rows, is_auto
from distgp.calibration import Calibration
from distgp.checks import is_integer
from distgp.data import frames, parquet, sample
from distgp.data.column import CHOICES, check_choices
from distgp.data.encoding import Columns
from distgp.data.partition import PARTITIONS, Partition
from distgp.data.scaling import Scaling
from distgp.data.shard import Shard
from distgp.data.source import place
from distgp.data.transforms import TRANSFORMS, Transform, transform_of
from distgp.engines import Engine, Placement
from distgp.estimator import (
    DTYPES,
    Check,
    a_count,
    a_kernel,
    a_name,
    a_positive_number,
    an_engine,
    check_varies,
    column_of,
    names_given,
    one_of,
    opened,
    row_numbers,
    seed_of,
)
from distgp.experts import EXPERTS, Expert, Parameters, SparseExpert
from distgp.fit import fit_model, new_expert
from distgp.kernels import Kernel
from distgp.model import Model
from distgp.prediction import Predictor
from distgp.training import ALGORITHMS, Algorithm, Prior

LEAST_CALIBRATED = 50
"""Rows that calibration needs at least."""


def _inducing_inputs(name: str, value: Any) -> None:
    """A number of inducing inputs, or the inputs themselves, whose width `fit` checks."""
    if np.ndim(value) == 0:
        fine = is_integer(value) and value == 0
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


class DistributedGPRegressor(Predictor):
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
        The noise variance that training starts from. Where `fit` gets noise variances of the rows, the
        noise is a factor of these and starts at 1 instead.
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
        Bounds of hyperparameters in training, by name; of the standardised data's where `normalize`. By
        default those of a named kernel stay within a factor of 1,000 of where they start, and its signal
        variance is at most the target's.
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
        "learning_rate": a_positive_number("a positive number, at most 1e6", None, most=1e6),
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
            "time": column_of(X, time, "time"),
            "groups": column_of(X, groups, "groups"),
        }
        self._check_parameters()
        columns, labels = None, tuple(self.categorical)
        if labels and not frames.is_table(X):
            raise ValueError(
                f"categorical names columns of a table, got {list(labels)} and X without names: give a "
                "table, or leave it out"
            )
        simple = not labels and self.missing != "impute"
        if frames.is_table(X) and not (simple and frames.is_plain(X)):
            X, y, columns, keep = frames.learnt(
                X, y, missing=self.missing, dates=self.dates, categorical=labels
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
        """Check what there is for each row."""
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
        rows = Rows(X, y, weight, noise, time, groups)
        if weight is None or (weight > 0).all():
            return rows
        if self._labels(len(X)) is not None:
            raise ValueError(
                "sample_weight has zeros and partition one label per row: leave those rows out of X, y "
                "and partition"
            )
        return rows.take(np.flatnonzero(weight))

    def _fit(self, rows: Rows, seed: int) -> None:
        """Fit rows; what a transform learns, it learns of these."""
        columns = rows.targets.T
        transforms = [transform_of(self.target_transform, column) for column in columns]
        parts = zip(transforms, columns, strict=True)
        z = np.stack([column if t is None else t.forward(column) for t, column in parts], -1)
        rows = replace(rows, y=z.reshape(rows.y.shape))
        X, targets, n = rows.X, rows.targets, len(rows.X)
        tried = self._choose(rows, seed)
        expert, like = self._expert(n), self._like()
        n_experts = self._cross_validated(rows, seed) if self.n_experts == "cv" else self.n_experts
        linear, blocks = self.mean == "linear", self._blocks()
        scalings = [
            Scaling.of(X, column, self.normalize, linear, rows.weight, blocks)
            for column in targets.T
        ]
        engine = opened(self.engine, self.device)
        n_experts = self._value("n_experts") if is_auto(n_experts) else n_experts
        M = self._number_of_experts(n_experts, n, expert, engine.workers)
        columns = zip(scalings, targets.T, strict=True)
        scaled = torch.stack([s.targets(column, X, like) for s, column in columns], -1)
        inputs = scalings[0].inputs(X, like)
        given = (rows.weight, rows.noise)
        weight, noise = (None if v is None else torch.as_tensor(v).to(like) for v in given)
        numbers = torch.arange(n, device=inputs.device)
        data = Shard(inputs, scaled, numbers, None, weight, noise)
        shards = place(engine, self._divided(data, M, seed))
        del data, scaled, inputs
        level = None if rows.noise is None else float(np.average(rows.noise, weights=rows.weight))
        one_target = rows.y.ndim == 1
        self._fit_placed(
            engine, shards, scalings, expert, seed, one_target, transforms, tried, level
        )

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
        groups = rows.groups if self.calibrate == "mondrian" else None
        models = []
        for model, column in zip(self.models_, rows.targets.T, strict=True):
            mean, variance = model.gaussian(rows.X, latent=False, noise=rows.noise)
            z = column if model.transform is None else model.transform.forward(column)
            scores = Calibration.of(z, mean, np.sqrt(variance), groups)
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
        check_choices(missing=missing, dates=dates)
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
        data = parquet.ParquetRows.open(path)
        seed, engine = seed_of(self.random_state), opened(self.engine, self.device)
        again, tried = self._chosen_before(), []
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
            tried = self._choose(Rows(X, y, time=some.rows.cpu().numpy()), seed)
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
        self._fit_placed(engine, shards, [scaling], expert, seed, True, [None], tried)
        return self

    def _fit_placed(
        self,
        engine: Engine,
        shards: Placement[Shard],
        scalings: list[Scaling],
        expert: Expert,
        seed: int,
        one_target: bool,
        transforms: Sequence[Transform | None],
        tried: Sequence[Parameters],
        row_noise: float | None = None,
    ) -> None:
        """Train, condition and combine where the rows are; only then is anything replaced."""
        factor = row_noise is not None
        algorithm = self._algorithm(expert, seed)
        models = []
        for column, scaling in enumerate(scalings):
            one = shards.derive(Shard.target, column)
            if factor:
                one = one.derive(_noise_in_units, scaling.y_scale**2)
            start, told = self._start(column, scaling.x_scale, factor, expert, tried)
            options = self._training_options(expert, scaling, seed, factor) | told
            models.append(
                fit_model(one, scaling, expert, start, algorithm, self._aggregator, **options)
            )
        inputs = new.Inputs.of(shards, seed, nearest=not isinstance(expert, SparseExpert))
        models = [
            replace(
                model,
                inputs=inputs,
                transform=transform,
                row_noise=None if row_noise is None else row_noise / model.scaling.y_scale**2,
            )
            for model, transform in zip(models, transforms, strict=True)
        ]
        self.models_, self._one_target, self._seed = models, one_target, seed
        self._combinations: dict[str, Sequence[Combined]] = {}
        self.engine_ = engine
        engine.users.add(self)
        findings.warn_about_fit(models, self.bounds, models[0].ensemble.row_count(), targets=None)

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
        if columns is not None and frames.is_table(X) and frames.is_raw(X, columns):
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
        weight = row_numbers("sample_weight", sample_weight, len(X), least=0.0)
        noise = row_numbers("noise_variance", noise_variance, len(X))
        if weight is not None:
            some = weight > 0
            X, targets, weight = X[some], targets[some], weight[some]
            noise = None if noise is None else noise[some]
        for model, column in zip(self.models_, targets.T, strict=True):
            if model.transform is not None:
                model.transform.check(column)
        models = []
        for model, column in zip([m.gathered() for m in self.models_], targets.T, strict=True):
            shard = self._new_shard(model, X, column, weight, noise)
            expert = model.ensemble.expert
            factor = model.row_noise is not None
            options = self._training_options(expert, model.scaling, self._seed, factor)
            options |= {"search": not isinstance(self.kernel, Kernel)}
            posterior = new_expert(
                shard,
                expert,
                model.parameters,
                self._starting(model.scaling.x_scale, factor).parameters,
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

    def gather(self) -> DistributedGPRegressor:
        """Bring the experts from the workers of a cluster into this process, and let those go.

        Rows travel for exact experts, which are made of them, and stay behind for sparse ones.
        """
        check_is_fitted(self)
        self.models_ = [model.gathered() for model in self.models_]
        self._combinations = {}
        self.close()
        return self


def _kept(value: Any, keep: np.ndarray, name: str) -> Any:
    """What was given for each row of a table, for the rows that are kept."""
    if value is None or keep.all():
        return value
    if np.shape(value) != keep.shape:
        raise ValueError(f"{name} must have one value for each of the {len(keep)} rows")
    return auto.taken(value, np.flatnonzero(keep))


def _noise_in_units(batch: Shard, square: float) -> Shard:
    """A shard whose rows' noise variances are divided by a square of units."""
    assert batch.noise is not None
    return replace(batch, noise=batch.noise / square)


def unnamed(predict: Callable[..., Any], X: Any, *arguments: Any, **options: Any) -> Any:
    """Predictions for arrays whose columns are known to be in order, though they have no names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return predict(X, *arguments, **options)
