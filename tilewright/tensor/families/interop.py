"""Exchange with other libraries, and Python's protocols. In: tensors; memory of other libraries. Out: DLPack capsules,
and tensors over foreign memory without a copy; pickles and copies; the remaining operators. Shared memory keeps its
values: while another library holds it, an update of the tensor writes to new memory."""

from __future__ import annotations

import math
from typing import Any, Self, cast

from tilewright.base.dtype import DType, Scalar, dtypes, to_dtype
from tilewright.base.errors import DTypeError, ShapeError, UnsupportedError
from tilewright.engine.memory.parts import layout_of
from tilewright.graph import build
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Devices
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import from_shared
from tilewright.runtime.device import canonical_device, is_file_device
from tilewright.tensor.core.checks import check_whole, sizes_from
from tilewright.tensor.core.memory import first_device, protect_borrowed
from tilewright.tensor.families.base import Family


class InteropMixin(Family):
    """__dlpack__, from_dlpack, from_blob, pickle, copy, abs, divmod, in."""

    # ------------------------------------------------------------ DLPack

    def __dlpack_device__(self) -> tuple[int, int]:
        from tilewright.tensor.core import dlpack

        return dlpack.HOST_DEVICE

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object:
        """This tensor's memory for another library: `numpy.from_dlpack(t)`, `torch.from_dlpack(t)`. The tensor is
        computed first, and copied only where `copy` is set."""
        from tilewright.tensor.core import dlpack

        del stream  # host memory has no streams
        if dl_device is not None and tuple(dl_device) != dlpack.HOST_DEVICE:
            raise BufferError(f"the memory is on the host, not on DLPack's device {dl_device}")
        if self.requires_grad:
            message = "gradients do not flow through another library's operations"
            raise UnsupportedError("__dlpack__", message, "pass `tensor.detach()`")
        shared = self.contiguous()
        view = shared._host_view()
        is_versioned = max_version is not None and max_version[0] >= 1
        if view.readonly and not is_versioned and copy is False:
            raise BufferError("the memory is read-only, which DLPack before 1.0 cannot express: ask for a copy")
        if copy or (view.readonly and not is_versioned):
            view = memoryview(bytearray(view))
        holder = type(self)._from_uop(shared.uop, self.device)
        return dlpack.export_capsule(view, self.dtype, self.shape, holder, is_versioned)

    @classmethod
    def from_dlpack(cls, source: Any, device: str | None = None, copy: bool | None = None) -> Self:
        """A tensor of another library's host memory, without a copy where the device can read it. It is never written
        to, and must not change while tensors made from it are in use. `copy=True` copies it instead."""
        from tilewright.tensor.core import dlpack

        if not hasattr(source, "__dlpack__"):
            message = f"a {type(source).__name__} has no __dlpack__"
            raise DTypeError("from_dlpack", message, "give an array of a library that supports DLPack")
        try:
            capsule = source.__dlpack__(max_version=(1, 1))
        except TypeError:  # a library written before DLPack 1.0
            capsule = source.__dlpack__()
        found = dlpack.import_capsule(capsule)
        device = canonical_device(device)
        if 0 in found.shape:
            return cls._from_uop(build.const(found.dtype, 0, found.shape), device)
        size = memoryview(found.buffer).nbytes // found.dtype.itemsize
        node = from_shared(found.buffer, device, found.dtype, size, borrow=not copy)
        if not copy:
            protect_borrowed(node)
        flat = cls._from_uop(node, device)
        return flat._strided(found.shape, found.strides, found.start)

    @classmethod
    def from_blob(cls, ptr: int, shape: Any, dtype: DType | str | None = None, device: Devices | None = None) -> Self:
        """A row-major tensor over the host memory at the address `ptr`, without a copy where the device can read it. It
        is never written to. The caller keeps that memory alive and unchanged while tensors made from it are in use."""
        import ctypes

        sizes = sizes_from("from_blob", shape if isinstance(shape, tuple | list) else (shape,))
        wanted = dtypes.default_float if dtype is None else to_dtype(dtype)
        nbytes = math.prod(sizes) * wanted.itemsize
        check_whole("from_blob", "ptr", ptr, least=1 if nbytes else 0)
        address = int(ptr)
        if address + nbytes > 1 << 8 * ctypes.sizeof(ctypes.c_void_p):
            message = f"{nbytes} bytes at {address:#x} exceed the address space"
            raise ShapeError("from_blob", message, "give the address and the shape of allocated memory")
        if not nbytes:
            return cls.zeros(*sizes, dtype=wanted, device=device)
        if address % wanted.itemsize:
            message = f"{wanted.name} at {address:#x}, which is not a multiple of {wanted.itemsize}"
            raise DTypeError("from_blob", message, "give an aligned address, or read uint8 and bitcast a copy of it")
        memory = memoryview((ctypes.c_uint8 * nbytes).from_address(address)).cast("B")
        made: Any = cls(memory, device=device, dtype=wanted, copy=False)  # type: ignore[call-arg]
        return made.reshape(sizes)  # type: ignore[no-any-return]

    def _strided(self, shape: tuple[int, ...], strides: tuple[int, ...], start: int) -> Self:
        """This 1-D tensor read with strides: a view where they are those of permuted row-major axes, else a gather."""
        order = sorted((axis for axis, size in enumerate(shape) if size != 1), key=lambda axis: -strides[axis])
        expected = 1
        is_plain = start == 0 and self.shape[0] == math.prod(shape)
        for axis in reversed(order):
            is_plain = is_plain and strides[axis] == expected
            expected *= shape[axis]
        if is_plain:
            order = [*(axis for axis, size in enumerate(shape) if size == 1), *order]
            moved = self.reshape(tuple(shape[axis] for axis in order))
            return moved.permute(tuple(order.index(axis) for axis in range(len(shape))))
        index = build.const(dtypes.int64, start, shape)
        for axis, stride in enumerate(strides):
            index = index + build.cast(build.axis_iota(shape, axis), dtypes.int64) * stride
        return self._new(build.gather(self.uop, index))

    # ------------------------------------------------------------ the array API

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        """The functions of the array API standard for tensors: `tilewright.array_api`."""
        import importlib

        namespace = importlib.import_module("tilewright.array_api")
        if api_version is not None and api_version not in namespace.SUPPORTED_VERSIONS:
            known = ", ".join(namespace.SUPPORTED_VERSIONS)
            raise UnsupportedError("__array_namespace__", f"version {api_version!r}", f"ask for one of {known}")
        return namespace

    def to_device(self, device: Devices, /, *, stream: Any = None) -> Self:
        """As `to`; the array API's name."""
        if stream is not None:
            raise UnsupportedError("to_device", f"a stream {stream!r}", "leave it out: accesses give the order")
        return cast(Any, self).to(device)  # type: ignore[no-any-return]

    # ------------------------------------------------------------ pickle and copy

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        import pickle

        contents = self.detach()._read(bytes)
        # With protocol 5, `buffer_callback` takes the bytes without a copy of all tensors in memory.
        values = pickle.PickleBuffer(contents) if protocol >= 5 else contents
        axis = None if isinstance(self.device, str) else layout_of(self.uop)[0]
        marks = (self._is_parameter or (False if self._asked is False else None), self._is_buffer)
        # Unpickling a tensor must not write to a file.
        device = canonical_device() if is_file_device(self.device) else self.device
        return _rebuild, (type(self), values, self.dtype, self.shape, device, marks, axis)

    def _own_copy(self) -> Self:
        """New memory with the same values."""
        return self._new(UOp(Ops.CONTIGUOUS, self.dtype, (self.uop,)))

    def __copy__(self) -> Self:
        """An alias: an update of it writes to this tensor as well, as for a view."""
        return self._view()

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A new tensor with the same values and a copy of the gradient; a parameter stays a parameter."""
        made = (self.detach() if self._is_parameter else self)._own_copy()
        memo[id(self)] = made
        if self._is_parameter:
            made.requires_grad_()
        made._asked, made._is_buffer = self._asked, self._is_buffer
        if self.grad is not None:
            made.grad = self.grad.__deepcopy__(memo)
        return made

    # ------------------------------------------------------------ more operators

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self.abs()

    def __round__(self) -> Self:
        return self.round()

    def __trunc__(self) -> Self:
        return self.trunc()

    def __floor__(self) -> Self:
        return self.floor()

    def __ceil__(self) -> Self:
        return self.ceil()

    def __divmod__(self, x: Self | Scalar) -> tuple[Self, Self]:
        return self.floordiv(x), self.mod(x)

    def __rdivmod__(self, x: Scalar) -> tuple[Self, Self]:
        return self.floordiv(x, reverse=True), self.mod(x, reverse=True)

    def __contains__(self, x: Self | Scalar) -> bool:
        """Whether any element equals `x`."""
        return bool(self.eq(x).any())


def _rebuild(
    kind: type[InteropMixin],
    values: Any,  # supports the buffer protocol
    dtype: DType,
    shape: tuple[int, ...],
    device: Devices,
    marks: tuple[bool | None, bool],
    axis: int | None = None,
) -> InteropMixin:
    """Called by pickle."""
    first = first_device(device)
    made: Any = kind.zeros(*shape, dtype=dtype, device=first)
    if made.numel():
        view = memoryview(values).cast("B")
        made = kind(view, device=first, dtype=dtype).reshape(shape).clone()  # type: ignore[call-arg]
    if not isinstance(device, str):
        made.shard_(device, axis)
    asked, made._is_buffer = marks
    return made._told(asked)  # type: ignore[no-any-return]
