"""The chart of docs/using.md: what to write, from what you know of the rows. Takes a second.

    python benchmarks/chart.py [--out FILE]    writes docs/chart.png

Every question has its answers below it, and every answer what to write beside it. Nothing needs an answer.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from distgp.plotting import save_figure

WIDTH = 96.0
"""Units of the drawing from left to right; one is 10 pixels of the picture."""
DPI = 150
"""What `save_figure` writes with."""
QUESTION, ANSWER, GAP, BREAK = 6.0, 7.6, 1.6, 5.0
"""The heights of a question and of an answer, and the room between answers and between questions."""
EDGE, ANSWERS, CODE = 2.0, (4.0, 31.0), (38.0, 56.0)
"""The edge of the picture, and left edge and width of the two columns below a question."""
BLUE, GREEN, GREY, INK = "#dbe7f6", "#d9efdc", "#f3f3f3", "#1c2733"
MIDDLE: dict[str, Any] = {"va": "center", "color": INK}
BOLD: dict[str, Any] = {**MIDDLE, "weight": "bold"}


@dataclass(frozen=True)
class Question:
    """A question, and for each answer what to write; one of them is what happens by itself."""

    text: str
    answers: tuple[tuple[str, str], ...]


QUESTIONS = (
    Question(
        "How many rows are there?",
        (
            ("as many as memory\nholds", "nothing"),
            ("more than memory\nholds", 'engine="ray"  and\ngp.fit_parquet("rows/", target="y")'),
        ),
    ),
    Question(
        "Where do new rows lie?",
        (
            ("between the old ones", "nothing"),
            ("later, such as\nnext year", 'validation="last"'),
            (
                "in groups that were\nnever seen",
                'validation="groups"  and\ngp.fit(X, y, groups=…)',
            ),
        ),
    ),
    Question(
        "What do you know of the function?",
        (
            ("nothing", "nothing"),
            ("it is smooth", 'expert="sparse"'),
            ("it is rough", 'expert="nearest"'),
            ("it has a period,\nsuch as 24 hours", 'kernel="periodic(24) + matern52"'),
            ("two to six columns,\nfine detail everywhere", "distgp.SparseGridGP()  instead"),
        ),
    ),
    Question(
        "Must intervals hold, whatever the model?",
        (
            ("no, roughly is enough", "nothing"),
            ("yes, on average", 'calibrate="conformal"'),
            ("yes, in each group", 'calibrate="mondrian"  and\ngp.fit(X, y, groups=…)'),
        ),
    ),
)


def box(ax: Axes, left: float, top: float, width: float, height: float, colour: str) -> None:
    """A box with round corners, its top left corner given."""
    style = "round,pad=0,rounding_size=1.2"
    ax.add_patch(
        FancyBboxPatch(
            (left, top), width, height, boxstyle=style, facecolor=colour, edgecolor=INK, linewidth=1
        )
    )


def arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    """An arrow from one place to another."""
    style = {"arrowstyle": "-|>", "color": INK, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops=style)


def begin(ax: Axes) -> float:
    """The box that comes first; returns where it ends."""
    height = 24.0
    box(ax, EDGE, EDGE, WIDTH - 2 * EDGE, height, GREEN)
    ax.text(WIDTH / 2, 6.4, "Start here: nothing has to be chosen", ha="center", size=14, **BOLD)
    code = "gp = distgp.DistributedGPRegressor().fit(X, y)"
    ax.text(WIDTH / 2, 11.3, code, ha="center", size=12.5, family="monospace", **MIDDLE)
    why = (
        "It fits the exact GP of all rows if it can,\n"
        "or else the best of a few ways on held-out rows.\n"
        "Go on only where you know something that the rows do not show."
    )
    ax.text(WIDTH / 2, 19.2, why, ha="center", size=11, linespacing=1.3, **MIDDLE)
    return EDGE + height


def height_of(question: Question) -> float:
    """How much room a question takes with its answers."""
    return QUESTION + len(question.answers) * (GAP + ANSWER)


def asked(ax: Axes, question: Question, top: float) -> float:
    """A question with its answers; returns where they end."""
    box(ax, EDGE, top, WIDTH - 2 * EDGE, QUESTION, BLUE)
    middle = top + QUESTION / 2
    ax.text(WIDTH / 2, middle, question.text, ha="center", size=12.5, **BOLD)
    for place, (answer, code) in enumerate(question.answers):
        at = top + QUESTION + GAP + place * (ANSWER + GAP)
        centre = at + ANSWER / 2
        ax.text(ANSWERS[0], centre, answer, size=11, linespacing=1.2, **MIDDLE)
        itself = code == "nothing"
        arrow(ax, (ANSWERS[0] + ANSWERS[1] - 3.0, centre), (CODE[0], centre))
        box(ax, CODE[0], at, CODE[1], ANSWER, GREEN if itself else GREY)
        said: dict[str, Any] = {"s": "nothing: that is the default", "size": 11}
        if not itself:
            said = {"s": code, "size": 11, "family": "monospace"}
        ax.text(CODE[0] + 2.0, centre, linespacing=1.25, **said, **MIDDLE)
    return top + height_of(question)


def chart() -> Figure:
    """The whole picture."""
    lengths = [height_of(question) for question in QUESTIONS]
    height = 26.0 + sum(lengths) + BREAK * len(lengths) + 17.0
    figure = plt.figure(figsize=(10 * WIDTH / DPI, 10 * height / DPI), facecolor="white")
    ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set(xlim=(0.0, WIDTH), ylim=(height, 0.0))
    ax.axis("off")
    end = begin(ax)
    for question in QUESTIONS:
        arrow(ax, (WIDTH / 2, end), (WIDTH / 2, end + BREAK))
        end = asked(ax, question, end + BREAK)
    said = (
        "Write these between the brackets of DistributedGPRegressor(…).\nYou can combine them. "
        "Afterwards, print(gp.choice_) shows\nwhat distgp tried, and print(gp.summary()) what it found."
    )
    ax.text(WIDTH / 2, end + 8.0, said, ha="center", size=11, linespacing=1.3, **MIDDLE)
    return figure


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Draw what to write, from what is known.")
    picture = Path(__file__).resolve().parents[1] / "docs" / "chart.png"
    parser.add_argument("--out", type=Path, default=picture, help="the picture")
    options = parser.parse_args()
    save_figure(chart(), options.out)
    print(options.out)
