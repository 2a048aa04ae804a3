"""Derivatives of the scalar ops. In: `m`, maths on nodes; `g`, the gradient of a result with respect to the node; the
node `y` itself, and its sources. Out: the gradient with respect to each source, None where it is zero or not wanted.
They stand in the specs of `ops.py` beside value and bounds; `gradients/rules.py` gives `m` and fits shapes.

Where a value is selected, so is its gradient (a selection, never a product with a mask): what was not selected may be
infinite and must not become NaN."""

from __future__ import annotations

from typing import Any

Gradients = tuple[Any, ...]


def flat(m: Any, g: Any, y: Any, *sources: Any) -> Gradients:
    """Of a step function: zero wherever it is defined."""
    return (None,) * len(sources)


def difference(m: Any, g: Any, y: Any, left: Any, right: Any) -> Gradients:
    return g, None if right.is_const else m.negate(g)


def product(m: Any, g: Any, y: Any, left: Any, right: Any) -> Gradients:
    return None if left.is_const else m.multiply(g, right), None if right.is_const else m.multiply(g, left)


def quotient(m: Any, g: Any, y: Any, left: Any, right: Any) -> Gradients:
    return m.divide(g, right), None if right.is_const else m.negate(m.multiply(g, m.divide(y, right)))


def greater(m: Any, g: Any, y: Any, left: Any, right: Any) -> Gradients:
    return extreme(m, g, left, right, m.less)


def smaller(m: Any, g: Any, y: Any, left: Any, right: Any) -> Gradients:
    return extreme(m, g, left, right, lambda a, b: m.less(b, a))


def extreme(m: Any, g: Any, left: Any, right: Any, loses: Any) -> Gradients:
    """Equal operands share evenly, as torch's `maximum`, unless one of them takes ties (relu is flat at 0).
    `loses(a, b)` says where a is not the result."""
    zero = m.number(g, 0)
    for taker, other in ((left, right), (right, left)):
        if m.takes_ties(taker):
            kept = m.where(loses(taker.src[0], other), g, zero)
            return (None, kept) if taker is left else (kept, None)
    shared = m.where(m.equal(left, right), m.multiply(g, m.number(g, 0.5)), g)
    return m.where(loses(left, right), zero, shared), m.where(loses(right, left), zero, shared)


def selection(m: Any, g: Any, y: Any, condition: Any, yes: Any, no: Any) -> Gradients:
    zero = m.number(g, 0)
    return None, m.where(condition, g, zero), m.where(condition, zero, g)
