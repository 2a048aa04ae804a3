"""The rules one node of a kernel or of a linear program must keep. In: a node whose sources have been checked.
Out: what is wrong with it, in words, or None. The table at the end has a line per rule, as in `verify_nodes.py`.
`verify.py` puts both tables together; what only holds for a whole graph or a whole program stands elsewhere."""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.base.target import ATOMIC_DTYPES, FLOAT_ATOMIC_DTYPES
from tilewright.graph.ops import ATOMICS, REDUCTIONS, Axis, AxisType, DotArg, Ops, TileDotArg
from tilewright.graph.records import KernelInfo
from tilewright.graph.sizes import is_int_tuple
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.verification.tensor_nodes import PLACEHOLDERS, Complaint, NodeRule

INDEXABLE = PLACEHOLDERS | {Ops.BUFFER}
# Threads that run side by side and never meet cannot add up to one value; a GROUP meets in local memory.
UNREDUCIBLE_KINDS = frozenset({AxisType.GLOBAL, AxisType.THREAD, AxisType.LOCAL})


def check_range(node: UOp) -> Complaint:
    if not (isinstance(node.arg, Axis) and is_int_tuple(node.arg.id) and isinstance(node.arg.kind, AxisType)):
        return f"argument {node.arg!r} is not an Axis with a tuple of integers for its id"
    if not node.dtype.is_int or not node.src[0].dtype.is_int:
        return f"counts in {node.dtype.name} up to a {node.src[0].dtype.name}; both must be integers"
    if node.src[0].is_const and node.src[0].arg < 0:
        return f"the size {node.src[0].arg} is negative"
    if node.arg.kind.is_tile and not node.src[0].is_const:
        return "a tile axis needs a constant size"
    return None


def check_index(node: UOp) -> Complaint:
    buffer, position = node.src[:2]
    if buffer.op not in INDEXABLE and buffer.op is not Ops.AFTER:
        return f"indexes {buffer.op.name}, which is not a buffer"
    if not position.dtype.is_int:
        return f"the index is {position.dtype.name}, not an integer"
    if len(node.src) == 3 and not node.src[2].dtype.is_bool:
        return f"the mask is {node.src[2].dtype.name}, not bool"
    return None


def check_load(node: UOp) -> Complaint:
    if node.src[0].op is not Ops.INDEX:
        return f"loads from {node.src[0].op.name}, not from an INDEX"
    if len(node.src) == 2 and node.src[1].dtype is not node.dtype:
        return f"yields {node.dtype.name} or, masked off, {node.src[1].dtype.name}"
    return None


def check_store(node: UOp) -> Complaint:
    target, value = node.src
    if target.op is not Ops.INDEX:
        return f"stores to {target.op.name}, not to an INDEX"
    if value.dtype is not target.dtype:
        return f"stores {value.dtype.name} into a buffer of {target.dtype.name}"
    combined = ATOMIC_DTYPES | (FLOAT_ATOMIC_DTYPES if node.arg is Ops.ADD else frozenset())
    if node.arg is not None and not (node.arg in ATOMICS and value.dtype in combined):
        return f"cannot update {value.dtype.name} atomically by {node.arg!r}"
    return None


def check_reduce(node: UOp) -> Complaint:
    if node.arg not in REDUCTIONS:
        return f"argument {node.arg!r} is not a reduction"
    if node.dtype is dtypes.void:
        return "reduces what has no value"
    for source in node.src[1:]:
        if source.op is not Ops.RANGE:
            return f"reduces over {source.op.name}, which is not a RANGE"
        if source.arg.kind in UNREDUCIBLE_KINDS:
            return f"reduces over {source.arg}, whose iterations never meet"
    return None if len(set(node.src[1:])) == len(node.src) - 1 else "names a range twice"


def check_sink(node: UOp) -> Complaint:
    return (
        None if node.arg is None or isinstance(node.arg, KernelInfo) else f"argument {node.arg!r} is not a KernelInfo"
    )


# ---------------------------------------------------------------- linear programs


def check_tiles(sources: tuple[UOp, ...]) -> Complaint:
    for source in sources:
        if source.op is not Ops.RANGE or not source.arg.kind.is_tile:
            return f"{source.op.name} stands where a tile axis must"
    return None if len(set(sources)) == len(sources) else "names a tile axis twice"


def check_acc(node: UOp) -> Complaint:
    if not node.src[0].is_const:
        return f"the identity is {node.src[0].op.name}, not a constant"
    return check_tiles(node.src[1:])


def check_accumulate(node: UOp) -> Complaint:
    accumulator, value = node.src
    if accumulator.op is not Ops.ACC:
        return f"updates {accumulator.op.name}, not an ACC"
    if node.arg not in REDUCTIONS:
        return f"argument {node.arg!r} is not a reduction"
    if value.dtype is not accumulator.dtype:
        return f"accumulates {value.dtype.name} into {accumulator.dtype.name}"
    return None


def check_combine(node: UOp) -> Complaint:
    accumulator = node.src[0]
    if accumulator.op is not Ops.ACC:
        return f"reads {accumulator.op.name}, not an ACC"
    if node.arg not in REDUCTIONS:
        return f"argument {node.arg!r} is not a reduction"
    if not set(node.src[1:]) <= set(accumulator.src[1:]):
        return "folds a tile axis that its ACC does not have"
    return check_tiles(node.src[1:])


EFFECTS = frozenset({Ops.STORE, Ops.END, Ops.GROUP, Ops.BARRIER})


def check_end(node: UOp) -> Complaint:
    """In a program it names a loop to close; in a kernel an effect and the ranges it is done with."""
    if node.src[0].op is Ops.RANGE:
        return None if len(node.src) == 1 else "closes one loop at a time"
    return check_effect_ends(node)


def check_effect_ends(node: UOp) -> Complaint:
    if node.src[0].op not in EFFECTS:
        return f"ends {node.src[0].op.name}, which is neither an effect nor a RANGE"
    others = [source for source in node.src[1:] if source.op is not Ops.RANGE]
    return f"ends over {others[0].op.name}, which is not a RANGE" if others else None


def check_after(node: UOp) -> Complaint:
    if node.src[0].op is not Ops.AFTER and node.src[0].op not in INDEXABLE:
        return f"names {node.src[0].op.name}, which is not memory"
    return None if len(node.src) > 1 else "names nothing that comes before"


def check_group(node: UOp) -> Complaint:
    others = [source for source in node.src if source.op not in EFFECTS]
    return f"{others[0].op.name} is not an effect" if others else None


def check_dot(node: UOp) -> Complaint:
    left, right, *numbers = node.src
    for memory in (left, right):
        if memory.op is not Ops.PARAM:
            return f"multiplies {memory.op.name}, which is not a buffer"
    if any(not number.dtype.is_int for number in numbers):
        return "a start, row or column is not an integer"
    return None if isinstance(node.arg, DotArg) else f"argument {node.arg!r} is not a DotArg"


def check_tile_dot(node: UOp) -> Complaint:
    left, right, *numbers = node.src
    is_held = isinstance(node.arg, TileDotArg) and node.arg.left is None
    for memory in (right,) if is_held else (left, right):
        if memory_of(memory).op is not Ops.DEFINE_LOCAL:
            return f"multiplies {memory.op.name}, which is not local memory"
    if not isinstance(node.arg, TileDotArg):
        return f"argument {node.arg!r} is not a TileDotArg"
    if is_held and (left.dtype is not node.dtype or len(numbers) < 4):
        return f"multiplies {left.dtype.name} in registers, or does not say where its elements stand"
    return "a row or column is not an integer" if any(not number.dtype.is_int for number in numbers) else None


def check_warp_fold(node: UOp) -> Complaint:
    match node.arg:
        case (op, int(width)) if op in REDUCTIONS and width > 1 and width & (width - 1) == 0:
            others = [source for source in node.src[1:] if source.op is not Ops.RANGE]
            return f"closes {others[0].op.name}, which is not a RANGE" if others else None
    return f"argument {node.arg!r} is not a reduction and a power of two"


KERNEL_RULES: tuple[NodeRule, ...] = (
    NodeRule("range-argument", {Ops.RANGE}, check_range),
    NodeRule("index-operands", {Ops.INDEX}, check_index),
    NodeRule("load-operands", {Ops.LOAD}, check_load),
    NodeRule("store-operands", {Ops.STORE}, check_store),
    NodeRule("reduce-ranges", {Ops.REDUCE}, check_reduce),
    NodeRule("sink-argument", {Ops.SINK}, check_sink),
    NodeRule("acc-operands", {Ops.ACC}, check_acc),
    NodeRule("accumulate-operands", {Ops.ACCUMULATE}, check_accumulate),
    NodeRule("combine-operands", {Ops.COMBINE}, check_combine),
    NodeRule("end-range", {Ops.END}, check_end),
    NodeRule("after-memory", {Ops.AFTER}, check_after),
    NodeRule("group-effects", {Ops.GROUP}, check_group),
    NodeRule("dot-operands", {Ops.DOT}, check_dot),
    NodeRule("tile-dot-operands", {Ops.TILE_DOT}, check_tile_dot),
    NodeRule("warp-fold-argument", {Ops.WARP_FOLD}, check_warp_fold),
)
