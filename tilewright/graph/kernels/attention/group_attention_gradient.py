"""The gradients of attention on devices with work-groups. In: the facts of a call, as `group_attention.py` has them.
Out: two kernels, one with a work-group for a tile of queries, one for a tile of keys. Weights are recomputed from the
maximum and the total that the forward kernel saved; `delta` is the sum of result times gradient over the features of a
query.

    weights = exp2(scores - maximum) / total
    slopes  = weights * (gradient @ values.T - delta)          of the scores
    queries' gradient: sum over tiles of keys    of slopes @ keys / sqrt(features)
    values' gradient:  sum over tiles of queries of weights.T @ gradient
    keys' gradient:    sum over tiles of queries of slopes.T @ queries / sqrt(features)

The second kernel has transposed scores, with a row for each key. Nothing is added atomically: the same bits every
run."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.kernels.attention.block_builder import query_steps
from tilewright.graph.kernels.attention.group_attention import (
    SCORES,
    SLOPES,
    WEIGHED,
    Scores,
    key_matrix,
    key_steps,
    query_builder,
    query_matrix,
    row_position,
)
from tilewright.graph.kernels.attention.group_builder import GroupAttention, GroupBuilder, Matrix
from tilewright.graph.kernels.nodes import after, barrier, load, store
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp

# Id of the barrier after the slopes.
SLOPED = 7


class Tile(NamedTuple):
    """A tile of scores: the head of its queries, the loop over tiles, and its first column. `own` are the operands of
    the scores and of their gradients with the rows of the work-group, `seen` those with the rows that it looks at: they
    are queries where `is_transposed`."""

    head: UOp
    step: UOp
    first: UOp
    own: list[Matrix]
    seen: list[Matrix]
    is_transposed: bool


def _store_slopes(
    build: GroupBuilder,
    tile: Tile,
    staged: tuple[UOp, UOp],
    rows: UOp,
    memories: tuple[UOp, ...],
    others: Sequence[UOp],
) -> UOp:
    """The effect that stores the slopes of the scores to the first of `memories`, and the weights of the values to the
    second, if there is one."""
    call, (mask, state) = build.call, build.call.extra_arguments(others)
    found = build.multiply(staged, tile.own[0], tile.seen[0], tile.first, SCORES, (tile.step,))
    seen, own = tile.first + found.column, build.row
    query, key = (seen, own) if tile.is_transposed else (own, seen)
    at, is_query = Scores(build, tile.head, query, key), query < call.queries
    maximum, inverse, delta = (load(rows, row_position(build, kind, tile.head, query), is_query) for kind in range(3))
    # Queries past the end have no weights, whatever a mask that all queries share adds to their scores.
    weight = is_query.where((at.masked(found.value, mask) - maximum).alu(Ops.EXP2) * inverse, build.number(0.0))
    place, axes = build.tile_row * call.columns + found.column, (build.own, found.columns)
    scored = barrier(WEIGHED, build.closed(store(after(memories[0], tile.step), place, weight), *axes))
    free = [after(each, scored) for each in staged]
    product = build.multiply(free, tile.own[1], tile.seen[1], tile.first, SLOPES, (tile.step, scored), found)
    kept = None if state is None else at.kept(state)
    slope = product.value if kept is None else product.value * kept
    weight = load(after(memories[0], scored), place)
    effects = [build.closed(store(after(memories[0], scored), place, weight * (slope - delta)), *axes)]
    for memory in memories[1:]:
        used = weight if kept is None else weight * kept
        effects.append(build.closed(store(after(memory, tile.step), place, used), *axes))
    return barrier(SLOPED, *effects)


def query_gradient_kernel(
    call: GroupAttention, out: UOp, query: UOp, key: UOp, value: UOp, gradient: UOp, rows: UOp, *others: UOp
) -> UOp:
    """`rows` have the maximum, 1 / total and the delta of all queries of all heads."""
    build, sizes = query_builder(call, call.features), (call.features, call.value_features)
    head = build.head
    own = [query_matrix(build, memory, head, size) for memory, size in zip((query, gradient), sizes)]
    seen = [key_matrix(build, memory, head // call.shared, size) for memory, size in zip((key, value), sizes)]
    step = build.summed(key_steps(build))
    tile = Tile(head, step, step * call.columns, own, seen, is_transposed=False)
    staged, slopes = build.tiles(call.features), build.scratch(call.rows * call.columns)
    sloped = _store_slopes(build, tile, staged, rows, (slopes,), others)
    free = [after(staged[1], sloped)]
    (found,) = build.weigh([after(slopes, sloped)], free, seen[:1], tile.first, sloped, (step,))
    result = query_matrix(build, out, head, call.features)
    stored = build.store_result(result, found, found.value * build.number(call.scale))
    return UOp(Ops.SINK, dtypes.void, (stored,), KernelInfo("attention_group_query_gradient", ()))


def key_gradient_kernel(
    call: GroupAttention,
    key_out: UOp,
    value_out: UOp,
    query: UOp,
    key: UOp,
    value: UOp,
    gradient: UOp,
    rows: UOp,
    *others: UOp,
) -> UOp:
    """A work-group has a tile of keys of one head and loops over the queries of all heads that share it."""
    sizes = (call.features, call.value_features)
    build = GroupBuilder(call, call.key_heads, call.keys, call.parts(*sizes), is_reversed=False)
    own, results = (
        [key_matrix(build, memory, build.head, size) for memory, size in zip(memories, sizes)]
        for memories in ((key, value), (key_out, value_out))
    )
    step, head, first = query_steps(call, build.first // call.columns, build.head, build.summed)
    seen = [query_matrix(build, memory, head, size) for memory, size in zip((query, gradient), sizes)]
    tile = Tile(head, step, first, own, seen, is_transposed=True)
    staged = build.tiles(*sizes)
    slopes, weights = (build.scratch(call.rows * call.columns) for _ in range(2))
    sloped = _store_slopes(build, tile, staged, rows, (slopes, weights), others)
    memories, free = ([after(each, sloped) for each in given] for given in ((slopes, weights), reversed(staged)))
    of_key, of_value = build.weigh(memories, free, seen, first, sloped, (step,))
    stores = (
        build.store_result(results[0], of_key, of_key.value * build.number(call.scale)),
        build.store_result(results[1], of_value, of_value.value),
    )
    return UOp(Ops.SINK, dtypes.void, stores, KernelInfo("attention_group_key_gradient", ()))
