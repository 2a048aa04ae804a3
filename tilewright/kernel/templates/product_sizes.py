"""Sizes for matrix products. In: rows and columns of a product, and lanes, registers and cores of a target. Out: the
register tile of accumulators, the blocks of columns, and the parts of rows. Numbers only: `products` turns them into
opts."""

from __future__ import annotations

from functools import lru_cache

from tilewright.base.records import NamedTuple
from tilewright.kernel.templates.dot_tiles import capped_utilisation, utilisation
from tilewright.kernel.templates.measured import (
    BLOCK_COST,
    BROADCAST_COST,
    COPY_COST,
    HIGH_UTILISATION,
    LOAD_COST,
    LOOP_COST,
    MAX_PADDING,
    MAX_VECTORS,
    MIN_CACHED_ROWS,
    MIN_PACKED_ROWS,
    MIN_SUM_BLOCK,
    MIN_SUMS,
    PACKED_ROWS_COST,
    PACKING_COST,
    PARTS_COPY_COST,
    PARTS_PER_CORE,
    REPACKED_PARTS,
    SUM_BLOCK_STEP,
)


class Tile(NamedTuple):
    rows: int
    vectors: int


def tile_work(
    tile: Tile,
    rows: int,
    columns: int,
    lanes: int,
    are_copied: bool = False,
    cores: int = 1,
    may_overlap: bool = False,
    masked: float = 0.0,
) -> float:
    """Products that take as long as an iteration of the sum for all rows and columns: with work beyond the edges, loads
    and idle cores. Where rows `are_copied`, those of a tile are one vector. Tiles that `may_overlap` need no packed
    rows, unless only the rows are parallel. `masked` is the cost of a result where tiles end beyond the columns."""
    width = tile.vectors * lanes
    tiles = -(-columns // width)
    parts = row_parts(rows, tiles, cores) if may_overlap else 1
    shared = utilisation(tiles * parts, cores)
    computed = parts * padded(rows // parts, tile.rows) * padded(columns, width) / shared
    again = PACKING_COST * (parts - 1) / rows
    idle = max(1.0, MIN_SUMS / (tile.rows * tile.vectors))
    copy_cost = PARTS_COPY_COST if tile.rows & (tile.rows - 1) else COPY_COST
    row_cost = BROADCAST_COST + copy_cost * are_copied
    packed = PACKED_ROWS_COST if rows % tile.rows and not (may_overlap and shared >= HIGH_UTILISATION) else 0.0
    step = LOOP_COST / (tile.rows * tile.vectors)
    beyond = masked if columns % width else 0.0
    return computed * (idle * (1 + again + packed + step + row_cost / tile.rows + LOAD_COST / tile.vectors) + beyond)


@lru_cache(256)
def choose_tile(
    rows: int,
    columns: int,
    lanes: int,
    registers: int,
    max_rows: int,
    sets: int = 1,
    are_copied: bool = False,
    cores: int = 1,
    may_overlap: bool = False,
    masked: float = 0.0,
) -> Tile:
    """The tile of least work. A sum of sums needs two `sets` of accumulators."""
    # Registers hold the accumulators, one row of the panel and one scalar.
    tiles = [
        Tile(height, vectors)
        for vectors in range(1, MAX_VECTORS + 1)
        for height in range(1, max_rows + 1)
        if sets * height * vectors + vectors + 1 <= registers
    ]
    return min(tiles, key=lambda tile: tile_work(tile, rows, columns, lanes, are_copied, cores, may_overlap, masked))


def best_block(tiles: int, most: int, cores: int, parts: int = REPACKED_PARTS) -> int:
    """Tiles in a block: the largest divisor up to `most` that leaves `parts` blocks per core, where there are that
    many, and a high utilisation."""
    fitting = [amount for amount in range(1, max(1, min(most, tiles)) + 1) if tiles % amount == 0]
    several = [amount for amount in fitting if tiles // amount >= min(parts * cores, tiles)]
    return max(several, key=lambda amount: (capped_utilisation(tiles // amount, cores), amount))


def padded_block(tiles: int, most: int, amount: int, cores: int) -> int:
    """Tiles in a block, up to `most`, where `amount`, the best divisor, is much smaller, as for a prime number of
    tiles: the largest number that needs few tiles of padding, with a high utilisation where there is one. Narrow blocks
    are avoided because each writes a short piece of every row, on a separate page."""
    wanted = range(2 * amount, min(most, tiles // (PARTS_PER_CORE * cores)) + 1)
    usable = [n for n in wanted if MAX_PADDING * (padded(tiles, n) - tiles) <= tiles]

    def worth(n: int) -> tuple[float, int]:
        return capped_utilisation(padded(tiles, n) // n, cores), n

    return max(usable, key=worth, default=amount)


def best_sum_block(depth: int, most: int) -> int | None:
    """The length of a block of a long sum: the largest divisor up to `most` if it is close to `most`; else the length
    of equal blocks that cover the sum, the last one masked at its end. None where blocks would be too short to repay
    the spills."""
    most = min(most, depth)
    divisor = next((amount for amount in range(most, max(MIN_SUM_BLOCK, most // 2) - 1, -1) if depth % amount == 0), 0)
    if divisor or most < MIN_SUM_BLOCK:
        return divisor or None
    return min(most, padded(-(-depth // (-(-depth // most))), SUM_BLOCK_STEP))


def row_parts(rows: int, parts: int, cores: int) -> int:
    """The number of parts of the rows that, times `parts` of other loops, keeps the cores busy: the fewest with a high
    utilisation, else the number with the highest. They divide the rows and have at least MIN_PACKED_ROWS of them."""
    amounts = [1, *(n for n in range(2, min(rows // MIN_PACKED_ROWS, REPACKED_PARTS * cores) + 1) if rows % n == 0)]
    return max(amounts, key=lambda amount: (capped_utilisation(parts * amount, cores), -amount))


def row_blocks(rows: int, tile: int, most: int, cores: int, max_task_rows: int | None) -> tuple[int, int, int]:
    """Tasks, blocks of rows in all tasks, and tiles of a block, where each task packs the right factor and each block
    its rows, up to `most` of them. Tasks have equal numbers of blocks. A task whose accumulators are spilled has at
    most `max_task_rows` rows, in several blocks: the accumulators of a single block are not spilled."""
    tasks = max(2, min(REPACKED_PARTS * cores, max(cores, rows // MIN_CACHED_ROWS), rows // MIN_PACKED_ROWS))
    parts = tasks
    if max_task_rows is not None:
        tasks = max(tasks, -(-rows // max_task_rows))
        parts = 2 * tasks
    largest = max(1, most // tile)
    blocks = {tiles: padded(-(-rows // (tiles * tile)), parts) for tiles in range(1, largest + 1)}
    best = min(blocks, key=lambda tiles: (tiles * blocks[tiles] * (1 + BLOCK_COST / tiles), -tiles))
    return tasks, blocks[best], best


def cached_parts(rows: int, most: int) -> int:
    """The fewest parts that divide the rows into parts of at most `most` rows; 1 where parts would have fewer than
    MIN_CACHED_ROWS, too few to repay packing again for each part."""
    amounts = range(1, rows // MIN_CACHED_ROWS + 1)
    return next((amount for amount in amounts if rows % amount == 0 and rows // amount <= most), 1)


def padded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
