"""Reductions by index for devices with atomic operations on integers. In: an index for each row of values, or for each
element. Out: for each index the reduction of its values, as nodes whose kernels have one thread for each value
(docs/decisions/0041).

Integers are combined directly, since the order does not matter. A float sum would depend on the order of the threads,
so it is computed in fixed point: a first kernel finds the maximum magnitude of each output's values; a second one adds
the values as integer multiples of a power of two, chosen so that the sum of all terms fits in 64 bits. The result is
rounded once and has the same bits in every run."""

from __future__ import annotations

import functools

from tilewright.base.dtype import DType, dtypes
from tilewright.graph import build
from tilewright.graph.kernels.custom import CustomKernel
from tilewright.graph.kernels.nodes import GROUP_THREADS, MAX_KERNELS, load, param, place, threads_over
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.records import KernelInfo
from tilewright.graph.spec import Op, Shape, element_count
from tilewright.graph.uop import UOp, const

_NUMBER = dtypes.int32
_TOTAL = dtypes.int64
# For float32: the explicit mantissa bits, the bits of infinity, and the exponent of the last bit of a subnormal number.
_FRACTION_BITS = 23
_INFINITY = 0x7F800000
_LAST_BIT = 150
# Bits of the integer sums, without the sign and one spare bit.
_SUM_BITS = 62
# Occurrences of plus and minus infinity are counted in the two halves of an integer.
_HALF_BITS = 32


def combine_by_number(op: Op, numbers: UOp, values: UOp, count: int, dtype: DType, max_threads: int) -> UOp:
    """out[a, n, b] = the reduction by `op`, in `dtype`, of values[a, p, b] where numbers[p] (or numbers[a, p, b]) is n,
    for n in 0..count-1; other numbers are ignored. Floats can be summed; integers can be summed, or reduced to an
    extreme."""
    threads = min(GROUP_THREADS, max_threads)
    outer, rows, inner = values.shape
    results = (outer, count, inner)
    shape = (numbers.shape, values.shape, count)
    if dtype.is_int:
        kernel = integer_kernel(op, *shape, values.dtype, dtype, threads)
        return _call(kernel, _filled(op, dtype, results), numbers, values)
    greatest = _call(
        magnitude_kernel(*shape, values.dtype, threads), _filled(Ops.MAX, _NUMBER, results, 0), numbers, values
    )
    totals = _call(
        addition_kernel(*shape, values.dtype, threads),
        _filled(Ops.ADD, _TOTAL, results),
        numbers,
        values,
        greatest,
    )
    return _as_float(totals, greatest, rows)


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
    """The value of one thread, and the output that it belongs to."""

    def __init__(self, numbers: Shape, values: Shape, count: int, dtype: DType, threads: int) -> None:
        outer, rows, inner = values
        size = element_count(values)
        element = threads_over(size, threads)
        is_element = element < size
        is_spread = len(numbers) > 1
        own = element if is_spread else element // inner % rows
        number = load(param(1, _NUMBER, size if is_spread else rows), own, is_element)
        self.size = outer * count * inner
        self.valid = is_element & (number < count) & (number < 0).logical_not()
        # Clamped to bounds: an access that is masked off still computes an address.
        inside = number.maximum(0).minimum(count - 1).cast(dtypes.index)
        self.output = (element // (rows * inner) % outer * count + inside) * inner + element % inner
        self.value = load(param(2, dtype, size), element, self.valid)

    def combined(self, op: Op, value: UOp, name: str) -> UOp:
        memory = param(0, value.dtype, self.size)
        store = UOp(Ops.STORE, dtypes.void, (place(memory, self.output, self.valid), value), op)
        return UOp(Ops.SINK, dtypes.void, (store,), KernelInfo(name, ()))


@functools.lru_cache(MAX_KERNELS)
def integer_kernel(op: Op, numbers: Shape, values: Shape, count: int, source: DType, dtype: DType, threads: int) -> UOp:
    element = _Element(numbers, values, count, source, threads)
    return element.combined(op, element.value.cast(dtype), f"{op.name.lower()}_by_index")


@functools.lru_cache(MAX_KERNELS)
def magnitude_kernel(numbers: Shape, values: Shape, count: int, source: DType, threads: int) -> UOp:
    """The bits of a float without its sign, as an integer, have the order of magnitudes; NaN is the maximum."""
    element = _Element(numbers, values, count, source, threads)
    return element.combined(Ops.MAX, _magnitude(element.value), "magnitudes_by_index")


@functools.lru_cache(MAX_KERNELS)
def addition_kernel(numbers: Shape, values: Shape, count: int, source: DType, threads: int) -> UOp:
    """
    value = mantissa * 2 ** (exponent - 150)
    added = mantissa * 2 ** (exponent - greatest exponent + spare bits), rounded to an integer

    Where the maximum is infinite or NaN only infinities are counted: a positive one in the lower half of the total, a
    negative one in the upper half, and a NaN in both."""
    element = _Element(numbers, values, count, source, threads)
    greatest = load(param(3, _NUMBER, element.size), element.output, element.valid)
    bits = _magnitude(element.value)
    is_negative = (element.value.cast(dtypes.float32).bitcast(_NUMBER)) < 0
    field = bits >> _FRACTION_BITS
    hidden = (field > 0).where(const(_NUMBER, 1 << _FRACTION_BITS), const(_NUMBER, 0))
    mantissa = (bits & ((1 << _FRACTION_BITS) - 1)) | hidden
    shift = field.maximum(1) - _exponent(greatest) + _spare_bits(values[1])
    # A shift by more than 31 leaves no bits of a mantissa.
    up, down = shift.maximum(0), (-shift).maximum(0).minimum(31)
    one = const(_TOTAL, 1)
    size = ((mantissa.cast(_TOTAL) << up.cast(_TOTAL)) + ((one << down.cast(_TOTAL)) >> 1)) >> down.cast(_TOTAL)
    finite = is_negative.where(-size, size)
    upper = const(_TOTAL, 1 << _HALF_BITS)
    infinite = is_negative.where(upper, one)
    counted = (bits > _INFINITY).where(upper + one, bits.eq(_INFINITY).where(infinite, const(_TOTAL, 0)))
    return element.combined(Ops.ADD, (greatest < _INFINITY).where(finite, counted), "add_by_index")


def _magnitude(value: UOp) -> UOp:
    return value.cast(dtypes.float32).bitcast(_NUMBER) & 0x7FFFFFFF


def _exponent(magnitude: UOp) -> UOp:
    """The exponent; for subnormal numbers that of the smallest normal number."""
    return (magnitude >> _FRACTION_BITS).maximum(1)


def _spare_bits(rows: int) -> int:
    """The number of bits by which the largest mantissa can be shifted left so that a sum of `rows` terms does not
    overflow."""
    return _SUM_BITS - (_FRACTION_BITS + 1) - max(1, (rows - 1).bit_length())


def _as_float(totals: UOp, greatest: UOp, rows: int) -> UOp:
    """The sums as float32, scaled by two powers of two: a single one may underflow."""
    power = _exponent(greatest) - (_LAST_BIT + _spare_bits(rows))
    half = power >> 1
    first, second = (((each + 127) << _FRACTION_BITS).bitcast(dtypes.float32) for each in (half, power - half))
    finite = totals.cast(dtypes.float32) * first * second
    positive, negative = (totals & ((1 << _HALF_BITS) - 1)).ne(0), (totals >> _HALF_BITS).ne(0)
    infinity, nan = (build.const(dtypes.float32, value) for value in (float("inf"), float("nan")))
    special = positive.where(negative.where(nan, infinity), -infinity)
    return (greatest < _INFINITY).where(finite, special)
