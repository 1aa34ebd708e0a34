"""Likelihoods: how the function f becomes what is observed, y."""

from distgp.likelihoods.gaussian import (
    Gaussian,
    copies_term,
    noise_factor,
    noise_of_rows,
    own_noise_term,
)

__all__ = ["Gaussian", "copies_term", "noise_factor", "noise_of_rows", "own_noise_term"]
