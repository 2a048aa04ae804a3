"""Contractions. In: a kernel. Out: its sum of products as *batch x rows x columns x summed*, each a group of loops, or
the reason why it is none. Matrix products, einsum, convolutions of every stride and their gradients are this one form;
the matcher knows no operation by name.

An operand is any expression of loads. Rows are the output loops that only the left operand depends on, columns those
that only the right one depends on, and batch loops those that both depend on."""

from __future__ import annotations

import math

from tilewright.base.dtype import DType
from tilewright.base.records import record
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.uop import UOp, const, index_const, memory_of
from tilewright.graph.walk import size_of, toposort
from tilewright.kernel.axes import KernelView, is_counted, is_uniform, stride

_UNASSIGNED = (AxisType.LOOP, AxisType.REDUCE, AxisType.GLOBAL)


@record
class Operand:
    """A factor, in the dtype that is multiplied. `loops` are the output loops that only it depends on, fastest last."""

    value: UOp
    loops: tuple[UOp, ...]

    @property
    def loads(self) -> list[UOp]:
        """The INDEX of every load."""
        return [node.src[0] for node in toposort(self.value) if node.op is Ops.LOAD]


@record
class Contraction:
    """`reduce` is the REDUCE of the sum. Where a loop of either operand has stride 1 in the first store, it is a
    column."""

    reduce: UOp
    left: Operand
    right: Operand
    summed: tuple[UOp, ...]
    batch: tuple[UOp, ...]

    @property
    def rows(self) -> int:
        return count(self.left.loops)

    @property
    def columns(self) -> int:
        return count(self.right.loops)

    @property
    def length(self) -> int:
        return count(self.summed)


def count(loops: tuple[UOp, ...]) -> int:
    """The iterations of all loops together; the maximum where a size is an expression."""
    return math.prod(map(size_of, loops))


def extent(loops: tuple[UOp, ...]) -> UOp:
    """The iterations of all loops together, as an expression."""
    counted = index_const(math.prod(size_of(loop) for loop in loops if is_counted(loop)))
    sizes = [loop.src[0] for loop in loops if not is_counted(loop)]
    return simplify(math.prod(sizes, start=counted)) if sizes else counted


def match_contraction(
    view: KernelView, dtype: DType, accumulator: DType, may_lack_rows: bool = False
) -> Contraction | str:
    """The kernel as a contraction of operands of `dtype`, or the reason why it is none. Where it `may_lack_rows`, one
    factor may depend on no output loop that the other lacks: it has one row."""
    if any(axis.arg.kind not in _UNASSIGNED for axis in view.axes):
        return "it comes before every other opt"
    found = _flatten_sum(view)
    if isinstance(found, str):
        return found
    reduce, value, masks, summed = found
    if reduce.dtype is not accumulator:
        return f"it sums in {accumulator.name}, the kernel in {reduce.dtype.name}"
    if value.op is not Ops.MUL:
        return f"what is summed is {value.op.name}, not a product"
    values = [narrow(factor, dtype) for factor in value.src]
    if values[0] is None or values[1] is None:
        return f"it multiplies {dtype.name}, a factor is not {dtype.name}"
    first, second = values[0], values[1]
    for mask in masks:
        holder = next((v for v in (first, second) if mask.ranges <= v.ranges), None)
        if holder is None:
            return "a mask depends on loops of both factors"
        masked = _masked(holder, mask)
        first, second = (masked, second) if holder is first else (first, masked)
    reason = _check_loads(view, first, second)
    return reason or _group_loops(view, reduce, first, second, summed, may_lack_rows)


def _flatten_sum(view: KernelView) -> tuple[UOp, UOp, list[UOp], tuple[UOp, ...]] | str:
    """The outermost sum, what is summed, its masks and all loops: a sum of masked sums is one sum."""
    if not view.reduces:
        return "it needs a sum"
    outer = view.reduces[-1]
    chain, masks, value = [], [], outer
    while True:
        if value.op is Ops.REDUCE and value.arg is Ops.ADD and value.dtype is outer.dtype:
            chain.append(value)
            value = value.src[0]
        elif value.op is Ops.WHERE and value.src[2].is_const and value.src[2].arg == 0:
            masks.append(value.src[0])
            value = value.src[1]
        else:
            break
    if set(chain) != set(view.reduces):
        return f"it needs one sum, the kernel has {len(view.reduces)} reductions"
    summed = tuple(axis for node in chain for axis in node.src[1:])
    if outer.ranges & set(summed):
        return "a summed loop is also an output loop"
    return outer, value, masks, summed


def narrow(value: UOp, dtype: DType) -> UOp | None:
    """The expression of `dtype` that the value is an exact conversion of; None where there is none."""
    if value.dtype is dtype:
        return value
    if (
        value.op is Ops.CAST
        and value.src[0].dtype is dtype
        and dtype.is_float
        and dtype.itemsize < value.dtype.itemsize
    ):
        return value.src[0]
    if value.op is Ops.WHERE:
        yes, no = (narrow(source, dtype) for source in value.src[1:])
        return None if yes is None or no is None else value.src[0].where(yes, no)
    if value.is_const and value.arg == 0:
        return const(dtype, 0)
    return None


def _masked(value: UOp, mask: UOp) -> UOp:
    """The value, 0 where the mask is off. A load whose own mask implies this one is unchanged."""
    if value.op is Ops.LOAD and len(value.src) == 1 and len(value.src[0].src) > 2:
        if set(parts_of(mask, Ops.AND)) <= set(parts_of(value.src[0].src[2], Ops.AND)):
            return value
    return mask.where(value, const(value.dtype, 0))


def _check_loads(view: KernelView, *values: UOp) -> str | None:
    written = {memory_of(store) for store in view.stores}
    for node in toposort(*values):
        if node.op is Ops.LOAD and node.src[0].src[0].op is not Ops.PARAM:
            return "the factors must be made of buffers"
        if node.op is Ops.LOAD and memory_of(node.src[0]) in written:
            return "a factor is written by the same kernel"
        if node.op in (Ops.REDUCE, Ops.STORE, Ops.AFTER):
            return f"a factor is made of {node.op.name}"
    return None


def _group_loops(
    view: KernelView, reduce: UOp, first: UOp, second: UOp, summed: tuple[UOp, ...], may_lack_rows: bool
) -> Contraction | str:
    loops = [axis for axis in view.axes if axis not in view.reduce_axes]
    if not all(is_uniform(axis) for axis in (*loops, *summed)):
        return "the size of a loop is computed"
    if not view.stores or any(loop not in store.ranges for store in view.stores for loop in loops):
        return "everything stored must depend on all output loops"
    own = [
        [a for a in loops if a in one.ranges and a not in other.ranges]
        for one, other in ((first, second), (second, first))
    ]
    batch = tuple(axis for axis in loops if axis in first.ranges and axis in second.ranges)
    if len(own[0]) + len(own[1]) + len(batch) != len(loops):
        return "the factors must depend on all output loops"
    if not any(own) or not (all(own) or may_lack_rows):
        return f"the factors must have loops that the other lacks, they have {len(own[0])} and {len(own[1])}"
    store = view.stores[0]
    if any(stride(store, axis) == 1 for axis in own[0]):
        first, second, own = second, first, own[::-1]
    left, right = (Operand(v, _by_stride(store, found)) for v, found in ((first, own[0]), (second, own[1])))
    return Contraction(reduce, left, right, summed, batch)


def _by_stride(access: UOp, loops: list[UOp]) -> tuple[UOp, ...]:
    """The loops with the smallest stride last."""
    return tuple(sorted(loops, key=lambda axis: (-abs(stride(access, axis) or 0), axis.arg.id)))
