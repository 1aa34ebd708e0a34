"""The scikit-learn estimator on sparse grids."""

from __future__ import annotations

import warnings
from numbers import Integral
from typing import Any

import numpy as np
import torch

from distgp.engines import Engine
from distgp.estimator import GPEstimator
from distgp.kernels import Kernel
from distgp.scaling import Scaling
from distgp.shards import Shard
from distgp.sources import even_parts, place, with_target
from distgp.sparsegrid.basis import basis_of
from distgp.sparsegrid.cost import Cost
from distgp.sparsegrid.grids import SparseGrid
from distgp.sparsegrid.model import SparseGridModel
from distgp.sparsegrid.plan import Plan
from distgp.sparsegrid.posterior import GridPosterior


class VarianceWarning(UserWarning):
    """The combination's variance fell below what is possible."""


class SparseGridGP(GPEstimator):
    """GP regression with a sparse grid of inducing inputs: the combination technique and OptiCom.

    Every grid Ω_l of the combination is the inducing set of one sparse GP on all rows; their means are
    combined with optimal coefficients. For few columns (up to about 6): beyond, the points of a sparse
    grid lie at its faces.

    Parameters
        level: η of the sparse grid, or "auto": the one after which the bound of the sparse grid gains
            less than 0.001 nats a row, with at most 1,024 points.
        combination: "opticom", optimal coefficients; "ct", those of the combination technique; "full",
            the sparse grid itself as one inducing set.
        kernel: a Kernel, or a name of `distgp.KERNELS` for the product of such kernels over the columns,
            with a lengthscale for each and a signal variance. Product kernels use Kronecker factors.
        noise: the noise variance that training starts from.
        box: where the grids lie: "auto", the range of the rows, or bounds (d, 2) in their units.
        boundary: whether the grids have points on the faces of the box: more points, better edges.
        training: hyperparameters by the sparse bound of "union", the sparse grid itself (of at most 512
            points), or of the grid with these levels, such as (3, 3); None leaves them as given.
        n_iter: rounds of training, at most.
        training_rows: rows that training looks at, None for all, or "auto": 10,000.
        engine: where the rows live: "local", "ray", or an Engine object, which stays yours to close.
        device: "cpu", "cuda", …
        normalize: whether inputs and target are standardised first. Kernel and noise are then those
            of the standardised data; predictions are always in the target's units.
        max_memory: GiB that fitting may take; None for half of what the machine has.
        random_state: the seed of the rows that training looks at.
        verbose: whether to show progress.

    Attributes
        kernel_, noise_: the hyperparameters found.
        training_: the `TrainingResult`, or None.
        level_: the level in use.
        grids_: the levels of each grid, (b, d).
        coefficients_: what the mean combines the grids with, (b,).
        ct_coefficients_: what the variance combines them with, (b,).
        bounds_: each grid's lower bound of the log likelihood, (b,).
        n_floored_: points whose variance was floored, in the last prediction with std or covariance.

    With several targets each column has a model of its own, and these attributes are lists.
    """

    models_: list[SparseGridModel]

    def __init__(
        self,
        level: int | str = "auto",
        combination: str = "opticom",
        kernel: str | Kernel = "matern52",
        noise: float = 0.1,
        box: Any = "auto",
        boundary: bool = False,
        training: Any = "union",
        n_iter: int = 100,
        training_rows: int | str | None = "auto",
        engine: str | Engine = "local",
        device: str = "cpu",
        normalize: bool = True,
        max_memory: float | None = None,
        random_state: Any = 0,
        verbose: bool = False,
    ) -> None:
        self.level = level
        self.combination = combination
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
        """Grids, points, memory and work for n rows of d columns: known before any work starts.

        With level="auto" of the highest level that may be chosen.
        """
        return self._plan(d).cost(n, targets)

    def fit(self, X: Any, y: Any) -> SparseGridGP:
        """Train, condition every grid on all rows (n, d), combine. y: (n,) or (n, targets)."""
        with self._unchanged_on_failure():
            return self._fit(X, y)

    def _fit(self, X: Any, y: Any) -> SparseGridGP:
        X, y = self._checked(X, y)
        targets = y[:, None] if y.ndim == 1 else y
        plan = self._plan(X.shape[1])
        plan.check_targets(targets)
        plan.refuse_too_large(len(X), targets.shape[1])
        scalings = [Scaling.of(X, column, self.normalize) for column in targets.T]
        scaled = [s.targets(t, plan.like) for s, t in zip(scalings, targets.T, strict=True)]
        engine = plan.open_engine()
        inputs = scalings[0].inputs(X, plan.like)
        parts = [
            torch.arange(part.start, part.stop, device=inputs.device)
            for part in even_parts(len(X), engine.workers)
        ]
        shards = [Shard(inputs[rows], inputs.new_zeros(len(rows)), rows) for rows in parts]
        placed = place(engine, shards, torch.stack(scaled, -1))
        del shards, scaled, inputs
        models = []
        for column, scaling in enumerate(scalings):
            workers, box = with_target(placed, column), plan.box_of(X, scaling)
            theta, training = plan.learn(workers, box)
            level = plan.level_for(theta, workers, box)
            grid = SparseGrid.of(level, box.d, bool(self.boundary)).to(plan.like.device)
            if self.combination == "full":
                grid = grid.whole()
            basis = basis_of(theta.kernel, grid, box)
            posterior = GridPosterior.of(theta, basis, workers, plan.combination)
            models.append(SparseGridModel(scaling, box, posterior, training))
        self.models_, self._one_target, self._seed = models, y.ndim == 1, plan.seed
        self.n_floored_ = 0 if self._one_target else [0] * len(models)
        self.engine_ = engine
        engine.users.add(self)
        return self

    def predict(
        self, X: Any, return_std: bool = False, return_cov: bool = False, latent: bool = False
    ) -> Any:
        """The mean at the rows of X; with its standard deviation, or covariance, in the target's units.

        latent: of the function f; else of an observation y = f + noise. The covariance is that of
        algorithm 2, with the variance's floor on its diagonal; with combination other than "full" it
        need not be positive definite.
        """
        X = self._new_inputs(X)
        if return_std and return_cov:
            raise ValueError("give return_std or return_cov, not both")
        if not return_std and not return_cov:
            return self._columns([(m.mean(X),) for m in self.models_])[0]
        parts = [
            m.covariance(X, latent) if return_cov else m.predict(X, latent) for m in self.models_
        ]
        counts = [floored for _, _, floored in parts]
        self.n_floored_ = counts[0] if self._one_target else counts
        if sum(counts):
            warnings.warn(
                f"the combined variance fell below its lower bound kσ²/(σ² + nk) at {sum(counts):,} of "
                f"{len(counts) * len(X):,} points and was set to it there: a sum with negative "
                "coefficients can do that; combination='full' does not, a product kernel does it less",
                VarianceWarning,
                stacklevel=2,
            )
        mean, spread = self._columns([(mean, spread) for mean, spread, _ in parts])
        return mean, spread if return_cov else np.sqrt(spread)

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
        """What the mean combines the grids with, (b,)."""
        return self._of_each(lambda model: model.posterior.c.cpu().numpy())

    @property
    def ct_coefficients_(self) -> Any:
        """What the variance combines the grids with, (b,)."""
        return self._of_each(lambda model: model.posterior.basis.grid.coefficients.cpu().numpy())

    @property
    def bounds_(self) -> Any:
        """Each grid's lower bound of the log likelihood (of the standardised target), (b,)."""
        return self._of_each(lambda model: model.posterior.bounds.cpu().numpy())

    def _plan(self, d: int) -> Plan:
        return Plan(**self.get_params(deep=False), d=d)

    def _plain_parameters(self) -> dict[str, Any]:
        plain: dict[str, Any] = {"device": str(self.device)}
        if not isinstance(self.box, str):
            plain["box"] = np.asarray(self.box, dtype=np.float64)
        if isinstance(self.training, list | tuple | np.ndarray):
            plain["training"] = [int(level) for level in self.training]
        if isinstance(self.level, Integral):
            plain["level"] = int(self.level)
        return plain
