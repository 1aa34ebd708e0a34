"""Model files that were cut, damaged or forged: refused by one clear error, or the same predictions."""

import json
import warnings

import numpy as np
import pytest
from hostile.trial import count, data, outcome, times, tiny
from safetensors import safe_open
from safetensors.torch import save_file

import distgp
from distgp.files import model_file as persistence
from distgp.files.model_file import ModelFileError

X, Y = data()
MODELS = {
    "exact": lambda: tiny(aggregation="two-level"),
    "sparse": lambda: tiny(expert="sparse"),
    "nearest": lambda: tiny(expert="nearest"),
    "grid": lambda: distgp.SparseGridGP(level=2, n_iter=2),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request, tmp_path_factory):
    """A model's file and what it predicts."""
    path = tmp_path_factory.mktemp("models") / "model.safetensors"
    gp = MODELS[request.param]().fit(X, Y)
    gp.save(path)
    return path, gp.predict(X)


def tried(kind, content, model, folder):
    """Load a file with this content: a clear error, or the predictions that it had."""
    path = folder / "changed.safetensors"
    path.write_bytes(content)
    made = outcome(kind, lambda: distgp.load(path))
    if made is not None:
        np.testing.assert_array_equal(made.predict(X), model[1])


def test_a_file_that_was_cut_anywhere(model, tmp_path):
    content = model[0].read_bytes()
    places = np.linspace(0, len(content) - 1, times(15, 150)).astype(int)
    for size in {*places.tolist(), 7, 8, 9, len(content) - 1}:
        tried("files cut", content[:size], model, tmp_path)


def test_a_file_with_a_bit_flipped_anywhere(model, tmp_path):
    content, rng = model[0].read_bytes(), np.random.default_rng(0)
    header = 8 + int.from_bytes(content[:8], "little")
    early, late = (
        rng.integers(0, header, times(15, 200)),
        rng.integers(0, len(content), times(15, 200)),
    )
    for place in [*early, *late]:
        changed = bytearray(content)
        changed[place] ^= 1 << int(rng.integers(8))
        tried("files with a bit flipped", bytes(changed), model, tmp_path)


def test_a_forged_tree_with_a_checksum_that_fits(model, tmp_path):
    rng = np.random.default_rng(1)
    with safe_open(str(model[0]), framework="pt") as file:
        header, tensors = file.metadata(), {k: file.get_tensor(k) for k in file.keys()}  # noqa: SIM118
    for _ in range(times(25, 300)):
        tree = json.loads(header["tree"])
        for _ in range(int(rng.integers(1, 4))):
            forge(tree, rng)
        text = json.dumps(tree)
        own = header | {"tree": text, "checksum": persistence.checksum(text, tensors)}
        save_file(tensors, str(tmp_path / "forged.safetensors"), own)
        outcome("forged trees", lambda: distgp.load(tmp_path / "forged.safetensors"))


def forge(node, rng):
    """Replace, remove or repeat something somewhere in a tree."""
    values = [None, 0, -1, 1e300, "", "x", [], {}, [[]], {"class": "model", "path": "", "fields": {}},
              {"tensor": "model"}, {"same": "model"}, {"tuple": 3}, {"dict": []}, {"float": "x"},
              {"array": [[1], 2]}, {"class": "os.system", "path": "x", "fields": {}}]  # fmt: skip
    while True:
        keys = [*node] if isinstance(node, dict) else [*range(len(node))]
        if not keys:
            return
        key = keys[int(rng.integers(len(keys)))]
        child = node[key]
        if not isinstance(child, dict | list) or not child or rng.random() < 0.2:
            break
        node = child
    if rng.random() < 0.3:
        del node[key]
    elif isinstance(node, dict) and rng.random() < 0.3:
        node["forged"] = node.pop(key)
    else:
        node[key] = values[int(rng.integers(len(values)))]


@pytest.mark.parametrize(
    "tree", ["[" * 60_000 + "]" * 60_000, "[" + "[]," * 7_000_000 + "[]]", "1", "{"]
)
def test_trees_that_would_fill_the_memory(tree, tmp_path):
    path = tmp_path / "forged.safetensors"
    header = {"kind": persistence.KIND, "format": "1", "tree": tree}
    save_file({}, str(path), header | {"checksum": persistence.checksum(tree, {})})
    with pytest.raises(ModelFileError, match="not its content"):
        distgp.load(path)
    count("forged trees", "held: a clear error")


def test_long_histories_do_not_make_long_trees(tmp_path):
    wide = np.random.default_rng(0).normal(size=(30, 1200))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is learnt of so few rows
        gp = tiny(n_iter=3).fit(wide, wide[:, 0])
    gp.save(tmp_path / "wide.safetensors")
    with safe_open(str(tmp_path / "wide.safetensors"), framework="pt") as file:
        assert len(file.metadata()["tree"]) < 1e5
    again = distgp.load(tmp_path / "wide.safetensors")
    np.testing.assert_array_equal(again.predict(wide), gp.predict(wide))
    before, after = (m.training_.history[-1].hyperparameters for m in (gp, again))
    assert {k: [*v] for k, v in before.items()} == {k: [*v] for k, v in after.items()}
