"""The pages of the API show everything that users can call, and what their examples print."""

import inspect
import re
import sys
from pathlib import Path

import pytest

import distgp
from distgp import compare, forecasting, maps, metrics, plotting

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
import pages  # noqa: E402

PAGES = sorted((ROOT / "docs" / "api").glob("*.md"))
FOR_CONTRIBUTORS = ("index", "internals", "base-classes")
SHOWN = {
    name.split(".")[-1]
    for page in PAGES
    for name in re.findall(r"^::: (\S+)$|\[([\w, ]+)\]$", page.read_text(), re.MULTILINE)
    for name in (name[0] or name[1]).split(", ")
}
REGISTRIES = "AGGREGATORS", "ALGORITHMS", "EXPERTS", "KERNELS", "PARTITIONS"
NOT_FOR_USERS = {
    distgp: set(),
    plotting: {"check_suffix"},
    metrics: set(),
    maps: set(),
    forecasting: {"Fold", "Forecast"},
    compare: {"expert_of", "serving", "left_out", "noise_variance"},
}


def called(module) -> set[str]:
    """The public classes and functions of a module, by name."""
    names = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if getattr(value, "__module__", None) == module.__name__ and not name.startswith("_")
    ]
    found = {name: getattr(module, name) for name in names}
    return {
        name for name, value in found.items() if inspect.isclass(value) or inspect.isfunction(value)
    }


@pytest.mark.parametrize("module", NOT_FOR_USERS, ids=lambda module: module.__name__)
def test_what_users_call_is_shown(module):
    assert called(module) - SHOWN == NOT_FOR_USERS[module]


def test_every_name_in_a_registry_is_shown():
    named = [kind for name in REGISTRIES for kind in getattr(distgp, name).values()]
    kinds = {kind if inspect.isclass(kind) else type(kind) for kind in named}
    assert len(kinds) > 25
    assert {kind.__name__ for kind in kinds} - SHOWN == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_examples_print_what_is_shown(page):
    text = page.read_text()
    blocks = list(pages.blocks(text))
    assert blocks or page.stem in FOR_CONTRIBUTORS
    for block, printed in zip(blocks, pages.check(page), strict=True):
        after = text[block.start + len(block.code) : block.end].removeprefix("```\n")
        assert after == (f"\n```text\n{printed.rstrip()}\n```\n" if printed else "")
