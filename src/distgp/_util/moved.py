"""Old names and old ways to call, which still work and say what to write instead."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ParamSpec

Given = ParamSpec("Given")
MOVED = {
    "distgp.choice": "distgp.selection",
    **{
        f"distgp.{name}": f"distgp.diagnostics.{name}"
        for name in ("calibration", "compare", "findings", "metrics", "novelty", "summary")
    },
}
"""Where modules are now, by the names that version 0.2 documented."""
GOES = "0.6.0"
"""The release in which what is old here goes: new in 0.3.0, it works for two more minor releases."""


class MovedModules(MetaPathFinder, Loader):
    """Finds modules by their old names, and hands on what is asked of them to the new ones."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Find a module that has moved."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a module that looks everything up in the new one."""
        new = MOVED[spec.name]
        deprecated(f"{spec.name} is now {new}: import from there; the old name")
        found = importlib.import_module(new)
        made = ModuleType(spec.name, found.__doc__)
        vars(made)["__getattr__"] = lambda name: getattr(found, name)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: all of it is in the new module."""


def deprecated(text: str) -> None:
    """Warn that something goes soon; the text says what to write instead, and ends with what goes."""
    from distgp._util.checks import warn_user

    warn_user(f"{text} goes in distgp {GOES}", FutureWarning)


def once_by_position(
    names: Sequence[str],
) -> Callable[[Callable[Given, None]], Callable[Given, None]]:
    """Let keyword-only parameters of a constructor be given by position too, in this old order."""

    def decorated(init: Callable[Given, None]) -> Callable[Given, None]:
        first = init.__code__.co_argcount  # pyright: ignore[reportFunctionMemberAccess]

        @functools.wraps(init)
        def called(*args: Any, **options: Any) -> None:
            old = dict(zip(names, args[first:], strict=False))
            if old and len(args) <= first + len(names) and not old.keys() & options.keys():
                said = ", ".join(f"{name}=" for name in old)
                deprecated(f"give {said} by name: passing parameters after the second by position")
                args, options = args[:first], old | options
            init(*args, **options)  # refuses what it does not know

        return called

    return decorated


def know_old_names() -> None:
    """Let Python find modules by their old names, once."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
