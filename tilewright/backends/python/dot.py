"""What DOT and TILE_DOT mean. In: the memories, starts, rows and columns of one node as arrays. Out: its values.
However a card multiplies matrices, this sum, one step after another, is what it is compared with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tilewright.backends.python import access
from tilewright.backends.python.access import Site
from tilewright.backends.python.memory import View
from tilewright.graph.interpreter.evaluate import numpy_dtype
from tilewright.graph.interpreter.numpy_math import Array
from tilewright.graph.uop import UOp


def compute_dot(site: Site, node: UOp, memories: Sequence[View], numbers: Sequence[Array]) -> Array:
    """`numbers` are start in left, start in right, row and column."""
    left_start, right_start, row, column = (number.astype(np.int64) for number in numbers)
    argument, dtype = node.arg, numpy_dtype(node.dtype)
    places = (
        (memories[0], left_start + row * argument.left[0], argument.left[1], row < argument.rows),
        (memories[1], right_start + column * argument.right[0], argument.right[1], column < argument.columns),
    )
    total = np.zeros(np.broadcast_shapes(row.shape, column.shape, left_start.shape, right_start.shape), dtype)
    for step in range(argument.length):
        left, right = (
            access.load(site, view, start + step * distance, np.broadcast_to(inside, start.shape), None).astype(dtype)
            for view, start, distance, inside in places
        )
        total = total + left * right
    return total


def compute_tile_dot(site: Site, node: UOp, memories: Sequence[View], row: Array, column: Array) -> Array:
    """Both tiles are in local memory, which every thread of the work-group reads."""
    argument, dtype = node.arg, numpy_dtype(node.dtype)
    total = np.zeros((1,) * row.ndim, dtype)
    for step in range(argument.length):
        left, right = (
            access.load(site, view, np.asarray(layout.position(own.astype(np.int64), step)), None, None).astype(dtype)
            for view, layout, own in zip(memories, (argument.left, argument.right), (row, column), strict=True)
        )
        total = total + left * right
    return total
