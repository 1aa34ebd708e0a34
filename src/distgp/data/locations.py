"""Tables are found: the files that a path, a folder, a glob or a URI stands for.

The listing is pyarrow's and the matching of globs fsspec's. pyarrow.dataset discovers files too, but takes
every file of a folder whatever its suffix, or leaves out damaged ones, and takes folders' names for
numbers: 007 becomes 7.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias
from urllib.parse import unquote

import pyarrow as pa
from fsspec.implementations.arrow import ArrowFSWrapper
from fsspec.utils import glob_translate
from pyarrow import fs

SUFFIXES = {".csv": "csv", ".parquet": "parquet", ".pq": "parquet"}
SUFFIXES |= {".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow"}
NO_VALUE = "__HIVE_DEFAULT_PARTITION__"  # names the folder of rows without a value
Keys: TypeAlias = "dict[str, pa.Scalar]"
"""The values of columns that the names of a file's folders give, by the columns' names."""


class TableError(ValueError):
    """A file cannot be read as a table, or lacks what is asked of it."""


class Found(NamedTuple):
    """The sorted paths of files on a file system, and the folder below which they were looked for."""

    system: fs.FileSystem
    paths: tuple[str, ...]
    root: str


def find(path: str | Path) -> Found:
    """Find the files that a path or URI stands for: a file, a folder with all tables below it, or a glob.

    In a URI, ``?`` is no wildcard but begins its options, such as ``?region=eu-west-1``.
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
        "".join(paths).encode()  # as pyarrow does with names
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot list {path}: {error}") from error
    except UnicodeError as error:
        raise TableError(
            f"cannot read {str(path)!r}: its name, or one in it, is not written in UTF-8: rename it"
        ) from error
    if not paths:
        raise TableError(none)
    if isinstance(system, fs.LocalFileSystem):
        paths = _once(paths)
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
    if isinstance(system, fs.LocalFileSystem):
        inside = _below(folder)
    else:
        found = system.get_file_info(fs.FileSelector(folder, recursive=True))
        inside = [info.path for info in found if info.is_file]
    tables = [path for path in inside if Path(path).suffix.lower() in SUFFIXES]
    return [path for path in tables if not re.search(r"/[._]", path[len(folder.rstrip("/")) :])]


def _below(folder: str) -> list[str]:
    """List all files below a folder of this machine; links are followed, but no folder is read twice."""
    seen, found = set(), []
    for here, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(here))
        real = {name: os.path.realpath(os.path.join(here, name)) for name in sorted(folders)}
        folders[:] = [name for name in real if real[name] not in seen]
        found += [Path(here, name).as_posix() for name in names]
    return [path for path in found if os.path.isfile(path)]


def _once(paths: Sequence[str]) -> list[str]:
    """Name every file of this machine once, by the shortest of the paths that lead to it."""
    ordered = sorted(paths, key=lambda path: (path.count("/"), path), reverse=True)
    return [*{os.path.realpath(path): path for path in ordered}.values()]


def _matching(system: fs.FileSystem, pattern: str, root: str) -> list[str]:
    """List the files that match a glob; as in a shell, wildcards match no leading dots."""
    if "**" in pattern and isinstance(system, fs.LocalFileSystem):
        match = re.compile(glob_translate(pattern)).match
        names = [path for path in _below(root) if match(path)]
    else:
        names = [str(name) for name in ArrowFSWrapper(system).glob(pattern)]
    if "/." not in pattern[len(root) :]:
        names = [name for name in names if "/." not in name[len(root) :]]
    return [info.path for info in system.get_file_info(names) if info.is_file]


def keys_of(paths: Sequence[str], root: str) -> tuple[Keys, ...]:
    """Read folders' names such as ``year=2024`` below the root; not all integers, they are texts."""
    below = (path[len(root) :].split("/")[:-1] for path in paths)
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
