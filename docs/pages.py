"""Run the code of documentation pages; for tutorials, write what it printed and drew into the page.

    python docs/pages.py docs/tutorials/*.md        runs each page in a process of its own, rewrites it,
                                                    its pictures, and its notebook in examples/
    python docs/pages.py --notebooks docs/tutorials/*.md    writes the notebooks alone
    python docs/pages.py --small docs/using.md      runs it with few rows and changes nothing

All blocks of a page are run from top to bottom in one namespace and one empty folder: blocks of `python`
here, blocks of `sh` by bash. What a block prints follows it as a block of `text`, and figures that it
leaves open become PAGE-1.png, PAGE-2.png, … beside the page. Three comments are for this program:

    <!-- small: rows = 500 -->     with --small, the line that begins with `rows = ` becomes this
    <!-- run … -->                 code that readers need not see
    <!-- not run: why -->          the next block is not run
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import matplotlib
import torch

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
NOTEBOOKS = ROOT / "examples"
BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>.+?) -->\n+)?```(?P<kind>python|sh)\n(?P<code>.*?)^```\n"
    r"(?P<printed>\n```text\n.*?^```\n)?|^<!-- run\n(?P<hidden>.*?)^-->\n",
    re.DOTALL | re.MULTILINE,
)
SMALL = re.compile(r"<!-- small: (.*?) -->")
WIDTH = 100


@dataclass(frozen=True)
class Block:
    """A piece of code in a page.

    Parameters
    ----------
    kind : {"python", "sh"}
        The language.
    code : str
        The code.
    reason : str or None
        Why it is not run, if it is not.
    line : int
        The line of the page that it begins on.
    start, end : int
        Where block and output stand in the page.
    shown : bool
        Whether readers see it.
    """

    kind: str
    code: str
    reason: str | None
    line: int
    start: int
    end: int
    shown: bool


def blocks(text: str) -> Iterator[Block]:
    """All pieces of code of a page, in their order."""
    for found in BLOCK.finditer(text):
        shown = found["kind"] is not None
        code = found["code"] if shown else found["hidden"]
        start, end = found.start("code" if shown else "hidden"), found.end()
        line = text.count("\n", 0, start) + 1
        yield Block(found["kind"] or "python", code, found["reason"], line, start, end, shown)


def smaller(text: str, code: str) -> str:
    """The code with the numbers that the page gives for a quick run."""
    given = SMALL.search(text)
    for assignment in given[1].split(";") if given else ():
        name = assignment.split("=")[0].strip()
        code = re.sub(rf"^{name} = .*$", assignment.strip(), code, flags=re.MULTILINE)
    return code


class Runner:
    """A namespace and an empty folder in which the blocks of one page are run, used with `with`."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {"__name__": "__main__"}

    def __enter__(self) -> Runner:
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory())
        self._stack.enter_context(contextlib.chdir(folder))
        self._groups: list[int] = []
        return self

    def __exit__(self, *_: object) -> None:
        for group in self._groups:  # what blocks left running
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGTERM)
        self._stack.close()

    def run(self, block: Block, page: str, code: str) -> str:
        """Run a block and return what it printed, warnings included."""
        if block.kind == "sh":
            return self._shell(code)
        said, told = io.StringIO(), set[str]()

        def tell(message: Warning | str, category: type[Warning], *_: object) -> None:
            text = f"{category.__name__}: {message}"
            ours = category is UserWarning or category.__module__.startswith("distgp")
            if ours and text not in told:  # each once in a block, as Python does for each line
                told.add(text)
                print(textwrap.fill(text, WIDTH, subsequent_indent="  "), file=said)

        lines = "\n" * (block.line - 1)  # so that errors name the line of the page
        with contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = tell
            exec(compile(lines + code, page, "exec"), self.names)
        # Lines in colour are Ray's log.
        return re.sub(r"^\x1b.*\n", "", said.getvalue(), flags=re.MULTILINE)

    def _shell(self, code: str) -> str:
        """By bash, with the commands of this Python's environment found first."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        # A file and not a pipe: a server that is left running would hold the pipe open.
        with tempfile.TemporaryFile("w+") as said:
            done = subprocess.Popen(
                ["bash", "-euo", "pipefail", "-c", code],
                env=os.environ | {"PATH": path, "COLUMNS": str(WIDTH), "NO_COLOR": "1"},
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._groups.append(done.pid)
            code_of_exit = done.wait(timeout=600)
            said.seek(0)
            printed = said.read()
        if code_of_exit:
            raise RuntimeError(f"exit code {code_of_exit} of\n{code}\nwhich printed\n{printed}")
        return printed


def check(page: Path, fewer: Mapping[str, str] = MappingProxyType({})) -> list[str]:
    """Run all blocks of a page with few rows, and return what each printed; nothing is written.

    Parameters
    ----------
    page : Path
        The page.
    fewer : mapping of str to str, optional
        Pieces of code with numbers, and what is run in their place.
    """
    from matplotlib import pyplot as plt

    matplotlib.use("Agg")
    text, printed = page.read_text(), []
    with Runner() as runner:
        for block in blocks(text):
            if block.reason is None:
                code = smaller(text, block.code)
                for shown, run in fewer.items():
                    code = code.replace(shown, run)
                printed.append(runner.run(block, str(page), code))
                plt.close("all")
    return printed


def rewrite(page: Path) -> None:
    """Run a tutorial and write its outputs, its pictures and its notebook."""
    from matplotlib import pyplot as plt

    from distgp.files.writing import whole
    from distgp.plotting import save_figure

    matplotlib.use("Agg")
    text, parts, at, pictures = page.read_text(), [], 0, 0
    with Runner() as runner:
        for block in blocks(text):
            parts.append(text[at : block.start] + block.code)
            at = block.end
            told = runner.run(block, str(page), block.code) if block.reason is None else ""
            printed = told.rstrip()
            parts.append("```\n" if block.shown else "-->\n")
            if printed and block.shown:
                parts.append(f"\n```text\n{printed}\n```\n")
            for number in plt.get_fignums():
                pictures += 1
                save_figure(plt.figure(number), page.with_name(f"{page.stem}-{pictures}.png"))
            plt.close("all")
    parts.append(text[at:])
    with whole(page) as part:
        part.write_text("".join(parts))
    write_notebook(page)


def write_notebook(page: Path) -> None:
    """Write a page as a notebook in `examples/`."""
    from distgp.files.writing import whole

    with whole(NOTEBOOKS / f"{page.stem}.ipynb") as part:
        part.write_text(notebook(page.read_text()))


def notebook(text: str) -> str:
    """A page as a Jupyter notebook, without outputs."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, source: str) -> None:
        if source.strip():
            cell = {"cell_type": kind, "id": f"cell-{len(cells)}", "metadata": {}}
            extra = {"outputs": [], "execution_count": None} if kind == "code" else {}
            cells.append(cell | extra | {"source": source.strip().splitlines(keepends=True)})

    at = 0
    for block in blocks(text):
        add("markdown", _for_notebook(text[at : block.start]))
        at = block.end
        if block.reason is None:
            add("code", ("%%bash\n" if block.kind == "sh" else "") + block.code)
        else:
            add("markdown", f"```{block.kind}\n{block.code}```")
    add("markdown", _for_notebook(text[at:]))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    made = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(made, ensure_ascii=False, indent=1) + "\n"


def _for_notebook(text: str) -> str:
    """Text without fences, comments and pictures, with formulas and links that work from `examples/`."""
    fence, comment, picture = (
        r"^```(?:python|sh)\n\Z",
        r"<!--.*?-->|<!-- run\n\Z",
        r"^!\[.*?\]\(.*?\)$",
    )
    text = re.sub("|".join((fence, comment, picture)), "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"\\[()]", "$", re.sub(r"\\[\[\]]", "$$", text))
    text = re.sub(r"\]\((?!https?:|\.\./)([\w-]+)\.md", r"](\1.ipynb", text)
    return text.replace("](../", "](../docs/")


def main() -> None:
    """Run the pages that the command line names."""
    parser = argparse.ArgumentParser(description="Run the code of documentation pages.")
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--small", action="store_true", help="few rows; nothing is written")
    parser.add_argument(
        "--notebooks", action="store_true", help="run nothing; write notebooks alone"
    )
    options = parser.parse_args()
    if options.notebooks:
        for page in options.pages:
            write_notebook(page)
        return
    if len(options.pages) == 1:
        page = options.pages[0].resolve()
        if options.small:
            check(page)
        elif 'device = "cuda"' in page.read_text() and not torch.cuda.is_available():
            print(f"{page.name} stays as it is: it needs a GPU, and there is none here")
        else:
            rewrite(page)
        return
    small = ["--small"] if options.small else []
    for page in options.pages:
        print(page, flush=True)
        subprocess.run([sys.executable, __file__, *small, str(page)], check=True)


if __name__ == "__main__":
    main()
