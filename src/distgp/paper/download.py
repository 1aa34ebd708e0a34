"""The published files: found in a folder, or downloaded, and checked by SHA-256 either way."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import re
import sys
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from distgp.files import whole

CHUNK = 1 << 16
TIMEOUT = 30.0
"""Seconds without a byte before a download is given up."""
FOLDER_VARIABLE = "DISTGP_DATA"


Progress: TypeAlias = Callable[[int, int | None], None]
"""Told the bytes that are here, and those in all where that is known."""


def _on_terminal(done: int, total: int | None) -> None:
    """A line that is written over, where somebody looks."""
    if sys.stderr.isatty():
        of = "" if total is None else f" of {total / 2**20:.1f}"
        end = "\n" if done == total else ""
        print(f"\rdownloading: {done / 2**20:.1f}{of} MiB", end=end, file=sys.stderr, flush=True)


class DataError(OSError):
    """A data set is not to be had, or is not the one that was published."""


@dataclass(frozen=True)
class Published:
    """A data set as its archive publishes it: one zip file, and the files in it with their SHA-256."""

    title: str
    url: str
    files: dict[str, str]
    contents: dict[str, str] = field(default_factory=dict)
    """For each file the SHA-256 of its values, however they are written: see `fingerprint`."""


def cache_folder() -> Path:
    """Where downloads are kept: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "distgp" / "data"


def locate(
    published: Published,
    folder: Path | str | None = None,
    verify: bool = True,
    progress: Progress = _on_terminal,
) -> dict[str, Path]:
    """The files of a data set, by name.

    Looked for in `folder`, or else in DISTGP_DATA; if neither is given, in the cache, where they are
    downloaded to if they are missing. verify=False takes files with another content.
    """
    given = folder or os.environ.get(FOLDER_VARIABLE)
    place = Path(given) if given else cache_folder()
    missing = [name for name in published.files if not (place / name).is_file()]
    if missing and given:
        raise DataError(
            f"{published.title}: {', '.join(missing)} not found in {place}. Put the published files there, "
            f"or leave --data-dir and {FOLDER_VARIABLE} unset to download them from {published.url}"
        )
    if missing:
        _fetch(published, place, verify, progress)
    found = {name: place / name for name in published.files}
    if verify:
        for name, path in found.items():
            _check(published, name, path.read_bytes(), str(path))
    return found


def _fetch(published: Published, place: Path, verify: bool, progress: Progress) -> None:
    """Download the archive, take the files out, and check them; none is left behind unchecked."""
    place.mkdir(parents=True, exist_ok=True)
    archive = place / (hashlib.sha256(published.url.encode()).hexdigest()[:16] + ".part")
    download(published.url, archive, progress)
    try:
        contents = _unpacked(published, archive)
        if verify:
            for name, content in contents.items():
                _check(published, name, content, published.url)
    except DataError:
        archive.unlink()  # another attempt starts anew
        raise
    for name, content in contents.items():
        with whole(place / name) as part:
            Path(part).write_bytes(content)
    archive.unlink()


def download(url: str, path: Path, progress: Progress = _on_terminal) -> None:
    """Fetch a URL into a file, going on where an earlier attempt broke off."""
    done = path.stat().st_size if path.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
            resumed = answer.status == 206
            done = done if resumed else 0
            length = answer.headers.get("Content-Length")
            total = None if length is None else done + int(length)
            with path.open("ab" if resumed else "wb") as file:
                while piece := answer.read(CHUNK):
                    file.write(piece)
                    done += len(piece)
                    progress(done, total)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing after what we have: it is complete
            return
        raise DataError(f"{url} answered {error.code} {error.reason}: {_by_hand()}") from error
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DataError(
            f"{url} could not be reached ({reason}). Run the command again to go on from the "
            f"{done:,} bytes that are here, or {_by_hand()}"
        ) from error
    if total is not None and done < total:
        raise DataError(
            f"{url} broke off after {done:,} of {total:,} bytes: run the command again to go on"
        )


def _unpacked(published: Published, archive: Path) -> dict[str, bytes]:
    """The data set's files out of the archive; those inside that are compressed themselves, too."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive.read_bytes())) as bundle:
            inside = {Path(name).name: name for name in bundle.namelist()}
            contents = {}
            for name in published.files:
                if name in inside:
                    contents[name] = bundle.read(inside[name])
                elif f"{name}.gz" in inside:
                    contents[name] = gzip.decompress(bundle.read(inside[f"{name}.gz"]))
                else:
                    raise DataError(f"{published.url} holds no {name}, only {sorted(inside)}")
            return contents
    except (zipfile.BadZipFile, gzip.BadGzipFile, EOFError) as error:
        raise DataError(
            f"{published.url} did not send a whole zip file ({error}): try again"
        ) from error


def _check(published: Published, name: str, content: bytes, where: str) -> None:
    found, wanted = hashlib.sha256(content).hexdigest(), published.files[name]
    if found != wanted and fingerprint(content) != published.contents.get(name):
        raise DataError(
            f"{published.title}: {name} from {where} is not the file that the results were made with "
            f"(SHA-256 {found[:16]}…, expected {wanted[:16]}…): it is damaged, or another version. Get it "
            "anew, or give --unverified to use it all the same"
        )


def fingerprint(content: bytes) -> str:
    """SHA-256 of a CSV file's values: the same for 0 and 0.0, NA and nothing, any line ends and quotes."""
    digest = hashlib.sha256()
    for line in content.decode("utf-8-sig", errors="replace").splitlines():
        digest.update(",".join(_value(part) for part in line.split(",")).encode() + b"\n")
    return digest.hexdigest()


def _value(text: str) -> str:
    text = text.strip().strip('"')
    if text in ("", "NA"):
        return ""
    try:
        return repr(float(text))
    except ValueError:
        return text[:16] if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:00", text) else text


def _by_hand() -> str:
    return f"get the file in another way and name its folder by --data-dir or {FOLDER_VARIABLE}"
