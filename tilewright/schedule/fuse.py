"""Which values are stored and which are computed where they are used. In: the graph and the nodes that must be stored.
Out: a `Plan`: the stored nodes, and for each node the elements that each kernel needs of it (its uses).

One walk from the outputs to the inputs. A use carries the index that a kernel asks for, so every question of fusion
is asked of the real indices: is this reduction asked for once per row, is this product computed once per element?
  - a view is never stored;
  - a reduction, with what follows it element by element, is computed inside the kernel that uses it when that kernel
    asks for each of its elements exactly once (an epilogue), or once per row of a kernel with enough rows (softmax);
  - any other value is stored when computing it where it is used would cost more than `RECOMPUTE_LIMIT`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tilewright.base.dtype import dtypes
from tilewright.graph.bounds import dtype_bounds
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.spec import Kind, Op, Shape, element_count
from tilewright.graph.uop import UOp, index_const
from tilewright.graph.walk import consumers, toposort
from tilewright.schedule.indexing import TRUE, ZERO, Place, both, push_movement

# Work per element, in units of one addition. A cast rides along with the load it follows.
OP_COST: dict[Op, float] = {
    Ops.CAST: 0.5,
    Ops.FDIV: 4,
    Ops.SQRT: 4,
    Ops.IDIV: 6,
    Ops.MOD: 6,
    Ops.EXP2: 10,
    Ops.LOG2: 10,
    Ops.SIN: 16,
    Ops.THREEFRY: 80,
    Ops.GATHER: 2,
    Ops.PAD: 1,
}
RECOMPUTE_LIMIT = 40.0
RECOMPUTE_COUNTED = 64
MOST_USES = 8
# A kernel that holds a reduction per row needs rows to run side by side, unless the whole reduction is small.
ENOUGH_ROWS = 32
SMALL_REDUCTION = 1 << 15

_PERMUTING = frozenset({Ops.RESHAPE, Ops.PERMUTE, Ops.FLIP})
_TRANSPARENT = frozenset({Ops.CONTIGUOUS, Ops.DETACH})


@dataclass(slots=True)
class Use:
    """A kernel asks for one element of a node per step of its loops."""

    root: UOp
    place: Place
    loops: tuple[UOp, ...]  # the loops it runs in, outermost first
    is_epilogue: bool  # the kernel's elements and the node's are in one-to-one correspondence
    is_exact: bool  # every element of the node is asked for: no shrink, pad or gather lies between


@dataclass
class Plan:
    """What `plan_fusion` decides."""

    order: list[UOp]
    stored: list[UOp] = field(default_factory=list)
    uses: dict[UOp, dict[tuple[UOp, Place], Use]] = field(default_factory=dict)
    loops: dict[UOp, tuple[UOp, ...]] = field(default_factory=dict)
    reduce_loops: dict[tuple[UOp, UOp, Place], tuple[UOp, ...]] = field(default_factory=dict)
    reduce_sizes: dict[tuple[object, ...], list[tuple[int, ...]]] = field(default_factory=dict)
    holes: dict[tuple[UOp, UOp, Place], tuple[tuple[UOp, ...], tuple[UOp, ...]]] = field(default_factory=dict)


@dataclass(slots=True)
class Facts:
    """What is known of a node before any decision."""

    cost: float  # arithmetic per element since the last stored value
    carries_reduce: bool  # an element follows from one element of a reduction
    reduce_work: int  # elements that this reduction takes in
    level: int  # how many reductions lie one below the other
    will_be_stored: bool = False  # whatever follows does not compute it again


def plan_fusion(outputs: Sequence[UOp], must_store: frozenset[UOp], sequence: Sequence[UOp] = ()) -> Plan:
    """`sequence` is the order that nodes come in where it matters, such as values that are computed again late."""
    order = toposort(*outputs)
    if sequence:
        reached = set(order)
        order = [node for node in toposort(*sequence, *outputs) if node in reached]
    plan = Plan(order)
    facts = gather_facts(plan.order, must_store)
    decide = _Decisions(facts)
    for node in reversed(plan.order):
        asked = plan.uses.get(node, {})
        if node in must_store or decide.should_store(node, list(asked.values())):
            plan.stored.append(node)
            if element_count(node.shape) == 0:
                continue
            asked = {(node, own.place): own for own in (_own_use(node, plan),)}
            plan.uses.setdefault(node, {}).update(asked)
        for use in asked.values():
            for src, pushed in _push(node, use, plan, facts):
                _record(plan.uses.setdefault(src, {}), pushed)
    plan.stored.reverse()
    return plan


def loops_over(shape: Shape) -> tuple[UOp, ...]:
    """A loop per axis; an axis of size 1 needs none."""
    return tuple(
        ZERO if size == 1 else UOp(Ops.RANGE, dtypes.index, (index_const(size),), Axis((0, axis), AxisType.LOOP))
        for axis, size in enumerate(shape)
    )


def _own_use(node: UOp, plan: Plan) -> Use:
    shape = node.src[1].shape if node.op is Ops.ASSIGN else node.shape
    index = loops_over(shape)
    loops = tuple(idx for idx in index if idx is not ZERO)
    plan.loops[node] = loops
    return Use(node, Place(index, TRUE), loops, True, True)


def _record(uses: dict[tuple[UOp, Place], Use], use: Use) -> None:
    known = uses.setdefault((use.root, use.place), use)
    if known is not use:
        known.is_epilogue &= use.is_epilogue
        known.is_exact &= use.is_exact


def gather_facts(order: list[UOp], must_store: frozenset[UOp]) -> dict[UOp, Facts]:
    facts: dict[UOp, Facts] = {}
    users = consumers(order)
    for node in order:
        sources = [facts[src] for src in dict.fromkeys(node.src)]
        level = max((src.level for src in sources), default=0)
        cost = min(sum(src.cost for src in sources), 1e6)
        if node.op is Ops.REDUCE_AXIS:
            work = element_count(node.src[0].shape)
            facts[node] = Facts(0.0, node not in must_store, work, level + 1)
        elif node in must_store:
            facts[node] = Facts(0.0, False, 0, level)
        elif node.op.is_elementwise or node.op in _PERMUTING or node.op is Ops.DETACH:
            own = OP_COST.get(node.op, 1.0) if node.op.is_elementwise else 0.0
            carries = any(src.carries_reduce and not src.will_be_stored for src in sources)
            facts[node] = Facts(cost + own, carries, max((src.reduce_work for src in sources), default=0), level)
        else:
            facts[node] = Facts(cost + OP_COST.get(node.op, 0.0), False, 0, level)
        if facts[node].carries_reduce and _is_reduced_again(node, users):
            facts[node].will_be_stored = True
    return facts


def _is_reduced_again(node: UOp, users: dict[UOp, list[UOp]]) -> bool:
    """Whether a reduction takes in this very value while something else uses it too: no kernel can then compute it once
    without storing it (a softmax of a matrix product stores the product, and is one kernel after that)."""
    direct = []
    pending = list(users[node])
    while pending:
        user = pending.pop()
        if user.op in _PERMUTING or user.op is Ops.DETACH:
            pending.extend(users[user])
        else:
            direct.append(user)
    return len(direct) > 1 and any(user.op is Ops.REDUCE_AXIS for user in direct)


class _Decisions:
    """Stored or not. Keeps, per kernel, the rows its reductions run over: they must nest."""

    def __init__(self, facts: dict[UOp, Facts]) -> None:
        self.facts = facts
        self.rows: dict[UOp, set[frozenset[UOp]]] = {}

    def should_store(self, node: UOp, uses: list[Use]) -> bool:
        if not uses or node.op.kind in (Kind.LEAF, Kind.MOVEMENT) or node.op in _TRANSPARENT:
            return False
        if self.facts[node].will_be_stored:
            return True
        if self.facts[node].carries_reduce:
            return not self._fits_reduction(node, uses)
        if len(uses) > MOST_USES and self.facts[node].cost > 0:
            return True
        computed = sum(times_computed(use) for use in uses)
        return self.facts[node].cost * (min(computed, RECOMPUTE_COUNTED) - 1) > RECOMPUTE_LIMIT

    def _fits_reduction(self, node: UOp, uses: list[Use]) -> bool:
        if len(uses) != 1 or element_count(node.shape) == 0:
            return False
        use = uses[0]
        rows = _ranges(use.place)
        if use.is_epilogue:
            return self._accept_rows(use.root, rows)
        count = 1
        for row in rows:
            if row.arg.kind is not AxisType.LOOP:
                return False
            count *= size_of(row)
        if not use.is_exact or use.place.valid is not TRUE or count != element_count(node.shape):
            return False
        if count < ENOUGH_ROWS and self.facts[node].reduce_work > SMALL_REDUCTION:
            return False
        return self._accept_rows(use.root, rows)

    def _accept_rows(self, root: UOp, rows: frozenset[UOp]) -> bool:
        known = self.rows.setdefault(root, set())
        if not all(rows <= other or other <= rows for other in known):
            return False
        known.add(rows)
        return True


def times_computed(use: Use) -> int:
    """How often each element is computed: the loops around its own innermost one that it does not depend on."""
    own = _ranges(use.place)
    times = 1
    pending = 1
    for loop in use.loops:
        if loop in own:
            times *= pending
            pending = 1
        else:
            pending *= size_of(loop)
    return times


def size_of(loop: UOp) -> int:
    return int(loop.src[0].arg)


def _ranges(place: Place) -> frozenset[UOp]:
    found = place.valid.ranges
    for idx in place.indices:
        found = found | idx.ranges
    return found


def _push(node: UOp, use: Use, plan: Plan, facts: dict[UOp, Facts]) -> Iterator[tuple[UOp, Use]]:
    """What a use of a node asks of the node's sources."""
    place = use.place
    if node.op.is_elementwise:
        for src in dict.fromkeys(node.src):
            at = place if src.shape or not node.shape else Place((), place.valid)
            yield src, Use(use.root, at, use.loops, use.is_epilogue, use.is_exact)
    elif node.op.kind is Kind.MOVEMENT:
        if element_count(node.src[0].shape) == 0:
            return
        keeps_elements = node.op in _PERMUTING
        is_exact = use.is_exact and (keeps_elements or node.op is Ops.EXPAND)
        pushed = push_movement(node, place)
        yield node.src[0], Use(use.root, pushed, use.loops, use.is_epilogue and keeps_elements, is_exact)
    elif node.op in _TRANSPARENT:
        yield node.src[0], use
    elif node.op is Ops.REDUCE_AXIS:
        yield from _push_reduce(node, use, plan, facts)
    elif node.op is Ops.GATHER:
        yield from _push_gather(node, use, plan)
    elif node.op is Ops.ASSIGN:
        yield node.src[2], use


def _push_reduce(node: UOp, use: Use, plan: Plan, facts: dict[UOp, Facts]) -> Iterator[tuple[UOp, Use]]:
    """New loops for the reduced axes. Reductions of one level over the same rows and sizes share their loops, so that
    a sum and a sum of squares are one pass."""
    source = node.src[0]
    if element_count(source.shape) == 0:
        return
    _, axes = node.arg
    rows = _ranges(use.place)
    outer = tuple(loop for loop in use.loops if loop in rows)
    index = list(use.place.indices)
    loops: list[UOp] = []
    row_ids = tuple(part for loop in outer for part in loop.arg.id)
    # Sizes that differ in one axis make loops that differ in all: a loop lies inside one other loop, not two.
    sizes = tuple(source.shape[axis] for axis in sorted(axes))
    alike = plan.reduce_sizes.setdefault((use.root, facts[node].level, row_ids), [])
    if sizes not in alike:
        alike.append(sizes)
    variant = () if sizes == alike[0] else (-alike.index(sizes),)
    for position, axis in enumerate(sorted(axes)):
        size = source.shape[axis]
        if size == 1:
            index[axis] = ZERO
            continue
        identity = Axis((facts[node].level, position, *row_ids, *variant), AxisType.REDUCE)
        loop = UOp(Ops.RANGE, dtypes.index, (index_const(size),), identity)
        index[axis] = loop
        loops.append(loop)
    plan.reduce_loops[use.root, node, use.place] = tuple(loops)
    yield source, Use(use.root, Place(tuple(index), use.place.valid), (*outer, *loops), False, use.is_exact)


def _push_gather(node: UOp, use: Use, plan: Plan) -> Iterator[tuple[UOp, Use]]:
    """The index tensors are asked for at this place. The source is asked for at holes, variables that stand for their
    values until the kernel is written: narrow ones inside the index, where the mask has made the range true, and wide
    ones inside the mask itself."""
    source, *indices = node.src
    for idx in dict.fromkeys(indices):
        yield idx, Use(use.root, use.place, use.loops, False, False)
    number = len(plan.holes)
    narrow = tuple(
        ZERO
        if size == 1
        else UOp(Ops.VARIABLE, dtypes.index, use.place.indices, (f"gather{number}_{axis}", 0, size - 1))
        for axis, size in enumerate(source.shape)
    )
    wide = tuple(
        UOp(Ops.VARIABLE, dtypes.index, use.place.indices, (f"value{number}_{axis}", *dtype_bounds(idx.dtype)))
        for axis, idx in enumerate(indices)
    )
    plan.holes[use.root, node, use.place] = (narrow, wide)
    if element_count(source.shape) == 0:
        return
    valid = both(use.place.valid, gather_valid(source.shape, wide))
    yield source, Use(use.root, Place(narrow, valid), use.loops, False, False)


def gather_valid(shape: Shape, values: Iterable[UOp]) -> UOp:
    condition = TRUE
    for value, size in zip(values, shape, strict=True):
        condition = both(condition, ((value < 0).logical_not()) & (value < size))
    return condition
