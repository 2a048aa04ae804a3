"""Attention in one pass over the keys. In: the facts of a call. Out: kernels over tiles of queries, keys and values, in
which no matrix of scores is ever in memory.

    a work-group has a tile of the queries of one head; for tiles of keys, one after another:
      scores   = queries @ keys.T                               a TILE_DOT, held in registers
      maximum' = max(maximum, row maximum of the scores)
      weights  = exp2(scores * c - maximum' * c)                c = log2(e) / sqrt(features)
      total    = total * exp2((maximum - maximum') * c) + row sum of the weights
      result   = result * exp2((maximum - maximum') * c) + weights @ values     a TILE_DOT whose left operand is held
    out = result / total;  logsumexp = maximum * c + log2(total), for the gradient

Tiles of keys after the last query of a causal tile are not visited."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.base.dtype import dtypes
from tilewright.base.target import TensorCore
from tilewright.graph.kernels.tiles import (
    COLUMN_STEP,
    FLOAT,
    PAIR,
    QUAD,
    Matrix,
    Product,
    TileBuilder,
    after,
    barrier,
    end,
    load,
    number,
)
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, index_const

LOG2_E = 1 / math.log(2)
# Numbers of barriers: before a tile is overwritten, after it is filled, and after a tile that is staged once.
BEFORE_COPY, AFTER_COPY, AFTER_FIRST = -1, 0, 1
MINUS_INFINITY = -math.inf
QUERY, KEY, VALUE = range(3)


class Steps(NamedTuple):
    """Elements from one batch, head and time to the next; features are neighbours."""

    batch: int
    head: int
    time: int


@dataclass(frozen=True)
class Attention:
    """Facts of a call. `shared` heads of queries have the same keys; `mask` are the distances of a mask's elements
    along batch, head, query and key, 0 where it is repeated."""

    core: TensorCore
    batch: int
    heads: int
    shared: int
    queries: int
    keys: int
    features: int
    steps: tuple[Steps, ...]  # of queries (and results), keys and values
    factor: float  # of a product, for a score in powers of two
    is_causal: bool = False
    mask: tuple[int, ...] | None = None
    rows: int = 128
    columns: int = 64


class Grid:
    """The head of a work-group, and its tile of rows: those of queries, the longest first where later ones see more."""

    def __init__(self, call: Attention, tiles: TileBuilder, rows: int) -> None:
        self.call = call
        head = tiles.axis(call.batch * call.heads, AxisType.GLOBAL)
        count = -(-rows // tiles.rows)
        tile = tiles.axis(count, AxisType.GLOBAL)
        self.axes = (head, tile)
        self.batch, self.head = head // call.heads, head % call.heads
        self.tile = (count - 1) - tile if call.is_causal else tile
        self.first = self.tile * tiles.rows

    def queries(self, memory: UOp, steps: Steps) -> Matrix:
        return Matrix(memory, self.batch * steps.batch + self.head * steps.head, steps.time, self.call.queries)

    def keys(self, memory: UOp, steps: Steps) -> Matrix:
        head = self.head // self.call.shared
        return Matrix(memory, self.batch * steps.batch + head * steps.head, steps.time, self.call.keys)


def forward_kernel(
    call: Attention, out: UOp, logsumexp: UOp, query: UOp, key: UOp, value: UOp, mask: UOp | None = None
) -> UOp:
    """`logsumexp` has a number for each query of each head, in powers of two."""
    tiles = TileBuilder(call.core, call.rows)
    grid, half = Grid(call, tiles, call.queries), tiles.half
    features, columns = call.features, call.columns
    query_tile = tiles.tile(call.rows, features)
    staged = tiles.stage(query_tile, call.rows, features, grid.queries(query, call.steps[QUERY]), grid.first)
    queries = after(query_tile, barrier(AFTER_FIRST, staged))

    step = tiles.axis(_visited(call, grid), AxisType.LOOP)
    first = step * columns
    key_tile, value_tile = tiles.tile(columns, features), tiles.tile(columns, features)
    free = barrier(BEFORE_COPY, step)
    copies = (
        tiles.stage(after(key_tile, free), columns, features, grid.keys(key, call.steps[KEY]), first),
        tiles.stage(after(value_tile, free), columns, features, grid.keys(value, call.steps[VALUE]), first),
    )
    ready = barrier(AFTER_COPY, *copies)
    product = tiles.multiply(queries, after(key_tile, ready), columns, features)
    row = grid.first + tiles.row
    scores, factor = masked_scores(call, grid, product, row, first, tiles.thread, mask)

    maximum, total, result = (tiles.register(size) for size in (2, 2, features // 2))
    maximum, total = (
        after(each, end(tiles.store(each, half, number(start)), half))
        for each, start in ((maximum, MINUS_INFINITY), (total, 0.0))
    )
    before = load(after(maximum, step), half)
    largest = before.maximum(tiles.fold_quad(Ops.MAX, tiles.fold_row(Ops.MAX, scores, product.columns)))
    # Rows of which everything is masked off have no maximum yet.
    base = largest.eq(number(MINUS_INFINITY)).where(number(0.0), largest) * factor
    weights = (scores * factor - base).alu(Ops.EXP2)
    rescale = (before * factor - base).alu(Ops.EXP2)
    weighted = tiles.multiply_held(weights, product, after(value_tile, ready), columns, features)
    held = weighted.columns[0] * 4 + half * 2 + weighted.columns[1]
    started = end(tiles.store(result, held, number(0.0)), half, *weighted.columns)
    result = after(result, started)
    update = UOp(
        Ops.GROUP,
        dtypes.void,
        (
            end(tiles.store(after(maximum, step), half, largest), half),
            end(
                tiles.store(
                    after(total, step),
                    half,
                    load(after(total, step), half) * rescale + tiles.fold_row(Ops.ADD, weights, product.columns),
                ),
                half,
            ),
            end(
                tiles.store(after(result, step), held, load(after(result, step), held) * rescale + weighted.value),
                half,
                *weighted.columns,
            ),
        ),
    )
    done = end(update, step)
    maximum, total, result = (
        load(after(each, done), at) for each, at in ((maximum, half), (total, half), (result, held))
    )
    total = tiles.fold_quad(Ops.ADD, total)
    valid = (row < call.queries,) if call.queries % call.rows else ()
    at = grid.queries(out, call.steps[QUERY])
    position = at.start + row * at.step + weighted.column
    stores = end(
        tiles.store(out, position, (number(1.0) / total * result).cast(out.dtype), *valid),
        half,
        *weighted.columns,
        tiles.thread,
        *grid.axes,
    )
    lowest = maximum.eq(number(MINUS_INFINITY)).where(number(0.0), maximum)
    logarithm = lowest * factor + total.alu(Ops.LOG2)
    row_position = (grid.batch * call.heads + grid.head) * call.queries + row
    is_first = (tiles.thread % QUAD).eq(0)
    sums = end(tiles.store(logsumexp, row_position, logarithm, is_first, *valid), half, tiles.thread, *grid.axes)
    return UOp(Ops.SINK, dtypes.void, (stores, sums), KernelInfo("attention_forward", ()))


def _visited(call: Attention, grid: Grid) -> int | UOp:
    """Tiles of keys that a tile of queries looks at."""
    count = -(-call.keys // call.columns)
    if not call.is_causal:
        return count
    return ((grid.tile + 1) * (call.rows // call.columns)).minimum(index_const(count))


def masked_scores(
    call: Attention, grid: Grid, product: Product, row: UOp, first: UOp, thread: UOp, mask: UOp | None
) -> tuple[UOp, UOp]:
    """Scores, minus infinity where they do not count, and the factor that makes them powers of two."""
    scores, factor = product.value, number(call.factor)
    if mask is not None and call.mask is not None:
        batch, head, query, key = call.mask
        column = first + product.column
        position = grid.batch * batch + grid.head * head + row * query + column * key
        valid = []
        if call.queries % call.rows and query:
            valid.append(row < call.queries)
        if call.keys % call.columns and key:
            valid.append(column < call.keys)
        found = load(mask, position, *valid)
        if mask.dtype.is_bool:
            scores = found.where(scores, number(MINUS_INFINITY))
        else:
            scores, factor = scores * factor + found.cast(FLOAT) * LOG2_E, number(1.0)
    limits = []
    if call.is_causal:
        limits.append(row + 1)
    if call.keys % call.columns:
        limits.append(index_const(call.keys))
    if limits:
        limit = limits[0] if len(limits) == 1 else limits[0].minimum(limits[1])
        # One comparison with a constant for each element.
        own, thread_part = product.columns[0] * COLUMN_STEP + product.columns[1], thread % QUAD * PAIR
        scores = (own < limit - first - thread_part).where(scores, number(MINUS_INFINITY))
    return scores, factor
