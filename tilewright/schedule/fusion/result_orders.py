"""Results of products in the order in which they are used, on a target with tensor cores. In: the graph, and the
operands that `operand_order.py` stores in another order. Out: further values to be stored so.

A convolution stores its result as images of one channel each, and the next one reads channels last. With a batch
normalisation between the two, a kernel would read in one order and store in the other; so the result, what is computed
from it and the gradients of both are all stored channels last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence

from tilewright.base.target import Target
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import without_casts

# Another order pays for results of at least this many elements, and aligned rows for rows of at least as many.
MIN_RESULT = 1 << 18
MIN_ROW = 64


def results_in_short_rows(
    products: dict[UOp, UOp], users: dict[UOp, list[UOp]], facts_of: Callable[[UOp], Target], vector_bytes: int
) -> list[UOp]:
    """Results of large products that are stored because several nodes use them, and whose rows are not aligned: tensor
    cores would store them element by element."""
    found = []
    for node, product in products.items():
        if any(factor.op is not Ops.EXPAND for factor in product.src):
            continue
        size = node.shape[last_long_axis(node)]
        if not size % (vector_bytes // node.dtype.itemsize) or size < MIN_ROW:
            continue
        if facts_of(node).tensor_cores and _is_stored(node, users):
            found.append(node)
    return found


def large_products(nodes: Sequence[UOp]) -> dict[UOp, UOp]:
    """The nodes that are many sums of products, in 16 bits, and the products; the sums may be shifted and summed again,
    as in the gradient of windows."""
    found: dict[UOp, UOp] = {}
    for node in nodes:
        if node.op is not Ops.CAST or node.dtype.itemsize != 2 or max_count(node.shape) < MIN_RESULT:
            continue
        product = _below_views(node)
        while product.op is Ops.REDUCE_AXIS:
            product = _below_views(product.src[0])
        if product.op is Ops.MUL and all(without_casts(factor).op.kind is Kind.MOVEMENT for factor in product.src):
            found[node] = product
    return found


def _below_views(node: UOp) -> UOp:
    while node.op is Ops.CAST or node.op.kind is Kind.MOVEMENT:
        node = node.src[0]
    return node


def in_one_order(
    products: Iterable[UOp], users: dict[UOp, list[UOp]], ordered: dict[UOp, int], bases: Iterable[UOp]
) -> Iterator[tuple[UOp, int]]:
    """The results of `products`, and the operands `bases`, that are computed from those in `ordered`, or these from
    them, element by element, as by a batch normalisation; with the axis that they are to be stored with last."""
    results = filter(None, (_stored_with(node, users) for node in products))
    wanted = {node for node in (*bases, *results) if node.shape and not is_symbolic(node.shape)}
    pending, seen = deque(ordered.items()), set(ordered)
    # Operands that stay as they are come second: where one could be in either order, it is in that of its neighbours.
    for base in (None, *bases):
        if base is not None and base not in seen and base in wanted:
            pending.append((base, last_long_axis(base)))
            seen.add(base)
        while pending:
            node, axis = pending.popleft()
            if node not in ordered and node in wanted and axis != last_long_axis(node):
                yield node, axis
            near = [(source, _axis_of_source(node, source, axis)) for source in node.src]
            near += [(user, _axis_of_user(node, user, axis)) for user in users.get(node, ())]
            for found, passed in near:
                if passed is not None and found not in seen:
                    seen.add(found)
                    pending.append((found, passed))


def _axis_of_source(node: UOp, source: UOp, axis: int) -> int | None:
    """The axis of a source whose elements are those along the axis of the node; None where there is none, or where the
    node repeats them."""
    if node.op is Ops.PERMUTE:
        return int(node.arg[axis])
    if node.op is Ops.RESHAPE:
        return _same_axis(node, source, axis)
    is_passed = node.op.is_elementwise or node.op in (Ops.CONTIGUOUS, Ops.SHRINK, Ops.PAD)
    is_same = is_passed and len(source.shape) == len(node.shape) and source.shape[axis] == node.shape[axis]
    return axis if is_same else None


def _axis_of_user(node: UOp, user: UOp, axis: int) -> int | None:
    """The same of a node that uses it."""
    if user.op is Ops.PERMUTE:
        return int(user.arg.index(axis))
    return _same_axis(node, user, axis) if user.op is Ops.RESHAPE else _axis_of_source(user, node, axis)


def _same_axis(node: UOp, other: UOp, axis: int) -> int | None:
    """The axis of a RESHAPE, or of its source, that is the same as an axis of the other."""
    size, before = node.shape[axis], max_count(node.shape[:axis])
    alike = [
        each for each, length in enumerate(other.shape) if length == size and max_count(other.shape[:each]) == before
    ]
    return alike[0] if size != 1 and alike else None


def _stored_with(node: UOp, users: dict[UOp, list[UOp]]) -> UOp | None:
    """The value that is stored in place of a result: the last of as few bytes and elements that only it leads to,
    element by element. None where it is used once, and not stored."""
    found = last = node
    while len(users.get(last, ())) == 1:
        (last,) = users[last]
        if not (last.op.is_elementwise or last.op in (Ops.RESHAPE, Ops.PERMUTE, Ops.SHRINK, Ops.PAD)):
            return None
        is_whole = last.op is not Ops.PERMUTE and max_count(last.shape) == max_count(node.shape)
        found = last if is_whole and last.dtype.itemsize <= node.dtype.itemsize else found
    return found if users.get(last) else None


def _is_stored(node: UOp, users: dict[UOp, list[UOp]]) -> bool:
    """Whether several nodes use it, through views and conversions."""
    found = users.get(node, [])
    while len(found) == 1 and (found[0].op is Ops.CAST or found[0].op in (Ops.RESHAPE, Ops.EXPAND)):
        found = users.get(found[0], [])
    return len(found) > 1


def last_long_axis(node: UOp) -> int:
    """The last axis of more than one element."""
    return max((axis for axis, size in enumerate(node.shape) if size > 1), default=0)
