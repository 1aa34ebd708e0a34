"""The model of one target in words, and the table of its columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distgp.diagnostics.hyperparameters import Quantity, Shared, labelled

MOST_COLUMNS = 30
"""Columns that the text lists; of more, it lists the most relevant."""


@dataclass(frozen=True, kw_only=True)
class TargetSummary:
    """The model of one target.

    `rows` are those that the experts (or grids) were conditioned on, `training_rows` and `calibration_rows`
    those that were looked at for these, where it is known. `kernel` has the parts that the kernel is the
    sum of, `quantities` their hyperparameters in the units of the data. `training` is None where the
    hyperparameters were given; `holds` says what a file of the model holds of the data; `transform` is what
    is modelled instead of the target, and the units are then those of the transform.
    """

    target: str
    rows: int
    n_experts: int
    expert: str
    n_inducing: int | None = None
    n_neighbors: int | None = None
    aggregation: str
    mean: str
    kernel: tuple[str, ...]
    quantities: tuple[Quantity, ...]
    noise: Quantity
    training: str | None
    rounds: int
    training_rows: int | None
    stopped: str | None
    relevance: tuple[float, ...]
    holds: str
    transform: str | None = None
    calibration_rows: int | None = None

    def lines(self) -> list[tuple[str, str]]:
        """Describe the model as a whole by pairs of a title and a text."""
        found = [
            ("rows", f"{self.rows:,}"),
            ("experts", self._experts()),
            ("aggregation", self.aggregation),
        ]
        if self.transform is not None:
            units = f"its {self.transform} transform, in whose units signal and noise are"
            found.append(("target", units))
        if self.calibration_rows is not None:
            found.append(("intervals", f"calibrated on {self.calibration_rows:,} other rows"))
        if self.mean != "constant":
            found.append(("mean", f"a {self.mean} trend"))
        for part, text in enumerate(self.kernel, start=1):
            own = [q for q in self.quantities if q.part == part and q.column is None]
            values = "".join(f", {q.name} {q}" for q in own)
            found.append(("kernel" if part == 1 else "  +", f"{text}{values}"))
        found += [(self.noise.name, str(self.noise)), ("training", self._training())]
        return [*found, ("a file holds", self.holds)]

    def _experts(self) -> str:
        kind = "grid" if self.expert == "sparse grid" else f"{self.expert} expert"
        said = counted(self.n_experts, kind)
        if self.n_inducing is not None:
            said += f", {self.n_inducing:,} inducing inputs"
        if self.n_neighbors is not None:
            said += f", {self.n_neighbors:,} neighbours of each point"
        return said

    def _training(self) -> str:
        if self.training is None:
            return "none, the hyperparameters were given"
        looked_at = "" if self.training_rows is None else f" on {self.training_rows:,} rows"
        return f"{self.training}, {counted(self.rounds, 'round')}{looked_at}, {self.stopped}"

    def shares(self, lines: Sequence[tuple[str, list[int]]]) -> np.ndarray:
        """Add up the relevance of the columns that each line stands for."""
        return np.array([sum(self.relevance[j] for j in features) for _, features in lines])

    def table(
        self, columns: Sequence[str], shared: Shared | None = None
    ) -> tuple[list[str], list[list[str]]]:
        """Describe each column: titles, and one line for each column or those that share a lengthscale.

        Of very many lines only the most relevant are there.
        """
        cells = self._by_column()
        found = labelled(range(len(columns)), columns, shared or {})
        shares = self.shares(found)
        order = np.arange(len(found))
        if len(found) > MOST_COLUMNS:
            order = np.argsort(-shares, kind="stable")[:MOST_COLUMNS]
        lines: list[list[str]] = []
        for label, features, share in ((*found[i], shares[i]) for i in order):
            names = dict.fromkeys([label, *(columns[j] for j in features)])
            texts = [_cell([by[n] for n in names if n in by]) for by in cells.values()]
            lines.append([label, *texts, f"{share:.3f}"])
        return ["column", *_titles(list(cells)), "relevance"], lines

    def _by_column(self) -> dict[tuple[int, str, str], dict[str, Quantity]]:
        """Return the quantities of columns by part, factor and name; factors that are alike get numbers."""
        cells: dict[tuple[int, str, str], dict[str, Quantity]] = {}
        for q in self.quantities:
            if q.column is None:
                continue
            key, again = (q.part, q.factor, q.name), 1
            while q.column in cells.get(key, {}):
                again += 1
                key = (q.part, f"{q.factor} {again}", q.name)
            cells.setdefault(key, {})[q.column] = q
        return cells


def counted(count: int, noun: str) -> str:
    """Write a number of things, in the plural if it is not one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _cell(quantities: Sequence[Quantity]) -> str:
    """Write the quantities in one place of a table; of several that differ, their range."""
    texts = dict.fromkeys(map(str, quantities))
    if len(texts) < 2:
        return "".join(texts)
    return f"{min(q.low for q in quantities):.4g} to {max(q.high for q in quantities):.4g}"


def _titles(keys: Sequence[tuple[int, str, str]]) -> list[str]:
    """Return the shortest titles that tell hyperparameters apart: by name, factor and part."""
    forms = ("{2}", "{1} {2}", "{1} {2} (part {0})")
    found = ([form.format(*key) for key in keys] for form in forms)
    return next(titles for titles in found if len(set(titles)) == len(titles))
