"""Pictures of models: each function draws on the Axes that it is given, or on new ones, and returns it."""

from distgp.plotting.figures import BAND, MOST_POINTS, PANELS_IN_A_ROW, check_suffix, save_figure
from distgp.plotting.maps import plot_map
from distgp.plotting.models import (
    LABELS,
    LEAST_BAR,
    MOST_NAMES,
    comparison_figure,
    plot_choice,
    plot_comparison,
    plot_training,
)
from distgp.plotting.predictions import (
    plot_calibration,
    plot_partial_dependence,
    plot_parts,
    plot_prediction,
    plot_relevance,
    plot_residuals,
    plot_slices,
)

__all__ = [
    "BAND",
    "LABELS",
    "LEAST_BAR",
    "MOST_NAMES",
    "MOST_POINTS",
    "PANELS_IN_A_ROW",
    "check_suffix",
    "comparison_figure",
    "plot_calibration",
    "plot_choice",
    "plot_comparison",
    "plot_map",
    "plot_partial_dependence",
    "plot_parts",
    "plot_prediction",
    "plot_relevance",
    "plot_residuals",
    "plot_slices",
    "plot_training",
    "save_figure",
]
