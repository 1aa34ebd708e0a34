"""Kernels by their names in texts and files: our own, and those that users register."""

from __future__ import annotations

import inspect
import re

from distgp.kernels import base, nondecaying, stationary
from distgp.kernels.base import Kernel, KernelType, ParameterError
from distgp.kernels.layout import PLAIN_NAME
from distgp.kernels.stationary import Stationary

KERNELS: dict[str, type[Stationary]] = {
    "rbf": stationary.RBF,
    "matern12": stationary.Matern12,
    "matern32": stationary.Matern32,
    "matern52": stationary.Matern52,
    "rational-quadratic": stationary.RationalQuadratic,
}
"""The kernels that estimators know by name: those with one lengthscale per column."""
OTHERS: dict[str, type[Kernel]] = {
    "linear": nondecaying.Linear,
    "constant": nondecaying.Constant,
    "periodic": nondecaying.Periodic,
    "sum": base.Sum,
    "product": base.Product,
    "scale": base.Scale,
}
"""All other kernels, by the names that files know them by."""


def register(kind: type[KernelType], name: str | None = None) -> type[KernelType]:
    """Make a kernel class of your own known by name; to be called, or to decorate the class.

    `save` then writes models with such kernels, and `distgp.load` reads them in any process that has
    registered the class by the same name. A class derived from `Stationary` can also be used by its
    name in texts, such as "wendland(2.5, columns=temp) + linear".

    Parameters
    ----------
    kind : type of Kernel
        The class. Registering it again, as a notebook's cell does, puts the newer in its place.
    name : str, optional
        Its name; by default its attribute `name`, or else the name of the class in lower case.

    Returns
    -------
    type of Kernel
        The class itself.

    Examples
    --------
    >>> from distgp.kernels import Matern52, register
    >>> register(Matern52, name="rbf")
    Traceback (most recent call last):
    ...
    distgp.kernels.base.ParameterError: the name 'rbf' is taken by RBF: give Matern52 another
    """
    if not (isinstance(kind, type) and issubclass(kind, Kernel)) or inspect.isabstract(kind):
        raise TypeError(
            "register takes a class derived from distgp.Kernel, with gram and diag, or from "
            f"distgp.kernels.Stationary, with shape, got {kind!r:.60}"
        )
    name = name or getattr(kind, "name", kind.__name__.lower())
    if not isinstance(name, str) or not re.fullmatch(PLAIN_NAME, name) or name == "auto":
        raise ParameterError(f"expected a name such as 'my-kernel', not 'auto', got {name!r:.60}")
    holder = all_kernels().get(name, kind)
    if (holder.__module__, holder.__qualname__) != (kind.__module__, kind.__qualname__):
        taken = f"the name {name!r} is taken by {holder.__name__}"
        raise ParameterError(f"{taken}: give {kind.__name__} another")
    OTHERS.pop(name, None)
    if issubclass(kind, Stationary):
        KERNELS[name] = kind
    else:
        KERNELS.pop(name, None)
        OTHERS[name] = kind
    return kind


def all_kernels() -> dict[str, type[Kernel]]:
    """List every kernel class by its name."""
    return KERNELS | OTHERS
