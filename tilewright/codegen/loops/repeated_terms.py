"""Unrolled and grouped loops of a reduction that its value does not depend on. In: a kernel. Out: the same kernel, in
which such a loop is a factor or a power of the value. An update has a term for each iteration of the unrolled loops of
its value alone, and two reductions that share threads need an exchange between them that such a value has no part in.

    before: for k in 8: for u in 4 (UNROLL): acc *= a[k]
    after:  for k in 8: acc *= a[k] ** 4"""

from __future__ import annotations

import math

from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.simplify.reduce import never_negative_zero
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph, size_of, toposort


def repeat_terms(sink: UOp) -> UOp:
    nodes = toposort(sink)
    repeated = {node: found for node in nodes if node.op is Ops.REDUCE and (found := _repeated_axes(node))}
    if not repeated:
        return sink

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        axes = repeated.get(node)
        if axes is None:
            return None
        value, times = src[0], math.prod(map(size_of, axes))
        if node.arg is Ops.MUL:
            value = _power(value, times)
        elif node.arg is Ops.ADD and not value.dtype.is_bool:
            value = value * times
        left = [axis for axis in src[1:] if axis not in axes]
        return node.with_src((value, *left)) if left else never_negative_zero(value)

    return map_graph(sink, visit, nodes)


def _repeated_axes(node: UOp) -> list[UOp]:
    found = [axis for axis in node.src[1:] if axis.arg.kind in (AxisType.UNROLL, AxisType.GROUP)]
    return [axis for axis in found if axis not in node.src[0].ranges and size_of(axis) > 1]


def _power(value: UOp, exponent: int) -> UOp:
    """The value times itself, by repeated squaring."""
    if exponent == 1:
        return value
    half = _power(value, exponent // 2)
    return half * half * value if exponent % 2 else half * half
