"""Expressions of C as text with a precedence. In: texts of operands. Out: an expression with as few parentheses as a
reader needs. `language.py`, which spells ops, and the renderers use it."""

from __future__ import annotations

import re

from tilewright.base.records import NamedTuple

# Precedence, the highest first: an operand of lower precedence than its operator needs parentheses.
ATOM, UNARY, PRODUCT, SUM, SHIFT, RELATION, EQUALITY, BIT_AND, BIT_XOR, BIT_OR, AND, OR, CHOICE = range(13)


class Expression(NamedTuple):
    """The text of an expression and its precedence. `twin` is a related expression that saves an operation: for a
    signed integer the same bits as unsigned, for a comparison its negation."""

    text: str
    level: int = ATOM
    twin: Expression | None = None

    def within(self, level: int) -> str:
        """The text as an operand of at least the precedence `level`, in parentheses if need be."""
        return self.text if self.level <= level else f"({self.text})"


LEVELS = {"*": PRODUCT, "/": PRODUCT, "%": PRODUCT, "+": SUM, "-": SUM, "<<": SHIFT, ">>": SHIFT}
LEVELS |= {
    "<": RELATION,
    ">=": RELATION,
    "==": EQUALITY,
    "!=": EQUALITY,
    "&": BIT_AND,
    "^": BIT_XOR,
    "|": BIT_OR,
    "&&": AND,
    "||": OR,
}
# Few readers know the precedence of these, so their operands always get parentheses.
_OBSCURE = frozenset({"<<", ">>", "&", "^", "|"})


def infix(symbol: str, left: Expression, right: Expression) -> Expression:
    if symbol == "+" and right.level == UNARY and re.match(r"-[\d.]", right.text):
        symbol, right = "-", Expression(right.text[1:])
    level = LEVELS[symbol]
    around = UNARY if symbol in _OBSCURE else level
    return Expression(f"{left.within(around)} {symbol} {right.within(around - 1)}", level)
