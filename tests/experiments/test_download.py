"""Data sets from an archive: a real HTTP server on this machine, and what goes wrong with one."""

import gzip
import hashlib
import http.server
import io
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from distgp._util.progress import Progress
from experiments import download
from experiments.download import DataError, Published, fingerprint, locate

CONTENT = {"a.csv": b"x,y\n1,2\n" * 20_000, "b.csv": b"x\n3\n"}
SUMS = {name: hashlib.sha256(content).hexdigest() for name, content in CONTENT.items()}


def archive(contents):
    """A zip file with the second of the files compressed once more, as some are published."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("folder/a.csv", contents["a.csv"])
        bundle.writestr("folder/b.csv.gz", gzip.compress(contents["b.csv"]))
    return buffer.getvalue()


class Server:
    """Serves one body, or breaks off after so many bytes, and counts the requests."""

    def __init__(self, body):
        self.body, self.break_after, self.requests, self.status = body, None, 0, 200
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.requests += 1
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body[: outer.break_after])

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/data.zip"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def server():
    made = Server(archive(CONTENT))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DISTGP_DATA", raising=False)
    return tmp_path / "distgp" / "data"


def test_downloaded_once_checked_and_kept(server, cache, monkeypatch):
    seen = []

    class Seen(Progress):
        def advance(self, amount=1, text=""):
            super().advance(amount, text)
            seen.append((self.done, self.total))

    monkeypatch.setattr(download, "Progress", Seen)
    published = Published("Two files", server.url, SUMS)
    found = locate(published)
    assert {name: path.read_bytes() for name, path in found.items()} == CONTENT
    assert seen[-1] == (len(server.body), len(server.body))
    assert sorted(path.name for path in cache.iterdir()) == ["a.csv", "b.csv"]
    locate(published)
    assert server.requests == 1


def test_a_download_that_breaks_off_leaves_nothing_and_is_tried_again(server, cache):
    published = Published("Two files", server.url, SUMS)
    server.break_after = 300
    with pytest.raises(DataError, match="run the command again"):
        locate(published)
    assert not cache.exists()
    server.break_after = None
    assert locate(published)["a.csv"].read_bytes() == CONTENT["a.csv"]
    assert server.requests == 2


def test_another_content_is_refused(server, cache):
    server.body = archive(CONTENT | {"b.csv": b"x\n4\n"})
    published = Published("Two files", server.url, SUMS)
    with pytest.raises(DataError, match=r"b\.csv from http.*SHA-256.*--unverified"):
        locate(published)
    assert not cache.exists()
    assert locate(published, verify=False)["b.csv"].read_bytes() == b"x\n4\n"
    with pytest.raises(DataError, match=r"b\.csv"):  # and later on, in the cache
        locate(published)
    server.body = archive(CONTENT)
    assert locate(published)["b.csv"].read_bytes() == CONTENT["b.csv"], "it is downloaded anew"


def test_a_damaged_file_in_the_cache_is_downloaded_anew(server, cache):
    published = Published("Two files", server.url, SUMS)
    locate(published)
    (cache / "a.csv").write_bytes(b"x,y\n1,")
    assert locate(published)["a.csv"].read_bytes() == CONTENT["a.csv"]
    assert server.requests == 2


def test_what_is_far_too_large_is_refused(server, cache, monkeypatch):
    published = Published("Two files", server.url, SUMS)
    monkeypatch.setattr(download, "LARGEST", 10_000)
    with pytest.raises(DataError, match=r"a\.csv in http.* is larger than 10,000 bytes"):
        locate(published)
    monkeypatch.setattr(download, "LARGEST", 100)
    with pytest.raises(DataError, match=r"larger than 100 bytes"):
        locate(published)
    assert not cache.exists()


def test_runs_at_the_same_time_do_not_disturb_one_another(server):
    published = Published("Two files", server.url, SUMS)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: locate(published)["a.csv"].read_bytes(), range(16)))
    assert found == [CONTENT["a.csv"]] * 16


def test_quotes_that_keep_a_comma_count():
    assert fingerprint(b'a,b\n"1,2",3\n') != fingerprint(b"a,b\n1,2,3\n")
    assert fingerprint(b'a,b\n"1","x"\n') == fingerprint(b"a,b\r\n1.0,x\r\n")


def test_the_same_values_pass_however_they_are_written(server):
    ours = b"when,x,y\r\n2012-10-02 09:00,0,\r\n"
    theirs = b'"when","x","y"\n2012-10-02 09:00:00,0.0,NA\n'
    assert fingerprint(ours) == fingerprint(theirs) != fingerprint(ours.replace(b",0,", b",1,"))
    sums = {"a.csv": SUMS["a.csv"], "b.csv": hashlib.sha256(ours).hexdigest()}
    published = Published("Two files", server.url, sums, {"b.csv": fingerprint(ours)})
    server.body = archive(CONTENT | {"b.csv": theirs})
    assert locate(published)["b.csv"].read_bytes() == theirs


def test_not_a_zip_file(server, cache):
    server.body = b"<html>down for maintenance</html>"
    with pytest.raises(DataError, match="did not send a whole zip file"):
        locate(Published("Two files", server.url, SUMS))
    assert not cache.exists()


def test_no_network(server):
    server.close()
    with pytest.raises(DataError, match=r"could not be reached.*--data-dir or DISTGP_DATA"):
        locate(Published("Two files", server.url, SUMS))


def test_the_servers_own_error_is_told(server, cache):
    server.status = 404
    with pytest.raises(DataError, match=r"answered 404 Not Found: .*--data-dir or DISTGP_DATA"):
        locate(Published("Two files", server.url, SUMS))
    assert not cache.exists()


def test_without_the_library_that_downloads(server, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"pip install 'distgp\[experiments\]'.*DISTGP_DATA"):
        locate(Published("Two files", server.url, SUMS))


def test_not_found(server):
    published = Published("Three files", server.url, SUMS | {"c.csv": "0"})
    with pytest.raises(DataError, match=r"holds no c\.csv"):
        locate(published)


def test_a_folder_of_ones_own(server, tmp_path, monkeypatch):
    published = Published("Two files", server.url, SUMS)
    own = tmp_path / "own"
    own.mkdir()
    with pytest.raises(DataError, match=r"a\.csv, b\.csv not found in .*own"):
        locate(published, own)
    for name, content in CONTENT.items():
        (own / name).write_bytes(content)
    assert locate(published, own)["a.csv"].parent == own
    monkeypatch.setenv("DISTGP_DATA", str(own))
    assert locate(published)["a.csv"].parent == own
    assert not server.requests
    (own / "a.csv").write_bytes(b"x")
    with pytest.raises(DataError, match="not the file that the results were made with"):
        locate(published, own)
