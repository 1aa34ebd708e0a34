"""Wheel and sdist install into empty environments, with the oldest and the newest allowed dependencies."""

import csv
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import distgp

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("ray", "serve")
REPOSITORY = "github.com/distgp/distgp/"
pytestmark = pytest.mark.slow

USE = """
import warnings

import numpy as np
from fastapi.testclient import TestClient

import distgp
import distgp.serve
from distgp.engines.ray import RayEngine

rng = np.random.default_rng(0)
X = rng.uniform(size=(300, 2))
y = np.sin(9 * X[:, 0]) + X[:, 1] + 0.1 * rng.normal(size=300)
gp = distgp.DistributedGPRegressor().fit(X, y)
print(gp.choice_, gp.summary())
mean, std = gp.predict(X[:5], return_std=True)
gp.save("model.safetensors")
assert (distgp.load("model.safetensors").predict(X[:5]) == mean).all()
for expert in ("exact", "sparse", "nearest"):
    options = {"expert": expert, "n_experts": 2, "n_iter": 5}
    gp = distgp.DistributedGPRegressor(**options).fit(X, y)
    assert np.abs(gp.predict(X[:5]) - mean).max() < 0.5
    distgp.plotting.plot_residuals(gp, X, y)
assert distgp.SparseGridGP(level=3, n_iter=5).fit(X, y).score(X, y) > 0.8
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    with RayEngine(workers=1) as engine:
        far = distgp.DistributedGPRegressor(expert="sparse", n_inducing=20, n_iter=5, engine=engine)
        assert far.fit(X, y).score(X, y) > 0.8
with TestClient(distgp.serve.app(gp)) as client:
    assert client.post("/predict", json={"rows": X[:2].tolist()}).status_code == 200
np.savetxt("rows.csv", np.column_stack([X, y]), delimiter=",", header="a,b,y", comments="")
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command outside of this project's environment and folder."""
    clean = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "RAY_", "VIRTUAL_ENV"))
    }
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, env=clean, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, made from the sdist, and the sdist."""
    pytest.importorskip("build", reason="needs the package build")
    folder = tmp_path_factory.mktemp("built")
    try:
        run(sys.executable, "-m", "build", "--outdir", folder, ROOT, cwd=folder)
    except AssertionError as error:
        if "Could not find a version" in str(error) or "No matching distribution" in str(error):
            pytest.skip("the package index cannot be reached")
        raise
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def test_names_and_contents(built):
    wheel, sdist = built
    assert wheel.name == f"distgp-{distgp.__version__}-py3-none-any.whl"
    assert sdist.name == f"distgp-{distgp.__version__}.tar.gz"
    listed = run(sys.executable, "-m", "zipfile", "-l", wheel, cwd=wheel.parent)
    assert "distgp/py.typed" in listed and "licenses/LICENSE" in listed
    assert not re.search(r"^(tests|benchmarks|experiments|docs)/", listed, re.MULTILINE)
    with tarfile.open(sdist) as packed:
        inside = {name.split("/")[1] for name in packed.getnames() if "/" in name}
    assert inside == {
        *("src", "pyproject.toml", "PKG-INFO", ".gitignore", "README.md", "LICENSE"),
        *("CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "SECURITY.md"),
    }


def test_the_text_on_pypi_stands_alone(built):
    """PyPI has no files beside it: links are whole, to files that are there, and comments are left out."""
    wheel, _ = built
    with zipfile.ZipFile(wheel) as packed:
        (name,) = [name for name in packed.namelist() if name.endswith("/METADATA")]
        head, _, text = packed.read(name).decode().partition("\n\n")
    assert "Description-Content-Type: text/markdown" in head and "<!--" not in text
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    links, own = (re.findall(r"(!?)\[[^\]]*\]\(([^)]+)\)", page) for page in (text, readme))
    assert len(links) == len(own) > 10
    for (picture, link), (_, file) in zip(links, own, strict=True):
        host = "raw.githubusercontent.com/distgp/distgp/" if picture else REPOSITORY + "blob/"
        assert link == file if ":" in file else link == f"https://{host}main/{file}"
        assert ":" in file or (ROOT / file.partition("#")[0]).exists()
    code = r"^```python\n.*?^```$"
    shown = re.findall(code, text, re.DOTALL | re.MULTILINE)
    assert shown and shown == re.findall(code, readme, re.DOTALL | re.MULTILINE)


def oldest() -> list[str]:
    """The lowest version that each dependency may have."""
    extras = [d for extra in EXTRAS for d in PROJECT["optional-dependencies"][extra]]
    return [d.replace(">=", "==") for d in [*PROJECT["dependencies"], *extras]]


@pytest.mark.parametrize("which", ["oldest", "newest"])
def test_it_installs_and_works(built, tmp_path, which):
    """Torch is held at the version of this environment: its builds for GPUs are gigabytes."""
    wheel, _ = built
    import torch

    held = tmp_path / "constraints.txt"
    given = oldest() if which == "oldest" else []
    given = [d for d in given if not d.startswith("torch")]
    held.write_text("\n".join([*given, f"torch=={torch.__version__.split('+')[0]}"]))
    run(sys.executable, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    wanted = f"{wheel}[{','.join(EXTRAS)}]"
    run(python, "-m", "pip", "install", "-q", "-c", held, wanted, "httpx", cwd=tmp_path)
    run(python, "-m", "pip", "check", cwd=tmp_path)
    (tmp_path / "use.py").write_text(USE)
    assert "training mean" in run(python, "use.py", cwd=tmp_path)
    command = tmp_path / "env" / "bin" / "distgp"
    assert distgp.__version__ in run(command, "--version", cwd=tmp_path)
    run(command, "fit", "rows.csv", "--target", "y", "-o", "m.safetensors", cwd=tmp_path)
    run(command, "predict", "m.safetensors", "rows.csv", "-o", "out.csv", cwd=tmp_path)
    with (tmp_path / "out.csv").open(newline="") as file:
        names, *rows = csv.reader(file)
    assert names == ["a", "b", "y", "mean", "std", "lower", "upper"] and len(rows) == 300


def test_the_version_is_told_everywhere():
    version = distgp.__version__
    (latest, *_) = re.findall(
        r"^## (\d+\.\d+\.\d+) \((.*)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    cited = (ROOT / "CITATION.cff").read_text()
    assert latest[0] == version and f"version: {version}\ndate-released: {latest[1]}\n" in cited
