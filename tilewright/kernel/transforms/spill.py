"""SPILL: the accumulators of a reduction are spilled to local memory, and output loops move inside its loop. In: a
kernel, an output loop around a reduction. Out: the kernel with the reduction's loops outside of that output loop.

    before: for i in 64: s = 0; for k in 512: s += a[k, i]; out[i] = s
    after:  for i in 64: local[i] = 0
            for k in 512: for i in 64: local[i] += a[k, i]
            for i in 64: out[i] = local[i]

Each row of `a` is then read to its end before the next, even if its results need more accumulators than there are
registers. SPILL comes after the opts that split the loops. Rows that UNROLL takes are summed before they are added to
the accumulator in memory.

`Opt(SPILL, axis, n)` moves the outermost n loops of the reduction only; the loops inside them accumulate in registers:

    after:  for i in 64: local[i] = 0                                       BLOCK of k by 128, then SPILL of i with 1
            for k0 in 4: for i in 64:
              s = 0; for k1 in 128: s += a[k0*128 + k1, i]
              local[i] += s
            for i in 64: out[i] = local[i]

SPILL of the outer loop of a nest `for j: for i:` spills the accumulators of all (j, i). A long float sum has one memory
for each of its levels (`graph/kernels/levels.py`):

    after:  for k0 in 32:
              for i in 64: inner[i] = 0
              for k1 in 16: for i in 64: inner[i] += a[k0*16 + k1, i]
              for i in 64: outer[i] += inner[i]"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.base.dtype import dtypes
from tilewright.graph.kernels.levels import plan_levels
from tilewright.graph.ops import AxisType, Ops, ParamArg, reduce_identity
from tilewright.graph.records import OptOps
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import size_of, substitute
from tilewright.kernel.analysis.dependence import has_effects
from tilewright.kernel.axes import ADDED_ID, KernelView, is_uniform, make_range, stride
from tilewright.kernel.transforms.common import Transform

_MIN_FLOAT_BYTES = 4


def check_spill(view: KernelView, axis: UOp, argument: object) -> str | None:
    position = view.axes.index(axis)
    if axis.arg.kind is not AxisType.LOOP or axis in view.reduce_axes:
        return f"SPILL needs an output loop, axis {position} is {axis.arg.kind.name}"
    if has_effects(view) or view.of_kind(AxisType.LOCAL, AxisType.GROUP):
        return f"SPILL moves axis {position}, and the kernel states an order or has threads that would share the sums"
    found = _reductions(view, axis)
    if len(found) != 1 or any(view.closers(loop) != found for loop in _loops(view, found[0])):
        return f"SPILL needs one reduction with a loop of its own inside axis {position}, there are {len(found)}"
    for moved in _moved(view, found[0], axis):
        if not is_uniform(moved) or view.sized_by(moved):
            number = view.axes.index(moved)
            return f"SPILL needs loops of known size, that of axis {number} or one inside it is computed"
    count = len(_loops(view, found[0]))
    if argument is not None and (isinstance(argument, bool) or argument not in range(1, count + 1)):
        return f"SPILL takes how many loops of the reduction it moves, {argument!r} is none of 1 to {count}"
    if found[0].dtype.is_float and found[0].dtype.itemsize < _MIN_FLOAT_BYTES:
        return f"SPILL would round a sum of {found[0].dtype} at every step"
    return None


def _reductions(view: KernelView, axis: UOp) -> list[UOp]:
    """The reductions inside the axis that have a loop, not only tiles."""
    return [node for node in view.reduces if axis in node.ranges and _loops(view, node)]


def _loops(view: KernelView, reduction: UOp) -> list[UOp]:
    """The loops of a reduction, outermost first."""
    return sorted((axis for axis in reduction.src[1:] if not axis.arg.kind.is_tile), key=view.axes.index)


def _moved(view: KernelView, reduction: UOp, axis: UOp) -> list[UOp]:
    """The axis and the loops between it and the reduction, outermost first."""
    around = [loop for loop in view.of_kind(AxisType.LOOP) if loop in reduction.ranges]
    return around[around.index(axis) :]


def apply_spill(view: KernelView, axis: UOp, argument: int | None) -> UOp:
    (reduction,) = _reductions(view, axis)
    return substitute(view.sink, {reduction: _SpilledReduction(view, reduction, axis, argument).total()})


class _SpilledReduction:
    """One reduction whose accumulators are in local memory: one memory for each level of its loops."""

    def __init__(self, view: KernelView, reduction: UOp, axis: UOp, argument: int | None) -> None:
        self.reduction = reduction
        self.moved = _moved(view, reduction, axis)
        self.loops = _loops(view, reduction)[:argument]
        # An iteration adds one term to the accumulator in memory: what is inside is summed in registers.
        plan = plan_levels(reduction, self.loops, terms=1)
        self.levels = plan.loops[::-1] if plan else (tuple(self.loops),)
        self.exchanges = plan.exchanges if plan else {}
        self.slot = view.free_slot
        self.steps, self.size = _layout(view, reduction, self.moved)
        around = [loop for loop in reduction.ranges if not loop.arg.kind.is_tile and loop not in self.moved]
        self.around = sorted(around, key=lambda loop: loop.arg.id)

    def total(self) -> UOp:
        return UOp(Ops.LOAD, self.reduction.dtype, (self._address(self._summed(0, ()), self.moved),))

    def _summed(self, level: int, outer: tuple[UOp, ...]) -> UOp:
        """The memory of a level (0 is the outermost) after the loops of that level, in one iteration of the `outer`
        loops."""
        dtype, op, loops = self.reduction.dtype, self.reduction.arg, self.levels[level]
        memory = UOp(Ops.DEFINE_LOCAL, dtype, (), ParamArg(self.slot + level, self.size))
        around = (*self.around, *outer)
        begun = UOp(Ops.AFTER, dtype, (memory, *around)) if around else memory
        before, inside = self._ranges(level, 0), self._ranges(level, 1)
        start = const(dtype, reduce_identity(op, dtype))
        initial = UOp(Ops.STORE, dtypes.void, (self._address(begun, before), start))
        cleared = UOp(Ops.END, dtypes.void, (initial, *before))
        accumulator = self._address(UOp(Ops.AFTER, dtype, (memory, cleared, *loops)), inside)
        if level + 1 < len(self.levels):
            term = UOp(Ops.LOAD, dtype, (self._address(self._summed(level + 1, (*outer, *loops)), inside),))
        else:
            term = self._term(inside)
        total = UOp(op, dtype, (UOp(Ops.LOAD, dtype, (accumulator,)), term))
        row = UOp(Ops.END, dtypes.void, (UOp(Ops.STORE, dtypes.void, (accumulator, total)), *inside))
        return UOp(Ops.AFTER, dtype, (memory, UOp(Ops.END, dtypes.void, (row, *loops))))

    def _term(self, inside: list[UOp]) -> UOp:
        """The term that one iteration of the moved loops adds to the accumulator."""
        added_up = [each for each in self.reduction.src[1:] if each not in self.loops]
        exchanges = dict(zip(self.moved, inside, strict=True)) | self.exchanges
        value = substitute(self.reduction.src[0], exchanges)
        return UOp(Ops.REDUCE, value.dtype, (value, *added_up), self.reduction.arg) if added_up else value

    def _ranges(self, level: int, number: int) -> list[UOp]:
        first = (2 * level + number) * len(self.moved)
        moved = enumerate(self.moved, first)
        return [make_range(each.src[0], (ADDED_ID + self.slot, n), AxisType.LOOP) for n, each in moved]

    def _address(self, version: UOp, at: list[UOp]) -> UOp:
        position, exchanges = index_const(0), dict(zip(self.moved, at, strict=True))
        for each, step in self.steps.items():
            position = position + exchanges.get(each, each) * step
        return UOp(Ops.INDEX, self.reduction.dtype, (version, position))


def _layout(view: KernelView, reduction: UOp, moved: list[UOp]) -> tuple[dict[UOp, int], int]:
    """The stride of each axis in the accumulators' memory, and their number. Tiles are innermost; of these, the tile
    that most operands of the reduction walk with stride 1 has stride 1 here too, before one that only the parameters
    of what follows walk."""
    summed = frozenset(reduction.src[1:])

    def order(tile: UOp) -> tuple[bool, int, int, tuple[int, ...]]:
        walking = [access for access in view.accesses if stride(access, tile) == 1]
        operands = sum(bool(access.ranges & summed) for access in walking)
        return tile.arg.kind is not AxisType.UPCAST, -operands, -len(walking), tile.arg.id

    tiles = [each for each in reduction.ranges if each.arg.kind.is_tile]
    steps, size = {}, 1
    for each in (*sorted(tiles, key=order), *reversed(moved)):
        steps[each], size = size, size * size_of(each)
    return steps, size


def spill_candidates(view: KernelView) -> Iterator[tuple[UOp, int | None]]:
    for axis in view.of_kind(AxisType.LOOP):
        if check_spill(view, axis, None) is None:
            (reduction,) = _reductions(view, axis)
            yield axis, None
            yield from ((axis, count) for count in range(1, len(_loops(view, reduction))))


SPILL = Transform(OptOps.SPILL, check_spill, apply_spill, spill_candidates, "how many loops of the reduction move out")
