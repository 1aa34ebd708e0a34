"""How unlike the training rows other rows are."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers import PUBLISHED, real

import distgp
from distgp import DistributedGPRegressor
from distgp.data import Scaling, Shard
from distgp.data.shard import placed
from distgp.diagnostics.novelty import (
    RIDGE,
    NoveltyWarning,
    TrainingInputs,
    novelty,
    warn_of_novelty,
)
from distgp.engines import LocalPlacement
from experiments.datasets import TASKS


def rows(n, d=3, seed=0):
    """Rows with columns of different widths that depend on each other, some rows twice."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 3.0
    X[: n // 20] = X[n // 20 : 2 * (n // 20)]
    return X


def shards_of(X, parts=1, on=1):
    """Rows divided into shards of different lengths, on one worker or several."""
    data = Shard.of(torch.as_tensor(X), torch.zeros(len(X), dtype=torch.float64))
    cuts = torch.arange(len(X)) % parts % max(1, parts - 1)
    pieces = [data.take(cuts == i) for i in range(int(cuts.max()) + 1)]
    return LocalPlacement(tuple(placed(pieces[i::on]).items[0] for i in range(on)))


def naive(X, standard=None):
    """Mahalanobis distances and distances to the nearest other row, one row at a time."""
    mean, scale = X.mean(0), X.std(0)
    Z = (X - mean) / np.where(scale > 0, scale, 1.0)
    far, near = [], []
    for i in range(len(Z)):
        others = np.delete(Z, i, axis=0)
        away = Z[i] - others.mean(0)
        covariance = np.cov(others.T, bias=True) + RIDGE * len(Z) / (len(Z) - 1) * np.eye(
            Z.shape[1]
        )
        far.append(np.sqrt(away @ np.linalg.solve(covariance, away)))
        near.append(np.sqrt(np.square(others - Z[i]).sum(-1).min()))
    return np.array(far), np.array(near)


@pytest.mark.parametrize(("n", "d"), [(300, 3), (60, 20), (12, 20)])
@pytest.mark.parametrize(("parts", "on"), [(1, 1), (5, 2)])
def test_moments_and_quantiles_are_those_of_all_rows(n, d, parts, on):
    X = rows(n, d)
    found = TrainingInputs.of(shards_of(X, parts, on), 0)
    scale = X.std(0)
    covariance = np.cov((X / scale).T, bias=True) + RIDGE * np.eye(d)
    np.testing.assert_allclose(found.mean, X.mean(0), atol=1e-12)
    np.testing.assert_allclose(found.scale, scale, rtol=1e-12)
    np.testing.assert_allclose(found.L @ found.L.mT, covariance, atol=1e-12)
    far, near = naive(X)
    assert found.far == pytest.approx(np.quantile(far, 0.99), rel=1e-6)
    assert found.apart == pytest.approx(np.quantile(near, 0.99), rel=1e-9)
    away = np.linalg.solve(np.linalg.cholesky(covariance), ((X - X.mean(0)) / scale).T)
    wanted = np.linalg.norm(away, axis=0) / found.far
    np.testing.assert_allclose(found.mahalanobis(torch.as_tensor(X)), wanted, rtol=1e-6)


def test_samples_of_many_rows_know_the_nearest_of_all_rows(monkeypatch):
    monkeypatch.setattr(distgp.diagnostics.novelty, "SAMPLE", 400)
    monkeypatch.setattr(distgp.diagnostics.novelty, "LEAST_SAMPLE", 300)
    monkeypatch.setattr(distgp.diagnostics.novelty, "SAMPLE_PAIRS", 1)
    X = rows(600)
    found = TrainingInputs.of(shards_of(X, 4, 3), 0)
    far, near = naive(X)
    assert np.quantile(near, 0.97) < found.apart < np.quantile(near, 0.999)
    assert np.quantile(far, 0.97) < found.far < np.quantile(far, 0.999)
    assert found.far == pytest.approx(TrainingInputs.of(shards_of(X), 0).far)
    assert TrainingInputs.of(shards_of(X), 0, nearest=False).apart is None


def test_constant_columns_categories_and_repeated_rows():
    rng = np.random.default_rng(0)
    kinds = np.eye(3)[rng.integers(3, size=200)]
    X = np.column_stack([rng.normal(size=200), kinds, np.full(200, 1e6 / 3), np.full(200, 1e-9)])
    found = TrainingInputs.of(shards_of(X), 0)
    assert found.scale[-1] == found.scale[-2] == 1.0 and float(found.scale.min()) > 0.3
    test = np.tile(X[5], (3, 1))
    test[1, 1:4] = 0.0  # a kind that was never seen
    test[2, -1] = 0.5  # a constant that has changed
    ratio = found.mahalanobis(torch.as_tensor(test))
    assert ratio[0] < 1 < 10 < min(ratio[1], ratio[2])
    same = TrainingInputs.of(shards_of(np.ones((30, 2))), 0)
    assert same.mahalanobis(torch.ones(1, 2)) == 0.0 < 1.0 < same.mahalanobis(torch.zeros(1, 2))
    one = TrainingInputs.of(shards_of(np.ones((1, 2))), 0)
    assert one.apart is None and np.isfinite(one.far)


def test_units_do_not_matter():
    X, units = rows(300), np.array([1e-7, 1.0, 1e7])
    a, b = TrainingInputs.of(shards_of(X), 0), TrainingInputs.of(shards_of(X * units), 0)
    assert (a.far, a.apart) == pytest.approx((b.far, b.apart), rel=1e-6)
    single = TrainingInputs.of(
        LocalPlacement(tuple(s.to(dtype=torch.float32) for s in shards_of(X).items)), 0
    )
    assert single.far == pytest.approx(a.far, rel=1e-4) and single.mean.dtype == torch.float64


def fitted(expert, X, normalize=True, **options):
    """A model that knows its inputs. The regressor itself may give it them; so this replaces them."""
    gp = DistributedGPRegressor(expert=expert, training=None, normalize=normalize, **options)
    gp.fit(X, X[:, 0] + X[:, 1])
    points = standard(gp, X)
    data = placed([Shard.of(points, points[:, 0])])
    inputs = TrainingInputs.of(data, 0, nearest=expert != "sparse")
    gp.model_ = replace(gp.model_, inputs=inputs)
    return gp


def standard(gp, X):
    """Points in the units of the experts."""
    target = gp.model_.targets[0]
    return target.scaling.inputs(X, target.parameters.noise)


def new(gp, X):
    """The novelty of points, from the parts of the model."""
    return novelty(gp.model_.inputs, gp.model_.targets[0].ensemble, standard(gp, X))


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("expert", ["exact", "nearest", "sparse"])
def test_novelty_is_the_larger_of_two_ratios(expert, normalize):
    X = rows(300)
    gp = fitted(expert, X, normalize, n_experts=3, n_inducing=20)
    test = np.concatenate([rows(50, seed=1), 10 + X[:3]])
    found = new(gp, test)
    far, near = naive(X)
    Z, T = (X - X.mean(0)) / X.std(0), (test - X.mean(0)) / X.std(0)
    covariance = np.cov(Z.T, bias=True) + RIDGE * np.eye(3)
    wanted = np.sqrt((T * np.linalg.solve(covariance, T.T).T).sum(1)) / np.quantile(far, 0.99)
    if expert != "sparse":
        nearest = np.sqrt(np.square(T[:, None] - Z).sum(-1)).min(1) / np.quantile(near, 0.99)
        assert (nearest > wanted).any() and (nearest < wanted).any()
        wanted = np.maximum(wanted, nearest)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    assert (found[-3:] > 1).all()
    again = gp.model_.gathered()
    assert again.inputs is gp.model_.inputs
    gp.model_ = again
    np.testing.assert_array_equal(new(gp, test), found)


def test_a_gap_between_the_rows_is_new():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(-3, 0.3, size=(200, 2)), rng.normal(3, 0.3, size=(200, 2))])
    found = new(fitted("exact", X), np.array([[0.0, 0.0], [3.0, 3.0]]))
    assert found[0] > 3 and found[1] < 1


def test_many_new_rows_are_told_in_plain_words():
    X = rows(400)
    gp = fitted("exact", X)
    inputs, points = gp.model_.inputs, rows(100, seed=2) * [1, 1, 3]
    unlike = standard(gp, points)
    share = (inputs.mahalanobis(unlike) > 1).double()
    assert 0.1 < share.mean() < 1
    words = rf"{100 * share.mean():.0f} % of the 100 rows to predict.*extrapolation.*cannot be trusted.*"
    with pytest.warns(
        NoveltyWarning, match=words + r"gp\.novelty\(X\).*validation=\"last\""
    ) as told:
        warn_of_novelty(inputs, unlike)
    assert told[0].filename == __file__ and len(told) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_novelty(inputs, standard(gp, X))
        warn_of_novelty(inputs, standard(gp, rows(500, seed=3)[:300]))
        warn_of_novelty(inputs, unlike[:19])
        warn_of_novelty(replace(inputs, rows=49), unlike)
        gp.model_ = replace(gp.model_, inputs=None)
        gp.predict(points)
    with pytest.raises(ValueError, match="earlier version of distgp fitted it: fit it again"):
        gp.novelty(points)


@pytest.mark.parametrize(("n", "d"), [(60, 2), (60, 12), (60, 80), (100, 30)])
def test_few_training_rows_do_not_make_others_new(n, d):
    # To moments that contain them, the training rows would seem closer than any others are.
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(20):
        mix = rng.normal(size=(d, d))
        X, test = rng.normal(size=(n, d)) @ mix, rng.normal(size=(200, d)) @ mix
        ratio = TrainingInputs.of(shards_of(X), 0).mahalanobis(torch.as_tensor(test))
        shares.append(float((ratio > 1).double().mean()))
    assert np.mean(shares) < 0.05 and np.mean(np.array(shares) > 0.1) <= 0.1, shares


def test_files_keep_the_inputs_and_those_without_can_be_read(tmp_path):
    X, points = rows(100), rows(40, seed=1)
    gp = fitted("exact", X, n_experts=2)
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(new(again, points), new(gp, points))
    gp.partial_fit(points, points[:, 0])
    assert gp.model_.inputs is not None
    gp.model_ = replace(gp.model_, inputs=None)
    gp.save(tmp_path / "m.safetensors")
    assert distgp.load(tmp_path / "m.safetensors").model_.inputs is None


@real
@pytest.mark.parametrize(
    ("name", "years", "random"),
    [("co", (0.96, 0.99), (0.005, 0.015)), ("nox", (0.96, 0.99), (0.005, 0.015)),
     ("pm2.5", (0.003, 0.01), (0.005, 0.02)), ("traffic", (0.003, 0.01), (0.005, 0.015))],
)  # fmt: skip
def test_the_years_to_predict_of_the_gas_turbine_are_new(name, years, random):
    task = TASKS[name](PUBLISHED, False)
    everything = np.concatenate([task.X, task.X_test])
    shuffled = everything[np.random.default_rng(0).permutation(len(everything))]
    n = len(task.X)
    for X, test, (low, high) in (
        (task.X, task.X_test, years),
        (shuffled[:n], shuffled[n:], random),
    ):
        scaling, like = Scaling.of(X, X[:, 0], True), torch.zeros((), dtype=torch.float64)
        inputs = TrainingInputs.of(shards_of(scaling.inputs(X, like)), 0, nearest=False)
        ratio = inputs.mahalanobis(scaling.inputs(test, like))
        assert low < float((ratio > 1).double().mean()) < high


@pytest.mark.parametrize("share", [0.005, 0.015, 0.04])
def test_rows_that_are_alone_in_a_category_do_not_hide_others(share):
    rng = np.random.default_rng(0)
    n = 2000
    rare, kinds = int(share * n), np.zeros((n, int(share * n) + 2))
    kinds[np.arange(n), rng.integers(2, size=n)] = 1.0
    kinds[:rare] = 0.0
    kinds[np.arange(rare), 2 + np.arange(rare)] = 1.0
    X = np.column_stack([rng.normal(size=(n, 2)), kinds])
    found = TrainingInputs.of(shards_of(X), 0, nearest=False)
    plain = TrainingInputs.of(shards_of(X[rare:, :4]), 0, nearest=False)
    assert found.far == pytest.approx(plain.far, rel=0.1)
    odd = X[-1:].copy()
    odd[0, 0] = 1000.0
    assert found.mahalanobis(torch.as_tensor(odd)) > 100
    assert found.mahalanobis(torch.as_tensor(X[rare:])).mean() < 1


def test_more_columns_than_rows_make_no_square_of_the_columns(tmp_path):
    """The file holds the rows and a few numbers for each column; rows from elsewhere are still told."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 400))
    gp = distgp.DistributedGPRegressor("exact", 1, training=None).fit(X, X[:, 0])
    gp.save(tmp_path / "m")
    assert (tmp_path / "m").stat().st_size < 3 * X.nbytes
    inputs = distgp.load(tmp_path / "m").model_.inputs
    assert inputs.L.shape == (400,)
    by_hand = np.sqrt(np.square((X - X.mean(0)) / X.std(0)).sum(1)) / np.sqrt(1 + 1e-6)
    np.testing.assert_allclose(inputs.distances(gp_inputs(gp, X)).numpy(), by_hand, rtol=1e-9)
    near, away = rng.normal(size=(40, 400)), 3.0 + rng.normal(size=(40, 400))
    assert np.median(gp.novelty(near)) < 1.1 and (gp.novelty(away) > 2).all()
    assert gp.feature_relevance_.shape == (400,) and gp.feature_relevance_.min() > 0


def gp_inputs(gp, X):
    """Rows as the experts see them."""
    return gp.model_.targets[0].scaling.inputs(X, gp.kernel_.variance)


def in_time(n=200, ahead=50):
    """Rows to learn from and rows to come, with a column of dates and one that is no time."""
    rng = np.random.default_rng(0)
    when = pd.date_range("2026-01-01", periods=n + ahead, freq="h")
    table = pd.DataFrame({"when": when, "hour": np.arange(n + ahead) / 2.0})
    table["warm"] = rng.normal(size=n + ahead)
    y = table["warm"] + np.sin(table["hour"] * np.pi / 6)
    return table[:n], y[:n], table[n:]


def told(gp, X):
    """The warning of novelty, if there is one."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        gp.predict(X)
    texts = [str(one.message) for one in found if one.category is NoveltyWarning]
    assert len(texts) < 2
    return texts[0] if texts else ""


@pytest.mark.parametrize(
    ("columns", "options", "given"),
    [
        (["when", "warm"], {}, {}),
        (["when"], {}, {}),
        (["hour", "warm"], {"kernel": "periodic(12, columns=hour) + matern52(columns=warm)"}, {}),
        (["hour"], {"kernel": "periodic(12) * rbf(500)"}, {}),
        (["hour", "warm"], {"validation": "last"}, {}),
        (["hour", "warm"], {"validation": "last"}, {"time": "hour"}),
        (["warm", "hour"], {"validation": "last"}, {"time": np.arange(200) // 4}),
    ],
)
def test_the_time_of_a_forecast_is_no_news_but_other_columns_are(columns, options, given, tmp_path):
    before, y, after = in_time()
    gp = DistributedGPRegressor("exact", 1, training=None, dates="expand", **options)
    gp.fit(before[columns], y, **given)
    assert not told(gp, after[columns])
    assert (gp.novelty(after[columns]) > 1).mean() > 0.5  # who asks is told
    if "warm" in columns:
        strange = after[columns].assign(warm=after["warm"] + 9.0)
        said = told(gp, strange)
        assert "100 % of the 50 rows" in said and 'validation="groups"' in said
        assert ('validation="last"' in said) == ("validation" not in options)
        gp.save(tmp_path / "model")
        assert told(distgp.load(tmp_path / "model"), strange) == said


def test_columns_that_are_no_time_are_new_with_validation_last():
    before, y, after = in_time()
    rng = np.random.default_rng(1)
    X, new = before[["warm"]].to_numpy(), after[["warm"]].to_numpy() + 9.0
    step = (np.arange(200) > 100.0).astype(float)  # never falls, and is no time
    gp = DistributedGPRegressor("exact", 1, training=None, validation="last")
    gp.fit(np.column_stack([X, step]), y)
    assert told(gp, np.column_stack([new, np.ones(50)]))
    assert told(gp, np.column_stack([new - 9.0, np.full(50, 5.0)]))
    gp.fit(np.column_stack([X, step]), y, time=rng.permutation(200))
    assert gp.model_.inputs.time == ()


def test_the_distance_in_other_columns_is_that_of_rows_without_those_of_time():
    X = rows(400, 4)
    whole, part = (
        TrainingInputs.of(shards_of(X, 3, 2), 0),
        TrainingInputs.of(shards_of(X[:, 1:3]), 0),
    )
    found = whole.forecasting(shards_of(X, 3, 2), {0, 3}, "last", 0)
    assert (found.time, found.validation) == ((0, 3), "last")
    assert found.far_besides == pytest.approx(part.far, rel=1e-5)
    points = torch.as_tensor(rows(50, 4, seed=5))
    np.testing.assert_allclose(
        found.besides_time(found.far_besides).mahalanobis(points[:, 1:3]),
        part.mahalanobis(points[:, 1:3]),
        rtol=1e-4,
    )
    assert whole.forecasting(shards_of(X), (), "random", 0).far_besides is None
