"""Constructors: constants, ranges, diagonals. In: shapes and numbers. Out: lazy tensors. All are expressions of
constants and IOTA, so they are fused into the kernels that use them and need no memory."""

from __future__ import annotations

import math
from typing import Any, Self

from tilewright.base.dtype import DType, Scalar, dtype_for_range, dtype_of_scalar, dtypes, promote, to_dtype
from tilewright.base.errors import DTypeError, ShapeError, UnsupportedError
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic, larger_size, min_size
from tilewright.graph.spec import Devices
from tilewright.graph.symbolic import capacity
from tilewright.runtime.buffer import file_buffer
from tilewright.runtime.device import canonical_device, is_file_device
from tilewright.tensor.core.checks import (
    WIDER_DTYPE,
    check_holds,
    check_number,
    check_whole,
    is_whole,
    shape_from,
    sizes_from,
    whole,
)
from tilewright.tensor.core.memory import memory_like, new_memory
from tilewright.tensor.primitives.elementwise import ElementwiseMixin
from tilewright.tensor.primitives.index_nodes import checked_classes
from tilewright.tensor.primitives.shape import ShapeMixin


class CreationMixin(ElementwiseMixin, ShapeMixin):
    """full, zeros, arange, eye, ..."""

    @classmethod
    def full(
        cls,
        shape: Any,
        fill_value: Scalar,
        dtype: DType | str | None = None,
        device: Devices | None = None,
        buffer: bool = True,
        requires_grad: bool | None = None,
    ) -> Self:
        """A tensor filled with one value. It takes memory only when it is written to or realised."""
        del buffer  # a constant is stored only where it must be, whatever the argument says
        sizes = sizes_from("full", shape if isinstance(shape, tuple | list) else (shape,))
        fill_value = check_number("full", fill_value)
        wanted = dtype_of_scalar(fill_value) if dtype is None else to_dtype(dtype)
        check_holds("full", wanted, fill_value, WIDER_DTYPE)
        made = cls._from_uop(build.const(wanted, fill_value, sizes), canonical_device(device))
        return made._told(requires_grad)

    @classmethod
    def zeros(cls, *shape: Any, **kwargs: Any) -> Self:
        """A tensor of zeros."""
        kwargs.setdefault("dtype", dtypes.default_float)
        return cls.full(shape_from("zeros", shape), 0, **kwargs)

    @classmethod
    def ones(cls, *shape: Any, **kwargs: Any) -> Self:
        """A tensor of ones."""
        kwargs.setdefault("dtype", dtypes.default_float)
        return cls.full(shape_from("ones", shape), 1, **kwargs)

    @classmethod
    def empty(
        cls,
        *shape: Any,
        device: Devices | None = None,
        dtype: DType | str | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """Uninitialised memory. On the DISK device, as 'DISK:/tmp/weights', it is that file: the values are those of
        the file, which is created or extended where it is too short, and assignments write to it."""
        sizes = sizes_from("empty", shape)
        if math.prod(sizes) == 0:
            return cls.zeros(sizes, device=device, dtype=dtype or dtypes.default_float, requires_grad=requires_grad)
        device = canonical_device(device)
        wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
        if isinstance(device, str) and is_file_device(device):
            memory = build.reshape(file_buffer(device, wanted, math.prod(sizes)), sizes)
        else:
            memory = new_memory(device, wanted, sizes)
        made = cls._from_uop(memory, device)
        return made._told(requires_grad)

    invalids = empty  # tinygrad's name for the outputs of a custom kernel

    def full_like(
        self, fill_value: Scalar, dtype: DType | str | None = None, device: Devices | None = None, buffer: bool = True
    ) -> Self:
        """A constant in the shape of this tensor."""
        wanted = self.dtype if dtype is None else to_dtype(dtype)
        check_holds("full_like", wanted, fill_value, WIDER_DTYPE)
        return self.full(self.shape, fill_value, wanted, device or self.device, buffer)

    def zeros_like(self, **kwargs: Any) -> Self:
        """Zeros in the shape of this tensor."""
        return self.full_like(0, **kwargs)

    def ones_like(self, **kwargs: Any) -> Self:
        """Ones in the shape of this tensor."""
        return self.full_like(1, **kwargs)

    def empty_like(self, dtype: DType | str | None = None, device: Devices | None = None) -> Self:
        """Uninitialised memory in the shape of this tensor."""
        if device is not None or not self.numel():
            return self.empty(self.shape, device=device or self.device, dtype=dtype or self.dtype)
        wanted = None if dtype is None else to_dtype(dtype)
        return type(self)._from_uop(memory_like(self.uop, self.device, wanted), self.device)

    # ------------------------------------------------------------ ranges

    @classmethod
    def arange(
        cls,
        start: Scalar,
        stop: Scalar | None = None,
        step: Scalar = 1,
        dtype: DType | str | None = None,
        device: Devices | None = None,
        requires_grad: bool | None = None,
    ) -> Self:
        """start, start + step, ... up to stop, which is excluded; `arange(n)` starts at 0."""
        if stop is None:
            start, stop = 0, start
        start, stop, step = (check_number("arange", number) for number in (start, stop, step))
        if is_symbolic((start, stop, step)):
            return cls._symbolic_arange(start, stop, step, dtype, canonical_device(device))._told(requires_grad)
        if step == 0:
            raise ShapeError("arange", "a step of 0", "give a step other than 0")
        if not all(math.isfinite(number) for number in (start, stop, step)):
            raise ShapeError("arange", f"from {start} to {stop} by {step}", "give finite numbers")
        is_whole = all(isinstance(number, int) for number in (start, stop, step))
        steps = -((start - stop) // step) if is_whole else math.ceil((stop - start) / step)
        count = max(0, int(steps))
        last = start + step * max(count - 1, 0)
        if dtype is not None:
            wanted = to_dtype(dtype)
            if count and wanted.is_int and not wanted.min <= min(start, last) <= max(start, last) <= wanted.max:
                message = f"{wanted.name} cannot represent {start}..{last}"
                raise DTypeError("arange", message, f"give a wider dtype, or numbers in {wanted.min}..{wanted.max}")
        elif is_whole:
            wanted = dtype_for_range(int(min(start, last)), int(max(start, last)))
        else:
            wanted = promote(*map(dtype_of_scalar, (start, stop, step)))
        made = cls._from_uop(build.const(wanted, 0, (0,)), canonical_device(device))
        if count:
            made = made._ramp(count, start, step, wanted)
        return made._told(requires_grad)

    @classmethod
    def _symbolic_arange(
        cls, start: Scalar, stop: Scalar, step: Scalar, dtype: DType | str | None, device: Devices
    ) -> Self:
        """A range with a symbolic end or step. Its stop is never before its start, whatever the values are."""
        if not all(map(is_whole, (start, stop, step))):
            message = f"from {start} to {stop} by {step}"
            raise UnsupportedError("arange", message, "give whole numbers, or int(...) of the sizes")
        start, stop, step = whole(start), whole(stop), whole(step)
        if min_size(step) <= 0 <= capacity(step):
            message = f"a step of {step}, which may be 0"
            raise ShapeError("arange", message, "give a step whose bounds are all positive, or all negative")
        low, high, stride = (start, stop, step) if capacity(step) > 0 else (stop, start, -step)
        if high < low:
            raise ShapeError("arange", f"from {start} to {stop} by {step}", "give a stop that is not before the start")
        exact = dtype_for_range(min_size(low), capacity(high))
        index = build.iota((high - low + stride - 1) // stride, exact)
        scaled = index if step == 1 else build.alu(Ops.MUL, index, build.const(exact, step))
        moved = scaled if start == 0 else build.alu(Ops.ADD, scaled, build.const(exact, start))
        return cls._from_uop(build.cast(moved, exact if dtype is None else to_dtype(dtype)), device)

    def _ramp(self, count: int, start: Scalar, step: Scalar, dtype: DType) -> Self:
        """start + step*i. Whole numbers are computed as integers, so they are exact for every float dtype."""
        numbers = (start, start + step * (count - 1))
        is_whole = all(number == int(number) for number in (start, step))
        if is_whole and dtypes.int64.min <= min(numbers) and max(numbers) <= dtypes.uint64.max:
            start, step = int(start), int(step)
            exact = dtype_for_range(int(min(numbers)), int(max(numbers)))
        else:
            exact = dtypes.float64 if dtype is dtypes.float64 else dtypes.float32
        index = build.cast(build.iota(count, dtypes.int32 if count <= 1 << 31 else dtypes.int64), exact)
        # Intermediate wrap-around is harmless: the result is in range of the dtype, and arithmetic is modulo 2**bits.
        scaled = index if step == 1 else build.alu(Ops.MUL, index, build.const(exact, step))
        moved = scaled if start == 0 else build.alu(Ops.ADD, scaled, build.const(exact, start))
        return self._new(build.cast(moved, dtype))

    @classmethod
    def linspace(
        cls, start: Scalar, stop: Scalar, steps: int, dtype: DType | str | None = None, device: Devices | None = None
    ) -> Self:
        """`steps` values from start to stop, both included and exact: each value is computed from the nearer end, and
        the middle one of an odd number from both."""
        wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
        check_whole("linspace", "steps", steps, least=0)
        if wanted.is_bool:
            raise DTypeError("linspace", "bool has no values between two", "give a float or integer dtype")
        if not is_symbolic((steps,)) and steps < 2:
            return cls.full((steps,), start, wanted, device)
        compute = wanted if wanted.is_float and wanted.bits >= 32 else dtypes.float32
        number = cls.arange(steps, device=device)
        gaps = larger_size(steps - 1, 1)
        distance = (stop - start) / (cls.full((), gaps, compute, device) if is_symbolic((gaps,)) else gaps)
        near = number.cast(compute) * distance + start
        far = (steps - 1 - number).cast(compute) * -distance + stop
        made = (number < larger_size(steps // 2, 1)).where(near, far)
        if not is_symbolic((steps,)) and steps % 2:
            # A product that is not rounded before it is added leaves a remainder where the ends are opposite.
            made = number.eq(steps // 2).where(start / 2 + stop / 2, made)
        return made.cast(wanted)

    @classmethod
    def eye(cls, n: int, m: int | None = None, dtype: DType | str | None = None, device: Devices | None = None) -> Self:
        """Ones on the diagonal."""
        columns = n if m is None else m
        check_whole("eye", "size", n, columns, least=0)
        shape = (n, columns)
        wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
        made = cls._from_uop(build.const(wanted, 0, shape), canonical_device(device))
        if 0 in shape:
            return made
        equal = build.alu(Ops.CMPEQ, build.axis_iota(shape, 0), build.axis_iota(shape, 1))
        return made._new(build.where(equal, build.const(wanted, 1), build.const(wanted, 0)))

    def one_hot(self, num_classes: int) -> Self:
        """A new last axis with 1 at the position given by each element and 0 elsewhere. Elements are in
        0..num_classes-1."""
        if not self.dtype.is_int:
            message = f"dtype {self.dtype.name} names no positions"
            raise DTypeError("one_hot", message, "cast to an integer dtype first")
        check_whole("one_hot", "num_classes", num_classes, least=0)
        # Compared in the dtype of the result: to widen a vector of comparisons takes longer than to compare wide ones.
        classes = self.arange(num_classes, device=self.device, dtype=dtypes.int64)
        checked = self._new(checked_classes("one_hot", self.uop, num_classes))
        return checked.cast(dtypes.int64).unsqueeze(-1).eq(classes).cast(dtypes.int64)
