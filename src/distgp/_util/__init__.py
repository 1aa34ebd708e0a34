"""Small helpers that know nothing of Gaussian processes."""
