"""Real servers, real clients: right answers, clear refusals, and a server that outlives what it gets."""

import http.client
import json
import os
import random
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from contextlib import nullcontext as nothing
from pathlib import Path
from statistics import NormalDist
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from helpers import make_data
from typer.testing import CliRunner

import distgp
from distgp.cli import app
from distgp.regressor import unnamed

pytest.importorskip("fastapi", reason="serving needs FastAPI: pip install 'distgp[serve]'")
httpx = pytest.importorskip("httpx", reason="the clients of these tests are httpx's")

COMMAND = str(Path(sys.executable).parent / "distgp")
ARROW = "application/vnd.apache.arrow.stream"
MOST_ROWS, MOST_BYTES = 2_000, 1_000_000
BREAKS = 13.0
"""The value at which the server of the grid model has a mistake of its own."""
MISTAKE = """
import sys
import distgp.cli
assert not {"fastapi", "uvicorn"} & set(sys.modules), "what only serving needs was imported"
from distgp import serve
right = serve.unnamed
def unnamed(predict, X, *arguments, **options):
    assert X[0, 0] != 13.0, "a mistake"
    return right(predict, X, *arguments, **options)
serve.unnamed = unnamed
serve.serve(sys.argv[1], port=0, ready=lambda url: print(url, file=sys.stderr, flush=True))
"""


def table_of(n, seed=0, centre=0.0):
    rng = np.random.default_rng(seed)
    east, site = centre + rng.uniform(-2, 2, n), rng.choice(["hill", "lake", "town"], n)
    level = np.sin(2 * east) + 3 * (site == "hill") + 0.1 * rng.normal(size=n)
    return pa.table({"site": site, "east": east, "dry": rng.uniform(size=n) < 0.5, "level": level})


def arrow(table, **options):
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(**options)
    with pa.ipc.new_stream(out, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=100)
    return out.getvalue().to_pybytes()


def start(folder, *arguments):
    """A server on a free port: its process, URL and log."""
    log = folder / f"{arguments[-1]}.log"
    with log.open("w") as file:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
        process = subprocess.Popen(arguments, cwd=folder, stderr=file, stdout=file, env=environment)
    return SimpleNamespace(process=process, log=log)


def started(server):
    while not (found := re.search(r"http://127.0.0.1:\d+", server.log.read_text())):
        assert server.process.poll() is None, server.log.read_text()
        time.sleep(0.05)
    server.url = found[0]
    return server


def written(server, text):
    """The log of a server once it has this text: lines are written after the answer was sent."""
    until = time.monotonic() + 60
    while text not in (log := server.log.read_text()):
        assert time.monotonic() < until, f"{text!r} is not in the log:\n{log}"
        time.sleep(0.02)
    return log


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("secret")
    pq.write_table(table_of(300), folder / "train.parquet")
    fit = (
        f"fit {folder}/train.parquet --target level -o {folder}/table --n-experts 2 --training none"
    )
    assert CliRunner().invoke(app, fit.split()).exit_code == 0
    X, y = make_data(600)
    gp = distgp.DistributedGPRegressor("exact", 2, training=None, calibrate="conformal")
    gp.fit(X, np.stack([y, X[:, 1]], axis=1)).save(folder / "array")
    distgp.SparseGridGP(level=3, training=None).fit(X, y).save(folder / "grid")
    return folder


@pytest.fixture(scope="module")
def servers(folder):
    limits = ["--max-rows", str(MOST_ROWS), "--max-bytes", str(MOST_BYTES)]
    running = {
        "table": start(folder, COMMAND, "serve", "--port", "0", *limits, "table"),
        "array": start(folder, COMMAND, "serve", "--port", "0", "array"),
        "grid": start(folder, sys.executable, "-c", MISTAKE, "grid"),
    }
    try:
        yield {name: started(server) for name, server in running.items()}
    finally:
        for server in running.values():
            server.process.kill()
            server.process.wait()


@pytest.fixture(scope="module")
def connect(servers, folder):
    """Clients that look into every answer for what is nobody's business."""

    def no_secrets(response):
        text = response.read().decode(errors="replace")
        for secret in (
            str(folder),
            folder.name,
            "Traceback",
            ".py",
            "Error",
            "Exception",
            "distgp/",
        ):
            assert secret not in text
        if response.is_error:
            assert list(response.json()) == ["detail"] and "\n" not in response.json()["detail"]

    def connected(name):
        url, hooks = servers[name].url, {"response": [no_secrets]}
        return httpx.Client(base_url=url, event_hooks=hooks, timeout=60)

    return connected


@pytest.fixture
def client(connect):
    with connect("table") as client:
        yield client


def expected(folder, table, **options):
    """What the model predicts in this process."""
    gp = distgp.load(folder / "table")
    return unnamed(gp.predict, gp.model_.schema.table.matrix(table), return_std=True, **options)


def post_arrow(client, body, url="/predict", **headers):
    return client.post(url, content=body, headers={"content-type": ARROW} | headers)


def detail(response, status):
    assert response.status_code == status, response.text
    return response.json()["detail"]


def same(found, values):
    np.testing.assert_allclose(np.asarray(found), values, rtol=1e-9)


def test_json_rows_are_predicted_as_the_model_does(client, folder):
    table = table_of(50, seed=1)
    mean, std = expected(folder, table)
    answer = client.post("/predict", json={"rows": table.to_pylist()}).json()
    same(answer["mean"], mean)
    same(answer["std"], std)
    assert set(answer) == {"mean", "std", "warnings"} and answer["warnings"] == []
    lists = [list(row.values())[:3] for row in table.to_pylist()]  # in the order of /info
    options = {"interval": 0.8, "latent": True}
    answer = client.post("/predict", json={"rows": lists}, params=options).json()
    mean, std = expected(folder, table, latent=True)
    same(answer["lower"], mean + NormalDist().inv_cdf(0.1) * std)
    same(answer["upper"], mean + NormalDist().inv_cdf(0.9) * std)


def test_arrow_in_and_out(client, folder):
    table = table_of(250, seed=2)
    mean, std = expected(folder, table)
    coded = table.set_column(0, "site", table["site"].dictionary_encode())
    for rows in (table, coded):
        answer = post_arrow(client, arrow(rows), "/predict?interval=0.5")
        assert answer.headers["content-type"] == ARROW
        found = pa.ipc.open_stream(answer.content).read_all()
        assert found.column_names == ["mean", "std", "lower", "upper"]
        same(found["mean"], mean)
        same(found["std"], std)
        assert json.loads(found.schema.metadata[b"warnings"]) == []
    same(post_arrow(client, arrow(table), accept="application/json").json()["mean"], mean)
    rows = {"rows": table.to_pylist()}
    answer = client.post("/predict", json=rows, headers={"accept": ARROW})
    same(pa.ipc.open_stream(answer.content).read_all()["mean"], mean)


def test_models_of_arrays_with_several_targets_and_of_grids(connect, folder):
    X = np.random.default_rng(3).uniform(-2, 2, size=(20, 2))
    gp = distgp.load(folder / "array")
    (mean, std), ends = gp.predict(X, return_std=True), gp.predict_interval(X, 0.8)
    with connect("array") as client:
        assert [c["name"] for c in client.get("/info").json()["columns"]] == ["x0", "x1"]
        answer = client.post("/predict?interval=0.8", json={"rows": X.tolist()}).json()
        same(answer["mean"], mean)
        same(answer["std"], std)
        same([answer["lower"], answer["upper"]], ends)
        rows = {"rows": X.tolist()}
        assert "too few rows" in detail(client.post("/predict?interval=0.999", json=rows), 422)
        content = post_arrow(client, arrow(pa.table({"x1": X[:, 1], "x0": X[:, 0]}))).content
        same(pa.ipc.open_stream(content).read_all()["mean"].to_pylist(), mean)
    with connect("grid") as client:
        answer = client.post("/predict", json={"rows": X.tolist()}).json()
        same(answer["mean"], distgp.load(folder / "grid").predict(X))


def test_info_and_health(client):
    assert client.get("/health").json() == {"status": "ok"}
    assert client.get("/info").json() == {
        "distgp": distgp.__version__,
        "estimator": "DistributedGPRegressor",
        "expert": "exact",
        "aggregation": "two-level",
        "rows": 300,
        "targets": ["level"],
        "columns": [
            {"name": "site", "kind": "category", "categories": ["hill", "lake", "town"]},
            {"name": "east", "kind": "number"},
            {"name": "dry", "kind": "boolean"},
        ],
        "max_rows": MOST_ROWS,
        "max_bytes": MOST_BYTES,
        "max_json_bytes": MOST_BYTES,
    }


def test_many_clients_each_get_their_own_answers_and_warnings(connect, folder):
    """Every other client sends rows far from the training rows, and is the only one to be warned."""
    tables = [table_of(30, seed=i, centre=50.0 * (i % 2)) for i in range(32)]

    def ask(table):
        with connect("table") as client:
            return [client.post("/predict", json={"rows": table.to_pylist()}) for _ in range(3)]

    with ThreadPoolExecutor(32) as pool:
        found = list(pool.map(ask, tables))
    for i, (table, answers) in enumerate(zip(tables, found, strict=True)):
        with pytest.warns(distgp.diagnostics.novelty.NoveltyWarning) if i % 2 else nothing():
            mean, std = expected(folder, table)
        for answer in answers:
            same(answer.json()["mean"], mean)
            same(answer.json()["std"], std)
            told = answer.json()["warnings"]
            assert len(told) == i % 2 and all("30 rows to predict" in text for text in told)


GOOD = {"site": "hill", "east": 1.0, "dry": True}
BAD_ROWS = [
    ([], "expected one row at least, got none"),
    ({}, 'expected {"rows": [...]} with a list of rows'),
    ([1.0], "row 1 of 1 is neither an object nor a list"),
    ([GOOD, ["hill", 1.0, True]], "got some objects and some lists"),
    ([["hill", 1.0]], "row 1 of 1 has 2 values, expected the 3 of 'site', 'east', 'dry'"),
    ([GOOD, {"site": "hill", "dry": True}], "row 2 of 2 lacks 'east'"),
    ([GOOD, GOOD | {"east": None}], "1 of 2 rows have missing or infinite values (1 in 'east')"),
    ([GOOD | {"east": float("nan")}], "1 of 1 rows have missing or infinite values (1 in 'east')"),
    ([GOOD | {"east": float("-inf")}], "1 of 1 rows have missing or infinite values"),
    ([GOOD | {"site": None}], "(1 in 'site')"),
    ([GOOD | {"east": "far"}], "column 'east' is text, expected numbers"),
    ([GOOD, GOOD | {"east": "far"}], "column 'east' holds values of different kinds"),
    ([GOOD | {"east": 10**400}], "column 'east' holds values of different kinds, or too large"),
    ([GOOD | {"east": {"a": [1]}}], "column 'east' is struct"),
    ([GOOD | {"site": [1]}], "a column does not hold what it held in fitting: Unsupported cast"),
    ([GOOD | {"site": "\ud800"}], "column 'site'"),
    ([{"x" * 9_999: 1}], "row 1 of 1 lacks 'site', 'east', 'dry'"),
    ([GOOD | {"east": 1e308}], "an input is 1e+308, too far from the training rows"),
]


@pytest.mark.parametrize(("rows", "said"), BAD_ROWS, ids=[said[:30] for _, said in BAD_ROWS])
def test_bad_rows(client, rows, said):
    body, headers = json.dumps({"rows": rows}), {"content-type": "application/json; charset=utf-8"}
    assert said in detail(client.post("/predict", content=body, headers=headers), 422)


def test_bad_requests(client):
    def post(body, form="application/json", **params):
        return client.post("/predict", content=body, headers={"content-type": form}, params=params)

    for body in (b"{", b"\xff", b"[" * 100_000, b'{"rows": [' + b"9" * 5_000 + b"]}", b""):
        assert "expected JSON in UTF-8" in detail(post(body), 400)
    assert "expected {" in detail(post(b"[1]"), 422)
    for form in ("text/csv", "", "application/json-seq"):
        assert "expected the content type application/json or" in detail(post(b"{}", form), 415)
    assert "interval: " in detail(post(b"{}", interval="1.5"), 422)
    assert "latent: " in detail(post(b"{}", latent="x\ny"), 422)
    assert "unknown: " in detail(post(b"{}", unknown="drop"), 422)
    said = detail(post(b"{}", quantile="0.1"), 422)
    assert "no option 'quantile' of /predict; did you mean 'quantiles'?" in said
    assert "got it 2 times" in detail(post(b"{}", quantiles=["0.1", "0.9"]), 422)
    assert "option 'x' of /info, which has none" in detail(client.get("/info?x=1"), 422)
    assert "no GET /predict; there are GET /health" in detail(client.get("/predict"), 405)
    assert "POST /predict" in detail(client.get("/docs"), 404)
    rows = json.dumps({"rows": [GOOD | {"site": "moon"}]})
    assert "holds 1 values that were not there" in detail(post(rows, unknown="refuse"), 422)
    (told,) = post(rows).json()["warnings"]
    assert "'site' holds 1 values that were not there" in told


def test_bad_arrow(client):
    table = table_of(20)
    assert "lacks the column(s) 'east'" in detail(
        post_arrow(client, arrow(table.drop(["east"]))), 422
    )
    assert "got none" in detail(post_arrow(client, arrow(table.slice(0, 0))), 422)
    twice = table.append_column("east", table["east"])
    assert '\'Field "east" exists 2 times' in detail(post_arrow(client, arrow(twice)), 400)
    for kind in ("lz4", "zstd"):  # small bodies may stand for very many bytes
        body = arrow(table, compression=kind)
        assert "expected Arrow without compression" in detail(post_arrow(client, body), 400)
    whole = arrow(table)
    assert "expected an Arrow IPC stream" in detail(post_arrow(client, b"nonsense"), 400)
    assert "expected an Arrow IPC stream" in detail(
        post_arrow(client, whole[: len(whole) // 2]), 400
    )
    many = pa.table(3 * [pa.Array.from_buffers(pa.null(), 10**9, [None])], ["site", "east", "dry"])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, many.schema) as writer:
        writer.write_table(many)  # a few bytes for 10⁹ rows
    assert "at most 2,000 rows" in detail(post_arrow(client, out.getvalue().to_pybytes()), 413)


def test_corrupt_arrow_never_breaks_the_server(client):
    whole, rng = arrow(table_of(20)), random.Random(0)
    for _ in range(300):
        body = bytearray(whole)
        for place in rng.sample(range(len(body)), rng.choice([1, 4, 16])):
            body[place] = rng.choice([0, 1, 127, 128, 255])
        assert post_arrow(client, bytes(body)).status_code in (200, 400, 413, 422)


def test_too_many_rows_or_bytes(client, servers):
    rows = {"rows": [GOOD] * (MOST_ROWS + 1)}
    assert "expected at most 2,000 rows" in detail(client.post("/predict", json=rows), 413)
    assert "at most 2,000 rows" in detail(post_arrow(client, arrow(table_of(MOST_ROWS + 1))), 413)
    headers = {"content-type": "application/json"}
    body = b" " * (MOST_BYTES + 1)
    said = "expected at most 1,000,000 bytes"
    assert said in detail(client.post("/predict", content=body, headers=headers), 413)
    before = memory(servers["table"].process.pid)
    endless = (b" " * 2**20 for _ in range(200))  # without a Content-Length
    assert said in detail(client.post("/predict", content=endless, headers=headers), 413)
    assert memory(servers["table"].process.pid) - before < 50 * 2**20
    assert client.post("/predict", json={"rows": [GOOD]}).status_code == 200


def memory(pid):
    """The largest size of a process so far, in bytes; 0 where the system does not tell."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return 1024 * int(found[1]) if found else 0


def raw_request(url, length, body):
    """A connection on which a request was sent; what it says of its length may be a lie."""
    host, port = url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    head = f"POST /predict HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode() + body)
    return connection


def test_clients_that_lie_about_the_length(servers, client):
    body = json.dumps({"rows": [GOOD]}).encode()
    with raw_request(servers["table"].url, 10**15, body) as connection:
        assert b" 413 " in connection.recv(4096)
    with raw_request(servers["table"].url, 10**30, body) as connection:
        assert connection.recv(4096).startswith((b"HTTP/1.1 400", b"HTTP/1.1 413"))
    with raw_request(servers["table"].url, len(body) - 4, body) as connection:
        assert b" 400 " in connection.recv(4096)
    assert client.get("/health").status_code == 200


def test_clients_killed_in_the_middle(servers, client, folder):
    table = table_of(MOST_ROWS, seed=4)
    body = json.dumps({"rows": table.to_pylist()}).encode()
    for sent in (10, len(body) // 2, len(body)):  # in the middle of sending; of the prediction
        for _ in range(4):
            connection = raw_request(servers["table"].url, len(body), body[:sent])
            # Closing without waiting sends a reset, as the system does for a killed process.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
    answer = client.post("/predict", json={"rows": table.slice(0, 5).to_pylist()}).json()
    same(answer["mean"], expected(folder, table.slice(0, 5))[0])
    assert servers["table"].process.poll() is None
    assert "Traceback" not in servers["table"].log.read_text()


def test_a_mistake_of_our_own_is_in_the_log_and_not_in_the_answer(connect, servers):
    with connect("grid") as client:
        said = client.post("/predict", json={"rows": [[BREAKS, 0.0]]})
        assert detail(said, 500) == "internal error"
        assert client.post("/predict", json={"rows": [[0.0, 0.0]]}).status_code == 200
    written(servers["grid"], "AssertionError: a mistake")


def test_health_answers_during_long_predictions_and_the_end_waits_for_them(connect, servers):
    """The last test of this server: SIGTERM ends it."""
    server, X = servers["array"], np.random.default_rng(5).uniform(-2, 2, size=(3_000, 2))
    body = json.dumps({"rows": X.tolist()}).encode()
    many = (os.cpu_count() or 1) + 1  # more than are predicted at once
    running = [raw_request(server.url, len(body), body) for _ in range(many)]
    with connect("array") as client:
        for _ in range(5):
            assert client.get("/health").status_code == 200
    answered, _, _ = select.select(running, [], [], 0)
    assert len(answered) < many
    server.process.send_signal(signal.SIGTERM)
    for connection in running:
        with connection, http.client.HTTPResponse(connection) as answer:
            answer.begin()
            assert answer.status == 200 and len(json.load(answer)["mean"]) == len(X)
    assert server.process.wait() == 128 + signal.SIGTERM
    assert server.log.read_text().count("\n") == 1  # where it served, and no trace


def run(*arguments):
    done = CliRunner(env={"NO_COLOR": "1"}).invoke(app, ["serve", *map(str, arguments)])
    assert done.exit_code == 2 and done.output.count("\n") == 1
    return done.output


def test_the_limits_of_the_command_are_those_of_the_server():
    from distgp import serve
    from distgp.cli.options import TABLE

    defaults = {row.name: row.default for row in TABLE if row.commands == "serve"}
    assert (defaults["max_rows"], defaults["max_bytes"]) == (serve.MOST_ROWS, serve.MOST_BYTES)


def test_errors_of_the_command_are_one_line(folder, monkeypatch):
    (folder / "foreign").write_bytes(b"not a model")
    assert "foreign" in run(folder / "foreign")
    assert "nowhere" in run(folder / "nowhere")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = run(folder / "table", "--port", port)
    assert f"cannot listen at 127.0.0.1, port {port}: Address already in use" in said
    assert "cannot listen at nowhere.invalid" in run(folder / "table", "--host", "nowhere.invalid")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "distgp.serve", raising=False)
    monkeypatch.delattr(distgp, "serve", raising=False)
    assert "pip install 'distgp[serve]'" in run(folder / "table")


@pytest.mark.parametrize("host", ["", "  "])
def test_an_empty_host_is_not_every_host(host):
    from distgp.serve import _listening

    with pytest.raises(ValueError, match="expected the address to listen at"):
        _listening(host, 0)


IMPATIENT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
from distgp import serve
from distgp.serve import connections, rows
connections.HEADERS = rows.PATIENCE = float(sys.argv[2])
serve.serve(sys.argv[1], port=0, max_bytes=2**20, names=["gp.example"],
            ready=lambda url: print(url, file=sys.stderr, flush=True))
"""


@pytest.fixture
def impatient(folder):
    """A server with 200 descriptors, and little patience where it is asked for."""
    running = []

    def begun(seconds):
        running.append(start(folder, sys.executable, "-c", IMPATIENT, "grid", str(seconds)))
        return started(running[-1])

    yield begun
    for server in running:
        server.process.kill()
        server.process.wait()


@pytest.fixture
def open_connection():
    with ExitStack() as opened:

        def connection(url):
            host, port = url.removeprefix("http://").split(":")
            return opened.enter_context(socket.create_connection((host, int(port)), timeout=60))

        yield connection


PATIENCE = 0.5
"""Seconds that an impatient server waits for a client."""


def in_time(client, waits):
    """Whether a client does what it should, which on a busy machine may itself be too slow to say so.

    Those that fail are tried again where they took so much longer than the server waits.
    """
    while True:
        begin = time.monotonic()
        with suppress(ConnectionError):
            if client():
                return True
        if time.monotonic() - begin < waits + PATIENCE:
            return False


def test_idle_clients_are_left(impatient, open_connection):
    """Clients that say nothing, half of their headers, half of their rows, or take no answer."""
    server = impatient(PATIENCE)
    silent = [open_connection(server.url) for _ in range(2)]
    silent[1].sendall(b"POST /predict HTTP/1.1\r\nHost: ")
    for connection in silent:
        assert connection.recv(100) == b""

    def half():
        with raw_request(server.url, 1000, b'{"rows": [') as connection:
            said = connection.makefile("rb").read()
            return said.startswith(b"HTTP/1.1 408") and b"more slowly than 16,384 bytes" in said

    def twice():  # a request that is answered gives time for another
        again = open_connection(server.url)
        for _ in range(2):
            again.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            said = b""
            while not said.endswith(b'"ok"}'):
                said += (came := again.recv(4096))
                if not came:
                    return False
        again.sendall(b"GET /he")
        return again.recv(100) == b""

    assert in_time(half, PATIENCE) and in_time(twice, 0.0)
    deaf = open_connection(server.url)
    asked = b"GET /info HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000_000
    with pytest.raises(ConnectionError):
        deaf.sendall(asked)
    assert server.log.read_text().count("\n") == 1


def connections_of(server):
    """The sockets of a process that are connections."""
    port = f":{int(server.url.rpartition(':')[2]):04X}"
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [line for line in lines if line[1].endswith(port) and line[3] == "01"]


def test_more_clients_than_descriptors(impatient, open_connection):
    server = impatient(60)
    crowd = [open_connection(server.url) for _ in range(230)]
    refused = [connection for connection in crowd if select.select([connection], [], [], 0.2)[0]]
    assert len(refused) > 100
    assert b" 503 " in refused[0].recv(4096)
    for connection in crowd:
        connection.close()
    while connections_of(server):
        time.sleep(0.05)
    assert httpx.get(f"{server.url}/health", timeout=60).status_code == 200
    assert server.log.read_text().count("\n") == 1


def test_unfinished_requests_are_bounded_together(impatient):
    server = impatient(60)
    body = b"[" + b" " * (2**20 - 2)
    waiting = [raw_request(server.url, 2**20, body) for _ in range(6)]
    answered, _, _ = select.select(waiting, [], [], 60)
    assert b" 503 " in answered[0].recv(4096)
    for connection in waiting:
        connection.close()
    answer = {"rows": [[0.0, 0.0]]}
    while httpx.post(f"{server.url}/predict", json=answer, timeout=60).status_code != 200:
        time.sleep(0.05)


def test_json_is_bounded(connect):
    body = json.dumps({"rows": [[0.5, 1, 2.5]] * 600_000}).encode()
    most = 2**23
    headers = {"content-type": "application/json"}
    with connect("grid") as client:
        said = detail(client.post("/predict", content=body, headers=headers), 413)
        assert f"expected at most {most:,} bytes" in said and "as Arrow" in said
        assert client.get("/info").json()["max_json_bytes"] == most
        table = pa.table({"x0": np.zeros(700_000), "x1": np.zeros(700_000)})
        assert "at most 100,000 rows" in detail(post_arrow(client, arrow(table)), 413)


def test_json_is_read_while_other_threads_go_on():
    from distgp.serve import rows

    ticks, ended, before = [], threading.Event(), sys.getswitchinterval()

    def tick():
        while not ended.wait(0.0001):
            ticks.append(None)

    body = bytearray(json.dumps({"rows": [{"a": 0.5}] * 200_000}).encode())
    other = threading.Thread(target=tick)
    other.start()
    sys.setswitchinterval(1e-4)
    try:
        with pytest.raises(rows.HTTPException, match="expected at most 10 rows"):
            rows.json_rows(body, distgp.data.encoding.Columns.of_numbers(["a"]), 10)
        seen = len(ticks)
    finally:
        sys.setswitchinterval(before)
        ended.set()
        other.join()
    assert seen > 5


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("attacker.example", 421),
        ("attacker.example:80", 421),
        ("localhost.attacker.example", 421),
        ("127.0.0.1.attacker.example:8000", 421),
        ("localhost:8000", 200),
        ("LOCALHOST", 200),
        ("127.0.0.1:9", 200),
        ("[::1]:8000", 200),
        ("192.0.2.7", 200),
        ("gp.example:8000", 200),
    ],
)
def test_the_server_answers_to_its_own_names_alone(named, host, status):
    for path in ("/info", "/health"):
        answer = httpx.get(f"{named.url}{path}", headers={"host": host}, timeout=60)
        assert answer.status_code == status, answer.text
    if status == 421:
        assert "--names" in answer.json()["detail"]


@pytest.fixture(scope="module")
def named(folder):
    server = start(folder, COMMAND, "serve", "--port", "0", "--names", "gp.example, b", "grid")
    yield started(server)
    server.process.kill()
    server.process.wait()
