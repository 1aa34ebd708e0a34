"""Tables in files: CSV, Parquet and Arrow, read as a whole or in pieces, and written."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute
from pyarrow import csv, fs, parquet

from distgp.data.locate import TableError, find, kind_of
from distgp.files import whole

BATCH_ROWS = 2**16
"""Rows that are read, predicted and written at a time."""
CSV_BLOCK = 2**24
"""Bytes of a CSV file from which the types of columns that nobody declared are guessed."""
CSV_FORM = csv.ParseOptions(newlines_in_values=True)
Keys: TypeAlias = "dict[str, pa.Scalar]"
"""The values of columns that the names of a file's folders give, by the columns' names."""
pc: Any = pyarrow.compute  # its functions are made when it is imported: no tool knows them


@dataclass(frozen=True)
class Table:
    """One or more files of one kind with the same columns.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        The file system that the files are on.
    paths : tuple of str
        The files, in the order in which their rows are read.
    kind : str
        "csv", "parquet" or "arrow".
    schema : pyarrow.Schema
        The columns and their types, unified over all files.
    keys : tuple of Keys
        The columns that the names of folders give, such as ``year=2024``, and their values per file.
    """

    system: fs.FileSystem
    paths: tuple[str, ...]
    kind: str
    schema: pa.Schema
    keys: tuple[Keys, ...]

    @staticmethod
    def open(path: str | Path) -> Table:
        """Look at the columns of a file, a folder, a glob or a URI of one; reads no rows.

        Raises
        ------
        TableError
            If there is no such file, it is no table, or its files do not have the same columns.
        """
        found = find(path)
        system, paths, keys = found.system, found.paths, _typed(found.keys())
        kinds = sorted({kind_of(name) for name in paths})
        if len(kinds) > 1:
            raise TableError(
                f"{path} matches files of several kinds: {', '.join(kinds)}. Choose one with a glob, such "
                f"as '*.{kinds[-1]}'"
            )
        if kinds == ["arrow"] and isinstance(system, fs.LocalFileSystem):
            system = fs.LocalFileSystem(use_mmap=True)  # a long batch is not read as a whole
        schemas = []
        for name, own in zip(paths, keys, strict=True):
            with _reader(system, name, kinds[0], {}) as (schema, _):
                schemas.append(_with_key_fields(_decoded(schema), own, name))
        return Table(system, paths, kinds[0], _unified(schemas, paths), keys)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.schema.names)

    def read(self, text: Sequence[str] = ()) -> pa.Table:
        """Read all rows; columns of CSV files that are named in `text` stay as they are written."""
        if self.kind == "csv":
            # As a whole, so that the types of columns come from all rows.
            options = _conversion({name: pa.string() for name in text})
            parts = []
            for path, keys in zip(self.paths, self.keys, strict=True):
                with reading(self.system, path, self.kind) as file:
                    part = csv.read_csv(file, None, CSV_FORM, options)
                    _refuse_bytes(part.schema, path)
                    parts.append(with_keys(_empty_is_missing(part), keys))
            return pa.concat_tables(parts, promote_options="permissive")
        batches = list(self.batches())
        return pa.Table.from_batches(batches, schema=batches[0].schema if batches else self.schema)

    def batches(
        self, types: dict[str, pa.DataType] | None = None, rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Read pieces of at most `rows` rows, in bounded memory.

        Parameters
        ----------
        types : dict, optional
            The types of columns of CSV files that are used. All others are texts then, as written.
        rows : int
            The most rows of a piece.
        """
        known: dict[str, pa.DataType] = {}
        for field in self.schema:  # a CSV column that begins without values may go on with any
            unused = types is not None and field.name not in types
            text = unused or pa.types.is_null(field.type)
            known[field.name] = pa.string() if text else field.type
        known |= {name: kind for name, kind in (types or {}).items() if kind is not None}
        for path, keys in zip(self.paths, self.keys, strict=True):
            with _reader(self.system, path, self.kind, known, rows) as (_, pieces):
                for piece in pieces:
                    piece = with_keys(piece, keys)
                    if piece.schema.names != self.names:
                        piece = piece.select(self.names)
                    if self.kind != "csv" and piece.schema != self.schema:
                        piece = piece.cast(self.schema)
                    if self.kind == "csv":
                        piece = _empty_is_missing(piece)
                    for start in range(0, piece.num_rows, rows):
                        yield piece.slice(start, rows)


class Sink:
    """A table being written; its schema is that of the first batch."""

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
    """Open a table to write batches to; the file appears whole at the end, or not at all."""
    kind = kind_of(path)
    with whole(path) as part:
        out = Sink(part, kind)
        try:
            yield out
        finally:
            out.close()


def _unified(schemas: Sequence[pa.Schema], paths: Sequence[str]) -> pa.Schema:
    """Find the schema that all files can be read with; refuse files with other columns."""
    schema = schemas[0]
    for other, path in zip(schemas[1:], paths[1:], strict=True):
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
    refuse_repeated(schema.names, paths[0])
    return schema


def refuse_repeated(names: Sequence[str], table: str) -> None:
    """Refuse columns of the same name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise TableError(f"{table} has more than one column {name!r}: rename them")


def _typed(keys: Sequence[dict[str, str | None]]) -> tuple[Keys, ...]:
    """The values of key columns as integers where all are, else as texts."""
    texts = {
        name
        for own in keys
        for name, value in own.items()
        if value is not None and not re.fullmatch(r"0|-?[1-9][0-9]{0,17}", value)
    }

    def typed(name: str, value: str | None) -> pa.Scalar:
        if name in texts:
            return pa.scalar(value, pa.string())
        return pa.scalar(None if value is None else int(value), pa.int64())

    return tuple({name: typed(name, value) for name, value in own.items()} for own in keys)


def _with_key_fields(schema: pa.Schema, keys: Keys, path: str) -> pa.Schema:
    """The schema of a file's own columns and those of its folders' names."""
    for name, value in keys.items():
        if name in schema.names:
            raise TableError(
                f"{path} has a column {name!r}, and its folder's name gives another: rename the folder"
            )
        schema = schema.append(pa.field(name, value.type))
    return schema


def with_keys(rows: Any, keys: Keys) -> Any:
    """Rows of a file with the columns that its folders' names give."""
    for name, value in keys.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def _empty_is_missing(rows: Any) -> Any:
    """Rows of a CSV file with missing values for empty texts; every other text, "NA" too, is one."""
    columns = [
        pc.if_else(pc.equal(values, ""), None, values)
        if pa.types.is_string(values.type)
        else values
        for values in rows.columns
    ]
    return type(rows).from_arrays(columns, schema=rows.schema)


def _refuse_bytes(schema: pa.Schema, path: str) -> None:
    """Refuse a CSV file whose texts are not UTF-8: pyarrow calls such columns binary."""
    for field in schema:
        if pa.types.is_binary(field.type):
            raise TableError(
                f"{path} is not written in UTF-8: see column {field.name!r}. Convert it, for example by "
                "iconv -f latin1 -t utf8"
            )


def _decoded(schema: pa.Schema) -> pa.Schema:
    """Replace dictionaries, which differ between files and batches, by their values' type."""
    fields = [
        field.with_type(field.type.value_type) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(fields)


@contextmanager
def reading(system: fs.FileSystem, path: str, kind: str) -> Iterator[pa.NativeFile]:
    """Open a file; what its reader says is turned into what the user should know."""
    try:
        with system.open_input_file(path) as file:
            yield file
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        said = str(error).splitlines()[0]
        if system.get_file_info(path).size == 0:
            said = "it is empty"
        if "conversion error" in said:
            said += " (types come from the model, or from the first 16 MiB: Parquet has its own)"
        raise TableError(f"cannot read {path} as {kind}: {said}") from error


@contextmanager
def _reader(
    system: fs.FileSystem,
    path: str,
    kind: str,
    types: dict[str, pa.DataType],
    rows: int = BATCH_ROWS,
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open a file for its schema and its batches."""
    with reading(system, path, kind) as file:
        schema, pieces = _READERS[kind](file, types, rows)
        if kind == "csv":
            _refuse_bytes(schema, path)
        yield schema, pieces


def _csv(file: pa.NativeFile, types: dict[str, pa.DataType], rows: int) -> Any:
    del rows  # its batches are blocks of bytes
    size = csv.ReadOptions(block_size=CSV_BLOCK)
    reader = csv.open_csv(file, size, CSV_FORM, _conversion(types))
    return reader.schema, iter(reader)


def _parquet(file: pa.NativeFile, types: dict[str, pa.DataType], rows: int) -> Any:
    del types
    # Neither pre-fetched nor by pyarrow.dataset's scanner: both hold a row group as a whole.
    reader = parquet.ParquetFile(file, buffer_size=2**20, pre_buffer=False)
    return reader.schema_arrow, reader.iter_batches(batch_size=rows)


def _arrow(file: pa.NativeFile, types: dict[str, pa.DataType], rows: int) -> Any:
    """Open an Arrow file in either of its forms: with an index at the end, or as a stream."""
    del types, rows
    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        return stream.schema, iter(stream)
    return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))


_READERS: dict[str, Callable[..., Any]] = {"csv": _csv, "parquet": _parquet, "arrow": _arrow}


def _conversion(types: dict[str, pa.DataType]) -> csv.ConvertOptions:
    """Types of columns; "NA" and the like are missing numbers, but texts like any other."""
    return csv.ConvertOptions(column_types=types, strings_can_be_null=False)


def _writer(path: Path, kind: str, schema: pa.Schema) -> Any:
    if kind == "parquet":
        return parquet.ParquetWriter(path, schema)
    if kind == "arrow":
        return pa.ipc.new_file(str(path), schema)
    nested = [field for field in schema if pa.types.is_nested(field.type)]
    if nested:
        raise TableError(
            f"column {nested[0].name!r} is {nested[0].type}, which CSV cannot hold: write Parquet, or "
            "leave it out of the data"
        )
    return csv.CSVWriter(path, schema)
