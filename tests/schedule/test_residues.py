"""Sums of which only every n-th step counts: the shorter sum is the plain one at every point, and the gradients that
are made of such sums are the emulator's, in kernels that walk no more steps than count."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.schedule.test_masks import at_all_steps, loop
from tilewright import Context, Tensor
from tilewright.base.dtype import dtypes
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp, const
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import KernelView, stride, view_kernel
from tilewright.kernel.optimise import optimise
from tilewright.runtime.device import open_driver
from tilewright.schedule.steps.residues import thin_reduction, thin_reductions


@settings(deadline=None)
@given(st.integers(2, 5), st.integers(2, 9), st.integers(-6, 6), st.sampled_from((1, -1, 2, -2, 3, -5)))
def test_the_steps_that_count_are_all_walked_and_no_others(divisor: int, size: int, offset: int, factor: int) -> None:
    assume(math.gcd(divisor, factor) == 1)
    x, k = loop(12, 0), loop(size, 1, AxisType.REDUCE)
    dividend = x + offset + k * factor
    value = (dividend % divisor < 1).where((dividend // divisor) * 100 + k, 0)
    made, (step,) = thin_reduction(value, (k,))
    assert size_of(step) == math.ceil(size / divisor)
    np.testing.assert_array_equal(at_all_steps(made, x, step).sum(1), at_all_steps(value, x, k).sum(1))


def kept_whole() -> dict[str, UOp]:
    x, k, other = loop(12, 0), loop(4, 1, AxisType.REDUCE), loop(4, 2, AxisType.REDUCE)
    one = const(dtypes.float32, 1)
    return {
        "two loops decide together": add_up(((x + k - other) % 2 < 1).where(one, 0), k, other),
        "two remainders of three count": add_up(((x - k) % 3 < 2).where(one, 0), k),
        "a maximum sees the zeros": add_up(((x - k) % 2 < 1).where(one, 0), k).replace(arg=Ops.MAX),
    }


def add_up(value: UOp, *loops: UOp) -> UOp:
    return UOp(Ops.REDUCE, value.dtype, (value, *loops), Ops.ADD)


@pytest.mark.parametrize("name", kept_whole())
def test_other_sums_are_walked_whole(name: str) -> None:
    value = kept_whole()[name]
    assert thin_reductions(value) is value


# ---------------------------------------------------------------- gradients


def max_pool(size: int, step: int, x: Tensor) -> Tensor:
    pooled = x.max_pool2d((size, size), stride=step, padding=(size - 1) // 2)
    assert isinstance(pooled, Tensor)
    return pooled


def depthwise(size: int, step: int, x: Tensor) -> Tensor:
    weights = Tensor(np.arange(2.0 * size * size, dtype=np.float32).reshape(2, 1, size, size) - size, device=x.device)
    return x.conv2d(weights, groups=2, stride=step, padding=size // 2)


CASES = {
    "max pool 3x3/2": (max_pool, 3, 2, (2, 2, 12, 24)),
    "max pool 4x4/2": (max_pool, 4, 2, (1, 2, 12, 16)),
    "max pool 2x2/2": (max_pool, 2, 2, (2, 2, 12, 24)),
    "depthwise 3x3/2": (depthwise, 3, 2, (2, 2, 12, 24)),
    "depthwise 3x3/2 of odd images": (depthwise, 3, 2, (1, 2, 11, 23)),
    "depthwise 5x5/4": (depthwise, 5, 4, (1, 2, 8, 32)),
    "depthwise 5x5/3": (depthwise, 5, 3, (1, 2, 9, 18)),
}


def gradient_of(name: str, device: str) -> Tensor:
    """Whole numbers, so that every order of a sum gives the same."""
    function, size, step, shape = CASES[name]
    generator = np.random.default_rng(0)
    x = Tensor(generator.permutation(math.prod(shape)).astype(np.float32).reshape(shape), device=device)
    x = x.realize().requires_grad_()
    out = function(size, step, x)
    upstream = generator.integers(-9, 9, out.shape).astype(np.float32)
    return out.gradient(x, gradient=Tensor(upstream, device=device).realize())[0]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CASES)
def test_gradients_of_windows_apart_are_those_of_the_emulator(name: str) -> None:
    with Context(NOOPT=1):
        expected = gradient_of(name, "PYTHON").numpy()
    np.testing.assert_array_equal(gradient_of(name, "CPU").numpy(), expected)


@pytest.mark.parametrize("name", ["max pool 3x3/2", "depthwise 3x3/2"])
def test_their_kernels_divide_nothing_and_store_strands_side_by_side(name: str) -> None:
    """Of three steps of the window two at most count for an element; neighbours are vectors of their own, interleaved
    where they are stored."""
    plan = gradient_of(name, "CPU").schedule()
    kernel = plan.items[-1].ast
    assert kernel is not None
    view = view_kernel(optimise(kernel, open_driver("CPU").target))
    assert sorted(size_of(axis) for axis in view.reduce_axes) == [2, 2]
    assert not any(node.op in (Ops.IDIV, Ops.MOD) for node in toposort(*(access.src[1] for access in view.accesses)))
    assert_strands(view)


def test_windows_that_touch_are_strands_as_well() -> None:
    """Each result compares what is in its window, every second of whose elements lies along a row."""
    kernel = gradient_of("max pool 2x2/2", "CPU").schedule().items[-1].ast
    assert kernel is not None
    assert_strands(view_kernel(optimise(kernel, open_driver("CPU").target)))


def assert_strands(view: KernelView) -> None:
    (store,) = view.stores
    assert [stride(store, axis) for axis in view.of_kind(AxisType.UPCAST)] == [2]
    assert 1 in [stride(store, axis) for axis in view.of_kind(AxisType.UNROLL)]
