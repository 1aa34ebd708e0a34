"""Which aggregator from marginals is nearest to the exact GP, with random shards and with k-means shards?

Known θ: a Matérn-5/2 function with unit variance on [−1, 1]^d, noise 0.2, n = 10,000 rows, 20 exact
experts, 2,000 test points, d = 2 with lengthscale 0.1 and d = 4 with lengthscale 0.5. All aggregators
combine the same experts in latent space, except grbcm: its first shard is a random one, and the
partition divides the other rows, as the estimator does it.

"error" is the latent RMSE in units of the noise, NLPD is that of observations, w2 is the 2-Wasserstein
distance of the latent marginals to those of the exact GP of all rows.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

from _measure import write_csv
from nearest import NOISE, RESULTS, Row, compared, draw

import distgp
from distgp.aggregation import (
    BCM,
    GRBCM,
    RBCM,
    Aggregator,
    Barycentre,
    Ensemble,
    GPoE,
    MinVariance,
    PoE,
    SoftmaxPoE,
)
from distgp.data import PARTITIONS, Shard, split, with_communication
from distgp.experts import ExactExpert, Parameters

PROBLEMS = ((2, 0.1), (4, 0.5))
RULES: dict[str, Aggregator] = {
    "poe": PoE(),
    "gpoe": GPoE(),
    "gpoe, normalised": GPoE("normalised"),
    "softmax-poe": SoftmaxPoE(),
    "bcm": BCM(),
    "rbcm": RBCM(),
    "grbcm": GRBCM(),
    "min-variance": MinVariance(),
    "barycentre": Barycentre(),
    "barycentre, uniform": Barycentre("uniform"),
}
EXACT = "exact GP of all rows"
SCORES = {"error": "RMSE / noise", "nlpd": "NLPD", "cover": "90 % cover", "w2": "W2"}


def study(n: int, M: int, seed: int) -> Iterator[Row]:
    for d, lengthscale in PROBLEMS:
        X, y, X_test, f, y_test, _ = draw(n, d, lengthscale, seed, "cpu", N=2000)
        data = Shard.of(X, y)
        theta = Parameters.of(1.0 * distgp.Matern52([lengthscale] * d), NOISE**2)
        full = ExactExpert().condition(theta, data).predict(X_test)
        base: Row = {"seed": seed, "d": d, "lengthscale": lengthscale, "n": n, "M": M}
        exact = compared(full, full, f, y_test)
        for shards in ("random", "kmeans"):
            yield base | {"shards": shards, "aggregator": EXACT} | exact
            partition = PARTITIONS[shards]()
            own = with_communication(data, M, partition, seed)
            common = split(data, partition.assign(X.numpy(), M, seed))
            communicating = Ensemble.condition(ExactExpert(), theta, own)
            experts = Ensemble.condition(ExactExpert(), theta, common)
            for name, rule in RULES.items():
                made = communicating if name == "grbcm" else experts
                out = rule.combine(made).predict(made, X_test)
                row = base | {"shards": shards, "aggregator": name}
                yield row | compared(out, full, f, y_test)


def number(value: object) -> float:
    assert isinstance(value, float)
    return value


def tables(rows: list[Row]) -> Iterator[str]:
    """One Markdown table a problem: means over seeds, random and k-means shards side by side."""
    for d, lengthscale in PROBLEMS:
        heads = [
            text if at else f"{shards}: {text}"
            for shards in ("random shards", "k-means shards")
            for at, text in enumerate(SCORES.values())
        ]
        yield f"\n| d = {d}, ℓ = {lengthscale} | " + " | ".join(heads) + " |"
        yield "| --- |" + " --- |" * len(heads)
        for name in (EXACT, *RULES):
            cells = [
                statistics.fmean(
                    number(row[score])
                    for row in rows
                    if (row["d"], row["shards"], row["aggregator"]) == (d, shards, name)
                )
                for shards in ("random", "kmeans")
                for score in SCORES
            ]
            yield f"| {name} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--experts", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "marginals.csv")
    options = parser.parse_args()
    rows: list[Row] = []
    for seed in range(options.seeds):
        for row in study(options.rows, options.experts, seed):
            rows.append(row)
            scores = (f"{name} {number(row[name]):.4g}" for name in SCORES)
            print(seed, row["d"], row["shards"], row["aggregator"], *scores, sep="  ", flush=True)
    print(*tables(rows), sep="\n")
    write_csv(rows, options.output, "cpu")
    print(f"\ntable: {options.output}")


if __name__ == "__main__":
    main()
