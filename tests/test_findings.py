"""What a fit tells its user."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

import distgp
from distgp import DistributedGPRegressor
from distgp.diagnostics.findings import (
    BoundWarning,
    CopiesWarning,
    FitWarning,
    InducingWarning,
    NotConvergedWarning,
    NothingLearntWarning,
    warn_about_fit,
)
from distgp.experts import inducing


def make_data(n, seed=0, d=2, noise=0.2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + np.cos(X[:, -1]) + noise * rng.normal(size=n)


def told(data, targets=None, **options):
    """The categories and texts of what is told of a fit, whether or not the fit tells it itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FitWarning)
        gp = DistributedGPRegressor(**{"expert": "exact"} | options).fit(*data)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_about_fit(gp.model_.targets, gp.bounds, len(data[0]), targets)
    assert all(warning.filename == __file__ for warning in caught)
    return gp, {warning.category: str(warning.message) for warning in caught}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_experts": 3},
        {"expert": "sparse"},
        {"expert": "nearest", "training": distgp.training.NearestRows(n_neighbors=15)},
        {"n_experts": 3, "training": "independent"},
        {"n_experts": 2, "training": distgp.training.Fact("adam", learning_rate=0.1)},
        {"training": None},
        {"normalize": False},
        {"bounds": {"lengthscale": (1e-3, 1e3), "noise": (1e-6, 10.0)}},
    ],
    ids=str,
)
def test_nothing_is_told_of_ordinary_fits(options):
    assert told(make_data(300), **options)[1] == {}


@pytest.mark.parametrize("options", [{}, {"expert": "sparse"}, {"expert": "nearest"}], ids=str)
def test_training_that_is_not_finished_is_told(options):
    gp, found = told(make_data(300), n_iter=4, **options)
    text = found.pop(NotConvergedWarning)
    assert "4 rounds, before it was finished" in text and "give more rounds by n_iter" in text
    assert not found and gp.training_.stopped == "iterations"
    assert issubclass(NotConvergedWarning, ConvergenceWarning)


def test_training_that_has_practically_arrived_is_finished():
    # Cut off a few rounds before it would have stopped: the last ten rounds still gained a lot.
    data = make_data(300)
    free = {"expert": "exact", "bounds": {"variance": (1e-3, 1e3)}}  # it takes more rounds so
    whole = DistributedGPRegressor(**free).fit(*data).training_
    gp, found = told(data, n_iter=len(whole.history) - 2, **free)
    objectives = [round_.objective for round_ in gp.training_.history]
    assert gp.training_.stopped == "iterations" and objectives[-11] - objectives[-1] > 1
    assert objectives[-1] - whole.objective < 1e-4 and not found


def test_stages_are_told_apart():
    data = make_data(600)
    gp = DistributedGPRegressor(expert="sparse").fit(*data)
    assert 0 < gp.training_.last_stage < len(gp.training_.history)
    method = distgp.training.NearestRows(n_targets=400, n_neighbors=10)
    gp = DistributedGPRegressor(expert="nearest", training=method).fit(*data)
    result = gp.training_
    objectives = np.array([round_.objective for round_ in result.history])
    last = objectives[-result.last_stage :]
    assert (np.diff(last) <= 0).all() and result.rows == 400
    # The stage before looked at fewer targets.
    assert abs(objectives[-result.last_stage - 1] - last[0]) > 10
    early = replace(result, stopped="iterations", history=result.history[:-1])
    short = replace(early, last_stage=result.last_stage - 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_about_fit([replace(gp.model_.targets[0], training=short)], None, 600)


def test_bounds_that_were_given_are_told():
    gp, found = told(make_data(300), bounds={"lengthscale": (3.0, 30.0), "noise": (1e-9, 0.01)})
    text = found.pop(BoundWarning)
    assert "kernel.kernel.lengthscale[0] at its lower bound 3" in text
    assert "noise at its upper bound 0.01" in text and "widen it in `bounds`" in text
    assert not found and gp.noise_ == pytest.approx(0.01)
    _, found = told(make_data(200), n_experts=2, bounds={"noise": (0.5, 2)}, training="independent")
    assert "noise at its lower bound 0.5" in found[BoundWarning]


def test_a_lengthscale_at_its_lower_default_bound_is_told():
    rng = np.random.default_rng(0)
    label = rng.integers(200, size=400)  # an identifier, written as a number
    X = np.column_stack([label * 1e-3, rng.normal(size=400)])
    y = rng.normal(size=200)[label] + 0.1 * rng.normal(size=400)
    kernel = 1.0 * distgp.Matern12([1e-3, 1.4])
    bounds = {"kernel.kernel.lengthscale": (0.05, 1e3)}
    gp, found = told((X, y), kernel=kernel, bounds=bounds, n_experts=1)
    assert "lengthscale[0] at its lower bound 0.05" in found[BoundWarning]
    with warnings.catch_warnings(record=True) as caught:  # the same as a default
        warnings.simplefilter("always")
        warn_about_fit(gp.model_.targets, None, 400)
    assert [warning.category for warning in caught] == [BoundWarning]
    assert "drop such a column" in str(caught[0].message)


def test_default_caps_and_floors_are_no_news():
    X, y = make_data(200)
    X = np.column_stack([X, np.random.default_rng(1).normal(size=(200, 2))])
    gp, found = told((X, X[:, 0]), kernel="rbf")  # no noise, a straight line, columns without use
    high = gp.training_.bounds["kernel.kernel.lengthscale"][1]
    at_floor = float(gp.noise_) < 1.001 * gp.training_.bounds["noise"][0]
    assert at_floor or float(gp.kernel_.kernel.lengthscale.max()) > 0.999 * high
    assert BoundWarning not in found
    _, found = told((X, y), fixed=["lengthscale", "noise"], bounds={"lengthscale": (2.0, 3.0)})
    assert BoundWarning not in found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalize": False},
        {"expert": "sparse", "normalize": False},
        {"n_experts": 3},
        {"expert": "nearest", "training": distgp.training.NearestRows(n_neighbors=15)},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore::distgp.aggregation.variance.CentralWarning")
def test_nothing_learnt_is_told(options):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(600, 2)), 3.0 * rng.normal(size=600)
    gp, found = told((X, y), **options)
    text = found[NothingLearntWarning]
    assert text.startswith("Nothing was learnt") and "Check that the rows of X belong to" in text
    predicted = gp.predict(rng.normal(size=(500, 2)))
    assert "same everywhere" not in text or predicted.std() < 0.15 * y.std()
    assert told((X, y), noise=9.0, training=None)[1] == {}  # these are the user's own values


def test_a_faint_signal_that_is_found_among_many_columns_is_something_learnt():
    """The likelihood gains less than a nat for each hyperparameter, and more than it does by chance."""
    rng = np.random.default_rng(43020)
    X = rng.normal(size=(2500, 20))
    f = 0.3 * X[:, 0]
    y = f + rng.normal(size=2500)
    gp, found = told((X[:500], y[:500]), n_experts=1)
    n = 500
    noise_alone = 0.5 * n * (1.0 + np.log(2.0 * np.pi))  # of a standardised target
    assert noise_alone - gp.training_.objective < 22
    assert np.corrcoef(gp.predict(X[500:]), f[500:])[0, 1] > 0.8
    assert NothingLearntWarning not in found


def test_what_chance_explains_as_well_is_not_said_to_be_the_same_everywhere():
    rng = np.random.default_rng(1)
    X, y = rng.normal(size=(500, 20)), rng.normal(size=500)
    gp, found = told((X, y), n_experts=1)
    assert gp.predict(rng.normal(size=(500, 20))).std() > 0.2
    assert "pure noise, so that differences" in found[NothingLearntWarning]
    assert "same everywhere" not in found[NothingLearntWarning]


@pytest.mark.parametrize("n", [100, 300])
def test_a_linear_trend_is_something_learnt(n):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, 3))
    y = X @ [3.0, 1.0, -2.0] + 0.3 * rng.normal(size=n)
    assert NothingLearntWarning not in told((X, y), mean="linear")[1]


@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.filterwarnings("ignore::distgp.diagnostics.findings.NothingLearntWarning")
def test_where_all_is_noise_the_rows_themselves_are_uncertain_too(seed):
    """A kernel so short that it is noise itself would predict the training rows with their own noise."""
    rng = np.random.default_rng(seed)
    X, y = rng.normal(size=(300, 3)), rng.normal(size=300)
    gp = DistributedGPRegressor("exact", 1).fit(X, y)
    assert gp.predict(X, return_std=True)[1].min() > 0.8


@pytest.mark.parametrize("options", [{}, {"n_experts": 3}, {"expert": "sparse"}], ids=str)
def test_weights_that_hide_the_noise_are_told(options):
    X, y = make_data(120)
    weight = np.linspace(2.0, 4.5, 120)
    _, found = told_of_weights(X, y, weight, **options)
    assert "a row counts as 3.25 copies on average" in found[CopiesWarning]
    assert "give noise_variance=1 / number" in found[CopiesWarning]
    for fine in ({"fixed": ["noise"]}, {"training": None}):
        assert CopiesWarning not in told_of_weights(X, y, weight, **options | fine)[1]
    assert CopiesWarning not in told_of_weights(X, y, weight / weight.mean(), **options)[1]


def test_weights_that_hid_the_noise_from_training_are_told_though_it_was_raised_since():
    """Rows held out raise a noise that is next to none; lengthscales stay as short as copies made them."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(300, 2))
    y = np.sin(2 * X[:, 0]) * np.cos(2 * X[:, 1]) + 0.1 * rng.normal(size=300)
    gp, found = told_of_weights(X, y, np.full(300, 3.0), n_experts=1)
    assert float(gp.noise_) > 0.01 * y.var()
    assert "counts as 3 copies" in found[CopiesWarning]
    assert CopiesWarning not in told_of_weights(X, y, np.ones(300), n_experts=1)[1]


def told_of_weights(X, y, weight, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gp = DistributedGPRegressor(**{"expert": "exact"} | options).fit(X, y, sample_weight=weight)
    return gp, {warning.category: str(warning.message) for warning in caught}


@pytest.mark.filterwarnings(
    "ignore::distgp.selection.CoverWarning"
)  # which tells that rows are few
def test_few_rows_and_short_lengthscales_are_no_proof():
    X, y = make_data(300, d=8)
    assert NothingLearntWarning not in told((X, y))[1]
    assert NothingLearntWarning not in told((X[:19], np.random.default_rng(0).normal(size=19)))[1]


def test_targets_share_one_text():
    rng = np.random.default_rng(0)
    X, y = make_data(400)
    noise = rng.normal(size=400)
    Y = np.column_stack([noise, y, -noise])
    _, found = told((X, Y), ["rain", "heat", "wind"])
    text = found[NothingLearntWarning]
    assert text.startswith("Rain: nothing") and "; wind: nothing was learnt" in text
    assert "heat" not in text and text.count("Check that") == 1
    assert told((X, Y))[1][NothingLearntWarning].startswith("Target 0: ")


def test_too_few_inducing_inputs_are_told(monkeypatch):
    for module in (distgp.experts.sparse, distgp.diagnostics.findings):
        monkeypatch.setattr(module, "LARGEST_INDUCING", 48)
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(900, 4))
    rough = np.sin(6 * X).sum(1) + 0.05 * rng.normal(size=900)
    rest = {"expert": "sparse", "n_experts": 2, "training": None, "noise": 0.3}
    gp, found = told((X, rough), kernel=1.0 * distgp.RBF([1.5] * 4), **rest)
    text = found.pop(InducingWarning)
    assert not found and gp.n_inducing_ == 48 and "48 inducing inputs are too few" in text
    assert 'expert="nearest"' in text and issubclass(InducingWarning, inducing.InducingWarning)
    # What is left is the mean over all rows of k(x, x) − q(x, x), in units of the noise.
    theta, Z = (
        gp.model_.targets[0].parameters,
        gp.model_.targets[0].scaling.inputs(X, gp.model_.targets[0].parameters.noise),
    )
    cross = theta.kernel(Z, theta.inducing).numpy()
    q = (cross * np.linalg.solve(theta.kernel(theta.inducing).numpy(), cross.T).T).sum(1)
    ratio = float((theta.kernel.diag(Z).numpy() - q).mean()) / gp.noise_
    assert ratio > 0.2 and f"is {ratio:.2g} times that of the noise" in text
    assert told((X, rough), kernel=1.0 * distgp.RBF([4.0] * 4), **rest)[1] == {}
    few = {"kernel": 1.0 * distgp.RBF([1.5] * 4), "n_inducing": 20}
    assert told((X, rough), **rest | few)[1] == {}  # the user's own number


def test_every_warning_is_a_fit_warning():
    kinds = (NotConvergedWarning, BoundWarning, NothingLearntWarning, InducingWarning)
    assert all(issubclass(kind, FitWarning) and kind.__doc__ for kind in kinds)
