"""Pictures of models: each function draws on the Axes that it is given, or on new ones, and returns it."""

from distgp.plotting.bars import (
    LABELS,
    LEAST_BAR,
    comparison_figure,
    plot_choice,
    plot_comparison,
    plot_relevance,
)
from distgp.plotting.checks import plot_calibration, plot_residuals
from distgp.plotting.figures import BAND, MOST_POINTS, PANELS_IN_A_ROW, check_suffix, save_figure
from distgp.plotting.predictions import plot_partial_dependence, plot_prediction, plot_slices
from distgp.plotting.training import MOST_NAMES, plot_training

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
    "plot_partial_dependence",
    "plot_prediction",
    "plot_relevance",
    "plot_residuals",
    "plot_slices",
    "plot_training",
    "save_figure",
]
