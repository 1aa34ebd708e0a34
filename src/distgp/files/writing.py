"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRIVATE = 0o600
"""The mode of new files that only their owner may read, such as models, which may hold rows."""


@contextmanager
def whole(path: Path | str, mode: int = 0o666) -> Iterator[Path]:
    """Yield a temporary path beside a file, which takes its place if the block ends without an exception.

    Otherwise it is removed. A file that is replaced keeps its mode, and a new one gets `mode`; of a
    symbolic link, the file that it points to is replaced. Devices, pipes and folders are refused.
    """
    path = _regular(path)
    part = _part_of(path)
    try:
        part.touch(mode, exist_ok=False)  # the system applies the umask
        kept = stat.S_IMODE((path if path.exists() else part).stat().st_mode)
        yield part
        os.chmod(part, kept)  # writers may have made a new file of their own
        with part.open("rb+" if os.name == "nt" else "rb") as file:
            os.fsync(file.fileno())  # so that no crash can leave a name without its content
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


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
