"""What DOT and TILE_DOT mean. In: the memories, starts, rows and columns of one node as arrays. Out: its values.
However a card multiplies matrices, this sum, one step after another, is what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.backends.python import access
from tilewright.backends.python.access import Site
from tilewright.backends.python.memory import View
from tilewright.base.errors import EmulatorError
from tilewright.graph.interpreter.evaluate import cast_array, numpy_dtype
from tilewright.graph.interpreter.numpy_math import Array
from tilewright.graph.uop import UOp


def compute_dot(site: Site, node: UOp, memories: Sequence[View], numbers: Sequence[Array]) -> Array:
    """`numbers` are start in left, start in right, row and column."""
    left_start, right_start, row, column = (number.astype(np.int64) for number in numbers)
    argument, dtype = node.arg, numpy_dtype(node.dtype)
    operands = (
        (memories[0], left_start + row * argument.left[0], argument.left[1], row < argument.rows),
        (memories[1], right_start + column * argument.right[0], argument.right[1], column < argument.columns),
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
    tile for each work-group."""
    argument, dtype = node.arg, numpy_dtype(node.dtype)
    total = np.zeros((1,) * row.ndim, dtype)
    row, column = row.astype(np.int64), column.astype(np.int64)
    groups = np.arange(site.groups.size).reshape(-1, *(1,) * (row.ndim - 1))
    for step in range(argument.length):
        if isinstance(left, View):
            ours = access.load(site, left, np.asarray(argument.left.position(row, step)), None, None)
        else:
            ours = left[groups, row, step]
        theirs = access.load(site, right, np.asarray(argument.right.position(column, step)), None, None)
        total = total + ours.astype(dtype) * theirs.astype(dtype)
    return total


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
    tile[groups, row, step] = cast_array(value, node.src[1].dtype).astype(tile.dtype)
    return tile
