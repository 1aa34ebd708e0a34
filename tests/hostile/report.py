"""Write what the hostile tests tried, and what held, into docs/robustness.md.

Run by `make hostile` after the tests: python tests/hostile/report.py
"""

import json
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "robustness.md"
FIRST, LAST = "<!-- tried -->", "<!-- end of tried -->"
ENDINGS = {
    "result": ("a result", "the same numbers", "finished first"),
    "error": ("a clear error", "nothing half written"),
}


def main() -> None:
    """Add up the tallies of all processes, one line for each kind of trial."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for path in sorted((ROOT / "build" / "hostile").glob("*.json")):
        for kind, outcome, count in json.loads(path.read_text()):
            column = next((c for c in ("result", "error") if outcome.endswith(ENDINGS[c])), "broke")
            found[kind][column] += count
    lines = [
        "| what | tried | a result, as it should be | refused or ended, cleanly | broke |",
        "| --- | --- | --- | --- | --- |",
    ]
    total: dict[str, int] = defaultdict(int)
    for kind, counts in [*sorted(found.items()), ("**all**", total)]:
        tried = sum(counts.values())
        cells = " | ".join(f"{counts[name]:,}" for name in ("result", "error", "broke"))
        lines.append(f"| {kind} | {tried:,} | {cells} |")
        if kind in found:
            for name, count in counts.items():
                total[name] += count
    text = PAGE.read_text(encoding="utf-8")
    head, tail = text.split(FIRST)[0], text.split(LAST)[1]
    PAGE.write_text(f"{head}{FIRST}\n\n" + "\n".join(lines) + f"\n\n{LAST}{tail}", encoding="utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
