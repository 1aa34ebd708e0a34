"""The estimator, through its public face."""

import re

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process import kernels as sk
from sklearn.model_selection import GridSearchCV, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import distgp
from distgp import DistributedGPRegressor

KERNEL, NOISE = 1.5 * distgp.RBF([0.6, 0.9]), 0.04


def make_data(n, seed=0, d=2):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, size=(n, d))
    return X, np.sin(2 * X[:, 0]) + np.cos(X[:, 1]) + 0.2 * rng.normal(size=n)


def given(**changes):
    """A regressor whose hyperparameters stay as given, in the data's own units."""
    options = {"kernel": KERNEL, "noise": NOISE, "training": None, "normalize": False}
    return DistributedGPRegressor(**options | changes)


def naive_gp(X, y, X_new):
    kernel = sk.ConstantKernel(1.5, "fixed") * sk.RBF([0.6, 0.9], "fixed")
    gp = GaussianProcessRegressor(kernel, alpha=NOISE, optimizer=None).fit(X, y)
    return gp.predict(X_new, return_cov=True)


# Some of scikit-learn's checks fit targets that have nothing to do with the inputs.
@pytest.mark.filterwarnings("ignore::distgp.diagnostics.findings.NothingLearntWarning")
@pytest.mark.filterwarnings("ignore::distgp.selection.CoverWarning")  # some targets are noise
@pytest.mark.filterwarnings(
    "ignore::distgp.selection.RepeatsWarning"
)  # weights are checked by copies
@pytest.mark.filterwarnings("ignore::distgp.diagnostics.findings.CopiesWarning")
@parametrize_with_checks(
    [
        DistributedGPRegressor(),
        DistributedGPRegressor(expert="sparse", n_experts=2),
        DistributedGPRegressor(expert="exact", n_experts=2, training="fedavg", n_iter=5),
    ],
    # Copies of rows are divided over several experts in another way: the law holds for given shards.
    expected_failed_checks=lambda estimator: (
        {"check_sample_weight_equivalence_on_dense_data": "shards of copies differ"}
        if estimator.training == "fedavg"
        else {}
    ),
)
def test_scikit_learn_checks(estimator, check, monkeypatch):
    for module in ("distgp.selection", "distgp.selection.candidates"):
        monkeypatch.setattr(f"{module}.FOLDS", 2)  # which takes less time than five
    check(estimator)


def test_one_expert_is_the_full_gp():
    X, y = make_data(80)
    X_new, _ = make_data(30, seed=1)
    mean, covariance = naive_gp(X, y, X_new)
    gp = given().fit(X, y)
    ours, std = gp.predict(X_new, return_std=True, latent=True)
    np.testing.assert_allclose(ours, mean, atol=1e-9)
    np.testing.assert_allclose(std**2, np.diag(covariance), atol=1e-9)
    np.testing.assert_allclose(
        gp.predict(X_new, return_cov=True, latent=True)[1], covariance, atol=1e-9
    )
    observed = gp.predict(X_new, return_std=True)[1]
    np.testing.assert_allclose(observed**2, np.diag(covariance) + NOISE, atol=1e-9)
    assert gp.n_experts_ == 1 and gp.noise_ == pytest.approx(NOISE) and gp.training_ is None


@pytest.mark.parametrize("expert", ["exact", "sparse"])
def test_predictions_follow_the_units_of_the_data(expert):
    X, y = make_data(300)
    X_new, _ = make_data(20, seed=1)
    gp = DistributedGPRegressor(expert=expert, n_experts=3, n_iter=8).fit(X, y)
    moved = DistributedGPRegressor(expert=expert, n_experts=3, n_iter=8)
    moved.fit(X * [1e3, 1e-4] + [5, -7], 50 + 1e4 * y)
    mean, std = gp.predict(X_new, return_std=True)
    mean2, std2 = moved.predict(X_new * [1e3, 1e-4] + [5, -7], return_std=True)
    np.testing.assert_allclose(mean2, 50 + 1e4 * mean, rtol=1e-5)
    np.testing.assert_allclose(std2, 1e4 * std, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::distgp.selection.CoverWarning")
@pytest.mark.parametrize("n", [2, 3, 40, 250])
def test_defaults_work_on_few_rows(n):
    X, y = make_data(n)
    gp = DistributedGPRegressor().fit(X, y)
    mean, std = gp.predict(X, return_std=True)
    assert np.isfinite(mean).all() and (std > 0).all()
    if n == 250:
        assert gp.score(*make_data(500, seed=1)) > 0.9


def test_exact_experts_divide_more_rows():
    X, y = make_data(2500)
    gp = DistributedGPRegressor(expert="exact", n_iter=10).fit(X, y)
    assert gp.n_experts_ == 3 and isinstance(gp.aggregation_, distgp.aggregation.TwoLevel)
    assert gp.weights_.shape == (3,)
    X_new, y_new = make_data(2000, seed=1)
    mean, std = gp.predict(X_new, return_std=True)
    assert np.abs(mean - y_new).mean() < 0.2
    assert 0.86 < (np.abs(mean - y_new) < 1.645 * std).mean() < 0.94


def test_many_rows_make_sparse_experts_where_nothing_is_measured():
    X, y = make_data(20_001)
    gp = DistributedGPRegressor(training="pooled", n_iter=16, training_rows=2000).fit(X, y)
    assert gp.choice_ is None
    assert isinstance(gp.aggregation_, distgp.aggregation.Pooled) and gp.n_inducing_ > 20
    X_new, y_new = make_data(2000, seed=1)
    assert np.sqrt(np.mean((gp.predict(X_new) - y_new) ** 2)) < 0.21
    assert gp.nlpd(X_new, y_new) < -0.1


def test_training_finds_short_lengthscales():
    # From long lengthscales alone it ends where all is noise.
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(1500, 1))
    y = np.sin(120 * X[:, 0]) + 0.1 * rng.normal(size=1500)
    for expert in ("exact", "sparse"):
        gp = DistributedGPRegressor(expert=expert, kernel="rbf").fit(X, y)
        assert gp.score(X, y) > 0.97, expert


@pytest.mark.parametrize("expert", sorted(distgp.EXPERTS))
@pytest.mark.parametrize("name", sorted(distgp.AGGREGATORS))
def test_another_aggregator_needs_no_new_fit(expert, name):
    if expert not in distgp.AGGREGATORS[name].serves:
        pytest.skip(f"{name} does not serve {expert} experts")
    X, y = make_data(200)
    X_new, _ = make_data(20, seed=1)
    labels = np.arange(200) % 4
    options = {"expert": expert, "partition": labels, "n_inducing": 30}
    once = given(**options).fit(X, y)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("distgp.pipeline.fit_target", None)
        found = once.predict(X_new, return_std=True, aggregation=name)
        again = once.predict(X_new, return_std=True, aggregation=distgp.AGGREGATORS[name]())
    wanted = given(aggregation=name, **options).fit(X, y).predict(X_new, return_std=True)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(again, wanted)
    # A mean alone may take a shorter way, to the same value.
    np.testing.assert_allclose(once.predict(X_new, aggregation=name), wanted[0], atol=1e-8)


@pytest.mark.parametrize(
    ("expert", "aggregation"),
    [("exact", "two-level"), ("sparse", "two-level"), ("sparse", "pooled"), ("sparse", "opt")],
)
def test_covariance_agrees_with_std_and_is_positive(expert, aggregation):
    X, y = make_data(200)
    X_new, _ = make_data(25, seed=1)
    gp = given(expert=expert, n_experts=4, n_inducing=40, aggregation=aggregation).fit(X, y)
    for latent in (True, False):
        mean, covariance = gp.predict(X_new, return_cov=True, latent=latent)
        std = gp.predict(X_new, return_std=True, latent=latent)[1]
        np.testing.assert_allclose(np.diag(covariance), std**2, rtol=1e-9)
        np.testing.assert_allclose(mean, gp.predict(X_new), atol=1e-8)
        assert np.linalg.eigvalsh(covariance).min() > -1e-9


def test_covariance_where_there_is_none():
    X, y = make_data(60)
    gp = given(n_experts=3, aggregation="rbcm").fit(X, y)
    with pytest.raises(
        ValueError,
        match=r"no covariance between points; .*variance='central'; pooled, nearest, exact always",
    ):
        gp.predict(X, return_cov=True)
    with pytest.raises(ValueError, match="return_std or return_cov"):
        gp.predict(X, return_std=True, return_cov=True)


def test_draws_have_the_predicted_moments():
    X, y = make_data(150)
    X_new, _ = make_data(6, seed=1)
    gp = given().fit(X, y)
    mean, covariance = gp.predict(X_new, return_cov=True)
    draws = gp.sample_y(X_new, n_samples=40_000, random_state=3)
    assert draws.shape == (6, 40_000)
    scale = np.sqrt(np.diag(covariance))
    np.testing.assert_allclose(draws.mean(1), mean, atol=5 * scale.max() / 200)
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.05 * scale.max() ** 2)
    np.testing.assert_array_equal(draws[:, :5], gp.sample_y(X_new, 40_000, random_state=3)[:, :5])


@pytest.mark.parametrize("expert", ["exact", "sparse"])
def test_partial_fit_adds_experts_as_large_as_those_of_fit(expert):
    X, y = make_data(320)
    X_new, _ = make_data(20, seed=1)
    Z = make_data(50, seed=2)[0]
    labels = np.repeat([0, 1, 2, 3], 80)
    options = {"expert": expert, "n_inducing": Z}
    step = given(partition=labels[:160], **options).partial_fit(X[:160], y[:160])
    for part in (slice(160, 220), slice(220, 320)):
        step.partial_fit(X[part], y[part])
    assert step.n_experts_ == 4
    whole = given(partition=labels, **options).fit(X, y)
    for got, wanted in zip(
        step.predict(X_new, return_std=True), whole.predict(X_new, return_std=True), strict=True
    ):
        np.testing.assert_allclose(got, wanted, atol=1e-8)


def test_partial_fit_with_own_hyperparameters():
    X, y = make_data(300)
    for expert in ("exact", "sparse"):
        gp = DistributedGPRegressor(
            expert=expert, n_experts=2, n_inducing=20, training="independent", n_iter=15
        )
        gp.fit(X[:200], y[:200])
        gp.partial_fit(X[200:], y[200:])
        assert gp.n_experts_ == 3 and isinstance(gp.aggregation_, distgp.aggregation.OptLocal)
        assert len(gp.weights_) == 3 and gp.score(*make_data(200, seed=1)) > 0.5
        assert len(gp.noise_) == 3


def test_several_targets_are_separate_models():
    X, y = make_data(150)
    Y = np.column_stack([y, 100 * X[:, 1] ** 2])
    gp = DistributedGPRegressor(n_experts=2, n_iter=10).fit(X, Y)
    mean, std = gp.predict(X, return_std=True)
    assert mean.shape == std.shape == (150, 2)
    assert gp.predict(X, return_cov=True)[1].shape == (150, 150, 2)
    assert gp.sample_y(X[:5], 3).shape == (5, 2, 3)
    assert len(gp.kernel_) == len(gp.noise_) == 2
    for i in range(2):
        one = DistributedGPRegressor(n_experts=2, n_iter=10).fit(X, Y[:, i])
        np.testing.assert_array_equal(one.predict(X, return_std=True)[0], mean[:, i])
        assert str(one.kernel_) == str(gp.kernel_[i])
    assert gp.nlpd(X, Y) == pytest.approx(
        np.mean([
            0.5 * np.log(2 * np.pi * std[:, i] ** 2) + (Y[:, i] - mean[:, i]) ** 2 / (2 * std[:, i] ** 2)
            for i in range(2)
        ])
    )  # fmt: skip


def test_number_of_experts_by_cross_validation():
    X, y = make_data(400)
    gp = DistributedGPRegressor(expert="exact", n_experts="cv", n_iter=5).fit(X, y)
    assert gp.cv_results_["n_experts"] == [3, 4, 5]
    assert gp.n_experts_ == gp.cv_results_["n_experts"][int(np.argmin(gp.cv_results_["nlpd"]))]


@pytest.mark.parametrize(
    "training", [*sorted(distgp.ALGORITHMS), distgp.training.Fact("adam", 0.05, 5)]
)
def test_every_training_method(training):
    X, y = make_data(200)
    gp = DistributedGPRegressor(
        expert="sparse", n_experts=3, n_inducing=20, training=training, n_iter=6
    ).fit(X, y)
    assert 1 <= len(gp.training_.history) <= 6
    assert not np.any(np.isclose(gp.noise_, 0.1, rtol=1e-9, atol=0)), "nothing was learnt"
    assert gp.score(X, y) > 0.2
    if isinstance(training, str) and training == "independent":
        assert np.shape(gp.noise_) == (3,) and gp.inducing_.shape == (3, 20, 2)


def test_partitions_of_all_kinds():
    X, y = make_data(120)
    names = np.array(["b", "a", "c"])[np.arange(120) % 3]
    by_label = given(partition=names).fit(X, y)
    assert by_label.n_experts_ == 3
    first = by_label.experts_.placement.items[0].shard.rows[0]
    np.testing.assert_array_equal(first.numpy(), np.flatnonzero(names == "a"))
    assert (
        given(partition=distgp.data.ContiguousPartition(column=0), n_experts=4).fit(X, y).n_experts_
        == 4
    )
    for name in ("random", "kmeans", "contiguous"):
        assert given(partition=name, n_experts=4).fit(X, y).score(X, y) > 0.9


def test_grbcm_gets_a_random_communication_shard():
    X, y = make_data(400)
    order = np.argsort(X[:, 0])
    gp = given(n_experts=4, partition="contiguous", aggregation="grbcm").fit(X[order], y[order])
    first = gp.experts_.placement.items[0].shard[0]
    assert first.X[:, 0].min() < -1.5 and first.X[:, 0].max() > 1.5


def test_given_inducing_inputs_are_used_as_they_are():
    X, y = make_data(200)
    Z = make_data(17, seed=5)[0]
    gp = DistributedGPRegressor(expert="sparse", n_inducing=Z, n_iter=4).fit(X, y)
    np.testing.assert_allclose(gp.inducing_, Z, atol=1e-12)


def test_float32():
    X, y = make_data(300)
    for expert in ("exact", "sparse"):
        wide = given(expert=expert, n_experts=2, n_inducing=40).fit(X, y)
        narrow = given(expert=expert, n_experts=2, n_inducing=40, dtype="float32").fit(X, y)
        np.testing.assert_allclose(narrow.predict(X), wide.predict(X), atol=2e-3)


def test_in_the_company_of_scikit_learn():
    X, y = make_data(240)
    frame = pd.DataFrame(X, columns=["east", "north"])
    gp = DistributedGPRegressor(expert="exact", n_experts=2, n_iter=5)
    pipe = make_pipeline(StandardScaler().set_output(transform="pandas"), gp).fit(frame, y)
    assert list(pipe[-1].feature_names_in_) == ["east", "north"]
    search = GridSearchCV(gp, {"n_experts": [1, 3], "aggregation": ["rbcm", "two-level"]}, cv=2)
    search.fit(X, y)
    assert search.best_estimator_.score(X, y) > 0.9
    scores = cross_validate(gp, X, y, cv=3, n_jobs=2)["test_score"]
    assert (scores > 0.8).all()
    copy = clone(pipe[-1])
    assert copy.get_params() == gp.get_params() and not hasattr(copy, "model_")


def test_joblib_and_pickle_keep_the_model(tmp_path):
    X, y = make_data(100)
    gp = DistributedGPRegressor(n_experts=2, n_iter=5).fit(X, y)
    joblib.dump(gp, tmp_path / "gp.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "gp.joblib").predict(X), gp.predict(X))


def test_columns_of_a_frame_are_found_by_name():
    X, y = make_data(60)
    frame = pd.DataFrame(X, columns=["east", "north"])
    gp = given().fit(frame, y)
    wanted = gp.predict(frame)
    np.testing.assert_array_equal(gp.predict(frame[["north", "east"]]), wanted)
    np.testing.assert_array_equal(gp.predict(frame.assign(more=1)), wanted)
    with pytest.raises(ValueError, match=r"lacks the column\(s\) 'north'"):
        gp.predict(frame[["east"]])
    again = given().fit(frame, y).partial_fit(frame[["north", "east"]], y)
    np.testing.assert_array_equal(again.predict(frame), gp.partial_fit(frame, y).predict(frame))
    with pytest.raises(ValueError, match="expecting 2 features"):
        given().fit(X, y).predict(X[:, :1], aggregation="poe")


BAD_DATA = [
    ("NaN", lambda X, y: (np.where(X > 1.9, np.nan, X), y), 'X contains NaN: .*missing="drop"'),
    ("inf", lambda X, y: (np.where(X > 1.9, np.inf, X), y), "contains infinity"),
    ("NaN in y", lambda X, y: (X, np.where(y > 1, np.nan, y)), "y contains NaN: leave"),
    ("dates", lambda X, y: (X.astype("datetime64[s]"), y), r'dates or times: .*dates="expand"'),
    ("lengths", lambda X, y: (X, y[:-1]), "inconsistent numbers of samples"),
    (
        "text in y",
        lambda X, y: (X, [f"{v:.0f} EUR" for v in y]),
        "must be numbers, could not .*EUR",
    ),
    ("one row", lambda X, y: (X[:1], y[:1]), "minimum of 2 is required"),
    ("text", lambda X, y: (X.astype(str).astype(object) + "a", y), "could not convert"),
    ("constant", lambda X, y: (X, np.full_like(y, 3.0)), r"constant \(3 in all 50 rows\).*check"),
    (
        "constant column",
        lambda X, y: (X, np.column_stack([y, 0 * y])),
        "target column 1 is constant",
    ),
]


@pytest.mark.parametrize(
    ("make", "message"), [b[1:] for b in BAD_DATA], ids=[b[0] for b in BAD_DATA]
)
def test_bad_data_gets_a_message(make, message):
    with pytest.raises(ValueError, match=message):
        DistributedGPRegressor().fit(*make(*make_data(50)))


BAD_OPTIONS = [
    ({"n_experts": 51}, "n_experts=51 is more than the 50 rows"),
    ({"n_experts": 0}, "n_experts must be a positive integer or 'auto' or 'cv', got 0"),
    ({"n_experts": 2.5}, "n_experts must be a positive integer"),
    ({"n_experts": "many"}, "n_experts must be a positive integer or 'auto' or 'cv', got 'many'"),
    ({"expert": "dense"}, "expert must be one of 'exact', 'sparse'"),
    (
        {"expert": "sparse", "n_inducing": 0},
        "sparse experts need inducing inputs, got n_inducing=0: give 1 or more",
    ),
    ({"n_inducing": -1}, "n_inducing must be a positive integer"),
    ({"expert": "sparse", "n_inducing": np.ones((3, 5))}, r"inducing inputs of shape \(m, 2\)"),
    ({"aggregation": "best"}, "aggregation must be one of 'poe'.* got 'best'"),
    ({"kernel": "gauss"}, "no kernel 'gauss' at character 1: there are 'rbf'"),
    ({"kernel": distgp.RBF([1.0, 2.0, 3.0])}, "3 values, one a column, but looks at 2 columns"),
    ({"noise": 0.0}, "noise must be a positive, finite variance, got 0"),
    ({"noise": float("nan")}, "noise must be a positive, finite"),
    ({"partition": "evenly"}, "partition must be one of 'random'"),
    (
        {"partition": np.zeros(7)},
        r"one label for each of the 50 rows; got an array of shape \(7,\)",
    ),
    ({"partition": np.arange(50) % 3, "n_experts": 4}, "labels in partition make 3 experts"),
    ({"training": "sgd"}, "training must be one of 'fact'"),
    ({"learning_rate": 0.1, "expert": "sparse"}, "pooled has no learning rate"),
    (
        {"learning_rate": 0.5, "training": distgp.training.Fact("adam")},
        r"learning_rate=0.5 and training=Fact\(.*\) both say how fast to learn: give the rate to",
    ),
    ({"learning_rate": -1.0}, "learning_rate must be a positive number, at most 1e6"),
    ({"n_iter": 0}, "n_iter must be a positive integer or None"),
    ({"training_rows": 0}, "training_rows must be a positive integer"),
    ({"engine": "spark"}, "engine must be 'local'"),
    ({"device": "abacus"}, "device 'abacus' is not available here"),
    ({"dtype": "float16"}, "dtype must be one of 'float64', 'float32', got 'float16'"),
    (
        {"expert": "exact", "n_experts": 2, "aggregation": "pooled"},
        "pooled cannot combine exact experts; use poe",
    ),
]


@pytest.mark.parametrize(
    ("options", "message"), BAD_OPTIONS, ids=[str(i) for i in range(len(BAD_OPTIONS))]
)
def test_bad_parameters_get_a_message(options, message):
    with pytest.raises(ValueError, match=re.compile(message, re.DOTALL)):
        DistributedGPRegressor(**options).fit(*make_data(50))


def test_kernel_parameters_out_of_range():
    with pytest.raises(ValueError, match="lengthscale must be positive and finite"):
        distgp.RBF(-1.0)


def test_nothing_before_fit():
    gp = DistributedGPRegressor()
    with pytest.raises(NotFittedError):
        gp.predict(np.zeros((2, 2)))
    with pytest.raises(AttributeError, match="not fitted yet"):
        gp.kernel_  # noqa: B018


def test_a_failed_fit_keeps_the_model_before_it():
    X, y = make_data(50)
    gp = given().fit(X, y)
    before = gp.predict(X)
    with pytest.raises(ValueError, match="constant"):
        gp.set_params(normalize=True).fit(np.column_stack([X, X]), np.ones(50))
    np.testing.assert_array_equal(gp.predict(X), before)


def test_values_beyond_the_numbers_are_refused():
    X, y = make_data(50)
    for bad in ((X, 1e200 * y), (X, 1e-200 * y), (1e200 * X, y)):
        with pytest.raises(ValueError, match="give them in other units"):
            DistributedGPRegressor().fit(*bad)


def test_a_learning_rate_is_not_ignored():
    X, y = make_data(60)
    with pytest.warns(
        FutureWarning, match=r"training=distgp.training.Fact\('adam', learning_rate=1e-06"
    ):
        slow = DistributedGPRegressor(learning_rate=1e-6, n_iter=3).fit(X, y)
    with pytest.warns(FutureWarning, match=r"the parameter goes in distgp 0\.6\.0"):
        fast = DistributedGPRegressor(learning_rate=0.3, n_iter=3).fit(X, y)
    said = distgp.training.Fact("adam", learning_rate=0.3)
    again = DistributedGPRegressor(training=said, n_iter=3).fit(X, y)
    assert again.noise_ == fast.noise_
    assert slow.noise_ == pytest.approx(0.1, rel=1e-4) and abs(fast.noise_ - 0.1) > 0.01


def test_targets_may_be_booleans():
    X, y = make_data(60)
    assert DistributedGPRegressor(n_iter=3).fit(X, y > 0).predict(X).dtype == np.float64


@pytest.mark.parametrize("expert", ["exact", "sparse"])
def test_a_new_expert_of_few_rows_has_the_hyperparameters_of_the_last(expert):
    X, y = make_data(160)
    gp = DistributedGPRegressor(
        expert=expert, training="independent", n_experts=2, n_inducing=15, n_iter=2
    ).fit(X[:90], y[:90])
    gp.partial_fit(X[90:100], y[90:100])
    assert gp.n_experts_ == 3 and gp.noise_[2] == gp.noise_[1] != gp.noise_[0]
    gp.partial_fit(X[100:110], y[100:110])
    assert gp.experts_.row_counts().tolist() == [45, 45, 20]
    assert np.isfinite(gp.predict(X)).all()


def test_nearest_experts_through_the_estimator(tmp_path):
    X, y = make_data(150)
    gp = DistributedGPRegressor(expert="nearest", n_neighbors=40, n_inducing=20).fit(X, y)
    assert gp.aggregation_.name == "nearest" and gp.n_inducing_ == 20 and gp.n_experts_ == 1
    assert gp.score(X, y) > 0.95
    divided = DistributedGPRegressor(
        expert="nearest", n_neighbors=40, n_inducing=20, n_experts=5, partition="kmeans"
    ).fit(X, y)
    for a, b in zip(divided.predict(X[:30], True), gp.predict(X[:30], True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    for option in ({"return_std": True}, {"return_cov": True}):
        for a, b in zip(again.predict(X[:30], **option), gp.predict(X[:30], **option), strict=True):
            np.testing.assert_array_equal(a, b)
    assert gp.sample_y(X[:4], 3).shape == (4, 3)


def test_nearest_experts_take_new_rows_as_if_they_had_been_there():
    X, y = make_data(300)
    options = {"expert": "nearest", "n_inducing": X[:15], "training": None, "normalize": False}
    options |= {"kernel": 1.0 * distgp.Matern52([0.7, 0.9]), "noise": 0.05, "n_neighbors": 25}
    whole = DistributedGPRegressor(**options).fit(X, y)
    parts = DistributedGPRegressor(**options).fit(X[:200], y[:200]).partial_fit(X[200:], y[200:])
    for a, b in zip(parts.predict(X[:30], True), whole.predict(X[:30], True), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-8)


@pytest.mark.parametrize("name", ["npae", "opt", "two-level", "pooled"])
def test_aggregators_that_cannot_serve_nearest_experts_are_refused_before_any_work(name):
    X, y = make_data(60)
    with pytest.raises(
        ValueError, match=rf"{name} cannot combine nearest experts; use poe, .*nearest"
    ):
        DistributedGPRegressor(expert="nearest", aggregation=name).fit(X, y)
    with pytest.raises(ValueError, match="n_inducing=0"):
        DistributedGPRegressor(expert="sparse", n_inducing=0).fit(X, y)


def test_training_by_nearest_rows_serves_other_experts_too():
    X, y = make_data(150)
    for expert in ("exact", "sparse"):
        gp = DistributedGPRegressor(expert=expert, training="nearest", n_experts=2).fit(X, y)
        assert gp.score(X, y) > 0.95 and gp.training_.stopped in ("tolerance", "iterations")


def test_priors_bounds_fixed_and_warm_start_by_parameter_name():
    X, y = make_data(200)
    with pytest.warns(distgp.diagnostics.findings.BoundWarning, match="at its upper bound 0.9"):
        gp = DistributedGPRegressor(
            n_experts=2,
            n_iter=30,
            fixed=["variance"],
            bounds={"lengthscale": (0.5, 0.9)},
            priors={"noise": distgp.training.LogNormal(0.3, 0.01)},
        ).fit(X, y)
    found = gp.kernel_.parameters()
    assert float(found["variance"]) == pytest.approx(1.0)
    assert float(found["kernel.lengthscale"].min()) >= 0.5 * (1 - 1e-9)
    assert float(found["kernel.lengthscale"].max()) <= 0.9 * (1 + 1e-9)
    assert gp.noise_ == pytest.approx(0.3, rel=0.05)
    with pytest.raises(
        ValueError, match=r"did you mean 'lengthscale'\? there are kernel\.variance"
    ):
        DistributedGPRegressor(bounds={"length": (0.1, 1.0)}).fit(X, y)
    with pytest.raises(ValueError, match="fixed must be a list of names of hyperparameters"):
        DistributedGPRegressor(fixed="noise").fit(X, y)
    cold = DistributedGPRegressor(n_experts=2, warm_start=True).fit(X, y)
    rounds, objective = len(cold.training_.history), cold.training_.objective
    warm = cold.fit(X, y)
    assert len(warm.training_.history) < rounds
    assert warm.training_.objective == pytest.approx(objective, rel=1e-3)


@pytest.mark.parametrize("expert", ["exact", "sparse", "nearest"])
@pytest.mark.parametrize("gap", [1e6, 1e8])
def test_clusters_far_apart_are_fitted_as_one_alone(expert, gap):
    x = np.random.default_rng(0).uniform(0, 3, 60)
    X, y = np.concatenate([x, gap + x])[:, None], np.tile(np.sin(2 * x), 2)
    gp = DistributedGPRegressor(
        expert=expert, kernel="rbf(1)", training=None, noise=1e-4, n_experts=1, n_inducing=60
    )
    np.testing.assert_allclose(gp.fit(X, y).predict(X), y, atol=0.01)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_fit_has_gradients_whatever_the_caller_has(mode):
    X, y = make_data(60)
    for gp in (
        DistributedGPRegressor(expert="exact", n_experts=2, n_iter=3, training="independent"),
        DistributedGPRegressor(expert="sparse", n_inducing=10, n_iter=3),
        distgp.SparseGridGP(level=2, n_iter=2),
    ):
        wanted = gp.fit(X, y).predict(X)
        with mode():
            np.testing.assert_array_equal(gp.fit(X, y).predict(X), wanted)
            if hasattr(gp, "partial_fit"):
                gp.partial_fit(X, y)
            assert not torch.is_grad_enabled()


@pytest.mark.parametrize("n", [80, 1_100])
def test_a_mean_is_the_same_bits_with_and_without_its_standard_deviation(n):
    X, y = make_data(n)
    gp = DistributedGPRegressor(expert="exact", n_experts=1, n_iter=3).fit(X, y)
    np.testing.assert_array_equal(gp.predict(X[:30]), gp.predict(X[:30], return_std=True)[0])
