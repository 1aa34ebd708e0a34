"""The kernel and noise that training starts from, with their default bounds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from distgp.experts import Parameters
from distgp.kernels import Expression, InputLayout, Kernel, in_data_units

REACH = 1e3
"""How far training may take the parameters of a named kernel from where they start."""
LARGEST_SIGNAL = 1.0
"""The largest signal variance of a named kernel, in units of the target's variance. Beyond it, where
columns nearly repeat each other, the variance runs away with the lengthscales for next to nothing, and
the model extrapolates without limit along directions in which its rows hardly vary."""


@dataclass(frozen=True, eq=False)
class Initial:
    """Kernel and noise that training starts from.

    Parameters
    ----------
    parameters : Parameters
        Kernel and noise variance.
    named : bool
        Whether the kernel was given as a text, so that bounds and the search for lengthscales are ours.
    fixed, signals : tuple of str
        Full paths of parameters that training leaves as they are, and of signal variances.
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
        """Build the kernel for these columns, in the dtype and on the device of `like`.

        `units` are those of lengthscales and periods: "data", "standardised", or "auto" for those of
        the data in texts and standardised ones in objects.
        """
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
        """Bounds by full path: a named kernel's parameters stay within a factor of 1,000 of the start.

        Where `capped`, signal variances stay at or below 1, the variance of a standardised target.
        """
        if not self.named:
            return {}
        bounds = {
            f"kernel.{name}": (float(value.min()) / REACH, float(value.max()) * REACH)
            for name, value in self.parameters.kernel.parameters().items()
        }
        for path in self.signals if capped else ():
            bounds[path] = (bounds[path][0], max(LARGEST_SIGNAL, bounds[path][1] / REACH))
        return bounds

    def holds(self, path: str, fixed: tuple[str, ...]) -> bool:
        """Tell whether training leaves this parameter as it is, given the names the user fixed."""
        return path in self.fixed or bool({path, path.rpartition(".")[2]} & set(fixed))

    def moved_to(self, found: Parameters, fixed: tuple[str, ...]) -> Parameters | None:
        """Start from a θ found earlier, with all that training leaves as it is from here.

        Other rows have other scales, and a period in the units of the data is another number there.
        None where the kernel has other parameters.
        """
        start = self.parameters
        old, new = found.kernel.parameters(), start.kernel.parameters()
        if {k: v.shape for k, v in old.items()} != {k: v.shape for k, v in new.items()}:
            return None
        here = replace(found, inducing=None).to(start.noise.device, start.noise.dtype)
        held = {k: v for k, v in new.items() if self.holds(f"kernel.{k}", fixed)}
        noise = start.noise if self.holds("noise", fixed) else here.noise
        return replace(here, kernel=here.kernel.with_parameters(held), noise=noise)
