"""From shards to conditioned experts: choose inducing inputs, train θ, condition on every row."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from distgp.aggregation import Ensemble, Group
from distgp.choices import LARGEST_INDUCING, TRAINING_INDUCING
from distgp.experts import Expert, Parameters, SparseExpert, inducing
from distgp.kernels import Kernel
from distgp.shards import Shard, stack, unstack
from distgp.training import Algorithm, Fact, Independent, TrainingResult, train
from distgp.workers import ShardGroup, Workers

Inducing: TypeAlias = int | Literal["auto"] | Tensor
LEAST_NOISE = 1e-6
"""Training keeps the noise variance above this share of the targets' variance."""
FEW_ROUNDS = 20
"""Below this many rounds, training has one stage: two would get nowhere."""
SEARCHED = (1.0, 0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start."""
TOLERANCE = 1e-5
"""Relative change of the objective that ends training: what is left to gain is far below one nat."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """What to fit, all names resolved."""

    expert: Expert
    start: Parameters  # kernel and noise
    bounds: dict[str, tuple[float, float]]  # of the kernel's parameters
    search: bool  # whether shorter lengthscales may be a better start
    inducing: Inducing
    algorithm: Algorithm | None
    training_rows: int | None
    seed: int
    verbose: bool

    @property
    def sparse(self) -> bool:
        """Whether the experts need inducing inputs."""
        return isinstance(self.expert, SparseExpert)

    @property
    def independent(self) -> bool:
        """Whether each expert has hyperparameters, and inducing inputs, of its own."""
        return isinstance(self.algorithm, Independent)


@dataclass(frozen=True, eq=False)
class Fitted:
    """θ, the experts conditioned with it, and how it was found."""

    parameters: Parameters
    ensemble: Ensemble
    training: TrainingResult | None


def fit_experts(recipe: Recipe, workers: Workers) -> Fitted:
    """The whole way, for one target."""
    theta, result = recipe.start, None
    if recipe.algorithm is not None:
        result = learn(recipe, recipe.algorithm, workers)
        theta = result.parameters
    if recipe.sparse and not recipe.independent:
        theta = replace(theta, inducing=_inducing(recipe, theta, workers, None))
    return Fitted(theta, Ensemble.condition(recipe.expert, theta, workers), result)


def learn(recipe: Recipe, algorithm: Algorithm, workers: Workers) -> TrainingResult:
    """θ from a sample of the rows. Sparse: in two stages, the inducing inputs chosen anew for each."""
    n = int(workers.sizes().sum())
    share = 1.0 if recipe.training_rows is None else min(1.0, recipe.training_rows / n)
    sample = workers.sampled(share, recipe.seed)
    options: dict[str, Any] = {
        "bounds": recipe.bounds | {"noise": (LEAST_NOISE * _variance(sample), float("inf"))},
        "tolerance": TOLERANCE,
        "verbose": recipe.verbose,
    }
    if not recipe.sparse:
        start = _best_start(recipe, recipe.start, sample)
        return train(algorithm, recipe.expert, start, sample, **options)
    start = _best_start(recipe, _spread_inducing(recipe, recipe.start, sample), sample)
    if recipe.independent:
        start = replace(start, inducing=_own_inducing(recipe, start, sample))
        return train(algorithm, recipe.expert, start, sample, own=["inducing"], **options)
    once = isinstance(recipe.inducing, Tensor) or algorithm.n_iter < FEW_ROUNDS
    caps = TRAINING_INDUCING[-1:] if once else TRAINING_INDUCING
    theta, results = start, []
    for stage in range(len(caps)):
        if stage:
            theta = replace(theta, inducing=_inducing(recipe, theta, sample, caps[stage]))
        part = _part(algorithm, stage, len(caps))
        results.append(train(part, recipe.expert, theta, sample, fixed=["inducing"], **options))
        theta = results[-1].parameters
    return _joined(results)


def _spread_inducing(recipe: Recipe, theta: Parameters, workers: Workers) -> Parameters:
    """θ with inducing inputs that know nothing of θ yet: k-means centres of a sample.

    The greedy rule would put only a few where θ starts with long lengthscales, and with those few
    training could never find shorter ones.
    """
    if isinstance(recipe.inducing, Tensor):
        return replace(theta, inducing=recipe.inducing)
    X = workers.central(inducing.SAMPLE, recipe.seed).X
    asked = TRAINING_INDUCING[0] if recipe.inducing == "auto" else recipe.inducing
    m = min(asked, TRAINING_INDUCING[0], len(torch.unique(X, dim=0)))
    return replace(theta, inducing=inducing.kmeans(X, m, recipe.seed))


def _best_start(recipe: Recipe, theta: Parameters, workers: Workers) -> Parameters:
    """θ, or θ with shorter lengthscales where those explain the data better: one round each.

    Started too long, training can end where all is noise.
    """
    if not recipe.search:
        return theta
    candidates = []
    for factor in SEARCHED:
        lengths = {
            name: value * factor
            for name, value in theta.kernel.parameters().items()
            if name.endswith("lengthscale")
        }
        start = replace(theta, kernel=theta.kernel.with_parameters(lengths))
        found = train(Fact(n_iter=1), recipe.expert, start, workers).objective
        candidates.append((found, factor, start))
    finite = [candidate for candidate in candidates if math.isfinite(candidate[0])]
    return min(finite)[2] if finite else theta


def _part(algorithm: Algorithm, stage: int, stages: int) -> Algorithm:
    """The algorithm with its share of the rounds."""
    rounds = algorithm.n_iter
    first = rounds // stages
    share = first if stage < stages - 1 else rounds - first * (stages - 1)
    return replace(algorithm, n_iter=share)  # pyright: ignore[reportArgumentType]


def _joined(results: list[TrainingResult]) -> TrainingResult:
    """The last result, with the rounds of all."""
    rounds = [round_ for result in results for round_ in result.history]
    history = tuple(replace(round_, number=i + 1) for i, round_ in enumerate(rounds))
    return replace(results[-1], history=history)


def _inducing(recipe: Recipe, theta: Parameters, workers: Workers, cap: int | None) -> Tensor:
    """Z as given, or by the greedy rule for θ, from a sample of all shards.

    They stay where the rule puts them: that is as good as descent, and far cheaper.
    """
    if isinstance(recipe.inducing, Tensor):
        return recipe.inducing
    asked = LARGEST_INDUCING if recipe.inducing == "auto" else recipe.inducing
    m = min(asked, cap or asked)
    X = workers.central(max(inducing.SAMPLE, 4 * m), recipe.seed).X
    m = min(m, len(X))
    if recipe.inducing != "auto":
        return inducing.first_greedy(X, theta.kernel, m, recipe.seed)
    with warnings.catch_warnings():  # that the rule ends at its cap is no news here
        warnings.simplefilter("ignore", inducing.InducingWarning)
        Z = inducing.greedy(X, theta.kernel, float(theta.noise), recipe.seed, largest=m)
    if cap is None:
        return Z
    # While training goes on, twice what the rule asks for: room for shorter lengthscales.
    return inducing.first_greedy(X, theta.kernel, min(m, 2 * len(Z)), recipe.seed)


def _own_inducing(recipe: Recipe, theta: Parameters, workers: Workers) -> Tensor:
    """One set an expert, all of one size: by itself a tenth of the shard, as in the paper."""
    sizes = workers.sizes()
    if isinstance(recipe.inducing, Tensor):
        return recipe.inducing.expand(len(sizes), *recipe.inducing.shape[-2:])
    least = int(sizes.min())
    asked = max(16, least // 10) if recipe.inducing == "auto" else recipe.inducing
    m = min(asked, least, TRAINING_INDUCING[-1] if recipe.inducing == "auto" else least)
    return torch.cat(workers.map(_greedy_in_group, theta.kernel, m, recipe.seed))


def _greedy_in_group(group: ShardGroup, kernel: Kernel, m: int, seed: int) -> Tensor:
    shards = unstack(group.shards)
    return torch.stack([inducing.first_greedy(shard.X, kernel, m, seed) for shard in shards])


def _variance(workers: Workers) -> float:
    """The targets' variance, or 1 where they do not vary."""
    moments = torch.stack(workers.map(_target_moments)).sum(0)
    found = float(moments[2] / moments[0] - (moments[1] / moments[0]).square())
    return found if found > 0 else 1.0


def _target_moments(group: ShardGroup) -> Tensor:
    """n, Σy and Σy²; y is standardised, so that nothing is lost."""
    y = torch.cat([shard.y for shard in unstack(group.shards)]).double()
    return torch.stack([y.new_tensor(len(y)), y.sum(), y.square().sum()]).cpu()


def new_expert(recipe: Recipe, theta: Parameters, shard: Shard, number: int) -> Group:
    """One more expert on new rows, with θ as the others have it, or its own where they differ."""
    batch = stack([shard])
    if not theta.batch and not theta.inducing_batch:
        return Group(recipe.expert.condition(theta, batch), batch, number)
    own = theta[0]
    if own.inducing is not None and shard.n < len(own.inducing):
        raise ValueError(
            f"a new expert with its own {len(own.inducing)} inducing inputs needs as many rows at least, "
            f"got {shard.n}"
        )
    if recipe.algorithm is not None:
        alone = replace(recipe, inducing="auto" if own.inducing is None else len(own.inducing))
        own = learn(alone, recipe.algorithm, Workers.of([shard])).parameters[0]
    every = Parameters(
        own.kernel.with_parameters({k: v[None] for k, v in own.kernel.parameters().items()}),
        own.noise[None],
        None if own.inducing is None else own.inducing[None],
    )
    return Group(recipe.expert.condition(every, batch), batch, number)
