"""Programs with a DOT, on the card's asynchronous tensor cores. In: a `Program`. Out: the text of one kernel, its
launch and the tensor maps it takes. Stands beside `renderer.py`, which writes every other program.

One warp group fetches boxes of both operands into a ring of stages in shared memory (the copy engine does, and tells a
barrier when a stage is full); the others multiply what lies there into registers and hand the stage back. A work-group
goes on to its next tile by itself, so that fetching never waits for what is done with a finished tile: the rest of the
program, which runs on the elements in registers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.backends.cuda import dot_text
from tilewright.backends.cuda.cores import is_warp_group_core
from tilewright.backends.cuda.dot_mma import name_threads, render_mma
from tilewright.backends.cuda.renderer import CudaLanguage, render
from tilewright.backends.cuda.tensor_map import TensorMap
from tilewright.base.target import TensorCore
from tilewright.codegen.c_style.launch import Launch
from tilewright.codegen.c_style.renderer import CStyleRenderer, Expression
from tilewright.codegen.tiles import axis_size
from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.uop import UOp

# One line of shared memory as the copy engine swizzles it; an operand's box is that wide.
LINE_BYTES = 128
WARP_GROUP = 128
# Rows that one warp group multiplies at a time.
GROUP_ROWS = 64
# Tiles that run at the same time share operands in the cache where they lie together: so many rows of tiles at a time.
BAND = 16
# Left for barriers and for aligning the ring.
SPARE_SHARED_BYTES = 2048


@dataclass(frozen=True)
class Side:
    """One operand: how it lies in memory, and the loops around the product that move it."""

    map: TensorMap
    is_summed_fast: bool  # the summed axis lies side by side in memory, else the operand's own does
    batch: tuple[UOp, ...]
    tile: int  # rows or columns of a tile

    @property
    def bytes(self) -> int:
        return self.tile * LINE_BYTES

    @property
    def boxes(self) -> int:
        """How many copies fetch a tile: lines run along the operand's own axis where that is the fast one."""
        return 1 if self.is_summed_fast else self.bytes // (LINE_BYTES * self.map.box[1])


@dataclass(frozen=True)
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
    def threads(self) -> int:
        return WARP_GROUP * (self.multipliers + 1)

    @property
    def stage_bytes(self) -> int:
        return self.left.bytes + self.right.bytes

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage_bytes + SPARE_SHARED_BYTES

    @property
    def steps(self) -> int:
        return -(-int(self.node.arg.length) // self.core.depth)

    @property
    def registers(self) -> int:
        """Elements of a tile that one thread holds."""
        return self.core.columns // 2


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
    tiles = [next((a for a in program.global_ranges if a in number.ranges), None) for number in node.src[4:]]
    batch = tuple(axis for axis in program.global_ranges if axis not in tiles)
    room = program.target.max_local_bytes - SPARE_SHARED_BYTES
    stages = min(8, room // (left.bytes + right.bytes))
    return DotPlan(node, core, left, right, tiles[0], tiles[1], batch, stages)


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
        (*sizes, *(axis_size(axis) for axis in batch)),
        tuple(step * itemsize for step in strides),
        (*box, *(1 for _ in batch)),
    )
    return Side(tensor_map, is_summed_fast, batch, tile)


def dot_launch(program: Program, plan: DotPlan) -> Launch:
    """One work-group a multiprocessor, or fewer where there are fewer tiles."""
    tiles = math.prod(axis_size(axis) for axis in program.global_ranges)
    return Launch(
        (min(tiles, program.target.cores), 1, 1), (plan.threads, 1, 1), (), (), min(tiles, program.target.cores)
    )


class DotLanguage(CudaLanguage):
    """The kernel takes the two tensor maps in front of its buffers."""

    def __init__(self, program: Program, plan: DotPlan) -> None:
        super().__init__(program)
        self.plan = plan

    def prelude(self, program: Program) -> list[str]:
        return dot_text.prelude(self.plan.left, self.plan.right, self.plan)

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        maps = [f"const __grid_constant__ TensorMap {name}" for name in ("map_left", "map_right")]
        arguments = ", ".join([*maps, *(self.parameter(param, name) for param, name in params)])
        name = self.kernel_name(program)
        return [f'extern "C" __global__ void __launch_bounds__({self.plan.threads}, 1) {name}({arguments}) {{']


class DotRenderer(CStyleRenderer):
    def __init__(self, program: Program, plan: DotPlan) -> None:
        super().__init__(program, DotLanguage(program, plan))
        self.plan = plan
        self.launch = dot_launch(program, plan)

    def text(self, lines: list[str]) -> None:
        for line in lines:
            self.line(line)

    def open_launch(self) -> None:
        plan = self.plan
        tiles = math.prod(axis_size(axis) for axis in self.program.global_ranges)
        decode = self.decode_tile()
        self.text(dot_text.open_kernel(plan))
        self.text(dot_text.fetching_group(plan, tiles, decode, self.coordinates))
        self.text(dot_text.open_multiplying_groups(plan, tiles))
        self.depth += 1
        self.text(decode)
        name_threads(self, self.plan.node, "threadIdx.x")

    def decode_tile(self) -> list[str]:
        """The axes of the grid from the number of a tile: bands of rows, then columns, batches outermost."""
        plan, lines = self.plan, []
        rows = axis_size(plan.row_tiles) if plan.row_tiles is not None else 1
        columns = axis_size(plan.column_tiles) if plan.column_tiles is not None else 1
        if plan.batch:
            lines.append(f"const int inner = tile % {rows * columns};")
            stride = rows * columns
            for axis in reversed(plan.batch):
                lines.append(f"const int {self.axis_name(axis)} = tile / {stride} % {axis_size(axis)};")
                stride *= axis_size(axis)
        inner = "inner" if plan.batch else "tile"
        lines += [
            f"const int band = {inner} / {BAND * columns}, within = {inner} - band * {BAND * columns};",
            f"const int height = min({BAND}, {rows} - band * {BAND});",
            f"const int row_tile = band * {BAND} + within % height, column_tile = within / height;",
        ]
        names = {axis: self.axis_name(axis) for axis in plan.batch}
        for tiles, name in ((plan.row_tiles, "row_tile"), (plan.column_tiles, "column_tile")):
            if tiles is not None:
                names[tiles] = name
        for axis, name in names.items():
            self.values[axis] = {(): Expression(name)}
        return lines

    def coordinates(self, side: Side) -> str:
        """Where the boxes of an operand lie in the dimensions of the loops around the product."""
        return "".join(f", {self.values[axis][()].text}" for axis in side.batch)

    def close_launch(self) -> None:
        self.depth -= 1
        self.line("}")

    def emit_node(self, node: UOp) -> None:
        if node.op is not Ops.DOT:
            super().emit_node(node)
            return
        self.text(dot_text.multiply(self.plan))
        row_form, column_form = (affine(number).terms for number in node.src[4:])
        self.values[node] = {}
        for place, at in self.elements(node):
            row = sum(step * at[axis] for axis, step in row_form.items() if axis.arg.kind is AxisType.UPCAST)
            column = sum(step * at[axis] for axis, step in column_form.items() if axis.arg.kind is AxisType.UPCAST)
            self.values[node][place] = Expression(f"acc[{column // 8 * 4 + row // 8 * 2 + column % 2}]")


def render_program(program: Program) -> str:
    """The CUDA text of any program."""
    node, plan = find_dot(program), plan_dot(program)
    if node is None:
        return render(program)
    return render_mma(program, node, core_of(program, node)) if plan is None else DotRenderer(program, plan).render()
