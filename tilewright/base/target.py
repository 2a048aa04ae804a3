"""What a stage may know of a device: one frozen record, made by the backend, read by kernel and codegen.
Stages decide by these facts and never by a device's name."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.base.dtype import DType, dtypes

ALL_DTYPES = frozenset(dtypes.all)


@dataclass(frozen=True)
class Target:
    """Facts of one device kind. `native` are the dtypes whose arithmetic the renderer can write directly."""

    name: str
    arch: str = ""
    toolchain: str = ""
    vector_bytes: int = 16
    vector_registers: int = 16
    cores: int = 1
    has_threads: bool = False
    has_local: bool = False
    max_local_bytes: int = 0
    max_group_size: int = 1
    warp_size: int = 1
    cache_bytes: int = 1 << 20
    native: frozenset[DType] = field(default=ALL_DTYPES)
    # Ops (by name) that the renderer writes itself; every other one is decomposed by codegen.
    native_ops: frozenset[str] = frozenset()
    is_reference: bool = False  # the emulator: others are checked against it

    def lanes(self, dtype: DType) -> int:
        """Elements of `dtype` in one vector register."""
        return max(1, self.vector_bytes // max(dtype.itemsize, 1))
