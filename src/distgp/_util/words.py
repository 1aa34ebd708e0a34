"""Words for people, where a name in a registry alone would be a riddle."""

from __future__ import annotations

from collections.abc import Sequence

WORDS = {
    "fact": "joint (FACT)",
    "opt-local": "opt-local (each expert counts where it is certain)",
}


def in_words(name: str) -> str:
    """Say what a name in a registry means, where it does not say so itself."""
    return WORDS.get(name, name)


def counted(count: int, noun: str) -> str:
    """Write a number of things, in the plural if it is not one."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Align columns of text, the first to the left and the others to the right."""
    first, *others = (max(map(len, column)) for column in zip(*lines, strict=True))
    form = f"{{:<{first}}}" + "".join(f"  {{:>{width}}}" for width in others)
    return [form.format(*line) for line in lines]
