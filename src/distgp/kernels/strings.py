"""The grammar of kernels in text, read without `eval`.

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
from dataclasses import dataclass, replace
from typing import Any

from distgp.kernels.base import ParameterError
from distgp.kernels.expression import Amount, Expression, Named, Term
from distgp.kernels.layout import LONGEST_QUOTE, near, quoted
from distgp.kernels.stationary import KERNELS

EXAMPLE = "'matern52 + 2 * periodic(24, columns=hour)'"
LONGEST = 5_000
"""Characters that a text may have."""
DEEPEST = 20
"""Brackets that may be open at once."""
MOST_TERMS = 100
"""Terms that a text may have, once its brackets are multiplied out."""
AROUND = 20
"""Characters before and after a mistake that a message repeats."""

SPELLINGS = {
    "seconds": ("s", "sec", "secs", "second"),
    "minutes": ("min", "mins", "minute"),
    "hours": ("h", "hr", "hrs", "hour"),
    "days": ("d", "day"),
    "weeks": ("w", "wk", "week"),
    "months": ("month",),
    "years": ("y", "yr", "year"),
}
UNITS = {text: unit for unit, texts in SPELLINGS.items() for text in (unit, *texts)}
"""Units of time by all that they are called."""
ARGUMENTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(KERNELS, ("lengthscale", "columns")),
    "rational-quadratic": ("lengthscale", "columns", "alpha"),
    "linear": ("columns",),
    "constant": (),
    "periodic": ("period", "columns", "lengthscale"),
}
"""Every name, and what may be given to it; a number without a name is the first of them."""

TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<number>(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<name>[^\W\d][\w.-]*)
    | (?P<quote>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
    | (?P<symbol>.)""",
    re.VERBOSE | re.DOTALL,
)


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
    return _Parser(text).whole()


@dataclass(frozen=True)
class _Token:
    """A part of the text: a number, name, quote or symbol, or its end; and where it starts."""

    kind: str
    text: str
    at: int


class _Parser:
    """One method for each rule of the grammar; each reads from where the last one stopped."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [
            _Token(str(match.lastgroup), match.group(), match.start())
            for match in TOKEN.finditer(text)
            if match.lastgroup != "space"
        ]
        self._tokens.append(_Token("end", "", len(text)))
        self._next = 0
        self._depth = 0

    @property
    def _token(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._token
        self._next += token.kind != "end"
        return token

    def _took(self, *symbols: str) -> bool:
        """Go past the next token if it is one of these symbols."""
        found = self._token.kind == "symbol" and self._token.text in symbols
        self._next += found
        return found

    def _error(self, what: str, token: _Token | None = None, end: str = "") -> ParameterError:
        """Say what is wrong with a token, the next one by default."""
        at = (token or self._token).at
        shown = self._text
        if len(shown) > LONGEST_QUOTE:
            shown = f"…{shown[max(0, at - AROUND) : at + AROUND]}…"
        end = end or f"; an example is {EXAMPLE}"
        return ParameterError(f"kernel {quoted(shown)}: {what} at character {at + 1}{end}")

    def _expected(self, what: str) -> ParameterError:
        got = "the end" if self._token.kind == "end" else quoted(self._token.text)
        return self._error(f"expected {what}, got {got}")

    def whole(self) -> Expression:
        found = Expression(tuple(self._terms()))
        if self._token.kind != "end":
            raise self._expected("'+', '*' or the end")
        if found.size() > MOST_TERMS:
            what = f"expected at most {MOST_TERMS} terms, got {found.size():,} with brackets multiplied out"
            raise self._error(what)
        return found

    def _terms(self, bracket: bool = False) -> list[Term]:
        """A sum; only a number alone in brackets needs no kernel, since others may follow it."""
        found: list[Term] = []
        while not found or self._took("+"):
            start = self._token
            found.append(self._term())
            alone = bracket and len(found) == 1 and self._token.text != "+"
            if not found[-1].factors and not alone:
                remedy = ": multiply it with one, such as '2 * matern52' or '2 * constant'"
                raise self._error("expected a kernel, got a number alone", start, remedy)
        return found

    def _term(self) -> Term:
        """A product, in which numbers are multiplied at once."""
        start, found = self._token, self._factor()
        while self._took("*"):
            part = self._factor()
            found = Term(found.factors + part.factors, found.variance * part.variance)
        if not 0.0 < found.variance < math.inf:
            raise self._error(f"expected a finite signal variance, got {found.variance}", start)
        return found

    def _factor(self) -> Term:
        if self._token.kind == "number":
            return Term((), self._number())
        if self._token.kind == "name":
            return Term((self._named(),))
        if not self._took("("):
            raise self._expected("a kernel's name, a number or '('")
        return self._bracket()

    def _bracket(self) -> Term:
        """What stands in brackets; where it is no sum, the brackets make no difference."""
        self._depth += 1
        if self._depth > DEEPEST:
            raise self._error(f"expected at most {DEEPEST} brackets in each other, got more")
        terms = self._terms(bracket=True)
        if not self._took(")"):
            raise self._expected("'+', '*' or ')'")
        self._depth -= 1
        return terms[0] if len(terms) == 1 else Term((Expression(tuple(terms)),))

    def _number(self) -> float:
        token = self._take()
        value = float(token.text)
        if not 0.0 < value < math.inf:
            raise self._error(f"expected a positive finite number, got {quoted(token.text)}", token)
        return value

    def _named(self) -> Named:
        token = self._take()
        if token.text not in ARGUMENTS:
            what = f"there is no kernel {quoted(token.text)}"
            raise self._error(what, token, near(token.text, ARGUMENTS))
        given: dict[str, Any] = {}
        if self._took("(") and not self._took(")"):
            self._argument(token.text, given)
            while self._took(","):
                self._argument(token.text, given)
            if not self._took(")"):
                raise self._expected("',' or ')'")
        if token.text == "periodic" and "period" not in given:
            raise self._error(
                "expected a period, got none", token, ": write it as in 'periodic(24)'"
            )
        return replace(Named(token.text), **given)

    def _argument(self, name: str, given: dict[str, Any]) -> None:
        token, allowed = self._token, ARGUMENTS[name]
        key = allowed[0] if token.kind == "number" and _numeric(name) else ""
        if named := token.kind == "name" and self._tokens[self._next + 1].text == "=":
            key = token.text
        if key not in allowed:
            several = "; several columns stand in square brackets" if "columns" in given else ""
            raise self._expected(f"{_taken(name)}{several}")
        if key in given:
            raise self._error(f"expected {key} once, got it again", token)
        self._next += 2 * named
        given[key] = self._columns() if key == "columns" else self._amount(name, key)

    def _amount(self, name: str, key: str) -> Amount:
        if self._token.kind != "number":
            raise self._expected(f"a positive number for {key}")
        value = self._number()
        if self._token.kind != "name":
            return Amount(value)
        unit = self._token.text.lower()
        if unit not in UNITS:
            raise self._error(
                f"there is no unit {quoted(self._token.text)}", end=near(unit, SPELLINGS)
            )
        if key == "alpha" or (key, name) == ("lengthscale", "periodic"):
            raise self._error(f"expected {key} without a unit for {name!r}, got {quoted(unit)}")
        self._take()
        return Amount(value, UNITS[unit])

    def _columns(self) -> tuple[str, ...]:
        if not self._took("["):
            return (self._column(),)
        found = [self._column()]
        while self._took(","):
            found.append(self._column())
        if not self._took("]"):
            raise self._expected("',' or ']'")
        return tuple(found)

    def _column(self) -> str:
        """A name in quotes, where \\ stands before a quote or another \\; or the text up to a sign."""
        if self._token.kind == "quote":
            return re.sub(r"\\([\\'\"])", r"\1", self._take().text[1:-1])
        start = end = self._token.at
        while (
            self._token.kind in ("number", "name", "symbol") and self._token.text not in "()[],='\""
        ):
            token = self._take()
            end = token.at + len(token.text)
        if start == end:
            raise self._expected("the name of a column, in quotes if it has signs in it")
        return self._text[start:end]


def _numeric(name: str) -> bool:
    """Whether a kernel takes a number without a name."""
    return ARGUMENTS[name][:1] not in ((), ("columns",))


def _taken(name: str) -> str:
    """What a kernel takes, in words."""
    keys = [f"{key}=" for key in ARGUMENTS[name]]
    choices = (["a number"] if _numeric(name) else []) + keys
    return f"{' or '.join(choices) or 'nothing in brackets'} for {name!r}"
