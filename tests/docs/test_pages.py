"""Every code block of the documentation runs, tutorials show what they print, notebooks are their pages."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import pages  # noqa: E402

RAY = ("docs/engines", "docs/tutorials/larger-than-memory", "docs/tutorials/ray-cluster")
PAGES = [
    path
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if any(pages.blocks(path.read_text()))
]
TUTORIALS = [path for path in PAGES if path.parent == pages.TUTORIALS]
FEWER = {
    "README": {"1_000": "150"},
    "docs/index": {"1_000": "150"},
    "docs/start": {"1_000": "150"},
    "docs/experts": {"300": "120"},
    "docs/tutorials/from-scikit-learn": {"rows = 300": "rows = 120"},
    "docs/tutorials/gpu": {"rows = 500": "rows = 150", "[300, 500]": "[200, 210]", ":300": ":150"},
}
"""Numbers of rows of pages that would take long, and those that they are run with here."""


def named(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


def test_pages_are_found():
    assert len(TUTORIALS) == 11 and len(PAGES) > 25


def test_tutorials_need_no_clone():
    """The folders of a clone are not there for those who have installed the library."""
    for path in TUTORIALS:
        code = "".join(block.code for block in pages.blocks(path.read_text()))
        assert not re.search(r"(?:from|import) (?:experiments|benchmarks|tests)", code), path


def test_nothing_is_left_out_silently():
    """Every fence is a block that is run, or has a reason, or is no code."""
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        text = path.read_text()
        assert set(re.findall(r"^ *```(\w+)", text, re.MULTILINE)) <= {"python", "sh", "text"}
        assert len(re.findall(r"^```(?:python|sh)$", text, re.MULTILINE)) == sum(
            block.shown for block in pages.blocks(text)
        )


def test_the_home_page_has_the_first_example_of_the_readme():
    """Code and output are the same, letter by letter."""
    (first, *_), (own,) = (
        re.findall(
            r"^```python\n.*?^```\n\n```text\n.*?^```$", path.read_text(), re.DOTALL | re.MULTILINE
        )
        for path in (ROOT / "README.md", ROOT / "docs" / "index.md")
    )
    assert own == first


def pages_to_run():
    for path in PAGES:  # test_api_pages.py runs those of the API
        if named(path) not in RAY and path.parent.name != "api":
            slow = [pytest.mark.slow] if named(path) == "docs/command-line" else []
            yield pytest.param(path, id=named(path), marks=slow)


@pytest.mark.parametrize("path", list(pages_to_run()))
def test_blocks_run(path):
    text = path.read_text()
    fewer = FEWER.get(named(path), {})
    assert all(shown in text for shown in fewer), "the page has other numbers now"
    printed = pages.check(path, fewer)
    if path in TUTORIALS:
        run = [block for block in pages.blocks(text) if block.reason is None]
        for block, said in zip(run, printed, strict=True):
            shown = "\n```text\n" in text[block.start : block.end]
            if said and "Warning: " not in said:  # of few rows more warnings may be told
                assert shown, f"line {block.line} prints, and the page does not show it"


@pytest.mark.slow
@pytest.mark.parametrize("name", RAY)
def test_blocks_run_on_a_cluster(name):
    """A cluster and its variables belong to one process."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'distgp[ray]'")
    command = [sys.executable, "docs/pages.py", "--small", f"{name}.md"]
    alone = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", TUTORIALS, ids=named)
def test_pictures_and_notebooks_are_there(path):
    text = path.read_text()
    for picture in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", text):
        assert (path.parent / picture).read_bytes()[:4] == b"\x89PNG"
    assert "](" + path.stem + "-1.png" in text
    written = (pages.NOTEBOOKS / f"{path.stem}.ipynb").read_text()
    assert written == pages.notebook(text), "`make tutorials` writes them anew"


@pytest.mark.slow
def test_a_notebook_runs_in_jupyter():
    """The others have the same cells as their pages, whose blocks are run above."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    path = pages.TUTORIALS / "uncertainty.md"
    made = nbformat.reads(pages.notebook(path.read_text()), as_version=4)
    nbformat.validate(made)
    for cell in made.cells:
        if cell.cell_type == "code":
            cell.source = pages.smaller(path.read_text(), cell.source)
    nbclient.NotebookClient(made, timeout=120).execute()
    drawn = [
        o for c in made.cells for o in c.get("outputs", ()) if "image/png" in o.get("data", {})
    ]
    assert len(drawn) == 2


def test_a_block_that_fails_is_told_with_its_line(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\n\n```python\nassert x == 1\n1 / 0\n```\n")
    with pytest.raises(ZeroDivisionError) as caught:
        pages.check(page)
    assert caught.traceback[-1].lineno == 8  # counted from 0
    page.write_text("```sh\necho before; false\n```\n")
    with pytest.raises(RuntimeError, match=r"exit code 1 of[^$]*which printed\nbefore"):
        pages.check(page)


def block(kind: str, code: str) -> str:
    return f"```{kind}\n{code}\n```\n\n"


def test_a_tutorial_is_rewritten(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "NOTEBOOKS", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- small: n = 1 -->\n<!-- run\nimport warnings\n-->\n\n"
        + block("python", "n = 2\nprint(n)")
        + block("text", "old")
        + "Text \\(x\\) of [that](other.md).\n\n"
        + block("python", "n + 1")
        + block("text", "old")
        + block("python", 'warnings.warn("careful")')
        + block("sh", "echo hello")
        + "The end.\n"
    )
    assert pages.check(page) == ["", "1\n", "", "UserWarning: careful\n", "hello\n"]
    pages.rewrite(page)
    text = page.read_text()
    assert block("python", "n = 2\nprint(n)") + block("text", "2") + "Text" in text
    assert block("python", "n + 1") + block("python", 'warnings.warn("careful")') in text
    assert block("sh", "echo hello") + block("text", "hello") + "The end.\n" in text
    assert block("text", "UserWarning: careful") in text and "old" not in text
    cells = json.loads((tmp_path / "page.ipynb").read_text())["cells"]
    kinds = "".join(cell["cell_type"][0] for cell in cells)
    assert kinds == "ccmcccm" and cells[5]["source"][0] == "%%bash\n"
    assert "".join(cells[2]["source"]) == "Text $x$ of [that](other.ipynb)."
    pages.rewrite(page)
    assert page.read_text() == text
