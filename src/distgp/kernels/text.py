"""Kernels as people write them, "periodic(24 h) + 2 * matern52", read without `eval`.

- expression: term ("+" term)*
- term: factor ("*" factor)*
- factor: number, or name ["(" [argument ("," argument)*] ")"], or "(" expression ")"
- argument: amount, or ("period" | "lengthscale" | "across" | "alpha") "=" amount, or "angle" "=" ["-"]
  number, or "columns" "=" columns, or "isotropic", "rotated" or "sphere"
- amount: number [unit of time, or of distance on the Earth]
- columns: column, or "[" column ("," column)* "]"
- column: a text in quotes, or any text without , ( ) [ ] = and quotes
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from distgp.kernels.base import Kernel, ParameterError, Product, Scale, Sum
from distgp.kernels.kinds import Constant
from distgp.kernels.layout import LONGEST_QUOTE, InputLayout, near, quoted
from distgp.kernels.names import (
    AMOUNTS,
    DISTANCES,
    ELSEWHERE,
    FLAGS,
    KERNELS,
    TIMES,
    UNITS,
    Amount,
    Named,
)

Token: TypeAlias = re.Match[str]
Tokens: TypeAlias = list[Token]
"""The tokens that are still to be read, the next of them last; the end of the text stays."""
Value = TypeVar("Value")
EXAMPLE = "'matern52 + 2 * periodic(24, columns=hour)'"
LONGEST = 5_000  # characters that a text may have
DEEPEST = 20  # brackets that may be open at once
MOST_TERMS = 100  # terms that a text may have, once its brackets are multiplied out
MOST_KERNELS = 100  # names of kernels that a text may have
AROUND = 20  # characters before and after a mistake that a message repeats
TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d][\w.-]*)
    | (?P<quote>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<symbol>.)
    | (?P<end>\Z)""",
    re.VERBOSE | re.DOTALL,
)


class Term(NamedTuple):
    """A product of kernels, with its starting signal variance."""

    factors: tuple[Named | Expression, ...]
    variance: float = 1.0

    def __str__(self) -> str:
        texts = [f"({f})" if isinstance(f, Expression) else str(f) for f in self.factors]
        return " * ".join(([] if self.variance == 1.0 else [str(Amount(self.variance))]) + texts)


class Built(NamedTuple):
    """A kernel in standardised units, where training starts, and full paths of its parameters.

    Training must hold those `fixed`: the periods, since they are known and their likelihood has many
    local optima; and variances that another factor of the same product has already. `signals` are
    the terms' signal variances; those of linear and constant kernels are not among them.
    """

    kernel: Kernel
    fixed: tuple[str, ...]
    signals: tuple[str, ...]


@dataclass(frozen=True)
class Expression:
    """A sum of at least one term; `str` of it is a text that means the same.

    Examples
    --------
    >>> built = parse("0.5*periodic(24)").build(InputLayout.of_array(1, scale=[12.0]))
    >>> built.kernel, built.fixed
    (Scale(kernel=Periodic(lengthscale=[1.0], period=[2.0]), variance=0.5), ('kernel.kernel.period',))
    """

    terms: tuple[Term, ...]

    def __str__(self) -> str:
        return " + ".join(map(str, self.terms))

    def size(self) -> int:
        """Count the products in the sum that is left when all brackets are multiplied out."""
        sums = ([f.size() for f in t.factors if isinstance(f, Expression)] for t in self.terms)
        return sum(math.prod(sizes) for sizes in sums)

    def count(self) -> int:
        """Count the kernels that are named."""
        factors = [factor for term in self.terms for factor in term.factors]
        return sum(f.count() if isinstance(f, Expression) else 1 for f in factors)

    def build(self, layout: InputLayout) -> Built:
        """Build the kernel for these columns, in standardised units.

        Every term has one variance to be trained: a signal variance σ² in front of it; or that of a
        linear kernel, or those of a sum in brackets, among its factors, since a second would say the
        same twice. A lengthscale starts at the number given, or else, as far apart as standardised
        points are, at the root of the number of features. The features of a text column share one.
        """
        marks: dict[int, str] = {}
        kernel = _built_sum(self, layout, marks, 1.0, free=True)
        paths = {f"kernel.{name}": marks.get(id(v)) for name, v in kernel.parameters().items()}
        fixed, signals = (
            tuple(path for path, mark in paths.items() if mark == wanted)
            for wanted in ("fixed", "signal")
        )
        return Built(kernel, fixed, signals)


def parse(text: str) -> Expression:
    """Read a kernel from a text such as "rbf * periodic(24, columns=hour) + linear".

    Kernels go by their names in `distgp.KERNELS`, or are "linear", "constant" or "periodic". They are
    added with `+` and multiplied with `*`; brackets group. In brackets after a name stand a period or a
    lengthscale in the data's units, by name or as the first number, and the columns that the kernel looks
    at. A number may have a unit of time (24 h, 1 week) where the column holds dates, and one of distance
    (120 km) where two columns are longitude and latitude. A number that is multiplied with kernels is
    their starting signal variance.

    Every column has its own lengthscale, unless "isotropic" stands in the brackets: then there is one for
    all, in the units of the data. "sphere" says that two columns are longitude and latitude, as a
    lengthscale in km does. With `across=` and `angle=` two columns have a lengthscale along a direction, in
    degrees from the first column towards the second, and another across it; "rotated" lets training find
    the direction. The angle is where training starts, as the lengthscales are.

    Parameters
    ----------
    text : str
        The kernel.

    Returns
    -------
    Expression
        Its `build` makes the kernel for given columns.

    Examples
    --------
    >>> from distgp.kernels import parse
    >>> print(parse("periodic(1 week, columns='sold at') * rbf + 3*linear"))
    periodic(period=1 weeks, columns="sold at") * rbf + 3 * linear
    >>> print(parse("matern32(120 km, columns=[lon, lat]) + rbf(50, columns=[x, y], isotropic)"))
    matern32(lengthscale=120 km, columns=[lon, lat]) + rbf(lengthscale=50, columns=[x, y], isotropic)
    >>> print(parse("matern32(120, across=40, angle=30, columns=[x, y])"))
    matern32(lengthscale=120, across=40, angle=30, columns=[x, y])
    """
    if not isinstance(text, str):
        raise ParameterError(
            f"a kernel must be given as a text such as {EXAMPLE}, got {type(text)}"
        )
    if len(text) > LONGEST:
        raise ParameterError(
            f"a kernel's text may have {LONGEST:,} characters, this has {len(text):,}; write it as short "
            f"as {EXAMPLE}, or build a Kernel object"
        )
    tokens = [token for token in TOKEN.finditer(text) if token.lastgroup != "space"][::-1]
    found = Expression(_read_terms(tokens, 0))
    if tokens[-1].lastgroup != "end":
        raise _expected("'+', '*' or the end", tokens[-1])
    if (size := found.size()) > MOST_TERMS:
        what = f"expected at most {MOST_TERMS} terms, got {size:,} with brackets multiplied out"
        raise _error(what, tokens[-1])
    if (count := found.count()) > MOST_KERNELS:
        what = f"expected at most {MOST_KERNELS} kernels, got {count:,}"
        raise _error(what, tokens[-1])
    return found


def arguments() -> Mapping[str, tuple[str, ...]]:
    """List every name, and what may be given to it; a number without a name is the first of them."""
    both = ("lengthscale", "across", "angle", "columns", *FLAGS)
    found = {
        name: (*both, "alpha") if "alpha" in kind.__dataclass_fields__ else both
        for name, kind in KERNELS.items()
    }
    return found | {
        "linear": ("columns",),
        "constant": (),
        "periodic": ("period", "columns", "lengthscale"),
    }


def _error(what: str, token: Token, end: str = f"; an example is {EXAMPLE}") -> ParameterError:
    """Say what is wrong with a token."""
    at, shown = token.start(), token.string
    if len(shown) > LONGEST_QUOTE:
        shown = f"…{shown[max(0, at - AROUND) : at + AROUND]}…"
    return ParameterError(f"kernel {quoted(shown)}: {what} at character {at + 1}{end}")


def _expected(what: str, token: Token) -> ParameterError:
    """Say what was expected in place of a token."""
    got = "the end" if token.lastgroup == "end" else quoted(token.group())
    return _error(f"expected {what}, got {got}", token)


def _took(tokens: Tokens, symbol: str) -> bool:
    """Go past the next token if it is this symbol."""
    found = tokens[-1]["symbol"] == symbol
    if found:
        tokens.pop()
    return found


def _separated(tokens: Tokens, read: Callable[[Tokens], Value], close: str) -> list[Value]:
    """Read values with commas between them, up to a closing bracket."""
    found = [read(tokens)]
    while _took(tokens, ","):
        found.append(read(tokens))
    if not _took(tokens, close):
        raise _expected(f"',' or {close!r}", tokens[-1])
    return found


def _read_terms(tokens: Tokens, depth: int) -> tuple[Term, ...]:
    """Read a sum; only a number alone in brackets needs no kernel, since others may follow it."""
    found: list[Term] = []
    while not found or _took(tokens, "+"):
        start = tokens[-1]
        found.append(_read_term(tokens, depth))
        alone = depth and len(found) == 1 and tokens[-1].group() != "+"
        if not found[-1].factors and not alone:
            remedy = ": multiply it with one, such as '2 * matern52' or '2 * constant'"
            raise _error("expected a kernel, got a number alone", start, remedy)
    return tuple(found)


def _read_term(tokens: Tokens, depth: int) -> Term:
    """Read a product, in which numbers are multiplied at once."""
    start, found = tokens[-1], _read_factor(tokens, depth)
    while _took(tokens, "*"):
        part = _read_factor(tokens, depth)
        found = Term(found.factors + part.factors, found.variance * part.variance)
    if not 0.0 < found.variance < math.inf:
        raise _error(f"expected a finite signal variance, got {found.variance}", start)
    return found


def _read_factor(tokens: Tokens, depth: int) -> Term:
    """Read a number, a kernel or brackets, which make no difference where no sum is in them."""
    if tokens[-1].lastgroup == "number":
        return Term((), _read_number(tokens))
    if tokens[-1].lastgroup == "name":
        return Term((_read_named(tokens),))
    if not _took(tokens, "("):
        raise _expected("a kernel's name, a number or '('", tokens[-1])
    if depth == DEEPEST:
        raise _error(f"expected at most {DEEPEST} brackets in each other, got more", tokens[-1])
    terms = _read_terms(tokens, depth + 1)
    if not _took(tokens, ")"):
        raise _expected("'+', '*' or ')'", tokens[-1])
    return terms[0] if len(terms) == 1 else Term((Expression(terms),))


def _read_number(tokens: Tokens) -> float:
    token = tokens.pop()
    value = float(token.group())
    if not 0.0 < value < math.inf:
        raise _error(f"expected a positive finite number, got {quoted(token.group())}", token)
    return value


def _read_named(tokens: Tokens) -> Named:
    """Read a kernel's name, and the arguments in brackets after it."""
    token, known, given = tokens.pop(), arguments(), {}
    name = token.group()
    if name not in known:
        instead = f": {ELSEWHERE[name]}" if name in ELSEWHERE else near(name, known)
        raise _error(f"there is no kernel {quoted(name)}", token, instead)
    if _took(tokens, "(") and not _took(tokens, ")"):
        _separated(tokens, lambda tokens: _read_argument(tokens, name, known[name], given), ")")
    if name == "periodic" and "period" not in given:
        raise _error("expected a period, got none", token, ": write it as in 'periodic(24)'")
    return Named(name, **given)


def _read_argument(
    tokens: Tokens, name: str, allowed: tuple[str, ...], given: dict[str, object]
) -> None:
    """Read one of the arguments that a kernel may have, and add it to those given."""
    start, key = tokens[-1], ""
    unnamed = allowed[:1] not in ((), ("columns",))  # whether it takes a number without a name
    if start.lastgroup == "number" and unnamed:
        key = allowed[0]
    elif start.lastgroup == "name":
        tokens.pop()
        key = start.group() if _took(tokens, "=") != (start.group() in FLAGS) else ""
    if key not in allowed:
        words = [key if key in FLAGS else f"{key}=" for key in allowed]
        takes = " or ".join(["a number"] * unnamed + words)
        several = "; several columns stand in square brackets" if "columns" in given else ""
        raise _expected(f"{takes or 'nothing in brackets'} for {name!r}{several}", start)
    if key in given:
        raise _error(f"expected {key} once, got it again", start)
    if key in FLAGS:
        given[key] = True
    elif key == "angle":
        given[key] = _read_angle(tokens)
    elif key in AMOUNTS:
        given[key] = _read_amount(tokens, name, key)
    elif _took(tokens, "["):
        given[key] = tuple(_separated(tokens, _read_column, "]"))
    else:
        given[key] = (_read_column(tokens),)


def _read_amount(tokens: Tokens, name: str, key: str) -> Amount:
    """Read a number, with its unit where it has one."""
    if tokens[-1].lastgroup != "number":
        raise _expected(f"a positive number for {key}", tokens[-1])
    value, token = _read_number(tokens), tokens[-1]
    if token.lastgroup != "name":
        return Amount(value)
    unit = token.group().lower()
    if unit not in UNITS and unit not in DISTANCES:
        raise _error(
            f"there is no unit {quoted(token.group())}", token, near(unit, [*TIMES, *DISTANCES])
        )
    if key == "alpha" or (key, name) == ("lengthscale", "periodic"):
        raise _error(f"expected {key} without a unit for {name!r}, got {quoted(unit)}", token)
    if key == "period" and unit in DISTANCES:
        raise _error(f"expected a period in a unit of time, got {quoted(unit)}", token)
    tokens.pop()
    return Amount(value, UNITS.get(unit, unit))


def _read_angle(tokens: Tokens) -> Amount:
    """Read an angle in degrees, which may be negative or 0."""
    sign = -1.0 if _took(tokens, "-") else 1.0
    if tokens[-1].lastgroup != "number" or not math.isfinite(float(tokens[-1].group())):
        raise _expected("a number of degrees for angle", tokens[-1])
    return Amount(sign * float(tokens.pop().group()))


def _read_column(tokens: Tokens) -> str:
    """Read a name in quotes, where \\ stands before a quote or another \\; or the text up to a sign."""
    if tokens[-1].lastgroup == "quote":
        return re.sub(r"\\([\\'\"])", r"\1", tokens.pop().group()[1:-1])
    start = end = tokens[-1].start()
    while tokens[-1].lastgroup != "quote" and tokens[-1].group() not in "()[],='\"":
        end = tokens.pop().end()
    if start == end:
        raise _expected("the name of a column, in quotes if it has signs in it", tokens[-1])
    return tokens[-1].string[start:end]


def _built_sum(
    expression: Expression, layout: InputLayout, marks: dict[int, str], variance: float, free: bool
) -> Kernel:
    """Build the sum, times a variance; the first term's variance is held where it is not free."""
    found = tuple(
        _built_term(term, layout, marks, variance * term.variance, free or place > 0)
        for place, term in enumerate(expression.terms)
    )
    return found[0] if len(found) == 1 else Sum(found)


def _built_term(
    term: Term, layout: InputLayout, marks: dict[int, str], variance: float, free: bool
) -> Kernel:
    """Build the product; the first of its factors that has a variance has the term's."""
    kernels: list[Kernel] = []
    scaled = False  # whether a factor has the term's variance already
    for factor in term.factors:
        own, first = (1.0 if scaled else variance), free and not scaled
        if isinstance(factor, Expression):
            kernels.append(_built_sum(factor, layout, marks, own, first))
        elif factor.name != "constant":
            kernels.append(factor.build(layout, own))
            parameters = kernels[-1].own_parameters()
            if factor.name == "periodic":
                marks[id(parameters["period"])] = "fixed"
            elif factor.name == "linear" and not first:
                marks[id(parameters["variance"])] = "fixed"
        scaled = scaled or isinstance(factor, Expression) or factor.name == "linear"
    if not kernels:
        found, mark = Constant(variance), "" if free else "fixed"
    else:
        product = kernels[0] if len(kernels) == 1 else Product(tuple(kernels))
        if scaled:
            return product
        found, mark = Scale(product, variance), "signal" if free else "fixed"
    marks[id(found.variance)] = mark
    return found
