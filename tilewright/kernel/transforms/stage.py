"""STAGE: the tile of an operand is copied to local memory before the inner loops read it repeatedly. In: a kernel, a
loop, the number of an operand. Out: the kernel with the copy, made in every iteration of that loop, or before it where
the operand does not depend on it and no threads share the copy.

`Opt(STAGE, axis, operand)`: operand n is the n-th loaded buffer access in topological order, not counting the loads of
copies. Its tile is all elements that it loads in one iteration of the axis: over the threads of the work-group, the
tiles and the inner loops. The threads share the copy, adjacent threads copying adjacent elements. Without threads, as
on a CPU, the copy is a packed panel whose vector tiles are contiguous. It is copied in the order of the buffer,
vectorised where that has stride 1, with a conversion of the operand fused into packing. The terms of a dot-product
instruction are contiguous in it. Overlapping windows are copied as the box that they cover (`halo.py`).

    before: for k0 in 32: for k1 in 8: acc += a[i*256 + k0*8 + k1] * b[k0*8 + k1]
    after:  for k0 in 32:                                                   STAGE of operand 1 at k0
              for c in 8: local[c] = b[k0*8 + c]
              for k1 in 8: acc += a[i*256 + k0*8 + k1] * local[k1]

STAGE comes after the opts that split the axes of the tile: a loop with a store inside is not split."""

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
from tilewright.graph.walk import map_graph, size_of, substitute, toposort
from tilewright.kernel.analysis.dot_terms import term_axis, term_dtype
from tilewright.kernel.axes import ADDED_ID, KernelView, add_range, is_counted, make_range, stride
from tilewright.kernel.transforms.common import Transform
from tilewright.kernel.transforms.halo import Side, find_sides, make_box, without_store_mask

_LOOPS = (AxisType.LOOP, AxisType.REDUCE)
# The axes at which a copy can be made: loops, and the tasks of a core.
_COPY_AXES = (*_LOOPS, AxisType.THREAD)
# Slowest first: a thread reads its tile as vectors, adjacent threads of a warp read adjacent elements.
_LAYOUT = (AxisType.LOOP, AxisType.REDUCE, AxisType.UNROLL, AxisType.LOCAL, AxisType.UPCAST)
# Bytes of a vector that one thread copies.
_VECTOR_BYTES = 16
# The same without threads, in cache lines.
_MAX_PANEL_LINES = 4
# Bytes of a work-group's memory after which its banks repeat.
_BANKS_BYTES = 128
# Nodes that an index of an operand must not depend on; a CHECK is evaluated once, where it is.
_COMPUTED = frozenset({Ops.LOAD, Ops.REDUCE, Ops.CHECK})
# The number of the barrier before a copy, which all copies in the same loops share.
_BEFORE_COPY = -1


def operands(view: KernelView) -> list[UOp]:
    """The loaded accesses, without those of copies into placeholders. A store that accumulates into a placeholder, and
    so loads it, is not a copy."""
    copied: set[UOp] = set()
    for store in view.nodes:
        if store.op is Ops.STORE and memory_of(store.src[0]).op is Ops.DEFINE_LOCAL:
            nodes = toposort(store.src[1])
            if store.src[0] not in nodes:
                copied.update(nodes)
    return [access for access in view.loads if access not in copied]


def tile_of(view: KernelView, axis: UOp, access: UOp) -> list[UOp]:
    """The axes of the tile in the order of the copy, slowest first: the axes inside `axis` that the access depends
    on."""
    depends = frozenset(found for source in access.src[1:] for found in source.ranges)
    after = frozenset(view.axes[view.axes.index(axis) + 1 :])
    # SPILL moves loops into those of a reduction: such a loop is around the rest of the reduction, wherever it stands.
    inside = [
        found
        for found in view.axes
        if found.arg.kind in _LOOPS and (found in after or any(axis in closer.ranges for closer in view.closers(found)))
    ]
    inside += view.of_kind(AxisType.LOCAL, AxisType.UPCAST, AxisType.UNROLL)
    has_threads, terms = bool(view.of_kind(AxisType.LOCAL)), term_axis(view, access)

    def layout(found: UOp) -> tuple[int, int]:
        if found is terms:
            return len(_LAYOUT), 0
        is_slow = not has_threads and found.arg.kind is AxisType.UPCAST and not _is_vector(view, access, found)
        return _LAYOUT.index(AxisType.LOOP if is_slow else found.arg.kind), view.axes.index(found)

    return sorted((found for found in inside if found in depends), key=layout)


def _is_vector(view: KernelView, access: UOp, axis: UOp) -> bool:
    """Whether a tile along the axis is read as vectors: it has stride 1 in the buffer or in a store, or it gets
    stride 1 in the copy because no tile has stride 1 in a store."""
    if any(stride(access, axis) == 1 for access in (access, *view.stores)):
        return True
    return not any(stride(store, each) == 1 for store in view.stores for each in view.of_kind(AxisType.UPCAST))


def check_stage(view: KernelView, axis: UOp, operand: int) -> str | None:
    position = view.axes.index(axis)
    found = operands(view)
    if not isinstance(operand, int) or not 0 <= operand < len(found):
        return f"STAGE takes the number of an operand, {operand!r} is none of 0 to {len(found) - 1}"
    if axis.arg.kind not in _COPY_AXES:
        return f"STAGE needs a loop, axis {position} is {axis.arg.kind.name}"
    if view.of_kind(AxisType.GROUP):
        group = view.of_kind(AxisType.GROUP)[0]
        return f"STAGE and GROUP do not go together: axis {view.axes.index(group)} is GROUP of size {size_of(group)}"
    access = found[operand]
    memory = memory_of(access)
    if access.src[0] is not memory or any(memory_of(store) is memory for store in view.stores):
        return f"STAGE needs an operand that is only read, operand {operand} is buffer {memory.arg.slot}, also written"
    depends = frozenset(each for source in access.src[1:] for each in source.ranges)
    if axis not in depends and axis.arg.kind is not AxisType.THREAD and view.of_kind(AxisType.LOCAL):
        return f"STAGE at axis {position}: operand {operand} is the same in all of its {size_of(axis)} iterations"
    if any(node.op in _COMPUTED for source in access.src[1:] for node in toposort(source)):
        return f"STAGE needs an index of loops only, that of operand {operand} is computed from other values"
    if not tile_of(view, axis, access):
        return f"STAGE at axis {position}: operand {operand} is one element in each of its {size_of(axis)} iterations"
    if not all(is_counted(each) for each in depends):
        return f"STAGE needs loops of known size, operand {operand} depends on one whose size is computed"
    return None


def apply_stage(view: KernelView, axis: UOp, operand: int) -> UOp:
    access = operands(view)[operand]
    tile = tile_of(view, axis, access)
    dtype = staged_dtype(view, access)
    slot = view.free_slot
    threads = view.of_kind(AxisType.LOCAL)
    sides = None if threads else find_sides(tile, without_store_mask(view, access))
    if sides is not None:
        return _copy_box(view, axis, access, dtype, slot, sides)
    steps, size = _layout(tile, dtype.itemsize, None if threads else view.target, bool(threads) and not view.reduces)
    memory = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, size))
    made, coordinates, inside = _copy_axes(view, tile, access, threads, slot)
    source = [simplify(substitute(each, coordinates)) for each in access.src[1:]]
    inside_tile = [] if inside is None else [inside]
    valid = source[1:] + inside_tile
    loaded = UOp(Ops.LOAD, access.dtype, (UOp(Ops.INDEX, access.dtype, (access.src[0], source[0], *_all(valid))),))
    version = memory
    if threads:
        # All threads have read the last tile before it is overwritten. The axis is the innermost loop here.
        version = UOp(Ops.AFTER, dtype, (memory, UOp(Ops.BARRIER, dtypes.void, (axis,), _BEFORE_COPY)))
    target = UOp(Ops.INDEX, dtype, (version, simplify(_position(steps, coordinates)), *_all(inside_tile)))
    value = loaded if dtype is access.dtype else UOp(Ops.CAST, dtype, (loaded,))
    store = UOp(Ops.STORE, dtypes.void, (target, value))
    done = UOp(Ops.END, dtypes.void, (store, *made, *threads))
    if threads:
        done = UOp(Ops.BARRIER, dtypes.void, (done,), slot)
    version = UOp(Ops.AFTER, dtype, (memory, done))
    position = _position(steps, {each: each for each in tile})
    return _exchange_loads(view, axis, access, version, position)


def _copy_box(view: KernelView, axis: UOp, access: UOp, dtype: DType, slot: int, sides: list[Side]) -> UOp:
    """The kernel with a copy of the box that overlapping windows cover."""
    box = make_box(
        sides,
        without_store_mask(view, access),
        max(1, view.target.line_bytes // max(access.dtype.itemsize, dtype.itemsize)),
        slot,
    )
    memory = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, box.size))
    loaded = UOp(Ops.LOAD, access.dtype, (UOp(Ops.INDEX, access.dtype, (access.src[0], *box.source)),))
    value = loaded if dtype is access.dtype else UOp(Ops.CAST, dtype, (loaded,))
    store = UOp(Ops.STORE, dtypes.void, (UOp(Ops.INDEX, dtype, (memory, box.target)), value))
    version = UOp(Ops.AFTER, dtype, (memory, UOp(Ops.END, dtypes.void, (store, *box.axes))))
    return _exchange_loads(view, axis, access, version, box.position)


def box_of(view: KernelView, axis: UOp, access: UOp) -> int:
    """The elements of the box that STAGE at the axis copies; 0 where it copies no box."""
    sides = find_sides(tile_of(view, axis, access), without_store_mask(view, access))
    return math.prod(side.length for side in sides) if sides else 0


def staged_dtype(view: KernelView, access: UOp) -> DType:
    """The dtype of the copy: where every use of the operand is the same conversion, it is fused into the copy. Not
    in a work-group: its local memory is too small for wider elements."""
    loads = [node for node in view.nodes if node.op is Ops.LOAD and node.src[0] is access]
    users = [node for node in view.nodes if any(load in node.src for load in loads)]
    found = {node.dtype for node in users}
    if view.of_kind(AxisType.LOCAL) or len(found) != 1 or any(len(load.src) > 1 for load in loads):
        return access.dtype
    if not all(node.op is Ops.CAST for node in users):
        return access.dtype
    wide = found.pop()
    return term_dtype(view, access, wide) or wide


def _all(conditions: list[UOp]) -> tuple[UOp, ...]:
    """The conditions as one source of an INDEX, or none."""
    return (functools.reduce(UOp.__and__, conditions),) if conditions else ()


def _layout(tile: list[UOp], itemsize: int, target: Target | None, has_banks: bool) -> tuple[dict[UOp, int], int]:
    """The stride of each axis in the copy, the last axis being the fastest, and its length. Where `target`, a CPU, is
    given, a stride at which its L1 holds few lines is made a line longer. A transposed tile of a work-group is written
    along one axis and read along another: a stride that would reach one bank of its memory is made a vector longer."""
    steps: dict[UOp, int] = {}
    length = 1
    for axis in reversed(tile):
        if has_banks and length * itemsize % _BANKS_BYTES == 0:
            length += max(1, _VECTOR_BYTES // itemsize)
        if target is not None and length > 1 and target.l1_lines(length * itemsize) < 2 * target.read_streams:
            length += target.line_bytes // itemsize
        steps[axis] = length
        length *= size_of(axis)
    return {axis: steps[axis] for axis in tile}, length


def _position(steps: dict[UOp, int], coordinates: dict[UOp, UOp]) -> UOp:
    """The index of an element in the copy."""
    return functools.reduce(UOp.__add__, (coordinates[axis] * step for axis, step in steps.items()), index_const(0))


def _copy_axes(
    view: KernelView, tile: list[UOp], access: UOp, threads: list[UOp], slot: int
) -> tuple[list[UOp], dict[UOp, UOp], UOp | None]:
    """The axes of the copy, the tile's axes as expressions of them, and the mask of the copy."""
    if not threads:
        itemsize = max(access.dtype.itemsize, staged_dtype(view, access).itemsize)
        return _panel_axes(tile, access, view.target, itemsize, slot)
    count = math.prod(size_of(axis) for axis in tile)
    team = math.prod(size_of(axis) for axis in threads)
    # Adjacent elements of the buffer are copied by adjacent threads.
    order = sorted(tile, key=lambda axis: (-abs(stride(access, axis) or 0) or -(1 << 62), axis.arg.id))
    run = _contiguous_run(order, access)
    lanes = max(1, _VECTOR_BYTES // access.dtype.itemsize)
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


def _panel_axes(
    tile: list[UOp], access: UOp, target: Target, itemsize: int, slot: int
) -> tuple[list[UOp], dict[UOp, UOp], UOp | None]:
    """One loop per axis, those of the largest stride in the buffer outside. Vectors are loaded along the axis of stride
    1 in the buffer, and stored along a tile that has stride 1 in the copy."""
    vectors = _panel_vectors(tile, access, target, itemsize)
    made: list[UOp] = []
    coordinates: dict[UOp, UOp] = {}
    inside: list[UOp] = []
    loop = functools.partial(add_range, made, slot)
    order = sorted(tile, key=lambda axis: (-abs(stride(access, axis) or 0), axis.arg.id))
    streams = {axis: _streams(tile, order, axis, target.read_streams) for axis in order if axis not in vectors}
    around = {axis: loop(size_of(axis) // part, AxisType.LOOP) * part for axis, part in streams.items() if part}
    for axis in order:
        size = size_of(axis)
        if axis in around:
            part = streams[axis]
            coordinates[axis] = around[axis] + loop(part, AxisType.LOOP) if part > 1 else around[axis]
        elif axis not in vectors:
            coordinates[axis] = loop(size, AxisType.LOOP)
        elif size <= vectors[axis][-1]:
            coordinates[axis] = loop(size, AxisType.UPCAST)
        else:
            amount = next((n for n in reversed(vectors[axis]) if size % n == 0), vectors[axis][0])
            coordinates[axis] = loop(-(-size // amount), AxisType.LOOP) * amount + loop(amount, AxisType.UPCAST)
            if size % amount:
                inside.append(coordinates[axis] < size)
    return made, coordinates, functools.reduce(UOp.__and__, inside) if inside else None


def _panel_vectors(tile: list[UOp], access: UOp, target: Target, itemsize: int) -> dict[UOp, range]:
    """The axes that a panel is copied in vectors along, and the lengths to choose from. Vectors along two axes are
    transposed in registers."""
    lanes = max(1, target.line_bytes // itemsize)
    walked = next((axis for axis in reversed(tile) if stride(access, axis) == 1), None)
    stored = tile[-1] if tile and tile[-1].arg.kind.is_tile else None
    if walked is None or stored is None or walked is stored:
        longest = range(lanes, _MAX_PANEL_LINES * lanes + 1, lanes)
        return {axis: longest for axis in (walked, stored) if axis is not None}
    step_bytes = abs(stride(access, stored) or 0) * access.dtype.itemsize
    loaded = target.transposed_lanes(itemsize, min(lanes, size_of(stored)), step_bytes)
    return {walked: range(loaded, loaded + 1), stored: range(lanes, lanes + 1)}


def _streams(tile: list[UOp], order: list[UOp], axis: UOp, most: int) -> int:
    """How many iterations of an axis, up to `most`, run inside a loop that is faster in the copy; 0 stands for all.
    Each of them is a stream of stores at a large stride, and the L1 holds few lines of such streams."""
    is_slower = any(tile.index(axis) < tile.index(outer) for outer in order[: order.index(axis)])
    if not is_slower or size_of(axis) <= most:
        return 0
    return max(part for part in range(1, most + 1) if size_of(axis) % part == 0)


def _contiguous_run(order: list[UOp], access: UOp) -> int:
    """How many elements, in this order, are contiguous in the buffer."""
    extent = 1
    for axis in reversed(order):
        if stride(access, axis) != extent:
            break
        extent *= size_of(axis)
    return extent


def _exchange_loads(view: KernelView, axis: UOp, access: UOp, version: UOp, position: UOp) -> UOp:
    """The kernel with every LOAD of the access reading the copy. Masked elements have been copied as 0; a LOAD that
    yields another value there keeps its mask. Copies at the same loop share one barrier."""
    exchanges: dict[UOp, UOp] = {}
    barrier = version.src[1]
    for node in view.nodes:
        if barrier.op is Ops.BARRIER and _is_copied_at(view, axis, node):
            joined = UOp(Ops.BARRIER, dtypes.void, (*node.src, *barrier.src), node.arg)
            version = UOp(Ops.AFTER, version.dtype, (version.src[0], joined))
            exchanges[node] = joined
            break

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node in exchanges:
            return exchanges[node]
        if node.op is Ops.LOAD and node.src[0] is access:
            mask = access.src[2:] if len(node.src) > 1 else ()
            index = UOp(Ops.INDEX, version.dtype, (version, position, *mask))
            return UOp(Ops.LOAD, version.dtype, (index, *src[1:]))
        is_converted = node.op is Ops.CAST and node.src[0].op is Ops.LOAD and node.src[0].src[0] is access
        return src[0] if is_converted and src[0].dtype is node.dtype else None

    return map_graph(view.sink, visit, view.nodes)


def _is_copied_at(view: KernelView, axis: UOp, barrier: UOp) -> bool:
    """Whether a barrier waits for copies that are made in each iteration of the axis, and of no loop inside it."""
    if barrier.op is not Ops.BARRIER or not all(source.op is Ops.END for source in barrier.src):
        return False
    inside = view.axes[view.axes.index(axis) + 1 :]
    return axis in barrier.ranges and not any(each in barrier.ranges for each in inside if each.arg.kind in _LOOPS)


def stage_candidates(view: KernelView) -> Iterator[tuple[UOp, int]]:
    for axis in view.of_kind(*_COPY_AXES):
        for operand in range(len(operands(view))):
            if check_stage(view, axis, operand) is None:
                yield axis, operand


STAGE = Transform(OptOps.STAGE, check_stage, apply_stage, stage_candidates, "the number of the operand")
