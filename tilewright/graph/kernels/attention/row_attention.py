"""Attention of one query per head. In: the facts of a call; the number of keys may be symbolic. Out: a kernel with a
work-group per head, in which no scores are stored. Where there may be many keys and there are few heads, several
work-groups share the keys of a head, and a second kernel combines their partial results.

    `lanes` adjacent threads share a key, each with some of its features; `teams` of them take keys in turn:
      scores   = products of the query and KEYS_AT_A_TIME keys, folded over the lanes
      maximum, total, result: rescaled as the maximum grows, as in `attention.py`
    the teams' maxima, totals and results are combined through local memory in the order of the teams, and those of
    work-groups through global memory in the order of the work-groups"""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple, record
from tilewright.graph.kernels.attention.attention import MINUS_INFINITY, Steps, base_two, finite_base
from tilewright.graph.kernels.attention.tiles import FLOAT, number
from tilewright.graph.kernels.nodes import after, barrier, end, load, store
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const

# Keys that a team takes at a time, whose loads are outstanding together.
KEYS_AT_A_TIME = 4


@record
class RowAttention:
    """Facts of a call. `shared` heads of queries have the same keys; `mask` are the strides of a mask along batch, head
    and key, 0 where it is broadcast. A thread has vectors of `width` adjacent features."""

    batch: int
    heads: int
    shared: int
    keys: UOp
    features: int
    steps: tuple[Steps, ...]  # strides of queries, keys, values and results
    factor: float  # times a dot product gives a score to base 2
    mask: tuple[int, ...] | None
    width: int
    lanes: int
    teams: int
    splits: int  # work-groups that share the keys of a head

    @property
    def part(self) -> int:
        """Elements that a work-group writes for the second kernel: the result, the maximum and the total."""
        return self.features + 2


class _Axes:
    """The loops of a kernel, numbered as they are made."""

    def __init__(self) -> None:
        self.count = 0

    def make(self, size: int | UOp, kind: AxisType) -> UOp:
        self.count += 1
        nodes = index_const(size) if isinstance(size, int) else size
        return UOp(Ops.RANGE, dtypes.index, (nodes,), Axis((self.count - 1,), kind))


def local_bytes(call: RowAttention) -> int:
    """Local memory for the partial results of the teams of a work-group."""
    return call.teams * call.part * FLOAT.itemsize


def row_kernel(call: RowAttention, out: UOp, query: UOp, key: UOp, value: UOp, mask: UOp | None = None) -> UOp:
    """`out` are the results, or the partial results of each work-group where several share a head."""
    axes = _Axes()
    head_axis = axes.make(call.batch * call.heads, AxisType.GLOBAL)
    split = axes.make(call.splits, AxisType.GLOBAL)
    thread = axes.make(call.lanes * call.teams, AxisType.LOCAL)
    batch, head = head_axis // call.heads, head_axis % call.heads
    team, lane = thread // call.lanes, thread % call.lanes
    at_once = call.teams * KEYS_AT_A_TIME
    in_turn = call.splits * at_once
    step = axes.make((call.keys + (in_turn - 1)) // in_turn, AxisType.LOOP)
    several = axes.make(KEYS_AT_A_TIME, AxisType.UPCAST)
    parts = (
        axes.make(call.features // (call.lanes * call.width), AxisType.UPCAST),
        axes.make(call.width, AxisType.UPCAST),
    )
    own = parts[0] * call.width + parts[1]  # index of a thread's vector of features
    feature = parts[0] * (call.lanes * call.width) + lane * call.width + parts[1]
    at = step * in_turn + split * at_once + several * call.teams + team  # index of a key
    is_key = at < call.keys

    def first(steps: Steps, of_head: UOp) -> UOp:
        return batch * steps.batch + of_head * steps.head + steps.start

    queries, keys, values, results = call.steps
    asked = load(query, first(queries, head) + feature).cast(FLOAT)
    known = load(key, first(keys, head // call.shared) + at * keys.time + feature, is_key).cast(FLOAT)
    taken = load(value, first(values, head // call.shared) + at * values.time + feature, is_key).cast(FLOAT)
    product = UOp(Ops.WARP_FOLD, FLOAT, (_fold(Ops.ADD, asked * known, *parts),), (Ops.ADD, call.lanes))
    if call.lanes == 1:
        product = product.src[0]
    score = product * number(call.factor)
    if mask is not None and call.mask is not None:
        found = load(mask, batch * call.mask[0] + head * call.mask[1] + at * call.mask[2], is_key)
        is_bool = mask.dtype.is_bool
        score = found.where(score, number(MINUS_INFINITY)) if is_bool else score + base_two(found.cast(FLOAT))
    score = is_key.where(score, number(MINUS_INFINITY))

    zero = index_const(0)
    maximum, total, result = (
        UOp(Ops.DEFINE_REG, FLOAT, (), ParamArg(slot, size))
        for slot, size in enumerate((1, 1, call.features // call.lanes))
    )
    maximum, total = (
        after(each, store(each, zero, number(start))) for each, start in ((maximum, MINUS_INFINITY), (total, 0.0))
    )
    result = after(result, end(store(result, own, number(0.0)), loops=parts))
    before = load(after(maximum, step), zero)
    largest = before.maximum(_fold(Ops.MAX, score, several))
    base = finite_base(largest)
    weight = (score - base).alu(Ops.EXP2)
    rescale = (before - base).alu(Ops.EXP2)
    sums = load(after(total, step), zero) * rescale + _fold(Ops.ADD, weight, several)
    mixed = load(after(result, step), own) * rescale + _fold(Ops.ADD, weight * taken, several)
    updates = (
        store(after(maximum, step), zero, largest),
        store(after(total, step), zero, sums),
        end(store(after(result, step), own, mixed), loops=parts),
    )
    done = end(*updates, loops=(step,))

    sizes = (call.teams, call.teams, call.teams * call.features)
    maxima, totals, shares = (UOp(Ops.DEFINE_LOCAL, FLOAT, (), ParamArg(slot, size)) for slot, size in enumerate(sizes))
    is_first = lane.eq(0)
    left = (
        end(store(maxima, team, load(after(maximum, done), zero), is_first), loops=(thread,)),
        end(store(totals, team, load(after(total, done), zero), is_first), loops=(thread,)),
        end(store(shares, team * call.features + feature, load(after(result, done), own)), loops=(*parts, thread)),
    )
    met = barrier(0, *left)
    maxima, totals, shares = (after(each, met) for each in (maxima, totals, shares))
    threads = call.lanes * call.teams
    column = axes.make(-(-call.features // threads), AxisType.LOOP)
    position = column * threads + thread
    is_feature = position < call.features
    combined = _combine(
        axes,
        call.teams,
        lambda n: load(maxima, n),
        lambda n: load(totals, n),
        lambda n: load(shares, n * call.features + position, is_feature),
    )
    loops = (column, thread, split, head_axis)
    if call.splits == 1:
        effects = [end(store(out, first(results, head) + position, combined.quotient(out), is_feature), loops=loops)]
    else:
        start = (head_axis * call.splits + split) * call.part
        is_one = thread.eq(0)
        effects = [
            end(store(out, start + position, combined.result, is_feature), loops=loops),
            end(store(out, start + call.features, combined.maximum, is_one), loops=loops[1:]),
            end(store(out, start + call.features + 1, combined.total, is_one), loops=loops[1:]),
        ]
    return UOp(Ops.SINK, dtypes.void, tuple(effects), KernelInfo("attention_row", (), fills=(0,)))


def combine_kernel(call: RowAttention, out: UOp, parts: UOp) -> UOp:
    """Combines the partial results of the work-groups of a head: one thread per feature."""
    axes = _Axes()
    head = axes.make(call.batch * call.heads, AxisType.GLOBAL)
    feature = axes.make(call.features, AxisType.LOCAL)

    def part(number: UOp, place: UOp) -> UOp:
        return load(parts, (head * call.splits + number) * call.part + place)

    total = _combine(
        axes,
        call.splits,
        lambda n: part(n, index_const(call.features)),
        lambda n: part(n, index_const(call.features + 1)),
        lambda n: part(n, feature),
    )
    effect = end(store(out, head * call.features + feature, total.quotient(out)), loops=(feature, head))
    return UOp(Ops.SINK, dtypes.void, (effect,), KernelInfo("attention_parts", (), fills=(0,)))


class _Total(NamedTuple):
    maximum: UOp
    total: UOp
    result: UOp

    def quotient(self, out: UOp) -> UOp:
        return (self.result / self.total).cast(out.dtype)


_Loader = Callable[[UOp], UOp]


def _combine(axes: _Axes, count: int, maximum: _Loader, total: _Loader, result: _Loader) -> _Total:
    """The sums of totals and results, each rescaled from its own maximum to the common one."""
    tallest, each = (axes.make(count, AxisType.REDUCE) for _ in range(2))
    largest = _fold(Ops.MAX, maximum(tallest), tallest)
    scale = (maximum(each) - finite_base(largest)).alu(Ops.EXP2)
    return _Total(largest, _fold(Ops.ADD, total(each) * scale, each), _fold(Ops.ADD, result(each) * scale, each))


def _fold(op: Op, value: UOp, *axes: UOp) -> UOp:
    return UOp(Ops.REDUCE, FLOAT, (value, *axes), op)
