"""Left operands of matrix products that are stored column by column. In: a `Plan`, and the facts of each node's device.
Out: views to be stored by kernels of their own, in the order in which the product reads them.

A core reads the left operand of a product in rows along the sum. Where the rows are strided, as in `x.T @ y`, every
core would pack the whole operand before its first tile; instead one kernel transposes it, each core a part."""

from __future__ import annotations

import math
from collections.abc import Callable

from tilewright.base.target import Target
from tilewright.graph.affine import affine
from tilewright.graph.build import stored_root
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Kind
from tilewright.graph.uop import UOp
from tilewright.schedule.indexing import TRUE, Element, flatten_index, push_movement
from tilewright.schedule.uses import Plan, loops_over

# Each element of the transposed operand is used once per column: with fewer columns or products the copy does not pay.
MIN_COLUMNS = 128
MIN_PRODUCTS = 1 << 22


def operands_to_transpose(plan: Plan, facts_of: Callable[[UOp], Target]) -> frozenset[UOp]:
    """The operands to transpose; none on a device with work-groups, which copy tiles in either order."""
    stored = frozenset(plan.stored)
    found = ((node, _operand_to_transpose(node, stored)) for node in plan.order if node.op is Ops.REDUCE_AXIS)
    factors = {view: facts_of(node) for node, view in found if view is not None}
    return frozenset(view for view, facts in factors.items() if facts.has_threads and not facts.has_local)


def _operand_to_transpose(node: UOp, stored: frozenset[UOp]) -> UOp | None:
    """The left factor of a product, if elements of different rows are adjacent in memory. A converted or masked factor
    is packed anyway."""
    op, summed = node.arg
    product = node.src[0]
    if (
        op is not Ops.ADD
        or product.op is not Ops.MUL
        or is_symbolic(product.shape)
        or any(factor.op is not Ops.EXPAND for factor in product.src)
    ):
        return None
    columns = max((axis for axis, size in enumerate(node.shape) if size > 1), default=None)
    views = [factor.src[0] for factor in product.src]
    lefts = [view for view in views if columns is not None and view.shape[columns] == 1]
    if columns is None or len(lefts) != 1:
        return None
    left = lefts[0]
    right = views[1 - views.index(left)]
    axes = [axis for axis, size in enumerate(left.shape) if size > 1]
    rows = [axis for axis in axes if right.shape[axis] == 1]
    if not rows or axes[-1] not in summed or node.shape[columns] < MIN_COLUMNS:
        return None
    if math.prod(product.shape[axis] for axis in (*rows, *summed, columns)) < MIN_PRODUCTS:
        return None
    return _view_across(left, rows, stored)


def _view_across(view: UOp, rows: list[int], stored: frozenset[UOp]) -> UOp | None:
    """The view, if it is one of memory in which elements along one of `rows` are adjacent."""
    loops = loops_over(view.shape)
    element, source = Element(loops, TRUE), view
    while source.op.kind is Kind.MOVEMENT and source not in stored:
        element, source = push_movement(source, element), source.src[0]
    if element.valid is not TRUE or (source.op is not Ops.PARAM and source not in stored):
        return None
    steps = affine(flatten_index(element.indices, source.shape)).terms
    if all(steps.get(loops[axis]) != 1 for axis in rows):
        return None
    return stored_root(view)
