"""CUT: an output loop becomes several, one for each part of it in which its masks are constant and no `%` of it wraps.
In: a kernel and a loop that no reduction depends on. Out: the kernel with a store for each part, whose loads have no
mask and no `%` of that loop. Each part has its own copies of the loops inside, which are merged with it where the part
is contiguous.

    before: for i in 20: out[i] = a[i] if i < 8 else b[i - 8]
    after:  for i in 8: out[i] = a[i]
            for j in 12: out[j + 8] = b[j]"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.simplify import simplify
from tilewright.graph.slices import MAX_SELECTED_PARTS
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import exchange_axes, size_of
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.axes import KernelView, is_counted, make_range
from tilewright.kernel.prepare.loops import merge_loops
from tilewright.kernel.transforms.common import Transform

# Follows the id of a part in those of the loops inside it: to split or cut the part appends smaller numbers.
_INSIDE = 1 << 10


def check_cut(view: KernelView, axis: UOp, argument: None) -> str | None:
    position = view.axes.index(axis)
    if argument is not None:
        return f"CUT takes no argument, {argument!r} is one"
    if axis.arg.kind is not AxisType.LOOP or axis in view.reduce_axes or not is_counted(axis):
        return f"CUT needs an output loop of constant size, axis {position} is {axis.arg.kind.name}"
    if has_effects(view) or view.sized_by(axis) or any(axis in node.ranges for node in view.reduces):
        return f"CUT needs a loop of stores alone, an effect or a reduction depends on axis {position}"
    written = {memory_of(store) for store in view.stores}
    if any(memory_of(load) in written for load in view.loads):
        return "CUT needs stores to memory that is not read: the stores of a part would come before loads of the next"
    parts = len(parts_of_loop(view, axis))
    if parts == 1:
        return f"CUT: no mask changes at a constant iteration of axis {position}"
    return None if parts <= MAX_SELECTED_PARTS else f"CUT makes {MAX_SELECTED_PARTS} parts at most, not {parts}"


def apply_cut(view: KernelView, axis: UOp, argument: None = None) -> UOp:
    loops = view.of_kind(AxisType.LOOP)
    inside = loops[loops.index(axis) + 1 :]
    stores = [store for store in view.sink.src if axis not in store.ranges]
    for number, (start, stop) in enumerate(parts_of_loop(view, axis)):
        own = (*axis.arg.id, number)
        made = {loop: make_range(loop.src[0], (*own, _INSIDE, *loop.arg.id), loop.arg.kind) for loop in inside}
        made[axis] = make_range(stop - start, own, axis.arg.kind) + start
        stores += [exchange_axes(store, made) for store in view.sink.src if axis in store.ranges]
    return merge_loops(simplify(view.sink.with_src(tuple(stores))))


def parts_of_loop(view: KernelView, axis: UOp) -> list[tuple[int, int]]:
    """Where each part of a loop begins and ends: at the iterations from which on a comparison has another value, and
    those at which a `%` wraps to 0."""
    found = {first for node in view.nodes if node.op is Ops.CMPLT for first in _changes(node, axis)}
    found.update(first for node in view.nodes if node.op is Ops.MOD for first in _wraps(node, axis))
    edges = [0, *sorted(first for first in found if 0 < first < size_of(axis)), size_of(axis)]
    return list(itertools.pairwise(edges))


def _changes(comparison: UOp, axis: UOp) -> Iterator[int]:
    """The iteration from which on a comparison of the axis alone has another value."""
    if axis not in comparison.ranges or not comparison.src[0].dtype.is_int:
        return
    form = affine(comparison.src[0]).plus(affine(comparison.src[1]), -1)
    if form.terms.keys() == {axis}:
        # step * axis + constant < 0: up to an iteration for a positive step, from one on for a negative step.
        step, constant = form.terms[axis], form.constant
        yield -(constant // step) if step > 0 else constant // -step + 1


def _wraps(remainder: UOp, axis: UOp) -> Iterator[int]:
    """The iterations at which the remainder of an expression of the axis alone wraps to 0."""
    dividend, divisor = remainder.src
    form = affine(dividend)
    if divisor.is_const and divisor.arg > 0 and form.terms == {axis: 1}:
        yield from range(-form.constant % divisor.arg, size_of(axis), divisor.arg)


def cut_candidates(view: KernelView) -> Iterator[tuple[UOp, None]]:
    for axis in view.of_kind(AxisType.LOOP):
        if check_cut(view, axis, None) is None:
            yield axis, None


CUT = Transform(OptOps.CUT, check_cut, apply_cut, cut_candidates, "no argument")
