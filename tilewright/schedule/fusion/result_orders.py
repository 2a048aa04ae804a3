"""Results of products in the order in which they are used, on a target with tensor cores. In: the graph, and the
operands that `operand_order.py` stores in another order. Out: further values to be stored so.

A convolution stores its result as images of one channel each, and the next one reads channels last. With a batch
normalisation between the two, a kernel would read in one order and store in the other; so the result, what is computed
from it and the gradients of both are all stored channels last."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise

from tilewright.base.records import record
from tilewright.base.target import Target
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.symbolic import capacity
from tilewright.graph.uop import UOp
from tilewright.graph.walk import without_casts

# Another order pays for results of at least this many elements, and aligned rows for rows of at least as many.
MIN_RESULT = 1 << 18
MIN_ROW = 64
# Of windows: the most elements of one, how many times as many elements as weights there are, and the most elements of
# what is read to each of the result, or the other way round, by strides.
MAX_WINDOW = 64
MIN_PER_WEIGHT = 64
MAX_STEP = 16


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
        if is_symbolic((size,)) or not size % (vector_bytes // node.dtype.itemsize) or size < MIN_ROW:
            continue
        if facts_of(node).tensor_cores and _is_stored(node, users):
            found.append(node)
    return found


def large_products(nodes: Sequence[UOp]) -> dict[UOp, UOp]:
    """The nodes that are many sums of products, in 16 bits, and the products; the sums may be shifted and summed again,
    as in the gradient of windows, or added to others."""
    found: dict[UOp, UOp] = {}
    for node in nodes:
        if node.op is not Ops.CAST or node.dtype.itemsize != 2 or max_count(node.shape) < MIN_RESULT:
            continue
        product = _product_below(node.src[0])
        if product is not None:
            found[node] = product
    return found


def _product_below(node: UOp) -> UOp | None:
    """The product that a value is sums of, or the first of several that are added, as the gradients of two branches."""
    node = _below_views(node)
    while node.op is Ops.REDUCE_AXIS:
        node = _below_views(node.src[0])
    if node.op is Ops.ADD:
        return next(filter(None, map(_product_below, node.src)), None)
    is_product = node.op is Ops.MUL and all(without_casts(each).op.kind is Kind.MOVEMENT for each in node.src)
    return node if is_product else None


def _below_views(node: UOp) -> UOp:
    while node.op is Ops.CAST or node.op.kind is Kind.MOVEMENT:
        node = node.src[0]
    return node


@record
class Windows:
    """The sums over windows of each channel, as in a depthwise convolution: the sums and the repetitions between what
    is read and what is stored, the products with the small factor of each, and what is read."""

    inside: frozenset[UOp]
    small: dict[UOp, UOp]
    bases: frozenset[UOp]


NO_WINDOWS = Windows(frozenset(), {}, frozenset())


def find_windows(nodes: Sequence[UOp], users: dict[UOp, list[UOp]]) -> Windows:
    inside: set[UOp] = set()
    small: dict[UOp, UOp] = {}
    bases: set[UOp] = set()
    for node in nodes:
        if node.op is not Ops.MUL or is_symbolic(node.shape) or max_count(node.shape) < MIN_RESULT:
            continue
        chains = [_views_below(factor) for factor in node.src]
        size, other = (max_count(chain[-1].shape) for chain in chains)
        number = 0 if size < other else 1
        base, above = chains[1 - number][-1], _sums_above(node, users)
        if above is None or node.src[number].op is not Ops.EXPAND or base.op in (Ops.PARAM, Ops.BUFFER):
            continue
        sizes = max_count(base.shape), max_count(above[-1].shape)
        if MIN_PER_WEIGHT * min(size, other) > sizes[0] or max(sizes) > MAX_STEP * min(sizes):
            continue
        if max_count(node.shape) <= MAX_WINDOW * sizes[0] and _has_channels(node, node.src[1 - number], number, above):
            inside.update(chains[1 - number], above)
            small[node] = node.src[number]
            bases.add(base)
    return Windows(frozenset(inside), small, frozenset(bases))


def _has_channels(node: UOp, factor: UOp, number: int, above: list[UOp]) -> bool:
    """Whether both factors of a product, of which `number` is the small one, have an axis that is not summed."""
    own, other = (each.src[0].shape if each.op is Ops.EXPAND else each.shape for each in (node.src[number], factor))
    axes: list[int | None] = [axis for axis, size in enumerate(node.shape) if 1 < size == own[axis] == other[axis]]
    for value, user in pairwise(above):
        if user.op is Ops.REDUCE_AXIS:
            return any(axis not in (None, *user.arg[1]) for axis in axes)
        axes = [axis_of_user(value, user, axis, NO_WINDOWS) for axis in axes if axis is not None]
    return False


def _views_below(node: UOp) -> list[UOp]:
    """A factor, and the views and conversions from it on, down to what is stored."""
    found = [node]
    while found[-1].op is Ops.CAST or found[-1].op.kind is Kind.MOVEMENT:
        found.append(found[-1].src[0])
    return found


def _sums_above(node: UOp, users: dict[UOp, list[UOp]]) -> list[UOp] | None:
    """The sums, views and conversions that only the product leads to; None where there is no sum."""
    found = [node]
    while len(users.get(found[-1], ())) == 1:
        (user,) = users[found[-1]]
        is_sum = user.op is Ops.REDUCE_AXIS and user.arg[0] is Ops.ADD
        if not (is_sum or user.op is Ops.CAST or user.op.kind is Kind.MOVEMENT):
            break
        found.append(user)
    return found if any(each.op is Ops.REDUCE_AXIS for each in found) else None


def in_one_order(
    products: Iterable[UOp],
    users: dict[UOp, list[UOp]],
    ordered: dict[UOp, int],
    bases: Iterable[UOp],
    windows: Windows,
) -> Iterator[tuple[UOp, int]]:
    """The results of `products`, and the operands `bases`, that are computed from those in `ordered`, or these from
    them, element by element, as by a batch normalisation, or channel by channel in windows; with the axis that they
    are to be stored with last."""
    results = filter(None, (_stored_with(node, users) for node in products))
    found_in = (*bases, *windows.bases, *results)
    wanted = {node for node in found_in if node.shape and not is_symbolic(node.shape)}
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
            near = [(source, axis_of_source(node, source, axis, windows)) for source in node.src]
            near += [(user, axis_of_user(node, user, axis, windows)) for user in users.get(node, ())]
            for found, passed in near:
                if passed is not None and found not in seen:
                    seen.add(found)
                    pending.append((found, passed))


def axis_of_source(node: UOp, source: UOp, axis: int, windows: Windows = NO_WINDOWS) -> int | None:
    """The axis of a source whose elements are those along the axis of the node; None where there is none, or where the
    node repeats them. The channels of a window are an axis of both of its factors."""
    small = windows.small.get(node)
    if small is not None and (source is small or small.src[0].shape[axis] != small.shape[axis]):
        return None
    if node.op is Ops.PERMUTE:
        return int(node.arg[axis])
    if node.op is Ops.RESHAPE:
        return _same_axis(node, source, axis)
    is_passed = node.op.is_elementwise or node.op in (Ops.CONTIGUOUS, Ops.SHRINK, Ops.PAD) or node in windows.inside
    is_same = is_passed and len(source.shape) == len(node.shape) and source.shape[axis] == node.shape[axis]
    return axis if is_same else None


def axis_of_user(node: UOp, user: UOp, axis: int, windows: Windows = NO_WINDOWS) -> int | None:
    """The same of a node that uses it."""
    if user.op is Ops.PERMUTE:
        return int(user.arg.index(axis))
    return _same_axis(node, user, axis) if user.op is Ops.RESHAPE else axis_of_source(user, node, axis, windows)


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
    return max((axis for axis, size in enumerate(node.shape) if capacity(size) > 1), default=0)
