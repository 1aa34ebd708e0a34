"""Rows in Parquet for the tests of this folder."""

import numpy as np
import pandas as pd
import pytest
from helpers import make_data


@pytest.fixture(scope="session")
def parquet(tmp_path_factory):
    """A folder of three files with 300 rows: east, north and level of `make_data`, and a text."""
    folder = tmp_path_factory.mktemp("parquet")
    X, y = make_data(300, noise=0.2)
    frame = pd.DataFrame({"east": X[:, 0], "north": X[:, 1], "level": y})
    frame["site"] = np.where(np.arange(300) < 150, "hill", "lake")
    for i in range(3):
        frame[100 * i : 100 * (i + 1)].to_parquet(folder / f"{i}.parquet", row_group_size=40)
    return folder
