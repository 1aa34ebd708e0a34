"""Every model file of format 1 predicts as it did when it was written (tests/files/write.py)."""

import json
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import distgp

FILES = Path(__file__).parent / "files"
ARCHIVE = zipfile.ZipFile(FILES / "format1.zip")
INDEX = json.loads(ARCHIVE.read("index.json"))
ANSWERS = dict(np.load(FILES / "format1.npz"))


def points(inputs):
    """An array, a frame of numbers with these columns, or a table by its name."""
    if isinstance(inputs, list):
        return pd.DataFrame(ANSWERS["inputs"], columns=inputs)
    if inputs == "array":
        return ANSWERS["inputs"]
    table = pd.DataFrame(INDEX["tables"][inputs])
    return table.assign(when=pd.to_datetime(table["when"]))


@pytest.mark.filterwarnings("ignore::distgp.data.encoding.NewTextWarning")
@pytest.mark.parametrize("case", INDEX["cases"], ids=lambda case: case["name"])
def test_a_file_predicts_as_it_did(tmp_path, case):
    path = tmp_path / "model.safetensors"
    path.write_bytes(ARCHIVE.read(f"{case['name']}.safetensors"))
    gp = distgp.load(path)
    X, options, wanted = points(case["inputs"]), case["predict"], ANSWERS[case["name"]]
    got = [
        *gp.predict(X, return_std=True, **options),
        *gp.predict(X, return_std=True, latent=True, **options),
    ]
    if len(wanted) > len(got):
        got += gp.predict_interval(X, coverage=0.8, **options, **case["interval"])
    tolerance = 1e-4 if case["dtype"] == "float32" else 1e-8
    names = ("mean", "std", "latent mean", "latent std", "lower", "upper")[: len(wanted)]
    found = [("mean alone", gp.predict(X), wanted[0]), *zip(names, got, wanted, strict=True)]
    for name, value, before in found:
        scale = np.nanmax(np.abs(before))
        np.testing.assert_allclose(value, before, rtol=0, atol=tolerance * scale, err_msg=name)


def test_the_cases_are_those_of_the_archive():
    names = [case["name"] for case in INDEX["cases"]]
    assert set(ARCHIVE.namelist()) == {"index.json", *(f"{name}.safetensors" for name in names)}
    assert set(ANSWERS) == {"inputs", *names} and len(names) == 180
