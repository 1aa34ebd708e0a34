"""Finding the files of a table: one file, a folder or a glob, here or on any file system of pyarrow.

The listing is pyarrow's and the matching of globs fsspec's, for all file systems alike. pyarrow.dataset
discovers files too, but takes every file of a folder whatever its suffix, or leaves out damaged ones.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

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


class TableError(ValueError):
    """A file cannot be read as a table, or lacks what is asked of it."""


def find(path: str | Path) -> tuple[fs.FileSystem, tuple[str, ...]]:
    """Find the files that a path stands for.

    Parameters
    ----------
    path : str or Path
        A file; a folder, for all tables in it and below; or a glob, where ``*`` and ``?`` match within one
        name and ``**`` any number of folders. All three may be URIs (``s3://…``, ``gs://…``, ``file://…``);
        a ``?`` in a URI begins its options, such as ``?region=eu-west-1``.

    Returns
    -------
    tuple
        The file system, and the files' paths on it, sorted.

    Raises
    ------
    TableError
        If there is no such file, or the file system cannot be reached.
    """
    try:
        system, full = _resolve(str(path))
        kind = system.get_file_info(full).type
        if kind == fs.FileType.File:
            return system, (full,)
        if kind == fs.FileType.Directory:
            return system, _inside(system, full, path)
        if re.search(r"[*?[]", full):
            return system, _matching(system, full, path)
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


def _matching(system: fs.FileSystem, pattern: str, path: str | Path) -> tuple[str, ...]:
    """List the files that match a glob; as in a shell, wildcards match no leading dots."""
    folder = re.split(r"[*?[]", pattern)[0].rpartition("/")[0]
    names = [str(name) for name in ArrowFSWrapper(system).glob(pattern)]
    if "/." not in pattern[len(folder) :]:
        names = [name for name in names if "/." not in name[len(folder) :]]
    found = [info.path for info in system.get_file_info(names) if info.is_file]
    if not found:
        raise TableError(f"no file matches {str(path)!r}")
    return tuple(sorted(found))
