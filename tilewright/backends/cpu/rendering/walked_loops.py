"""Pointers that loops move on. In: a program. Out: the innermost loops whose addresses are a few pointers, each moved
on by a constant in every iteration, and constant offsets from them.

LLVM's loop strength reduction finds that form by itself, in a quarter of the time that it takes to compile a
contraction. Loops that only map elements are left to it: with an index that all their buffers share they have less to
add in an iteration, and LLVM has little to try."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.codegen.tiles import tile_part
from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of

# Pointers of a loop, each of which takes a register and an addition in each iteration.
MAX_POINTERS = 4


def walked_loops(program: Program) -> set[UOp]:
    """The axes of those loops."""
    found: set[UOp] = set()
    opened: list[UOp] = []
    bodies: dict[UOp, list[UOp]] = {}  # the nodes of each open loop, without those of loops inside
    for node in program.body:
        if node.op is Ops.RANGE and not node.arg.kind.is_tile and node not in program.global_ranges:
            opened.append(node)
            bodies[node] = []
        elif node.op is Ops.END and opened:
            axis = opened.pop()
            body = bodies.pop(axis, None)
            if body is not None and _is_walked(axis, body):
                found.add(axis)
            for outer in opened:  # only innermost loops are walked
                bodies.pop(outer, None)
        elif opened and opened[-1] in bodies:
            bodies[opened[-1]].append(node)
    return found


def _is_walked(axis: UOp, body: list[UOp]) -> bool:
    indices = [node for node in body if node.op is Ops.INDEX]
    is_contracting = any(node.op in (Ops.ACCUMULATE, Ops.DOT) for node in body)
    if not is_contracting and all(memory_of(index).op is Ops.PARAM for index in indices):
        return False
    bases = [(memory_of(index), base) for index in indices if (base := base_of(index)) is not None]
    walked = {(memory, base) for memory, base in bases if axis in base.ranges}
    inside = set(body)
    return len(walked) <= MAX_POINTERS and all(step_of(base, axis) and is_sum(base, axis, inside) for _, base in walked)


def is_sum(base: UOp, axis: UOp, inside: Collection[UOp] = ()) -> bool:
    """Whether a position is a sum of multiples of the loop's counter and of loop-invariant parts, so that its value in
    the first iteration is the sum of those parts. `inside` are the nodes of the loop, among them parts that are loaded
    from memory which the loop changes. A base that is not simplified, such as (x + axis) * 7, is refused."""
    if axis not in base.ranges:
        return base not in inside
    if base.op is Ops.ADD:
        return all(is_sum(part, axis, inside) for part in base.src)
    form = affine(base)
    return not form.constant and set(form.terms) == {axis}


def base_of(index: UOp) -> UOp | None:
    """The position of a tile without its constant offset; None where it is 0."""
    base, _ = tile_part(index.src[1])
    is_offset = base is not None and base.op is Ops.ADD and base.src[1].is_const
    return base.src[0] if base is not None and is_offset else base


def step_of(base: UOp, axis: UOp) -> int:
    """How far an iteration moves on; 0 where that is not a constant."""
    form = affine(base)
    others = [atom for atom in form.terms if atom is not axis]
    return 0 if any(axis in atom.ranges for atom in others) else int(form.terms.get(axis, 0))
