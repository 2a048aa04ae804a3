"""Attention in one pass over the keys, for devices with work-groups and local memory. In: the facts of a call. Out: a
kernel in which a work-group has a tile of the queries of one head and loops over tiles of keys:

    scores   = queries @ keys.T * c                              in registers; c = log2(e) / sqrt(features)
    maximum' = max(maximum, row maximum of the scores)           over the threads of a row through local memory
    weights  = exp2(scores - maximum')                           to local memory
    total    = total * exp2(maximum - maximum') + own sum of the weights
    result   = result * exp2(maximum - maximum') + weights @ values              in registers
    out = result / total;  for the gradients: maximum and 1 / total of each row

No matrix of scores is in memory. In a causal call, tiles of keys after the last query are not visited."""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.base.records import record
from tilewright.graph.kernels.attention.attention import LOG2_E, MINUS_INFINITY, finite_base
from tilewright.graph.kernels.attention.group_builder import GroupAttention, GroupBuilder, Matrix
from tilewright.graph.kernels.nodes import after, barrier, end, load, store
from tilewright.graph.kernels.origin import Size, ceil_div
from tilewright.graph.ops import Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp

# Ids of the barriers of products and of those between them.
SCORES, SLOPES = 2, 3
FOLDED, WEIGHED, TOTALLED = 4, 5, 6


@record
class Scores:
    """Where scores are computed: the head of the queries, and the indices of the elements of a thread."""

    build: GroupBuilder
    head: UOp
    query: UOp
    key: UOp

    def masked(self, product: UOp, mask: UOp | None) -> UOp:
        """The score to base 2, minus infinity where it is masked or there is no key."""
        build, call = self.build, self.build.call
        score, nothing = product * build.number(call.scale * LOG2_E), build.number(MINUS_INFINITY)
        if mask is not None and call.mask is not None:
            sizes = zip((self.query, self.key), (call.queries, call.keys), call.mask[2:])
            valid = [index < size for index, size, step in sizes if step is not None]
            score = call.masked(score, mask, (build.batch, self.head, self.query, self.key), valid)
        keep = self.key < call.keys
        return (keep & (self.key < self.query + 1) if call.is_causal else keep).where(score, nothing)

    def kept(self, state: UOp) -> UOp:
        build = self.build
        return build.call.kept(state, build.batch * build.call.heads + self.head, self.query, self.key)


def query_matrix(build: GroupBuilder, memory: UOp, head: UOp, features: int) -> Matrix:
    call = build.call
    return Matrix(memory, (build.batch * call.heads + head) * call.queries * features, call.queries, features)


def key_matrix(build: GroupBuilder, memory: UOp, head: UOp, features: int) -> Matrix:
    call = build.call
    return Matrix(memory, (build.batch * call.key_heads + head) * call.keys * features, call.keys, features)


def row_position(build: GroupBuilder, kind: int, head: UOp, query: UOp) -> UOp:
    """The index into arrays with a number of each kind for each query of each head."""
    call = build.call
    return ((build.batch + kind * call.batch) * call.heads + head) * call.queries + query


def query_builder(call: GroupAttention, features: int) -> GroupBuilder:
    """A work-group per tile of queries; in a causal call the tiles with the most keys come first."""
    return GroupBuilder(call, call.heads, call.queries, call.parts(features), call.is_causal)


def key_steps(build: GroupBuilder) -> Size:
    """The number of tiles of keys that a tile of queries looks at."""
    call = build.call
    seen = (build.first + call.rows).minimum(call.keys) if call.is_causal else call.keys
    return ceil_div(seen, call.columns)


def forward_kernel(call: GroupAttention, out: UOp, sums: UOp, query: UOp, key: UOp, value: UOp, *others: UOp) -> UOp:
    """`sums` have the maximum of the scores to base 2, and 1 / the sum of the weights, of all queries of all heads.
    `others` are the mask, and the state of the random numbers."""
    build = query_builder(call, call.value_features)
    mask, state = call.extra_arguments(others)
    head, own, threads = build.head, build.own, call.column_threads
    left, right = build.tiles(call.value_features)
    weights, partials = build.scratch(call.rows * call.columns), build.scratch(call.rows * threads)
    width = call.width(call.value_features) // threads
    maximum, total, result = (build.register(size * call.own_rows) for size in (1, 1, width))
    queries = query_matrix(build, query, head, call.features)
    keys = key_matrix(build, key, head // call.shared, call.features)
    values = key_matrix(build, value, head // call.shared, call.value_features)

    step = build.over(key_steps(build))
    first = step * call.columns
    found = build.multiply((left, right), queries, keys, first, SCORES, (step,))
    at = Scores(build, head, build.row, first + found.column)
    score = at.masked(found.value, mask)
    maximum, total = (
        after(each, end(store(each, own, build.number(start)), loops=(own,)))
        for each, start in ((maximum, MINUS_INFINITY), (total, 0.0))
    )
    before = load(after(maximum, step), own)
    highest = _fold_threads(build, Ops.MAX, after(partials, step), build.fold(Ops.MAX, score, found.columns), FOLDED)
    largest = before.maximum(highest)
    base = finite_base(largest)
    weight, rescale = (score - base).alu(Ops.EXP2), (before - base).alu(Ops.EXP2)
    used = weight if state is None else weight * at.kept(state)
    stored = store(after(weights, step), build.tile_row * call.columns + found.column, used)
    weighed = barrier(WEIGHED, build.closed(stored, own, found.columns))
    (mixed,) = build.weigh([after(weights, weighed)], [after(right, weighed)], [values], first, weighed)
    place = own * width + mixed.columns
    result = after(result, end(store(result, place, build.number(0.0)), loops=(own, mixed.columns)))
    sum_of_weights = load(after(total, step), own) * rescale + build.fold(Ops.ADD, weight, found.columns)
    updates = (
        end(store(after(maximum, step), own, largest), loops=(own,)),
        end(store(after(total, step), own, sum_of_weights), loops=(own,)),
        end(
            store(after(result, step), place, load(after(result, step), place) * rescale + mixed.value),
            loops=(own, mixed.columns),
        ),
    )
    done = end(*updates, loops=(step,))

    share = load(after(total, done), own)
    whole = _fold_threads(build, Ops.ADD, after(partials, done), share, TOTALLED)
    results = query_matrix(build, out, head, call.value_features)
    written = build.store_result(results, mixed, load(after(result, done), place) / whole)
    valid = (*results.valid(build.row, call.rows), build.x.eq(0), build.part.eq(0))
    kinds = (finite_base(load(after(maximum, done), own)), build.number(1.0) / whole)
    rows = tuple(
        end(store(sums, row_position(build, kind, head, build.row), number, *valid), loops=(own, *build.axes))
        for kind, number in enumerate(kinds)
    )
    return UOp(Ops.SINK, dtypes.void, (written, *rows), KernelInfo("attention_group", ()))


def _fold_threads(build: GroupBuilder, op: Op, memory: UOp, value: UOp, number: int) -> UOp:
    """The reduction of a number for each row over the threads that share the row, in their order."""
    threads = build.call.column_threads
    stored = store(memory, build.tile_row * threads + build.x, value)
    met = barrier(number, build.closed(stored, build.own))
    other = build.summed(threads)
    return build.fold(op, load(after(memory, met), build.tile_row * threads + other), other)
