"""Draw the map of the house from the imports of the sources, and write it into the contributors' page.

    python docs/house.py            writes the map into docs/contributing.md
    python docs/house.py --print    prints it

A room is a module or a package that the layers in pyproject.toml name. It stands on the rooms that it
imports; of two of these, one that the other stands on is left out. Rooms are sorted by floor: the longest
way down.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "distgp"
PAGE = ROOT / "docs" / "contributing.md"
BEGIN, END = "<!-- the map: `make map` writes it -->\n", "<!-- the end of the map -->\n"


@cache
def rooms() -> list[str]:
    """List the rooms that the contract of the imports names."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = contracts["tool"]["importlinter"]["contracts"][0]["layers"]
    return [room for layer in layers for room in layer.split(" | ")]


def room_of(module: str) -> str | None:
    """Name the room that a module of distgp is in; None for the front door and for what has no room."""
    inside = module.removeprefix("distgp.")
    found = [room for room in rooms() if inside == room or inside.startswith(room + ".")]
    return max(found, key=len, default=None)


def imported(path: Path) -> Iterator[str]:
    """List the modules of distgp that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def stands_on() -> dict[str, set[str]]:
    """Find for every room the others that it imports."""
    found: dict[str, set[str]] = {room: set() for room in rooms()}
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        room = room_of(name)
        others = {room_of(module) for module in imported(path) if module.startswith("distgp.")}
        if room is not None:
            found[room] |= {other for other in others if other not in (room, None)}
    return found


def below(room: str, on: Mapping[str, set[str]]) -> set[str]:
    """Find all rooms under a room."""
    return on[room].union(*(below(other, on) for other in on[room]))


def floor(room: str, on: Mapping[str, set[str]]) -> int:
    """Count the rooms on the longest way down."""
    return 1 + max((floor(other, on) for other in on[room]), default=-1)


def about(room: str) -> str:
    """Return the first sentence that a room says of itself."""
    path = SOURCE.joinpath(*room.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=\.)\s", said.partition("\n\n")[0].replace("\n", " "))[0].replace(
        "|", "\\|"
    )


def drawn() -> str:
    """Draw the map as a table, from the roof to the ground."""
    on = stands_on()
    floors = {room: floor(room, on) for room in on}
    lines = ["| Module | What it is | Imports |", "| --- | --- | --- |"]
    for room in sorted(on, key=lambda room: (-floors[room], room)):
        near = on[room] - set().union(*(below(other, on) for other in on[room]))
        names = ", ".join(f"`{other}`" for other in sorted(near)) or "–"
        lines.append(f"| `{room}` | {about(room)} | {names} |")
    return "\n".join(lines) + "\n"


def put_into(text: str) -> str:
    """Return the text of a page with the map of today in its place."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{drawn()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--print" in sys.argv:
        print(drawn())
    else:
        PAGE.write_text(put_into(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
