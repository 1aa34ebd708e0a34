"""The paper's weights as printed, for experts with hyperparameters of their own: the paper's own setting.

Functions of different priors have no common RKHS, so the Gram matrix keeps its sums over rows alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distgp import linalg
from distgp.aggregation import Ensemble
from distgp.aggregation.variance import printed_terms
from distgp.experts import Posterior, Prediction
from experiments.report import average, distinct, select, table
from experiments.study import Row
from experiments.uci_page import MANY, mean_of, published

JITTERS = (1e-6, 1e-4, 1e-2, 1e-1, 1.0)
"""What is added to the Gram matrix's diagonal, relative to its mean; the first is the library's."""


def printed_name(jitter: float) -> str:
    """What the table calls the printed weights with this jitter."""
    return "opt-printed" if jitter == JITTERS[0] else f"opt-printed, jitter {jitter:g}"


def printed_weights(F: Tensor, jitter: float) -> Tensor:
    """Solve (G + jitter · mean(diag G) · I)β = diag G with G = FFᵀ.

    Parameters
    ----------
    F : Tensor of shape (M, N)
        The experts' means at the rows that G is summed over.
    jitter : float
        What is added to G's diagonal, relative to its mean.

    Returns
    -------
    Tensor of shape (M,)
    """
    G = F @ F.mT
    diagonal = G.diagonal()
    L = linalg.cholesky(linalg.add_diagonal(G, jitter * diagonal.mean()), "the printed Gram matrix")
    return linalg.cholesky_solve(L, diagonal[:, None])[:, 0]


def printed_predictions(
    ensemble: Ensemble, X: Tensor, jitters: Sequence[float] = JITTERS, seed: int = 0
) -> dict[float, Prediction]:
    """Predict observations with the printed weights and the printed variance, Σβ²K M⁻¹K plus the noise.

    Parameters
    ----------
    ensemble : Ensemble
        Sparse experts, each with hyperparameters of its own.
    X : Tensor of shape (N, d)
        The test points.
    jitters : sequence of float
        The jitters to try.
    seed : int, default=0
        The seed of the rows that G is summed over, one per shard.

    Returns
    -------
    dict of float to Prediction
        A prediction per jitter.
    """
    with torch.no_grad():
        F = torch.cat(ensemble.placement.map(_means, ensemble.central(ensemble.size, seed).X))
        parts = ensemble.placement.map(printed_terms, X)
        means = torch.cat([part.mean for part in parts])
        terms = torch.cat([part.variance for part in parts])
        weights = {jitter: printed_weights(F, jitter) for jitter in jitters}
        return {
            jitter: Prediction(beta @ means, beta.square() @ terms + ensemble.noise())
            for jitter, beta in weights.items()
        }


def _means(posterior: Posterior, X: Tensor) -> Tensor:
    return posterior.mean(X)


def printed(rows: Sequence[Row]) -> str:
    """Describe the printed weights with hyperparameters of their own, by jitter."""
    found = select(rows, model="printed")
    if not found:
        return ""
    lines: list[list[object]] = []
    for task in distinct(found, "task"):
        for M in [M for M in MANY if select(found, task=task, M=M)]:
            poe = select(rows, task=task, M=M, model="independent", method="poe, latent")
            runs = [select(found, task=task, M=M, method=printed_name(j)) for j in JITTERS]
            lines.append(
                [
                    task,
                    M,
                    published()[task, M, "opt", "rmse"][0],
                    average(poe, "rmse"),
                    *(
                        f"{average(at, 'rmse'):.3g} / {mean_of(at, task, 'nlpd'):.3g}"
                        for at in runs
                    ),
                ]
            )
    said = [f"{_better(found, rows, jitter)} with {jitter:g}" for jitter in JITTERS]
    co = [average(select(found, task="co", M=20, method=printed_name(j)), "rmse") for j in JITTERS]
    apart = 100 * max(
        abs(published()[task, M, "opt", "rmse"][0] / published()[task, M, "poe", "rmse"][0] - 1)
        for task in distinct(found, "task")
        for M in MANY
    )
    head = [
        "task",
        "M",
        "RMSE: the paper's opt",
        "PoE, latent",
        *(f"jitter {j:g}" for j in JITTERS),
    ]
    return f"""## The printed weights

The paper's own cell: experts with hyperparameters of their own, weights as printed, Gβ = diag G with G summed over one row per shard. Experts of different priors have no
common RKHS, so G has its data terms alone. The paper adds "a small jitter" to G and does not say how much: here relative to the mean of G's diagonal. RMSE / NLPD (published units) by jitter, beside PoE's RMSE on
the same experts:

{table(head, lines)}

What comes out is decided by the jitter: on CO with M = 20 the RMSE falls from {co[0]:,.0f} to {co[-1]:.2f} as the jitter grows from {JITTERS[0]:g} to {JITTERS[-1]:g}, where the weights cancel no more. Below PoE's RMSE on the same
experts, of {len(lines)} rows: {", ".join(said)}. The paper's RMSE for opt, within {apart:.1f} % of its PoE's in every row, does not follow from its formulas with a small jitter on experts like these."""


def _better(found: Sequence[Row], rows: Sequence[Row], jitter: float) -> int:
    """Count the rows in which the printed weights have a lower RMSE than latent PoE."""
    return sum(
        average(select(found, task=task, M=M, method=printed_name(jitter)), "rmse")
        < average(select(rows, task=task, M=M, model="independent", method="poe, latent"), "rmse")
        for task in distinct(found, "task")
        for M in MANY
    )
