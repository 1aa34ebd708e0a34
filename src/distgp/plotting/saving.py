"""Pictures as files."""

from __future__ import annotations

from pathlib import Path

from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from distgp.files import whole


def check_suffix(path: Path | str) -> str:
    """Return the kind of picture that a path's suffix names, such as "png".

    Raises
    ------
    ValueError
        If matplotlib cannot write this kind.
    """
    kind = Path(path).suffix.removeprefix(".").lower()
    known = plt.figure().canvas.get_supported_filetypes()
    plt.close()
    if kind not in known:
        raise ValueError(
            f"cannot draw {Path(path).name!r}: expected a suffix of {', '.join(known)}"
        )
    return kind


def save_figure(figure: Figure, path: Path | str, close: bool = True) -> None:
    """Write a figure, whole or not at all; the same figure always becomes the same file.

    Parameters
    ----------
    figure : Figure
        What to write.
    path : path-like
        Where to; the suffix names the kind of picture.
    close : bool, default=True
        Whether to close the figure afterwards.
    """
    path, kind = Path(path), check_suffix(path)
    undated = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}.get(kind)
    with whole(path) as part:
        figure.savefig(part, format=kind, dpi=150, metadata=undated)
    if close:
        plt.close(figure)
