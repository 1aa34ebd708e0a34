"""Finding the files of a table: one file, a folder or a glob, here or on any file system of pyarrow.

The listing is pyarrow's and the matching of globs fsspec's, for all file systems alike. pyarrow.dataset
discovers files too, but takes every file of a folder whatever its suffix, or leaves out damaged ones.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
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
"""What writers of partitioned tables call the folder of rows without a value."""


class TableError(ValueError):
    """A file cannot be read as a table, or lacks what is asked of it."""


@dataclass(frozen=True)
class Found:
    """The files that a path stands for.

    Parameters
    ----------
    system : pyarrow.fs.FileSystem
        The file system that they are on.
    paths : tuple of str
        Their paths there, sorted.
    root : str
        The folder below which they were looked for.
    """

    system: fs.FileSystem
    paths: tuple[str, ...]
    root: str

    def keys(self) -> list[dict[str, str | None]]:
        """What the names of folders such as ``year=2024`` below the root say of each file."""
        below = [path[len(self.root) :].split("/")[:-1] for path in self.paths]
        found = [[part.partition("=")[::2] for part in parts if "=" in part] for parts in below]
        return [
            {key: None if value == NO_VALUE else unquote(value) for key, value in pairs}
            for pairs in found
        ]


def find(path: str | Path) -> Found:
    """Find the files that a path stands for.

    Parameters
    ----------
    path : str or Path
        A file; a folder, for all tables in it and below; or a glob, where ``*`` and ``?`` match within one
        name and ``**`` any number of folders. All three may be URIs (``s3://…``, ``gs://…``, ``file://…``);
        a ``?`` in a URI begins its options, such as ``?region=eu-west-1``.

    Returns
    -------
    Found

    Raises
    ------
    TableError
        If there is no such file, or the file system cannot be reached.
    """
    if not str(path).strip():
        raise TableError("expected the name of a file, a folder or a glob, got an empty text")
    try:
        system, full = _resolve(str(path))
        kind = system.get_file_info(full).type
        if kind == fs.FileType.File:
            return Found(system, (full,), full.rpartition("/")[0])
        if kind == fs.FileType.Directory:
            return Found(system, _inside(system, full, path), full.rstrip("/"))
        if re.search(r"[*?[]", full):
            return Found(system, _matching(system, full, path), _before_wildcards(full))
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot list {path}: {error}") from error
    raise TableError(f"there is no file {str(path)!r}")


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


def _inside(system: fs.FileSystem, folder: str, path: str | Path) -> tuple[str, ...]:
    """List the tables in a folder; what begins with "." or "_" is temporary, or about the others."""
    inside = system.get_file_info(fs.FileSelector(folder, recursive=True))
    found = [
        info.path
        for info in inside
        if info.is_file
        and Path(info.path).suffix.lower() in SUFFIXES
        and not re.search(r"/[._]", info.path[len(folder.rstrip("/")) :])
    ]
    if not found:
        known = ", ".join(SUFFIXES)
        raise TableError(f"the folder {str(path)!r} holds no files that end in {known}")
    return tuple(sorted(found))


def _before_wildcards(pattern: str) -> str:
    """The folder that all files that match a glob lie below."""
    return re.split(r"[*?[]", pattern)[0].rpartition("/")[0]


def _matching(system: fs.FileSystem, pattern: str, path: str | Path) -> tuple[str, ...]:
    """List the files that match a glob; as in a shell, wildcards match no leading dots."""
    folder = _before_wildcards(pattern)
    names = [str(name) for name in ArrowFSWrapper(system).glob(pattern)]
    if "/." not in pattern[len(folder) :]:
        names = [name for name in names if "/." not in name[len(folder) :]]
    found = [info.path for info in system.get_file_info(names) if info.is_file]
    if not found:
        raise TableError(f"no file matches {str(path)!r}")
    return tuple(sorted(found))
