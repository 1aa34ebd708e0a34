"""Forged but well-formed files: every field of a saved model replaced by values of other types and sizes.

Checksums fit, so that nothing but the types and sizes of what is built can tell. A file is refused in our
words, soon and without much memory, or what it gives predicts or refuses as any model does.
"""

import copy
import json
import resource
import tracemalloc

import numpy as np
import pytest
import torch
from hostile import calls
from hostile.trial import outcome, times
from safetensors import safe_open
from safetensors.torch import save_file

import distgp
from distgp.files import model_file

MODELS = dict(calls.models())
MOST_MEMORY = 2**28
VALUES = [
    None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, 0.5, -1e300, 1e-300, "", "x", "auto", "cuda",
    "meta",
    "é" * 1000, [], [[]], [0] * 1000, [None, "x"], {}, {"tuple": []}, {"tuple": [1, 2, 3]}, {"dict": {}},
    {"dict": {"x": 1}}, {"float": "nan"}, {"float": "inf"}, {"float": "1e400"}, {"array": [1, 2, 3]},
    {"array": ["a"]}, {"array": []}, {"class": "transform/log", "path": "x", "fields": {}},
]  # fmt: skip
"""What a field may be replaced by, beside parts of the same file."""


@pytest.fixture(scope="module", params=MODELS)
def parts(request, tmp_path_factory):
    """The header and the tensors of a model's file, and points to predict."""
    folder = tmp_path_factory.mktemp("forged")
    case = calls.case_of(MODELS[request.param], folder)
    case.gp.save(folder / "model.safetensors")
    with safe_open(str(folder / "model.safetensors"), framework="pt") as file:
        return file.metadata(), {k: file.get_tensor(k) for k in file.keys()}, case  # noqa: SIM118


def places(node, path=()):
    """The path of every value in a tree."""
    keys = node.keys() if isinstance(node, dict) else range(len(node))
    for key in keys:
        yield (*path, key)
        if isinstance(node[key], dict | list):
            yield from places(node[key], (*path, key))


def put(tree, path, value):
    """The tree with one value replaced."""
    made = node = copy.deepcopy(tree)
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return made


def tried(header, tensors, case, file, what):
    """Load a forged file, and predict with what it gives."""
    own = header | {"checksum": model_file.checksum(header["tree"], tensors)}
    save_file(tensors, str(file), own)

    def use():
        made = distgp.load(file)
        made.summary()
        return made.predict(case.points, return_std=True)

    try:
        found = outcome("forged fields", use)
    except AssertionError as error:
        raise AssertionError(f"{what}: {error}") from error
    if found is not None:
        assert np.isfinite(found[0]).all() and not np.isnan(found[1]).any(), what


def at(tree, path):
    for key in path:
        tree = tree[key]
    return tree


def test_every_field_of_the_tree_replaced(parts, tmp_path):
    header, tensors, case = parts
    tree, rng = json.loads(header["tree"]), np.random.default_rng(0)
    known = [*places(tree)]
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for i in range(times(30, max(1500, len(known)))):
        path = known[i] if i < len(known) and times(0, 1) else known[int(rng.integers(len(known)))]
        own = at(tree, known[int(rng.integers(len(known)))])
        value = own if rng.random() < 0.4 else VALUES[int(rng.integers(len(VALUES)))]
        text = json.dumps(put(tree, path, value))
        tried(header | {"tree": text}, tensors, case, tmp_path / "f.safetensors", (path, value))
    used = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert used < 2 * MOST_MEMORY, used


def forged(tensor, rng):
    """A tensor of another type, size or content."""
    kinds = [torch.float32, torch.float16, torch.int64, torch.bool, torch.uint8]
    changes = [
        lambda t: t.to(kinds[int(rng.integers(len(kinds)))]),
        lambda t: torch.cat([t.reshape(-1)] * 2) if t.numel() else t,
        lambda t: t.reshape(-1)[:0],
        lambda t: t.reshape(-1)[:-1],
        lambda t: t.reshape(-1),
        lambda t: t[None],
        lambda t: t.mT.contiguous() if t.ndim > 1 else t[..., None],
        lambda t: torch.full_like(t, float("nan")) if t.is_floating_point() else torch.full_like(t, -1),
        lambda t: torch.full_like(t, float("inf")) if t.is_floating_point() else t.logical_not(),
        lambda t: t if t.is_floating_point() or t.dtype == torch.bool else t + 2**40,
        lambda t: -t if t.dtype != torch.bool else t,
        lambda t: torch.zeros_like(t),
        lambda t: torch.zeros(0),
        lambda t: torch.zeros(()),
        lambda t: torch.zeros(1, 1, 1, 1, 1),
    ]  # fmt: skip
    return changes[int(rng.integers(len(changes)))](tensor).contiguous()


def test_every_tensor_replaced(parts, tmp_path):
    header, tensors, case = parts
    rng, names = np.random.default_rng(1), sorted(tensors)
    for i in range(times(20, 600)):
        name = names[i % len(names)]
        try:
            other = forged(tensors[name], rng)
        except (RuntimeError, TypeError):
            continue
        what = (
            name,
            tuple(tensors[name].shape),
            tensors[name].dtype,
            tuple(other.shape),
            other.dtype,
        )
        tried(header, tensors | {name: other}, case, tmp_path / "f.safetensors", what)


def test_every_entry_of_the_header_replaced(parts, tmp_path):
    header, tensors, case = parts
    texts = [
        "",
        "0",
        "-1",
        "1",
        "2",
        "3",
        "²",
        "1e9",
        "None",
        "x" * 100_000,
        "{}",
        "[]",
        "null",
        "\0",
        "é",
    ]
    file = tmp_path / "f.safetensors"
    for name in header:
        for text in texts[:: times(5, 1)]:
            save_file(tensors, str(file), header | {name: text})
            found = outcome("forged fields", lambda: distgp.load(file).predict(case.points))
            known = outcome("forged fields", lambda: model_file.header(file))
            assert found is None or np.isfinite(found).all()
            assert known is None or isinstance(known, dict)
        save_file(tensors, str(file), {k: v for k, v in header.items() if k != name})
        outcome("forged fields", lambda: distgp.load(file))


def test_loading_a_forged_file_takes_no_more_memory_than_the_file(parts, tmp_path):
    header, tensors, _ = parts
    tree = json.loads(header["tree"])
    tracemalloc.start()
    for path in [p for p in places(tree) if isinstance(at(tree, p), int)][: times(10, 200)]:
        text = json.dumps(put(tree, path, 2**40))
        own = header | {"tree": text, "checksum": model_file.checksum(text, tensors)}
        save_file(tensors, str(tmp_path / "f.safetensors"), own)
        tracemalloc.reset_peak()
        outcome("forged fields", lambda: distgp.load(tmp_path / "f.safetensors"))
        assert tracemalloc.get_traced_memory()[1] < MOST_MEMORY, path
    tracemalloc.stop()
