"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path | str) -> Iterator[Path]:
    """Write a file through a temporary one beside it, which takes its place at the end.

    Parameters
    ----------
    path : path-like
        The file to write. Its folder must exist.

    Yields
    ------
    Path
        The temporary path to write to. It is renamed to `path` when the block ends without an
        exception, and removed otherwise, so that readers never see half a file.
    """
    path = Path(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path.parent)!r} to write {path.name} to")
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    os.close(handle)
    try:
        yield Path(name)
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, 0o666 & ~mask)  # mkstemp makes private files; ours are ordinary ones
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
