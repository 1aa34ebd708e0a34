"""What the builder lets pass: pictures and files that are not there, pages that no menu names."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path

import griffe
import yaml

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)[^)]*\)|<(?:img|a)[^>]+(?:src|href)=\"([^\"]+)\"")


class Loose(yaml.SafeLoader):
    """Reads tags that only the builder knows as nothing."""


Loose.add_multi_constructor("", lambda *_: None)


def leaves(node):
    """All pages of a menu."""
    if isinstance(node, str):
        return [node]
    values = node.values() if isinstance(node, dict) else node
    return [leaf for value in values for leaf in leaves(value)]


def missing(page: Path) -> list[str]:
    """Links of a page to files that are not there."""
    text = re.sub(
        r"^ *```.*?^ *```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL | re.MULTILINE
    )
    links = [one or other for one, other in LINK.findall(text)]
    files = [link.split("#")[0] for link in links if not re.match(r"[a-z]+:|#", link)]
    return [file for file in files if not (page.parent / file).exists()]


def test_every_file_that_a_page_links_to_is_there():
    wrong = {page.name: found for page in DOCS.rglob("*.md") if (found := missing(page))}
    assert not wrong


def test_a_missing_picture_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(
        '![one](none.png) [two](page.md#part) `[x](y)` <img src="three.png"> [w](https://w)'
    )
    assert missing(page) == ["none.png", "three.png"]


def test_the_menu_names_every_page_once():
    menu = leaves(yaml.load((ROOT / "mkdocs.yml").read_text(), Loose)["nav"])
    assert sorted(menu) == sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))


def docstrings() -> Iterator[tuple[str, list]]:
    """Every docstring of the library as the builder reads it: the path of its object, and its sections."""
    stack = [griffe.load("distgp", search_paths=[str(ROOT / "src")], docstring_parser="numpy")]
    while stack:
        one = stack.pop()
        if one.is_alias:
            continue
        stack += one.members.values()
        if one.docstring is not None:
            yield one.path, one.docstring.parse("numpy", warn_unknown_params=False)


def test_docstrings_are_read_without_a_complaint(caplog):
    """The builder prints what it could not read in a docstring, and goes on."""
    caplog.set_level(logging.WARNING)
    assert len(list(docstrings())) > 1_000
    assert not caplog.messages, "\n".join(caplog.messages)


def test_no_type_is_read_as_a_difference():
    """The builder takes a type that could be Python for Python: array-like alone is array minus like."""
    shown = [
        f"{path}({item.name}): {item.annotation}"
        for path, sections in docstrings()
        for section in sections
        if section.kind.value in ("parameters", "attributes", "returns")
        for item in section.value
    ]
    assert len(shown) > 500
    assert [said for said in shown if " - " in said] == []
