"""The choice in a sentence: what was taken, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from distgp._util.progress import WORDS

if TYPE_CHECKING:
    from distgp.selection.trials import Choice

NAMES = {
    "as given": "the model as given",
    "exact GP": "one exact GP of all rows",
    "sparse, pooled": "sparse experts (pooled)",
    "independent experts, opt-local": "independent experts (opt-local)",
}
"""Candidates as a sentence names them."""
NOTES = {
    ", opt-local": WORDS["opt-local"],
    ", log": "log: a model of the target's logarithm; figures are of the target itself",
}
"""Parts of the names of candidates, and what they mean."""


def why(choice: Choice) -> str:
    """Say in a sentence what was taken, and why."""
    best, at = choice.best, f"on {choice.held_out:,} rows held out"
    name = _named(best.name)
    plural = "were" if name.startswith(("nearest rows", "sparse exp", "independent exp")) else "was"
    begin = f"{name[0].upper()}{name[1:]} {plural} taken"
    if choice.validation == "one by one":
        fit = "they fit" if plural == "were" else "it fits"
        beside = [f", against {t.nlpd:.2f} for {t.name}" for t in choice.trials if t.baseline][:1]
        figure = f"NLPD {best.nlpd:.2f}{''.join(beside)}"
        return f"{begin}: {fit} into the time and memory. {figure}."
    figure = f"{begin}: NLPD {best.nlpd:.2f} {at}"
    others = [one for one in choice.trials if not one.error and one is not best]
    if not others:
        return f"{figure}."
    rival = next((one for one in others if not one.baseline), others[0])
    if rival.nlpd < best.nlpd and not rival.baseline:
        return f"{figure}; {rival.nlpd:.2f} for {_named(rival.name)} is not clearly better."
    return f"{figure}, against {rival.nlpd:.2f} for {_named(rival.name)}."


def notes(choice: Choice) -> list[str]:
    """Explain the parts of the candidates' names that need it."""
    names = " ".join(f"{one.name} " for one in choice.trials)
    return [said for part, said in NOTES.items() if f"{part} " in names or f"{part}," in names]


def _named(name: str) -> str:
    """Name a candidate, with its kernel and its transform, as a sentence does."""
    for short, long in NAMES.items():
        if name.startswith(short):
            name = long + name.removeprefix(short)
    plain = name.removesuffix(", log")
    return name if plain == name else f"{plain} (log of the target)"
