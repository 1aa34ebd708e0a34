"""The scikit-learn estimator. All input of a user is checked here, once."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import KFold
from sklearn.utils.validation import check_is_fitted

from distgp import choices, parquet
from distgp.aggregation import Aggregator
from distgp.engines import Engine, Placement
from distgp.estimator import GPEstimator
from distgp.experts import Expert, Parameters
from distgp.fitting import fit_experts, new_expert
from distgp.kernels import Kernel
from distgp.model import Model
from distgp.partition import Partition
from distgp.scaling import Scaling
from distgp.settings import Settings, labels_of
from distgp.shards import Shard
from distgp.sources import Rows, place, with_target
from distgp.training import Algorithm


class DistributedGPRegressor(GPEstimator):
    """Gaussian process regression on any number of rows: experts on shards, combined into one.

    Parameters
        expert: "exact", "sparse", or "auto": exact up to 20,000 rows, sparse beyond.
        n_experts: how many, "auto" (exact: shards of at most 1,000 rows; sparse: 32 rows an inducing
            input) or "cv", the best of the paper's ⌊√n/4⌋, ⌊√n/5⌋, ⌊√n/6⌋ in 3-fold cross-validation.
        n_inducing: for sparse experts: how many inducing inputs, the inputs themselves (m, d), or
            "auto", by the greedy rule, at most 1,024.
        aggregation: a name of `distgp.AGGREGATORS`, an object, or "auto": pooled where sparse experts
            share all parameters, opt-local where hyperparameters differ, two-level else.
        kernel: a Kernel, or a name of `distgp.KERNELS` for one with a lengthscale for each column and a
            signal variance. Its values are where training starts.
        noise: the noise variance that training starts from.
        partition: a name of `distgp.PARTITIONS`, an object, or an array of labels, one a row.
        training: a name of `distgp.ALGORITHMS`, an object, None (hyperparameters stay as given), or
            "auto": pooled for sparse experts, fact for exact ones.
        n_iter: rounds of training, at most; None for the method's own default.
        learning_rate: of methods that have one; None for the method's own default. fact takes Adam's
            steps with it, and L-BFGS's without.
        training_rows: rows that training looks at, None for all, or "auto": 10,000 for sparse experts,
            all for exact ones. Experts are always conditioned on every row.
        engine: where the experts live: "local", this process; "ray", a Ray cluster (that of RAY_ADDRESS, or
            one started on this machine); or an Engine object, which stays yours to close.
        device: "cpu", "cuda", …
        dtype: "float64" or "float32".
        normalize: whether inputs and target are standardised first. Kernel and noise are then those
            of the standardised data; predictions are always in the target's units.
        random_state: the seed of everything random.
        verbose: whether to show progress.

    Attributes
        kernel_, noise_: the hyperparameters found (of each expert where they differ).
        experts_: the conditioned experts, an `Ensemble`.
        n_experts_: how many there are.
        aggregation_: the aggregator in use.
        weights_: its weights, one an expert; None where they change from point to point.
        training_: the `TrainingResult`, or None.
        inducing_, n_inducing_: the inducing inputs, and how many; None for exact experts.
        cv_results_: with n_experts="cv", the NLPD of each candidate.

    With several targets each column has a model of its own, and these attributes are lists.
    """

    models_: list[Model]

    def __init__(
        self,
        expert: str | Expert = "auto",
        n_experts: int | str = "auto",
        n_inducing: Any = "auto",
        aggregation: str | Aggregator = "auto",
        kernel: str | Kernel = "matern52",
        noise: float = 0.1,
        partition: Any = "random",
        training: str | Algorithm | None = "auto",
        n_iter: int | None = None,
        learning_rate: float | None = None,
        training_rows: int | str | None = "auto",
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
        self.aggregation = aggregation
        self.kernel = kernel
        self.noise = noise
        self.partition = partition
        self.training = training
        self.n_iter = n_iter
        self.learning_rate = learning_rate
        self.training_rows = training_rows
        self.engine = engine
        self.device = device
        self.dtype = dtype
        self.normalize = normalize
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> DistributedGPRegressor:
        """Divide the rows (n, d) over experts, train, condition, combine. y: (n,) or (n, targets)."""
        with self._unchanged_on_failure():
            return self._fit(X, y)

    def _fit(self, X: Any, y: Any) -> DistributedGPRegressor:
        X, y = self._checked(X, y)
        for name in ("table_", "cv_results_"):
            vars(self).pop(name, None)
        targets = y[:, None] if y.ndim == 1 else y
        settings = self._settings(len(X))
        settings.check_targets(targets)
        if settings.number_of_experts() is None:
            settings = replace(settings, n_experts=self._cross_validate(X, y, settings.seed))
        like = settings.like()
        scalings = [Scaling.of(X, column, self.normalize) for column in targets.T]
        engine = settings.open_engine()
        n_experts = settings.number_of_experts(engine.workers)
        assert n_experts is not None
        shards = settings.divide(scalings[0].inputs(X, like), n_experts)
        scaled = [s.targets(column, like) for s, column in zip(scalings, targets.T, strict=True)]
        rows = place(engine, shards, torch.stack(scaled, -1))
        del shards, scaled
        self._fit_placed(settings, engine, rows, scalings, y.ndim == 1)
        return self

    def _fit_placed(
        self,
        settings: Settings,
        engine: Engine,
        rows: Placement[Rows],
        scalings: list[Scaling],
        one_target: bool,
    ) -> None:
        """Train, condition and combine, where the rows are; only then is anything replaced."""
        models = []
        for column, scaling in enumerate(scalings):
            fitted = fit_experts(settings.recipe(scaling), with_target(rows, column))
            models.append(
                Model.of(
                    scaling, fitted.parameters, fitted.ensemble, self.aggregation, fitted.training
                )
            )
        self.models_, self._one_target, self._seed = models, one_target, settings.seed
        self.engine_ = engine
        engine.users.add(self)

    def gather(self) -> DistributedGPRegressor:
        """Bring the experts from the workers of a cluster into this process, and let those go.

        Rows travel for exact experts, which are made of them, and stay behind for sparse ones.
        """
        check_is_fitted(self)
        self.models_ = [model.gathered() for model in self.models_]
        self.close()
        return self

    def fit_parquet(
        self,
        where: str,
        target: str,
        features: Sequence[str] | None = None,
        drop: Sequence[str] = (),
        categorical: Sequence[str] = (),
        dates: str = "refuse",
        missing: str = "refuse",
    ) -> DistributedGPRegressor:
        """Fit rows that the engine's workers read by themselves: a file, a folder, a glob, or a URI.

        This process never holds them. Each worker has consecutive rows, dealt out to its experts at
        random. dates: "refuse" or "expand"; missing: "refuse" or "drop"; text becomes one column of 0 and
        1 for each value.
        """
        columns = {"features": features, "drop": drop, "categorical": categorical, "dates": dates}
        with self._unchanged_on_failure():
            return self._fit_parquet(str(where), target, columns, missing)

    def _fit_parquet(
        self, where: str, target: str, options: dict[str, Any], missing: str
    ) -> DistributedGPRegressor:
        data = parquet.ParquetRows.open(where)
        settings = self._settings(data.n, d=1)  # the width is known once the columns are
        if not isinstance(self.partition, str) or self.partition != "random":
            raise ValueError(
                "workers divide the rows that they read at random: leave partition at 'random'"
            )
        engine = settings.open_engine()
        n_experts = settings.number_of_experts(engine.workers)
        if n_experts is None:
            raise ValueError(
                "n_experts='cv' needs the rows in this process: give a number, or 'auto'"
            )
        stretches, columns = parquet.place(engine, data, n_experts, target, **options)
        raw = parquet.read(stretches, columns, missing, settings.seed)
        d = len(columns.features)
        scaling = parquet.scaling_of(raw, self.normalize, d)
        settings = replace(settings, d=d)
        rows = parquet.standardise(raw, scaling, settings.like())
        del raw
        self._fit_placed(settings, engine, rows, [scaling], True)
        vars(self).pop("cv_results_", None)
        self.n_features_in_, self.table_ = d, columns
        self.feature_names_in_ = np.array(columns.features, dtype=object)
        return self

    def partial_fit(self, X: Any, y: Any) -> DistributedGPRegressor:
        """Add these rows as one new expert; the first call fits.

        Scaling, hyperparameters and inducing inputs stay; with independent training the new expert
        learns its own. The weights of the aggregator are computed anew. Experts on a cluster are brought
        into this process first, as by `gather`.
        """
        if not hasattr(self, "models_"):
            return self.fit(X, y)
        X, y = self._checked(X, y, reset=False)
        targets = y[:, None] if y.ndim == 1 else y
        if targets.shape[1] != len(self.models_):
            raise ValueError(
                f"expected {len(self.models_)} target columns as in fit, got {targets.shape[1]}"
            )
        models = []
        for model, column in zip([m.gathered() for m in self.models_], targets.T, strict=True):
            like, seen = model.parameters.noise, model.ensemble.row_count()
            rows = torch.arange(seen, seen + len(X), device=like.device)
            shard = Shard.of(
                model.scaling.inputs(X, like), model.scaling.targets(column, like), rows
            )
            kind = "exact" if model.ensemble.exact else "sparse"
            recipe = self._settings(seen, kind).recipe(model.scaling)
            group = new_expert(recipe, model.parameters, shard, model.ensemble.size)
            models.append(model.with_group(group, self.aggregation))
        self.models_ = models
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        latent: bool = False,
        aggregation: str | Aggregator | None = None,
    ) -> Any:
        """The mean at the rows of X; with its standard deviation, or covariance, in the target's units.

        latent: of the function f; else of an observation y = f + noise. aggregation: another
        aggregator of the same experts, without fitting again.
        """
        X = self._new_inputs(X)
        if return_std and return_cov:
            raise ValueError("give return_std or return_cov, not both")
        if return_cov:
            return self._columns([m.covariance(X, aggregation, latent) for m in self.models_])
        if not return_std:
            return self._columns([(m.mean(X, aggregation),) for m in self.models_])[0]
        mean, variance = self._columns([m.predict(X, aggregation, latent) for m in self.models_])
        return mean, np.sqrt(variance)

    def sample_y(
        self, X: Any, n_samples: int = 1, random_state: Any = 0, latent: bool = False
    ) -> np.ndarray:
        """Joint draws of y (or f) at the rows of X: (N, n_samples), or (N, targets, n_samples)."""
        X = self._new_inputs(X)
        seeds = np.random.SeedSequence(choices.seed_of(random_state)).generate_state(
            len(self.models_)
        )
        draws = [
            m.sample(X, n_samples, int(seed), latent)
            for m, seed in zip(self.models_, seeds, strict=True)
        ]
        return draws[0] if self._one_target else np.stack(draws, axis=1)

    @property
    def experts_(self) -> Any:
        """The conditioned experts."""
        return self._of_each(lambda model: model.ensemble)

    @property
    def aggregation_(self) -> Any:
        """The aggregator in use."""
        return self._of_each(lambda model: model.aggregation)

    @property
    def weights_(self) -> Any:
        """The aggregator's weights, one an expert; None where they change from point to point."""
        return self._of_each(lambda model: _array(model.combined.weights))

    @property
    def inducing_(self) -> Any:
        """The inducing inputs in the units of the data, (m, d), or one set an expert; None for exact."""
        return self._of_each(_inducing_inputs)

    @property
    def n_inducing_(self) -> Any:
        """The number of inducing inputs of an expert; None for exact ones."""
        return self._of_each(lambda model: _count(model.parameters))

    @property
    def n_experts_(self) -> int:
        """M."""
        check_is_fitted(self)
        return self.models_[0].ensemble.size

    def _settings(self, n: int, kind: str | None = None, d: int | None = None) -> Settings:
        parameters = self.get_params(deep=False)
        if kind is not None:
            parameters["expert"] = kind
        return Settings(**parameters, n=n, d=self.n_features_in_ if d is None else d)

    def _cross_validate(self, X: np.ndarray, y: np.ndarray, seed: int) -> int:
        """The candidate with the lowest NLPD over three folds."""
        candidates = choices.cross_validated_experts(len(X))
        folds = list(KFold(3, shuffle=True, random_state=seed % 2**32).split(X))
        scores = []
        for n_experts in candidates:
            copy: Any = clone(self)
            trial = copy.set_params(n_experts=n_experts, random_state=seed)
            found = [trial.fit(X[a], y[a]).nlpd(X[b], y[b]) for a, b in folds]
            scores.append(float(np.mean(found)))
        self.cv_results_ = {"n_experts": candidates, "nlpd": scores}
        return candidates[int(np.argmin(scores))]

    def _plain_parameters(self) -> dict[str, Any]:
        """Those parameters that a file holds in another form: numbers, names and arrays."""
        plain: dict[str, Any] = {"device": str(self.device)}
        if isinstance(self.expert, Expert):
            plain["expert"] = self.expert.name
        if not isinstance(self.partition, str | Partition):
            plain["partition"] = labels_of(self.partition)
        if np.ndim(self.n_inducing):
            plain["n_inducing"] = np.asarray(self.n_inducing, dtype=np.float64)
        return plain


def _array(value: torch.Tensor | None) -> np.ndarray | None:
    return None if value is None else value.cpu().numpy()


def _inducing_inputs(model: Model) -> np.ndarray | None:
    Z = model.parameters.inducing
    return None if Z is None else model.scaling.original(Z)


def _count(parameters: Parameters) -> int | None:
    return None if parameters.inducing is None else parameters.inducing.shape[-2]


def predict_unnamed(model: GPEstimator, X: Any, **options: Any) -> Any:
    """Predictions for arrays whose columns are known to be in order, though they have no names."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="X does not have valid feature names")
        return model.predict(X, **options)  # pyright: ignore[reportAttributeAccessIssue]
