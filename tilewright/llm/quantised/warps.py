"""Products of few tokens with quantised weights on devices whose threads run in warps. In: a layout, activations as
floats. Out: UOps of kernels that decode weights in registers.

    for token: for chosen expert: for tile of rows:     work-groups
      for lane of a row's threads:                      adjacent threads read adjacent bytes of a row
        for turn:  dot  = sum of fields * activations   of `width` bytes, and of all parts that share them
                   acc += scale * dot + minimum * sum of activations

A thread takes the same bytes of several rows: they have the same activations. Two matrices at once are a gate and what
it gates, of which the kernel stores activation(gate) * up. With a share for each chosen expert, their sum is stored."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.ops import AxisType
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, index_const
from tilewright.llm.gates import activate_value
from tilewright.llm.quantised.kernels import add_up, bytes_at
from tilewright.llm.quantised.layouts import Bytes, Layout

MAX_WIDTH = 8  # bytes that a thread loads at once
MAX_TURNS = 8  # steps whose loads are in flight together
MAX_ROWS = 4
GROUP_THREADS = 128
# Threads of a multiprocessor that keep its loads in flight: with fewer, a thread has fewer rows.
BUSY_THREADS = 512
# A field below 2**7 in the highest bits of the fraction of 1.0 is 1 + field / 128, for a shift and a mask. The sum of
# such numbers times activations, less the sum of activations, is that of the fields: no weight is converted, and
# conversions have a lower throughput than multiplications.
FIELDS, FIELD_SHIFT, ONE_BITS = 128.0, 16, 0x3F800000


MIN_SHARES = 1e-20  # added to the sum of shares


class WarpTile(NamedTuple):
    """How a product is cut: threads of a row, the steps each has at once, rows of a thread, and rows of a work-group
    that other threads have."""

    lanes: int
    turns: int
    rows: int
    groups: int


def largest_divisor(size: int, limit: int) -> int:
    return max(amount for amount in range(1, limit + 1) if size % amount == 0)


def bytes_at_once(layout: Layout, nbytes: int) -> int:
    """The bytes of one load: a power of two that divides the size of a block."""
    return min(MAX_WIDTH, layout.length, math.gcd(nbytes, MAX_WIDTH))


def steps_of(layout: Layout, nbytes: int, columns: int) -> int:
    """The loads of a row of `columns` weights, in blocks of `nbytes`."""
    return columns // layout.together // bytes_at_once(layout, nbytes)


def choose_tile(
    layout: Layout, nbytes: int, target: Target, columns: int, rows: int, experts: int, tokens: int = 1
) -> WarpTile:
    """The tile for a product of `rows` rows of each of `experts` experts with `tokens` tokens."""
    steps = steps_of(layout, nbytes, columns)
    lanes = max(lanes for lanes in (1, 2, 4, 8, 16, 32) if lanes <= target.warp_size and steps % lanes == 0)
    turns = largest_divisor(steps // lanes, max(1, MAX_TURNS // tokens))
    together = max(1, MAX_ROWS // tokens)
    while together > 1 and (rows % together or experts * rows // together * lanes < BUSY_THREADS * target.cores):
        together //= 2
    groups = GROUP_THREADS // lanes
    while rows // together % groups:
        groups //= 2
    return WarpTile(lanes, turns, together, groups)


def decoded_sum(layout: Layout, data: Bytes, part: UOp, element: UOp, activation: UOp, *summed: UOp) -> UOp:
    """The sum of weights times activations, divided by FIELDS. A field is below 2**7, or a signed byte."""
    scale, field = layout.scale(data, part), layout.field(data, part, element)
    if field.dtype is dtypes.int8:
        return scale * add_up(field.cast(dtypes.int32).cast(dtypes.float32) * activation, *summed) * (1 / FIELDS)
    number = ((field << FIELD_SHIFT) | ONE_BITS).bitcast(dtypes.float32)
    fields, activations = add_up(number * activation, *summed), add_up(activation, *summed)
    if layout.offset or layout.minimum is None:
        return scale * (fields - activations * (1 + layout.offset / FIELDS))
    return scale * (fields - activations) + layout.minimum(data, part) * (activations * (1 / FIELDS))


class Form(NamedTuple):
    """The variant of the kernel: `activation` of a gate times another product, chosen experts, their weighted sum."""

    activation: str = ""
    has_choice: bool = False
    has_shares: bool = False
    normalises: bool = False  # shares are divided by their sum

    @property
    def name(self) -> str:
        work = "gated" if self.activation else "mixed" if self.has_shares else "product"
        return f"{work}_experts" if self.has_choice else work


def warp_product(layout: Layout, nbytes: int, tile: WarpTile, form: Form, name: str) -> Callable[..., UOp]:
    """out (tokens, picks, rows), x (tokens, 1 or picks, columns), one matrix or two (experts, rows, bytes), and chosen
    (tokens, picks) where there is a choice: else all picks are products with the first expert, which is decoded once
    for all of them. With shares (tokens, picks), out is (tokens, 1, rows)."""

    def kernel(out: UOp, x: UOp, *given: UOp) -> UOp:
        count = len(given) - form.has_choice - form.has_shares
        matrices, rest = given[:count], given[count:]
        tokens, _, rows = out.shape
        width = bytes_at_once(layout, nbytes)
        token = UOp.range(tokens, 0, AxisType.GLOBAL)
        kind = AxisType.REDUCE if form.has_shares else AxisType.GLOBAL if form.has_choice else AxisType.UPCAST
        pick = UOp.range(rest[0].shape[1] if rest else out.shape[1], 1, kind)
        outer = UOp.range(rows // (tile.rows * tile.groups), 2, AxisType.GLOBAL)
        group = UOp.range(tile.groups, 3, AxisType.LOCAL)
        inner = UOp.range(tile.rows, 4, AxisType.UPCAST)
        # The threads of a row are adjacent; the rows of a work-group are at a large stride.
        row = (group * (rows // (tile.rows * tile.groups)) + outer) * tile.rows + inner
        lane = UOp.range(tile.lanes, 5, AxisType.GROUP)
        steps = steps_of(layout, nbytes, x.shape[2])
        turn = UOp.range(steps // (tile.lanes * tile.turns), 6, AxisType.REDUCE)
        ahead = UOp.range(tile.turns, 7, AxisType.UNROLL)
        step = (turn * tile.turns + ahead) * tile.lanes + lane
        runs, turns = layout.length // width, layout.parts // layout.together
        block, position = step // (turns * runs), step % (turns * runs)
        shared = UOp.range(layout.together, 8, AxisType.UNROLL)
        byte, pair = UOp.range(width, 9, AxisType.UPCAST), UOp.range(2, 10, AxisType.UNROLL)
        part = layout.part(position // runs if turns > 1 else index_const(0), shared)
        element = position % runs * width + byte
        source = pick if x.shape[1] > 1 else 0
        number = x[token, source, (block * layout.parts + part) * layout.length + element].load().cast(dtypes.float32)
        expert = rest[0][token, pick].load().cast(dtypes.index) if rest else index_const(0)
        summed = (byte,) if layout.scales > 1 else (shared, byte)
        loops = [lane, turn, ahead, *((shared,) if layout.scales > 1 else ())]

        def total(matrix: UOp) -> UOp:
            data = bytes_at(matrix, nbytes, block, expert, row)._replace(pair=pair, packed_dtype=dtypes.uint32)
            value = decoded_sum(layout, data, part, element, number, *summed)
            if not form.has_shares:
                return add_up(value, *loops) * FIELDS
            total = add_up(value * share(pick), pick, *loops) * FIELDS
            other = UOp.range(rest[1].shape[1], 11, AxisType.REDUCE)
            return total / (add_up(share(other), other) + MIN_SHARES) if form.normalises else total

        def share(number: UOp) -> UOp:
            return rest[1][token, number].load().cast(dtypes.float32)

        sums = [total(matrix) for matrix in matrices]
        result = sums[0] if len(sums) == 1 else activate_value(sums[0], form.activation) * sums[1]
        stored = out[token, 0 if form.has_shares else pick, row].set(
            result.cast(out.dtype), end=(token, *(() if form.has_shares else (pick,)), outer, group, inner)
        )
        return stored.sink(arg=KernelInfo(name, ()))

    return kernel
