"""The ten standard tables of the field with their published splits, and a table of results that grows.

The collection is github.com/treforevans/uci_datasets (MIT; the data CC BY 4.0): ten splits of 90/10 of each
table. Papers give RMSE and NLPD in units of the standard deviation of the training targets; so do we.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import hashlib
import io
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _measure import processor, versions

from distgp.files.writing import whole
from experiments.download import DataError, cache_folder

Row = dict[str, object]
Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
ADDRESS = "https://raw.githubusercontent.com/treforevans/uci_datasets/master/uci_datasets"
TIMEOUT = 60.0
CHECKSUMS = {
    "yacht": "e982cbbc957d750c839e533dbcf8ee6fc8e292a4494ae9eef7b7a60b7b7d2973",
    "energy": "9cf199a57cf73686509f4546166a51965042db645a4490e0aa0943f18a0eb4ac",
    "concrete": "f93fb3ef0b88870cccdca9caf3cf8f4383e39c036788264e56da77b66b120370",
    "parkinsons": "55d76b255d177b035c1b9f76d864551411abbd96610ee86f99c450556d158f70",
    "pol": "acecd437fa5cbe560f7f227a311fb301b6548b879a087ca6284502efc2de565c",
    "elevators": "727ec73eb38fcfcd6bce6d903cdcbc536897605c1e819aded3ab05c5c4704006",
    "bike": "5bef116dd6218fcb0dab1ebef28da7accc92f5cacbfeaf017997528fc4499f2d",
    "kin40k": "58c371b790451b50e11c8640c3eeea5d993323fcc86148eee5fcbaa595e50b2a",
    "protein": "4e79c0e6ea3ff5990490e1ea2ee3bd2dfc7f80cd34a1d201f3af4c5cefed88d1",
    "keggdirected": "174fe59e855c9b25b72b70b4b40a046f0bd260cfe05b06accfc2757a40237c60",
}
"""SHA-256 of each table's values and splits, smallest table first; see `fingerprint`."""
TABLES = tuple(CHECKSUMS)


def fingerprint(rows: np.ndarray, splits: np.ndarray) -> str:
    """SHA-256 of the values as float64, row by row, and of the splits as bits."""
    values = np.ascontiguousarray(rows, dtype="<f8").tobytes()
    return hashlib.sha256(values + np.packbits(splits).tobytes()).hexdigest()


def table_of(name: str, folder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """The rows, inputs first and the target last, and a column of booleans for each split's test rows.

    Without a folder the table is looked for in the user's cache folder, and downloaded where it is not
    there. Other values than those that the results were made with are refused.
    """
    place = cache_folder() / "uci" if folder is None else folder
    path = place / f"{name}.npz"
    if path.is_file():
        with np.load(path) as file:
            rows, splits = file["D"], file["M"]
    elif folder is None:
        rows, splits = _downloaded(name)
    else:
        raise DataError(
            f"{path} not found: leave --data out to download the table from {ADDRESS}/{name}"
        )
    if fingerprint(rows, splits) != CHECKSUMS[name]:
        raise DataError(f"{name} has other values than the table that the results were made with")
    if not path.is_file():
        place.mkdir(parents=True, exist_ok=True)
        with whole(path) as part, part.open("wb") as file:
            np.savez_compressed(file, D=rows, M=splits)
    return rows, splits


def _downloaded(name: str) -> tuple[np.ndarray, np.ndarray]:
    """A table and its splits from where the collection is published."""
    found = []
    for part in ("data", "test_mask"):
        address = f"{ADDRESS}/{name}/{part}.csv.gz"
        try:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
                text = gzip.decompress(answer.read()).decode()
        except (OSError, EOFError, urllib.error.URLError) as error:
            raise DataError(
                f"{address} could not be had ({error}): get {name}.npz in another way and name its folder "
                "by --data"
            ) from error
        found.append(np.loadtxt(io.StringIO(text), delimiter=","))
    return found[0], found[1].astype(bool)


def split_of(folder: Path | None, table: str, split: int) -> Split:
    """Training inputs and targets, test inputs and targets; targets in units of the training rows' sd."""
    rows, splits = table_of(table, folder)
    test, X, y = splits[:, split], rows[:, :-1], rows[:, -1]
    y = (y - y[~test].mean()) / y[~test].std()
    return X[~test], y[~test], X[test], y[test]


class Results:
    """A CSV that grows by one line a run; a run whose line is there is not run again."""

    def __init__(self, path: Path, device: str) -> None:
        name = torch.cuda.get_device_name() if device == "cuda" else processor()
        self.versions = versions() | {"on": name}
        self.path: Path = path
        self.rows: list[dict[str, str]] = []
        if path.exists():
            with path.open(newline="") as file:
                self.rows = list(csv.DictReader(file))

    def find(self, key: Row) -> dict[str, str] | None:
        """The line of a run; None where there is none."""
        wanted = {name: str(value) for name, value in key.items()}
        same = (row for row in self.rows if all(row.get(n) == v for n, v in wanted.items()))
        return next(same, None)

    def add(self, key: Row, run: Callable[[], Row]) -> dict[str, str]:
        """Run, unless the line with this key is there, and write the line."""
        there = self.find(key)
        if there is not None:
            return there
        try:
            found = run()
        except (RuntimeError, ValueError, ArithmeticError, MemoryError) as error:
            found = {"error": f"{type(error).__name__}: {error}"[:300]}
        row = {name: str(value) for name, value in (key | found | self.versions).items()}
        print(" ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        self.rows.append(row)
        names = list(dict.fromkeys(name for one in self.rows for name in one))
        with whole(self.path) as part, part.open("w", newline="") as file:
            writer = csv.DictWriter(file, names)
            writer.writeheader()
            writer.writerows(self.rows)
        return row


def arguments(about: str | None) -> argparse.ArgumentParser:
    """Return the options of a script that measures on every table and split."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tables", nargs="*", default=list(TABLES), choices=TABLES)
    parser.add_argument("--splits", nargs="*", type=int, default=[0])
    parser.add_argument("--page", action="store_true")
    parser.add_argument("--out", type=Path)
    return parser


def on_every_split(
    given: argparse.Namespace, name: str, measured: Callable[[Results, Row, Split], None]
) -> None:
    """Measure on all tables and splits that were asked for, into the CSV of this name and device."""
    path = Path(__file__).parent / "results" / f"{name}-{given.device}.csv"
    results = Results(given.out or path, given.device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for table in given.tables:
            for split in given.splits:
                data = split_of(given.data, table, split)
                key: Row = {"table": table, "split": split, "n": len(data[1])}
                measured(results, key | {"d": data[0].shape[1]}, data)
