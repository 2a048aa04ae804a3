"""Products summed in parts on a card. In: the sum of a product with fewer tiles than the card has cores. Out: sums of
parts of it, each with tiles of its own, and their sum. `reduction.py` splits all other reductions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from tilewright.base.costs import memory_clocks
from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import without_casts
from tilewright.schedule.preparation.contiguous import contiguous_axes

# The most parts of an axis on a device with work-groups; and at most one element in MAX_PADDING is padding.
MAX_GROUP_PARTS = 1024
MAX_PADDING = 8
# Estimates of a product on tensor cores: rows and columns of a tile, and operations per core and clock with short
# floats; the fewest terms of a part; the fraction of its peak that a core reaches with float32; bytes per core and
# clock from the shared cache; and the estimated speedup from which the product is split.
WHOLE_TILES = ((128, 128, 3500.0), (128, 256, 3500.0))
MIN_SUMMED = 256
FLOAT_EFFICIENCY = 0.75
CACHE_BYTES = 40.0
MIN_SPLIT_GAIN = 1.25
# The same for windows along an axis of whole vectors, which are staged element by element once they are padded.
MIN_MASKED_GAIN = 3.0
VECTOR_BYTES = 16
# The same tiles where a factor is windows, which threads stage: a core reaches this many operations with several tiles
# at a time, and this fraction of them with one. Measured on an H200, in gradients of weights.
WINDOW_TILES = ((64, 64, 1650.0), (64, 128, 2000.0), (128, 128, 2300.0))
LONE_TILE = 0.62
# Rows of partial sums with fewer bytes are not stored in the order of the result: each is a line of memory of its own.
MIN_ROW_BYTES = 128


def fill_cores(node: UOp, target: Target) -> UOp | None:
    """Sums a matrix product with fewer tiles than the card has cores in parts, each with its own tiles. The partial
    results are written and read once more; the number of parts has the least estimate. Where parts would not be equal,
    or not aligned to vectors, the axis is padded with zeros: factors are copied with the padding, windows are
    masked."""
    source = node.src[0]
    op, axes = node.arg
    if op is not Ops.ADD or node.dtype not in (dtypes.float32, dtypes.float64):
        return None
    axis = max(axes, key=lambda a: source.shape[a])
    is_whole = all(_is_whole(factor.src[0]) for factor in _factors(source))
    # Windows are padded only where no equal parts are faster: their padding is a mask for each element.
    parts, wide = _choose_parts(node, axis, is_whole, MIN_SPLIT_GAIN, target)
    if parts == 1 and not is_whole:
        has_vectors = source.shape[axis] % _lanes_of(source) == 0
        parts, wide = _choose_parts(node, axis, True, MIN_MASKED_GAIN if has_vectors else MIN_SPLIT_GAIN, target)
    if parts == 1:
        return None
    moved = tuple(sorted((axis + 1, *(a + 1 for a in axes if a != axis))))
    sums = build.reduce_axis(Ops.ADD, _in_parts(source, axis, parts, wide), moved)
    last = 1 + _stored_last(node)
    order = (*(a for a in range(len(sums.shape)) if a != last), last)
    # Stored, because a short sum of sums would be fused into one kernel again.
    total = build.reduce_axis(Ops.ADD, build.contiguous(build.permute(sums, order)), (0,))
    return build.reshape(build.permute(total, tuple(map(order.index, range(len(order))))), node.shape)


def _stored_last(node: UOp) -> int:
    """The axis along which partial sums are contiguous: the last one of the result, or the longest one of the same
    factor. The gradient of a convolution's weights ends with the taps, which are few."""
    end = len(node.shape) - 1
    long = [axis for axis, size in enumerate(node.shape) if size > 1]
    if not long or node.shape[long[-1]] * node.dtype.itemsize >= MIN_ROW_BYTES:
        return end
    first, second = ({axis for axis in long if f.src[0].shape[axis] > 1} for f in _factors(node.src[0]))
    own = first - second if long[-1] in first else second - first
    longest = max(own, key=lambda axis: (node.shape[axis], axis), default=end)
    return longest if long[-1] in own and longest != long[-1] else end


def _choose_parts(node: UOp, axis: int, may_pad: bool, gain: float, target: Target) -> tuple[int, int]:
    """The number of parts with the least estimate, 1 where they gain less than asked for, and the length of the axis,
    which is padded where it `may_pad`."""
    source, (_, axes) = node.src[0], node.arg
    size, length = source.shape[axis], max_count(source.shape) // max_count(node.shape)
    sides = _sides_of(source, axes)
    best, wide = (_product_clocks(node, sides, length, 1, target) / gain, 1), size
    lanes = _lanes_of(source) if axis in contiguous_axes(source) else 1
    copied = [factor.src[0] for factor in _factors(source) if _is_whole(factor.src[0])]
    moved = sum(2 * max_count(each.shape) * _loaded_dtype(each).itemsize for each in copied)
    copies = memory_clocks(moved, target) + target.launch_clocks
    for parts in range(2, min(MAX_GROUP_PARTS, size, length // MIN_SUMMED) + 1):
        is_equal = size % (parts * math.gcd(size, lanes)) == 0
        padded = size if is_equal else -(-size // (parts * lanes)) * parts * lanes
        if padded > size and not (may_pad and (padded - size) * MAX_PADDING <= padded):
            continue
        clocks = _product_clocks(node, sides, length * padded // size, parts, target) + (0 if is_equal else copies)
        if (clocks, parts) < best:
            best, wide = (clocks, parts), padded
    return best[1], wide


def _lanes_of(source: UOp) -> int:
    return VECTOR_BYTES // min(_loaded_dtype(factor).itemsize for factor in _factors(source))


def _is_whole(view: UOp) -> bool:
    """Whether a view has as many elements as what it is a view of: windows have more."""
    node = view
    while node.op is Ops.CAST or node.op.kind is Kind.MOVEMENT:
        node = node.src[0]
    return max_count(node.shape) >= max_count(view.shape)


def _in_parts(node: UOp, axis: int, parts: int, size: int) -> UOp:
    """A product with an axis, filled up with zeros to `size`, split in parts, which become the first axis, so that the
    partial sums of a part are contiguous."""
    if node.op is not Ops.EXPAND:
        return node.replace(src=tuple(_in_parts(src, axis, parts, size) for src in node.src))
    given, wide = node.src[0], node.shape
    number = parts if given.shape[axis] > 1 else 1
    if number > 1 and size > given.shape[axis]:
        more = tuple((0, size - given.shape[axis] if a == axis else 0) for a in range(len(wide)))
        # Copied as it is loaded: a cast before a product widens it.
        short = build.pad(build.cast(given, _loaded_dtype(given)), more)
        given = build.cast(build.contiguous(short) if _is_whole(given) else short, given.dtype)
    split = build.reshape(given, (*given.shape[:axis], number, given.shape[axis] // number, *given.shape[axis + 1 :]))
    first = build.permute(split, (axis, *(a for a in range(len(split.shape)) if a != axis)))
    return build.expand(first, (parts, *wide[:axis], size // parts, *wide[axis + 1 :]))


def _product_clocks(node: UOp, sides: tuple[int, int, int], length: int, parts: int, target: Target) -> float:
    batch, rows, columns = sides
    depth = length / parts
    is_short = all(_loaded_dtype(factor).itemsize < dtypes.float32.itemsize for factor in _factors(node.src[0]))
    peaks = [core.operations_per_clock for core in target.tensor_cores if core.operand is dtypes.float32]
    has_windows = is_short and not all(_is_whole(factor.src[0]) for factor in _factors(node.src[0]))
    nbytes = 2 if is_short else 4
    best = float("inf")
    for height, width, operations in WINDOW_TILES if has_windows else WHOLE_TILES:
        waves = -(-batch * parts * -(-rows // height) * -(-columns // width) // target.cores)
        if peaks and not is_short:
            operations = FLOAT_EFFICIENCY * max(peaks)
        elif has_windows and waves == 1:
            operations *= LONE_TILE
        held = (min(rows, height) + min(columns, width)) * nbytes
        best = min(best, waves * depth * max(2 * height * width / operations, held / CACHE_BYTES))
    combined = memory_clocks(parts * batch * rows * columns * 2 * node.dtype.itemsize, target) + target.launch_clocks
    return best + (combined if parts > 1 else 0)


def _sides_of(source: UOp, axes: tuple[int, ...]) -> tuple[int, int, int]:
    """How many elements of the batch, rows and columns a product has; there are no fewer rows than columns."""
    first, second = (factor.src[0].shape for factor in _factors(source))
    batch = rows = columns = 1
    for axis, size in enumerate(source.shape):
        if axis in axes:
            continue
        if first[axis] == size == second[axis]:
            batch *= size
        elif first[axis] == size:
            rows *= size
        else:
            columns *= size
    return batch, max(rows, columns), min(rows, columns)


def _factors(source: UOp) -> tuple[UOp, UOp]:
    """The two EXPANDs that a product is made of."""
    first, second = without_casts(source).src
    return without_casts(first), without_casts(second)


def _loaded_dtype(node: UOp) -> DType:
    """The dtype of a factor as a core takes it: a cast before a product widens what is loaded."""
    found = node.dtype
    while node.op is Ops.CAST or node.op.kind is Kind.MOVEMENT:
        node = node.src[0]
        found = min(found, node.dtype, key=lambda dtype: dtype.itemsize)
    return found


def is_product(source: UOp, axes: tuple[int, ...]) -> bool:
    """Whether a value is a product of two factors, each of which is broadcast along an axis that is not summed."""
    source = without_casts(source)
    return source.op is Ops.MUL and all(_is_spread(factor, axes) for factor in source.src)


def _is_spread(factor: UOp, axes: tuple[int, ...]) -> bool:
    factor = without_casts(factor)
    if factor.op is not Ops.EXPAND:
        return False
    before = factor.src[0].shape
    return any(own < wide and axis not in axes for axis, (own, wide) in enumerate(zip(before, factor.shape)))


def computed_factors(nodes: Iterable[UOp]) -> set[UOp]:
    """The values that are computed, and are factors of several products: each is stored before, in its own order."""
    found: Counter[UOp] = Counter()
    for node in nodes:
        if node.op is not Ops.REDUCE_AXIS or is_symbolic(node.src[0].shape):
            continue
        if is_product(node.src[0], node.arg[1]):
            found.update(_stored_below(factor) for factor in _factors(node.src[0]))
    return {node for node, count in found.items() if count > 1 and node.op.is_elementwise}


def _stored_below(factor: UOp) -> UOp:
    """What is stored of a factor: conversions to a wider dtype and views are computed where it is read."""
    while factor.op.kind is Kind.MOVEMENT or (
        factor.op is Ops.CAST and factor.dtype.itemsize > factor.src[0].dtype.itemsize
    ):
        factor = factor.src[0]
    return factor
