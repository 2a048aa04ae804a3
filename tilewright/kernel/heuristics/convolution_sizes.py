"""Sizes for convolutions. In: the loops of windows that overlap, and a target's lanes and registers. Out: the tile of
sums that is held in registers, and the blocks of a long sum. Loops and numbers alone: what `convolutions` does
with them is opts."""

from __future__ import annotations

import math
from typing import NamedTuple

from tilewright.graph.uop import UOp
from tilewright.kernel.axes import size_of

# What a step of the sum costs beside the multiplications of a tile, in multiplications (measured): each load of a
# vector of channels, which come from a core's own cache, and of an element, which is in the first one; and that a tile
# has elements of a second axis, which lie apart.
VECTOR_COST = 2.0
ELEMENT_COST = 0.45
SECOND_COST = 0.07
# The same of a product that counts in some tiles of a row and in others does not.
EDGE_COST = 4.0
# Sums that are updated side by side, at the least, so that none waits for the one before it.
LEAST_SUMS = 10
MOST_VECTORS = 4
# The part of the registers that is left to elements and vectors.
OPERAND_SHARE = 4
# Blocks of fewer steps have too many sums to fetch and to put back.
LEAST_BLOCK = 64


class Windows(NamedTuple):
    """The places of the image and of the other factor; the output loop that becomes lanes; that along which a tile's
    elements are stored as neighbours; and others of the image."""

    image: UOp
    other: UOp
    lanes: UOp
    row: UOp
    others: list[UOp]
    number: int  # that of the image in the multiplication
    overlap: bool = True  # else windows are single pixels


class Tile(NamedTuple):
    vectors: int
    length: int  # along the row
    second: UOp | None
    height: int  # along the second axis

    def can_be_shared(self, windows: Windows, lanes: int) -> bool:
        """Whether there are tiles of channels for several cores; or of the image, some for each of them."""
        amounts = {windows.row: self.length} | ({} if self.second is None else {self.second: self.height})
        left = [size_of(axis) // amounts.get(axis, 1) for axis in (windows.row, *windows.others)]
        counts = [count for count in left if count > 1]
        is_parted = len(counts) > 1 or any(count % n == 0 for count in counts for n in range(2, count))
        return is_parted or size_of(windows.lanes) > self.vectors * lanes


class Window(NamedTuple):
    """The axis of the sum that is written out because elements that a step loads serve others too, its length, how many
    products of a row and that axis a mask leaves out, and how far apart in the window's steps those of a row are."""

    axis: UOp | None
    length: int
    masked: int = 0
    apart: int = 1

    def loads(self, row: int) -> int:
        """The elements that so many windows side by side cover."""
        return min((row - 1) * self.apart + self.length, row * self.length)


class SumBlock(NamedTuple):
    """So many steps of an axis of the sum, and of those inside of it, are packed at a time; this axis and those outside
    of it are so many."""

    axis: UOp
    amount: int
    loops: int


def choose_tile(windows: Windows, lanes: int, registers: int, window: Window, most: int = MOST_VECTORS) -> Tile:
    """The tile that loads least for its products, while its sums and what they are made of are in registers. It has at
    most so many vectors of channels."""
    vectors = -(-size_of(windows.lanes) // lanes)
    row = size_of(windows.row)
    heights = [(None, 1), *((axis, n) for axis in windows.others for n in range(2, 9) if size_of(axis) % n == 0)]
    tiles = [
        Tile(wide, length, second, height)
        for wide in range(1, min(most, vectors) + 1)
        for length in range(1, registers + 1)
        if row % length == 0
        for second, height in heights
        if wide * (length * height + (not window.masked)) <= registers - registers // OPERAND_SHARE
    ]

    def cost(tile: Tile) -> float:
        rows = tile.length * tile.height
        padded = -(-vectors // tile.vectors) * tile.vectors / vectors
        idle = max(1.0, LEAST_SUMS / (rows * tile.vectors))
        loaded = window.loads(tile.length) / (window.length * tile.length)
        # What a mask leaves out of a whole row is not written; in a part of a row it is chosen as it is computed.
        masked = window.masked / (window.length * tile.length)
        edges = -masked if tile.length == row else EDGE_COST * masked
        loads = VECTOR_COST / rows + ELEMENT_COST * loaded / tile.vectors + SECOND_COST * (tile.height > 1)
        return padded * idle * (1 + edges + loads)

    # Of tiles that cost the same, the longest in the row: what it reads and stores lies side by side.
    return min(tiles, key=lambda tile: (cost(tile), -tile.length))


def choose_sum_block(loops: list[UOp], most: int) -> SumBlock | None:
    """The largest block of the loops of a sum, outermost first, that has at most so many steps; None where they all are
    one, or where it has few."""
    inside = math.prod(size_of(loop) for loop in loops)
    if inside <= most:
        return None
    for number, loop in enumerate(loops):
        inside //= size_of(loop)
        if inside <= most:
            amount = max(n for n in range(1, most // inside + 1) if size_of(loop) % n == 0)
            return SumBlock(loop, amount, number + 1) if amount * inside >= LEAST_BLOCK else None
    return None
