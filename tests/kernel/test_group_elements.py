"""Kernels of work-groups without a reduction: a thread moves as many bytes as a vector has, also where an element is
repeated and where rows begin anywhere. What the heuristic chooses by the facts of a card, and values on the
emulator."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tests.kernel.emulated_card import CARD, NAME, emulated_card
from tests.kernel.kernels import leaf
from tests.kernel.properties import Chosen, chosen_for
from tilewright import Tensor
from tilewright.base.dtype import dtypes
from tilewright.graph import build
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of
from tilewright.kernel.axes import stride
from tilewright.tensor.core.nodes import pool


def repeated(rows: int, columns: int, times: int) -> UOp:
    given = build.reshape(leaf(0, rows, columns, dtype=dtypes.bfloat16), (rows, columns, 1))
    return build.alu(Ops.NEG, build.expand(given, (rows, columns, times)))


def shifted(shape: tuple[int, ...]) -> UOp:
    """Rows that begin anywhere in what is stored and in what is loaded."""
    longer = leaf(0, *(size + 2 for size in shape), dtype=dtypes.bfloat16)
    return build.alu(Ops.NEG, build.shrink(longer, tuple((1, size + 1) for size in shape)))


def stored_elements(made: Chosen) -> int:
    (store,) = made.view.stores
    return math.prod(size_of(axis) for axis in store.ranges if axis.arg.kind is AxisType.UPCAST)


@pytest.mark.parametrize("width", [257, 302, 383, 509])
def test_adjacent_threads_have_adjacent_results_where_nothing_divides_a_row(width: int) -> None:
    """Threads along another loop would read and write a part of each sector."""
    windows = pool(leaf(0, 32, 901, 2 * width + 1), (3, 3), (2, 2), (1, 1))
    made = chosen_for(build.reduce_axis(Ops.ADD, windows, (3, 4)), CARD)
    (store,) = made.view.stores
    assert sum(size_of(axis) for axis in made.view.of_kind(AxisType.LOCAL) if stride(store, axis) == 1) >= 64


@pytest.mark.parametrize("times", [2, 3, 4, 5])
def test_copies_of_an_element_are_stored_as_whole_vectors(times: int) -> None:
    """The copies of several adjacent elements together are contiguous."""
    made = chosen_for(repeated(836, 896, times), CARD)
    (store,), (load,) = made.view.stores, made.buffers
    steps = sorted((stride(store, axis), size_of(axis)) for axis in made.view.of_kind(AxisType.UPCAST))
    assert [step for step, _ in steps] == [1, times]
    assert math.prod(size for _, size in steps) % 8 == 0
    assert any(stride(load, axis) == 1 for axis in made.view.of_kind(AxisType.UPCAST))


@pytest.mark.parametrize("shape", [(3585, 9667), (4097, 4095), (1001, 4999), (34_652_197,), (5001, 1667, 3)], ids=str)
def test_threads_have_several_elements_where_rows_begin_anywhere(shape: tuple[int, ...]) -> None:
    """Adjacent threads store adjacent elements, and a thread as many bytes as a vector has."""
    made = chosen_for(shifted(shape), CARD)
    (store,) = made.view.stores
    assert stored_elements(made) == 8
    assert any(stride(store, axis) == 1 for axis in made.view.of_kind(AxisType.LOCAL))
    assert made.threads >= 128


@pytest.mark.parametrize(("columns", "elements"), [(3101582, 8), (1 << 20, 8), (1 << 20 | 4, 4)])
def test_a_short_reduction_over_rows_has_several_elements_of_a_row(columns: int, elements: int) -> None:
    """A thread had one element of a row, whatever the reduction moves by."""
    rows = build.cast(leaf(0, 3, columns, dtype=dtypes.bfloat16), dtypes.float32)
    total = build.cast(build.reduce_axis(Ops.ADD, rows, (0,)), dtypes.bfloat16)
    assert stored_elements(chosen_for(total, CARD)) == elements


def test_an_element_of_many_loads_has_a_thread() -> None:
    shape = (3585, 9667)
    rows = [build.expand(leaf(n, 1, 9667, dtype=dtypes.bfloat16), shape) for n in range(1, 16)]
    total = leaf(0, *shape, dtype=dtypes.bfloat16)
    for row in rows:
        total = build.alu(Ops.ADD, total, row)
    assert stored_elements(chosen_for(total, CARD)) == 1


def test_few_elements_have_a_thread_each() -> None:
    made = chosen_for(build.alu(Ops.NEG, leaf(0, 1001, 255, dtype=dtypes.bfloat16)), CARD)
    assert stored_elements(made) == 1


CASES: dict[str, tuple[tuple[int, ...], Callable[[Tensor], Tensor], Callable[[np.ndarray], np.ndarray]]] = {
    "twice": ((3, 8, 16), lambda x: x.repeat_interleave(2, 2), lambda x: x.repeat(2, 2)),
    "three times": ((3, 7, 16), lambda x: x.repeat_interleave(3, 2), lambda x: x.repeat(3, 2)),
    "five times, odd": ((3, 7, 9), lambda x: x.repeat_interleave(5, 2), lambda x: x.repeat(5, 2)),
    "both ways": (
        (2, 5, 12),
        lambda x: x.repeat_interleave(2, 1).repeat_interleave(2, 2),
        lambda x: x.repeat(2, 1).repeat(2, 2),
    ),
    "odd rows": ((77, 1031), lambda x: x + 1, lambda x: x + 1),
    "odd rows, broadcast": ((77, 1031), lambda x: x * x[0], lambda x: x * x[0]),
    "shifted": ((77, 1031), lambda x: x[:, 3:1000] * 2, lambda x: x[:, 3:1000] * 2),
    "rolled": ((77, 1031), lambda x: x.roll(7, 1), lambda x: np.roll(x, 7, 1)),
    "backwards": ((77, 1031), lambda x: x.flip(1) + x, lambda x: x[:, ::-1] + x),
}


@pytest.mark.parametrize("cores", [1, 132])
@pytest.mark.parametrize("dtype", [dtypes.float32, dtypes.float16], ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, dtype: object, cores: int) -> None:
    shape, ours, numpys = CASES[name]
    x = np.random.default_rng(3).integers(-9, 10, shape).astype(np.float32)
    with emulated_card(cores=cores, threads_per_core=256):
        found = ours(Tensor(x, device=NAME).cast(dtype).contiguous().realize())
        np.testing.assert_array_equal(found.float().numpy(), numpys(x))


@pytest.mark.parametrize("columns", [1030, 4097, 2048])
def test_running_sums_of_few_rows(columns: int) -> None:
    x = np.random.default_rng(2).integers(-9, 9, (3, columns)).astype(np.float32)
    with emulated_card(cores=1, threads_per_core=32):
        np.testing.assert_array_equal(Tensor(x, device=NAME).cumsum(0).numpy(), x.cumsum(0))
