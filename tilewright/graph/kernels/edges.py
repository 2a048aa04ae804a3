"""Masks of single elements of a tile. In: a condition and an element's position in its tile. Out: whether the condition
holds there in every iteration of the surrounding loops, in none, or in some. Renderers that unroll a tile use it to
leave out masks that always hold, which at the edge of an image are most of them.

    x in 0..13 of a tile at 14*t, k in 0..2:  14*t + x - k + 1 >= 0  holds but for x = 0, k = 2"""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp


def holds_at(condition: UOp, at: Mapping[UOp, int]) -> bool | None:
    """Whether a condition holds at an element; None where that depends on loops or is not known."""
    if condition.is_const:
        return bool(condition.arg)
    if condition.op is Ops.XOR and condition.src[1].is_const:
        found = holds_at(condition.src[0], at)
        return None if found is None else found ^ bool(condition.src[1].arg)
    if condition.op is Ops.AND:
        both = [holds_at(source, at) for source in condition.src]
        return False if False in both else None if None in both else True
    if condition.op is not Ops.CMPLT or not condition.src[0].dtype.is_int:
        return None
    # left < right where their difference is negative.
    form = affine(condition.src[0]).plus(affine(condition.src[1]), -1)
    low = high = form.constant
    for atom, times in form.terms.items():
        first, last = (at[atom], at[atom]) if atom in at else (int(end) for end in atom.bounds)
        low += min(times * first, times * last)
        high += max(times * first, times * last)
    return True if high < 0 else False if low >= 0 else None
