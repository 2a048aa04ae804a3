"""Kernels that tests of transforms, lowering and the fuzzer of opts share. `SCHEDULED` are made by the scheduler from
tensor graphs, `ORDERED` are written by hand with effects and an order between them (docs/decisions/0009), `MASKED` are
sums some of whose terms do not count. Their data are whole numbers, so that every order of a sum is exact and equality
is equality."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest

import tilewright.engine.devices  # noqa: F401 (enters the devices)
from tests.schedule.graphs import add, mul
from tilewright import Context
from tilewright.base.dtype import dtypes
from tilewright.base.errors import KernelOptError
from tilewright.graph import build, slices
from tilewright.graph.interpreter.effects import run_effects
from tilewright.graph.interpreter.evaluate import evaluate_kernel
from tilewright.graph.interpreter.numpy_math import numpy_dtype
from tilewright.graph.ops import Axis, AxisType, Ops, ParamArg
from tilewright.graph.records import KernelInfo, Opt
from tilewright.graph.uop import UOp, const, index_const, memory_of
from tilewright.graph.walk import toposort
from tilewright.kernel.apply import apply_opt
from tilewright.schedule.pipeline import schedule

F32 = dtypes.float32
Builder = Callable[[], UOp]

# ---------------------------------------------------------------- from tensor graphs


def leaf(slot: int, *shape: int, dtype=F32) -> UOp:
    return build.reshape(UOp(Ops.PARAM, dtype, (), ParamArg(slot, math.prod(shape), "CPU")), shape)


def kernel_of(output: UOp) -> UOp:
    """The one kernel of a graph. A long reduction is not split into two."""
    params = sorted((node for node in toposort(output) if node.op is Ops.PARAM), key=lambda node: node.arg.slot)
    with Context(SPLIT_REDUCE=0):
        (item,) = schedule([output], params, "CPU").items
    assert item.ast is not None
    return item.ast


def elementwise() -> UOp:
    return add(leaf(0, 12, 10), mul(leaf(1, 12, 10), leaf(2, 12, 10)))


def transposed() -> UOp:
    return add(build.permute(leaf(0, 10, 12), (1, 0)), build.flip(leaf(1, 12, 10), (1,)))


def row_sums(rows: int = 12, columns: int = 24) -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, rows, columns), (1,))


def column_sums() -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, 24, 12), (0,))


def whole_sum() -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, 96), (0,))


def matrix_product(rows: int, depth: int, columns: int) -> UOp:
    shape = (rows, depth, columns)
    left = build.expand(build.reshape(leaf(0, rows, depth), (rows, depth, 1)), shape)
    right = build.expand(build.reshape(leaf(1, depth, columns), (1, depth, columns)), shape)
    return build.reduce_axis(Ops.ADD, mul(left, right), (1,))


def product() -> UOp:
    return matrix_product(6, 8, 10)


def square_product() -> UOp:
    return matrix_product(16, 16, 16)


def rows_less_their_greatest() -> UOp:
    """Two reductions over the same rows, one after the other, and an epilogue: softmax with whole numbers."""
    x = leaf(0, 8, 12)
    centred = build.alu(Ops.SUB, x, build.expand(build.reduce_axis(Ops.MAX, x, (1,)), (8, 12)))
    return build.alu(Ops.SUB, centred, build.expand(build.reduce_axis(Ops.ADD, centred, (1,)), (8, 12)))


def greatest_of_negatives() -> UOp:
    x = leaf(0, 6, 10)
    return build.reduce_axis(Ops.MAX, build.alu(Ops.SUB, x, build.const(x.dtype, 50.0, x.shape)), (1,))


def products_of_rows() -> UOp:
    return build.reduce_axis(Ops.MUL, leaf(0, 5, 6, dtype=dtypes.int64), (1,))


def padded() -> UOp:
    x = leaf(0, 6, 7)
    moved = add(build.pad(x, ((1, 2), (2, 3))), build.pad(x, ((3, 0), (0, 5))))
    return build.reduce_axis(Ops.ADD, moved, (1,))


def gathered() -> UOp:
    table, index = leaf(0, 5, 4, dtype=dtypes.int32), leaf(1, 12, dtype=dtypes.int32)
    return build.gather(table, index, build.alu(Ops.SUB, index, build.const(dtypes.int32, 1, (12,))))


def counted() -> UOp:
    x = leaf(0, 9, 8, dtype=dtypes.int32)
    return add(mul(build.axis_iota((9, 8), 0), x), build.axis_iota((9, 8), 1))


def a_bool() -> UOp:
    x = leaf(0, 12, 10)
    return build.alu(Ops.CMPLT, x, build.permute(leaf(1, 10, 12), (1, 0)))


def nested_sums() -> UOp:
    """A reduction over two axes at once."""
    return build.reduce_axis(Ops.ADD, leaf(0, 6, 4, 8), (0, 2))


def bytes_of_rows() -> UOp:
    return build.reduce_axis(Ops.ADD, leaf(0, 4, 48, dtype=dtypes.uint8), (1,))


def narrow_product() -> UOp:
    """Bytes of either sign, multiplied and summed in 32 bits: what dot-product instructions compute."""
    left, right = leaf(0, 8, 24, dtype=dtypes.int8), leaf(1, 24, 16, dtype=dtypes.uint8)
    wide_left = build.expand(build.reshape(build.cast(left, dtypes.int32), (8, 1, 24)), (8, 16, 24))
    turned = build.permute(build.cast(right, dtypes.int32), (1, 0))
    wide_right = build.expand(build.reshape(turned, (1, 16, 24)), (8, 16, 24))
    return build.reduce_axis(Ops.ADD, mul(wide_left, wide_right), (2,))


def added_by_index() -> UOp:
    """Rows added where an index says: each place looks for those that are meant for it."""
    shape = (9, 12, 4)
    index, rows = leaf(0, 12, dtype=dtypes.int32), leaf(1, 12, 4)
    named = build.expand(build.reshape(index, (1, 12, 1)), shape)
    match = build.alu(Ops.CMPEQ, named, build.axis_iota(shape, 0))
    given = build.expand(build.reshape(rows, (1, 12, 4)), shape)
    return build.reduce_axis(Ops.ADD, build.where(match, given, build.const(F32, 0.0)), (1,))


def greatest_by_index() -> UOp:
    """As above, for the last axis with an index for each row, and under one more condition."""
    shape = (3, 7, 10)
    index, values = leaf(0, 3, 10, dtype=dtypes.int64), leaf(1, 3, 10, dtype=dtypes.int32)
    named = build.expand(build.reshape(index, (3, 1, 10)), shape)
    given = build.expand(build.reshape(values, (3, 1, 10)), shape)
    match = build.alu(Ops.CMPEQ, build.cast(build.axis_iota(shape, 1), dtypes.int64), named)
    counts = build.alu(Ops.AND, match, build.alu(Ops.CMPLT, given, build.const(dtypes.int32, 3)))
    least = build.const(dtypes.int32, dtypes.int32.min)
    return build.reduce_axis(Ops.MAX, build.where(counts, given, least), (2,))


def _named(*functions: Builder) -> dict[str, Builder]:
    return {function.__name__: function for function in functions}


def joined() -> UOp:
    """Rows of three values, of which the second is computed, between zeros."""
    rows = [leaf(0, 4, 2, 3), mul(leaf(1, 4, 3, 3), build.const(F32, 2.0)), leaf(2, 4, 4, 3)]
    return build.pad(slices.cat(rows, 1), ((0, 0), (1, 0), (0, 0)))


_GRAPHS = _named(
    *(elementwise, transposed, row_sums, column_sums, whole_sum, product, square_product, rows_less_their_greatest),
    *(greatest_of_negatives, products_of_rows, padded, gathered, counted, a_bool, nested_sums, bytes_of_rows),
    *(narrow_product, added_by_index, greatest_by_index, joined),
)

# ---------------------------------------------------------------- by hand


def axis(size: int | UOp, number: int, kind: AxisType = AxisType.LOOP) -> UOp:
    return UOp(Ops.RANGE, dtypes.index, (index_const(size) if isinstance(size, int) else size,), Axis((number,), kind))


def param(slot: int, size: int, dtype=F32) -> UOp:
    return UOp(Ops.PARAM, dtype, (), ParamArg(slot, size))


def register(slot: int, size: int, dtype=F32) -> UOp:
    return UOp(Ops.DEFINE_REG, dtype, (), ParamArg(slot, size))


def local(slot: int, size: int, dtype=F32) -> UOp:
    return UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, size))


def at(memory: UOp, position: UOp | int) -> UOp:
    return UOp(Ops.INDEX, memory.dtype, (memory, index_const(position) if isinstance(position, int) else position))


def load(memory: UOp, position: UOp | int) -> UOp:
    return UOp(Ops.LOAD, memory.dtype, (at(memory, position),))


def store(memory: UOp, position: UOp | int, value: UOp | float) -> UOp:
    value = value if isinstance(value, UOp) else const(memory.dtype, value)
    return UOp(Ops.STORE, dtypes.void, (at(memory, position), value))


def after(memory: UOp, *others: UOp) -> UOp:
    return UOp(Ops.AFTER, memory.dtype, (memory, *others))


def end(effect: UOp, *ranges: UOp) -> UOp:
    return UOp(Ops.END, dtypes.void, (effect, *ranges))


def group(*effects: UOp) -> UOp:
    return UOp(Ops.GROUP, dtypes.void, effects)


def barrier(*before: UOp, number: int = 0) -> UOp:
    return UOp(Ops.BARRIER, dtypes.void, before, number)


def summed(value: UOp, *ranges: UOp) -> UOp:
    return UOp(Ops.REDUCE, value.dtype, (value, *ranges), Ops.ADD)


def sink(*effects: UOp) -> UOp:
    return UOp(Ops.SINK, dtypes.void, effects, KernelInfo("ordered", ()))


def polynomial() -> UOp:
    """A running update that is no reduction: acc = acc*2 + x[row, col]."""
    row, col = axis(4, 0), axis(6, 1, AxisType.REDUCE)
    out, x, acc = param(0, 4), param(1, 24), register(0, 1)
    started = after(acc, store(after(acc, row), 0, 0.0))
    stepped = end(store(started, 0, load(after(started, col), 0) * 2.0 + load(x, row * 6 + col)), col)
    return sink(end(store(out, row, load(after(started, stepped), 0)), row))


def register_sum() -> UOp:
    """An accumulator in a placeholder, which is recognised as a reduction."""
    row, col = axis(6, 0), axis(8, 1, AxisType.REDUCE)
    out, x, acc = param(0, 6), param(1, 48), register(0, 1)
    started = after(acc, store(after(acc, row), 0, 0.0))
    stepped = end(store(started, 0, load(after(started, col), 0) + load(x, row * 8 + col)), col)
    return sink(end(store(out, row, load(after(started, stepped), 0)), row))


def scan() -> UOp:
    """Sums of what comes before each element, and of what comes up to it: one memory read before and after a store."""
    step = axis(8, 0)
    before, upto, x, acc = param(0, 8), param(1, 8), param(2, 8), register(0, 1)
    started = after(acc, store(acc, 0, 0.0))
    current = load(after(started, step), 0)
    update = store(started, 0, current + load(x, step))
    return sink(
        end(group(update, store(before, step, current), store(upto, step, load(after(started, update), 0))), step)
    )


def updated_in_place() -> UOp:
    step = axis(12, 0)
    x, y = param(0, 12), param(1, 12)
    return sink(end(store(x, step, load(x, step) * 2.0 + load(y, step)), step))


def moved_in_place() -> UOp:
    """Each iteration reads what the one before it wrote."""
    step = axis(11, 0)
    x = param(0, 12)
    return sink(end(store(x, step + 1, load(after(x, step), step) + load(after(x, step), step + 1)), step))


def interleaved() -> UOp:
    step = axis(6, 0)
    out, x = param(0, 12), param(1, 6)
    return sink(end(group(store(out, step * 2, load(x, step)), store(out, step * 2 + 1, load(x, step) * 3.0)), step))


def overwritten() -> UOp:
    """Every iteration writes the same place: the last one counts."""
    step = axis(6, 0)
    out, x = param(0, 1), param(1, 6)
    return sink(end(store(out, 0, load(x, step)), step))


def scattered() -> UOp:
    """Counts in buckets: which iteration writes where is known when it runs."""
    step = axis(12, 0)
    count, key = param(0, 4, dtypes.int32), param(1, 12, dtypes.int32)
    place = (load(key, step) & 3).cast(dtypes.index)
    return sink(end(store(count, place, load(after(count, step), place) + 1), step))


def reversed_rows() -> UOp:
    """A row goes through a local placeholder, one element after the other, and is read backwards."""
    row, first, second = axis(4, 0), axis(6, 1), axis(6, 2)
    out, x, held = param(0, 24), param(1, 24), local(0, 6)
    filled = end(store(after(held, barrier(row)), first, load(x, row * 6 + first)), first)
    turned = store(out, row * 6 + second, load(after(held, barrier(filled)), second * -1 + 5))
    return sink(end(turned, row, second))


def triangle() -> UOp:
    """A loop as long as another one has come: sums of the first elements of each row."""
    row = axis(5, 0)
    col = axis(row, 1, AxisType.REDUCE)
    out, x = param(0, 5), param(1, 30)
    return sink(end(store(out, row, summed(load(x, row * 6 + col), col)), row))


def sums_and_scaled() -> UOp:
    """Two outputs, of which one does not depend on the inner loop."""
    row, inner, col = axis(4, 0), axis(8, 1), axis(8, 2, AxisType.REDUCE)
    sums, scaled, x = param(0, 4), param(1, 32), param(2, 32)
    total = summed(load(x, row * 8 + col), col)
    return sink(store(sums, row, total), store(scaled, row * 8 + inner, load(x, row * 8 + inner) * total))


def running_sums() -> UOp:
    """An output that is read before it is written, where threads of a group compute one value together."""
    row, col = axis(4, 0), axis(8, 1, AxisType.REDUCE)
    out, x = param(0, 4), param(1, 32)
    return sink(store(out, row, load(out, row) * 3.0 + summed(load(x, row * 8 + col), col)))


def sum_of_greatest() -> UOp:
    """A reduction inside of another."""
    row, outer, inner = axis(4, 0), axis(6, 1, AxisType.REDUCE), axis(8, 2, AxisType.REDUCE)
    out, x = param(0, 4), param(1, 192)
    greatest = UOp(Ops.REDUCE, F32, (load(x, row * 48 + outer * 8 + inner), inner), Ops.MAX)
    return sink(store(out, row, summed(greatest, outer)))


_WRITTEN = _named(
    *(polynomial, register_sum, scan, updated_in_place, moved_in_place, interleaved, overwritten, scattered),
    *(reversed_rows, triangle, sums_and_scaled, running_sums, sum_of_greatest),
)

# ---------------------------------------------------------------- sums that a mask chooses


def image_gradient() -> UOp:
    """Of an image of 4 channels and 4 by 8 points, from 3 channels of results and windows of 3 by 3."""
    c, y, x = axis(4, 0), axis(4, 1), axis(8, 2)
    v, u, f = (axis(3, number, AxisType.REDUCE) for number in (3, 4, 5))
    inside = (y >= v) & (y < v + 2) & (x >= u) & (x < u + 6)
    place = UOp(Ops.INDEX, F32, (param(1, 36), f * 12 + (y - v) * 6 + (x - u), inside))
    grown = UOp(Ops.LOAD, F32, (place,))
    total = summed(grown * load(param(2, 108), f * 36 + c * 9 + v * 3 + u), f)
    return sink(store(param(0, 128), c * 32 + y * 8 + x, summed(inside.where(total, total.const_like(0)), v, u)))


def shifted_sums() -> UOp:
    """out[y] = sum over k of a[2*y - k] * w[k] where that is in a: the loop begins and ends at multiples of y, and
    in the end has no steps."""
    y, k = axis(9, 0), axis(5, 1, AxisType.REDUCE)
    inside = (y * 2 >= k) & (y * 2 - k < 9)
    place = UOp(Ops.INDEX, F32, (param(1, 9), y * 2 - k, inside))
    term = UOp(Ops.LOAD, F32, (place,)) * load(param(2, 5), k)
    return sink(store(param(0, 9), y, summed(inside.where(term, term.const_like(0)), k)))


def spaced_sums(gap: int, first: int) -> UOp:
    """out[y] = sum over k of a[y + gap*k + first] * w[k] where that is in a: the loop begins and ends at fractions of
    y."""
    y, k = axis(13, 0), axis(5, 1, AxisType.REDUCE)
    position = y + k * gap + first
    inside = (position >= 0) & (position < 9)
    term = UOp(Ops.LOAD, F32, (UOp(Ops.INDEX, F32, (param(1, 9), position, inside)),)) * load(param(2, 5), k)
    return sink(store(param(0, 13), y, summed(inside.where(term, term.const_like(0)), k)))


_MASKED = _named(image_gradient, shifted_sums)

# ---------------------------------------------------------------- data


SCHEDULED: tuple[str, ...] = tuple(_GRAPHS)
ORDERED: tuple[str, ...] = tuple(_WRITTEN)
MASKED: tuple[str, ...] = tuple(_MASKED)


@functools.cache
def kernel(name: str) -> UOp:
    return kernel_of(_GRAPHS[name]()) if name in _GRAPHS else (_WRITTEN | _MASKED)[name]()


def contents(ast: UOp, seed: int = 0) -> dict[UOp, np.ndarray]:
    """Small whole numbers for every buffer; what the kernel writes starts as something it would not write."""
    numbers = np.random.default_rng(seed)
    nodes = toposort(ast)
    read = {memory_of(node.src[0]) for node in nodes if node.op is Ops.LOAD}
    found = {}
    for node in nodes:
        if node.op is Ops.PARAM:
            low = 0 if node.dtype.is_unsigned or node.dtype.is_bool else -3
            data = numbers.integers(low, 2 if node.dtype.is_bool else 4, node.arg.size)
            found[node] = data.astype(numpy_dtype(node.dtype))
            if node not in read and not node.dtype.is_bool:
                found[node][:] = 77
    return found


def expected(ast: UOp, data: dict[UOp, np.ndarray]) -> dict[int, np.ndarray]:
    """What the kernel, interpreted, leaves in the buffers it writes, by slot."""
    copies = {node: values.copy() for node, values in data.items()}
    if any(node.op in (Ops.AFTER, Ops.END) for node in toposort(ast)):
        return {memory.arg.slot: values for memory, values in run_effects(ast, copies).items()}
    evaluate_kernel(ast, copies)
    written = {memory_of(node.src[0]) for node in toposort(ast) if node.op is Ops.STORE}
    return {memory.arg.slot: copies[memory] for memory in written}


def refusal_of(sink: UOp, opts: tuple[Opt, ...]) -> str:
    """Why the last of the opts is refused, after those before it."""
    for opt in opts[:-1]:
        sink = apply_opt(sink, opt)
    with pytest.raises(KernelOptError) as refusal:
        apply_opt(sink, opts[-1])
    return str(refusal.value)
