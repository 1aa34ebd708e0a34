"""Every aggregator on the same experts, beside the full GP.

Learn here that experts are fitted once and combined in many ways, and how far each combination is
from the GP that sees all rows at once.

    python examples/compare_aggregators.py [rows]
"""

import sys

import numpy as np

import distgp
from distgp.diagnostics.compare import compare, reference

rows = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, size=(rows + 500, 2))
y = np.sin(5 * X[:, 0]) * np.cos(4 * X[:, 1]) + 0.2 * rng.normal(size=len(X))
X, X_test, y, y_test = X[:rows], X[rows:], y[:rows], y[rows:]

gp = distgp.DistributedGPRegressor(expert="exact", n_experts=8, kernel="rbf", random_state=0)
gp.fit(X, y)

# The reference is one GP on all rows, with the hyperparameters that the experts have found.
results = compare(gp, X_test, y_test, full=reference(gp, X, y))
print(f"{'':14s}{'seconds':>9s}{'RMSE':>9s}{'NLPD':>9s}{'distance to the full GP':>26s}")
for r in results:
    if r.error is not None:  # `pooled` needs sparse experts, for one
        print(f"{r.name:14s}{r.error}")
        continue
    distance = "" if r.w2 is None else f"{r.w2:.2g}"
    print(f"{r.name:14s}{r.seconds:9.3f}{r.rmse:9.4f}{r.nlpd:9.4f}{distance:>26s}")

# To use one of them, name it: no expert is fitted again.
mean, std = gp.predict(X_test[:3], return_std=True, aggregation="two-level")
print("two-level predicts", mean.round(2), "±", std.round(2))
