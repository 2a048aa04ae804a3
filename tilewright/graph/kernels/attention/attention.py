"""Attention in one pass over the keys. In: the facts of a call. Out: kernels over tiles of queries, keys and values, in
which no matrix of scores is ever in memory.

    a work-group has a tile of the queries of one head; for tiles of keys, one after another:
      scores   = queries @ keys.T                               a TILE_DOT, held in registers
      maximum' = max(maximum, row maximum of the scores)
      weights  = exp2(scores * c - maximum' * c)                c = log2(e) / sqrt(features)
      total    = total * exp2((maximum - maximum') * c) + row sum of the weights
      result   = result * exp2((maximum - maximum') * c) + weights @ values     a TILE_DOT whose left operand is held
    out = result / total;  logsumexp = maximum * c + log2(total), for the gradient

A logsumexp has not the digits of log2(total) where a float mask makes the maximum very large, as the least number of a
dtype does. With such a mask the kernel also writes what the weights from the logsumexp must be multiplied by.

Tiles of keys after the last query of a causal tile are not visited."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple, record
from tilewright.base.target import TensorCore
from tilewright.graph.kernels.attention.tiles import FLOAT, PAIR, QUAD, Matrix, Product, TileBuilder, number
from tilewright.graph.kernels.nodes import after, barrier, end, load, store
from tilewright.graph.kernels.origin import Size, as_node, ceil_div, is_multiple
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp

LOG2_E = 1 / math.log(2)
# Ids of the barriers: before a tile is overwritten, after it is filled, and after a tile that is staged once.
BEFORE_COPY, AFTER_COPY, AFTER_FIRST = -1, 0, 1
MINUS_INFINITY = -math.inf
QUERY, KEY, VALUE, RESULT, KEY_RESULT, GRADIENT = range(6)


class Steps(NamedTuple):
    """The strides of batch, head and time, and the offset of the first element; features have stride 1."""

    batch: Size
    head: Size
    time: Size
    start: Size = 0


@record
class Attention:
    """Facts of a call and of the target. `shared` heads of queries have the same keys; `mask` are the strides of a mask
    along batch, head, query and key, 0 where it is broadcast. The last four are chosen where a kernel is written
    (`tile_choice.py`)."""

    core: TensorCore
    batch: int
    heads: int
    shared: int
    queries: Size
    keys: Size
    features: int
    steps: tuple[Steps, ...]  # strides of queries, keys, values, results, gradients of keys and values, and of results
    factor: float  # times a dot product gives a score to base 2
    is_causal: bool = False
    mask: tuple[Size, ...] | None = None
    cores: int = 1
    cache_bytes: int = 0
    rows: int = 64
    columns: int = 64
    together: int = 1  # heads whose tiles are interleaved, longest first: their keys fit in the cache
    is_paired: bool = False  # whether a tile with many keys is followed by one with few, so that pairs are equal work


class Grid:
    """The head of a work-group, and its tile of rows of one of the operands."""

    def __init__(self, call: Attention, tiles: TileBuilder, heads: int, rows: Size, is_reversed: bool) -> None:
        count = ceil_div(rows, tiles.rows)
        together = math.gcd(call.together, call.batch * heads) if call.is_causal else 1
        is_paired = is_reversed and call.is_paired
        sizes = (call.batch * heads // together, count // 2 if is_paired else count, together, *([2] * is_paired))
        self.axes = tuple(tiles.axis(size, AxisType.GLOBAL) for size in sizes)
        outer, tile, inner, *second = self.axes
        head = outer * together + inner
        self.batch, self.head = head // heads, head % heads
        last = (as_node(count) - 1) - tile
        self.tile = second[0].eq(0).where(last, tile) if is_paired else last if is_reversed else tile
        self.first = self.tile * tiles.rows
        self.row = self.first + tiles.row

    def matrix(self, memory: UOp, steps: Steps, head: UOp, rows: Size) -> Matrix:
        return Matrix(memory, self.batch * steps.batch + head * steps.head + steps.start, steps.time, rows)


def query_grid(call: Attention, tiles: TileBuilder) -> Grid:
    """A work-group per tile of queries; in a causal call the tiles with the most keys come first."""
    return Grid(call, tiles, call.heads, call.queries, call.is_causal)


def key_tiles(call: Attention, grid: Grid) -> Size:
    """The number of key tiles that a tile of queries reads."""
    count = ceil_div(call.keys, call.columns)
    if not call.is_causal:
        return count
    return ((grid.tile + 1) * (call.rows // call.columns)).minimum(as_node(count))


def keyed_matrices(call: Attention, grid: Grid, key: UOp, value: UOp) -> list[Matrix]:
    """The keys and values of a work-group's head."""
    head = grid.head // call.shared
    return [grid.matrix(each, call.steps[n], head, call.keys) for each, n in ((key, KEY), (value, VALUE))]


def row_number(call: Attention, grid: Grid, head: UOp, query: UOp) -> UOp:
    """The index into an array with one number for each query of each head."""
    return (grid.batch * call.heads + head) * call.queries + query


def stage_once(tiles: TileBuilder, grid: Grid, features: int, *matrices: Matrix) -> list[UOp]:
    """The tiles of a work-group's own rows, staged once."""
    made = [tiles.tile(tiles.rows, features) for _ in matrices]
    copies = [tiles.stage(*both, tiles.rows, features, grid.first) for both in zip(made, matrices)]
    ready = barrier(AFTER_FIRST, *copies)
    return [after(tile, ready) for tile in made]


def stage_each(
    tiles: TileBuilder,
    step: UOp,
    rows: int,
    features: int,
    matrices: Sequence[tuple[Matrix, UOp]],
    vectors: Sequence[tuple[UOp, UOp, UOp]] = (),
) -> list[UOp]:
    """In each step a tile of each matrix, starting at the given row, and a number for each row of each vector, given as
    (memory, start, mask)."""
    made = [*(tiles.tile(rows, features) for _ in matrices), *(tiles.vector() for _ in vectors)]
    free = barrier(BEFORE_COPY, step)
    fresh = [after(tile, free) for tile in made]
    copies = [tiles.stage(tile, matrix, rows, features, first) for tile, (matrix, first) in zip(fresh, matrices)]
    copies += [
        tiles.stage_vector(vector, memory, start, rows, valid)
        for vector, (memory, start, valid) in zip(fresh[len(matrices) :], vectors)
    ]
    ready = barrier(AFTER_COPY, *copies)
    return [after(tile, ready) for tile in made]


def forward_kernel(
    call: Attention, out: UOp, logsumexp: UOp, query: UOp, key: UOp, value: UOp, mask: UOp | None = None
) -> UOp:
    """`logsumexp` has a number for each query of each head, to base 2, and with a float mask a factor for each, after
    all of those."""
    tiles = TileBuilder(call.core, call.rows)
    grid, half = query_grid(call, tiles), tiles.half
    features, columns, row = call.features, call.columns, grid.row
    own = grid.matrix(query, call.steps[QUERY], grid.head, call.queries)
    (queries,) = stage_once(tiles, grid, features, own)
    step = tiles.axis(key_tiles(call, grid), AxisType.LOOP)
    first, keys = step * columns, keyed_matrices(call, grid, key, value)
    key_tile, value_tile = stage_each(tiles, step, columns, features, [(each, first) for each in keys])
    product = tiles.multiply(queries, key_tile, columns, features)
    keep = keep_keys(call, grid, product, first, tiles.thread)
    scores, factor = masked_scores(call, grid, grid.head, product.value, row, first + product.column, keep, mask)

    maximum, total, result = (tiles.register(size) for size in (2, 2, features // 2))
    maximum, total = (
        after(each, end(store(each, half, number(start)), loops=(half,)))
        for each, start in ((maximum, MINUS_INFINITY), (total, 0.0))
    )
    before = load(after(maximum, step), half)
    largest = before.maximum(tiles.fold_quad(Ops.MAX, tiles.fold_row(Ops.MAX, scores, product.columns)))
    # Rows whose keys were all masked so far have no maximum.
    base = finite_base(largest) * factor
    weights = (scores * factor - base).alu(Ops.EXP2)
    rescale = (before * factor - base).alu(Ops.EXP2)
    weighted = tiles.multiply_held(weights, product, value_tile, columns, features)
    held = weighted.columns[0] * 4 + half * 2 + weighted.columns[1]
    started = end(store(result, held, number(0.0)), loops=(half, *weighted.columns))
    result = after(result, started)
    update = UOp(
        Ops.GROUP,
        dtypes.void,
        (
            end(store(after(maximum, step), half, largest), loops=(half,)),
            end(
                store(
                    after(total, step),
                    half,
                    load(after(total, step), half) * rescale + tiles.fold_row(Ops.ADD, weights, product.columns),
                ),
                loops=(half,),
            ),
            end(
                store(after(result, step), held, load(after(result, step), held) * rescale + weighted.value),
                loops=(half, *weighted.columns),
            ),
        ),
    )
    done = end(update, loops=(step,))
    maximum, total, result = (
        load(after(each, done), at) for each, at in ((maximum, half), (total, half), (result, held))
    )
    total = tiles.fold_quad(Ops.ADD, total)
    valid = () if is_multiple(call.queries, call.rows) else (row < call.queries,)
    at = grid.matrix(out, call.steps[RESULT], grid.head, call.queries)
    position = at.start + row * at.step + weighted.column
    stores = end(
        store(out, position, (number(1.0) / total * result).cast(out.dtype), *valid),
        loops=(half, *weighted.columns, tiles.thread, *grid.axes),
    )
    lowest = finite_base(maximum)
    logarithm = lowest * factor + total.alu(Ops.LOG2)
    row_position = row_number(call, grid, grid.head, row)
    is_first = (tiles.thread % QUAD).eq(0)
    numbers = [logarithm]
    if has_factors(mask):
        numbers.append((logarithm - lowest * factor).alu(Ops.EXP2) / total)
    rows = call.queries * (call.batch * call.heads)
    sums = [
        end(
            store(logsumexp, row_position + kind * rows, each, is_first, *valid),
            loops=(half, tiles.thread, *grid.axes),
        )
        for kind, each in enumerate(numbers)
    ]
    return UOp(Ops.SINK, dtypes.void, (stores, *sums), KernelInfo("attention_forward", ()))


def has_factors(mask: Any) -> bool:
    """Whether a logsumexp may lack digits: with a mask, a tensor or a node, that is added to the scores."""
    return mask is not None and not mask.dtype.is_bool


def finite_base(maximum: UOp) -> UOp:
    """The number to subtract from scores: 0 where all keys so far are masked and there is no maximum."""
    return maximum.eq(MINUS_INFINITY).where(0.0, maximum)


def base_two(mask: UOp) -> UOp:
    """A float mask times log2(e). Large finite numbers, such as the least of the dtype that masks of padding have, stay
    finite: a row of them has equal weights, and one of minus infinities has none. Infinities stay infinite."""
    limit = dtypes.finfo(mask.dtype).max / 4
    return (mask.eq(MINUS_INFINITY) | mask.eq(math.inf)).where(mask, mask.maximum(-limit).minimum(limit) * LOG2_E)


def masked_scores(
    call: Attention, grid: Grid, head: UOp, value: UOp, query: UOp, key: UOp, keep: UOp | None, mask: UOp | None
) -> tuple[UOp, UOp]:
    """The scores at these query and key indices, minus infinity where they are masked, and the factor that converts
    them to base 2."""
    factor = number(call.factor)
    if mask is not None and call.mask is not None:
        steps = call.mask
        position = grid.batch * steps[0] + head * steps[1] + query * steps[2] + key * steps[3]
        valid = [
            at < end for at, end, step in ((query, call.queries, steps[2]), (key, call.keys, steps[3])) if step != 0
        ]
        found = load(mask, position, *valid)
        if mask.dtype.is_bool:
            value = found.where(value, number(MINUS_INFINITY))
        else:
            value, factor = value * factor + base_two(found.cast(FLOAT)), number(1.0)
    return value if keep is None else keep.where(value, number(MINUS_INFINITY)), factor


def keep_keys(call: Attention, grid: Grid, product: Product, first: UOp, thread: UOp) -> UOp | None:
    """The mask of keys `first`, `first + 1`, ... that exist and are visible: one comparison with a constant for each
    element."""
    limits = []
    if call.is_causal:
        limits.append(grid.row + 1)
    if not is_multiple(call.keys, call.columns):
        limits.append(as_node(call.keys))
    if not limits:
        return None
    limit = limits[0] if len(limits) == 1 else limits[0].minimum(limits[1])
    return product.own < limit - first - thread % QUAD * PAIR
