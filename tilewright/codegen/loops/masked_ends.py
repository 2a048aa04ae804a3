"""Splits a loop of a sum where its masks begin to fail. In: a kernel, for a target with threads. Out: the same kernel,
in which the first part of such a loop has no mask, and the second part, which mostly has no iteration, keeps it.

    before: for b in 6: for k in 912: acc += a[b*1824 + k*2 + u] where b*912 + k < 5461
    after:  for b in 6: full = max(0, min(912, 5461 - b*912))
              for k in full: acc += a[b*1824 + k*2 + u]
              for j in 912 - full: acc += a[b*1824 + (full + j)*2 + u] where b*912 + full + j < 5461

`peel_reductions` takes the last iteration off where it alone is masked. In the last of several blocks of a sum many
iterations are, and the mask of each scalar that a tile of accumulators is multiplied by takes a register: the tile
spills, and a product takes twice as long in all of its blocks."""

from __future__ import annotations

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
    counts: dict[UOp, tuple[UOp, list[UOp]]] = {}
    for axis in peelable_loops(nodes):
        masks = {node.src[2] for node in nodes if node.op is Ops.INDEX and len(node.src) > 2 and axis in node.ranges}
        conditions = [part for mask in masks for part in parts_of(mask, Ops.AND) if axis in part.ranges]
        found = [unmasked_iterations(condition, axis) for condition in dict.fromkeys(conditions)]
        known = [count for count in found if count is not None]
        if conditions and len(known) == len(found):
            count = index_const(size_of(axis))
            for each in known:
                count = count.minimum(each)
            count = simplify(count.maximum(index_const(0)))
            # A known count may be 0, as of windows that reach over the edge of an image, or all.
            if not count.is_const or size_of(axis) <= 2 * count.arg < 2 * size_of(axis):
                counts[axis] = count, conditions
    if not counts:
        return sink

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        axis = next((each for each in node.src[1:] if each in counts), None) if node.op is Ops.REDUCE else None
        if axis is None:
            return node.with_src(src)
        full, conditions = counts[axis]
        first, rest = axis.replace(src=(full,)), _rest_of(axis, full)
        others = tuple(each for each in src[1:] if each is not axis)
        unmasked = substitute(src[0], dict.fromkeys(conditions, const(conditions[0].dtype, True)))
        parts = (unmasked, {axis: first}, first), (src[0], {axis: full + rest}, rest)
        made = [node.with_src((simplify(substitute(value, at)), loop, *others)) for value, at, loop in parts]
        return UOp(node.arg, node.dtype, tuple(made))

    return separate_loops(map_graph(sink, visit, nodes))


def _rest_of(axis: UOp, full: UOp) -> UOp:
    left = simplify(index_const(size_of(axis)) - full)
    return axis.replace(src=(left,), arg=Axis((*axis.arg.id, REST), axis.arg.kind))


def unmasked_iterations(condition: UOp, axis: UOp) -> UOp | None:
    """How many of the first iterations of a loop a condition holds for, in terms of the blocks of the same sum and for
    all elements of a tile. None where it is no end of that sum: of a triangle, or of a window at the border of an
    image, no part is mostly without iterations."""
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
    greatest = Affine(in_tiles, form.constant).bounds[1]
    # step * k + around + greatest < 0, for k from 0 on
    left = from_affine(Affine({atom: -count for atom, count in around.items()}, step - 1 - greatest))
    return left.maximum(index_const(0)) // step
