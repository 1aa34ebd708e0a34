"""The names that texts and files know kernels by."""

from __future__ import annotations

import inspect
import re

from distgp.kernels import base, kinds
from distgp.kernels.base import Kernel, KernelType, ParameterError
from distgp.kernels.kinds import Constant, Linear, Periodic
from distgp.kernels.stationary import Stationary

PLAIN_NAME = r"[^\W\d][\w.-]*"  # of kernels, and of columns that need no quotes
KERNELS: dict[str, type[Stationary]] = {
    "rbf": kinds.RBF,
    "matern12": kinds.Matern12,
    "matern32": kinds.Matern32,
    "matern52": kinds.Matern52,
    "rational-quadratic": kinds.RationalQuadratic,
    "exponential": kinds.Matern12,
}
"""The kernels that estimators know by name: those with one lengthscale per column."""
ELSEWHERE = {
    "gaussian": "'rbf' is the Gaussian model",
    "spherical": "'exponential' and 'matern32' are nearest to it; a spherical kernel of your own takes "
    "five lines, as the guide to maps shows",
}
"""Names of geostatistics that no kernel has here, and what to take instead."""
OTHERS: dict[str, type[Kernel]] = {
    "linear": Linear,
    "constant": Constant,
    "periodic": Periodic,
    "sum": base.Sum,
    "product": base.Product,
    "scale": base.Scale,
}
"""All other kernels, by the names that files know them by."""


def all_kernels() -> dict[str, type[Kernel]]:
    """List every kernel class by its name.

    Examples
    --------
    >>> all_kernels()["exponential"].__name__
    'Matern12'
    """
    return KERNELS | OTHERS


def register(kind: type[KernelType], name: str | None = None) -> type[KernelType]:
    """Make a kernel class of your own known by name; to be called, or to decorate the class.

    Models with such kernels can then be saved, and loaded in any process that has registered the class by
    the same name. One derived from `Stationary` can be used in texts, "wendland(2.5, columns=temp)".

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
