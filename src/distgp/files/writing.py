"""Files that appear whole or not at all."""

from __future__ import annotations

import glob
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

PRIVATE = 0o600
"""The mode of new files that only their owner may read, such as models, which may hold rows."""


@contextmanager
def whole(path: Path | str, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path, whose file takes the place of `path` if the block ends without an exception.

    Otherwise it is removed. It lies in a hidden folder beside the file, with all that writers make
    beside it; what a process that was killed has left of such folders is removed by the next that
    writes the same file. A file that is replaced keeps its mode, and a new one gets `mode`; of a
    symbolic link, the file that it points to is replaced. Devices, pipes and folders are refused.
    """
    path = _regular(path)
    _remove_left(path)
    with _own_folder(path) as folder:
        part = folder / path.name
        part.touch(mode, exist_ok=False)  # the system applies the umask
        kept = stat.S_IMODE((path if path.exists() else part).stat().st_mode)
        yield part
        os.chmod(part, kept)  # writers may have made a new file of their own
        with part.open("rb+" if os.name == "nt" else "rb") as file:
            os.fsync(file.fileno())  # so that no crash can leave a name without its content
        os.replace(part, path)


@contextmanager
def _own_folder(path: Path) -> Iterator[Path]:
    """Make a folder beside a file that only its owner may open, locked for as long as it is in use."""
    folder = _part_of(path)
    folder.mkdir(0o700)
    lock = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _remove_left(path: Path) -> None:
    """Remove the folders that writers of this file have left who are no more.

    A folder without a file is left alone, since its maker may not have locked it yet.
    """
    for folder in path.parent.glob(f".{glob.escape(path.name)}.{'[0-9a-f]' * 8}.part"):
        with suppress(OSError):
            lock = _lock(folder) if any(folder.iterdir()) else None
            if lock is not None:
                shutil.rmtree(folder, ignore_errors=True)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the descriptor that is returned is closed; None where that cannot be."""
    if fcntl is None:
        return None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # another process has it, or the file system has no locks
        os.close(descriptor)
        return None
    return descriptor


def _part_of(path: Path) -> Path:
    """A name beside a file that nothing else has, hidden from those who list the folder."""
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")


def check_writable(path: Path | str) -> None:
    """Raise an OSError for a path that `whole` could not write to, before any work is done."""
    path = _regular(path)
    probe = _part_of(path)
    try:
        probe.touch(PRIVATE, exist_ok=False)
    except OSError as error:
        raise OSError(f"cannot write {str(path)!r}: {error.strerror}") from error
    probe.unlink()


def _regular(path: Path | str) -> Path:
    """The file that a path means, links followed; refused where it is something else than a file."""
    real = Path(os.path.realpath(path))
    if real.is_dir():
        raise IsADirectoryError(f"{path} is a folder, expected the name of a file to write")
    if real.exists() and not real.is_file():
        raise OSError(
            f"{path} is a device, a pipe or a socket, expected the name of a file to write: what is "
            "there would be replaced"
        )
    if not real.parent.is_dir():
        folder = real.parent if os.path.islink(path) else Path(path).parent
        raise FileNotFoundError(f"there is no folder {str(folder)!r} to write {real.name} to")
    return real
