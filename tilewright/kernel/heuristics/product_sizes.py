"""Sizes for matrix products. In: how many rows and columns a product has, and a target's lanes, registers and cores.
Out: the tile of sums that is held in registers, the blocks of columns, and the parts of rows. Numbers alone: what
`products` does with them is opts."""

from __future__ import annotations

from typing import NamedTuple

from tilewright.kernel.heuristics.dot_tiles import EVEN, evenness

# Rows of a tile, which are read in place, one stream each. Where their stride leaves an L1 room for fewer lines than
# that, lines displace one another, so there are fewer; tiles of less than MIN_ROWS load more than that costs.
MAX_ROWS = 8
MIN_ROWS = 4
MOST_VECTORS = 4
# Sums that are updated side by side, at the least, so that none waits for the one before it.
LEAST_SUMS = 8
# What a step of the sum costs beside the multiplications of a tile, in multiplications (measured, not counted): itself,
# and each load for a row and for a vector of columns.
STEP_COST = 4.0
ROW_COST = 0.3
VECTOR_COST = 0.5
# What packing rows costs, where some of a tile's do not exist.
PACKED_ROWS_COST = 0.3
# What it costs to copy a vector of rows.
COPY_COST = 0.5
# What packing a vector of columns costs, in multiplications of it by a row; and the fewest rows that repay it.
PACKING_COST = 16.0
LEAST_PART_ROWS = 32
LEAST_CACHED_ROWS = 256
# Steps of a sum between which it is held in registers, where it is held in memory in between.
LEAST_SUM_BLOCK = 256
# Blocks for each core, so that one that is late or slow leaves some to the others; and those of columns, where a core
# is busy with each for long.
LEAST_PARTS = 2
COLUMN_PARTS = 4
# Rows are shared among the cores in at most so many parts a core: each packs the right factor again.
MOST_PARTS = 2


class Tile(NamedTuple):
    rows: int
    vectors: int


def choose_tile(
    rows: int,
    columns: int,
    lanes: int,
    registers: int,
    sets: int = 1,
    are_copied: bool = False,
    cores: int = 1,
    may_overlap: bool = False,
    max_rows: int = MAX_ROWS,
) -> Tile:
    """The tile that wastes least: in what it computes beyond the edges, in loads, and in cores that wait for others
    where they share the product. A sum of sums needs two `sets` of accumulators. Where rows `are_copied` those of a
    tile are one vector. Tiles that `may_overlap` need no packed rows, unless the cores have only rows to share."""

    def cost(tile: Tile) -> float:
        width = tile.vectors * lanes
        tiles = -(-columns // width)
        parts = row_parts(rows, tiles, cores) if may_overlap else 1
        shared = evenness(tiles * parts, cores)
        computed = parts * padded(rows // parts, tile.rows) * padded(columns, width) / shared
        again = PACKING_COST * (parts - 1) / rows
        idle = max(1.0, LEAST_SUMS / (tile.rows * tile.vectors))
        row_cost = ROW_COST + COPY_COST * are_copied
        packed = PACKED_ROWS_COST if rows % tile.rows and not (may_overlap and shared >= EVEN) else 0.0
        step = STEP_COST / (tile.rows * tile.vectors)
        return computed * idle * (1 + again + packed + step + row_cost / tile.rows + VECTOR_COST / tile.vectors)

    # One row of the panel and one scalar are held beside the sums.
    tiles = [
        Tile(height, vectors)
        for vectors in range(1, MOST_VECTORS + 1)
        for height in range(1, max_rows + 1)
        if sets * height * vectors + vectors + 1 <= registers
    ]
    return min(tiles, key=cost)


def best_block(tiles: int, most: int, cores: int, parts: int = LEAST_PARTS) -> int:
    """Tiles in a block: as many as fit and divide them, in a number of blocks that the cores can share, so many parts
    each where there are."""
    fitting = [amount for amount in range(1, max(1, min(most, tiles)) + 1) if tiles % amount == 0]
    several = [amount for amount in fitting if tiles // amount >= min(parts * cores, tiles)]
    return max(several, key=lambda amount: (min(evenness(tiles // amount, cores), EVEN), amount))


def best_sum_block(depth: int, most: int) -> int | None:
    """Steps of a long sum in a block: as many as fit and divide it, if those are enough to repay that sums are fetched
    from memory and put back."""
    return next((amount for amount in range(min(most, depth), LEAST_SUM_BLOCK - 1, -1) if depth % amount == 0), None)


def row_parts(rows: int, parts: int, cores: int) -> int:
    """How many parts of the rows, each times so many other parts, keep the cores busy: the fewest that do so evenly, of
    those that divide the rows and leave enough of them; else those that do so best. 1 where the others are enough."""
    amounts = [1, *(n for n in range(2, min(rows // LEAST_PART_ROWS, MOST_PARTS * cores) + 1) if rows % n == 0)]
    return max(amounts, key=lambda amount: (min(evenness(parts * amount, cores), EVEN), -amount))


def cached_parts(rows: int, most: int) -> int:
    """The fewest parts, of those that divide the rows, that have at most so many rows; 1 where those would be too few
    for what is packed again for each part to go unnoticed."""
    amounts = range(1, rows // LEAST_CACHED_ROWS + 1)
    return next((amount for amount in amounts if rows % amount == 0 and rows // amount <= most), 1)


def padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
