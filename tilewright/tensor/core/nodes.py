"""Movements made of several nodes. In: nodes and checked arguments. Out: nodes.
Windows, joins and masks are written so that the index of an element stays affine wherever that is possible: no
division is left once bounds are known. Nothing here raises for a user: tensor methods have checked before."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.dtype import DType, Scalar, dtypes
from tilewright.graph import build
from tilewright.graph.build import Pairs
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import larger_size, min_size
from tilewright.graph.slices import cat, pad_axis, replace_axis, slice_axis
from tilewright.graph.spec import Kind, Shape
from tilewright.graph.symbolic import capacity
from tilewright.graph.uop import UOp

# Read from here by every family of operations, beside the movements below.
__all__ = ["cat", "pad_axis", "replace_axis", "slice_axis"]

_STEPS_IN_KERNEL = 4


def move_to_last(node: UOp, axis: int) -> UOp:
    """One axis moved after the others, which keep their order."""
    return build.permute(node, (*(k for k in range(len(node.shape)) if k != axis), axis))


def move_from_last(node: UOp, axis: int) -> UOp:
    """The last axis put back to where `move_to_last` took it from."""
    order = list(range(len(node.shape) - 1))
    order.insert(axis, len(node.shape) - 1)
    return build.permute(node, tuple(order))


def repeat(node: UOp, counts: Shape) -> UOp:
    """The node repeated as a whole: each axis becomes (count, size), where count is an expanded axis of size 1."""
    shape = (1,) * (len(counts) - len(node.shape)) + node.shape
    apart = tuple(size for own in shape for size in (1, own))
    wide = tuple(size for pair in zip(counts, shape) for size in pair)
    widened = build.expand(build.reshape(node, apart), wide)
    return build.reshape(widened, tuple(count * size for count, size in zip(counts, shape)))


# ---------------------------------------------------------------- windows


def pool(node: UOp, kernel: Shape, stride: Shape, dilation: Shape) -> UOp:
    """Windows over the last axes: (..., outputs of each axis, kernel of each axis)."""
    count = len(kernel)
    first = len(node.shape) - count
    for number in range(count):
        node = windows(node, first + 2 * number, kernel[number], stride[number], dilation[number])
    outputs = range(first, first + 2 * count, 2)
    return build.permute(node, (*range(first), *outputs, *(axis + 1 for axis in outputs)))


def shift_rows(node: UOp, axis: int, gap: int) -> UOp:
    """Element (k, i) of the axis before this one and of this one is (k, i + k * gap), for all i that have one."""
    count, size = node.shape[axis - 1 : axis + 1]
    flat = build.reshape(node, (*node.shape[: axis - 1], count * size, *node.shape[axis + 1 :]))
    longer = pad_axis(flat, axis - 1, 0, count * gap)
    longer = build.reshape(longer, replace_axis(flat.shape, axis - 1, count, size + gap))
    return slice_axis(longer, axis, 0, size - gap * (count - 1))


def output_size(size: int, kernel: int, stride: int, dilation: int) -> int:
    """How many windows lie wholly inside an axis."""
    return max(0, -(-(size - dilation * (kernel - 1)) // stride))


def windows(node: UOp, axis: int, kernel: int, stride: int, dilation: int) -> UOp:
    """One axis becomes (outputs, kernel), element (o, k) being number o*stride + k*dilation of the axis."""
    size = node.shape[axis]
    outputs = output_size(size, kernel, stride, dilation)
    if outputs == 0 or kernel == 0:
        return nothing_of(node, replace_axis(node.shape, axis, outputs, kernel))
    if kernel == 1 or (kernel <= stride and dilation == 1):
        return _separate_windows(node, axis, kernel, stride, outputs)
    return _overlapping_windows(node, axis, kernel, stride if capacity(outputs) > 1 else 1, dilation, outputs)


def _separate_windows(node: UOp, axis: int, kernel: int, stride: int, outputs: int) -> UOp:
    """Windows that do not overlap are the beginnings of rows of `stride` elements."""
    size = node.shape[axis]
    if outputs == 1:
        stride = kernel
    node = pad_axis(node, axis, 0, larger_size(0, outputs * stride - size))
    node = slice_axis(node, axis, 0, outputs * stride)
    rows = build.reshape(node, replace_axis(node.shape, axis, outputs, stride))
    return slice_axis(rows, axis + 1, 0, kernel)


def _overlapping_windows(node: UOp, axis: int, kernel: int, stride: int, dilation: int, outputs: int) -> UOp:
    """The axis is repeated until it can be laid out as rows of length size + dilation, one for each k: row k then
    begins k*dilation further on than the axis does, so an element's index is o*stride + k*dilation without division."""
    # No window reads the zeros. Positions of the repeated axis then have the same remainder modulo the stride in each
    # copy, so that gradients, which ask for the windows at a position, do too. In the rest of a row, which is cut off,
    # there is room for a last window's step: a position that a row does not have lies there, whatever its remainder.
    least = larger_size(node.shape[axis], outputs * stride + (kernel - 1) * dilation)
    size = -(-least // stride) * stride
    node = pad_axis(node, axis, 0, size - node.shape[axis])
    span = size + dilation
    # A count that is the same for all values of a symbolic size keeps the shapes below products of few factors.
    copies = kernel - (-kernel * dilation // max(1, min_size(size)))
    node = repeat(node, tuple(copies if k == axis else 1 for k in range(len(node.shape))))
    node = slice_axis(node, axis, 0, kernel * span)
    node = build.reshape(node, replace_axis(node.shape, axis, kernel, span))
    node = slice_axis(node, axis + 1, 0, outputs * stride)
    node = build.reshape(node, replace_axis(node.shape, axis + 1, outputs, stride))
    node = slice_axis(node, axis + 2, 0, 1)
    node = build.reshape(node, replace_axis(node.shape, axis + 2))
    order = list(range(len(node.shape)))
    order[axis], order[axis + 1] = axis + 1, axis
    return build.permute(node, tuple(order))


# ---------------------------------------------------------------- padding and joining


def pad_with(node: UOp, pairs: Pairs, value: Scalar) -> UOp:
    """Padding with any value: selected where the padding is, never added."""
    padded = build.pad(node, pairs)
    fill = build.const(node.dtype, value)
    if padded is node or repr(fill.arg) in ("0", "0.0", "False"):
        return padded
    inside = build.pad(build.const(dtypes.bool, True, node.shape), pairs)
    return build.where(inside, padded, fill)


def pad_by_mode(node: UOp, axis: int, before: int, after: int, mode: str) -> UOp:
    """Padding one axis with its own elements: mirrored, the last one repeated, or wrapped around."""
    size = node.shape[axis]
    if mode == "circular":
        parts = (slice_axis(node, axis, size - before, size), slice_axis(node, axis, 0, after))
    elif mode == "reflect":
        head = build.flip(slice_axis(node, axis, 1, before + 1), (axis,))
        parts = (head, build.flip(slice_axis(node, axis, size - 1 - after, size - 1), (axis,)))
    else:
        first, last = slice_axis(node, axis, 0, 1), slice_axis(node, axis, size - 1, size)
        parts = (
            build.expand(first, replace_axis(node.shape, axis, before)),
            build.expand(last, replace_axis(node.shape, axis, after)),
        )
    return cat((parts[0], node, parts[1]), axis)


def nothing_of(node: UOp, shape: Shape) -> UOp:
    """A shape without elements, made of a node: it depends on the node as any result does, so gradients reach it."""
    return build.reshape(build.shrink(node, ((0, 0),) * len(node.shape)) if node.shape else node, shape)


# ---------------------------------------------------------------- masks


def triangle_mask(shape: Shape, diagonal: int, upper: bool) -> UOp:
    """Where column - row >= diagonal (upper), or <= diagonal, in the last two axes."""
    rows = build.axis_iota(shape, len(shape) - 2)
    columns = build.axis_iota(shape, len(shape) - 1)
    dtype = rows.dtype if rows.dtype.bits >= columns.dtype.bits else columns.dtype
    rows, columns = build.cast(rows, dtype), build.cast(columns, dtype)
    if upper:
        moved = build.alu(Ops.ADD, rows, build.const(dtype, diagonal - 1))
        return build.alu(Ops.CMPLT, moved, columns)
    moved = build.alu(Ops.ADD, rows, build.const(dtype, diagonal + 1))
    return build.alu(Ops.CMPLT, columns, moved)


# ---------------------------------------------------------------- bisection


def gather_last(node: UOp, indices: UOp) -> UOp:
    """node[..., indices[..., k]] for nodes that share all axes but the last."""
    outer = range(len(node.shape) - 1)
    return build.gather(node, *(build.axis_iota(indices.shape, axis) for axis in outer), indices)


def read_rows(node: UOp, indices: UOp) -> UOp:
    """As `gather_last`, from the node as one row: cheaper, with one check for all axes, so an index outside of its
    row reads some other row."""
    rows, width = math.prod(node.shape[:-1]), node.shape[-1]
    flat = build.reshape(node, (rows * width,))
    dtype = dtypes.int32 if rows * width <= 1 << 31 else dtypes.int64
    start = build.const(dtype, 0, indices.shape)
    for axis in range(len(node.shape) - 1):
        start = start * node.shape[axis] + build.cast(build.axis_iota(indices.shape, axis), dtype)
    return build.gather(flat, build.alu(Ops.ADD, start * width, build.cast(indices, dtype)))


def bisect(start: UOp, span: int, fits: Callable[[UOp], UOp]) -> UOp:
    """The greatest number in start..start+span that fits, where all below it do. Numbers are stored every few steps: a
    step reads memory at an index that the step before has found, and planning many such steps as one kernel is slow."""
    number = start
    for step, bit in enumerate(reversed(range(span.bit_length())), start=1):
        probe = number + (1 << bit)
        number = build.where(fits(probe), probe, number)
        if step % _STEPS_IN_KERNEL == 0:
            number = build.contiguous(number)
    return number


def count_first(rows: UOp, wanted: UOp, belongs: Callable[[UOp], UOp]) -> UOp:
    """How many elements of each sorted row come before each wanted number, by bisection. `belongs` says of one whether
    it does."""
    size = rows.shape[-1]

    def fits(count: UOp) -> UOp:
        is_inside = build.alu(Ops.CMPLT, count, build.const(count.dtype, size + 1))
        return is_inside & belongs(read_rows(rows, count - 1))

    return bisect(build.const(dtypes.int32, 0, wanted.shape), size, fits)


def count_not_greater(rows: UOp, wanted: UOp) -> UOp:
    """How many elements of each sorted row are not greater than each wanted number."""
    return count_first(rows, wanted, lambda element: (wanted < element).logical_not())


# ---------------------------------------------------------------- bits

UNSIGNED = {8: dtypes.uint8, 16: dtypes.uint16, 32: dtypes.uint32, 64: dtypes.uint64}


def _shifts(shape: Shape, bits: int, dtype: DType) -> UOp:
    """How far the k-th part of the last axis lies from the lowest bit."""
    number = build.cast(build.axis_iota(shape, len(shape) - 1), dtype)
    return build.alu(Ops.MUL, number, build.const(dtype, bits))


def bits_as(node: UOp, dtype: DType) -> UOp:
    """The bits of a node read as another dtype; with another width, the last axis grows or shrinks accordingly."""
    if dtype.bits == node.dtype.bits:
        return build.bitcast(node, dtype)
    return join_bits(node, dtype) if dtype.bits > node.dtype.bits else split_bits(node, dtype)


def split_bits(node: UOp, dtype: DType) -> UOp:
    """Each element as several of a narrower dtype, low bits first, along the last axis."""
    wide, narrow = UNSIGNED[node.dtype.bits], UNSIGNED[dtype.bits]
    ratio = wide.bits // narrow.bits
    shape = (*node.shape, ratio)
    repeated = build.expand(build.reshape(build.bitcast(node, wide), (*node.shape, 1)), shape)
    parts = build.alu(Ops.SHR, repeated, _shifts(shape, narrow.bits, wide))
    flat = build.reshape(build.cast(parts, narrow), (*node.shape[:-1], node.shape[-1] * ratio))
    return build.bitcast(flat, dtype)


def join_bits(node: UOp, dtype: DType) -> UOp:
    """Several elements along the last axis, low bits first, as one of a wider dtype."""
    narrow, wide = UNSIGNED[node.dtype.bits], UNSIGNED[dtype.bits]
    ratio = wide.bits // narrow.bits
    shape = (*node.shape[:-1], node.shape[-1] // ratio, ratio)
    parts = build.cast(build.reshape(build.bitcast(node, narrow), shape), wide)
    placed = build.alu(Ops.SHL, parts, _shifts(shape, narrow.bits, wide))
    # The parts have no bits in common, so their sum is their union.
    joined = build.reduce_axis(Ops.ADD, placed, (len(shape) - 1,))
    return build.bitcast(build.reshape(joined, shape[:-1]), dtype)


def without_storing(node: UOp) -> UOp:
    """A view of a value that is stored as it is, as the same view of the value itself."""
    if node.op is Ops.CONTIGUOUS:
        return node.src[0]
    if node.op.kind is not Kind.MOVEMENT:
        return node
    return build.movement(node.op, without_storing(node.src[0]), node.arg)
