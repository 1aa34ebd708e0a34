"""Slow, idle, rude and many clients of a server: each is answered or left, and others are served."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hostile.test_underneath import CHANGES
from hostile.trial import count, data, times, tiny

import distgp

pytest.importorskip("fastapi", reason="serving needs FastAPI: pip install 'distgp[serve]'")

SERVER = """
import sys
from distgp import serve
from distgp.serve import connections, rows
connections.HEADERS = rows.PATIENCE = 1.0
log = lambda line: print(line, file=sys.stderr, flush=True)
serve.serve(sys.argv[1], port=0, max_bytes=2**20, ready=lambda url: print(url, flush=True), log=log,
            allow=sys.argv[2:])
"""
POINTS = data(3, seed=5)[0]
BODY = json.dumps({"rows": POINTS.tolist()}).encode()


class Server:
    """A server of a model in a process of its own, with little patience."""

    def __init__(self, folder, *allow):
        (folder / "m").mkdir()
        self.path, self.other = folder / "m" / "model.safetensors", folder / "other.safetensors"
        gp = tiny().fit(*data())
        gp.save(self.path)
        tiny().fit(data()[0], -data()[1]).save(self.other)
        self.expected, self.log = gp.predict(POINTS), folder / "log"
        command = [sys.executable, "-c", SERVER, str(self.path), *allow]
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self.port = int(re.search(r":(\d+)$", self.process.stdout.readline().strip())[1])

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ended(self, connection):
        """What the server says until it closes the connection: a client that waits longer fails."""
        said = b""
        try:
            while came := connection.recv(2**16):
                said += came
        except ConnectionError:
            pass
        return said

    def serves(self):
        """Fail unless a good client gets the right answer."""
        with self.connect() as good:
            good.sendall(request(BODY, close=True))
            said = self.ended(good)
        status, _, body = said.partition(b"\r\n\r\n")
        assert b" 200 " in status, said[:500]
        np.testing.assert_allclose(json.loads(body)["mean"], self.expected, rtol=1e-9)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    made = Server(tmp_path_factory.mktemp("server"))
    yield made
    made.process.kill()
    made.process.communicate()


def request(body, length=None, close=False, more=b"", target=b"/predict"):
    head = (
        b"POST "
        + target
        + b" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        + more
    )
    head += b"Connection: close\r\n" if close else b""
    return head + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def trickled(connection, content, rng):
    """Send bytes one by one, until the server has had enough."""
    for i in range(len(content)):
        connection.sendall(content[i : i + 1])
        time.sleep(0.002)


def silent(server, connection, rng):
    pass


def part_of_headers(server, connection, rng):
    whole = request(BODY)
    connection.sendall(whole[: int(rng.integers(1, whole.index(b"\r\n\r\n")))])


def part_of_a_body(server, connection, rng):
    connection.sendall(request(BODY[: int(rng.integers(len(BODY)))], len(BODY)))


def byte_by_byte(server, connection, rng):
    trickled(connection, request(BODY, close=True), rng)


def half_byte_by_byte(server, connection, rng):
    whole = request(BODY)
    trickled(connection, whole[: int(rng.integers(1, len(whole)))], rng)


def more_than_it_says(server, connection, rng):
    connection.sendall(request(BODY + rng.bytes(100), len(BODY)))


def no_length(server, connection, rng):
    connection.sendall(
        b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab"
    )


def bytes_of_any_kind(server, connection, rng):
    connection.sendall(rng.bytes(int(rng.integers(1, 3000))))


def very_long_headers(server, connection, rng):
    connection.sendall(request(BODY, more=b"X-A: " + b"a" * int(rng.integers(1e4, 3e5)) + b"\r\n"))


def a_large_length(server, connection, rng):
    connection.sendall(request(BODY, int(rng.choice([2**21, 2**40, 2**62]))))


def many_at_once(server, connection, rng):
    connection.sendall(request(BODY) * int(rng.integers(2, 20)))


def leaves_in_the_middle(server, connection, rng):
    connection.sendall(request(BODY)[: int(rng.integers(1, 300))])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


def asks_and_does_not_listen(server, connection, rng):
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
    connection.sendall(request(BODY) * 5)
    connection.shutdown(socket.SHUT_WR)


def odd_targets(server, connection, rng):
    word = rng.choice(
        [
            b"/predict?interval=2",
            b"/predict?latent=x",
            b"/" + b"a" * 5000,
            b"*",
            b"//",
            b"/%00",
            b"/predict?quantiles=0.1,2",
            b"/predict?quantiles=0.1," + b"0.2," * 900,
            b"/predict?quantiles=%00",
            b"/predict?quantiles=0.1,0.9&interval=0.5&unknown=new",
            b"/observe",
            b"/reload",
            b"/openapi.json",
            b"/predict?unknown=x",
        ]
    )
    connection.sendall(request(BODY, close=True, target=word))


RUDE = (silent, part_of_headers, part_of_a_body, byte_by_byte, half_byte_by_byte, more_than_it_says,
        no_length,
        bytes_of_any_kind, very_long_headers, a_large_length, many_at_once, leaves_in_the_middle,
        asks_and_does_not_listen, odd_targets)  # fmt: skip


def rude(server, seed):
    """One client: what it does, and what the server says to it until it closes the connection."""
    rng = np.random.default_rng(seed)
    does = RUDE[seed % len(RUDE)]
    with server.connect() as connection:
        try:
            does(server, connection, rng)
            said = b"" if connection.fileno() < 0 else server.ended(connection)
        except ConnectionError:
            said = b""
    assert not said or said.startswith(b"HTTP/1.1 "), (does.__name__, said[:300])
    assert b" 500 " not in said[:40] and b"Traceback" not in said, (does.__name__, said[:300])
    ended = "a result" if b" 200 " in said[:20] else "a clear error"
    return f"held: {ended}"


def test_rude_clients_are_left_and_others_served(server):
    with ThreadPoolExecutor(48) as pool:
        for start in range(0, times(96, 3000), 96):
            waiting = [pool.submit(rude, server, start + i) for i in range(96)]
            server.serves()
            for one in waiting:
                count("rude clients", one.result())
            server.serves()
    assert server.process.poll() is None
    descriptors = f"/proc/{server.process.pid}/fd"
    if os.path.isdir(descriptors):
        assert len(os.listdir(descriptors)) < 60, "connections are left open"
    assert "Traceback" not in server.log.read_text(), server.log.read_text()[-3000:]


def test_a_server_does_not_depend_on_its_file(server):
    for change in CHANGES:
        server.path.parent.mkdir(exist_ok=True)
        if server.path.is_symlink() or server.path.is_file():
            server.path.unlink()
        elif server.path.is_dir():
            server.path.rmdir()
        Path(server.path).write_bytes(server.other.read_bytes())
        change(server.path, server.other)
        for _ in range(times(1, 20)):
            server.serves()
            count("changed underneath", "held: a result")
    assert distgp is not None


def observation(rng, target):
    """A request with rows to learn from, and whether they are right."""
    rows = [{"x0": float(a), "x1": float(b), target: float(a)} for a, b in rng.normal(size=(3, 2))]
    wrong = [None, "much", 1e300, [1.0], {"a": 1}, True, -1e36, "NaN"]
    fine = rng.random() < 0.5
    if not fine:
        row, name = rows[int(rng.integers(3))], str(rng.choice([*rows[0]]))
        row[name] = wrong[int(rng.integers(len(wrong)))]
        if rng.random() < 0.2:
            del row[name]
    return json.dumps({"rows": rows if fine or rng.random() < 0.9 else rows[0]}).encode(), fine


def answered(server, content):
    """The status and the content of the answer to a request."""
    with server.connect() as connection:
        connection.sendall(content)
        head, _, body = server.ended(connection).partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), json.loads(body)


def test_clients_that_change_the_model(tmp_path):
    """Right rows are learnt, others change nothing, and a file that cannot be read is not taken."""
    server, rng = Server(tmp_path, "observe", "reload"), np.random.default_rng(3)
    try:
        good, damaged = server.path.read_bytes(), server.path.read_bytes()[:-9]
        about = b"GET /info HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        told = answered(server, about)[1]
        rows, (target,), own = told["rows"], told["targets"], told["rows"]
        with ThreadPoolExecutor(8) as pool:
            others = [pool.submit(rude, server, seed) for seed in range(times(14, 140))]
            for _ in range(times(30, 400)):
                if rng.random() < 0.2:
                    fine = rng.random() < 0.5
                    server.path.write_bytes(good if fine else damaged)
                    content, expected = request(b"", close=True, target=b"/reload"), own
                else:
                    body, fine = observation(rng, target)
                    content = request(body, close=True, target=b"/observe")
                    expected = rows + 3
                status, said = answered(server, content)
                assert status == 200 or (not fine and 400 <= status < 504), (status, said, content)
                rows = expected if status == 200 else rows
                known = answered(server, about)[1]
                assert known["rows"] == rows, (said, content)
                count("rude clients", f"held: a {'result' if status == 200 else 'clear error'}")
            for one in others:
                count("rude clients", one.result())
        server.path.write_bytes(good)
        assert answered(server, request(b"", close=True, target=b"/reload"))[0] == 200
        server.serves()
        log = server.log.read_text()
        assert "Traceback" not in log, log[-3000:]
        assert all(line.isprintable() and len(line) < 500 for line in log.splitlines())
    finally:
        server.process.kill()
        server.process.communicate()
