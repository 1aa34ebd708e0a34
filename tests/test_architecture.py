"""The house keeps its own rules."""

import ast
from pathlib import Path

import distgp

SOURCE = Path(distgp.__file__).parent
FACTORISATIONS = {
    "cholesky", "cholesky_ex", "cholesky_solve", "cholesky_inverse", "inv", "pinv", "solve", "eigh",
    "eigvalsh", "svd", "qr", "lstsq", "solve_triangular", "slogdet", "lu_factor",
}  # fmt: skip


def test_only_linalg_factorises():
    for path in SOURCE.rglob("*.py"):
        if path.name == "linalg.py":
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


def test_the_papers_studies_use_public_names_only():
    modules = {"metrics", "linalg", "experts", "sparsegrid", "plotting", "paper"}
    machinery = {"runner.py": {"files", "_version"}, "download.py": {"files"}}
    for path in (SOURCE / "paper").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith("distgp"):
                continue
            allowed = modules | machinery.get(path.name, set())
            if node.module == "distgp":
                names = {alias.name for alias in node.names}
                assert names <= allowed | set(distgp.__all__), f"{path.name}:{node.lineno}"
            else:
                assert node.module.split(".")[1] in allowed, f"{path.name}:{node.lineno}"
            assert not any(
                alias.name.startswith("_")
                for alias in node.names
                if node.module != "distgp._version"
            )
