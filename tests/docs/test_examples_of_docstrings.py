"""The examples in docstrings print what they say; doctest alone does not find those of wrapped methods."""

import ast
import doctest
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"


def documented(node: ast.AST, before: str = "") -> Iterator[tuple[str, str, int]]:
    """Yield names, docstrings with examples, and lines; methods come after the examples of their class."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef):
            continue
        text = ast.get_docstring(child) or ""
        if ">>> " in text:
            yield child.name, f"{before}\n\n{text}", child.lineno
        yield from documented(child, text if isinstance(child, ast.ClassDef) else "")


def examples() -> Iterator[doctest.DocTest]:
    """Find every docstring of the library that has examples."""
    parser = doctest.DocTestParser()
    for path in sorted(SOURCE.rglob("*.py")):
        module = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert ">>> " not in (ast.get_docstring(tree) or ""), f"{path}: not looked for"
        for name, text, line in documented(tree):
            names = {"__name__": module}
            yield parser.get_doctest(text, names, f"{module}.{name}", str(path), line)


EXAMPLES = list(examples())


def test_examples_are_found():
    names = {example.name for example in EXAMPLES}
    assert names >= {"distgp.regressor.predict", "distgp.mixin.save", "distgp.kernels.text.parse"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_an_example_prints_what_it_says(example, tmp_path, monkeypatch):
    """Names are those of the example's own module, and files that it writes are gone afterwards."""
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(example.globs["__name__"])
    example.globs.update(vars(module))
    assert doctest.DocTestRunner().run(example).failed == 0
