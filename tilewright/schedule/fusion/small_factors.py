"""Weights of each channel in the order of the images that they multiply. In: the graph, and the facts of each node's
device. Out: the graph, in which a small factor of a product is stored with the axis last along which the large one is
contiguous.

    before: sum over kh, kw of x[b, h + kh, w + kw, c] * weight[c, kh, kw]     neighbours load weights far apart
    after:  the same, with weight[kh, kw, c]

Adjacent threads, or lanes of a vector, compute adjacent channels. Each loads a weight from a line of its own, as often
as it loads an element of the image. `operand_order.py` does the same for factors that tensor cores multiply."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.target import Target
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers, map_nodes, toposort, without_casts
from tilewright.schedule.fusion.factors import Factor, factor_of
from tilewright.schedule.fusion.indexing import TRUE, Element
from tilewright.schedule.fusion.operand_order import rebuilt
from tilewright.schedule.fusion.result_orders import axis_of_user, last_long_axis
from tilewright.schedule.fusion.uses import loops_over
from tilewright.schedule.preparation.product_parts import is_product

# How often each element of the small factor is read, at least, and the fewest products of a kernel that a copy repays,
# on a card, where it is one more launch, and on a CPU, where vectors are gathered element by element.
MIN_READS = 256
MIN_PRODUCTS = 1 << 21
MIN_CPU_PRODUCTS = 1 << 16


def order_small_factors(outputs: Sequence[UOp], facts_of: Callable[[UOp], Target]) -> list[UOp]:
    nodes = toposort(*outputs)
    candidates = [node for node in nodes if node.op is Ops.MUL and _may_move(node, facts_of(node))]
    if not candidates:
        return list(outputs)
    users = consumers(nodes)
    found: dict[UOp, tuple[int, Factor, int]] = {}
    for node in candidates:
        moved = _moved_factor(node, users, facts_of(node))
        if moved is not None:
            found[node] = moved
    if not found:
        return list(outputs)

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp:
        made = node.with_src(src)
        if node not in found:
            return made
        number, factor, axis = found[node]
        factors = list(made.src)
        factors[number] = rebuilt(factors[number], len(factor.chain), axis, facts_of(node))
        return made.with_src(tuple(factors))

    replaced = map_nodes(nodes, visit)
    return [replaced[node] for node in outputs]


def _may_move(node: UOp, target: Target) -> bool:
    """Whether a product is large, and has a small factor of several axes: one of a single axis has its order."""
    if is_symbolic(node.shape) or max_count(node.shape) < (MIN_PRODUCTS if target.has_local else MIN_CPU_PRODUCTS):
        return False
    if not all(factor.shape for factor in node.src):
        return False
    repeated = [factor.src[0].shape for factor in map(without_casts, node.src) if factor.op is Ops.EXPAND]
    small = min(repeated, key=max_count, default=())
    return max_count(node.shape) >= MIN_READS * max_count(small) and sum(size > 1 for size in small) > 1


def _moved_factor(node: UOp, users: dict[UOp, list[UOp]], target: Target) -> tuple[int, Factor, int] | None:
    """The factor of a product that is to be stored in another order: its number, itself, and the axis that is to be
    last. None where there is none."""
    summed = _summed_axes(node, users)
    if is_product(node, summed):
        return None  # tiles of both factors are staged or packed
    loops = loops_over(node.shape)
    factors = [factor_of(factor, Element(loops, TRUE)) for factor in node.src]
    sizes = [max_count(factor.base.shape) for factor in factors]
    number = sizes.index(min(sizes))
    small, large = factors[number], factors[1 - number]
    if not small.is_plain:
        return None
    for axis, loop in enumerate(loops):
        is_across = large.position.terms.get(loop) == 1 and abs(small.position.terms.get(loop, 0)) > 1
        if not is_across or axis in summed or (last := small.axis_of(loop)) is None:
            continue
        # Where results are stored in another order, a core reads a transposed copy of the image.
        if target.has_local or _is_stored_last(node, axis, users):
            return number, small, last
    return None


def _summed_axes(node: UOp, users: dict[UOp, list[UOp]]) -> tuple[int, ...]:
    """The axes of a product over which it is summed at once, as it is or converted."""
    near = [further for user in users[node] for further in ([user], users[user])[user.op is Ops.CAST]]
    return tuple({axis for user in near if user.op is Ops.REDUCE_AXIS for axis in user.arg[1]})


def _is_stored_last(node: UOp, axis: int, users: dict[UOp, list[UOp]]) -> bool:
    """Whether the sums of a product, and what alone is computed of them, are contiguous along an axis of it."""
    value = node
    while len(users.get(value, ())) == 1:
        (user,) = users[value]
        is_sum = user.op is Ops.REDUCE_AXIS and axis not in user.arg[1]
        passed = axis if is_sum else axis_of_user(value, user, axis)
        if passed is None:
            break
        value, axis = user, passed
    return axis == last_long_axis(value)
