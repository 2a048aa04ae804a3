"""Kernels that differ in the length of one loop. In: kernels (SINK). Out: which of them are one kernel but for that.

An elementwise kernel on whole buffers touches element i of each in iteration i of its one loop. An optimiser updates
all parameters of a network by the same arithmetic: its kernels have one form, and a length for each size."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import ELEMENTWISE, AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import substitute, toposort

_ALLOWED = ELEMENTWISE | {Ops.CONST, Ops.PARAM, Ops.RANGE, Ops.INDEX, Ops.LOAD, Ops.STORE, Ops.SINK}


class Flat(NamedTuple):
    """A kernel of one loop over whole buffers: the same for every length, and the length."""

    form: UOp
    length: int


def flat_kernel(ast: UOp) -> Flat | None:
    """None where the kernel has more than the one loop, or elements of a buffer at other indices than its counter, or
    states its opts."""
    info = ast.arg
    if not isinstance(info, KernelInfo) or info.opts_to_apply is not None or info.fills or info.sections > 1:
        return None
    nodes = toposort(ast)
    if any(node.op not in _ALLOWED for node in nodes):
        return None
    loops = [node for node in nodes if node.op is Ops.RANGE]
    if len(loops) != 1 or loops[0].arg.kind is not AxisType.LOOP or not loops[0].src[0].is_const:
        return None
    loop = loops[0]
    length = int(loop.src[0].arg)
    exchanges = {loop: loop.replace(src=(index_const(0),))}
    for node in nodes:
        if node.op is Ops.INDEX and node.src[1] is loop:
            buffer = node.src[0]
            if len(node.src) > 2 or buffer.op is not Ops.PARAM or buffer.arg.size != length:
                return None
            exchanges[buffer] = buffer.replace(arg=buffer.arg._replace(size=0))
        elif loop in node.src or (node.op is Ops.INDEX and not node.src[1].is_const):
            return None
    return Flat(substitute(ast.replace(arg=None), exchanges), length)


def longest_of(kernels: Iterable[tuple[Any, Any, UOp]]) -> dict[Any, Any]:
    """For each key of a kernel that may share the text of a longer one, the key of the longest. Given are the key of
    each kernel, what it is compiled for, and the kernel."""
    groups: dict[tuple[Any, UOp], list[tuple[int, Any]]] = {}
    for key, made_for, ast in kernels:
        flat = flat_kernel(ast)
        if flat is not None:
            groups.setdefault((made_for, flat.form), []).append((flat.length, key))
    found = {}
    for members in groups.values():
        _, longest = max(members, key=lambda member: member[0])
        found.update({key: longest for _, key in members if key != longest})
    return found
