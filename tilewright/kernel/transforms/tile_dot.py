"""TC for operands of any kind: tiles of both are staged in local memory, and a tensor core multiplies them there. In: a
contraction and a core. Out: the kernel with its sum as a loop over steps of the summed loops, each of which stages a
tile of either operand and adds their product, a TILE_DOT, to the accumulators.

    before: for i, j: out[i, j] = f(sum over k of a(i, k) * b(k, j))
    after:  for tiles of rows and columns:                                  a work-group each
              for k0 in steps:
                left[i1, k1]  = a(i0 + i1, k0 + k1), 0 past the edges       shared among the threads
                right[j1, k1] = b(k0 + k1, j0 + j1)
                barrier
                acc[i1, j1] += TILE_DOT(left, right)
              out[i0 + i1, j0 + j1] = f(acc[i1, j1])

Every group of loops is flattened to one number, from which an operand's loops are computed by division. Elements are
staged in the order that they have in memory, as vectors where they are contiguous and aligned."""

from __future__ import annotations

import functools

from tilewright.base.dtype import dtypes
from tilewright.base.records import record, replace
from tilewright.base.target import CoreAxis, TensorCore, TileLayout
from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops, ParamArg, TileDotArg
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, const, index_const
from tilewright.graph.walk import exchange_axis, map_graph, size_of, substitute
from tilewright.kernel.analysis.contraction import Contraction, Operand, extent
from tilewright.kernel.axes import (
    KernelView,
    add_range,
    ceil_div,
    exact_quotient,
    is_counted,
    make_range,
    multiple_of,
    quotient_of,
)
from tilewright.kernel.masks import mask_axis, masked_index

# Bytes of a vector that one thread copies.
VECTOR_BYTES = 16
# Elements of as many bytes can be copied asynchronously one at a time.
MIN_ASYNC_BYTES = 4
# Rounds of a copy that are unrolled; more are a loop. Operands in parts pass through registers, which are few.
MAX_ROUNDS = 32
MAX_PART_ROUNDS = 16
# The number of the barrier before a copy, and of the one after it.
_BEFORE_COPY, _AFTER_COPY = -1, 0
_LEFT, _RIGHT = 0, 1


@record
class Staging:
    """How an operand's tile is copied: along its own loops, the last of which is the fastest, or along the summed ones,
    `lanes` elements at a time."""

    operand: Operand
    loops: tuple[UOp, ...]
    is_summed_fast: bool
    lanes: int


@record
class TilePlan:
    contraction: Contraction
    core: TensorCore
    summed: tuple[UOp, ...]  # the fastest last
    left: Staging
    right: Staging

    @property
    def steps(self) -> int:
        """Of the sum; the most where its length is an expression."""
        return -(-self.contraction.length // self.core.depth)


def plan_tiles(contraction: Contraction, core: TensorCore) -> TilePlan:
    """The order of the summed loops that lets both operands be copied in the widest vectors."""
    found: tuple[tuple[int, ...], TilePlan] | None = None
    for fastest in contraction.summed:
        others = [axis for axis in contraction.summed if axis is not fastest]
        order = (*sorted(others, key=lambda axis: (-_largest_stride(contraction, axis), axis.arg.id)), fastest)
        left = _plan_staging(contraction.left, fastest, not others, core, core.rows)
        right = _plan_staging(contraction.right, fastest, not others, core, core.columns)
        # A step inside one iteration of the other loops needs no division per element.
        score = (
            left.lanes + right.lanes,
            int(quotient_of(fastest, core.depth) is not None),
            -_largest_stride(contraction, fastest),
        )
        if found is None or score > found[0]:
            found = score, TilePlan(contraction, core, order, left, right)
    assert found is not None
    return found[1]


def _largest_stride(contraction: Contraction, axis: UOp) -> int:
    accesses = [*contraction.left.loads, *contraction.right.loads]
    return max((abs(affine(access.src[1]).terms.get(axis, 0)) for access in accesses), default=0)


def _plan_staging(operand: Operand, summed: UOp, is_only: bool, core: TensorCore, size: int) -> Staging:
    """Copies along the summed loop (which may be the only one) or along an own loop, whichever has the wider vectors;
    at equal widths along the one with the smaller stride in memory. The own loops keep the order of the store unless
    another has wider vectors."""
    elements, usual = size * core.depth, operand.loops[-1]
    is_single = len(operand.loops) == 1
    widths = {axis: _vector_width(operand, axis, is_single, core, elements, size) for axis in operand.loops}
    own = max(operand.loops, key=lambda axis: (widths[axis], axis is usual))
    # Single elements that are copied unchanged pass no register, in which those past the end could become 0.
    may_exceed = is_only and (core.operand.itemsize < MIN_ASYNC_BYTES or core.parts > 1)
    widths[summed] = _vector_width(operand, summed, may_exceed, core, elements, core.depth)
    steps = {axis: _smallest_stride(operand, axis) for axis in (summed, own)}
    is_summed_fast = (-widths[summed], steps[summed]) <= (-widths[own], steps[own])
    own = usual if is_summed_fast else own
    loops = (*(axis for axis in operand.loops if axis is not own), own)
    return Staging(operand, loops, is_summed_fast, widths[summed if is_summed_fast else own])


def _smallest_stride(operand: Operand, axis: UOp) -> int:
    steps = (abs(affine(access.src[1]).terms.get(axis, 0)) or 1 << 62 for access in operand.loads)
    return min(steps, default=1 << 62)


def _vector_width(operand: Operand, axis: UOp, may_exceed: bool, core: TensorCore, elements: int, tile: int) -> int:
    """Elements along the axis that every load has contiguous and aligned, and that one mask holds for. The last vector
    may exceed the axis where its elements are in the memory: rows and columns past the end are not used."""
    lanes = max(1, VECTOR_BYTES // core.operand.itemsize)
    threads = core.threads
    for access in operand.loads:
        form = affine(access.src[1])
        step = form.terms.get(axis, 0)
        atoms = (atom for atom in form.terms if atom is not axis)
        if step not in (0, 1) or any(axis in atom.ranges for atom in atoms):
            return 1
        if any(axis in mask.ranges for mask in access.src[2:]):
            return 1
        others = (0,) if step == 0 else (form.constant, *(s for atom, s in form.terms.items() if atom is not axis))
        while lanes > 1 and any(other % lanes for other in others):
            lanes //= 2
    while lanes > 1 and (tile % lanes or elements % (threads * lanes) or not _fits(operand, axis, may_exceed, lanes)):
        lanes //= 2
    return lanes


def _fits(operand: Operand, axis: UOp, may_exceed: bool, lanes: int) -> bool:
    if quotient_of(axis, lanes) is not None:
        return True
    if not may_exceed or not is_counted(axis):
        return False
    more = -size_of(axis) % lanes
    for access in operand.loads:
        form = affine(access.src[1])
        if any(atom.op is not Ops.RANGE for atom in form.terms):
            return False
        last = form.constant + sum(max(0, step * (size_of(atom) - 1)) for atom, step in form.terms.items())
        if form.terms.get(axis, 0) and last + more >= access.src[0].arg.size:
            return False
    return True


def apply_tiles(view: KernelView, plan: TilePlan) -> UOp:
    plan = replace(plan, core=laid_out(view, plan.core, plan.right.loops))
    contraction, core = plan.contraction, plan.core
    last = max(loop.arg.id for loop in view.axes)
    tiles, inside = [], []
    sides = ((plan.left, core.row_axes, core.rows), (plan.right, core.column_axes, core.columns))
    for staging, parts, size in sides:
        identity = staging.loops[0].arg.id
        tiles.append(make_range(ceil_div(extent(staging.loops), size), (*identity, 0), AxisType.GLOBAL))
        inside.append(index_in_tile(index_const(0), identity, parts, core, last))
    steps = ceil_div(extent(plan.summed), core.depth)
    step = make_range(steps, (*plan.summed[0].arg.id, 0), AxisType.REDUCE) if plan.steps > 1 else None
    total = _multiply(plan, tiles, inside, step, last)
    sink = substitute(view.sink, {contraction.reduce: total})
    for loop in contraction.batch:  # a work-group has one tile
        sink = exchange_axis(sink, loop, make_range(loop.src[0], loop.arg.id, AxisType.GLOBAL))
    for (staging, _, size), tile, number in zip(sides, tiles, inside, strict=True):
        sink = _lay_out(sink, staging.loops, tile * size + number, size)
    return sink


def laid_out(view: KernelView, core: TensorCore, loops: tuple[UOp, ...]) -> TensorCore:
    """The core with the layout that the stores need: adjacent columns belong to one thread where every store has them
    contiguous and aligned, as vectors. Elsewhere adjacent threads store single elements: a thread would write parts of
    sectors, which the cache takes several times as long for."""
    widest = max((axis.size for axis in core.column_axes if axis.step == 1), default=1)
    for store in view.stores:
        lanes = min(widest, VECTOR_BYTES // store.dtype.itemsize)
        form = affine(store.src[1])
        others = (form.constant, *(step for axis, step in form.terms.items() if axis is not loops[-1]))
        is_aligned = form.terms.get(loops[-1]) == 1 and not any(step % lanes for step in others)
        if not is_aligned or quotient_of(loops[-1], lanes) is None:
            return core.unaligned
    return core


def index_in_tile(
    total: UOp, identity: tuple[int, ...], parts: tuple[CoreAxis, ...], core: TensorCore, last: tuple[int, ...]
) -> UOp:
    """`total` plus the number of a row or column inside its tile. The ids of thread axes come after `last`, in the
    core's order and not in that of rows and columns."""
    for number, part in enumerate(parts):
        axis = (
            make_range(part.size, _thread_id(core, part, last), AxisType.LOCAL)
            if part.thread
            else make_range(part.size, (*identity, number + 1), AxisType.UPCAST)
        )
        total = total + axis * part.step
    return total


def _thread_id(core: TensorCore, part: CoreAxis, last: tuple[int, ...]) -> tuple[int, ...]:
    return (*last, 9, core.thread_number(part))


def _lay_out(sink: UOp, loops: tuple[UOp, ...], position: UOp, size: int) -> UOp:
    """The kernel with the loops flattened into one, and that exchanged for `position` in tiles of a size; past its end
    it is masked off."""
    total = extent(loops)
    flat = make_range(multiple_of(ceil_div(total, size), size), loops[0].arg.id, AxisType.LOOP)
    coordinates = decode(loops, flat, 1)
    for loop in loops:
        sink = exchange_axis(sink, loop, coordinates[loop])
    if exact_quotient(total, size) is None:
        sink = mask_axis(sink, flat, flat < total)
    return exchange_axis(simplify(sink), flat, position)


def decode(loops: tuple[UOp, ...], number: UOp, lanes: int, lane: UOp | None = None) -> dict[UOp, UOp]:
    """Each loop as an expression of the number of an element, which is `number * lanes + lane`."""
    found: dict[UOp, UOp] = {}
    for position, loop in enumerate(reversed(loops)):
        unit = lanes if position == 0 else 1
        size = exact_quotient(loop.src[0], unit)
        digit = number
        if position < len(loops) - 1:
            assert size is not None
            digit, number = number % size, number // size
        found[loop] = digit * unit if unit == 1 or lane is None else digit * unit + lane
    return found


# ---------------------------------------------------------------- the staged product


def _multiply(plan: TilePlan, tiles: list[UOp], inside: list[UOp], step: UOp | None, last: tuple[int, ...]) -> UOp:
    core = plan.core
    threads = [make_range(part.size, _thread_id(core, part, last), AxisType.LOCAL) for part in core.thread_axes]
    number = index_const(0)
    for part, axis in zip(core.thread_axes, threads):
        number = number + axis * part.thread
    memories, copies, layouts = [], [], []
    for slot, (staging, size) in enumerate(((plan.left, core.rows), (plan.right, core.columns))):
        layout = core.layout(size, staging.is_summed_fast)
        memory = UOp(Ops.DEFINE_LOCAL, core.operand, (), ParamArg(slot, layout.size(size, core.depth)))
        copies.append(_copy(plan, staging, memory, layout, tiles[slot], size, step, number, threads, slot))
        memories.append(memory)
        layouts.append(layout)
    ready = UOp(Ops.BARRIER, dtypes.void, tuple(copies), _AFTER_COPY)
    staged = [UOp(Ops.AFTER, memory.dtype, (memory, ready)) for memory in memories]
    # Threads multiply what there is; a tensor core always multiplies whole steps.
    depth = min(core.depth, plan.contraction.length) if core.multiplies_by_threads else core.depth
    argument = TileDotArg(core.name, depth, layouts[_LEFT], layouts[_RIGHT], core.parts)
    dot = UOp(Ops.TILE_DOT, core.accumulator, (*staged, *inside), argument)
    return dot if step is None else UOp(Ops.REDUCE, dot.dtype, (dot, step), Ops.ADD)


def _copy(
    plan: TilePlan,
    staging: Staging,
    memory: UOp,
    layout: TileLayout,
    tile: UOp,
    size: int,
    step: UOp | None,
    thread: UOp,
    threads: list[UOp],
    slot: int,
) -> UOp:
    """The effect that stages one tile: all threads together copy every element of it once."""
    core, lanes = plan.core, staging.lanes
    rounds = size * core.depth // (core.threads * lanes)
    made: list[UOp] = []

    add = functools.partial(add_range, made, slot)
    number, unrolled = thread, rounds
    most = MAX_PART_ROUNDS if core.parts > 1 else MAX_ROUNDS
    if rounds > most:
        unrolled = next(n for n in range(most, 0, -1) if rounds % n == 0)
        number = number + add(rounds // unrolled, AxisType.LOOP) * (unrolled * core.threads)
    if unrolled > 1:
        number = number + add(unrolled, AxisType.UPCAST) * core.threads
    lane = add(lanes, AxisType.UPCAST) if lanes > 1 else None
    fast = (core.depth if staging.is_summed_fast else size) // lanes
    digits = (number % fast, number // fast)
    own, summed = digits if not staging.is_summed_fast else digits[::-1]
    units = (1, lanes) if staging.is_summed_fast else (lanes, 1)
    total_own = tile * (size // units[0]) + own
    total_summed = summed if step is None else step * (core.depth // units[1]) + summed
    lanes_of = (None, lane) if staging.is_summed_fast else (lane, None)
    coordinates = decode(staging.loops, total_own, units[0], lanes_of[0])
    coordinates |= decode(plan.summed, total_summed, units[1], lanes_of[1])
    value = substitute(staging.operand.value, coordinates)
    bounds, length = [], extent(plan.summed)
    if exact_quotient(extent(staging.loops), size) is None:
        bounds.append(total_own < ceil_div(extent(staging.loops), units[0]))
    if exact_quotient(length, core.depth) is None:
        bounds.append(total_summed < ceil_div(length, units[1]))
    for bound in bounds:
        value = _mask_loads(value, bound)
    if bounds and value.op is not Ops.LOAD:
        value = (bounds[0] & bounds[1] if len(bounds) > 1 else bounds[0]).where(value, const(value.dtype, 0))
    if lane is not None and staging.is_summed_fast and exact_quotient(length, lanes) is None:
        value = (total_summed * lanes + lane < length).where(value, const(value.dtype, 0))
    at = [_element(digit, unit, each) for digit, unit, each in zip((own, summed), units, lanes_of)]
    version = memory
    if step is not None:
        version = UOp(Ops.AFTER, memory.dtype, (memory, UOp(Ops.BARRIER, dtypes.void, (step,), _BEFORE_COPY)))
    address = UOp(Ops.INDEX, memory.dtype, (version, simplify(layout.position(*at))))
    store = UOp(Ops.STORE, dtypes.void, (address, simplify(value)))
    return UOp(Ops.END, dtypes.void, (store, *made, *threads))


def _element(digit: UOp, unit: int, lane: UOp | None) -> UOp:
    return digit if lane is None else digit * unit + lane


def _mask_loads(value: UOp, inside: UOp) -> UOp:
    """No load of the value touches memory where `inside` does not hold."""

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Ops.INDEX:
            return node.with_src(masked_index(src, inside))
        if node.op is Ops.CHECK:
            return node.with_src((src[0], src[1] & inside))
        return None

    return map_graph(value, visit)
