"""The README's example runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
def test_python_examples_run(code, capsys):
    exec(compile(code, str(README), "exec"), {})
    assert capsys.readouterr().out
