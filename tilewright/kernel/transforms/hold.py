"""HOLD: loops of results move into the reduction around which they lie, and their sums are held in local memory. In: a
kernel, a loop around a reduction. Out: the kernel with the reduction's loops outside, and inside that loop and those
that lie between the two.

    before: for i in 64: s = 0; for k in 512: s += a[k, i]; out[i] = s
    after:  for i in 64: local[i] = 0
            for k in 512: for i in 64: local[i] += a[k, i]
            for i in 64: out[i] = local[i]

A row of many results is then read from end to end before the next one is begun, however few registers there are. HOLD
comes after the opts that take apart the loops; rows that UNROLL writes out are added up before they meet the memory.

`Opt(HOLD, axis, n)` moves the outermost n loops of the reduction alone; those inside of them are added up in registers:

    after:  for i in 64: local[i] = 0                                       BLOCK of k by 128, then HOLD of i with 1
            for k0 in 4: for i in 64:
              s = 0; for k1 in 128: s += a[k0*128 + k1, i]
              local[i] += s
            for i in 64: out[i] = local[i]

HOLD of a loop around others, `for j: for i:`, holds the sums of all of them: those of both j and i."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.dtype import dtypes
from tilewright.graph.ops import AxisType, Ops, ParamArg, reduce_identity
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import substitute
from tilewright.kernel.axes import ADDED_ID, KernelView, is_counted, make_range, size_of, stride
from tilewright.kernel.effects import has_effects

_LEAST_FLOAT_BYTES = 4


def check_hold(view: KernelView, axis: UOp, argument: object) -> str | None:
    position = view.axes.index(axis)
    if axis.arg.kind is not AxisType.LOOP or axis in view.reduce_axes:
        return f"HOLD needs an output loop, axis {position} is {axis.arg.kind.name}"
    if has_effects(view) or view.of_kind(AxisType.LOCAL, AxisType.GROUP):
        return f"HOLD moves axis {position}, and the kernel states an order or has threads that would share the sums"
    found = _reductions(view, axis)
    if len(found) != 1 or any(view.closers(loop) != found for loop in _loops(view, found[0])):
        return f"HOLD needs one reduction with a loop of its own inside axis {position}, there are {len(found)}"
    for moved in _moved(view, found[0], axis):
        if not is_counted(moved) or any(moved in loop.src[0].ranges for loop in view.axes):
            number = view.axes.index(moved)
            return f"HOLD needs loops of known size, axis {number} counts another or is counted by one"
    count = len(_loops(view, found[0]))
    if argument is not None and (isinstance(argument, bool) or argument not in range(1, count + 1)):
        return f"HOLD takes how many loops of the reduction it moves, {argument!r} is none of 1 to {count}"
    if found[0].dtype.is_float and found[0].dtype.itemsize < _LEAST_FLOAT_BYTES:
        return f"HOLD would round a sum of {found[0].dtype} at every step"
    return None


def _reductions(view: KernelView, axis: UOp) -> list[UOp]:
    """Those that happen in every iteration of the axis, and are more than a tile."""
    return [node for node in view.reduces if axis in node.ranges and _loops(view, node)]


def _loops(view: KernelView, reduction: UOp) -> list[UOp]:
    """Outermost first."""
    return sorted((axis for axis in reduction.src[1:] if not axis.arg.kind.is_tile), key=view.axes.index)


def _moved(view: KernelView, reduction: UOp, axis: UOp) -> list[UOp]:
    """The axis and the loops between it and the reduction, outermost first."""
    around = [loop for loop in view.of_kind(AxisType.LOOP) if loop in reduction.ranges]
    return around[around.index(axis) :]


def apply_hold(view: KernelView, axis: UOp, argument: int | None) -> UOp:
    (reduction,) = _reductions(view, axis)
    moved = _moved(view, reduction, axis)
    dtype, loops = reduction.dtype, _loops(view, reduction)[:argument]
    slot = max((node.arg.slot for node in view.nodes if node.op is Ops.DEFINE_LOCAL), default=-1) + 1
    steps, size = _layout(view, reduction, moved)
    memory = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(slot, size))
    before, inside = (
        [make_range(size_of(loop), (ADDED_ID + slot, first + n), AxisType.LOOP) for n, loop in enumerate(moved)]
        for first in (0, len(moved))
    )

    def place(version: UOp, at: list[UOp]) -> UOp:
        position, exchanges = index_const(0), dict(zip(moved, at, strict=True))
        for each, step in steps.items():
            position = position + exchanges.get(each, each) * step
        return UOp(Ops.INDEX, dtype, (version, position))

    around = [loop for loop in reduction.ranges if not loop.arg.kind.is_tile and loop not in moved]
    begun = UOp(Ops.AFTER, dtype, (memory, *sorted(around, key=lambda loop: loop.arg.id))) if around else memory
    start = const(dtype, reduce_identity(reduction.arg, dtype))
    cleared = UOp(Ops.END, dtypes.void, (UOp(Ops.STORE, dtypes.void, (place(begun, before), start)), *before))

    added_up = [each for each in reduction.src[1:] if each not in loops]
    value = substitute(reduction.src[0], dict(zip(moved, inside, strict=True)))
    term = UOp(Ops.REDUCE, dtype, (value, *added_up), reduction.arg) if added_up else value
    held = place(UOp(Ops.AFTER, dtype, (memory, cleared, *loops)), inside)
    total = UOp(reduction.arg, dtype, (UOp(Ops.LOAD, dtype, (held,)), term))
    row = UOp(Ops.END, dtypes.void, (UOp(Ops.STORE, dtypes.void, (held, total)), *inside))
    done = UOp(Ops.AFTER, dtype, (memory, UOp(Ops.END, dtypes.void, (row, *loops))))
    return substitute(view.sink, {reduction: UOp(Ops.LOAD, dtype, (place(done, moved),))})


def _layout(view: KernelView, reduction: UOp, moved: list[UOp]) -> tuple[dict[UOp, int], int]:
    """The steps of the axes that number the sums, and how many there are: tiles lie inside, those that are vectors
    first, as neighbours where the kernel's own accesses are such."""

    def order(tile: UOp) -> tuple[bool, bool, tuple[int, ...]]:
        is_walked = any(stride(access, tile) == 1 for access in view.accesses)
        return tile.arg.kind is not AxisType.UPCAST, not is_walked, tile.arg.id

    tiles = [each for each in reduction.ranges if each.arg.kind.is_tile]
    steps, size = {}, 1
    for each in (*sorted(tiles, key=order), *reversed(moved)):
        steps[each], size = size, size * size_of(each)
    return steps, size


def hold_candidates(view: KernelView) -> Iterator[tuple[UOp, int | None]]:
    for axis in view.of_kind(AxisType.LOOP):
        if check_hold(view, axis, None) is None:
            (reduction,) = _reductions(view, axis)
            yield axis, None
            yield from ((axis, count) for count in range(1, len(_loops(view, reduction))))
