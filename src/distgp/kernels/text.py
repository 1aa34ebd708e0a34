"""The grammar of kernels in text, "periodic(24 h) + 2 * matern52", read without `eval`.

- expression: term ("+" term)*
- term: factor ("*" factor)*
- factor: number, or name ["(" [argument ("," argument)*] ")"], or "(" expression ")"
- argument: amount, or ("period" | "lengthscale" | "alpha") "=" amount, or "columns" "=" columns
- amount: number [unit of time]
- columns: column, or "[" column ("," column)* "]"
- column: a text in quotes, or any text without , ( ) [ ] = and quotes
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import TypeAlias, TypeVar

from distgp.kernels.base import ParameterError
from distgp.kernels.expression import TIMES, Amount, Expression, Named, Term
from distgp.kernels.layout import LONGEST_QUOTE, near, quoted
from distgp.kernels.registry import KERNELS

Token: TypeAlias = re.Match[str]
Value = TypeVar("Value")
EXAMPLE = "'matern52 + 2 * periodic(24, columns=hour)'"
LONGEST = 5_000  # characters that a text may have
DEEPEST = 20  # brackets that may be open at once
MOST_TERMS = 100  # terms that a text may have, once its brackets are multiplied out
AROUND = 20  # characters before and after a mistake that a message repeats
UNITS = {text: unit for unit, (_, texts) in TIMES.items() for text in (unit, *texts.split())}
"""Units of time by all that they are called."""
TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d][\w.-]*)
    | (?P<quote>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<symbol>.)
    | (?P<end>\Z)""",
    re.VERBOSE | re.DOTALL,
)


def arguments() -> Mapping[str, tuple[str, ...]]:
    """List every name, and what may be given to it; a number without a name is the first of them."""
    both = ("lengthscale", "columns")
    found = {
        name: (*both, "alpha") if "alpha" in kind.__dataclass_fields__ else both
        for name, kind in KERNELS.items()
    }
    found |= {"linear": ("columns",), "constant": ()}
    return found | {"periodic": ("period", "columns", "lengthscale")}


def parse(text: str) -> Expression:
    """Read a kernel from a text such as "rbf * periodic(24, columns=hour) + linear".

    Kernels go by their names in `distgp.KERNELS`, or are "linear", "constant" or "periodic". They are
    added with `+` and multiplied with `*`; brackets group. In brackets after a name stand a period or a
    lengthscale in the data's units, by name or as the first number, and the columns that the kernel looks
    at. A number may have a unit of time (24 h, 1 week) where the column holds dates. A number that
    is multiplied with kernels is their starting signal variance.

    Parameters
    ----------
    text : str
        The kernel.

    Returns
    -------
    Expression
        Its `build` makes the kernel for given columns.

    Raises
    ------
    ParameterError
        With one line that says what was expected and what came where.

    Examples
    --------
    >>> from distgp.kernels import parse
    >>> print(parse("periodic(1 week, columns='sold at') * rbf + 3*linear"))
    periodic(period=1 weeks, columns="sold at") * rbf + 3 * linear
    >>> parse("periodic(24) + mattern52")
    Traceback (most recent call last):
    ...
    distgp.kernels.base.ParameterError: kernel 'periodic(24) + mattern52': there is no kernel 'mattern52' \
at character 16; did you mean 'matern52'? there are 'rbf', 'matern12', 'matern32', 'matern52', \
'rational-quadratic', 'linear', 'constant', 'periodic'
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
    reader = _Reader(text)
    found = Expression(tuple(_terms(reader)))
    if reader.token.lastgroup != "end":
        raise reader.expected("'+', '*' or the end")
    if (size := found.size()) > MOST_TERMS:
        what = f"expected at most {MOST_TERMS} terms, got {size:,} with brackets multiplied out"
        raise reader.error(what)
    return found


class _Reader:
    """The tokens of a text; each function below reads from where the last one stopped."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.depth = 0
        self._rest = (match for match in TOKEN.finditer(text) if match.lastgroup != "space")
        self.token = next(self._rest)

    def take(self) -> Token:
        """Return the token, and go on to the next."""
        taken, self.token = self.token, next(self._rest, self.token)
        return taken

    def took(self, symbol: str) -> bool:
        """Go past the token if it is this symbol."""
        found = self.token["symbol"] == symbol
        if found:
            self.take()
        return found

    def separated(self, read: Callable[[_Reader], Value], close: str) -> list[Value]:
        """Read values with commas between them, up to a closing bracket."""
        found = [read(self)]
        while self.took(","):
            found.append(read(self))
        if not self.took(close):
            raise self.expected(f"',' or {close!r}")
        return found

    def error(self, what: str, token: Token | None = None, end: str = "") -> ParameterError:
        """Say what is wrong with a token, the one at hand by default."""
        at, shown = (token or self.token).start(), self.text
        if len(shown) > LONGEST_QUOTE:
            shown = f"…{shown[max(0, at - AROUND) : at + AROUND]}…"
        end = end or f"; an example is {EXAMPLE}"
        return ParameterError(f"kernel {quoted(shown)}: {what} at character {at + 1}{end}")

    def expected(self, what: str, token: Token | None = None) -> ParameterError:
        """Say what was expected in place of a token, the one at hand by default."""
        token = token or self.token
        got = "the end" if token.lastgroup == "end" else quoted(token.group())
        return self.error(f"expected {what}, got {got}", token)


def _terms(reader: _Reader, bracket: bool = False) -> list[Term]:
    """Read a sum; only a number alone in brackets needs no kernel, since others may follow it."""
    found: list[Term] = []
    while not found or reader.took("+"):
        start = reader.token
        found.append(_term(reader))
        alone = bracket and len(found) == 1 and reader.token.group() != "+"
        if not found[-1].factors and not alone:
            remedy = ": multiply it with one, such as '2 * matern52' or '2 * constant'"
            raise reader.error("expected a kernel, got a number alone", start, remedy)
    return found


def _term(reader: _Reader) -> Term:
    """Read a product, in which numbers are multiplied at once."""
    start, found = reader.token, _factor(reader)
    while reader.took("*"):
        part = _factor(reader)
        found = Term(found.factors + part.factors, found.variance * part.variance)
    if not 0.0 < found.variance < math.inf:
        raise reader.error(f"expected a finite signal variance, got {found.variance}", start)
    return found


def _factor(reader: _Reader) -> Term:
    """Read a number, a kernel or brackets, which make no difference where no sum is in them."""
    if reader.token.lastgroup == "number":
        return Term((), _number(reader))
    if reader.token.lastgroup == "name":
        return Term((_named(reader),))
    if not reader.took("("):
        raise reader.expected("a kernel's name, a number or '('")
    reader.depth += 1
    if reader.depth > DEEPEST:
        raise reader.error(f"expected at most {DEEPEST} brackets in each other, got more")
    terms = _terms(reader, bracket=True)
    if not reader.took(")"):
        raise reader.expected("'+', '*' or ')'")
    reader.depth -= 1
    return terms[0] if len(terms) == 1 else Term((Expression(tuple(terms)),))


def _number(reader: _Reader) -> float:
    token = reader.take()
    value = float(token.group())
    if not 0.0 < value < math.inf:
        raise reader.error(f"expected a positive finite number, got {quoted(token.group())}", token)
    return value


def _named(reader: _Reader) -> Named:
    """Read a kernel's name, and the arguments in brackets after it."""
    token, known, given = reader.take(), arguments(), {}
    name = token.group()
    if name not in known:
        raise reader.error(f"there is no kernel {quoted(name)}", token, near(name, known))
    if reader.took("(") and not reader.took(")"):
        reader.separated(lambda reader: _argument(reader, name, known[name], given), ")")
    if name == "periodic" and "period" not in given:
        raise reader.error("expected a period, got none", token, ": write it as in 'periodic(24)'")
    return Named(name, **given)


def _argument(
    reader: _Reader, name: str, allowed: tuple[str, ...], given: dict[str, object]
) -> None:
    """Read one of the arguments that a kernel may have, and add it to those given."""
    start, key = reader.token, ""
    unnamed = allowed[:1] not in ((), ("columns",))  # whether it takes a number without a name
    if start.lastgroup == "number" and unnamed:
        key = allowed[0]
    elif start.lastgroup == "name":
        reader.take()
        key = start.group() if reader.took("=") else ""
    if key not in allowed:
        takes = " or ".join(["a number"] * unnamed + [f"{key}=" for key in allowed])
        several = "; several columns stand in square brackets" if "columns" in given else ""
        raise reader.expected(f"{takes or 'nothing in brackets'} for {name!r}{several}", start)
    if key in given:
        raise reader.error(f"expected {key} once, got it again", start)
    given[key] = _columns(reader) if key == "columns" else _amount(reader, name, key)


def _amount(reader: _Reader, name: str, key: str) -> Amount:
    """Read a number, with its unit of time where it has one."""
    if reader.token.lastgroup != "number":
        raise reader.expected(f"a positive number for {key}")
    value, unit = _number(reader), reader.token.group()
    if reader.token.lastgroup != "name":
        return Amount(value)
    if unit.lower() not in UNITS:
        raise reader.error(f"there is no unit {quoted(unit)}", end=near(unit.lower(), TIMES))
    if key == "alpha" or (key, name) == ("lengthscale", "periodic"):
        raise reader.error(
            f"expected {key} without a unit for {name!r}, got {quoted(unit.lower())}"
        )
    return Amount(value, UNITS[reader.take().group().lower()])


def _columns(reader: _Reader) -> tuple[str, ...]:
    """Read the name of a column, or several in square brackets."""
    return tuple(reader.separated(_column, "]")) if reader.took("[") else (_column(reader),)


def _column(reader: _Reader) -> str:
    """Read a name in quotes, where \\ stands before a quote or another \\; or the text up to a sign."""
    if reader.token.lastgroup == "quote":
        return re.sub(r"\\([\\'\"])", r"\1", reader.take().group()[1:-1])
    start = end = reader.token.start()
    while reader.token.lastgroup != "quote" and reader.token.group() not in "()[],='\"":
        end = reader.take().end()
    if start == end:
        raise reader.expected("the name of a column, in quotes if it has signs in it")
    return reader.text[start:end]
