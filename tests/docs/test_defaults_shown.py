"""The pages of the API show the defaults that the code has."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe

SOURCE = Path(__file__).parents[2] / "src"


def documented(module: Any) -> Iterator[tuple[Any, Any]]:
    """Everything with a docstring of its own, and the function whose parameters it has."""
    for one in module.members.values():
        if one.is_alias:
            continue
        if one.is_module or one.is_class:
            yield from documented(one)
        if one.is_class:
            yield one, one.members.get("__init__")
        elif one.is_function:
            yield one, one


def value(said: object, module: Any) -> object:
    """The value of a default as it is written, or of the constant of a module that is named."""
    if str(said) in module.members:
        said = getattr(module.members[str(said)], "value", said)
    try:
        return ast.literal_eval(str(said))
    except (ValueError, SyntaxError):
        return str(said)


def differences() -> Iterator[str]:
    """Parameters whose shown default is not that of the signature."""
    package = griffe.load("distgp", search_paths=[str(SOURCE)], docstring_parser="numpy")
    for shown, function in documented(package):
        if shown.docstring is None or not hasattr(function, "parameters"):
            continue
        sections = [s for s in shown.docstring.parsed if s.kind.value == "parameters"]
        for parameter in (p for section in sections for p in section.value):
            if parameter.name in function.parameters:
                real = function.parameters[parameter.name].default
                if value(parameter.default, shown.module) != value(real, shown.module):
                    yield f"{shown.path}({parameter.name}): {parameter.default} for {real}"


def optional_but_shown_as_needed() -> Iterator[str]:
    """Parameters of classes without an `__init__` in the source whose default is not shown.

    Of these the page has the docstring alone; Python itself knows what the class takes.
    """
    package = griffe.load("distgp", search_paths=[str(SOURCE)], docstring_parser="numpy")
    for shown, function in documented(package):
        if not shown.is_class or function is not None or shown.docstring is None:
            continue
        sections = [s for s in shown.docstring.parsed if s.kind.value == "parameters"]
        if not sections:
            continue
        real = inspect.signature(getattr(importlib.import_module(shown.module.path), shown.name))
        for parameter in (p for section in sections for p in section.value):
            known = real.parameters.get(parameter.name)
            if known is not None and (known.default is known.empty) != (parameter.default is None):
                yield f"{shown.path}({parameter.name}): {parameter.default} for {known.default}"


def test_defaults_are_shown_as_they_are():
    assert list(differences()) == []


def test_parameters_that_may_be_left_out_have_a_default():
    assert list(optional_but_shown_as_needed()) == []
