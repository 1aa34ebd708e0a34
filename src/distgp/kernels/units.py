"""Kernels in the names and units of a table, and in those of standardised features."""

from __future__ import annotations

import torch
from torch import Tensor

from distgp.kernels.base import Kernel, places, replaced, select, with_children
from distgp.kernels.kinds import Periodic
from distgp.kernels.layout import InputLayout
from distgp.kernels.sphere import PLAIN_DEGREES, on_sphere
from distgp.kernels.stationary import Stationary


def resolved(kernel: Kernel, layout: InputLayout) -> Kernel:
    """Put the places of columns where a kernel's `active_dims` has their names.

    A text column or a date stands for all of its features; in a `Periodic` kernel a date stands for its
    days alone. Where there is one parameter per named column, the features of a column share it.

    Examples
    --------
    >>> from distgp import Matern52
    >>> layout = InputLayout(("temp", "sky=clear", "sky=grey"), {"temp": (0,), "sky": (1, 2)})
    >>> resolved(2.0 * Matern52([0.5, 3.0], active_dims=["temp", "sky"]), layout)
    Scale(kernel=Matern52(lengthscale=[0.5, 3.0], active_dims=(0, 1, 2), shared=(0, 1, 1)), variance=2.0)
    """
    active = getattr(kernel, "active_dims", None)
    if active is None or not any(isinstance(column, str) for column in active):
        return with_children(kernel, lambda _, child: resolved(child, layout))
    find = layout.places_of_number if isinstance(kernel, Periodic) else layout.places_of
    found = [find(column) if isinstance(column, str) else (column,) for column in active]
    # For each feature, which of the given columns it belongs to.
    owner = [place for place, features in enumerate(found) for _ in features]
    spread = _spread(kernel, owner) if len(owner) > len(active) else {}
    return replaced(kernel, active_dims=tuple(j for features in found for j in features), **spread)


def _spread(kernel: Kernel, owner: list[int]) -> dict[str, object]:
    """Return the parameters of a kernel with one value per column, for the features of the columns."""
    count = max(owner) + 1
    if isinstance(kernel, Stationary):
        each = kernel.shared or tuple(range(kernel.lengthscale.shape[-1]))
        return {"shared": tuple(each[i] for i in owner)} if len(each) == count > 1 else {}
    batches = kernel.batches()
    vectors = {n: v for n, v in kernel.own_parameters().items() if v.ndim > len(batches[n])}
    return {name: v[..., owner] for name, v in vectors.items() if v.shape[-1] == count > 1}


def in_data_units(kernel: Kernel, layout: InputLayout) -> Kernel:
    """Turn a kernel k in the data's units into one, k̃, on standardised inputs.

    k̃((x − mean) / scale, (x′ − mean) / scale) = k(x, x′). Names in `active_dims` are looked up first.
    Lengthscales and periods are divided by the scale of their column, a linear kernel's variances (of
    inputs centred at their means) multiplied by its square; what has no unit of an input stays.

    Examples
    --------
    >>> from distgp import RBF
    >>> in_data_units(RBF([6.0, 6.0]), InputLayout.of_array(2, scale=[2.0, 3.0]))
    RBF(lengthscale=[3.0, 2.0])

    One lengthscale stays one. It is divided by the geometric mean of the scales, and what is left of
    each scale becomes the `stretch` of its column:

    >>> in_data_units(RBF(6.0), InputLayout.of_array(2, scale=[2.0, 8.0]))
    RBF(lengthscale=[1.5], stretch=(0.5, 2.0))
    """
    return _standardised(resolved(kernel, layout), layout)


def _standardised(kernel: Kernel, layout: InputLayout) -> Kernel:
    """Divide every parameter by the scale of its column, to the power of the unit that it has."""
    scales = torch.tensor([[float(value) for value in layout.scale]], dtype=torch.float64)
    active, changes = getattr(kernel, "active_dims", None), {}
    if isinstance(kernel, Stationary):
        if kernel.sphere is not None:
            return _on_sphere(kernel, layout)
        if kernel.shared is not None or kernel.lengthscale.shape[-1] == 1:
            return _with_shared(kernel, select(scales, active)[0])
    for name, power in kernel.units.items():
        given = getattr(kernel, name)
        scale = select(scales, active, given)[0].to(given)
        values = given / scale**power if power > 0 else given * scale**-power
        # One value for all columns stays one where it is still the same for all.
        one = given.shape[-1] == 1 and torch.equal(values[..., :1].expand_as(values), values)
        changes[name] = values[..., :1] if one else values
    return with_children(kernel, lambda _, child: _standardised(child, layout), **changes)


def _on_sphere(kernel: Stationary, layout: InputLayout) -> Kernel:
    """Tell a kernel on the sphere how its two columns were standardised; its lengthscale is in km."""
    standard = tuple(layout.standard[j] for j in places(kernel.active_dims, layout.d))
    on_sphere(torch.zeros(1, len(standard)), PLAIN_DEGREES)  # refuses other than two columns
    return replaced(kernel, sphere=standard)


def latitudes(kernel: Kernel, d: int) -> tuple[int, ...]:
    """List those of d columns that a kernel takes as latitudes, by their places."""
    found = [j for child in kernel.children().values() for j in latitudes(child, d)]
    if isinstance(kernel, Stationary) and kernel.sphere is not None:
        found.append(places(kernel.active_dims, d)[1])
    return tuple(dict.fromkeys(found))


def _with_shared(kernel: Stationary, scale: Tensor) -> Kernel:
    """Divide lengthscales that columns share by the geometric mean of the columns' scales.

    What is left of the scale of each column is its stretch, if the scales are not all the same.
    """
    kernel.lengthscale_by_column(len(scale))  # refuses what does not fit
    if kernel.stretch is not None:
        scale = scale * scale.new_tensor(kernel.stretch)
    of = torch.tensor(kernel.shared or (0,) * len(scale))
    groups = [scale[of == i] for i in range(kernel.lengthscale.shape[-1])]
    middle = torch.stack(
        [s[0] if bool((s == s[0]).all()) else s.log().mean().exp() for s in groups]
    )
    stretch = scale / middle[of]
    even = bool((stretch == 1.0).all())
    lengths = kernel.lengthscale / middle.to(kernel.lengthscale)
    return replaced(kernel, lengthscale=lengths, stretch=None if even else tuple(stretch.tolist()))
