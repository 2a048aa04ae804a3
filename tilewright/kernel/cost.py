"""The cost of a plan. In: a kernel, what a template found in it, and a target. Out: an estimate in clocks of the whole
kernel, made from facts of the target (`base/costs.py`). A template gives it, in seconds, as the estimate of a plan."""

from __future__ import annotations

import math

from tilewright.base.costs import LONE_PART_CLOCKS, SINGLE_PART_CLOCKS, cache_clocks, memory_clocks, product_clocks
from tilewright.base.dtype import dtypes
from tilewright.base.target import Target, TensorCore
from tilewright.graph.affine import affine
from tilewright.graph.ops import Ops
from tilewright.graph.walk import size_of
from tilewright.kernel.analysis.contraction import Contraction, Operand, count
from tilewright.kernel.axes import KernelView
from tilewright.kernel.transforms.tile_dot import TilePlan

# Clocks to start a work-group, fill its stages and store its tile; clocks of a step's barrier of all threads.
_START_CLOCKS = 2000.0
_BARRIER_CLOCKS = 60.0
# Clocks of a step's copies besides those of their bytes; and the fraction of the shorter of arithmetic and copies that
# is not hidden by the longer one.
_FETCH_CLOCKS = 100.0
_EXPOSED = 0.1
# Where the copy engine fetches and warp groups multiply: clocks of a product relative to those of its operations alone;
# bytes that arrive in the time of one that threads load, where rows begin at multiples of a line of the cache; clocks
# of a step's copies besides. Measured on an H200 with tiles of 64x64 to 128x256.
_BULK_PRODUCT, _BULK_BYTES, _BULK_FETCH_CLOCKS = 1.2, 1.75, 50.0
# Clocks of a core for an element of a tile after its last step: of warp groups, and of warps, whose work-groups are
# small enough that another one multiplies meanwhile.
_GROUP_STORE_CLOCKS, _WARP_STORE_CLOCKS = 0.06, 0.05
_LINE_BYTES = 128
# Operands in parts pass through registers. Clocks of a core to split an element and store it, to add one to the sums
# after a step, and for one of the tile before its first step and after its last one; and how many threads, for which a
# core has registers, have loads enough on their way. Measured on an H200, relative to products of float32 by FMA.
_SPLIT_CLOCKS = 0.1
_ADD_CLOCKS = 1 / 128
_TILE_CLOCKS = 0.15
_PART_THREADS = 256
# Clocks of a core for an element that is copied on its own: its address, its mask, its load and store; and where all
# divisions of its address are shifts. Measured on an H200 with windows of images.
_SINGLE_COPY_CLOCKS, _SHIFTED_COPY_CLOCKS = 0.4, 0.23


def contraction_clocks(contraction: Contraction, core: TensorCore, target: Target, is_bulk: bool) -> float:
    """The longer of arithmetic and copies, plus a fraction of the shorter. Arithmetic is that of the multiprocessor
    with the most tiles. Copies are averaged over the multiprocessors: they continue from tile to tile, and a
    multiprocessor without tiles leaves its bandwidth to the others. Rows and columns past the end are not read."""
    rows, columns = -(-contraction.rows // core.rows), -(-contraction.columns // core.columns)
    tiles = count(contraction.batch) * rows * columns
    arithmetic = 2 * core.rows * core.columns * core.depth / core.operations_per_clock
    lines = min(core.rows, contraction.rows) + min(core.columns, contraction.columns)
    moved = lines * core.depth * core.operand.itemsize / target.core_bytes_per_clock
    barrier, fetch, start = _BARRIER_CLOCKS, _FETCH_CLOCKS, _START_CLOCKS
    if is_bulk:
        store = _GROUP_STORE_CLOCKS if core.staged_line_bytes else _WARP_STORE_CLOCKS
        start += -(-tiles // target.cores) * core.rows * core.columns * store
    if is_bulk and core.staged_line_bytes:
        barrier, fetch = 0.0, _BULK_FETCH_CLOCKS  # no step waits for all threads
        arithmetic *= _BULK_PRODUCT
        moved /= _BULK_BYTES if _begins_at_lines(contraction, core) else 1
    if core.parts > 1:
        fetch = 0.0
        groups = min(_PART_THREADS // core.threads, -(-tiles // target.cores))
        moved *= _PART_THREADS / (groups * core.threads)
        moved = max(moved, lines * core.depth * _SPLIT_CLOCKS)
        barrier += core.rows * core.columns * _ADD_CLOCKS
        start += -(-tiles // target.cores) * core.rows * core.columns * _TILE_CLOCKS
    steps = -(-contraction.length // core.depth)
    computed = -(-tiles // target.cores) * (arithmetic + barrier)
    fetched = max(1.0, tiles / target.cores) * (moved + fetch)
    return steps * (max(computed, fetched) + _EXPOSED * min(computed, fetched)) + start


def _begins_at_lines(contraction: Contraction, core: TensorCore) -> bool:
    """Whether all rows of both operands begin at multiples of a line of the cache: boxes of others are parts of two."""
    loads = [*contraction.left.loads, *contraction.right.loads]
    steps = [step for load in loads for step in affine(load.src[1]).terms.values() if abs(step) != 1]
    return all(step * core.operand.itemsize % _LINE_BYTES == 0 for step in steps)


def roofline_clocks(view: KernelView) -> tuple[float, float]:
    """The bounds of the roofline model: the clocks to move every buffer once, and those of all arithmetic in vectors of
    float32."""
    target = view.target
    nbytes = sum(node.arg.size * node.dtype.itemsize for node in view.nodes if node.op is Ops.PARAM)
    lanes = target.warp_size if target.has_local else target.lanes(dtypes.float32)
    values = [node for node in view.nodes if node.op.is_elementwise and node.dtype.is_float]
    operations = sum(math.prod(map(size_of, node.ranges)) for node in values)
    return memory_clocks(nbytes, target), product_clocks(operations, lanes, target)


def repeated_clocks(contraction: Contraction, core: TensorCore, target: Target) -> float:
    """Without tiles: every product loads an element of one operand, as in a matrix times a vector."""
    products = count(contraction.batch) * contraction.rows * contraction.columns * contraction.length
    return cache_clocks(products * core.operand.itemsize, target) + _START_CLOCKS


def single_copy_clocks(plan: TilePlan, target: Target) -> float:
    """The elements that are copied one by one; rows and columns past the end are not."""
    contraction, core = plan.contraction, plan.core
    rows, columns = min(core.rows, contraction.rows), min(core.columns, contraction.columns)
    tiles = count(contraction.batch) * -(-contraction.rows // core.rows) * -(-contraction.columns // core.columns)
    sides = ((rows, contraction.left, plan.left), (columns, contraction.right, plan.right))
    if core.parts > 1:
        each = LONE_PART_CLOCKS if core.threads == _PART_THREADS else SINGLE_PART_CLOCKS
        singles = sum(size for size, _, side in sides if side.lanes == 1)
        return -(-tiles // target.cores) * plan.steps * core.depth * singles * each
    lines = sum(count * _copy_clocks(operand) for count, operand, side in sides if side.lanes == 1)
    return tiles / target.cores * plan.steps * core.depth * lines


def _copy_clocks(operand: Operand) -> float:
    sizes = [size_of(loop) for loop in operand.loops]
    return _SHIFTED_COPY_CLOCKS if all(size & (size - 1) == 0 for size in sizes) else _SINGLE_COPY_CLOCKS
