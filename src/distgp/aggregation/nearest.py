"""Nearest: every point is conditioned on its nearest rows of all shards, global sums are pooled.

The result does not depend on how rows are divided. In one process all rows are one set. On several
workers they are first moved into cells of nearby rows, one per worker, once. A point, or a row whose
sums are to be made, asks its home cell, and then those few cells that a bound (centre, radius) cannot
rule out; they answer with distances, and only the rows that win travel to the home cell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar, cast

import numpy as np
import torch
from torch import Tensor

from distgp.aggregation.base import Aggregator, Combined, Ensemble, refusal
from distgp.data.neighbors import TIE
from distgp.data.partition import kmeans_centres
from distgp.data.shard import Shard, concatenate
from distgp.engines import Placement, travels
from distgp.experts import NearestExpert, NearestPosterior, Prediction
from distgp.experts.joint import joint_covariance, joint_draws
from distgp.experts.neighborhoods import (
    Conditional,
    GlobalPart,
    GlobalSums,
    Neighbours,
    OrderedRows,
    conditional,
)
from distgp.likelihoods import noise_of_rows

ROWS_AT_ONCE = 2**15
"""Rows per cell whose neighbours are found at a time."""
SAMPLE = 4096
"""Rows from which the centres of the cells are found."""
LAST = torch.iinfo(torch.int64).max
"""A priority after all rows': points to predict may have any row as a neighbour."""


@dataclass(frozen=True)
class Nearest(Aggregator):
    """The posterior given the nearest rows of all shards, and the global part of all rows.

    It needs nearest experts that share θ. With as many neighbours as rows, or with all rows as inducing
    inputs, it is the exact GP; without inducing inputs it is Vecchia's approximation.
    """

    name: ClassVar[str] = "nearest"
    serves: ClassVar[tuple[str, ...]] = ("nearest",)
    joint: ClassVar[str] = "always"
    needs_one_prior: ClassVar[bool] = True

    def posterior(self, ensemble: Ensemble) -> Combined:
        """Move rows into cells where there are several workers; add the sums of the global part."""
        if ensemble.parameters.inducing_batch:
            raise refusal(
                self.name,
                "needs nearest experts that share their hyperparameters",
                "pooled or two-level for other experts, opt-local where hyperparameters differ,",
            )
        cells = Cells.of(ensemble) if len(ensemble.placement) > 1 else None
        part = None
        if ensemble.parameters.inducing is not None:
            k = cast(NearestExpert, ensemble.expert).n_conditioning
            sums = ensemble.placement.on_first(_sums) if cells is None else cells.sums(k)
            part = GlobalPart.of(sums)
        return NearestCombined(part=part, cells=cells)


@dataclass(frozen=True, eq=False, kw_only=True)
class NearestCombined(Combined):
    """The posterior given nearest rows."""

    part: GlobalPart | None
    cells: Cells | None = None

    def entries(self, ensemble: Ensemble) -> int:
        """Few: neighbourhoods are worked on in chunks of their own, where the rows are."""
        del ensemble
        return 64

    def mean_chunk(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """The mean, without variance work where all rows are one set."""
        if self.cells is None:
            return ensemble.placement.on_first(_mean, X, self.part)
        return self.predict_chunk(ensemble, X).mean

    def predict_chunk(self, ensemble: Ensemble, X: Tensor) -> Prediction:
        """Ask the one set of rows, or the cells."""
        if self.cells is None:
            return ensemble.placement.on_first(_predict, X, self.part)
        k = cast(NearestExpert, ensemble.expert).n_neighbors
        out = self.cells.conditional(X.double(), k).given(self.part)
        return Prediction(out.mean.to(X.dtype), out.variance.to(X.dtype))

    def between(self, ensemble: Ensemble, X: Tensor) -> Tensor:
        """Vecchia's approximation over the points, given the data, which are brought here."""
        return ensemble.gathered().placement.on_first(_between, X, self.part)

    def draws(self, ensemble: Ensemble, X: Tensor, size: int, seed: int) -> Tensor:
        """One point after another, given the data, which are brought here, and the points before it."""
        return ensemble.gathered().placement.on_first(_draws, X, self.part, size, seed)

    def gathered(self) -> NearestCombined:
        """The same without cells, for rows that are in this process."""
        return replace(self, cells=None)


def _sums(posterior: NearestPosterior) -> GlobalSums:
    return posterior.flat.sums(posterior.expert.n_conditioning)


@travels("predictions", X="points")
def _predict(posterior: NearestPosterior, X: Tensor, part: GlobalPart | None) -> Prediction:
    return posterior.flat.predict(X, posterior.expert.n_neighbors, part)


@travels("predictions", X="points")
def _mean(posterior: NearestPosterior, X: Tensor, part: GlobalPart | None) -> Tensor:
    return posterior.flat.mean(X, posterior.expert.n_neighbors, part)


@travels("predictions", X="points")
def _between(posterior: NearestPosterior, X: Tensor, part: GlobalPart | None) -> Tensor:
    return joint_covariance(posterior.flat, X, posterior.expert.n_neighbors, part)


@travels("predictions", X="points")
def _draws(
    posterior: NearestPosterior, X: Tensor, part: GlobalPart | None, size: int, seed: int
) -> Tensor:
    return joint_draws(posterior.flat, X, posterior.expert.n_neighbors, part, size, seed)


@dataclass(frozen=True, eq=False)
class Points:
    """Points that look for neighbours."""

    X: Tensor  # (N, d)
    located: Tensor  # (N, q): the points in the kernel's coordinates
    limit: Tensor  # (N,): rows with a lower priority than this may be neighbours

    def take(self, which: Tensor) -> Points:
        """Some of the points."""
        return Points(self.X[which], self.located[which], self.limit[which])


@dataclass(frozen=True, eq=False)
class Question:
    """Points that another cell may have nearer rows for: which of the home's, and how near."""

    which: Tensor
    points: Points
    farthest: Tensor
    travels_as: str  # "points" of whoever asks for predictions, or "inputs" of rows


@dataclass(frozen=True, eq=False)
class Answer:
    """Squared distances of a cell's nearest rows, and their places: its answer to a question."""

    travels_as: ClassVar[str] = "distances"
    which: Tensor
    square: Tensor
    index: Tensor


@dataclass(frozen=True, eq=False)
class AtHome:
    """Points in their home cell with the nearest rows found there; `own` are rows of the cell itself."""

    cell: OrderedRows
    points: Points
    own: slice | None
    square: Tensor
    index: Tensor


@dataclass(frozen=True, eq=False)
class Cells:
    """Rows in cells, one per worker, with a sphere around each."""

    placement: Placement[OrderedRows]
    centres: Tensor  # (W, q), in the kernel's coordinates
    radii: Tensor  # (W,): the distance of the farthest row from its cell's centre

    @staticmethod
    def of(ensemble: Ensemble) -> Cells:
        """Move the rows of all workers into cells around k-means centres, one per worker."""
        sample = OrderedRows(ensemble.parameters, ensemble.central(SAMPLE, 0))
        located = sample.located(sample.X).cpu().numpy()
        W = min(len(ensemble.placement), len(np.unique(located, axis=0)))
        centres = torch.as_tensor(kmeans_centres(located, W, 0))
        parts = ensemble.placement.map(_by_centre, centres)
        empty = [()] * (len(parts) - W)
        arriving = [tuple(part[i] for part in parts if part[i].n) for i in range(W)] + empty
        placement = ensemble.placement.derive(_cell, each=arriving)
        middles, radii = zip(*placement.map(_sphere), strict=True)
        return Cells(placement, torch.stack(middles), torch.stack(radii))

    def conditional(self, X: Tensor, k: int) -> Conditional:
        """f at points X (N, d) of this process, given their k nearest rows of all cells, and w."""
        located = self.placement.on_first(_located, X)
        home = torch.cdist(located, self.centres.to(located)).argmin(-1)
        points = Points(X, located, torch.full((len(X),), LAST, device=X.device))
        groups = [torch.nonzero(home == i)[:, 0] for i in range(len(self.placement))]
        found = self._given_neighbours([points.take(which) for which in groups], k, _conditional)
        return _concatenated(found, torch.cat(groups).argsort())

    def sums(self, k: int) -> GlobalSums:
        """Σuuᵀ and Σut over all rows of all cells, each given its k nearest before it."""
        longest, total = max(self.placement.map(_size)), []
        for start in range(0, longest, ROWS_AT_ONCE):
            some = slice(start, start + ROWS_AT_ONCE)
            total += self._given_neighbours([some] * len(self.placement), k, _row_sums)
        return reduce(add, total)

    def _given_neighbours(
        self, wanted: Sequence[Points | slice], k: int, finish: Callable[..., Any]
    ) -> list[Any]:
        """Find the k nearest rows of points in all cells, then call `finish` in each home cell.

        Five exchanges: each home searches its own rows; asks the cells that its spheres cannot rule
        out; they answer with distances; homes say which rows win; and those rows travel to them.
        """
        W = len(self.placement)
        homes = self.placement.derive(_at_home, k, each=wanted)
        questions = homes.map(_questions, self.centres, self.radii, each=range(W))
        answers = _transposed(self.placement.map(_answers, k, each=_transposed(questions)))
        wins = homes.map(_winning_places, k, each=answers)
        rows = _transposed(self.placement.map(_rows_at, each=_transposed(wins)))
        return homes.map(finish, k, each=list(zip(answers, rows, strict=True)))


def _transposed(table: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """From one list per sender to one list per receiver."""
    return [list(column) for column in zip(*table, strict=True)]


@travels("rows", centres="moments")
def _by_centre(posterior: NearestPosterior, centres: Tensor) -> list[Shard]:
    """A worker's rows by their nearest centre."""
    rows = posterior.shard.flatten().without_padding()
    located = posterior.flat.located(rows.X.double())
    label = torch.cdist(located, centres.to(located)).argmin(-1)
    return [rows.take(label == i) for i in range(len(centres))]


def _cell(posterior: NearestPosterior, parts: tuple[Shard, ...]) -> OrderedRows | None:
    return OrderedRows(posterior.parameters, concatenate(parts)) if parts else None


@travels("moments")
def _sphere(cell: OrderedRows) -> tuple[Tensor, Tensor]:
    """Centre and radius of a cell; infinite where the kernel has no coordinates."""
    located = cell.search.coordinates
    centre = located.mean(0)
    if not cell.has_coordinates:
        return centre, located.new_tensor(torch.inf)
    return centre, (located - centre).norm(dim=-1).max() + 2 * TIE


@travels("points", X="points")
def _located(cell: OrderedRows, X: Tensor) -> Tensor:
    return cell.located(X)


@travels("counts")
def _size(cell: OrderedRows) -> int:
    return len(cell.X)


@travels(wanted="points")
def _at_home(cell: OrderedRows, k: int, wanted: Points | slice) -> AtHome:
    """Points with their nearest rows of this cell; a slice stands for the cell's own rows."""
    own = None
    if isinstance(wanted, slice):
        own = wanted
        wanted = Points(cell.X[wanted], cell.search.coordinates[wanted], cell.priority[wanted])
    before = cell.places_before(wanted.limit)
    return AtHome(cell, wanted, own, *cell.search.nearest_before(wanted.located, before, k))


@travels(centres="moments", radii="moments")
def _questions(home: AtHome, centres: Tensor, radii: Tensor, own: int) -> list[Question | None]:
    """For every other cell, the points that it may have nearer rows for."""
    farthest = home.square[:, -1]  # infinite where the home cell has fewer than k rows
    kind = "points" if home.own is None else "inputs"
    found: list[Question | None] = []
    for cell, (centre, radius) in enumerate(zip(centres, radii, strict=True)):
        least = ((home.points.located - centre).norm(dim=-1) - radius).clamp_min(0.0).square()
        which = torch.nonzero(least <= farthest)[:, 0]
        nothing, some = cell == own or not len(which), home.points.take(which)
        found.append(None if nothing else Question(which, some, farthest[which], kind))
    return found


def _answers(cell: OrderedRows, k: int, questions: list[Question | None]) -> list[Answer | None]:
    """The nearest rows of this cell for each home's points, where they are near enough."""
    return [None if question is None else _answer(cell, k, question) for question in questions]


def _answer(cell: OrderedRows, k: int, question: Question) -> Answer:
    before = cell.places_before(question.points.limit)
    square, index = cell.search.nearest_before(question.points.located, before, k)
    near = square <= question.farthest[:, None]
    kept = torch.where(near, square, torch.inf), torch.where(near, index, -1)
    return Answer(question.which, *kept)


def _winners(home: AtHome, k: int, answers: list[Answer | None]) -> tuple[Tensor, Tensor]:
    """Of the rows found everywhere the k nearest: their cell (-1 for home) and place there, (N, k)."""
    square, index = home.square, home.index
    source = torch.full_like(index, -1)
    for cell, answer in enumerate(answers):
        if answer is None:
            continue
        both = torch.cat([square[answer.which], answer.square], -1)
        best, order = both.sort(dim=-1, stable=True)
        order = order[:, :k]
        places = torch.cat([index[answer.which], answer.index], -1).gather(-1, order)
        there = torch.full_like(answer.index, cell)
        sources = torch.cat([source[answer.which], there], -1).gather(-1, order)
        square = square.index_copy(0, answer.which, best[:, :k])
        index = index.index_copy(0, answer.which, places)
        source = source.index_copy(0, answer.which, sources)
    return source, index


@travels("distances")
def _winning_places(home: AtHome, k: int, answers: list[Answer | None]) -> list[Tensor | None]:
    """For every other cell, the places of its rows that won, each once."""
    source, index = _winners(home, k, answers)
    found: list[Tensor | None] = []
    for cell, answer in enumerate(answers):
        won = index[(source == cell) & (index >= 0)]
        found.append(None if answer is None or not len(won) else won.unique())
    return found


@travels("rows", places="distances")
def _rows_at(cell: OrderedRows, places: list[Tensor | None]) -> list[Shard | None]:
    """The rows at these places, for each home."""
    return [None if which is None else cell.rows_at(which) for which in places]


@travels("predictions")
def _conditional(
    home: AtHome, k: int, found: tuple[list[Answer | None], list[Shard | None]]
) -> Conditional:
    """f at the home's points given their neighbours of all cells, and w."""
    answers, foreign = found
    source, index = _winners(home, k, answers)
    cell, theta = home.cell, home.cell.parameters
    # All rows that may be needed as one list: the home's own, then those that came.
    at, start, needed = index.clone(), len(cell.X), [cell.rows_at(slice(None))]
    for number, rows in enumerate(foreign):
        if rows is not None:
            here = (source == number) & (index >= 0)
            at[here] = start + torch.searchsorted(rows.rows, index[here])
            needed.append(rows)
            start += rows.n
    rows = concatenate(needed)
    came = cell.basis(rows.X[len(cell.X) :]) if len(needed) > 1 else None
    V = cell.V if came is None or cell.V is None else torch.cat([cell.V, came])
    v = cell.basis(home.points.X)
    size, parts = cell.points_at_once(k), []
    for some in torch.arange(len(at), device=at.device).split(size):
        real, which = index[some] >= 0, at[some].clamp_min(0)
        sets = Neighbours(
            rows.X[which],
            rows.y[which],
            real,
            None if V is None else V[which],
            None if rows.noise is None else rows.noise[which],
        )
        own = None if v is None else v[some]
        parts.append(conditional(theta, home.points.X[some], own, sets))
    if not parts:  # no point has its home here
        empty = rows.y[:0]
        return Conditional(empty, empty, None if v is None else v[:0])
    return _concatenated(parts)


def _concatenated(parts: list[Conditional], order: Tensor | None = None) -> Conditional:
    """f at the points of all parts together, in this order."""
    which = slice(None) if order is None else order
    h = [part.h for part in parts if part.h is not None]
    variances = [part.variance for part in parts if part.variance is not None]
    mean = torch.cat([part.mean for part in parts])[which]
    return Conditional(mean, torch.cat(variances)[which], torch.cat(h)[which] if h else None)


def _row_sums(
    home: AtHome, k: int, found: tuple[list[Answer | None], list[Shard | None]]
) -> GlobalSums:
    """The contribution of the home's rows to the global part."""
    out = _conditional(home, k, found)
    assert home.own is not None
    own = home.cell.rows_at(home.own)
    return out.sums(own.y, noise_of_rows(own, home.cell.parameters.noise))
