"""Kernels of work-groups without a reduction. In: a kernel for a target with work-groups. Out: the plan for it.

vectors      vectors along the contiguous loops, and a work-group of adjacent vectors; where one loop is shorter than
             a vector, as that over the copies of a repeated element, a vector spans several loops
elements     where rows are not aligned, adjacent threads have adjacent elements, and each thread has one element of
             several rows: a work-group moves as many bytes as with vectors, and no more work-groups start"""

from __future__ import annotations

import math
from functools import partial

from tilewright.graph.kernels.threads import count_threads
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.axes import KernelView, is_counted, stride
from tilewright.kernel.templates.group_builder import (
    GroupOptBuilder,
    divisor,
    output_loops,
    part_of,
    step_of,
    tile_groups,
    warp_threads,
)
from tilewright.kernel.templates.measured_groups import GROUP_THREADS, MAX_PADDED
from tilewright.kernel.templates.template import Plan, Template


def elementwise_plans(view: KernelView, found: bool) -> tuple[Plan, ...]:
    reason = "vectors along the contiguous loops, a work-group of adjacent ones"
    return (Plan("vectors", reason, partial(tile_groups, view, fill_groups)),)


def fill_groups(builder: GroupOptBuilder) -> None:
    """Vectors along the contiguous loops or several elements of a thread, then threads, until the work-group has
    GROUP_THREADS."""
    view = builder.view
    loops = sorted(output_loops(view), key=lambda axis: step_of(axis, view.stores))
    if not loops:
        return
    left = take_elements(builder, loops) if reduces_rows(view, loops[0]) else loops
    for axis in left:
        if axis in builder.view.axes:
            add_threads(builder, axis)


def reduces_rows(view: KernelView, fast: UOp) -> bool:
    """Whether each step of a reduction, if there is one, moves every access by whole rows of the contiguous loop:
    windows along it, whose elements begin anywhere, fill no vectors."""
    steps = [stride(access, loop) for access in view.accesses for loop in view.reduce_axes]
    return all(step is not None and step % size_of(fast) == 0 for step in steps)


def take_elements(builder: GroupOptBuilder, loops: list[UOp]) -> list[UOp]:
    """Gives each thread vectors, or several single elements with the bytes of a vector together. A thread whose
    elements need more than one load and one store each gets fewer elements. Returns the loops that remain."""
    view, target = builder.view, builder.target
    steps = [(access.dtype.itemsize, stride(access, loops[0])) for access in view.accesses]
    # Accesses that do not depend on the contiguous loop, such as the index of a row, do not limit the vector's length.
    lanes = max(1, target.vector_bytes // max((size for size, step in steps if step != 0), default=4))
    amounts = vector_amounts(view, loops, lanes)
    left = [builder.split(OptOps.UPCAST, loop, amounts.get(loop, 1)) for loop in loops]
    own = math.prod(amounts.values())
    threads = math.prod(map(size_of, loops)) // own
    several = min(lanes // own, 2 * lanes // (own * len(steps)), threads // (target.cores * target.threads_per_core))
    rest = [loop for loop in left if loop is not None]
    if several < 2 or has_effects(view) or not rest:
        return rest
    return [rest[0], *take_rows(builder, rest, 1 << (several.bit_length() - 1))]


def vector_amounts(view: KernelView, loops: list[UOp], lanes: int) -> dict[UOp, int]:
    """How many iterations of each loop make up a vector: together they access contiguous elements, or one element, of
    every buffer. As many as fill vectors of `lanes` elements, where the sizes allow it."""
    found: dict[UOp, int] = {}
    covered = dict.fromkeys(view.accesses, 1)
    for number, loop in enumerate(loops):
        needed = lanes // math.gcd(lanes, math.prod(found.values()))
        if needed == 1 or not is_contiguous(loop, covered):
            break
        size = size_of(loop)
        amount = math.gcd(size, needed)
        whole = {access: count * (size if stride(access, loop) else 1) for access, count in covered.items()}
        if amount < size <= lanes and number + 1 < len(loops):
            # All iterations of a loop of odd size: together with some of the next loop they fill whole vectors.
            after = loops[number + 1]
            amount = size if is_contiguous(after, whole) and math.gcd(size_of(after), needed) > 1 else amount
        found[loop] = amount
        if amount < size:
            break
        covered = whole
    return found


def is_contiguous(loop: UOp, covered: dict[UOp, int]) -> bool:
    """Whether an iteration of the loop moves every access by the elements that it covers already, or by none."""
    return is_counted(loop) and all(stride(access, loop) in (0, count) for access, count in covered.items())


def take_rows(builder: GroupOptBuilder, loops: list[UOp], several: int) -> list[UOp]:
    """Gives each thread `several` elements that are not adjacent: of other loops than the first, or else of the first,
    as far apart as the work-group has threads. Returns the other loops that remain."""
    first, *others = loops
    left = []
    for loop in others:
        amount = math.gcd(size_of(loop), several) if is_counted(loop) else 1
        several //= amount
        left.append(builder.split(OptOps.UPCAST, loop, amount))
    rest = [loop for loop in left if loop is not None]
    if several < 2:
        return rest
    if may_pad(first, GROUP_THREADS * several):
        inner = builder.split(OptOps.LOCAL, builder.fill_up(first, GROUP_THREADS * several), GROUP_THREADS)
        if inner is not None:
            builder.split(OptOps.UPCAST, inner, math.gcd(size_of(inner), several))
        return rest
    padded = next((loop for loop in rest if may_pad(loop, several)), None)
    if padded is None:
        return rest
    made = builder.split(OptOps.UPCAST, builder.fill_up(padded, several), several)
    return [loop for loop in (made if each is padded else each for each in rest) if loop is not None]


def may_pad(loop: UOp, multiple: int) -> bool:
    return is_counted(loop) and -(-size_of(loop) // multiple) * multiple <= MAX_PADDED * size_of(loop)


def add_threads(builder: GroupOptBuilder, axis: UOp) -> None:
    """Gives iterations of a loop to threads, until the work-group has GROUP_THREADS."""
    most = min(builder.room, GROUP_THREADS // max(1, count_threads(builder.view.sink)))
    if most <= 1:
        return
    size = size_of(axis)
    if is_counted(axis) and size > most and divisor(size, most) < min(most, warp_threads(builder.target)):
        multiple = most if size >= 64 * most else min(most, 64)
        if size > 2 * most or may_pad(axis, multiple):
            axis = builder.fill_up(axis, multiple)
    builder.split(OptOps.LOCAL, axis, part_of(axis, most))


ELEMENTWISE = Template("elementwise", "any other kernel", lambda view: True, elementwise_plans)
