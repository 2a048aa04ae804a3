"""Accumulators that users write. In: a kernel as docs/decisions/0009 has it. Out: the kernel with every update that is
a provable reduction written as REDUCE, and with no order left in it where none is needed. First in the kernel stage.

    before: acc = 0                                   an AFTER of a store of the identity
            for k: acc = acc + x[k]                   END(STORE(place, ADD(LOAD(place after k), x)), k)
            out[i] = acc
    after:  out[i] = REDUCE(x[k], k)

The accumulator may be a placeholder or an output. A first value other than the identity is combined in afterwards.
What is no reduction (acc*x + c) stays as it is written; transforms refuse to split its loop."""

from __future__ import annotations

import itertools
from typing import NamedTuple

from tilewright.graph.ops import REDUCTIONS, Axis, AxisType, Ops, reduce_identity
from tilewright.graph.records import KernelInfo
from tilewright.graph.simplify import fold_reductions, simplify
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, const, memory_of
from tilewright.graph.walk import toposort
from tilewright.kernel.analysis.versions import are_apart, exchange_range, is_injective, value_at, writes_of

_COUNTED = frozenset({AxisType.LOOP, AxisType.REDUCE, AxisType.UPCAST, AxisType.UNROLL})


def recognise_accumulators(sink: UOp) -> UOp:
    """The kernel over reductions. One without any order in it, as the scheduler makes them, is returned as it is."""
    if not any(node.op is Ops.AFTER or node.op is Ops.END or node.op is Ops.GROUP for node in toposort(sink)):
        return sink
    sink = separate_ranges(drop_order(forward_values(reduce_updates(simplify(sink)))))
    states_opts = isinstance(sink.arg, KernelInfo) and sink.arg.opts_to_apply is not None
    return fold_inner(sink) if states_opts else fold_reductions(sink)


def fold_inner(sink: UOp) -> UOp:
    """A kernel that states its opts keeps the loops that they are for: only a sum inside of another one is folded."""
    done: dict[UOp, UOp] = {}
    for node in toposort(sink, stop=lambda each: each.op is Ops.REDUCE):
        if node.op is Ops.REDUCE:
            done[node] = node.with_src((fold_reductions(node.src[0]), *node.src[1:]))
        else:
            done[node] = node.with_src(tuple(done[source] for source in node.src))
    return simplify(done[sink])


class Update(NamedTuple):
    """memory[position] = op(memory[position], term) in every iteration of `axes`; `kept` are ended ranges that the
    position depends on, one accumulator each."""

    version: UOp
    position: UOp
    op: Op
    term: UOp
    axes: tuple[UOp, ...]
    kept: tuple[UOp, ...]


# ---------------------------------------------------------------- values through memory


def forward_values(sink: UOp) -> UOp:
    """A LOAD of what a store put there becomes the value that was stored, so that the store may be of no use any more.
    Memory of which some LOAD cannot be followed, such as what goes on from iteration to iteration, is left alone."""
    order = toposort(sink)
    written_in = ranges_of_writes(order)
    loads = [node for node in order if node.op is Ops.LOAD and node.src[0].src[0].op is Ops.AFTER]
    unclear = {memory_of(load.src[0]) for load in loads if value_loaded(load, written_in) is None}
    done: dict[UOp, UOp] = {}
    for node in order:
        made = node.with_src(tuple(done[source] for source in node.src))
        if node.op is Ops.LOAD and memory_of(node.src[0]) not in unclear:
            made = value_loaded(made, written_in) or made
        done[node] = made
    return keep_stores(done[sink], [done[node] for node in order if node.op is Ops.STORE])


def value_loaded(load: UOp, written_in: dict[UOp, frozenset[UOp]]) -> UOp | None:
    place = load.src[0]
    return value_at(place.src[0], place.src[1], written_in) if len(place.src) == 2 else None


def keep_stores(sink: UOp, stores: list[UOp]) -> UOp:
    """The kernel with what it stores to its arguments, also where no LOAD leads there any more."""
    reached = set(toposort(sink))
    lost = [store for store in stores if store not in reached and memory_of(store.src[0]).op is Ops.PARAM]
    return sink.replace(src=(*sink.src, *lost)) if lost else sink


def ranges_of_writes(order: list[UOp]) -> dict[UOp, frozenset[UOp]]:
    """For each memory the ranges in which something is stored to it."""
    found: dict[UOp, frozenset[UOp]] = {}
    for node in order:
        if node.op is Ops.STORE:
            memory = memory_of(node.src[0])
            found[memory] = found.get(memory, frozenset()) | node.ranges
    return found


# ---------------------------------------------------------------- updates


def reduce_updates(sink: UOp) -> UOp:
    """Every update that is a reduction as one store of its result."""
    order = toposort(sink)
    written_in = ranges_of_writes(order)
    done: dict[UOp, UOp] = {}
    for node in order:
        made = node.with_src(tuple(done[source] for source in node.src))
        done[node] = (reduced_effect(made, written_in) if node.op is Ops.END else None) or made
    return done[sink]


def reduced_effect(end: UOp, written_in: dict[UOp, frozenset[UOp]]) -> UOp | None:
    """Updates, alone or in a group, as stores of whole reductions; None where one of them is no reduction."""
    effect, ranges = end.src[0], end.src[1:]
    stores = effect.src if effect.op is Ops.GROUP else (effect,)
    memories = {memory_of(store.src[0]) for store in stores if store.op is Ops.STORE}
    made = []
    for store in stores:
        update = match_update(store, ranges)
        # What the loop writes must not decide what it adds up.
        if update is None or any(_loads_from(update.term, memory) for memory in memories):
            return None
        reduced = reduced_store(store, update, written_in)
        if reduced is None:
            return None
        made.append(end.with_src((reduced, *update.kept)) if update.kept else reduced)
    return made[0] if len(made) == 1 else effect.with_src(tuple(made))


def _loads_from(value: UOp, memory: UOp) -> bool:
    return any(node.op is Ops.LOAD and memory_of(node.src[0]) is memory for node in toposort(value))


def match_update(store: UOp, ranges: tuple[UOp, ...]) -> Update | None:
    """STORE(place, op(LOAD(place in each iteration), term)) as an update."""
    if store.op is not Ops.STORE or len(store.src[0].src) != 2:
        return None
    place, value = store.src
    version, position = outside_of(place.src[0], ranges)[0], place.src[1]
    kept = tuple(axis for axis in ranges if axis in position.ranges)
    axes = tuple(axis for axis in ranges if axis not in position.ranges)
    if not axes or any(axis.arg.kind not in _COUNTED for axis in axes):
        return None
    loads = [node for node in toposort(value) if node.op is Ops.LOAD]
    carried = [load for load in loads if is_carried(load, version, position, ranges, frozenset(axes))]
    found = match_combine(value, carried[0]) if len(carried) == 1 else None
    return None if found is None else Update(version, position, *found, axes, kept)


def reduced_store(store: UOp, update: Update, written_in: dict[UOp, frozenset[UOp]]) -> UOp | None:
    """The update as one store of the whole reduction; None where the accumulator goes on from one iteration of an
    outer loop to the next."""
    outer = store.ranges.difference(update.axes, update.kept, update.version.ranges)
    if not is_injective(update.position, (*update.kept, *outer)):
        return None
    place = store.src[0].with_src((update.version, update.position))
    total = UOp(Ops.REDUCE, update.term.dtype, (update.term, *update.axes), update.op)
    first = value_at(update.version, update.position, written_in)
    if first is None:
        first = UOp(Ops.LOAD, total.dtype, (place,))
        first.line = store.line
    if not (first.is_const and first.arg == reduce_identity(update.op, first.dtype)):
        total = first.alu(update.op, total)
    return store.with_src((place, total))


def outside_of(version: UOp, ranges: tuple[UOp, ...]) -> tuple[UOp, frozenset[UOp]]:
    """The version before the loops of `ranges`, and those of them that lie between."""
    passed: set[UOp] = set()
    while version.op is Ops.AFTER and all(each in ranges for each in version.src[1:]):
        passed.update(version.src[1:])
        version = version.src[0]
    return version, frozenset(passed)


def is_carried(load: UOp, version: UOp, position: UOp, ranges: tuple[UOp, ...], axes: frozenset[UOp]) -> bool:
    """Whether a LOAD reads what the iteration before left at the position."""
    place = load.src[0]
    if len(place.src) != 2 or place.src[1] is not position:
        return False
    outer, passed = outside_of(place.src[0], ranges)
    return outer is version and axes <= passed


def match_combine(value: UOp, accumulator: UOp) -> tuple[Op, UOp] | None:
    """op and term where value = op(accumulator, term). Subtracting is adding the opposite; a masked update takes the
    identity where it is masked off."""
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
    """A kernel that reads nothing it has written, and whose stores meet nowhere, needs no order; a store that is
    overwritten is dropped. Any other kernel stays as it is."""
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
    return without_versions(sink.replace(src=tuple(stores)))


def are_nested(stores: list[UOp]) -> bool:
    """Whether each store lies in all loops of those that lie in fewer. Loops without an order are one nest: of stores
    in loops of their own, one after the other, each would be done again in every iteration of the others."""
    nests = sorted((store.ranges for store in stores), key=len)
    return all(inner >= outer for outer, inner in itertools.pairwise(nests))


def last_stores(stores: list[UOp]) -> list[UOp]:
    """The stores that no later one overwrites, and that go to memory somebody sees."""
    kept = []
    for number, store in enumerate(stores):
        place = store.src[0]
        if memory_of(place).op is not Ops.PARAM:
            continue
        later = (other.src[0] for other in stores[number + 1 :] if is_after(other, store))
        if not any(other.src[1] is place.src[1] and len(other.src) == 2 for other in later):
            kept.append(store)
    return kept


def is_after(store: UOp, earlier: UOp) -> bool:
    """Whether a store goes to a version of memory that holds the earlier one."""
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
    """Whether memory that is written is read only as it was before the kernel, and there only where the same store
    then writes."""
    own = [load for load in loads if memory_of(load.src[0]) is memory]
    if not own:
        return True
    place = stores[0].src[0]
    inside = set(toposort(stores[0].src[1]))
    return len(stores) == 1 and all(
        load in inside and load.src[0].src[0] is memory and load.src[0].src[1] is place.src[1] for load in own
    )


def without_versions(sink: UOp) -> UOp:
    done: dict[UOp, UOp] = {}
    for node in toposort(sink):
        src = tuple(done[source] for source in node.src)
        done[node] = src[0] if node.op is Ops.AFTER else node.with_src(src)
    return done[sink]


# ---------------------------------------------------------------- ranges


def separate_ranges(sink: UOp) -> UOp:
    """A range that a reduction closes is a reduce axis, and is open nowhere else and in no reduction inside: where the
    user counts with one range twice, the reduction gets a range of its own. Equal reductions keep sharing theirs."""
    order = toposort(sink)
    taken = {axis for node in order if node.op is Ops.END for axis in node.src[1:]}
    taken.update(axis for node in order if node.op is Ops.STORE for axis in node.ranges)
    fresh = max((node.arg.id[0] for node in order if node.op is Ops.RANGE), default=-1) + 1
    own: dict[tuple[UOp, int], UOp] = {}
    levels: dict[UOp, dict[UOp, int]] = {}  # of each node: how many reductions over a range lie one inside the other
    done: dict[UOp, UOp] = {}
    for node in order:
        level: dict[UOp, int] = {}
        for source in node.src:
            for axis, count in levels[source].items():
                level[axis] = max(count, level.get(axis, 0))
        made = node.with_src(tuple(done[source] for source in node.src))
        if node.op is Ops.REDUCE:
            for axis in node.src[1:]:
                key = (axis, level.get(axis, 0))
                if key not in own:
                    is_shared = axis in taken or key[1] > 0
                    own[key] = reduce_range(axis, (fresh,) if is_shared else axis.arg.id)
                    fresh += is_shared
                level[axis] = key[1] + 1
                closed = tuple(own[key] if each is axis else each for each in made.src[1:])
                made = made.with_src((exchange_range(made.src[0], axis, own[key]), *closed))
        levels[node] = level
        done[node] = made
    return done[sink]


def reduce_range(axis: UOp, identity: tuple[int, ...]) -> UOp:
    kind = AxisType.REDUCE if axis.arg.kind is AxisType.LOOP else axis.arg.kind
    made = UOp(Ops.RANGE, axis.dtype, axis.src, Axis(identity, kind))
    made.line = made.line or axis.line
    return made
