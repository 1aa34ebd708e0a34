"""Every warning that distgp can give is explained on its page, under the name that filters it."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "warnings.md").read_text()
API = (ROOT / "docs" / "api" / "reports.md").read_text()
CLASS = re.compile(r"^class (\w+Warning)\(", re.MULTILINE)


def test_every_warning_has_its_section():
    sources = (ROOT / "src").rglob("*.py")
    classes = {name for path in sources for name in CLASS.findall(path.read_text())}
    assert {"ChoiceWarning", "EngineWarning"} < classes
    explained = set(re.findall(r"^### (\w+)$", PAGE, re.MULTILINE))
    assert classes - {"FitWarning"} == explained  # a base class, which is named beside its kinds


def test_sections_name_the_class_to_filter_by():
    sections = re.findall(r"^### (\w+)\n\n`([\w.]+)\.(\w+)`", PAGE, re.MULTILINE)
    assert len(sections) == PAGE.count("\n### ")
    for heading, module, name in sections:
        assert heading == name
        assert issubclass(getattr(importlib.import_module(module), name), UserWarning)


def test_every_warning_is_in_the_api():
    sources = (ROOT / "src").rglob("*.py")
    classes = {name for path in sources for name in CLASS.findall(path.read_text())}
    shown = re.findall(r"^::: distgp\.[\w.]+\.(\w+Warning)$", API, re.MULTILINE)
    assert set(shown) == classes and len(shown) == len(classes)
