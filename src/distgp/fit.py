"""The spine: from placed shards to one posterior.

    shards → train θ → condition experts → combine

`fit_model` is this line; `learn` is its second word.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from distgp.aggregation import Aggregator, Ensemble
from distgp.auto import LARGEST_INDUCING, NEAREST_INDUCING, TRAINING_INDUCING
from distgp.data import sample
from distgp.data.scaling import Scaling
from distgp.data.shard import Shard, stack, unstack
from distgp.data.source import placed
from distgp.engines import Placement, travels
from distgp.experts import (
    Expert,
    NearestExpert,
    Parameters,
    Posterior,
    SparseExpert,
    inducing,
)
from distgp.kernels import Kernel, coordinates
from distgp.model import Model
from distgp.training import (
    Algorithm,
    Independent,
    NearestRows,
    Prior,
    TrainingResult,
    objective_value,
    train,
)

Inducing: TypeAlias = int | Literal["auto"] | Tensor
"""The number of inducing inputs, "auto" for the greedy rule, or the inputs themselves."""
LEAST_NOISE = 1e-6
"""Training keeps the noise variance above this share of the targets' variance."""
NEAREST_LEAST_NOISE = 1e-4
"""The same for training by nearest rows. In tables with repeated rows the likelihood given nearest rows
is that of copies, and grows without limit as the noise vanishes."""
FEW_ROUNDS = 20
"""Below this many rounds, training has one stage: two would get nowhere."""
SEARCHED = (1.0, 0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start."""
TOLERANCE = 1e-5
"""Relative change of the objective that ends training: what is left to gain is far below one nat."""
NEAREST_TOLERANCE = 1e-7
"""The same for training by nearest rows, whose objective is that of a sample: per row it must be finer."""


def fit_model(
    shards: Placement[Shard],
    scaling: Scaling,
    expert: Expert,
    start: Parameters,
    algorithm: Algorithm | None,
    aggregation: Callable[[Ensemble], Aggregator],
    *,
    inducing: Inducing = "auto",
    **options: Any,
) -> Model:
    """Fit one target: train θ, condition one expert per shard on all its rows, combine them.

    Parameters
    ----------
    shards : Placement of Shard
        Standardised rows, wherever they live.
    scaling : Scaling
        What standardised them.
    expert : Expert
        The kind of expert.
    start : Parameters
        Kernel and noise that training starts from.
    algorithm : Algorithm or None
        The method of training; None keeps the start.
    aggregation : callable
        Chooses the aggregator, given the conditioned experts.
    inducing : int, "auto" or Tensor, default="auto"
        For sparse experts: the number of inducing inputs, or the inputs themselves.
    **options
        Options of `learn`.

    Returns
    -------
    Model
    """
    theta, result = start, None
    if algorithm is not None:
        result = learn(shards, expert, start, algorithm, inducing=inducing, **options)
        theta = result.parameters
    seed = options.get("seed", 0)
    if isinstance(expert, SparseExpert) and not isinstance(algorithm, Independent):
        theta = replace(theta, inducing=_chosen_inducing(inducing, theta, shards, seed))
    if isinstance(expert, NearestExpert):
        theta = replace(theta, inducing=_global_inducing(inducing, theta, shards, seed))
    ensemble = Ensemble.condition(expert, theta, shards)
    method = aggregation(ensemble)
    return Model(scaling, ensemble, method, method.combine(ensemble), result)


def learn(
    shards: Placement[Shard],
    expert: Expert,
    start: Parameters,
    algorithm: Algorithm,
    *,
    inducing: Inducing = "auto",
    search: bool = False,
    learnt: bool = False,
    training_rows: int | None = None,
    priors: Mapping[str, Prior] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    fixed: Collection[str] = (),
    seed: int = 0,
    verbose: bool = False,
) -> TrainingResult:
    """Learn θ from the rows, or from a random sample of them.

    Sparse experts that share their inducing inputs are trained in two stages, with the inputs chosen
    anew in between for the θ found so far.

    Parameters
    ----------
    shards, expert, start, algorithm, inducing
        As for `fit_model`.
    search : bool, default=False
        Whether shorter lengthscales than those of `start` may be taken as a start, if they explain
        the rows better.
    learnt : bool, default=False
        Whether `start` has been learnt from a part of these rows, so that the first stage of sparse
        experts, which finds where to look, is left out.
    training_rows : int, optional
        The number of rows that training looks at; all by default.
    priors, bounds, fixed
        By parameter name, as for `distgp.training.train`.
    seed : int, default=0
        The seed of the sample and of the inducing inputs.
    verbose : bool, default=False
        Whether to show progress.

    Returns
    -------
    TrainingResult
    """
    if isinstance(algorithm, NearestRows):
        training_rows, algorithm = None, replace(algorithm, search=search and algorithm.search)
    n = int(sample.sizes(shards).sum())
    share = 1.0 if training_rows is None or training_rows >= n else training_rows / n
    rows = sample.sampled(shards, share, seed)
    by_nearest = isinstance(algorithm, NearestRows)
    share = NEAREST_LEAST_NOISE if by_nearest else LEAST_NOISE
    least = {"noise": (share * _target_variance(rows), math.inf)}
    options: dict[str, Any] = {
        "priors": priors,
        "bounds": least | dict(bounds or {}),
        "fixed": list(fixed),
        "tolerance": TOLERANCE,
        "verbose": verbose,
    }
    if isinstance(algorithm, NearestRows):
        options["tolerance"] = NEAREST_TOLERANCE
        return train(algorithm, expert, start, rows, **options)
    sparse = isinstance(expert, SparseExpert)
    if sparse:
        start = replace(start, inducing=_spread_inducing(inducing, rows, seed))
    if search:
        start = _best_start(expert, start, rows)
    if not sparse:
        return train(algorithm, expert, start, rows, **options)
    if isinstance(algorithm, Independent):
        start = replace(start, inducing=_own_inducing(inducing, start, rows, seed))
        return train(algorithm, expert, start, rows, own=["inducing"], **options)
    options["fixed"] = [*options["fixed"], "inducing"]
    once = isinstance(inducing, Tensor) or algorithm.n_iter < FEW_ROUNDS or learnt
    caps = TRAINING_INDUCING[-1:] if once else TRAINING_INDUCING
    results: list[TrainingResult] = []
    theta = start
    for stage, cap in enumerate(caps):
        if stage or learnt:
            theta = replace(theta, inducing=_chosen_inducing(inducing, theta, rows, seed, cap))
        part = _share_of_rounds(algorithm, stage, len(caps))
        results.append(train(part, expert, theta, rows, **options))
        theta = results[-1].parameters
    return _joined(results)


def new_expert(
    shard: Shard,
    expert: Expert,
    theta: Parameters,
    start: Parameters,
    algorithm: Algorithm | None,
    **options: Any,
) -> Posterior:
    """Condition one more expert on new rows.

    Parameters
    ----------
    shard : Shard
        The new rows, standardised.
    expert : Expert
        The kind of expert.
    theta : Parameters
        θ of the experts that are there. Where they share it the new one takes it too; where each has
        its own, the new one learns its own.
    start : Parameters
        Where that training starts.
    algorithm : Algorithm or None
        The method of training.
    **options
        Options of `learn`.

    Returns
    -------
    Posterior
        With one leading batch dimension of size one.
    """
    batch = stack([shard])
    if not theta.batch and not theta.inducing_batch:
        return expert.condition(theta, batch)
    own = theta[0]
    if own.inducing is not None and shard.n < len(own.inducing):
        raise ValueError(
            f"a new expert with its own {len(own.inducing)} inducing inputs needs as many rows at least, "
            f"got {shard.n}"
        )
    if algorithm is not None:
        options["inducing"] = "auto" if own.inducing is None else len(own.inducing)
        own = learn(placed([shard]), expert, start, algorithm, **options).parameters[0]
    return expert.condition(own.unsqueezed(), batch)


def _spread_inducing(given: Inducing, shards: Placement[Shard], seed: int) -> Tensor:
    """Inducing inputs that know nothing of θ yet: the k-means centres of a sample.

    The greedy rule would put only a few where θ starts with long lengthscales, and with those few
    training could never find shorter ones.
    """
    if isinstance(given, Tensor):
        return given
    X = sample.central(shards, inducing.SAMPLE, seed).X
    asked = TRAINING_INDUCING[0] if given == "auto" else given
    m = min(asked, TRAINING_INDUCING[0], len(torch.unique(X, dim=0)))
    return inducing.kmeans(X, m, seed)


def _best_start(expert: Expert, theta: Parameters, shards: Placement[Shard]) -> Parameters:
    """θ, or θ with shorter lengthscales where those explain the rows better.

    Started too long, training can end where everything is noise.
    """
    lengths = {
        name: value
        for name, value in theta.kernel.parameters().items()
        if name.endswith("lengthscale")
    }
    found: list[tuple[float, Parameters]] = []
    for factor in SEARCHED:
        shorter = {name: factor * value for name, value in lengths.items()}
        candidate = replace(theta, kernel=theta.kernel.with_parameters(shorter))
        value = objective_value(expert, candidate, shards)
        if math.isfinite(value):
            found.append((value, candidate))
    return min(found, key=lambda pair: pair[0])[1] if found else theta


def _share_of_rounds(algorithm: Algorithm, stage: int, stages: int) -> Algorithm:
    """The algorithm with one stage's share of its rounds."""
    rounds = algorithm.n_iter
    early = rounds // stages
    share = early if stage < stages - 1 else rounds - early * (stages - 1)
    return replace(algorithm, n_iter=share)  # pyright: ignore[reportArgumentType]


def _joined(results: list[TrainingResult]) -> TrainingResult:
    """The last result, with the rounds of all stages."""
    rounds = [round_ for result in results for round_ in result.history]
    history = tuple(replace(round_, number=i + 1) for i, round_ in enumerate(rounds))
    return replace(results[-1], history=history)


def _chosen_inducing(
    given: Inducing,
    theta: Parameters,
    shards: Placement[Shard],
    seed: int,
    cap: int | None = None,
) -> Tensor:
    """Z as given, or by the greedy rule for θ from a sample of all shards.

    They stay where the rule puts them: that is as good as descent, and far cheaper. `cap` bounds
    their number while training goes on.
    """
    if isinstance(given, Tensor):
        return given
    asked = LARGEST_INDUCING if given == "auto" else given
    m = min(asked, cap or asked)
    X = sample.central(shards, max(inducing.SAMPLE, 4 * m), seed).X
    m = min(m, len(X))
    if given != "auto":
        return inducing.first_greedy(X, theta.kernel, m, seed)
    with warnings.catch_warnings():  # that the rule ends at its cap is expected here
        warnings.simplefilter("ignore", inducing.InducingWarning)
        Z = inducing.greedy(X, theta.kernel, float(theta.noise), seed, largest=m)
    if cap is None:
        return Z
    # While training goes on, twice what the rule asks for: room for shorter lengthscales.
    return inducing.first_greedy(X, theta.kernel, min(m, 2 * len(Z)), seed)


def _global_inducing(
    given: Inducing, theta: Parameters, shards: Placement[Shard], seed: int
) -> Tensor | None:
    """Inducing inputs of the global part of nearest experts: k-means centres in units of θ.

    In units of the lengthscales, so that columns on which little depends do not spread them out.
    """
    if isinstance(given, Tensor):
        return given
    m = NEAREST_INDUCING if given == "auto" else given
    if m == 0 or theta.batch:
        return None
    X = sample.drawn(shards, max(inducing.SAMPLE, 4 * m), seed).X
    located = coordinates(theta.kernel, X)
    scale = torch.ones_like(X[0])
    if located is not None and located.shape == X.shape:
        scale = (located.std(0) / X.std(0)).nan_to_num(1.0, 1.0, 1.0).clamp_min(1e-6)
    m = min(m, len(torch.unique(X, dim=0)))
    return inducing.kmeans(X * scale, m, seed) / scale


def _own_inducing(
    given: Inducing, theta: Parameters, shards: Placement[Shard], seed: int
) -> Tensor:
    """One set of inducing inputs per expert, all of one size: with "auto" a tenth of the shard."""
    sizes = sample.sizes(shards)
    if isinstance(given, Tensor):
        return given.expand(len(sizes), *given.shape[-2:])
    least = int(sizes.min())
    asked = max(16, least // 10) if given == "auto" else given
    m = min(asked, least, TRAINING_INDUCING[-1] if given == "auto" else least)
    return torch.cat(shards.map(_greedy_per_shard, theta.kernel, m, seed))


@travels("inducing", kernel="parameters")
def _greedy_per_shard(batch: Shard, kernel: Kernel, m: int, seed: int) -> Tensor:
    shards = unstack(batch)
    return torch.stack([inducing.first_greedy(shard.X, kernel, m, seed) for shard in shards])


def _target_variance(shards: Placement[Shard]) -> float:
    """The variance of the targets, or 1 where they do not vary."""
    moments = torch.stack(shards.map(_target_moments)).sum(0)
    found = float(moments[2] / moments[0] - (moments[1] / moments[0]).square())
    return found if found > 0 else 1.0


@travels("moments")
def _target_moments(batch: Shard) -> Tensor:
    """n, Σy and Σy², of all copies. The targets are standardised, so that no digits are lost."""
    rows = batch.flatten().without_padding()
    y = rows.y.double()
    w = torch.ones_like(y) if rows.weight is None else rows.weight.double()
    return torch.stack([w.sum(), (w * y).sum(), (w * y.square()).sum()]).cpu()
