"""What a fit found that its user should know, each with what to do about it.

Every finding is a function of one fitted model that returns a few words, or None where there is nothing to
tell. `tell` asks all of them of all targets, and warns once of each kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from distgp.auto import LARGEST_INDUCING
from distgp.data import sample
from distgp.engines import travels
from distgp.experts import Posterior, SparseExpert, SparsePosterior, inducing
from distgp.experts.base import chunk_rows
from distgp.model import Model
from distgp.training import TrainingResult
from distgp.warn import warn_user

LAST_ROUNDS = 10
"""The accepted rounds at the end of training whose progress is looked at."""
NOTICEABLE = 1e-3
"""Nats per row that the objective must have fallen in these rounds for training to be unfinished, half of
them in the last two: L-BFGS gains much in ten rounds, and next to nothing in the last of them when it
has arrived."""
AT_BOUND = 1e-3
"""How close to a bound, relative to it, a hyperparameter sits at the bound."""
ALL_NOISE = 0.99
"""The share of the targets' variance from which on everything is noise."""
ALL_ALONE, NO_SAY = 0.9, 0.01
"""The share of rows from which on the kernel is like noise: rows whose nearest row explains less than this
share of the function's variance there."""
LEAST_ROWS = 20
"""Fewer rows do not show that there is nothing to learn."""
SAMPLE = 64
"""Rows that are asked what their nearest row says of them; each is compared with all rows."""
UNEXPLAINED = 0.2
"""The share of the noise variance that inducing inputs may leave unexplained. It is below 1 wherever
training ended: the bound is best where the noise is the error that is left plus what is unexplained."""
NAMED_AT_MOST = 6
"""Hyperparameters at bounds that one text names; of more, it gives the number."""


class FitWarning(UserWarning):
    """A fit found something that its user should know."""


class NotConvergedWarning(FitWarning, ConvergenceWarning):
    """Training used up its rounds while the objective still fell."""


class BoundWarning(FitWarning):
    """A hyperparameter ended at a bound that stopped it."""


class NothingLearntWarning(FitWarning):
    """The model takes nearly all of the target for noise."""


class InducingWarning(FitWarning, inducing.InducingWarning):
    """The largest number of inducing inputs that "auto" takes is too small for the data."""


def tell(
    models: Sequence[Model],
    given_bounds: Mapping[str, tuple[float, float]] | None,
    rows: int,
    targets: Sequence[str] | None = None,
) -> None:
    """Warn of what a fit found: once of each kind, for all targets together.

    Parameters
    ----------
    models : sequence of Model
        The fitted models, one per target.
    given_bounds : mapping of str to (float, float), optional
        The bounds that the user gave, by name. Defaults do not belong here.
    rows : int
        The number of training rows.
    targets : sequence of str, optional
        The names of the targets; numbers by default.

    Warns
    -----
    FitWarning
        One of its subclasses for every kind of finding.
    """
    names = [f"target {i}" for i in range(len(models))] if targets is None else list(targets)
    about = Fit(frozenset(given_bounds or ()), rows)
    for category, finding, remedy in FINDINGS:
        told = []
        for name, model in zip(names, models, strict=True):
            text = finding(model, about)
            if text is not None:
                told.append(text if len(models) == 1 else f"{name}: {text}")
        if told:
            found = "; ".join(told)
            warn_user(f"{found[0].upper()}{found[1:]}. {remedy}", category)


@dataclass(frozen=True)
class Fit:
    """What findings need to know beside the model.

    Parameters
    ----------
    bounded : frozenset of str
        The names of the hyperparameters that the user gave bounds for.
    rows : int
        The number of training rows.
    """

    bounded: frozenset[str]
    rows: int


def unfinished(model: Model, fit: Fit) -> str | None:
    """How much the objective fell in the last rounds, where training used up all of them."""
    result = model.training
    if result is None or result.stopped != "iterations":
        return None
    values, rows = _last_values(result), result.rows or fit.rows
    if len(values) < 2:
        return None
    fall, lately = (values[0] - values[-1]) / rows, (values[-3:][0] - values[-1]) / rows
    if not (fall > NOTICEABLE and lately > 0.5 * NOTICEABLE):
        return None
    return (
        f"training ended after {len(result.history)} rounds, before it was finished: in the last "
        f"{len(values) - 1} that made progress the objective still fell by {fall:.2g} nats per row"
    )


def _last_values(result: TrainingResult) -> list[float]:
    """The objective before and after each of the last accepted rounds, of the last stage alone."""
    stage = len(result.history) if result.last_stage is None else result.last_stage
    rounds = result.history[len(result.history) - stage :]
    return [round_.objective for round_ in rounds if round_.accepted][-LAST_ROUNDS - 1 :]


def at_bounds(model: Model, fit: Fit) -> str | None:
    """The hyperparameters at bounds that the user gave, and lengthscales at the lower default bound.

    Other defaults are no news: a lengthscale at its upper bound belongs to a column that is not used,
    and neither the cap of the signal variance nor the floor of the noise changes predictions.
    """
    result = model.training
    if result is None or result.bounds is None:
        return None
    given = {path for name in fit.bounded for path in model.parameters.paths(name)}
    found: list[str] = []
    for path, (low, high) in result.bounds.items():
        value = _values(model)[path]
        below, above = value <= low * (1.0 + AT_BOUND), value >= high * (1.0 - AT_BOUND)
        if path in given:
            found += [*_named(path, below, "lower", low), *_named(path, above, "upper", high)]
        elif path.endswith("lengthscale"):
            found += _named(path, below, "lower", low)
    if not found:
        return None
    few = found[:NAMED_AT_MOST]
    more = f", and {len(found) - len(few)} more" if len(found) > len(few) else ""
    return f"hyperparameters ended at a bound: {', '.join(few)}{more}"


def _named(path: str, at: Tensor, side: str, bound: float) -> list[str]:
    """The entries of a parameter that are at a bound, in words; of experts that differ, any of them."""
    if at.ndim == 0 or (at.ndim == 1 and path == "noise"):
        at, entries = at.any(), [""]
    else:
        at = at.reshape(-1, at.shape[-1]).any(0)
        entries = [f"[{i}]" if len(at) > 1 else "" for i in range(len(at))]
    hits = at.reshape(-1).tolist()
    return [
        f"{path}{entry} at its {side} bound {bound:g}"
        for entry, hit in zip(entries, hits, strict=True)
        if hit
    ]


def _values(model: Model) -> dict[str, Tensor]:
    """Kernel parameters and noise by full path."""
    kernel = {f"kernel.{name}": v for name, v in model.parameters.kernel.parameters().items()}
    return kernel | {"noise": model.parameters.noise}


def nothing_learnt(model: Model, fit: Fit) -> str | None:
    """Where training found no pattern: all is noise, or the function is so rough that it is like noise.

    The noise is compared with the variance of the targets that the experts were given: 1 where they were
    standardised, the data's own where not. Noise and kernel's variance together would be no measure
    of it, since with long lengthscales the kernel's stands for a constant. A kernel is like noise where
    it makes nearly all rows independent of their nearest row. Where experts differ, none may have learnt
    anything.
    """
    result = model.training
    if result is None or result.bounds is None or fit.rows < LEAST_ROWS:
        return None
    moments = [part for part in model.ensemble.map(_target_moments) if part is not None]
    if moments and "noise" in result.bounds:
        n, total, squares = torch.stack(moments).sum(0).tolist()
        variance = squares / n - (total / n) ** 2
        noise = float(model.parameters.noise.min()) * (model.row_noise or 1.0)
        if noise >= ALL_NOISE * variance > 0:
            return (
                f"nothing was learnt: the noise variance is {100 * min(1.0, noise / variance):.0f} % of "
                "the target's variance, so that predictions are next to the same everywhere"
            )
    if len(moments) == len(model.ensemble.counts) and _alone(model) >= ALL_ALONE:
        return (
            "nothing was learnt: the lengthscales are so short that rows say nothing about each other, "
            "so that predictions of new rows are next to the same everywhere"
        )
    return None


def _alone(model: Model) -> float:
    """The share of rows that not even their nearest row says anything about."""
    if isinstance(model.ensemble.expert, SparseExpert):
        return 0.0  # what inducing inputs do not explain is noise to them
    rows = sample.drawn(model.ensemble.placement, SAMPLE, 0)
    found = model.ensemble.map(_closest, rows.X, rows.rows)
    explained = torch.stack([part.cpu() for part in found]).amax(0)
    return float((explained < NO_SAY).double().mean())


@travels("distances", X="inputs", numbers="inputs")
def _closest(posterior: Posterior, X: Tensor, numbers: Tensor) -> Tensor:
    """The largest squared correlation of f at each point with f at another row of a worker, (N,).

    Rows with the same number as the point are the point itself.
    """
    shard, kernel = posterior.rows_held(), posterior.parameters.kernel
    rows = shard.X.to(posterior.parameters.noise.dtype)
    points, numbers = X.to(rows), numbers.to(rows.device)
    tiny = torch.finfo(rows.dtype).tiny
    size, found = chunk_rows(rows[..., 0].numel(), rows.device), []
    with torch.no_grad():
        spread = kernel.diag(rows)[..., None, :]
        for start in range(0, len(points), size):
            some = points[start : start + size]
            own = shard.rows[..., None, :] == numbers[start : start + size, None]
            scale = kernel.diag(some)[..., :, None] * spread
            square = kernel(some, rows).square() / scale.clamp_min(tiny)
            square = torch.where(own | (shard.rows < 0)[..., None, :], 0.0, square)
            found.append(square.amax(-1).reshape(-1, len(some)).amax(0))
    return torch.cat(found).clamp_max(1.0)


@travels("moments")
def _target_moments(posterior: Posterior) -> Tensor | None:
    """n, Σy and Σy² of a worker's rows; None where they are no longer held."""
    if posterior.shard is None:
        return None
    y = posterior.shard.flatten().without_padding().y.double()
    return torch.stack([y.new_tensor(len(y)), y.sum(), y.square().sum()]).cpu()


def too_few_inducing(model: Model, fit: Fit) -> str | None:
    """What inducing inputs leave unexplained, where they are as many as "auto" takes at most.

    The mean of k(x, x) − q(x, x) over all training rows is known from the sums that sparse experts
    are made of, so that no rows are needed.
    """
    del fit
    Z = model.parameters.inducing
    sparse = isinstance(model.ensemble.expert, SparseExpert)
    if not sparse or Z is None or Z.shape[-2] < LARGEST_INDUCING:
        return None
    left, n = torch.stack(model.ensemble.map(_residual)).sum(0).tolist()
    if not left > UNEXPLAINED * n:
        return None
    return (
        f"{Z.shape[-2]:,} inducing inputs are too few: they leave a variance unexplained that is "
        f"{left / n:.2g} times that of the noise, so that detail in the data is taken for noise"
    )


@travels("sums")
def _residual(posterior: SparsePosterior) -> Tensor:
    """Σ(k(x, x) − q(x, x)) / σ² and n of a worker's rows."""
    sums = posterior.sums
    left = sums.trace - sums.AAt.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.stack([left.sum(), sums.n.to(left).sum()]).cpu()


FINDINGS: tuple[tuple[type[FitWarning], Callable[[Model, Fit], str | None], str], ...] = (
    (
        NotConvergedWarning,
        unfinished,
        "Give more rounds by n_iter, or go on from here by warm_start=True and another fit",
    ),
    (
        BoundWarning,
        at_bounds,
        "If a bound of your own is meant as it is, nothing is wrong; otherwise widen it in `bounds`. A "
        "lengthscale at its lower bound says that the target jumps from each value of the column to the "
        "next, as it does for identifiers, for categories written as numbers, and where there is no "
        "pattern at all: drop such a column, or make it one column of 0 and 1 per value",
    ),
    (
        NothingLearntWarning,
        nothing_learnt,
        "Check that the rows of X belong to those of y and that the columns can say anything about the "
        "target; if they can, start training from other lengthscales with a `kernel` of your own",
    ),
    (
        InducingWarning,
        too_few_inducing,
        'Take expert="nearest", which looks at the rows near to each point, or more inducing inputs by '
        "n_inducing, at a cost that grows with their square",
    ),
)
"""The kinds of findings: the warning, the function that finds it, and what to do about it."""
