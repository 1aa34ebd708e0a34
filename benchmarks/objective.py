"""How far are objective and gradient from the linear algebra that they cannot avoid?

Exact, n = 2,000, d = 8: its kernel matrix, one Cholesky factorisation, one inverse from it.
Sparse, n = 10⁴, m = 128, d = 8: the matrix products of value and gradient, with A = L_u⁻¹ K_uf and
G the adjoint of AAᵀ: the distances, A, AAᵀ, (G + Gᵀ)A, L_u⁻ᵀ of that, its product with Aᵀ, and the
adjoint of the distances in Z. Exits with 1 where a ratio is above its limit.
"""

from __future__ import annotations

import torch
from _measure import objective_with_gradient, problem

import distgp
from distgp import linalg
from distgp.experts import ExactExpert, Parameters, SparseExpert
from experiments.study import seconds

TURNS = 9


def exact() -> tuple[float, float]:
    shard, theta = problem(2000, 8), Parameters.of(1.2 * distgp.RBF([0.8] * 8), 0.05)
    K = linalg.add_diagonal(theta.kernel(shard.X), theta.noise)
    L = linalg.cholesky(K)
    expert = ExactExpert()
    times = seconds(
        {
            "all": lambda: objective_with_gradient(expert, theta, shard),
            "kernel": lambda: theta.kernel(shard.X),
            "cholesky": lambda: linalg.cholesky(K),
            "inverse": lambda: linalg.cholesky_inverse(L),
        },
        repeats=TURNS,
    )
    return times.pop("all"), sum(times.values())


def sparse() -> tuple[float, float]:
    shard, m = problem(10_000, 8), 128
    theta = Parameters.of(1.2 * distgp.RBF([1.5] * 8), 0.05, shard.X[:m].clone())
    Z, Lu = shard.X[:m], linalg.cholesky(theta.kernel(shard.X[:m]))
    Kuf = theta.kernel(Z, shard.X)
    A = linalg.solve_lower(Lu, Kuf)
    G = A @ A.mT
    times = seconds(
        {
            "all": lambda: objective_with_gradient(SparseExpert(), theta, shard),
            "distances": lambda: Z @ shard.X.mT,
            "A": lambda: linalg.solve_lower(Lu, Kuf),
            "AAᵀ": lambda: A @ A.mT,
            "(G + Gᵀ)A": lambda: G @ A,
            "L_u⁻ᵀ": lambda: linalg.solve_upper(Lu, A),
            "times Aᵀ": lambda: Kuf @ A.mT,
            "adjoint Z": lambda: Kuf @ shard.X,
        },
        repeats=TURNS,
    )
    return times.pop("all"), sum(times.values())


def main() -> None:
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, float64, RBF with ARD")
    print(f"{'objective with gradient':40s} {'ms':>8s} {'floor ms':>9s} {'ratio':>6s}")
    cases = (
        ("exact, n = 2,000, d = 8", exact, 2.5),
        ("sparse, n = 10,000, m = 128, d = 8", sparse, 3.0),
    )
    good = True
    for name, run, limit in cases:
        taken, floor = run()
        good &= taken / floor < limit
        print(f"{name:40s} {taken * 1e3:8.1f} {floor * 1e3:9.1f} {taken / floor:6.2f}")
    raise SystemExit(not good)


if __name__ == "__main__":
    main()
