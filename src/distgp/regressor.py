"""The scikit-learn estimator: its parameters, their documentation, and short methods.

A fit is `read` → `resolve` → `fit_rows`: rows as numbers, a plan of objects, a model.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from distgp import export, file_rows, pipeline, predicting
from distgp._util.checks import a_count, a_probability, a_seed, probabilities, silenced
from distgp._util.moved import once_by_position
from distgp._util.progress import Progress, is_shown
from distgp.aggregation import Aggregator
from distgp.data.encoding import Columns, check_choices
from distgp.data.parquet import ParquetRows
from distgp.data.partition import Partition
from distgp.data.reading import Reading, blanked
from distgp.data.rows import Rows, check_varies, column_of, numbers_of_rows, observed_targets
from distgp.diagnostics import findings
from distgp.diagnostics.importance import Importance, importance, r2_of, shares_of
from distgp.diagnostics.novelty import NoveltyWarning, novelty
from distgp.engines import Engine
from distgp.experts import EXPERTS, Expert
from distgp.kernels import Kernel
from distgp.mixin import ModelMixin, names_of, set_features, unnamed_columns
from distgp.model import Model, TargetModel
from distgp.plan import RESOLVERS, Plan, as_labels, check_files, check_rows
from distgp.selection import Choice, Fitted, choose_and_fit, fit_files
from distgp.selection.candidates import Past, plan_of_update
from distgp.training import Algorithm, Prior

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

Inputs: TypeAlias = "ArrayLike | pandas.DataFrame | polars.DataFrame | pyarrow.Table"
"""Inputs as users give them: an array, or a table of pandas, polars or pyarrow."""


OLD_ORDER = (
    "n_inducing", "n_neighbors", "aggregation", "kernel", "kernel_units", "noise", "mean",
    "partition", "training", "n_iter", "learning_rate", "training_rows", "priors", "bounds",
    "fixed", "warm_start", "validation", "target_transform", "calibrate", "missing",
    "unknown", "dates", "categorical", "engine", "device", "dtype", "normalize", "random_state",
    "verbose",
)  # fmt: skip
"""Parameters after the second, in the order in which they could be given by position up to version 0.2."""


class DistributedGPRegressor(RegressorMixin, ModelMixin):
    """Gaussian process regression on any number of rows.

    An expert is a Gaussian process (GP) on some or all of the rows. Where there are several experts, their
    predictions are combined into one.

    All parameters but the first two are given by name. They stand in groups: what most people need, what
    the function is like, how it is approximated, how it is trained, how choices are measured, what a table
    may hold, and where it runs.

    Parameters
    ----------
    expert : "auto", "exact", "sparse", "nearest" or Expert, default="auto"
        **What most people need.** The kind of expert. "exact" uses all of its rows as they are, "sparse"
        summarises them by a few inducing inputs, and "nearest" predicts each point from the rows nearest
        to it, on top of a sparse GP of all rows. "auto" takes the exact GP of all rows, or its mean, if
        validation="random" and `time_limit` and memory suffice. Else it measures a few candidates on rows
        held out, as `validation` says, and fits the best to all rows. `choice_` is the table of figures.
        Below 200 rows, or if you set any of `n_experts`, `n_inducing`, `aggregation`, `partition` and
        `training`, nothing is measured: experts are exact up to 20,000 rows, and sparse beyond.
    n_experts : int, "auto" or "cv", default="auto"
        The number of experts. "auto" gives exact experts at most 1,000 rows each, as it does experts with
        hyperparameters of their own; other sparse experts get 32 rows per inducing input. "cv" takes the
        best of ⌊√n/4⌋, ⌊√n/5⌋ and ⌊√n/6⌋ for n rows, the numbers of the paper, in 3-fold cross-validation.
    kernel : str or Kernel, default="matern52"
        A kernel object, or a text: a name in `distgp.KERNELS`, "linear", "periodic(24)", or sums and
        products of these, which may say what columns they look at:
        "matern52(columns=temp) + periodic(24 h, columns=when)" (see `distgp.kernels.parse`). A kernel given
        as a name gets a signal variance, and one lengthscale per column; all values of a text column share
        one. Numbers are where training starts, but a period in a text is kept. "auto" compares Matérn-5/2
        and RBF, each with and without a linear part, and a linear kernel alone.
    random_state : int, RandomState or None, default=0
        The seed of everything random.
    verbose : bool or "auto", default="auto"
        Whether to show on standard error what is being done, and how much of it is left, of all that takes
        more than a second. "auto" shows it while the work goes on, if standard error is a terminal: nothing
        goes into files and pipes. True shows it there too, and tells what was measured.
    kernel_units : {"auto", "data", "standardised"}, default="auto"
        **What the function is like.** The units of the kernel's lengthscales and periods: those of the
        data, or standard deviations of the columns. "auto" takes the first for a text and the second for
        an object.
    noise : float, default=0.1
        The noise variance (nugget) that training starts from. If `fit` is given noise variances of the
        rows, the model learns a factor that multiplies these, and this number is not used.
    mean : {"constant", "linear"}, default="constant"
        The level that the GP describes deviations from, and that most kernels return to far from all rows:
        the mean of the target, or a linear trend in the inputs. The trend is fitted by least squares before
        anything else (regression kriging), and needs `normalize`.
    priors : mapping of str to Prior, optional
        Priors on hyperparameters, by name: "lengthscale", "variance", "noise", or a full path such as
        "kernel.kernel.lengthscale". With `normalize` they are about the hyperparameters of the
        standardised data.
    bounds : mapping of str to (float, float), optional
        Bounds of hyperparameters in training, by name, for the standardised data with `normalize`. By
        default, hyperparameters of a kernel given as a name stay within a factor of 1,000 of where they
        start, and its signal variance does not exceed the variance of the target, unless rows held out are
        predicted better with more.
    fixed : sequence of str, default=()
        Names of hyperparameters that training leaves as given.
    normalize : bool, default=True
        Whether inputs and target are standardised first: brought to mean 0 and standard deviation 1.
        Hyperparameters are then those of the standardised data. Predictions are always in the target's
        units.
    n_inducing : int, "auto" or array-like of shape (m, d), default="auto"
        **How it is approximated.** For sparse experts: the number of inducing inputs, or the inputs
        themselves. "auto" adds inputs one by one where they help most, up to 1,024. For nearest experts:
        the number of inducing inputs of the sparse GP of all rows, 256 by default, 0 for no such GP.
    n_neighbors : int, default=128
        For nearest experts: how many rows each point is predicted from.
    aggregation : str or Aggregator, default="auto"
        How experts are combined: a name in `distgp.AGGREGATORS`, or an object. "auto" takes "pooled" if
        sparse experts share hyperparameters and inducing inputs, "nearest" for nearest experts, "opt-local"
        if experts have different hyperparameters (an expert then counts more where it is more certain), and
        "two-level" otherwise.
    partition : str, Partition or array-like of shape (n,), default="random"
        How rows are divided over experts: a name in `distgp.PARTITIONS`, an object, or one label per row.
    training : str, Algorithm or None, default="auto"
        **How it is trained.** How hyperparameters are learnt: a name in `distgp.ALGORITHMS`, or an object;
        None keeps them as given. "auto" takes "pooled" for sparse experts, "nearest" for nearest ones, and
        for exact ones "fact", which trains all experts jointly (FACT).
    n_iter : int, optional
        The largest number of rounds of training; by default the method's own. One exact GP of many rows
        learns in several stages, and this is the limit of each. Below 100, only the first stage is done,
        and few rows get no priors of ours.
    learning_rate : float, optional
        Deprecated: give it to the method, ``training=distgp.training.Fact("adam", learning_rate=0.1)``.
    training_rows : int, "auto" or None, default="auto"
        The number of rows that hyperparameters are learnt from, None for all. "auto" takes 10,000 for
        sparse experts and all for exact ones. Predictions use every row all the same.
    warm_start : bool, default=False
        Whether calling `fit` again continues from the last fit. Training then starts at the hyperparameters
        found there. What "auto" chose there is kept, and not measured again, as long as the parameters
        that it chose are still "auto"; `choice_` then says that its figures are of an earlier fit. After a
        fit that was interrupted, it continues from what that fit had reached. (Until then the estimator is
        as it was before the interrupted fit.)
    validation : {"random", "last", "groups"}, default="random"
        **How choices are measured.** Where new rows will lie, so that rows held out are like them.
        "random": between the others; rows are drawn at random, those with the same inputs together.
        "last": beyond them; the last third is held out, in the order of the rows or of `time` in `fit`, and
        rows of the same time stay together. "groups": in new groups; whole groups of `groups` in `fit` are
        held out.
    time_limit : float or None, default=180
        The seconds that "auto" plans a fit for; None or infinity for no limit. By an estimate, it chooses
        work that should fit into them, but it does not stop work that takes longer. The estimate depends on
        how fast and how busy the machine is, and the model may with it; with None it does not. Up to 1,500
        rows it changes nothing: the exact GP of all rows takes seconds.
    calibrate : "conformal", "mondrian" or None, default=None
        Whether intervals are made to cover what they say (split-conformal prediction). A fifth of the rows,
        at most 10,000, is then held out of the fit as `validation` says, to learn how wide intervals must
        be: for all rows together ("conformal"), or for each of the `groups` given in `fit` ("mondrian").
        The intervals hold on average over new rows, if these are like the rows held out. Intervals and
        quantiles of observations change; means and standard deviations do not.
    missing : {"refuse", "drop", "impute"}, default="refuse"
        **What a table may hold.** What happens to missing values. "refuse": they are an error. "drop":
        their rows are left out, and predicted as NaN. "impute": the mean of the training rows takes their
        place, or for text the share of each text. Intervals are no wider for values that were filled in.
    unknown : {"new", "refuse"}, default="new"
        What happens to texts that `fit` did not see. "new": they count as one more text, as different from
        each known text as these are from each other, and a warning says how many there are. "refuse": they
        are an error.
    dates : {"refuse", "expand"}, default="refuse"
        What happens to columns of dates. "refuse": they are an error. "expand": they become days since 1970
        and phases of year, week and day.
    categorical : sequence of str, default=()
        Columns whose numbers are labels.
    target_transform : "log", "yeo-johnson", "auto" or None, default=None
        What is modelled instead of the target: its logarithm, or Yeo and Johnson's power transform with
        the power of highest likelihood. "auto" tries the logarithm if the target is positive, its skewness
        is above 1, and there are 200 rows or more; it keeps the logarithm if that predicts rows held out
        better by two standard errors. Predictions are of the target itself: means are its means, and
        quantiles are mapped back exactly.
    engine : "local", "ray" or Engine, default="local"
        **Where it runs.** In this process, on a Ray cluster (that of RAY_ADDRESS, or one started on this
        machine), or on an engine of your own, which you close yourself.
    device : str, default="cpu"
        The device of PyTorch that computes: "cpu", "cuda", …
    dtype : {"float64", "float32"}, default="float64"
        The precision of the data.

    Attributes
    ----------
    kernel_, noise_ : Kernel, float
        The hyperparameters found, with one more dimension where experts have their own.
    experts_ : Ensemble
        The fitted experts.
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
        With n_experts="cv", the NLPD (mean negative log predictive density) of each candidate.
    choice_ : Choice or None
        What "auto" measured or took at once, and two baselines, with RMSE, NLPD, the share of rows inside
        90 % intervals, and seconds; print it as a table. None where nothing was measured.
    settled_ : dict of str to object
        The parameters that "auto" chose, by name.

    Notes
    -----
    With several targets each column has a model of its own, and the attributes are lists.

    Examples
    --------
    >>> import numpy as np
    >>> import distgp
    >>> X = np.linspace(0, 1, 200)[:, None]
    >>> y = np.sin(6 * X[:, 0])
    >>> gp = distgp.DistributedGPRegressor(n_experts=4).fit(X, y)
    >>> mean, std = gp.predict([[0.5]], return_std=True)
    >>> bool(abs(mean[0] - np.sin(3)) < 0.01)
    True
    """

    model_: Model[TargetModel]
    choice_: Choice | None
    settled_: dict[str, Any]

    @once_by_position(OLD_ORDER)
    def __init__(
        self,
        expert: str | Expert = "auto",
        n_experts: int | str = "auto",
        *,
        kernel: str | Kernel = "matern52",
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool | str = "auto",
        kernel_units: str = "auto",
        noise: float = 0.1,
        mean: str = "constant",
        priors: Mapping[str, Prior] | None = None,
        bounds: Mapping[str, tuple[float, float]] | None = None,
        fixed: Sequence[str] = (),
        normalize: bool = True,
        n_inducing: int | str | ArrayLike = "auto",
        n_neighbors: int = 128,
        aggregation: str | Aggregator = "auto",
        partition: str | Partition | ArrayLike = "random",
        training: str | Algorithm | None = "auto",
        n_iter: int | None = None,
        learning_rate: float | None = None,
        training_rows: int | str | None = "auto",
        warm_start: bool = False,
        validation: str = "random",
        time_limit: float | None = 180.0,
        calibrate: str | None = None,
        missing: str = "refuse",
        unknown: str = "new",
        dates: str = "refuse",
        categorical: Sequence[str] = (),
        target_transform: str | None = None,
        engine: str | Engine = "local",
        device: str = "cpu",
        dtype: str = "float64",
    ) -> None:
        self.expert = expert
        self.n_experts = n_experts
        self.kernel = kernel
        self.random_state = random_state
        self.verbose = verbose
        self.kernel_units = kernel_units
        self.noise = noise
        self.mean = mean
        self.priors = priors
        self.bounds = bounds
        self.fixed = fixed
        self.normalize = normalize
        self.n_inducing = n_inducing
        self.n_neighbors = n_neighbors
        self.aggregation = aggregation
        self.partition = partition
        self.training = training
        self.n_iter = n_iter
        self.learning_rate = learning_rate
        self.training_rows = training_rows
        self.warm_start = warm_start
        self.validation = validation
        self.time_limit = time_limit
        self.calibrate = calibrate
        self.missing = missing
        self.unknown = unknown
        self.dates = dates
        self.categorical = categorical
        self.target_transform = target_transform
        self.engine = engine
        self.device = device
        self.dtype = dtype

    def fit(
        self,
        X: Inputs,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        noise_variance: ArrayLike | None = None,
        time: ArrayLike | str | None = None,
        groups: ArrayLike | str | None = None,
    ) -> DistributedGPRegressor:
        """Choose what is left open, divide the rows over experts, train these and combine them.

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
            factor of these, which is trained; `fixed=["noise"]` holds it at 1.
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
        given = {
            "sample_weight": sample_weight,
            "noise_variance": noise_variance,
            "time": column_of(X, time, "time"),
            "groups": column_of(X, groups, "groups"),
        }
        with self._changing():
            return self._read_and_fit(X, y, given)

    def fit_rows(self, rows: Rows) -> DistributedGPRegressor:
        """Fit rows that were read already: numbers, with the schema of the columns they were made of.

        Parameters
        ----------
        rows : Rows
            The training rows.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.
        """
        with self._changing():
            X, y = self._validated(rows.X, rows.y, reset=True)
            return self._fit(replace(rows, X=X, y=y))

    def _read_and_fit(
        self, X: object, y: ArrayLike, given: Mapping[str, Any]
    ) -> DistributedGPRegressor:
        """Make numbers of rows, and fit them; the parameters of reading are checked."""
        for name in ("missing", "unknown", "dates", "categorical"):
            RESOLVERS[name](name, getattr(self, name))
        validated = functools.partial(self._validated, reset=True)
        names = functools.partial(names_of, self)
        return self._fit(*self._reading.rows(X, y, given, validated, names))

    def _fit(self, rows: Rows, keep: np.ndarray | None = None) -> DistributedGPRegressor:
        """Make a plan of the parameters, choose what they leave open, and fit.

        The rows are those to `keep` of the ones that were given, and so are labels in `partition`.
        """
        set_features(self, rows.schema)
        if RESOLVERS["normalize"]("normalize", self.normalize) or self.training is not None:
            check_varies(rows.with_weight().targets)
        plan = self._past().plan(self.get_params(deep=False), rows.schema, len(rows), keep)
        check_rows(plan, rows)
        counted = rows.with_weight()
        if len(counted) < len(rows):
            plan = plan.settled({}, len(counted))
        with Progress(f"fitting {len(counted):,} rows", show=plan.progress):
            fitted = choose_and_fit(plan, counted)
        return self._keep(plan, fitted)

    def fit_parquet(
        self,
        path: str,
        target: str,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        categorical: Sequence[str] = (),
        dates: str = "refuse",
        missing: str = "refuse",
        *,
        sample_weight: str | None = None,
        noise_variance: str | None = None,
        time: str | None = None,
        groups: str | None = None,
    ) -> DistributedGPRegressor:
        """Fit files that the engine's workers read by themselves; this process never holds all rows.

        Each worker reads consecutive rows, and deals them out to its experts at random. Text becomes one
        column of 0 and 1 for each value. If distgp has to choose, it does so in this process, on a sample
        of 20,000 rows; the files are then read twice. A `target_transform` is learnt from that sample too,
        and a linear mean from all rows. `calibrate` holds out a fifth of the sample, or with
        validation="last" as many of the last rows of the files, and the model is fitted to all others.

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
        sample_weight, noise_variance : str, optional
            The columns of what `fit` takes for each row under these names. They are no inputs, unless
            `features` names them.
        time, groups : str, optional
            The columns of what `fit` takes under these names, which stay inputs unless `drop` names them.
            By default rows are in the order of time.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.
        """
        columns = {"features": features, "drop": drop, "categorical": categorical, "dates": dates}
        check_choices(missing=missing, dates=dates)
        numbers = {"sample_weight": sample_weight, "noise_variance": noise_variance}
        given = numbers | {"time": time, "groups": groups}
        given = {kind: name for kind, name in given.items() if name is not None}
        if features is None and not isinstance(drop, str):
            columns["drop"] = [*drop, *(name for name in numbers.values() if name is not None)]
        with self._changing():
            files = ParquetRows.open(str(path))
            files.check_names(given)
            plan = self._past().plan(self.get_params(deep=False), None, files.n)
            check_files(plan, given)
            rows = file_rows.FileRows(files, target, columns, missing, given)
            with Progress(f"fitting {files.n:,} rows", show=plan.progress):
                fitted = fit_files(plan, rows)
            self._keep(plan, fitted)
            set_features(self, self.model_.schema)
            return self

    def partial_fit(
        self,
        X: Inputs,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        *,
        noise_variance: ArrayLike | None = None,
    ) -> DistributedGPRegressor:
        """Add rows to the last expert until it is full, and then as new experts; the first call fits.

        With n_experts=1 the expert is never full, as long as memory suffices. With another number, an
        expert is full when it has as many rows as the largest. With "auto", exact experts and experts with
        hyperparameters of their own are full at 1,000 rows, other sparse experts at 32 rows per inducing
        input, and nearest experts never. So it does not matter whether rows come in one call or in many.

        Scaling, transform, hyperparameters and inducing inputs stay, and so does the calibration, whose
        promise is about rows like those of `fit`. With independent training, a new expert that begins with
        50 rows or more learns hyperparameters of its own; one of fewer rows takes those of the last expert.
        The weights of the aggregator are computed anew. Experts on a cluster are brought into this process
        first, as by `gather`. `choice_` says how many rows were added to those that it was measured on.

        Parameters
        ----------
        X, y, sample_weight, noise_variance
            New rows, as for `fit`.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.

        Examples
        --------
        With `gp`, `X` and `y` of the class's example:

        >>> more = np.linspace(1, 2, 50)[:, None]
        >>> gp.partial_fit(more, np.sin(6 * more[:, 0])).experts_.row_count()
        250
        """
        given = {"sample_weight": sample_weight, "noise_variance": noise_variance}
        with self._changing():
            if not hasattr(self, "model_"):
                return self._read_and_fit(X, y, given)
            rows = self._reading.more_rows(
                X, y, given, self.model_.schema, self._validated, self._new_inputs
            ).with_weight()
            expected, came = len(self.model_.targets), rows.targets.shape[1]
            if came != expected:
                raise ValueError(f"expected {expected} target columns as in fit, got {came}")
            self.model_ = pipeline.update(self._plan_of_update, self.model_, rows)
            self._combinations = {}
            if self.choice_ is not None:
                self.choice_ = replace(self.choice_, added=self.choice_.added + len(rows))
        return self

    def drop_experts(self, which: int | Sequence[int]) -> DistributedGPRegressor:
        """Forget the rows of some experts, and combine the others anew.

        Together with `partial_fit`, which adds the newest rows at the end, this makes a window that moves
        over a stream of rows: ``gp.drop_experts(0)`` forgets the oldest. Give `n_experts` a number for
        that, so that new experts become as large as those of `fit`. Experts on a cluster are brought into
        this process first, as by `gather`.

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
        with self._changing():
            places = _places(which, self.n_experts_)
            self.model_ = pipeline.without_experts(self._plan_of_update, self.model_, places)
            self._combinations = {}
        return self

    def gather(self) -> DistributedGPRegressor:
        """Bring the experts from the workers of a cluster into this process, and let those go.

        With engine="local" they are here already, and there is nothing to do. Exact experts bring their
        rows with them; sparse ones leave theirs behind.
        """
        check_is_fitted(self)
        with self._changing():
            self.model_ = self.model_.gathered()
            self._combinations = {}
            self.close()
        return self

    def predict(
        self,
        X: Inputs,
        return_std: bool = False,
        return_cov: bool = False,
        latent: bool = False,
        aggregation: str | Aggregator | None = None,
        noise_variance: ArrayLike | None = None,
    ) -> Any:
        """Predict at the rows of X, in the target's units.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points to predict. Columns of a table that the model does not need are ignored. With
            missing="drop", predictions of rows with missing values are NaN.
        return_std : bool, default=False
            Whether to return the standard deviation too.
        return_cov : bool, default=False
            Whether to return the covariance between all points too.
        latent : bool, default=False
            Whether the uncertainty is that of the function f, without noise. By default it is that of an
            observation y = f + noise.
        aggregation : str or Aggregator, optional
            Another aggregator of the same experts, without fitting again.
        noise_variance : array-like of shape (N,), optional
            The noise variance of each observation to be predicted, in the target's units, squared. If `fit`
            was given noise variances, these are multiplied by the factor that it learnt, and by default
            their mean is used.

        Returns
        -------
        mean : ndarray of shape (N,) or (N, targets)
            With a target_transform, the mean of the target itself.
        std : ndarray of the same shape
            Where `return_std`.
        covariance : ndarray of shape (N, N) or (N, N, targets)
            Where `return_cov`.

        Examples
        --------
        With `gp`, `X` and `y` of the class's example:

        >>> mean = gp.predict([[0.5]])
        >>> mean, std_of_f = gp.predict([[0.5]], return_std=True, latent=True)
        """
        if return_std and return_cov:
            raise ValueError("give return_std or return_cov, not both")
        plain = not return_std and not latent and noise_variance is None
        what = "covariance" if return_cov else "mean" if plain else "variance"
        points, keep = self._points(X)
        noise = numbers_of_rows("noise_variance", noise_variance, len(points))
        model = self._model(aggregation)
        with _predicting(points, self.verbose):
            mean, *more = predicting.predict(model, points, what, latent=latent, noise=noise)
        if return_cov:
            covariance = blanked(more[0].swapaxes(0, 1), keep).swapaxes(0, 1)
            return blanked(mean, keep), blanked(covariance, keep)
        mean = blanked(mean, keep)
        return (mean, blanked(np.sqrt(more[0]), keep)) if return_std else mean

    def predict_interval(
        self,
        X: Inputs,
        coverage: float = 0.9,
        *,
        latent: bool = False,
        noise_variance: ArrayLike | None = None,
        groups: ArrayLike | str | None = None,
        aggregation: str | Aggregator | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the central interval that holds an observation with this probability.

        With `calibrate`, errors on rows held out say how wide it must be. Otherwise it is the interval of
        the predicted normal distribution. A `target_transform` is mapped back exactly.

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
        groups : array-like of shape (N,) or str, optional
            The group of each point, or the name of a column of X, for calibrate="mondrian".
        aggregation : str or Aggregator, optional
            Another aggregator of the same experts. A calibrated model refuses it unless `latent`, since it
            was calibrated with its own aggregator.

        Returns
        -------
        lower, upper : ndarray of shape (N,) or (N, targets)

        Examples
        --------
        With `gp`, `X` and `y` of the class's example:

        >>> lower, upper = gp.predict_interval([[0.5]], coverage=0.9)
        >>> bool(lower[0] < np.sin(3) < upper[0])
        True
        """
        found = self.predict_quantiles(
            X,
            _central(coverage),
            latent=latent,
            noise_variance=noise_variance,
            groups=groups,
            aggregation=aggregation,
        )
        predicting.check_bounds(self.model_, found[..., 0])
        return found[..., 0], found[..., 1]

    def predict_quantiles(
        self,
        X: Inputs,
        q: float | ArrayLike,
        *,
        latent: bool = False,
        noise_variance: ArrayLike | None = None,
        groups: ArrayLike | str | None = None,
        aggregation: str | Aggregator | None = None,
    ) -> np.ndarray:
        """Return quantiles of an observation, or of the function f.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.
        q : float or array-like of shape (Q,)
            Probabilities between 0 and 1.
        latent : bool, default=False
            Whether to give those of the function f.
        noise_variance, groups, aggregation : optional
            As for `predict_interval`.

        Returns
        -------
        ndarray of shape (N, Q) or (N, targets, Q)
            Without the last dimension where q is a number.

        Examples
        --------
        With `gp`, `X` and `y` of the class's example:

        >>> gp.predict_quantiles([[0.2], [0.5]], [0.05, 0.5, 0.95]).shape
        (2, 3)
        """
        levels = probabilities("q", q)
        if not levels:
            raise ValueError("q must be a probability or a list of some, got an empty list")
        of_points = column_of(X, groups, "groups")
        points, keep = self._points(X)
        noise = numbers_of_rows("noise_variance", noise_variance, len(points))
        model = self._model(aggregation, intervals=not latent)
        with _predicting(points, self.verbose):
            out = predicting.quantiles(model, points, levels, of_points, latent=latent, noise=noise)
        out = blanked(out, keep)
        return out if np.ndim(q) else out[..., 0]

    def predict_with_interval(
        self,
        X: Inputs,
        coverage: float = 0.9,
        *,
        latent: bool = False,
        aggregation: str | Aggregator | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return mean, standard deviation and interval, in the time of one prediction.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.
        coverage : float, default=0.9
            The probability of the interval.
        latent : bool, default=False
            Whether to give those of the function f.
        aggregation : str or Aggregator, optional
            As for `predict_interval`.

        Returns
        -------
        mean, std, lower, upper : ndarray of shape (N,) or (N, targets)
        """
        points, keep = self._points(X)
        model, levels = self._model(aggregation, intervals=not latent), _central(coverage)
        with _predicting(points, self.verbose):
            mean, variance, lower, upper = predicting.with_interval(
                model, points, levels, latent=latent
            )
        predicting.check_bounds(self.model_, lower)
        values = (mean, np.sqrt(variance), lower, upper)
        mean, std, lower, upper = (blanked(value, keep) for value in values)
        return mean, std, lower, upper

    def nlpd(self, X: Inputs, y: ArrayLike, **options: Any) -> float:
        """Return the mean negative log predictive density of observed targets. Lower is better.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.
        y : array-like of shape (N,) or (N, targets)
            What was observed there.
        **options : options of `predict`
            Such as `latent`.

        Returns
        -------
        float
        """
        points, keep = self._points(X)
        model = self._model(options.pop("aggregation", None))
        noise = numbers_of_rows("noise_variance", options.pop("noise_variance", None), len(points))
        mean, variance = predicting.predict_gaussian(model, points, noise=noise, **options)
        targets = observed_targets(y, mean.shape)
        if keep is not None and not keep.any():
            return float("nan")
        fine = slice(None) if keep is None else keep
        return predicting.nlpd(self.model_, targets[fine], mean[fine], variance[fine])

    def score(self, X: Inputs, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Return R² of the predicted means. With missing="drop", incomplete rows do not count.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.
        y : array-like of shape (N,) or (N, targets)
            What was observed there.
        sample_weight : array-like of shape (N,), optional
            How much each row counts.

        Returns
        -------
        float

        Examples
        --------
        With `gp`, `X` and `y` of the class's example:

        >>> bool(gp.score(X, y) > 0.99)
        True
        """
        return r2_of(self.predict(X), y, sample_weight)

    def importance(
        self,
        X: Inputs,
        y: ArrayLike,
        n_repeats: int = 5,
        random_state: int | np.random.RandomState | None = 0,
    ) -> Importance:
        """Measure how much predictions need each column: the fall of R² when its values are shuffled.

        This is scikit-learn's `permutation_importance` of the columns of the table, in the time of a few
        large predictions. Give rows that the model was not fitted to. If two columns say the same, each may
        seem of no use. If the kernel is a sum whose parts are known (see `decompose`), the result also has
        the share of each part in the variance of the predictions at these rows.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.
        y : array-like of shape (N,) or (N, targets)
            What was observed there.
        n_repeats : int, default=5
            The number of shuffles of each column.
        random_state : int, RandomState or None, default=0
            The seed of the shuffles.

        Returns
        -------
        Importance
            To be printed, or `mean`, `std` and `falls` by column, and `shares` by part of the kernel.
        """
        a_count()("n_repeats", n_repeats)
        check_is_fitted(self)
        rows, keep = self._reading.inputs(X, self.model_.schema, self._new_inputs)
        each = () if self.model_.one_target else (len(self.model_.targets),)
        targets = observed_targets(y, (len(rows), *each))
        if keep is not None:
            rows, targets = rows[keep], targets[keep]
        random_state = check_random_state(random_state)
        found = importance(self.model_, rows, targets, n_repeats, random_state)
        return replace(found, shares=self._shares(rows))

    def _shares(self, rows: np.ndarray) -> dict[str, float] | None:
        """Return the share of each part of an additive kernel in the variance of predictions."""
        try:
            with unnamed_columns(), silenced(NoveltyWarning):
                parts = self.decompose(rows)
        except ValueError:  # it says which models have parts
            return None
        return shares_of({name: mean for name, (mean, _) in parts.items()})

    def sample_y(
        self,
        X: Inputs,
        n_samples: int = 1,
        random_state: int | np.random.RandomState | None = 0,
        latent: bool = False,
    ) -> np.ndarray:
        """Draw from the joint posterior at the rows of X.

        More than 2,000 points are drawn without computing the covariance between all points, if the
        aggregator and the kernel allow it.

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

        Examples
        --------
        With `gp`, `X` and `y` of the class's example:

        >>> gp.sample_y(X, n_samples=3).shape
        (200, 3)
        """
        a_count()("n_samples", n_samples)
        points, keep = self._points(X)
        seed = a_seed("random_state", random_state)
        return blanked(predicting.draw(self.model_, points, n_samples, seed, latent), keep)

    def decompose(self, X: Inputs) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Take the function f apart into one function for each part of the kernel, with their uncertainty.

        Each kernel of a sum, such as "periodic(24) + linear", describes a function of its own, and f is
        their sum. What the rows say about one depends on the others, so the variances do not add up to that
        of f. Only models of one exact expert, and of sparse experts that are pooled, can do this.

        Parameters
        ----------
        X : array-like or table of shape (N, d)
            Points.

        Returns
        -------
        dict of str to (mean, std), ndarrays of shape (N,) or (N, targets)
            First the "level", which is the target's mean or linear trend, with standard deviation 0; then
            the parts, by their names in `summary`. The means add up to that of f, `predict(X)`.

        Examples
        --------
        >>> import numpy as np
        >>> import distgp
        >>> X = np.arange(100.0)[:, None]
        >>> y = np.sin(X[:, 0] * np.pi / 12) + 0.01 * X[:, 0]
        >>> gp = distgp.DistributedGPRegressor("exact", kernel="periodic(24) + linear").fit(X, y)
        >>> list(gp.decompose(X))
        ['level', 'Periodic', 'Linear']
        """
        points, keep = self._points(X)
        found, names = predicting.parts(self.model_, points), ["level"]
        for name in self.summary().targets[0].kernel:
            again = sum(other.partition(" #")[0] == name for other in names)
            names.append(f"{name} #{again + 1}" if again else name)
        values = ((blanked(m.copy(), keep), blanked(np.sqrt(v), keep)) for m, v in found)
        return dict(zip(names, values, strict=True))

    def novelty(self, X: Inputs) -> np.ndarray:
        """Tell how unlike the training rows each row is: above 1, more so than 99 % of the training rows.

        It is a distance, divided by the 99 % quantile of that distance over the training rows: the
        Mahalanobis distance to their mean, or, if the model holds its rows, the distance to the nearest
        one, whichever gives more.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.

        Returns
        -------
        ndarray of shape (N,)
        """
        points, keep = self._points(X)
        model = self.model_
        if model.inputs is None:
            raise ValueError(
                "this model does not know what its training rows looked like, since an earlier version of "
                "distgp fitted it: fit it again"
            )
        inputs = predicting.points(model, points, warn=False).inputs
        return blanked(novelty(model.inputs, model.targets[0].ensemble, inputs), keep)

    def to_torch(self, latent: bool = False) -> torch.nn.Module:
        """Make a module of plain PyTorch that predicts as this model does, without distgp.

        The model must be of sparse experts that are pooled. The module takes inputs (N, d) as numbers, in
        the units of the data, and returns means and standard deviations.

        Parameters
        ----------
        latent : bool, default=False
            Whether the standard deviation is that of the function f.

        Returns
        -------
        torch.nn.Module
        """
        check_is_fitted(self)
        return export.to_module(self.model_.targets, self.model_.one_target, latent)

    # The attributes of a fitted regressor.

    @property
    def experts_(self) -> Any:
        """The conditioned experts, an `Ensemble`."""
        return self._of_each(lambda target: target.ensemble)

    @property
    def aggregation_(self) -> Any:
        """The aggregator in use."""
        return self._of_each(lambda target: target.aggregation)

    @property
    def weights_(self) -> Any:
        """The aggregator's weights, one per expert; None where they change from point to point."""
        return self._of_each(lambda target: _array(target.combined.weights))

    @property
    def inducing_(self) -> Any:
        """The inducing inputs in the units of the data, (m, d) or one set per expert; or None."""
        return self._of_each(_original_inducing)

    @property
    def n_inducing_(self) -> Any:
        """The number of inducing inputs per expert; None for exact experts."""
        return self._of_each(_inducing_count)

    @property
    def table_(self) -> Columns:
        """The columns of the table that was fitted, where there was more to do than to take its numbers."""
        if not hasattr(self, "model_") or self.model_.schema.table is None:
            raise AttributeError("this regressor was not fitted to a table of other than numbers")
        return self.model_.schema.table

    @property
    def n_experts_(self) -> int:
        """The number of experts."""
        check_is_fitted(self)
        return self.model_.targets[0].ensemble.size

    # What the methods above are made of.

    @property
    def _reading(self) -> Reading:
        """The parameters that say what a table may hold."""
        return Reading(self.missing, self.unknown, self.dates, tuple(self.categorical))

    @property
    def _plan_of_update(self) -> Plan:
        """The plan of a change to the fitted model."""
        return plan_of_update(self.get_params(deep=False), self.settled_, self.model_)

    def _keep(self, plan: Plan, fitted: Fitted) -> DistributedGPRegressor:
        """Keep what was fitted, and warn of what is doubtful about it."""
        past = self._past()
        if not past.holds(self.get_params(deep=False)):
            past = Past()
        self.choice_ = past.choice if fitted.choice is None else fitted.choice
        self.settled_ = {**past.settled, **fitted.settled}
        vars(self).pop("_reached", None)
        self.model_, self.engine_ = fitted.model, fitted.engine
        vars(self).pop("cv_results_", None)
        if fitted.cv_results is not None:
            self.cv_results_ = fitted.cv_results
        self._combinations: dict[str, Model[TargetModel]] = {}
        fitted.engine.users.add(self)
        targets = fitted.model.targets
        findings.warn_about_fit(targets, plan.bounds, targets[0].ensemble.row_count())
        return self

    def _past(self) -> Past:
        """The past that the next fit goes on from: none without `warm_start`."""
        if not RESOLVERS["warm_start"]("warm_start", self.warm_start):
            vars(self).pop("_reached", None)
            return Past()
        return Past.of(vars(self))

    def _points(self, X: object) -> tuple[np.ndarray, np.ndarray | None]:
        """Rows to predict as numbers, and which of them are complete; None for all."""
        check_is_fitted(self)
        values, keep = self._reading.inputs(X, self.model_.schema, self._new_inputs)
        if keep is None:
            return values, None
        # Rows that are not predicted stand for one that is, or for the mean of the training rows.
        other = values[keep][0] if keep.any() else self.model_.targets[0].scaling.x_mean
        return np.where(keep[:, None], values, other), keep

    def _model(
        self, aggregation: str | Aggregator | None, intervals: bool = False
    ) -> Model[TargetModel]:
        """The model, its experts combined by another aggregator where one is asked for.

        Combinations asked for by name are kept for the next time. Those of a model that is calibrated
        have no `intervals`.
        """
        if aggregation is None:
            return self.model_
        method: Any = RESOLVERS["aggregation"]("aggregation", aggregation)
        known: dict[str, Model[TargetModel]] = vars(self).setdefault("_combinations", {})
        name = aggregation if isinstance(aggregation, str) else ""
        found = known.get(name) or predicting.combined_by(self.model_, method)
        if name:
            known[name] = found
        if intervals:
            predicting.check_calibration(self.model_, found)
        return found

    def _plain_parameters(self) -> dict[str, Any]:
        """Those parameters that a file holds in another form: numbers, names and arrays."""
        plain: dict[str, Any] = {"device": str(self.device), "fixed": list(self.fixed)}
        if isinstance(self.expert, Expert) and _is_by_name(self.expert, self.n_neighbors):
            plain["expert"] = self.expert.name
        if not isinstance(self.partition, str | Partition):
            plain["partition"] = as_labels(self.partition)
        if np.ndim(self.n_inducing):  # pyright: ignore[reportArgumentType]
            plain["n_inducing"] = np.asarray(self.n_inducing, dtype=np.float64)
        return plain


def _central(coverage: float) -> list[float]:
    """The two probabilities that a central interval of this coverage ends at."""
    half = 0.5 * a_probability("coverage", coverage)
    return [0.5 - half, 0.5 + half]


def _places(which: int | Sequence[int], M: int) -> list[int]:
    """The places of some of M experts, counted from the start; refused where they are not, or all."""
    asked = np.atleast_1d(np.asarray(which))
    whole = asked.dtype.kind in "iu" and asked.ndim == 1
    fine = whole and bool((np.abs(asked + 0.5) < M).all())
    places = sorted({int(i) % M for i in asked}) if fine else []
    if not places or len(places) == M:
        raise ValueError(
            f"which must be places of some of the {M} experts, 0 to {M - 1}, not of all, got {which!r}"
        )
    return places


def _is_by_name(expert: Expert, n_neighbors: int) -> bool:
    """Whether the name of an expert stands for the same one, beside the other parameters."""
    named = EXPERTS[expert.name].with_options(n_neighbors)
    return type(named) is type(expert) and vars(named) == vars(expert)


def _predicting(points: np.ndarray, verbose: object) -> Progress:
    """Tell that points are predicted, where progress is to be shown and they take long."""
    return Progress(f"predicting {len(points):,} rows", show=is_shown(verbose))


def _array(value: torch.Tensor | None) -> np.ndarray | None:
    return None if value is None else value.cpu().numpy()


def _original_inducing(target: TargetModel) -> np.ndarray | None:
    Z = target.parameters.inducing
    return None if Z is None else target.scaling.original(Z)


def _inducing_count(target: TargetModel) -> int | None:
    Z = target.parameters.inducing
    return None if Z is None else Z.shape[-2]


def unnamed(predict: Callable[..., Any], X: np.ndarray, *arguments: Any, **options: Any) -> Any:
    """Predict arrays whose columns are known to be in order, though they have no names."""
    with unnamed_columns():
        return predict(X, *arguments, **options)
