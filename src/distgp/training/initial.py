"""Where training starts: the kernel that a name or an expression stands for, its bounds and its priors."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from distgp.data.shard import Shard
from distgp.engines import Placement
from distgp.experts import Expert, Parameters
from distgp.kernels import Expression, InputLayout, Kernel, in_data_units
from distgp.training.objective import LogNormal, Prior, objective_value

REACH = 1e3
"""How far training may take the parameters of a named kernel from where they start."""
LARGEST_SIGNAL = 1.0
"""The largest signal variance of a named kernel, in units of the target's variance. Beyond it, where
columns nearly repeat each other, the variance runs away with the lengthscales for next to nothing, and
the model extrapolates without limit along directions in which its rows hardly vary."""
LEAST_NOISE = 1e-8
"""The floor of the noise in units of the target's variance, once it is lifted."""
SHORTER = 0.7
"""The most probable lengthscale of few rows, in units of that which training starts from, √d by default.
Hvarfner, Hellsten and Nardi (2024) have this one for inputs spread evenly over a unit cube."""
MANY = 1.5
"""Training begins with a part of the rows where there are so many times more."""
PART_TOLERANCE = 5e-5
"""Nats per row that five rounds in a row must fall below, where training begins with a part of the rows
and where it goes on with all of them: 0.1 nats of 2,000 rows."""
SEARCHED = (1.0, 0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start."""
LARGEST_SIGNAL = 1.0
"""The largest signal variance of a named kernel, in units of the target's variance. Beyond it, where
columns nearly repeat each other, the variance runs away with the lengthscales for next to nothing, and
the model extrapolates without limit along directions in which its rows hardly vary."""
LEAST_NOISE = 1e-8
"""The floor of the noise in units of the target's variance, once it is lifted."""
SHORTER = 0.7
"""The most probable lengthscale of few rows, in units of that which training starts from, √d by default.
Hvarfner, Hellsten and Nardi (2024) have this one for inputs spread evenly over a unit cube."""
MANY = 1.5
"""Training begins with a part of the rows where there are so many times more."""
PART_TOLERANCE = 5e-5
"""Nats per row that five rounds in a row must fall below, where training begins with a part of the rows
and where it goes on with all of them: 0.1 nats of 2,000 rows."""
SEARCHED = (1.0, 0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start."""
SHORTER = 0.7
"""The most probable lengthscale of few rows, in units of that which training starts from, √d by default.
Hvarfner, Hellsten and Nardi (2024) have this one for inputs spread evenly over a unit cube."""
MANY = 1.5
"""Training begins with a part of the rows where there are so many times more."""
PART_TOLERANCE = 5e-5
"""Nats per row that five rounds in a row must fall below, where training begins with a part of the rows
and where it goes on with all of them: 0.1 nats of 2,000 rows."""
SEARCHED = (1.0, 0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start."""
SEARCHED = (1.0, 0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start."""


class Initial(NamedTuple):
    """Kernel and noise that training starts from; bounds are ours if the kernel is `named` by a text.

    `fixed` and `signals` are full paths of parameters that stay, and of signal variances.
    """

    parameters: Parameters
    named: bool
    fixed: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()

    @staticmethod
    def of(
        kernel: Expression | Kernel,
        noise: float,
        layout: InputLayout,
        like: Tensor,
        units: str = "auto",
    ) -> Initial:
        """Build the kernel for these columns; "auto" units are those of the data in texts alone."""
        named = not isinstance(kernel, Kernel)
        if units == "standardised" or (units == "auto" and not named):
            layout = replace(layout, scale=())
        fixed, signals = (), ()
        if isinstance(kernel, Kernel):
            kernel = in_data_units(kernel, layout)
        else:
            built = kernel.build(layout)
            kernel, fixed, signals = built.kernel, built.fixed, built.signals
        start = Parameters.of(kernel, float(noise)).to(like.device, like.dtype)
        start.kernel(like.new_zeros(1, layout.d))  # refuses a kernel of another width
        return Initial(start, named, fixed, signals)

    def bounds(self, capped: bool = False) -> dict[str, tuple[float, float]]:
        """Bounds by full path: a factor of 1,000 for a named kernel; 1 for signals if `capped`."""
        if not self.named:
            return {}
        bounds = {
            f"kernel.{name}": (float(value.min()) / REACH, float(value.max()) * REACH)
            for name, value in self.parameters.kernel.parameters().items()
        }
        for path in self.signals if capped else ():
            bounds[path] = (bounds[path][0], max(LARGEST_SIGNAL, bounds[path][1] / REACH))
        return bounds

    def priors(self) -> dict[str, Prior]:
        """Priors by full path for few rows, of the lengthscales and the noise of a named kernel.

        Their maxima are near where training starts, and a factor of e from there costs half a nat. So many
        hyperparameters explain so few rows without any noise, by the columns that happen to fit.
        """
        if not self.named:
            return {}
        values = self.parameters.kernel.parameters()
        most = {
            f"kernel.{name}": SHORTER * math.exp(float(value.log().mean()))
            for name, value in values.items()
            if name.endswith("lengthscale")
        }
        most["noise"] = float(self.parameters.noise)
        return {path: LogNormal(math.e * value, 1.0) for path, value in most.items()}

    def uncapped(self) -> dict[str, tuple[float, float]]:
        """The bounds of signal variances without a cap, and of lengthscales that may be far longer."""
        free = self.bounds()
        far = {path: (low, REACH * high) for path, (low, high) in free.items()}
        long = {path: pair for path, pair in far.items() if path.endswith("lengthscale")}
        return long | {path: free[path] for path in self.signals if path in free}

    def holds(self, path: str, fixed: tuple[str, ...]) -> bool:
        """Tell whether training leaves this parameter as it is, given the names the user fixed."""
        return path in self.fixed or bool({path, path.rpartition(".")[2]} & set(fixed))

    def moved_to(self, found: Parameters, fixed: tuple[str, ...]) -> Parameters | None:
        """Start from a θ found earlier; None where the kernel has other parameters.

        What training leaves as it is comes from here: other rows have other means and scales, and a
        period in the units of the data, or how columns become degrees, are other numbers there.
        """
        start = self.parameters
        old, new = found.kernel.parameters(), start.kernel.parameters()
        if {k: v.shape for k, v in old.items()} != {k: v.shape for k, v in new.items()}:
            return None
        here = replace(found, inducing=None).to(start.noise.device, start.noise.dtype)
        values = here.kernel.parameters()
        free = {k: v for k, v in values.items() if not self.holds(f"kernel.{k}", fixed)}
        noise = start.noise if self.holds("noise", fixed) else here.noise
        return replace(here, kernel=start.kernel.with_parameters(free), noise=noise)


def best_start(
    expert: Expert,
    theta: Parameters,
    shards: Placement[Shard],
    priors: Mapping[str, Prior] | None = None,
) -> Parameters:
    """Take θ, or shorter lengthscales: started too long, training can end where everything is noise."""

    def value(candidate: Parameters) -> float:
        found = objective_value(expert, candidate, shards, priors)
        return found if math.isfinite(found) else math.inf

    return min(with_lengthscales(theta, SEARCHED), key=value, default=theta)


def with_lengthscales(theta: Parameters, factors: Collection[float]) -> list[Parameters]:
    """Multiply all lengthscales of θ by each of these factors; none where it has no lengthscales."""
    kernel = theta.kernel
    lengths = {k: v for k, v in kernel.parameters().items() if k.endswith("lengthscale")}
    scaled = [{name: factor * value for name, value in lengths.items()} for factor in factors]
    return [replace(theta, kernel=kernel.with_parameters(one)) for one in scaled if one]
