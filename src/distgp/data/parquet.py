"""Rows that workers read by themselves, from Parquet: the process that asks never holds them.

Every worker gets a stretch of consecutive rows, from as many files and row groups as it takes, and deals
them out to its experts at random.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import dataset, fs, parquet
from torch import Tensor

from distgp.data.column import check_choices, distinct
from distgp.data.encoding import Columns, complete_rows, learn_columns
from distgp.data.partition import RandomPartition, batch_of
from distgp.data.scaling import Scaling, common_scale
from distgp.data.shard import Shard
from distgp.data.source import even_parts, named
from distgp.data.table import BATCH_ROWS, Keys, Table, TableError, reading, with_keys
from distgp.engines import Engine, Placement, travels

MOMENT_ROWS = 2**16
"""Rows that are looked at together when columns are measured."""


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of one file.

    Parameters
    ----------
    path : str
        The file.
    groups : range
        The row groups that the rows are in.
    start, stop : int
        The rows, counted from the beginning of the first of these groups.
    offset : int
        The number of the first row in the whole data set.
    keys : Keys
        The columns that the names of the file's folders give.
    mark : tuple
        What the file was when the rows were divided, as of `mark_of`.
    """

    path: str
    groups: range
    start: int
    stop: int
    offset: int
    keys: Keys
    mark: tuple[int, int, str]


@dataclass(frozen=True)
class Stretch:
    """Consecutive rows of a data set for one worker: the recipe from which it reads its shards.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        The file system that the files are on.
    pieces : tuple of Piece
        The rows, file by file.
    experts : range
        The numbers of the worker's experts.
    """

    system: fs.FileSystem
    pieces: tuple[Piece, ...]
    experts: range

    def __call__(self) -> Stretch:
        """Return itself: rows are read when the columns are known."""
        return self


@dataclass(frozen=True)
class ParquetRows:
    """The files of a data set, with the number of rows of each of their row groups."""

    table: Table
    groups: tuple[tuple[int, ...], ...]
    marks: tuple[tuple[int, int, str], ...]

    @staticmethod
    def open(path: str | Path) -> ParquetRows:
        """Look at the schemas and lengths of a file, a folder, a glob or a URI of one; reads no rows.

        Raises
        ------
        TableError
            If there is no such file, it is not Parquet, or it has no rows.
        """
        table = Table.open(path)
        if table.kind != "parquet":
            raise TableError(
                f"workers read Parquet by themselves, {path} is {table.kind}: convert it"
            )
        make = dataset.ParquetFileFormat().make_fragment
        files = [make(name, table.system).row_groups for name in table.paths]
        groups = tuple(tuple(group.num_rows for group in file) for file in files)
        if not sum(map(sum, groups)):
            raise TableError(f"{path} holds no rows")
        return ParquetRows(
            table, groups, tuple(mark_of(table.system, name) for name in table.paths)
        )

    @property
    def n(self) -> int:
        """The number of all rows."""
        return sum(map(sum, self.groups))

    def stretches(self, n_experts: int, workers: int) -> list[Stretch]:
        """Divide the rows over workers, in proportion to the experts of each."""
        parts = even_parts(n_experts, workers)
        cuts = [part.start * self.n // n_experts for part in parts] + [self.n]
        return [
            Stretch(self.table.system, tuple(self._between(low, high)), part)
            for part, low, high in zip(parts, cuts, cuts[1:], strict=False)
        ]

    def _between(self, low: int, high: int) -> Iterator[Piece]:
        """Find the rows low … high − 1 of the data set in the files."""
        offset = 0
        files = zip(self.table.paths, self.groups, self.table.keys, self.marks, strict=True)
        for path, groups, keys, mark in files:
            edges = list(accumulate(groups, initial=0))
            start, stop = max(low - offset, 0), min(high - offset, edges[-1])
            if start < stop:
                inside = range(bisect_right(edges, start) - 1, bisect_left(edges, stop))
                begin = edges[inside.start]
                low_row, high_row = start - begin, stop - begin
                yield Piece(path, inside, low_row, high_row, offset + start, keys, mark)
            offset += edges[-1]


def mark_of(system: fs.FileSystem, path: str) -> tuple[int, int, str]:
    """The size and time of a Parquet file, and a hash of its footer, by which a change is noticed."""
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
    """Give every worker its stretch of rows, and find out what the columns are.

    Parameters
    ----------
    engine : Engine
        Whose workers are to read.
    data : ParquetRows
        The files.
    n_experts : int
        The number of experts on all workers.
    target : str
        The column to predict.
    **options
        Which columns are inputs, and what is made of them, as of `distgp.data.encoding.learn_columns`.

    Returns
    -------
    tuple
        The stretches, still unread, and the columns.
    """
    stretches = data.stretches(n_experts, engine.workers)
    placement = engine.scatter(stretches, [named(stretch.experts) for stretch in stretches])

    def texts_of(name: str) -> set[str]:
        return set().union(*placement.map(_distinct, name))

    return placement, learn_columns(data.table.schema, texts_of, target, **options)


def read(
    placement: Placement[Stretch], columns: Columns, missing: str, seed: int
) -> Placement[Shard]:
    """Have the workers read their rows, in the units of the data.

    Parameters
    ----------
    placement : Placement of Stretch
        Which rows each worker reads.
    columns : Columns
        What is made of the table's columns.
    missing : {"refuse", "drop"}
        What is done with rows that lack a value.
    seed : int
        The seed by which a worker's rows are dealt out to its experts.

    Returns
    -------
    Placement of Shard
        Each worker's shards as one batch, with targets of shape (M, n).
    """
    check_choices(missing=missing)
    if missing == "impute":
        raise TableError(
            "missing='impute' needs the rows in this process: give missing='drop', or fit a table in memory"
        )
    return placement.derive(_read_rows, columns, missing, seed)


def scaling_of(
    placement: Placement[Shard],
    normalize: bool,
    d: int,
    blocks: Sequence[Sequence[int]] = (),
) -> Scaling:
    """Measure the standardisation of rows on workers, from the moments of each worker's.

    Parameters
    ----------
    placement : Placement of Shard
        The rows, in the units of the data.
    normalize : bool
        Whether to standardise at all; otherwise the identity is returned.
    d : int
        The number of input columns.
    blocks : sequence of sequences of int
        Columns that get one scale, as in `Scaling.of`.

    Returns
    -------
    Scaling
    """
    if not normalize:
        return Scaling(np.zeros(d), np.ones(d), 0.0, 1.0)
    moments = placement.map(_moments)
    n = sum(part[0] for part in moments)
    mean = np.sum([part[0] * part[1] for part in moments], axis=0) / n
    # Chan's formula: within the parts, and between them.
    square = np.sum([part[2] + part[0] * np.square(part[1] - mean) for part in moments], axis=0)
    deviation = np.sqrt(square / n)
    varies = deviation > 10.0 * np.finfo(np.float64).eps * np.abs(mean)
    if not varies[-1]:
        raise TableError(f"the target is constant ({mean[-1]:g}): there is nothing to learn")
    scale = np.where(varies, deviation, 1.0)
    x_scale = common_scale(scale[:-1], blocks)
    return Scaling(mean[:-1], x_scale, float(mean[-1]), float(scale[-1]))


def standardise(placement: Placement[Shard], scaling: Scaling, like: Tensor) -> Placement[Shard]:
    """Bring rows into the units that experts work in, and the dtype of `like`, where they are."""
    return placement.derive(_standardised, scaling, str(like.dtype).removeprefix("torch."))


def _batches(stretch: Stretch, names: Sequence[str]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Read these columns in batches, each with the number of its first row in the data set."""
    for piece in stretch.pieces:
        position = 0
        if mark_of(stretch.system, piece.path) != piece.mark:
            raise TableError(
                f"{piece.path} was changed after the fit began, so its rows cannot be read again as they "
                "were: fit again"
            )
        with reading(stretch.system, piece.path, "parquet") as source:
            file = parquet.ParquetFile(source, buffer_size=2**20, pre_buffer=False)
            stored = [name for name in names if name not in piece.keys]
            stored = stored or file.schema_arrow.names[:1]  # for the number of rows
            for batch in file.iter_batches(BATCH_ROWS, list(piece.groups), columns=stored):
                batch = with_keys(batch, piece.keys)
                start = max(piece.start - position, 0)
                stop = min(piece.stop - position, batch.num_rows)
                if start < stop:
                    number = piece.offset + position + start - piece.start
                    yield number, batch.slice(start, stop - start)
                position += batch.num_rows


@travels("categories")
def _distinct(stretch: Stretch, name: str) -> set[str]:
    return set().union(*(distinct(batch.column(name)) for _, batch in _batches(stretch, [name])))


def _read_rows(stretch: Stretch, columns: Columns, missing: str, seed: int) -> Shard:
    names = list(dict.fromkeys([*(column.name for column in columns.inputs), columns.target]))
    most = sum(piece.stop - piece.start for piece in stretch.pieces)
    X, y = np.empty((most, len(columns.features))), np.empty(most)
    numbers, n, M = np.empty(most, dtype=np.int64), 0, len(stretch.experts)
    for number, batch in _batches(stretch, names):
        values = np.column_stack([columns.matrix(batch), columns.targets(batch)])
        keep = complete_rows(values, [*columns.owners, columns.target], missing)
        values, new = values[keep], slice(n, n + int(keep.sum()))
        X[new], y[new] = values[:, :-1], values[:, -1]
        numbers[new] = np.arange(number, number + len(keep))[keep]
        n = new.stop
    if n < M:
        raise TableError(f"{n} complete rows are too few for {named(stretch.experts)}")
    rows = Shard(*(torch.from_numpy(values[:n]) for values in (X, y, numbers)))
    return batch_of(rows, RandomPartition().assign(X[:n], M, seed + stretch.experts.start))


@travels("moments")
def _moments(batch: Shard) -> tuple[int, np.ndarray, np.ndarray]:
    """Compute n, the mean, and Σ(x − mean)² of every input column and the target."""

    def summed(of: Callable[[Tensor], Tensor]) -> Tensor:
        parts = (part.without_padding() for part in batch.flatten().chunks(MOMENT_ROWS))
        values = (torch.cat([part.X, part.y[:, None]], -1).double() for part in parts)
        return torch.stack([of(part).sum(0) for part in values]).sum(0)

    n = int(batch.sizes.double().sum())
    mean = summed(lambda values: values) / n
    square = summed(lambda values: (values - mean).square())
    return n, mean.cpu().numpy(), square.cpu().numpy()


@travels(scaling="moments")
def _standardised(batch: Shard, scaling: Scaling, dtype: str) -> Shard:
    x_mean, x_scale = (torch.as_tensor(v).to(batch.X) for v in (scaling.x_mean, scaling.x_scale))
    X, y = (batch.X - x_mean).div_(x_scale), (batch.y - scaling.y_mean) / scaling.y_scale
    if batch.mask is not None:
        y = torch.where(batch.mask, y, 0.0)
    wanted = getattr(torch, dtype)
    return replace(batch, X=X.to(wanted), y=y.to(wanted))
