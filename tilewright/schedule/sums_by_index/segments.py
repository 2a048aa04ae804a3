"""Long reductions by index on a device whose threads run in warps. In: a REDUCE_AXIS that compares an index with every
output (docs/decisions/0016). Out: the same reduction over windows of positions, by atomic operations in memory or in
local memory (0041), or over segments of the terms, sorted by their index; None where comparing, or one loop over the
terms in each part of the outputs, takes less time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

from tilewright.base.config import options
from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.build import counting_axis
from tilewright.graph.kernels.sums_by_index.atomics import add_floats_by_number, combine_by_number
from tilewright.graph.kernels.sums_by_index.bucket_sums import sum_by_partition
from tilewright.graph.kernels.sums_by_index.local_sums import (
    LocalPlan,
    combine_in_local_memory,
    plan_local,
    plan_local_sums,
    sum_in_local_memory,
)
from tilewright.graph.kernels.sums_by_index.partition import Partition, plan_partition
from tilewright.graph.kernels.sums_by_index.segments import reduce_by_number, sum_few_by_number
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.slices import replace_axis
from tilewright.graph.spec import Op, Shape
from tilewright.graph.uop import UOp
from tilewright.schedule.sums_by_index import extremes
from tilewright.schedule.sums_by_index.index_costs import (
    FIXED_POINT_BYTES,
    Sizes,
    atomic_clocks,
    cache_parts,
    compact_clocks,
    float_clocks,
    integer_clocks,
    local_clocks,
    partition_clocks,
    segment_clocks,
    transposed_clocks,
    waiting_clocks,
)
from tilewright.schedule.sums_by_index.windows import windows_of

# The fewest terms for which a sort is faster than a loop over all terms in every thread; the fewest comparisons per
# core for which it is faster than comparing; and the most columns with their own indices that are sorted together.
MIN_TERMS = 1 << 9
MIN_COMPARISONS = 1 << 24
MAX_COLUMNS = 128
# The most terms of one output that a thread adds up alone.
MAX_DIRECT = 2048
MAX_NUMBER = (1 << 31) - 1
# The comparisons per core that take as long as the launches of any other method; and the most terms for which the
# comparisons are fused with other work.
MIN_PASSES = 1 << 19
MAX_COMPARED = 32
_SHORT_FLOATS = (dtypes.float16, dtypes.bfloat16)


class IndexedReduction(NamedTuple):
    """out[n] = the reduction by `op` over p of values[p] where numbers[p] == n. `numbers` and `values` have size 1
    along `output`; `numbers` is the same along the columns, which are all other axes, or `is_spread` over them."""

    op: Op
    numbers: UOp
    values: UOp
    output: int
    terms: int
    outputs: int
    is_spread: bool


def reduce_by_index(node: UOp, target: Target) -> UOp | None:
    """
    before: REDUCE_AXIS(op, where(numbers == n, values, identity), terms)
    after:  the same reduction without comparing every number with every n; the node itself where there are so few
            terms that a kernel compares them fused with its other work
    """
    found = match_indexed_reduction(node)
    if (
        found is None
        or is_symbolic(node.src[0].shape)
        or found.numbers.dtype is not dtypes.int32
        or node.dtype not in target.native
    ):
        return None
    made = _by_windows(found, node)
    if made is None and _comparisons_per_core(node, target) < MIN_PASSES:
        return node if node.src[0].shape[found.terms] <= MAX_COMPARED else None
    for way in _ways(found, node, target):
        made = way(found, node, target) if made is None else made
    return None if made is None else build.reshape(made, node.shape)


Way = Callable[[IndexedReduction, UOp, Target], UOp | None]


def _ways(found: IndexedReduction, node: UOp, target: Target) -> tuple[Way, ...]:
    """The methods in the order of their estimates."""
    if found.op is Ops.MUL:
        return (_by_segments,)
    if node.dtype in extremes.KEYS and found.op is not Ops.ADD:
        return (_as_integers,)
    sizes = _sizes(found, node)
    dtype = found.values.dtype
    if node.dtype.is_int:
        sides = (sizes.outer, sizes.terms, sizes.inner)
        local = plan_local(sides, found.outputs, dtype, found.is_spread, target, (node.dtype,))
        if local is not None and local_clocks(local.clocks, target) < integer_clocks(sizes, target):
            return functools.partial(_integers_in_local_memory, local), _by_atomics, _by_segments
    if node.dtype is not dtypes.float32:
        return _by_atomics, _by_segments
    estimates: dict[Way, float] = {_by_segments: segment_clocks(sizes, target, MAX_DIRECT)}
    waiting = 0.0
    if options.ALLOW_FLOAT_ATOMICS and node.dtype in target.float_atomics:
        # In place of the ways whose atomic updates in memory are in fixed point: those are the same updates and more.
        estimates[_by_float_atomics] = float_clocks(sizes, target)
        waiting = waiting_clocks(sizes, target)
    else:
        estimates |= {_by_atomics: atomic_clocks(sizes, target), _at_positions: compact_clocks(sizes, target)}
    for is_transposed in (False, True) if sizes.inner > 1 else (False,):
        sides = (sizes.columns, sizes.terms, 1) if is_transposed else (sizes.outer, sizes.terms, sizes.inner)
        plan = plan_local_sums(sides, found.outputs, dtype, found.is_spread, target)
        if plan is not None:
            copied = transposed_clocks(sizes, dtype.itemsize, target) if is_transposed else 0.0
            way = functools.partial(_in_local_memory, plan, is_transposed)
            estimates[way] = local_clocks(plan.clocks, target, waiting) + copied
    partition = plan_partition((sizes.outer, sizes.terms, sizes.inner), found.outputs, dtype, target)
    if partition is not None:
        estimates[functools.partial(_by_partition, partition)] = partition_clocks(partition.clocks, target)
    return tuple(sorted(estimates, key=lambda way: estimates[way]))


def _sizes(found: IndexedReduction, node: UOp) -> Sizes:
    return Sizes(*_sides(found, node.src[0].shape), found.outputs, found.is_spread)


def _comparisons_per_core(node: UOp, target: Target) -> int:
    return math.prod(node.src[0].shape) // target.cores


def _by_windows(found: IndexedReduction, node: UOp) -> UOp | None:
    if found.op is not Ops.ADD or found.is_spread:
        return None
    values = windows_of(found.numbers, found.values, found.output, found.terms, found.outputs)
    if values is None:
        return None
    values = build.expand(values, replace_axis(node.src[0].shape, found.terms, values.shape[found.terms]))
    return build.reduce_axis(Ops.ADD, build.cast(values, node.dtype), (found.terms,))


def _in_local_memory(plan: LocalPlan, is_transposed: bool, found: IndexedReduction, node: UOp, _: Target) -> UOp | None:
    shape = node.src[0].shape
    outer, terms, inner = _sides(found, shape)
    if max(terms, found.outputs) * outer * inner > MAX_NUMBER:
        return None
    numbers, values = _side_by_side(found, shape)
    if not is_transposed:
        return sum_in_local_memory(numbers, values, found.outputs, plan)
    rows = (outer * inner, terms, 1)
    values = build.contiguous(build.reshape(build.permute(values, (0, 2, 1)), rows))
    if found.is_spread:
        numbers = build.reshape(build.permute(numbers, (0, 2, 1)), rows)
    sums = sum_in_local_memory(numbers, values, found.outputs, plan)
    return build.permute(build.reshape(sums, (outer, inner, found.outputs)), (0, 2, 1))


def _integers_in_local_memory(plan: LocalPlan, found: IndexedReduction, node: UOp, _: Target) -> UOp | None:
    shape = node.src[0].shape
    outer, terms, inner = _sides(found, shape)
    if max(terms, found.outputs) * outer * inner > MAX_NUMBER:
        return None
    return combine_in_local_memory(found.op, *_side_by_side(found, shape), found.outputs, node.dtype, plan)


def _by_partition(plan: Partition, found: IndexedReduction, node: UOp, _: Target) -> UOp | None:
    shape = node.src[0].shape
    outer, terms, inner = _sides(found, shape)
    if max(terms + plan.tile, found.outputs) * outer * inner > MAX_NUMBER:
        return None
    return sum_by_partition(*_side_by_side(found, shape), found.outputs, plan)


def _as_integers(found: IndexedReduction, node: UOp, target: Target) -> UOp | None:
    """An extreme of floats: that of integers in the same order, which atomic operations find."""
    keys = extremes.keys_of(build.cast(found.values, node.dtype), found.op)
    shape, match = node.src[0].shape, node.src[0].src[0]
    chosen = build.where(
        match, build.expand(keys, shape), build.const(keys.dtype, reduce_identity(found.op, keys.dtype))
    )
    best = reduce_by_index(build.reduce_axis(found.op, chosen, (found.terms,)), target)
    return None if best is None else extremes.floats_of(best, found.op, node.dtype)


def _by_atomics(found: IndexedReduction, node: UOp, target: Target) -> UOp | None:
    """A float sum is taken as two sums of integers."""
    dtype, shape = node.dtype, node.src[0].shape
    needed = {dtype} if dtype.is_int else {dtypes.int32, dtypes.int64}
    if not (dtype.is_int or (dtype is dtypes.float32 and found.op is Ops.ADD)) or not needed <= target.atomics:
        return None
    others = [axis for axis in range(len(shape)) if axis not in (found.output, found.terms)]
    columns = math.prod(shape[axis] for axis in others)
    if max(shape[found.terms], found.outputs) * columns > MAX_NUMBER:
        return None
    numbers, values = _side_by_side(found, shape)
    parts = cache_parts(_sizes(found, node), target, dtype.itemsize if dtype.is_int else FIXED_POINT_BYTES)
    return combine_by_number(found.op, numbers, values, found.outputs, dtype, target.max_group_size, parts)


def _by_float_atomics(found: IndexedReduction, node: UOp, target: Target) -> UOp | None:
    """A float32 sum whose terms are added in any order, one atomic addition each."""
    shape = node.src[0].shape
    outer, terms, inner = _sides(found, shape)
    if max(terms, found.outputs) * outer * inner > MAX_NUMBER:
        return None
    parts = cache_parts(_sizes(found, node), target, node.dtype.itemsize)
    return add_floats_by_number(*_side_by_side(found, shape), found.outputs, target.max_group_size, parts)


def _at_positions(found: IndexedReduction, node: UOp, target: Target) -> UOp | None:
    """For few terms and many outputs: the sum of each output that occurs as an index is stored at the largest position
    where it occurs, so that there are as many sums as terms.

    at[n] = the largest p with numbers[p] == n
    sums[q] = sum of values[p] where at[numbers[p]] == q
    out[n] = sums[at[n]]"""
    needed, shape = {dtypes.int32, dtypes.int64}, node.src[0].shape
    outer, terms, inner = _sides(found, shape)
    if not needed <= target.atomics or max(terms, found.outputs) * outer * inner > MAX_NUMBER:
        return None
    numbers, values = _side_by_side(found, shape)
    named = (outer, terms, inner) if found.is_spread else (1, terms, 1)
    position = build.axis_iota(named, 1)
    threads = target.max_group_size
    at = combine_by_number(Ops.MAX, numbers, position, found.outputs, dtypes.int32, threads)
    own = _read_middle(at, build.reshape(numbers, named))
    is_named = (numbers < 0).logical_not() & (numbers < found.outputs)
    own = is_named.where(build.reshape(own, numbers.shape), -1)
    sums = combine_by_number(Ops.ADD, build.contiguous(own), values, terms, dtypes.float32, threads)
    return _read_middle(sums, build.expand(at, (outer, found.outputs, inner)))


def _read_middle(x: UOp, index: UOp) -> UOp:
    """x[a, index[a, p, b], b], and 0 where the index is outside."""
    return build.gather(x, build.axis_iota(index.shape, 0), index, build.axis_iota(index.shape, 2))


def _sides(found: IndexedReduction, shape: Shape) -> tuple[int, int, int]:
    """The product of the sizes of the axes before the output, the number of terms, and the product of those after the
    output."""
    outer, inner = (
        math.prod(shape[axis] for axis in axes if axis not in (found.output, found.terms))
        for axes in (range(found.output), range(found.output, len(shape)))
    )
    return outer, shape[found.terms], inner


def _side_by_side(found: IndexedReduction, shape: Shape) -> tuple[UOp, UOp]:
    """The numbers and the values. The values have the shape (axes before the output, terms, axes after it), and so have
    numbers that are spread; other numbers have one axis."""
    others = [axis for axis in range(len(shape)) if axis not in (found.output, found.terms)]
    outer = [axis for axis in others if axis < found.output]
    inner = [axis for axis in others if axis > found.output]
    order = (*outer, found.terms, *inner, found.output)
    flat = _sides(found, shape)
    values = build.expand(found.values, tuple(_without(shape, found.output)))
    numbers = _in_order(found.numbers, order, flat if found.is_spread else (shape[found.terms],))
    is_position = counting_axis(found.values) == found.terms
    return numbers, build.axis_iota(flat, 1) if is_position else _in_order(values, order, flat)


def _in_order(x: UOp, order: tuple[int, ...], flat: Shape) -> UOp:
    """`x` permuted to `order` and reshaped to `flat`. Axes of size 1 move freely, and a PERMUTE that the order undoes
    is dropped, so that elements which have the order in memory are not copied."""
    moved = [axis for axis in order if x.shape[axis] != 1]
    if moved == sorted(moved):
        return build.reshape(x, flat)
    inner = x.src[0] if x.op is Ops.RESHAPE and _long_axes(x)[1] == _long_axes(x.src[0])[1] else x
    if inner.op is Ops.PERMUTE:
        back = dict(zip(_long_axes(x)[0], (inner.arg[axis] for axis in _long_axes(inner)[0]), strict=True))
        whole = [back[axis] for axis in moved]
        if whole == sorted(whole):
            return build.reshape(inner.src[0], flat)
    return build.reshape(build.permute(x, order), flat)


def _long_axes(x: UOp) -> tuple[list[int], list[int]]:
    """The axes of more than one element, and their sizes."""
    axes = [axis for axis, size in enumerate(x.shape) if size != 1]
    return axes, [x.shape[axis] for axis in axes]


def _by_segments(found: IndexedReduction, node: UOp, target: Target) -> UOp | None:
    """
    Where each column has indices of its own, an element is a term: number n of column c is number n * columns + c.
    """
    shape = node.src[0].shape
    terms, outputs = shape[found.terms], found.outputs
    if found.op not in (Ops.ADD, Ops.MUL):
        return None
    if found.op is Ops.ADD and not found.is_spread and terms <= MAX_DIRECT:
        numbers, values = _side_by_side(found, shape)
        return sum_few_by_number(numbers, values, outputs, node.dtype, target)
    if terms < MIN_TERMS or _comparisons_per_core(node, target) < MIN_COMPARISONS:
        return None
    others = [axis for axis in range(len(shape)) if axis not in (found.output, found.terms)]
    columns = math.prod(shape[axis] for axis in others)
    order = (found.terms, *others, found.output)
    values = build.cast(build.expand(found.values, tuple(_without(shape, found.output))), node.dtype)
    rows = build.reshape(build.permute(values, order), (terms, columns))
    if not found.is_spread:
        numbers = build.reshape(found.numbers, (terms,))
    elif columns > MAX_COLUMNS or max(terms, outputs) * columns > MAX_NUMBER:
        return None
    else:
        numbers = _numbers_of_columns(found, order, terms, columns)
        rows = build.reshape(rows, (terms * columns, 1))
        outputs *= columns
    sums = reduce_by_number(found.op, numbers, rows, outputs, target)
    whole = build.reshape(sums, (found.outputs, *(shape[axis] for axis in others)))
    back = [found.output, *others]
    return build.permute(whole, tuple(back.index(axis) for axis in sorted(back)))


def _numbers_of_columns(found: IndexedReduction, order: tuple[int, ...], terms: int, columns: int) -> UOp:
    """A number outside the outputs stays outside those of all columns: it is sorted after them."""
    own = build.reshape(build.permute(found.numbers, order), (terms, columns))
    column = build.cast(build.axis_iota(own.shape, 1), dtypes.int32)
    is_valid = (own >= 0) & (own < found.outputs)
    flat = is_valid.where(own * columns + column, found.outputs * columns)
    return build.reshape(flat, (terms * columns,))


def match_indexed_reduction(node: UOp) -> IndexedReduction | None:
    if node.op is not Ops.REDUCE_AXIS or len(node.arg[1]) != 1:
        return None
    source = node.src[0].src[0] if node.src[0].op is Ops.CAST else node.src[0]
    if source.op is not Ops.WHERE or source.src[0].op is not Ops.CMPEQ:
        return None
    op, (terms,) = node.arg
    match, values, otherwise = source.src
    identity = build.scalar_of(otherwise)
    if identity is None or not identity.is_const or identity.arg != reduce_identity(op, source.dtype):
        return None
    if op is not Ops.ADD and source is not node.src[0]:
        return None
    scalar = build.scalar_of(values)
    if scalar is not None:
        values = build.expand(build.reshape(scalar, (1,) * len(source.shape)), source.shape)
    if values.op is not Ops.EXPAND:
        return None
    for named, counted in (match.src, match.src[::-1]):
        output = counting_axis(counted) if counted.shape == source.shape else None
        if output is None or output == terms or named.op is not Ops.EXPAND:
            continue
        numbers, given = named.src[0], values.src[0]
        is_spread = numbers.shape == tuple(_without(source.shape, output))
        if given.shape[output] == 1 and (is_spread or numbers.shape == _only(source.shape, terms)):
            is_spread &= numbers.shape != _only(source.shape, terms)
            given = _before_widening(given) if op is Ops.ADD else given
            return IndexedReduction(op, numbers, given, output, terms, source.shape[output], is_spread)
    return None


def _before_widening(values: UOp) -> UOp:
    """Short floats as they are in memory: the kernels convert what they load."""
    cast = values.src[0] if values.op is Ops.RESHAPE else values
    if cast.op is not Ops.CAST or cast.dtype is not dtypes.float32 or cast.src[0].dtype not in _SHORT_FLOATS:
        return values
    return build.reshape(cast.src[0], values.shape)


def _without(shape: tuple[int, ...], axis: int) -> list[int]:
    return [1 if each == axis else size for each, size in enumerate(shape)]


def _only(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return tuple(size if each == axis else 1 for each, size in enumerate(shape))
