"""Values and indices in custom kernels. In: what a user writes on UOps, numbers and nodes. Out: operands of one dtype,
and integer indices in range of their axis. `views.py` and `language.py` use them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.base.dtype import DType, Scalar, dtype_of_scalar, dtypes, promote
from tilewright.base.errors import DTypeError, IndexingError
from tilewright.base.location import user_location
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op, Shape
from tilewright.graph.uop import UOp, const, index_const

MEMORY = frozenset({Ops.PARAM, Ops.DEFINE_LOCAL, Ops.DEFINE_REG})


def marked(node: UOp) -> UOp:
    """The node with the user's line. Equal nodes are one object, which keeps the latest line."""
    node.line = user_location() or node.line
    return node


def is_memory(node: UOp) -> bool:
    """Whether the node is memory, in some shape and after some effects."""
    return memory_behind(node).op in MEMORY


def memory_behind(version: UOp) -> UOp:
    while version.op in (Ops.AFTER, Ops.RESHAPE, Ops.VIEW):
        version = version.src[0]
    return version


def load_of(place: UOp) -> UOp:
    made = UOp(Ops.LOAD, place.dtype, (place,))
    made.line = place.line
    return made


# ---------------------------------------------------------------- operands


def agree(op: Op, left: UOp, right: UOp) -> tuple[UOp, UOp]:
    """Two operands of one dtype. An index converts another integer to an index; any other mismatch is an error."""
    if dtypes.index in (left.dtype, right.dtype) and left.dtype.is_int and right.dtype.is_int:
        return left.cast(dtypes.index), right.cast(dtypes.index)
    if (converted := of_numbers(left, right.dtype)) is not None:
        return converted, right
    if (converted := of_numbers(right, left.dtype)) is not None:
        return left, converted
    message = f"the operands are {left.dtype.name} and {right.dtype.name}"
    raise DTypeError(op.name, message, "cast one of them, as in x.cast(dtypes.float32)")


def choose(condition: UOp, yes: UOp | Scalar, no: UOp | Scalar) -> UOp:
    """condition ? yes : no. A number takes the dtype of the other value; two numbers the dtype that represents both."""
    if not condition.dtype.is_bool:
        raise DTypeError("where", f"the condition is {condition.dtype.name}, not bool", "compare, as in x[i] > 0")
    if isinstance(yes, UOp) or isinstance(no, UOp):
        one, other = (yes, no) if isinstance(yes, UOp) else (no, yes)
        assert isinstance(one, UOp)
        number = other if isinstance(other, UOp) else _exactly(one.dtype, other)
        yes, no = (one, number) if isinstance(yes, UOp) else (number, one)
        if yes.dtype is not no.dtype:
            yes, no = agree(Ops.WHERE, yes, no)
    else:
        dtype = promote(dtype_of_scalar(yes), dtype_of_scalar(no))
        yes, no = const(dtype, yes), const(dtype, no)
    return UOp(Ops.WHERE, yes.dtype, (condition, yes, no))


def _exactly(dtype: DType, number: Scalar) -> UOp:
    if isinstance(number, float) and not dtype.is_float and number != int(number):
        raise DTypeError("where", f"{number} beside a value of {dtype.name}", "cast the value to a float")
    return const(dtype, number)


def of_numbers(node: UOp, dtype: DType) -> UOp | None:
    """A WHERE of constants converted to another dtype, as a number would be; None for any other node, or where a value
    would change."""
    if node.op is not Ops.WHERE:
        return None
    made = []
    for branch in node.src[1:]:
        if branch.op is Ops.CONST:
            held = const(dtype, branch.arg)
            made.append(held if held.arg == branch.arg else None)
        else:
            made.append(of_numbers(branch, dtype))
    yes, no = made
    return None if yes is None or no is None else UOp(Ops.WHERE, dtype, (node.src[0], yes, no))


# ---------------------------------------------------------------- indices


def row_major(indices: Sequence[UOp], shape: Shape) -> UOp:
    """The flat row-major position of an element; axes of size 1 are ignored."""
    position: UOp | None = None
    for idx, size in zip(indices, shape, strict=True):
        if size != 1:
            position = idx if position is None else position * size + idx
    return index_const(0) if position is None else position


def checked_index(idx: Any, size: int, axis: int, shape: Shape) -> UOp:
    if isinstance(idx, UOp):
        if not idx.dtype.is_int:
            message = f"axis {axis} of shape {shape} is indexed with {idx.dtype.name}"
            raise IndexingError("index", message, "use an integer; cast(dtypes.int32) truncates a float")
        low, high = idx.bounds
    elif isinstance(idx, bool) or not hasattr(idx, "__index__"):
        message = f"axis {axis} of shape {shape} is indexed with {type(idx).__name__} {idx!r}"
        raise IndexingError("index", message, "use integers, integer UOps and slices")
    else:
        low = high = idx.__index__()
        idx = index_const(low)
    if high < 0 or low >= size:
        shown = f"{low}" if low == high else f"{low}..{high}"
        message = f"index {shown} is out of range for axis {axis} of shape {shape}"
        raise IndexingError("index", message, f"give an index in 0..{size - 1}")
    found: UOp = idx
    return found.cast(dtypes.index)
