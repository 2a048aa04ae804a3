"""Operands of sums that are stored in another order than they are read in. In: a `Plan`, and the facts of each node's
device. Out: views to be stored by kernels of their own, in the order in which the sum reads them.

A core reads the left operand of a product in rows along the sum. Where the rows are strided, as in `x.T @ y`, every
core would pack the whole operand before its first tile; instead one kernel transposes it, each core a part.

Windows over an image stored channels last are read at the stride of a pixel, once for each element of a window. A
kernel that transposes the image reads it so once. A sum that reads windows over merged axes, such as those of an image
after nearest upsampling or of one whose channels became pixels, would divide to find each element; the merged image is
stored instead."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tilewright.base.target import Target
from tilewright.graph.affine import affine
from tilewright.graph.build import stored_root
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp
from tilewright.schedule.fusion.facts import PERMUTING
from tilewright.schedule.fusion.indexing import TRUE, Element, flatten_index, push_movement
from tilewright.schedule.fusion.uses import Plan, Use, loops_over

# Each element of the transposed operand is used once per column: with fewer columns or products the copy does not pay.
MIN_COLUMNS = 128
MIN_PRODUCTS = 1 << 22
# Reads of an element at a stride that take as long as storing it transposed.
MIN_READS = 4


def operands_to_transpose(plan: Plan, facts_of: Callable[[UOp], Target]) -> frozenset[UOp]:
    """The operands to transpose; none on a device with work-groups, which copy tiles in either order."""
    stored = frozenset(plan.stored)
    sums = [node for node in plan.order if node.op is Ops.REDUCE_AXIS]
    found = [(node, _operand_to_transpose(node, stored)) for node in sums]
    found += [(node, view) for node in sums for view in _windows_to_transpose(node, plan, stored)]
    found += [(node, view) for node in sums for view in _divided_views(node, plan, stored)]
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
    if max_count(tuple(product.shape[axis] for axis in (*rows, *summed, columns))) < MIN_PRODUCTS:
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


def _windows_to_transpose(node: UOp, plan: Plan, stored: frozenset[UOp]) -> Iterator[UOp]:
    """The permuted values that a sum reads repeatedly, at a stride along the last loop of its results, where another
    loop of the results has stride 1; none that another kernel reads repeatedly along its last loop."""
    work = max_count(node.src[0].shape)
    for view in _views_below(node.src[0], stored):
        source = _permuted_memory(view, stored)
        if source is None or is_symbolic(view.shape) or work < MIN_READS * max_count(view.shape):
            continue
        root = stored_root(view)
        readers = [use for use in _readers(root, plan) if plan.steps_of(use) >= MIN_READS * max_count(source.shape)]
        steps = [_steps_of_results(use, root, source, plan) for use in readers] if root is not source else []
        if any(abs(last) > 1 and 1 in others for last, *others in steps) and all(last != 1 for last, *_ in steps):
            yield root


def _divided_views(node: UOp, plan: Plan, stored: frozenset[UOp]) -> Iterator[UOp]:
    """The views that a sum reads repeatedly and that should be stored: an element of the view is at a sum of loops, but
    an element of its source, and so of memory, is found by dividing that sum, as those of windows over merged axes are.
    (A single loop would be split instead.)"""
    work = max_count(node.src[0].shape)
    for view in _views_below(node.src[0], stored, is_whole=True):
        source = view.src[0]
        if is_symbolic(view.shape) or view.op is Ops.RESHAPE or work < MIN_READS * max_count(view.shape):
            continue
        while source.op.kind is Kind.MOVEMENT and source not in stored:
            source = source.src[0]
        if source.op is not Ops.PARAM and source not in stored:
            continue
        is_divided = any(_divides_sums(use.element, source, plan) for use in _readers(source, plan))
        if is_divided and any(_divides_below(view, use.element, source, plan) for use in _readers(view, plan)):
            yield view


def _divides_below(view: UOp, element: Element, memory: UOp, plan: Plan) -> bool:
    """Whether all views below this one divide a sum of loops to find an element, and this one does not."""
    if _divides_sums(element, view, plan):
        return False
    while view is not memory:
        element, view = plan.behind(view, element), view.src[0]
        if not _divides_sums(element, view, plan):
            return False
    return True


def _readers(source: UOp, plan: Plan) -> list[Use]:
    """The uses of memory by the kernels that read it. The kernel of an update has loops over the part that it writes,
    not over the memory."""
    return [use for use in plan.uses.get(source, {}).values() if use.root is not source]


def _divides_sums(element: Element, source: UOp, plan: Plan) -> bool:
    """Whether an element is found by the division of a sum of loops."""
    atoms = affine(plan.position(element.indices, source.shape)).terms
    return any(atom.op in (Ops.IDIV, Ops.MOD) and len(atom.ranges) > 1 for atom in atoms)


def _views_below(node: UOp, stored: frozenset[UOp], is_whole: bool = False) -> Iterator[UOp]:
    """The views that elements are read through, down to those that only permute memory: none below them, or all of them
    with `is_whole`."""
    stack, seen = [node], {node}
    while stack:
        found = stack.pop()
        is_view = found.op.kind is Kind.MOVEMENT
        if found in stored or not (is_view or found.op.is_elementwise):
            continue
        if is_view:
            yield found
        if is_whole or not is_view or _permuted_memory(found, stored) is None:
            stack += [source for source in found.src if source not in seen]
            seen.update(found.src)


def _permuted_memory(view: UOp, stored: frozenset[UOp]) -> UOp | None:
    """The memory of which a view is a permutation, None where it is something else."""
    while view.op in PERMUTING and view not in stored:
        view = view.src[0]
    return view if view.op is Ops.PARAM or view in stored else None


def _steps_of_results(use: Use, view: UOp, source: UOp, plan: Plan) -> list[int]:
    """The strides of the loops over a kernel's results in the memory behind a view that it reads, the last loop
    first."""
    element = use.element
    while view is not source:
        element, view = plan.behind(view, element), view.src[0]
    steps = affine(plan.position(element.indices, source.shape)).terms
    loops = [loop for loop in loops_over(use.root.shape) if loop.op is Ops.RANGE]
    return [steps.get(loop, 0) for loop in reversed(loops)] or [0]
