"""Finding the files of a table: one file, a folder or a glob, here or on any file system of pyarrow.

The listing is pyarrow's and the matching of globs fsspec's, for all file systems alike. pyarrow.dataset
discovers files too, but takes every file of a folder whatever its suffix, or leaves out damaged ones; and
the folders' names it takes for numbers turn 007 into 7.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from fsspec.implementations.arrow import ArrowFSWrapper
from pyarrow import fs

SUFFIXES = {
    ".csv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
}
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""The value that writers of partitioned tables name the folder of rows without a value by."""
Keys: TypeAlias = "dict[str, pa.Scalar]"
"""The values of columns that the names of a file's folders give, by the columns' names."""


class TableError(ValueError):
    """A file cannot be read as a table, or lacks what is asked of it."""


@dataclass(frozen=True)
class Found:
    """The sorted paths of files on a file system, and the folder below which they were looked for."""

    system: fs.FileSystem
    paths: tuple[str, ...]
    root: str

    def keys(self) -> tuple[Keys, ...]:
        """Read the names of folders such as ``year=2024`` below the root, for each file.

        The values of a name are integers where all of them are, else texts.
        """
        below = (path[len(self.root) :].split("/")[:-1] for path in self.paths)
        given = [dict(part.split("=", 1) for part in parts if "=" in part) for parts in below]
        texts = {
            name
            for own in given
            for name, value in own.items()
            if value != NO_VALUE and not re.fullmatch(r"0|-?[1-9][0-9]{0,17}", unquote(value))
        }

        def scalar(name: str, value: str) -> pa.Scalar:
            known = pa.scalar(None if value == NO_VALUE else unquote(value), pa.string())
            return known if name in texts else known.cast(pa.int64())

        return tuple({name: scalar(name, value) for name, value in own.items()} for own in given)


def find(path: str | Path) -> Found:
    """Find the files that a path stands for: a file, a folder with all tables in it and below, or a glob.

    In a glob, ``*`` and ``?`` match within one name and ``**`` any number of folders. All three may be URIs
    (``s3://…``, ``gs://…``, ``file://…``); a ``?`` in a URI begins its options, such as
    ``?region=eu-west-1``. A TableError says that there is no such file, or why it cannot be reached.
    """
    if not str(path).strip():
        raise TableError("expected the name of a file, a folder or a glob, got an empty text")
    try:
        system, full = _resolve(str(path))
        kind = system.get_file_info(full).type
        if kind == fs.FileType.File:
            return Found(system, (full,), full.rpartition("/")[0])
        if kind == fs.FileType.Directory:
            paths, root = _inside(system, full), full.rstrip("/")
            none = f"the folder {str(path)!r} holds no files that end in {', '.join(SUFFIXES)}"
        else:
            plain, *wild = re.split(r"[*?[]", full, maxsplit=1)
            root = plain.rpartition("/")[0]
            paths = _matching(system, full, root) if wild else []
            none = f"no file matches {str(path)!r}" if wild else f"there is no file {str(path)!r}"
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot list {path}: {error}") from error
    if not paths:
        raise TableError(none)
    return Found(system, tuple(sorted(paths)), root)


def kind_of(path: str | Path) -> str:
    """Tell the kind of a table from the suffix of its file: "csv", "parquet" or "arrow"."""
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        known = ", ".join(SUFFIXES)
        raise TableError(f"cannot tell what {Path(path).name!r} is: expected a suffix of {known}")
    return SUFFIXES[suffix]


def _resolve(text: str) -> tuple[fs.FileSystem, str]:
    """Split a path or URI into its file system and the path there, wildcards included."""
    if "://" not in text:
        return fs.LocalFileSystem(), Path(os.path.abspath(text)).as_posix()
    address, mark, options = text.partition("?")
    # Wildcards are not allowed in URIs: pyarrow gets the folder before the first one.
    plain = re.split(r"[*[]", address)[0]
    folder = address if plain == address else plain.rpartition("/")[0]
    system, root = fs.FileSystem.from_uri(folder + mark + options)
    return system, root + address[len(folder) :]


def _inside(system: fs.FileSystem, folder: str) -> list[str]:
    """List the tables in a folder; what begins with "." or "_" is temporary, or about the others."""
    inside = system.get_file_info(fs.FileSelector(folder, recursive=True))
    tables = [i.path for i in inside if i.is_file and Path(i.path).suffix.lower() in SUFFIXES]
    return [path for path in tables if not re.search(r"/[._]", path[len(folder.rstrip("/")) :])]


def _matching(system: fs.FileSystem, pattern: str, root: str) -> list[str]:
    """List the files that match a glob; as in a shell, wildcards match no leading dots."""
    names = [str(name) for name in ArrowFSWrapper(system).glob(pattern)]
    if "/." not in pattern[len(root) :]:
        names = [name for name in names if "/." not in name[len(root) :]]
    return [info.path for info in system.get_file_info(names) if info.is_file]
