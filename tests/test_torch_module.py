"""A pooled model as a plain module: the same numbers, with and without distgp."""

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import concrete, example, make_data

from distgp import DistributedGPRegressor
from distgp import export as torch_module
from distgp.kernels import RBF, Constant, Kernel, Linear, Matern12, Matern32, Matern52, Periodic
from distgp.kernels import RationalQuadratic as RQ

# Points beyond the rows are wanted here: that is where rounding errors show.
pytestmark = pytest.mark.filterwarnings("ignore::distgp.diagnostics.novelty.NoveltyWarning")
PAGE = Path(__file__).parent.parent / "docs" / "to-torch.md"
EVERYTHING = (
    1.5 * Matern52([0.7, 0.9])
    + RBF(2.0, active_dims=[0]) * Periodic(1.0, 2.0, active_dims=[-1])
    + 0.5 * Matern12([1.0, 3.0]) * Matern32(2.0)
    + RQ(0.8, alpha=1.4)
    + Linear([0.3, 0.2])
    + Constant(0.1)
)
NEW = np.random.default_rng(1).uniform(-3, 3, size=(40, 2))


@cache  # a fitted model is only read
def fitted(kernel: Kernel = EVERYTHING, targets: int = 1, **options):
    X, y = make_data(300)
    y = 30.0 + 5.0 * (y if targets == 1 else np.column_stack([y, X[:, 0] - y]))
    given = {"n_inducing": 25, "noise": 0.02, "n_experts": 3, "training": None} | options
    return DistributedGPRegressor(expert="sparse", kernel=kernel, **given).fit(X, y)


def module_of(gp, latent: bool = False):
    return torch_module.to_module(gp.model_.targets, gp.model_.one_target, latent)


@cache  # an export takes a second
def exported(gp, latent: bool = False, strict: bool = False):
    rows, module = ({0: torch.export.Dim("N")},), module_of(gp, latent)
    points = (torch.as_tensor(NEW),)
    return torch.export.export(module, points, dynamic_shapes=rows, strict=strict)


def assert_same(found, expected, tolerance: float = 1e-10):
    for here, there in zip(found, expected, strict=True):
        assert tuple(here.shape) == there.shape
        np.testing.assert_allclose(here.detach().numpy(), there, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cls", concrete(Kernel), ids=lambda cls: cls.__name__)
def test_every_kernel_predicts_as_the_estimator(cls):
    gp = fitted(example(cls, 2))
    module, X = module_of(gp), torch.as_tensor(NEW)
    assert_same(module(X), gp.predict(NEW, return_std=True))
    module.latent = True
    assert_same(module(X), gp.predict(NEW, return_std=True, latent=True))


def test_everything_is_made_of_every_kernel():
    def kinds(kernel: Kernel) -> set[type]:
        return {type(kernel)}.union(*map(kinds, kernel.children().values()))

    assert kinds(EVERYTHING) == set(concrete(Kernel))


def test_exported_programs_need_no_distgp(tmp_path):
    targets = fitted(Matern52([0.7, 0.9]), targets=2, mean="linear")
    cases = {"everything": (fitted(), False), "targets": (targets, True)}
    for name, (gp, latent) in cases.items():
        torch.export.save(exported(gp, latent), tmp_path / f"{name}.pt2")
    np.save(tmp_path / "X.npy", NEW)
    script = (
        "import sys\n"
        "sys.modules['distgp'] = None\n"  # an import of it, or of any part of it, fails
        "import numpy as np, torch\n"
        "X = torch.as_tensor(np.load('X.npy'))\n"
        "for name in sys.argv[1:]:\n"
        "    program = torch.export.load(name + '.pt2').module()\n"
        "    assert len(program(X[:0])[0]) == 0 and len(program(X[:1])[0]) == 1\n"
        "    np.savez(name, *program(X))\n"
        "assert not [name for name in sys.modules if name.startswith('distgp.')]\n"
    )
    subprocess.run([sys.executable, "-c", script, *cases], cwd=tmp_path, check=True, timeout=120)
    for name, (gp, latent) in cases.items():
        found = [torch.as_tensor(values) for values in np.load(tmp_path / f"{name}.npz").values()]
        assert_same(found, gp.predict(NEW, return_std=True, latent=latent))


def test_one_target_in_a_column_stays_a_column():
    gp = fitted(Matern52([0.7, 0.9]))
    mean, std = torch_module.to_module(gp.model_.targets, one_target=False)(torch.as_tensor(NEW))
    assert mean.shape == std.shape == (40, 1)


FEW = np.random.default_rng(2).uniform(-2, 2, size=(60, 2))
HARD = {
    "long lengthscales": (RBF([3.0, 3.0]), 80),
    "very long lengthscales": (RBF([10.0, 10.0]), 80),
    "pairs 1e-9 apart": (RBF([1.0, 1.0]), np.vstack([FEW, FEW + 1e-9])),
    "rough, pairs 1e-7 apart": (Matern52([1.0, 1.0]), np.vstack([FEW, FEW + 1e-7])),
    "equal pairs": (Matern12([1.0, 1.0]), np.vstack([FEW, FEW])),
    "where no rows are": (RBF([2.0, 2.0]), np.vstack([FEW, FEW + 6.0])),
}


@pytest.mark.parametrize(("kernel", "Z"), HARD.values(), ids=HARD.keys())
def test_ill_conditioned_models_lose_no_more_than_the_kernel_s_own_rounding(kernel, Z):
    X, y = make_data(2000, noise=1e-3)
    options = {"kernel": kernel, "n_inducing": Z, "noise": 1e-6, "training": None}
    gp = DistributedGPRegressor(expert="sparse", n_experts=2, normalize=False, **options).fit(X, y)
    points = np.vstack([X[:200], NEW, 2 * NEW])
    for latent in (False, True):
        module = module_of(gp, latent)
        found = [values.numpy() for values in module(torch.as_tensor(points))]
        mean, std = gp.predict(points, return_std=True, latent=latent)
        rounding = np.finfo(np.float64).eps * float(
            module.get_buffer("targets.0.weights").abs().sum()
        )
        assert np.abs(found[0] - mean).max() < 4 * rounding < 1e-5
        assert np.abs(found[1] - std).max() < 1e-8


@pytest.mark.parametrize("kernel", [Matern52([0.7, 0.9]), RBF([1.0, 1.0])], ids=["rough", "smooth"])
def test_float32_is_off_by_its_rounding_times_the_weights(kernel):
    gp = fitted(kernel)
    mean, std = gp.predict(NEW, return_std=True)
    module = module_of(gp).to(torch.float32)
    found = module(torch.as_tensor(NEW))
    assert found[0].dtype == found[1].dtype == torch.float32
    weights = float(module.get_buffer("targets.0.weights").abs().sum())
    error = np.abs(found[0].numpy() - mean).max() / gp.model_.targets[0].scaling.y_scale
    assert 1e-8 < error < 2 * np.finfo(np.float32).eps * weights < 1e-3
    np.testing.assert_allclose(found[1].numpy(), std, rtol=1e-3)


def test_the_module_s_dtype_decides_not_that_of_the_points():
    module, points = module_of(fitted()), NEW.astype(np.float32)
    found = module(torch.as_tensor(points))
    assert_same(found, fitted().predict(points.astype(np.float64), return_std=True))


def test_all_numbers_are_buffers():
    one, other = fitted(), fitted(targets=2)
    module = module_of(one)
    state = torch_module.to_module(other.model_.targets[1:], one_target=True).state_dict()
    module.load_state_dict(state)
    assert_same(
        module(torch.as_tensor(NEW)),
        [values[:, 1] for values in other.predict(NEW, return_std=True)],
    )
    assert not list(module.parameters())
    constants = exported(one).constants.values()
    assert all(value.dtype == torch.int64 for value in constants)  # of active_dims


@pytest.mark.parametrize("latent", [False, True])
def test_gradients_are_those_of_finite_differences(latent):
    gp, h, X = fitted(), 1e-5, NEW[:6]

    def moved(step: float) -> np.ndarray:
        along = [gp.predict(X + step * axis, return_std=True, latent=latent) for axis in np.eye(2)]
        return np.array(along)  # (column, mean or std, row)

    expected = (moved(h) - moved(-h)) / (2 * h)
    predicted = [module_of(gp, latent)] + ([] if latent else [exported(gp).module()])
    for predict in predicted:
        points = torch.as_tensor(X).requires_grad_()
        for i, values in enumerate(predict(points)):
            (found,) = torch.autograd.grad(values.sum(), points, retain_graph=True)
            np.testing.assert_allclose(found.numpy(), expected[:, i].T, rtol=1e-5, atol=1e-6)


def test_gradients_are_finite_at_inducing_inputs_and_flow_twice():
    gp = fitted()
    module, h = module_of(gp), 1e-5

    def gradient(points: torch.Tensor, keep: bool = False) -> torch.Tensor:
        mean, std = module(points.requires_grad_())
        return torch.autograd.grad(mean.sum() + std.sum(), points, create_graph=keep)[0]

    assert gradient(torch.as_tensor(gp.inducing_)).isfinite().all()
    points, step = torch.as_tensor(NEW[:6]), torch.tensor([h, 0.0])
    (found,) = torch.autograd.grad(gradient(points, keep=True)[:, 0].sum(), points)
    points = points.detach()
    expected = (gradient(points + step) - gradient(points - step)) / (2 * h)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_the_tracer_of_torch_compile_takes_it_whole():
    gp = fitted(1.5 * Matern52([0.7, 0.9]) + Periodic(1.0, 2.0, active_dims=[1]))
    program = exported(gp, strict=True).module()
    assert_same(program(torch.as_tensor(NEW)), gp.predict(NEW, return_std=True))


def test_points_of_another_width_are_refused_and_nan_stays_nan():
    module = module_of(fitted())
    for shape in ((3, 1), (3, 3), (2,), (1, 3, 2)):
        with pytest.raises(ValueError, match=re.escape(f"shape (N, 2), got {shape}")):
            module(torch.zeros(shape))
    for values in module(torch.tensor([[0.0, np.nan], [0.0, 0.0]])):
        assert values.isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("options", "came"),
    [
        ({"expert": "exact"}, "aggregation='two-level' with exact experts"),
        ({"expert": "sparse", "aggregation": "rbcm"}, "aggregation='rbcm' with sparse experts"),
        ({"expert": "nearest"}, "aggregation='nearest' with nearest experts"),
    ],
)
def test_other_models_are_refused_with_the_remedy(options, came):
    X, y = make_data(60)
    gp = DistributedGPRegressor(
        kernel=RBF([1.0, 1.0]), training=None, n_experts=2, n_inducing=9, **options
    )
    with pytest.raises(ValueError, match=came) as caught:
        module_of(gp.fit(X, y))
    assert 'fit with expert="sparse", aggregation="pooled"' in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
def test_on_a_gpu():
    gp = fitted()
    mean, std = module_of(gp).to("cuda")(torch.as_tensor(NEW, device="cuda"))
    assert mean.is_cuda and std.is_cuda
    assert_same((mean.cpu(), std.cpu()), gp.predict(NEW, return_std=True), 1e-9)


EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def page(codes: list[str]) -> dict:
    """The names that the page's examples leave behind."""
    names = {}
    for code in codes:
        exec(compile(code, str(PAGE), "exec"), names)
    return names


def test_the_page_s_examples_run(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = page([code for code in EXAMPLES if "onnx" not in code])
    assert capsys.readouterr().out
    expected = names["gp"].predict(names["points"].numpy(), return_std=True)
    assert_same((names["mean"], names["std"]), expected)


@pytest.mark.filterwarnings("ignore")  # those of the exporter
def test_onnx(tmp_path, monkeypatch):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="the page's ONNX example needs onnx, -script, -runtime")
    monkeypatch.chdir(tmp_path)
    names = page(EXAMPLES)
    for N in (8, 3, 1):
        points = names["points"].numpy()[:N]
        found = names["session"].run(["mean", "std"], {"X": points})
        assert_same(map(torch.as_tensor, found), names["gp"].predict(points, return_std=True))


def test_rows_with_noise_of_their_own_have_their_mean():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (120, 2))
    y, noise = np.sin(2 * X[:, 0]), rng.uniform(0.01, 0.2, 120)
    gp = DistributedGPRegressor(expert="sparse", n_inducing=20, n_iter=5)
    gp.fit(X, y, noise_variance=noise)
    mean, std = gp.to_torch()(torch.as_tensor(X))
    expected = gp.predict(X, return_std=True)
    np.testing.assert_allclose(mean.numpy(), expected[0], rtol=1e-8, atol=1e-10)
    np.testing.assert_allclose(std.numpy(), expected[1], rtol=1e-8)


def test_transformed_targets_are_refused():
    X = np.random.default_rng(0).uniform(-2, 2, (80, 2))
    gp = DistributedGPRegressor(
        expert="sparse", n_inducing=10, n_iter=3, target_transform="log"
    ).fit(X, np.exp(np.sin(X[:, 0])))
    with pytest.raises(ValueError, match="target_transform='log'"):
        gp.to_torch()
