"""Removes work that masks make redundant. In: the value of a kernel. Out: the same value with shorter sums and fewer
masked loads. A sum skips the terms that a mask makes 0; a load needs no mask where a selection discards its value
whenever the mask is false."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.base.dtype import dtypes
from tilewright.graph.affine import Affine, affine
from tilewright.graph.ops import Axis, Ops
from tilewright.graph.simplify.common import TRUE
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import map_graph, size_of, substitute, toposort


def shorten_reductions(value: UOp) -> UOp:
    """The value with every reduction as short as it can be."""
    reduces = [node for node in toposort(value) if node.op is Ops.REDUCE]
    if all(shorten_reduction(node.arg, node.src[0], node.src[1:])[1] == node.src[1:] for node in reduces):
        return value

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.REDUCE:
            return None
        inner, loops = shorten_reduction(node.arg, src[0], src[1:])
        return node.with_src((inner, *loops))

    return map_graph(value, visit)


def shorten_reduction(op: Op, value: UOp, loops: tuple[UOp, ...]) -> tuple[UOp, tuple[UOp, ...]]:
    """The operand of a reduction, and its loops: a sum of sums becomes one sum, without the first and last iterations
    that only add zeros.

    before: for c in 6: acc += (for d in 6: inner += x[y - c, z - d] if c < 5 and d < 5 and ... else 0)
    after:  for c in 5: for d in 5: acc += x[y - c, z - d] if ... else 0"""
    joined = loops
    # A small float is rounded after each of two sums.
    if value.op is Ops.REDUCE and value.arg is op and not (value.dtype.is_float and value.dtype.bits < 32):
        value, joined = value.src[0], (*loops, *value.src[1:])
    spans = loop_spans(conditions_of(value)) if op is Ops.ADD else {}
    if joined == loops and spans.keys().isdisjoint(loops):
        return value, loops
    sizes = [index_const(spans[loop][1] - spans[loop][0]) if loop in spans else loop.src[0] for loop in joined]
    made = new_loops(joined, sizes)
    exchanges = {loop: step + spans[loop][0] if loop in spans else step for loop, step in made.items()}
    return substitute(value, exchanges), tuple(made.values())


def new_loops(loops: tuple[UOp, ...], sizes: list[UOp]) -> dict[UOp, UOp]:
    """For each loop of a reduction one of its own with another size: a loop that another reduction shares could neither
    be nested differently nor be shorter here."""
    first, suffix = loops[0].arg.id, tuple(-int(size.vmax) for size in sizes)
    return {
        loop: UOp(Ops.RANGE, dtypes.index, (size,), Axis((*first, *suffix, number), loop.arg.kind))
        for number, (loop, size) in enumerate(zip(loops, sizes, strict=True))
    }


def loop_spans(conditions: Iterable[UOp]) -> dict[UOp, tuple[int, int]]:
    """The loops of which conditions leave a part, whatever the iterations of other loops: the first iteration that is
    left, and the end. From `not y < 18 * tap - 18` and rows y up to 31 follows that taps end at 3."""
    spans: dict[UOp, tuple[int, int]] = {}
    for form in (form for part in conditions for form in _forms_at_most_zero(part)):
        least = form.bounds[0]
        for loop, factor in form.terms.items():
            if loop.op is not Ops.RANGE or not loop.src[0].is_const or _depends_twice(form, loop):
                continue
            last = size_of(loop) - 1
            first, end = spans.get(loop, (0, last + 1))
            if factor > 0:
                end = min(end, -least // factor + 1)
            else:
                first = max(first, -(-(least - factor * last) // -factor))
            spans[loop] = (first, end)
    return {loop: (first, end) for loop, (first, end) in spans.items() if 0 < end - first < size_of(loop)}


def _depends_twice(form: Affine, loop: UOp) -> bool:
    return any(atom is not loop and loop in atom.ranges for atom in form.terms)


def _forms_at_most_zero(part: UOp) -> list[Affine]:
    """What a condition on integers says, as forms that are 0 or less."""
    is_opposite = part.op is Ops.XOR and part.src[1] is TRUE
    comparison = part.src[0] if is_opposite else part
    if comparison.op not in (Ops.CMPLT, Ops.CMPEQ) or not comparison.src[0].dtype.is_int:
        return []
    left, right = (affine(src) for src in comparison.src)
    if comparison.op is Ops.CMPEQ:
        return [] if is_opposite else [left.plus(right, -1), right.plus(left, -1)]
    return [right.plus(left, -1)] if is_opposite else [left.plus(right, -1).plus(Affine({}, 1))]


def conditions_of(value: UOp) -> list[UOp]:
    """Conditions that must all hold for the value to be other than 0."""
    if value.op is Ops.CAST:
        return conditions_of(value.src[0])
    if is_selection(value):
        return parts_of(value.src[0], Ops.AND)
    if value.op is Ops.LOAD and len(value.src) == 1:
        return mask_parts(value.src[0])
    if value.op is Ops.REDUCE and value.arg is Ops.ADD:
        return [part for part in conditions_of(value.src[0]) if part.ranges.isdisjoint(value.src[1:])]
    return []


def is_selection(node: UOp) -> bool:
    """Whether the node is a value where a condition holds, else 0."""
    return node.op is Ops.WHERE and node.src[2].op is Ops.CONST and node.src[2].arg == 0


def mask_parts(index: UOp) -> list[UOp]:
    return parts_of(index.src[2], Ops.AND) if len(index.src) == 3 else []


def drop_masks(value: UOp) -> UOp:
    """Drops the masks of loads that a selection around them makes superfluous, where the load then is the same in many
    iterations: a weight is loaded once for a row of outputs, some of them outside its window.

    before: where(y - c < 20, x[y - c if y - c < 20] * w[c if y - c < 20], 0)
    after:  where(y - c < 20, x[y - c if y - c < 20] * w[c], 0)"""
    nodes = toposort(value)
    repeated = [node for node in nodes if node.op is Ops.INDEX and is_repeated_by_mask(node)]
    if not repeated:
        return value
    selected = selecting_conditions(nodes)
    exchanges = {
        index: UOp(Ops.INDEX, index.dtype, index.src[:2])
        for index in repeated
        if selected[index].issuperset(mask_parts(index))
    }
    return substitute(value, exchanges)


def is_repeated_by_mask(index: UOp) -> bool:
    """Whether the position is always inside the buffer, and each part of the mask depends on a loop that the position
    does not depend on."""
    buffer, position = index.src[:2]
    parts = mask_parts(index)
    if not parts or position.vmin < 0 or position.vmax >= buffer.arg.size:
        return False
    return not any(part.ranges <= position.ranges for part in parts)


def selecting_conditions(nodes: list[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For each node, sources first, the conditions that must all hold for its value to be used. What a conjunction
    joins with a comparison of indices is used where that holds: `j < 9 and 0 < x[i if j < 9]` needs no mask at x."""
    found: dict[UOp, frozenset[UOp]] = {nodes[-1]: frozenset()}
    loading: set[UOp] = set()
    for node in nodes:
        if node.op is Ops.LOAD or not loading.isdisjoint(node.src):
            loading.add(node)
    for node in reversed(nodes):
        own = found[node]
        if node.op is Ops.AND and node.dtype.is_bool:
            # Of conditions that load, each would be used where the others hold, and they where it does.
            own = own | frozenset(part for part in parts_of(node, Ops.AND) if part not in loading)
        for position, src in enumerate(node.src):
            inside = own | frozenset(conditions_of(node)) if position == 1 and is_selection(node) else own
            found[src] = inside if src not in found else found[src] & inside
    return found
