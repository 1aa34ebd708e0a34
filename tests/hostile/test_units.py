"""Units: what is predicted of a transformed target is what one does by hand, in any units of it.

Every method that takes or returns values in the target's units is called, by its signature, of a model
with every `target_transform`, and of one whose targets are in other units.
"""

import math
import warnings

import numpy as np
import pytest
from hostile import calls
from hostile.trial import alike, ending, outcome, times, tiny
from scipy.special import roots_hermitenorm

import distgp
from distgp._util.checks import silenced
from distgp.diagnostics.calibration import NegativeBoundWarning
from distgp.likelihoods.transforms import TRANSFORMS

KIND = "units under transforms"
EXPERTS = [*distgp.EXPERTS]
SCALES = (1e-100, 1e-20, 1e-3, 7.0, 1e6, 1e50, 1e100)
"""Other units: what is 1 in the first is so much in the others."""


def transformed(expert, transform, folder, scale=1.0):
    """A model of positive targets, on the same rows in whatever units."""
    make = lambda: tiny(expert=expert, target_transform=transform)  # noqa: E731
    return calls.case_of(make, folder, positive=True, scale=scale)


@pytest.fixture(scope="module", params=[(e, t) for e in EXPERTS for t in (None, *TRANSFORMS)])
def case(request, tmp_path_factory):
    expert, transform = request.param
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return transformed(expert, transform, tmp_path_factory.mktemp(expert))


NAMES = [name for name in calls.methods(distgp.DistributedGPRegressor) if name not in calls.CHANGES]


def test_targets_in_other_units_are_predicted_in_these(case, tmp_path):
    """Each answer is cᵏ times that of the targets in units that are c times smaller: k is 0, 1 or 2."""
    transform, expert = case.gp.target_transform, case.gp.expert
    rng = np.random.default_rng(0)
    for scale in SCALES[:: times(6, 1)]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            other = transformed(expert, transform, tmp_path, scale)
        for _ in range(times(15, 150)):
            name, seed = str(rng.choice(NAMES)), int(rng.integers(2**31))
            pair = [calls.call(one, name, np.random.default_rng(seed)) for one in (case, other)]
            found = [
                outcome(kind, lambda run=run: calls.numbers(run(), case.points))
                for kind, (run, _) in zip((None, KIND), pair, strict=True)
            ]
            check_units(found, scale, f"{pair[0][1]}, {transform}, {scale:g}", name == "nlpd")


def check_units(found, scale, what, density):
    """Refused in both units or in none; finite, and in units of the target, or none."""
    one, other = found
    assert (one is None) == (other is None), what
    for a, b in zip(one or [], other or [], strict=True):
        assert np.isfinite(a).all() and np.isfinite(b).all(), what
        if density:
            np.testing.assert_allclose(a + math.log(scale), b, rtol=1e-6, atol=1e-6, err_msg=what)
            continue
        size = max(float(np.abs(a).max()), 1e-300)
        errors = [np.abs(b / scale / scale ** (k - 1) - a).max() / size for k in (0, 1, 2)]
        assert min(errors) < 1e-6, (what, errors)


def by_hand(case, plain, name, given):
    """What a call says of the target, from what a model of z = g(y) says of z; None where nobody knows."""
    g, rows = case.gp.model_.targets[0].transform, case.points
    latent = given.get("latent", False)
    options = {k: v for k, v in given.items() if k in ("latent", "aggregation")}
    mean, std = plain.predict(rows, return_std=True, **options)
    # The variance of a wide log-normal lies far out; a power transform is integrated by 64 nodes as ours.
    nodes, weights = roots_hermitenorm(200 if g.name == "log" else 64)
    values = g.inverse(mean[:, None] + std[:, None] * nodes)
    first = values @ weights / weights.sum()
    second = np.square(values - first[:, None]) @ weights / weights.sum()
    if name == "predict":
        # The mean is that of an observation, unless f is asked for.
        return (first, np.sqrt(second)) if given.get("return_std") else first
    if name == "predict_quantiles":
        return g.inverse(plain.predict_quantiles(rows, given["q"], **options))
    if name in ("predict_interval", "predict_with_interval"):
        with silenced(NegativeBoundWarning):  # the logarithm has no bound at 0
            ends = plain.predict_interval(rows, given.get("coverage", 0.9), **options)
        ends = tuple(g.inverse(end) for end in ends)
        return ends if name == "predict_interval" else (first, np.sqrt(second), *ends)
    if name == "sample_y":
        known = {k: v for k, v in given.items() if k in ("n_samples", "random_state")}
        return g.inverse(plain.sample_y(rows, latent=latent, **known))
    if name == "nlpd":
        y = np.resize(case.y, len(rows))
        return plain.nlpd(rows, g.forward(y)) - float(np.mean(g.log_slope(y)))
    if name == "novelty":
        return plain.novelty(rows)
    return None


HAND = ("predict", "predict_quantiles", "predict_interval", "predict_with_interval", "sample_y",
        "nlpd", "novelty")  # fmt: skip
TRANSFORMED = ("return_cov is of Gaussian predictions",)
"""What is refused under a transform alone, which the table of docs/warnings.md says."""
ELSE = ("score", "save", "summary", "to_torch", "decompose", "importance")
"""Methods whose answers are no predictions in the target's units, or which refuse a transform."""


def test_what_is_done_by_hand_is_known_for_every_method():
    lacking = set(NAMES) - {*HAND, *ELSE}
    assert not lacking, f"say in by_hand what {lacking} give under a target_transform"


def test_predictions_of_transformed_targets_are_those_made_by_hand(case):
    gp = case.gp
    if gp.target_transform is None:
        pytest.skip("nothing is transformed")
    rng = np.random.default_rng(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        transform = gp.model_.targets[0].transform
        plain = tiny(expert=gp.expert).fit(case.X, transform.forward(case.y))
    for _ in range(times(20, 300)):
        name = str(rng.choice(HAND))
        run, what, given = calls.call_with(case, name, rng)
        found, error = ending(KIND, lambda run=run: calls.numbers(run(), case.points))
        if given.get("noise_variance") is not None:
            assert error is not None, f"{what}: the target's units are not z's"
            continue
        own = given | ({"y": transform.forward(given["y"])} if "y" in given else {})
        refused = ending(None, lambda name=name, own=own: getattr(plain, name)(**own))[1]
        if alike(refused, error, what, TRANSFORMED):
            expected = calls.numbers(by_hand(case, plain, name, given), case.points)
            for one, other in zip(found, expected, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-7, atol=1e-12, err_msg=what)


@pytest.mark.parametrize("transform", [None, *TRANSFORMS])
@pytest.mark.parametrize("method", ["fit", "partial_fit", "predict", "predict_quantiles"])
def test_noise_in_the_units_of_the_target_is_refused_where_these_are_left(
    transform, method, tmp_path
):
    case = transformed("exact", transform, tmp_path)
    noise = np.full(len(case.points), 0.1)
    y = np.resize(case.y, len(case.points))
    given = {"X": case.points, "noise_variance": noise}
    given |= {"y": y} if "fit" in method else {"q": 0.5} if method == "predict_quantiles" else {}
    found = outcome(KIND, lambda: getattr(case.gp, method)(**given))
    assert (found is None) == (transform is not None)
