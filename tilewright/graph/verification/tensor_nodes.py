"""The rules one node of a tensor graph or of an expression must keep. In: a node whose sources have been checked.
Out: what is wrong with it, in words, or None. The table at the end names each rule, the ops it looks at and its check.
`verify.py` applies them, sources first, so a check may rely on everything below the node."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from tilewright.base.dtype import DType, Scalar, cast_scalar, dtypes
from tilewright.base.records import NamedTuple
from tilewright.graph.kernels.custom import check_custom_kernel
from tilewright.graph.kernels.slow_path import MARK, has_slow_path
from tilewright.graph.ops import ALL_OPS, ELEMENTWISE, REDUCTIONS, BufferArg, CheckArg, MultiArg, Ops, ParamArg
from tilewright.graph.sizes import is_int, is_int_tuple
from tilewright.graph.spec import ANY, BITS, FLOATS, INTEGERS, WORDS, Kind, Op, Shape, element_count
from tilewright.graph.symbolic import SymbolicInt
from tilewright.graph.uop import UOp

Complaint = str | None
Check = Callable[[UOp], Complaint]


class NodeRule(NamedTuple):
    """One line of the table. Rules are tried in the table's order; a later one may rely on the earlier ones."""

    name: str
    ops: Collection[Op]
    check: Check


def ops_of_kind(*kinds: Kind) -> frozenset[Op]:
    return frozenset(op for op in ALL_OPS if op.kind in kinds)


MOVEMENT = ops_of_kind(Kind.MOVEMENT)
PLACEHOLDERS = frozenset({Ops.PARAM, Ops.DEFINE_LOCAL, Ops.DEFINE_REG})

_OPERANDS: dict[str, Callable[[DType], bool]] = {
    ANY: lambda dtype: True,
    FLOATS: lambda dtype: dtype.is_float,
    INTEGERS: lambda dtype: dtype.is_int,
    BITS: lambda dtype: not dtype.is_float,
    WORDS: lambda dtype: dtype is dtypes.uint64,
}


def is_pair_tuple(value: Any) -> bool:
    return isinstance(value, tuple) and all(is_int_tuple(pair) and len(pair) == 2 for pair in value)


def dtype_names(nodes: tuple[UOp, ...]) -> str:
    return ", ".join(node.dtype.name for node in nodes)


# ---------------------------------------------------------------- every op


def check_arity(node: UOp) -> Complaint:
    count = len(node.src)
    least, most = node.op.arity
    if count < least or (most is not None and count > most):
        wanted = f"{least}" if least == most else f"{least} or more" if most is None else f"{least} to {most}"
        return f"has {count} sources, takes {wanted}"
    return None


def check_dtype(node: UOp) -> Complaint:
    if not isinstance(node.dtype, DType):
        return f"has dtype {node.dtype!r}, which is not a DType"
    wanted = node.op.dtype(node.src)
    if wanted is not None and wanted is not node.dtype:
        return f"has dtype {node.dtype.name}, its sources ({dtype_names(node.src)}) give {wanted.name}"
    if wanted is None and node.dtype is dtypes.void:
        return "has dtype void, but the op has a value"
    return None


def check_no_argument(node: UOp) -> Complaint:
    return None if node.arg is None else f"has argument {node.arg!r}, but the op takes none"


def check_choice(node: UOp) -> Complaint:
    return None if node.arg is None or has_slow_path(node) else f"has argument {node.arg!r}, which is not {MARK!r}"


def check_range(node: UOp) -> Complaint:
    arg = node.arg
    if not (isinstance(arg, CheckArg) and is_int_tuple((arg.size, arg.number, arg.slot, arg.bits))):
        return f"argument {arg!r} is not a CheckArg"
    largest = int(node.dtype.max)
    return None if 0 < arg.size <= largest else f"the size {arg.size} is not in 1..{largest}"


# ---------------------------------------------------------------- leaves


def check_const(node: UOp) -> Complaint:
    wanted: type[Scalar] = bool if node.dtype.is_bool else float if node.dtype.is_float else int
    if type(node.arg) is not wanted:
        return f"{node.arg!r} is {type(node.arg).__name__}, a {node.dtype.name} constant holds {wanted.__name__}"
    held = cast_scalar(node.arg, node.dtype)
    # The text of a float tells -0.0 from 0.0, and NaN equals itself.
    if (repr(held) != repr(node.arg)) if node.dtype.is_float else (held != node.arg):
        return f"{node.arg!r} is not a value of {node.dtype.name}, which holds it as {held!r}"
    return None


def check_variable(node: UOp) -> Complaint:
    arg = node.arg
    if not (isinstance(arg, tuple) and len(arg) == 3 and isinstance(arg[0], str) and is_int_tuple(arg[1:])):
        return f"argument {arg!r} is not (name, least, greatest)"
    if not node.dtype.is_int:
        return f"is {node.dtype.name}, a variable is an integer"
    return None if arg[1] <= arg[2] else f"the bounds {arg[1]}..{arg[2]} hold no value"


def check_size(node: UOp) -> Complaint:
    if not isinstance(node.arg, SymbolicInt):
        return f"argument {node.arg!r} is not a symbolic size"
    return None if node.dtype is not dtypes.index else "is an index, where the expression itself stands"


def check_buffer(node: UOp) -> Complaint:
    arg = node.arg
    if not (isinstance(arg, BufferArg) and is_int(arg.uid) and is_int(arg.size) and isinstance(arg.device, str)):
        return f"argument {arg!r} is not a BufferArg of (int, int, str)"
    return None if arg.size >= 0 else f"the size {arg.size} is negative"


def check_placeholder(node: UOp) -> Complaint:
    arg = node.arg
    if not (isinstance(arg, ParamArg) and is_int(arg.slot) and is_int(arg.size) and isinstance(arg.device, str)):
        return f"argument {arg!r} is not a ParamArg of (int, int, str)"
    return None if arg.size >= 0 and arg.slot >= 0 else f"slot {arg.slot} and size {arg.size} must not be negative"


def check_iota(node: UOp) -> Complaint:
    if not (is_int_tuple(node.arg) and len(node.arg) == 1 and node.arg[0] >= 0):
        return f"argument {node.arg!r} is not (count,)"
    return None


# ---------------------------------------------------------------- elementwise


def check_operand_dtypes(node: UOp) -> Complaint:
    if any(src.dtype is dtypes.void for src in node.src):
        return "a source has no value (dtype void)"
    compared: tuple[UOp, ...] = node.src
    conditions: tuple[UOp, ...] = ()
    if node.op is Ops.WHERE:
        compared, conditions = node.src[1:], node.src[:1]
    elif node.op is Ops.CHECK:
        compared, conditions = node.src[:1], node.src[1:]
    if any(not condition.dtype.is_bool for condition in conditions):
        return f"the condition is {dtype_names(conditions)}, not bool"
    if node.op.kind is not Kind.CAST and any(src.dtype is not compared[0].dtype for src in compared):
        return f"the operands have different dtypes: {dtype_names(compared)}"
    return None


def check_operand_kind(node: UOp) -> Complaint:
    dtype = node.src[0].dtype
    is_defined = _OPERANDS[node.op.operands](dtype)
    return None if is_defined else f"is defined on {node.op.operands}, not on {dtype.name}"


def check_equal_shapes(node: UOp) -> Complaint:
    shapes = list(dict.fromkeys(src.shape for src in node.src if src.shape))
    if len(shapes) > 1:
        return f"the sources have different shapes: {', '.join(map(str, shapes))}"
    return None


def check_bitcast(node: UOp) -> Complaint:
    source = node.src[0].dtype
    if source.bits != node.dtype.bits:
        return f"{source.name} has {source.bits} bits and {node.dtype.name} has {node.dtype.bits}"
    return None


# ---------------------------------------------------------------- movement


def check_reshape(node: UOp) -> Complaint:
    if not is_int_tuple(node.arg) or any(size < 0 for size in node.arg):
        return f"argument {node.arg!r} is not a shape"
    shape = node.src[0].shape
    if element_count(node.arg) != element_count(shape):
        return f"{shape} has {_count_text(shape)}, {node.arg} has {_count_text(node.arg)}"
    return None


def _count_text(shape: Shape) -> str:
    count = element_count(shape)
    # A product of many sizes may be longer than Python agrees to print.
    return f"{count} elements" if count < 1 << 64 else "more than 64 bits count"


def check_expand(node: UOp) -> Complaint:
    if not is_int_tuple(node.arg) or any(size < 0 for size in node.arg):
        return f"argument {node.arg!r} is not a shape"
    shape = node.src[0].shape
    if len(shape) != len(node.arg):
        return f"{shape} and {node.arg} differ in their number of axes; reshape first"
    for axis, (old, new) in enumerate(zip(shape, node.arg)):
        if old != new and old != 1:
            return f"axis {axis} has size {old}; only an axis of size 1 expands, here to {new}"
    return None


def check_permute(node: UOp) -> Complaint:
    rank = len(node.src[0].shape)
    if not is_int_tuple(node.arg) or sorted(node.arg) != list(range(rank)):
        return f"argument {node.arg!r} is not an order of {rank} axes"
    return None


def check_pad(node: UOp) -> Complaint:
    rank = len(node.src[0].shape)
    if not is_pair_tuple(node.arg) or len(node.arg) != rank:
        return f"argument {node.arg!r} is not a (before, after) for each of {rank} axes"
    if any(amount < 0 for pair in node.arg for amount in pair):
        return f"{node.arg} pads by a negative amount; that is a SHRINK"
    return None


def check_shrink(node: UOp) -> Complaint:
    shape = node.src[0].shape
    if not is_pair_tuple(node.arg) or len(node.arg) != len(shape):
        return f"argument {node.arg!r} is not a (start, stop) for each of {len(shape)} axes"
    for axis, (size, (start, stop)) in enumerate(zip(shape, node.arg)):
        if not 0 <= start <= stop <= size:
            return f"{start}..{stop} does not lie within axis {axis} of size {size}"
    return None


def check_axes(axes: Any, rank: int) -> Complaint:
    if not is_int_tuple(axes):
        return f"{axes!r} is not a tuple of axes"
    if len(set(axes)) != len(axes) or any(not 0 <= axis < rank for axis in axes):
        return f"{axes} does not name each of some of {rank} axes once"
    return None


def check_flip(node: UOp) -> Complaint:
    return check_axes(node.arg, len(node.src[0].shape))


# ---------------------------------------------------------------- tensors


def check_gather(node: UOp) -> Complaint:
    rank = len(node.src[0].shape)
    indices = node.src[1:]
    if len(indices) != rank:
        return f"has {len(indices)} indices for {rank} axes"
    if not all(index.dtype.is_int for index in indices):
        return f"the indices are not all integers: {dtype_names(indices)}"
    if len({index.shape for index in indices}) > 1:
        return f"the indices have different shapes: {', '.join(str(index.shape) for index in indices)}"
    return None


def check_reduce_axis(node: UOp) -> Complaint:
    if not isinstance(node.arg, tuple) or len(node.arg) != 2 or node.arg[0] not in REDUCTIONS:
        return f"argument {node.arg!r} is not (a reduction, axes)"
    return check_axes(node.arg[1], len(node.src[0].shape))


def check_cat(node: UOp) -> Complaint:
    shapes = [src.shape for src in node.src]
    if not is_int(node.arg) or not all(0 <= node.arg < len(shape) for shape in shapes):
        return f"argument {node.arg!r} is not an axis of shapes {', '.join(map(str, shapes))}"
    if any(src.dtype is not node.dtype for src in node.src):
        return f"the sources have different dtypes: {dtype_names(node.src)}"
    if len({(*shape[: node.arg], *shape[node.arg + 1 :]) for shape in shapes}) > 1:
        return f"the sources do not fit: {', '.join(map(str, shapes))}"
    return None


def check_copy(node: UOp) -> Complaint:
    return None if isinstance(node.arg, str) and node.arg else f"argument {node.arg!r} is not the name of a device"


def check_multi(node: UOp) -> Complaint:
    arg, shapes = node.arg, [src.shape for src in node.src]
    if not isinstance(arg, MultiArg) or not (arg.axis is None or is_int(arg.axis)):
        return f"argument {arg!r} is not a MultiArg"
    if len(arg.devices) != len(shapes) or len(set(arg.devices)) != len(shapes):
        return f"the devices {arg.devices} are not one for each of {len(shapes)} parts"
    if any(src.dtype is not node.dtype for src in node.src):
        return f"the parts have different dtypes: {dtype_names(node.src)}"
    if arg.axis is not None and not all(0 <= arg.axis < len(shape) for shape in shapes):
        return f"axis {arg.axis} is none of the parts', which have shapes {', '.join(map(str, shapes))}"
    if arg.axis is not None:
        shapes = [(*shape[: arg.axis], 0, *shape[arg.axis + 1 :]) for shape in shapes]
    if len(set(shapes)) > 1:
        return f"the parts do not fit: {', '.join(str(src.shape) for src in node.src)}"
    return None


def check_assign(node: UOp) -> Complaint:
    target, view, value = node.src
    selected = view
    while selected is not target:
        if selected.op not in MOVEMENT:
            return f"the view goes through {selected.op.name} and not to the target by movement alone"
        selected = selected.src[0]
    if value.dtype is not target.dtype:
        return f"stores {value.dtype.name} into {target.dtype.name}"
    if value.shape not in ((), view.shape):
        return f"stores shape {value.shape} into a view of shape {view.shape}"
    return None


WITHOUT_ARGUMENT = frozenset(op for op in ALL_OPS if not op.has_argument)

TENSOR_RULES: tuple[NodeRule, ...] = (
    NodeRule("arity", ALL_OPS, check_arity),
    NodeRule("dtype", ALL_OPS, check_dtype),
    NodeRule("no-argument", WITHOUT_ARGUMENT, check_no_argument),
    NodeRule("choice-argument", {Ops.WHERE}, check_choice),
    NodeRule("const-value", {Ops.CONST}, check_const),
    NodeRule("variable-bounds", {Ops.VARIABLE}, check_variable),
    NodeRule("size-argument", {Ops.SIZE}, check_size),
    NodeRule("buffer-argument", {Ops.BUFFER}, check_buffer),
    NodeRule("placeholder-argument", PLACEHOLDERS, check_placeholder),
    NodeRule("iota-count", {Ops.IOTA}, check_iota),
    NodeRule("operand-dtypes", ELEMENTWISE, check_operand_dtypes),
    NodeRule("operand-kind", ELEMENTWISE - {Ops.WHERE, Ops.CAST, Ops.BITCAST}, check_operand_kind),
    NodeRule("equal-shapes", ELEMENTWISE, check_equal_shapes),
    NodeRule("check-range", {Ops.CHECK}, check_range),
    NodeRule("bitcast-width", {Ops.BITCAST}, check_bitcast),
    NodeRule("reshape-count", {Ops.RESHAPE}, check_reshape),
    NodeRule("expand-from-one", {Ops.EXPAND}, check_expand),
    NodeRule("permute-order", {Ops.PERMUTE}, check_permute),
    NodeRule("pad-amounts", {Ops.PAD}, check_pad),
    NodeRule("shrink-bounds", {Ops.SHRINK}, check_shrink),
    NodeRule("flip-axes", {Ops.FLIP}, check_flip),
    NodeRule("gather-indices", {Ops.GATHER}, check_gather),
    NodeRule("reduce-axes", {Ops.REDUCE_AXIS}, check_reduce_axis),
    NodeRule("cat-sources", {Ops.CAT}, check_cat),
    NodeRule("copy-device", {Ops.COPY}, check_copy),
    NodeRule("multi-parts", {Ops.MULTI}, check_multi),
    NodeRule("assign-view", {Ops.ASSIGN}, check_assign),
    NodeRule("custom-kernel-argument", {Ops.CUSTOM_KERNEL}, check_custom_kernel),
)
