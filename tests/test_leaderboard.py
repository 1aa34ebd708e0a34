"""The leaderboard's tables are the published ones, whole or not at all; its runs go on where they ended."""

import gzip
import http.server
import io
import threading

import _measure
import numpy as np
import pytest
import uci
import uci_tables
from scipy.integrate import quad
from scipy.stats import norm

from experiments.download import DataError


@pytest.fixture
def published(tmp_path, monkeypatch):
    """A collection with one small table, on a server of its own, and an empty cache folder."""
    rng = np.random.default_rng(0)
    rows, splits = rng.normal(size=(40, 3)), rng.uniform(size=(40, 10)) < 0.1
    splits[0] = True
    folder = tmp_path / "web" / "yacht"
    folder.mkdir(parents=True)
    for name, values in (("data", rows), ("test_mask", splits.astype(float))):
        text = io.StringIO()
        np.savetxt(text, values, delimiter=",", fmt="%.18g")
        (folder / f"{name}.csv.gz").write_bytes(gzip.compress(text.getvalue().encode()))

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *given, **named):
            super().__init__(*given, directory=str(tmp_path / "web"), **named)

        def log_message(self, *given):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(uci_tables, "ADDRESS", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(uci_tables, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setitem(uci_tables.CHECKSUMS, "yacht", uci_tables.fingerprint(rows, splits))
    yield rows, splits, tmp_path / "cache" / "uci" / "yacht.npz"
    server.shutdown()
    server.server_close()


def test_a_table_is_downloaded_once_and_checked(published, monkeypatch):
    rows, splits, kept = published
    found = uci_tables.table_of("yacht", None)
    np.testing.assert_array_equal(found[0], rows)
    np.testing.assert_array_equal(found[1], splits)
    assert kept.is_file()
    monkeypatch.setattr(uci_tables, "ADDRESS", "http://127.0.0.1:9")  # nobody listens there
    np.testing.assert_array_equal(uci_tables.table_of("yacht", None)[0], rows)


def test_other_values_are_refused_and_not_kept(published, monkeypatch):
    *_, kept = published
    monkeypatch.setitem(uci_tables.CHECKSUMS, "yacht", "0" * 64)
    with pytest.raises(DataError, match="other values"):
        uci_tables.table_of("yacht", None)
    assert not kept.exists()


def test_what_cannot_be_had_is_said(published, tmp_path):
    with pytest.raises(DataError, match=r"energy/data\.csv\.gz could not be had"):
        uci_tables.table_of("energy", None)
    with pytest.raises(DataError, match="leave --data out"):
        uci_tables.table_of("yacht", tmp_path)


def test_targets_are_in_units_of_the_training_rows(published):
    rows, splits, _ = published
    X, y, X_test, y_test = uci_tables.split_of(None, "yacht", 3)
    test = splits[:, 3]
    np.testing.assert_array_equal(X_test, rows[test, :-1])
    assert len(X) == len(y) == (~test).sum()
    assert abs(y.mean()) < 1e-12
    assert abs(y.std() - 1) < 1e-12
    kept = rows[~test, -1]
    np.testing.assert_allclose(y_test, (rows[test, -1] - kept.mean()) / kept.std())


def test_runs_that_are_there_are_not_run_again(tmp_path):
    path, ran = tmp_path / "r.csv", []

    def run(value):
        ran.append(value)
        if value == 2:
            raise ValueError("no")
        return {"rmse": value}

    for _ in range(2):
        results = uci_tables.Results(path, "cpu")
        for value in (1, 2):
            results.add({"table": "yacht", "split": value}, lambda value=value: run(value))
    assert ran == [1, 2]
    rows = uci_tables.Results(path, "cpu").rows
    assert [row["rmse"] for row in rows] == ["1", ""]
    assert rows[1]["error"] == "ValueError: no"


def test_rows_say_which_commit_they_are_of_and_old_ones_say_none(tmp_path, monkeypatch):
    monkeypatch.setattr(_measure, "commit", lambda: "abc1234")
    old = {"table": "yacht", "rmse": "1", "distgp": "0.1.0", "torch": "2.0"}
    for name in ("uci.csv", "other.csv"):
        (tmp_path / name).write_text(",".join(old) + "\n" + ",".join(old.values()) + "\n")
    uci_tables.Results(tmp_path / "uci.csv", "cpu").add({"table": "pol"}, lambda: {"rmse": 2})
    known = _measure.read_csv(tmp_path / "other.csv")
    _measure.write_csv([*known, {"table": "pol", "rmse": 2}], tmp_path / "other.csv", "cpu")
    for name in ("uci.csv", "other.csv"):
        rows = _measure.read_csv(tmp_path / name)
        assert [row["commit"] for row in rows] == ["", "abc1234"]
        assert {key: rows[0][key] for key in old} == old


def test_a_processor_that_was_not_recorded_is_said():
    none, cpu = "processor not recorded", "AMD EPYC"
    machines = {
        none: [{}, {"device": "cpu"}, {"device": "cuda", "gpu": ""}],
        f"{none}, 2 threads": [{"device": "cpu, 2 threads"}, {"device": "", "threads": "2"}],
        f"{cpu}, 1 thread": [{"device": "cpu, 1 threads", "processor": cpu}],
        "NVIDIA H200": [{"device": "NVIDIA H200"}, {"device": "cuda", "gpu": "NVIDIA H200"}],
    }
    for said, rows in machines.items():
        assert {_measure.machine(row) for row in rows} == {said}
    rows = [{"distgp": "1", "device": "cpu"}, {"distgp": "2", "processor": cpu}]
    told = _measure.measured_with(rows, lambda row: f"row {row['distgp']}")
    assert told == f"Measured with distgp 1, {none}; row 2 with 2, {cpu}."


def test_crps_is_the_integral_of_the_squared_difference():
    y, mean, std = 0.7, -0.2, 1.3
    wanted = sum(
        quad(lambda t: (norm.cdf(t, mean, std) - (t >= y)) ** 2, *ends)[0]
        for ends in ((-np.inf, y), (y, np.inf))
    )
    assert abs(uci.crps(np.array([y]), np.array([mean]), np.array([std])) - wanted) < 1e-8


def row_of(table, model, rmse, split="0"):
    figures = {"rmse": rmse, "nlpd": rmse, "crps": rmse, "cover": "0.9", "fit": "1", "predict": "1"}
    return figures | {"table": table, "split": split, "model": model, "n": "1000", "d": "3"}


def test_a_table_is_one_group_of_lines_with_its_best_in_bold():
    rows = [row_of("yacht", "boosting", "2"), row_of("yacht", "default", "1")]
    _, _, first, second = uci.lines_of(rows)
    assert first == "| yacht | 1,000, 3 | default | **1** | **1.000** | **1** | 0.900 | 2.0 |"
    assert second == "|  |  | boosting | 2 | 2.000 | 2 | 0.900 | 2.0 |"
    assert len([*uci.lines_of([*rows, row_of("yacht", "default", "3", split="1")])]) == 4


def test_all_splits_of_a_table_have_a_mean_with_its_standard_error():
    rows = [row_of("yacht", "default", v, split=i) for i, v in (("0", "1"), ("1", "2"))]
    rows += [row_of("yacht", "boosting", v, split=i) for i, v in (("0", "4"), ("1", "6"))]
    rows += [row_of("yacht", "SVGP", "0"), row_of("pol", "default", "1")]  # on one split alone
    _, _, first, second = uci.means_of(rows)
    bold = "**1.5 ± 0.5** | **1.500 ± 0.500** | **1.5 ± 0.5**"
    assert first == f"| yacht | 2 | default | {bold} | 0.900 |"
    assert second == "|  |  | boosting | 5 ± 1 | 5.000 ± 1.000 | 5 ± 1 | 0.900 |"


def test_lowest_figures_are_counted():
    rows = [row_of("yacht", "boosting", "2"), row_of("yacht", "default", "1")]
    rows += [row_of("pol", "boosting", "-2"), row_of("pol", "default", "-1")]
    rows[-1]["crps"] = "-3"
    said = "Of 2 tables, distgp's default has the lowest RMSE on 1, the lowest NLPD on 1 and the"
    assert uci.wins(rows) == f"{said} lowest CRPS on 2."


def test_settings_of_svgp_are_the_best_on_rows_held_out(tmp_path):
    rows = [("yacht", 512, 0.1, 2.0), ("yacht", 1024, 0.01, 1.5), ("yacht", 1024, 0.1, 1.0)]
    rows += [("pol", 512, 0.1, 3.0), ("pol", 1024, 0.01, 2.0)]
    path = tmp_path / "settings.csv"
    path.write_text("table,m,rate,nlpd\n" + "".join(f"{t},{m},{r},{v}\n" for t, m, r, v in rows))
    assert uci.settings_of("yacht", path) == (1024, 0.1)
    assert uci.settings_of("bike", path) == uci.settings_of("pol", path) == (1024, 0.01)
    assert uci.settings_of("bike", tmp_path / "none.csv") == (1024, 0.01)
    (said,) = uci.tuned(uci.read_csv(path))
    both = "yacht 1.000 instead of 1.500 (m = 1,024, rate 0.1); pol 2.000 instead of 2.000"
    assert said == f"NLPD: {both} (m = 1,024, rate 0.01)."


def test_a_cpu_is_shown_beside_a_gpu():
    slow = [row_of("pol", "default", "2") | {"way": uci.WAY}, row_of("pol", "boosting", "0")]
    fast = [row_of("pol", "default", "1"), row_of("pol", "default", "0", split="1")]
    _, _, *lines = uci.beside(slow, fast)
    assert lines == ["| pol | one exact GP | 2 | 2.000 | 1.000 | 0.900 | 2.0 |"]
