"""Accumulators that users write. In: a kernel with stores and an order between them (docs/decisions/0009). Out: the
kernel with every update that is provably a reduction as a REDUCE, and without the order that nothing needs any more.

    before: acc = 0                                   an AFTER of a store of the identity
            for k: acc = acc + x[k]                   END(STORE(acc, ADD(LOAD(acc after k), x)), k)
            out[i] = acc
    after:  out[i] = REDUCE(x[k], k)

The accumulator may be a placeholder or an output. An initial value other than the identity is combined after the
reduction. An update that is not a reduction (acc*x + c) stays as it is, and transforms refuse to split its loop."""

from __future__ import annotations

import itertools

from tilewright.base.records import NamedTuple
from tilewright.graph.ops import REDUCTIONS, Axis, AxisType, Ops, reduce_identity
from tilewright.graph.records import KernelInfo
from tilewright.graph.simplify import fold_reductions, simplify
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, memory_of
from tilewright.graph.walk import map_graph, map_nodes, toposort
from tilewright.kernel.analysis.versions import are_apart, exchange_range, is_injective, loads_from, value_at, writes_of

_COUNTED = frozenset({AxisType.LOOP, AxisType.REDUCE, AxisType.UPCAST, AxisType.UNROLL})


def recognise_accumulators(sink: UOp) -> UOp:
    """The kernel with reductions. A kernel without AFTER, END and GROUP, as the scheduler makes it, is unchanged."""
    if not any(node.op is Ops.AFTER or node.op is Ops.END or node.op is Ops.GROUP for node in toposort(sink)):
        return sink
    sink = separate_ranges(drop_order(forward_values(reduce_updates(simplify(sink)))))
    states_opts = isinstance(sink.arg, KernelInfo) and sink.arg.opts_to_apply is not None
    return fold_inner(sink) if states_opts else fold_reductions(sink)


def fold_inner(sink: UOp) -> UOp:
    """Folds sums inside other reductions only: a kernel that states its opts keeps the loops that these name. One that
    reads what the kernel has stored is left as it is: the stores before it are also reached from elsewhere, and would
    be there twice if they were rewritten here alone."""

    def folded(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.REDUCE or any(each.op is Ops.AFTER for each in toposort(src[0])):
            return None
        return node.with_src((fold_reductions(src[0]), *src[1:]))

    return simplify(map_graph(sink, folded, toposort(sink, stop=lambda each: each.op is Ops.REDUCE)))


class Update(NamedTuple):
    """memory[position] = op(memory[position], term) in every iteration of `axes`. The position depends on the ended
    ranges `kept`: each of their iterations has its own accumulator."""

    version: UOp
    position: UOp
    op: Op
    term: UOp
    axes: tuple[UOp, ...]
    kept: tuple[UOp, ...]


# ---------------------------------------------------------------- values through memory


def forward_values(sink: UOp) -> UOp:
    """Store-to-load forwarding: a LOAD becomes the value that was stored, which may leave the store dead. Memory with a
    LOAD whose value is not known, such as one carried from iteration to iteration, is left alone."""
    order = toposort(sink)
    written_in = ranges_of_writes(order)
    loads = [node for node in order if node.op is Ops.LOAD and node.src[0].src[0].op is Ops.AFTER]
    unclear = {memory_of(load.src[0]) for load in loads if value_loaded(load, written_in) is None}

    def forwarded(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.LOAD or memory_of(node.src[0]) in unclear:
            return None
        return value_loaded(node.with_src(src), written_in)

    made = map_nodes(order, forwarded)
    return keep_stores(made[sink], [made[node] for node in order if node.op is Ops.STORE])


def value_loaded(load: UOp, written_in: dict[UOp, frozenset[UOp]]) -> UOp | None:
    address = load.src[0]
    return value_at(address.src[0], address.src[1], written_in) if len(address.src) == 2 else None


def keep_stores(sink: UOp, stores: list[UOp]) -> UOp:
    """The kernel with all stores to its arguments, also those that no LOAD reaches any more."""
    reached = set(toposort(sink))
    lost = [store for store in stores if store not in reached and memory_of(store.src[0]).op is Ops.PARAM]
    return sink.replace(src=(*sink.src, *lost)) if lost else sink


def ranges_of_writes(order: list[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For each memory the ranges around the stores to it."""
    found: dict[UOp, frozenset[UOp]] = {}
    for node in order:
        if node.op is Ops.STORE:
            memory = memory_of(node.src[0])
            found[memory] = found.get(memory, frozenset()) | node.ranges
    return found


# ---------------------------------------------------------------- updates


def reduce_updates(sink: UOp) -> UOp:
    """Every update that is a reduction, as one store of its result."""
    order = toposort(sink)
    written_in = ranges_of_writes(order)

    def reduced(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        return reduced_effect(node.with_src(src), written_in) if node.op is Ops.END else None

    return map_graph(sink, reduced, order)


def reduced_effect(end: UOp, written_in: dict[UOp, frozenset[UOp]]) -> UOp | None:
    """One update, or a group of them, as stores of reductions; None where one of them is not a reduction."""
    effect, ranges = end.src[0], end.src[1:]
    stores = effect.src if effect.op is Ops.GROUP else (effect,)
    memories = {memory_of(store.src[0]) for store in stores if store.op is Ops.STORE}
    made = []
    for store in stores:
        update = match_update(store, ranges)
        # The term must not depend on what the loop writes.
        if update is None or any(loads_from(update.term, memory) for memory in memories):
            return None
        reduced = reduced_store(store, update, written_in)
        if reduced is None:
            return None
        made.append(end.with_src((reduced, *update.kept)) if update.kept else reduced)
    return made[0] if len(made) == 1 else effect.with_src(tuple(made))


def match_update(store: UOp, ranges: tuple[UOp, ...]) -> Update | None:
    """STORE(address, op(LOAD(address of the iteration before), term)) as an update."""
    if store.op is not Ops.STORE or len(store.src[0].src) != 2:
        return None
    address, value = store.src
    version, position = outside_of(address.src[0], ranges)[0], address.src[1]
    kept = tuple(axis for axis in ranges if axis in position.ranges)
    axes = tuple(axis for axis in ranges if axis not in position.ranges)
    if not axes or any(axis.arg.kind not in _COUNTED for axis in axes):
        return None
    loads = [node for node in toposort(value) if node.op is Ops.LOAD]
    carried = [load for load in loads if is_carried(load, version, position, ranges, frozenset(axes))]
    found = match_combine(value, carried[0]) if len(carried) == 1 else None
    return None if found is None else Update(version, position, *found, axes, kept)


def reduced_store(store: UOp, update: Update, written_in: dict[UOp, frozenset[UOp]]) -> UOp | None:
    """The update as one store of the reduction; None where an outer loop carries the accumulator over too."""
    outer = store.ranges.difference(update.axes, update.kept, update.version.ranges)
    if not is_injective(update.position, (*update.kept, *outer)):
        return None
    address = store.src[0].with_src((update.version, update.position))
    total = UOp(Ops.REDUCE, update.term.dtype, (update.term, *update.axes), update.op)
    first = value_at(update.version, update.position, written_in)
    if first is None:
        first = UOp(Ops.LOAD, total.dtype, (address,))
        first.line = store.line
    if not (first.is_const and first.arg == reduce_identity(update.op, first.dtype)):
        total = first.alu(update.op, total)
    return store.with_src((address, total))


def outside_of(version: UOp, ranges: tuple[UOp, ...]) -> tuple[UOp, frozenset[UOp]]:
    """The version of the memory before the loops of `ranges`, and which of these loops were passed."""
    passed: set[UOp] = set()
    while version.op is Ops.AFTER and all(each in ranges for each in version.src[1:]):
        passed.update(version.src[1:])
        version = version.src[0]
    return version, frozenset(passed)


def is_carried(load: UOp, version: UOp, position: UOp, ranges: tuple[UOp, ...], axes: frozenset[UOp]) -> bool:
    """Whether a LOAD reads what the previous iteration stored at the position."""
    address = load.src[0]
    if len(address.src) != 2 or address.src[1] is not position:
        return False
    outer, passed = outside_of(address.src[0], ranges)
    return outer is version and axes <= passed


def match_combine(value: UOp, accumulator: UOp) -> tuple[Op, UOp] | None:
    """op and term where value = op(accumulator, term). Subtraction adds the negated term; a masked update combines the
    identity where the mask is off."""
    if value.op is Ops.WHERE:
        return match_masked(value, accumulator)
    op = Ops.ADD if value.op is Ops.SUB else value.op
    if op not in REDUCTIONS:
        return None
    terms: list[UOp] = []
    node = value
    while node is not accumulator:
        left, right = node.src if len(node.src) == 2 else (None, None)
        if left is None or right is None or node.op not in ((Ops.ADD, Ops.SUB) if op is Ops.ADD else (op,)):
            return None
        if accumulator in toposort(left):
            terms.append(-right if node.op is Ops.SUB else right)
            node = left
        elif node.op is Ops.SUB:
            return None
        else:
            terms.append(left)
            node = right
    term = terms.pop()
    while terms:
        term = term.alu(op, terms.pop())
    return None if accumulator in toposort(term) else (op, term)


def match_masked(value: UOp, accumulator: UOp) -> tuple[Op, UOp] | None:
    condition, yes, no = value.src
    if accumulator in toposort(condition) or accumulator not in (yes, no):
        return None
    found = match_combine(no if yes is accumulator else yes, accumulator)
    if found is None:
        return None
    op, term = found
    identity = const(term.dtype, reduce_identity(op, term.dtype))
    return op, condition.where(identity, term) if yes is accumulator else condition.where(term, identity)


# ---------------------------------------------------------------- order that nothing needs any more


def drop_order(sink: UOp) -> UOp:
    """Removes the order of a kernel that reads nothing it has written and whose stores never alias; a store that is
    overwritten is dead. Any other kernel is unchanged."""
    order = toposort(sink)
    if any(node.op is Ops.BARRIER for node in order):
        return sink
    stores = last_stores([node for node in order if node.op is Ops.STORE])
    loads = [node for node in order if node.op is Ops.LOAD]
    if any(memory_of(load.src[0]).op is not Ops.PARAM for load in loads):
        return sink
    for memory in {memory_of(store.src[0]) for store in stores}:
        own = [store for store in stores if memory_of(store.src[0]) is memory]
        if not (are_all_apart(own) and reads_own_alone(memory, own, loads)):
            return sink
    if not are_nested(stores):
        return sink
    return map_graph(sink.replace(src=tuple(stores)), lambda node, src: src[0] if node.op is Ops.AFTER else None)


def are_nested(stores: list[UOp]) -> bool:
    """Whether the stores' loops form one nest, each store inside all loops of the stores outside it. Without an order
    all loops nest: of two stores in sequential loops, each would be repeated in every iteration of the other's."""
    nests = sorted((store.ranges for store in stores), key=len)
    return all(inner >= outer for outer, inner in itertools.pairwise(nests))


def last_stores(stores: list[UOp]) -> list[UOp]:
    """The live stores: to an argument, and not overwritten by a later store."""
    kept = []
    for number, store in enumerate(stores):
        address = store.src[0]
        if memory_of(address).op is not Ops.PARAM:
            continue
        later = (other.src[0] for other in stores[number + 1 :] if is_after(other, store))
        if not any(other.src[1] is address.src[1] and len(other.src) == 2 for other in later):
            kept.append(store)
    return kept


def is_after(store: UOp, earlier: UOp) -> bool:
    """Whether a store writes a version of the memory that the earlier store has produced."""
    version = store.src[0].src[0]
    while version.op is Ops.AFTER:
        if any(write.store is earlier for effect in version.src[1:] for write in writes_of(effect)):
            return True
        version = version.src[0]
    return False


def are_all_apart(stores: list[UOp]) -> bool:
    positions = [store.src[0].src[1] for store in stores]
    return all(are_apart(one, other) for number, one in enumerate(positions) for other in positions[number + 1 :])


def reads_own_alone(memory: UOp, stores: list[UOp], loads: list[UOp]) -> bool:
    """Whether memory that is written is read only in its version before the kernel, and only at the address that the
    same store then writes."""
    own = [load for load in loads if memory_of(load.src[0]) is memory]
    if not own:
        return True
    address = stores[0].src[0]
    inside = set(toposort(stores[0].src[1]))
    return len(stores) == 1 and all(
        load in inside and load.src[0].src[0] is memory and load.src[0].src[1] is address.src[1] for load in own
    )


# ---------------------------------------------------------------- ranges


def separate_ranges(sink: UOp) -> UOp:
    """Gives a reduction a range of its own where the user's range is also open elsewhere or closed by a reduction
    inside: a range that a reduction closes is a reduce axis and nothing else. Equal reductions keep sharing theirs.
    Tile axes stay shared: the elements of a tile may be reduced and also used, and are computed once."""
    order = toposort(sink)
    taken = {axis for node in order if node.op is Ops.END for axis in node.src[1:]}
    taken.update(axis for node in order if node.op is Ops.STORE for axis in node.ranges)
    fresh = max((node.arg.id[0] for node in order if node.op is Ops.RANGE), default=-1) + 1
    own: dict[tuple[UOp, int], UOp] = {}
    levels: dict[UOp, dict[UOp, int]] = {}  # of each node: the nesting depth of reductions over a range

    def separated(node: UOp, src: tuple[UOp, ...]) -> UOp:
        nonlocal fresh
        level: dict[UOp, int] = {}
        for source in node.src:
            for axis, count in levels[source].items():
                level[axis] = max(count, level.get(axis, 0))
        made = node.with_src(src)
        if node.op is Ops.REDUCE:
            for axis in node.src[1:]:
                if axis.arg.kind.is_tile:
                    continue
                key = (axis, level.get(axis, 0))
                if key not in own:
                    is_shared = axis in taken or key[1] > 0
                    own[key] = reduce_range(axis, (fresh,) if is_shared else axis.arg.id)
                    fresh += is_shared
                level[axis] = key[1] + 1
                closed = tuple(own[key] if each is axis else each for each in made.src[1:])
                made = made.with_src((exchange_range(made.src[0], axis, own[key]), *closed))
        levels[node] = level
        return made

    return map_graph(sink, separated, order)


def reduce_range(axis: UOp, identity: tuple[int, ...]) -> UOp:
    kind = AxisType.REDUCE if axis.arg.kind is AxisType.LOOP else axis.arg.kind
    made = UOp(Ops.RANGE, axis.dtype, axis.src, Axis(identity, kind))
    made.line = made.line or axis.line
    return made
