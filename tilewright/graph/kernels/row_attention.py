"""Attention of one query per head, as one kernel. In: the facts of a call; the number of keys may be symbolic. Out: a
kernel in which every work-group has a head, and no scores are ever in memory.

    `lanes` neighbouring threads share a key, each has some of its features; `teams` of them take keys in turns:
      scores   = products of the query and KEYS_AT_A_TIME keys, folded over the lanes
      maximum, total, result: rescaled as the maximum grows, as in `attention.py`
    the teams' maxima, totals and results meet in local memory and are added up in the order of the teams"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.attention import LOG2_E, MINUS_INFINITY, Steps
from tilewright.graph.kernels.tiles import FLOAT, after, barrier, end, load, number, place
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const

# Keys that a team takes at a time: their loads are in flight together.
KEYS_AT_A_TIME = 4


@dataclass(frozen=True)
class RowAttention:
    """Facts of a call. `shared` heads of queries have the same keys; `mask` are the distances of a mask's elements
    along batch, head and key, 0 where it is repeated. A thread has `width` neighbouring features at a time."""

    batch: int
    heads: int
    shared: int
    keys: UOp
    features: int
    steps: tuple[Steps, ...]  # of queries, keys, values and results
    factor: float  # of a product, for a score in powers of two
    mask: tuple[int, ...] | None
    width: int
    lanes: int
    teams: int


class _Axes:
    """The loops of a kernel, numbered as they are made."""

    def __init__(self) -> None:
        self.count = 0

    def make(self, size: int | UOp, kind: AxisType) -> UOp:
        self.count += 1
        nodes = index_const(size) if isinstance(size, int) else size
        return UOp(Ops.RANGE, dtypes.index, (nodes,), Axis((self.count - 1,), kind))


def local_bytes(call: RowAttention) -> int:
    """What the teams of a work-group leave in local memory."""
    return call.teams * (call.features + 2) * FLOAT.itemsize


def row_kernel(call: RowAttention, out: UOp, query: UOp, key: UOp, value: UOp, mask: UOp | None = None) -> UOp:
    axes = _Axes()
    head_axis = axes.make(call.batch * call.heads, AxisType.GLOBAL)
    thread = axes.make(call.lanes * call.teams, AxisType.LOCAL)
    batch, head = head_axis // call.heads, head_axis % call.heads
    team, lane = thread // call.lanes, thread % call.lanes
    at_once = call.teams * KEYS_AT_A_TIME
    step = axes.make((call.keys + (at_once - 1)) // at_once, AxisType.LOOP)
    several = axes.make(KEYS_AT_A_TIME, AxisType.UPCAST)
    parts = (
        axes.make(call.features // (call.lanes * call.width), AxisType.UPCAST),
        axes.make(call.width, AxisType.UPCAST),
    )
    own = parts[0] * call.width + parts[1]  # of the features that a thread has
    feature = parts[0] * (call.lanes * call.width) + lane * call.width + parts[1]
    at = step * at_once + several * call.teams + team  # the number of a key
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
        score = found.where(score, number(MINUS_INFINITY)) if is_bool else score + found.cast(FLOAT) * LOG2_E
    score = is_key.where(score, number(MINUS_INFINITY))

    zero = index_const(0)
    maximum, total, result = (
        UOp(Ops.DEFINE_REG, FLOAT, (), ParamArg(slot, size))
        for slot, size in enumerate((1, 1, call.features // call.lanes))
    )
    maximum, total = (
        after(each, _store(each, zero, number(start))) for each, start in ((maximum, MINUS_INFINITY), (total, 0.0))
    )
    result = after(result, end(_store(result, own, number(0.0)), *parts))
    before = load(after(maximum, step), zero)
    largest = before.maximum(_fold(Ops.MAX, score, several))
    base = _base(largest)
    weight = (score - base).alu(Ops.EXP2)
    rescale = (before - base).alu(Ops.EXP2)
    sums = load(after(total, step), zero) * rescale + _fold(Ops.ADD, weight, several)
    mixed = load(after(result, step), own) * rescale + _fold(Ops.ADD, weight * taken, several)
    updates = (
        _store(after(maximum, step), zero, largest),
        _store(after(total, step), zero, sums),
        end(_store(after(result, step), own, mixed), *parts),
    )
    done = end(UOp(Ops.GROUP, dtypes.void, updates), step)

    sizes = (call.teams, call.teams, call.teams * call.features)
    maxima, totals, shares = (UOp(Ops.DEFINE_LOCAL, FLOAT, (), ParamArg(slot, size)) for slot, size in enumerate(sizes))
    is_first = lane.eq(0)
    left = (
        end(_store(maxima, team, load(after(maximum, done), zero), is_first), thread),
        end(_store(totals, team, load(after(total, done), zero), is_first), thread),
        end(_store(shares, team * call.features + feature, load(after(result, done), own)), *parts, thread),
    )
    met = barrier(0, *left)
    maxima, totals, shares = (after(each, met) for each in (maxima, totals, shares))
    column = axes.make(-(-call.features // (call.lanes * call.teams)), AxisType.LOOP)
    position = column * (call.lanes * call.teams) + thread
    is_feature = position < call.features
    tallest, other = (axes.make(call.teams, AxisType.REDUCE) for _ in range(2))
    base = _base(_fold(Ops.MAX, load(maxima, tallest), tallest))
    scale = (load(maxima, other) - base).alu(Ops.EXP2)
    whole = _fold(Ops.ADD, load(totals, other) * scale, other)
    mixed = _fold(Ops.ADD, load(shares, other * call.features + position, is_feature) * scale, other)
    target = first(results, head) + position
    effect = _store(out, target, (mixed / whole).cast(out.dtype), is_feature)
    sink = end(effect, column, thread, head_axis)
    return UOp(Ops.SINK, dtypes.void, (sink,), KernelInfo("attention_row", (), fills=(0,)))


def _base(maximum: UOp) -> UOp:
    """What is subtracted from scores: without any key there is no maximum yet."""
    return maximum.eq(number(MINUS_INFINITY)).where(number(0.0), maximum)


def _fold(op: Op, value: UOp, *axes: UOp) -> UOp:
    return UOp(Ops.REDUCE, FLOAT, (value, *axes), op)


def _store(memory: UOp, position: UOp, value: UOp, *valid: UOp) -> UOp:
    return UOp(Ops.STORE, dtypes.void, (place(memory, position, *valid), value))
