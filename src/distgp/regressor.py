"""The scikit-learn estimator. A user's parameters and input are checked here, once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import KFold
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from distgp import auto, choice, findings
from distgp import novelty as new
from distgp.aggregation import (
    AGGREGATORS,
    GRBCM,
    AggregationError,
    Aggregator,
    Combined,
    Ensemble,
)
from distgp.auto import is_auto
from distgp.data import parquet, sample
from distgp.data.partition import PARTITIONS, Partition, split, with_communication
from distgp.data.scaling import Scaling
from distgp.data.shard import Shard
from distgp.data.source import place
from distgp.engines import Engine, Placement
from distgp.estimator import (
    DTYPES,
    Check,
    GPEstimator,
    a_count,
    a_kernel,
    a_name,
    a_positive_number,
    an_engine,
    by_name,
    check_varies,
    default_bounds,
    labels_of,
    names_given,
    one_of,
    opened,
    seed_of,
    starting_parameters,
    tensor_like,
)
from distgp.experts import EXPERTS, Expert, NearestExpert, Parameters, SparseExpert
from distgp.fit import Inducing, fit_model, new_expert
from distgp.kernels import Kernel
from distgp.model import Model
from distgp.training import ALGORITHMS, Algorithm, Independent, Prior


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
        A kernel, or a name in `distgp.KERNELS`, which gets one lengthscale per column and a signal
        variance; "linear"; or names joined by "+", such as "matern52 + linear". Its values are where
        training starts. "auto" measures Matérn-5/2 and RBF, each with and without a linear part, and
        linear alone.
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
        self.engine = engine
        self.device = device
        self.dtype = dtype
        self.normalize = normalize
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, time: Any = None, groups: Any = None) -> DistributedGPRegressor:
        """Choose where the choice is left to us; divide the rows over experts, train, combine.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, targets)
            Targets.
        time : array-like of shape (n,) or str, optional
            For validation="last": when each row was observed, as numbers or dates, or the name of a
            column of X, which stays an input and so must hold numbers. By default rows are in the
            order of time.
        groups : array-like of shape (n,) or str, optional
            For validation="groups": the group of each row, or the name of a column of X.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.
        """
        with self._unchanged_on_failure():
            return self._fit(X, y, _column(X, time, "time"), _column(X, groups, "groups"))

    def _fit(self, X: Any, y: Any, time: Any, groups: Any) -> DistributedGPRegressor:
        X, y = self._checked(X, y)
        self._check_parameters()
        if self.mean == "linear" and not self.normalize:
            raise ValueError("mean='linear' needs normalize=True, got normalize=False")
        for name, given, kind in (("time", time, "last"), ("groups", groups, "groups")):
            if given is not None and self.validation != kind:
                raise ValueError(
                    f"{name}= says which rows are held out where validation={kind!r}, but validation is "
                    f"{self.validation!r}"
                )
        vars(self).pop("table_", None)
        vars(self).pop("cv_results_", None)
        targets = y[:, None] if y.ndim == 1 else y
        if self.normalize or self.training is not None:
            check_varies(targets)
        seed, n = seed_of(self.random_state), len(X)
        self._choose(X, y, time, groups, seed)
        expert, like = self._expert(n), self._like()
        n_experts = self._cross_validated(X, y, seed) if self.n_experts == "cv" else self.n_experts
        scalings = [
            Scaling.of(X, column, self.normalize, self.mean == "linear") for column in targets.T
        ]
        engine = opened(self.engine)
        n_experts = self._value("n_experts") if is_auto(n_experts) else n_experts
        M = self._number_of_experts(n_experts, n, expert, engine.workers)
        columns = zip(scalings, targets.T, strict=True)
        scaled = torch.stack([s.targets(column, X, like) for s, column in columns], -1)
        inputs = scalings[0].inputs(X, like)
        data = Shard(inputs, scaled, torch.arange(n, device=inputs.device))
        shards = place(engine, self._divided(data, M, seed))
        del data, scaled, inputs
        self._fit_placed(engine, shards, scalings, expert, seed, y.ndim == 1)
        return self

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
        data = parquet.ParquetRows.open(path)
        seed, engine = seed_of(self.random_state), opened(self.engine)
        again = self._chosen_before()
        if not again:
            self.settled_, self.choice_ = {}, None
        if self._left_to_us() and not again:
            few = min(engine.workers, data.n)
            stretches, columns = parquet.place(engine, data, few, target, **options)
            raw = parquet.read(stretches, columns, missing, seed)
            some = sample.drawn(raw, auto.TRIAL_SAMPLE, seed)
            del stretches, raw
            X, y = (value.cpu().numpy() for value in (some.X, some.y))
            self._choose(X, y, some.rows.cpu().numpy(), None, seed)
        expert = self._expert(data.n)
        n_experts = self._value("n_experts")
        M = self._number_of_experts(n_experts, data.n, expert, engine.workers)
        stretches, columns = parquet.place(engine, data, M, target, **options)
        raw = parquet.read(stretches, columns, missing, seed)
        d = len(columns.features)
        scaling = parquet.scaling_of(raw, self.normalize, d)
        shards = parquet.standardise(raw, scaling, self._like())
        del raw
        self.n_features_in_, self.table_ = d, columns
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
            start, search = self._start(column)
            options = self._training_options(expert, scaling, seed) | {"search": search}
            models.append(
                fit_model(one, scaling, expert, start, algorithm, self._aggregator, **options)
            )
        inputs = new.Inputs.of(shards, seed, nearest=not isinstance(expert, SparseExpert))
        models = [replace(model, inputs=inputs) for model in models]
        self.models_, self._one_target, self._seed = models, one_target, seed
        self._combinations: dict[str, Sequence[Combined]] = {}
        self.engine_ = engine
        engine.users.add(self)
        findings.tell(models, self.bounds, models[0].ensemble.row_count(), targets=None)

    def partial_fit(self, X: Any, y: Any) -> DistributedGPRegressor:
        """Add rows as one new expert; the first call fits.

        Scaling, hyperparameters and inducing inputs stay; with independent training the new expert
        learns its own. The weights of the aggregator are computed anew. Experts on a cluster are
        brought into this process first, as by `gather`.

        Parameters
        ----------
        X, y : array-like
            New rows, as for `fit`.

        Returns
        -------
        DistributedGPRegressor
            The estimator itself.
        """
        if not hasattr(self, "models_"):
            return self.fit(X, y)
        X, y = self._checked(X, y, reset=False)
        targets = y[:, None] if y.ndim == 1 else y
        if targets.shape[1] != len(self.models_):
            raise ValueError(
                f"expected {len(self.models_)} target columns as in fit, got {targets.shape[1]}"
            )
        self._check_parameters()
        models = []
        for model, column in zip([m.gathered() for m in self.models_], targets.T, strict=True):
            like, seen = model.parameters.noise, model.ensemble.row_count()
            rows = torch.arange(seen, seen + len(X), device=like.device)
            inputs, scaled = model.scaling.inputs(X, like), model.scaling.targets(column, X, like)
            expert = model.ensemble.expert
            options = self._training_options(expert, model.scaling, self._seed)
            options |= {"search": not isinstance(self.kernel, Kernel)}
            posterior = new_expert(
                Shard.of(inputs, scaled, rows),
                expert,
                model.parameters,
                self._starting(self.n_features_in_),
                self._algorithm(expert, self._seed),
                **options,
            )
            models.append(model.with_expert(posterior, self._aggregator))
        self.models_, self._combinations = models, {}
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        latent: bool = False,
        aggregation: str | Aggregator | None = None,
    ) -> Any:
        """Predict at the rows of X, in the target's units.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.
        return_std : bool, default=False
            Whether to return the standard deviation too.
        return_cov : bool, default=False
            Whether to return the covariance between all points too.
        latent : bool, default=False
            Whether the uncertainty is that of the function f; by default it is that of an
            observation y = f + noise.
        aggregation : str or Aggregator, optional
            Another aggregator of the same experts, without fitting again.

        Returns
        -------
        mean : ndarray of shape (N,) or (N, targets)
        std : ndarray of the same shape
            Where `return_std`.
        covariance : ndarray of shape (N, N) or (N, N, targets)
            Where `return_cov`.
        """
        X = self._new_inputs(X)
        new.tell_novelty(self.models_[0], X)
        if return_std and return_cov:
            raise ValueError("give return_std or return_cov, not both")
        pairs = list(zip(self.models_, self._combined(aggregation), strict=True))
        if return_cov:
            return self._columns([m.covariance(X, latent, combined) for m, combined in pairs])
        if not return_std:
            return self._columns([(m.mean(X, combined),) for m, combined in pairs])[0]
        parts = [m.predict(X, latent, combined) for m, combined in pairs]
        mean, variance = self._columns(parts)
        return mean, np.sqrt(variance)

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
        X = self._new_inputs(X)
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
        return new.novelty(self.models_[0], self._new_inputs(X))

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

    # What "auto" stands for: what was measured, or a rule.

    def _value(self, name: str) -> Any:
        """A parameter as the choice settled it, or as given."""
        given = getattr(self, name)
        return getattr(self, "settled_", {}).get(name, given) if is_auto(given) else given

    def _left_to_us(self) -> bool:
        """Whether the way to fit, or the kernel, is to be chosen by measuring."""
        return auto.way_is_left(self) or is_auto(self.kernel)

    def _choose(self, X: np.ndarray, y: np.ndarray, time: Any, groups: Any, seed: int) -> None:
        """Measure the candidates on rows held out, and settle what was left to us."""
        if self._chosen_before():
            return
        self.settled_, self.choice_ = {}, None
        if len(X) < choice.LEAST_ROWS or not self._left_to_us():
            return
        self._check_before_trials(X.shape[1])
        divisions = choice.divisions(
            len(X), self.validation, auto.TRIAL_TEST, time=time, groups=groups, seed=seed
        )
        kind, kernel = self._expert(len(X)).name, self._kernel()
        best, self.choice_ = auto.choose(self, kind, kernel, X, y, divisions, seed)
        self.settled_ = dict(best.settings)
        if self.verbose:
            print(self.choice_, file=sys.stderr)
        if self.choice_.better_baselines:
            new.warn_user(choice.outdone(self.choice_), choice.ChoiceWarning)

    def _chosen_before(self) -> bool:
        """Whether an earlier choice still holds: with `warm_start`, while all that it set is left to us."""
        settled = getattr(self, "settled_", {})
        return bool(self.warm_start and settled) and all(is_auto(getattr(self, k)) for k in settled)

    def _check_before_trials(self, d: int) -> None:
        """Refuse what would fail in every trial."""
        self._like()
        if not is_auto(self.kernel):
            start = self._starting(d)
            for name in (*(self.bounds or {}), *(self.priors or {}), *self.fixed):
                start.paths(name)

    # Names turned into objects.

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

    def _starting(self, d: int) -> Parameters:
        return starting_parameters(self._kernel(), self.noise, d, self._like())

    def _kernel(self) -> str | Kernel:
        """The kernel as given, or as chosen."""
        given = self._value("kernel")
        return auto.KERNELS_TRIED[0] if is_auto(given) else given

    def _start(self, column: int) -> tuple[Parameters, bool]:
        """Where training of a target starts, and whether shorter lengthscales may be tried."""
        start = self._starting(self.n_features_in_)
        if not self.warm_start or not hasattr(self, "models_"):
            return start, not isinstance(self.kernel, Kernel)
        before = self.models_[min(column, len(self.models_) - 1)].parameters.averaged()
        same = before.kernel.parameters().keys() == start.kernel.parameters().keys()
        return (before.to(start.noise.device, start.noise.dtype), False) if same else (start, True)

    def _training_options(self, expert: Expert, scaling: Scaling, seed: int) -> dict[str, Any]:
        """Options of `fit.learn`."""
        rows = self.training_rows
        if is_auto(rows):
            rows = auto.TRAINING_ROWS if isinstance(expert, SparseExpert) else None
        start = self._starting(self.n_features_in_)
        bounds = default_bounds(self._kernel(), start, capped=bool(self.normalize))
        for name, (low, high) in (self.bounds or {}).items():
            bounds |= dict.fromkeys(start.paths(name), (float(low), float(high)))
        return {
            "inducing": self._inducing(scaling),
            "training_rows": rows,
            "priors": self.priors,
            "bounds": bounds,
            "fixed": list(self.fixed),
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

    def _cross_validated(self, X: np.ndarray, y: np.ndarray, seed: int) -> int:
        """The number of experts with the lowest NLPD over three folds."""
        if self._labels(len(X)) is not None:
            self._number_of_experts("cv", len(X), self._expert(len(X)), 1)  # refuses
        candidates = auto.cross_validated_experts(len(X))
        folds = list(KFold(3, shuffle=True, random_state=seed % 2**32).split(X))
        scores = []
        for n_experts in candidates:
            copy: Any = clone(self)
            trial = copy.set_params(n_experts=n_experts, random_state=seed, kernel=self._kernel())
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = [trial.fit(X[a], y[a]).nlpd(X[b], y[b]) for a, b in folds]
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


def _array(value: Tensor | None) -> np.ndarray | None:
    return None if value is None else value.cpu().numpy()


def _original_inducing(model: Model) -> np.ndarray | None:
    Z = model.parameters.inducing
    return None if Z is None else model.scaling.original(Z)


def _count(parameters: Parameters) -> int | None:
    return None if parameters.inducing is None else parameters.inducing.shape[-2]


def predict_unnamed(model: GPEstimator, X: Any, **options: Any) -> Any:
    """Predictions for arrays whose columns are known to be in order, though they have no names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return model.predict(X, **options)  # pyright: ignore[reportAttributeAccessIssue]
