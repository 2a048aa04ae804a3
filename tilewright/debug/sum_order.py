"""Sums whose order matters. In: values that the interpreter has computed. Out: which of their elements are the same
when the float sums that they are made of are taken in other orders, or in more bits. In the others two devices need not
agree: large terms cancel, and the rest is rounding error. A difference there is not a bug."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tilewright.base.dtype import DType
from tilewright.base.errors import TilewrightError
from tilewright.engine.compilation.difference import differing, tolerance_of
from tilewright.graph.interpreter.evaluate import float_sum
from tilewright.graph.interpreter.numpy_math import cast_array

Array = np.ndarray[Any, Any]
# Errors of the interpreter for a graph that it has no rule for.
CANNOT = (TilewrightError, AssertionError, ValueError, IndexError, TypeError, KeyError, RecursionError)
# The fraction of the tolerance that orders may differ by, so that an element near the tolerance is not compared.
STEADY_SHARE = 0.25
# Orders that sums are taken in: backwards, and at random with these seeds.
SEEDS = (0, 1, 2, 3)


def steady_elements(
    expected: Sequence[Array], kinds: Sequence[DType], evaluate: Callable[[], Sequence[Any]]
) -> list[Array]:
    """For each value, the elements that are the same in every order of the sums behind it. `evaluate` computes the
    values again; where it cannot, all elements count as the same."""
    steady = [np.ones(np.shape(value), np.bool_) for value in expected]
    for add_up in (_in_more_bits, _in_order(None), *map(_in_order, SEEDS)):
        try:
            with _summing(add_up):
                found = evaluate()
        except CANNOT:
            return steady
        for mask, got, want, dtype in zip(steady, found, expected, kinds, strict=True):
            mask &= ~differing(np.reshape(got, np.shape(want)), want, dtype, tolerance_of(dtype) * STEADY_SHARE)
    return steady


@contextmanager
def _summing(add_up: Callable[[Array, tuple[int, ...], DType], Array]) -> Iterator[None]:
    token = float_sum.set(add_up)
    try:
        yield
    finally:
        float_sum.reset(token)


def _in_more_bits(terms: Array, axes: tuple[int, ...], dtype: DType) -> Array:
    return cast_array(np.add.reduce(terms.astype(np.float64), axis=axes, keepdims=True), dtype)


def _in_order(seed: int | None) -> Callable[[Array, tuple[int, ...], DType], Array]:
    """Sums in an order that follows from the seed; backwards without one. Short floats are added up in float32."""

    def add_up(terms: Array, axes: tuple[int, ...], dtype: DType) -> Array:
        kept = tuple(axis for axis in range(terms.ndim) if axis not in axes)
        rows = terms.transpose(*kept, *axes).reshape(*(terms.shape[axis] for axis in kept), -1)
        count = rows.shape[-1]
        order = np.arange(count)[::-1] if seed is None else np.random.default_rng(seed).permutation(count)
        carrier = np.float64 if dtype.bits > 32 else np.float32
        total = np.add.reduce(np.ascontiguousarray(rows[..., order], dtype=carrier), axis=-1)
        return cast_array(np.expand_dims(total, axes), dtype)

    return add_up
