"""Opts for targets with work-groups. In: a kernel for a target. Out: the opts, in order.

  tensor core  a matrix product that one of the target's cores takes: TC, and nothing else
  product      two operands of a reduction each miss an output loop (matrix product, convolution): a tile of both loops
               per work-group, a smaller one per thread, operands through local memory
  rows         a reduction along memory (sum of rows, softmax, matrix times vector): the threads of a group share each
               row, adjacent threads on adjacent elements; all reductions of a row and its output loop use as many
               threads
  columns      a reduction across memory: threads along the fast output loop, which share the reduction if they are few
  elementwise  vectors along the fast loop, a work-group of adjacent ones

The choice follows from strides, sizes and the target's facts. An opt that a check refuses is left out."""

from __future__ import annotations

import math

from tilewright.base.target import Target, TensorCore
from tilewright.graph.kernels.threads import threads_of
from tilewright.graph.ops import AxisType
from tilewright.graph.records import Opt, OptOps
from tilewright.graph.uop import UOp
from tilewright.kernel.apply import fits_target
from tilewright.kernel.axes import KernelView, is_counted, size_of, stride, view_kernel
from tilewright.kernel.heuristics.opt_builder import OptBuilder
from tilewright.kernel.transforms.registry import TRANSFORMS
from tilewright.kernel.transforms.stage import operands
from tilewright.kernel.transforms.tensor_core import Product, find_product

# Threads of a work-group without shared data, and of one side of a tile.
GROUP_THREADS = 256
TILE_THREADS = 16
# Threads that saturate a core: with fewer than that on all cores, more threads share a reduction.
THREADS_PER_CORE = 2048
# Vectors of a row per thread, at least.
VECTORS_PER_THREAD = 4
# Below this many rows, columns and steps altogether tiles of tensor cores are mostly empty.
MIN_SIDE = 16
MIN_PRODUCT = 1 << 18
# Iterations of the reduction that are staged at a time, preferred first.
STAGED_DEPTH = (16, 8, 4)


class GroupOptBuilder(OptBuilder):
    """Takes an opt only where the work-group stays within the target's limits of threads and memory."""

    def take(self, op: OptOps, axis: UOp, argument: int) -> bool:
        """Applies an opt if it is legal and within the target's limits."""
        if TRANSFORMS[op].check(self.view, axis, argument) is not None:
            return False
        made = TRANSFORMS[op].apply(self.view, axis, argument)
        if not fits_target(view_kernel(made, self.target)):
            return False
        self.accept(op, axis, argument, made)
        return True

    def split(self, op: OptOps, axis: UOp, amount: int) -> UOp | None:
        """Splits `amount` off an axis; gives the remaining loop, the axis if it was not split, or None if all of it was
        taken."""
        if amount <= 1 or not self.take(op, axis, amount):
            return axis
        return self.find((*axis.arg.id, 0)) if amount < size_of(axis) else None

    def find(self, identity: tuple[int, ...]) -> UOp | None:
        return next((axis for axis in self.view.axes if axis.arg.id == identity), None)

    def fill_up(self, axis: UOp, multiple: int) -> UOp:
        if size_of(axis) % multiple and self.take(OptOps.PADTO, axis, multiple):
            found = self.find(axis.arg.id)
            assert found is not None
            return found
        return axis

    @property
    def lanes(self) -> int:
        """Elements of the widest dtype in one vector."""
        widest = max((access.dtype.itemsize for access in self.view.accesses), default=4)
        return max(1, self.target.vector_bytes // widest)

    @property
    def room(self) -> int:
        return self.target.max_group_size // threads_of(self.view.sink).count


def choose_group_opts(view: KernelView) -> tuple[Opt, ...]:
    core = choose_tensor_core(view)
    if core is not None:
        return (core,)
    builder = GroupOptBuilder(view)
    pair = product_axes(view)
    if pair is not None:
        tile_product(builder, *pair)
    elif any(unit_axis(view, node) is not None for node in view.reduces):
        share_rows(builder)
    else:
        if view.reduces:
            share_columns(builder)
        fill_groups(builder)
    return tuple(builder.opts)


# ---------------------------------------------------------------- tensor cores


def choose_tensor_core(view: KernelView) -> Opt | None:
    """The first core whose tiles keep every multiprocessor busy, else the one with the smallest tiles; None where the
    kernel is no product that a core takes, or one so small that tiles would be mostly empty."""
    fitting = [(axis, name) for axis, name in TRANSFORMS[OptOps.TC].candidates(view)]
    if not fitting:
        return None
    axis, cores = fitting[0][0], {core.name: core for core in view.target.tensor_cores}
    product = find_product(view, axis)
    assert isinstance(product, Product)
    rows, columns = size_of(product.left.axis), size_of(product.right.axis)
    if min(rows, columns) < MIN_SIDE or rows * columns * size_of(axis) < MIN_PRODUCT:
        return None
    batch = math.prod(size_of(a) for a in view.axes if a not in (product.left.axis, product.right.axis, axis))

    def tiles(core: TensorCore) -> int:
        return batch * -(-rows // core.rows) * -(-columns // core.columns)

    found = [cores[name] for _, name in fitting]
    smallest = min(found, key=lambda core: core.rows * core.columns)
    chosen = next((core for core in found if tiles(core) >= view.target.cores), smallest)
    return Opt(OptOps.TC, view.axes.index(axis), chosen.name)


def output_loops(view: KernelView) -> list[UOp]:
    loops = view.of_kind(AxisType.LOOP, AxisType.GLOBAL)
    return [axis for axis in loops if axis not in view.reduce_axes and is_counted(axis)]


def step_of(axis: UOp, accesses: tuple[UOp, ...] | list[UOp]) -> int:
    """The smallest stride along the axis; very large where no access depends on it."""
    steps = [abs(step) for step in (stride(access, axis) for access in accesses) if step]
    return min(steps, default=1 << 62)


def divisor(size: int, most: int, least: int = 1) -> int:
    """The largest divisor up to `most`, or a power of two that is at least half as large; 1 where it is below
    `least`."""
    found = max(d for d in range(1, min(size, most) + 1) if size % d == 0)
    power = math.gcd(size, 1 << max(most.bit_length() - 1, 0))
    best = power if 2 * power >= found else found
    return best if best >= least else 1


# ---------------------------------------------------------------- elementwise


def fill_groups(builder: GroupOptBuilder) -> None:
    """Vectors along the fast loop, then threads, until the work-group has GROUP_THREADS."""
    view = builder.view
    loops = sorted(output_loops(view), key=lambda axis: step_of(axis, view.stores))
    if not loops:
        return
    first: UOp | None = loops[0]
    assert first is not None
    steps = [stride(access, first) for access in view.accesses]
    if all(step in (0, 1) for step in steps) and not view.reduces:
        amount = math.gcd(size_of(first), builder.lanes)
        first = builder.split(OptOps.UPCAST, first, amount)
    for axis in (first, *loops[1:]):
        if axis is None or axis not in builder.view.axes:
            continue
        most = min(builder.room, GROUP_THREADS // max(1, threads_of(builder.view.sink).count))
        if most <= 1:
            return
        if size_of(axis) > 2 * most and divisor(size_of(axis), most) < min(most, warp_threads(builder.target)):
            axis = builder.fill_up(axis, most if size_of(axis) >= 64 * most else min(most, 64))
        builder.split(OptOps.LOCAL, axis, divisor(size_of(axis), most))


# ---------------------------------------------------------------- reductions along memory


def unit_axis(view: KernelView, reduce: UOp) -> UOp | None:
    """The longest reduce axis of stride 1 in an operand, if there is one."""
    inside = [access for access in view.accesses if any(axis in access.ranges for axis in reduce.src[1:])]
    axes = [axis for axis in reduce.src[1:] if axis.arg.kind is AxisType.REDUCE and is_counted(axis)]
    found = [axis for axis in axes if any(stride(access, axis) == 1 for access in inside) and size_of(axis) > 1]
    return max(found, key=size_of, default=None)


def share_rows(builder: GroupOptBuilder) -> None:
    """Gives every reduction of a row, and the loop that stores the row, to the same number of threads."""
    view = builder.view
    found = [unit_axis(view, node) for node in view.reduces]
    axes = list(dict.fromkeys(axis for axis in found if axis is not None))
    inner = [loop for loop in output_loops(view) if not all(loop in node.ranges for node in view.reduces)]
    inner = [loop for loop in inner if any(stride(store, loop) == 1 for store in view.stores)]
    lanes = builder.lanes
    length = max(size_of(axis) for axis in axes)
    rows = math.prod(size_of(loop) for loop in output_loops(view) if loop not in inner)
    threads = threads_for_rows(builder.target, -(-length // lanes), rows)
    for axis, op in [*((a, OptOps.GROUP) for a in axes), *((a, OptOps.LOCAL) for a in inner)]:
        if size_of(axis) % lanes or divisor(size_of(axis) // lanes, threads) < min(threads, 32):
            if size_of(axis) > lanes * threads:
                axis = builder.fill_up(axis, lanes * min(threads, 64))
        rest = builder.split(OptOps.UPCAST, axis, math.gcd(size_of(axis), lanes))
        if rest is not None:
            builder.split(op, rest, divisor(size_of(rest), threads))
    add_rows(builder)


def warp_threads(target: Target) -> int:
    """Threads that a group should have at the least: those of a warp, of the usual size where the target tells none."""
    return target.warp_size if target.warp_size > 1 else 32


def threads_for_rows(target: Target, vectors: int, rows: int) -> int:
    """Threads that share a row: enough to saturate the cores, each with enough work."""
    most = min(target.max_group_size, 1024)
    wanted = max(1, target.cores * THREADS_PER_CORE // max(rows, 1))
    least = min(vectors, warp_threads(target))
    own = max(1, vectors // VECTORS_PER_THREAD)
    count = max(least, min(own, max(wanted, GROUP_THREADS)))
    return min(most, 1 << (count.bit_length() - 1))


def add_rows(builder: GroupOptBuilder) -> None:
    """A work-group with few threads per row takes several rows."""
    loops = [a for a in output_loops(builder.view) if all(a in node.ranges for node in builder.view.reduces)]
    count = threads_of(builder.view.sink).count
    if loops and 1 < count < GROUP_THREADS // 2:
        axis = max(loops, key=lambda loop: loop.arg.id)
        builder.split(OptOps.LOCAL, axis, divisor(size_of(axis), min(builder.room, GROUP_THREADS // (2 * count))))


# ---------------------------------------------------------------- reductions across memory


def share_columns(builder: GroupOptBuilder) -> None:
    """Threads along the fast output loop; where they are few in all, they share the reduction."""
    view = builder.view
    loops = sorted(output_loops(view), key=lambda axis: step_of(axis, view.accesses))
    count = math.prod(size_of(loop) for loop in loops)
    wanted = builder.target.cores * THREADS_PER_CORE
    sharing = min(32, max(1, wanted // max(count, 1)), builder.target.max_group_size)
    axes = [axis for node in view.reduces for axis in node.src[1:] if axis.arg.kind is AxisType.REDUCE]
    if sharing < 2 or len(view.reduces) != 1 or not axes:
        return
    longest = max(axes, key=size_of)
    if loops:
        builder.split(OptOps.LOCAL, loops[0], divisor(size_of(loops[0]), 32))
    if longest in builder.view.axes:
        builder.split(OptOps.GROUP, longest, divisor(size_of(longest), min(sharing, builder.room)))


# ---------------------------------------------------------------- products


def product_axes(view: KernelView) -> tuple[UOp, UOp] | None:
    """Two output loops: one operand of the reduction does not depend on the first, another not on the second. The
    second has the smaller stride in the stores."""
    if len(view.reduces) != 1:
        return None
    reduce = view.reduces[0]
    closed = frozenset(reduce.src[1:])
    inside = [access for access in view.loads if access.ranges & closed]
    loops = [axis for axis in output_loops(view) if axis in reduce.ranges and size_of(axis) >= TILE_THREADS // 2]
    for access in inside:
        for other in inside:
            fast = [axis for axis in loops if axis not in access.ranges and axis in other.ranges]
            slow = [axis for axis in loops if axis in access.ranges and axis not in other.ranges]
            if fast and slow:
                column = min(fast, key=lambda axis: (step_of(axis, view.stores), axis.arg.id))
                row = min(slow, key=lambda axis: (step_of(axis, view.stores), axis.arg.id))
                is_ordered = step_of(column, view.stores) <= step_of(row, view.stores)
                return (row, column) if is_ordered else (column, row)
    return None


def tile_product(builder: GroupOptBuilder, row: UOp, column: UOp) -> None:
    """A tile of outputs per thread, a larger one per work-group, and the operands' tiles in local memory."""
    view = builder.view
    reduce = view.reduces[0]
    inside = [access for access in view.loads if access.ranges & frozenset(reduce.src[1:])]
    outputs = math.prod(size_of(loop) for loop in output_loops(view))
    side = 8 if outputs >= builder.target.cores * (8 * TILE_THREADS) ** 2 else 4
    for axis in (row, column):
        tile = side * TILE_THREADS
        if size_of(axis) % tile and size_of(axis) > TILE_THREADS:
            axis = builder.fill_up(axis, tile if size_of(axis) >= 4 * tile else TILE_THREADS)
        rest = builder.split(OptOps.UPCAST, axis, divisor(size_of(axis), min(side, max(1, size_of(axis) // 8))))
        if rest is not None:
            builder.split(OptOps.LOCAL, rest, divisor(size_of(rest), TILE_THREADS))
    axes = [axis for axis in builder.view.reduces[0].src[1:] if axis.arg.kind is AxisType.REDUCE and is_counted(axis)]
    if not axes:
        return
    deep = max(axes, key=lambda axis: (size_of(axis), axis.arg.id))
    depth = next((d for d in STAGED_DEPTH if size_of(deep) % d == 0 and size_of(deep) > d), 1)
    if depth == 1 and size_of(deep) > 64:
        deep = builder.fill_up(deep, STAGED_DEPTH[1])
        depth = STAGED_DEPTH[1]
    loop = builder.split(OptOps.UNROLL, deep, depth)
    # Only two plain operands are staged. Masked ones are read in place: half of a tile may be masked off.
    if loop is not None and depth > 1 and len(axes) == 1 and len(inside) == 2:
        for _ in inside:
            if operands(builder.view):
                builder.take(OptOps.STAGE, loop, 0)
