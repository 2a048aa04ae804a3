"""STAGE: the tile of an operand is copied into local memory before the inner loops read it again and again. In: a
kernel, a loop, the number of an operand. Out: the kernel with the copy, made anew in every iteration of that loop.

`Opt(STAGE, axis, operand)`: operand n is the n-th buffer access that is loaded, counted in the order of the kernel's
text and without the loads of copies. Its tile are all elements it takes inside one iteration of the axis: over the
threads of the work-group, the tiles and the loops further in. The threads share the work of copying, each taking
neighbours of its neighbours. Without threads, as on a CPU, the copy is a packed panel, in which tiles that are read as
vectors lie side by side; it is copied in the order of the buffer, as vectors where that has neighbours, and converted
by the way where the kernel does so with each element. Terms that one instruction adds to a sum lie together there.
Windows that overlap are copied as the box that they cover (`halo.py`).

    before: for k0 in 32: for k1 in 8: acc += a[i*256 + k0*8 + k1] * b[k0*8 + k1]
    after:  for k0 in 32:                                                   STAGE of operand 1 at k0
              for c in 8: local[c] = b[k0*8 + c]
              for k1 in 8: acc += a[i*256 + k0*8 + k1] * local[k1]

STAGE comes after the opts that take apart the axes of the tile: what is stored in a loop keeps the loop whole."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.records import OptOps
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, index_const, memory_of
from tilewright.graph.walk import substitute, toposort
from tilewright.kernel.analysis.dot_terms import term_axis, term_dtype
from tilewright.kernel.axes import ADDED_ID, KernelView, is_counted, make_range, size_of, stride
from tilewright.kernel.transforms.common import Transform
from tilewright.kernel.transforms.halo import Side, find_sides, make_box

_LOOPS = (AxisType.LOOP, AxisType.REDUCE)
# Where a copy can be made: in a loop, or in what one core does at a time.
_PLACES = (*_LOOPS, AxisType.THREAD)
# Slowest first: a thread reads its tile as vectors, neighbours in a warp read neighbours.
_LAYOUT = (AxisType.LOOP, AxisType.REDUCE, AxisType.UNROLL, AxisType.LOCAL, AxisType.UPCAST)
# Bytes that one thread copies at a time where neighbours allow it.
_VECTOR_BYTES = 16
# The same without threads, in cache lines.
_MOST_PANEL_VECTORS = 4
_MOST_STREAMS = 8
# What a position is computed from if not from loops alone; a CHECK is to be done once, where it stands.
_COMPUTED = frozenset({Ops.LOAD, Ops.REDUCE, Ops.CHECK})
# What tells the barrier before a copy from others in the same loops. All copies there share it.
_BEFORE_COPY = -1


def operands(view: KernelView) -> list[UOp]:
    """The accesses that are loaded, without those of copies into placeholders. What is added to a placeholder is none
    of those: it reads what it writes."""
    copied: set[UOp] = set()
    for store in view.nodes:
        if store.op is Ops.STORE and memory_of(store.src[0]).op is Ops.DEFINE_LOCAL:
            nodes = toposort(store.src[1])
            if store.src[0] not in nodes:
                copied.update(nodes)
    return [place for place in view.loads if place not in copied]


def tile_of(view: KernelView, axis: UOp, place: UOp) -> list[UOp]:
    """The axes whose iterations make up the tile, as they lie in the copy: those inside of `axis` that the access
    depends on."""
    depends = frozenset(found for source in place.src[1:] for found in source.ranges)
    after = view.axes[view.axes.index(axis) + 1 :]
    inside = [found for found in after if found.arg.kind in _LOOPS]
    inside += view.of_kind(AxisType.LOCAL, AxisType.UPCAST, AxisType.UNROLL)
    has_threads, terms = bool(view.of_kind(AxisType.LOCAL)), term_axis(view, place)

    def layout(found: UOp) -> tuple[int, int]:
        if found is terms:
            return len(_LAYOUT), 0
        is_slow = not has_threads and found.arg.kind is AxisType.UPCAST and not _is_vector(view, place, found)
        return _LAYOUT.index(AxisType.LOOP if is_slow else found.arg.kind), view.axes.index(found)

    return sorted((found for found in inside if found in depends), key=layout)


def _is_vector(view: KernelView, place: UOp, axis: UOp) -> bool:
    """Whether neighbours along the axis are neighbours in memory, so that a tile of them is read as vectors; or become
    so in the copy, where no store walks a tile that would be the vectors instead."""
    if any(stride(access, axis) == 1 for access in (place, *view.stores)):
        return True
    return not any(stride(store, each) == 1 for store in view.stores for each in view.of_kind(AxisType.UPCAST))


def check_stage(view: KernelView, axis: UOp, operand: int) -> str | None:
    position = view.axes.index(axis)
    found = operands(view)
    if not isinstance(operand, int) or not 0 <= operand < len(found):
        return f"STAGE takes the number of an operand, {operand!r} is none of 0 to {len(found) - 1}"
    if axis.arg.kind not in _PLACES:
        return f"STAGE needs a loop, axis {position} is {axis.arg.kind.name}"
    if view.of_kind(AxisType.GROUP):
        group = view.of_kind(AxisType.GROUP)[0]
        return f"STAGE and GROUP do not go together: axis {view.axes.index(group)} is GROUP of size {size_of(group)}"
    place = found[operand]
    memory = memory_of(place)
    if place.src[0] is not memory or any(memory_of(store) is memory for store in view.stores):
        return f"STAGE needs an operand that is only read, operand {operand} is buffer {memory.arg.slot}, also written"
    depends = frozenset(each for source in place.src[1:] for each in source.ranges)
    if axis not in depends and axis.arg.kind is not AxisType.THREAD:
        return f"STAGE at axis {position}: operand {operand} is the same in all of its {size_of(axis)} iterations"
    if any(node.op in _COMPUTED for source in place.src[1:] for node in toposort(source)):
        return f"STAGE needs places known from loops alone, that of operand {operand} is computed from other values"
    if not tile_of(view, axis, place):
        return f"STAGE at axis {position}: operand {operand} is one element in each of its {size_of(axis)} iterations"
    if not all(is_counted(each) for each in depends):
        return f"STAGE needs loops of known size, operand {operand} depends on one whose size is computed"
    return None


def apply_stage(view: KernelView, axis: UOp, operand: int) -> UOp:
    place = operands(view)[operand]
    tile = tile_of(view, axis, place)
    dtype = staged_dtype(view, place)
    used = [node.arg.slot for node in view.nodes if node.op is Ops.DEFINE_LOCAL]
    slot = max(used, default=-1) + 1
    threads = view.of_kind(AxisType.LOCAL)
    sides = None if threads else find_sides(tile, place)
    if sides is not None:
        return _copy_box(view, axis, place, dtype, slot, sides)
    steps, size = _layout(tile, dtype.itemsize, None if threads else view.target)
    memory = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, size))
    made, coordinates, inside = _copy_axes(view, tile, place, threads, slot)
    source = [simplify(substitute(each, coordinates)) for each in place.src[1:]]
    inside_tile = [] if inside is None else [inside]
    valid = source[1:] + inside_tile
    loaded = UOp(Ops.LOAD, place.dtype, (UOp(Ops.INDEX, place.dtype, (place.src[0], source[0], *_all(valid))),))
    version = memory
    if threads:
        # Nobody overwrites the tile before everybody is done with the last one. The axis is the innermost loop here.
        version = UOp(Ops.AFTER, dtype, (memory, UOp(Ops.BARRIER, dtypes.void, (axis,), _BEFORE_COPY)))
    target = UOp(Ops.INDEX, dtype, (version, simplify(_position(steps, coordinates)), *_all(inside_tile)))
    value = loaded if dtype is place.dtype else UOp(Ops.CAST, dtype, (loaded,))
    store = UOp(Ops.STORE, dtypes.void, (target, value))
    done = UOp(Ops.END, dtypes.void, (store, *made, *threads))
    if threads:
        done = UOp(Ops.BARRIER, dtypes.void, (done,), slot)
    version = UOp(Ops.AFTER, dtype, (memory, done))
    position = _position(steps, {each: each for each in tile})
    return _exchange_loads(view, axis, place, version, position)


def _copy_box(view: KernelView, axis: UOp, place: UOp, dtype: DType, slot: int, sides: list[Side]) -> UOp:
    """The kernel with a copy of all that overlapping windows cover."""
    box = make_box(sides, place, max(1, view.target.line_bytes // max(place.dtype.itemsize, dtype.itemsize)), slot)
    memory = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, box.size))
    loaded = UOp(Ops.LOAD, place.dtype, (UOp(Ops.INDEX, place.dtype, (place.src[0], *box.source)),))
    value = loaded if dtype is place.dtype else UOp(Ops.CAST, dtype, (loaded,))
    store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, dtype, (memory, box.target)), value))
    version = UOp(Ops.AFTER, dtype, (memory, UOp(Ops.END, dtypes.void, (store, *box.axes))))
    return _exchange_loads(view, axis, place, version, box.position)


def staged_dtype(view: KernelView, place: UOp) -> DType:
    """What the copy holds: where all that is done with an element is one conversion, that is done while it is copied.
    A work-group's memory is too small for elements wider than they are."""
    loads = [node for node in view.nodes if node.op is Ops.LOAD and node.src[0] is place]
    users = [node for node in view.nodes if any(load in node.src for load in loads)]
    found = {node.dtype for node in users}
    if view.of_kind(AxisType.LOCAL) or len(found) != 1 or any(len(load.src) > 1 for load in loads):
        return place.dtype
    if not all(node.op is Ops.CAST for node in users):
        return place.dtype
    wide = found.pop()
    return term_dtype(view, place, wide) or wide


def _all(conditions: list[UOp]) -> tuple[UOp, ...]:
    """The conditions as one source of an INDEX, or none."""
    return (functools.reduce(UOp.__and__, conditions),) if conditions else ()


def _layout(tile: list[UOp], itemsize: int, target: Target | None) -> tuple[dict[UOp, int], int]:
    """The stride of each axis in the copy, the last axis being the fastest, and its length. On a CPU, whose target is
    given, a stride at which its L1 holds few lines is made a line longer."""
    steps: dict[UOp, int] = {}
    length = 1
    for axis in reversed(tile):
        if target is not None and length > 1 and target.l1_lines(length * itemsize) < 2 * _MOST_STREAMS:
            length += target.line_bytes // itemsize
        steps[axis] = length
        length *= size_of(axis)
    return {axis: steps[axis] for axis in tile}, length


def _position(steps: dict[UOp, int], coordinates: dict[UOp, UOp]) -> UOp:
    """Where an element lies in the copy."""
    return functools.reduce(UOp.__add__, (coordinates[axis] * step for axis, step in steps.items()), index_const(0))


def _copy_axes(
    view: KernelView, tile: list[UOp], place: UOp, threads: list[UOp], slot: int
) -> tuple[list[UOp], dict[UOp, UOp], UOp | None]:
    """The axes of the copy, each coordinate of the tile in terms of them, and where they count."""
    if not threads:
        itemsize = max(place.dtype.itemsize, staged_dtype(view, place).itemsize)
        return _panel_axes(tile, place, max(1, view.target.line_bytes // itemsize), slot)
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


def _panel_axes(tile: list[UOp], place: UOp, lanes: int, slot: int) -> tuple[list[UOp], dict[UOp, UOp], UOp | None]:
    """One loop per axis, those that take the longest steps in the buffer outside. Of the axis that is walked there
    element by element whole vectors are loaded; of a tile that is the fastest axis in the copy, they are stored."""
    walked = [axis for axis in reversed(tile) if stride(place, axis) == 1]
    vectors = {*walked[:1], *(axis for axis in tile[-1:] if axis.arg.kind.is_tile)}
    # Two axes at once are transposed in registers, which hold so many vectors.
    most = lanes if len(vectors) > 1 else _MOST_PANEL_VECTORS * lanes
    made: list[UOp] = []
    coordinates: dict[UOp, UOp] = {}
    inside: list[UOp] = []

    def loop(size: int, kind: AxisType) -> UOp:
        made.append(make_range(size, (ADDED_ID + slot, len(made)), kind))
        return made[-1]

    order = sorted(tile, key=lambda axis: (-abs(stride(place, axis) or 0), axis.arg.id))
    streams = {axis: _streams(tile, order, axis) for axis in order if axis not in vectors}
    around = {axis: loop(size_of(axis) // part, AxisType.LOOP) * part for axis, part in streams.items() if part}
    for axis in order:
        size = size_of(axis)
        if axis in around:
            part = streams[axis]
            coordinates[axis] = around[axis] + loop(part, AxisType.LOOP) if part > 1 else around[axis]
        elif axis not in vectors:
            coordinates[axis] = loop(size, AxisType.LOOP)
        elif size <= most:
            coordinates[axis] = loop(size, AxisType.UPCAST)
        else:
            amount = next((n for n in range(most, 0, -lanes) if size % n == 0), lanes)
            coordinates[axis] = loop(-(-size // amount), AxisType.LOOP) * amount + loop(amount, AxisType.UPCAST)
            if size % amount:
                inside.append(coordinates[axis] < size)
    return made, coordinates, functools.reduce(UOp.__and__, inside) if inside else None


def _streams(tile: list[UOp], order: list[UOp], axis: UOp) -> int:
    """How many iterations of an axis, at a time, lie inside a loop that is faster in the copy: each writes to a place
    far from the others', and caches hold few that lie a power of two apart. 0 where it is all of them."""
    is_slower = any(tile.index(axis) < tile.index(outer) for outer in order[: order.index(axis)])
    if not is_slower or size_of(axis) <= _MOST_STREAMS:
        return 0
    return max(part for part in range(1, _MOST_STREAMS + 1) if size_of(axis) % part == 0)


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
            index = UOp(Ops.INDEX, version.dtype, (version, position, *mask))
            done[node] = UOp(Ops.LOAD, version.dtype, (index, *src[1:]))
        elif node.op is Ops.CAST and node.src[0].op is Ops.LOAD and node.src[0].src[0] is place:
            done[node] = src[0] if src[0].dtype is node.dtype else node.with_src(src)
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
    for axis in view.of_kind(*_PLACES):
        for operand in range(len(operands(view))):
            if check_stage(view, axis, operand) is None:
                yield axis, operand


STAGE = Transform(OptOps.STAGE, check_stage, apply_stage, stage_candidates, "the number of the operand")
