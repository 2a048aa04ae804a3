"""Between host data and bytes. In: numbers, nested lists, NumPy arrays, bytes; or a view of a buffer's bytes.
Out: bytes with their dtype and shape; or Python numbers. Only an array that comes in needs NumPy, and whoever made
the array has imported it."""

from __future__ import annotations

import array
import math
import struct
from collections.abc import Iterable
from typing import Any

from tilewright.base.dtype import DType, Scalar, cast_scalar, dtype_for_range, dtypes
from tilewright.base.errors import DTypeError, ShapeError
from tilewright.base.records import NamedTuple
from tilewright.graph.spec import Shape
from tilewright.tensor.core.checks import WIDER_DTYPE, check_holds


class HostData(NamedTuple):
    """Bytes of the host, row by row, that hold elements of a dtype."""

    buffer: Any  # supports the buffer protocol
    dtype: DType
    shape: Shape
    is_shared: bool = True  # someone else can read these bytes, so they are never written to
    can_change: bool = True  # and write them, so a tensor of their present values has to copy them
    limits: tuple[int, int] | None = None  # the least and the greatest of a few integers, which may index something


_NUMPY_NAMES = {dtype.name: dtype for dtype in dtypes.all} | {"float8_e4m3fn": dtypes.float8_e4m3}
_CODES = {dtype.code: dtype for dtype in dtypes.all if dtype.code}
_FEW = 4096


# ---------------------------------------------------------------- nested lists


def first_leaf(data: Any) -> Any:
    """What stands first in nested lists, below all of them; a list that is its own first element has no such thing."""
    above: set[int] = set()
    while isinstance(data, list | tuple) and data:
        if id(data) in above:
            raise ShapeError("Tensor", "a list contains itself", "give nested lists of numbers")
        above.add(id(data))
        data = data[0]
    return data


def flatten(data: Any) -> tuple[list[Any], Shape]:
    """The leaves of nested lists in order and their shape; a ragged list is an error that names the entry."""
    first_leaf(data)
    shape: list[int] = []
    level: list[Any] = [data]
    while level and isinstance(level[0], list | tuple):
        size = len(level[0])
        merged: list[Any] = []
        for position, item in enumerate(level):
            if not isinstance(item, list | tuple) or len(item) != size:
                _raise_ragged(position, shape, item, size)
            merged.extend(item)
        shape.append(size)
        level = merged
    for position, item in enumerate(level):
        if isinstance(item, list | tuple):
            _raise_ragged(position, shape, item, None)
    return level, tuple(shape)


def _raise_ragged(position: int, shape: list[int], item: Any, size: int | None) -> None:
    path = ""
    for length in reversed(shape):
        position, index = divmod(position, length)
        path = f"[{index}]{path}"
    found = f"a list of length {len(item)}" if isinstance(item, list | tuple) else f"the number {item!r}"
    wanted = "a number" if size is None else f"a list of length {size}"
    raise ShapeError(
        "Tensor",
        f"the nested list is ragged: data{path} is {found} where its neighbours are {wanted}",
        "make all lists of one level the same length, for instance by padding them",
    )


def dtype_of_leaves(leaves: list[Any]) -> DType:
    """bool < int < float; integers that the default type does not hold make a wider one."""
    kinds = set(map(type, leaves))
    if not kinds:
        return dtypes.default_float
    if not kinds <= {bool, int, float}:
        names = ", ".join(sorted(kind.__name__ for kind in kinds - {bool, int, float}))
        raise DTypeError("Tensor", f"the data holds {names}", "give numbers, bools, nested lists or a NumPy array")
    if float in kinds:
        return dtypes.default_float
    if kinds == {bool}:
        return dtypes.bool
    return dtype_for_range(min(leaves), max(leaves))


def plain_leaves(leaves: list[Any]) -> list[Any]:
    """The leaves with NumPy's scalars (and whatever else has `item`) made Python numbers."""
    if set(map(type, leaves)) <= {bool, int, float}:
        return leaves
    return [leaf.item() if hasattr(leaf, "item") else leaf for leaf in leaves]


def from_lists(data: Any, dtype: DType | None) -> HostData:
    leaves, shape = flatten(data)
    leaves = plain_leaves(leaves)
    found = dtype_of_leaves(leaves)
    wanted = found if dtype is None else dtype
    limits = (min(leaves), max(leaves)) if found.is_int and wanted.is_int and leaves else None
    if limits is not None and not wanted.min <= limits[0] <= limits[1] <= wanted.max:
        for number in limits:
            check_holds("Tensor", wanted, number, WIDER_DTYPE)
        limits = None  # negative numbers of an unsigned type wrap
    elif found.is_float and wanted.is_int:
        for number in leaves:
            check_holds("Tensor", wanted, number, WIDER_DTYPE)
    return HostData(encode(leaves, wanted), wanted, shape, False, False, limits)


# ---------------------------------------------------------------- other sources


def from_bytes(data: Any, dtype: DType | None) -> HostData:
    """Raw bytes are the memory of elements of `dtype`, uint8 where none is given; a typed memoryview keeps its own."""
    view = memoryview(data)
    if not view.c_contiguous:
        view = memoryview(view.tobytes()).cast("B").cast(view.format, view.shape)  # type: ignore[call-overload]
    if view.format in ("B", "b", "c") and view.ndim == 1:
        wanted = dtypes.uint8 if dtype is None else dtype
        if view.nbytes % wanted.itemsize:
            message = f"{view.nbytes} bytes are not a whole number of {wanted.name}, which has {wanted.itemsize} bytes"
            raise ShapeError("Tensor", message, "cut or pad the bytes, or give another dtype")
        return HostData(view, wanted, (view.nbytes // wanted.itemsize,), True, _can_change(view))
    # "l" and "L" have the width of the platform.
    aliases = {"l": "q" if view.itemsize == 8 else "i", "L": "Q" if view.itemsize == 8 else "I"}
    code = aliases.get(view.format, view.format)
    if code not in _CODES:
        remedy = f"cast the memoryview to one of {', '.join(_CODES)}"
        raise DTypeError("Tensor", f"a memoryview of format {view.format!r} has no dtype here", remedy)
    return HostData(view, _CODES[code], tuple(view.shape or ()), True, _can_change(view))


def _can_change(view: memoryview) -> bool:
    """Whether anyone can write to the memory: all but bytes, whose views are of them too."""
    return not isinstance(view.obj, bytes)


def is_array(data: object) -> bool:
    """A NumPy array or scalar, or anything that shows its memory the same way."""
    return hasattr(data, "__array_interface__") or hasattr(data, "__array__")


def from_array(data: Any) -> HostData:
    """The array's own memory where it is row-major and in the byte order of the machine, else a copy."""
    import numpy

    try:
        values = numpy.asarray(data)
    except Exception as error:  # it is the other library's code that raises
        found = _from_capsule(data)
        if found is not None:
            return found
        message = f"a {type(data).__name__} gives no array: {error}"
        raise DTypeError("Tensor", message, "make a NumPy array of it first, or use Tensor.from_dlpack") from error
    name = values.dtype.name
    if name not in _NUMPY_NAMES:
        remedy = "convert the array first, such as `array.astype('float32')`"
        raise DTypeError("Tensor", f"NumPy's {values.dtype} has no dtype here", remedy)
    dtype = _NUMPY_NAMES[name]
    is_plain = values.flags.c_contiguous and values.flags.aligned and values.dtype.isnative
    if not values.dtype.isnative:
        values = values.astype(values.dtype.newbyteorder("="))
    flat = (values if is_plain else values.copy()).reshape(-1)
    # The buffer protocol has no letters for bfloat16 and float8, so their bits go as unsigned integers.
    limits = (int(flat.min()), int(flat.max())) if dtype.is_int and 0 < flat.size <= _FEW else None
    buffer = flat if dtype.code else flat.view(f"u{dtype.itemsize}")
    return HostData(buffer, dtype, tuple(values.shape), is_plain, is_plain, limits)


def _from_capsule(data: Any) -> HostData | None:
    """A copy of another library's array in a dtype that NumPy lacks, such as bfloat16; None of what it does not
    share."""
    import numpy

    from tilewright.tensor.core import dlpack

    try:
        found = dlpack.import_capsule(data.__dlpack__())
    except Exception:  # why NumPy has no array of it is the better reason
        return None
    size = found.dtype.itemsize
    elements = numpy.frombuffer(found.buffer, f"u{size}")[found.start :]
    steps = [stride * size for stride in found.strides]
    values = numpy.lib.stride_tricks.as_strided(elements, found.shape, steps).copy()
    return HostData(values.reshape(-1), found.dtype, found.shape, False, False)


def from_arrays(data: Any) -> HostData:
    """Nested lists of arrays, stacked."""
    import numpy

    try:
        stacked = numpy.array(data)
    except ValueError as error:
        message = f"the nested lists of arrays are ragged: {error}"
        raise ShapeError("Tensor", message, "give arrays of one shape") from error
    return from_array(stacked)._replace(is_shared=False, can_change=False)


# ---------------------------------------------------------------- numbers to bytes and back


def encode(values: list[Any], dtype: DType) -> Any:
    """The numbers, as the dtype holds them, packed."""
    if dtype.is_float and dtype.code in ("f", "d"):
        return array.array(dtype.code, values)
    if not dtype.is_float and not dtype.is_bool and set(map(type, values)) <= {bool, int}:
        try:
            return array.array(dtype.code, values)
        except OverflowError:
            pass  # some value has to wrap, which cast_scalar does
    held = [cast_scalar(value, dtype) for value in values]
    if dtype.code:
        return struct.pack(f"={len(held)}{dtype.code}", *held)
    unsigned = array.array("B" if dtype.itemsize == 1 else "H")
    unsigned.extend(_bits_of_small_float(float(value), dtype) for value in held)
    return unsigned


def _bits_of_small_float(value: float, dtype: DType) -> int:
    """The bits of a value that the float type holds exactly."""
    sign = (math.copysign(1.0, value) < 0) << (dtype.bits - 1)
    ones = (1 << dtype.exponent_bits) - 1
    if value != value:
        # e4m3 has one NaN, all ones; the others have an infinity below theirs.
        quiet = (1 << dtype.mantissa_bits) - 1 if dtype is dtypes.float8_e4m3 else 1 << (dtype.mantissa_bits - 1)
        return sign | ones << dtype.mantissa_bits | quiet
    if math.isinf(value):
        return sign | ones << dtype.mantissa_bits
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    fraction, exponent = math.frexp(abs(value))
    if fraction == 0.0:
        return sign
    power = max(exponent - 1, 1 - bias)
    mantissa = int(math.ldexp(fraction, exponent - power + dtype.mantissa_bits))
    # A normal number's leading bit adds one to the exponent field, a subnormal number has none and leaves it 0.
    return sign | (mantissa + ((power + bias - 1) << dtype.mantissa_bits))


def _value_of_small_float(bits: int, dtype: DType) -> float:
    sign = -1.0 if bits >> (dtype.bits - 1) else 1.0
    mantissa = bits & ((1 << dtype.mantissa_bits) - 1)
    exponent = bits >> dtype.mantissa_bits & ((1 << dtype.exponent_bits) - 1)
    bias = (1 << (dtype.exponent_bits - 1)) - 1
    ones = (1 << dtype.exponent_bits) - 1
    if dtype is dtypes.float8_e4m3:
        if exponent == ones and mantissa == (1 << dtype.mantissa_bits) - 1:
            return math.nan
    elif exponent == ones:
        return math.nan if mantissa else sign * math.inf
    if exponent == 0:
        return sign * math.ldexp(mantissa, 1 - bias - dtype.mantissa_bits)
    return sign * math.ldexp(mantissa + (1 << dtype.mantissa_bits), exponent - bias - dtype.mantissa_bits)


def decode(view: memoryview, dtype: DType) -> list[Scalar]:
    """Bytes to Python numbers."""
    if dtype.code:
        return list(struct.unpack(f"={view.nbytes // dtype.itemsize}{dtype.code}", view))
    values: Iterable[int] = view.cast("B") if dtype.itemsize == 1 else view.cast("B").cast("H")
    return [_value_of_small_float(bits, dtype) for bits in values]


def nest(values: list[Any], shape: Shape) -> Any:
    """A flat list as nested lists of a shape; the number itself for shape ()."""
    if not shape:
        return values[0]
    for size in reversed(shape[1:]):
        values = [values[k : k + size] for k in range(0, len(values), size)] if size else []
    return values if math.prod(shape) else _empty_lists(shape)


def _empty_lists(shape: Shape) -> list[Any]:
    """Lists of a shape that has no elements: (2, 0) is [[], []]."""
    return [_empty_lists(shape[1:]) for _ in range(shape[0])] if len(shape) > 1 else []
