"""Sizes for convolutions. In: the loops of overlapping windows, and a target's lanes and registers. Out: the register
tile of accumulators, and the blocks of a long sum. Loops and numbers only: `convolutions` turns them into opts."""

from __future__ import annotations

import math

from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import stride
from tilewright.kernel.templates.measured import (
    EDGE_COST,
    MAX_VECTORS,
    MIN_WINDOW_BLOCK,
    MIN_WINDOW_SUMS,
    OPERAND_SHARE,
    PANEL_COST,
    PIXEL_COST,
    SECOND_COST,
)


class Windows(NamedTuple):
    """The accesses of the image and of the other factor; the output loop that is vectorised; the output loop of stride
    1 in the stores; and other output loops of the image."""

    image: UOp
    other: UOp
    lanes: UOp
    row: UOp
    others: list[UOp]
    number: int  # the position of the image in the multiplication
    overlap: bool = True  # False: windows are single pixels


class Tile(NamedTuple):
    vectors: int
    length: int  # along the row
    second: UOp | None
    height: int  # along the second axis

    def can_be_shared(self, windows: Windows, lanes: int) -> bool:
        """Whether tiles can be divided among cores: there are several tiles of channels, or a loop over tiles of the
        image has a divisor."""
        amounts = {windows.row: self.length} | ({} if self.second is None else {self.second: self.height})
        left = [size_of(axis) // amounts.get(axis, 1) for axis in (windows.row, *windows.others)]
        counts = [count for count in left if count > 1]
        is_parted = len(counts) > 1 or any(count % n == 0 for count in counts for n in range(2, count))
        return is_parted or size_of(windows.lanes) > self.vectors * lanes


class Window(NamedTuple):
    """The axis of the sum that is unrolled because its iterations share loads, its length, how many products of a row
    and that axis are masked off, and the stride of the row in iterations of the window."""

    axis: UOp | None
    length: int
    masked: int = 0
    apart: int = 1

    def loads(self, row: int) -> int:
        """The number of elements that `row` adjacent windows cover."""
        return min((row - 1) * self.apart + self.length, row * self.length)


class ChannelBlocks(NamedTuple):
    """The most vectors of channels whose weights are packed at a time, and the cost of the copy of the image that each
    such block makes, relative to all products; 0 where the image is read where it is."""

    vectors: int
    copy_cost: float = 0.0

    def length(self, tiles: int, tile_vectors: int) -> int:
        """The tiles of channels of a block, of this many in all."""
        most = max(1, self.vectors // tile_vectors)
        return max(n for n in range(1, min(most, tiles) + 1) if tiles % n == 0)


class SumBlock(NamedTuple):
    """A block is `amount` iterations of an axis of the sum, with all axes inside it. `loops` counts that axis and those
    outside it."""

    axis: UOp
    amount: int
    loops: int


def choose_tile(
    windows: Windows, target: Target, lanes: int, window: Window, blocks: ChannelBlocks, most: int = MAX_VECTORS
) -> Tile:
    """The tile of least cost whose accumulators and operands fit the registers, of at most `most` vectors of channels.
    A row is padded to whole tiles where the image is copied: the copy has zeros past its end."""
    registers = target.vector_registers
    vectors = -(-size_of(windows.lanes) // lanes)
    row = size_of(windows.row)
    heights = [(None, 1), *((axis, n) for axis in windows.others for n in range(2, 9) if size_of(axis) % n == 0)]
    tiles = [
        Tile(wide, length, second, height)
        for wide in range(1, min(most, vectors) + 1)
        for length in range(1, min(registers, row) + 1)
        if row % length == 0 or (blocks.copy_cost and window.axis is not None)
        for second, height in heights
        if wide * (length * height + (not window.masked)) <= registers - registers // OPERAND_SHARE
    ]

    # Where products take a lane as an operand, adjacent pixels are one load.
    is_adjacent = target.has_lane_operands and 0 < abs(stride(windows.image, windows.row) or 0) <= window.length

    def cost(tile: Tile) -> float:
        rows = tile.length * tile.height
        tiles = -(-vectors // tile.vectors)
        padded = tiles * tile.vectors / vectors * (-(-row // tile.length) * tile.length / row)
        idle = max(1.0, MIN_WINDOW_SUMS / (rows * tile.vectors))
        loads = window.loads(tile.length)
        loads = -(-loads // lanes) if is_adjacent and loads >= lanes else loads
        loaded = loads / (window.length * tile.length)
        # In a tile of a whole row, masked products are not emitted; in a part of a row they are masked at run time.
        masked = window.masked / (window.length * tile.length)
        edges = -masked if tile.length == row else EDGE_COST * masked
        operands = PANEL_COST / rows + PIXEL_COST * loaded / tile.vectors + SECOND_COST * (tile.height > 1)
        copies = blocks.copy_cost * tiles / blocks.length(tiles, tile.vectors) if blocks.copy_cost else 0.0
        return padded * idle * (1 + edges + operands) + copies

    # Of equal costs, the longest in the row: its loads and stores are contiguous.
    return min(tiles, key=lambda tile: (cost(tile), -tile.length))


def choose_sum_block(loops: list[UOp], most: int) -> SumBlock | None:
    """The largest block of the loops of a sum, outermost first, of at most `most` iterations; None where that is all of
    the sum, or too short."""
    inside = math.prod(size_of(loop) for loop in loops)
    if inside <= most:
        return None
    for number, loop in enumerate(loops):
        inside //= size_of(loop)
        if inside <= most:
            amount = max(n for n in range(1, most // inside + 1) if size_of(loop) % n == 0)
            return SumBlock(loop, amount, number + 1) if amount * inside >= MIN_WINDOW_BLOCK else None
    return None
