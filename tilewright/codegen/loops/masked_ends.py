"""Splits a loop of a sum where its masks begin to fail. In: a kernel, for a target with threads. Out: the same kernel,
in which the first part of such a loop has no mask, and the second part, which mostly has no iteration, keeps it.

    before: for b in 6: for k in 912: acc += a[b*1824 + k*2 + u] where b*1824 + k*2 + u < 10921
    after:  for b in 6: full = max(0, min(912, (10921 - b*1824) / 2)), some = min(912, (10922 - b*1824) / 2)
              for k in full: acc += a[b*1824 + k*2 + u]
              for j in some - full: acc += a[b*1824 + (full + j)*2 + u] where b*1824 + (full + j)*2 + u < 10921

Where iterations whose masks fail add nothing, those that fail for all elements of a tile are left out: without a tile
along the sum there is no second loop. Any other sum keeps all iterations.

`peel_reductions` takes the last iteration off where it alone is masked. In the last of several blocks of a sum many
iterations are, and the mask of each scalar that a tile of accumulators is multiplied by takes a register: the tile
spills, and a product takes twice as long in all of its blocks."""

from __future__ import annotations

from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.codegen.loops.linearise import REST
from tilewright.codegen.loops.peel import peelable_loops
from tilewright.codegen.loops.separate_loops import separate_loops
from tilewright.graph.affine import Affine, affine, from_affine
from tilewright.graph.ops import Axis, Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import map_graph, size_of, substitute, toposort


def split_masked_ends(sink: UOp, target: Target) -> UOp:
    if not target.has_threads:
        return sink
    nodes = toposort(sink)
    counts: dict[UOp, tuple[UOp, UOp, list[UOp]]] = {}
    values: dict[UOp, list[UOp]] = {}
    for node in nodes:
        for axis in node.src[1:] if node.op is Ops.REDUCE else ():
            values.setdefault(axis, []).append(node)
    for axis in peelable_loops(nodes):
        masks = {node.src[2] for node in nodes if node.op is Ops.INDEX and len(node.src) > 2 and axis in node.ranges}
        conditions = [part for mask in masks for part in parts_of(mask, Ops.AND) if axis in part.ranges]
        ends = {condition: masked_end(condition, axis) for condition in dict.fromkeys(conditions)}
        known = {condition: end for condition, end in ends.items() if end is not None}
        if conditions and len(known) == len(ends):
            count = _least(axis, [end.full for end in known.values()])
            # A known count may be 0, as of windows that reach over the edge of an image, or all.
            if not count.is_const or size_of(axis) <= 2 * count.arg < 2 * size_of(axis):
                sums = values.get(axis, [])
                added = [end.some for each, end in known.items() if all(_adds_nothing(node, each) for node in sums)]
                counts[axis] = count, _least(axis, added), conditions
    if not counts:
        return sink

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        axis = next((each for each in node.src[1:] if each in counts), None) if node.op is Ops.REDUCE else None
        if axis is None:
            return node.with_src(src)
        full, some, conditions = counts[axis]
        first, rest = axis.replace(src=(full,)), _rest_of(axis, full, some)
        others = tuple(each for each in src[1:] if each is not axis)
        unmasked = substitute(src[0], dict.fromkeys(conditions, const(conditions[0].dtype, True)))
        parts = [(unmasked, {axis: first}, first), (src[0], {axis: full + rest}, rest)]
        is_split = not (rest.src[0].is_const and rest.src[0].arg == 0)
        made = [node.with_src((simplify(substitute(value, at)), loop, *others)) for value, at, loop in parts]
        return UOp(node.arg, node.dtype, tuple(made)) if is_split else made[0]

    return separate_loops(map_graph(sink, visit, nodes))


class End(NamedTuple):
    """The end of a loop where a condition begins to fail: the number of its first iterations in which it holds for
    `full`, all elements of a tile, and for `some` of them."""

    full: UOp
    some: UOp


def _least(axis: UOp, counts: list[UOp]) -> UOp:
    """The least of these counts and of the loop's own, and not below 0."""
    count = index_const(size_of(axis))
    for each in counts:
        count = count.minimum(each)
    return simplify(count.maximum(index_const(0)))


def _rest_of(axis: UOp, full: UOp, some: UOp) -> UOp:
    left = index_const(0) if some is full else simplify(some - full)
    return axis.replace(src=(left,), arg=Axis((*axis.arg.id, REST), axis.arg.kind))


def _adds_nothing(node: UOp, condition: UOp) -> bool:
    """Whether a reduction is a sum to which iterations add 0 where the condition does not hold."""
    return node.arg is Ops.ADD and _is_zero(node.src[0], condition)


def _is_zero(value: UOp, condition: UOp) -> bool:
    """Whether a value is 0 where the condition does not hold: a masked load, or a product of such loads. An unmasked
    factor may be infinite."""
    if value.op is Ops.MUL:
        return all(_is_zero(factor, condition) for factor in value.src)
    if value.op is Ops.CAST:
        return _is_zero(value.src[0], condition)
    masks = value.src[0].src[2:] if value.op is Ops.LOAD and len(value.src) == 1 else ()
    return any(condition in parts_of(mask, Ops.AND) for mask in masks)


def masked_end(condition: UOp, axis: UOp) -> End | None:
    """Where a loop's condition begins to fail, in terms of the blocks of the same sum. None where it is no end of that
    sum: of a triangle, or of a window at the border of an image, no part is mostly without iterations."""
    if condition.op is not Ops.CMPLT:
        return None
    form = affine(condition.src[0]).plus(affine(condition.src[1]), -1)
    step = form.terms.get(axis, 0)
    terms = {atom: count for atom, count in form.terms.items() if atom is not axis}
    if step <= 0 or any(axis in atom.ranges for atom in terms):
        return None
    in_tiles = {atom: count for atom, count in terms.items() if any(each.arg.kind.is_tile for each in atom.ranges)}
    around = {atom: count for atom, count in terms.items() if atom not in in_tiles}
    if any(atom.op is not Ops.RANGE or atom.arg.id[0] != axis.arg.id[0] for atom in around):
        return None
    least, greatest = Affine(in_tiles, form.constant).bounds

    def iterations(bound: int) -> UOp:
        """Those with step * k + around + bound < 0, for k from 0 on."""
        left = from_affine(Affine({atom: -count for atom, count in around.items()}, step - 1 - bound))
        return left.maximum(index_const(0)) // step

    return End(iterations(greatest), iterations(least))
