"""Indices that a kernel converts itself. In: the numbers of outputs, computed from an index in memory. Out: the index,
and the formula of a number, which kernels of `atomics.py` and `partition.py` compute where they load an element."""

from __future__ import annotations

from tilewright.graph import build
from tilewright.graph.kernels.nodes import load, param
from tilewright.graph.ops import Ops
from tilewright.graph.spec import element_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph, substitute, toposort


def stored_numbers(numbers: UOp, slot: int) -> tuple[UOp, UOp]:
    """What the numbers are computed from, in memory, and the formula of a number, in which the PARAM of a slot is an
    element of it: an index that is converted, or counted from the end, needs no kernel of its own."""
    size, stack, leaves = element_count(numbers.shape), [numbers], set()
    while stack:
        node = stack.pop()
        if build.is_stored(node):
            leaves.add(build.stored_root(node))
        elif node.op is Ops.RESHAPE or node.op.is_elementwise:
            stack += (source for source in node.src if source.op is not Ops.CONST)
        else:
            leaves.add(node)
    source = leaves.pop()
    is_known = not leaves and build.is_stored(source) and source.op is not Ops.MULTI and source.dtype.is_int
    if not is_known or element_count(source.shape) != size:
        return numbers, param(slot, numbers.dtype, size)
    element = param(slot, source.dtype, size)

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node is source:
            return element
        return src[0] if node.op is Ops.RESHAPE else None

    return build.reshape(source, numbers.shape), map_graph(numbers, visit)


def number_at(formula: UOp, index: UOp, valid: UOp) -> UOp:
    """The number of an element."""
    (memory,) = (node for node in toposort(formula) if node.op is Ops.PARAM)
    return substitute(formula, {memory: load(memory, index, valid)})
