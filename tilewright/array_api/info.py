"""What the namespace can do, as the array API asks for it: devices, dtypes, capabilities."""

from __future__ import annotations

from typing import Any

from tilewright.array_api.dtypes import ALL, DEFAULT_COMPLEX, KINDS, isdtype
from tilewright.base.dtype import DType, dtypes
from tilewright.runtime.device import Device


class NamespaceInfo:
    """The answers of `__array_namespace_info__()`."""

    def capabilities(self) -> dict[str, Any]:
        """Arrays may be indexed by masks and have shapes that depend on values; axes are not limited."""
        return {"boolean indexing": True, "data-dependent shapes": True, "max dimensions": None}

    def default_device(self) -> str:
        return str(Device.DEFAULT)

    def devices(self) -> list[str]:
        """The devices that can be used here."""
        usable = (name for name, reason in Device.availability().items() if reason is None)
        return [name for name in usable if name not in ("NULL", "DISK")]

    def default_dtypes(self, *, device: Any = None) -> dict[str, DType]:
        del device  # they are the same on every one
        return {
            "real floating": dtypes.default_float,
            "complex floating": DEFAULT_COMPLEX,
            "integral": dtypes.default_int,
            "indexing": dtypes.int64,
        }

    def dtypes(self, *, device: Any = None, kind: Any = None) -> dict[str, DType]:
        del device
        wanted = tuple(KINDS) if kind is None else kind
        return {dtype.name: dtype for dtype in ALL if isdtype(dtype, wanted)}


def __array_namespace_info__() -> NamespaceInfo:
    """Facts about this namespace."""
    return NamespaceInfo()
