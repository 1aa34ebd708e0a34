"""What "auto" means: the candidates that are measured, and rules where nothing is measured.

With all of expert, aggregation, training, and the numbers of experts and inducing inputs left at
"auto", rows are held out, the candidates below are tried, and the best is fitted to all rows. Trials
are cheap: they learn from few rows, but for nearest rows, whose neighbours must be as near as they
will be; and training of the best starts where its trial ended. Where something is given, rules by the
number of rows decide the rest.

`benchmarks/estimator.py` measures the costs behind the rules on two CPU cores. Training exact experts of
s rows costs about s²n per round. On a smooth function small shards lose nothing and are cheap; on a
rough one, where rows never suffice, the error falls as s grows, and sparse experts are far worse. So s
is as large as seems affordable: 1,000. Two-level adds n² kernel values, again for every n rows
predicted: beyond 20,000 rows sparse experts take over, whose cost is linear in n, and constant for
training.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from distgp.aggregation import Aggregator, Ensemble, Nearest, OptLocal, PoE, Pooled, TwoLevel
from distgp.choice import Choice, Divisions, baselines, best_of, measured_all
from distgp.data.partition import Partition
from distgp.experts import NearestExpert, Parameters
from distgp.progress import Progress
from distgp.training import NearestRows

EXACT_SHARD = 1_000
"""Rows per exact expert, at most."""
EXACT_ROWS = 20_000
"""Rows up to which experts are exact: beyond, the n² kernel values of two-level weigh too much."""
SPARSE_SHARD = 32
"""Rows per sparse expert for each inducing input: its m³ is then little beside its nm²."""
EXPERT_MEMORY = 2**26
"""Bytes that the m × m matrices of all sparse experts may take together."""
LARGEST_INDUCING = 1024
"""Inducing inputs at most, where the greedy rule chooses; conditioning costs m² per row."""
TRAINING_INDUCING = (128, 256)
"""Inducing inputs at most in the two stages of training; they are chosen anew in between."""
NEAREST_INDUCING = 256
"""Inducing inputs of the global part of nearest experts."""
TRAINING_ROWS = 10_000
"""Rows that sparse training looks at, so that its cost does not depend on n."""
TRAINING = {"exact": "fact", "sparse": "pooled", "nearest": "nearest"}
"""The method of training by kind of expert: with one shard, or sparse experts, that of a single GP."""


EXACT_ALONE = 1_500
"""Rows up to which one exact GP is affordable."""
OWN_SHARD = 1_000
"""Rows per expert that learns hyperparameters of its own."""
OWN_INDUCING = 100
"""Inducing inputs of such an expert."""
QUICK = NearestRows(n_targets=1024, stages=2, n_iter=60)
"""Training by nearest rows in a trial."""
TRIAL_ROWS = 4_000
"""Rows that a candidate learns from in its trial, but for nearest rows."""
TRIAL_TEST = 2_000
"""Rows that a candidate is measured on."""
TRIAL_SAMPLE = 20_000
"""Rows on which the choice is made where rows stay with the workers."""
KERNELS_TRIED = ("matern52", "rbf", "matern52 + linear", "rbf + linear", "linear")
"""What kernel="auto" stands for."""


@dataclass(frozen=True, eq=False)
class Rows:
    """Training rows in this process, as numbers, with all that was given for each.

    Parameters
    ----------
    X, y : ndarray of shape (n, d) and (n,) or (n, targets)
        Inputs and targets.
    weight, noise : ndarray of shape (n,), optional
        How many copies each row counts as, and the noise variance of its target.
    time, groups : array-like of shape (n,), optional
        When each row was observed, and the group that it belongs to.
    """

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray | None = None
    noise: np.ndarray | None = None
    time: Any = None
    groups: Any = None

    @property
    def targets(self) -> np.ndarray:
        """The targets in columns, (n, targets)."""
        return self.y[:, None] if self.y.ndim == 1 else self.y

    @property
    def options(self) -> dict[str, np.ndarray | None]:
        """Weights and noise variances as `fit` takes them."""
        return {"sample_weight": self.weight, "noise_variance": self.noise}

    def take(self, which: np.ndarray) -> Rows:
        """Some of the rows."""
        more = (self.weight, self.noise, self.time, self.groups)
        kept = (None if values is None else taken(values, which) for values in more)
        return Rows(self.X[which], self.y[which], *kept)


def taken(values: Any, which: np.ndarray) -> Any:
    """Some of an array's values; of pandas' as a Series, since an array would lose time zones."""
    return values.iloc[which] if hasattr(values, "iloc") else np.asarray(values)[which]


@dataclass(frozen=True)
class Candidate:
    """A way to fit.

    Parameters
    ----------
    name : str
        What the user reads.
    settings : dict of str to object
        The estimator's parameters, by name.
    trial : dict of str to object
        Parameters that make its trial cheaper.
    rows : int, optional
        The number of rows that its trial learns from, at most; all by default.
    """

    name: str
    settings: dict[str, Any]
    trial: dict[str, Any] = field(default_factory=dict)
    rows: int | None = None


def candidates(n: int) -> list[Candidate]:
    """The ways to fit n rows that are worth measuring.

    One exact GP while it is affordable, and beyond it its two approximations, by inducing inputs and
    by nearest rows; and experts with hyperparameters of their own, which do not agree where rows are
    unlike those that they know, so that their combination is cautious there.
    """
    own = {
        "expert": "sparse",
        "training": "independent",
        "aggregation": "opt-local",
        "n_inducing": OWN_INDUCING,
    }
    found = [
        Candidate("independent experts, opt-local", own, {"n_iter": 40}, TRIAL_ROWS),
    ]
    if n <= EXACT_ALONE:
        return [Candidate("exact GP", {"expert": "exact", "n_experts": 1}, {"n_iter": 60}), *found]
    return [
        Candidate("nearest rows", {"expert": "nearest"}, {"training": QUICK, "n_inducing": 0}),
        Candidate(
            "sparse, pooled", {"expert": "sparse"}, {"n_inducing": 256, "n_iter": 30}, TRIAL_ROWS
        ),
        *found,
    ]


def as_given(kind: str, simple: bool) -> Candidate:
    """What the user gave, with a cheaper trial.

    Parameters
    ----------
    kind : str
        The kind of expert. Nearest rows keep all rows as neighbours.
    simple : bool
        Whether the method of training is left to us.
    """
    if kind != "nearest":
        return Candidate("as given", {}, {"n_iter": 60}, TRIAL_ROWS)
    return Candidate("as given", {}, {"training": QUICK} if simple else {"n_iter": 60})


def kernels(candidate: Candidate) -> list[Candidate]:
    """The same way to fit, with every kernel that is tried."""
    return [
        replace(
            candidate,
            name=f"{candidate.name}, {name}",
            settings=candidate.settings | {"kernel": name},
        )
        for name in KERNELS_TRIED
    ]


def is_auto(value: Any) -> bool:
    """Whether a parameter leaves the choice to us."""
    return isinstance(value, str) and value == "auto"


def way_is_left(estimator: Any) -> bool:
    """Whether nothing is given of how to fit, so that candidates are worth measuring."""
    names = ("expert", "aggregation", "training", "n_experts", "n_inducing")
    every = all(is_auto(getattr(estimator, name)) for name in names)
    return every and isinstance(estimator.partition, str) and estimator.partition == "random"


def choose(
    estimator: Any,
    kind: str,
    kernel: Any,
    columns: Any,
    rows: Rows,
    divisions: Divisions,
    seed: int,
) -> tuple[Candidate, Choice, list[Parameters]]:
    """Measure the candidates, and then the kernels of the best, on rows held out.

    Parameters
    ----------
    estimator : DistributedGPRegressor
        Whose parameters say what is left to be chosen; it is not changed.
    kind : str
        The kind of expert where nothing is measured.
    kernel : str or Kernel
        The kernel of candidates that have none of their own.
    columns : Columns or None
        What the inputs were made of, where they have names.
    rows : Rows
        All rows.
    divisions : list of (ndarray, ndarray)
        Places of the rows to learn from, and of those to predict.
    seed : int
        The seed of the trials.

    Returns
    -------
    best : Candidate
    choice : Choice
    learnt : list of Parameters
        θ of each target that the best candidate learnt in its trial.
    """
    X, y, places = rows.X, rows.y, np.concatenate([test for _, test in divisions])

    learnt: dict[str, list[Parameters]] = {}

    def predict(candidate: Candidate) -> tuple[np.ndarray, np.ndarray]:
        parts = []
        for train, test in divisions:
            some = rows.take(train[: candidate.rows])
            copy = _for_trial(estimator, candidate, kernel, seed)
            copy.fit_columns(some.X, some.y, columns, **some.options)
            noise = None if rows.noise is None else rows.noise[test]
            parts.append(copy.predict(X[test], return_std=True, noise_variance=noise))
            learnt[candidate.name] = [model.parameters for model in copy.models_]
        mean, std = zip(*parts, strict=True)
        return np.concatenate(mean), np.concatenate(std)

    tried, found = [], []
    with Progress("choosing", show=bool(estimator.verbose)) as progress, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if way_is_left(estimator):
            tried = candidates(len(X))
            found = measured_all(tried, predict, y[places], progress)
        if is_auto(estimator.kernel):
            given = as_given(kind, is_auto(estimator.training))
            # The best way to fit has been measured with the first of the kernels.
            more = kernels(best_of(tried, found))[1:] if tried else kernels(given)
            found = [*found, *measured_all(more, predict, y[places], progress)]
            tried = [*tried, *more]
        others = baselines(X, y, divisions, seed)
    used, held_out = len(divisions[0][0]), len(np.unique(places))
    best = best_of(tried, found)
    made = Choice.of(estimator.validation, used, found, others, held_out)
    return best, made, learnt[best.name]


def _for_trial(estimator: Any, candidate: Candidate, kernel: Any, seed: int) -> Any:
    """An estimator with a candidate's settings, for a trial in this process."""
    given = estimator.get_params(deep=False) | {"engine": "local", "verbose": False}
    given |= {"random_state": seed, "warm_start": False, "kernel": kernel}
    given |= {"target_transform": None, "calibrate": None}  # the targets are transformed already
    if estimator.n_experts == "cv" or not isinstance(estimator.partition, str | Partition):
        given |= {"n_experts": "auto", "partition": "random"}
    settings = candidate.settings | candidate.trial
    if estimator.n_iter is not None and "n_iter" in settings:
        settings["n_iter"] = min(settings["n_iter"], estimator.n_iter)
    return type(estimator)(**(given | settings))


def expert(n: int) -> str:
    """The kind of expert for n rows: exact while n² is small, sparse beyond."""
    return "exact" if n <= EXACT_ROWS else "sparse"


def number_of_experts(
    n: int, kind: str, inducing: int, workers: int = 1, independent: bool = False
) -> int:
    """The number of experts for n rows.

    Parameters
    ----------
    n : int
        The number of rows.
    kind : str
        "exact": shards have at most 1,000 rows. "sparse": shards have 32 rows per inducing input, and
        the experts' matrices fit into the memory allowed for them.
    inducing : int
        The number of inducing inputs of sparse experts, at most.
    workers : int
        The number of workers. How rows are divided changes nothing for nearest experts, and nothing
        but the division of work for sparse ones that share all, so that every worker has one.
    independent : bool, default=False
        Whether experts learn hyperparameters of their own: their shards have about 1,000 rows.

    Returns
    -------
    int
    """
    if independent:
        return max(min(2, n), math.ceil(n / OWN_SHARD))
    if kind == "exact":
        return math.ceil(n / EXACT_SHARD)
    if kind == "nearest":
        return min(workers, n)
    by_rows = math.ceil(n / (SPARSE_SHARD * inducing))
    by_memory = EXPERT_MEMORY // (2 * 8 * inducing**2)
    return max(1, min(by_rows, by_memory, n), min(workers, n))


def cross_validated_experts(n: int) -> list[int]:
    """The numbers of experts that the paper tries: ⌊√n / i⌋ for i = 4, 5, 6."""
    return sorted({max(1, int(math.sqrt(n) / i)) for i in (4, 5, 6)})


def aggregator(ensemble: Ensemble) -> Aggregator:
    """The aggregator that comes closest to the full GP for these experts.

    Nearest for nearest experts that share θ; pooled, the full sparse GP itself, where sparse experts
    share θ and Z; opt-local where hyperparameters differ; two-level otherwise. One exact expert is
    the full GP, and poe returns it.
    """
    if isinstance(ensemble.expert, NearestExpert) and ensemble.shares_hyperparameters:
        return Nearest()
    if ensemble.shares_inducing:
        return Pooled()
    if ensemble.size == 1:
        return PoE()
    return TwoLevel() if ensemble.shares_hyperparameters else OptLocal()
