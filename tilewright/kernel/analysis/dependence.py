"""Dependences between iterations. In: a kernel, an axis, and the memory that its iterations would share if they ran in
parallel. Out: None, or the dependence that forbids it. Transforms that give iterations to threads or tiles ask here,
and so does the launch.

Iterations on different cores or in different work-groups share buffers; threads of a work-group also share local
memory; elements of a tile share registers as well. In shared memory, iterations must use disjoint elements. In private
memory, an iteration must store what it loads."""

from __future__ import annotations

from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Op
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort
from tilewright.kernel.analysis.versions import are_apart, is_injective, share_digit, share_masked_digit, writes_of
from tilewright.kernel.axes import KernelView

_EFFECTS = frozenset({Ops.END, Ops.AFTER, Ops.GROUP, Ops.BARRIER, Ops.DEFINE_LOCAL, Ops.DEFINE_REG})
_NAMES = {Ops.PARAM: "buffer", Ops.DEFINE_LOCAL: "local placeholder", Ops.DEFINE_REG: "register placeholder"}

SHARED_BY_CORES = frozenset({Ops.PARAM})
SHARED_BY_GROUP = frozenset({Ops.PARAM, Ops.DEFINE_LOCAL})
SHARED_BY_TILE = frozenset({Ops.PARAM, Ops.DEFINE_LOCAL, Ops.DEFINE_REG})


def has_effects(view: KernelView) -> bool:
    """Whether the kernel orders its stores. A kernel of the scheduler does not: it writes every element once."""
    return any(node.op in _EFFECTS for node in view.nodes)


def check_cores(view: KernelView, axis: UOp) -> str | None:
    """Whether iterations may run on different cores or in different work-groups. Stores that do not depend on the axis
    would be repeated by each of them."""
    for store in _stores(view):
        if axis not in store.ranges and memory_of(store.src[0]).op is Ops.PARAM:
            return f"the store to {name_memory(memory_of(store.src[0]))} does not depend on {name_axis(view, axis)}"
    return _check_overlap(view, axis) or _check_shared(view, axis, SHARED_BY_CORES)


def check_group(view: KernelView, axis: UOp) -> str | None:
    """Whether iterations may be threads of a work-group. The first thread does the stores that do not depend on the
    axis."""
    return check_first_thread(view, axis) or _check_overlap(view, axis) or _check_shared(view, axis, SHARED_BY_GROUP)


def check_tile(view: KernelView, axis: UOp) -> str | None:
    """Whether iterations may be the elements of a tile, which is unrolled node by node."""
    for node in view.nodes:
        if node.op is Ops.BARRIER and axis in node.ranges:
            return f"there is a barrier in every iteration of {name_axis(view, axis)}"
    return _check_shared(view, axis, SHARED_BY_TILE)


def check_order(view: KernelView, axis: UOp) -> str | None:
    """Whether iterations may run in another order."""
    return _check_shared(view, axis, SHARED_BY_CORES)


def check_reduced(view: KernelView, axis: UOp) -> str | None:
    """Whether the iterations of a reduction may be reordered: none of them may store anything."""
    for store in _stores(view):
        if axis in store.ranges:
            memory = name_memory(memory_of(store.src[0]))
            return f"each iteration of {name_axis(view, axis)} also stores to {memory}, in the order of the loop"
    return None


def check_first_thread(view: KernelView, axis: UOp) -> str | None:
    """A value that only the first thread stores must not be loaded by the others: without a barrier that is a race."""
    if not has_effects(view):
        return None
    for store in _stores(view):
        memory = memory_of(store.src[0])
        if memory.op is Ops.DEFINE_REG or (axis in store.ranges and axis not in view.reduce_axes):
            continue
        if memory.op is Ops.DEFINE_LOCAL or any(_sees(load, store) for load in _loads(view, memory)):
            return f"threads along {name_axis(view, axis)} would all store to {name_memory(memory)} and read it again"
    return None


def name_memory(memory: UOp) -> str:
    return f"{_NAMES[memory.op]} {memory.arg.slot}"


def name_axis(view: KernelView, axis: UOp) -> str:
    return f"axis {view.axes.index(axis)}"


# ---------------------------------------------------------------- one memory


def _stores(view: KernelView) -> list[UOp]:
    return [node for node in view.nodes if node.op is Ops.STORE]


def _ordered_stores(view: KernelView) -> list[UOp]:
    """The stores whose order matters: all but the combining ones (a STORE with an op) to memory that the kernel neither
    loads nor stores to in another way."""
    found: dict[UOp, set[Op | None]] = {}
    for store in _stores(view):
        found.setdefault(memory_of(store.src[0]), set()).add(store.arg)
    free = {memory for memory, ops in found.items() if None not in ops and len(ops) == 1 and not _loads(view, memory)}
    return [store for store in _stores(view) if memory_of(store.src[0]) not in free]


def _loads(view: KernelView, memory: UOp) -> list[UOp]:
    return [node for node in view.nodes if node.op is Ops.LOAD and memory_of(node.src[0]) is memory]


def _sees(load: UOp, store: UOp) -> bool:
    """Whether the load reads a version of the memory that includes the store."""
    version = load.src[0].src[0]
    while version.op is Ops.AFTER:
        if any(store in _stores_of(effect) for effect in version.src[1:]):
            return True
        version = version.src[0]
    return False


def _stores_of(effect: UOp) -> list[UOp]:
    if effect.op is Ops.BARRIER:
        return [store for source in effect.src for store in _stores_of(source)]
    return [write.store for write in writes_of(effect)]


def _check_shared(view: KernelView, axis: UOp, shared: frozenset[Op]) -> str | None:
    inside: dict[UOp, list[UOp]] = {}
    for store in _ordered_stores(view):
        if axis in store.ranges:
            inside.setdefault(memory_of(store.src[0]), []).append(store)
    for memory, stores in inside.items():
        where = f"{name_memory(memory)}, which every iteration of {name_axis(view, axis)} stores to,"
        fixed = [store for store in stores if axis not in store.src[0].src[1].ranges]
        if memory.op in shared and fixed:
            return f"{where} is stored to at the same address"
        if not has_effects(view) or _is_written_once(view, memory):
            continue
        if memory.op in shared:
            # Loads outside the loop are over, or not begun, when the elements of a tile are stored.
            loads = [n for n in _loads(view, memory) if shared is not SHARED_BY_TILE or axis in n.ranges]
            reason = _check_addresses(axis, loads, stores) or _check_after_loop(view, axis, memory, stores, shared)
        else:
            reason = _check_private(view, axis, memory)
        if reason is not None:
            return f"{where} {reason}"
    return None


def _is_written_once(view: KernelView, memory: UOp) -> bool:
    """Whether a buffer is only stored to, by stores that nothing orders: those of the scheduler, which write every
    element once, also in a kernel that orders its copies to local memory."""
    stores = [store for store in _stores(view) if memory_of(store.src[0]) is memory]
    return memory.op is Ops.PARAM and all(store in view.sink.src for store in stores) and not _loads(view, memory)


def _check_overlap(view: KernelView, axis: UOp) -> str | None:
    """BLOCK by an amount that does not divide the loop starts the last block at a MIN, so that it overlaps the one
    before and stores some elements again: neither the loop over blocks nor the loop in a block may be parallel."""
    for store in _ordered_stores(view):
        form = affine(store.src[0].src[1])
        for atom, step in form.terms.items():
            if not (axis in atom.ranges or _is_in_block(axis, form.terms.get(axis, 0), atom, step)):
                continue
            # What a loaded value is computed from, its address and the order of effects before it, is no start.
            inside = toposort(atom, stop=lambda node: node.op is Ops.LOAD)
            if any(node.op is Ops.MIN and not _is_loaded(node) for node in inside):
                memory = name_memory(memory_of(store.src[0]))
                return f"{memory} is stored to by blocks of {name_axis(view, axis)} that overlap"
    return None


def _is_loaded(index: UOp) -> bool:
    """Whether an index is computed from memory. The start of a block is computed from loops alone."""
    return any(node.op is Ops.LOAD for node in toposort(index))


def _is_in_block(axis: UOp, own: int, start: UOp, step: int) -> bool:
    """Whether an axis of stride `own` counts inside overlapping blocks that begin at `start`, an expression of stride
    `step`. Such an axis covers at least one step (alone, or because the loop inside a block is merged with smaller
    ones), and its stride is less than the extent of all blocks."""
    if start.op is not Ops.MIN:
        return own != 0
    length = min((abs(each) for source in start.src for each in affine(source).terms.values()), default=1)
    is_smaller = abs(own) * int(axis.bounds[1]) < abs(step)
    return not is_smaller and abs(own) < abs(step) * (int(start.vmax) + length)


def _check_after_loop(view: KernelView, axis: UOp, memory: UOp, stores: list[UOp], shared: frozenset[Op]) -> str | None:
    """Memory that parallel iterations store to must not be used after the loop: threads do not reach its end together.
    The elements of a tile do."""
    if shared is SHARED_BY_TILE:
        return None
    outside = [load for load in _loads(view, memory) if axis not in load.ranges]
    if any(_sees(load, store) for load in outside for store in stores):
        return "is read again after the loop"
    others = [s for s in _stores(view) if memory_of(s.src[0]) is memory and axis not in s.ranges]
    if not all(are_apart(one.src[0].src[1], other.src[0].src[1]) for one in stores for other in others):
        return "is also stored to outside of it, at addresses that may be equal"
    return None


def _check_addresses(axis: UOp, loads: list[UOp], stores: list[UOp]) -> str | None:
    """Shared memory: two iterations must use different addresses, for stores and for loads of stored memory."""
    positions = list(dict.fromkeys(store.src[0].src[1] for store in stores))
    read = [load.src[0].src[1] for load in loads]
    accesses = [node.src[0] for node in (*stores, *loads)]
    if share_digit((*positions, *read), axis) or share_masked_digit(accesses, axis):
        return None
    for number, position in enumerate(positions):
        if not is_injective(position, position.ranges):
            return "is stored to at addresses that may be equal"
        if not all(are_apart(position, other) for other in positions[number + 1 :]):
            return "is stored to at addresses that may be equal"
    for position in read:
        if position not in positions and not all(are_apart(position, other) for other in positions):
            return "is read at other addresses as well"
    return None


def _check_private(view: KernelView, axis: UOp, memory: UOp) -> str | None:
    """Private memory: it carries no value from one iteration to another, nor into the loop or out of it."""
    stores = [store for store in _stores(view) if memory_of(store.src[0]) is memory]
    loads = _loads(view, memory)
    if any(axis not in node.ranges for node in (*stores, *loads)):
        return "carries a value into it or out of it"
    for load in loads:
        if not any(_sees(load, store) and not _depends_in_mask(store, axis) for store in stores):
            return "carries a value from one iteration to the next"
    return None


def _depends_in_mask(store: UOp, axis: UOp) -> bool:
    return len(store.src[0].src) > 2 and axis in store.src[0].src[2].ranges
