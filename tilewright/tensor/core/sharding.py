"""Tensors on several devices. In: a tensor and the devices. Out: the same value, of which each device has a copy or a
part. Such a tensor is used like any other; `schedule/shard.py` divides what is computed from it among the devices.
docs/sharding.md shows how to use it and what is moved when."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from tilewright.base.dtype import DType
from tilewright.base.errors import AxisError, DeviceError
from tilewright.engine.parts import layout_of
from tilewright.graph import build
from tilewright.graph.ops import MultiArg, Ops
from tilewright.graph.slices import even_sizes, replace_axis, spread
from tilewright.graph.spec import Devices, Shape
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer, new_buffer
from tilewright.runtime.device import canonical_device
from tilewright.tensor.core.base import TensorBase, check_axis, check_tensors, mark_parameter

Layout = tuple[int | None, tuple[int, ...]]
WHOLE: Layout = (None, ())


def new_memory(device: Devices, dtype: DType, shape: Shape, layout: Layout = WHOLE) -> UOp:
    """Memory for a value: on one device, or on each of several for a copy or a part of it."""
    if isinstance(device, str):
        return build.reshape(new_buffer(device, dtype, math.prod(shape)), shape)
    axis, sizes = layout
    shapes = [shape] * len(device) if axis is None else [replace_axis(shape, axis, size) for size in sizes]
    parts = [build.reshape(new_buffer(name, dtype, math.prod(own)), own) for name, own in zip(device, shapes)]
    return build.multi(parts, axis, device)


def memory_like(tensor: TensorBase, dtype: DType | None = None) -> UOp:
    """Memory for another value of the shape of a tensor, where the tensor is."""
    layout = WHOLE if isinstance(tensor.device, str) else layout_of(tensor.uop)
    return new_memory(tensor.device, dtype or tensor.dtype, tensor.shape, layout)


def in_memory(node: UOp) -> bool:
    """Whether a value is memory, reshapes and what only gradients see aside, and nothing has to be computed."""
    root = build.stored_root(node)
    while root.op is Ops.DETACH:
        root = build.stored_root(root.src[0])
    return all(map(in_memory, root.src)) if root.op is Ops.MULTI else root.op is Ops.BUFFER


def holds_nothing(node: UOp) -> bool:
    """Whether a value is memory that was never written, as `Tensor.empty` gives it."""
    root = build.stored_root(node)
    if root.op is Ops.MULTI:
        return all(map(holds_nothing, root.src))
    buffer = root.cache.get("buffer") if root.op is Ops.BUFFER else None
    return isinstance(buffer, Buffer) and buffer.memory is None


def first_device(device: Devices) -> str:
    return device if isinstance(device, str) else device[0]


def describe_place(tensor: TensorBase) -> str:
    """Where a tensor is, in a few words."""
    if isinstance(tensor.device, str):
        return tensor.device
    axis, sizes = layout_of(tensor.uop)
    how = "a copy on each" if axis is None else f"axis {axis} as {'+'.join(map(str, sizes))}"
    return f"{', '.join(tensor.device)} ({how})"


class ShardingMixin(TensorBase):
    """shard, shard_, shard_like."""

    def shard(self, devices: tuple[str, ...] | list[str], axis: int | None = None) -> Self:
        """The tensor on several devices: a copy on each, or along `axis` a part on each. Parts are as even as they can
        be, the first ones larger. What is on several devices already is divided anew."""
        places = _check_places(devices)
        wanted = None if axis is None else _check_axis(axis, self.shape)
        if isinstance(places, str):
            moved: Any = self
            return moved.to(places)  # type: ignore[no-any-return]
        return self._spread(places, wanted)

    def shard_(self, devices: tuple[str, ...] | list[str], axis: int | None = None) -> Self:
        """Moves this tensor to several devices; a parameter stays one."""
        # The parameter it was is the parameter it is: no gradient goes from one to the other.
        start = type(self)._from_uop(build.detach(self.uop), self.device) if self._is_parameter else self
        moved = start.shard(devices, axis)
        self.uop, self.device = moved.uop, moved.device
        self._ancestors = ()
        if self._is_parameter:
            mark_parameter(self)
        return self

    def shard_like(self, y: Self) -> Self:
        """The tensor where `y` is, and divided as `y` is."""
        check_tensors("shard_like", y)
        if isinstance(y.device, str):
            moved: Any = self
            return moved.to(y.device)  # type: ignore[no-any-return]
        axis, sizes = layout_of(y.uop)
        wanted = None if axis is None else _check_axis(axis, self.shape)
        fits = wanted is not None and self.shape[wanted] == sum(sizes)
        return self._spread(y.device, wanted, sizes if fits else ())

    @classmethod
    def _from_parts(cls, parts: Sequence[Self], arg: MultiArg) -> Self:
        """The tensor whose parts on several devices are these tensors."""
        return cls._from_uop(build.multi([part.uop for part in parts], arg.axis, arg.devices), arg.devices)

    def _spread(self, places: tuple[str, ...], axis: int | None, sizes: tuple[int, ...] = ()) -> Self:
        node = self.uop
        if holds_nothing(node):
            even = () if axis is None else sizes or even_sizes(node.shape[axis], len(places))
            node = new_memory(places, node.dtype, node.shape, (axis, even))
        elif axis is not None or not build.is_everywhere(node):
            node = spread(node, places, axis, sizes)
        made = self._new(node)
        made.device = places
        return made


def _check_places(devices: object) -> Devices:
    if not isinstance(devices, tuple | list):
        remedy = "give a tuple of devices, such as ('CPU:0', 'CPU:1'), or use to() for one device"
        raise DeviceError("shard", f"{devices!r} is not several devices", remedy)
    return canonical_device(tuple(devices))


def _check_axis(axis: int, shape: Shape) -> int:
    if not shape:
        remedy = "leave axis out: each device then has a copy"
        raise AxisError("shard", f"a 0-d tensor has no axis {axis!r} to divide", remedy)
    return check_axis("shard", axis, len(shape))
