"""Attention of one query per head to a cache, for devices whose threads are CPU cores. In: the facts of a call; a row
of the batch has the position of its own last key. Out: a kernel in which a core has a few query heads of one row that
share keys, and loops over blocks of the keys up to the last one:

    scores   = keys @ queries * c                                c = log2(e) / sqrt(features)
    maximum, total, result: rescaled from block to block, as in `block_attention.py`

Both products read keys and values in place, each vector once for all heads of the task: scores are summed in vectors
along the features, a few keys at a time, and results in vectors of features. Keys after the last one of a row are not
visited. The order of every sum depends on the position of the row and the target's registers alone."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import record
from tilewright.graph.kernels.attention.attention import MINUS_INFINITY, Steps, finite_base
from tilewright.graph.kernels.attention.block_builder import BASED, FILLED, SCORED, SUMMED, WEIGHED, Builder
from tilewright.graph.kernels.nodes import after, barrier, end, load, store
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const


@record
class CachedAttention:
    """Facts of a call. The queries' heads are `groups` for each head of keys, of `own` heads each: a task. A row has at
    most `keys`; of these it sees the last `window`, or all where that is 0."""

    dtype: DType  # of sums
    batch: int
    key_heads: int
    groups: int
    own: int
    keys: int
    features: int  # of queries and keys
    value_features: int
    steps: tuple[Steps, ...]  # strides of queries, keys, values and results
    factor: float  # times a dot product gives a score to base 2
    window: int
    lanes: int
    panel: int  # keys whose scores are summed at a time
    columns: int  # keys of a block
    vectors: int  # of the features of a result that are summed at a time


def cached_kernel(call: CachedAttention, out: UOp, query: UOp, key: UOp, value: UOp, positions: UOp) -> UOp:
    """`positions` are those of the last key of each row."""
    build = Builder(call.dtype)
    loops = tuple(build.over(size, AxisType.THREAD) for size in (call.batch, call.key_heads, call.groups))
    batch, key_head, group = loops
    head, zero = (key_head * call.groups + group) * call.own, index_const(0)
    queries, keys, values, results = (
        batch * each.batch + (head if number in (0, 3) else key_head) * each.head + each.start
        for number, each in enumerate(call.steps)
    )
    last = load(positions, batch).maximum(0).minimum(call.keys - 1).cast(dtypes.index)
    first = (last - (call.window - 1)).maximum(zero) if call.window else zero
    count = last + 1 - first

    width = call.value_features
    stride = call.columns + 2 * call.panel
    scores, result = (build.scratch(call.own * size) for size in (stride, width))
    maximum, total, rescale, base = (build.scratch(call.own) for _ in range(4))
    maximum = build.filled(maximum, zero, call.own, call.own, MINUS_INFINITY, *loops)
    total = build.filled(total, zero, call.own, call.own, 0.0, *loops)
    result = build.filled(result, zero, call.own * width, call.lanes, 0.0, *loops)

    is_block = call.keys <= call.columns
    step = zero if is_block else build.over((count + (call.columns - 1)) // call.columns)
    start = first + step * call.columns
    size = (last + 1 - start).minimum(index_const(call.columns))
    panels = (size + (call.panel - 1)) // call.panel
    scores, rescale, base, sums, maxima, mixed = (
        after(each, step) for each in (scores, rescale, base, total, maximum, result)
    )

    own, inner = build.tile(call.own), build.tile(call.panel)
    empty = store(scores, own * stride + call.panel + size + inner, build.number(MINUS_INFINITY))
    scores = after(scores, barrier(FILLED, end(empty, loops=(own, inner))))

    panel, own, inner = build.over(panels), build.tile(call.own), build.tile(call.panel)
    part, lane = build.summed(call.features // call.lanes), build.tile(call.lanes)
    # A panel that would end after the memory of the row begins earlier, and computes some scores again: those of keys
    # before the block are stored before the others. It does not reach the end of the last panel of scores.
    at = (start + panel * call.panel).minimum(index_const(call.keys - call.panel))
    column, feature = at - start + inner, part * call.lanes + lane
    asked = load(query, queries + own * call.steps[0].head + feature).cast(call.dtype)
    known = load(key, keys + (at + inner) * call.steps[1].time + feature).cast(call.dtype)
    score = build.fold(Ops.ADD, asked * known, part, lane) * build.number(call.factor)
    score = (column < size).where(score, build.number(MINUS_INFINITY))
    scored = barrier(SCORED, end(store(scores, own * stride + call.panel + column, score), loops=(panel, own, inner)))

    def folded(op: Op, memory: UOp, own: UOp) -> UOp:
        panel, inner = build.summed(panels), build.tile(call.panel)
        return build.fold(op, load(memory, own * stride + (panel + 1) * call.panel + inner), panel, inner)

    own = build.tile(call.own)
    largest = load(maxima, own).maximum(folded(Ops.MAX, after(scores, scored), own))
    stores = (
        store(maxima, own, largest),
        store(base, own, finite_base(largest)),
        store(rescale, own, (load(maxima, own) - finite_base(largest)).alu(Ops.EXP2)),
    )
    based = barrier(BASED, end(*stores, loops=(own,)))
    own, panel, inner = build.over(call.own), build.over(panels), build.tile(call.panel)
    place = own * stride + (panel + 1) * call.panel + inner
    weight = (load(after(scores, scored), place) - load(after(base, based), own)).alu(Ops.EXP2)
    weighed = barrier(WEIGHED, end(store(after(scores, scored, based), place, weight), loops=(own, panel, inner)))
    weights, rescale = after(scores, weighed), after(rescale, based)
    own = build.tile(call.own)
    summed = store(sums, own, load(sums, own) * load(rescale, own) + folded(Ops.ADD, weights, own))
    effects = [end(summed, loops=(own,))]

    # A vector of values is multiplied by the weights of all heads before the next one is loaded.
    part, vector = build.over(width // (call.vectors * call.lanes)), build.tile(call.vectors)
    own, lane, seen = build.tile(call.own), build.tile(call.lanes), build.summed(size)
    feature = (part * call.vectors + vector) * call.lanes + lane
    taken = load(value, values + (start + seen) * call.steps[2].time + feature).cast(call.dtype)
    added = build.fold(Ops.ADD, load(weights, own * stride + call.panel + seen) * taken, seen)
    place = own * width + feature
    update = store(mixed, place, load(mixed, place) * load(rescale, own) + added)
    effects.append(end(update, loops=(part, vector, own, lane)))
    done = end(barrier(SUMMED, *effects), loops=(step,))

    own, part, lane = build.over(call.own), build.over(width // call.lanes), build.tile(call.lanes)
    feature = part * call.lanes + lane
    inverse = build.number(1.0) / load(after(total, done), own)
    found = load(after(result, done), own * width + feature) * inverse
    stored = store(out, results + own * call.steps[3].head + feature, found.cast(out.dtype))
    effect = end(stored, loops=(own, part, lane, *loops))
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo("attention_cached", (), fills=(0,)))
