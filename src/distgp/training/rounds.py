"""The loop of rounds: it knows neither which algorithm it runs nor where the shards live."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from distgp._util.progress import Progress
from distgp._util.warn import warn_user
from distgp.data import sample
from distgp.data.sample import placed
from distgp.data.shard import Shard
from distgp.engines import Kinds, Placement
from distgp.engines.base import measured
from distgp.experts import Expert, Parameters
from distgp.training.base import (
    Algorithm,
    Message,
    Reason,
    Reply,
    Round,
    Stop,
    TrainingResult,
)
from distgp.training.objective import Layout, Objective, Prior, by_path

PATIENCE = 5
"""Accepted rounds in a row that must change the objective by less than the tolerance."""
HOPELESS = 50
"""Rounds in a row that are not accepted, after which training gives up."""


class TrainingWarning(UserWarning):
    """The objective could not be computed at some point during training; a step was taken back."""


class Rounds:
    """The rounds of one training: messages to the workers, the history, and when to stop."""

    def __init__(
        self,
        algorithm: Algorithm,
        objective: Objective,
        shards: Placement[Shard],
        start: Tensor,
        tolerance: float,
        progress: Progress,
    ) -> None:
        self.history: list[Round] = []
        self.vectors = start
        """Where training stands: one vector (P,), or one per expert (M, P)."""
        self.failed = False
        """Whether the objective could not be computed somewhere."""
        self.began = 0
        """The number of rounds before the last stage, which an algorithm of several stages sets."""
        self._algorithm, self._objective, self._shards = algorithm, objective, shards
        self._counts = sample.counts(shards)
        self._tolerance, self._progress = tolerance, progress
        self._bytes, self._last = 0, time.perf_counter()

    def exchange(self, message: Message) -> Reply:
        """Send a message to all workers and gather their replies; raise Stop if all rounds are done."""
        if len(self.history) >= self._algorithm.n_iter:
            raise Stop("iterations")
        kinds = self._algorithm.exchanges
        common, parts = Message(message.shared, {}, kinds), _parts(message, self._counts, kinds)
        replies = self._shards.map(_answer, self._algorithm, self._objective, common, each=parts)
        reply = _gathered(replies)
        self._bytes = _bytes(message, reply, sum(self._counts))
        return reply

    def record(
        self,
        vectors: Tensor,
        value: Tensor | float,
        gradient_norm: Tensor | float,
        *,
        accepted: bool = True,
        failed: bool = False,
        residuals: Mapping[str, Tensor] | None = None,
    ) -> None:
        """Note where training stands after a round, (P,) or (M, P), and what the round found.

        It was `accepted` if it changed θ for good, and has `failed` if the objective could not be
        computed somewhere. Raises Stop where nothing changes any more, or nothing works any more.
        """
        self.vectors, self.failed = vectors, self.failed or failed
        one = vectors if vectors.ndim == 1 else vectors.mean(0)
        now = time.perf_counter()
        self.history.append(
            Round(
                number=len(self.history) + 1,
                objective=float(value),
                gradient_norm=float(gradient_norm),
                hyperparameters=self._objective.layout.values(one),
                seconds=now - self._last,
                bytes=self._bytes,
                accepted=bool(accepted),
                residuals={name: float(size) for name, size in (residuals or {}).items()},
            )
        )
        self._last = now
        self._progress.advance(text=f"objective {float(value):.6g}")
        self._stop_if_over()

    def without_progress(self) -> Reason:
        """Why training is over when no further progress is possible."""
        found = bool(self.history) and math.isfinite(self.history[-1].objective)
        return "tolerance" if found else "diverged"

    def _stop_if_over(self) -> None:
        recent = self.history[-HOPELESS:]
        if len(recent) == HOPELESS and not any(round_.accepted for round_ in recent):
            raise Stop(self.without_progress())
        values = [round_.objective for round_ in self.history if round_.accepted][-PATIENCE - 1 :]
        if len(values) <= PATIENCE:
            return
        limit = self._tolerance * (1.0 + abs(values[-1]))
        if all(abs(a - b) <= limit for a, b in zip(values[1:], values, strict=False)):
            raise Stop("tolerance")


def _parts(message: Message, counts: Sequence[int], kinds: Kinds) -> list[Message]:
    """Cut a message into what each worker alone is sent: its own experts' rows of every tensor."""
    cut = {name: sample.split_each(value, counts) for name, value in message.each.items()}
    own = ({name: parts[i] for name, parts in cut.items()} for i in range(len(counts)))
    return [Message({}, each, kinds) for each in own]


def _answer(
    shard: Shard, algorithm: Algorithm, objective: Objective, common: Message, own: Message
) -> Reply:
    """The worker's half of a round, on a worker."""
    reply = algorithm.on_worker(objective, shard, Message(common.shared, own.each))
    return replace(reply, travels_as=algorithm.exchanges)


def _gathered(replies: Sequence[Reply]) -> Reply:
    """The replies of all workers as one."""
    summed = {
        name: torch.stack([reply.summed[name] for reply in replies]).sum(0)
        for name in replies[0].summed
    }
    each = {name: torch.cat([reply.each[name] for reply in replies]) for name in replies[0].each}
    return Reply(summed, each)


def _bytes(message: Message, reply: Reply, M: int) -> int:
    """Count what a round sends and receives if every expert is a machine of its own."""
    common, own = (message.shared, reply.summed), (message.each, reply.each)
    return M * measured(common).total() + measured(own).total()


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
        to 1 + |objective|.
    verbose : bool, default=False
        Whether to show progress.

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
    placement = placed(shards)
    sizes = sample.sizes(placement).to(parameters.noise)
    batched = bool(parameters.batch) or bool(parameters.inducing_batch)
    layout = Layout.of(parameters[0] if batched else parameters, own, fixed, bounds)
    _check_batches(algorithm, parameters, layout, len(sizes))
    objective = Objective.of(expert, layout, priors)
    starts = [layout.pack(parameters[i]) for i in range(len(sizes))] if batched else []
    start = torch.stack(starts) if batched else layout.pack(parameters)
    with Progress(algorithm.name, algorithm.n_iter, verbose) as progress:
        rounds = Rounds(algorithm, objective, placement, start, tolerance, progress)
        try:
            algorithm.at_centre(objective, start, sizes, rounds)
            stopped = rounds.without_progress()
        except Stop as stop:
            stopped = stop.args[0]
    if rounds.failed:
        warn_user(
            f"{algorithm.name}: the objective could not be computed at some hyperparameters; those steps "
            "were taken back and shortened",
            TrainingWarning,
        )
    theta = layout.unpack(rounds.vectors, agreed=algorithm.agrees)
    n = int(sizes.sum())
    return TrainingResult(
        theta,
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
