"""Sums in which only every n-th iteration contributes. In: the value of a kernel. Out: the same value, whose sums
iterate over those alone. The gradient of strided windows is such a sum.

    before: for k in 3: acc += g[(x + 1 - k) // 2] * w[k] if (x + 1 - k) % 2 < 1 else 0
    after:  for j in 2: acc += g[(x + 1) // 2 - j] * w[2*j + (x + 1) % 2] if 2*j + (x + 1) % 2 < 3 else 0"""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.affine import Affine, affine, from_affine
from tilewright.graph.ops import Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import map_graph, size_of, substitute, toposort
from tilewright.schedule.fusion.indexing import TRUE, both
from tilewright.schedule.fusion.masks import conditions_of, is_selection, new_loops


class Residue(NamedTuple):
    """Only iterations in which `factor * loop + rest` is a multiple of the divisor contribute. Divisor and factor have
    no common divisor, so that is one iteration in `divisor`."""

    loop: UOp
    dividend: UOp
    factor: int
    rest: Affine
    divisor: int


def thin_reductions(value: UOp) -> UOp:
    """The value, in which every sum iterates over the contributing iterations alone."""
    sums = [node for node in toposort(value) if node.op is Ops.REDUCE and node.arg is Ops.ADD]
    if not any(find_residues(node.src[0], node.src[1:]) for node in sums):
        return value

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.REDUCE or node.arg is not Ops.ADD:
            return None
        inner, loops = thin_reduction(src[0], src[1:])
        return node.with_src((inner, *loops))

    return map_graph(value, visit)


def thin_reduction(value: UOp, loops: tuple[UOp, ...]) -> tuple[UOp, tuple[UOp, ...]]:
    """The operand of a sum, and its loops."""
    found = find_residues(value, loops)
    if not found:
        return value, loops
    sizes = [index_const(-(-size_of(loop) // found[loop].divisor)) if loop in found else loop.src[0] for loop in loops]
    made = new_loops(loops, sizes)
    for loop, step in made.items():
        value = walk_residue(value, found[loop], step) if loop in found else substitute(value, {loop: step})
    return simplify(value), tuple(made.values())


def find_residues(value: UOp, loops: tuple[UOp, ...]) -> dict[UOp, Residue]:
    """The loops of which only every n-th iteration contributes, whatever the iterations of the others."""
    found: dict[UOp, Residue] = {}
    for part in conditions_of(value):
        if (
            part.op is not Ops.CMPLT
            or part.src[0].op is not Ops.MOD
            or not part.src[1].is_const
            or part.src[1].arg != 1
        ):
            continue
        dividend, divisor = part.src[0].src
        own = [loop for loop in loops if loop in dividend.ranges]
        if len(own) != 1 or not divisor.is_const or divisor.arg < 2 or dividend.dtype is not dtypes.index:
            continue
        form = affine(dividend)
        factor = form.terms.get(own[0], 0)
        rest = form.plus(Affine({own[0]: 1}, 0), -factor)
        is_alone = all(own[0] not in atom.ranges for atom in rest.terms)
        is_coprime = math.gcd(factor, divisor.arg) == 1
        if is_coprime and is_alone and own[0].src[0].is_const and size_of(own[0]) > 1:
            found.setdefault(own[0], Residue(own[0], dividend, factor, rest, int(divisor.arg)))
    return found


def walk_residue(value: UOp, residue: Residue, step: UOp) -> UOp:
    """The value at the contributing iteration number `step`. Past the last one it is 0, and nothing is loaded."""
    loop, dividend, factor, rest, divisor = residue
    is_unit = factor in (1, -1)
    before = from_affine(rest.scaled(-(factor if is_unit else pow(factor, -1, divisor))), dtypes.index)
    first = before % divisor
    number = step * divisor + first
    if is_unit:
        quotient = (step - before // divisor) * factor
    else:
        quotient = step * factor + (from_affine(rest, dtypes.index) + first * factor) // divisor
    exchanges = {
        loop: number,
        UOp(Ops.MOD, dtypes.index, (dividend, index_const(divisor))): index_const(0),
        UOp(Ops.IDIV, dtypes.index, (dividend, index_const(divisor))): quotient,
    }
    if size_of(loop) % divisor == 0:
        return substitute(value, exchanges)
    return with_mask(substitute(value, exchanges), step, number < size_of(loop))


def with_mask(value: UOp, step: UOp, inside: UOp) -> UOp:
    """The value where the condition holds, else 0; loads that depend on the step are masked by the condition."""

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.INDEX or step not in node.ranges:
            return None
        return node.with_src((*src[:2], both(src[2] if len(src) == 3 else TRUE, inside)))

    made = map_graph(value, visit)
    if is_selection(made):
        return both(made.src[0], inside).where(made.src[1], made.src[2])
    return inside.where(made, const(made.dtype, 0))
