"""Training from one start: θ as a vector, the rounds, and their result."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import torch

from distgp._util.checks import warn_user
from distgp._util.progress import Progress, doing, telling
from distgp._util.words import in_words
from distgp.data import shard as sample
from distgp.data.shard import Shard
from distgp.engines import Placement
from distgp.experts import Expert, Parameters
from distgp.training.curvature import Curvature
from distgp.training.objective import Layout, Objective, Prior, by_path
from distgp.training.rounds import Algorithm, Rounds, Stop, TrainingResult


class TrainingWarning(UserWarning):
    """The objective could not be computed at some point during training; a step was taken back."""


def train(
    algorithm: Algorithm,
    expert: Expert,
    parameters: Parameters,
    shards: Placement[Shard] | Sequence[Shard],
    *,
    own: Collection[str] = (),
    fixed: Collection[str] = (),
    priors: Mapping[str, Prior] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    tolerance: float = 1e-6,
    verbose: bool = False,
    curvature: Curvature | None = None,
) -> TrainingResult:
    """Learn θ across shards, by at most `algorithm.n_iter` rounds.

    Parameters are named by their full path, such as "kernel.kernel.lengthscale", "noise" or
    "inducing", or by the last part of it, such as "lengthscale", which stands for every parameter of
    that name.

    Parameters
    ----------
    algorithm : Algorithm
        The method of training.
    expert : Expert
        The kind of expert, which defines the objective.
    parameters : Parameters
        θ to start from. What each expert keeps for itself may have one value per expert.
    shards : Placement of Shard, or sequence of Shard
        One shard per expert.
    own : collection of str, default=()
        Parameters that each expert keeps for itself.
    fixed : collection of str, default=()
        Parameters that are not trained.
    priors : mapping of str to Prior, optional
        Densities of parameters, by name; their logarithms are subtracted from the objective.
    bounds : mapping of str to (float, float), optional
        Lowest and highest values of parameters, by name.
    tolerance : float, default=1e-6
        Training stops when five accepted rounds in a row change the objective by less than this, relative
        to 1 + |objective| or, if that is more, to the number of rows that it looks at.
    verbose : bool, default=False
        Whether to show progress.
    curvature : Curvature, optional
        What earlier training has learnt of the objective's curvature; L-BFGS learns more, and begins with
        it if it knows any.

    Returns
    -------
    TrainingResult

    Warns
    -----
    TrainingWarning
        Once, where the objective could not be computed at some θ on the way.

    Examples
    --------
    >>> import torch
    >>> from distgp.data import Shard
    >>> from distgp.experts import ExactExpert, Parameters
    >>> from distgp.kernels import RBF
    >>> from distgp.training import Fact
    >>> X = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    >>> start = Parameters.of(1.0 * RBF(0.5), 0.1)
    >>> shard = Shard.of(X, torch.sin(6 * X[:, 0]))
    >>> result = train(Fact(n_iter=10), ExactExpert(), start, [shard], fixed=["noise"])
    >>> len(result.history), float(result.parameters.noise)
    (10, 0.1)
    """
    placement = sample.placed(shards)
    sizes = sample.sizes(placement).to(parameters.noise)
    batched = bool(parameters.batch) or bool(parameters.inducing_batch)
    layout = Layout.of(parameters[0] if batched else parameters, own, fixed, bounds)
    _check_batches(algorithm, parameters, layout, len(sizes))
    objective = Objective.of(expert, layout, priors)
    starts = [layout.pack(parameters[i]) for i in range(len(sizes))] if batched else []
    start = torch.stack(starts) if batched else layout.pack(parameters)
    title = f"training by {in_words(algorithm.name)}"
    doing(title)  # told beside what is shown already, where this is not
    with Progress(title, algorithm.n_iter, verbose, at_most=True) as progress:
        rounds = Rounds(algorithm, objective, placement, start, tolerance, progress, curvature)
        try:
            with telling("theta", lambda _: layout.unpack(rounds.vectors, agreed=algorithm.agrees)):
                algorithm.at_centre(objective, start, sizes, rounds)
            stopped = rounds.without_progress()
        except Stop as stop:
            stopped = stop.args[0]
    if rounds.failed:
        warn_user(
            f"{in_words(algorithm.name)}: the objective could not be computed at some hyperparameters; "
            "those steps were taken back and shortened",
            TrainingWarning,
        )
    n = int(sizes.sum())
    return TrainingResult(
        layout.unpack(rounds.vectors, agreed=algorithm.agrees),
        tuple(rounds.history),
        stopped,
        rows=min(n, getattr(algorithm, "n_targets", n)),
        last_stage=len(rounds.history) - rounds.began,
        bounds=_trained_bounds(layout, bounds),
    )


def _trained_bounds(
    layout: Layout, bounds: Mapping[str, tuple[float, float]] | None
) -> dict[str, tuple[float, float]]:
    """The bounds of every trained hyperparameter, by its full path; 0 and infinity where it has none."""
    given = dict.fromkeys(layout.names, (0.0, math.inf)) | by_path(bounds or {}, layout.template)
    trained = (name for name in layout.names if name != "inducing")
    return {name: (float(given[name][0]), float(given[name][1])) for name in trained}


def _check_batches(algorithm: Algorithm, parameters: Parameters, layout: Layout, M: int) -> None:
    """Refuse values per expert that do not match the shards, or that the algorithm would merge."""
    batches = {f"kernel.{name}": batch for name, batch in parameters.kernel.batches().items()}
    batches |= {"noise": parameters.noise.shape, "inducing": parameters.inducing_batch}
    kept = layout.own if algorithm.agrees else layout.names
    for name, batch in batches.items():
        if batch and batch != torch.Size([M]):
            raise ValueError(f"{name} has a batch of {tuple(batch)} for {M} shards")
        if batch and name not in kept:
            raise ValueError(
                f"each expert has its own {name}, which {algorithm.name} cannot share or keep fixed: "
                f"give one value, or name it in `own`"
            )
