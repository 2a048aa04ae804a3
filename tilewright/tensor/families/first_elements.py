"""The first few elements of short rows, for devices whose threads are CPU cores. In: integer keys and an axis. Out: the
indices of the k smallest along the axis, in ascending order.

A row is read k times: each pass finds the least element after the one that the pass before found. An element is
compared as one word, its key above its position, so that equal keys keep their order; where no word holds both, the
least key is found first, and then the first position that has it."""

from __future__ import annotations

from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.uop import UOp

# Clocks of a core for a vector of words in a pass; and for a sort of a row: for each digit of a key, to count values
# and to move an element; or, in a short row, to compare a vector of keys with one. Measured on a Neoverse N1 with rows
# of 16 to 250 keys of 1, 2 and 4 digits.
_PASS_CLOCKS = 4.0
_COUNT_CLOCKS, _MOVE_CLOCKS = 1350.0, 9.5
_RANK_CLOCKS = 8.0


def is_found_by_passes(keys: DType, size: int, k: int, target: Target) -> bool:
    """Whether k passes over a row take less time than a sort."""
    word = word_dtype(keys, size)
    passes = k * _PASS_CLOCKS * size / target.lanes(word or keys) * (1 if word else 2)
    ranks = _RANK_CLOCKS * size * size / target.lanes(dtypes.int32)
    return passes < min(ranks, keys.itemsize * (_COUNT_CLOCKS + _MOVE_CLOCKS * size))


def word_dtype(keys: DType, size: int) -> DType | None:
    """The least integer that holds a key and a position in a row; None where no integer does."""
    bits = keys.bits + (size - 1).bit_length()
    return next((dtype for dtype in (dtypes.int32, dtypes.int64) if bits < dtype.bits), None)


def first_by_passes(keys: UOp, axis: int, k: int) -> UOp:
    """The indices of the k smallest keys along an axis in ascending order, as int32."""
    word = word_dtype(keys.dtype, keys.shape[axis])
    return _first_pairs(keys, axis, k) if word is None else _first_words(keys, axis, k, word)


def _first_words(keys: UOp, axis: int, k: int, dtype: DType) -> UOp:
    below = (keys.shape[axis] - 1).bit_length()
    centred = build.cast(keys, dtype) - (1 << (keys.dtype.bits - 1) if keys.dtype.is_unsigned else 0)
    number = build.cast(build.axis_iota(keys.shape, axis), dtype)
    words = build.contiguous(build.alu(Ops.ADD, centred * (1 << below), number))
    found = [build.reduce_axis(Ops.MIN, words, (axis,))]
    for _ in range(1, k):
        is_behind = build.alu(Ops.CMPLT, build.expand(found[-1], words.shape), words)
        found.append(build.reduce_axis(Ops.MIN, build.where(is_behind, words, words.const_like(dtype.max)), (axis,)))
    return build.cast(_in_order(found, axis) & ((1 << below) - 1), dtypes.int32)


def _first_pairs(keys: UOp, axis: int, k: int) -> UOp:
    keys = build.contiguous(keys)
    shape, number = keys.shape, build.axis_iota(keys.shape, axis)
    is_behind = build.const(dtypes.bool, True, shape)
    found: list[UOp] = []
    for _ in range(k):
        left = build.where(is_behind, keys, keys.const_like(keys.dtype.max))
        least = build.expand(build.reduce_axis(Ops.MIN, left, (axis,)), shape)
        is_least = build.alu(Ops.CMPEQ, keys, least)
        places = build.where(is_behind & is_least, number, number.const_like(shape[axis]))
        found.append(build.reduce_axis(Ops.MIN, places, (axis,)))
        is_later = is_least & build.alu(Ops.CMPLT, build.expand(found[-1], shape), number)
        is_behind = build.alu(Ops.CMPLT, least, keys) | is_later
    return _in_order(found, axis)


def _in_order(found: list[UOp], axis: int) -> UOp:
    """One element for each index along an axis."""
    shape = (*found[0].shape[:axis], len(found), *found[0].shape[axis + 1 :])
    joined = build.expand(found[-1], shape)
    for count in range(len(found) - 1, 0, -1):
        is_before = build.axis_iota(shape, axis) < count
        joined = build.where(is_before, build.expand(found[count - 1], shape), joined)
    return joined
