"""Assignment, and the devices a tensor is on. In: a tensor, and values, a dtype or devices. Out: the tensor with new
values, its bits as another dtype, a copy on another device, or a copy or a part on each of several. A sharded tensor is
used like any other: `schedule/sharding/` divides what is computed from it. docs/sharding.md shows what moves when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, cast

from tilewright.base.dtype import DType, is_dtype, to_dtype
from tilewright.base.errors import AxisError, DeviceError, DTypeError, ShapeError
from tilewright.engine.memory.parts import layout_of
from tilewright.graph import build
from tilewright.graph.ops import MultiArg, Ops
from tilewright.graph.slices import even_sizes, shard_node
from tilewright.graph.spec import Devices, Shape
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import file_buffer
from tilewright.runtime.device import canonical_device, is_file_device
from tilewright.tensor.core.base import TensorBase, check_tensors, mark_parameter
from tilewright.tensor.core.checks import check_axis, number_node
from tilewright.tensor.core.files import writing_file
from tilewright.tensor.core.memory import has_memory, holds_nothing, new_memory
from tilewright.tensor.core.moves import Move
from tilewright.tensor.core.storage import StorageMixin


class PlacementMixin(StorageMixin):
    """assign, replace, bitcast, clone, to, shard, ..."""

    # ------------------------------------------------------------ assignment

    def _store(self, moves: tuple[Move, ...], value: UOp, *others: TensorBase) -> None:
        if not is_file_device(self.device):
            super()._store(moves, value, *others)
            return
        # Whoever else reads the file expects what was assigned, of each of several threads.
        with writing_file:
            super()._store(moves, value, *others)
            owner = next((tensor for tensor, _ in self._living_ancestors()), self)
            cast(PlacementMixin, owner).realize()

    def assign(self, x: Any) -> Self:
        """Overwrites the elements with `x`, broadcast to this shape. Expressions built before keep the old values; a
        tensor this one is a view of is written as well."""
        operand = self._operand("assign", x)
        if isinstance(operand, TensorBase):
            if operand is not x and (self.dtype.is_float or not operand.dtype.is_float):
                operand = operand.cast(self.dtype)  # lists and arrays have no dtype that the user chose for this
            if operand.dtype is not self.dtype:
                message = f"{operand.dtype.name} values for a tensor of {self.dtype.name}"
                raise DTypeError("assign", message, f"cast them, such as `.cast({self.dtype.name!r})`")
            value = operand.uop
        else:
            value = number_node("assign", self.dtype, operand)
        value = self._fitted("assign", value, self.shape)
        if not self._ancestors and not has_memory(self.uop):
            value = build.contiguous(value)
        self._store((), value, *((operand,) if isinstance(operand, TensorBase) else ()))
        return self

    def replace(self, x: Self) -> Self:
        """Makes this tensor the other one, without writing to memory."""
        if not isinstance(x, TensorBase):
            raise DTypeError(
                "replace", f"a {type(x).__name__} is not a tensor", "give a tensor, such as `Tensor([1, 2])`"
            )
        if x.shape != self.shape:
            message = f"shape {x.shape} for a tensor of shape {self.shape}"
            raise ShapeError("replace", message, "reshape the new value")
        self.uop = x.uop
        self.device = x.device
        self._ancestors = ()
        if self._is_parameter:
            self._take_identity()
        else:
            self._requires_grad = x._requires_grad
        return self

    # ------------------------------------------------------------ bits

    def bitcast(self, dtype: DType | str) -> Self:
        """The same bits read as another dtype; with another width the last axis grows or shrinks accordingly. A view:
        an assignment to it updates this tensor too."""
        wanted = to_dtype(dtype)
        if wanted.bits == self.dtype.bits:
            return self._view((Ops.BITCAST, wanted))
        is_wider = wanted.bits > self.dtype.bits
        ratio = wanted.bits // self.dtype.bits if is_wider else self.dtype.bits // wanted.bits
        if not self.shape or (is_wider and self.shape[-1] % ratio):
            message = f"{self.dtype.name}{list(self.shape)} as {wanted.name}: the last axis does not divide"
            raise ShapeError("bitcast", message, f"give a last axis that {ratio} divides")
        return self._view((Ops.BITCAST, wanted))

    # ------------------------------------------------------------ devices

    def to(self, device: Any = None, dtype: Any = None, *, non_blocking: bool = False) -> Self:
        """The tensor on another device, or a copy of it on each of several; in another dtype; or both:
        `to("CUDA")`, `to("float16")`, `to("CUDA", "float16")`, `to(other)`. To move it to a file device, such as
        'DISK:/tmp/weights', is to write that file, at once."""
        del non_blocking  # work is queued on every device
        if isinstance(device, TensorBase):
            return self.cast(device.dtype).to(device.device)
        if dtype is None and is_dtype(device):
            device, dtype = self.device, device
        if dtype is not None:
            return self.cast(dtype).to(self.device if device is None else device)
        device = canonical_device(device)
        if device == self.device:
            return self
        if isinstance(device, str) and is_file_device(device) and self.numel():
            file = build.reshape(file_buffer(device, self.dtype, self.numel()), self.shape)
            return self._from_uop(file, device).assign(self.detach())
        moved = self._new(self.uop if build.is_everywhere(self.uop) else build.copy(self.uop, device))
        moved.device = device
        return moved

    def cpu(self) -> Self:
        """The tensor on the CPU."""
        return self.to("CPU")

    def cuda(self) -> Self:
        """The tensor on the first CUDA device."""
        return self.to("CUDA")

    def to_(self, device: Devices | None) -> Self:
        """Moves this tensor to another device."""
        if canonical_device(device) == self.device:
            return self
        return self._become(self._without_parameter().to(device))

    def _without_parameter(self) -> Self:
        """This tensor to be moved. A parameter stays the same parameter, so no gradient flows from new to old."""
        return self.detach() if self._is_parameter else self

    def _become(self, moved: Self) -> Self:
        """Makes this tensor one that was moved."""
        self.uop, self.device = moved.uop, moved.device
        self._ancestors = ()
        if self._is_parameter:
            mark_parameter(self)
        return self

    def clone(self, device: Devices | None = None) -> Self:
        """A tensor of its own with the same values."""
        copied = self._new(UOp(Ops.CONTIGUOUS, self.dtype, (self.uop,)))
        return copied if device is None else copied.to(device)

    def shard(self, devices: tuple[str, ...] | list[str], axis: int | None = None) -> Self:
        """The tensor on several devices: a copy on each, or along `axis` a part on each. Parts are as even as they can
        be, the first ones larger. What is on several devices already is divided again."""
        checked = _checked_devices(devices)
        wanted = None if axis is None else _check_axis(axis, self.shape)
        if isinstance(checked, str):
            return self.to(checked)
        return self._sharded(checked, wanted)

    def shard_(self, devices: tuple[str, ...] | list[str], axis: int | None = None) -> Self:
        """Moves this tensor to several devices; a parameter stays one."""
        return self._become(self._without_parameter().shard(devices, axis))

    def shard_like(self, y: Self) -> Self:
        """The tensor where `y` is, and divided as `y` is."""
        check_tensors("shard_like", y)
        if isinstance(y.device, str):
            return self.to(y.device)
        axis, sizes = layout_of(y.uop)
        wanted = None if axis is None else _check_axis(axis, self.shape)
        fits = wanted is not None and self.shape[wanted] == sum(sizes)
        return self._sharded(y.device, wanted, sizes if fits else ())

    @classmethod
    def _from_parts(cls, parts: Sequence[Self], arg: MultiArg) -> Self:
        """The tensor whose parts on several devices are these tensors."""
        return cls._from_uop(build.multi([part.uop for part in parts], arg.axis, arg.devices), arg.devices)

    def _sharded(self, devices: tuple[str, ...], axis: int | None, sizes: tuple[int, ...] = ()) -> Self:
        node = self.uop
        if holds_nothing(node):
            even = () if axis is None else sizes or even_sizes(node.shape[axis], len(devices))
            node = new_memory(devices, node.dtype, node.shape, (axis, even))
        elif axis is not None or not build.is_everywhere(node):
            node = shard_node(node, devices, axis, sizes)
        made = self._new(node)
        made.device = devices
        return made


def _checked_devices(devices: object) -> Devices:
    if not isinstance(devices, tuple | list):
        remedy = "give a tuple of devices, such as ('CPU:0', 'CPU:1'), or use to() for one device"
        raise DeviceError("shard", f"{devices!r} is not several devices", remedy)
    return canonical_device(tuple(devices))


def _check_axis(axis: int, shape: Shape) -> int:
    if not shape:
        remedy = "leave axis out: each device then has a copy"
        raise AxisError("shard", f"a 0-d tensor has no axis {axis!r} to divide", remedy)
    return check_axis("shard", axis, len(shape))
