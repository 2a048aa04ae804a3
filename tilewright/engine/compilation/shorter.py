"""Programs of other lengths. In: the program of an elementwise kernel, and a shorter kernel of its form. Out: the
program of that one, which has the same text.

Where threads share the one loop of a kernel, tile by tile, the text has no length: the launch says how many tiles there
are. So a form is compiled for the longest of its kernels, and the others are launches of it over fewer tiles."""

from __future__ import annotations

import math

from tilewright.base.records import replace
from tilewright.codegen.pipeline import estimate_work, program_params
from tilewright.graph.affine import affine
from tilewright.graph.kernels.lengths import flat_kernel
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_nodes, size_of


def shorter_program(program: Program, longest: UOp, ast: UOp) -> Program | None:
    """The program of a kernel, as that of the longest of its form with fewer tiles; None where the longest has no loop
    over tiles, or masks some, or where the length is not a number of tiles."""
    given, wanted = flat_kernel(longest), flat_kernel(ast)
    if given is None or wanted is None or given.form is not wanted.form or len(program.global_ranges) != 1:
        return None
    thread = program.global_ranges[0]
    indices = [node for node in program.body if node.op is Ops.INDEX]
    tiles = {axis for node in indices for axis in node.ranges if axis is not thread}
    tile = math.prod(size_of(axis) for axis in tiles)
    is_plain = all(axis.arg.kind.is_tile for axis in tiles) and all(len(node.src) == 2 for node in indices)
    if thread.arg.kind is not AxisType.THREAD or not is_plain or size_of(thread) * tile != given.length:
        return None
    if wanted.length % tile or not all(_follows(node, thread, tile) for node in indices if thread in node.ranges):
        return None
    shorter = thread.replace(src=(thread.src[0].replace(arg=wanted.length // tile),))
    exchanges = {thread: shorter}
    for node in indices:
        if thread in node.ranges:
            buffer = node.src[0]
            exchanges[buffer] = buffer.replace(arg=buffer.arg._replace(size=wanted.length))
    nodes = (*exchanges, *(node for node in program.body if node is not thread))
    body = map_nodes(nodes, lambda node, _: exchanges.get(node))
    flops, moved = estimate_work(ast)
    facts = {"name": ast.arg.name, "params": program_params(ast), "flops": flops, "bytes_moved": moved}
    return replace(program, body=tuple(body[node] for node in program.body), global_ranges=(shorter,), **facts)


def _follows(index: UOp, thread: UOp, tile: int) -> bool:
    """Whether iteration n of the threads has the elements from n * tile on."""
    form = affine(index.src[1])
    others = {axis: step for axis, step in form.terms.items() if axis is not thread}
    reach = sum(step * (size_of(axis) - 1) for axis, step in others.items() if axis.op is Ops.RANGE and step > 0)
    is_tile = all(axis.op is Ops.RANGE and axis.arg.kind.is_tile for axis in others)
    return form.terms.get(thread) == tile and form.constant == 0 and is_tile and reach == tile - 1
