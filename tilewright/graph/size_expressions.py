"""Expressions of sizes. In: a node of index maths over VARIABLEs. Out: its variables, its text, its bounds, and its
value for given values of the variables. `symbolic` builds integers from these expressions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from tilewright.base.dtype import dtypes
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const

# Where bounds do not decide a sign, a variable with at most this many values is tried at each of them.
MAX_VALUES = 1 << 12
# The most combinations of operands of minima and maxima that are tried in their place.
MAX_CASES = 16


def variables_of(node: UOp) -> list[UOp]:
    """The VARIABLEs of an expression, in order of appearance."""
    found: dict[UOp, None] = {}
    stack = [node]
    while stack:
        top = stack.pop()
        if top.op is Ops.VARIABLE:
            found[top] = None
        stack.extend(reversed(top.src))
    return list(found)


def evaluate_size(node: UOp, values: Mapping[str, int]) -> int:
    """The value of an expression of sizes."""
    op = node.op
    if op is Ops.CONST:
        return int(node.arg)
    if op is Ops.VARIABLE:
        return values[node.arg[0]]
    operands = [evaluate_size(src, values) for src in node.src]
    return _VALUES[op](*operands)


_VALUES: dict[Op, Callable[..., int]] = {
    Ops.ADD: lambda x, y: x + y,
    Ops.SUB: lambda x, y: x - y,
    Ops.MUL: lambda x, y: x * y,
    Ops.NEG: lambda x: -x,
    Ops.IDIV: lambda x, y: x // y if y else 0,
    Ops.MOD: lambda x, y: x % y if y else 0,
    Ops.MAX: max,
    Ops.MIN: min,
    Ops.SHL: lambda x, y: x << y,
    Ops.CMPLT: lambda x, y: int(x < y),
    Ops.WHERE: lambda c, x, y: x if c else y,
}


def multiple_of_one(node: UOp) -> UOp | None:
    """The canonical expression, factor * variable + constant, of a size that is that; None where the expression has
    several variables or is not linear. Sizes of most programs are: they do without the rules of `simplify`, which gives
    the same, and whose modules take a megabyte."""
    form = _linear_form(node)
    if form is None:
        return None
    variable, factor, constant = form
    if variable is None or factor == 0:
        return index_const(constant)
    term = variable if factor == 1 else UOp(Ops.MUL, dtypes.index, (variable, index_const(factor)))
    return term if constant == 0 else UOp(Ops.ADD, dtypes.index, (term, index_const(constant)))


def _linear_form(node: UOp) -> tuple[UOp | None, int, int] | None:
    """The variable, its factor and the constant."""
    op = node.op
    if op is Ops.CONST:
        return (None, 0, node.arg) if type(node.arg) is int else None
    if op is Ops.VARIABLE:
        return (node, 1, 0) if node.dtype is dtypes.index else None
    if op not in (Ops.ADD, Ops.SUB, Ops.MUL, Ops.IDIV) or node.dtype is not dtypes.index:
        return None
    left, right = _linear_form(node.src[0]), _linear_form(node.src[1])
    if left is None or right is None or (left[0] and right[0] and left[0] is not right[0]):
        return None
    variable = left[0] or right[0]
    if op is Ops.ADD:
        return variable, left[1] + right[1], left[2] + right[2]
    if op is Ops.SUB:
        return variable, left[1] - right[1], left[2] - right[2]
    if op is Ops.IDIV:
        return left if right[0] is None and right[2] == 1 else None
    if left[0] and right[0]:
        return None
    return variable, left[1] * right[2] + right[1] * left[2], left[2] * right[2]


def size_text(node: UOp) -> str:
    """An expression in infix notation."""
    if node.op is Ops.CONST or node.op is Ops.VARIABLE:
        return str(node.arg if node.op is Ops.CONST else node.arg[0])
    parts = [size_text(src) for src in node.src]
    if node.op is Ops.ADD and node.src[1].op is Ops.CONST and node.src[1].arg < 0:
        return f"{parts[0]} - {parts[1][1:]}"
    if node.op is Ops.ADD:
        return " + ".join(parts)
    symbol = {Ops.MUL: "*", Ops.IDIV: "//", Ops.MOD: "%", Ops.SUB: "-"}.get(node.op)
    if symbol is None:
        return f"{node.op.name.lower()}({', '.join(parts)})"
    inner = [text if not src.src else f"({text})" for src, text in zip(node.src, parts, strict=True)]
    return symbol.join(inner)


def bounds_of_size(node: UOp) -> tuple[int, int]:
    """The bounds of an expression. Where interval arithmetic does not decide its sign, as for n - n//2, quotients are
    taken as fractions, and minima and maxima by cases; then a single variable of few values is tried at each of
    them."""
    low, high = int(node.vmin), int(node.vmax)
    if low >= 0 or high < 0:
        return low, high
    found: tuple[int, int] | None = node.cache.get("bounds_of_size")
    if found is None:
        found = node.cache["bounds_of_size"] = _bounds_by_cases(node, MAX_CASES)
        variables = variables_of(node)
        if found[0] < 0 <= found[1] and len(variables) == 1:
            name, least, greatest = variables[0].arg
            if greatest - least < MAX_VALUES:
                values = [evaluate_size(node, {name: value}) for value in range(least, greatest + 1)]
                found = node.cache["bounds_of_size"] = min(values), max(values)
    return found


def _bounds_by_cases(node: UOp, cases: int) -> tuple[int, int]:
    """n + m - min(n + m, 4) is the greater of n + m - (n + m) and n + m - 4: bounds of both are bounds of it."""
    from tilewright.graph.affine import Affine, affine, from_affine

    form = affine(node)
    for atom, step in form.terms.items():
        if cases > 1 and (atom.op is Ops.MIN or atom.op is Ops.MAX):
            rest = form.plus(Affine({atom: 1}, 0), -step)
            ends = [_bounds_by_cases(from_affine(rest.plus(affine(src), step)), cases // 2) for src in atom.src]
            chosen = min if (atom.op is Ops.MIN) == (step > 0) else max
            return chosen(low for low, _ in ends), chosen(high for _, high in ends)
    return _bounds_of_fractions(node)


def _bounds_of_fractions(node: UOp) -> tuple[int, int]:
    """x//c is (x - r) / c with a remainder r in 0..c-1, so that terms of x inside and outside of a quotient are added
    up."""
    # Loaded only by programs that use variables.
    from fractions import Fraction

    from tilewright.graph.affine import affine

    terms: dict[UOp, Fraction] = {}
    low = high = Fraction(0)
    waiting = [(node, Fraction(1))]
    while waiting:
        part, factor = waiting.pop()
        form = affine(part)
        low, high = low + factor * form.constant, high + factor * form.constant
        for atom, step in form.terms.items():
            scaled = factor * step
            if atom.op is Ops.IDIV and atom.src[1].is_const and atom.src[1].arg > 0:
                divisor = int(atom.src[1].arg)
                waiting.append((atom.src[0], scaled / divisor))
                rest = -scaled * Fraction(divisor - 1, divisor)
                low, high = low + min(rest, Fraction(0)), high + max(rest, Fraction(0))
            else:
                terms[atom] = terms.get(atom, Fraction(0)) + scaled
    for atom, total in terms.items():
        ends = (total * int(atom.vmin), total * int(atom.vmax))
        low, high = low + min(ends), high + max(ends)
    return max(math.ceil(low), int(node.vmin)), min(math.floor(high), int(node.vmax))
