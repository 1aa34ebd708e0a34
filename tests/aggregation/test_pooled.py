"""Pooled: exactly the sparse GP of all rows."""

from ensembles import build
from helpers import close, inputs

from distgp.aggregation import Pooled
from distgp.experts import SparseExpert

X = inputs(15, 2, 3)


def test_pooled_is_the_full_sparse_gp():
    ensemble, data = build("shared Z", 7)
    whole = SparseExpert().condition(ensemble.parameters, data)
    pooled = Pooled().combine(ensemble)
    out = pooled.predict(ensemble, X)
    close(out.mean, whole.predict(X).mean)
    close(out.variance, whole.predict(X).variance)
    close(pooled.mean(ensemble, X), whole.predict(X).mean)
    close(pooled.covariance(ensemble, X), whole.covariance(X))
