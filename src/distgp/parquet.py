"""Rows that workers read by themselves, from Parquet: the process that asks never holds them.

Every worker gets a stretch of consecutive rows, made of whole row groups and pieces of them, and deals its
rows out to its experts at random.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from pyarrow import fs, parquet

from distgp.columns import Columns, complete_rows, distinct, learn_columns
from distgp.engines import Engine, Placement
from distgp.partition import RandomPartition, split
from distgp.scaling import Scaling
from distgp.shards import Shard, stack
from distgp.sources import Rows, even_parts, named
from distgp.tables import Table, TableError
from distgp.workers import ShardGroup


@dataclass(frozen=True)
class Piece:
    """Rows start … stop of one row group; `offset` is the number of its first row among all."""

    path: str
    group: int
    start: int
    stop: int
    offset: int


@dataclass(frozen=True)
class Stretch:
    """What one worker reads: its pieces, and the numbers of its experts."""

    system: fs.FileSystem
    pieces: tuple[Piece, ...]
    experts: range

    def __call__(self) -> Stretch:
        """Itself: rows are read when the columns are known."""
        return self


@dataclass(frozen=True)
class ParquetRows:
    """The files of a data set, with the number of rows of each row group."""

    system: fs.FileSystem
    files: tuple[tuple[str, tuple[int, ...]], ...]
    schema: pa.Schema

    @staticmethod
    def open(where: str) -> ParquetRows:
        """A file, a folder or a glob, here or on any file system that pyarrow opens (s3://…, gs://…).

        Reads the files' footers, no rows.
        """
        system, paths = _find(where)
        files, schema = [], None
        for path in paths:
            try:
                with parquet.ParquetFile(system.open_input_file(path)) as file:
                    groups = [
                        file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)
                    ]
                    found = file.schema_arrow
            except (pa.ArrowException, OSError) as error:
                raise TableError(f"cannot read {path} as parquet: {error}") from error
            if schema is not None and set(found.names) != set(schema.names):
                raise TableError(f"{path} has other columns than {files[0][0]}: {found.names}")
            schema = found if schema is None else schema
            files.append((path, tuple(groups)))
        if schema is None or not sum(sum(groups) for _, groups in files):
            raise TableError(f"{where} holds no rows")
        return ParquetRows(system, tuple(files), schema)

    @property
    def n(self) -> int:
        """All rows."""
        return sum(sum(groups) for _, groups in self.files)

    def stretches(self, n_experts: int, workers: int) -> list[Stretch]:
        """Consecutive rows for each worker, in proportion to its experts."""
        parts = even_parts(n_experts, workers)
        cuts = [part.start * self.n // n_experts for part in parts] + [self.n]
        return [
            Stretch(self.system, tuple(self._between(cuts[i], cuts[i + 1])), part)
            for i, part in enumerate(parts)
        ]

    def _between(self, low: int, high: int) -> list[Piece]:
        found, offset = [], 0
        for path, groups in self.files:
            for group, rows in enumerate(groups):
                start, stop = max(low - offset, 0), min(high - offset, rows)
                if start < stop:
                    found.append(Piece(path, group, start, stop, offset + start))
                offset += rows
        return found


def place(
    engine: Engine, data: ParquetRows, n_experts: int, target: str, **options: Any
) -> tuple[Placement[Stretch], Columns]:
    """Give every worker its stretch, and find out what the columns are; options as of `learn_columns`."""
    stretches = data.stretches(n_experts, engine.workers)
    where = engine.scatter(stretches, [named(stretch.experts) for stretch in stretches])

    def texts_of(name: str) -> set[str]:
        return set().union(*where.map(_distinct, name))

    return where, learn_columns(data.schema, texts_of, target, **options)


def read(where: Placement[Stretch], columns: Columns, missing: str, seed: int) -> Placement[Rows]:
    """Have the workers read their rows, in the units of the data."""
    return where.derive(_read_rows, columns, missing, seed)


def scaling_of(rows: Placement[Rows], normalize: bool, d: int) -> Scaling:
    """Standardisation, from the moments of every worker's rows."""
    if not normalize:
        return Scaling(np.zeros(d), np.ones(d), 0.0, 1.0)
    moments = rows.map(_moments)
    n = sum(part[0] for part in moments)
    mean = np.sum([part[0] * part[1] for part in moments], axis=0) / n
    # Chan's formula: within the parts, and between them.
    square = np.sum([part[2] + part[0] * np.square(part[1] - mean) for part in moments], axis=0)
    deviation = np.sqrt(square / n)
    varies = deviation > 10.0 * np.finfo(np.float64).eps * np.abs(mean)
    if not varies[-1]:
        raise TableError(f"the target is constant ({mean[-1]:g}): there is nothing to learn")
    scale = np.where(varies, deviation, 1.0)
    return Scaling(mean[:-1], scale[:-1], float(mean[-1]), float(scale[-1]))


def standardise(rows: Placement[Rows], scaling: Scaling, like: torch.Tensor) -> Placement[Rows]:
    """The same rows in the units that experts work in."""
    return rows.derive(_standardised, scaling, str(like.dtype).removeprefix("torch."))


def _find(where: str) -> tuple[fs.FileSystem, list[str]]:
    """The file system, and the files on it."""
    if "://" not in where:
        table = Table.open(where)
        if table.kind != "parquet":
            raise TableError(
                f"workers read Parquet by themselves, {where} is {table.kind}: convert it"
            )
        return fs.LocalFileSystem(), [str(path.resolve()) for path in table.paths]
    try:
        system, path = fs.FileSystem.from_uri(where)
        plain = re.split(r"[*?[]", path)[0]
        folder = path if plain == path else plain.rpartition("/")[0]
        info = system.get_file_info(folder)
        if info.type == fs.FileType.File:
            return system, [path]
        inside = system.get_file_info(fs.FileSelector(folder, recursive=True))
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot list {where}: {error}") from error
    wanted = path if folder != path else "*.parquet"
    found = sorted(f.path for f in inside if f.is_file and fnmatch(f.path, wanted))
    if not found:
        raise TableError(f"{where} holds no .parquet files")
    return system, found


def _tables(stretch: Stretch, names: Sequence[str]) -> Iterator[pa.Table]:
    """The pieces of a stretch, these columns, one at a time."""
    for piece in stretch.pieces:
        with parquet.ParquetFile(stretch.system.open_input_file(piece.path)) as file:
            table = file.read_row_group(piece.group, columns=list(names))
        yield table.slice(piece.start, piece.stop - piece.start)


def _distinct(stretch: Stretch, name: str) -> set[str]:
    return set().union(*(distinct(table.column(name)) for table in _tables(stretch, [name])))


def _read_rows(stretch: Stretch, columns: Columns, missing: str, seed: int) -> Rows:
    names = list(dict.fromkeys([*(column.name for column in columns.inputs), columns.target]))
    parts = []
    for piece, table in zip(stretch.pieces, _tables(stretch, names), strict=True):
        values = np.column_stack([columns.matrix(table), columns.targets(table)])
        keep = complete_rows(values, [*columns.features, columns.target], missing)
        numbers = np.arange(piece.offset, piece.offset + len(values))[keep]
        parts.append((values[keep], numbers))
    values, numbers = (np.concatenate(part) for part in zip(*parts, strict=True))
    M = len(stretch.experts)
    if len(values) < M:
        raise TableError(f"{len(values)} complete rows are too few for {named(stretch.experts)}")
    X, y = (
        torch.from_numpy(values[:, :-1]).contiguous(),
        torch.from_numpy(values[:, -1]).contiguous(),
    )
    labels = RandomPartition().assign(values, M, seed + stretch.experts.start)
    batch = stack(split(Shard(X, y, torch.from_numpy(numbers)), labels))
    return Rows(ShardGroup(batch, stretch.experts.start), batch.y[..., None])


def _moments(rows: Rows) -> tuple[int, np.ndarray, np.ndarray]:
    """n, mean and Σ(x − mean)² of every input column and the target."""
    flat = rows.group.shards.flatten()
    real = slice(None) if flat.mask is None else flat.mask
    values = torch.cat([flat.X, flat.y[:, None]], -1)[real].double()
    mean = values.mean(0)
    return len(values), mean.cpu().numpy(), (values - mean).square().sum(0).cpu().numpy()


def _standardised(rows: Rows, scaling: Scaling, dtype: str) -> Rows:
    batch, wanted = rows.group.shards, getattr(torch, dtype)
    x_mean, x_scale = (torch.as_tensor(v).to(batch.X) for v in (scaling.x_mean, scaling.x_scale))
    X = ((batch.X - x_mean) / x_scale).to(wanted)
    y = (batch.y - scaling.y_mean) / scaling.y_scale
    if batch.mask is not None:
        y = torch.where(batch.mask, y, 0.0)
    shards = replace(batch, X=X, y=y.to(wanted))
    return Rows(ShardGroup(shards, rows.group.first), shards.y[..., None])
