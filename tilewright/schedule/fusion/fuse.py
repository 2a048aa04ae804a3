"""Which values are stored and which are computed where they are used. In: the graph and the nodes that must be stored.
Out: a `Plan`: the stored nodes, and for each node the elements that each kernel needs of it (its uses).

One walk from the outputs to the inputs. A use carries the index that a kernel asks for, so every question of fusion
is asked of the real indices: is this reduction asked for once per row, is this product computed once per element?
  - a view is never stored;
  - a node below which there are reductions that only it needs is computed inside the one kernel that uses it, when that
    kernel reads each element at most once (an epilogue), once per row of enough rows (softmax), or in a short sum (a
    window);
  - any other is stored when recomputing what only it needs would cost more than storing and loading it;
  - a kernel that has grown to `MAX_KERNEL_NODES` loads the next value, which is stored by another;
  - what is stored is computed by the first kernel that needs it, which then has one more store, when that kernel asks
    for each element once; else by a kernel of its own."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from tilewright.base import events
from tilewright.base.config import options
from tilewright.base.costs import CACHE_ADDITIONS, FACTOR_ADDITIONS, LOAD_ADDITIONS, MEMORY_ADDITIONS
from tilewright.base.target import Target
from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Kind, max_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of, toposort
from tilewright.schedule.fusion.facts import CONTRACTION_REUSE, TRANSPARENT, Facts, gather_facts, inputs_of, is_repeated
from tilewright.schedule.fusion.indexing import TRUE
from tilewright.schedule.fusion.uses import (
    MAX_COMPARED_VECTORS,
    MIN_TILED_TERMS,
    Plan,
    Use,
    is_interleaved,
    is_reducing,
    loops_over,
    own_use,
    push_use,
    ranges_of,
    reads_residues,
)
from tilewright.schedule.preparation.contiguous import contiguous_axis
from tilewright.schedule.preparation.reduction import CACHED_ROW

# The most recomputations of an element that count, so that a cast alone is never stored.
RECOMPUTE_COUNTED = 64
MAX_USES = 8
# The most additions that an index takes to be computed by the loop that walks over it. A wrapped one takes 4 to 8.
WALKED_ADDITIONS = 10.0
# A kernel with a reduction per row is parallel over rows, so it needs many of them, unless the reduction is small.
ENOUGH_ROWS = 32
SMALL_REDUCTION = 1 << 15
FEW_ROWS = 8  # the fewest, of rows that the cache of a core holds between the reduction and what follows
# A kernel that stores what it reduces a row to reads the row twice, so the row should fit a cache.
LONGEST_ROW = 1 << 14
# On a device with work-groups, a group reduces a row, or adjacent threads reduce columns. The longest row that a group
# reduces in less time than a second kernel takes to launch and to read it again; and the threads of a group that
# reduces columns.
MAX_GROUP_WORK = 1 << 15
COLUMN_THREADS = 128
# The elements from which a kernel that reduces along memory and stores across it takes longer than two: with
# work-groups, and on a CPU.
MIN_CROSSING, MIN_CROSSING_ON_CPU = 1 << 18, 1 << 12
# How often a sum may be recomputed per element inside a short sum, whose windows overlap.
MAX_OVERLAP = 3
MAX_STORES = 8
# A sum is fused with the kernel that pads its result where a row has at least this many elements per element of
# padding.
MIN_ROW_PER_PADDING = 64
# The fewest adjacent results that are computed as a vector of sums.
MIN_ADJACENT = 8
# The most divisions behind a contraction on a card, whose threads have up to 128 results each: a kernel with 128
# divisions compiles in 3 s, one with 256 in 14 s, and one with 384 in 91 s.
MAX_DIVISIONS = 1
# The most nodes of a kernel: compile time grows faster than the number of nodes. A value that would exceed this is
# stored, where it is no larger than what it is computed from.
MAX_KERNEL_NODES = 512
NODES_OF_REDUCTION = 16  # the nodes that a reduction counts as
# Ops that are not elementwise store to memory of their own.
SEPARATE = frozenset({Ops.ASSIGN, Ops.COPY, Ops.CUSTOM_KERNEL})


def plan_fusion(
    outputs: Sequence[UOp],
    must_store: frozenset[UOp],
    sequence: Sequence[UOp] = (),
    whole: frozenset[UOp] = frozenset(),
    target: Target | None = None,
) -> Plan:
    """`sequence` gives the order of nodes where it matters, such as for values that are recomputed late. `whole` are
    nodes whose memory a copy, an update or a custom kernel takes as a whole: no kernel that reads them comes first.
    Without a target no facts of one are used."""
    group_cores = target.cores if target is not None and target.has_local else 0
    order = toposort(*outputs)
    if sequence:
        reached = set(order)
        order = [node for node in toposort(*sequence, *outputs) if node in reached]
    compared_bytes = 0 if target is None or target.has_local else MAX_COMPARED_VECTORS * target.vector_bytes
    plan = Plan(order, compared_bytes=compared_bytes, has_groups=group_cores > 0)
    asked_for = frozenset(outputs)
    facts = gather_facts(plan.order, must_store)
    decide = _Decisions(plan, facts, group_cores)
    for node in reversed(plan.order):
        asked = plan.uses.get(node, {})
        uses = list(asked.values())
        is_cut = node not in must_store and decide.is_cut(node, uses)
        is_stored = node in must_store or is_cut or decide.should_store(node, uses)
        if "decision" in events.listeners:
            announce_storage(node, is_stored, must_store, asked_for, decide.reason)
        if is_stored:
            plan.stored.append(node)
            if max_count(node.shape) == 0 or node.op is Ops.CAT:  # whose parts are stored in its memory
                continue
            # A node that is stored for another reason than its uses gets its own kernel.
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
            push_use(node, use, plan, facts)
    plan.stored.reverse()
    return plan


def announce_storage(
    node: UOp, is_stored: bool, must_store: frozenset[UOp], asked_for: frozenset[UOp], reason: str
) -> None:
    """Reports to listeners whether a value is stored, and why; views and constants never are."""
    if node.op.kind in (Kind.LEAF, Kind.MOVEMENT) or node.op in TRANSPARENT:
        return
    if node in asked_for:
        reason = "it is an output"
    elif node in must_store:
        reason = "it is made contiguous, updated, copied, or read across rows by a product"
    choice = f"{'store' if is_stored else 'fuse'} {node.op.name} {node.dtype.name}{list(node.shape)}"
    events.emit("decision", stage="schedule", choice=choice, reason=reason, node=node)


class _Decisions:
    """Decides for each node whether it is stored. Records for each kernel the rows that its reductions run over, which
    must nest. A contraction gets its own kernel, tiled for it, unless a short sum reads it."""

    def __init__(self, plan: Plan, facts: dict[UOp, Facts], group_cores: int) -> None:
        self.plan = plan
        self.group_cores = group_cores
        self.position = {node: position for position, node in enumerate(plan.order)}
        self.facts = facts
        self.reason = ""  # of the last decision, for listeners
        self.rows: dict[UOp, set[frozenset[UOp]]] = {}
        self.contracting: set[UOp] = set()
        self.stores: Counter[UOp] = Counter()
        self.sizes: dict[UOp, int] = {}
        self.divisions: Counter[UOp] = Counter()
        self.large: set[UOp] = set()  # the kernels that take no more nodes

    def count(self, node: UOp, uses: Iterable[Use]) -> None:
        """Adds the node to the size of the kernels that compute or load it."""
        if node.op.kind is Kind.MOVEMENT or node.op is Ops.CONST:
            return
        added = NODES_OF_REDUCTION if node.op is Ops.REDUCE_AXIS else 1
        sizes = self.sizes
        if node.op is Ops.FDIV:  # of each element, not of each row
            roots = {use.root for use in uses}
            self.divisions.update(root for root in roots if max_count(node.shape) >= max_count(root.shape))
        for use in uses:
            size = sizes[use.root] = sizes.get(use.root, 0) + added
            if size >= MAX_KERNEL_NODES:
                self.large.add(use.root)

    def is_cut(self, node: UOp, uses: list[Use]) -> bool:
        """Whether the node is stored because a kernel that needs it has reached its limit of nodes."""
        if not self.large or not any(use.root in self.large for use in uses):
            return False
        self.reason = "the kernel that needs it is as large as kernels become"
        if node.op is Ops.REDUCE_AXIS:
            return True
        return node.op.is_elementwise and not is_repeated(node, self.facts)

    def should_store(self, node: UOp, uses: list[Use]) -> bool:
        if not uses or node.op.kind in (Kind.LEAF, Kind.MOVEMENT) or node.op in TRANSPARENT:
            return False
        self.reason = "it is computed where it is used, which costs less than a store and its loads"
        if node.op is Ops.CAST and node.dtype.itemsize > node.src[0].dtype.itemsize:
            return False  # its source takes fewer bytes, and is converted where it is loaded
        facts = self.facts[node]
        if facts.reduce_work:
            self.reason = "a sum that several kernels, or several places of one, need"
            return len(uses) != 1 or not self._fits_reduction(node, uses[0])
        if not facts.cost:
            return False
        if node in self.plan.walked and facts.cost > WALKED_ADDITIONS:
            self.reason = "a loop over terms would compute this index one by one, and not in vectors"
            return True
        # A mask of places, or what else is made of far fewer elements: a kernel that loads it instead gains nothing.
        is_no_load = facts.cost <= CACHE_ADDITIONS and is_repeated(node, self.facts)
        if len(uses) > MAX_USES and not is_no_load:
            self.reason = "it has more uses than it may be computed for again"
            return True
        if len(uses) == 1 and uses[0].is_once:
            return False
        steps, elements = [self.plan.steps_of(use) for use in uses], max(max_count(node.shape), 1)
        times = (max(steps) if is_no_load else sum(steps)) / elements
        is_read_often = facts.is_factor and max(steps) > elements
        # Cores that multiply vectors read the factors of a contraction from memory.
        limit = FACTOR_ADDITIONS if is_read_often and not self.group_cores else MEMORY_ADDITIONS
        arithmetic = facts.cost * (min(times, RECOMPUTE_COUNTED) - 1)
        is_expensive = arithmetic > limit or arithmetic + LOAD_ADDITIONS * self._further_loads(node, uses) > limit
        if is_expensive:
            self.reason = "computing it at each use costs more than a store and its loads"
        return is_expensive

    def _further_loads(self, node: UOp, uses: list[Use]) -> int:
        """How many loads per element storing the node saves: in each kernel that uses it, the loads of the node's
        inputs that the kernel does not make anyway, less the load of the node. One kernel computes the node and loads
        the inputs in any case: a kernel that reads elements several times, if there is one, else the one that would
        save most."""
        once = [use for use in uses if use.is_once]
        if not once or len(uses) < 2:
            return 0
        inputs, known = inputs_of(node, self.facts), self.plan.uses
        loads = [sum((use.root, use.element) not in known.get(source, ()) for source in inputs) - 1 for use in once]
        return sum(loads) if len(once) < len(uses) else sum(loads) - max(loads)

    def find_host(self, node: UOp, uses: list[Use]) -> Use | None:
        """The use of the first kernel that needs a stored node, where that kernel can compute and store it as well: it
        reads every element once, in the order they are stored in or once per row. All other users come after that
        kernel."""
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
        """Whether the kernel reads the elements in the order in which both it and the node are stored."""
        own = self.plan.position(loops_over(use.root.shape), use.root.shape)
        return self.plan.position(use.element.indices, node.shape) is own

    def _is_per_row(self, node: UOp, use: Use) -> bool:
        """Whether the kernel reads each element once, in a loop over rows around the loops of a row."""
        rows = math.prod(size_of(row) for row in ranges_of(use.element))
        facts = self.facts[node]
        if is_reducing(use) or rows != max_count(node.shape) or max_count(use.root.shape) > LONGEST_ROW * rows:
            return False
        return facts.reduce_work > 0 or (facts.follows_reduction and rows >= ENOUGH_ROWS)

    def _fits_reduction(self, node: UOp, use: Use) -> bool:
        elements = max_count(node.shape)
        self.reason = "the sum is taken inside the kernel that uses it, which asks for each element once or row by row"
        if is_reducing(use):
            if not use.in_short or self.plan.steps_of(use) > MAX_OVERLAP * elements:
                return self._refuse("inside another sum it would be taken for each of that sum's terms")
            if max_count(node.src[0].shape) >= MIN_TILED_TERMS * elements and reads_residues(use):
                return self._refuse("windows at a stride leave a sum inside their sum no register tile")
            return self._accept_rows(node, use)
        count = math.prod(size_of(row) for row in ranges_of(use.element))
        # Rows that are padded to a whole number of vectors read a little past their end. A mask that removes elements
        # is not padding, and one of interleaved elements is not at the end of a row: the sum is stored.
        is_padded = elements < count <= elements + elements // MIN_ROW_PER_PADDING and not is_interleaved(use)
        if count > elements if use.element.valid is TRUE else not is_padded:
            return self._refuse("the kernel that uses it asks for its elements more than once")
        if not use.is_once and not self._has_enough_rows(node, use, count):
            return self._refuse("too few rows to run side by side for so long a sum")
        if not use.is_once and self.facts[node].is_tiled and self.facts[node].reduce_work > SMALL_REDUCTION:
            return self._refuse("loops over copies of its result would leave the sum no register tile")
        if not self.group_cores and self._leaves_no_vectors(node, use):
            return self._refuse("adjacent results are of other sums: a vector of sums would be stored apart")
        if use.root in self.contracting or (self.facts[node].holds_contraction and use.root in self.rows):
            return self._refuse(
                "a contraction has a kernel of its own, whose registers and threads are shared out for it"
            )
        if self.group_cores and self.facts[node].is_contraction and self.divisions[use.root] > MAX_DIVISIONS:
            return self._refuse("NVRTC takes long where each accumulator has more than one division behind it")
        return self._accept_rows(node, use)

    def _leaves_no_vectors(self, node: UOp, use: Use) -> bool:
        """Whether few adjacent results of the kernel are adjacent elements, as those of an image are whose pixels were
        channels: its last loop is short, or divided to find an element, and the element's stride is not 1."""
        facts = self.facts[node]
        if facts.level == 1 and facts.reduce_work < CONTRACTION_REUSE * max_count(node.shape):
            return False
        last = next((loop for loop in reversed(loops_over(use.root.shape)) if loop.op is Ops.RANGE), None)
        for atom, step in affine(self.plan.position(use.element.indices, node.shape)).terms.items():
            is_part = atom.op is Ops.MOD and atom.src[0] is last
            if (is_part or atom is last) and step != 1:
                size = atom.src[1 if is_part else 0]
                if size.is_const and size.arg < MIN_ADJACENT:
                    return True
        return False

    def _has_enough_rows(self, node: UOp, use: Use, rows: int) -> bool:
        """Whether a kernel has enough rows to keep all cores busy. A row of symbolic size is never divided among
        cores."""
        if is_symbolic(use.root.shape):
            return True
        is_along = self._sums_along_memory(node)
        if is_along and max_count(use.root.shape) >= (MIN_CROSSING if self.group_cores else MIN_CROSSING_ON_CPU):
            own = ranges_of(use.element)
            loops = [each for each in loops_over(use.root.shape) if each.op is Ops.RANGE]
            if loops and loops[-1] in own and not own.issuperset(loops):
                return False  # adjacent elements are of different rows: each would be stored to a line of its own
        if not self.group_cores:
            if rows >= ENOUGH_ROWS or self.facts[node].reduce_work <= SMALL_REDUCTION:
                return True
            return rows >= FEW_ROWS and self.facts[node].reduce_work <= CACHED_ROW * rows and is_along
        root = use.root
        work = max(max_count(root.shape), self.facts[root].reduce_work)
        groups = rows if is_along else -(-rows // COLUMN_THREADS)
        return 2 * groups >= self.group_cores or work <= groups * MAX_GROUP_WORK

    def _sums_along_memory(self, node: UOp) -> bool:
        """Whether a value is made of a sum that threads share, since its terms are adjacent in memory."""
        found: UOp | None = node
        while found is not None and found.op is not Ops.REDUCE_AXIS:
            found = next((source for source in found.src if self.facts[source].follows_reduction), None)
        return found is not None and contiguous_axis(found.src[0]) in found.arg[1]

    def _accept_rows(self, node: UOp, use: Use) -> bool:
        rows = ranges_of(use.element)
        if not all(rows <= other or other <= rows for other in self.rows.get(use.root, ())):
            return self._refuse("the loops of two sums in one kernel have to nest")
        self.note_reduction(node, use)
        return True

    def _refuse(self, reason: str) -> bool:
        self.reason = reason
        return False

    def note_reduction(self, node: UOp, use: Use) -> None:
        """Records that a kernel computes the node."""
        if node.op is Ops.REDUCE_AXIS:
            self.rows.setdefault(use.root, set()).add(ranges_of(use.element))
            if self.facts[node].is_contraction:
                self.contracting.add(use.root)
