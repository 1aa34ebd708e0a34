"""An object store for the tests of this folder."""

import threading
from http.server import ThreadingHTTPServer

import pytest
from object_store import ObjectStore


@pytest.fixture
def bucket(tmp_path, monkeypatch):
    """A function that gives the URI of a path in a bucket that holds the files of tmp_path."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "none")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "none")
    handler = type("Handler", (ObjectStore,), {"root": tmp_path})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        options = f"scheme=http&endpoint_override=127.0.0.1:{server.server_port}&region=none"
        yield lambda path: f"s3://bucket/{path}?{options}"
        server.shutdown()
