"""The curvature of an objective, as the steps of descents have shown it.

The objective of all rows has nearly the curvature of that of a part of them, times the ratio of their
numbers. A descent that knows it needs a few evaluations where one that does not needs dozens.
"""

from __future__ import annotations

import numpy as np

from distgp.linalg.singular import principal_axes

LEAST_BEND = 1e-8
"""The cosine between a step and the gradient's change along it from which on a step tells something."""

FAR = 1.0
"""The change of an entry, of logarithms mostly, from which on its curvature is another."""


class Curvature:
    """BFGS's estimate of the second derivatives of an objective, (P, P), empty before the first step."""

    def __init__(self) -> None:
        self._matrix = np.empty((0, 0))
        self._place = np.empty(0)  # where it was learnt last

    def knows(self, size: int) -> bool:
        """Whether steps of vectors of this size have been seen."""
        return len(self._matrix) == size

    def forget(self) -> None:
        """Know nothing again."""
        self._matrix = np.empty((0, 0))

    def stand(self, place: np.ndarray) -> None:
        """Note that descent has come to this place."""
        self._place = place.copy()

    def moved(self, place: np.ndarray) -> np.ndarray:
        """Tell which entries of a place are far from where descent stood last."""
        return np.abs(place - self._place) > FAR

    def scale(self, factor: float) -> None:
        """Multiply the curvature, for an objective of so many times more rows."""
        self._matrix = factor * self._matrix

    def learn(self, step: np.ndarray, change: np.ndarray) -> None:
        """Take in how a step changed the gradient, unless the objective is not convex along it."""
        bend = float(step @ change)
        if bend <= LEAST_BEND * float(np.linalg.norm(step) * np.linalg.norm(change)):
            return
        if not self.knows(len(step)):
            # The mean along the step, not the most: a direction that was not seen must seem worth a try.
            self._matrix = bend / float(step @ step) * np.eye(len(step))
        bent = self._matrix @ step
        self._matrix += np.outer(change, change) / bend - np.outer(bent, bent) / (step @ bent)

    def step(self, gradient: np.ndarray, free: np.ndarray, longest: float) -> np.ndarray:
        """Step towards the minimum of the parabola in the free entries, by at most `longest` in each.

        Curvature is added in all directions until the step is short enough, so that one along which
        the objective hardly changes does not keep the others from going where they should.
        """
        if not free.any():
            return np.zeros_like(gradient)
        values, axes = principal_axes(self._matrix[np.ix_(free, free)])
        along, step, damping = axes.T @ gradient[free], np.zeros_like(gradient), 0.0
        values = np.maximum(values, 1e-12 * values[-1])
        while True:
            step[free] = -axes @ (along / (values + damping))
            if np.abs(step).max() <= longest:
                return step
            damping = max(2.0 * damping, float(values[0]))

    def gain(self, gradient: np.ndarray, step: np.ndarray) -> float:
        """The decrease of the parabola that a step leads to."""
        return -float(gradient @ step + 0.5 * step @ self._matrix @ step)
