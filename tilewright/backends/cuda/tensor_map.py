"""Tensor maps: the copy engine's description of a matrix. In: sizes and strides, and an address at each launch.
Out: the 128 bytes that a kernel takes as a parameter. The engine then fetches boxes, with zeros past the edges."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from tilewright.base.errors import InternalError
from tilewright.base.records import record

MAP_BYTES = 128
MAP_ALIGNMENT = 64
# Maps that are remembered: results of a step move between a few blocks of memory, and encoding takes 10 us.
MAX_MAPS = 4096
# CUtensorMapDataType by the bytes of an element: the engine moves bits, so unsigned integers stand for all.
_UNSIGNED = {1: 0, 2: 1, 4: 2}
_NO_INTERLEAVE, _SWIZZLE_128_BYTES, _L2_256_BYTES, _ZERO_FILL = 0, 3, 3, 0


@record
class TensorMap:
    """A matrix in the buffer of `slot`, from `start` bytes on: sizes and box, fastest dimension first; the strides, in
    bytes, are those of all dimensions but the fastest."""

    slot: int
    start: int
    itemsize: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]

    def encode(self, address: int, into: int) -> None:
        """Writes the map of a buffer at `address` into the memory at `into`."""
        ctypes.memmove(into, self.encoded(address), MAP_BYTES)

    @functools.lru_cache(MAX_MAPS)  # noqa: B019 - a map is a few numbers: what is kept alive is no larger than the cache
    def encoded(self, address: int) -> bytes:
        rank = len(self.sizes)
        memory = (ctypes.c_ubyte * (MAP_BYTES + MAP_ALIGNMENT))()
        into = -(-ctypes.addressof(memory) // MAP_ALIGNMENT) * MAP_ALIGNMENT
        status = _encoder()(
            into,
            _UNSIGNED[self.itemsize],
            rank,
            address + self.start,
            (ctypes.c_uint64 * rank)(*self.sizes),
            (ctypes.c_uint64 * max(rank - 1, 1))(*self.strides),
            (ctypes.c_uint32 * rank)(*self.box),
            (ctypes.c_uint32 * rank)(*(1,) * rank),
            _NO_INTERLEAVE,
            _SWIZZLE_128_BYTES,
            _L2_256_BYTES,
            _ZERO_FILL,
        )
        if status:
            raise InternalError(f"cuTensorMapEncodeTiled refused {self} at {address:#x} with code {status}")
        return ctypes.string_at(into, MAP_BYTES)


@functools.cache
def _encoder() -> Callable[..., int]:
    """The driver's function, through ctypes: all its arguments are numbers."""
    function: Any = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    function.restype = ctypes.c_int
    address, number = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [address, number, ctypes.c_uint32, address, address, address, address, address, *[number] * 4]
    return function  # type: ignore[no-any-return]
