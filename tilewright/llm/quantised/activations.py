"""Activations in 8 bits. In: rows of floats. Out: for each run of 32 the integers -127 to 127 and the scale of their
largest one, and for each part of a block the sum of its integers times the scale. The error of an element is at most
half a scale, 1/254 of the largest of its run: relative to the norm of a row about 0.4 % of normal numbers. The
rounding errors (`rounding_errors`) may be quantised too and added as a second term, for about 16 bits.

A scale is repeated for each part, so that a kernel loads scales and sums of parts with stride 1."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.kernels.custom import PureKernel
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo
from tilewright.graph.uop import UOp
from tilewright.tensor.tensor import Tensor

RUN = 32  # elements with one scale
LARGEST = 127
TERMS = 4  # neighbours in one lane of a dot-product instruction
# Runs of smaller numbers are zeros: their scale would have an infinite inverse.
MIN_LARGEST = 1e-30
# A number of at most 7 bits plus this is a float whose high bytes are the exponent and the number: no conversion.
BASE = 128.0
ROUNDING, ROUNDING_BITS = 12582912.0, 0x4B400000


class Activations(NamedTuple):
    """Integers (rows, columns), scales and sums (rows, parts); or with lanes, which are rows: (tiles, columns // 4,
    lanes, 4) and (tiles, parts, lanes)."""

    values: Tensor
    scales: Tensor
    sums: Tensor


def _reduce(op: object, value: UOp, *ranges: UOp) -> UOp:
    return UOp(Ops.REDUCE, value.dtype, (value, *ranges), op)


class _Rounding:
    """The scale of a run, and the integer of each of its elements, which `loaded` gives."""

    def __init__(self, loaded: Callable[[UOp], UOp]) -> None:
        self.loaded = loaded
        at = UOp.range(RUN, 3, AxisType.UPCAST)
        # Without the sign the bits of floats are ordered like integers, NaN above all.
        bits = loaded(at).bitcast(dtypes.int32) & 0x7FFFFFFF
        largest = _reduce(Ops.MAX, bits, at).bitcast(dtypes.float32)
        self.inverse = (largest < MIN_LARGEST).where(largest.const_like(0.0), largest.const_like(LARGEST) / largest)
        self.scale = largest * (1.0 / LARGEST)

    def integer(self, at: UOp) -> UOp:
        """The nearest integer: in a sum with 1.5 * 2**23 the lowest bit of the fraction counts 1."""
        return (self.loaded(at) * self.inverse + ROUNDING).bitcast(dtypes.int32) - ROUNDING_BITS


@functools.lru_cache(maxsize=64)
def quantise_kernel(parts: int, lanes: int, times: float = 1.0, added: tuple[int, int] | None = None) -> PureKernel:
    """Quantises runs, each over `parts` parts of a block, whose sums are multiplied by `times`. With `lanes`, groups of
    4 elements of that many rows are neighbours. With `added`, the turns of a block and the parts of a turn, the sums of
    all turns, added up and times -BASE, follow those of the row: what a product with BASE more starts from."""

    def kernel(values: UOp, scales: UOp, sums: UOp, x: UOp) -> UOp:
        # A tile of many rows is a task for a core; that of one token takes less time than waking another core.
        tile = UOp.range(x.shape[0] // lanes, 0, AxisType.LOOP if lanes == 1 else AxisType.THREAD)
        lane, run = UOp.range(lanes, 1), UOp.range(x.shape[1] // RUN, 2)
        row, length = tile * lanes + lane, RUN // parts
        rounding = _Rounding(lambda at: x[row, run * RUN + at].load().cast(dtypes.float32))
        scale, rounded = rounding.scale, rounding.integer
        if lanes == 1:
            group, term = UOp.range(1, 4, AxisType.UNROLL), UOp.range(RUN, 5, AxisType.UPCAST)
            target = values[row, run * RUN + term]
        else:
            group, term = UOp.range(RUN // TERMS, 4, AxisType.UNROLL), UOp.range(TERMS, 5, AxisType.UPCAST)
            target = values[tile, run * (RUN // TERMS) + group, lane, term]
        effects = [target.store(rounded(group * TERMS + term).cast(dtypes.int8)).end(group, term)]
        part, inner = UOp.range(parts, 6, AxisType.UNROLL), UOp.range(length, 7, AxisType.UPCAST)
        total = _reduce(Ops.ADD, rounded(part * length + inner), inner)
        for memory, value in ((scales, scale), (sums, total.cast(dtypes.float32) * (scale * times))):
            target = memory[row, run * parts + part] if lanes == 1 else memory[tile, run * parts + part, lane]
            effects.append(target.store(value).end(part))
        stored = UOp.group(*effects).end(tile, lane, run)
        if added is not None:
            (turns, width), count, sums = added, x.shape[1] // RUN * parts, sums.after(stored)
            token, block = UOp.range(x.shape[0], 8), UOp.range(count // (turns * width), 9)
            turn, each = UOp.range(turns, 10, AxisType.UNROLL), UOp.range(width, 11, AxisType.UPCAST)
            total = _reduce(Ops.ADD, sums[token, (block * turns + turn) * width + each].load(), turn) * -BASE
            target = sums[token, block * width + each + count]
            stored = target.store(total).end(token, block, each)
        return stored.sink(arg=KernelInfo("quantise_activations", ()))

    return PureKernel(kernel)


@functools.lru_cache(maxsize=1)
def _errors_kernel() -> PureKernel:
    def kernel(errors: UOp, x: UOp) -> UOp:
        row, run = UOp.range(x.shape[0], 0), UOp.range(x.shape[1] // RUN, 2)
        rounding = _Rounding(lambda at: x[row, run * RUN + at].load().cast(dtypes.float32))
        at = UOp.range(RUN, 4, AxisType.UPCAST)
        error = rounding.loaded(at) - rounding.integer(at).cast(dtypes.float32) * rounding.scale
        end = (row, run, at)
        return errors[row, run * RUN + at].set(error, end=end).sink(arg=KernelInfo("rounding_errors", ()))

    return PureKernel(kernel)


def rounding_errors(x: Tensor) -> Tensor:
    """x (rows, columns) minus its quantised value, in float32."""
    errors = Tensor.empty(*x.shape, dtype=dtypes.float32, device=x.device)
    return errors.custom_kernel(x, fxn=_errors_kernel())[0]


def quantise(
    x: Tensor, parts: int, lanes: int = 1, times: float = 1.0, added: tuple[int, int] | None = None
) -> Activations:
    """x (rows, columns), the columns a multiple of 32; `parts` of blocks for each 32 elements, whose sums are
    multiplied by `times`, and `added` up as `quantise_kernel` says."""
    rows, columns = x.shape
    tiles = rows // lanes
    shape: tuple[int, ...] = (rows, columns) if lanes == 1 else (tiles, columns // TERMS, lanes, TERMS)
    count = columns // RUN * parts
    scales: tuple[int, ...] = (rows, count) if lanes == 1 else (tiles, count, lanes)
    sums = scales if added is None else (rows, count + count // added[0])
    kinds = ((shape, dtypes.int8), (scales, dtypes.float32), (sums, dtypes.float32))
    outputs = [Tensor.empty(*size, dtype=dtype, device=x.device) for size, dtype in kinds]
    made = outputs[0].custom_kernel(*outputs[1:], x, fxn=quantise_kernel(parts, lanes, times, added))
    return Activations(*made[:3])
