"""The map of the house is that of the imports, and `make help` lists every habit."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("house", ROOT / "docs" / "house.py")
assert spec is not None and spec.loader is not None
house = importlib.util.module_from_spec(spec)
spec.loader.exec_module(house)


def test_the_map_is_the_current_one():
    page = house.PAGE.read_text(encoding="utf-8")
    assert page == house.put_into(page), "`make map` draws it anew"
    assert "| `pipeline` |" in page and page.count("\n| ") > 30


def test_the_map_is_drawn_from_the_imports():
    on = house.stands_on()
    assert on["experts"] >= {"kernels", "likelihoods"} and "aggregation" not in on["experts"]
    assert house.floor("cli", on) > house.floor("pipeline", on) > house.floor("kernels", on)
    assert all(room not in house.below(room, on) for room in on)
    assert house.about("_version").endswith(".")


def test_every_target_of_make_has_a_sentence():
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    said = dict(re.findall(r"^([a-z-]+):.*?## (.*)$", text, re.MULTILINE))
    assert said.keys() == set(phony.split())
    for name, sentence in said.items():
        assert re.fullmatch(r"[A-Z].*\.", sentence), name
    assert text.index("##@ ") < text.index("help: ##")  # all of them are in a group


@pytest.mark.parametrize("page", ["contributing.md", "checklists.md"])
def test_contributors_find_the_page(page):
    assert f"docs/{page}" in (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
