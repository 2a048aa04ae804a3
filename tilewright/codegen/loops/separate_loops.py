"""One loop nest for each loop. In: a kernel. Out: the same kernel, in which reductions that share a loop share the
whole loop nest. Simplification breaks that: sum(a[i, j] + b[j]) becomes sum(a[i, j]) + sum(b[j] * n), two reductions
over j in different nests. `linearise` emits each loop once, so each nest needs a loop of its own."""

from __future__ import annotations

from tilewright.codegen.loops.linearise import is_loop
from tilewright.graph.ops import Axis, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_graph, substitute, toposort

# The loops that a reduction closes, and those around it.
Nest = tuple[frozenset[UOp], frozenset[UOp]]


def separate_loops(sink: UOp) -> UOp:
    """
    before: sum over r1, r2 of a[r1*9 + r2]  +  sum over r2 of b[r2]
    after:  sum over r1, r2 of a[r1*9 + r2]  +  sum over r3 of b[r3]"""
    nodes = toposort(sink)
    owners: dict[UOp, Nest] = {}
    others: dict[UOp, Nest] = {}
    for node in nodes:
        if node.op is Ops.REDUCE:
            nest = frozenset(filter(is_loop, node.src[1:])), frozenset(filter(is_loop, node.ranges))
            if any(owners.setdefault(loop, nest) != nest for loop in nest[0]):
                others[node] = nest
    if not others:
        return sink
    numbers = {nest: number for number, nest in enumerate(dict.fromkeys(others.values()))}

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node not in others:
            return None
        loops, suffix = others[node][0], -1 - numbers[others[node]]
        own = {loop: loop.replace(arg=Axis((*loop.arg.id, suffix), loop.arg.kind)) for loop in loops}
        return node.with_src(tuple(substitute(source, own) for source in src))

    return map_graph(sink, visit, nodes)
