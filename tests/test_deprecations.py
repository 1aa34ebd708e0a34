"""What is deprecated says in which release it goes, and goes in that release."""

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import distgp
from distgp._util import moved

SOURCE = Path(distgp.__file__).parent
WARNINGS = {"FutureWarning", "DeprecationWarning", "PendingDeprecationWarning"}


def version(text: str) -> tuple[int, ...]:
    assert re.fullmatch(r"\d+\.\d+\.\d+", text), text
    return tuple(map(int, text.split(".")))


def deprecations(source: str) -> Iterator[tuple[ast.Call, str]]:
    """Calls that are given one of the warnings, each with the source of its arguments."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if any(isinstance(value, ast.Name) and value.id in WARNINGS for value in given):
                yield node, ast.unparse(node)


def found() -> list[tuple[str, str]]:
    return [
        (path.relative_to(SOURCE).as_posix(), said)
        for path in sorted(SOURCE.rglob("*.py"))
        for _, said in deprecations(path.read_text(encoding="utf-8"))
    ]


@pytest.mark.parametrize(("path", "said"), found())
def test_every_deprecation_names_the_release_in_which_it_goes(path, said):
    """By the constant GOES of its module."""
    assert "{GOES}" in said, f"{path}: name the release by the constant GOES of the module"
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    goes = importlib.import_module(f"distgp.{name}").GOES
    assert version(goes) > version(distgp.__version__), f"{path}: remove it in {goes}"


def test_no_deprecation_is_written_in_another_way():
    """Every mention of such a warning in the sources is in a call that the test above looks at."""
    texts = (path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
    named = [
        node.id
        for text in texts
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name) and node.id in WARNINGS
    ]
    assert len(named) == len(found()) > 0


def test_two_more_minor_releases_come_before_it_goes():
    """The modules moved in 0.3.0; 0.4 and 0.5 still know them by their old names."""
    assert version(moved.GOES) >= (0, 6, 0)


@pytest.mark.parametrize(
    ("line", "seen"),
    [
        ('warn_user("old", FutureWarning)', 1),
        ('warnings.warn("old", category=DeprecationWarning)', 1),
        ('warnings.warn("careful", UserWarning)', 0),
    ],
)
def test_the_rule_sees_a_deprecation(line, seen):
    assert len(list(deprecations(line))) == seen
