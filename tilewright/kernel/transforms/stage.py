"""STAGE: the tile of an operand is copied into local memory before the inner loops read it again and again. In: a
kernel, a loop, the number of an operand. Out: the kernel with the copy, made anew in every iteration of that loop.

`Opt(STAGE, axis, operand)`: operand n is the n-th buffer access that is loaded, counted in the order of the kernel's
text and without the loads of copies. Its tile are all elements it takes inside one iteration of the axis: over the
threads of the work-group, the tiles and the loops further in. The threads share the work of copying, each taking
neighbours of its neighbours; without threads, as on a CPU, the copy is a packed panel: reduce axes slow, tile axes
fast.

    before: for k0 in 32: for k1 in 8: acc += a[i*256 + k0*8 + k1] * b[k0*8 + k1]
    after:  for k0 in 32:                                                   STAGE of operand 1 at k0
              for c in 8: local[c] = b[k0*8 + c]
              for k1 in 8: acc += a[i*256 + k0*8 + k1] * local[k1]

STAGE comes after the opts that take apart the axes of the tile: what is stored in a loop keeps the loop whole."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from tilewright.base.dtype import dtypes
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, index_const, memory_of
from tilewright.graph.walk import substitute, toposort
from tilewright.kernel.axes import ADDED_ID, KernelView, is_counted, make_range, size_of, stride

_LOOPS = (AxisType.LOOP, AxisType.REDUCE)
# Slowest first: a thread reads its tile as vectors, neighbours in a warp read neighbours.
_LAYOUT = (AxisType.LOOP, AxisType.REDUCE, AxisType.UNROLL, AxisType.LOCAL, AxisType.UPCAST)
# Bytes that one thread copies at a time where neighbours allow it.
_VECTOR_BYTES = 16
# What tells the barrier before a copy from others in the same loops. All copies there share it.
_BEFORE_COPY = -1


def operands(view: KernelView) -> list[UOp]:
    """The accesses that are loaded, without those of copies into placeholders."""
    copies = {
        node
        for store in view.nodes
        if store.op is Ops.STORE and memory_of(store.src[0]).op is Ops.DEFINE_LOCAL
        for node in toposort(store.src[1])
    }
    return [place for place in view.loads if place not in copies]


def tile_of(view: KernelView, axis: UOp, place: UOp) -> list[UOp]:
    """The axes whose iterations make up the tile: those inside of `axis` that the access depends on."""
    depends = frozenset(found for source in place.src[1:] for found in source.ranges)
    after = view.axes[view.axes.index(axis) + 1 :]
    inside = [found for found in after if found.arg.kind in _LOOPS]
    inside += view.of_kind(AxisType.LOCAL, AxisType.UPCAST, AxisType.UNROLL)
    return sorted((found for found in inside if found in depends), key=lambda a: (_LAYOUT.index(a.arg.kind), a.arg.id))


def check_stage(view: KernelView, axis: UOp, operand: int) -> str | None:
    position = view.axes.index(axis)
    found = operands(view)
    if not isinstance(operand, int) or not 0 <= operand < len(found):
        return f"STAGE takes the number of an operand, {operand!r} is none of 0 to {len(found) - 1}"
    if axis.arg.kind not in _LOOPS:
        return f"STAGE needs a loop, axis {position} is {axis.arg.kind.name}"
    if view.of_kind(AxisType.GROUP):
        group = view.of_kind(AxisType.GROUP)[0]
        return f"STAGE and GROUP do not go together: axis {view.axes.index(group)} is GROUP of size {size_of(group)}"
    place = found[operand]
    memory = memory_of(place)
    if place.src[0] is not memory or any(memory_of(store) is memory for store in view.stores):
        return f"STAGE needs an operand that is only read, operand {operand} is buffer {memory.arg.slot}, also written"
    depends = frozenset(each for source in place.src[1:] for each in source.ranges)
    if axis not in depends:
        return f"STAGE at axis {position}: operand {operand} is the same in all of its {size_of(axis)} iterations"
    if any(node.op is Ops.LOAD or node.op is Ops.REDUCE for source in place.src[1:] for node in toposort(source)):
        return f"STAGE needs places known from loops alone, that of operand {operand} is computed from other values"
    if not tile_of(view, axis, place):
        return f"STAGE at axis {position}: operand {operand} is one element in each of its {size_of(axis)} iterations"
    if not all(is_counted(each) for each in depends):
        return f"STAGE needs loops of known size, operand {operand} depends on one whose size is computed"
    return None


def apply_stage(view: KernelView, axis: UOp, operand: int) -> UOp:
    place = operands(view)[operand]
    tile = tile_of(view, axis, place)
    used = [node.arg.slot for node in view.nodes if node.op is Ops.DEFINE_LOCAL]
    slot = max(used, default=-1) + 1
    memory = UOp(Ops.DEFINE_LOCAL, place.dtype, (), ParamArg(slot, math.prod(size_of(each) for each in tile)))
    threads = view.of_kind(AxisType.LOCAL)
    made, coordinates, inside = _copy_axes(view, tile, place, threads, slot)
    source = [simplify(substitute(each, coordinates)) for each in place.src[1:]]
    inside_tile = [] if inside is None else [inside]
    valid = source[1:] + inside_tile
    loaded = UOp(Ops.INDEX, place.dtype, (place.src[0], source[0], *_all(valid)))
    version = memory
    if threads:
        # Nobody overwrites the tile before everybody is done with the last one. The axis is the innermost loop here.
        version = UOp(Ops.AFTER, place.dtype, (memory, UOp(Ops.BARRIER, dtypes.void, (axis,), _BEFORE_COPY)))
    target = UOp(Ops.INDEX, place.dtype, (version, simplify(_layout(tile, coordinates)), *_all(inside_tile)))
    store = UOp(Ops.STORE, dtypes.void, (target, UOp(Ops.LOAD, place.dtype, (loaded,))))
    done = UOp(Ops.END, dtypes.void, (store, *made, *threads))
    if threads:
        done = UOp(Ops.BARRIER, dtypes.void, (done,), slot)
    version = UOp(Ops.AFTER, place.dtype, (memory, done))
    position = _layout(tile, {each: each for each in tile})
    return _exchange_loads(view, axis, place, version, position)


def _all(conditions: list[UOp]) -> tuple[UOp, ...]:
    """The conditions as one source of an INDEX, or none."""
    return (functools.reduce(UOp.__and__, conditions),) if conditions else ()


def _layout(tile: list[UOp], coordinates: dict[UOp, UOp]) -> UOp:
    """Where an element lies in the copy: the last axis of the tile is the fastest."""
    position = index_const(0)
    for axis in tile:
        position = position * size_of(axis) + coordinates[axis]
    return position


def _copy_axes(
    view: KernelView, tile: list[UOp], place: UOp, threads: list[UOp], slot: int
) -> tuple[list[UOp], dict[UOp, UOp], UOp | None]:
    """The axes of the copy, each coordinate of the tile in terms of them, and where they count."""
    if not threads:
        kinds = [AxisType.UPCAST if axis.arg.kind is AxisType.UPCAST else AxisType.LOOP for axis in tile]
        made = [
            make_range(size_of(axis), (ADDED_ID + slot, number), kind)
            for number, (axis, kind) in enumerate(zip(tile, kinds, strict=True))
        ]
        return made, dict(zip(tile, made, strict=True)), None
    count = math.prod(size_of(axis) for axis in tile)
    team = math.prod(size_of(axis) for axis in threads)
    # Neighbours in the buffer are copied by neighbouring threads.
    order = sorted(tile, key=lambda axis: (-abs(stride(place, axis) or 0) or -(1 << 62), axis.arg.id))
    run = _contiguous_run(order, place)
    lanes = max(1, _VECTOR_BYTES // place.dtype.itemsize)
    while lanes > 1 and (count % (team * lanes) or run % lanes):
        lanes //= 2
    rounds = -(-count // (team * lanes))
    made = []
    number = index_const(0)
    if rounds > 1:
        made.append(make_range(rounds, (ADDED_ID + slot, 0), AxisType.UPCAST))
        number = made[-1]
    for thread in threads:
        number = number * size_of(thread) + thread
    if lanes > 1:
        made.append(make_range(lanes, (ADDED_ID + slot, 1), AxisType.UPCAST))
        number = number * lanes + made[-1]
    coordinates: dict[UOp, UOp] = {}
    step = 1
    for axis in reversed(order):
        digit = number // step if step > 1 else number
        step *= size_of(axis)
        coordinates[axis] = digit % size_of(axis) if step < count or rounds * team * lanes > count else digit
    return made, coordinates, number < count if rounds * team * lanes > count else None


def _contiguous_run(order: list[UOp], place: UOp) -> int:
    """How many elements, in this order, are neighbours in the buffer."""
    extent = 1
    for axis in reversed(order):
        if stride(place, axis) != extent:
            break
        extent *= size_of(axis)
    return extent


def _exchange_loads(view: KernelView, axis: UOp, place: UOp, version: UOp, position: UOp) -> UOp:
    """The kernel with every LOAD of the place reading the copy. What was masked off has been copied as 0; a LOAD that
    yields something else there keeps its mask. The copy of another operand at the same loop is waited for at once."""
    exchanges: dict[UOp, UOp] = {}
    barrier = version.src[1]
    for node in view.nodes:
        if barrier.op is Ops.BARRIER and _is_copied_at(view, axis, node):
            joined = UOp(Ops.BARRIER, dtypes.void, (*node.src, *barrier.src), node.arg)
            version = UOp(Ops.AFTER, version.dtype, (version.src[0], joined))
            exchanges[node] = joined
            break
    done: dict[UOp, UOp] = {}
    for node in view.nodes:
        src = tuple(done[s] for s in node.src)
        if node in exchanges:
            done[node] = exchanges[node]
        elif node.op is Ops.LOAD and node.src[0] is place:
            mask = place.src[2:] if len(node.src) > 1 else ()
            done[node] = node.with_src((UOp(Ops.INDEX, place.dtype, (version, position, *mask)), *src[1:]))
        else:
            done[node] = node.with_src(src)
    return done[view.sink]


def _is_copied_at(view: KernelView, axis: UOp, barrier: UOp) -> bool:
    """Whether a barrier waits for copies into local memory made in each iteration of the axis, and of no loop in it."""
    if barrier.op is not Ops.BARRIER or not all(source.op is Ops.END for source in barrier.src):
        return False
    inside = view.axes[view.axes.index(axis) + 1 :]
    return axis in barrier.ranges and not any(each in barrier.ranges for each in inside if each.arg.kind in _LOOPS)


def stage_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(*_LOOPS):
        for operand in range(len(operands(view))):
            if check_stage(view, axis, operand) is None:
                yield axis, operand
