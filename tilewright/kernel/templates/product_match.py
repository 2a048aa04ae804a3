"""Which kernels are sums of products. In: a kernel. Out: its two factors, and the output loops that are the rows and
columns of a matrix product. The templates of products and of convolutions ask here."""

from __future__ import annotations

import itertools
import math

from tilewright.base.dtype import DType
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort, without_casts
from tilewright.kernel.axes import KernelView, stride


class Product(NamedTuple):
    """The accesses of the two factors, and the output loops that are tiled. `number` is the position of the right
    factor in the multiplication."""

    left: UOp
    right: UOp
    rows: UOp
    columns: UOp
    number: int


def find_product(view: KernelView) -> Product | None:
    """The product that the kernel computes; None where it computes something else."""
    accesses = factors_of(view)
    for number in (1, 0) if accesses else ():
        left, right = accesses[1 - number], accesses[number]
        columns = [a for a in own_axes(view, right, left) if all(stride(store, a) == 1 for store in view.stores)]
        rows = own_axes(view, left, right)
        if columns and rows:
            return Product(left, right, max(rows, key=size_of), columns[0], number)
    return None


def factors_of(view: KernelView) -> list[UOp]:
    """The accesses of the two factors, in the order of the multiplication; empty where the kernel is not a sum of
    products. The sum may be the masked term of another sum, as at the borders of a convolution."""
    if not view.reduces or any(node.arg is not Ops.ADD for node in view.reduces):
        return []
    value = without_casts(view.reduces[0].src[0])
    factors = [without_casts(factor) for factor in value.src] if value.op is Ops.MUL else []
    if any(factor.op is not Ops.LOAD or factor.src[0] not in view.accesses for factor in factors):
        return []
    is_nested = all(one in toposort(other) for one, other in itertools.pairwise(view.reduces))
    return [factor.src[0] for factor in factors] if is_nested else []


def own_axes(view: KernelView, one: UOp, other: UOp) -> list[UOp]:
    """The output loops that factor `one` depends on and the other does not."""
    loops = [axis for axis in view.of_kind(AxisType.LOOP) if all(axis in node.ranges for node in view.reduces)]
    return [axis for axis in loops if axis in one.ranges and axis not in other.ranges]


def sum_dtype(view: KernelView) -> DType:
    """The dtype of the accumulators."""
    return view.target.held_in(view.reduces[0].dtype)


def count_products(view: KernelView) -> int:
    """How many multiplications the kernel does."""
    return math.prod(size_of(axis) for axis in view.axes)
