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


def test_the_seconds_of_all_cores_stand_beside_those_of_the_wall():
    def busy():
        np.linalg.eigvalsh(np.eye(300))
        yield {"model": "distgp", "seconds": 2.0}

    (row,) = jobs.with_cpu(busy())
    assert 0.0 < row["cpu_s"] < 60.0


def row_of(task, model, **given):
    known = {"n": "10", "d": "2", "chosen": "", "note": "", "machine": "one", "distgp": "2"}
    figures = {"seconds": "2.0", "cpu_s": "3.0", "rmse": "1.0", "nlpd": "0.5", "cover": "0.9"}
    return known | figures | {"task": task, "model": model} | given


def test_a_task_is_one_group_of_lines():
    rows = [row_of("a", "distgp", chosen="exact GP"), row_of("a", "gradient boosting", cover="")]
    *_, first, second, third = jobs.lines_of([*rows, row_of("b", "distgp", note="slow")])
    assert first == "| a (10×2) | distgp (exact GP) | 2 | 3 | 1 | 0.5 | 0.9 |"
    assert second == "|  | boosting | 2 | 3 | 1 | 0.5 | – |"
    assert third == "| b (10×2) | distgp (slow) | 2 | 3 | 1 | 0.5 | 0.9 |"


def test_what_all_lines_of_a_model_share_is_said_once_above():
    rows = [row_of(task, "distgp") for task in "ab"]
    rows += [row_of(task, "SVGP", note="not tuned", distgp="1") for task in "ab"]
    said, *lines = jobs.lines_of(rows)
    assert said == "Measured with distgp 2, one; SVGP with 1, one. SVGP: not tuned."
    assert not any("not tuned" in line or "one" in line for line in lines)


def test_pages_show_figures_that_were_measured(tmp_path, monkeypatch):
    """Boosting uses no GPU and stands in the table of the CPU alone."""
    page = tmp_path / "page.md"
    marks = "".join(f"<!-- jobs {d} -->\n<!-- end of jobs {d} -->\n" for d in ("cpu", "cuda"))
    page.write_text(marks, encoding="utf-8")
    monkeypatch.setattr(jobs, "PAGE", page)
    monkeypatch.setattr(jobs, "file_of", lambda device: tmp_path / f"{device}.csv")
    rows = [row_of("a", "distgp"), row_of("a", "gradient boosting")]
    for device in ("cpu", "cuda"):
        jobs.write_csv(rows, tmp_path / f"{device}.csv", device)
    jobs.page()
    cpu, cuda = page.read_text(encoding="utf-8").split("<!-- end of jobs cpu -->")
    assert "| boosting | 2 | 3 | 1 |" in cpu and "boosting" not in cuda and "| distgp | 2 |" in cuda
