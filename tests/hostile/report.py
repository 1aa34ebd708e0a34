"""Write what the hostile tests tried, and what held, into docs/robustness.md.

Run by `make hostile` after the tests: python tests/hostile/report.py
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "robustness.md"
FIRST, LAST = "<!-- tried -->", "<!-- end of tried -->"
ENDINGS = {
    "result": ("a result", "the same numbers", "finished first"),
    "error": ("a clear error", "nothing half written"),
}


def main() -> None:
    """Add up the tallies of all processes, and write them into the page."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in sorted((ROOT / "build" / "hostile").glob("*.json")):
        for kind, outcome, count in json.loads(path.read_text()):
            column = next((c for c in ("result", "error") if outcome.endswith(ENDINGS[c])), "broke")
            found[kind][column] += count
    lines = told(found)
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.split(FIRST)[0], text.split(LAST)[1]
    PAGE.write_text(f"{head}{FIRST}\n\n" + "\n".join(lines) + f"\n\n{LAST}{tail}", encoding="utf-8")
    print("\n".join(lines))


def told(found: Mapping[str, Mapping[str, int]]) -> list[str]:
    """How all tries ended, what broke, and the number of each kind."""
    total: dict[str, int] = defaultdict(int)
    for counts in found.values():
        for name, count in counts.items():
            total[name] += count
    all_of_them = (
        f"Of {sum(total.values()):,} tries, {total['result']:,} gave a right result, "
        f"{total['error']:,} were refused or ended cleanly, and {total['broke']:,} broke"
    )
    broke = ", ".join(kind for kind, counts in sorted(found.items()) if counts["broke"])
    kinds = [f"{kind} {sum(counts.values()):,}" for kind, counts in sorted(found.items())]
    ended = f"{all_of_them} ({broke})." if broke else f"{all_of_them}."
    return [ended, "", f"Tries of each kind: {'; '.join(kinds)}."]


if __name__ == "__main__":
    main()
