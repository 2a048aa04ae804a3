"""Which values are stored and which are computed where they are used. In: the graph and the nodes that must be stored.
Out: a `Plan`: the stored nodes, and for each node the elements that each kernel needs of it (its uses).

One walk from the outputs to the inputs. A use carries the index that a kernel asks for, so every question of fusion
is asked of the real indices: is this reduction asked for once per row, is this product computed once per element?
  - a view is never stored;
  - a node that reductions are done for alone is computed inside the one kernel that uses it, when that kernel asks for
    each element at most once (an epilogue), once per row of enough rows (softmax), or in a short sum (a window);
  - any other is stored when doing again what is done for it alone would cost more than `RECOMPUTE_LIMIT`;
  - a kernel that has grown to `MAX_KERNEL_NODES` loads the next value, which is stored by another;
  - what is stored is computed by the first kernel that needs it, which then has one more store, when that kernel asks
    for each element once; else by a kernel of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from tilewright.base.config import options
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Kind, element_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.facts import TRANSPARENT, Facts, gather_facts
from tilewright.schedule.indexing import TRUE
from tilewright.schedule.uses import Plan, Use, is_reducing, loops_over, own_use, push_use, ranges_of, size_of

# Additions per element that are rather done again than stored and loaded. An element that is computed more often than
# RECOMPUTE_COUNTED counts as computed that often, so that a cast alone is never stored.
RECOMPUTE_LIMIT = 40.0
RECOMPUTE_COUNTED = 64
MAX_USES = 8
# A kernel that holds a reduction per row needs rows to run side by side, unless the whole reduction is small.
ENOUGH_ROWS = 32
SMALL_REDUCTION = 1 << 15
# A row is walked twice by a kernel that stores what it reduces the row to, so it should stay in a cache.
LONGEST_ROW = 1 << 14
# How often a sum may be computed, per element, inside a short sum: the windows at the borders reach outside.
MAX_OVERLAP = 3
MAX_STORES = 8
# Elements for each one of padding that a sum may be computed for in the kernel that pads its result.
MIN_ROW_PER_PADDING = 64
# Nodes that a kernel may compute and load: compilers take more than twice as long for twice as large a kernel. What
# would exceed this number is stored, where it is no larger than what it is made from.
MAX_KERNEL_NODES = 512
NODES_OF_REDUCTION = 16  # that one counts as
MIN_REPEATED = 16
# What is not computed element by element into memory of its own.
SEPARATE = frozenset({Ops.ASSIGN, Ops.COPY, Ops.CUSTOM_KERNEL})


def plan_fusion(
    outputs: Sequence[UOp],
    must_store: frozenset[UOp],
    sequence: Sequence[UOp] = (),
    whole: frozenset[UOp] = frozenset(),
) -> Plan:
    """`sequence` is the order that nodes come in where it matters, such as values that are computed again late. `whole`
    are nodes whose memory a copy, an update or a custom kernel takes: it has no use of theirs to come first."""
    order = toposort(*outputs)
    if sequence:
        reached = set(order)
        order = [node for node in toposort(*sequence, *outputs) if node in reached]
    plan = Plan(order)
    asked_for = frozenset(outputs)
    facts = gather_facts(plan.order, must_store)
    decide = _Decisions(plan, facts)
    for node in reversed(plan.order):
        asked = plan.uses.get(node, {})
        uses = list(asked.values())
        is_cut = node not in must_store and decide.is_cut(node, uses)
        if node in must_store or is_cut or decide.should_store(node, uses):
            plan.stored.append(node)
            if element_count(node.shape) == 0 or node.op is Ops.CAT:  # whose parts are stored in its memory
                continue
            # What must be stored for another reason than being asked for is there to stand apart.
            stands_apart = is_cut or (node in must_store and (node not in asked_for or node in whole))
            may_be_guest = options.FUSE and not stands_apart
            own = decide.find_host(node, uses) if may_be_guest else None
            if own is None:
                own = own_use(node)
                decide.note_reduction(node, own)
            else:
                plan.hosts[node] = (own.root, own.element)
            asked = {(own.root, own.element): own}
            plan.uses.setdefault(node, {}).update(asked)
        decide.count(node, asked.values())
        for use in asked.values():
            for src, pushed in push_use(node, use, plan, facts):
                plan.record(src, pushed)
    plan.stored.reverse()
    return plan


class _Decisions:
    """Stored or not. Keeps, per kernel, the rows its reductions run over: they must nest. A contraction wants a kernel
    of its own, whose registers and threads are shared out for it, unless it is what a short sum takes in."""

    def __init__(self, plan: Plan, facts: dict[UOp, Facts]) -> None:
        self.plan = plan
        self.position = {node: position for position, node in enumerate(plan.order)}
        self.facts = facts
        self.rows: dict[UOp, set[frozenset[UOp]]] = {}
        self.contracting: set[UOp] = set()
        self.stores: Counter[UOp] = Counter()
        self.sizes: Counter[UOp] = Counter()

    def count(self, node: UOp, uses: Iterable[Use]) -> None:
        """Keeps in mind how large the kernels are that compute or load the node."""
        if node.op.kind is not Kind.MOVEMENT and node.op is not Ops.CONST:
            for use in uses:
                self.sizes[use.root] += NODES_OF_REDUCTION if node.op is Ops.REDUCE_AXIS else 1

    def is_cut(self, node: UOp, uses: list[Use]) -> bool:
        """Whether the node is stored because a kernel that needs it is large enough."""
        if all(self.sizes[use.root] < MAX_KERNEL_NODES for use in uses):
            return False
        if node.op is Ops.REDUCE_AXIS:
            return True
        return node.op.is_elementwise and element_count(node.shape) < MIN_REPEATED * self.facts[node].distinct

    def should_store(self, node: UOp, uses: list[Use]) -> bool:
        if not uses or node.op.kind in (Kind.LEAF, Kind.MOVEMENT) or node.op in TRANSPARENT:
            return False
        if node.op is Ops.CAST and node.dtype.itemsize > node.src[0].dtype.itemsize:
            return False  # its source is stored in fewer bytes, and converted where it is loaded
        facts = self.facts[node]
        if facts.reduce_work:
            return len(uses) != 1 or not self._fits_reduction(node, uses[0])
        if facts.cost and len(uses) > MAX_USES:
            return True
        times = sum([self.plan.steps_of(use) for use in uses]) / max(element_count(node.shape), 1)
        return facts.cost * (min(times, RECOMPUTE_COUNTED) - 1) > RECOMPUTE_LIMIT

    def find_host(self, node: UOp, uses: list[Use]) -> Use | None:
        """The use of the first kernel that needs a stored node, if that kernel can compute and store it: it asks for
        every element once, in the order they are stored in or once per row. All other users come after that kernel."""
        first = min(uses, key=lambda use: self.position[use.root], default=None)
        if first is None or {node.op, first.root.op} & SEPARATE or not first.is_exact:
            return None
        root, facts = first.root, self.facts[node]
        if sum(use.root is root for use in uses) > 1 or self.stores[root] == MAX_STORES - 1:
            return None
        # An update between the two may overwrite what the node is made from: it could not be done in place.
        if facts.updates != self.facts[root].updates:
            return None
        if not (self._is_in_order(node, first) if first.is_once else self._is_per_row(node, first)):
            return None
        if facts.follows_reduction and not self._fits_reduction(node, first):
            return None
        self.stores[root] += 1
        return first

    def _is_in_order(self, node: UOp, use: Use) -> bool:
        """Whether the kernel asks for the elements in the order in which both it and the node are stored."""
        own = self.plan.position(loops_over(use.root.shape), use.root.shape)
        return self.plan.position(use.element.indices, node.shape) is own

    def _is_per_row(self, node: UOp, use: Use) -> bool:
        """Whether the kernel asks for each element once, in a loop over rows around the loops inside of a row."""
        rows = math.prod(size_of(row) for row in ranges_of(use.element))
        facts = self.facts[node]
        if is_reducing(use) or rows != element_count(node.shape) or element_count(use.root.shape) > LONGEST_ROW * rows:
            return False
        return facts.reduce_work > 0 or (facts.follows_reduction and rows >= ENOUGH_ROWS)

    def _fits_reduction(self, node: UOp, use: Use) -> bool:
        elements = element_count(node.shape)
        if is_reducing(use):
            is_fit = use.in_short and self.plan.steps_of(use) <= MAX_OVERLAP * elements
            return is_fit and self._accept_rows(node, use)
        count = math.prod(size_of(row) for row in ranges_of(use.element))
        # Rows that are padded to a vector's length ask for a little more than there is. A mask that cuts elements away
        # is no padding: the sum is stored.
        is_padded = elements < count <= elements + elements // MIN_ROW_PER_PADDING
        if count > elements if use.element.valid is TRUE else not is_padded:
            return False
        if not use.is_once and count < ENOUGH_ROWS and self.facts[node].reduce_work > SMALL_REDUCTION:
            return False
        if use.root in self.contracting or (self.facts[node].is_contraction and use.root in self.rows):
            return False
        return self._accept_rows(node, use)

    def _accept_rows(self, node: UOp, use: Use) -> bool:
        rows = ranges_of(use.element)
        if not all(rows <= other or other <= rows for other in self.rows.get(use.root, ())):
            return False
        self.note_reduction(node, use)
        return True

    def note_reduction(self, node: UOp, use: Use) -> None:
        """Keeps in mind that a kernel computes the node."""
        if node.op is Ops.REDUCE_AXIS:
            self.rows.setdefault(use.root, set()).add(ranges_of(use.element))
            if self.facts[node].is_contraction:
                self.contracting.add(use.root)
