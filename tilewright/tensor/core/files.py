"""A file as a tensor. In: a path and a dtype. Out: the node of its elements, on the device that is the file. Nothing is
read yet. The mapping is read-only and protected as every borrowed memory is: an update gets memory of its own."""

from __future__ import annotations

import os

from tilewright.base.dtype import DType, dtypes
from tilewright.base.errors import FileError, ShapeError
from tilewright.base.forks import renewed_lock
from tilewright.graph import build
from tilewright.graph.uop import UOp
from tilewright.runtime.buffer import Buffer, buffer_node
from tilewright.runtime.device import canonical_device, open_driver
from tilewright.tensor.core.memory import protect_borrowed

writing_file = renewed_lock()  # held from an assignment to a file until it is written


def map_file(path: str | bytes, dtype: DType | None) -> tuple[UOp, str]:
    """The elements of a file as one row, uint8 where no dtype is given; and its device."""
    device = canonical_device(f"DISK:{os.fsdecode(path)}")
    wanted = dtypes.uint8 if dtype is None else dtype
    try:
        is_empty = os.path.getsize(path) == 0 and os.path.isfile(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise FileError("Tensor", f"{path!r} cannot be read: {reason}", "check the path") from error
    if is_empty:  # which cannot be mapped
        return build.const(wanted, 0, (0,)), device
    memory = open_driver(device).map_file(None)
    if memory.nbytes % wanted.itemsize:
        message = f"{memory.nbytes} bytes of {path!r} are not a whole number of {wanted.name}"
        raise ShapeError("Tensor", message, "give another dtype, or take a slice of the bytes and bitcast it")
    node = buffer_node(Buffer(device, wanted, memory.nbytes // wanted.itemsize, memory))
    protect_borrowed(node)
    return node, device
