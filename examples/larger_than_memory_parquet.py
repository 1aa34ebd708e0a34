"""Rows that this process never holds: a table in Parquet files.

Learn here how a model is fitted to files by their path, with text columns and missing values, and
how the workers of an engine read the rows by themselves.

    python examples/larger_than_memory_parquet.py [rows]
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import distgp

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 50_000


def part(n: int, seed: int) -> pa.Table:
    """Some rows of a table of water levels."""
    rng = np.random.default_rng(seed)
    hour, site = rng.uniform(0, 24, n), rng.choice(["north", "south"], n)
    level = np.sin(hour / 4) + 0.5 * (site == "south") + 0.1 * rng.normal(size=n)
    level[rng.uniform(size=n) < 0.01] = np.nan  # a sensor that fails now and then
    return pa.table({"hour": hour, "site": site, "level": pa.array(level, from_pandas=True)})


with tempfile.TemporaryDirectory() as folder:
    for seed in range(4):
        pq.write_table(part(rows // 4, seed), Path(folder) / f"part-{seed}.parquet")

    # With engine="ray" the same call has processes on other machines read their share.
    gp = distgp.DistributedGPRegressor(expert="sparse", n_experts=8, n_inducing=64, random_state=0)
    gp.fit_parquet(folder, target="level", missing="drop")
    print(f"{gp.n_experts_} experts with {gp.n_inducing_} inducing inputs")

print("inputs:", ", ".join(gp.feature_names_in_))
noon = pa.table({"hour": [12.0], "site=north": [1.0], "site=south": [0.0]})
mean, std = gp.predict(noon, return_std=True)
print(
    f"level in the north at noon: {mean[0]:.2f} ± {std[0]:.2f}, without noise the truth is {np.sin(3):.2f}"
)
