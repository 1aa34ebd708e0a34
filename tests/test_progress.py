"""Progress without a terminal: plain lines, few of them, and always one at the end."""

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from distgp import DistributedGPRegressor, SparseGridGP, load
from distgp._util import progress
from distgp._util.progress import Progress


def test_where_there_is_no_terminal_the_end_is_told_in_one_line(capsys):
    with Progress("training", total=3) as counter:
        for i in range(3):
            counter.advance(text=f"objective {i}")
    assert capsys.readouterr().err == "training: 3 of 3: objective 2\n"


def test_work_that_ends_early_is_told_too(capsys):
    with Progress("training", total=100) as counter:
        counter.advance(text="objective 1.5")
    with Progress("rows") as counter:
        counter.advance(1_500)
    assert capsys.readouterr().err == "training: 1 of 100: objective 1.5\nrows: 1,500\n"


def test_there_is_a_line_every_few_seconds(capsys, monkeypatch):
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    with Progress("rows") as counter:
        for _ in range(2):
            counter.advance()
    assert capsys.readouterr().err == "rows: 1\nrows: 2\n"


def test_nothing_is_said_of_nothing_of_a_failure_or_where_it_is_not_asked_for(capsys):
    with Progress("rows"):
        pass
    with Progress("rows", show=False) as counter:
        counter.advance()
    with pytest.raises(ValueError, match="invalid literal"), Progress("rows") as counter:
        [counter.advance(int(text)) for text in ("1", "three")]
    assert capsys.readouterr().err == ""


def test_a_verbose_fit_writes_plain_lines(capsys):
    X = [[0.0], [0.3], [0.7], [1.0], [1.5], [2.0]]
    DistributedGPRegressor(verbose=True).fit(X, [0.0, 0.3, 0.6, 0.8, 1.0, 0.9])
    said = capsys.readouterr().err
    assert "training by joint (FACT): " in said and " of at most 100: objective" in said
    assert "\x1b" not in said


def slow_lines(monkeypatch, capsys):
    """Have all work be told as if it took long; return what was said."""
    monkeypatch.setattr(progress, "FIRST_SECONDS", 0.0)
    waited = Progress._tell_soon

    def told(self):
        waited(self)
        if self._timer is not None:
            self._timer.join()  # as long work would wait

    monkeypatch.setattr(Progress, "_tell_soon", told)
    return lambda: capsys.readouterr().err.splitlines()


def test_work_is_told_before_its_first_step_is_over(capsys, monkeypatch):
    said = slow_lines(monkeypatch, capsys)
    with Progress("training", 100, at_most=True) as counter:
        assert said() == ["training: 0 of at most 100"]
        counter.advance(text="objective 3")
    assert said() == ["training: 1 of at most 100: objective 3"]


def test_what_is_done_inside_is_told_beside_what_is_shown(capsys, monkeypatch):
    said = slow_lines(monkeypatch, capsys)
    progress.doing("nothing is shown")
    with Progress("fitting 3 rows") as outer, Progress("a trial", show=False):
        for _ in range(2):
            progress.doing("conditioning")
        outer.begin("trying 2 of 3: nearest rows")
    assert said() == [
        "fitting 3 rows",
        "fitting 3 rows: conditioning",
        "trying 2 of 3: nearest rows",
    ]


@pytest.mark.parametrize(("threads", "last"), [(1, "trying 5 of 5: "), (2, "trying 1 to 5 of 5: ")])
def test_every_part_of_a_fit_is_told(capsys, monkeypatch, threads, last):
    monkeypatch.setattr("distgp.selection.at_once_on", lambda plan, rows: threads)
    said = slow_lines(monkeypatch, capsys)
    X = np.random.default_rng(0).uniform(size=(220, 2))
    gp = DistributedGPRegressor(n_iter=2, kernel="auto", verbose=True).fit(X, np.sin(6 * X[:, 0]))
    lines = said()
    assert lines[0] == "fitting 220 rows" and "measuring baselines" in lines
    tried = list(dict.fromkeys(line for line in lines if line.startswith("trying")))
    names = [trial.name for trial in gp.choice_.trials if not trial.baseline]
    assert {name for line in tried for name in line.split(": ")[1].split("; ")} == set(names)
    assert tried[0].startswith("trying 1 ") and tried[-1].startswith(last)
    for part in ("looking for hyperparameters to start from", "training by joint (FACT)"):
        assert any(line.startswith(last) and part in line for line in tried) == (threads == 1)
    after = lines[lines.index(tried[-1]) + 1 :]
    parts = [
        "training by joint (FACT): 0 of at most 2",
        "fitting 220 rows: conditioning on all rows",
    ]
    places = [after.index(part) for part in parts]
    assert places == sorted(places)


def test_the_first_variance_of_a_loaded_model_is_told(capsys, monkeypatch, tmp_path):
    said = slow_lines(monkeypatch, capsys)
    monkeypatch.setattr("distgp.experts.exact.ROWS_WITH_FACTOR", 10)
    X = np.random.default_rng(0).uniform(size=(40, 2))
    gp = DistributedGPRegressor(n_iter=1, n_experts=1, verbose=True).fit(X, X[:, 0])
    gp.save(tmp_path / "gp.safetensors")
    monkeypatch.setattr("distgp.mixin.FEW_ROWS", 0)  # so that loading asks for no variance
    loaded = load(tmp_path / "gp.safetensors")
    said()
    loaded.predict(X)
    assert not loaded.verbose and said() == []
    loaded.set_params(verbose=True).predict(X, return_std=True)
    assert said() == [
        "predicting 40 rows",
        "predicting 40 rows: factorising the kernel matrix of 40 rows, once",
    ]


ON_A_TERMINAL = """
import os, pty, sys
leader, follower = pty.openpty()
os.dup2(follower, 2)
os.environ |= {"TERM": "xterm", "COLUMNS": "100"}
from distgp._util import progress
from distgp._util.progress import Progress, doing
import threading, time

progress.FIRST_SECONDS = 0.0
with Progress("fitting 3 rows") as outer:
    doing("conditioning")
    with Progress("training", 2, at_most=True) as inner:
        inner.advance(text="objective 1")
        inner._bar.refresh()

        def other():
            with Progress("in another thread") as progress:
                progress.advance()

        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    outer.begin("trying 2 of 3: nearest rows")
    outer._bar.refresh()
os.write(follower, b"END")
text = b""
while b"END" not in text:
    text += os.read(leader, 10_000)
sys.stdout.write(text.decode())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals here")
def test_there_is_one_bar_on_a_terminal_and_none_at_the_end():
    done = subprocess.run([sys.executable, "-c", ON_A_TERMINAL], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
    for part in ("conditioning", "1 of at most 2", "objective 1", "trying 2 of 3: nearest rows"):
        assert part in done.stdout
    assert "another thread" not in done.stdout
    frames = done.stdout.split("\x1b[2K")  # a line is cleared before another is written
    assert not [frame for frame in frames if "fitting" in frame and "training" in frame]
    assert done.stdout.endswith("\x1b[2KEND")


FITTED_ON_A_TERMINAL = """
import json, os, pty, sys
import numpy as np
leader, follower = pty.openpty()
os.dup2(follower, 2)
os.environ |= {"TERM": "xterm", "COLUMNS": "100"}
from distgp import DistributedGPRegressor, SparseGridGP
from distgp._util import progress

seconds, options = json.loads(sys.argv[1])
progress.FIRST_SECONDS = seconds
X = np.random.default_rng(0).uniform(size=(220, 2))
for kind in (DistributedGPRegressor, SparseGridGP):
    kind(n_iter=2, **options).fit(X, np.sin(6 * X[:, 0])).predict(X)
os.write(follower, b"END")
text = b""
while b"END" not in text:
    text += os.read(leader, 10_000)
sys.stdout.write(text.decode())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals here")
@pytest.mark.parametrize(
    ("seconds", "options", "fitting", "choice"),
    [
        (0.0, {}, 2, False),
        (0.0, {"verbose": True}, 2, True),
        (0.0, {"verbose": False}, 0, False),
        (1e3, {}, 0, False),
    ],
    ids=str,
)
def test_progress_shows_by_itself_on_a_terminal(seconds, options, fitting, choice):
    """Of work that is over soon nothing is written at all; the table of trials is not progress."""
    command = [sys.executable, "-W", "ignore", "-c", FITTED_ON_A_TERMINAL]
    done = subprocess.run(
        [*command, json.dumps([seconds, options])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert sum(f"{kind} 220 rows" in done.stdout for kind in ("fitting", "predicting")) <= fitting
    assert ("fitting 220 rows" in done.stdout) is bool(fitting)
    assert ("candidate" in done.stdout) is choice
    assert done.stdout.endswith("END") and (fitting or done.stdout == "END")


def test_by_itself_nothing_goes_into_files_and_pipes(capsys, monkeypatch):
    said = slow_lines(monkeypatch, capsys)
    X = np.random.default_rng(0).uniform(size=(220, 2))
    for kind in (DistributedGPRegressor, SparseGridGP):
        kind(n_iter=2).fit(X, np.sin(6 * X[:, 0])).predict(X)
    assert said() == []


@pytest.mark.parametrize(
    ("stderr", "shown"),
    [
        (SimpleNamespace(isatty=lambda: True), True),
        (SimpleNamespace(isatty=lambda: False), False),
        (SimpleNamespace(), False),
        (None, False),
    ],
)
def test_what_auto_means_depends_on_standard_error(monkeypatch, stderr, shown):
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", stderr)
        assert progress.is_shown("auto") is shown
        patch.setattr("multiprocessing.parent_process", lambda: "another")
        assert not progress.is_shown("auto")
    assert progress.is_shown(True) and not progress.is_shown(False)
    with pytest.raises(ValueError, match="verbose must be one of 'auto', True, False"):
        DistributedGPRegressor(verbose="yes").fit([[0.0], [1.0]], [0.0, 1.0])


BEGUN_LATER = """
import os, pty, sys, time
leader, follower = pty.openpty()
os.dup2(follower, 2)
os.environ |= {"TERM": "xterm", "COLUMNS": "100"}
from distgp._util import progress

progress.FIRST_SECONDS = 0.3
with progress.Progress("fitting") as outer:
    print(outer._bar.live.is_started)
    for _ in range(300):
        if outer._bar.live.is_started:
            break
        time.sleep(0.1)
    print(outer._bar.live.is_started)
    with progress.Progress("training") as inner:
        print(inner._bar.live.is_started, outer._bar.live.is_started)
    print(inner._bar.live.is_started, outer._bar.live.is_started)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such terminals here")
def test_a_bar_begins_when_all_the_work_has_taken_a_while():
    """What is printed beside it goes where it would go without."""
    done = subprocess.run([sys.executable, "-c", BEGUN_LATER], capture_output=True, text=True)
    assert done.stdout.split() == ["False", "True", "True", "False", "False", "True"], done.stderr
