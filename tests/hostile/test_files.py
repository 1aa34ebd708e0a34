"""Writing: whole or not at all, over nothing but files, with the mode that they had."""

import os
import stat
import subprocess
import sys
import threading

import pytest
from hostile.trial import data, tiny

import distgp
from distgp.files.writing import check_writable, whole


@pytest.fixture(scope="module")
def model():
    return tiny().fit(*data())


def test_pipes_devices_and_folders_are_not_replaced(model, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    for name in ("pipe", "link", "folder"):
        with pytest.raises(OSError, match="expected the name of a file to write"):
            model.save(tmp_path / name)
    assert stat.S_ISFIFO(os.stat(tmp_path / "pipe").st_mode)
    with pytest.raises(OSError, match="a device, a pipe or a socket"):
        check_writable(os.devnull)
    assert not [*tmp_path.glob(".*.part")]


def test_a_link_stays_one_and_its_file_is_replaced(model, tmp_path):
    (tmp_path / "there").mkdir()
    target, link = tmp_path / "there" / "real.safetensors", tmp_path / "link.safetensors"
    target.write_text("old")
    link.symlink_to(target)
    model.save(link)
    assert link.is_symlink() and target.stat().st_size > 1000
    assert not [*tmp_path.rglob(".*.part")]


def test_a_file_keeps_its_mode_and_a_new_model_is_private(model, tmp_path):
    new, old = tmp_path / "new.safetensors", tmp_path / "old.safetensors"
    model.save(new)
    assert stat.S_IMODE(new.stat().st_mode) == 0o600
    for mode in (0o600, 0o640, 0o444):
        old.touch()
        old.chmod(mode)
        model.save(old)
        assert stat.S_IMODE(old.stat().st_mode) == mode


def test_the_umask_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("it is shared by all threads"))

    def write(i):
        with whole(tmp_path / f"{i}.txt") as part:
            part.write_text("x")

    threads = [threading.Thread(target=write, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([*tmp_path.iterdir()]) == 8


def test_what_fails_in_between_leaves_what_was_there(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("old")

    def fail(error):
        with whole(path) as part:
            part.write_text("half")
            raise error

    for error in (ValueError, KeyboardInterrupt, SystemExit):
        with pytest.raises(error):
            fail(error)
        assert path.read_text() == "old" and [*tmp_path.iterdir()] == [path]


KILLED = """
import sys
import numpy as np, distgp
X = np.random.default_rng(0).normal(size=(300_000, 20))
gp = distgp.DistributedGPRegressor("nearest", 1, training=None, n_inducing=0).fit(X, X[:, 0])
print("fitted", flush=True)
while True:
    gp.save(sys.argv[1])
"""


def test_what_a_killed_save_has_left_is_removed_by_the_next(model, tmp_path):
    """Rows must not stay behind, under whatever name the library that writes them gave to them."""
    path = tmp_path / "m.safetensors"
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE
    ) as saving:
        assert saving.stdout.readline() == b"fitted\n"
        while not [file for file in tmp_path.rglob("*") if file != path and size(file) > 1_000_000]:
            assert saving.poll() is None
        saving.kill()
    left = [file for file in tmp_path.iterdir() if file != path]
    assert len(left) == 1 and stat.S_IMODE(left[0].stat().st_mode) == 0o700
    with whole(path) as part:  # who still writes keeps what there is
        model.save(path)
        part.write_bytes(path.read_bytes())
    assert [*tmp_path.iterdir()] == [path] and distgp.load(path).n_experts_ == model.n_experts_


def size(file):
    """The bytes of a file that may go at any moment; 0 for folders."""
    try:
        return file.stat().st_size if file.is_file() else 0
    except FileNotFoundError:
        return 0


def test_no_room_on_the_disk_is_told_as_such(model, tmp_path, monkeypatch):
    from safetensors import SafetensorError

    def full(*arguments):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("distgp.files.model_file.save_file", full)
    with pytest.raises(OSError, match=r"cannot write .*No space left .* is the disk full"):
        model.save(tmp_path / "m.safetensors")
    assert not [*tmp_path.iterdir()]
