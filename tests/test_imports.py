"""Nothing that takes long is imported before it is needed, and every name is still there."""

import ast
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import distgp
import distgp.cli
from distgp.cli import commands

HEAVY = {"torch", "sklearn", "scipy", "numpy", "pyarrow", "pandas", "matplotlib", "ray", "rich"}
IN_CHILD = """
import sys
sys.argv = ["distgp", *{arguments!r}]
try:
    {code}
finally:
    print(*sorted({heavy!r} & set(sys.modules)), file=sys.stderr)
"""


def imported(code, *arguments):
    """Run code in a process of its own; return its output, and the heavy modules it imported."""
    text = IN_CHILD.format(arguments=arguments, code=code, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return done.stdout, set(done.stderr.split())


@pytest.mark.parametrize(
    ("argument", "said"), [("--help", "Fit a model"), ("--version", distgp.__version__)]
)
def test_help_and_version_import_nothing_heavy(argument, said):
    output, heavy = imported("from distgp.cli import main; main()", argument)
    assert said in output and not heavy


def test_the_package_alone_imports_nothing_heavy():
    assert imported("import distgp; dir(distgp); hasattr(distgp, '__wrapped__')") == ("", set())
    assert "torch" in imported("import distgp; distgp.kernels")[1]


def test_options_are_made_for_the_command_that_is_called():
    output, heavy = imported("from distgp.cli import main; main()", "fit", "--help")
    assert "--aggregation" in output and "torch" in heavy


def test_the_list_of_commands_says_what_their_docstrings_say():
    for name, does in distgp.cli.COMMANDS.items():
        assert getattr(commands, name).__doc__ == does


def test_every_name_is_found_and_listed():
    late = {"compare", "plotting"}
    assert {*distgp.__all__, *late} <= set(dir(distgp))
    for name in (*distgp.__all__, *late):
        assert getattr(distgp, name) is getattr(distgp, name)
    everything = {}
    exec("from distgp import *", everything)
    assert set(distgp.__all__) <= everything.keys()
    assert pickle.loads(pickle.dumps(distgp.RBF)) is distgp.RBF
    for missing in ("DistributedGPRegresor", "_nothing"):
        with pytest.raises(AttributeError, match=f"has no attribute '{missing}'"):
            getattr(distgp, missing)


def test_type_checkers_see_the_same_names():
    [block] = [
        node
        for node in ast.parse(Path(distgp.__file__).read_text()).body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    seen = {alias.name for node in block.body for alias in node.names}
    assert seen | {"__version__"} == {*distgp.__all__, "compare", "plotting"}


@pytest.mark.parametrize("name", ["exact-two-level", "sparse-grid"])
def test_load_can_be_the_first_call(name):
    path = Path(__file__).parent / "files" / f"{name}.safetensors"
    code = f"import distgp; print(type(distgp.load({str(path)!r})).__name__)"
    kinds = {"exact-two-level": "DistributedGPRegressor", "sparse-grid": "SparseGridGP"}
    assert imported(code)[0].strip() == kinds[name]
