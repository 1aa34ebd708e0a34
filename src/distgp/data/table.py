"""Tables in files: read as a whole or in pieces, and written.

A table is one file, a folder or a glob, here or on any file system of pyarrow.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute
from pyarrow import csv, fs, parquet
from pyarrow.types import is_binary, is_dictionary, is_nested, is_null, is_string, is_string_view

from distgp.data.locations import Keys, TableError, find, keys_of, kind_of
from distgp.files.writing import whole

BATCH_ROWS = 2**16  # rows that are read, predicted and written at a time
CSV_BLOCK = 2**24  # bytes of a CSV file that a row may have, and from which types are guessed
CSV_HEAD = 2**14  # bytes of a CSV file by which its separator is known
CSV_PIECES = csv.ReadOptions(block_size=CSV_BLOCK)
CSV_FORM = csv.ParseOptions(newlines_in_values=True)
Types: TypeAlias = "Mapping[str, pa.DataType | None]"
"""The types of columns, by their names; None for those that are found in the file."""
AnyRows = TypeVar("AnyRows", pa.RecordBatch, pa.Table)
pc: Any = pyarrow.compute  # its functions are made when it is imported: no tool knows them


@dataclass(frozen=True)
class Table:
    """One or more files of one kind ("csv", "parquet" or "arrow") with the same columns.

    The schema is unified over all files, with the columns that the names of folders give, such as
    ``year=2024``, whose values are the keys of each file.
    """

    system: fs.FileSystem
    paths: tuple[str, ...]
    kind: str
    schema: pa.Schema
    keys: tuple[Keys, ...]

    @staticmethod
    def open(path: str | Path) -> Table:
        """Look at the columns of a file, a folder, a glob or a URI of one; reads no rows."""
        system, paths, root = find(path)
        keys = keys_of(paths, root)
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
                    part = csv.read_csv(file, CSV_PIECES, CSV_FORM, options)
                    _refuse_bytes(part.schema, path)
                    parts.append(with_keys(_empty_is_missing(part), keys))
            return pa.concat_tables(parts, promote_options="permissive")
        whole = replace(self, system=fs.LocalFileSystem()) if self._is_mapped else self
        batches = list(whole.batches())
        return pa.Table.from_batches(batches, schema=batches[0].schema if batches else self.schema)

    def batches(
        self, types: Types | None = None, rows: int = BATCH_ROWS
    ) -> Iterator[pa.RecordBatch]:
        """Read pieces of at most `rows` rows; columns of CSV files that have no `types` are texts then."""
        known: dict[str, pa.DataType] = {}
        for field in self.schema:  # a CSV column that begins without values may go on with any
            unused = types is not None and field.name not in types
            text = unused or is_null(field.type)
            known[field.name] = pa.string() if text else field.type
        known |= {name: kind for name, kind in (types or {}).items() if kind is not None}
        for path, keys in zip(self.paths, self.keys, strict=True):
            before = self.system.get_file_info(path) if self._is_mapped else None
            with _reader(self.system, path, self.kind, known, rows) as (_, pieces):
                for piece in pieces:
                    piece = self._uniform(with_keys(piece, keys))
                    for start in range(0, piece.num_rows, rows):
                        yield piece.slice(start, rows)
                        self._refuse_changed(before)

    @property
    def _is_mapped(self) -> bool:
        """Whether files are mapped into memory as they are read."""
        return self.kind == "arrow" and isinstance(self.system, fs.LocalFileSystem)

    def _refuse_changed(self, before: fs.FileInfo | None) -> None:
        """Refuse a mapped file that has changed: a look at what is gone would kill the process."""
        if before is None:
            return
        now = self.system.get_file_info(before.path)
        if (now.size, now.mtime_ns) != (before.size, before.mtime_ns):
            raise TableError(f"{before.path} was changed while it was read: read it again")

    def _uniform(self, piece: pa.RecordBatch) -> pa.RecordBatch:
        """Bring a file's columns into the order and, unless it is CSV, the types of the schema."""
        if piece.schema.names != self.names:
            piece = piece.select(self.names)
        if self.kind == "csv":
            return _empty_is_missing(piece)
        return piece if piece.schema == self.schema else piece.cast(self.schema)


@contextmanager
def sink(path: str | Path) -> Iterator[Callable[[pa.RecordBatch], None]]:
    """Yield a function that writes batches to a table, which appears whole at the end, or not at all."""
    kind, write_batch = kind_of(path), None
    with whole(path) as part, ExitStack() as writers:

        def write(batch: pa.RecordBatch) -> None:
            nonlocal write_batch
            if write_batch is None:
                file = writers.enter_context(part.open("wb"))  # a name that pyarrow cannot read
                if kind == "csv":
                    write_batch = _csv_writer(file, batch.schema)
                else:
                    writer = writers.enter_context(_WRITERS[kind](file, batch.schema))
                    write_batch = writer.write_batch
            write_batch(batch)

        yield write


def _csv_writer(file: BinaryIO, schema: pa.Schema) -> Callable[[pa.RecordBatch], object]:
    """Write the names of the columns, and return a function that writes batches below them."""
    _refuse_nested(schema)
    file.write(_csv_lines([pa.array([name]) for name in schema.names]))
    return lambda batch: file.write(_csv_lines(batch.columns))


def _csv_lines(columns: Sequence[pa.Array]) -> bytes:
    """Write columns as lines of CSV; pyarrow's own writer puts all texts, numbers too, into quotes."""
    texts = [column.cast(pa.string()) for column in columns]
    for place, text in enumerate(texts):
        doubled = pc.replace_substring(text, '"', '""')
        quoted = pc.binary_join_element_wise('"', doubled, '"', "")
        texts[place] = pc.if_else(pc.match_substring_regex(text, '^$|[",\r\n]'), quoted, text)
    lines = pc.binary_join_element_wise(*texts, ",", null_handling="replace")
    return "".join(f"{line}\n" for line in lines.to_pylist()).encode()


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
        with suppress(OSError):  # an object store that is gone cannot say this either
            said = "it is empty" if system.get_file_info(path).size == 0 else said
        if "straddl" in said:
            said = "a row has more than 16 MiB; is a quote left open?"
        if isinstance(error, UnicodeDecodeError):
            said = "the names of its columns are not written in UTF-8; convert it, for example by "
            said += "iconv -f latin1 -t utf8"
        if "conversion error" in said:
            said += " (types come from the model, or from the first 16 MiB: Parquet has its own)"
        raise TableError(f"cannot read {path} as {kind}: {said}") from error


def parquet_file(file: pa.NativeFile) -> parquet.ParquetFile:
    """Open a Parquet file for reading in batches."""
    # Neither pre-fetched nor read by pyarrow.dataset's scanner: both hold a row group as a whole.
    return parquet.ParquetFile(file, buffer_size=2**20, pre_buffer=False)


def _unified(schemas: Sequence[pa.Schema], paths: Sequence[str]) -> pa.Schema:
    """Find the schema that all files can be read with; refuse files with other columns."""
    schema, first = schemas[0], paths[0]
    for other, path in zip(schemas[1:], paths[1:], strict=True):
        if set(other.names) != set(schema.names):
            raise TableError(
                f"{path} has the columns {other.names}, but {first} has {schema.names}"
            )
        try:
            schema = pa.unify_schemas([schema, other], promote_options="permissive")
        except pa.ArrowException as error:
            raise TableError(f"{path} and {first} have columns of other types: {error}") from error
    refuse_repeated(schema.names, first)
    return schema


def _decoded(schema: pa.Schema, keys: Keys, path: str) -> pa.Schema:
    """Replace dictionaries, which differ between files, by their values' type, and views of texts, which
    pyarrow cannot compute with, by texts; add the columns of keys.
    """
    if both := [name for name in keys if name in schema.names]:
        raise TableError(
            f"{path} has a column {both[0]!r}, and its folder's name gives another: rename the folder"
        )
    plain = (f.with_type(f.type.value_type) if is_dictionary(f.type) else f for f in schema)
    fields = [f.with_type(pa.string()) if is_string_view(f.type) else f for f in plain]
    return pa.schema([*fields, *(pa.field(name, value.type) for name, value in keys.items())])


def _empty_is_missing(rows: AnyRows) -> AnyRows:
    """Take empty texts of a CSV file as missing values; every other text, "NA" too, is one."""
    found = [pc.if_else(pc.equal(v, ""), None, v) if is_string(v.type) else v for v in rows.columns]
    return type(rows).from_arrays(found, schema=rows.schema)


def _refuse_other_forms(file: pa.NativeFile, path: str) -> None:
    """Refuse a CSV file in UTF-16, or with semicolons or tabs between values, as spreadsheets write it."""
    head = file.read(CSV_HEAD)
    file.seek(0)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise TableError(
            f"{path} is written in UTF-16, expected UTF-8: convert it, for example by "
            "iconv -f utf-16 -t utf-8"
        )
    first, *others = head.splitlines() or [b""]
    plain = re.sub(rb'"[^"]*"', b"", first)
    mark = next((mark for mark in (";", "\t") if mark.encode() in plain), None)
    if mark is None or b"," in plain:
        return
    decimal = ", decimal=','" if any(re.search(rb"\d,\d", line) for line in others) else ""
    raise TableError(
        f"{path} is separated by {'semicolons' if mark == ';' else 'tabs'}, expected commas, and numbers "
        f"with decimal points: convert it, for example by pandas.read_csv({Path(path).name!r}, sep={mark!r}"
        f"{decimal}).to_csv('commas.csv', index=False)"
    )


def _refuse_bytes(schema: pa.Schema, path: str) -> None:
    """Refuse a CSV file whose texts are not UTF-8: pyarrow calls such columns binary."""
    if bad := [field.name for field in schema if is_binary(field.type)]:
        raise TableError(
            f"{path} is not written in UTF-8: see column {bad[0]!r}. Convert it, for example by "
            "iconv -f latin1 -t utf8"
        )


def _refuse_nested(schema: pa.Schema) -> None:
    """Refuse columns of lists and the like in a CSV file."""
    if bad := [field for field in schema if is_nested(field.type)]:
        raise TableError(
            f"column {bad[0].name!r} is {bad[0].type}, which CSV cannot hold: write Parquet, or leave it "
            "out of the data"
        )


@contextmanager
def _reader(
    system: fs.FileSystem, path: str, kind: str, types: Types, rows: int = BATCH_ROWS
) -> Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]:
    """Open a file for its schema and its batches."""
    with reading(system, path, kind) as file:
        if kind == "csv":
            _refuse_other_forms(file, path)
        schema, pieces = _READERS[kind](file, types, rows)
        _ = schema.names  # which pyarrow reads as UTF-8 now, and not before
        if kind == "csv":
            _refuse_bytes(schema, path)
        yield schema, pieces


def _csv(file: pa.NativeFile, types: Types, _rows: int) -> Any:
    """Open a CSV file, whose batches are blocks of bytes."""
    reader = csv.open_csv(file, CSV_PIECES, CSV_FORM, _conversion(types))
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
_WRITERS = {"parquet": parquet.ParquetWriter, "arrow": pa.ipc.new_file}
