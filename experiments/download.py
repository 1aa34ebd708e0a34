"""Published data files: found in a folder or downloaded, and checked by SHA-256 either way."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import os
import re
import tempfile
import zipfile
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distgp._util.progress import Progress
from distgp.files.writing import whole

FOLDER_VARIABLE = "DISTGP_DATA"
"""The environment variable that names a folder with the data files."""
TIMEOUT = 30.0
"""Seconds without a byte after which a download is given up."""
CHUNK = 1 << 16
"""Bytes between two reports of progress."""
LARGEST = 1 << 28
"""Bytes at most of a download, and of a file in it: the largest data set has 5 MB."""


class DataError(OSError):
    """A data set cannot be had, or is not the one that was published."""


@dataclass(frozen=True)
class Published:
    """A data set as its archive publishes it: one zip file with some files in it.

    Parameters
    ----------
    title : str
        What error messages call it.
    url : str
        The address of the zip file.
    files : dict of str to str
        The SHA-256 of each file, by its name.
    contents : dict of str to str, optional
        The `fingerprint` of each file, which also admits the same values written in another way.
    """

    title: str
    url: str
    files: dict[str, str]
    contents: dict[str, str] = field(default_factory=dict)


# The first checksums are of the copies that the results were made with, which other programs wrote than
# those of the archive. The second are fingerprints of the values in them.
ARCHIVE = "https://archive.ics.uci.edu/static/public/"
GAS_TURBINE = Published(
    "Gas Turbine CO and NOx Emission",
    ARCHIVE + "551/gas+turbine+co+and+nox+emission+data+set.zip",
    {
        "gt_2011.csv": "d87ceef9aa59533cc7d924d10de241b1b06ecd11f9b26bab59191ea0f8a76b9a",
        "gt_2012.csv": "be54b9d0e1a7de40c55d32fa489e75de892b000c066b5a09f09a19124ee29100",
        "gt_2013.csv": "13c437bb440ec2045bd12057e6654c41dd4107a661eac16ba2e878e897a08f9e",
        "gt_2014.csv": "c2a03c92c9c3207aad0c6be7de8d9b5b4bfa4720ad0efb2c1f21b6cec4d3f3fa",
        "gt_2015.csv": "9b08f35fde0d4b138232a605db4093c2b8bf9d6757e6f1fbd9534ad616c13591",
    },
    {
        "gt_2011.csv": "d0be309a3a8a338b4e65b551c652c2bdf88f6d73d3a5d6800e59cdb570a57bdd",
        "gt_2012.csv": "2ec2d57fe141f67bd4d88d190b7c51ca6ce70599382944a1cee6c6519ccfa223",
        "gt_2013.csv": "171c7c0def03e67d5ece4292bb4547d3aad27c896107a987242a1d6412625c92",
        "gt_2014.csv": "7051f7eecf881ac823a8b6895b6ee493187e48bef68814bf5d445c01d9fc7370",
        "gt_2015.csv": "621186112c4a8573403cb314b63062ba6d04cacc5d658713ff61f5c66adda813",
    },
)
BEIJING = Published(
    "Beijing PM2.5",
    ARCHIVE + "381/beijing+pm2+5+data.zip",
    {
        "PRSA_data_2010.1.1-2014.12.31.csv": "77b185392c567d67bf0ddaa27cf57f6f1198e463a665d86360f3910c313719bd",
    },
    {
        "PRSA_data_2010.1.1-2014.12.31.csv": "faa0e29f13cde735c03a537363edce09cf9d634c7f9fed79120010343845c2bf",
    },
)
TRAFFIC = Published(
    "Metro Interstate Traffic Volume",
    ARCHIVE + "492/metro+interstate+traffic+volume.zip",
    {
        "Metro_Interstate_Traffic_Volume.csv": "1b92185e2b9cd407e3ea626d10eb010a2ee82f820a48c6d8b690535511c1061a",
    },
    {
        "Metro_Interstate_Traffic_Volume.csv": "39582c0a0c1e071946d82b4d91b28164266a14777421f6e6e94478f4fe3d8f9b",
    },
)


def locate(
    published: Published, folder: Path | str | None = None, verify: bool = True
) -> dict[str, Path]:
    """Find the files of a data set, and download them where no folder is given and they are missing.

    Parameters
    ----------
    published : Published
        The data set.
    folder : path-like, optional
        The folder to look in. By default the one that DISTGP_DATA names; where that is not set
        either, the user's cache folder, which downloads go to.
    verify : bool, default=True
        Refuse files whose content is not the published one.

    Returns
    -------
    dict of str to Path
        The files by their names.

    Raises
    ------
    DataError
        If files are missing, cannot be downloaded, or have another content.
    """
    given = folder or os.environ.get(FOLDER_VARIABLE)
    place = Path(given) if given else cache_folder()
    missing = [name for name in published.files if not (place / name).is_file()]
    if missing and given:
        raise DataError(
            f"{published.title}: {', '.join(missing)} not found in {place}. Put the published files there, "
            f"or leave --data-dir and {FOLDER_VARIABLE} unset to download them from {published.url}"
        )
    found = {name: place / name for name in published.files}
    if missing:
        _fetch(published, place, verify)
    elif verify:
        try:
            for name, path in found.items():
                _check(published, name, path.read_bytes(), str(path))
        except DataError:
            if given:
                raise
            _fetch(published, place, verify)  # what lies in our own cache is damaged
    return found


def cache_folder() -> Path:
    """The folder that downloads are kept in: `distgp/data` in the user's cache folder."""
    return Path(_pooch().os_cache("distgp")) / "data"


def fingerprint(content: bytes) -> str:
    """SHA-256 of a CSV file's values, whichever program wrote them.

    It is the same for 0 and 0.0, for NA and nothing, and for any line ends; quotes count only where
    they keep a comma or a line end inside a value.

    Parameters
    ----------
    content : bytes
        The file.

    Returns
    -------
    str
        64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    text = io.StringIO(content.decode("utf-8-sig", errors="replace"), newline="")
    for values in csv.reader(text):
        if values:
            digest.update("\x1f".join(map(_value, values)).encode() + b"\x1e")
    return digest.hexdigest()


def _value(text: str) -> str:
    text = text.strip()
    if text in ("", "NA"):
        return ""
    try:
        return repr(float(text))
    except ValueError:
        return text[:16] if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:00", text) else text


def _fetch(published: Published, folder: Path, verify: bool) -> None:
    """Download the archive and take the files out; they appear in the folder checked and whole."""
    with tempfile.TemporaryDirectory() as temporary:
        contents = _unpacked(published, _downloaded(published, Path(temporary)))
    if verify:
        for name, content in contents.items():
            _check(published, name, content, published.url)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        with whole(folder / name) as part:
            part.write_bytes(content)


def _downloaded(published: Published, folder: Path) -> Path:
    """The archive, in this folder."""
    pooch, url = _pooch(), published.url
    by_hand = f"get the file in another way and name its folder by --data-dir or {FOLDER_VARIABLE}"
    with ExitStack() as stack:
        bar = _Bar(f"downloading {published.title}, bytes", stack)
        download = pooch.HTTPDownloader(progressbar=bar, chunk_size=CHUNK, timeout=TIMEOUT)
        try:
            # The archive's own checksum is not published: the files in it are checked instead.
            return Path(pooch.retrieve(url, None, path=folder, downloader=download))
        except DataError as error:
            raise DataError(f"{url} was not downloaded: {error}") from error
        except OSError as error:
            answer = getattr(error, "response", None)
            if answer is not None:
                said = f"{url} answered {answer.status_code} {answer.reason}: {by_hand}"
                raise DataError(said) from error
            raise DataError(
                f"{url} could not be reached, or broke off before its end ({error}): run the command "
                f"again, or {by_hand}"
            ) from error


class _Bar:
    """What pooch reports of a download, shown by the library's own progress.

    pooch sets `total` (0 where it is unknown) and calls `update` with the nominal size of every
    chunk; at the end it calls `reset`, `update` with the total, and `close`.
    """

    def __init__(self, title: str, stack: ExitStack) -> None:
        self._title, self._stack = title, stack
        self._progress: Progress | None = None
        self.total = 0

    def update(self, amount: int) -> None:
        if self._progress is None:
            self._progress = self._stack.enter_context(Progress(self._title, self.total or None))
        if max(self.total, self._progress.done) > LARGEST:
            raise DataError(f"it is larger than {LARGEST:,} bytes, which no data set here is")
        left = self.total - self._progress.done if self.total else amount
        self._progress.advance(min(amount, left))

    def reset(self) -> None:
        """Keep the count: `update` with the total then adds what is left."""

    def close(self) -> None:
        """Leave the end to the stack, which closes the progress of a failed download as well."""


def _unpacked(published: Published, archive: Path) -> dict[str, bytes]:
    """The data set's files out of the archive; those that are compressed inside are expanded."""
    try:
        with zipfile.ZipFile(archive) as bundle:
            inside = {Path(name).name: name for name in bundle.namelist()}
            contents = {}
            for name in published.files:
                packed = name if name in inside else f"{name}.gz"
                if packed not in inside:
                    raise DataError(f"{published.url} holds no {name}, only {sorted(inside)}")
                with bundle.open(inside[packed]) as file:
                    plain = file if packed == name else gzip.GzipFile(fileobj=file)
                    contents[name] = plain.read(LARGEST + 1)
                if len(contents[name]) > LARGEST:
                    raise DataError(f"{name} in {published.url} is larger than {LARGEST:,} bytes")
            return contents
    except (zipfile.BadZipFile, gzip.BadGzipFile, EOFError) as error:
        raise DataError(
            f"{published.url} did not send a whole zip file ({error}): try again"
        ) from error


def _check(published: Published, name: str, content: bytes, origin: str) -> None:
    found, wanted = hashlib.sha256(content).hexdigest(), published.files[name]
    if found != wanted and fingerprint(content) != published.contents.get(name):
        raise DataError(
            f"{published.title}: {name} from {origin} is not the file that the results were made with "
            f"(SHA-256 {found[:16]}…, expected {wanted[:16]}…): it is damaged, or another version. Get it "
            "anew, or give --unverified to use it all the same"
        )


def _pooch() -> Any:
    """The library that downloads, without its own messages: errors are told by `DataError`."""
    try:
        import pooch
    except ImportError as error:
        raise DataError(
            "downloads need pooch: pip install 'distgp[experiments]', or name a folder with the data "
            f"files by --data-dir or {FOLDER_VARIABLE}"
        ) from error
    pooch.get_logger().setLevel("WARNING")
    return pooch
