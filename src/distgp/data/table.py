"""Tables in files: CSV, Parquet and Arrow, read as a whole or in pieces, and written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute
from pyarrow import csv, fs, parquet
from pyarrow.types import is_binary, is_dictionary, is_nested, is_null, is_string

from distgp.data.locate import Keys, TableError, find, kind_of
from distgp.files.writing import whole

BATCH_ROWS = 2**16
"""Rows that are read, predicted and written at a time."""
CSV_BLOCK = 2**24
"""Bytes of a CSV file from which the types of columns that nobody declared are guessed."""
CSV_FORM = csv.ParseOptions(newlines_in_values=True)
Types: TypeAlias = "Mapping[str, pa.DataType | None]"
"""The types of columns, by their names; None for those that are found in the file."""
AnyRows = TypeVar("AnyRows", pa.RecordBatch, pa.Table)
pc: Any = pyarrow.compute  # its functions are made when it is imported: no tool knows them


@dataclass(frozen=True)
class Table:
    """One or more files of one kind ("csv", "parquet" or "arrow") with the same columns.

    Rows are read in the order of the paths. The schema is unified over all files; it includes the columns
    that the names of folders give, such as ``year=2024``, whose values are the keys of each file.
    """

    system: fs.FileSystem
    paths: tuple[str, ...]
    kind: str
    schema: pa.Schema
    keys: tuple[Keys, ...]

    @staticmethod
    def open(path: str | Path) -> Table:
        """Look at the columns of a file, a folder, a glob or a URI of one; reads no rows.

        A TableError says that there is no such file, it is no table, or its files differ in their columns.
        """
        found = find(path)
        system, paths, keys = found.system, found.paths, found.keys()
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
                schemas.append(_decoded(schema, own, name))
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
        self, types: Types | None = None, rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Read pieces of at most `rows` rows, in bounded memory.

        Given the `types` of the columns of CSV files that are used, all others are texts, as written.
        """
        known: dict[str, pa.DataType] = {}
        for field in self.schema:  # a CSV column that begins without values may go on with any
            unused = types is not None and field.name not in types
            text = unused or is_null(field.type)
            known[field.name] = pa.string() if text else field.type
        known |= {name: kind for name, kind in (types or {}).items() if kind is not None}
        for path, keys in zip(self.paths, self.keys, strict=True):
            with _reader(self.system, path, self.kind, known, rows) as (_, pieces):
                for piece in pieces:
                    piece = self._uniform(with_keys(piece, keys))
                    for start in range(0, piece.num_rows, rows):
                        yield piece.slice(start, rows)

    def _uniform(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        """Bring a file's columns into the order and, unless it is CSV, the types of the schema."""
        if piece.schema.names != self.names:
            piece = piece.select(self.names)
        if self.kind == "csv":
            return _empty_is_missing(piece)
        return piece if piece.schema == self.schema else piece.cast(self.schema)


class Sink:
    """A table being written; its schema is that of the first batch."""

    def __init__(self, path: Path, kind: str) -> None:
        self._path, self._kind = path, kind
        self._writer: Any = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Append a batch."""
        if self._writer is None:
            if self._kind == "csv":
                _refuse_nested(batch.schema)
            self._writer = _WRITERS[self._kind](str(self._path), batch.schema)
        self._writer.write_batch(batch)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()


@contextmanager
def sink(path: str | Path) -> Iterator[Sink]:
    """Open a table to write batches to; the file appears whole at the end, or not at all."""
    kind = kind_of(path)
    with whole(path) as part, closing(Sink(part, kind)) as out:
        yield out


def refuse_repeated(names: Sequence[str], table: str) -> None:
    """Refuse columns of the same name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise TableError(f"{table} has more than one column {name!r}: rename them")


def with_keys(rows: AnyRows, keys: Keys) -> AnyRows:
    """Add the columns that the names of a file's folders give to its rows."""
    for name, value in keys.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


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


def parquet_file(file: pa.NativeFile) -> parquet.ParquetFile:
    """Open a Parquet file for reading in batches.

    It is neither pre-fetched nor read by pyarrow.dataset's scanner: both hold a row group as a whole.
    """
    return parquet.ParquetFile(file, buffer_size=2**20, pre_buffer=False)


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


def _decoded(schema: pa.Schema, keys: Keys, path: str) -> pa.Schema:
    """Replace dictionaries, which differ between files, by their values' type; add the columns of keys."""
    for name in keys:
        if name in schema.names:
            raise TableError(
                f"{path} has a column {name!r}, and its folder's name gives another: rename the folder"
            )
    fields = [f.with_type(f.type.value_type) if is_dictionary(f.type) else f for f in schema]
    return pa.schema([*fields, *(pa.field(name, value.type) for name, value in keys.items())])


def _empty_is_missing(rows: AnyRows) -> AnyRows:
    """Take empty texts of a CSV file as missing values; every other text, "NA" too, is one."""
    columns = [
        pc.if_else(pc.equal(v, ""), None, v) if is_string(v.type) else v for v in rows.columns
    ]
    return type(rows).from_arrays(columns, schema=rows.schema)


def _refuse_bytes(schema: pa.Schema, path: str) -> None:
    """Refuse a CSV file whose texts are not UTF-8: pyarrow calls such columns binary."""
    for field in schema:
        if is_binary(field.type):
            raise TableError(
                f"{path} is not written in UTF-8: see column {field.name!r}. Convert it, for example by "
                "iconv -f latin1 -t utf8"
            )


def _refuse_nested(schema: pa.Schema) -> None:
    """Refuse columns of lists and the like in a CSV file."""
    for field in schema:
        if is_nested(field.type):
            raise TableError(
                f"column {field.name!r} is {field.type}, which CSV cannot hold: write Parquet, or "
                "leave it out of the data"
            )


@contextmanager
def _reader(
    system: fs.FileSystem, path: str, kind: str, types: Types, rows: int = BATCH_ROWS
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open a file for its schema and its batches."""
    with reading(system, path, kind) as file:
        schema, pieces = _READERS[kind](file, types, rows)
        if kind == "csv":
            _refuse_bytes(schema, path)
        yield schema, pieces


def _csv(file: pa.NativeFile, types: Types, _rows: int) -> Any:
    """Open a CSV file, whose batches are blocks of bytes."""
    size = csv.ReadOptions(block_size=CSV_BLOCK)
    reader = csv.open_csv(file, size, CSV_FORM, _conversion(types))
    return reader.schema, iter(reader)


def _parquet(file: pa.NativeFile, _types: Types, rows: int) -> Any:
    """Open a Parquet file."""
    reader = parquet_file(file)
    return reader.schema_arrow, reader.iter_batches(batch_size=rows)


def _arrow(file: pa.NativeFile, _types: Types, _rows: int) -> Any:
    """Open an Arrow file in either of its forms: with an index at the end, or as a stream."""
    try:
        reader = pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        stream = pa.ipc.open_stream(file)
        return stream.schema, iter(stream)
    return reader.schema, (reader.get_batch(i) for i in range(reader.num_record_batches))


def _conversion(types: Types) -> csv.ConvertOptions:
    """Set types of columns; "NA" and the like are missing numbers, but texts like any other."""
    return csv.ConvertOptions(column_types=types, strings_can_be_null=False)


_READERS: dict[str, Callable[..., Any]] = {"csv": _csv, "parquet": _parquet, "arrow": _arrow}
_WRITERS = {"csv": csv.CSVWriter, "parquet": parquet.ParquetWriter, "arrow": pa.ipc.new_file}
