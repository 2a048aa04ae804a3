"""The graph before fusion. In: the nodes to realise. Out: the same values, with large reductions split, copies that
read whole buffers, joins in parts, and the order among nodes that wait for others."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.base.target import Target
from tilewright.graph import build
from tilewright.graph.build import stored_root
from tilewright.graph.kernels.custom import updated_source
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Kind
from tilewright.graph.uop import UOp
from tilewright.graph.walk import map_nodes, toposort
from tilewright.schedule.preparation.deviations import Deviations
from tilewright.schedule.preparation.joins import is_part, slice_of_source, stored_join, with_parts
from tilewright.schedule.preparation.product_parts import computed_factors
from tilewright.schedule.preparation.reduction import split_reduction
from tilewright.schedule.preparation.repeated import Repeats
from tilewright.schedule.preparation.result_order import order_results


def prepare_graph(outputs: Sequence[UOp], target: Target) -> tuple[list[UOp], tuple[UOp, ...]]:
    """Large reductions split; the source of a copy is a buffer that it can copy whole. A value that waits for another
    (a DETACH of two) is replaced by itself, and the order to be kept among nodes is returned; it is empty if nothing
    waits."""
    order = toposort(*outputs)
    preparation = _Preparation(outputs, order, target)
    replaced = map_nodes(order, preparation.visit)
    return [replaced[node] for node in outputs], tuple(replaced.values()) if preparation.has_waiting else ()


class _Preparation:
    """Replaces one node after the other, sources first."""

    def __init__(self, outputs: Sequence[UOp], order: Sequence[UOp], target: Target) -> None:
        self.target = target
        self.outputs = frozenset(outputs)
        self.deviations = Deviations(order, target)
        self.repeats = Repeats()
        self.computed_factors = computed_factors(order) if target.tensor_cores else set()
        self.stored: set[UOp] = set()  # the same after preparation
        self.by_index: set[UOp] = set()  # reductions by index
        self.part_count = 0
        self.has_waiting = False

    def visit(self, node: UOp, src: tuple[UOp, ...]) -> UOp:
        if node.op is Ops.DETACH and len(src) > 1:
            src = src[:1]
            self.has_waiting = True
        made = node.with_src(src)
        if node in self.computed_factors:
            self.stored.add(made)
        if made.op is Ops.REDUCE_AXIS:
            split = self._split(node, made)
            if split is not None:
                return split
        if self.by_index and made.op is Ops.WHERE:
            joined = joined_to_sums(made)
            if joined is not None:
                note_line(joined, node.line, made)
                return joined
        if made.op is Ops.CONTIGUOUS and stored_root(made.src[0]) in self.by_index:
            return made.src[0]  # it has its own kernels, or needs none
        if made.op is Ops.CONTIGUOUS or node in self.outputs:
            made = stored_join(made.src[0] if made.op is Ops.CONTIGUOUS else made, self.target) or made
        return self._stored(node, made)

    def _split(self, node: UOp, made: UOp) -> UOp | None:
        indexed = indexed_reduction(made, self.target)
        split = indexed or self.deviations.split(node, made)
        split = split or split_once(made, self.repeats.reduced_once(made), self.target, self.stored)
        if split is not None:
            note_line(split, node.line, made.src[0])
            if indexed is not None:
                self.by_index.add(stored_root(indexed))
        return split

    def _stored(self, node: UOp, made: UOp) -> UOp:
        """A node whose operands are memory: with what it reads stored, or read in place."""
        if made.op is Ops.COPY and not is_stored_view(made.src[0]):
            whole = UOp(Ops.CONTIGUOUS, made.dtype, made.src)
            whole.line = whole.line or node.line
            return made.replace(src=(whole,))
        if made.op is Ops.CAT:
            made = with_parts(made, self.part_count)
            self.part_count += len(made.src)
        elif made.op is Ops.SHRINK:
            made = slice_of_source(made) or made
        elif made.op is Ops.CUSTOM_KERNEL:
            made = made.replace(src=tuple(stored_whole(source) for source in made.src))
        elif made.op is Ops.ASSIGN and is_written_in_place(made):
            made = made.src[2]
        return made


def split_once(node: UOp, once: UOp | None, target: Target, stored: Collection[UOp]) -> UOp | None:
    """A large reduction split, where `once` is the same of its distinct results alone; None where nothing changes."""
    reduction = once or node
    split = order_results(reduction, target) or split_reduction(reduction, target, stored) or once
    return None if split is None else build.expand(split, node.shape)


def indexed_reduction(node: UOp, target: Target) -> UOp | None:
    """A reduction by index in the way of `sums_by_index/segments.py`, which only devices with warps use and import."""
    if target.warp_size == 1:
        return None
    from tilewright.schedule.sums_by_index.segments import reduce_by_index

    return reduce_by_index(node, target)


def joined_to_sums(node: UOp) -> UOp | None:
    """A node over sums by index as a part of the kernel that makes them."""
    from tilewright.schedule.sums_by_index.index_results import added_to_own

    made = added_to_own(node)
    if made is None:
        return None
    kernel = storage_node(made)
    stored = kernel.replace(src=tuple(map(stored_whole, kernel.src)))
    return UOp(Ops.RESHAPE, made.dtype, (stored,), made.shape)


def note_line(node: UOp, line: tuple[str, int] | None, source: UOp) -> None:
    """Gives the line of a node to all nodes that replace it, down to its source."""
    for part in toposort(node, stop=lambda found: found is source):
        if part.line is None and part is not source:
            part.line = line


def is_written_in_place(assign: UOp) -> bool:
    """Whether the memory is written as a whole by a custom kernel, which stores to it directly."""
    base, view, value = assign.src
    kernel = storage_node(value)
    if kernel.op is not Ops.CUSTOM_KERNEL or view is not base:
        return False
    source = updated_source(kernel)
    return source is not None and storage_node(source) is storage_node(base)


def storage_node(node: UOp) -> UOp:
    """The node whose memory holds the value, below wrappers that move no elements."""
    inner = node
    while inner.op in (Ops.CONTIGUOUS, Ops.DETACH, Ops.RESHAPE) and not is_part(inner):
        inner = inner.src[0]
    if inner.op.kind is Kind.MOVEMENT or inner.op in (Ops.CONST, Ops.SIZE, Ops.IOTA):
        while node.op in (Ops.DETACH, Ops.RESHAPE) and node.src[0].op in (Ops.CONTIGUOUS, Ops.DETACH, Ops.RESHAPE):
            node = node.src[0]
        return node
    return inner


def is_stored_view(node: UOp) -> bool:
    return storage_node(node).op.kind is not Kind.MOVEMENT


def stored_whole(node: UOp) -> UOp:
    """The node in row-major memory without a view around it, as a custom kernel takes it."""
    is_constant = storage_node(node).op in (Ops.CONST, Ops.SIZE, Ops.IOTA)
    return node if is_stored_view(node) and not is_constant else UOp(Ops.CONTIGUOUS, node.dtype, (node,))
