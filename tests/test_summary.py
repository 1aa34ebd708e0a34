"""A fitted estimator in words, with its hyperparameters in the units of the data."""

import html
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from helpers import concrete, example, make_data

import distgp
from distgp import (
    RBF,
    Constant,
    DistributedGPRegressor,
    Linear,
    Matern52,
    Periodic,
    RationalQuadratic,
    SparseGridGP,
)
from distgp.data.encoding import Column, Columns
from distgp.data.rows import Schema
from distgp.diagnostics.summary import feature_relevance, noise_sd, summary
from distgp.kernels import Kernel
from distgp.selection.sentences import why
from distgp.selection.trials import Choice, Trial

SCALES = np.array([1.0, 10.0, 100.0])


@pytest.fixture(scope="module")
def rows():
    X, y = make_data(120, d=3)
    return X * SCALES, 50 + 10 * y


def given(kernel, X, y, **options):
    return DistributedGPRegressor(kernel=kernel, noise=0.04, training=None, **options).fit(X, y)


def values(found, name, part=None):
    return {
        q.column: q.value
        for q in found.targets[0].quantities
        if q.name == name and part in (None, q.part)
    }


def test_lengthscales_and_deviations_are_in_the_units_of_the_data(rows):
    X, y = rows
    found = summary(given(4.0 * Matern52([1.0, 2.0, 3.0]), X, y))
    expected = dict(zip(["x0", "x1", "x2"], np.array([1.0, 2.0, 3.0]) * X.std(0), strict=True))
    assert values(found, "lengthscale") == pytest.approx(expected)
    assert values(found, "signal sd") == pytest.approx({None: 2 * y.std()})
    (target,) = found.targets
    assert target.noise.value == pytest.approx(0.2 * y.std())
    assert target.rows == 120 and target.n_experts == 1 and target.expert == "exact"
    assert target.training is None and target.stopped is None and target.rounds == 0


def test_without_scaling_the_numbers_are_those_of_the_kernel(rows):
    found = summary(given(4.0 * RBF(2.0), *rows, normalize=False))
    assert values(found, "lengthscale") == {"x0": 2.0, "x1": 2.0, "x2": 2.0}
    assert values(found, "signal sd") == {None: 2.0} and found.targets[0].noise.value == 0.2


def test_the_model_in_other_units_has_the_same_covariance(rows):
    # k(x, x′) in the target's units, from the quantities alone, against that of the model.
    X, y = rows
    gp = given(2.0 * RBF([1.0, 2.0, 3.0]) + 3.0 * Linear([0.5, 1.0, 2.0]) + Constant(0.7), X, y)
    found, model = summary(gp), gp.model_.targets[0]
    length = np.array(list(values(found, "lengthscale").values()))
    slope = np.array(list(values(found, "slope sd").values()))
    a, b = X[:5, None], X[None, 5:9]
    expected = values(found, "signal sd")[None] ** 2 * np.exp(
        -0.5 * np.square((a - b) / length).sum(-1)
    )
    middle = X.mean(0)
    expected += (slope**2 * (a - middle) * (b - middle)).sum(-1)
    expected += values(found, "offset sd")[None] ** 2
    inputs = model.scaling.inputs(X[:9], model.parameters.noise)
    K = model.scaling.variance(model.parameters.kernel(inputs[:5], inputs[5:]))
    np.testing.assert_allclose(K, expected, rtol=1e-9)


def test_a_periods_unit_is_its_columns_and_the_circle_has_none(rows):
    X, y = rows
    kernel = 2.0 * Periodic(0.7, 1.5, active_dims=[1]) * RBF([2.0], [1]) + RationalQuadratic(1.0)
    found = summary(given(kernel, X, y))
    assert values(found, "period") == pytest.approx({"x1": 1.5 * X[:, 1].std()})
    assert values(found, "lengthscale on the circle") == {"x1": 0.7}
    assert found.targets[0].kernel == ("Periodic(x1) × RBF(x1)", "RationalQuadratic")
    assert values(found, "alpha") == {None: 1.0}
    assert "RBF lengthscale" in str(found) and "RationalQuadratic lengthscale" in str(found)


def test_products_of_sums_are_multiplied_out(rows):
    found = summary(given((RBF(1.0) + Linear(1.0)) * Linear(4.0), *rows))
    assert found.targets[0].kernel == ("RBF × Linear", "Linear × Linear")
    X, y = rows
    slopes = dict(zip(("x0", "x1", "x2"), 2.0 * y.std() / X.std(0), strict=True))
    assert values(found, "slope sd", part=1) == pytest.approx(slopes)
    assert "Linear 2 slope sd (part 2)" in str(found)


@pytest.mark.parametrize("kind", concrete(Kernel), ids=lambda kind: kind.__name__)
def test_every_kernel_can_be_described(kind, rows):
    gp = given(example(kind, 3), *rows)
    found, shares = summary(gp), feature_relevance(gp)
    assert str(found) and found.html().count("<table>") == 2
    json.dumps(found.as_dict(), allow_nan=False)
    assert shares.shape == (3,) and shares.sum() == pytest.approx(float(kind is not Constant))


class Wiggle(Kernel):
    """A kernel of a user's own."""

    rate: float = distgp.kernels.base.field(default=2.0, converter=distgp.kernels.base.scalar)

    def gram(self, X1, X2):
        return self.rate * RBF(1.0)(X1, X2)

    def diag(self, X):
        return self.rate * X.new_ones(X.shape[:-1])


def test_a_users_own_kernel_is_named_with_its_parameters_as_they_are(rows):
    found = summary(given(3.0 * Wiggle(1.7), *rows))
    assert found.targets[0].kernel == ("Wiggle",) and values(found, "rate") == {None: 1.7}
    assert found.targets[0].relevance == (0.0, 0.0, 0.0)


def test_experts_with_hyperparameters_of_their_own_have_a_range(rows):
    X, y = rows
    gp = DistributedGPRegressor(n_experts=3, training="independent", n_iter=4).fit(X, y)
    found = summary(gp)
    lengths = gp.kernel_.kernel.lengthscale.numpy() * gp.model_.targets[0].scaling.x_scale
    first = next(q for q in found.targets[0].quantities if q.column == "x0")
    assert (first.low, first.high) == pytest.approx((lengths[:, 0].min(), lengths[:, 0].max()))
    assert first.value == pytest.approx(np.median(lengths[:, 0]))
    assert " to " in str(first) and found.targets[0].training == "independent"
    assert noise_sd(gp.model_.targets[0]) == pytest.approx(found.targets[0].noise.value)
    assert feature_relevance(gp).sum() == pytest.approx(1)


def test_kinds_of_experts_training_and_files(rows, tmp_path):
    X, y = rows
    sparse = DistributedGPRegressor(expert="sparse", n_experts=2, n_inducing=12, n_iter=2).fit(X, y)
    said = str(summary(sparse))
    assert "2 sparse experts, 12 inducing inputs" in said and "aggregation   pooled" in said
    assert "training      pooled, 2 rounds" in said and "reached n_iter" in said
    assert "and sums, no targets" in said
    near = DistributedGPRegressor(expert="nearest", n_neighbors=20, n_inducing=0, n_iter=2)
    said = str(summary(near.fit(X, y)))
    assert "1 nearest expert, 20 neighbours of each point" in said and "the training rows" in said
    near.save(tmp_path / "near.safetensors")
    assert str(summary(distgp.load(tmp_path / "near.safetensors"))) == said


def test_training_that_converged_is_said_so(rows):
    (target,) = summary(DistributedGPRegressor(n_experts=2).fit(*rows)).targets
    assert target.training == "fact" and target.stopped == "converged" and target.rounds > 5
    assert np.argmax(target.relevance) == 0 and np.argmin(target.relevance) == 2


@pytest.mark.parametrize("combination", ["opticom", "ct", "full"])
def test_sparse_grids(rows, combination):
    X, y = rows
    gp = SparseGridGP(level=2, combination=combination, n_iter=2).fit(X, y)
    found = summary(gp)
    assert found.targets[0].aggregation == f"{combination}, level 2"
    assert found.targets[0].rows == 120 and found.targets[0].holds.endswith("no rows")
    assert len(values(found, "lengthscale")) == 3
    assert feature_relevance(gp).sum() == pytest.approx(1)


def test_several_targets_and_names_of_columns(rows):
    X, y = rows
    frame = pd.DataFrame(X, columns=["east", "north <b>", "height"])
    gp = DistributedGPRegressor(n_iter=2).fit(frame, np.column_stack([y, X[:, 2]]))
    found = summary(gp)
    assert found.columns == ("east", "north <b>", "height") and len(found.targets) == 2
    assert "target y0" in str(found) and "target y1" in str(found) and "north <b>" in str(found)
    assert "north &lt;b&gt;" in found.html() and "<b>north" not in found.html()
    assert feature_relevance(gp).shape == (2, 3)
    assert found._repr_html_() == found.html()


def test_a_summary_is_at_hand_as_a_text(rows, tmp_path):
    found = given(RBF(1.0), *rows).summary()
    assert repr(found) == str(found) == f"{found}" and "the training rows" in found
    assert "converged" not in found
    (tmp_path / "summary.txt").write_text(str(found))
    assert (tmp_path / "summary.txt").read_text().startswith("DistributedGPRegressor: 3 columns")


def test_the_choice_is_shown_where_there_was_one(rows):
    gp = DistributedGPRegressor(n_iter=2).fit(*rows)
    assert summary(gp).choices == ()
    trials = (
        Trial("matern52", 1.0, 2.0, 0.9, 0.1, chosen=True),
        Trial("rbf", float("nan"), float("nan"), float("nan"), 0.1, error="no"),
    )
    gp.choice_ = Choice("last", 80, 40, trials)
    found = summary(gp)
    assert found.choices == (gp.choice_,) and str(gp.choice_) in str(found)
    assert found.as_dict()["choices"][0]["trials"][1]["rmse"] is None


def test_no_line_is_wider_than_a_window(rows):
    long, n = (
        "a column with a name of so many letters that it fills a line of text by itself alone",
        60,
    )
    table = pd.DataFrame(
        {"when": pd.date_range("2024", periods=n, freq="5h"), long: rows[0][:n, 0]}
    )
    kernel = "periodic(24 h, columns=when) * matern52(columns=when) + periodic(7 days, columns=when) + rbf"
    gp = DistributedGPRegressor(kernel=kernel, training=None, dates="expand", n_experts=1)
    text = str(summary(gp.fit(table, rows[1][:n])))
    assert max(map(len, text.splitlines())) < 100
    for said in (
        "Periodic period (part 1)",
        "RBF lengthscale (part 3)",
        "when.year_sin",
        "relevance",
    ):
        assert said in text
    parts = text.split("\n\n")[2:]
    assert len(parts) > 1 and all(part.startswith("column ") for part in parts)
    assert len(parts[0].splitlines()) == 2, "a period belongs to the days alone"
    assert len(parts[-1].splitlines()) == 9


def test_of_many_columns_the_most_relevant_are_listed():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 50))
    lengths = np.where(np.arange(50) == 44, 1.0, 100.0)
    said = summary(given(RBF(lengths), X, X[:, 44]))
    lines = str(said).splitlines()
    assert "and 20 columns of less relevance" in lines and any(s.startswith("x44") for s in lines)
    assert len(said.as_dict()["targets"][0]["relevance"]) == 50


def test_relevance_is_the_inverse_lengthscale_and_equal_for_one_lengthscale(rows):
    np.testing.assert_allclose(
        feature_relevance(given(3.0 * Matern52([1.0, 2.0, 4.0]), *rows)), np.array([4, 2, 1]) / 7
    )
    np.testing.assert_allclose(feature_relevance(given(RBF(0.3), *rows)), np.full(3, 1 / 3))


def test_relevance_of_sums_weighs_parts_by_their_variance(rows):
    kernel = 4.0 * RBF(1.0, [0]) + 1.0 * RBF(1.0, [1])
    np.testing.assert_allclose(feature_relevance(given(kernel, *rows)), [2 / 3, 1 / 3, 0])
    kernel = RBF(2.0, [0]) + Linear([0.25], [1]) + Constant(5.0)
    np.testing.assert_allclose(feature_relevance(given(kernel, *rows)), [0.5, 0.5, 0])


def test_relevance_is_the_deviation_of_slopes_of_functions_drawn_from_the_kernel(rows):
    X, y = rows
    kernel = 2.0 * RBF([0.7, 2.0, 5.0]) * Linear([1.0, 0.5, 0.1]) + Periodic(1.3, 4.0, [2])
    gp = given(kernel, X, y)
    K, h = gp.model_.targets[0].parameters.kernel, 1e-4
    points = gp.model_.targets[0].scaling.inputs(X, gp.model_.targets[0].parameters.noise)
    slopes = []
    for j in range(3):
        step = points.new_zeros(3)
        step[j] = h
        up, down = points + step, points - step
        cross = K(up, down).diagonal()
        slopes.append(float(((K.diag(up) + K.diag(down) - 2 * cross) / (4 * h * h)).mean()))
    expected = np.sqrt(slopes) / np.sqrt(slopes).sum()
    # The mean over rows stands for that over standardised rows: variances of products differ a little.
    np.testing.assert_allclose(feature_relevance(gp), expected, rtol=1e-3)


def test_a_linear_trend_is_shown_and_counts(rows):
    X, y = rows
    y = y + 3.0 * X[:, 2]
    gp = given(RBF([1.0, 1e6, 1e6]), X, y, mean="linear")
    found, plane = summary(gp), np.linalg.lstsq(np.column_stack([X, np.ones(120)]), y)[0]
    assert list(values(found, "trend slope").values()) == pytest.approx(list(plane[:3]))
    assert "mean          a linear trend" in str(found) and "trend slope" in str(found)
    shares = feature_relevance(gp)
    assert shares.argmax() == 2 and shares.sum() == pytest.approx(1)


def test_what_is_not_fitted_is_refused():
    for ask in (summary, feature_relevance):
        with pytest.raises(ValueError, match="DistributedGPRegressor is not fitted yet: call fit"):
            ask(DistributedGPRegressor())


SKY = Columns("y", (Column("temp", "number"), Column("sky", "category", ("clear", "grey", "rain"))))


@pytest.fixture(scope="module")
def weather():
    """Rows of a table with a number and a text, encoded, and the names of the features."""
    rng = np.random.default_rng(0)
    temp, sky = rng.normal(10, 5, 90), rng.choice(3, 90, p=[0.6, 0.3, 0.1])
    X = np.column_stack([temp, sky[:, None] == np.arange(3)]).astype(float)
    return X, temp + 3.0 * sky


def of_table(kernel, X, y):
    gp = given(kernel, X, y)
    gp.model_ = replace(gp.model_, schema=Schema.of(SKY))
    return gp


def test_a_text_whose_features_share_a_lengthscale_has_one_line(weather):
    X, y = weather
    gp = of_table(2.0 * Matern52([1.0, 2.0], shared=(0, 1, 1, 1)), X, y)
    found, scale = summary(gp), X.std(0)
    expected = {"temp": scale[0], "sky": 2.0 * float(np.exp(np.log(scale[1:]).mean()))}
    assert values(found, "lengthscale") == pytest.approx(expected)
    titles, lines = found.targets[0].table(found.columns, found.shared)
    assert titles == ["column", "lengthscale", "relevance"]
    assert [line[0] for line in lines] == ["temp", "sky"]
    assert [line[2] for line in lines] == [
        "0.667",
        "0.333",
    ]  # 1 and 1/2, whatever the number of texts
    names, shares = found.relevance_by_column()
    assert names == ["temp", "sky"] and shares == pytest.approx(np.array([[2 / 3, 1 / 3]]))
    assert (
        "sky=" not in str(found)
        and "sky=" not in found.html()
        and "less relevance" not in str(found)
    )
    expanded = of_table(2.0 * Matern52([1.0, 2.0, 2.0, 2.0]), X, y)
    np.testing.assert_allclose(feature_relevance(gp), [2 / 3, 1 / 3])
    np.testing.assert_allclose(feature_relevance(expanded), [0.4, 0.6])
    assert summary(expanded).shared == {} and "sky=rain" in str(summary(expanded))
    plain = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert plain["shared"] == {"sky": [1, 2, 3]} and len(plain["targets"][0]["relevance"]) == 4


def test_of_parameters_that_differ_between_features_of_a_text_the_range_is_shown(weather):
    kernel = RBF([1.0, 2.0], shared=(0, 1, 1, 1)) + Linear() + RBF(3.0, active_dims=[1, 2, 3])
    found = summary(of_table(kernel, *weather))
    slopes = [q.value for q in found.targets[0].quantities if q.name == "slope sd"]
    assert len(slopes) == 4 and f"{min(slopes[1:]):.4g} to {max(slopes[1:]):.4g}" in str(found)
    assert found.targets[0].kernel == ("RBF", "Linear", "RBF(sky)")


def test_columns_of_arrays_that_share_a_lengthscale_go_by_all_of_their_names(rows):
    found = summary(given(RBF([1.0, 2.0], shared=(0, 1, 0)), *rows))
    assert found.shared == {"x0, x2": (0, 2)}
    lines = [line.split("  ")[0] for line in str(found).splitlines()]
    assert "x0, x2" in lines and "x1" in lines and "x0" not in lines


def test_experts_with_shared_lengthscales_of_their_own_have_a_range(rows):
    kernel = RBF([1.0, 2.0], shared=(0, 1, 1))
    gp = DistributedGPRegressor(kernel=kernel, n_experts=3, training="independent", n_iter=3)
    found, scaling = summary(gp.fit(*rows)), gp.model_.targets[0].scaling
    lengths = gp.kernel_.lengthscale.numpy()
    assert lengths.shape == (3, 2)
    (first, second) = [q for q in found.targets[0].quantities if q.name == "lengthscale"]
    assert (first.column, second.column) == ("x0", "x1, x2")
    scale = float(np.sqrt(scaling.x_scale[1] * scaling.x_scale[2]))
    ends = (lengths[:, 1].min() * scale, lengths[:, 1].max() * scale)
    assert (second.low, second.high) == pytest.approx(ends)
    assert feature_relevance(gp).sum() == pytest.approx(1)


def test_transform_calibration_and_noise_of_rows_are_said():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (200, 2))
    y = np.exp(np.sin(X[:, 0]) + 0.1 * rng.normal(size=200))
    made = {"expert": "sparse", "n_inducing": 20, "n_iter": 5}
    gp = distgp.DistributedGPRegressor(target_transform="log", calibrate="conformal", **made).fit(
        X, y
    )
    said = dict(gp.summary().targets[0].lines())
    assert said["target"].startswith("its log transform")
    assert said["intervals"] == "calibrated on 40 other rows"
    noise = np.full(200, 0.09)
    gp = distgp.DistributedGPRegressor(fixed=["noise"], **made).fit(X, y, noise_variance=noise)
    assert dict(gp.summary().targets[0].lines())["noise sd"] == "0.3"


def test_a_column_that_does_not_vary_has_no_relevance(rows):
    X, y = rows
    still = np.column_stack([X, np.full(len(X), 7.0)])
    gp = DistributedGPRegressor(expert="exact", n_experts=1, training=None).fit(still, y)
    shares = feature_relevance(gp)
    assert shares[-1] == 0.0 and shares[:-1] == pytest.approx(np.full(3, 1 / 3))


def choice(validation, *trials):
    return Choice(validation, 800, 2_000, trials)


CHOSEN = Trial("nearest rows", 1.0, 0.41, 0.9, 0.1, chosen=True)


@pytest.mark.parametrize(
    ("made", "wanted"),
    [
        (
            choice("random", CHOSEN, Trial("sparse, pooled", 1.0, 0.52, 0.9, 0.1)),
            "Nearest rows were taken: NLPD 0.41 on 2,000 rows held out, against 0.52 for sparse experts "
            "(pooled).",
        ),
        (
            choice("random", replace(CHOSEN, name="exact GP, log"), Trial("nearest rows", 1, 0.4, 0.9, 1)),
            "One exact GP of all rows (log of the target) was taken: NLPD 0.41 on 2,000 rows held out; "
            "0.40 for nearest rows is not clearly better.",
        ),
        (
            choice("one by one", replace(CHOSEN, name="exact GP")),
            "One exact GP of all rows was taken: it fits into the time and memory. NLPD 0.41.",
        ),
        (
            choice(
                "one by one",
                replace(CHOSEN, name="exact GP"),
                Trial("ridge regression", 1.0, 0.6, 0.9, 0.1, baseline=True),
            ),
            "One exact GP of all rows was taken: it fits into the time and memory. NLPD 0.41, against "
            "0.60 for ridge regression.",
        ),
        (
            choice("last", CHOSEN, Trial("ridge regression", 1.0, 0.6, 0.9, 0.1, baseline=True)),
            "Nearest rows were taken: NLPD 0.41 on 2,000 rows held out, against 0.60 for ridge regression.",
        ),
        (
            choice("last", CHOSEN, replace(CHOSEN, chosen=False, error="no memory", nlpd=float("nan"))),
            "Nearest rows were taken: NLPD 0.41 on 2,000 rows held out.",
        ),
    ],
    ids=["another", "not clearly better", "at once", "at once, baseline", "a baseline", "an error"],
)  # fmt: skip
def test_the_choice_is_said_in_a_sentence(made, wanted, rows):
    assert why(made) == wanted
    gp = DistributedGPRegressor(training=None).fit(*rows)
    gp.choice_ = made
    said = str(summary(gp))
    assert wanted in " ".join(said.split()) and wanted in html.unescape(summary(gp).html())
    assert max(map(len, said.splitlines())) < 100


def test_riddles_are_explained_where_they_are_named(rows):
    joint = str(summary(DistributedGPRegressor("exact", 2, n_iter=2).fit(*rows)))
    assert "training      joint (FACT), 2 rounds" in joint
    own = DistributedGPRegressor("exact", 2, training="independent", n_iter=2).fit(*rows)
    assert "opt-local (each expert counts where it is certain)" in str(summary(own))
    name = "independent experts, opt-local, matern52 + linear, log"
    table = choice("random", replace(CHOSEN, name=name), replace(CHOSEN, error="long " * 50))
    assert "opt-local (each expert counts" in str(table) and "the target's logarithm" in str(table)
    assert max(map(len, str(table).splitlines())) < 100
    assert "opt-local" not in str(choice("random", CHOSEN))
