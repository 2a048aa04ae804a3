"""DISTRIBUTE: an output loop around several loops of stores becomes the innermost loop of each of them. In: a kernel
whose stores are ordered, an output loop. Out: the kernel with a copy of the loop inside each loop nest that a store
closes; nests that then walk contiguous memory become one loop. Rows are then read in the order of memory.

    before: for c in 8:
                for n in 4: out[n*8 + c] = 0
                for p in 16: out[index[p]*8 + c] += x[p*8 + c]
    after:  for n in 32: out[n] = 0
            for p in 16: for c in 8: out[index[p]*8 + c] += x[p*8 + c]

Iterations of the loop store to different addresses, so the order of the stores to each address stays."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import map_graph, size_of, substitute
from tilewright.kernel.analysis.dependence import check_order
from tilewright.kernel.axes import KernelView, is_counted, make_range
from tilewright.kernel.prepare.loops import merge_loops
from tilewright.kernel.transforms.common import Transform, prefixed

# The last number of a copy's id, which begins with that of the loop around it. The parts of a split loop are 0 and 1.
_COPY = 2


def check_distribute(view: KernelView, axis: UOp, argument: object) -> str | None:
    position = view.axes.index(axis)
    if argument is not None:
        return f"DISTRIBUTE takes no argument, not {argument!r}"
    if axis.arg.kind is not AxisType.LOOP or view.closers(axis) or not is_counted(axis):
        return f"DISTRIBUTE needs an output loop of known size, axis {position} is none"
    if view.sized_by(axis):
        return f"DISTRIBUTE needs loops of known size, that of another depends on axis {position}"
    if any(effect.op is not Ops.END or axis not in effect.ranges for effect in view.sink.src):
        return f"DISTRIBUTE needs stores in loops of their own inside axis {position}"
    if any(node.op is Ops.STORE and memory_of(node.src[0]).op is not Ops.PARAM for node in view.nodes):
        return "DISTRIBUTE needs stores to buffers: other memory holds the values of one iteration"
    return prefixed("DISTRIBUTE", check_order(view, axis))


def apply_distribute(view: KernelView, axis: UOp, _argument: None) -> UOp:
    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        """Nests inside this one have been visited, and have their copies of the loop."""
        if node.op is not Ops.END or axis not in node.ranges:
            return None
        innermost = max(loop.arg.id for loop in src[1:])
        copy = make_range(size_of(axis), (*innermost, _COPY), axis.arg.kind)
        return node.with_src((substitute(src[0], {axis: copy}), *src[1:], copy))

    return merge_loops(map_graph(view.sink, visit))


def distribute_candidates(view: KernelView) -> Iterator[tuple[UOp, None]]:
    for axis in view.of_kind(AxisType.LOOP):
        if check_distribute(view, axis, None) is None:
            yield axis, None


DISTRIBUTE = Transform(OptOps.DISTRIBUTE, check_distribute, apply_distribute, distribute_candidates, "no argument")
