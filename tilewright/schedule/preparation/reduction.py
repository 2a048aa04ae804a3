"""Splitting large reductions in two. In: the graph. Out: the graph in which each reduction of many elements to few
results is two: the first has work for every core, the second combines its results. A long sum of products, such as the
gradient of a convolution's weights, is divided into parts whose factors fit a cache; on a card, into as many parts as
fill it. The split depends on the shape alone, on a card also on its number of cores, so every run has the same sums."""

from __future__ import annotations

from collections.abc import Collection

from tilewright.base.config import options
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import map_nodes, toposort, without_casts
from tilewright.schedule.preparation.contiguous import contiguous_axes, contiguous_axis
from tilewright.schedule.preparation.product_parts import MAX_GROUP_PARTS, MAX_PADDING, fill_cores, is_product
from tilewright.schedule.preparation.window_parts import windows_in_parts

LARGE_REDUCTION = 1 << 15
LONG_REDUCTION = 1 << 22  # elements for which fewer parts than FEW_RESULTS would leave cores idle
FEW_RESULTS = 64
# Results, each of a contiguous row, that keep the cores of a CPU busy: a reduction to this many is not split along an
# axis without a useful divisor.
ENOUGH_ROWS = 8
# The longest of such rows that the cache of a core holds while another reduction, or what is stored for the row, reads
# it again: it is not split either.
CACHED_ROW = 1 << 16
FEW_PRODUCTS = 1024  # results of sums of products: a few register tiles, one task for one core
MAX_PARTS = 256
MIN_PART = 1024
LINE = 32  # parts on a CPU are multiples of this many elements: several independent vectors, none of them masked
LONG_PRODUCT = 1 << 12
# Sums of columns on a device with work-groups: the least number of elements for which two kernels are faster than one,
# the number of partial sums that keeps the threads busy, the least length of a part, and the columns of a work-group.
LARGE_COLUMNS = 1 << 18
MIN_PARTIALS = 1 << 16
MIN_COLUMN_PART = 32
COLUMNS_OF_GROUP = 32
# Sums of columns on a CPU: the fewest elements that repay a second kernel; the most and the fewest parts, and the rows
# that a part reads at a time; the fewest rows of a part; and the bytes of a row from which the cores share each row
# instead, since a part of it is a long prefetch stream as well.
LARGE_ROWS = 1 << 19
ROW_PARTS, MIN_ROW_PARTS, ROW_STREAMS = 16, 4, 4
MIN_ROWS = 64
LONG_ROW = 1 << 17
# Results per core that keep a device with work-groups busy.
RESULTS_PER_CORE = 8


def split_reduction(node: UOp, target: Target | None = None, stored: Collection[UOp] = ()) -> UOp | None:
    """
    before: sum(x[1000000], axes=(0,))
    after:  sum(sum(reshape(x, (64, 15625)), axes=(1,)), axes=(0,))

    A device that has work-groups runs a thread for each element of the first part. `stored` are computed values that
    are in memory before this.
    """
    if node.op is not Ops.REDUCE_AXIS or not options.SPLIT_REDUCE:
        return None
    source = node.src[0]
    if is_symbolic(source.shape):
        return None  # parts of an axis are of constant size
    ordered = _in_memory_order(node)
    if ordered is not None:
        return build.reshape(split_reduction(ordered, target, stored) or ordered, node.shape)
    _, axes = node.arg
    work, results = max_count(source.shape), max_count(node.shape)
    group_cores = target.cores if target is not None and target.has_local else 0
    if target is not None and target.tensor_cores and is_product(source, axes) and results > 1:
        return fill_cores(node, target)
    is_narrow = node.arg[0] is Ops.ADD and results <= FEW_PRODUCTS and is_product(source, axes)
    if results > (FEW_PRODUCTS if is_narrow else FEW_RESULTS):
        if group_cores and target is not None:
            in_parts = windows_in_parts(node, target)
            return in_parts or _split_product(node) or _split_columns(node, work, results, group_cores, stored)
        return _split_product(node) or _split_rows(node, work, results)
    if results == 0 or work // results < LARGE_REDUCTION:
        return _split_columns(node, work, results, group_cores, stored) if group_cores and results else None
    axis = max(axes, key=lambda a: (source.shape[a] >= FEW_RESULTS, -a, source.shape[a]))
    is_along_memory = all(own in axes for own in contiguous_axes(source, stored))
    is_cached = not group_cores and results >= ENOUGH_ROWS and is_along_memory and work // results <= CACHED_ROW
    if is_cached and not is_product(source, axes):
        return None
    inner = () if group_cores else merged_sizes(source, axis)
    parts = choose_parts(source.shape[axis], work // results, inner)
    if parts is None and not group_cores and results >= ENOUGH_ROWS and is_along_memory:
        return None
    if parts is not None and results == 1 and not group_cores and is_along_memory and not inner:
        parts = parts if source.shape[axis] // parts % LINE == 0 else None
    wanted = min(RESULTS_PER_CORE * group_cores // results, MAX_GROUP_PARTS, work // results // MIN_PART)
    if not group_cores or parts is None or 2 * parts < wanted:
        merged = _merge_reduced(node, axis, is_contiguous=not group_cores)
        if merged is not None:
            return build.reshape(split_reduction(merged, target, stored) or merged, node.shape)
    most = max(MAX_PARTS if parts is None else 1, 1 << (max(wanted, 1).bit_length() - 1))
    padded = padded_parts(source.shape[axis], work // results, most)
    if parts is None or (padded > parts and 2 * parts < min(wanted, source.shape[axis] // MAX_PADDING)):
        split = _split_with_padding if group_cores else _split_with_rest
        return split(node, axis, padded) if padded > 1 else None
    return _split_axis(node, source, axis, parts)


def _in_memory_order(node: UOp) -> UOp | None:
    """
    before: sum(permute(x, (2, 1, 0)) * 2, axes=(0, 1, 2))
    after:  sum(x * 2, axes=(0, 1, 2))

    Reduced axes have no order of their own; in that of memory they merge. None where they are in that order already and
    as close to each other, what is read has different orders, or the results would be stored in another order."""
    (op, axes), source = node.arg, node.src[0]
    order = _common_order(source)
    if order is None or is_product(source, axes):
        return None
    kept = [order[axis] for axis, size in enumerate(node.shape) if size != 1]
    reduced = [order[axis] for axis in axes if source.shape[axis] != 1]
    long = [axis for axis, size in enumerate(source.shape) if size != 1]
    is_closer = _runs(sorted(long, key=order.__getitem__), axes) < _runs(long, axes)
    if kept != sorted(kept) or (reduced == sorted(reduced) and not is_closer):
        return None
    back = tuple(map(order.index, range(len(order))))

    def visit(value: UOp, src: tuple[UOp, ...]) -> UOp:
        if value.op is Ops.EXPAND:
            return build.expand(build.permute(value.src[0], back), tuple(value.shape[axis] for axis in back))
        return value.src[0] if value.op is Ops.PERMUTE else value.with_src(src)

    values = toposort(source, stop=_is_read)
    return build.reduce_axis(op, map_nodes(values, visit)[source], tuple(sorted(order[axis] for axis in axes)))


def _runs(order: list[int], axes: tuple[int, ...]) -> int:
    """How many groups of adjacent axes are reduced, in an order of axes."""
    return sum(axis in axes and (not number or order[number - 1] not in axes) for number, axis in enumerate(order))


def _is_read(value: UOp) -> bool:
    return not value.op.is_elementwise


def _common_order(source: UOp) -> tuple[int, ...] | None:
    """The permutation through which all that an elementwise value is computed from is read; None where there is none.
    The first value that is read in another way ends the search."""
    order: tuple[int, ...] | None = None
    seen, pending = {source}, [source]
    while pending:
        value = pending.pop()
        if value.op.is_elementwise:
            pending += [found for found in value.src if found not in seen]
            seen.update(value.src)
        elif value.shape and value.op is not Ops.EXPAND:
            if value.op is not Ops.PERMUTE or order not in (None, value.arg):
                return None
            order = value.arg
    return order


def _merge_reduced(node: UOp, axis: int, is_contiguous: bool) -> UOp | None:
    """The same reduction with `axis` and the reduced axes next to it merged into one; None where there are none, or
    where an operand is broadcast along some of them. Split alone, a padded axis would separate the elements of adjacent
    threads, and the remainder of an axis would be a few elements of every row. Where the operands must be
    `is_contiguous`, views are refused: a core would divide to find each of their elements."""
    shape, (op, axes) = node.src[0].shape, node.arg
    first = last = axis
    while first > 0 and (first - 1 in axes or shape[first - 1] == 1):
        first -= 1
    while last + 1 < len(shape) and (last + 1 in axes or shape[last + 1] == 1):
        last += 1
    done: dict[UOp, UOp | None] = {}
    flat = merge_axes(node.src[0], first, last, done) if first < last else None
    read = [each for each in done if max_count(each.shape[first : last + 1]) > 1]
    if flat is None or (is_contiguous and any(map(_is_view, read))):
        return None
    kept = (first, *(a if a < first else a - (last - first) for a in axes if not first <= a <= last))
    return build.reduce_axis(op, flat, kept)


def _is_view(node: UOp) -> bool:
    while node.op is Ops.RESHAPE:
        node = node.src[0]
    return node.op.kind is Kind.MOVEMENT and not _is_repeated(node)


def merge_axes(node: UOp, first: int, last: int, done: dict[UOp, UOp | None]) -> UOp | None:
    """A value with axes `first` to `last` as one, by its operands, so that what is read has the merged axis as well.
    `done` takes each operand with its replacement, None where it has none."""

    def is_read(value: UOp) -> bool:
        if value.op is Ops.EXPAND:
            given, wide = (max_count(each.shape[first : last + 1]) for each in (value.src[0], value))
            return given not in (1, wide)
        return not value.op.is_elementwise or any(source.shape not in ((), value.shape) for source in value.src)

    for value in toposort(node, stop=is_read):
        if not value.shape or value in done:
            continue
        shape = (*value.shape[:first], max_count(value.shape[first : last + 1]), *value.shape[last + 1 :])
        found: UOp | None = build.reshape(value, shape)
        if value.op is Ops.EXPAND:
            inner = None if is_read(value) else done[value.src[0]]
            found = None if inner is None else build.expand(inner, shape)
        elif not is_read(value):
            sources = [done[source] if source.shape else source for source in value.src]
            kept = [source for source in sources if source is not None]
            found = value.with_src(tuple(kept)) if len(kept) == len(sources) else None
        done[value] = found
    return done[node]


def merged_sizes(source: UOp, axis: int) -> tuple[int, ...]:
    """For an axis that a reshape merges from several axes of an operand, such as channels and pixels: the stride of
    each of these in the merged axis, without the innermost."""
    found: set[int] = set()
    stack, seen = [source], {source}
    while stack:
        node = stack.pop()
        if node.op is Ops.RESHAPE and (node.src[0].op.is_elementwise or node.src[0].op is Ops.GATHER):
            before, after = max_count(node.shape[:axis]), max_count(node.shape[axis + 1 :])
            given = node.src[0].shape
            steps = [max_count(given[number + 1 :]) for number in range(len(given))]
            whole = max_count(given) // max(before, 1)
            found.update(step // after for step in steps if after < step < whole and step % after == 0)
        elif node.op.is_elementwise:
            stack += [each for each in node.src if each.shape == source.shape and each not in seen]
            seen.update(node.src)
    return tuple(sorted(found))


def choose_parts(size: int, reduced: int, inner: tuple[int, ...] = ()) -> int | None:
    """The largest divisor of the axis that leaves each core enough work; None where the axis has no useful divisor. A
    part is a multiple of each stride in `inner`, or divides it: otherwise the index of every element would need a
    division."""
    max_parts = min(MAX_PARTS, max(reduced // MIN_PART, 1))
    divisors = [d for d in range(1, max_parts + 1) if size % d == 0]
    fitting = [d for d in divisors if all(size // d % step == 0 or step % (size // d) == 0 for step in inner)]
    best = max(fitting, default=1)
    is_enough = best >= FEW_RESULTS or (best >= 16 and reduced < LONG_REDUCTION)
    return best if is_enough else None


def _split_columns(node: UOp, work: int, results: int, cores: int, stored: Collection[UOp]) -> UOp | None:
    """Splits column sums, such as the gradient of a bias: one thread per column is too few to fill a card. A short sum
    of partial sums is fused with them where there are columns enough for half of the cores."""
    source = node.src[0]
    _, axes = node.arg
    if work < LARGE_COLUMNS or results * 8 > MIN_PARTIALS or contiguous_axis(source, stored) in axes:
        return None
    is_stored = 2 * results < COLUMNS_OF_GROUP * cores
    axis = max(axes, key=lambda a: source.shape[a])
    max_parts = min(MAX_PARTS, MIN_PARTIALS // results, work // results // MIN_COLUMN_PART)
    parts = max((n for n in range(2, max_parts + 1) if source.shape[axis] % n == 0), default=1)
    if 4 * parts < max_parts:
        # Kernels that sum along the same loops are merged: loops are merged only where no divisor is found.
        merged = _merge_reduced(node, axis, is_contiguous=False)
        if merged is not None:
            split = _split_columns(merged, work, results, cores, stored)
            return None if split is None else build.reshape(split, node.shape)
        parts = padded_parts(source.shape[axis], work // results, 1 << (max_parts.bit_length() - 1))
        return _split_with_padding(node, axis, parts, is_stored) if parts > 1 else None
    return _split_axis(node, source, axis, parts, is_stored) if parts > 1 else None


def _split_rows(node: UOp, work: int, results: int) -> UOp | None:
    """Sums over the rows of a large matrix on a CPU. A core that takes whole rows reads one stream from row to row;
    where each core takes a part of every row, the streams are short."""
    source = node.src[0]
    _, axes = node.arg
    summed = [axis for axis in sorted(axes) if source.shape[axis] > 1]
    own = contiguous_axis(source)
    if work < LARGE_ROWS or not summed or own in axes or is_product(source, axes):
        return None
    # In a transposed factor, as of a vector times a matrix, the contiguous axis is before the summed one.
    columns = source.shape[own] if own < summed[-1] else max_count(source.shape[summed[-1] + 1 :])
    if results >= ROW_PARTS * columns or columns * node.dtype.itemsize >= LONG_ROW:
        return None  # there are enough matrices for the cores, or the cores share each row
    size, most = source.shape[summed[0]], min(ROW_PARTS, work // results // MIN_ROWS)
    parts = max((n for n in range(MIN_ROW_PARTS, most + 1) if size % (n * ROW_STREAMS) == 0), default=most)
    rest = size % (parts * ROW_STREAMS) if parts > 1 else size
    return None if rest * MAX_PADDING > size else _split_with_rest(node, summed[0], parts, ROW_STREAMS, is_stored=True)


def _is_repeated(node: UOp) -> bool:
    return without_casts(node).op in (Ops.EXPAND, Ops.CONST)


def _split_product(node: UOp) -> UOp | None:
    """A sum of products over several axes is split along the first: parts short enough that a cache holds what they
    read, and long enough that their partial sums are few beside it."""
    source = node.src[0]
    op, axes = node.arg
    summed = [axis for axis in sorted(axes) if source.shape[axis] > 1]
    length = max_count(source.shape) // max_count(node.shape)
    if op is not Ops.ADD or len(summed) < 2 or length < LONG_PRODUCT or not is_product(source, axes):
        return None
    size = source.shape[summed[0]]
    parts = max(n for n in range(1, size + 1) if size % n == 0 and (n == 1 or n * MIN_PART <= length))
    return _split_axis(node, source, summed[0], parts) if parts > 1 else None


def _split_axis(node: UOp, source: UOp, axis: int, parts: int, is_stored: bool = False) -> UOp:
    """`source` is the operand of the reduction, padded or without its remainder. Where the contiguous axis of the
    operand is not reduced, the axis of the parts comes first: the results of a part are then contiguous, and stored as
    vectors; otherwise they would have a stride of `parts`. With `is_stored` the partial results are stored, where a
    short second sum would be fused with the first."""
    (op, axes), shape = node.arg, source.shape
    split = (*shape[:axis], parts, shape[axis] // parts, *shape[axis + 1 :])
    if max_count(shape[:axis]) > 1 and any(own not in axes for own in contiguous_axes(node.src[0])):
        order = (axis, *(a for a in range(len(split)) if a != axis))
        first = build.permute(build.reshape(source, split), order)
        sums = build.reduce_axis(op, first, tuple(sorted(a + 1 for a in axes)))
        sums = build.contiguous(sums) if is_stored else sums
        return build.reshape(build.reduce_axis(op, sums, (0,)), node.shape)
    moved = tuple(a + (a >= axis) for a in axes if a != axis)
    first_axes = tuple(sorted((axis + 1, *moved)))
    first = UOp(Ops.REDUCE_AXIS, node.dtype, (UOp(Ops.RESHAPE, source.dtype, (source,), split),), (op, first_axes))
    first = build.contiguous(first) if is_stored else first
    second = UOp(Ops.REDUCE_AXIS, node.dtype, (first,), (op, (axis,)))
    return UOp(Ops.RESHAPE, node.dtype, (second,), node.shape)


def _split_with_rest(node: UOp, axis: int, parts: int, multiple: int = LINE, is_stored: bool = False) -> UOp:
    """Splits into parts whose length is a multiple of `multiple`. The second kernel also reduces the remainder: a mask
    for every element would take as long as the reduction."""
    source, size = node.src[0], node.src[0].shape[axis]
    rest = size % (parts * multiple)
    if not rest:
        return _split_axis(node, source, axis, parts, is_stored)
    first, last = (
        build.shrink(source, tuple(bounds if a == axis else (0, n) for a, n in enumerate(source.shape)))
        for bounds in ((0, size - rest), (size - rest, size))
    )
    return build.alu(node.arg[0], _split_axis(node, first, axis, parts, is_stored), node.with_src((last,)))


def padded_parts(size: int, reduced: int, most: int) -> int:
    """The number of parts of an axis without a useful divisor, which is padded with the identity of the reduction."""
    parts = FEW_RESULTS if reduced < LONG_REDUCTION else most
    while parts * MAX_PADDING > size:
        parts //= 2
    return parts


def _split_with_padding(node: UOp, axis: int, parts: int, is_stored: bool = False) -> UOp:
    source = node.src[0]
    op, _ = node.arg
    size = source.shape[axis]
    filled = -(-size // parts) * parts
    padding = tuple((0, filled - size) if a == axis else (0, 0) for a in range(len(source.shape)))
    padded = UOp(Ops.PAD, source.dtype, (source,), padding)
    if op is not Ops.ADD:
        ones = tuple(filled if a == axis else 1 for a in range(len(source.shape)))
        position = UOp(Ops.RESHAPE, dtypes.int64, (UOp(Ops.IOTA, dtypes.int64, (), (filled,)),), ones)
        everywhere = UOp(Ops.EXPAND, dtypes.int64, (position,), padded.shape)
        identity = const(source.dtype, reduce_identity(op, source.dtype))
        padded = (everywhere < size).where(padded, identity)
    return _split_axis(node, padded, axis, parts, is_stored)
