"""A real object store, in a process of its own: what is read there is what is read here.

It is moto's server, which is not among what is installed for the tests, since it brings 27 packages:
pip install 'moto[s3]' flask flask-cors
"""

import importlib.util
import os
import socket
import subprocess
import sys
import time
from urllib.parse import quote

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs
import pytest
from hostile.trial import alike, ending, times, tiny

from distgp.data.table import Table

KIND = "object store"
NAMES = ["t.parquet", "a b.parquet", "ä€😀.parquet", "p=1/t.parquet", "a+b&c=d.parquet", "100%.parquet",
         "-.parquet", "deep/er/t.PARQUET", "c.csv", "a#b.csv"]  # fmt: skip
POINT = pd.DataFrame({"a": [0.0], "b": [0.1]})

pytestmark = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("moto", "flask", "flask_cors"))),
    reason="there is no object store here: pip install 'moto[s3]' flask flask-cors",
)


class Store:
    """A server, and how to reach it."""

    def __init__(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        path = os.pathsep.join(part for part in sys.path if part)
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"PYTHONPATH": path},
        )
        while True:
            assert self.process.poll() is None, "the object store did not start"
            try:
                socket.create_connection(("127.0.0.1", self.port), 1).close()
                break
            except OSError:
                time.sleep(0.1)
        self.system = pa.fs.S3FileSystem(
            access_key="none",
            secret_key="none",
            scheme="http",
            endpoint_override=f"127.0.0.1:{self.port}",
            region="us-east-1",
            allow_bucket_creation=True,
        )

    def uri(self, path):
        return f"s3://{path}?scheme=http&endpoint_override=127.0.0.1:{self.port}&region=us-east-1"

    def put(self, path, content):
        with self.system.open_output_stream(path) as stream:
            stream.write(content)


@pytest.fixture(scope="module")
def store():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "none")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "none")
        made = Store()
        yield made
        made.process.kill()
        made.process.wait()


def content(name, seed, folder):
    """The bytes of a table of 60 rows, and a file of this machine that holds them."""
    rows = pd.DataFrame(np.random.default_rng(seed).normal(size=(60, 3)), columns=[*"aby"])
    path = folder / ("local" + os.path.splitext(name)[1].lower())
    rows.to_csv(path, index=False) if name.endswith("csv") else rows.to_parquet(path)
    return path.read_bytes(), path


def read(path):
    return Table.open(path).read().to_pandas()


def test_tables_of_any_name_are_read_as_here(store, tmp_path):
    for i in range(times(1, 5)):
        store.system.create_dir(f"bucket{i}")
        for name in NAMES:
            made, path = content(name, i, tmp_path)
            store.put(f"bucket{i}/{name}", made)
            there, error = ending(
                KIND, lambda i=i, name=name: read(store.uri(f"bucket{i}/{quote(name)}"))
            )
            if alike(None, error, name):
                pd.testing.assert_frame_equal(there, read(path))


def test_a_folder_of_objects_is_fitted_as_one_of_files(store, tmp_path):
    store.system.create_dir("whole")
    (tmp_path / "t").mkdir()
    for i in range(3):
        made, path = content("t.parquet", i, tmp_path)
        store.put(f"whole/t/{i}.parquet", made)
        path.rename(tmp_path / "t" / f"{i}.parquet")
    store.system.create_dir(
        "whole/t/u"
    )  # an object without a name of its own, as consoles make for a folder
    store.put("whole/t/_SUCCESS", b"")
    here, there = (
        ending(KIND, lambda path=path: tiny(training=None).fit_parquet(path, target="y"))[0]
        for path in (str(tmp_path / "t"), store.uri("whole/t"))
    )
    np.testing.assert_array_equal(here.predict(POINT), there.predict(POINT))


@pytest.mark.parametrize("kind", ["t.parquet", "t.csv"])
@pytest.mark.parametrize(
    "change", ["removed", "emptied", "cut", "replaced", "not there", "no bucket"]
)
def test_objects_that_change_or_are_not_there(store, tmp_path, kind, change):
    """Rows of one of the two states, or a clear error."""
    store.system.create_dir("changing")
    made, path = content(kind, 0, tmp_path)
    first = read(path)
    store.put(f"changing/{kind}", made)
    uri = store.uri(
        {"not there": "changing/no.csv", "no bucket": "none/t.csv"}.get(change, f"changing/{kind}")
    )

    def late():
        table = Table.open(uri)
        if change == "removed":
            store.system.delete_file(f"changing/{kind}")
        elif change in ("emptied", "cut", "replaced"):
            other = content(kind, 1, tmp_path)[0]
            store.put(
                f"changing/{kind}",
                {"emptied": b"", "cut": made[: len(made) // 2]}.get(change, other),
            )
        return table.read().to_pandas()

    found, error = ending(KIND, late)
    assert error is not None or any(found.equals(rows) for rows in (first, read(path)))


def test_a_store_that_is_gone(tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "none")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "none")
        made = Store()
        made.system.create_dir("gone")
        made.put("gone/t.parquet", content("t.parquet", 0, tmp_path)[0])
        table = Table.open(made.uri("gone/t.parquet"))
        made.process.kill()
        made.process.wait()
        for call in (table.read, lambda: Table.open(made.uri("gone/t.parquet"))):
            assert ending(KIND, call)[1] is not None
