"""Buffers. In: a device, a dtype and a size. Out: a BUFFER node whose `Buffer` holds the memory.
The memory lives as long as the node or anything that reads it; it is taken from the device on first use."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.errors import OutOfMemoryError, RealizeError, UserError
from tilewright.base.events import GlobalCounters
from tilewright.base.records import NamedTuple
from tilewright.graph import build
from tilewright.graph.symbolic import capacity
from tilewright.graph.uop import UOp
from tilewright.runtime.device import Address, Driver, open_driver


class HostData(NamedTuple):
    """What a buffer on a device is made of."""

    device: str
    dtype: DType
    size: int
    data: bytes


class _HostAccess(threading.local):
    """Notified when the host reads a buffer; jit listens while it records."""

    listener: Callable[[str], None] | None = None
    # While jit records, the buffers that were made before anything was computed into them.
    made: weakref.WeakSet[Buffer] | None = None
    # And what those are made of that have host data.
    data: weakref.WeakKeyDictionary[Buffer, HostData] | None = None


host_access = _HostAccess()


class Buffer:
    """Memory of one device, allocated on first use. A symbolic size is that of the contents; memory is allocated for
    the greatest value. `room` is for how many elements there is memory, where that is more than the size."""

    __slots__ = ("__weakref__", "_counted", "_node", "device", "dtype", "memory", "room", "size")

    def __init__(self, device: str, dtype: DType, size: int, memory: Any = None, counted: int = 0) -> None:
        """`counted`: the bytes of `memory` that GlobalCounters has added; they are subtracted when the buffer is
        freed."""
        self.device = device
        self.dtype = dtype
        self.size = size
        self.room = 0
        self.memory = memory
        self._counted = counted
        self._node: weakref.ref[UOp] | None = None

    @property
    def node(self) -> UOp:
        """The node that stands for the present contents. There is one at a time: readers are found through it."""
        node = None if self._node is None else self._node()
        return node if node is not None and node.cache.get("buffer") is self else buffer_node(self)

    @property
    def nbytes(self) -> int:
        return capacity(self.size) * self.dtype.itemsize

    def shrink(self, size: int) -> None:
        """Makes the contents fewer elements than there is memory for."""
        self.ensure()
        self.room = capacity(self.size)
        self.size = size

    def with_room(self, count: int) -> Buffer:
        """A buffer with the same contents and memory for at least `count` elements: this one if it has that, else a
        copy."""
        if max(self.room, capacity(self.size)) >= count:
            return self
        made = Buffer(self.device, self.dtype, count)
        transfer((made.ensure(), 0), self.device, (self.ensure(), 0), self.device, self.nbytes)
        return made

    def ensure(self) -> Any:
        """The memory, taken from the device if there is none yet."""
        if self.memory is None:
            nbytes = self.nbytes
            self.memory = allocate(self.device, nbytes)
            self._counted = nbytes
            GlobalCounters.add_memory(nbytes, self.device)
        return self.memory

    def view(self) -> memoryview:
        """The bytes: the memory itself where the host sees it, else a copy."""
        driver = self._readable()
        driver.synchronize()
        shared = driver.host_view(self.memory)
        if shared is not None:
            return shared[: self.nbytes]
        copied = memoryview(bytearray(self.nbytes))
        driver.copy_out(self.memory, 0, copied)
        return copied.toreadonly()

    def read_into(self, into: memoryview, start: int = 0) -> None:
        """Copies as many bytes as `into` has, from byte `start` on."""
        self._readable().copy_out(self.memory, start, into)

    def _readable(self) -> Driver:
        if self.memory is None:
            raise RealizeError("read", "the buffer was never written", "realize the tensor before reading its memory")
        if host_access.listener is not None:
            host_access.listener("it reads the contents of a tensor on the host")
        return open_driver(self.device)

    def __del__(self) -> None:
        if self._counted and GlobalCounters is not None:  # it is None while the interpreter shuts down
            GlobalCounters.free_memory((self.device, -self._counted))

    def __repr__(self) -> str:
        return f"Buffer({self.device}, {self.dtype.name}, {self.size})"


class FileBuffer(Buffer):
    """A file that is mapped to be written. Other processes see it, so an update is always written to the file and never
    to new memory; old contents that are still to be read are copied first."""

    __slots__ = ()


def file_buffer(device: str, dtype: DType, size: int) -> UOp:
    """A buffer that is the file named by its device; the file grows where it is too short."""
    return buffer_node(FileBuffer(device, dtype, size, open_driver(device).map_file(size * dtype.itemsize)))


def allocate(device: str, nbytes: int) -> Any:
    try:
        return open_driver(device).allocate(nbytes or 1)
    except MemoryError as error:
        raise out_of_memory(device, nbytes, error) from error


def out_of_memory(device: str, nbytes: int, error: MemoryError) -> OutOfMemoryError:
    message = f"{device} has no {nbytes} bytes left ({error})"
    return OutOfMemoryError("allocate", message, "free tensors, or use smaller ones")


def buffer_node(buffer: Buffer) -> UOp:
    """A fresh BUFFER node for the memory."""
    node = build.new_buffer(buffer.dtype, buffer.size, buffer.device)
    node._cache = {"buffer": buffer}  # nobody else has the node yet, so there is nothing to lock
    buffer._node = weakref.ref(node)
    return node


def new_buffer(device: str, dtype: DType, size: int) -> UOp:
    buffer = Buffer(device, dtype, size)
    if host_access.made is not None:
        host_access.made.add(buffer)
    return buffer_node(buffer)


def from_host(source: Any, device: str, dtype: DType, size: int, borrow: bool = True) -> UOp:
    """A buffer with the bytes of a host object: borrowed where that is allowed and the device can, else copied. Always
    copied while jit records: a replay needs the bytes of now."""
    data = host_access.data
    memory = open_driver(device).wrap(source) if size and borrow and data is None else None
    if memory is not None:
        return buffer_node(Buffer(device, dtype, size, memory))
    node = new_buffer(device, dtype, size)
    buffer = buffer_of(node)
    buffer.ensure()
    if data is not None:
        source = bytes(memoryview(source).cast("B")) if size else b""
        data[buffer] = HostData(device, dtype, size, source)
    if size:
        write_bytes(buffer, memoryview(source).cast("B"))
    return node


def from_shared(source: Any, device: str, dtype: DType, size: int, borrow: bool = True) -> UOp:
    """`from_host` of memory that may change later, by another library or by who has lent it."""
    if host_access.listener is not None:
        host_access.listener("it makes a tensor of memory that may change before the next call")
    return from_host(source, device, dtype, size, borrow)


def write_bytes(buffer: Buffer, data: memoryview) -> None:
    """Copies host bytes into a buffer."""
    open_driver(buffer.device).copy_in(buffer.ensure(), 0, data)


def transfer(target: Address, target_device: str, source: Address, source_device: str, nbytes: int) -> None:
    """Bytes from one device's memory to another's: directly where one of them is host memory, else through the host."""
    reader, writer = open_driver(source_device), open_driver(target_device)
    if not writer.keeps_values:
        return
    if reader is writer:
        reader.copy(target, source, nbytes)
        return
    (from_memory, from_offset), (to_memory, to_offset) = source, target
    reader.synchronize()
    shared = reader.host_view(from_memory)
    if shared is not None:
        writer.copy_in(to_memory, to_offset, shared[from_offset : from_offset + nbytes])
        return
    staged = memoryview(bytearray(nbytes))
    reader.copy_out(from_memory, from_offset, staged)
    writer.copy_in(to_memory, to_offset, staged)


def buffer_of(node: UOp) -> Buffer:
    """The memory behind a BUFFER node."""
    buffer = node.cache.get("buffer")
    if not isinstance(buffer, Buffer):
        reason = node.cache.get("lost", "the memory of this tensor was freed or given to a newer version of it")
        if isinstance(reason, UserError):
            raise type(reason)(reason.operation, reason.message, reason.remedy, location=reason.location)
        raise RealizeError("read", str(reason), "keep the newer tensor, or return this one from the function")
    return buffer


def lost_buffer(device: str, dtype: DType, size: int, reason: str | UserError) -> UOp:
    """A BUFFER node without memory; reading it raises a RealizeError with the reason, or the given error."""
    node = build.new_buffer(dtype, size, device)
    node.cache["lost"] = reason
    return node
