"""What `print(t)` and `f"{t:.3f}"` show. In: a tensor. Out: text: the values of a tensor that is in memory, laid out as
torch lays them out; of a lazy one what it will be. Printing never computes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tilewright.base.dtype import dtypes
from tilewright.base.errors import RealizeError, UnsupportedError
from tilewright.engine.memory.parts import layout_of
from tilewright.graph import build
from tilewright.runtime.device import canonical_device
from tilewright.tensor.core.base import TensorBase
from tilewright.tensor.core.memory import in_memory

if TYPE_CHECKING:
    from numpy.typing import NDArray

# As torch's: digits after the point, elements shown whole, elements at each end of a longer axis, columns of text.
_DIGITS = 4
_MAX_WHOLE = 1000
_EDGE = 3
_COLUMNS = 80
# Outside of this range of magnitudes, or past this ratio between two of them, numbers are shown with an exponent.
_LARGE, _SMALL, _MAX_RATIO = 1e8, 1e-4, 1e3
# The dtypes that lists of floats, integers and bools get, which need no mention.
_PLAIN = (dtypes.float32, dtypes.int32, dtypes.bool)


def _describe_devices(tensor: TensorBase) -> str:
    """The device of a tensor, or its devices and how it is divided among them."""
    if isinstance(tensor.device, str):
        return tensor.device
    axis, sizes = layout_of(tensor.uop)
    how = "a copy on each" if axis is None else f"axis {axis} as {'+'.join(map(str, sizes))}"
    return f"{', '.join(tensor.device)} ({how})"


def tensor_text(tensor: TensorBase, values: Callable[[], NDArray[Any]]) -> str:
    """The text of a tensor; `values` reads its elements and is called only where they are in memory."""
    grad = ", requires_grad=True" if tensor.requires_grad else ""
    if not _is_known(tensor):
        return f"<Tensor {tensor._described()} on {_describe_devices(tensor)}, not computed yet{grad}>"
    dtype = "" if tensor.dtype in _PLAIN else f", dtype={tensor.dtype.name}"
    device = "" if tensor.device == canonical_device(None) else f", device={_describe_devices(tensor)}"
    size = f", size={tensor.shape}" if 0 in tensor.shape and tensor.shape != (0,) else ""
    try:
        array = values()
    except (RealizeError, UnsupportedError) as error:  # memory without values: never written, freed, or of NULL
        return f"<Tensor {tensor._described()} on {_describe_devices(tensor)}, {error.message}{grad}>"
    return f"Tensor({_array_text(array)}{size}{dtype}{device}{grad})"


def _is_known(tensor: TensorBase) -> bool:
    return 0 in tensor.shape or in_memory(tensor.uop) or build.is_everywhere(tensor.uop)


def _array_text(array: NDArray[Any]) -> str:
    import numpy as np

    if array.size == 0:
        return "[]"
    if array.dtype.kind not in "biuf":
        array = array.astype(np.float32)  # ml_dtypes' own text has another layout
    return np.array2string(
        array,
        max_line_width=_COLUMNS + 1,  # NumPy counts the bracket that may follow
        separator=", ",
        prefix="Tensor(",
        threshold=_MAX_WHOLE,
        edgeitems=_EDGE,
        formatter={"float_kind": _float_format(_shown(array))} if array.dtype.kind == "f" else None,
    )


def _shown(array: NDArray[Any]) -> NDArray[Any]:
    """The elements that the text has, which alone decide on its format."""
    import numpy as np

    if array.size <= _MAX_WHOLE:
        return array
    for axis, size in enumerate(array.shape):
        if size > 2 * _EDGE:
            array = np.take(array, [*range(_EDGE), *range(size - _EDGE, size)], axis)
    return array


def _float_format(shown: NDArray[Any]) -> Callable[[Any], str]:
    """One format for all elements: whole numbers as `1.`, else four digits, with an exponent where they need one."""
    import numpy as np

    sizes = np.abs(shown[np.isfinite(shown) & (shown != 0)].astype(np.float64))
    greatest, least = (float(sizes.max()), float(sizes.min())) if sizes.size else (0.0, 0.0)
    is_whole = bool((sizes == np.floor(sizes)).all())
    ratio = greatest / least if least else 0.0
    if greatest > _LARGE or ratio > _MAX_RATIO or (not is_whole and least < _SMALL):
        pattern = f"{{:.{_DIGITS}e}}"
    else:
        pattern = "{:.0f}." if is_whole else f"{{:.{_DIGITS}f}}"

    def plain(value: Any) -> str:
        number = float(value)
        return pattern.format(number) if math.isfinite(number) else str(number)

    width = max((len(plain(value)) for value in shown.flat), default=0)
    return lambda value: plain(value).rjust(width)
