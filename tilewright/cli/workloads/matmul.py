"""The product of two float32 matrices of 1024 by 1024. In: nothing. Out: a function that multiplies them once."""

from __future__ import annotations

from collections.abc import Callable

from tilewright import Tensor


def prepare() -> Callable[[], Tensor]:
    left, right = Tensor.rand(1024, 1024).realize(), Tensor.rand(1024, 1024).realize()

    def step() -> Tensor:
        return (left @ right).realize()

    return step
