"""Models in files."""

import json
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import concrete
from safetensors.torch import load_file, save_file

import distgp
from distgp import DistributedGPRegressor
from distgp.files.model_file import FORMAT, checksum
from distgp.files.tree import NAMES, name_of

X = np.random.default_rng(0).uniform(-2, 2, size=(180, 2))
Y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * np.random.default_rng(1).normal(size=180)
X_NEW = np.random.default_rng(2).uniform(-2.5, 2.5, size=(40, 2))


def fitted(expert="exact", aggregation="auto", **options):
    options = {"n_experts": 3, "n_inducing": 25, "n_iter": 4} | options
    return DistributedGPRegressor(expert=expert, aggregation=aggregation, **options).fit(X, Y)


def header_of(path):
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))


def every_aggregator():
    for expert in distgp.EXPERTS:
        for name, kind in distgp.AGGREGATORS.items():
            if expert in kind.serves:
                yield expert, name, "auto"
    yield from [
        (e, n, "independent") for e in ("exact", "sparse") for n in ("opt", "grbcm", "rbcm")
    ]
    yield "exact", distgp.aggregation.Opt(variance="nested"), "auto"
    yield "exact", distgp.aggregation.Opt(cross="exact"), "auto"
    yield "sparse", distgp.aggregation.TwoLevel(central=torch.as_tensor(X_NEW)), "auto"
    yield "exact", distgp.aggregation.OptPrinted(variance="weighted"), "auto"


@pytest.mark.filterwarnings("ignore::distgp.aggregation.WeightsWarning")
@pytest.mark.parametrize(("expert", "aggregation", "training"), list(every_aggregator()), ids=str)
def test_predictions_are_the_same_to_the_last_bit(tmp_path, expert, aggregation, training):
    gp = fitted(expert, aggregation, training=training)
    gp.save(tmp_path / "model.safetensors")
    again = distgp.load(tmp_path / "model.safetensors")
    for options in ({"return_std": True}, {"return_std": True, "latent": True}):
        for got, wanted in zip(
            again.predict(X_NEW, **options), gp.predict(X_NEW, **options), strict=True
        ):
            np.testing.assert_array_equal(got, wanted)
    np.testing.assert_array_equal(again.predict(X_NEW), gp.predict(X_NEW))
    assert str(again.kernel_) == str(gp.kernel_) and again.n_experts_ == 3
    np.testing.assert_array_equal(again.noise_, gp.noise_)
    assert [r.objective for r in again.training_.history] == [
        r.objective for r in gp.training_.history
    ]


def test_everything_else_survives_too(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(X, columns=["east", "north"])
    kernel = 0.7 * distgp.RBF([1.0, 2.0]) + distgp.Linear(0.3) * distgp.Periodic(
        1.5, active_dims=[1]
    )
    gp = DistributedGPRegressor(
        kernel=kernel,
        partition=np.arange(180) % 2,
        aggregation=distgp.aggregation.GPoE(weights="uniform"),
        training=distgp.training.Fact("adam", 0.05, 3),
    ).fit(frame, np.column_stack([Y, Y**2]))
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    assert list(again.feature_names_in_) == ["east", "north"] and again.n_features_in_ == 2
    new = pd.DataFrame(X_NEW, columns=["east", "north"])
    np.testing.assert_array_equal(again.predict(new), gp.predict(new))
    np.testing.assert_array_equal(again.predict(new[["north", "east"]]), gp.predict(new))
    params, before = again.get_params(), gp.get_params()
    assert str(params["kernel"]) == str(before["kernel"])
    assert (
        params["aggregation"] == before["aggregation"] and params["training"] == before["training"]
    )
    np.testing.assert_array_equal(params["partition"], before["partition"])
    assert again.fit(frame, Y).predict(new).shape == (40,)


def test_the_header_can_be_read_by_anyone(tmp_path):
    fitted().save(tmp_path / "m.safetensors")
    about = header_of(tmp_path / "m.safetensors")["__metadata__"]
    assert (
        about["kind"] == "distgp-model"
        and about["format"] == "2"
        and about["distgp"] == distgp.__version__
    )
    assert "Matern52" in about["kernel"] and json.loads(about["parameters"])["n_experts"] == "3"


def test_a_sparse_model_holds_no_training_data(tmp_path):
    # Inducing inputs of one's own; those that distgp chooses, and central inputs, are rows.
    gp = fitted("sparse", "opt", n_inducing=X_NEW, training="pooled", normalize=False)
    gp.save(tmp_path / "m.safetensors")
    numbers = np.concatenate(
        [t.double().numpy().ravel() for t in load_file(tmp_path / "m.safetensors").values()]
    )
    assert not np.isin(numbers, np.concatenate([X.ravel(), Y])).any()
    again = distgp.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict(X_NEW), gp.predict(X_NEW))
    for name in ("poe", "gpoe", "bcm", "rbcm", "npae", "opt", "grbcm", "pooled"):
        np.testing.assert_array_equal(
            again.predict(X_NEW, aggregation=name), gp.predict(X_NEW, aggregation=name)
        )
    with pytest.raises(ValueError, match=r"no longer hold; poe, gpoe, .*pooled do without"):
        again.predict(X_NEW, aggregation=distgp.aggregation.TwoLevel(n_central=20))


def test_a_loaded_model_can_go_on(tmp_path):
    gp = fitted("sparse")
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    gp.partial_fit(X_NEW, X_NEW[:, 0])
    again.partial_fit(X_NEW, X_NEW[:, 0])
    assert again.n_experts_ == 4
    np.testing.assert_allclose(again.predict(X), gp.predict(X), atol=1e-12)


def test_files_that_are_not_models(tmp_path):
    path = tmp_path / "m.safetensors"
    with pytest.raises(FileNotFoundError, match="there is no model file"):
        distgp.load(path)
    path.write_bytes(b"")
    with pytest.raises(
        distgp.files.model_file.ModelFileError,
        match="not a model file of distgp, or it is truncated",
    ):
        distgp.load(path)
    path.write_bytes(b"name,value\n1,2\n" * 100)
    with pytest.raises(distgp.files.model_file.ModelFileError, match="not a model file of distgp"):
        distgp.load(path)
    save_file({"weights": torch.zeros(3)}, path)
    with pytest.raises(
        distgp.files.model_file.ModelFileError, match="not a model that distgp has saved"
    ):
        distgp.load(path)


@pytest.mark.parametrize("keep", [0.2, 0.9, 0.999])
def test_a_truncated_file(tmp_path, keep):
    path = tmp_path / "m.safetensors"
    fitted().save(path)
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content))])
    with pytest.raises(distgp.files.model_file.ModelFileError, match="truncated or damaged"):
        distgp.load(path)


def rewritten(path, **changes):
    """By someone who knows how."""
    tensors = load_file(path)
    about = header_of(path)["__metadata__"] | changes
    save_file(tensors, path, about | {"checksum": checksum(about["tree"], tensors)})


@pytest.mark.parametrize("where", [0.3, 0.6, 0.95])
def test_a_changed_byte(tmp_path, where):
    path = tmp_path / "m.safetensors"
    fitted().save(path)
    content = bytearray(path.read_bytes())
    content[int(where * len(content))] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(distgp.files.model_file.ModelFileError, match="damaged"):
        distgp.load(path)


def test_parameters_of_other_libraries_are_kept_as_plain_ones(tmp_path):
    import pandas as pd

    gp = DistributedGPRegressor(
        expert=distgp.experts.SparseExpert(),
        partition=pd.Series(pd.Categorical(np.where(X[:, 0] > 0, "right", "left"))),
        n_inducing=pd.DataFrame(X_NEW),
        device=torch.device("cpu"),
        random_state=np.random.RandomState(3),
        n_iter=4,
    ).fit(X, Y)
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.predict(X_NEW), gp.predict(X_NEW))
    assert again.expert == "sparse" and again.n_experts_ == 2
    np.testing.assert_allclose(again.fit(X, Y).predict(X_NEW), gp.predict(X_NEW), atol=1e-6)
    if not torch.cuda.is_available():
        with pytest.raises(ValueError, match="not available here"):
            distgp.load(tmp_path / "m.safetensors", device="cuda")


def test_a_newer_or_strange_file(tmp_path):
    path = tmp_path / "m.safetensors"
    fitted().save(path)
    tree = header_of(path)["__metadata__"]["tree"]
    rewritten(path, format=str(FORMAT + 1), distgp="9.0")
    with pytest.raises(
        distgp.files.model_file.ModelFileError, match=r"written by distgp 9\.0.*install a newer"
    ):
        distgp.load(path)
    for other in ("os.system", "aggregation", "cli.app"):
        rewritten(path, format=str(FORMAT), tree=tree.replace("aggregation/two-level", other))
        with pytest.raises(distgp.files.model_file.ModelFileError, match="not its content"):
            distgp.load(path)
    for other in (tree[:-20], "[" * 100_000):
        rewritten(path, tree=other)
        with pytest.raises(distgp.files.model_file.ModelFileError, match="not its content"):
            distgp.load(path)


def test_files_appear_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    fitted().save(path)
    before = path.read_bytes()

    def dies(tensors, name, header):
        with open(name, "wb") as file:
            file.write(b"half of it")
        raise OSError("no space left on device")

    monkeypatch.setattr("distgp.files.model_file.save_file", dies)
    with pytest.raises(OSError, match="no space"):
        fitted("sparse").save(path)
    assert path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [path.name]
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        fitted().save(tmp_path / "nowhere" / "m.safetensors")


def test_parts_of_ones_own_are_refused(tmp_path):
    class Mine(distgp.data.RandomPartition):
        pass

    with pytest.raises(TypeError, match=r"Mine \(at .*partition\) is none of them: .*use joblib"):
        fitted(partition=Mine()).save(tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_files_name_classes_by_registered_names_never_by_module_paths(tmp_path):
    path = tmp_path / "m.safetensors"
    fitted("sparse").save(path)
    about = header_of(path)["__metadata__"]
    assert "distgp." not in about["tree"] and '"class": "model"' in about["tree"]
    assert len(set(NAMES.values())) == len(NAMES)
    for base in (
        distgp.Kernel,
        distgp.data.Partition,
        distgp.training.Algorithm,
        distgp.training.Prior,
        distgp.experts.Expert,
        distgp.experts.Posterior,
        distgp.aggregation.Aggregator,
        distgp.aggregation.Combined,
    ):
        assert all(name_of(kind) for kind in concrete(base)), base


KEPT = Path(__file__).parent / "files"


@pytest.mark.parametrize("name", ["exact-two-level", "sparse-pooled", "sparse-grid"])
def test_files_of_format_1_are_read_for_ever(name):
    """Files written by version 0.2.0, with the predictions that it made (tests/files/write.py)."""
    kept = np.load(KEPT / f"{name}.npz")
    gp = distgp.load(KEPT / f"{name}.safetensors")
    mean, std = gp.predict(kept["X"], return_std=True)
    np.testing.assert_allclose(mean, kept["mean"], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(std, kept["std"], rtol=1e-9)


def forged(path, change):
    """Change the tree of a model file by hand; the checksum fits."""
    tree = json.loads(header_of(path)["__metadata__"]["tree"])
    change(tree["dict"])
    rewritten(path, tree=json.dumps(tree))


def test_a_loaded_model_does_not_change_with_its_file(tmp_path):
    path, other = tmp_path / "m.safetensors", tmp_path / "other.safetensors"
    gp = fitted()
    gp.save(path)
    DistributedGPRegressor(n_experts=3, n_iter=4).fit(7 * X, 1000 * Y).save(other)
    again = distgp.load(path)
    path.write_bytes(other.read_bytes()[: path.stat().st_size])  # the same file, another content
    np.testing.assert_array_equal(again.predict(X_NEW), gp.predict(X_NEW))
    os.truncate(path, 0)
    np.testing.assert_array_equal(again.predict(X_NEW), gp.predict(X_NEW))


def test_a_forged_kernel_that_is_the_sum_of_itself_again_and_again(tmp_path):
    path = tmp_path / "m.safetensors"
    fitted(kernel=distgp.RBF(1.0)).save(path)

    def doubled(state):
        node = state["parameters"]["dict"]["kernel"]
        for level in range(40):
            same = {"same": node["path"]}
            fields = {"kernels": {"tuple": [node, same]}}
            node = {"class": "kernel/sum", "path": f"level {level}", "fields": fields}
        state["parameters"]["dict"]["kernel"] = node

    forged(path, doubled)
    with pytest.raises(distgp.files.model_file.ModelFileError, match="objects, counted wherever"):
        distgp.load(path)


def set_features(state, d):
    state["model"]["fields"]["schema"]["fields"]["n_features"] = d


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: set_features(state, 10**9), "1000000000 columns are not those of its parts"),
        (lambda state: set_features(state, 2.0), "n_features of Schema to be int, got float"),
        (lambda state: state["model"]["fields"].update(targets={"tuple": []}), "no model in it"),
        (lambda state: state.update(model=None), "no model in it"),
        (
            lambda state: state.update(settled=state["model"]),
            "settled to be values by name, got Mo",
        ),
        (lambda state: state.update(parameters={"tuple": [1]}), "parameters to be values by name"),
        (lambda state: state["model"]["fields"].update(seed="1"), "seed of Model to be int"),
        (lambda state: state["model"]["fields"].update(one_target=1), "one_target of Model to be"),
        (
            lambda state: state["model"]["fields"]["targets"]["tuple"][0]["fields"].update(
                likelihood=3
            ),
            "likelihood of TargetModel to be Gaussian, got int",
        ),
    ],
)
def test_forged_parts_that_do_not_belong_together(tmp_path, change, message):
    path = tmp_path / "m.safetensors"
    fitted().save(path)
    forged(path, change)
    with pytest.raises(distgp.files.model_file.ModelFileError, match=message):
        distgp.load(path)


def test_a_device_that_does_not_exist_is_not_blamed_on_the_file(tmp_path):
    path = tmp_path / "m.safetensors"
    fitted().save(path)
    for device in ("gpu", "cuda:99", 3):
        with pytest.raises(ValueError, match="device") as told:
            distgp.load(path, device=device)
        assert not isinstance(told.value, distgp.files.model_file.ModelFileError)


def test_an_expert_with_options_of_its_own_is_fitted_anew_as_it_was(tmp_path):
    expert = distgp.experts.NearestExpert(n_neighbors=5)
    gp = DistributedGPRegressor(expert=expert, n_inducing=0, n_iter=2).fit(X, Y)
    gp.save(tmp_path / "m.safetensors")
    again = distgp.load(tmp_path / "m.safetensors").fit(X, Y)
    np.testing.assert_array_equal(again.predict(X_NEW), gp.predict(X_NEW))
