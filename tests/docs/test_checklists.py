"""The places that the checklists name are there."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "checklists.md").read_text(encoding="utf-8")
WILL_BE = {"paper.md"}
"""Files that the page says are not there."""


def test_every_place_exists():
    named = set(re.findall(r"`((?:\.|[A-Za-z])[\w./-]*(?:/|\.\w+|LICENSE)[\w./-]*)`", TEXT))
    assert len(named) > 15
    for name in sorted(named | {"LICENSE"}):
        assert (ROOT / name).exists() != (name in WILL_BE), name


def test_every_target_of_make_exists():
    targets = set(re.findall(r"`make ([a-z-]+)`", TEXT))
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets and all(re.search(rf"^{name}:", text, re.MULTILINE) for name in targets)


def test_every_item_says_where_it_is_met():
    rows = re.findall(r"^\| (?!Item|---)(.+?) \| (.+) \|$", TEXT, re.MULTILINE)
    assert len(rows) > 25
    for item, where in rows:
        assert len(where) > 8 and where.strip("*").endswith((".", "`")), item
