"""Is the default as good as the best way to fit, had one known it?

On ten standard tables with published splits: the default with several seeds, and each way that it may take,
fitted to all rows. The bar is an NLPD at most 0.03 above the best way's, and never 0.1. Test rows judge
here; the default never sees them. NLPD is in units of the training targets' standard deviation.

    python benchmarks/choice.py [--data FOLDER] [--device cuda] [--tables pol …] [--splits 0 1 2]
    python benchmarks/choice.py --page       writes the table into docs/leaderboard.md

Each run is one line of results/choice-DEVICE.csv as soon as it is done; lines that are there are not run
again.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np
from _measure import read_csv, table_in_page
from uci import PAGE, RESULTS, ours
from uci_tables import TABLES, Results, Row, Split, arguments, on_every_split

from distgp.selection.candidates import EXACT_ALONE, EXACT_MEAN, Candidate, ways_to_fit

LIMIT = 180.0
"""The page shows the default with this `time_limit`; ways that were asked for have none."""


def ways(n: int) -> list[Candidate]:
    """All ways to fit n rows that the default may take."""
    found = ways_to_fit(n, exact_fits=True)
    few = n <= EXACT_ALONE
    return found if few else [*found, Candidate("nearest rows with the exact mean", EXACT_MEAN)]


def measured(results: Results, key: Row, data: Split, given: argparse.Namespace) -> None:
    """The default with every seed, and each way."""
    for seed in range(given.seeds):
        options: dict[str, object] = {"random_state": seed, "time_limit": given.time_limit}
        name = {"model": "default", "seed": seed, "time_limit": given.time_limit}
        results.add(key | name, lambda options=options: ours(data, given.device, options))
    for one in ways(len(data[1])):
        settings = dict(one.settings)
        name = {"model": one.name, "seed": "", "time_limit": ""}
        results.add(key | name, lambda settings=settings: ours(data, given.device, settings))


def lines_of(rows: Sequence[dict[str, str]]) -> Iterator[str]:
    """For each table how far the default's NLPD is above the best way's: the mean, and the worst seed."""
    head = ["table", "splits", "seeds", "mean", "worst", "distgp and machine"]
    yield "| " + " | ".join(head) + " |"
    yield "| --- " * len(head) + "|"
    good = [row for row in rows if not row.get("error")]
    for table in TABLES:
        here = [row for row in good if row["table"] == table]
        above = [above_best(here, split) for split in dict.fromkeys(row["split"] for row in here)]
        means = float(np.mean([np.mean(found) for found in above])), max(map(max, above))
        cells = [table, f"{len(above)}", f"{max(map(len, above))}"]
        cells += [*(f"{round(value, 3) + 0.0:+.3f}" for value in means), where(here)]
        yield "| " + " | ".join(cells) + " |"


def above_best(rows: Sequence[dict[str, str]], split: str) -> list[float]:
    """How far the NLPD of every seed of the default is above that of the best way, on one split."""
    here = [row for row in rows if row["split"] == split]
    best = min(float(row["nlpd"]) for row in here if row["model"] != "default")
    return [float(row["nlpd"]) - best for row in here if row["time_limit"] == f"{LIMIT}"]


def where(rows: Sequence[dict[str, str]]) -> str:
    """The versions and machines of a table's runs, and which runs they are where they are not all."""
    splits, found = {row["split"] for row in rows}, dict[str, set[tuple[str, str]]]()
    for row in rows:
        kind = "default" if row["model"] == "default" else "ways"
        said = f"{row['distgp']}, {row['on']}"
        found.setdefault(said, set()).add((row["split"], kind))
    lines = []
    for said, runs in found.items():
        here, kinds = sorted({split for split, _ in runs}), sorted({kind for _, kind in runs})
        which = [f"split {', '.join(here)}"] * (len(here) < len(splits))
        which += kinds * (len(kinds) < 2)
        lines.append(said + (f" ({', '.join(which)})" if which else ""))
    return "; ".join(lines)


def page() -> None:
    """Write the results into the page."""
    table_in_page(PAGE, "choice", list(lines_of(read_csv(RESULTS / "choice-cuda.csv"))))


def main() -> None:
    """Run what was asked for."""
    parser = arguments(__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--time-limit", type=float, default=LIMIT)
    given = parser.parse_args()
    if given.page:
        return page()
    return on_every_split(
        given, "choice", lambda results, key, data: measured(results, key, data, given)
    )


if __name__ == "__main__":
    main()
