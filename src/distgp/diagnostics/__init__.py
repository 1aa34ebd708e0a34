"""Diagnostics: metrics, calibration and novelty; and, above the pipeline, summary, warnings, comparison."""
