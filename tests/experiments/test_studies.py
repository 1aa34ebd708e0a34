"""Every study of the paper, in small pieces."""

import json

import numpy as np
import pytest

from experiments import STUDIES, Options


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "uci"])
def test_first_cells_of_the_quick_version(name):
    study, options = STUDIES[name](), Options(quick=True)
    cells = study.cells(options)
    assert len({json.dumps(cell) for cell in cells}) == len(cells)
    rows = study.run(cells[0], options)
    values = [v for row in rows for v in row.values() if isinstance(v, float)]
    assert rows and values and np.isfinite(values).all()
    # The full version has the same coordinates, and only plain values.
    full = study.cells(Options())
    assert full[0].keys() == cells[0].keys() and len(full) > len(cells)
    assert json.loads(json.dumps(full[-1])) == full[-1]
