"""Bounds of integer values. In: a node with integer or bool dtype. Out: (least, greatest), never too narrow.
The simplifier, index-width choice and mask removal stand on these; a wider answer is always allowed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable

from tilewright.base.dtype import DType, dtypes
from tilewright.graph.spec import Bounds, Node

# Index maths is unbounded, but no device indexes beyond 64 bits: bounds stop growing at twice that width.
INDEX_LIMIT = 1 << 127


_LIMITS: dict[DType, Bounds] = {
    dtypes.index: (-INDEX_LIMIT, INDEX_LIMIT),
    dtypes.void: (0, 0),
    **dict.fromkeys(dtypes.floats, (-math.inf, math.inf)),
    **{dtype: (int(dtype.min), int(dtype.max)) for dtype in (dtypes.bool, *dtypes.ints)},
}


def dtype_bounds(dtype: DType) -> Bounds:
    return _LIMITS[dtype]


def any_value(node: Node) -> Bounds:
    return dtype_bounds(node.dtype)


def bounds_of(node: Node) -> Bounds:
    """What `UOp.bounds` caches: the op's rule where the dtype is integer and the result cannot have wrapped."""
    rule = node.op.bounds
    dtype = node.dtype
    limit_low, limit_high = limits = _LIMITS[dtype]
    if rule is None or dtype.is_float or dtype is dtypes.void:
        return limits
    low, high = rule(node)
    if dtype is dtypes.index:
        return (low if abs(low) <= INDEX_LIMIT else limit_low, high if abs(high) <= INDEX_LIMIT else limit_high)
    if low < limit_low or high > limit_high:
        return limits
    return (low, high)


def const_bounds(node: Node) -> Bounds:
    value = node.arg
    return (int(value), int(value)) if not isinstance(value, float) else any_value(node)


def variable_bounds(node: Node) -> Bounds:
    return (node.arg[1], node.arg[2])


def range_bounds(node: Node) -> Bounds:
    """A loop whose size is computed may have no iteration, so its counter stays a variable where one iteration is the
    most: as the constant 0 it would free what depends on it from the loop."""
    size = node.src[0]
    return (0, max(int(size.bounds[1]) - 1, 0 if size.is_const else 1))


def size_bounds(node: Node) -> Bounds:
    bounds: Bounds = node.arg.node.bounds
    return bounds


def iota_bounds(node: Node) -> Bounds:
    size = node.arg[0]
    return (0, max((size if isinstance(size, int) else size.greatest) - 1, 0))


def add_bounds(node: Node) -> Bounds:
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    return (low + other_low, high + other_high)


def sub_bounds(node: Node) -> Bounds:
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    return (low - other_high, high - other_low)


def neg_bounds(node: Node) -> Bounds:
    low, high = node.src[0].bounds
    return (-high, -low)


def mul_bounds(node: Node) -> Bounds:
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    if other_low == other_high:
        return (low * other_low, high * other_low) if other_low >= 0 else (high * other_low, low * other_low)
    corners = (low * other_low, low * other_high, high * other_low, high * other_high)
    return (min(corners), max(corners))


def idiv_bounds(node: Node) -> Bounds:
    (low, high), (divisor_low, divisor_high) = node.src[0].bounds, node.src[1].bounds
    if divisor_low <= 0 <= divisor_high:
        # Division by zero gives 0 and any other quotient is no larger than the dividend.
        largest = max(abs(low), abs(high))
        return (-largest, largest)
    corners = [a // b for a in (low, high) for b in (divisor_low, divisor_high)]
    return (min(corners), max(corners))


def mod_bounds(node: Node) -> Bounds:
    (low, high), (divisor_low, divisor_high) = node.src[0].bounds, node.src[1].bounds
    if divisor_low > 0:
        if divisor_low == divisor_high and low // divisor_low == high // divisor_low:
            return (low % divisor_low, high % divisor_low)
        if 0 <= low and high < divisor_low:
            return (low, high)
        return (0, min(divisor_high - 1, high) if low >= 0 else divisor_high - 1)
    return (min(divisor_low + 1, 0), max(divisor_high - 1, 0))


def max_bounds(node: Node) -> Bounds:
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    return (max(low, other_low), max(high, other_high))


def min_bounds(node: Node) -> Bounds:
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    return (min(low, other_low), min(high, other_high))


def where_bounds(node: Node) -> Bounds:
    condition, yes, no = node.src
    if condition.bounds[0] == 1:
        return yes.bounds
    if condition.bounds[1] == 0:
        return no.bounds
    return (min(yes.bounds[0], no.bounds[0]), max(yes.bounds[1], no.bounds[1]))


def cat_bounds(node: Node) -> Bounds:
    bounds = [src.bounds for src in node.src]
    return (min(low for low, _ in bounds), max(high for _, high in bounds))


def lt_bounds(node: Node) -> Bounds:
    left, right = node.src
    if left.dtype.is_float:
        return (0, 1)
    (low, high), (other_low, other_high) = left.bounds, right.bounds
    return (int(high < other_low), int(low < other_high))


def eq_bounds(node: Node) -> Bounds:
    left, right = node.src
    if left.dtype.is_float:
        return (0, 1)
    if left is right:
        return (1, 1)
    (low, high), (other_low, other_high) = left.bounds, right.bounds
    if high < other_low or other_high < low:
        return (0, 0)
    return (int(low == high == other_low == other_high), 1)


def ne_bounds(node: Node) -> Bounds:
    low, high = eq_bounds(node)
    return (1 - int(high), 1 - int(low)) if not node.src[0].dtype.is_float else (0, 1)


def and_bounds(node: Node) -> Bounds:
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    if node.dtype.is_bool:
        return (low * other_low, high * other_high)
    # A non-negative operand leaves none but its own bits, whatever the sign of the other.
    limits = [top for bottom, top in ((low, high), (other_low, other_high)) if bottom >= 0]
    return (0, min(limits)) if limits else any_value(node)


def or_bounds(node: Node) -> Bounds:
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    if node.dtype.is_bool:
        return (max(low, other_low), max(high, other_high))
    if low >= 0 and other_low >= 0:
        return (max(low, other_low), (1 << int(max(high, other_high)).bit_length()) - 1)
    return any_value(node)


def xor_bounds(node: Node) -> Bounds:
    (low, high), (other_low, other_high) = node.src[0].bounds, node.src[1].bounds
    if low >= 0 and other_low >= 0:
        return (0, (1 << int(max(high, other_high)).bit_length()) - 1)
    return any_value(node)


def _shifted_bounds(node: Node, shift: Callable[[int, int], int]) -> Bounds:
    """Of a shift by less than the width; `bounds_of` drops what may have wrapped."""
    (low, high), (fewest, most) = node.src[0].bounds, node.src[1].bounds
    if fewest < 0 or most >= node.dtype.bits:
        return any_value(node)
    found = [shift(int(value), int(amount)) for value in (low, high) for amount in (fewest, most)]
    return (min(found), max(found))


def shl_bounds(node: Node) -> Bounds:
    return _shifted_bounds(node, operator.lshift)


def shr_bounds(node: Node) -> Bounds:
    return _shifted_bounds(node, operator.rshift)


def reduce_bounds(node: Node) -> Bounds:
    """Of a sum of at most as many values as its loops have iterations; of nothing, it is 0."""
    if node.arg.name != "ADD":
        return any_value(node)
    (low, high), count = node.src[0].bounds, math.prod(int(axis.bounds[1]) + 1 for axis in node.src[1:])
    return (min(low * count, 0), max(high * count, 0))


def check_bounds(node: Node) -> Bounds:
    low, high = node.src[0].bounds
    if low >= 0 or not node.arg.wraps:
        return (low, high)
    return (min(low + node.arg.size, 0), max(high, node.arg.size - 1))


def cast_bounds(node: Node) -> Bounds:
    source = node.src[0]
    if source.dtype.is_float:
        return any_value(node)
    low, high = source.bounds
    if node.dtype.is_bool:
        return (int(low > 0 or high < 0), int(low != 0 or high != 0))
    return (low, high)
