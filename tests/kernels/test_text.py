"""Kernels as people write them."""

import math
import time

import numpy as np
import pytest
import torch
from helpers import FLOAT, close, inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from distgp import KERNELS, RBF, Linear, Matern52, Periodic
from distgp.data import Shard
from distgp.experts import ExactExpert, Parameters
from distgp.kernels import Expression, InputLayout, ParameterError, parse
from distgp.kernels.names import UNITS, Amount, Named
from distgp.kernels.text import Term, arguments

TABLE = InputLayout(
    names=("temp", "sky=clear", "sky=grey", "when.days", "when.week_sin", "when.week_cos"),
    columns={"temp": (0,), "sky": (1, 2), "when": (3, 4, 5)},
    days=frozenset({3}),
    groups=(0, 1, 1, 2, 3, 4),
    scale=(7.0, 0.5, 0.3, 30.0, 0.7, 0.71),
)
HOURS = InputLayout.of_array(1, scale=[48.0])


def built(text, layout=TABLE):
    return parse(text).build(layout)


# Without numbers: as estimators always built them.


@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize("name", KERNELS)
def test_a_name_has_one_lengthscale_per_column_and_a_signal_variance(name, d):
    found = built(name, InputLayout.of_array(d, scale=[3.0] * d))
    expected = 1.0 * KERNELS[name]([math.sqrt(d)] * d)
    assert repr(found.kernel) == repr(expected)
    close(found.kernel(inputs(5, d)), expected(inputs(5, d)), rtol=0, atol=0)
    assert found.fixed == () and found.signals == ("kernel.variance",)


def test_sums_of_names():
    found = built("matern52 + linear", InputLayout.of_array(2))
    assert repr(found.kernel) == repr(1.0 * Matern52([math.sqrt(2)] * 2) + Linear())
    assert found.signals == ("kernel.kernels.0.variance",)
    found = built("linear", InputLayout.of_array(2))
    assert repr(found.kernel) == repr(Linear()) and found.signals == found.fixed == ()
    assert repr(built("rbf+constant", InputLayout.of_array(1)).kernel.kernels[1]) == (
        "Constant(variance=1.0)"
    )


def test_columns_of_text_share_a_lengthscale():
    kernel = built("matern52").kernel.kernel
    assert kernel.shared == (0, 1, 1, 2, 3, 4) and kernel.active_dims is None
    close(kernel.lengthscale, torch.full((5,), math.sqrt(6), dtype=FLOAT))
    sky = built("rbf(columns=[temp, sky])").kernel.kernel
    assert sky.active_dims == (0, 1, 2) and sky.shared == (0, 1, 1)
    close(sky.lengthscale, torch.full((2,), math.sqrt(3), dtype=FLOAT))
    assert built("rbf(columns=temp)").kernel.kernel.shared is None


# Numbers, in the data's units.


def test_lengthscales_are_in_the_datas_units_and_only_start_there():
    found = built("rbf(3.5, columns=temp)")
    assert found.kernel.kernel.lengthscale.tolist() == [0.5] and found.fixed == ()
    each = built("rbf(6)", InputLayout.of_array(2, scale=[2.0, 3.0])).kernel.kernel
    assert each.lengthscale.tolist() == [3.0, 2.0]
    text = built("rbf(lengthscale=0.6, columns=sky)").kernel.kernel
    assert text.shared == (0, 0) and text.lengthscale.tolist() == pytest.approx([math.sqrt(2.4)])
    found = built("rational-quadratic(7, alpha=1.5, columns=temp)").kernel.kernel
    assert found.alpha == 1.5 and found.lengthscale.tolist() == [1.0]


def test_the_kernel_on_standardised_inputs_is_the_one_that_was_written():
    x, z = inputs(9, 2) * 40, inputs(4, 2, 1) * 40
    scale, mean = torch.tensor([20.0, 3.0], dtype=FLOAT), torch.tensor([5.0, -70.0], dtype=FLOAT)
    text = "2 * rbf(30, columns=x0) * periodic(24, columns=x0, lengthscale=0.8) + 0.5*matern52(7)"
    found = built(text, InputLayout.of_array(2, scale=scale.tolist())).kernel
    daily = RBF(30.0, [0]) * Periodic(0.8, 24.0, [0])
    expected = 2.0 * daily + 0.5 * Matern52(7.0)
    close(found((x - mean) / scale, (z - mean) / scale), expected(x, z), rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("spelling", UNITS)
def test_periods_of_dates_are_in_days(spelling):
    days = {
        "seconds": 1 / 86_400, "minutes": 1 / 1_440, "hours": 1 / 24, "days": 1.0, "weeks": 7.0,
        "months": 30.436875, "years": 365.2425,
    }[UNITS[spelling]]  # fmt: skip
    for text in (f"periodic(2 {spelling})", f"periodic(period=2{spelling}, columns=when)"):
        found = built(text)
        assert found.kernel.kernel.active_dims == (3,)
        close(found.kernel.kernel.period * 30.0, torch.tensor([2 * days], dtype=FLOAT))
        assert found.fixed == ("kernel.kernel.period",) and found.signals == ("kernel.variance",)


def test_a_lengthscale_in_time_is_along_the_only_date():
    found = built("rbf(60 d) * periodic(1 week)")
    decay, weekly = found.kernel.kernel.kernels
    assert decay.active_dims == weekly.active_dims == (3,)
    assert decay.lengthscale.tolist() == [2.0] and found.fixed == (
        "kernel.kernel.kernels.1.period",
    )


def test_periodic_looks_at_the_only_column_or_the_one_named():
    found = built("periodic(24)", HOURS).kernel.kernel
    assert repr(found) == "Periodic(lengthscale=[1.0], period=[0.5])"
    assert built("periodic(14, columns=temp)").kernel.kernel.active_dims == (0,)
    assert built("periodic(14, columns=[temp, temp])").kernel.kernel.active_dims == (0,)
    array = InputLayout.of_array(3, scale=[1.0, 2.0, 4.0])
    assert built("periodic(8, columns=2)", array).kernel.kernel.period.tolist() == [2.0]
    two = built("periodic(8, columns=[x1, x2])", array).kernel.kernel
    assert two.period.tolist() == [4.0, 2.0] and two.active_dims == (1, 2)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("periodic(24)", "name the column .* such as 'periodic.24, columns=temp.'"),
        ("periodic(24 h, columns=temp)", "write 24 if the column is in hours$"),
        ("rbf(2 weeks, columns=temp)", "write 2 if the column is in weeks$"),
        ("periodic(7, columns=when)", "'when' holds dates: say the unit, such as 7 days"),
        ("periodic(7, columns=sky)", "'sky' is text, which has neither period nor unit"),
        (
            "rbf(columns=tmp)",
            r"in 'rbf.columns=tmp.': there is no column 'tmp'; did you mean 'temp'\?",
        ),
        (
            "linear(columns=nothing)",
            "in 'linear.columns=nothing.': there is no column 'nothing': there",
        ),
    ],
)
def test_what_the_columns_do_not_allow_is_explained(text, message):
    with pytest.raises(ParameterError, match=message) as caught:
        built(text)
    assert "\n" not in str(caught.value)


def test_where_no_date_or_several_could_be_meant_one_must_be_named():
    with pytest.raises(
        ParameterError, match=r"holds plain numbers.*write 24 if the column is in hours"
    ):
        built("periodic(24 h)", HOURS)
    with pytest.raises(ParameterError, match=r"columns=x0\)': there are 'x0', 'x1'"):
        built("periodic(24 h)", InputLayout.of_array(2))
    two = InputLayout(
        ("a.days", "b.days", "c"), {"a": (0,), "b": (1,), "c": (2,)}, frozenset({0, 1})
    )
    with pytest.raises(ParameterError, match=r"there are 'a', 'b'$"):
        built("periodic(24 h)", two)


def test_odd_names_of_columns_stay_on_one_line():
    odd = InputLayout(("a\nb", "c\u2028d"), {"a\nb": (0,), "c\u2028d": (1,)})
    for text in ("periodic(24)", "periodic(24 h, columns='a\nb')", "rbf(columns='a\n')"):
        with pytest.raises(ParameterError) as caught:
            built(text, odd)
        assert len(str(caught.value).splitlines()) == 1


def test_numbers_out_of_reach_are_refused():
    for text in (
        "rbf(1e-300, columns=sky)",
        "periodic(1e-300, columns=temp)",
        "1e300*(1e300*rbf+linear)",
    ):
        with pytest.raises(ParameterError, match="must be positive and finite"):
            built(
                text,
                InputLayout(TABLE.names, TABLE.columns, groups=TABLE.groups, scale=(1e30,) * 6),
            )


# Variances.


def variances(found):
    return {n: v.tolist() for n, v in found.kernel.parameters().items() if n.endswith("variance")}


@pytest.mark.parametrize(
    ("text", "expected", "fixed", "signals"),
    [
        ("2 * rbf", {"variance": 2.0}, (), ("variance",)),
        ("rbf * 2 * 3", {"variance": 6.0}, (), ("variance",)),
        ("2 * (3) * (rbf)", {"variance": 6.0}, (), ("variance",)),
        ("rbf * matern12", {"variance": 1.0}, (), ("variance",)),
        ("3 * linear", {"variance": [3.0]}, (), ()),
        ("3 * constant", {"variance": 3.0}, (), ()),
        ("constant * rbf * 2", {"variance": 2.0}, (), ("variance",)),
        ("2 * rbf * linear", {"kernels.1.variance": [2.0]}, (), ()),
        (
            "linear * linear",
            {"kernels.0.variance": [1.0], "kernels.1.variance": [1.0]},
            ("kernels.1.variance",),
            (),
        ),
        (
            "2 * (3 * rbf + linear)",
            {"kernels.0.variance": 6.0, "kernels.1.variance": [2.0]},
            (),
            ("kernels.0.variance",),
        ),
        (
            "(rbf + matern12) + constant",
            {f"kernels.{i}.variance": 1.0 for i in range(3)},
            (),
            ("kernels.0.variance", "kernels.1.variance"),
        ),
        (
            "5 * (rbf + matern12) * (rbf + 4 * constant)",
            {
                "kernels.0.kernels.0.variance": 5.0,
                "kernels.0.kernels.1.variance": 5.0,
                "kernels.1.kernels.0.variance": 1.0,
                "kernels.1.kernels.1.variance": 4.0,
            },
            ("kernels.1.kernels.0.variance",),
            ("kernels.0.kernels.0.variance", "kernels.0.kernels.1.variance"),
        ),
        (
            "rbf * (constant + linear)",
            {"kernels.1.kernels.0.variance": 1.0, "kernels.1.kernels.1.variance": [1.0]},
            (),
            (),
        ),
    ],
)
def test_every_term_has_one_variance(text, expected, fixed, signals):
    found = built(text, HOURS)
    assert variances(found) == expected
    assert found.fixed == tuple(f"kernel.{name}" for name in fixed)
    assert found.signals == tuple(f"kernel.{name}" for name in signals)


@pytest.mark.parametrize(
    "text",
    [
        "2*rbf + 3*periodic(5)*(rbf + 2*linear) + constant",
        "(rbf + linear)*(rbf + 2*constant)*2",
        "2*(rbf*(linear + constant) + 3*(linear*linear)) + 0.5*(rbf + (rbf + constant))",
    ],
)
def test_numbers_multiply_as_in_arithmetic(text):
    x = inputs(6, 1)
    values = {
        "rbf": RBF(1.0)(x),
        "linear": Linear()(x),
        "constant": torch.ones(6, 6, dtype=FLOAT),
        "periodic": lambda period: Periodic(1.0, float(period))(x),
    }
    expected = eval(text, {"__builtins__": {}}, values)  # a text from above
    close(built(text, InputLayout.of_array(1)).kernel(x), expected)


def test_paths_are_those_of_parameters():
    found = built("rbf * periodic(24) + periodic(168) + (rbf + periodic(5)) * linear", HOURS)
    theta = Parameters.of(found.kernel, 0.1)
    for path in (*found.fixed, *found.signals):
        assert theta.paths(path) == [path]
    assert len(found.fixed) == 4 and sum(path.endswith("period") for path in found.fixed) == 3


# The grammar.


def test_names_of_columns_can_be_any_text():
    def columns(text):
        return parse(f"rbf(columns={text})").terms[0].factors[0].columns

    assert columns("hour") == columns("'hour'") == columns('["hour"]') == ("hour",)
    assert columns("[2m temp, wind-speed, a.b , Größe°]") == (
        "2m temp",
        "wind-speed",
        "a.b",
        "Größe°",
    )
    assert columns(r"'it\'s, (a) \\ [b]=c\n'") == (r"it's, (a) \ [b]=c\n",)
    assert columns("''") == ("",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "",
            "expected a kernel's name, a number or '.', got the end at character 1; an example is",
        ),
        ("rbf +", "got the end at character 6"),
        ("rbf linear", "expected '.', '.' or the end, got 'linear' at character 5"),
        ("rbf - linear", "got '-' at character 5"),
        ("2 rbf", "got a number alone at character 1"),
        ("rbf + 2", "got a number alone at character 7: multiply it with one"),
        ("(2 + rbf)", "got a number alone at character 2"),
        ("(2)", "got a number alone at character 1"),
        ("(rbf", r"expected '.', '.' or '\)', got the end"),
        (
            "rbf(",
            "expected a number or lengthscale= or across= or angle= or columns= or isotropic or rotated "
            "or sphere for 'rbf', got the end",
        ),
        ("rbf(1", r"expected ',' or '\)', got the end"),
        ("rbf(-1)", "got '-' at character 5"),
        ("rbf(0)", "expected a positive finite number, got '0' at character 5"),
        ("1e999 * rbf", "expected a positive finite number, got '1e999'"),
        ("1e300 * 1e300 * rbf", "expected a finite signal variance, got inf"),
        ("rbf(lenghtscale=1)", "got 'lenghtscale' at character 5"),
        (
            "rbf(period=1)",
            "expected a number or lengthscale= or across= or angle= or columns= or isotropic or rotated "
            "or sphere for 'rbf', got 'period'",
        ),
        ("rbf(1, lengthscale=2)", "expected lengthscale once, got it again at character 8"),
        ("rbf(columns=a, b)", "several columns stand in square brackets, got 'b'"),
        ("rbf(columns=[])", "expected the name of a column"),
        ("rbf(columns=[a b", "expected ',' or ']', got the end"),
        ("rbf(columns='a)", "expected the name of a column"),
        ("linear(2)", "expected columns= for 'linear', got '2'"),
        ("constant(2)", "expected nothing in brackets for 'constant', got '2'"),
        ("periodic", "expected a period, got none at character 1: write it as in 'periodic.24.'"),
        ("periodic(columns=a)", "expected a period, got none"),
        ("periodic(24 fortnights)", "there is no unit 'fortnights' at character 13.*'hours'"),
        ("periodic(24, lengthscale=1 h)", "expected lengthscale without a unit for 'periodic'"),
        ("periodic(period=h)", "expected a positive number for period, got 'h'"),
        ("rational-quadratic(alpha=1 h)", "expected alpha without a unit"),
        ("mattern52", r"no kernel 'mattern52' at character 1; did you mean 'matern52'\? there are"),
        ("RBF", "did you mean 'rbf'"),
        ("rbf(1)\n\n+ ?", "got '.' at character 11"),
    ],
)
def test_mistakes_are_explained_in_one_line(text, message):
    with pytest.raises(ParameterError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


def test_only_text_is_read():
    with pytest.raises(ParameterError, match="must be given as a text such as"):
        parse(5)


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "rbf+" * 100_000,
        "(" * 2_000 + "rbf" + ")" * 2_000,
        "(" * 30 + "rbf" + ")" * 30,
        "*".join(["(rbf+linear)"] * 20),
        "+".join(["rbf"] * 101),
        '"' * 5_000,
        "rbf(columns=" + "'\\" * 2_400,
        "9" * 5_000 + "*rbf",
        "rbf" + "f" * 4_000,
        "rbf(columns=[" + "a," * 2_000,
    ],
)
def test_huge_texts_are_refused_quickly_and_briefly(text):
    began = time.perf_counter()
    with pytest.raises(ParameterError) as caught:
        parse(text)
    assert time.perf_counter() - began < 1.0 and len(str(caught.value)) < 500


WORDS = [
    *arguments(),
    *UNITS,
    *"()[]+*=,'\"\\ ",
    "columns=",
    "period=",
    "24",
    "0.5",
    "1e9",
    "alpha=",
    "temp",
    "sky",
    "km",
    "isotropic",
    "sphere",
    "rotated",
    "across=",
    "angle=",
    "-",
]


@settings(max_examples=400)
@given(st.one_of(st.text(), st.lists(st.sampled_from(WORDS), max_size=25).map(" ".join)))
def test_any_text_is_a_kernel_or_one_line(text):
    said = ""
    try:
        found = parse(text)
        assert isinstance(found, Expression) and parse(str(found)) == found
        found.build(TABLE)
    except ParameterError as error:
        said = str(error)
    assert len(said.splitlines()) <= 1


POSITIVE = st.floats(1e-3, 1e3)
UNIT = st.sampled_from([None, *set(UNITS.values())])
NUMBERS, AMOUNTS = POSITIVE.map(Amount), st.tuples(POSITIVE, UNIT).map(lambda v: Amount(*v))
ANGLES = st.floats(-360, 360).map(Amount)
DISTANT = st.builds(Amount, POSITIVE, st.sampled_from(["km", "m"]))
COLUMNS = st.lists(st.one_of(st.text(max_size=5), st.just("temp")), max_size=3).map(tuple)


def leaves(names, **given):
    """Kernels of these names; only what is given here is drawn."""
    drawn = {"name": st.sampled_from(names), "columns": COLUMNS, **given}
    return st.fixed_dictionaries(drawn).map(lambda values: Named(**values))


LEAVES = st.one_of(
    leaves(["rbf", "matern52"], lengthscale=st.none() | AMOUNTS),
    leaves(
        ["matern32"], lengthscale=st.none() | DISTANT, isotropic=st.booleans(), sphere=st.booleans()
    ),
    leaves(["matern12"], lengthscale=NUMBERS, across=NUMBERS, angle=ANGLES, rotated=st.booleans()),
    leaves(["rational-quadratic"], alpha=NUMBERS),
    leaves(["periodic"], lengthscale=st.none() | NUMBERS, period=AMOUNTS),
    leaves(["linear"]),
    st.just(Named("constant")),
)


def sums(factors, least):
    terms = st.builds(Term, st.lists(factors, min_size=1, max_size=2).map(tuple), POSITIVE)
    return st.builds(Expression, st.lists(terms, min_size=least, max_size=3).map(tuple))


@given(sums(LEAVES | sums(LEAVES, 2), 1))
def test_what_is_written_out_reads_the_same(expression):
    assert parse(str(expression)) == expression


# What it is for.


def test_known_periods_forecast_where_a_smooth_kernel_cannot():
    rng = np.random.default_rng(0)
    hours = np.arange(24 * 7 * 4, dtype=float)
    signal = np.sin(2 * np.pi * hours / 24) + 0.7 * np.sin(2 * np.pi * hours / 168)
    y = signal + 0.1 * rng.normal(size=len(hours))
    past = hours < 24 * 7 * 3
    scale = float(hours[past].std())
    X = torch.as_tensor((hours - hours[past].mean()) / scale)[:, None]
    shard = Shard.of(X[past], torch.as_tensor(y[past]))

    def error(text):
        kernel = parse(text).build(InputLayout.of_array(1, scale=[scale])).kernel
        posterior = ExactExpert().condition(Parameters.of(kernel, 0.01), shard)
        mean = posterior.predict(X[~past]).mean.numpy()
        return float(np.sqrt(np.mean((mean - signal[~past]) ** 2)))

    assert error("periodic(24) + periodic(168) + matern52") < 0.1 < 0.5 < error("matern52(24)")
    assert error("matern52") > 0.5


def test_a_text_with_very_many_factors_is_refused():
    most = " * ".join(["rbf"] * 100)
    assert parse(most).count() == 100
    nested = f"({' * '.join(['rbf'] * 60)} + linear) * ({' * '.join(['rbf'] * 60)} + linear)"
    for text, count in (
        (f"{most} * rbf", "101"),
        (" * ".join(["rbf"] * 714), "714"),
        (nested, "122"),
    ):
        with pytest.raises(ParameterError, match=f"expected at most 100 kernels, got {count}"):
            parse(text)
