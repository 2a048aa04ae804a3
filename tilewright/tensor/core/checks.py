"""Checks of what a user wrote. In: sizes, axes, shapes and numbers. Out: the same in one form (axes counted from the
front, sizes as a tuple), or an error at the user's line. Below `base`: nothing here knows the class of tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import DType, Scalar, can_hold
from tilewright.base.errors import AxisError, DTypeError, ShapeError, UnsupportedError
from tilewright.graph import build
from tilewright.graph.sizes import exact_quotient, present_size
from tilewright.graph.spec import Shape
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp

_NUMBERS = (bool, int, float)
_CAST_WIDER = "cast the tensor to a wider dtype first, such as `.cast('int64')`"
WIDER_DTYPE = "give a wider dtype, or cast afterwards, such as `Tensor([300]).cast('uint8')`, which wraps"
Axes = int | tuple[int, ...] | list[int] | None


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of ours, whose number is not known before it is computed."""
    return hasattr(type(value), "_is_parameter")


def _has_index(value: Any) -> bool:
    """Whether an object that may be a whole number is one: NumPy's arrays have `__index__` whatever they hold."""
    try:
        value.__index__()
    except TypeError:
        return False
    return True


def is_whole(value: object) -> bool:
    """Whether a value can be a size or a number of something: Python's and NumPy's integers, and no bools."""
    if type(value) is int or type(value) is SymbolicInt:
        return True
    return hasattr(value, "__index__") and not (isinstance(value, bool) or is_tensor(value)) and _has_index(value)


def whole(value: Any) -> int:
    """A whole number as an int; a symbolic one stays one."""
    return value if type(value) is SymbolicInt else int(value)


def check_whole(operation: str, name: str, *values: object, least: int | None = None) -> None:
    """Whole numbers, none below `least`."""
    for value in values:
        if not is_whole(value) or (least is not None and whole(value) < least):
            remedy = "give a whole number" if least is None else f"give a whole number of at least {least}"
            raise ShapeError(operation, f"{name}={value!r}", remedy)


def check_plain_size(operation: str, axis: int, shape: Shape) -> None:
    """Refuses an axis whose size is a variable, which the operation reads by computed indices."""
    if shape and isinstance(shape[axis], SymbolicInt):
        message = f"axis {axis} of shape {shape}, whose size is a variable"
        raise UnsupportedError(operation, message, "slice by int(...) of the size instead")


def check_axis(operation: str, axis: int, ndim: int) -> int:
    """The axis counted from the front."""
    if not is_whole(axis):
        raise AxisError(operation, f"axis {axis!r} is not an integer", "give the number of an axis, such as -1")
    axis = axis.__index__()
    limit = max(ndim, 1)  # torch takes axis 0 and -1 of a 0-d tensor
    if not -limit <= axis < limit:
        remedy = f"give an axis in {-limit}..{limit - 1}"
        raise AxisError(operation, f"axis {axis} is out of range for a tensor of {ndim} axes", remedy)
    return axis + limit if axis < 0 else axis


def check_axes(operation: str, axes: Axes, ndim: int) -> tuple[int, ...]:
    """The axes counted from the front, each once; None is all of them."""
    if axes is None:
        return tuple(range(ndim))
    wanted = tuple(axes) if isinstance(axes, tuple | list) else (axes,)
    found = tuple(check_axis(operation, axis, ndim) for axis in wanted)
    if len(set(found)) != len(found):
        raise AxisError(operation, f"axes {wanted} name an axis twice", "name each axis once")
    return tuple(axis for axis in found if axis < ndim)


def check_axis_of_some(operation: str, axis: int, shape: Shape) -> int:
    """The axis counted from the front, of a tensor that has axes: 0-d tensors can be neither cut nor joined."""
    if not shape:
        raise ShapeError(operation, "a 0-d tensor has no axis", "give it one with `.reshape(1)`")
    return check_axis(operation, axis, len(shape))


def shape_from(operation: str, args: Sequence[Any]) -> tuple[int, ...]:
    """The numbers of `f(2, 3)` or `f((2, 3))`."""
    if len(args) == 1 and isinstance(args[0], tuple | list):
        args = args[0]
    for size in args:
        if not is_whole(size):
            raise ShapeError(operation, f"{size!r} is not an integer", "give sizes as integers, such as (2, 3)")
    return tuple([whole(size) for size in args])


def broadcast_shape(operation: str, *shapes: Shape) -> Shape:
    """The shape that all broadcast to: aligned at the last axis, sizes are equal or 1."""
    if shapes.count(shapes[0]) == len(shapes):
        return shapes[0]
    ndim = max(map(len, shapes))
    aligned = [(1,) * (ndim - len(shape)) + shape for shape in shapes]
    result = []
    for axis, sizes in enumerate(zip(*aligned)):
        wanted = {size for size in sizes if size != 1}
        if len(wanted) > 1:
            names = " and ".join(str(shape) for shape in shapes)
            unequal = " and ".join(map(str, sorted(wanted, key=present_size)))
            raise ShapeError(
                operation,
                f"shapes {names} do not broadcast: axis {axis - ndim} has sizes {unequal}",
                "make the sizes of that axis equal, or one of them 1 (reshape, unsqueeze, transpose)",
            )
        result.append(wanted.pop() if wanted else 1)
    return tuple(result)


def describe_line(line: tuple[str, int] | None) -> str:
    return "an unknown line" if line is None else f"{line[0]}:{line[1]}"


def check_number(operation: str, value: Any) -> Scalar:
    """A number of Python's or NumPy's, as Python's."""
    if isinstance(value, int | float | SymbolicInt):
        return value
    try:
        if is_tensor(value) or isinstance(value, str):
            raise TypeError
        number = value.item() if hasattr(value, "item") else float(value)
        if isinstance(number, int | float):
            return number
        raise TypeError
    except (TypeError, ValueError) as error:
        raise DTypeError(operation, f"{value!r} is not a number", "give an int, a float or a bool") from error


def sizes_from(operation: str, shape: Any) -> tuple[int, ...]:
    """The sizes of a new tensor."""
    sizes = shape_from(operation, shape)
    if any(size < 0 for size in sizes):
        raise ShapeError(operation, f"shape {sizes} has a negative size", "give sizes of at least 0")
    return sizes


def check_holds(operation: str, dtype: DType, value: object, remedy: str = _CAST_WIDER) -> Scalar:
    """The number, if the dtype can hold it; any other would wrap silently."""
    number: Scalar = value if type(value) in _NUMBERS else check_number(operation, value)  # type: ignore[assignment]
    if type(number) is SymbolicInt:
        check_holds(operation, dtype, number.least, remedy)
        check_holds(operation, dtype, number.greatest, remedy)
        return number
    if not can_hold(dtype, number):
        raise DTypeError(operation, f"{dtype.name} cannot hold {number}, it has {dtype.min}..{dtype.max}", remedy)
    return number


def number_node(operation: str, dtype: DType, value: Scalar) -> UOp:
    """A number as an operand of that dtype."""
    return build.const(dtype, check_holds(operation, dtype, value))


def fit(node: UOp, dtype: DType, shape: Shape) -> UOp:
    """Cast, then broadcast, so that each element is cast once. A 0-d node needs no broadcast."""
    if node.dtype is not dtype:
        node = build.cast(node, dtype)
    return build.broadcast_to(node, shape) if node.shape else node


def resolve_minus_one(operation: str, sizes: Shape, count: int, source: Shape) -> Shape:
    """`sizes` with one -1 replaced so that the product is `count`."""
    if not any(size < 0 for size in sizes) and math.prod(sizes) == count:
        return sizes
    if sizes.count(-1) > 1 or any(size < -1 for size in sizes):
        raise ShapeError(operation, f"{sizes} has sizes that are not known", "one size may be -1, the others are >= 0")
    if -1 in sizes:
        known = math.prod(size for size in sizes if size != -1)
        missing = exact_quotient(count, known)
        if missing is None:
            message = f"shape {source} has {count} elements, which {sizes} does not divide"
            raise ShapeError(operation, message, "give sizes whose product divides the number of elements")
        sizes = tuple(missing if size == -1 else size for size in sizes)
    if math.prod(sizes) != count:
        message = f"shape {source} has {count} elements and shape {sizes} has {math.prod(sizes)}"
        raise ShapeError(operation, message, f"give sizes whose product is {count}; one of them may be -1")
    return sizes


def pads_from(operation: str, padding: Sequence[Any], shape: Shape) -> tuple[tuple[int, int], ...]:
    """A pair for each axis, from torch's flat order (last axis first) or from pairs (None is not padding)."""
    if not isinstance(padding, tuple | list):
        raise ShapeError(operation, f"padding={padding!r}", "give numbers or pairs for axes, such as (1, 1)")
    if all(isinstance(entry, int | SymbolicInt) for entry in padding):
        flat = tuple(padding)
        if len(flat) % 2 or len(flat) > 2 * len(shape):
            message = f"{len(flat)} numbers for shape {shape}"
            raise ShapeError(operation, message, "give (before, after) for the last axis, then for the one before it")
        pairs = [(flat[k], flat[k + 1]) for k in range(0, len(flat), 2)]
        return tuple(((0, 0),) * (len(shape) - len(pairs))) + tuple(reversed(pairs))
    if len(padding) != len(shape):
        message = f"{len(padding)} pairs for the {len(shape)} axes of shape {shape}"
        raise ShapeError(operation, message, "give (before, after) or None for every axis")
    pairs = [(0, 0) if pair is None else pair for pair in padding]
    if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in pairs):
        raise ShapeError(operation, f"padding={padding!r}", "give (before, after) or None for every axis")
    check_whole(operation, "padding", *(number for pair in pairs for number in pair))
    return tuple((before, after) for before, after in pairs)
