"""Tables in files: CSV, Parquet and Arrow by suffix, folders and globs of Parquet, read in pieces."""

from __future__ import annotations

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import csv, parquet

from distgp.files import whole

SUFFIXES = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
BATCH_ROWS = 2**16
"""Rows that are read, predicted and written at a time."""
CSV_BLOCK = 2**24
"""Bytes of a CSV file from which the types of columns that nobody declared are guessed."""


class TableError(ValueError):
    """A file cannot be read as a table, or lacks what is asked of it."""


@dataclass(frozen=True)
class Table:
    """One or more files with the same columns."""

    paths: tuple[Path, ...]
    kind: str
    schema: pa.Schema

    @staticmethod
    def open(where: str | Path) -> Table:
        """A file, a folder of Parquet files, or a glob; looks at the schema, reads no rows."""
        paths = _find(where)
        kinds = {_kind(path) for path in paths}
        if len(kinds) > 1:
            raise TableError(f"{where} matches files of several kinds: {', '.join(sorted(kinds))}")
        kind = kinds.pop()
        schema = _read(paths[0], lambda: _schema(paths[0], kind))
        for path in paths[1:]:
            names = _read(path, lambda path=path: _schema(path, kind)).names
            if names != schema.names:
                raise TableError(
                    f"{path} has the columns {names}, but {paths[0]} has {schema.names}"
                )
        return Table(paths, kind, schema)

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self.schema.names)

    def read(self) -> pa.Table:
        """All rows, in memory."""
        if self.kind == "csv":
            # As a whole, so that the types of columns come from all rows.
            parts = [_read(p, lambda p=p: csv.read_csv(p)) for p in self.paths]
            return pa.concat_tables(parts, promote_options="permissive")
        batches = list(self.batches({}))
        return pa.Table.from_batches(batches, schema=batches[0].schema if batches else self.schema)

    def batches(
        self, types: dict[str, pa.DataType], rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Pieces of at most `rows` rows, in bounded memory; `types` declares columns of CSV files."""
        for path in self.paths:
            pieces = _pieces(path, self.kind, types, rows)
            while (piece := _read(path, lambda pieces=pieces: next(pieces, None))) is not None:
                for start in range(0, piece.num_rows, rows):
                    yield piece.slice(start, rows)


class Sink:
    """A table being written, its kind known from the suffix, its schema from the first batch."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = path, kind
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if self._writer is None:
            self._writer = _writer(self._path, self._kind, batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


@contextmanager
def sink(path: str | Path) -> Iterator[Sink]:
    """A table to write batches to, which appears whole or not at all."""
    path = Path(path)
    kind = _kind(path)
    with whole(path) as part:
        out = Sink(part, kind)
        try:
            yield out
        finally:
            out.close()


def _find(where: str | Path) -> tuple[Path, ...]:
    text, path = str(where), Path(where)
    if path.is_dir():
        found = sorted(path.rglob("*.parquet"))
        if not found:
            raise TableError(f"the folder {text!r} holds no .parquet files")
        return tuple(found)
    if path.exists():
        return (path,)
    if any(mark in text for mark in "*?["):
        found = tuple(Path(name) for name in sorted(glob.glob(text, recursive=True)))
        if not found:
            raise TableError(f"no file matches {text!r}")
        return found
    raise TableError(f"there is no file {text!r}")


def _kind(path: Path) -> str:
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise TableError(f"cannot tell what {path.name!r} is: expected a suffix of {known}")
    return SUFFIXES[suffix]


def _read(path: Path, action: Any) -> Any:
    """Turn what the reader says into what the user should know."""
    try:
        return action()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        said = str(error).splitlines()[0]
        if path.exists() and path.stat().st_size == 0:
            said = "it is empty"
        raise TableError(f"cannot read {path} as {_kind(path)}: {said}") from error


def _schema(path: Path, kind: str) -> pa.Schema:
    if kind == "parquet":
        return parquet.read_schema(path)
    if kind == "csv":
        with csv.open_csv(path, csv.ReadOptions(block_size=CSV_BLOCK)) as reader:
            return reader.schema
    with pa.OSFile(str(path)) as file:
        return _arrow_reader(file).schema


def _arrow_reader(file: Any) -> Any:
    """Arrow files come in two forms: with an index at the end, or as a stream."""
    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file)


def _pieces(
    path: Path, kind: str, types: dict[str, pa.DataType], rows: int
) -> Iterator[pa.RecordBatch]:
    if kind == "parquet":
        # Buffered and not pre-fetched: a row group is never held as a whole.
        with parquet.ParquetFile(path, buffer_size=2**20, pre_buffer=False) as file:
            yield from file.iter_batches(batch_size=rows)
    elif kind == "csv":
        options = csv.ConvertOptions(column_types=types)
        with csv.open_csv(
            path, csv.ReadOptions(block_size=CSV_BLOCK), convert_options=options
        ) as reader:
            yield from reader
    else:
        with pa.OSFile(str(path)) as file:
            reader = _arrow_reader(file)
            if hasattr(reader, "num_record_batches"):
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                yield from reader


def _writer(path: Path, kind: str, schema: pa.Schema) -> Any:
    if kind == "parquet":
        return parquet.ParquetWriter(path, schema)
    if kind == "csv":
        return csv.CSVWriter(path, schema)
    return pa.ipc.new_file(str(path), schema)
