"""How a program with a DOT runs on wgmma. In: a `Program`. Out: a `DotPlan` with tensor maps, tiles and stages of both
operands, and the launch. `dot` and `dot_text` write its text, the device encodes its tensor maps."""

from __future__ import annotations

import math

from tilewright.backends.cuda.cores import is_warp_group_core
from tilewright.backends.cuda.tensor_map import TensorMap
from tilewright.base.dtype import dtypes
from tilewright.base.records import record, replace
from tilewright.base.target import TensorCore
from tilewright.codegen.c_style.launch import Launch
from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of

# One line of shared memory, the unit that the copy engine swizzles; an operand's box is that wide.
LINE_BYTES = 128
WARP_GROUP = 128
# Rows that one wgmma instruction multiplies.
GROUP_ROWS = 64
# Threads of a warp, and the rows of an instruction that they hold.
WARP, WARP_ROWS = 32, 16
# Floats of a padded row where a warp exchanges elements through shared memory: the 8 rows that it stores at a time are
# then in different banks.
SPREAD_LINE = 40
# Shared memory for barriers and for aligning the ring.
SPARE_SHARED_BYTES = 2048


@record
class Side:
    """One operand: its layout in memory, and the loops around the product that it depends on."""

    map: TensorMap
    is_summed_fast: bool  # the summed axis is contiguous in memory, else the operand's own is
    batch: tuple[UOp, ...]
    tile: int  # rows or columns of a tile

    @property
    def bytes(self) -> int:
        return self.tile * LINE_BYTES


@record
class DotPlan:
    node: UOp
    core: TensorCore
    left: Side
    right: Side
    row_tiles: UOp | None
    column_tiles: UOp | None
    batch: tuple[UOp, ...]
    stages: int

    @property
    def multipliers(self) -> int:
        """The warp groups that multiply."""
        return self.core.rows // GROUP_ROWS

    @property
    def maps(self) -> tuple[TensorMap, TensorMap]:
        return self.left.map, self.right.map

    @property
    def threads(self) -> int:
        return WARP_GROUP * (self.multipliers + 1)

    @property
    def stage_bytes(self) -> int:
        return self.left.bytes + self.right.bytes

    @property
    def is_spread(self) -> bool:
        return is_spread(self.node.src[5])

    @property
    def spread_bytes(self) -> int:
        """Of the memory through which the threads that multiply exchange elements."""
        return spread_bytes(self.multipliers * WARP_GROUP) if self.is_spread else 0

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage_bytes + SPARE_SHARED_BYTES + self.spread_bytes

    @property
    def steps(self) -> int:
        return -(-int(self.node.arg.length) // self.core.depth)

    @property
    def registers(self) -> int:
        """Elements of a tile that one thread holds."""
        return self.core.columns // 2


def is_spread(column: UOp) -> bool:
    """Whether adjacent threads have adjacent columns."""
    return any(step == 1 and axis.arg.kind is AxisType.LOCAL for axis, step in affine(column).terms.items())


def spread_bytes(threads: int) -> int:
    return threads // WARP * WARP_ROWS * SPREAD_LINE * dtypes.float32.itemsize


def find_dot(program: Program) -> UOp | None:
    return next((node for node in program.body if node.op is Ops.DOT), None)


def core_of(program: Program, node: UOp) -> TensorCore:
    return next(core for core in program.target.tensor_cores if core.name == node.arg.core)


def plan_dot(program: Program) -> DotPlan | None:
    """How a program with a DOT for wgmma is run; None for any other program."""
    node = find_dot(program)
    if node is None or not is_warp_group_core(core_of(program, node)):
        return None
    core = core_of(program, node)
    left = _plan_side(node, 0, core.rows, node.arg.rows, node.arg.left, core)
    right = _plan_side(node, 1, core.columns, node.arg.columns, node.arg.right, core)
    tiles = [next((a for a in program.global_ranges if a in number.ranges), None) for number in node.src[4:6]]
    batch = tuple(axis for axis in program.global_ranges if axis not in tiles)
    plan = DotPlan(node, core, left, right, tiles[0], tiles[1], batch, 0)
    return replace(plan, stages=min(8, (program.target.max_local_bytes - plan.shared_bytes) // plan.stage_bytes))


def _plan_side(node: UOp, number: int, tile: int, size: int, steps: tuple[int, int], core: TensorCore) -> Side:
    memory, start = node.src[number], affine(node.src[2 + number])
    itemsize, length = core.operand.itemsize, node.arg.length
    batch = tuple(sorted(start.terms, key=lambda axis: axis.arg.id))
    wide = LINE_BYTES // itemsize
    own, summed = steps
    is_summed_fast = summed == 1
    sizes = (length, size) if is_summed_fast else (size, length)
    box = (wide, tile) if is_summed_fast else (wide, core.depth)
    strides = [own if is_summed_fast else summed, *(start.terms[axis] for axis in batch)]
    tensor_map = TensorMap(
        memory.arg.slot,
        start.constant * itemsize,
        itemsize,
        (*sizes, *(size_of(axis) for axis in batch)),
        tuple(step * itemsize for step in strides),
        (*box, *(1 for _ in batch)),
    )
    return Side(tensor_map, is_summed_fast, batch, tile)


def dot_launch(program: Program, plan: DotPlan) -> Launch:
    """One work-group a multiprocessor, or fewer where there are fewer tiles."""
    tiles = math.prod(size_of(axis) for axis in program.global_ranges)
    return Launch(
        (min(tiles, program.target.cores), 1, 1), (plan.threads, 1, 1), (), (), min(tiles, program.target.cores)
    )
