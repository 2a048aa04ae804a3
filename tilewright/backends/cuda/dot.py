"""Programs with a DOT, on the card's asynchronous tensor cores. In: a `Program`. Out: the text of one kernel, its
launch and the tensor maps it takes. Stands beside `renderer.py`, which writes every other program.

One warp group has the copy engine fetch boxes of both operands into a ring of stages in shared memory, where a barrier
tells when a stage is full; the others multiply the stages into registers and hand them back. Work-groups are
persistent: fetching for the next tile does not wait for the rest of the program, which runs on the finished tile in
registers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.backends.cuda import dot_text
from tilewright.backends.cuda.chain_plan import plan_chain
from tilewright.backends.cuda.dot_mma import name_registers, name_threads, parts_of_tile, render_mma
from tilewright.backends.cuda.dot_plan import DotPlan, Side, core_of, dot_launch, find_dot, plan_dot
from tilewright.backends.cuda.fetched_chain import render_chain
from tilewright.backends.cuda.renderer import CudaLanguage, render
from tilewright.backends.cuda.tile_plan import plan_ring
from tilewright.backends.cuda.tile_renderer import TileRenderer
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.launch import Launch
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.graph.ops import Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.uop import UOp
from tilewright.graph.walk import size_of

# Work-groups that run at the same time share operands in the cache if their tiles are close: tiles are numbered down
# bands of this many rows of tiles.
BAND = 16


class DotLanguage(CudaLanguage):
    """The kernel takes the two tensor maps before its buffers."""

    def __init__(self, program: Program, plan: DotPlan) -> None:
        super().__init__(program)
        self.plan = plan

    def prelude(self, program: Program) -> list[str]:
        return dot_text.prelude(self.plan.left, self.plan.right, self.plan)

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        maps = [f"const __grid_constant__ TensorMap {name}" for name in ("map_left", "map_right")]
        arguments = ", ".join([*maps, *self.arguments(program, params)])
        name = self.kernel_name(program)
        return [f'extern "C" __global__ void __launch_bounds__({self.plan.threads}, 1) {name}({arguments}) {{']


class DotRenderer(CStyleRenderer):
    def __init__(self, program: Program, plan: DotPlan) -> None:
        super().__init__(program, DotLanguage(program, plan))
        self.plan = plan
        self.launch = dot_launch(program, plan)

    def text(self, lines: list[str]) -> None:
        for line in lines:
            self.emitter.line(line)

    def open_launch(self) -> None:
        plan = self.plan
        tiles = self.count_tiles()
        decode = self.decode_tile()
        self.text(dot_text.open_kernel(plan))
        self.text(dot_text.fetching_group(plan, tiles, decode, self.coordinates))
        self.text(dot_text.open_multiplying_groups(plan, tiles))
        self.emitter.depth += 1
        self.text(decode)
        name_threads(self.emitter, self.plan.node.src[4:6], "threadIdx.x")

    def count_tiles(self) -> str:
        """The number of tiles. Where sizes are symbolic, those of the launch are declared first."""
        plan, emitter = self.plan, self.emitter
        for axis in self.program.global_ranges:
            if not axis.src[0].is_const:
                self.emit_size(axis)
                emitter.line(f"const int {self._count_name(axis)} = {self.stop_of(axis)};")
        return _product(*(self._count(axis) for axis in (*plan.batch, plan.row_tiles, plan.column_tiles)))

    def _count_name(self, axis: UOp) -> str:
        return f"{self.emitter.axis_name(axis)}_count"

    def _count(self, axis: UOp | None) -> int | str:
        if axis is None:
            return 1
        return size_of(axis) if axis.src[0].is_const else self._count_name(axis)

    def decode_tile(self) -> list[str]:
        """The axes of the grid from the number of a tile: bands of rows, then columns, batches outermost."""
        plan, lines = self.plan, []
        rows, columns = self._count(plan.row_tiles), self._count(plan.column_tiles)
        if plan.batch:
            lines.append(f"const int inner = tile % {_product(rows, columns)};")
            sizes = [rows, columns]
            for axis in reversed(plan.batch):
                stride, count = _product(*sizes), self._count(axis)
                lines.append(f"const int {self.emitter.axis_name(axis)} = tile / {stride} % {count};")
                sizes.append(count)
        inner, band = "inner" if plan.batch else "tile", _product(BAND, columns)
        lines += [
            f"const int band = {inner} / {band}, within = {inner} - band * {band};",
            f"const int height = min({BAND}, {rows} - band * {BAND});",
            f"const int row_tile = band * {BAND} + within % height, column_tile = within / height;",
        ]
        names = {axis: self.emitter.axis_name(axis) for axis in plan.batch}
        for tiles, name in ((plan.row_tiles, "row_tile"), (plan.column_tiles, "column_tile")):
            if tiles is not None:
                names[tiles] = name
        for axis, name in names.items():
            self.emitter.values[axis] = {(): Expression(name)}
        return lines

    def coordinates(self, side: Side) -> str:
        """The coordinates of an operand's boxes in the dimensions of the loops around the product."""
        return "".join(f", {self.emitter.values[axis][()].text}" for axis in side.batch)

    def close_launch(self) -> None:
        self.emitter.depth -= 1
        self.emitter.line("}")

    def emit_body(self, body: Sequence[UOp]) -> None:
        """What follows the product, a few columns at a time."""
        if self.plan.node not in body:
            super().emit_body(body)
            return
        end = list(body).index(self.plan.node) + 1
        parts = parts_of_tile(self.plan.node.src[4:6])
        early, late = self.split_around(body, end, parts)
        super().emit_body(early)
        self.emit_in_parts(late, parts)

    def emit_node(self, node: UOp) -> None:
        if node.op is not Ops.DOT:
            super().emit_node(node)
            return
        self.text(dot_text.multiply(self.plan))

        def register(row: int, column: int) -> str:
            return f"acc[{dot_text.register(row, column, node.src[5])}]"

        self.emitter.values[node] = name_registers(self.emitter, node, node.src[4:6], register)


def _product(*factors: int | str) -> str:
    """The text of a product of numbers and names."""
    number, names = math.prod(f for f in factors if isinstance(f, int)), [f for f in factors if isinstance(f, str)]
    parts = [*([str(number)] if number != 1 or not names else []), *names]
    return parts[0] if len(parts) == 1 else f"({' * '.join(parts)})"


def render_program(program: Program, is_restricted: bool = True) -> str:
    """The CUDA text of any program."""
    chain = plan_chain(program)
    if chain is not None:
        return render_chain(chain, is_restricted)
    ring = plan_ring(program)
    if ring is not None:
        return TileRenderer(program, ring, is_restricted).render()
    node, plan = find_dot(program), plan_dot(program)
    if node is None:
        return render(program, is_restricted)
    return render_mma(program, node, core_of(program, node)) if plan is None else DotRenderer(program, plan).render()
