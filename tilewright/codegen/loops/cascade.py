"""Long float sums as cascades. In: a kernel whose reductions have no GROUP axes. Out: the same kernel, in which no
accumulator of a float sum adds more than a fixed number of terms (`graph/kernels/levels.py`), so that rounding errors
stay small.

    before: for k in 256: acc += a[k]
    after:  for k0 in 16:
              part = 0; for k1 in 16: part += a[k0*16 + k1]
              acc += part

Elements of a tile along a reduce axis (UPCAST) are separate accumulators in every level, combined after the last one;
unrolled terms (UNROLL) are added in the innermost. A loop with barriers keeps one accumulator: its tile fills the
registers already, and the thread of a work-group could spill further accumulators only to slow memory."""

from __future__ import annotations

from tilewright.codegen.loops.linearise import is_loop
from tilewright.graph.kernels.levels import Levels, plan_levels
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph, named_ranges, toposort

# The loops that a reduction closes.
Loops = frozenset[UOp]


def cascade_sums(sink: UOp) -> UOp:
    nodes = toposort(sink)
    # AFTER and BARRIER name the loop whose iterations they order; a loop that another's count depends on stays whole.
    fixed = {axis for node in nodes if node.op is Ops.AFTER or node.op is Ops.BARRIER for axis in node.src}
    fixed.update(axis for node in nodes if node.op is Ops.RANGE for axis in node.src[0].ranges)
    # The inner levels of a sum of equal terms would depend on the outer ones by their counts alone.
    fixed.update(axis for node in nodes for axis in loops_of(node) if axis not in node.src[0].ranges)
    stores = [node for node in nodes if node.op is Ops.STORE]
    plans: dict[Loops, Levels] = {}
    for node in nodes:
        loops = loops_of(node)
        if not loops or not fixed.isdisjoint(loops):
            continue
        # Sorted as `linearise` nests them.
        order = sorted(loops, key=lambda axis: (-sum(axis in store.ranges for store in stores), axis.arg.id))
        plan = plan_levels(node, order)
        if plan is not None and (loops not in plans or len(plan.loops) > len(plans[loops].loops)):
            plans[loops] = plan
    return in_levels(nodes, plans) if plans else sink


def loops_of(node: UOp) -> Loops:
    return frozenset(filter(is_loop, node.src[1:])) if node.op is Ops.REDUCE else frozenset()


def in_levels(nodes: list[UOp], plans: dict[Loops, Levels]) -> UOp:
    """The kernel with its loops split; reductions that share their loops have the same levels."""
    exchanges = {axis: made for plan in plans.values() for axis, made in plan.exchanges.items()}

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node in exchanges:
            return exchanges[node]
        plan = plans.get(loops_of(node))
        if plan is not None:
            return nested_reduce(node, src[0], plan)
        first = len(src) - len(named_ranges(node))
        named = zip(node.src[first:], src[first:], strict=True)
        axes = (new for axis, made in named for new in (_in_order(made) if axis in exchanges else [made]))
        return node.with_src((*src[:first], *axes))

    return map_graph(nodes[-1], visit, nodes)


def _in_order(index: UOp) -> list[UOp]:
    return sorted(index.ranges, key=lambda axis: axis.arg.id)


def nested_reduce(node: UOp, value: UOp, plan: Levels) -> UOp:
    tiles = [axis for axis in node.src[1:] if not is_loop(axis)]
    innermost = [axis for axis in tiles if axis.arg.kind is not AxisType.UPCAST]
    outermost = [axis for axis in tiles if axis.arg.kind is AxisType.UPCAST]
    for number, loops in enumerate(plan.loops):
        first, last = number == 0, number == len(plan.loops) - 1
        axes = (*loops, *(innermost if first else ()), *(outermost if last else ()))
        value = UOp(Ops.REDUCE, node.dtype, (value, *axes), node.arg)
        value.line = value.line or node.line
    return value
