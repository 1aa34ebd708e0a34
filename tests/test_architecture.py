"""The house keeps its own rules."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import distgp

SOURCE = Path(distgp.__file__).parent
FACTORISATIONS = {
    "cholesky", "cholesky_ex", "cholesky_solve", "cholesky_inverse", "inv", "pinv", "solve", "eigh",
    "eigvalsh", "svd", "qr", "lstsq", "solve_triangular", "slogdet", "lu_factor",
}  # fmt: skip


def test_only_linalg_factorises():
    for path in SOURCE.rglob("*.py"):
        if path.parent.name == "linalg":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {alias.name for alias in node.names}
                foreign = not (node.module or "").startswith("distgp")
                assert not (foreign and names & (FACTORISATIONS | {"linalg"})), path.name
            if isinstance(node, ast.Attribute) and node.attr in FACTORISATIONS:
                owner = ast.unparse(node.value)
                assert owner == "linalg", f"{path.name}:{node.lineno} calls {owner}.{node.attr}"


def test_every_public_name_exists_and_is_documented():
    for name in distgp.__all__:
        value = getattr(distgp, name)
        assert isinstance(value, dict) or (value.__doc__ or "").strip(), name
    for module in NAMESPACES:
        space = getattr(distgp, module, None) or importlib.import_module(f"distgp.{module}")
        for name in getattr(space, "__all__", ()):
            value = getattr(space, name)
            documented = isinstance(value, type) or inspect.isfunction(value)
            assert not documented or (value.__doc__ or "").strip(), f"{module}.{name}"


NAMESPACES = {
    "aggregation", "data", "diagnostics", "engines", "experts", "files", "kernels", "likelihoods",
    "linalg", "plotting", "sparsegrid", "training", "_util", "forecasting",
}  # fmt: skip
"""Modules whose public names the experiments, the examples and the benchmarks may use."""


@pytest.mark.parametrize("folder", ["experiments", "examples"])
def test_what_is_outside_the_wheel_uses_public_names_only(folder):
    paths = sorted((SOURCE.parents[1] / folder).glob("*.py"))
    assert paths
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("distgp"):
                continue
            names = {alias.name for alias in node.names}
            place = f"{path.name}:{node.lineno}"
            assert not any(name.startswith("_") for name in names), place
            if node.module == "distgp":
                assert names <= NAMESPACES | set(distgp.__all__), place
            else:
                assert (node.module or "").split(".")[1] in NAMESPACES, place


@pytest.mark.parametrize("folder", ["benchmarks", "experiments", "examples"])
def test_names_that_are_imported_outside_the_wheel_exist(folder):
    paths = sorted((SOURCE.parents[1] / folder).glob("*.py"))
    assert paths
    for path in paths:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("distgp"):
                module = importlib.import_module(node.module)
                for alias in node.names:
                    if not hasattr(
                        module, alias.name
                    ):  # a module of the package, by its present name
                        importlib.import_module(f"{node.module}.{alias.name}")


ABOVE = (
    "__init__", "mixin", "regressor", "sparsegrid/regressor", "cli/", "plotting/", "serve/",
    "diagnostics/compare", "forecasting/", "maps",
)  # fmt: skip
"""The estimators, and what stands above them."""
OF_ESTIMATORS = {
    "DistributedGPRegressor", "SparseGridGP", "ModelMixin", "BaseEstimator", "RegressorMixin", "clone",
    "get_params", "set_params",
}  # fmt: skip


def test_nothing_below_the_estimators_builds_or_receives_one():
    """An import contract cannot see an estimator that is handed over, nor one built by type(given)(…)."""
    looked_at = 0
    for path in SOURCE.rglob("*.py"):
        name = path.relative_to(SOURCE).with_suffix("").as_posix()
        if name.startswith(ABOVE):
            continue
        looked_at += 1
        assert not estimators_in(ast.parse(path.read_text())), name
    assert looked_at > 60


def estimators_in(tree):
    """Names of estimators and of their methods in code, and parameters called `estimator`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.alias):
            found.add(node.id if isinstance(node, ast.Name) else node.name)
        if isinstance(node, ast.Attribute) and node.attr != "clone":  # of tensors
            found.add(node.attr)
        if isinstance(node, ast.arg) and node.arg in ("estimator", "regressor", "gp"):
            said = ast.unparse(node.annotation) if node.annotation else ""
            found.add("" if said in ("str", "Estimator") else "set_params")
    return found & OF_ESTIMATORS


@pytest.mark.parametrize(
    "line",
    [
        "def fit(estimator, rows): return 1",
        "trial = type(given)(**given.get_params())",
        "from distgp.regressor import DistributedGPRegressor",
        "copy = clone(given)",
    ],
)
def test_the_rule_sees_an_estimator(line):
    assert estimators_in(ast.parse(line))


def test_no_code_asks_which_kind_of_expert_it_has():
    kinds = {"ExactExpert", "SparseExpert", "NearestExpert"}
    kinds |= {kind.replace("Expert", "Posterior") for kind in kinds}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            call = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"
            assert not (call and kinds & {getattr(n, "id", "") for n in ast.walk(node)}), path
