"""Warnings after a fit about what its user should know, each with what to do about it.

Every check returns a few words about one fitted model, or None where all is well.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from scipy.special import chdtri
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from distgp._util.checks import warn_user
from distgp.data import shard as sample
from distgp.engines import travels
from distgp.experts import Posterior, SparsePosterior, inducing
from distgp.experts.base import chunk_rows
from distgp.experts.sparse import LARGEST_INDUCING
from distgp.model import TargetModel
from distgp.training import TrainingResult

LAST_ROUNDS = 10
"""The accepted rounds at the end of training whose progress is looked at."""
NOTICEABLE = 1e-3
"""Nats per row that the objective must have fallen in these rounds for training to be unfinished, half of
them in the last two: when L-BFGS has arrived, it gains next to nothing in the last of ten rounds."""
AT_BOUND = 1e-3
"""The relative distance within which a hyperparameter counts as at its bound."""
ALL_NOISE = 0.99
"""The share of the targets' variance from which on everything is noise."""
ALL_ALONE, NO_SAY = 0.9, 0.01
"""The share of rows from which on the kernel is like noise: rows whose nearest row explains less than this
share of the function's variance there."""
LEAST_ROWS = 20
"""Fewer rows do not show that there is nothing to learn."""
ROWS_FOR_EACH = 20
"""Rows for each hyperparameter from which on the likelihood shows whether they explain anything."""
BY_CHANCE = 0.1
"""The share of tables without any pattern whose likelihood may gain more than is taken for chance."""
SAMPLE = 64
"""Rows whose nearest row is looked for; each is compared with all rows."""
UNEXPLAINED = 0.2
"""The share of the noise variance that inducing inputs may leave unexplained. It is below 1 wherever
training ended: the bound is best where the noise is the error that is left plus what is unexplained."""
MOST_COPIES, NO_NOISE = 1.5, 1e-3
"""Copies that rows may count as, on average, and the share of the targets' variance below which a noise is
next to none: for copies without scatter the likelihood grows without limit as the noise vanishes, and with
more of them training may end there."""
NAMED_AT_MOST = 6
"""Hyperparameters at bounds that one text names; of more, it gives the number."""


class FitWarning(UserWarning):
    """A fit found something that its user should know."""

    remedy: ClassVar[str] = ""


class NotConvergedWarning(FitWarning, ConvergenceWarning):
    """Training used up its rounds while the objective still fell."""

    remedy = (
        "Go on from here by warm_start=True and another fit, or give more rounds by n_iter; where n_iter "
        "was not given, a larger time_limit gives one large exact GP more of them"
    )


class BoundWarning(FitWarning):
    """A hyperparameter ended at a bound that stopped it."""

    remedy = (
        "If a bound of your own is meant as it is, nothing is wrong; otherwise widen it in `bounds`. A "
        "lengthscale at its lower bound says that the target jumps from each value of the column to the "
        "next, as it does for identifiers, for categories written as numbers, and where there is no "
        "pattern at all: drop such a column, or make it one column of 0 and 1 per value"
    )


class NothingLearntWarning(FitWarning):
    """The model takes nearly all of the target for noise, or explains it as chance does."""

    remedy = (
        "Check that the rows of X belong to those of y and that the columns can say anything about the "
        "target; if they can, start training from other lengthscales with a `kernel` of your own"
    )


class InducingWarning(FitWarning, inducing.InducingWarning):
    """The largest number of inducing inputs that "auto" takes is too small for the data."""

    remedy = (
        'Take expert="nearest", which looks at the rows near to each point, or more inducing inputs by '
        "n_inducing, at a cost that grows with their square"
    )


class CopiesWarning(FitWarning):
    """Rows count as copies with equal targets, and training found next to no noise."""

    remedy = (
        "If targets are means of several observations, give noise_variance=1 / number in place of "
        "sample_weight; if weights say how much a row matters, divide them by their mean"
    )


KINDS = (NotConvergedWarning, BoundWarning, NothingLearntWarning, InducingWarning, CopiesWarning)


def warn_about_fit(
    models: Sequence[TargetModel],
    given_bounds: Iterable[str] | None,
    rows: int,
    targets: Sequence[str] | None = None,
) -> None:
    """Warn of what a fit found: once of each kind, for all targets together.

    `given_bounds` names the hyperparameters that the user, not a default, gave bounds for; `targets` are
    the names of the targets, by default numbers.
    """
    bounded = frozenset(given_bounds or ())
    checks = [
        (
            unfinished(m, rows),
            at_bounds(m, bounded),
            nothing_learnt(m, rows),
            too_few(m),
            too_many_copies(m),
        )
        for m in models
    ]
    names = [f"target {i}" for i in range(len(models))] if targets is None else targets
    for category, texts in zip(KINDS, zip(*checks, strict=True), strict=True):
        found = [(name, text) for name, text in zip(names, texts, strict=True) if text is not None]
        if found:
            said = "; ".join(t if len(models) == 1 else f"{name}: {t}" for name, t in found)
            warn_user(f"{said[0].upper()}{said[1:]}. {category.remedy}", category)


def unfinished(model: TargetModel, rows: int) -> str | None:
    """Tell how much the objective fell in the last rounds, where training used up all of them."""
    result = model.training
    if result is None or result.stopped != "iterations":
        return None
    values, rows = _last_values(result), result.rows or rows
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
    """Return the objective before and after each of the last accepted rounds, of the last stage alone."""
    stage = len(result.history) if result.last_stage is None else result.last_stage
    rounds = result.history[len(result.history) - stage :]
    return [round_.objective for round_ in rounds if round_.accepted][-LAST_ROUNDS - 1 :]


def at_bounds(model: TargetModel, bounded: frozenset[str]) -> str | None:
    """Tell which hyperparameters are at bounds that the user gave, or lengthscales at the lower default.

    Other defaults are no news: they belong to columns that are not used, or do not change predictions.
    """
    result, parameters = model.training, model.ensemble.parameters
    if result is None or result.bounds is None:
        return None
    kernel = {f"kernel.{name}": value for name, value in parameters.kernel.parameters().items()}
    values = kernel | {"noise": parameters.noise}
    given = {path for name in bounded for path in parameters.paths(name)}
    found: list[str] = []
    for path, (low, high) in result.bounds.items():
        below = values[path] <= low * (1.0 + AT_BOUND)
        above = values[path] >= high * (1.0 - AT_BOUND)
        if path in given or path.endswith("lengthscale"):
            found += [f"{name} at its lower bound {low:g}" for name in _entries(path, below)]
        if path in given:
            found += [f"{name} at its upper bound {high:g}" for name in _entries(path, above)]
    if not found:
        return None
    more = f", and {len(found) - NAMED_AT_MOST} more" if len(found) > NAMED_AT_MOST else ""
    return f"hyperparameters ended at a bound: {', '.join(found[:NAMED_AT_MOST])}{more}"


def _entries(path: str, chosen: Tensor) -> list[str]:
    """Name the chosen entries of a parameter; where experts differ, those that any of them has chosen."""
    if chosen.ndim == 0 or path == "noise":
        return [path] if bool(chosen.any()) else []
    chosen = chosen.reshape(-1, chosen.shape[-1]).any(0)
    return [f"{path}[{i}]" if len(chosen) > 1 else path for i in chosen.nonzero()[:, 0].tolist()]


def nothing_learnt(model: TargetModel, rows: int) -> str | None:
    """Tell that training found no pattern: all is noise, or the function is so rough that it is like noise.

    The noise is compared with the variance of the targets that the experts were given. Noise and kernel's
    variance together would be no measure of it, since with long lengthscales the kernel's stands for a
    constant. A kernel is like noise where it makes nearly all rows independent of their nearest row. Where
    experts differ, none may have learnt anything.
    """
    result = model.training
    if result is None or result.bounds is None or rows < LEAST_ROWS:
        return None
    if model.scaling.slope is not None:  # the trend was learnt, and it may be all there is
        return None
    moments = [part for part in model.ensemble.placement.map(_target_moments) if part is not None]
    if moments and "noise" in result.bounds:
        n, total, squares, own, _ = torch.stack(moments).sum(0).tolist()
        variance = squares / n - (total / n) ** 2
        noise = float(model.ensemble.parameters.noise.min()) * (model.likelihood.row_noise or 1.0)
        if noise >= ALL_NOISE * variance > 0:
            return (
                f"nothing was learnt: the noise variance is {100 * min(1.0, noise / variance):.0f} % of "
                "the target's variance, so that predictions are next to the same everywhere"
            )
        if not own and _by_chance(result, int(n), variance):
            return (
                "nothing was learnt for certain: the model explains the rows no better than it would "
                "explain pure noise, so that differences of predictions are not to be trusted"
            )
    if len(moments) == len(model.ensemble.counts) and _share_alone(model) >= ALL_ALONE:
        return (
            "nothing was learnt: the lengthscales are so short that rows say nothing about each other, "
            "so that predictions of new rows are next to the same everywhere"
        )
    return None


def _by_chance(result: TrainingResult, n: int, variance: float) -> bool:
    """Whether the likelihood gains no more over noise alone than it does by chance, but once in ten times.

    Where there is nothing to learn, P hyperparameters gain about half of χ² with P − 2 degrees of freedom:
    noise alone has a variance too, and what is faint is a straight line, of which one slope shows for each
    lengthscale, but no signal variance. Few rows for each have priors that count too, and do not show
    it; nor does training that was cut short.
    """
    values = {f"kernel.{k}": v for k, v in result.parameters.kernel.parameters().items()}
    values["noise"] = result.parameters.noise
    count = sum(values[name].numel() for name in result.bounds or () if name in values)
    ended = result.stopped == "tolerance" and result.rows == n
    if not ended or n < ROWS_FOR_EACH * count or not variance > 0:
        return False
    noise_alone = 0.5 * n * (1.0 + math.log(2.0 * math.pi * variance))
    chance = 0.5 * float(chdtri(max(1, count - 2), BY_CHANCE))
    return noise_alone - result.objective < chance


def _share_alone(model: TargetModel) -> float:
    """Return the share of rows that not even their nearest row says anything about."""
    if not model.ensemble.expert.holds_rows:
        return 0.0  # what inducing inputs do not explain is noise to them
    rows = sample.drawn(model.ensemble.placement, SAMPLE, 0)
    found = model.ensemble.placement.map(_closest, rows.X, rows.rows)
    explained = torch.stack([part.cpu() for part in found]).amax(0)
    return float((explained < NO_SAY).double().mean())


@travels("distances", X="inputs", numbers="inputs")
def _closest(posterior: Posterior, X: Tensor, numbers: Tensor) -> Tensor:
    """Return the largest squared correlation of f at each point with f at another row of a worker, (N,)."""
    shard, kernel = posterior.rows_held(), posterior.parameters.kernel
    rows = shard.X.to(posterior.parameters.noise.dtype)
    points, numbers = X.to(rows), numbers.to(rows.device)
    tiny = torch.finfo(rows.dtype).tiny
    size, found = chunk_rows(rows[..., 0].numel(), rows.device), []
    with torch.no_grad():
        spread = kernel.diag(rows)[..., None, :]
        for some, own_numbers in zip(points.split(size), numbers.split(size), strict=True):
            own = shard.rows[..., None, :] == own_numbers[:, None]
            scale = kernel.diag(some)[..., :, None] * spread
            square = kernel(some, rows).square() / scale.clamp_min(tiny)
            square = torch.where(own | (shard.rows < 0)[..., None, :], 0.0, square)
            found.append(square.amax(-1).reshape(-1, len(some)).amax(0))
    return torch.cat(found).clamp_max(1.0)


@travels("moments")
def _target_moments(posterior: Posterior) -> Tensor | None:
    """Return n, Σy and Σy² of a worker's rows, how many have a weight or a noise of their own, and Σw.

    None where the rows are no longer held.
    """
    shard = posterior.shard
    if shard is None:
        return None
    real = shard.rows >= 0
    y = shard.y[real].double()
    own = 0 if shard.weight is None and shard.noise is None else len(y)
    copies = len(y) if shard.weight is None else float(shard.weight[real].sum())
    return torch.stack(
        [*y.new_tensor([len(y)]), y.sum(), y.square().sum(), *y.new_tensor([own, copies])]
    ).cpu()


def too_many_copies(model: TargetModel) -> str | None:
    """Tell as how many copies rows count, where training found next to no noise, which these may hide.

    That is the noise of the last round: rows held out may have raised it since, too late for lengthscales.
    """
    result = model.training
    if result is None or "noise" not in (result.bounds or {}):
        return None
    moments = [part for part in model.ensemble.placement.map(_target_moments) if part is not None]
    if not moments:
        return None
    n, total, squares, _, copies = torch.stack(moments).sum(0).tolist()
    noise = float(model.ensemble.parameters.noise.min())
    if result.history:
        noise = min(noise, *result.history[-1].hyperparameters["noise"])
    noise *= model.likelihood.row_noise or 1.0
    if copies <= MOST_COPIES * n or noise > NO_NOISE * (squares / n - (total / n) ** 2):
        return None
    return (
        f"with these weights a row counts as {copies / n:.3g} copies on average, all with the same target. "
        "Copies do not scatter, so training has found next to no noise"
    )


def too_few(model: TargetModel) -> str | None:
    """Tell what inducing inputs leave unexplained, where they are as many as "auto" takes at most."""
    ensemble, Z = model.ensemble, model.ensemble.parameters.inducing
    if ensemble.expert.holds_rows or Z is None or Z.shape[-2] < LARGEST_INDUCING:
        return None
    left, n = torch.stack(ensemble.placement.map(_residual)).sum(0).tolist()
    if not left > UNEXPLAINED * n:
        return None
    return (
        f"{Z.shape[-2]:,} inducing inputs are too few: they leave a variance unexplained that is "
        f"{left / n:.2g} times that of the noise, so that detail in the data is taken for noise"
    )


@travels("sums")
def _residual(posterior: SparsePosterior) -> Tensor:
    """Return Σ(k(x, x) − q(x, x)) / σ² and n of a worker's rows."""
    sums = posterior.sums
    left = sums.trace - sums.AAt.diagonal(dim1=-2, dim2=-1).sum(-1)
    return torch.stack([left.sum(), sums.n.to(left).sum()]).cpu()
