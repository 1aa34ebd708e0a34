"""Digits lost far away: rows that are shifted, scaled, or in clusters far apart say the same, or say so.

Inputs are multiples of a power of two, so that shifting and scaling them loses nothing before we see them.
"""

import copy

import numpy as np
import pytest
from hostile import calls
from hostile.trial import alike, ending, times, tiny

import distgp

EXPERTS = [*distgp.EXPERTS]
SHIFTS = [2.0**k for k in (4, 10, 17, 24, 31, 36, 40)]
"""Up to 1e12 of the units in which the rows differ by about 1."""
SCALES = [2.0**k for k in (-498, -300, -100, -20, 20, 100, 300, 498)]
"""Units of 1e-150 to 1e150."""
NAMES = [name for name in calls.methods(distgp.DistributedGPRegressor) if name not in calls.CHANGES]
GRAIN = 2.0**-10


def rounded(values):
    return np.round(values / GRAIN) * GRAIN


def moved(case, how, size, columns):
    """The same rows in other places or units, and what becomes of the points and the targets."""
    other = copy.copy(case)
    X, points, y = case.X.copy(), case.points.copy(), case.y.copy()
    if how == "inputs shifted":
        X[:, columns] += size
        points[:, columns] += size
    elif how == "inputs scaled":
        X[:, columns] *= size
        points[:, columns] *= size
    elif how == "targets shifted":
        y = y + size
    else:
        y = y * size
    other.X, other.points, other.y = X, points, y
    return other


def base(folder):
    """Rows whose numbers are short, so that no digit of them is lost when they are shifted."""
    case = calls.case_of(lambda: tiny(), folder)
    case.X, case.points, case.y = map(rounded, (case.X, case.points, case.y))
    return case


def fitted(case, kind="far away", **parameters):
    """The case with a model of its rows, and the error where these are refused."""
    case.gp, error = ending(kind, lambda: tiny(training=None, **parameters).fit(case.X, case.y))
    return case, error


def answers(case, name, seed, kind="far away"):
    """What a call says, the error where it is refused, and what it is, in words."""
    run, what = calls.call(case, name, np.random.default_rng(seed))
    return *ending(kind, lambda: calls.numbers(run(), case.points)), what


HOW = {
    "inputs shifted": SHIFTS,
    "inputs scaled": SCALES,
    "targets shifted": SHIFTS,
    "targets scaled": SCALES,
}


@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("how", HOW)
def test_rows_elsewhere_or_in_other_units_say_the_same(expert, how, tmp_path):
    one, error = fitted(base(tmp_path), None, expert=expert)
    assert error is None
    rng = np.random.default_rng(0)
    for size in HOW[how][:: times(6, 1)]:
        columns = [[0], [1], [0, 1]][int(rng.integers(3))]
        other, error = fitted(moved(one, how, size, columns), expert=expert)
        if not alike(None, error, f"the fit, {how} by {size:g}"):
            continue
        for _ in range(times(5, 60)):
            name, seed = str(rng.choice(NAMES)), int(rng.integers(2**31))
            a, refused, what = answers(one, name, seed, None)
            b, error, _ = answers(other, name, seed)
            what = f"{what}, {how} by {size:g}"
            if alike(refused, error, what):
                check(a, b, how, size, what, name)


def check(one, other, how, size, what, name):
    """The same to 1e-6, in the units that were chosen."""
    for a, b in zip(one, other, strict=True):
        assert np.isfinite(b).all(), what
        spread = max(float(np.abs(a).max()), 1e-3)
        if how == "targets shifted":
            close = [np.abs(b - a - add).max() / spread for add in (0.0, size)]
            # The targets themselves have lost nothing, but sums with the shift are rounded to its digits,
            # their mean among them, and weights whose sum is w multiply its error by |1 − w|.
            rounded = (256 if "opt-printed" in what else 4) * size * np.finfo(float).eps
            assert min(close) < 1e-6 + rounded / spread, (what, close)
        elif how == "targets scaled" and name == "nlpd":
            assert abs(b - a - np.log(size)) < 1e-6 * abs(np.log(size)), what
        elif how == "targets scaled":
            close = [np.abs(b / size / size ** (k - 1) - a).max() / spread for k in (0, 1, 2)]
            assert min(close) < 1e-6, (what, close)
        else:
            # Centres of k-means are no multiples of a power of two: rounded to the digits of `size`.
            tolerated = 1e-6 + (size * np.finfo(float).eps if how == "clusters, centres" else 0.0)
            assert np.abs(a - b).max() / spread < tolerated, (what, np.abs(a - b).max() / spread)


APART = [2.0**k for k in (10, 14, 20, 24, 30, 34, 40)]
"""Lengthscales between two clusters, from 1e3 to 1e12."""


@pytest.mark.parametrize("n_inducing", [0, 4])
@pytest.mark.parametrize("expert", EXPERTS)
@pytest.mark.parametrize("normalize", [True, False])
def test_clusters_far_apart_say_what_they_say_alone(expert, normalize, n_inducing, tmp_path):
    """Beyond a thousand lengthscales how far they are apart is of no account."""
    if not n_inducing and expert != "nearest":
        pytest.skip("it has no global part to do without")
    given = {"kernel": distgp.Matern52([1.0, 1.0]), "kernel_units": "data", "normalize": normalize}
    found, how = {}, "clusters, centres" if n_inducing else "clusters"
    for apart in APART[:: times(3, 1)]:
        case = base(tmp_path)
        side = np.arange(len(case.X)) % 2
        case.X = case.X + np.outer(side, [apart, 0.0])
        case.points = case.points + np.outer(np.arange(len(case.points)) % 2, [apart, 0.0])
        case, error = fitted(case, expert=expert, n_inducing=n_inducing, **given)
        assert error is None, f"{apart:g} apart: {error}"
        for i in range(times(5, 60)):
            seed = 1000 + i
            name = str(np.random.default_rng(seed).choice([n for n in NAMES if n != "novelty"]))
            got, error, what = answers(case, name, seed)
            what = f"{what}, {apart:g} apart"
            # k-means, which chooses inducing inputs, finds another of its solutions where it goes over to
            # differences, between 1e6 and 1e7.
            first, refused = found.setdefault((i, n_inducing > 0 and apart > 2**22), (got, error))
            if alike(refused, error, what):
                check(first, got, how, apart, what, name)
