"""Folders that are not trees: links to themselves, to parents and to nothing, pipes, sockets, odd names.

Every reader of folders finds each table once, whatever leads to it, or refuses the folder in our words.
"""

import os
import shutil
import socket

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hostile import calls
from hostile.trial import outcome, times, tiny
from typer.testing import CliRunner

import distgp
from distgp.cli import app
from distgp.data.parquet import ParquetRows
from distgp.data.table import Table

ROWS = 7
WORDS = ("a", "b=1", "year=2024", "x y", "[z]", "q?", "naïve", "c*", "#", "%20", "~", "-o", "é\n")


def table(rng):
    values = rng.normal(size=(ROWS, 3))
    return pa.table(dict(zip("aby", values.T, strict=True)))


def write(path, rng):
    with open(path, "wb") as file:
        pq.write_table(table(rng), file)


def estimator_readers():
    """Methods of estimators that read a path, found by their signatures."""
    for kind in calls.ESTIMATORS.values():
        for name in calls.methods(kind):
            if "path" in calls.takes(kind, name) and name.startswith("fit"):
                yield (
                    name,
                    lambda path, name=name: getattr(tiny(training=None), name)(path, target="y"),
                )


READERS = {
    "read": lambda path: Table.open(path).read().num_rows,
    "batches": lambda path: sum(batch.num_rows for batch in Table.open(path).batches()),
    "rows": lambda path: ParquetRows.open(path).n,
    **dict(estimator_readers()),
}


class Folder:
    """A folder that is made of random parts."""

    def __init__(self, root, rng):
        self.root, self.rng, self.folders, self.odd = root, rng, [root], False
        os.makedirs(root)
        for _ in range(int(rng.integers(1, 12))):
            part = PARTS[int(rng.integers(len(PARTS)))]
            part(self)

    def place(self, suffix=".parquet"):
        """A new name in one of the folders."""
        here = self.folders[int(self.rng.integers(len(self.folders)))]
        word = WORDS[int(self.rng.integers(len(WORDS)))]
        return os.path.join(here, f"{word}{int(self.rng.integers(10**6))}{suffix}")

    def good(self):
        write(self.place(), self.rng)

    def folder(self):
        path = self.place("")
        os.mkdir(path)
        self.odd |= "=" in path  # such a name gives a column
        self.folders.append(path)

    def link(self, target, suffix=""):
        os.symlink(target, self.place(suffix))

    def to_itself(self):
        path = self.place(str(self.rng.choice(["", ".parquet"])))
        os.symlink(path, path)

    def to_a_folder(self):
        self.link(self.folders[int(self.rng.integers(len(self.folders)))])

    def to_the_parent(self):
        self.link("..")

    def to_here(self):
        self.link(".")

    def to_nothing(self):
        self.link("nowhere", str(self.rng.choice(["", ".parquet"])))

    def to_a_file(self):
        files = [f for f in self.walk() if os.path.isfile(f) and "/." not in f]
        if files:
            self.link(files[int(self.rng.integers(len(files)))], ".parquet")

    def hard_link(self):
        files = [f for f in self.walk() if os.path.isfile(f) and not os.path.islink(f)]
        if files:
            self.odd = True  # two names of one file: nobody can say which is meant
            os.link(files[0], self.place())

    def pipe(self):
        os.mkfifo(self.place())

    def a_socket(self):
        there = os.getcwd()
        os.chdir(self.root)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"s{int(self.rng.integers(10**6))}.parquet")
        os.chdir(there)

    def named_folder(self):
        os.mkdir(self.place())

    def empty(self):
        self.odd = True
        open(self.place(), "wb").close()

    def cut(self):
        self.odd = True
        with open(self.place(), "wb") as file:
            file.write(b"PAR1" + bytes(int(self.rng.integers(0, 50))))

    def other_kind(self):
        self.odd = True
        with open(self.place(".csv"), "wb") as file:
            pa.csv.write_csv(table(self.rng), file)

    def not_utf8(self):
        self.odd = True
        name = os.fsencode(self.place("")) + b"\xff\xfe" + self.rng.bytes(2).replace(b"/", b"x")
        name = name.replace(b"\0", b"x") + b".parquet"
        write(name, self.rng)

    def hidden(self):
        with open(
            os.path.join(self.root, f".{int(self.rng.integers(10**6))}.parquet"), "wb"
        ) as file:
            file.write(b"no table")

    def unreadable(self):
        self.odd = True
        path = self.place()
        write(path, self.rng)
        os.chmod(path, 0)

    def walk(self):
        return [os.path.join(here, name) for here, _, names in os.walk(self.root) for name in names]

    def expected(self):
        """The number of different tables that can be reached, by a plain search."""
        seen, found, todo = set(), set(), [self.root]
        while todo:
            here = todo.pop()
            if os.path.realpath(here) in seen:
                continue
            seen.add(os.path.realpath(here))
            for entry in os.listdir(here):
                path = os.path.join(here, entry)
                if entry.startswith("."):
                    continue
                if os.path.isdir(path):
                    todo.append(path)
                elif os.path.isfile(path) and entry.endswith(".parquet"):
                    found.add(os.path.realpath(path))
        return len(found)


ODD = (
    Folder.to_itself, Folder.to_a_folder, Folder.to_the_parent, Folder.to_here, Folder.to_nothing,
    Folder.to_a_file, Folder.pipe, Folder.a_socket, Folder.named_folder, Folder.hidden, Folder.folder,
)  # fmt: skip
WRONG = (
    Folder.empty, Folder.cut, Folder.other_kind, Folder.not_utf8, Folder.unreadable, Folder.hard_link,
)  # fmt: skip
PARTS = (*(Folder.good,) * 6, *ODD * 2, *WRONG)
FORMS = (str, lambda root: root + "/", lambda root: f"{root}/**/*.parquet", lambda root: f"{root}/**",
         lambda root: f"{root}/*.parquet", lambda root: f"{root}/*")  # fmt: skip


@pytest.mark.parametrize("part", range(times(1, 4)))
def test_every_reader_finds_each_table_once_or_refuses(part, tmp_path):
    rng = np.random.default_rng(part)
    for i in range(times(15, 400)):
        folder = Folder(str(tmp_path / "f"), rng)
        for name, reader in READERS.items():
            form = int(rng.integers(len(FORMS)))
            path = FORMS[form](folder.root)
            try:
                found = outcome("folders", lambda reader=reader, path=path: reader(path))
            except AssertionError as error:
                listed = sorted(map(repr, folder.walk()))
                raise AssertionError(f"{name} of {path}, {i}: {error}\n{listed}") from error
            whole = form < 2 and not folder.odd
            if whole and isinstance(found, int):
                assert found == ROWS * folder.expected(), (name, folder.walk())
            if whole and found is None:
                assert folder.expected() == 0 or name.startswith("fit"), (name, folder.walk())
        os.system("chmod -R u+rwX " + str(tmp_path / "f"))
        shutil.rmtree(tmp_path / "f")


def test_commands_say_one_line_of_such_folders(tmp_path):
    rng = np.random.default_rng(9)
    X = rng.normal(size=(30, 2))
    model = tiny().fit(pa.table({"a": X[:, 0], "b": X[:, 1]}).to_pandas(), X[:, 0])
    model.save(tmp_path / "m.safetensors")
    for _ in range(times(3, 150)):
        folder = Folder(str(tmp_path / "f"), rng)
        given = [
            "predict",
            str(tmp_path / "m.safetensors"),
            folder.root,
            "-o",
            str(tmp_path / "o.csv"),
        ]

        def command(given=given):
            done = CliRunner().invoke(app, [*given, "--force"])
            if done.exit_code not in (0, 2) or "mistake" in done.stderr:
                raise AssertionError(done.stderr) from done.exception
            return done.exit_code == 0 or None

        outcome("folders", command)
        os.system("chmod -R u+rwX " + str(tmp_path / "f"))
        shutil.rmtree(tmp_path / "f")


def test_readers_are_found():
    assert {"fit_parquet"} <= READERS.keys() and distgp is not None
