"""Loops of their own. In: a kernel. Out: the same kernel, in which reductions that share a loop share all that they
loop over and all that is around them. Folding leaves others: sum(a[i, j] + b[j]) becomes sum(a[i, j]) + sum(b[j] * n).
The lineariser puts each loop in one place; a loop of two different nests has none."""

from __future__ import annotations

from tilewright.codegen.linearise import is_loop
from tilewright.graph.ops import Axis, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import substitute, toposort

# The loops that a reduction closes, and those around it.
Nest = tuple[frozenset[UOp], frozenset[UOp]]


def nest_of(node: UOp) -> Nest:
    return frozenset(filter(is_loop, node.src[1:])), frozenset(filter(is_loop, node.ranges))


def separate_loops(sink: UOp) -> UOp:
    """
    before: sum over r1, r2 of a[r1*9 + r2]  +  sum over r2 of b[r2]
    after:  sum over r1, r2 of a[r1*9 + r2]  +  sum over r3 of b[r3]"""
    nodes = toposort(sink)
    owners: dict[UOp, Nest] = {}
    strangers: dict[UOp, Nest] = {}
    for node in nodes:
        if node.op is Ops.REDUCE:
            nest = nest_of(node)
            if any(owners.setdefault(loop, nest) != nest for loop in nest[0]):
                strangers[node] = nest
    if not strangers:
        return sink
    numbers = {nest: number for number, nest in enumerate(dict.fromkeys(strangers.values()))}
    done: dict[UOp, UOp] = {}
    for node in nodes:
        made = node.with_src(tuple(done[source] for source in node.src))
        if node in strangers:
            loops = strangers[node][0]
            suffix = -1 - numbers[strangers[node]]
            own = {loop: loop.replace(arg=Axis((*loop.arg.id, suffix), loop.arg.kind)) for loop in loops}
            made = made.with_src(tuple(substitute(source, own) for source in made.src))
        done[node] = made
    return done[sink]
