"""Rows that workers read by themselves, from Parquet: the process that asks never holds them.

Every worker gets a stretch of consecutive rows and deals them out to its experts at random.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import torch
from pyarrow import fs, parquet

from distgp._util.checks import did_you_mean
from distgp.data.encoding import (
    Columns,
    check_choices,
    complete_rows,
    distinct,
    learn_columns,
    numbers,
)
from distgp.data.partition import RandomPartition, batch_of
from distgp.data.repeats import hashes
from distgp.data.scaling import (
    refuse_fill_values,
)
from distgp.data.shard import Shard, even_parts, named
from distgp.data.table import BATCH_ROWS, Keys, Table, TableError, parquet_file, reading, with_keys
from distgp.engines import Engine, Placement, travels

ROW_NUMBERS = {"sample_weight": "weight", "noise_variance": "noise"}
"""What `fit` takes for each row as a number, and what a shard calls it."""
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


class LeftOut(NamedTuple):
    """Rows that are not read: those with these `numbers`, and others with the `inputs` of some of them.

    Inputs are known by their hashes, and `copies` is the number of those others. Numbers and hashes are in
    ascending order.
    """

    numbers: np.ndarray = np.empty(0, dtype=np.int64)
    inputs: np.ndarray = np.empty(0, dtype=np.uint64)
    copies: int = 0

    @property
    def total(self) -> int:
        """The number of all rows that are not read."""
        return len(self.numbers) + self.copies


ALL_ROWS = LeftOut()


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

    def check_names(self, given: Mapping[str, str]) -> None:
        """Refuse names, of what is given for each row, that are not those of columns."""
        for kind, name in given.items():
            if not isinstance(name, str) or name not in self.table.names:
                near = did_you_mean(name, self.table.names, "")
                raise TableError(
                    f"{kind} must name a column of the files, which have "
                    f"{', '.join(map(repr, self.table.names))}; got {name!r:.60}{near}"
                )

    def first(self, n: int) -> ParquetRows:
        """The first n rows alone."""
        starts = accumulate(self.lengths, initial=0)
        lengths = [
            max(0, min(n - start, k)) for start, k in zip(starts, self.lengths, strict=False)
        ]
        return replace(self, lengths=tuple(lengths))

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
    placement: Placement[Stretch],
    columns: Columns,
    missing: str,
    seed: int,
    given: Mapping[str, str] = MappingProxyType({}),
    left_out: LeftOut = ALL_ROWS,
) -> Placement[Shard]:
    """Have the workers read their rows and deal them out: each worker's shards as one batch, unscaled.

    `given` names the columns of what is given for each row; of these, `ROW_NUMBERS` are read with the rows.
    Rows are numbered without those that are `left_out` by their numbers.
    """
    check_choices(missing=missing)
    if missing == "impute":
        raise TableError(
            "missing='impute' needs the rows in this process: give missing='drop', or fit a table in memory"
        )
    own = {kind: name for kind, name in given.items() if kind in ROW_NUMBERS}
    return placement.derive(
        _read_rows, columns, missing, seed, own, left_out.numbers, left_out.inputs
    )


def values_of(placement: Placement[Stretch], name: str, rows: np.ndarray) -> np.ndarray:
    """Read a column of some rows, by their numbers in the data set in ascending order."""
    return np.concatenate(placement.map(_values, name, rows))


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


@travels(without="rows", unlike="inputs")
def _read_rows(
    stretch: Stretch,
    columns: Columns,
    missing: str,
    seed: int,
    own: Mapping[str, str],
    without: np.ndarray,
    unlike: np.ndarray,
) -> Shard:
    """Read a worker's rows into arrays that hold them once, and deal them out to its experts.

    Rows that have a number in `without`, or inputs with a hash in `unlike`, are left out.
    """
    most, M = sum(len(piece.rows) for piece in stretch.pieces), len(stretch.experts)
    X, numbers, n = np.empty((most, len(columns.features))), np.empty(most, dtype=np.int64), 0
    y, *more = np.empty((1 + len(own), most))
    for places, values in _complete_rows(stretch, columns, missing, own):
        order = np.searchsorted(without, places, "right")
        keep = order == np.searchsorted(without, places)
        keep &= ~_any_of(unlike, values[:, : X.shape[1]])
        places, values = (places - order)[keep], values[keep]
        new = slice(n, n + len(places))
        X[new], numbers[new], n = values[:, : X.shape[1]], places, new.stop
        for found, column in zip((y, *more), values.T[X.shape[1] :], strict=True):
            found[new] = column
    if n < M:
        more = " without those held out" if len(without) else ""
        raise TableError(f"{n} complete rows{more} are too few for {named(stretch.experts)}")
    refuse_fill_values("an input", X[:n])
    refuse_fill_values("a target", y[:n, None])
    rows = Shard(*(torch.from_numpy(values[:n]) for values in (X, y, numbers)))
    given = {ROW_NUMBERS[k]: torch.from_numpy(v[:n]) for k, v in zip(own, more, strict=True)}
    labels = RandomPartition().assign(X[:n], M, seed + stretch.experts.start)
    return batch_of(replace(rows, **given), labels)


def _any_of(known: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Tell for each row whether its inputs have one of these hashes."""
    return np.isin(hashes(X), known) if len(known) else np.zeros(len(X), dtype=bool)


def _complete_rows(
    stretch: Stretch, columns: Columns, missing: str, own: Mapping[str, str]
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Read the numbers of complete rows that count, and their inputs, target and `own` numbers."""
    named = [*columns.owners, columns.target, *own.values()]
    for number, batch in _batches(stretch, list(dict.fromkeys(named))):
        more = [numbers(name, batch.column(name)) for name in own.values()]
        values = np.column_stack([columns.matrix(batch), columns.targets(batch), *more])
        keep = complete_rows(values, named, missing)
        for kind, found in zip(own, more, strict=True):
            _refuse_negative(kind, own[kind], found[keep])
            keep &= found > 0
        yield number + np.flatnonzero(keep), values[keep]


def _refuse_negative(kind: str, name: str, values: np.ndarray) -> None:
    """Refuse weights below 0, and noise variances that are not positive."""
    wrong = values < 0 if kind == "sample_weight" else values <= 0
    if wrong.any():
        expected = "at least 0" if kind == "sample_weight" else "positive"
        raise TableError(
            f"{kind} must be {expected}, got {values[wrong][0]:g} in the column {name!r}: correct or "
            "remove those rows"
        )


@travels("rows", rows="rows")
def _values(stretch: Stretch, name: str, rows: np.ndarray) -> np.ndarray:
    """Read the values of a column in those of a worker's rows that are asked for."""
    found: list[pa.Array] = []
    for number, batch in _batches(stretch, [name]):
        low, high = np.searchsorted(rows, [number, number + batch.num_rows])
        found.append(batch.column(name).take(pa.array(rows[low:high] - number)))
    return pa.chunked_array(found).to_numpy()
