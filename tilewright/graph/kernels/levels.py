"""Levels of a long sum. In: the loops of a reduction, outermost first, and its summand. Out: the loops, split and
divided into levels, so that no accumulator of a level adds more than a fixed number of terms; None where the loops are
short enough. `codegen/loops/cascade.py` gives each level an accumulator, SPILL gives it memory.

A single accumulator rounds at each term, to the precision of the whole sum, and its error grows with the number of
terms. With one accumulator per block and a sum of the blocks, the error grows with the terms of a block times the
number of levels, as in pairwise summation, at the cost of one addition per block. Blocks depend on the loops and the
value alone, so that the order of the sum does not depend on the number of cores or on the tile of results chosen for
it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import size_of

# Terms that one accumulator adds, or at most twice as many. A block of torch's sum of 2**16 terms has the same number.
TERMS = 16
# The same for a contraction: its accumulators fill the registers, and those of the next level are spilled around a
# block. BLAS libraries have blocks of about this length.
CONTRACTION_TERMS = 256
# A level is not extended into the next loop by fewer iterations than this.
SHORT = 4


class Levels(NamedTuple):
    """Each split loop as an expression of new loops, and all loops by level, the innermost level first. The innermost
    level is empty where the unrolled terms fill a level by themselves."""

    exchanges: dict[UOp, UOp]
    loops: tuple[tuple[UOp, ...], ...]


def plan_levels(reduce: UOp, loops: Sequence[UOp], terms: int | None = None) -> Levels | None:
    """The levels of a float sum. `loops` are the loops to divide, outermost first; `terms` is the number of terms that
    one iteration adds, by default the unrolled ones."""
    if reduce.arg is not Ops.ADD or not reduce.dtype.is_float or not loops:
        return None
    if terms is None:
        terms = math.prod(size_of(axis) for axis in reduce.src[1:] if axis.arg.kind is AxisType.UNROLL)
    limit = CONTRACTION_TERMS if is_contraction(reduce) else TERMS
    if terms * math.prod(map(size_of, loops)) <= 2 * limit:
        return None
    exchanges: dict[UOp, UOp] = {}
    levels: list[list[UOp]] = [[]]
    for axis in reversed(loops):
        lengths, begins = _divide(size_of(axis), terms, limit)
        terms = lengths[-1] * (1 if begins[-1] else terms)
        pieces = _split(axis, lengths)
        for piece, is_first in zip(pieces, begins, strict=True):
            if is_first:
                levels.append([])
            levels[-1].append(piece)
        if len(pieces) > 1:
            exchanges[axis] = _joined(pieces, lengths)
    return Levels(exchanges, tuple(map(tuple, levels))) if len(levels) > 1 else None


def is_contraction(reduce: UOp) -> bool:
    """Whether the terms are products of two factors, one of which is invariant along some loop around the sum, so that
    a tile of accumulators reuses each of its elements."""
    value, closed = reduce, set[UOp]()
    while value.op in (Ops.CAST, Ops.WHERE, Ops.REDUCE):
        if value.op is Ops.REDUCE:
            closed.update(value.src[1:])
        value = value.src[1 if value.op is Ops.WHERE else 0]
    if value.op is not Ops.MUL or any(closed.isdisjoint(factor.ranges) for factor in value.src):
        return False
    return any(axis not in factor.ranges for factor in value.src for axis in reduce.ranges)


def _divide(size: int, terms: int, limit: int) -> tuple[list[int], list[bool]]:
    """The lengths of the loops that a loop is split into, the innermost first, and for each whether it starts a level.
    The first continues the inner level, which has `terms` terms already."""
    lengths: list[int] = []
    begins = [False]
    while terms * size > 2 * limit:
        room = limit // terms
        terms = 1
        if room < SHORT:  # the inner level is long enough
            begins[-1] = True
            continue
        length = _block_length(size, room)
        size = -(-size // length)
        lengths.append(length)
        begins.append(True)
    return [*lengths, size], begins


def _block_length(size: int, room: int) -> int:
    """The iterations in a block: about the given number, and a divisor of the size where one is near."""
    near = [length for length in range(room // 2 + 1, 2 * room) if size % length == 0]
    return min(near, key=lambda length: abs(math.log(length / room)), default=room)


def _split(axis: UOp, lengths: list[int]) -> list[UOp]:
    """Loops of `lengths` iterations that replace one, the innermost first. Where blocks do not fill the loop, the last
    one is shorter."""
    if len(lengths) == 1:
        return [axis]
    count, step = axis.src[0], math.prod(lengths)
    is_filled = count.is_const and count.arg == step
    start = index_const(0)
    pieces: list[UOp] = []
    for number, length in enumerate(reversed(lengths)):
        step //= length
        wanted = index_const(length)
        if not is_filled:
            left = (count - start + (step - 1)) // step
            wanted = simplify(left.minimum(length) if number else left)
        pieces.append(axis.replace(src=(wanted,), arg=Axis((*axis.arg.id, number), axis.arg.kind)))
        start = start + pieces[-1] * step
    return pieces[::-1]


def _joined(pieces: list[UOp], lengths: list[int]) -> UOp:
    index, step = index_const(0), 1
    for piece, length in zip(pieces, lengths, strict=True):
        index, step = piece * step + index, step * length
    return simplify(index)
