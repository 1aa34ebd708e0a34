"""The combination technique and OptiCom, against the paper's algorithms written naively."""

import pytest
import torch
from helpers import inputs, shard

import distgp
from distgp import separable
from distgp.data import Shard, placed, stack
from distgp.engines import LocalPlacement
from distgp.experts import ExactExpert, Parameters, SparseExpert
from distgp.sparsegrid import (
    Box,
    GridPosterior,
    PointBasis,
    SparseGrid,
    TensorBasis,
    basis_of,
    grid,
)
from distgp.sparsegrid.posterior import grid_sums

NOISE = 0.05
KERNELS = {
    "product": 1.4 * separable(distgp.Matern32, [0.6, 0.9]),
    "rbf": 1.4 * distgp.RBF([0.3, 0.4]),
    "isotropic": 1.4 * distgp.Matern32([0.6, 0.9]),
    "sum": distgp.Matern12([0.5, 0.7]) + distgp.Matern32([0.4, 0.4]),
}
DATA = shard(150, 2)
BOX = Box.of((-1.0, 1.0), 2)
X_NEW = 1.3 * inputs(40, 2, seed=5)


def posterior(kernel, level=4, combination="opticom", d=2, data=DATA, whole=False, dense=False):
    sparse = SparseGrid.of(level, d)
    box = Box.of((-1.0, 1.0), d)
    basis = basis_of(kernel, sparse.whole() if whole else sparse, box, dense)
    shards = placed([data]) if isinstance(data, Shard) else data
    return GridPosterior.of(Parameters.of(kernel, NOISE), basis, shards, combination)


def risk(equations, c):
    """R(Σc_l f_l) = ‖y − Σc_l f_l(X)‖² + σ²‖Σc_l f_l‖²_H."""
    return equations.yy - 2.0 * c @ equations.b + c @ equations.G @ c


def algorithm_1_and_2(kernel, level, data, X_new):
    """As printed, with plain inverses: c, the OptiCom mean, the CT covariance."""
    sparse = SparseGrid.of(level, 2)
    grids = [grid(l, BOX) for l in sparse.levels.tolist()]

    def M(Z1, Z2):
        return kernel(Z1, Z2) + kernel(Z1, data.X) @ kernel(data.X, Z2) / NOISE

    alphas = [torch.linalg.solve(M(Z, Z), kernel(Z, data.X) @ data.y) for Z in grids]
    A = torch.stack(
        [
            torch.stack([a @ M(Z, Z2) @ a2 / NOISE for Z2, a2 in zip(grids, alphas, strict=True)])
            for Z, a in zip(grids, alphas, strict=True)
        ]
    )
    c = torch.linalg.solve(A, A.diagonal())
    mean, S = torch.zeros(len(X_new), dtype=torch.float64), 0.0
    for weight, ct, Z, a in zip(c, sparse.coefficients, grids, alphas, strict=True):
        K = kernel(X_new, Z)
        mean = mean + weight * K @ a / NOISE
        inverses = torch.linalg.inv(kernel(Z)) - torch.linalg.inv(M(Z, Z))
        S = S + ct * (kernel(X_new) - K @ inverses @ K.mT)
    return c, mean, S


@pytest.mark.parametrize("name", ["product", "isotropic", "sum"])
def test_algorithms_as_printed(name):
    kernel = KERNELS[name]
    c, mean, covariance = algorithm_1_and_2(kernel, 3, DATA, X_NEW)
    ours = posterior(kernel, 3)
    torch.testing.assert_close(ours.c, c, rtol=1e-6, atol=1e-8)
    torch.testing.assert_close(ours.mean(X_NEW), mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours.covariance(X_NEW), covariance, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(ours.variance(X_NEW), covariance.diagonal(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("combination", ["opticom", "ct"])
def test_one_column_is_the_plain_sparse_gp(combination):
    kernel, data = 1.4 * distgp.Matern52([0.5]), shard(80, 1)
    ours = posterior(kernel, 4, combination, d=1, data=data)
    Z = grid((4,), Box.of((-1.0, 1.0), 1))
    plain = SparseExpert().condition(Parameters.of(kernel, NOISE, Z), data)
    X = 1.3 * inputs(30, 1, seed=3)
    wanted = plain.predict(X)
    torch.testing.assert_close(ours.mean(X), wanted.mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.variance(X), wanted.variance, rtol=1e-8, atol=1e-9)
    bound = -SparseExpert().objective(Parameters.of(kernel, NOISE, Z), data)
    torch.testing.assert_close(ours.bounds[0], bound, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("name", KERNELS)
def test_full_is_the_sparse_gp_on_the_sparse_grid(name):
    kernel = KERNELS[name]
    ours = posterior(kernel, 4, "full", whole=True)
    Z = SparseGrid.of(4, 2).points(BOX)
    wanted = SparseExpert().condition(Parameters.of(kernel, NOISE, Z), DATA).predict(X_NEW)
    torch.testing.assert_close(ours.mean(X_NEW), wanted.mean, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(ours.variance(X_NEW), wanted.variance, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("level", range(1, 7))
@pytest.mark.parametrize("name", KERNELS)
def test_both_right_hand_sides_agree(name, level):
    ours = posterior(KERNELS[name], level)
    if isinstance(ours.basis, PointBasis):
        assert ours.basis.nugget == 0.0
    G, b = ours.equations.G, ours.equations.b
    torch.testing.assert_close(G.diagonal(), b, rtol=1e-11, atol=0.0)


def test_both_right_hand_sides_agree_in_more_columns():
    kernel = distgp.Matern32([0.6, 0.9, 1.2])
    equations = posterior(kernel, 4, d=3, data=shard(200, 3)).equations
    torch.testing.assert_close(equations.G.diagonal(), equations.b, rtol=1e-11, atol=0.0)
    assert risk(equations, equations.opticom()) < risk(equations, SparseGrid.of(4, 3).coefficients)


def test_one_nugget_for_all_grids_keeps_them_projections():
    # Singular to rounding: each grid's own jitter would make them means of different kernels.
    kernel = distgp.RBF([3.0, 3.0]) + distgp.RBF([9.0, 9.0])
    ours = posterior(kernel, 5)
    assert isinstance(ours.basis, PointBasis) and ours.basis.nugget > 0.0
    G, b = ours.equations.G, ours.equations.b
    torch.testing.assert_close(G.diagonal(), b, rtol=1e-7, atol=0.0)


@pytest.mark.parametrize("level", range(1, 7))
@pytest.mark.parametrize("name", KERNELS)
def test_opticom_has_the_least_risk(name, level):
    ours = posterior(KERNELS[name], level)
    equations, grid_ = ours.equations, ours.basis.grid
    slack = 1e-10 * equations.yy
    best = risk(equations, ours.c)
    assert best <= risk(equations, grid_.coefficients) + slack
    for one in torch.eye(len(ours.c), dtype=torch.float64):
        assert best <= risk(equations, one) + slack


def test_risk_is_what_it_says():
    kernel = KERNELS["isotropic"]
    ours = posterior(kernel, 4)
    a = ours.W @ ours.c
    Z = ours.basis.points
    wanted = (DATA.y - ours.mean(DATA.X)).square().sum() + NOISE * a @ kernel(Z) @ a
    torch.testing.assert_close(risk(ours.equations, ours.c), wanted, rtol=1e-9, atol=0.0)


@pytest.mark.parametrize("name", ["product", "rbf"])
def test_kronecker_equals_dense(name):
    kronecker, dense = posterior(KERNELS[name]), posterior(KERNELS[name], dense=True)
    assert isinstance(kronecker.basis, TensorBasis) and isinstance(dense.basis, PointBasis)
    tolerance = {"rtol": 1e-6, "atol": 1e-6}
    torch.testing.assert_close(kronecker.mean(X_NEW), dense.mean(X_NEW), **tolerance)
    torch.testing.assert_close(kronecker.variance(X_NEW), dense.variance(X_NEW), **tolerance)
    torch.testing.assert_close(kronecker.bounds, dense.bounds, rtol=1e-7, atol=0.0)
    torch.testing.assert_close(kronecker.equations.G, dense.equations.G, **tolerance)


@pytest.mark.parametrize("name", ["isotropic", "product"])
def test_chunks_shards_and_padding_change_nothing(name, monkeypatch):
    kernel = KERNELS[name]
    once = posterior(kernel)
    monkeypatch.setattr("distgp.experts.base.CHUNK_ENTRIES", {"cpu": 1000})
    shards = [
        Shard.of(DATA.X[a:b], DATA.y[a:b], torch.arange(a, b))
        for a, b in [(0, 20), (20, 21), (21, 90), (90, 150)]
    ]
    parts = posterior(kernel, data=LocalPlacement((stack(shards[:3]), stack(shards[3:]))))
    torch.testing.assert_close(parts.c, once.c, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(parts.bounds, once.bounds)
    torch.testing.assert_close(parts.mean(X_NEW), once.mean(X_NEW), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(parts.variance(X_NEW), once.variance(X_NEW), rtol=1e-9, atol=1e-9)
    sums = grid_sums(placed([DATA]), once.basis, once.parameters.noise)
    V = once.basis.whitened(once.basis.at(DATA.X), 2)
    torch.testing.assert_close(sums[2].AAt, V @ V.mT / NOISE)


def test_the_floor_is_a_lower_bound():
    # kσ²/(σ² + nk) is the variance at x when all n rows lie at x, and none can do better.
    kernel = KERNELS["isotropic"]
    exact = ExactExpert().condition(Parameters.of(kernel, NOISE), DATA).predict(X_NEW)
    ours = posterior(kernel)
    assert (exact.variance >= ours.floor(X_NEW)).all()
    x = X_NEW[:1]
    same = Shard.of(x.expand(150, 2).clone(), torch.zeros(150, dtype=torch.float64))
    at_x = ExactExpert().condition(Parameters.of(kernel, NOISE), same).predict(x)
    torch.testing.assert_close(ours.floor(x), at_x.variance, rtol=1e-8, atol=0.0)
