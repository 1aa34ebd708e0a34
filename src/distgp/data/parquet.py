"""Rows that workers read by themselves, from Parquet: the process that asks never holds them.

Every worker gets a stretch of consecutive rows and deals them out to its experts at random.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from pyarrow import fs, parquet
from torch import Tensor

from distgp.data.encoding import Columns, check_choices, complete_rows, distinct, learn_columns
from distgp.data.partition import RandomPartition, batch_of
from distgp.data.scaling import (
    Scaling,
    common_scale,
    refuse_far,
    refuse_fill_values,
    refuse_lost,
    scale_of,
)
from distgp.data.shard import Shard, even_parts, named
from distgp.data.table import BATCH_ROWS, Keys, Table, TableError, parquet_file, reading, with_keys
from distgp.engines import Engine, Placement, travels

MOMENT_ROWS = 2**16  # rows that are looked at together when columns are measured
Mark: TypeAlias = tuple[int, int, str]
"""The size and time of a file and a hash of its footer, by which a change is noticed."""


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file, by their numbers in it, with the columns that folders' names give."""

    path: str
    rows: range
    offset: int  # the number of the file's first row in the whole data set
    keys: Keys
    mark: Mark  # of the file when the rows were divided


@dataclass(frozen=True)
class Stretch:
    """Consecutive rows of a data set for one worker: the recipe from which it reads its experts' shards."""

    system: fs.FileSystem
    pieces: tuple[Piece, ...]
    experts: range

    def __call__(self) -> Stretch:
        """Return itself: rows are read when the columns are known."""
        return self


@dataclass(frozen=True)
class ParquetRows:
    """The files of a data set, with the number of rows and the mark of each."""

    table: Table
    lengths: tuple[int, ...]
    marks: tuple[Mark, ...]

    @staticmethod
    def open(path: str | Path) -> ParquetRows:
        """Look at the schemas and lengths of a file, a folder, a glob or a URI of one; reads no rows."""
        table = Table.open(path)
        if table.kind != "parquet":
            raise TableError(
                f"workers read Parquet by themselves, {path} is {table.kind}: convert it"
            )
        footers = (parquet.read_metadata(name, filesystem=table.system) for name in table.paths)
        lengths = tuple(footer.num_rows for footer in footers)
        if not sum(lengths):
            raise TableError(f"{path} holds no rows")
        return ParquetRows(table, lengths, tuple(mark_of(table.system, p) for p in table.paths))

    @property
    def n(self) -> int:
        """The number of all rows."""
        return sum(self.lengths)

    def stretches(self, n_experts: int, workers: int) -> list[Stretch]:
        """Divide the rows over workers, in proportion to the experts of each."""
        parts = even_parts(n_experts, workers)
        cuts = pairwise([part.start * self.n // n_experts for part in parts] + [self.n])
        return [
            Stretch(self.table.system, tuple(self._between(*cut)), part)
            for part, cut in zip(parts, cuts, strict=True)
        ]

    def _between(self, low: int, high: int) -> Iterator[Piece]:
        """Find the rows low … high − 1 of the data set in the files."""
        offset = 0
        files = zip(self.table.paths, self.lengths, self.table.keys, self.marks, strict=True)
        for path, length, keys, mark in files:
            if rows := range(max(low - offset, 0), min(high - offset, length)):
                yield Piece(path, rows, offset, keys, mark)
            offset += length


def mark_of(system: fs.FileSystem, path: str) -> Mark:
    """Read the mark of a Parquet file."""
    info = system.get_file_info(path)
    with reading(system, path, "parquet") as file:
        file.seek(max(0, info.size - 8))
        length = int.from_bytes(file.read(4), "little")
        file.seek(max(0, info.size - 8 - length))
        footer = hashlib.sha256(file.read(min(length, info.size))).hexdigest()
    return info.size, info.mtime_ns or 0, footer


def place(
    engine: Engine, data: ParquetRows, n_experts: int, target: str, **options: Any
) -> tuple[Placement[Stretch], Columns]:
    """Give every worker its stretch of rows, still unread, and learn the columns by `learn_columns`."""
    stretches = data.stretches(n_experts, engine.workers)
    placement = engine.scatter(stretches, [named(stretch.experts) for stretch in stretches])

    def texts_of(name: str) -> set[str]:
        return set().union(*placement.map(_distinct, name))

    return placement, learn_columns(data.table.schema, texts_of, target, rows=data.n, **options)


def read(
    placement: Placement[Stretch], columns: Columns, missing: str, seed: int
) -> Placement[Shard]:
    """Have the workers read their rows and deal them out: each worker's shards as one batch, unscaled."""
    check_choices(missing=missing)
    if missing == "impute":
        raise TableError(
            "missing='impute' needs the rows in this process: give missing='drop', or fit a table in memory"
        )
    return placement.derive(_read_rows, columns, missing, seed)


def scaling_of(
    placement: Placement[Shard], normalize: bool, d: int, blocks: Sequence[Sequence[int]] = ()
) -> Scaling:
    """Measure `Scaling.of` all rows together, with d input columns, from the moments of each worker's."""
    if not normalize:
        return Scaling.identity(d)
    counts, means, squares, vary = map(np.stack, zip(*placement.map(_moments), strict=True))
    n, sizes = counts.sum(), counts[:, None]
    mean = (sizes * means).sum(0) / n
    # Chan's formula: within the parts, and between them.
    with np.errstate(over="ignore", invalid="ignore"):
        square = (squares + sizes * np.square(means - mean)).sum(0) / n
    refuse_lost(square, vary.any(0) | (np.ptp(means, axis=0) > 0))
    deviation = np.sqrt(square)
    scale, varies = scale_of(mean, deviation)
    if not varies[-1]:
        raise TableError(f"the target is constant ({mean[-1]:g}): there is nothing to learn")
    x_scale = common_scale(scale[:-1], blocks)
    return Scaling(mean[:-1], x_scale, float(mean[-1]), float(scale[-1]))


def standardise(placement: Placement[Shard], scaling: Scaling, like: Tensor) -> Placement[Shard]:
    """Bring rows into the units that experts work in, and the dtype of `like`, where they are."""
    return placement.derive(_standardised, scaling, str(like.dtype).removeprefix("torch."))


def _batches(stretch: Stretch, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read these columns in batches, each with the number of its first row in the data set."""
    for piece in stretch.pieces:
        if mark_of(stretch.system, piece.path) != piece.mark:
            raise TableError(
                f"{piece.path} was changed after the fit began, so its rows cannot be read again as they "
                "were: fit again"
            )
        with reading(stretch.system, piece.path, "parquet") as source:
            file = parquet_file(source)
            stored = [name for name in names if name not in piece.keys]
            stored = stored or file.schema_arrow.names[:1]  # for the number of rows
            groups, position = _groups(file.metadata, piece.rows)
            for batch in file.iter_batches(BATCH_ROWS, groups, columns=stored):
                start = max(piece.rows.start - position, 0)
                stop = min(piece.rows.stop - position, batch.num_rows)
                if start < stop:
                    here = with_keys(batch.slice(start, stop - start), piece.keys)
                    yield piece.offset + position + start, here
                position += batch.num_rows


def _groups(footer: parquet.FileMetaData, rows: range) -> tuple[list[int], int]:
    """List the row groups of a file that hold these rows, and tell the number of their first row."""
    lengths = (footer.row_group(i).num_rows for i in range(footer.num_row_groups))
    edges = list(accumulate(lengths, initial=0))
    inside = range(bisect_right(edges, rows.start) - 1, bisect_left(edges, rows.stop))
    return list(inside), edges[inside.start]


@travels("categories")
def _distinct(stretch: Stretch, name: str) -> set[str]:
    """List the different texts of a column in a worker's rows."""
    return set().union(*(distinct(batch.column(name)) for _, batch in _batches(stretch, [name])))


def _read_rows(stretch: Stretch, columns: Columns, missing: str, seed: int) -> Shard:
    """Read a worker's rows into arrays that hold them once, and deal them out to its experts."""
    names = list(dict.fromkeys([*(column.name for column in columns.inputs), columns.target]))
    most = sum(len(piece.rows) for piece in stretch.pieces)
    X, y = np.empty((most, len(columns.features))), np.empty(most)
    numbers, n, M = np.empty(most, dtype=np.int64), 0, len(stretch.experts)
    for number, batch in _batches(stretch, names):
        values = np.column_stack([columns.matrix(batch), columns.targets(batch)])
        keep = complete_rows(values, [*columns.owners, columns.target], missing)
        values, new = values[keep], slice(n, n + int(keep.sum()))
        X[new], y[new] = values[:, :-1], values[:, -1]
        numbers[new] = number + np.flatnonzero(keep)
        n = new.stop
    if n < M:
        raise TableError(f"{n} complete rows are too few for {named(stretch.experts)}")
    refuse_fill_values("an input", X[:n])
    refuse_fill_values("a target", y[:n, None])
    rows = Shard(*(torch.from_numpy(values[:n]) for values in (X, y, numbers)))
    return batch_of(rows, RandomPartition().assign(X[:n], M, seed + stretch.experts.start))


@travels("moments")
def _moments(batch: Shard) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """Compute n, the mean, Σ(x − mean)² of every input column and the target, and whether they vary."""

    def summed(of: Callable[[Tensor], Tensor]) -> Tensor:
        parts = (part.without_padding() for part in batch.flatten().chunks(MOMENT_ROWS))
        values = (torch.cat([part.X, part.y[:, None]], -1).double() for part in parts)
        return torch.stack([of(part).sum(0) for part in values]).sum(0)

    n = int(batch.sizes.double().sum())
    mean = summed(lambda values: values) / n
    square = summed(lambda values: (values - mean).square())
    varies = summed(lambda values: (values != values[:1]).double()) > 0
    return n, mean.cpu().numpy(), square.cpu().numpy(), varies.cpu().numpy()


@travels(scaling="moments")
def _standardised(batch: Shard, scaling: Scaling, dtype: str) -> Shard:
    """Standardise the rows of a batch; the targets of padding stay 0."""
    x_mean, x_scale = (torch.as_tensor(v).to(batch.X) for v in (scaling.x_mean, scaling.x_scale))
    X, y = (batch.X - x_mean).div_(x_scale), (batch.y - scaling.y_mean) / scaling.y_scale
    wanted = getattr(torch, dtype)
    for what, given, standard in (("an input", batch.X, X), ("a target", batch.y, y)):
        refuse_far(what, given, standard, wanted)
    if batch.mask is not None:
        y = torch.where(batch.mask, y, 0.0)
    return replace(batch, X=X.to(wanted), y=y.to(wanted))
