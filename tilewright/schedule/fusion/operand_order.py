"""Operands in the order in which tensor cores read them. In: the graph, and the facts of each node's device. Out: the
graph, in which an operand of a contraction that would be staged element by element is stored with a summed axis last.

    before: sum over c, kh, kw of x[b, c, h + kh, w + kw] * weight[o, c, kh, kw]       neighbours are not aligned
    after:  the same, stored as x[b, h, w, c] and weight[o, kh, kw, c]                 vectors along c

A computed operand is stored in that order for all of its users, so that a chain of convolutions keeps it; its kernel
stores it so at once. An input is copied once. What is between operands is in the order of its neighbours
(`result_orders.py`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tilewright.base.costs import LONE_PART_CLOCKS, memory_clocks
from tilewright.base.dtype import DType
from tilewright.base.target import Target, TensorCore
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import consumers, map_nodes, size_of, toposort
from tilewright.schedule.fusion.factors import Factor, factor_of, is_input
from tilewright.schedule.fusion.indexing import TRUE, Element, push_movement
from tilewright.schedule.fusion.result_orders import (
    find_windows,
    in_one_order,
    large_products,
    last_long_axis,
    results_in_short_rows,
)
from tilewright.schedule.fusion.strided_windows import sums_of_strided_windows
from tilewright.schedule.fusion.uses import loops_over

# Bytes of the vector that one copy instruction moves.
VECTOR_BYTES = 16
# Rows that are padded for the copy engine begin at multiples of a line of the cache, where at most one element in so
# many is padding: a line of a box is then one line of memory and not parts of two.
LINE_BYTES = 128
MAX_LINE_PADDING = 16
# A copy of an operand pays where each element is multiplied at least this often; one of merged axes, whose elements
# would be found by divisions, from fewer.
MIN_USES = 64
MIN_MERGED_USES = 16


def order_operands(outputs: Sequence[UOp], facts_of: Callable[[UOp], Target], copies_inputs: bool = True) -> list[UOp]:
    """`copies_inputs` is off where sums are not split yet, and their operands may change."""
    nodes = toposort(*outputs)
    inputs: dict[UOp, list[tuple[Factor, int]]] = {}  # of each contraction: operands that are copied
    ordered: dict[UOp, int] = {}  # computed operands, and the axis that they are stored with last
    bases: dict[UOp, None] = {}  # of the factors of contractions, where they are computed
    windows = _inside_windows(nodes)
    for node in nodes:
        factors = _factors(node, facts_of)
        bases.update((factor.base, None) for factor in factors if not is_input(factor.base))
        for factor, axis in _misplaced(node, factors, facts_of(node), ordered, node in windows) if factors else ():
            is_copied = is_input(factor.base) or factor.base in outputs or factor.base in ordered
            if is_copied and copies_inputs:
                inputs.setdefault(node, []).append((factor, axis))
            elif not is_copied:
                ordered[factor.base] = axis
    users, products = consumers(nodes), large_products(nodes)
    for node in results_in_short_rows(products, users, facts_of, VECTOR_BYTES):
        if node not in outputs:
            ordered.setdefault(node, last_long_axis(node))
    alike = in_one_order(products, users, ordered, bases, find_windows(nodes, users))
    ordered |= {node: axis for node, axis in alike if node not in outputs}
    ordered |= sums_of_strided_windows(products, users, ordered)
    if not inputs and not ordered:
        return list(outputs)

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node in inputs:
            src = (_with_factors(node.src[0], src[0], inputs[node], facts_of(node)),)
        made = node.with_src(src)
        if node not in ordered:
            return made
        return _stored_last(made.src[0] if made.op is Ops.CONTIGUOUS else made, ordered[node], facts_of(node))

    replaced = map_nodes(nodes, visit)
    return [replaced[node] for node in outputs]


def _inside_windows(nodes: list[UOp]) -> set[UOp]:
    """Sums whose results are shifted and summed again, as in the gradient of windows. One kernel computes both sums,
    and its loads are not aligned."""
    shifted: set[UOp] = set()  # what reaches a sum through a PAD or a SHRINK
    reaching: set[UOp] = set()  # what reaches a sum through views
    for node in reversed(nodes):
        is_sum = node.op is Ops.REDUCE_AXIS and node.arg[0] is Ops.ADD
        if node.op is Ops.PAD and node in reaching:
            shifted.add(node)
        if is_sum or ((node.op.kind is Kind.MOVEMENT or node.op in (Ops.CAST, Ops.CONTIGUOUS)) and node in reaching):
            reaching.add(node.src[0])
            if not is_sum and node in shifted:
                shifted.add(node.src[0])
    return {node for node in shifted if node.op is Ops.REDUCE_AXIS}


def _with_factors(product: UOp, made: UOp, copied: list[tuple[Factor, int]], target: Target) -> UOp:
    """The product with copies of factors in their new order; `made` replaces the product."""
    if product.op is Ops.RESHAPE:
        return made.with_src((_with_factors(product.src[0], made.src[0], copied, target),))
    factors = list(made.src)
    for factor, axis in copied:
        number = product.src.index(factor.chain[0])
        factors[number] = rebuilt(factors[number], len(factor.chain), axis, target)
    return made.with_src(tuple(factors))


def _factors(node: UOp, facts_of: Callable[[UOp], Target]) -> list[Factor]:
    """The two factors of a contraction that tensor cores compute from vectors, and that uses each element often; none
    of another node."""
    if node.op is not Ops.REDUCE_AXIS or node.arg[0] is not Ops.ADD:
        return []
    product, element = node.src[0], Element(loops_over(node.src[0].shape), TRUE)
    while product.op is Ops.RESHAPE:
        product, element = product.src[0], push_movement(product, element)
    if product.op is not Ops.MUL or product.src[0] is product.src[1]:
        return []
    if any(factor.op is not Ops.EXPAND for factor in product.src):
        return []
    factors = [factor_of(operand, element) for operand in product.src]
    if factors[1].base.dtype is not factors[0].base.dtype or not _cores(factors, facts_of(node)):
        return []
    work = max_count(product.shape)
    return factors if all(work >= _least_uses(factor) * max_count(factor.base.shape) for factor in factors) else []


def _least_uses(factor: Factor) -> int:
    is_merged = factor.base.op is Ops.RESHAPE and not is_input(factor.base)
    return MIN_MERGED_USES if is_merged else MIN_USES


def _cores(factors: list[Factor], target: Target) -> list[TensorCore]:
    dtype = factors[0].base.dtype
    return [core for core in target.tensor_cores if core.operand is dtype and core.wants_vectors]


def _misplaced(
    node: UOp, factors: list[Factor], target: Target, ordered: dict[UOp, int], is_in_windows: bool
) -> list[tuple[Factor, int]]:
    """The factors of a contraction that should be stored in another order, each with the axis that should be last."""
    cores, lanes = _cores(factors, target), VECTOR_BYTES // factors[0].base.dtype.itemsize
    loops = loops_over(node.src[0].shape)
    inner = [loops[axis] for axis in node.arg[1]]
    outer = [loop for loop in loops if loop.op is Ops.RANGE and loop not in inner]
    own = [
        [loop for loop in outer if _reads(one, loop) and not _reads(other, loop)]
        for one, other in (factors, factors[::-1])
    ]
    aligned = [inner, inner] if is_in_windows else own
    is_good = [
        f.base not in ordered and _is_vectorised(f, inner, o, lanes) for f, o in zip(factors, aligned, strict=True)
    ]
    if all(is_good):
        if not _differ_along_sum(factors, inner):
            return []
        smaller = min(factors, key=lambda factor: max_count(factor.base.shape))
        is_good = [factor is not smaller for factor in factors]
    found = None if is_in_windows else _short_rows(factors, own, inner, is_good, ordered, lanes)
    if found is None:
        found = _moved(node, factors, own, inner, ordered, lanes, is_in_windows)
        found = _moved_alone(node, factors, own, inner, is_good, lanes) or found
    work = max_count(node.src[0].shape)
    singles = [_staged(work, others, cores[0]) for others, good in zip(own[::-1], is_good, strict=True) if not good]
    if not any(core.is_bulk for core in cores) and not _pays(found, sum(singles), target):
        return []
    return found


def _differ_along_sum(factors: list[Factor], inner: list[UOp]) -> bool:
    """Whether both factors are contiguous along the sum, but each along another of its loops: the vectors of one are
    not those of the other."""
    found = [next((loop for loop in inner if factor.position.terms.get(loop) == 1), None) for factor in factors]
    return None not in found and found[0] is not found[1]


def _staged(work: int, others: list[UOp], core: TensorCore) -> int:
    """How often elements of a factor are staged: once for each tile of the other factor's own loops."""
    size = math.prod(map(size_of, others))
    return work // size * -(-size // core.columns)


def _pays(moved: list[tuple[Factor, int]], singles: int, target: Target) -> bool:
    """Whether copies of inputs take less time than elements that threads stage one by one in place of vectors. The
    copies do not wait for each other."""
    copied = [factor for factor, _ in moved if is_input(factor.base)]
    if not copied:
        return True
    nbytes = sum(2 * max_count(factor.base.shape) * factor.base.dtype.itemsize for factor in copied)
    return target.launch_clocks + memory_clocks(nbytes, target) < singles * LONE_PART_CLOCKS / target.cores


def _moved(
    node: UOp,
    factors: list[Factor],
    own: list[list[UOp]],
    inner: list[UOp],
    ordered: dict[UOp, int],
    lanes: int,
    is_in_windows: bool,
) -> list[tuple[Factor, int]]:
    """The factors that should be stored with another axis last, each with that axis: the axis of a summed loop that
    both have, or of a loop of the factor alone, whichever copies fewer bytes."""
    best: tuple[int, int, list[tuple[Factor, int]]] | None = None
    choices = [(inner, inner)]
    # With the axis of a factor's own loop last, the stores of the result are not contiguous: it must be small.
    is_small = all(max_count(node.shape) <= max_count(factor.base.shape) for factor in factors)
    if is_small and not is_in_windows:
        choices.append((own[0], own[1]))
    for choice in choices:
        for first in _vector_loops(factors[0], choice[0], lanes):
            for second in [first] if choice[0] is inner else _vector_loops(factors[1], choice[1], lanes):
                axes = [factor.axis_of(loop) for factor, loop in zip(factors, (first, second), strict=True)]
                if axes[0] is None or axes[1] is None:
                    continue
                moved = [(f, axis) for f, axis in zip(factors, axes, strict=True) if axis is not None]
                moved = [(f, axis) for f, axis in moved if _last_axis(f.base, ordered) != axis]
                cost = sum(max_count(factor.base.shape) for factor, _ in moved)
                length = size_of(first)
                if best is None or (cost, -length) < best[:2]:
                    best = cost, -length, moved
    return [] if best is None else best[2]


def _moved_alone(
    node: UOp, factors: list[Factor], own: list[list[UOp]], inner: list[UOp], is_good: list[bool], lanes: int
) -> list[tuple[Factor, int]]:
    """The one factor that is read across parts of an axis, as after channels and pixels are flattened, with the axis of
    another loop: the other factor is in order, and would gain nothing from that of the same loop."""
    if all(is_good) or not any(is_good):
        return []
    number = is_good.index(False)
    factor = factors[number]
    if not any(atom.op is Ops.MOD and atom.src[0] in own[number] for atom in factor.position.terms):
        return []
    loops = _vector_loops(factor, inner, lanes)
    axes = [axis for axis in map(factor.axis_of, loops) if axis is not None]
    return [(factor, max(axes, key=lambda axis: factor.base.shape[axis]))] if axes else []


def _short_rows(
    factors: list[Factor],
    own: list[list[UOp]],
    inner: list[UOp],
    is_good: list[bool],
    ordered: dict[UOp, int],
    lanes: int,
) -> list[tuple[Factor, int]] | None:
    """The factors that need nothing but rows aligned to vectors: the copy engine, or threads that read vectors, then
    fetch them in place. None where the loops of a factor overlap in memory, or another loop is the last."""
    found: list[tuple[Factor, int]] = []
    for factor, loops, good in zip(factors, own, is_good, strict=True):
        last = last_long_axis(factor.base)
        # A single number that is broadcast has no axis.
        if not factor.is_plain or not factor.indices or factor.indices[last] not in (*loops, *inner):
            return None
        if not all(factor.is_one_loop(group, factor.indices[last]) for group in (loops, inner)):
            return None
        if not good and ordered.get(factor.base) != last and factor.base.shape[last] % lanes:
            found.append((factor, last))
        elif factor.base in ordered and ordered[factor.base] != last:
            return None
    return found


def _vector_loops(factor: Factor, loops: list[UOp], lanes: int) -> list[UOp]:
    """The loops that walk along one axis of the base, in whole vectors."""
    counted = [loop for loop in loops if loop.op is Ops.RANGE and loop.src[0].is_const and loop.src[0].arg % lanes == 0]
    return [loop for loop in counted if factor.axis_of(loop) is not None]


def _last_axis(base: UOp, ordered: dict[UOp, int]) -> int:
    found = ordered.get(base)
    return found if found is not None else last_long_axis(base)


def _is_vectorised(factor: Factor, inner: list[UOp], own: list[UOp], lanes: int) -> bool:
    """Whether the loops that walk the memory of a factor are its own, or the summed ones, in whole vectors. Of a summed
    loop parts are not enough: in another order the copy engine fetches the factor."""
    return factor.is_aligned(own, lanes) or factor.is_aligned(inner, lanes, in_parts=False)


def _reads(factor: Factor, loop: UOp) -> bool:
    return any(loop in index.ranges for index in factor.indices)


def rebuilt(node: UOp, depth: int, axis: int, target: Target) -> UOp:
    """A chain of `depth` views over its base as it is stored."""
    if depth == 0:
        return _stored_last(node, axis, target)
    return node.with_src((rebuilt(node.src[0], depth - 1, axis, target),))


def _stored_last(node: UOp, axis: int, target: Target) -> UOp:
    """The value in memory of its own, with the axis last and aligned rows."""
    rank = len(node.shape)
    order = (*(a for a in range(rank) if a != axis), axis)
    made = [UOp(Ops.PERMUTE, node.dtype, (node,), order)]
    shape = made[0].shape
    more = _row_padding(shape[-1], node.dtype, target)
    if more:
        made.append(UOp(Ops.PAD, node.dtype, (made[-1],), (*((0, 0),) * (rank - 1), (0, more))))
    made.append(UOp(Ops.CONTIGUOUS, node.dtype, (made[-1],)))
    if more:
        made.append(UOp(Ops.SHRINK, node.dtype, (made[-1],), tuple((0, size) for size in shape)))
    made.append(UOp(Ops.PERMUTE, node.dtype, (made[-1],), tuple(order.index(a) for a in range(rank))))
    for each in made:
        each.line = each.line or node.line
    return made[-1]


def _row_padding(size: int, dtype: DType, target: Target) -> int:
    """The elements that are added to a row whose length is not a multiple of vectors."""
    vector, line = (-size % (nbytes // dtype.itemsize) for nbytes in (VECTOR_BYTES, LINE_BYTES))
    is_fetched = any(core.is_bulk and core.operand is dtype for core in target.tensor_cores)
    return line if vector and is_fetched and line * MAX_LINE_PADDING <= size else vector
