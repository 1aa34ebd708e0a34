"""The scikit-learn estimator on sparse grids."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin

from distgp._util.checks import (
    a_probability,
    a_seed,
    is_auto,
    is_integer,
    warn_user,
)
from distgp._util.progress import Progress
from distgp.data import Scaling, Shard
from distgp.data.rows import Schema, check_varies, observed_targets
from distgp.diagnostics import metrics
from distgp.diagnostics.importance import r2_of
from distgp.engines import Engine, opened
from distgp.kernels import Kernel
from distgp.mixin import ModelMixin, names_of
from distgp.model import Model
from distgp.sparsegrid import Box, Combination, Cost, SparseGridModel, VarianceWarning, memory_limit
from distgp.sparsegrid.fitting import GridPlan, placed


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
    engine : "local", "ray" or Engine, default="local"
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
    verbose : bool or "auto", default="auto"
        Whether to show progress on standard error; "auto" does if that is a terminal.

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

    Notes
    -----
    With several targets each column has a model of its own, and the attributes are lists.

    Examples
    --------
    >>> import numpy as np
    >>> import distgp
    >>> X = np.random.default_rng(0).uniform(size=(500, 2))
    >>> y = np.sin(6 * X[:, 0]) * X[:, 1]
    >>> gp = distgp.SparseGridGP(level=4).fit(X, y)
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
        verbose: bool | str = "auto",
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
        return GridPlan.of(self.get_params(deep=False), d).cost(n, targets)

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
        plan = GridPlan.of(self.get_params(deep=False), d)
        cost = plan.cost(n, targets.shape[1])
        if self.normalize or plan.trained:
            check_varies(targets)
        given, like = self.max_memory, plan.like
        in_bytes = memory_limit(like.device) if given is None else min(float(given), 1e9) * 2**30
        cost.refuse_above(int(in_bytes))
        seed, engine = a_seed("random_state", self.random_state), opened(self.engine)
        scalings = [Scaling.of(inputs, column, self.normalize) for column in targets.T]
        box = Box.around(inputs) if is_auto(self.box) else Box.of(self.box, d)
        box = Box(*scalings[0].inputs(torch.stack([box.lower, box.upper]).numpy(), like))
        shards = placed(engine, inputs, targets, scalings, like)
        with Progress(f"fitting {n:,} rows", show=plan.verbose):
            models = tuple(
                plan.fit(shards.derive(Shard.target, column), scaling, box, seed)
                for column, scaling in enumerate(scalings)
            )
        self.model_ = Model(models, columns.ndim == 1, Schema(d, names_of(self)), seed)
        self.n_floored_ = 0 if self.model_.one_target else [0] * len(models)
        self.engine_ = engine
        engine.users.add(self)
        return self

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

        Examples
        --------
        With `gp`, `X` and `y` of the class's example:

        >>> mean, std = gp.predict([[0.5, 0.5]], return_std=True)
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
        **options : options of `predict`
            Such as `latent`.
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

        Examples
        --------
        With `gp`, `X` and `y` of the class's example:

        >>> bool(gp.score(X, y) > 0.99)
        True
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

    def _plain_parameters(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"device": str(self.device)}
        if not isinstance(self.box, str):
            plain["box"] = np.asarray(self.box, dtype=np.float64)
        if isinstance(self.training, list | tuple | np.ndarray):
            plain["training"] = [int(level) for level in self.training]
        if is_integer(self.level):
            plain["level"] = int(self.level)
        return plain
