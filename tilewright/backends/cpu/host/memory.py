"""Host memory. In: a number of bytes, or an object with the buffer protocol. Out: `HostMemory`: an address, a size and
a memoryview; the last reference returns the block to a cache. Used by the CPU device; does not import numpy. Memory is
not zeroed."""

import ctypes
import os
import sys
import threading
from typing import Any

from tilewright.backends.cpu.host import system

ALIGNMENT = 64
HUGE_PAGE = 2 << 20
HUGE_FROM = 4 << 20  # from this size on a block starts at a 2 MiB page and asks for such pages
_CHECKED_FROM = 16 << 20  # smaller requests are not worth the file reads that tell how much memory is free
_MADVISE_HUGE_PAGE = 14

_libc = ctypes.CDLL(None)
_posix_memalign = _libc.posix_memalign
_posix_memalign.argtypes = [ctypes.POINTER(ctypes.c_void_p), ctypes.c_size_t, ctypes.c_size_t]
_free = _libc.free
_free.argtypes = [ctypes.c_void_p]
_free.restype = None


class HostMemory:
    """A block of memory, alive while this object or a view of it is. `readonly` blocks may not be written to."""

    __slots__ = ("__weakref__", "_bucket", "_source", "address", "nbytes", "readonly")

    def __init__(self, address: int, nbytes: int, bucket: "_Bucket | None", source: object = None) -> None:
        self.address = address
        self.nbytes = nbytes
        self.readonly = False
        self._bucket = bucket  # where the block goes back to; None where the memory is borrowed from `source`
        self._source = source

    def view(self) -> memoryview:
        """The bytes, as a memoryview of format 'B' that keeps the memory alive; writable unless `readonly`."""
        exported = (ctypes.c_uint8 * self.nbytes).from_address(self.address)
        exported.owner = self  # type: ignore[attr-defined]
        view = memoryview(exported).cast("B")
        return view.toreadonly() if self.readonly else view

    def __repr__(self) -> str:
        return f"HostMemory({self.nbytes} bytes at {self.address:#x}{', read-only' if self.readonly else ''})"

    def __del__(self) -> None:
        bucket = self._bucket
        if bucket is not None:
            bucket.append(self.address)
            allocator = bucket.allocator
            allocator.headroom -= bucket.size
            if allocator.headroom < 0:
                allocator.trim()


class _Bucket(list[int]):
    """The addresses of the free blocks of one size class."""

    __slots__ = ("allocator", "size", "used")

    def __init__(self, allocator: "Allocator", size: int) -> None:
        super().__init__()
        self.allocator = allocator
        self.size = size
        self.used = 0  # the allocator's clock when a block was last taken from here


def size_class(nbytes: int) -> int:
    """The size of the block for a request: at most an eighth larger, so that blocks are reused for similar shapes."""
    if nbytes <= 1024:
        step = ALIGNMENT
    elif nbytes < 64 << 20:
        step = 1 << (nbytes.bit_length() - 4)
    else:
        step = HUGE_PAGE
    return max(ALIGNMENT, -(-nbytes // step) * step)


class Allocator:
    """Blocks by size class; freed ones wait for reuse, up to `limit` bytes, and the classes unused longest go first.

    A destructor can run at any point, also while this thread is inside `allocate`, so taking and giving back are single
    list operations without a lock. `headroom` counts given-back bytes down to the next exact count, which `trim` makes;
    a concurrent update that is lost only shifts that moment.
    """

    def __init__(self, limit: int | None = None) -> None:
        self.total = system.memory_total()
        self.limit = min(1 << 30, self.total // 8) if limit is None else limit
        self.headroom = self.limit
        self.live = 0  # bytes of all blocks, in use and cached
        self._lock = threading.RLock()  # a destructor that allocates may run inside a locked part
        self._clock = 0  # counts the trims
        self._buckets: dict[int, _Bucket] = {}
        self._by_request: dict[int, _Bucket] = {}  # the classes of the sizes asked for lately

    def allocate(self, nbytes: int) -> HostMemory:
        """A block of at least `nbytes` bytes; MemoryError where the system cannot give that much."""
        bucket = self._by_request.get(nbytes)
        if not bucket:
            return self._allocate_slowly(nbytes)
        try:
            address = bucket.pop()
        except IndexError:  # another thread took the last one
            return self._allocate_slowly(nbytes)
        bucket.used = self._clock
        return HostMemory(address, nbytes, bucket)

    def _allocate_slowly(self, nbytes: int) -> HostMemory:
        if nbytes < 0:
            raise ValueError(f"cannot allocate {nbytes} bytes")
        size = size_class(nbytes)
        with self._lock:
            if len(self._by_request) > 4096:
                self._by_request.clear()
            bucket = self._buckets.get(size) or self._buckets.setdefault(size, _Bucket(self, size))
            self._by_request[nbytes] = bucket
            bucket.used = self._clock
            address = self._pop(bucket) or self._new_block(size)
        return HostMemory(address, nbytes, bucket)

    @property
    def cached(self) -> int:
        """Bytes of the free blocks."""
        return sum(len(bucket) * size for size, bucket in list(self._buckets.items()))

    def free_cached(self) -> int:
        """Give all free blocks to the system; returns how many bytes."""
        with self._lock:
            return self._shrink_to(0)

    def trim(self) -> None:
        """Shrinks the cache below its limit, from a destructor; left to the next destructor where the lock is taken."""
        # At interpreter exit daemon threads may still run kernels on a block, and the system takes it back anyway.
        if sys.is_finalizing() or not self._lock.acquire(blocking=False):
            return
        try:
            self._clock += 1
            # Below the limit, so that the next blocks given back do not trim again.
            if self.cached > self.limit - self.limit // 16:
                self._shrink_to(self.limit - self.limit // 8)
            self.headroom = self.limit - self.cached
        finally:
            self._lock.release()

    def _shrink_to(self, limit: int) -> int:
        before = cached = self.cached
        # A block that is larger than the cache goes first: it would push out all others and then itself.
        for bucket in sorted(self._buckets.values(), key=lambda bucket: (bucket.size <= self.limit, bucket.used)):
            while cached > limit and (address := self._pop(bucket, 0)):
                _free(address)
                cached -= bucket.size
                self.live -= bucket.size
        return before - cached

    def _pop(self, bucket: _Bucket, index: int = -1) -> int:
        """A free block, or 0: another thread may take the last one at any time."""
        try:
            return bucket.pop(index)
        except IndexError:
            return 0

    def _new_block(self, size: int) -> int:
        self._check_room(size)
        address = _aligned(size)
        if not address:
            self._shrink_to(0)
            address = _aligned(size)
        if not address:
            raise MemoryError(f"the system has no {size} bytes of memory")
        self.live += size
        return address

    def _check_room(self, size: int) -> None:
        """Refuses more than the machine has: malloc grants any amount, and the process is killed when it uses it."""
        room = self.total - self.total // 32 - self.live
        if size >= _CHECKED_FROM:
            room = min(room, system.memory_available())
        if size > room:
            room += self._shrink_to(0)
        if size > room:
            raise MemoryError(f"{size} bytes asked for; {room} are free, and {self.live} are in use here")


def _aligned(size: int) -> int:
    """A new block from the system; 0 where it has none."""
    pointer = ctypes.c_void_p()
    if _posix_memalign(ctypes.byref(pointer), HUGE_PAGE if size >= HUGE_FROM else ALIGNMENT, size):
        return 0
    address = pointer.value or 0
    if size >= HUGE_FROM and sys.platform == "linux":
        # Only advice: a kernel without huge pages answers with an error and nothing is lost.
        _libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(size), _MADVISE_HUGE_PAGE)
    return address


_allocator = Allocator()
allocate = _allocator.allocate
_malloc_trim = getattr(_libc, "malloc_trim", None)  # of glibc


def release_unused() -> None:
    """Give the free blocks to the system, and whole pages of other memory that this process has freed."""
    _allocator.free_cached()
    if _malloc_trim is not None:
        _malloc_trim(0)


def _renew_lock() -> None:
    """In the child of a fork, the lock may have been held by a thread that does not exist there."""
    _allocator._lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


class _BufferRecord(ctypes.Structure):
    """CPython's Py_buffer."""

    _fields_ = (
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.c_void_p),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        *((name, ctypes.c_void_p) for name in ("format", "shape", "strides", "suboffsets", "internal")),
    )

    def __del__(self, release: Any = ctypes.pythonapi.PyBuffer_Release, byref: Any = ctypes.byref) -> None:
        release(byref(self))


ctypes.pythonapi.PyBuffer_Release.restype = None
_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_BufferRecord), ctypes.c_int]


def wrap(source: Any) -> HostMemory:
    """Borrow the memory of `source` (bytes, bytearray, memoryview, numpy array...) without a copy.

    The source is kept alive and cannot be resized meanwhile. It must be contiguous in C order: else BufferError.
    """
    record = _BufferRecord()
    try:
        _get_buffer(source, ctypes.byref(record), 0)
    except ValueError as error:
        raise BufferError(f"{type(source).__name__}: {error}") from error
    memory = HostMemory(record.buf or 0, record.len, None, record)
    memory.readonly = bool(record.readonly)
    return memory
