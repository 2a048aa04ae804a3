"""The gradients of attention in two passes. In: the facts of a call, as `attention.py` has them. Out: a kernel for the
gradient of the queries, and one for those of the keys and values. The weights are recomputed from the logsumexp that
the forward kernel saved; `delta` is the sum of result times gradient over a query's features.

    weights = exp2(scores * c - logsumexp)
    slopes  = weights * (gradient @ values.T - delta)          of the scores
    queries' gradient: sum over tiles of keys    of slopes @ keys / sqrt(features)
    values' gradient:  sum over tiles of queries of weights.T @ gradient
    keys' gradient:    sum over tiles of queries of slopes.T @ queries / sqrt(features)

The second kernel computes transposed scores, with a row for each key, so that weights and slopes are its left operands
in registers."""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.attention.attention import (
    GRADIENT,
    KEY,
    KEY_RESULT,
    LOG2_E,
    QUERY,
    RESULT,
    VALUE,
    Attention,
    Grid,
    keep_keys,
    key_tiles,
    keyed_matrices,
    masked_scores,
    query_grid,
    row_number,
    stage_each,
    stage_once,
)
from tilewright.graph.kernels.attention.block_builder import query_steps
from tilewright.graph.kernels.attention.tiles import FLOAT, PAIR, QUAD, Matrix, Product, TileBuilder
from tilewright.graph.kernels.nodes import end, load, store
from tilewright.graph.kernels.origin import is_multiple
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp


def query_gradient_kernel(
    call: Attention,
    out: UOp,
    query: UOp,
    key: UOp,
    value: UOp,
    gradient: UOp,
    logsumexp: UOp,
    delta: UOp,
    mask: UOp | None = None,
    *unused: UOp,
) -> UOp:
    tiles = TileBuilder(call.core, call.rows)
    grid, features, columns = query_grid(call, tiles), call.features, call.columns
    given = ((query, QUERY), (gradient, GRADIENT), (out, RESULT))
    *own, result = (grid.matrix(each, call.steps[n], grid.head, call.queries) for each, n in given)
    queries, gradients = stage_once(tiles, grid, features, *own)
    step = tiles.axis(key_tiles(call, grid), AxisType.REDUCE)
    first = step * columns
    keyed = [(each, first) for each in keyed_matrices(call, grid, key, value)]
    key_tile, value_tile = stage_each(tiles, step, columns, features, keyed)
    product = tiles.multiply(queries, key_tile, columns, features)
    keep = keep_keys(call, grid, product, first, tiles.thread)
    scores, factor = masked_scores(call, grid, grid.head, product.value, grid.row, first + product.column, keep, mask)
    at = row_number(call, grid, grid.head, grid.row)
    valid = () if is_multiple(call.queries, call.rows) else (grid.row < call.queries,)
    sums, deltas = (load(memory, at, *valid) for memory in (logsumexp, delta))
    weights = (scores * factor - sums).alu(Ops.EXP2)
    slopes = weights * (tiles.multiply(gradients, value_tile, columns, features, product).value - deltas)
    total = _sum_products(tiles.multiply_held(slopes, product, key_tile, columns, features), step)
    stored = _store(tiles, grid, result, total, call.factor / LOG2_E)
    return UOp(Ops.SINK, dtypes.void, (stored,), KernelInfo("attention_query_gradient", ()))


def key_gradient_kernel(
    call: Attention,
    key_out: UOp,
    value_out: UOp,
    query: UOp,
    key: UOp,
    value: UOp,
    gradient: UOp,
    logsumexp: UOp,
    delta: UOp,
    mask: UOp | None = None,
    *unused: UOp,
) -> UOp:
    """A work-group has a tile of keys of one head and loops over the queries of all heads that share it."""
    tiles = TileBuilder(call.core, call.rows)
    grid = Grid(call, tiles, call.heads // call.shared, call.keys, is_reversed=False)
    features, columns = call.features, call.columns
    given = ((key, KEY), (value, VALUE), (key_out, KEY_RESULT), (value_out, KEY_RESULT))
    *own, key_result, value_result = (grid.matrix(each, call.steps[n], grid.head, call.keys) for each, n in given)
    keys, values = stage_once(tiles, grid, features, *own)
    before = grid.tile * (call.rows // call.columns)
    step, head, first = query_steps(call, before, grid.head, lambda count: tiles.axis(count, AxisType.REDUCE))
    read = ((query, QUERY), (gradient, GRADIENT))
    keyed = [(grid.matrix(each, call.steps[n], head, call.queries), first) for each, n in read]
    # Queries past the end are 0, so they add nothing.
    start, valid = row_number(call, grid, head, first), first + tiles.thread < call.queries
    vectors = [(memory, start, valid) for memory in (logsumexp, delta)]
    query_tile, gradient_tile, *numbers = stage_each(tiles, step, columns, features, keyed, vectors)
    product = tiles.multiply(keys, query_tile, columns, features)
    queries = first + product.column
    keep = None
    if call.is_causal:
        keep = (grid.row - first - tiles.thread % QUAD * PAIR) < product.own + 1
    scores, factor = masked_scores(call, grid, head, product.value, queries, grid.row, keep, mask)
    sums, deltas = (load(vector, product.column) for vector in numbers)
    weights = (scores * factor - sums).alu(Ops.EXP2)
    slopes = weights * (tiles.multiply(values, gradient_tile, columns, features, product).value - deltas)
    value_total = _sum_products(tiles.multiply_held(weights, product, gradient_tile, columns, features), step)
    key_total = _sum_products(tiles.multiply_held(slopes, product, query_tile, columns, features), step)
    stored = (
        _store(tiles, grid, key_result, key_total, call.factor / LOG2_E),
        _store(tiles, grid, value_result, value_total, 1.0),
    )
    return UOp(Ops.SINK, dtypes.void, stored, KernelInfo("attention_key_gradient", ()))


def _sum_products(product: Product, step: UOp) -> Product:
    return product._replace(value=UOp(Ops.REDUCE, FLOAT, (product.value, step), Ops.ADD))


def _store(tiles: TileBuilder, grid: Grid, matrix: Matrix, total: Product, factor: float) -> UOp:
    position = matrix.start + grid.row * matrix.step + total.column
    valid = () if is_multiple(matrix.rows, tiles.rows) else (grid.row < matrix.rows,)
    value = (total.value * factor).cast(matrix.memory.dtype)
    stored = store(matrix.memory, position, value, *valid)
    return end(stored, loops=(tiles.half, *total.columns, tiles.thread, *grid.axes))
