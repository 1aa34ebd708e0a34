"""k-means centres of a sample of rows: scikit-learn's, for partitions and inducing inputs."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning


def kmeans_centres(X: np.ndarray, k: int, seed: int) -> np.ndarray:
    """k centres, from at most max(4096, 20k) rows: more would hardly move them."""
    rng = np.random.default_rng(seed)
    size = max(4096, 20 * k)
    rows = X if len(X) <= size else X[rng.choice(len(X), size, replace=False)]
    with warnings.catch_warnings():
        # Fewer distinct rows than k: the repeated centres do no harm where they are used.
        warnings.simplefilter("ignore", ConvergenceWarning)
        state = int(rng.integers(2**31))
        model = KMeans(k, n_init=1, random_state=state).fit(rows)  # pyright: ignore[reportArgumentType]
    return np.asarray(model.cluster_centers_)
