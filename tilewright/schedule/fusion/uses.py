"""What kernels read of each node. In: a use of a node, which is the element that a kernel reads in an iteration. Out:
the uses of its sources; a `Plan` keeps the loops and holes that were made for them. Views vanish here: they only change
the index."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tilewright.base.dtype import dtypes
from tilewright.base.records import NamedTuple, field, mutable_record
from tilewright.graph.build import counting_axis
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.simplify import simplify
from tilewright.graph.simplify.logic import parts_of
from tilewright.graph.spec import Kind, Shape, max_count
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import size_of, toposort
from tilewright.schedule.fusion.facts import PERMUTING, SHORT_REDUCTION, TRANSPARENT, Facts, without_views
from tilewright.schedule.fusion.indexing import (
    TRUE,
    ZERO,
    Element,
    both,
    flatten_index,
    push_movement,
    touched_span,
    within,
)
from tilewright.schedule.fusion.masks import loop_spans

# The fewest terms of a sum for which its results are stored before another reduction reads them that leaves it no
# register tile, as strided windows do, whose loops go over phases.
MIN_TILED_TERMS = 12
# The level of the outermost reductions of a kernel; those inside have lower levels. Counted from the kernel's root, so
# that levels do not depend on how many reductions lie below the kernel.
TOP_LEVEL = 1 << 20
# The most outputs of a sum by index, in vectors along the indexed axis, for which its kernel compares: with more it is
# a loop over the terms. Adding a term to one output takes as long as comparing its index with two vectors of positions.
MAX_COMPARED_VECTORS = 2


class Use(NamedTuple):
    """A kernel reads one element of a node per iteration of its loops."""

    root: UOp
    element: Element
    loops: tuple[UOp, ...]  # the loops it runs in, outermost first
    is_once: bool  # no element is read in two iterations
    is_exact: bool  # every element is read
    in_short: bool  # the reductions around it are short, and only views lie between


@mutable_record
class Plan:
    """What `plan_fusion` decides."""

    order: list[UOp]
    stored: list[UOp] = field(default_factory=list)
    hosts: dict[UOp, tuple[UOp, Element]] = field(
        default_factory=dict
    )  # nodes that the kernel of another node stores, and at which element
    uses: dict[UOp, dict[tuple[UOp, Element], Use]] = field(default_factory=dict)
    reduce_loops: dict[tuple[UOp, UOp, Element], tuple[UOp, ...]] = field(default_factory=dict)
    reduce_sizes: dict[tuple[object, ...], list[tuple[int, ...]]] = field(default_factory=dict)
    levels: dict[UOp, set[int]] = field(default_factory=dict)  # the levels of the reductions of each kernel
    holes: dict[tuple[UOp, UOp, Element], tuple[tuple[UOp, ...], tuple[UOp, ...]]] = field(default_factory=dict)
    # The most outputs of a sum by index that compares, in bytes: one of more is a loop over its terms; 0 is never.
    compared_bytes: int = 0
    has_groups: bool = False  # whether kernels have work-groups
    # Indices that a loop over terms computes one by one, where a kernel of their own would compute vectors.
    walked: set[UOp] = field(default_factory=set)
    # Comparisons that look for the last term of an output: their kernel is always a loop over the terms.
    last_writers: set[UOp] = field(default_factory=set)

    # Memoised by index: programs repeat equal steps.
    _behind: dict[tuple[object, ...], Element] = field(default_factory=dict)
    _positions: dict[tuple[tuple[UOp, ...], Shape], UOp] = field(default_factory=dict)
    _parts: dict[tuple[UOp, int, int], tuple[int, int, UOp]] = field(default_factory=dict)
    _counts: dict[tuple[Element, tuple[UOp, ...]], int] = field(default_factory=dict)

    def behind(self, view: UOp, element: Element) -> Element:
        """The element of a view's source. It depends on the view's op and argument alone, not on its source."""
        key = (view.op, view.arg, view.shape, view.src[0].shape, element)
        found = self._behind.get(key)
        if found is None:
            found = self._behind[key] = push_movement(view, element)
        return found

    def position(self, indices: tuple[UOp, ...], shape: Shape) -> UOp:
        """The row-major position of an element."""
        found = self._positions.get((indices, shape))
        if found is None:
            found = self._positions[indices, shape] = flatten_index(indices, shape)
        return found

    def part(self, position: UOp, size: int, step: int) -> tuple[int, int, UOp]:
        """The range of memory that a position may lie in (`touched_span`): its first element, its number of elements,
        and the position relative to the first."""
        key = (position, size, step)
        found = self._parts.get(key)
        if found is None:
            start, stop = touched_span(position, size, step)
            moved = simplify(position - start) if start else position
            found = self._parts[key] = (start, stop - start, moved)
        return found

    def steps_of(self, use: Use) -> int:
        """The number of times that an element is computed: once per iteration of the loops down to the innermost one
        that it depends on."""
        key = (use.element, use.loops)
        found = self._counts.get(key)
        if found is None:
            found = self._counts[key] = _count_steps(*key)
        return found

    def record(self, node: UOp, use: Use) -> None:
        uses = self.uses.get(node)
        if uses is None:
            uses = self.uses[node] = {}
        key = (use.root, use.element)
        known = uses.setdefault(key, use)
        if known is not use and known[3:] != use[3:]:
            is_once = known.is_once and use.is_once
            is_exact = known.is_exact and use.is_exact
            uses[key] = Use(*known[:3], is_once, is_exact, known.in_short and use.in_short)


def loops_over(shape: Shape) -> tuple[UOp, ...]:
    """A loop per axis; an axis of size 1 needs none."""
    return tuple(
        ZERO if size == 1 else UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((0, axis), AxisType.LOOP))
        for axis, size in enumerate(shape)
    )


def own_use(node: UOp) -> Use:
    """The use of a stored node by its own kernel: every element, in the order they are stored."""
    index = loops_over(node.src[1].shape if node.op is Ops.ASSIGN else node.shape)
    return Use(node, Element(index, TRUE), tuple(idx for idx in index if idx is not ZERO), True, True, False)


def ranges_of(element: Element) -> frozenset[UOp]:
    return element.valid.ranges.union(*(idx.ranges for idx in element.indices))


def is_reducing(use: Use) -> bool:
    """Whether the element is recomputed in each iteration of a reduction."""
    return any(loop.arg.kind is AxisType.REDUCE for loop in ranges_of(use.element))


def reads_residues(use: Use) -> bool:
    """Whether only every n-th iteration reads an element, as in the gradient of strided windows."""
    return has_residues(use.element)


def has_residues(element: Element) -> bool:
    return any(part.op is Ops.CMPLT and part.src[0].op is Ops.MOD for part in parts_of(element.valid, Ops.AND))


def is_interleaved(use: Use) -> bool:
    """Whether a loop of the kernel is divided to find an element, as in a row made of several rows by turns."""
    return any(part.op in (Ops.IDIV, Ops.MOD) for part in toposort(*use.element.indices))


def _count_steps(element: Element, loops: tuple[UOp, ...]) -> int:
    """The iterations of a sum, without the first and last ones whose terms a mask makes 0."""
    own = ranges_of(element)
    spans = loop_spans(parts_of(element.valid, Ops.AND))
    count = pending = 1
    for loop in loops:
        first, end = spans.get(loop, (0, size_of(loop)))
        pending *= end - first
        if loop in own:
            count, pending = count * pending, 1
    return count


# ---------------------------------------------------------------- from a node to its sources


def push_use(node: UOp, use: Use, plan: Plan, facts: dict[UOp, Facts]) -> None:
    """Adds the uses of a node's sources that follow from a use of the node."""
    op = node.op
    if op.is_elementwise:
        _push_elementwise(node, use, plan)
    elif op.kind is Kind.MOVEMENT:
        if max_count(node.src[0].shape):
            plan.record(node.src[0], _push_view(node, use, plan))
    elif op in TRANSPARENT:
        plan.record(node.src[0], use)
    elif op is Ops.REDUCE_AXIS:
        if max_count(node.src[0].shape):
            plan.last_writers.update(last_writers(node))
            level = TOP_LEVEL - facts[use.root].level + facts[node].level
            plan.record(node.src[0], _push_reduce(node, use, plan, level))
    elif op is Ops.GATHER:
        for src, pushed in _push_gather(node, use, plan):
            plan.record(src, pushed)
    elif op is Ops.ASSIGN:
        plan.record(node.src[2], use)


def _push_elementwise(node: UOp, use: Use, plan: Plan) -> None:
    """A 0-d source is read at every element."""
    if use.in_short and node.op is not Ops.CAST:
        use = use._replace(in_short=False)
    if node in plan.walked and use.root is not node:  # what it is computed from is computed one by one too
        plan.walked.update(map(without_views, node.src))
    most = 0 if node in plan.last_writers else plan.compared_bytes
    named = walked_index(node, use, most) if plan.compared_bytes and node.op is Ops.CMPEQ else None
    for src in node.src:
        if named is not None and src is named[0]:
            plan.walked.add(without_views(src))
            plan.record(src, use._replace(loops=named[1]))
        elif src.shape == node.shape:
            plan.record(src, use)
        else:
            plan.record(src, use._replace(element=Element((), use.element.valid), is_once=False))


def last_writers(node: UOp) -> Iterable[UOp]:
    """The conditions of a maximum over the numbers of its terms, which finds the last term that holds."""
    chosen = node.src[0]
    is_counted = node.arg[0] is Ops.MAX and chosen.op is Ops.WHERE and counting_axis(chosen.src[1]) is not None
    return parts_of(chosen.src[0], Ops.AND) if is_counted else ()


def walked_index(node: UOp, use: Use, most: int) -> tuple[UOp, tuple[UOp, ...]] | None:
    """For a comparison, inside a sum, of an index with an output loop: the index, and the loops that compute it once
    the transform SCATTER has made the kernel a loop over the terms. None where the outputs are at most `most` bytes:
    such a kernel compares."""
    if not is_reducing(use):
        return None
    for index, counted in (node.src, node.src[::-1]):
        axis = counting_axis(counted) if counted.shape == node.shape == index.shape else None
        loop = None if axis is None else use.element.indices[axis]
        if loop is not None and loop.op is Ops.RANGE and loop.arg.kind is AxisType.LOOP:
            is_walked = size_of(loop) * use.root.dtype.itemsize > most
            return (index, tuple(each for each in use.loops if each is not loop)) if is_walked else None
    return None


def _push_view(node: UOp, use: Use, plan: Plan) -> Use:
    is_permuting = node.op in PERMUTING
    is_once = use.is_once and (is_permuting or node.op is Ops.SHRINK)
    is_exact = use.is_exact and (is_permuting or node.op is Ops.EXPAND)
    return Use(use.root, plan.behind(node, use.element), use.loops, is_once, is_exact, use.in_short)


def _push_reduce(node: UOp, use: Use, plan: Plan, level: int) -> Use:
    """New loops for the reduced axes. Reductions of one level over the same rows and sizes share their loops, so that
    a sum and a sum of squares are one pass."""
    source = node.src[0]
    axes = [axis for axis in sorted(node.arg[1]) if source.shape[axis] != 1]
    rows = ranges_of(use.element)
    outer = tuple(loop for loop in use.loops if loop in rows)
    row_ids = tuple(part for loop in outer for part in loop.arg.id)
    # Reductions that differ in one size share no loop: a loop is nested in one other loop, not in two.
    sizes = tuple(source.shape[axis] for axis in axes)
    plan.levels.setdefault(use.root, set()).add(level)
    alike = plan.reduce_sizes.setdefault((use.root, level, row_ids), [])
    if sizes not in alike:
        alike.append(sizes)
    variant = () if sizes == alike[0] else (-alike.index(sizes),)
    loops = tuple(
        UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((level, n, *row_ids, *variant), AxisType.REDUCE))
        for n, size in enumerate(sizes)
    )
    index = [ZERO if axis in node.arg[1] else idx for axis, idx in enumerate(use.element.indices)]
    for axis, loop in zip(axes, loops, strict=True):
        index[axis] = loop
    plan.reduce_loops[use.root, node, use.element] = loops
    is_short = max_count(sizes) <= SHORT_REDUCTION and (use.in_short or not is_reducing(use))
    in_short = is_short and leaves_tiles(node, plan.has_groups)
    return Use(use.root, Element(tuple(index), use.element.valid), (*outer, *loops), False, use.is_exact, in_short)


def leaves_tiles(reduction: UOp, has_groups: bool) -> bool:
    """Whether a kernel may compute sums inside a reduction: where the two are one sum, or the inner ones are short. A
    maximum of sums leaves them no register tile, and a sum of rounded ones no tensor core; on a CPU, it is still
    faster than storing them."""
    source, is_rounded = reduction.src[0], False
    while source.op is Ops.CAST or source.op.kind is Kind.MOVEMENT or source.op in TRANSPARENT:
        is_rounded |= has_groups and source.op is Ops.CAST and source.dtype.itemsize < source.src[0].dtype.itemsize
        source = source.src[0]
    is_one_sum = reduction.arg[0] is Ops.ADD and not is_rounded
    return is_one_sum or _terms_of(source) < MIN_TILED_TERMS


def _terms_of(node: UOp) -> int:
    """How many products each element of a value is the sum of; sums over windows of sums count as one sum."""
    terms = 1
    while node.op is Ops.REDUCE_AXIS or node.op.kind is Kind.MOVEMENT:
        if node.op is Ops.REDUCE_AXIS:
            terms *= max_count(node.src[0].shape) // max(max_count(node.shape), 1)
        node = node.src[0]
    return terms


def _push_gather(node: UOp, use: Use, plan: Plan) -> Iterator[tuple[UOp, Use]]:
    """The index tensors are read at this element. The source is read at holes, variables that stand for their values
    until the kernel is written: narrow ones in the index, where the mask bounds the value, and wide ones in the mask
    itself."""
    source, *indices = node.src
    for idx in dict.fromkeys(indices):
        yield idx, Use(use.root, use.element, use.loops, False, False, False)
    number = len(plan.holes)
    narrow = tuple(
        ZERO
        if size == 1
        else UOp(Ops.VARIABLE, dtypes.index, use.element.indices, (f"gather{number}_{axis}", 0, max_count((size,)) - 1))
        for axis, size in enumerate(source.shape)
    )
    wide = tuple(
        UOp(Ops.VARIABLE, dtypes.index, use.element.indices, (f"value{number}_{axis}", *idx.bounds))
        for axis, idx in enumerate(indices)
    )
    plan.holes[use.root, node, use.element] = (narrow, wide)
    if max_count(source.shape) == 0:
        return
    valid = both(use.element.valid, gather_valid(source.shape, wide))
    yield source, Use(use.root, Element(narrow, valid), use.loops, False, False, False)


def gather_valid(shape: Shape, values: Iterable[UOp]) -> UOp:
    """The condition that all values are in range, without the comparisons that their bounds prove. A computed index
    keeps its bounds where it is stored; a load has only those of its dtype."""
    condition = TRUE
    for value, size in zip(values, shape, strict=True):
        condition = both(condition, within(value, 0, size))
    return condition
