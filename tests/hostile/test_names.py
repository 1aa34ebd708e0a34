"""All names with all names: each combination fits and predicts, or is refused before it trains."""

import itertools
import warnings

import numpy as np
import pytest
from hostile.trial import data, outcome, times, tiny

import distgp
from distgp.training import learning, train

NAMES = {
    "expert": ["auto", *distgp.EXPERTS],
    "aggregation": ["auto", *distgp.AGGREGATORS],
    "training": ["auto", None, *distgp.ALGORITHMS],
    "partition": [*distgp.PARTITIONS],
}
OTHERS = {
    "kernel": ["auto", *distgp.KERNELS, "linear", "matern52 + linear", "rbf * periodic(2, columns=0)"],
    "mean": ["constant", "linear"],
    "validation": ["random", "last", "groups"],
    "target_transform": [None, "auto", "log", "yeo-johnson"],
    "calibrate": [None, "conformal", "mondrian"],
    "normalize": [True, False],
    "dtype": ["float64", "float32"],
    "n_experts": ["auto", "cv", 1, 3],
    "n_inducing": ["auto", 0, 4],
    "training_rows": ["auto", None, 10],
    "warm_start": [True, False],
    "device": ["cpu"],
    "missing": ["refuse", "drop", "impute"],
    "kernel_units": ["auto", "data", "standardised"],
    "learning_rate": [None, 0.1],  # which warns that it goes
}  # fmt: skip


def combinations():
    """Every expert, aggregator, algorithm and partition; and every other pair of values."""
    for values in itertools.product(*NAMES.values()):
        yield dict(zip(NAMES, values, strict=True))
    everything = NAMES | OTHERS
    for a, b in itertools.combinations(everything, 2):
        if not (a in NAMES and b in NAMES):
            for pair in itertools.product(everything[a], everything[b]):
                yield dict(zip((a, b), pair, strict=True))


ALL = list(combinations())
CHOSEN = np.random.default_rng(0).permutation(len(ALL))[: times(60, len(ALL))]
PARTS = np.array_split(np.sort(CHOSEN), times(4, 40))


@pytest.mark.filterwarnings("ignore:learning_rate=0.1 is said:FutureWarning")
@pytest.mark.parametrize("part", range(len(PARTS)))
def test_every_combination_of_names(part, monkeypatch):
    X, y = data()
    X_new = data(5, seed=1)[0]
    trained = []
    monkeypatch.setattr(learning, "train", lambda *a, **k: trained.append(1) or train(*a, **k))
    for i in PARTS[part]:
        given = ALL[i]
        trained.clear()
        values = {"partition": np.arange(24) % 2} if given.get("partition") == "column" else {}
        own = y + 3.0 if given.get("target_transform") == "log" else y
        groups = (
            np.arange(24) % 4
            if "groups" in given.values() or "mondrian" in given.values()
            else None
        )
        gp = tiny(**given | values)
        made = outcome("combinations of names", lambda: gp.fit(X, own, groups=groups))  # noqa: B023
        if made is None:
            assert not trained, f"{given} was refused after training"
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mean, std = made.predict(X_new, return_std=True)
        assert np.isfinite(mean).all() and np.isfinite(std).all() and (std >= 0).all(), given
