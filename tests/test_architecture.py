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
    "aggregation", "compare", "data", "engines", "experts", "kernels", "linalg", "metrics",
    "plotting", "sparsegrid", "training", "files", "progress",
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
