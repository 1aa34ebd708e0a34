"""One stage of training: where θ starts, the rounds from there, and their result."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from distgp._util.checks import warn_user
from distgp._util.progress import Progress, doing, in_words, telling
from distgp.data import shard as sample
from distgp.data.shard import Shard
from distgp.engines import Placement
from distgp.experts import Expert, Parameters
from distgp.kernels import Expression, InputLayout, Kernel, in_data_units
from distgp.training.curvature import Curvature
from distgp.training.objective import Layout, LogNormal, Objective, Prior, by_path, objective_value
from distgp.training.rounds import Algorithm, Rounds, Stop, TrainingResult

REACH = 1e3
"""How far training may take the parameters of a named kernel from where they start."""
LARGEST_SIGNAL = 1.0
"""The largest signal variance of a named kernel, in units of the target's variance. Beyond it, where
columns nearly repeat each other, the variance runs away with the lengthscales for next to nothing, and
the model extrapolates without limit along directions in which its rows hardly vary."""
SHORTER = 0.7
"""The most probable lengthscale of few rows, in units of that which training starts from, √d by default.
Hvarfner, Hellsten and Nardi (2024) have this one for inputs spread evenly over a unit cube."""
SEARCHED = (0.3, 0.1, 0.03)
"""Factors of the lengthscales that are tried as a start too."""
FAINT = 0.1
"""The share of the signal that is left where a start takes the rest for noise."""


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


def starts(
    expert: Expert,
    theta: Parameters,
    shards: Placement[Shard],
    priors: Mapping[str, Prior] | None = None,
) -> list[Parameters]:
    """Return θ, and after it θ with shorter lengthscales where these explain the rows better.

    From long ones training can end where everything is noise. From short ones it can end where rows with
    equal values in a column, of which there are many if it has few values, hardly tell of each other. The
    objective at the start does not show which it will be.
    """

    def value(candidate: Parameters) -> float:
        found = objective_value(expert, candidate, shards, priors)
        return found if math.isfinite(found) else math.inf

    best = min([theta, *with_lengthscales(theta, SEARCHED)], key=value)
    return [theta] if best is theta else [theta, best]


def faint(theta: Parameters, fixed: Collection[str] = ()) -> Parameters | None:
    """Take most of the signal's variance for noise; None where there is none, or something is fixed.

    From strong signals training can end where nothing is left of a faint one, or where lengthscales are
    so short that the kernel is noise too.
    """
    values = theta.kernel.parameters()
    signals = {name: value for name, value in values.items() if name.endswith("variance")}
    if fixed or not signals:
        return None
    kernel = theta.kernel.with_parameters({k: FAINT * v for k, v in signals.items()})
    rest = (1.0 - FAINT) * sum(float(v.mean()) for v in signals.values())
    return replace(theta, kernel=kernel, noise=theta.noise.clamp_min(rest))


def with_lengthscales(theta: Parameters, factors: Collection[float]) -> list[Parameters]:
    """Multiply all lengthscales of θ by each of these factors; none where it has no lengthscales."""
    kernel = theta.kernel
    lengths = {k: v for k, v in kernel.parameters().items() if k.endswith("lengthscale")}
    scaled = [{name: factor * value for name, value in lengths.items()} for factor in factors]
    return [replace(theta, kernel=kernel.with_parameters(one)) for one in scaled if one]


class TrainingWarning(UserWarning):
    """The objective could not be computed at some point during training; a step was taken back."""


def train(
    algorithm: Algorithm,
    expert: Expert,
    parameters: Parameters,
    shards: Placement[Shard] | Sequence[Shard],
    *,
    own: Collection[str] = (),
    fixed: Collection[str] = (),
    priors: Mapping[str, Prior] | None = None,
    bounds: Mapping[str, tuple[float, float]] | None = None,
    tolerance: float = 1e-6,
    verbose: bool = False,
    curvature: Curvature | None = None,
) -> TrainingResult:
    """Learn θ across shards, by at most `algorithm.n_iter` rounds.

    Parameters are named by their full path, such as "kernel.kernel.lengthscale", "noise" or
    "inducing", or by the last part of it, such as "lengthscale", which stands for every parameter of
    that name.

    Parameters
    ----------
    algorithm : Algorithm
        The method of training.
    expert : Expert
        The kind of expert, which defines the objective.
    parameters : Parameters
        θ to start from. What each expert keeps for itself may have one value per expert.
    shards : Placement of Shard, or sequence of Shard
        One shard per expert.
    own : collection of str, default=()
        Parameters that each expert keeps for itself.
    fixed : collection of str, default=()
        Parameters that are not trained.
    priors : mapping of str to Prior, optional
        Densities of parameters, by name; their logarithms are subtracted from the objective.
    bounds : mapping of str to (float, float), optional
        Lowest and highest values of parameters, by name.
    tolerance : float, default=1e-6
        Training stops when five accepted rounds in a row change the objective by less than this, relative
        to 1 + |objective| or, if that is more, to the number of rows that it looks at.
    verbose : bool, default=False
        Whether to show progress.
    curvature : Curvature, optional
        What earlier training has learnt of the objective's curvature; L-BFGS learns more, and begins with
        it if it knows any.

    Returns
    -------
    TrainingResult

    Warns
    -----
    TrainingWarning
        Once, where the objective could not be computed at some θ on the way.

    Examples
    --------
    >>> import torch
    >>> from distgp.data import Shard
    >>> from distgp.experts import ExactExpert, Parameters
    >>> from distgp.kernels import RBF
    >>> from distgp.training import Fact
    >>> X = torch.linspace(0, 1, 20, dtype=torch.float64)[:, None]
    >>> start = Parameters.of(1.0 * RBF(0.5), 0.1)
    >>> shard = Shard.of(X, torch.sin(6 * X[:, 0]))
    >>> result = train(Fact(n_iter=10), ExactExpert(), start, [shard], fixed=["noise"])
    >>> len(result.history), float(result.parameters.noise)
    (10, 0.1)
    """
    placement = sample.placed(shards)
    sizes = sample.sizes(placement).to(parameters.noise)
    batched = bool(parameters.batch) or bool(parameters.inducing_batch)
    layout = Layout.of(parameters[0] if batched else parameters, own, fixed, bounds)
    _check_batches(algorithm, parameters, layout, len(sizes))
    objective = Objective.of(expert, layout, priors)
    starts = [layout.pack(parameters[i]) for i in range(len(sizes))] if batched else []
    start = torch.stack(starts) if batched else layout.pack(parameters)
    title = f"training by {in_words(algorithm.name)}"
    doing(title)  # told beside what is shown already, where this is not
    with Progress(title, algorithm.n_iter, verbose, at_most=True) as progress:
        rounds = Rounds(algorithm, objective, placement, start, tolerance, progress, curvature)
        try:
            with telling("theta", lambda _: layout.unpack(rounds.vectors, agreed=algorithm.agrees)):
                algorithm.at_centre(objective, start, sizes, rounds)
            stopped = rounds.without_progress()
        except Stop as stop:
            stopped = stop.args[0]
    if rounds.failed:
        warn_user(
            f"{in_words(algorithm.name)}: the objective could not be computed at some hyperparameters; "
            "those steps were taken back and shortened",
            TrainingWarning,
        )
    n = int(sizes.sum())
    return TrainingResult(
        layout.unpack(rounds.vectors, agreed=algorithm.agrees),
        tuple(rounds.history),
        stopped,
        rows=algorithm.rows_of(n),
        last_stage=len(rounds.history) - rounds.began,
        bounds=_trained_bounds(layout, bounds),
    )


def _trained_bounds(
    layout: Layout, bounds: Mapping[str, tuple[float, float]] | None
) -> dict[str, tuple[float, float]]:
    """The bounds of every trained hyperparameter, by its full path; 0 and infinity where it has none."""
    given = dict.fromkeys(layout.names, (0.0, math.inf)) | by_path(bounds or {}, layout.template)
    trained = (name for name in layout.names if name != "inducing")
    return {name: (float(given[name][0]), float(given[name][1])) for name in trained}


def _check_batches(algorithm: Algorithm, parameters: Parameters, layout: Layout, M: int) -> None:
    """Refuse values per expert that do not match the shards, or that the algorithm would merge."""
    batches = {f"kernel.{name}": batch for name, batch in parameters.kernel.batches().items()}
    batches |= {"noise": parameters.noise.shape, "inducing": parameters.inducing_batch}
    kept = layout.own if algorithm.agrees else layout.names
    for name, batch in batches.items():
        if batch and batch != torch.Size([M]):
            raise ValueError(f"{name} has a batch of {tuple(batch)} for {M} shards")
        if batch and name not in kept:
            raise ValueError(
                f"each expert has its own {name}, which {algorithm.name} cannot share or keep fixed: "
                f"give one value, or name it in `own`"
            )
