"""The scikit-learn estimator on sparse grids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from torch import Tensor

from distgp._util.checks import (
    Resolver,
    a_count,
    a_name,
    a_positive_number,
    a_probability,
    a_seed,
    is_auto,
    is_integer,
    one_of,
    warn_user,
)
from distgp._util.progress import Progress, doing
from distgp.data import Scaling, Shard, place
from distgp.data import shard as sample
from distgp.data.rows import Schema, check_varies, observed_targets
from distgp.data.shard import even_parts
from distgp.diagnostics import metrics
from distgp.engines import Engine, Placement, opened
from distgp.experts import Parameters, SparseExpert
from distgp.kernels import KERNELS, InputLayout, Kernel, latitudes
from distgp.mixin import ModelMixin, names_of, r2_of
from distgp.model import Model
from distgp.plan import an_engine, tensor_like
from distgp.sparsegrid import (
    Box,
    Combination,
    Cost,
    SparseGridModel,
    VarianceWarning,
    axis_size,
    choose_level,
    condition,
    factors,
    grid,
    highest_level,
    memory_limit,
    number_of_points,
    separable,
    sparse_grid,
)
from distgp.training import Learning, PooledBound, TrainingResult
from distgp.training.initial import Initial

LARGEST_UNION = 1_024
"""Points of the sparse grid, at most, that `level="auto"` goes up to."""
TRAINING_UNION = 512
"""Points of the sparse grid, at most, that hyperparameters are trained on."""


class SparseGridGP(RegressorMixin, ModelMixin):
    """GP regression with a sparse grid of inducing inputs: the combination technique and OptiCom.

    Every grid Ω_l of the combination is the inducing set of one sparse GP on all rows; their means are
    combined with optimal coefficients. It is meant for few columns, up to about 6: beyond, the points
    of a sparse grid lie at its faces.

    Parameters
    ----------
    level : int or "auto", default="auto"
        The level η of the sparse grid. "auto" takes the level after which the bound of the sparse grid
        gains less than 0.001 nats per row, with at most 1,024 points.
    combination : {"opticom", "ct", "full"}, default="opticom"
        Optimal coefficients; those of the combination technique; or the sparse grid itself as one
        inducing set.
    kernel : str or Kernel, default="matern52"
        A kernel, or a name in `distgp.KERNELS` for the product of such kernels over the columns, with
        a lengthscale for each and a signal variance. Product kernels use Kronecker factors.
    noise : float, default=0.1
        The noise variance that training starts from.
    box : "auto" or array-like of shape (d, 2) or (2,), default="auto"
        Where the grids lie: lower and upper bounds in the units of the data; "auto" for the range of
        the rows.
    boundary : bool, default=False
        Whether the grids have points on the faces of the box: more points, better edges.
    training : "union", sequence of int or None, default="union"
        What hyperparameters are learnt with: the bound of the sparse grid itself, of at most 512
        points, or of the grid with these levels, such as (3, 3). None keeps them as given.
    n_iter : int, default=100
        The number of rounds of training, at most.
    training_rows : int, "auto" or None, default="auto"
        The number of rows that training looks at, None for all. "auto": 10,000.
    engine : {"local", "ray"} or Engine, default="local"
        Where the rows live: in this process, on a Ray cluster, or on an engine of your own, which
        stays yours to close.
    device : str, default="cpu"
        Where tensors live: "cpu", "cuda", …
    normalize : bool, default=True
        Whether inputs and target are standardised first. Kernel and noise are then those of the
        standardised data; predictions are always in the target's units.
    max_memory : float, optional
        GiB that fitting may take; by default half of what the machine has.
    random_state : int, RandomState or None, default=0
        The seed of the rows that training looks at.
    verbose : bool, default=False
        Whether to show progress.

    Attributes
    ----------
    kernel_, noise_ : Kernel, float
        The hyperparameters found.
    training_ : TrainingResult or None
        How training went.
    level_ : int
        The level in use.
    grids_ : ndarray of shape (b, d)
        The levels of each grid.
    coefficients_, ct_coefficients_ : ndarray of shape (b,)
        What the mean, and what the variance, combines the grids with.
    bounds_ : ndarray of shape (b,)
        Each grid's lower bound of the log likelihood.
    n_floored_ : int
        The number of points whose variance was floored in the last prediction of it.

    With several targets each column has a model of its own, and these attributes are lists.

    Examples
    --------
    >>> import numpy as np
    >>> import distgp
    >>> X = np.random.default_rng(0).uniform(size=(500, 2))
    >>> gp = distgp.SparseGridGP(level=4).fit(X, np.sin(6 * X[:, 0]) * X[:, 1])
    >>> bool(abs(gp.predict([[0.5, 0.5]])[0] - 0.5 * np.sin(3)) < 0.01)
    True
    """

    model_: Model[SparseGridModel]

    def __init__(
        self,
        level: int | str = "auto",
        combination: Combination = "opticom",
        kernel: str | Kernel = "matern52",
        noise: float = 0.1,
        box: str | ArrayLike = "auto",
        boundary: bool = False,
        training: str | Sequence[int] | None = "union",
        n_iter: int = 100,
        training_rows: int | str | None = "auto",
        engine: str | Engine = "local",
        device: str = "cpu",
        normalize: bool = True,
        max_memory: float | None = None,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.level = level
        self.combination: Combination = combination
        self.kernel = kernel
        self.noise = noise
        self.box = box
        self.boundary = boundary
        self.training = training
        self.n_iter = n_iter
        self.training_rows = training_rows
        self.engine = engine
        self.device = device
        self.normalize = normalize
        self.max_memory = max_memory
        self.random_state = random_state
        self.verbose = verbose

    def describe(self, n: int, d: int, targets: int = 1) -> Cost:
        """Tell what fitting takes, before any work starts.

        Parameters
        ----------
        n, d : int
            The number of rows and of columns.
        targets : int, default=1
            The number of targets.

        Returns
        -------
        Cost
            Grids, points, memory and work; with level="auto" those of the highest level that may be
            chosen.
        """
        for name, check in RESOLVERS.items():
            check(name, getattr(self, name))
        levels, rows = _named_grid(self.training, d), self._training_rows()
        if not is_auto(self.box):
            Box.of(self.box, d)
        if levels is not None:
            inducing = math.prod(axis_size(level, self.boundary) for level in levels)
        elif self.training is not None:
            inducing = number_of_points(self._union_level(d), d, self.boundary)
        else:
            inducing = 0
        return Cost.of(
            n,
            d,
            self._highest_level(d),
            self.combination,
            boundary=self.boundary,
            kronecker=factors(self._initial(d).parameters.kernel, d) is not None,
            targets=targets,
            training=(inducing, n if rows is None else min(n, rows)),
            device=self._like().device,
        )

    def fit(self, X: ArrayLike, y: ArrayLike) -> SparseGridGP:
        """Train, condition every grid on all rows, combine.

        Parameters
        ----------
        X : array-like of shape (n, d)
            Inputs.
        y : array-like of shape (n,) or (n, targets)
            Targets.

        Returns
        -------
        SparseGridGP
            The estimator itself.

        Raises
        ------
        MemoryError
            Where fitting would take more memory than allowed, before any work is done.
        """
        with self._changing():
            return self._fit(X, y)

    def _fit(self, X: ArrayLike, y: ArrayLike) -> SparseGridGP:
        inputs, columns = self._validated(X, y, reset=True)
        targets = columns[:, None] if columns.ndim == 1 else columns
        n, d = inputs.shape
        cost = self.describe(n, d, targets.shape[1])  # checks all parameters
        if self.normalize or self.training is not None:
            check_varies(targets)
        given, like = self.max_memory, self._like()
        in_bytes = memory_limit(like.device) if given is None else min(float(given), 1e9) * 2**30
        cost.refuse_above(int(in_bytes))
        seed, engine = a_seed("random_state", self.random_state), opened(self.engine)
        scalings = [Scaling.of(inputs, column, self.normalize) for column in targets.T]
        box = Box.around(inputs) if is_auto(self.box) else Box.of(self.box, d)
        box = Box(*scalings[0].inputs(torch.stack([box.lower, box.upper]).numpy(), like))
        shards = _placed(engine, inputs, targets, scalings, like)
        with Progress(f"fitting {n:,} rows", show=self.verbose):
            models = tuple(
                self._fit_target(shards.derive(Shard.target, column), scaling, box, seed)
                for column, scaling in enumerate(scalings)
            )
        self.model_ = Model(models, columns.ndim == 1, Schema(d, names_of(self)), seed)
        self.n_floored_ = 0 if self.model_.one_target else [0] * len(models)
        self.engine_ = engine
        engine.users.add(self)
        return self

    def _fit_target(
        self, shards: Placement[Shard], scaling: Scaling, box: Box, seed: int
    ) -> SparseGridModel:
        start, result = self._initial(box.d), None
        theta = start.parameters
        if self.training is not None:
            result = self._learn(shards, start, box, seed)
            theta = replace(result.parameters, inducing=None)
        doing("choosing the level of the grid")
        level = self._level(shards, theta, box, seed)
        doing("conditioning every grid on all rows")
        posterior = condition(theta, shards, box, level, self.combination, self.boundary)
        return SparseGridModel(scaling, box, posterior, result)

    def _learn(
        self, shards: Placement[Shard], start: Initial, box: Box, seed: int
    ) -> TrainingResult:
        """Learn θ by the sparse bound of the union of the grids, or of one of them."""
        levels = _named_grid(self.training, box.d)
        if levels is None:
            Z = sparse_grid(self._union_level(box.d), box, self.boundary)
        else:
            Z = grid(levels, box, self.boundary)
        learning = Learning(
            PooledBound(n_iter=self.n_iter),
            start.parameters,
            inducing=Z,
            search=start.named,
            rows=self._training_rows(),
            bounds=start.bounds(),
            fixed=start.fixed,
            seed=seed,
            verbose=self.verbose,
        )
        return learning.on(SparseExpert(), shards)

    def _level(self, shards: Placement[Shard], theta: Parameters, box: Box, seed: int) -> int:
        """The level given, or by the bound on the rows that training looks at."""
        if not is_auto(self.level):
            return int(self.level)
        n = int(sample.sizes(shards).sum())
        share = min(1.0, (self._training_rows() or n) / n)
        looked_at = sample.sampled(shards, share, seed)
        return choose_level(theta, looked_at, box, self._highest_level(box.d), self.boundary)

    def predict(
        self, X: ArrayLike, return_std: bool = False, return_cov: bool = False, latent: bool = False
    ) -> Any:
        """Predict at the rows of X, in the target's units.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.
        return_std : bool, default=False
            Whether to return the standard deviation too.
        return_cov : bool, default=False
            Whether to return the covariance between all points too: that of algorithm 2, with the
            variance's floor on its diagonal. With a combination other than "full" it need not be
            positive definite.
        latent : bool, default=False
            Whether the uncertainty is that of the function f; by default it is that of an
            observation y = f + noise.

        Returns
        -------
        mean : ndarray of shape (N,) or (N, targets)
        std : ndarray of the same shape
            Where `return_std`.
        covariance : ndarray of shape (N, N) or (N, N, targets)
            Where `return_cov`.
        """
        points, model = self._new_inputs(X), self.model_
        if return_std and return_cov:
            raise ValueError("give return_std or return_cov, not both")
        if not return_std and not return_cov:
            return model.columns([(target.mean(points),) for target in model.targets])[0]
        parts = [
            target.covariance(points, latent) if return_cov else target.predict(points, latent)
            for target in model.targets
        ]
        counts = [floored for _, _, floored in parts]
        self.n_floored_ = counts[0] if model.one_target else counts
        if sum(counts):
            warn_user(
                f"the combined variance fell below its lower bound kσ²/(σ² + nk) at {sum(counts):,} of "
                f"{len(counts) * len(points):,} points and was set to it there: a sum with negative "
                "coefficients can do that; combination='full' does not, a product kernel does it less",
                VarianceWarning,
            )
        mean, spread = model.columns([(mean, spread) for mean, spread, _ in parts])
        return mean, spread if return_cov else np.sqrt(spread)

    def predict_with_interval(
        self,
        X: ArrayLike,
        coverage: float = 0.9,
        *,
        latent: bool = False,
        aggregation: str | None = None,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Mean, standard deviation and the central interval of the predicted normal distribution.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.
        coverage : float, default=0.9
            The probability, between 0 and 1.
        latent : bool, default=False
            Whether the interval is one for the function f.
        aggregation : None
            Sparse grids have no aggregators: anything else is refused.

        Returns
        -------
        mean, std, lower, upper : ndarray of shape (N,) or (N, targets)
        """
        if aggregation is not None:
            raise ValueError(f"sparse grids have no aggregators, got {aggregation!r}: leave it out")
        mean, std = self.predict(X, return_std=True, latent=latent)
        half = NormalDist().inv_cdf(0.5 + 0.5 * a_probability("coverage", coverage)) * std
        return mean, std, mean - half, mean + half

    def nlpd(self, X: ArrayLike, y: ArrayLike, **options: Any) -> float:
        """The mean negative log predictive density of observed targets. Lower is better.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.
        y : array-like of shape (N,) or (N, targets)
            What was observed there.
        **options
            Options of `predict`.
        """
        mean, std = self.predict(X, return_std=True, **options)
        targets = observed_targets(y, mean.shape)
        return metrics.nlpd(targets.ravel(), mean.ravel(), np.square(std).ravel())

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """R² of the means.

        Parameters
        ----------
        X : array-like of shape (N, d)
            Points.
        y : array-like of shape (N,) or (N, targets)
            What was observed there.
        sample_weight : array-like of shape (N,), optional
            How much each row counts.

        Returns
        -------
        float
        """
        return r2_of(self.predict(X), y, sample_weight)

    @property
    def level_(self) -> Any:
        """The level in use."""
        return self._of_each(lambda model: model.posterior.basis.grid.level)

    @property
    def grids_(self) -> Any:
        """The levels of each grid, (b, d); all 0 for the sparse grid itself."""
        return self._of_each(lambda model: model.posterior.basis.grid.levels.cpu().numpy())

    @property
    def coefficients_(self) -> Any:
        """The coefficients by which the mean combines the grids, (b,)."""
        return self._of_each(lambda model: model.posterior.c.cpu().numpy())

    @property
    def ct_coefficients_(self) -> Any:
        """The coefficients by which the variance combines the grids, (b,)."""
        return self._of_each(lambda model: model.posterior.basis.grid.coefficients.cpu().numpy())

    @property
    def bounds_(self) -> Any:
        """Each grid's lower bound of the log likelihood (of the standardised target), (b,)."""
        return self._of_each(lambda model: model.posterior.bounds.cpu().numpy())

    def _like(self) -> Tensor:
        """A tensor on the device; sparse grids compute in float64."""
        return tensor_like(self.device, torch.float64)

    def _initial(self, d: int) -> Initial:
        """Kernel and noise to start from; named kernels are products over the columns."""
        kernel, like = self.kernel, self._like()
        if isinstance(kernel, Kernel):
            if latitudes(kernel, d):
                raise ValueError("sparse grids fill a box, and have no kernels on the sphere")
            return Initial.of(kernel, self.noise, InputLayout.of_array(d), like)
        # Points of standardised data are √d apart, so that is a lengthscale to start from.
        made = 1.0 * separable(KERNELS[kernel], [math.sqrt(d)] * d)
        start = Parameters.of(made, float(self.noise)).to(like.device, like.dtype)
        return Initial(start, named=True, signals=("kernel.variance",))

    def _training_rows(self) -> int | None:
        """The number of rows that training looks at; None for all."""
        rows = self.training_rows
        return SparseExpert.training_rows if is_auto(rows) else None if rows is None else int(rows)

    def _highest_level(self, d: int) -> int:
        """The level given, or the highest that "auto" may choose."""
        most = LARGEST_UNION
        return highest_level(most, d, self.boundary) if is_auto(self.level) else int(self.level)

    def _union_level(self, d: int) -> int:
        """The level of the sparse grid that hyperparameters are trained on."""
        return min(highest_level(TRAINING_UNION, d, self.boundary), self._highest_level(d))

    def _plain_parameters(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"device": str(self.device)}
        if not isinstance(self.box, str):
            plain["box"] = np.asarray(self.box, dtype=np.float64)
        if isinstance(self.training, list | tuple | np.ndarray):
            plain["training"] = [int(level) for level in self.training]
        if is_integer(self.level):
            plain["level"] = int(self.level)
        return plain


def _placed(
    engine: Engine, X: np.ndarray, targets: np.ndarray, scalings: list[Scaling], like: Tensor
) -> Placement[Shard]:
    """The standardised rows with all targets, divided evenly over the engine's workers."""
    columns = zip(scalings, targets.T, strict=True)
    scaled = torch.stack([scaling.targets(column, X, like) for scaling, column in columns], -1)
    data = Shard(scalings[0].inputs(X, like), scaled, torch.arange(len(X), device=like.device))
    parts = even_parts(len(X), engine.workers)
    return place(engine, [data.take(slice(part.start, part.stop)) for part in parts])


def _named_grid(training: str | Sequence[int] | None, d: int) -> list[int] | None:
    """The levels of the grid that training uses; None where it uses the union of all, or none."""
    if training is None or (isinstance(training, str) and training == "union"):
        return None
    fine = isinstance(training, list | tuple | np.ndarray) and len(training) == d
    if not fine or not all(is_integer(level) and level >= 1 for level in training):
        raise ValueError(
            f"training must be 'union', None, or the {d} levels of one grid such as "
            f"{(2,) * d}, got {training!r}"
        )
    return [int(level) for level in training]


RESOLVERS: dict[str, Resolver] = {
    "level": a_count("auto"),
    "combination": one_of(*get_args(Combination)),
    "kernel": a_name(KERNELS, Kernel),
    "noise": a_positive_number("a positive, finite variance"),
    "boundary": one_of(True, False),
    "n_iter": a_count(),
    "training_rows": a_count(None, "auto"),
    "engine": an_engine,
    "normalize": one_of(True, False),
    "max_memory": a_positive_number("a positive number of GiB", None),
    "verbose": one_of(True, False),
}
"""What each parameter may be."""
