"""The gradients of attention in blocks. In: the facts of a call, as `block_attention.py` has them. Out: one kernel for
the gradients of queries, keys and values. A core has a group of the keys of one head and loops over the blocks of the
queries that look at them, and over its blocks of keys. Weights are recomputed from the maximum and the total that the
forward kernel saved; `delta` is the sum of result times gradient over the features of a query.

    weights = exp2(scores - maximum)                             gradient and delta are divided by the total
    slopes  = weights * (gradient @ values.T - delta)            of the scores
    queries' gradient += slopes @ keys * scale                   in memory of the core
    keys' gradient    += slopes.T @ queries * scale              in the output, which the core alone writes
    values' gradient  += weights.T @ gradient

Each group of keys has its own part of the queries' gradient; the parts are added afterwards, in order."""

from __future__ import annotations

import math

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.kernels.attention.attention import LOG2_E
from tilewright.graph.kernels.attention.block_attention import (
    STRIP,
    BlockAttention,
    KeyBlock,
    Scores,
    Tile,
    weighted_sum,
)
from tilewright.graph.kernels.attention.block_builder import SCORED, SLOPED, Builder, Rows
from tilewright.graph.kernels.nodes import after, barrier, end, load, store
from tilewright.graph.kernels.origin import Size, ceil_div
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp, index_const


class Group(NamedTuple):
    """The keys of a task: its first block, and how many blocks a task has."""

    first: UOp
    blocks: Size


def padded_keys(call: BlockAttention) -> Size:
    """Keys for which gradients are written: whole blocks, equally many for each group."""
    return call.groups * _group_blocks(call) * call.columns


def _group_blocks(call: BlockAttention) -> Size:
    return ceil_div(call.keys, call.columns * call.groups)


def gradient_kernel(
    call: BlockAttention,
    query_out: UOp,
    key_out: UOp,
    value_out: UOp,
    query: UOp,
    key: UOp,
    _value: UOp,
    gradient: UOp,
    sums: UOp,
    delta: UOp,
    key_panels: UOp,
    value_panels: UOp,
    *others: UOp,
) -> UOp:
    """`query_out` has a part for each group; `key_out` and `value_out` have whole blocks of keys for each head, equally
    many for each group; `sums` are those of the forward kernel."""
    build = Builder(call.dtype)
    mask, state = call.extra_arguments(others)
    key_head, number = (build.over(size, AxisType.THREAD) for size in (call.batch * call.key_heads, call.groups))
    group = Group(number * _group_blocks(call), _group_blocks(call))
    outputs = [
        build.filled(memory, (key_head * call.groups + number) * size, size, call.lanes, 0.0, key_head, number)
        for memory, size in (
            (key_out, group.blocks * call.columns * call.width),
            (value_out, group.blocks * call.columns * call.value_width),
        )
    ]
    head, block = build.over(call.shared), build.over(call.blocks)
    axes = (key_head, number, head, block)
    rows = Rows(block * call.rows, call.rows, call.queries, axes)
    of_head = key_head % call.key_heads * call.shared + head
    at = Scores(call, build, key_head // call.key_heads, of_head, rows)
    first = at.query_head * call.queries
    sizes = (call.rows * call.width, call.rows * call.value_width, call.rows * call.width, *(call.rows,) * 3)
    queries, gradients, total, maxima, inverses, deltas = (build.scratch(size) for size in sizes)
    weights, slopes = (build.scratch(call.rows * call.columns) for _ in range(2))
    queries = build.copied(queries, query, first, rows, call.width, call.lanes, call.scale)
    # Rows after the last query have weights of 0, whatever a mask that all queries share adds to their scores.
    maxima = build.copied(maxima, sums, first, rows, 1, 1, last=math.inf)
    inverses = build.copied(inverses, sums, first + call.queries * (call.batch * call.heads), rows, 1, 1)
    gradients = build.copied(gradients, gradient, first, rows, call.value_width, call.lanes, factors=inverses)
    deltas = build.copied(deltas, delta, first, rows, 1, 1, factors=inverses)
    total = build.filled(total, index_const(0), call.rows * call.width, call.lanes, 0.0, *axes)

    seen = (at.limit() + (call.columns - 1)) // call.columns
    last = seen.minimum(group.first + group.blocks)
    step = build.over((last - group.first).maximum(index_const(0)))
    keys = at.key_block(group.first + step)
    found = at.products(queries, key_panels, keys, call.features, call.width)
    score = at.masked(found.value * build.number(LOG2_E), found.row, keys.start + found.column, mask)
    weight = (score - load(maxima, found.row)).alu(Ops.EXP2)
    weights, slopes = after(weights, step), after(slopes, step)
    scored = end(store(weights, found.row * call.columns + found.column, weight), loops=found.loops)
    weights = after(weights, barrier(SCORED, scored))
    found = at.products(gradients, value_panels, keys, call.value_features, call.value_width)
    position = found.row * call.columns + found.column
    weight, slope = load(weights, position), found.value
    effects = []
    if state is not None:
        kept = call.kept(state, at.query_head, at.rows.first + found.row, keys.start + found.column)
        slope = slope * kept
        effects.append(store(weights, position, weight * kept))
    effects.append(store(slopes, position, weight * (slope - load(deltas, found.row))))
    sloped = barrier(SLOPED, end(*effects, loops=found.loops))
    weights, slopes = after(weights, sloped), after(slopes, sloped)

    updates = [
        weighted_sum(at, call.query_tile, keys, slopes, key, call.width, (after(total, step), None)),
        _transposed_sum(at, call.query_tile, keys, slopes, queries, call.width, after(outputs[0], *axes[2:], step)),
        _transposed_sum(
            at, call.value_tile, keys, weights, gradients, call.value_width, after(outputs[1], *axes[2:], step)
        ),
    ]
    done = end(*updates, loops=(step,))
    row, part, lane = build.over(call.rows), build.over(call.width // call.lanes), build.tile(call.lanes)
    column = part * call.lanes + lane
    value = load(after(total, done), row * call.width + column) * build.number(call.scale)
    start = number * (call.queries * (call.batch * call.heads)) + first + rows.first + row
    stored = store(query_out, start * call.width + column, value, *rows.valid(row))
    stored = end(stored, loops=(row, part, lane, block, head, number, key_head))
    return UOp(Ops.SINK, dtypes.void, (stored,), KernelInfo("attention_block_gradients", ()))


def _transposed_sum(at: Scores, tile: Tile, keys: KeyBlock, left: UOp, right: UOp, width: int, memory: UOp) -> UOp:
    """The effect memory = memory + left.T @ right, in register tiles, with a row for each key. `left` and `right` are
    memory of the core with a row for each query."""
    call, build = at.call, at.build
    panel = build.over((keys.size + (call.panel - 1)) // call.panel)
    number, part = build.over(call.panel // tile.rows), build.over(width // tile.columns)
    own, lane = build.tile(tile.rows), build.tile(tile.columns)
    # The rows of a tile are apart, so that each is loaded as a scalar and splatted, not as a part of a vector.
    key = panel * call.panel + own * (call.panel // tile.rows) + number
    column = part * tile.columns + lane
    skipped = at.skipped_strips(keys.start + panel * call.panel) * STRIP
    step = build.summed(call.rows - skipped)
    row = skipped + step
    added = build.fold(Ops.ADD, load(left, row * call.columns + key) * load(right, row * width + column), step)
    position = (at.key_head * padded_keys(call) + keys.start + key) * width + column
    value = load(memory, position) + added
    return end(store(memory, position, value), loops=(panel, number, part, own, lane))
