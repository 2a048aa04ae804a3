"""Reductions by index for devices with atomic operations. In: an index for each row of values, or for each element.
Out: for each index the reduction of its values, as nodes whose kernels have one thread for each value
(docs/decisions/0041).

Integers are combined directly, since the order does not matter. A float sum would depend on the order of the threads,
so it is computed in fixed point (`fixed_point.py`): a first kernel finds the maximum magnitude of each output's values,
a second one adds the values as integers. Where ALLOW_FLOAT_ATOMICS accepts any order, floats are added directly too."""

from __future__ import annotations

import functools

from tilewright.base.dtype import DType, dtypes
from tilewright.graph import build
from tilewright.graph.build import counting_axis
from tilewright.graph.kernels.custom import CustomKernel
from tilewright.graph.kernels.nodes import GROUP_THREADS, MAX_KERNELS, load, loop, param, place, threads_over
from tilewright.graph.kernels.sums_by_index.fixed_point import MAGNITUDE, TOTAL, as_float, fixed_point, magnitude_of
from tilewright.graph.kernels.sums_by_index.numbers import number_at, stored_numbers
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op, Shape, element_count
from tilewright.graph.uop import UOp

_NUMBER = dtypes.int32
_NUMBERS = 1  # their slot among the arguments of a kernel
FLOAT_SUMS = "add_floats_by_index"  # the kernel that adds floats in any order to what its first argument contains


def combine_by_number(
    op: Op, numbers: UOp, values: UOp, count: int, dtype: DType, max_threads: int, parts: int = 1
) -> UOp:
    """out[a, n, b] = the reduction by `op`, in `dtype`, of values[a, p, b] where numbers[p] (or numbers[a, p, b]) is n,
    for n in 0..count-1; other numbers are ignored. Floats can be summed; integers can be summed, or reduced to an
    extreme. The outputs are taken in `parts` one after the other, so that each part stays in the last-level cache; all
    values are read for each of them. Values that are the positions p of their terms are not read."""
    threads = min(GROUP_THREADS, max_threads)
    outer, rows, inner = values.shape
    results = (outer, count, inner)
    is_spread = len(numbers.shape) > 1
    numbers, formula = stored_numbers(numbers, _NUMBERS)
    shape = (formula, is_spread, values.shape, count, parts)
    if dtype.is_int:
        is_position = counting_axis(values) == 1
        kernel = integer_kernel(op, *shape, None if is_position else values.dtype, dtype, threads)
        return _call(kernel, _filled(op, dtype, results), numbers, *(() if is_position else (values,)))
    greatest = _call(
        magnitude_kernel(*shape, values.dtype, threads), _filled(Ops.MAX, MAGNITUDE, results, 0), numbers, values
    )
    totals = _call(
        addition_kernel(*shape, values.dtype, threads),
        _filled(Ops.ADD, TOTAL, results),
        numbers,
        values,
        greatest,
    )
    return as_float(totals, greatest, rows)


def add_floats_by_number(numbers: UOp, values: UOp, count: int, max_threads: int, parts: int) -> UOp:
    """As `combine_by_number`: float32 sums whose terms are added in the order in which the threads come."""
    outer, _, inner = values.shape
    is_spread = len(numbers.shape) > 1
    numbers, formula = stored_numbers(numbers, _NUMBERS)
    threads = min(GROUP_THREADS, max_threads)
    kernel = float_kernel(formula, is_spread, values.shape, count, parts, values.dtype, threads)
    return _call(kernel, _filled(Ops.ADD, dtypes.float32, (outer, count, inner)), numbers, values)


def _filled(op: Op, dtype: DType, shape: Shape, least: int | None = None) -> UOp:
    return build.contiguous(build.const(dtype, reduce_identity(op, dtype) if least is None else least, shape))


def _call(ast: UOp, *inputs: UOp) -> UOp:
    """The first argument after a kernel has combined values with its contents."""
    kernel = CustomKernel(
        ast,
        0,
        tuple(given.shape for given in inputs),
        tuple(given.dtype for given in inputs),
        (0,),
        tuple(range(len(inputs))),
    )
    return UOp(Ops.CUSTOM_KERNEL, inputs[0].dtype, inputs, kernel)


# ---------------------------------------------------------------- kernels


class _Element:
    """The value of one thread, and the output that it belongs to. `formula` computes its number (`numbers.py`). Without
    a dtype of values a value is its position among the rows."""

    def __init__(
        self, formula: UOp, is_spread: bool, values: Shape, count: int, parts: int, dtype: DType | None, threads: int
    ) -> None:
        outer, rows, inner = values
        size = element_count(values)
        part = loop(parts, 0)  # the slowest axis of the grid, whose work-groups begin in order
        element = threads_over(size, threads, 1)
        is_element = element < size
        row = element // inner % rows
        number = number_at(formula, element if is_spread else row, is_element)
        self.size = outer * count * inner
        first, length = (part * -(-count // parts)).cast(_NUMBER), -(-count // parts)
        last = (first + length).minimum(count)
        self.valid = is_element & (number < last) & (number < first).logical_not()
        # Clamped to bounds: an access that is masked off still computes an address.
        inside = number.maximum(0).minimum(count - 1).cast(dtypes.index)
        self.output = (element // (rows * inner) % outer * count + inside) * inner + element % inner
        self.value = row if dtype is None else load(param(2, dtype, size), element, self.valid)

    def combined(self, op: Op, value: UOp, name: str) -> UOp:
        memory = param(0, value.dtype, self.size)
        store = UOp(Ops.STORE, dtypes.void, (place(memory, self.output, self.valid), value), op)
        return UOp(Ops.SINK, dtypes.void, (store,), KernelInfo(name, ()))


@functools.lru_cache(MAX_KERNELS)
def integer_kernel(
    op: Op,
    formula: UOp,
    is_spread: bool,
    values: Shape,
    count: int,
    parts: int,
    source: DType | None,
    dtype: DType,
    threads: int,
) -> UOp:
    element = _Element(formula, is_spread, values, count, parts, source, threads)
    return element.combined(op, element.value.cast(dtype), f"{op.name.lower()}_by_index")


@functools.lru_cache(MAX_KERNELS)
def float_kernel(
    formula: UOp, is_spread: bool, values: Shape, count: int, parts: int, source: DType, threads: int
) -> UOp:
    element = _Element(formula, is_spread, values, count, parts, source, threads)
    return element.combined(Ops.ADD, element.value.cast(dtypes.float32), FLOAT_SUMS)


@functools.lru_cache(MAX_KERNELS)
def magnitude_kernel(
    formula: UOp, is_spread: bool, values: Shape, count: int, parts: int, source: DType, threads: int
) -> UOp:
    element = _Element(formula, is_spread, values, count, parts, source, threads)
    return element.combined(Ops.MAX, magnitude_of(element.value), "magnitudes_by_index")


@functools.lru_cache(MAX_KERNELS)
def addition_kernel(
    formula: UOp, is_spread: bool, values: Shape, count: int, parts: int, source: DType, threads: int
) -> UOp:
    element = _Element(formula, is_spread, values, count, parts, source, threads)
    greatest = load(param(3, MAGNITUDE, element.size), element.output, element.valid)
    added = fixed_point(element.value, greatest, values[1])
    return element.combined(Ops.ADD, added, "add_by_index")
