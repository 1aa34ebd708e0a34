"""Tables in files: CSV, Parquet and Arrow by suffix, folders and globs of Parquet, read in pieces."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Sequence
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
        schema = _decoded(_read(paths[0], lambda: _schema(paths[0], kind)))
        for path in paths[1:]:
            other = _decoded(_read(path, lambda path=path: _schema(path, kind)))
            if set(other.names) != set(schema.names):
                raise TableError(
                    f"{path} has the columns {other.names}, but {paths[0]} has {schema.names}"
                )
            try:
                schema = pa.unify_schemas([schema, other], promote_options="permissive")
            except pa.ArrowException as error:
                raise TableError(
                    f"{path} and {paths[0]} have columns of other types: {error}"
                ) from error
        repeated = [name for name in schema.names if schema.names.count(name) > 1]
        if repeated:
            raise TableError(f"{paths[0]} has more than one column {repeated[0]!r}: rename them")
        return Table(paths, kind, schema)

    @property
    def names(self) -> list[str]:
        """The columns."""
        return list(self.schema.names)

    def read(self, text: Sequence[str] = ()) -> pa.Table:
        """All rows, in memory; columns named in `text` are read as they are written."""
        if self.kind == "csv":
            # As a whole, so that the types of columns come from all rows.
            options = _conversion({name: pa.string() for name in text})
            parts = [
                _read(p, lambda p=p: csv.read_csv(p, convert_options=options)) for p in self.paths
            ]
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
                if self.kind != "csv" and piece.schema != self.schema:
                    piece = piece.select(self.names).cast(self.schema)
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
            _check_writable(batch.schema, self._kind)
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
        if "conversion error" in said:
            said += " (types come from the model, or from the first 16 MiB: Parquet has its own)"
        raise TableError(f"cannot read {path} as {_kind(path)}: {said}") from error


def _schema(path: Path, kind: str) -> pa.Schema:
    if kind == "parquet":
        return parquet.read_schema(path)
    if kind == "csv":
        with csv.open_csv(path, csv.ReadOptions(block_size=CSV_BLOCK)) as reader:
            return reader.schema
    with pa.memory_map(str(path)) as file:
        return _arrow_reader(file).schema


def _decoded(schema: pa.Schema) -> pa.Schema:
    """The schema with text in place of dictionaries, which differ between files and batches."""
    for i, field in enumerate(schema):
        if pa.types.is_dictionary(field.type):
            schema = schema.set(i, field.with_type(field.type.value_type))
    return schema.remove_metadata()


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
        block = csv.ReadOptions(block_size=CSV_BLOCK)
        with csv.open_csv(path, block, convert_options=_conversion({})) as reader:
            empty = [field.name for field in reader.schema if pa.types.is_null(field.type)]
        types = {name: pa.string() for name in empty} | types
        with csv.open_csv(path, block, convert_options=_conversion(types)) as reader:
            yield from reader
    else:
        with pa.memory_map(str(path)) as file:  # so that a long batch is not read as a whole
            reader = _arrow_reader(file)
            if hasattr(reader, "num_record_batches"):
                yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
            else:
                yield from reader


def _conversion(types: dict[str, pa.DataType]) -> csv.ConvertOptions:
    """An empty field is a missing value, in text as in numbers."""
    return csv.ConvertOptions(column_types=types, strings_can_be_null=True)


def _check_writable(schema: pa.Schema, kind: str) -> None:
    """Refuse what CSV cannot hold."""
    nested = [field for field in schema if pa.types.is_nested(field.type)]
    if kind == "csv" and nested:
        raise TableError(
            f"column {nested[0].name!r} is {nested[0].type}, which CSV cannot hold: write Parquet, or "
            "leave it out of the data"
        )


def _writer(path: Path, kind: str, schema: pa.Schema) -> Any:
    if kind == "parquet":
        return parquet.ParquetWriter(path, schema)
    if kind == "csv":
        return csv.CSVWriter(path, schema)
    return pa.ipc.new_file(str(path), schema)
