"""What DOT and TILE_DOT mean. In: the memories, starts, rows and columns of one node as arrays. Out: its values.
However a card multiplies matrices, this sum, one step after another, is what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.backends.python import access
from tilewright.backends.python.access import Site
from tilewright.backends.python.launch import FIRST_TILE_AXIS
from tilewright.backends.python.memory import View
from tilewright.base.errors import EmulatorError
from tilewright.base.target import TileLayout
from tilewright.graph.interpreter.numpy_math import Array, cast_array, numpy_dtype
from tilewright.graph.uop import UOp

# Operands in parts are multiplied by it: the last bit of any float32 is then one that bfloat16 has.
PART_SCALE = np.float32(1 << 16)


def compute_dot(site: Site, node: UOp, memories: Sequence[View], numbers: Sequence[Array]) -> Array:
    """`numbers` are start in left, start in right, row, column and, where these are symbolic, rows and columns."""
    left_start, right_start, row, column, *limits = (number.astype(np.int64) for number in numbers)
    argument, dtype = node.arg, numpy_dtype(node.dtype)
    rows, columns = limits or (argument.rows, argument.columns)
    operands = (
        (memories[0], left_start + row * argument.left[0], argument.left[1], row < rows),
        (memories[1], right_start + column * argument.right[0], argument.right[1], column < columns),
    )
    total = np.zeros(np.broadcast_shapes(row.shape, column.shape, left_start.shape, right_start.shape), dtype)
    for step in range(argument.length):
        left, right = (
            access.load(site, view, start + step * distance, np.broadcast_to(inside, start.shape), None).astype(dtype)
            for view, start, distance, inside in operands
        )
        total = total + left * right
    return total


def compute_tile_dot(site: Site, node: UOp, left: View | Array, right: View, row: Array, column: Array) -> Array:
    """Tiles are in local memory, which every thread of the work-group reads; the left one may be an array with a
    tile for each work-group. The product of the tiles is computed once, and each thread takes its elements."""
    argument, dtype = node.arg, numpy_dtype(node.dtype)
    rows, own_row = np.unique(row.astype(np.int64), return_inverse=True)
    columns, own_column = np.unique(column.astype(np.int64), return_inverse=True)
    groups = np.arange(site.groups.size).reshape(-1, *(1,) * (row.ndim - 1))
    # Parts that are in memory are not scaled.
    is_split = argument.parts > 1 and right.node.dtype is not node.dtype
    planes, scale = (argument.parts, np.float32(1)) if is_split else (1, PART_SCALE)
    if isinstance(left, View):
        ours = _planes(site, left, argument.left, rows, argument.length, planes)
    else:
        ours = [left[:, rows]]
    theirs = _planes(site, right, argument.right, columns, argument.length, planes)
    factors = [
        (
            [each[:, :, step, None].astype(dtype) for each in ours],
            [each[:, None, :, step].astype(dtype) for each in theirs],
        )
        for step in range(argument.length)
    ]
    zero: Array = np.zeros((1, 1, 1), dtype)
    with np.errstate(all="ignore"):
        total = sum((sum(ours[1:], ours[0]) * sum(theirs[1:], theirs[0]) for ours, theirs in factors), zero)
    if argument.parts > 1:
        total = _with_parts(total, factors, argument.parts, scale)
    return np.asarray(total[groups, own_row.reshape(row.shape), own_column.reshape(column.shape)])


def _planes(site: Site, view: View, layout: TileLayout, numbers: Array, length: int, count: int) -> list[Array]:
    """The parts of the numbers in local memory, or the numbers themselves: for each work-group a row or column of each
    number, with all steps of the sum."""
    positions = layout.position(numbers[:, None], np.arange(length))
    index = site.launch.along(positions.reshape(-1), FIRST_TILE_AXIS)
    shape = (site.groups.size, *positions.shape)
    plane = view.size // count
    return [access.load(site, view, index + number * plane, None, None).reshape(shape) for number in range(count)]


def _with_parts(plain: Array, factors: Sequence[tuple[list[Array], ...]], parts: int, scale: np.float32) -> Array:
    """The sum of the products of parts, the smallest first; without those whose parts are numbers beyond `parts`, which
    are below the rounding of float32. Sums that are not finite are those of the factors themselves."""
    split = [[_split(each[0], parts, scale) if len(each) == 1 else each for each in both] for both in factors]
    total: Array = np.zeros(plain.shape, plain.dtype)
    with np.errstate(all="ignore"):
        for size in reversed(range(parts)):
            for ours, theirs in split:
                for mine in range(size + 1):
                    if ours[mine].any() and theirs[size - mine].any():  # most numbers of tests have one part
                        total = total + ours[mine] * theirs[size - mine]
        total = total / scale / scale
    return np.where(np.isfinite(total), total, plain)


def _split(value: Array, parts: int, scale: np.float32) -> list[Array]:
    """The scaled value as a sum of bfloat16 numbers, each rounded to the nearest, the largest first."""
    found = []
    with np.errstate(all="ignore"):
        rest = value * scale
        for _ in range(parts):
            bits = np.ascontiguousarray(rest).view(np.uint32)
            rounded = (bits + ((bits >> 16 & 1) + 0x7FFF).astype(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
            part = np.where(np.isnan(rest), rest, rounded)
            found.append(part)
            rest = rest - part
    return found


def gather_tile(site: Site, node: UOp, held: Sequence[Array], threads: tuple[int, int]) -> Array:
    """The tile of each work-group from the values that its threads hold, with their rows and their steps of the sum."""
    value, row, step = held
    shape = np.broadcast_shapes(value.shape, row.shape, step.shape, (*threads, *(1,) * (value.ndim - 2)))
    value, row, step = (np.broadcast_to(each, shape) for each in (value, row.astype(np.int64), step.astype(np.int64)))
    groups = np.broadcast_to(np.arange(shape[0]).reshape(-1, *(1,) * (len(shape) - 1)), shape)
    size = (shape[0], int(row.max()) + 1, node.arg.length)
    holders = np.zeros(size, np.int64)
    np.add.at(holders, (groups, row, step), 1)
    if (holders != 1).any():
        raise site.error(EmulatorError, "multiplies a tile of which the threads do not hold each element once")
    tile = np.zeros(size, numpy_dtype(node.dtype))
    rounded = value if node.arg.parts > 1 else cast_array(value, node.src[1].dtype)
    tile[groups, row, step] = rounded.astype(tile.dtype)
    return tile
