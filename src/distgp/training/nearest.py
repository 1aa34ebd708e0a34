"""Training by nearest rows: Vecchia's likelihood of a sample of rows, each given rows before it.

θ minimises −Σ log p(y_i | y_C(i)) over a fixed random sample of target rows i, where C(i) are the k
rows, nearest by the kernel, among *all* rows that come before i in a random order: though the sample is
small, neighbours are as near as n rows make them. They depend on θ and are found anew in every stage, in
which nothing travels: the centre has the targets and their neighbours.

Rows with the same inputs as a target are left out of its neighbours. Most tables have them because a row
was written twice, so that they agree, and say that there is no noise at all; a row to predict has none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from distgp._util.checks import silenced
from distgp._util.machine import keep_freed_memory
from distgp._util.threads import on_threads
from distgp.data.neighbors import Neighbors
from distgp.data.shard import Shard, row_priority
from distgp.engines import Kinds
from distgp.experts.base import Parameters, chunk_rows, even_size
from distgp.experts.neighborhoods import (
    ORDER_SEED,
    Neighbours,
    OrderedRows,
    negative_log_likelihood,
)
from distgp.experts.sums import widened
from distgp.likelihoods import copies_term, noise_factor
from distgp.linalg import JitterWarning
from distgp.training.fact import Lbfgs
from distgp.training.objective import UNUSABLE, Objective, log_prior
from distgp.training.rounds import (
    Algorithm,
    Message,
    Refinement,
    Reply,
    Rounds,
    Stop,
    Tensors,
)
from distgp.training.stage import SEARCHED, with_lengthscales

COARSE_ROWS = 2048
"""The first rows in the order. Where there are far more rows, a third of the neighbours come from these:
the nearest of all are then so near that they say nothing of what is slow in the function."""
EARLY_TARGETS = 256
"""Targets at least in the stages before the last."""
STILL = 0.01
"""Logarithms that change by less in a stage have not moved."""
EARLY_GAIN = 0.2
"""Nats that five rounds must gain for a stage before the last to go on."""
MORE_NEIGHBORS = ((64, 4), (128, 8))
"""Neighbours of refinements, and the part of the targets that they look at."""
REFINED_ITER = 40
"""Evaluations of a refinement, at most."""
PARTS = 4
"""Parts, at least, that targets are divided into on a CPU, so that several threads have work where there
are few. It does not depend on the number of threads: sums of the same parts are the same everywhere."""
OWN_NOISE = ("weight", "noise")
"""What a shard's rows may have of their own beside inputs and targets."""


class Neighbourhoods(NamedTuple):
    """Targets of training, T of them, each with its neighbours and itself last, (T, k + 1, …)."""

    X: Tensor
    y: Tensor
    real: Tensor  # False where there are fewer neighbours
    factor: Tensor | None  # of σ² in each row
    targets: Shard  # the targets alone


@dataclass(frozen=True)
class NearestRows(Algorithm):
    """L-BFGS on the likelihood of sampled rows given their nearest rows before them.

    Parameters
    ----------
    n_targets : int, default=8192
        The number of rows whose likelihood is looked at.
    n_neighbors : int, default=30
        k, the rows that each of them is conditioned on.
    stages : int, default=3
        How often neighbours are found anew, for the θ found so far.
    search : bool, default=True
        Whether a second descent begins at shorter lengthscales. The better of both is kept.
    n_iter : int, default=300
        Evaluations of the objective, at most, over all stages.
    seed : int, default=0
        The seed of the sample.
    polish : int, default=0
        Evaluations, at most, of the objective of all rows, by L-BFGS, from where nearest rows have led.
    copies : bool, default=False
        Whether rows with the inputs of a target may be its neighbours: True where each of them is a
        measurement of its own, False where they may be the same one, written twice.
    """

    name: ClassVar[str] = "nearest"
    exchanges: ClassVar[Kinds] = {
        "x": "parameters", "targets": "inputs", "square0": "distances", "square1": "distances", "*": "rows"
    }  # fmt: skip
    draws_rows: ClassVar[bool] = True
    tolerance: ClassVar[float] = 1e-7  # its objective is that of a sample: per row it must be finer
    # In tables with repeated rows the likelihood given nearest rows is that of copies, and grows
    # without limit as the noise vanishes.
    least_noise: ClassVar[float] = 1e-4
    n_targets: int = 8192
    n_neighbors: int = 30
    stages: int = 3
    search: bool = True
    n_iter: int = 300
    seed: int = 0
    polish: int = 0
    copies: bool = False

    def __post_init__(self) -> None:
        for name in ("n_targets", "n_neighbors", "stages", "n_iter"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def refinements(self, own: bool = False) -> list[Refinement]:
        """Lift the noise's floor; look at more neighbours, of fewer targets; lift the signals' cap."""
        few = min(REFINED_ITER, self.n_iter)
        again = replace(self, stages=1, search=False, n_iter=few, polish=0)
        more = [
            replace(again, n_neighbors=k, n_targets=max(EARLY_TARGETS, self.n_targets // part))
            for k, part in MORE_NEIGHBORS
            if k > self.n_neighbors
        ]
        first = [Refinement(again, anew=True)] if own else []
        more = [Refinement(again, "floor"), *map(Refinement, more), Refinement(None, "cap")]
        return first + more

    def rows_of(self, n: int) -> int:
        """Look at the targets."""
        return min(n, self.n_targets)

    def with_polish(self, polish: int) -> NearestRows:
        """Polish what nearest rows find by so many evaluations of all rows."""
        return replace(self, polish=polish)

    def with_search(self, search: bool) -> NearestRows:
        """Search for shorter lengthscales only where that is allowed."""
        return replace(self, search=search and self.search)

    def on_worker(self, objective: Objective, shard: Shard, message: Message) -> Reply:
        """Offer rows as targets; or, for targets given, the nearest rows before each."""
        rows = shard.flatten().without_padding()
        if "x" not in message.shared:
            place = row_priority(rows.rows, ORDER_SEED)
            key = torch.minimum(row_priority(rows.rows, self.seed + 1), ~place)
            best = key.argsort()[: self.n_targets]
            chosen = rows.take(best)
            offered = {"X": chosen.X, "y": chosen.y, "limit": place[best], "key": key[best]}
            own = {name: getattr(chosen, name) for name in OWN_NOISE}
            return Reply({}, offered | {k: v for k, v in own.items() if v is not None})
        theta = objective.layout.unpack(message.shared["x"])
        ordered = OrderedRows(replace(theta, inducing=None), rows)
        targets = message.shared["targets"].double()
        before = ordered.places_before(message.shared["limit"])
        coarse = message.shared["coarse"]
        divided = ordered.has_coordinates and int(coarse) > torch.iinfo(torch.int64).min
        first = int(ordered.places_before(coarse)) if divided else 0
        near, far = self._numbers(divided)
        each = {}
        for i, (some, k) in enumerate(((slice(first, None), near), (slice(0, first), far))):
            found = _nearest_among(ordered, some, targets, before, k) if k else {}
            each |= {f"{name}{i}": value[None] for name, value in found.items()}
        return Reply({}, each)

    def _numbers(self, coarse: bool) -> tuple[int, int]:
        """The numbers of neighbours that are the nearest of all, and the nearest of the first rows."""
        far = self.n_neighbors // 3 if coarse else 0
        return self.n_neighbors - far, far

    def at_centre(self, objective: Objective, start: Tensor, sizes: Tensor, rounds: Rounds) -> None:
        """Draw targets; in every stage find their neighbours and minimise."""
        layout = objective.layout
        if start.ndim > 1 or layout.own:
            raise ValueError(
                "training by nearest rows finds one θ for all experts: use independent for one each"
            )
        offers = rounds.exchange(Message({}, {})).each
        chosen = offers["key"].argsort()[: self.n_targets]
        names = ("X", "y", "limit", *(name for name in OWN_NOISE if name in offers))
        targets = {name: offers[name][chosen] for name in names}
        coarse = _priority_of_first(COARSE_ROWS, float(sizes.sum())).to(targets["limit"])
        # Neighbours will change anyway before the last stage: a part of the targets will do.
        few = max(EARLY_TARGETS, self.n_targets // 8)
        some = {name: value[:few] for name, value in targets.items()}
        points = self._starts(objective, start, some, coarse, rounds) if self.search else [start]
        early = self.stages - 1
        share = self.n_iter // (early * len(points) + 2)
        ends = []
        for x in points:
            for stage in range(early):
                sets = self._neighbourhoods(x, some, coarse, rounds)
                found = self._minimised(objective, x, sets, rounds, share)
                # A lengthscale that was shortened and then got no gradient goes back to the start.
                still = (found - x).abs() < STILL
                x = torch.where(still, start, found) if stage == 0 else found
            ends.append((x, self._neighbourhoods(x, targets, coarse, rounds)))
        x, sets = min(ends, key=lambda end: _value(objective, *end))
        left = self.n_iter - len(rounds.history)
        self._minimised(objective, x, sets, rounds, left, last=True)

    def _neighbourhoods(
        self, x: Tensor, targets: Tensors, coarse: Tensor, rounds: Rounds
    ) -> Neighbourhoods:
        """The nearest rows of all workers before each target, and the target itself last."""
        shared = {"x": x, "targets": targets["X"], "limit": targets["limit"], "coarse": coarse}
        each = rounds.exchange(Message(shared, {})).each
        T, parts = len(targets["y"]), []

        def flat(values: Tensor) -> Tensor:  # (W, T, k, …) to (T, W·k, …)
            return values.transpose(0, 1).reshape(T, -1, *values.shape[3:])

        for i, k in enumerate(self._numbers("square1" in each)):
            if not k:
                continue
            square, order = flat(each[f"square{i}"]).topk(k, -1, largest=False)
            at = torch.arange(T, device=order.device)[:, None]
            names = [name for name in ("X", "y", "factor") if f"{name}{i}" in each]
            found = {name: flat(each[f"{name}{i}"])[at, order].double() for name in names}
            parts.append(found | {"real": torch.isfinite(square)})
        own = [None if (v := targets.get(name)) is None else v.double() for name in OWN_NOISE]
        last = Shard(targets["X"], targets["y"], targets["limit"], None, *own)
        itself = {"X": last.X, "y": last.y, "factor": noise_factor(last)}
        itself = {name: v[:, None].double() for name, v in itself.items() if v is not None}
        parts.append(itself | {"real": torch.ones_like(parts[0]["real"][:, :1])})
        joined = {name: torch.cat([part[name] for part in parts], 1) for name in parts[-1]}
        real = joined["real"] if self.copies else _without_copies(joined["X"], joined["real"])
        return Neighbourhoods(joined["X"], joined["y"], real, joined.get("factor"), targets=last)

    def _starts(
        self, objective: Objective, x: Tensor, targets: Tensors, coarse: Tensor, rounds: Rounds
    ) -> list[Tensor]:
        """The start, and of those with shorter lengthscales the one that explains the targets best.

        Which rows are nearest is the same for all of them. From long ones a descent may end where
        everything is noise. With short ones all neighbours agree in columns with few values, so that the
        lengthscales of these get no gradient and stay short.
        """
        layout = objective.layout
        shorter = [layout.pack(theta) for theta in with_lengthscales(layout.unpack(x), SEARCHED)]
        if not shorter:
            return [x]
        sets = self._neighbourhoods(x, targets, coarse, rounds)
        return [x, min(shorter, key=lambda point: _value(objective, point, sets))]

    def _minimised(
        self,
        objective: Objective,
        x: Tensor,
        sets: Neighbourhoods,
        rounds: Rounds,
        budget: int,
        last: bool = False,
    ) -> Tensor:
        """The minimum by L-BFGS with fixed neighbours, or where `budget` more rounds have led."""
        layout, begin = objective.layout, len(rounds.history)
        rounds.began = begin
        # Neighbours that were found for another θ have another objective.
        search = Lbfgs(x, layout.low, layout.high, rounds.curvature if self.stages == 1 else None)

        def trial(point: Tensor) -> tuple[float, Tensor]:
            if len(rounds.history) >= begin + budget:
                raise Stop("iterations")
            found = search.record(rounds, point, *evaluate(objective, point, sets))
            recent = [round_.objective for round_ in rounds.history[begin:][-6:]]
            if not last and len(recent) == 6 and recent[0] - recent[-1] < EARLY_GAIN:
                raise Stop("tolerance")
            return found

        try:
            search.minimise(trial, rounds.least_gain)
        except Stop:
            if last:
                raise
        return search.x


def _without_copies(X: Tensor, real: Tensor) -> Tensor:
    """Leave out rows with the inputs of the last of their set, unless the set has no others."""
    copy = (X[:, -1:] == X).all(-1)
    copy[:, -1] = False
    others = (real & ~copy)[:, :-1].any(-1, keepdim=True)
    return real & ~(copy & others)


def _value(objective: Objective, x: Tensor, sets: Neighbourhoods) -> float:
    """The objective, infinite where it cannot be computed."""
    value = float(evaluate(objective, x, sets, gradient=False)[0])
    return value if value == value else float("inf")


def evaluate(
    objective: Objective, x: Tensor, sets: Neighbourhoods, gradient: bool = True
) -> tuple[Tensor, Tensor]:
    """The objective of all targets and its gradient, a few targets at a time; NaN out of range."""
    keep_freed_memory()
    _, rows, d = sets.X.shape
    size = chunk_rows(4 * rows * max(rows, d), sets.X.device)
    if sets.X.device.type == "cpu":
        size = even_size(len(sets.X), size, PARTS)
    point = x.detach().requires_grad_(gradient)

    def part(start: int, theta: Parameters) -> tuple[Tensor, Tensor]:
        some = slice(start, start + size)
        factor = None if sets.factor is None else sets.factor[some]
        given = Neighbours(sets.X[some], sets.y[some], sets.real[some], None, factor)
        value = negative_log_likelihood(theta, given)
        value = value + copies_term(sets.targets.take(some), theta.noise)
        return value.detach(), _slope(value, point, gradient)

    try:
        with (  # passing by a hard θ is no news
            torch.set_grad_enabled(gradient),
            silenced(JitterWarning),
        ):
            given = objective.layout.unpack(point)  # slow for each few targets
            wide = widened(replace(given, inducing=None))
            found = on_threads(partial(part, theta=wide), range(0, len(sets.X), size))
            total = torch.stack([value for value, _ in found]).sum(0)
            slope = torch.stack([part for _, part in found]).sum(0)
            if objective.priors:
                prior = log_prior(objective.priors, given)
                total, slope = total - prior.detach(), slope - _slope(prior, point, gradient)
    except UNUSABLE:
        return x.new_tensor(torch.nan), torch.full_like(x, torch.nan)
    return total.to(x.dtype), slope.to(x.dtype)


def _slope(value: Tensor, point: Tensor, wanted: bool) -> Tensor:
    """The gradient; how θ was made of the point is kept for others to go through."""
    if not wanted:
        return torch.zeros_like(point)
    return torch.autograd.grad(value, point, retain_graph=True)[0]


def _nearest_among(
    ordered: OrderedRows, some: slice, targets: Tensor, before: Tensor, k: int
) -> Tensors:
    """Distances, inputs and targets of the nearest of some rows before each target, (T, k) each."""
    search = ordered.search
    if some != slice(0, None):
        search = Neighbors(search.coordinates[some])
    limit = (before - some.start).clamp(0, len(search))
    square, index = search.nearest_before(ordered.located(targets), limit, k)
    at = index.clamp_min(0) + some.start
    found = {"square": square, "X": ordered.X[at], "y": ordered.y[at]}
    return found if ordered.factor is None else found | {"factor": ordered.factor[at]}


def _priority_of_first(count: int, n: float) -> Tensor:
    """The priority, uniform, below which about `count` of far more rows lie, or none of not so many."""
    share = count / n if n > 8 * count else 0.0
    return torch.tensor(int(-(2**63) + share * 2**64), dtype=torch.int64)
