"""Modules that have moved: their old names still work, and say what to write instead."""

from __future__ import annotations

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "distgp.choice": "distgp.selection",
    **{
        f"distgp.{name}": f"distgp.diagnostics.{name}"
        for name in ("calibration", "compare", "findings", "metrics", "novelty", "summary")
    },
}
"""Where modules are now, by the names that version 0.2 documented."""
GOES = "0.6.0"
"""The release in which the old names go: they moved in 0.3.0, and work for two more minor releases."""


class MovedModules(MetaPathFinder, Loader):
    """Finds modules by their old names, and hands on what is asked of them to the new ones."""

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        """Find a module that has moved."""
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Make a module that looks everything up in the new one."""
        from distgp._util.checks import warn_user

        new = MOVED[spec.name]
        warn_user(
            f"{spec.name} is now {new}: import from there; the old name goes in distgp {GOES}",
            FutureWarning,
        )
        found = importlib.import_module(new)
        made = ModuleType(spec.name, found.__doc__)
        vars(made)["__getattr__"] = lambda name: getattr(found, name)
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: all of it is in the new module."""


def know_old_names() -> None:
    """Let Python find modules by their old names, once."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
