"""Bits of one vector inserted below those of another. In: an OR of a vector of bytes. Out: its operands where one
instruction shifts the second to the right and inserts it: `high | low >> 4`, where `high` has no bits below.

LLVM takes the OR as an addition, and shifts and adds in an instruction that is slower on some processors."""

from __future__ import annotations

from tilewright.base.records import NamedTuple
from tilewright.codegen.tiles import is_tile_expression, tile_value
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

_BYTE = 0xFF


class Insertion(NamedTuple):
    high: UOp
    low: UOp
    amount: int


def find_insertion(node: UOp, at: dict[UOp, int]) -> Insertion | None:
    """The insertion that an OR of bytes is, at some coordinates of its tile."""
    if node.op is not Ops.OR or node.dtype.itemsize != 1:
        return None
    for high, shifted in (node.src, node.src[::-1]):
        low, amount, mask = _shifted(shifted, at)
        below = _BYTE >> amount
        if 0 < amount < 8 and mask & below == below and not _bits(high, at) & below:
            return Insertion(high, low, amount)
    return None


def _shifted(node: UOp, at: dict[UOp, int]) -> tuple[UOp, int, int]:
    """What a node shifts to the right, by how much, and the mask of the result."""
    node, mask = _masked(node, at)
    if node.op is not Ops.SHR or not node.dtype.is_unsigned:
        return node, 0, mask
    amount = _constant(node.src[1], at)
    return node.src[0], 0 if amount is None else amount, mask


def _bits(node: UOp, at: dict[UOp, int]) -> int:
    """The bits that may be set."""
    if node.op is Ops.SHL and (amount := _constant(node.src[1], at)) is not None:
        return _bits(node.src[0], at) << amount & _BYTE
    return _masked(node, at)[1]


def _masked(node: UOp, at: dict[UOp, int]) -> tuple[UOp, int]:
    """What a node masks, and the mask."""
    for number, source in enumerate(node.src if node.op is Ops.AND else ()):
        mask = _constant(source, at)
        if mask is not None:
            return node.src[1 - number], mask & _BYTE
    return node, _BYTE


def _constant(node: UOp, at: dict[UOp, int]) -> int | None:
    """The value of an operand that is the same for all lanes and terms of a vector."""
    if node.is_const:
        return int(node.arg)
    if not is_tile_expression(node) or any(axis not in at for axis in node.ranges):
        return None
    return tile_value(node, at)
