"""Maths on Python numbers with the meaning of the op specs. In: Python numbers. Out: Python numbers, not yet rounded to
a dtype. `numpy_math.py` has the same names on NumPy arrays; an op's `value` is written once for both."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tilewright.base.dtype import Scalar


class ScalarMath:
    """The scalar namespace `xp`. All functions are total: no input raises."""

    @staticmethod
    def where(condition: Scalar, yes: Scalar, no: Scalar) -> Scalar:
        return yes if condition else no

    @staticmethod
    def maximum(left: Scalar, right: Scalar) -> Scalar:
        if left != left or right != right:
            return math.nan
        if left == right == 0 and isinstance(left, float):
            return right if math.copysign(1.0, left) < 0 else left
        return left if left > right else right

    @staticmethod
    def minimum(left: Scalar, right: Scalar) -> Scalar:
        if left != left or right != right:
            return math.nan
        if left == right == 0 and isinstance(left, float):
            return left if math.copysign(1.0, left) < 0 else right
        return left if left < right else right

    @staticmethod
    def floor_divide(left: int, right: int) -> int:
        return left // right if right else 0

    @staticmethod
    def floor_modulo(left: int, right: int) -> int:
        return left % right if right else 0

    @staticmethod
    def divide(left: float, right: float) -> float:
        if right != 0:
            try:
                return left / right
            except OverflowError:
                return math.copysign(math.inf, left) * math.copysign(1.0, right)
        if left == 0 or left != left:
            return math.nan
        return math.copysign(math.inf, left) * math.copysign(1.0, right)

    @staticmethod
    def multiply(left: Any, right: Any) -> Any:
        return left * right

    @staticmethod
    def exp2(value: float) -> float:
        try:
            return float(2.0**value)
        except OverflowError:
            return math.inf

    @staticmethod
    def log2(value: float) -> float:
        if value > 0:
            return math.log2(value)
        return -math.inf if value == 0 else math.nan

    @staticmethod
    def sin(value: float) -> float:
        return math.sin(value) if math.isfinite(value) else math.nan

    @staticmethod
    def sqrt(value: float) -> float:
        return math.sqrt(value) if value >= 0 else (value if value == 0 else math.nan)

    @staticmethod
    def trunc(value: float) -> float:
        return math.copysign(float(math.trunc(value)), value) if math.isfinite(value) else value

    @staticmethod
    def rint(value: float) -> float:
        return math.copysign(float(round(value)), value) if math.isfinite(value) else value

    @staticmethod
    def shift_left(value: int, amount: int) -> int:
        return value << amount if 0 <= amount < 64 else 0

    @staticmethod
    def shift_right(value: int, amount: int) -> int:
        if 0 <= amount < 64:
            return value >> amount
        return -1 if value < 0 else 0

    @staticmethod
    def threefry(counter: int, key: int) -> int:
        mask = 0xFFFFFFFF
        first, second = threefry_words(
            (counter & mask, counter >> 32 & mask), (key & mask, key >> 32 & mask), lambda word: word & mask
        )
        return int(first | second << 32)


THREEFRY_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


def threefry_words(counter: tuple[Any, Any], key: tuple[Any, Any], wrap: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Threefry-2x32 with 20 rounds: the words of `counter` keyed by those of `key`, low ones first. Words are integers,
    arrays or nodes; `wrap` reduces a sum to 32 bits."""
    keys = (*key, key[0] ^ key[1] ^ 0x1BD11BDA)
    first, second = wrap(counter[0] + keys[0]), wrap(counter[1] + keys[1])
    for group in range(5):
        for rotation in THREEFRY_ROTATIONS[group % 2]:
            first = wrap(first + second)
            second = wrap((second << rotation) | (second >> (32 - rotation))) ^ first
        first = wrap(first + keys[(group + 1) % 3])
        second = wrap(second + keys[(group + 2) % 3] + (group + 1))
    return first, second
