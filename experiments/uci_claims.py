"""What table 2 shows and what it does not: which method is below the paper's, and whose doing that is.

All numbers in the text are counted from the table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from experiments.report import average, distinct, select
from experiments.study import Row
from experiments.uci_page import MANY, mean_of, published

CURVED = ("co", "pm2.5", "traffic")
"""The tasks on which ours is opt-local, on experts with an RBF kernel."""
QUANTITIES = ("rmse", "nlpd")


def many(rows: Sequence[Row]) -> list[int]:
    """The numbers of experts that there are runs of."""
    return [M for M in MANY if select(rows, model="independent", M=M)]


def below(rows: Sequence[Row], method: str, task: str, M: int, quantity: str) -> bool:
    """Whether a method on experts with their own hyperparameters is below the paper's opt."""
    at = select(rows, model="independent", method=method, task=task, M=M)
    return mean_of(at, task, quantity) < published()[task, M, "opt", quantity][0]


def rows_below(rows: Sequence[Row], method: str) -> int:
    """Count the rows, of four tasks and three M, in which a method is below in RMSE and in NLPD."""
    return sum(
        all(below(rows, method, task, M, quantity) for quantity in QUANTITIES)
        for task in distinct(select(rows, model="independent"), "task")
        for M in many(rows)
    )


def numbers_below(rows: Sequence[Row], method: str) -> int:
    """Count the numbers below the paper's opt, of those on CO, PM2.5 and traffic."""
    return sum(
        below(rows, method, task, M, quantity)
        for task in CURVED
        for M in many(rows)
        for quantity in QUANTITIES
    )


def claims(rows: Sequence[Row]) -> str:
    """Say whose doing it is that ours is below the paper's opt."""
    if len(select(rows, model="ridge")) < 4 or not select(rows, model="linear"):
        return ""
    plane = select(rows, task="nox", model="linear", method="pooled")
    ridge = select(rows, task="nox", model="ridge")
    flat = [f"{average(plane, 'rmse'):.3f} and {mean_of(plane, 'nox', 'nlpd'):.3f}"]
    flat += [f"{average(ridge, 'rmse'):.3f} and {mean_of(ridge, 'nox', 'nlpd'):.3f}"]
    count = {m: numbers_below(rows, m) for m in ("opt-local", "gpoe, latent", "poe, latent", "opt")}
    co = {m: _by_M(rows, "co", m, "rmse") for m in ("poe, latent", "opt-local")}
    nlpd = [
        f"{task} {_by_M(rows, task, 'opt-local', 'nlpd')} against {_by_M(rows, task, 'gpoe, latent', 'nlpd')}"
        for task in CURVED
    ]
    features = [
        f"{task} {_by_M(rows, task, 'poe', 'rmse')} (the paper's {_theirs(rows, task, 'poe', 'rmse')})"
        for task in CURVED
    ]
    return f"""## Whose doing it is

**No one method is below the paper's opt in all rows.** opt-local alone, on experts with hyperparameters of their own, is below it in RMSE and NLPD in {rows_below(rows, "opt-local")} of {4 * len(many(rows))} rows: in all of CO, PM2.5 and
traffic, in none of NOx. The six numbers of NOx are two, repeated for every M: a plane's, {flat[0]}, where ridge regression has {flat[1]}. That a plane is right there is known from the test years alone.

**The weights are not what wins.** Of the other {2 * len(many(rows)) * len(CURVED)} numbers opt-local is below the paper's opt in {count["opt-local"]}; plain gPoE on the same experts (weights 1/M, latent variances) in {count["gpoe, latent"]}, latent PoE
in {count["poe, latent"]}, opt in {count["opt"]}. On CO latent PoE has the lower RMSE at every M: {co["poe, latent"]} against opt-local's {co["opt-local"]}. What the gains come from instead:

- the features: PoE's RMSE is already below the paper's PoE; {"; ".join(features)}; on CO, where ours are the nine sensors alone, how the experts are trained may count as well;
- the noise counted once: it turns PoE's NLPD on CO from {_by_M(rows, "co", "poe", "nlpd")} to {_by_M(rows, "co", "poe, latent", "nlpd")};
- the mixture's variance, which grows where experts disagree, where Σβ²s² shrinks like 1/M: opt-local's NLPD against gPoE's is {"; ".join(nlpd)}.

**The paper's baselines are not reproduced.** Its equation (4) has the noise in the prior's variance, hence observed variances, but its columns do not look like them. PoE's NLPD in the paper,
ours with observed and with latent variances: {_spaces(rows)}. So the paper's CO and NOx are near our latent numbers and far from our observed ones, its traffic and PM2.5 nearer to the observed ones. Its BCM and rBCM fail, ours do not in either space:
RMSE at M = 20 in the paper, ours observed and latent: {_committees(rows)}."""


def _by_M(rows: Sequence[Row], task: str, method: str, quantity: str) -> str:
    """A method's numbers for each M."""
    at = [select(rows, model="independent", method=method, task=task, M=M) for M in many(rows)]
    return ", ".join(f"{mean_of(some, task, quantity):.3f}" for some in at)


def _theirs(rows: Sequence[Row], task: str, method: str, quantity: str) -> str:
    """The paper's numbers for each M."""
    return ", ".join(f"{published()[task, M, method, quantity][0]:.3f}" for M in many(rows))


def _spaces(rows: Sequence[Row]) -> str:
    """PoE's NLPD by task, in the paper and in both spaces here, from the lowest to the highest M."""
    found = []
    for task in distinct(select(rows, model="independent"), "task"):
        theirs = [published()[task, M, "poe", "nlpd"][0] for M in many(rows)]
        ours = [
            [
                mean_of(
                    select(rows, model="independent", task=task, M=M, method=name), task, "nlpd"
                )
                for M in many(rows)
            ]
            for name in ("poe", "poe, latent")
        ]
        parts = [f"{min(some):.2f}–{max(some):.2f}" for some in (theirs, *ours)]
        found.append(f"{task} {', '.join(parts)}")
    return "; ".join(found)


def _committees(rows: Sequence[Row]) -> str:
    """BCM's and rBCM's RMSE by task at M = 20, in the paper and in both spaces here."""
    found = []
    for task in distinct(select(rows, model="independent"), "task"):
        for method, name in (("bcm", "BCM"), ("rbcm", "rBCM")):
            at = [
                row
                for row in select(rows, task=task, M=20)
                if row["model"] in ("independent", "printed")
            ]
            values = [published()[task, 20, method, "rmse"][0]]
            values += [average(select(at, method=m), "rmse") for m in (method, f"{method}, latent")]
            found.append(f"{task} {name} {', '.join(f'{value:.2f}' for value in values)}")
    return "; ".join(found)


def without_experts(rows: Sequence[Row]) -> str:
    """Describe nearest rows and the estimator's default, which no number of experts changes."""
    if not select(rows, model="default") or not select(rows, model="nearest"):
        return ""
    said = {}
    for model in ("nearest", "default"):
        said[model] = {
            quantity: sum(
                mean_of(select(rows, task=task, model=model), task, quantity)
                < published()[task, M, "opt", quantity][0]
                for task in distinct(rows, "task")
                for M in MANY
            )
            for quantity in QUANTITIES
        }
    chosen = []
    for task in distinct(select(rows, model="default"), "task"):
        found = Counter(row["chosen"] for row in select(rows, task=task, model="default"))
        chosen.append(f"{task} {', '.join(f'{n} × {name}' for name, n in found.items())}")
    near, default = said["nearest"], said["default"]
    return f"""## Nearest rows, and the estimator's default

Two rows of the tables below are not of the paper's kind. "Nearest rows" is `DistributedGPRegressor(expert="nearest")`: each point is conditioned on its nearest rows, with a global sparse part. "The estimator's
default" is `DistributedGPRegressor(validation="last")`, which measures its candidates on the last of the rows to learn from and sees no test year. Both have the library's own kernel, and take no M from the table.

Below the paper's opt, of {4 * len(MANY)} rows: nearest rows in RMSE in {near["rmse"]} and in NLPD in {near["nlpd"]}, the default in {default["rmse"]} and {default["nlpd"]}; neither of them on NOx. Nearest rows are made for points between the
rows, and these lie after them. What the default has chosen, by partition: {"; ".join(chosen)}."""
