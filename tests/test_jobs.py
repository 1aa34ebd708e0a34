"""The benchmark of whole jobs: tables that it makes, and what it writes of them."""

import jobs
import numpy as np
import pytest


@pytest.mark.parametrize(
    ("name", "rows", "columns", "numbers"),
    [
        ("40 texts and 33 numbers", 2_344, 73, 33 + 40 * 7),
        ("9 texts and 14 numbers", 12_321, 23, 14 + 9 * 4),
        ("26 numbers", 3_724, 26, 26),
    ],
)
def test_tables_have_the_shapes_that_they_are_named_after(name, rows, columns, numbers):
    make = dict(jobs.tasks(None))[name]
    X, y, X_test, y_test = make()
    assert len(X) + len(X_test) == len(y) + len(y_test) == rows and len(y_test) == rows // 10
    assert X.shape[1] == X_test.shape[1] == columns
    again, plain = make(), jobs.in_numbers((X, y, X_test, y_test))
    assert again[0].equals(X) and np.array_equal(again[3], y_test)
    assert plain[0].shape == (len(y), numbers) and plain[2].shape == (len(y_test), numbers)
    assert np.array_equal(plain[0][:, 0], X["x0"]) and np.array_equal(plain[3], y_test)


def test_arrays_stay_as_they_are_in_numbers():
    X = np.arange(12.0).reshape(6, 2)
    plain = jobs.in_numbers((X[:4], X[:4, 0], X[4:], X[4:, 0]))
    assert np.array_equal(plain[0], X[:4]) and np.array_equal(plain[2], X[4:])


def test_the_seconds_of_all_cores_stand_beside_those_of_the_wall(tmp_path, monkeypatch):
    def busy():
        np.linalg.eigvalsh(np.eye(300))
        yield {"model": "distgp", "seconds": 2.0}

    (row,) = jobs.with_cpu(busy())
    assert 0.0 < row["cpu_s"] < 60.0
    page = tmp_path / "page.md"
    page.write_text("<!-- jobs cpu -->\n<!-- end of jobs cpu -->", encoding="utf-8")
    monkeypatch.setattr(jobs, "PAGE", page)
    monkeypatch.setattr(jobs, "file_of", lambda device: tmp_path / f"{device}.csv")
    known = {"task": "a", "n": 10, "d": 2, "machine": "one", "chosen": "", "rmse": 1.0, "nlpd": 0.5}
    jobs.write_csv([known | row | {"cpu_s": 3.5}], tmp_path / "cpu.csv", "cpu")
    jobs.page()
    assert "| 2 | 3.5 | 1 | 0.5 |" in page.read_text(encoding="utf-8")
    before = {name: value for name, value in row.items() if name != "cpu_s"}
    jobs.write_csv([known | before], tmp_path / "cpu.csv", "cpu")  # a file from before
    jobs.page()
    assert "| 2 | – | 1 | 0.5 |" in page.read_text(encoding="utf-8")
