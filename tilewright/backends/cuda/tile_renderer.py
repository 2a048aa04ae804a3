"""Programs with a TILE_DOT as CUDA C. In: a `Program` and its `TileRing`. Out: the text of one kernel.

The loop over the sum is software-pipelined: a function of the number of the step stages it, some steps ahead of the
products. Elements that are copied unchanged, 4 bytes or more at a time, are copied asynchronously, with zeros where
they are masked off; all others pass through registers while the last product runs."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tilewright.backends.cuda import tile_text
from tilewright.backends.cuda.dot_mma import name_registers, name_threads, parts_of_tile
from tilewright.backends.cuda.renderer import CudaLanguage
from tilewright.backends.cuda.tile_plan import STEP_COUNT, TileRing
from tilewright.base.dtype import dtypes
from tilewright.codegen.c_style.emitter import Emitter
from tilewright.codegen.c_style.expressions import Expression
from tilewright.codegen.c_style.launch import Launch
from tilewright.codegen.c_style.memory import CStyleMemory, Row, alignment
from tilewright.codegen.c_style.renderer import CStyleRenderer
from tilewright.codegen.tiles import tile_part
from tilewright.graph.ops import Ops
from tilewright.graph.records import Param, Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import consumers, size_of

# Bytes that an asynchronous copy moves.
COPY_BYTES = (4, 8, 16)
PART_BYTES = 2


class TileLanguage(CudaLanguage):
    def __init__(self, program: Program, ring: TileRing, is_restricted: bool) -> None:
        super().__init__(program, is_restricted)
        self.ring = ring

    def prelude(self, program: Program) -> list[str]:
        return tile_text.prelude(self.ring)

    def signature(self, program: Program, launch: Launch, params: list[tuple[Param, str]]) -> list[str]:
        arguments = ", ".join(self.arguments(program, params))
        bounds = f"__launch_bounds__({self.ring.core.threads}, {tile_text.groups(self.ring)})"
        return [f'extern "C" __global__ void {bounds} {self.kernel_name(program)}({arguments}) {{']


class TileMemory(CStyleMemory):
    """Accesses to a swizzled tile; and copies that do not pass through registers. Where `planes` says how long they
    are, numbers are stored in parts, one in each plane."""

    def __init__(
        self, emitter: Emitter, tiles: Collection[UOp], is_swizzled: bool, planes: dict[UOp, int] | None = None
    ) -> None:
        super().__init__(emitter)
        self.tiles = tiles
        self.is_swizzled = is_swizzled
        self.planes = planes or {}

    def _position_in(self, index: UOp, position: Expression) -> Expression:
        if not self.is_swizzled or memory_of(index) not in self.tiles:
            return position
        itemsize = PART_BYTES if memory_of(index) in self.planes else index.dtype.itemsize
        return Expression(f"swizzle<{itemsize}>({position.text})")

    def _element(self, index: UOp, base: Expression | None, offset: int) -> str:
        position = self._position_in(index, self._position(base, offset))
        return f"{self.names[memory_of(index)]}[{position.text}]"

    def _pointer(self, index: UOp, base: Expression | None, offset: int) -> Expression:
        if memory_of(index) not in self.tiles:
            return super()._pointer(index, base, offset)
        return Expression(f"&{self._element(index, base, offset)}")

    def _store_line(self, index: UOp, base: Expression | None, offset: int, values: list[Expression]) -> str:
        plane = self.planes.get(memory_of(index))
        if plane is None:
            return super()._store_line(index, base, offset, values)
        numbers = ", ".join(value.text for value in values)
        return f"store_parts<{plane}>(how, {self._pointer(index, base, offset).text}, {numbers});"

    def _load_element(self, index: UOp, row: Row, offset: int, label: str) -> Expression:
        lanes = self._load_where(index, row, offset, 1)
        return super()._load_element(index, row, offset, label) if lanes is None else lanes[0]

    def _load_vector(self, index: UOp, row: Row, offset: int, width: int) -> list[Expression]:
        lanes = self._load_where(index, row, offset, width)
        return super()._load_vector(index, row, offset, width) if lanes is None else lanes

    def _load_where(self, index: UOp, row: Row, offset: int, width: int) -> list[Expression] | None:
        """A masked load of numbers that are staged in parts, without a branch: later loads need not wait for the mask.
        None for other loads."""
        if row.mask is None or row.otherwise != self.language.literal(dtypes.float32, 0) or not self.planes:
            return None
        if index.dtype is not dtypes.float32 or memory_of(index).op is not Ops.PARAM:
            return None
        name, pointer = self.emitter.fresh("vec"), self._pointer(index, row.base, offset)
        self.emitter.line(f"const Numbers<{width}> {name} = load_where<{width}>({row.mask.text}, {pointer.text});")
        return [Expression(f"{name}[{lane}]") for lane in range(width)]

    def copied_lanes(self, store: UOp) -> tuple[UOp | None, int] | None:
        """The axis along which a store copies elements of a buffer unchanged, and how many at a time; None where they
        cannot be copied asynchronously."""
        index, load = store.src[:2]
        if memory_of(index) not in self.tiles or memory_of(index) in self.planes:
            return None
        if load.op is not Ops.LOAD or len(load.src) > 1:
            return None
        facts, source = self.emitter.facts, load.src[0]
        if memory_of(source).op is not Ops.PARAM or facts.axes(load) != facts.axes(store):
            return None
        itemsize = index.dtype.itemsize
        (near, near_steps), (far, far_steps) = (tile_part(each.src[1]) for each in (index, source))
        for axis in facts.axes(store):
            lanes = size_of(axis)
            others = [s for steps in (near_steps, far_steps) for a, s in steps.items() if a is not axis]
            is_run = near_steps.get(axis) == far_steps.get(axis) == 1 and lanes * itemsize in COPY_BYTES
            is_masked = any(axis in mask.ranges for mask in source.src[2:])
            if is_run and not is_masked and not any(step % lanes for step in others):
                if alignment(near) % lanes == 0 and alignment(far) % lanes == 0:
                    return axis, lanes
        return (None, 1) if itemsize in COPY_BYTES else None

    def find_copies(self, program: Program) -> dict[UOp, tuple[UOp | None, int]]:
        """The stores that only copy, whose loads have no other use."""
        users = consumers(program.body)
        stores = [node for node in program.body if node.op is Ops.STORE]
        found = {node: self.copied_lanes(node) for node in stores}
        return {node: lanes for node, lanes in found.items() if lanes is not None and users[node.src[1]] == [node]}

    def copy(self, store: UOp, lane: UOp | None, lanes: int) -> None:
        index, load = store.src[:2]
        source, emitter = load.src[0], self.emitter
        (near, near_steps), (far, far_steps) = (tile_part(each.src[1]) for each in (index, source))
        nbytes = lanes * index.dtype.itemsize
        for _, at in emitter.elements(store):
            if lane is not None and at[lane]:
                continue
            starts = []
            for base, steps in ((near, near_steps), (far, far_steps)):
                offset = sum(step * at[axis] for axis, step in steps.items())
                starts.append((None if base is None else emitter.operand(base, at), offset))
            to = self._pointer(index, *starts[0]).text
            mask = emitter.operand(source.src[2], at).text if len(source.src) > 2 else ""
            name, position = self.names[memory_of(source)], self._position(*starts[1])
            if mask:
                emitter.line(f"copy_async<{nbytes}>({to}, {name}, {position.text}, {mask});")
            else:
                emitter.line(f"copy_async<{nbytes}>({to}, {name} + {position.text});")


class TileRenderer(CStyleRenderer):
    def __init__(self, program: Program, ring: TileRing, is_restricted: bool = True) -> None:
        super().__init__(program, TileLanguage(program, ring, is_restricted))
        self.ring = ring
        planes = {memory: ring.plane_bytes(memory) // PART_BYTES for memory in ring.memories}
        self.tiles = TileMemory(self.emitter, ring.memories, ring.is_swizzled, planes if ring.core.parts > 1 else None)
        self.memory = self.tiles
        self.copies = self.tiles.find_copies(program)
        self.copied_loads = {store.src[1] for store in self.copies}
        self.loops: list[UOp] = []
        self.outside: list[str] | None = None  # the lines before those of the function that stages a step

    def _name_memory(self, params: dict[int, str]) -> None:
        for node in self.program.body:
            if node.op is Ops.INDEX and memory_of(node).op is Ops.DEFINE_LOCAL:
                self.memory.names[memory_of(node)] = f"shared{memory_of(node).arg.slot}"
        super()._name_memory(params)

    def open_group(self) -> None:
        self.emitter.line("const int thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;")
        name_threads(self.emitter, self.ring.node.src[2:], "thread")
        for line in tile_text.open_ring(self.ring):
            self.emitter.line(line)
        if self.ring.step is None:
            self._name_tiles("0")
            if self.ring.core.parts > 1:
                self.emitter.line("const Staged<true, true> how;")

    def _name_tiles(self, slot: str) -> None:
        offset = 0
        for memory in self.ring.memories:
            has_parts = self.ring.core.parts > 1
            kind = "unsigned short" if has_parts else self.language.memory_type(memory.dtype)
            name = self.memory.names[memory]
            start = f"ring + {slot} * {self.ring.stage_bytes} + {offset}"
            self.emitter.line(f"{kind}* const {name} = ({kind}*)({start});")
            offset += self.ring.bytes_of(memory)

    # ------------------------------------------------------------ the loop over the sum

    def open_loop(self, axis: UOp, start: str = "0", stop: str = "") -> None:
        self.loops.append(axis)
        if axis is not self.ring.step:
            super().open_loop(axis, start, stop)
            return
        if self.ring.step_count == STEP_COUNT:
            self.emitter.line(f"const int {STEP_COUNT} = {stop or self.stop_of(axis)};")
        self.outside, self.emitter.lines = self.emitter.lines, []
        name = self.emitter.axis_name(axis)
        self.emitter.values[axis] = {(): Expression(name)}
        how = "auto how, " if self.ring.core.parts > 1 else ""
        kind = self.language.type_name(axis.dtype)
        self.emitter.line(f"const auto stage_step = [&]({how}const {kind} {name}, int slot) {{")
        self.emitter.depth += 1
        self._name_tiles("slot")

    def close_loop(self) -> None:
        if self.loops.pop() is not self.ring.step:
            super().close_loop()

    def emit_body(self, body: Sequence[UOp]) -> None:
        """What follows the product, a few columns at a time."""
        node, step = self.ring.node, self.ring.step
        if node not in body:
            super().emit_body(body)
            return
        found = enumerate(body)
        end = next(
            n for n, each in found if (each is node if step is None else each.op is Ops.END and step in each.src)
        )
        parts = parts_of_tile(node.src[2:])
        early, late = self.split_around(body, end + 1, parts)
        super().emit_body(early)
        self.emit_in_parts(late, parts)

    def emit_node(self, node: UOp) -> None:
        if node.op is Ops.BARRIER or node in self.copied_loads:
            return
        if node in self.copies:
            self.tiles.copy(node, *self.copies[node])
        elif node.op is Ops.TILE_DOT:
            self._multiply(node)
        elif node.op is Ops.ACC:
            self.emitter.values[node] = self._elements(node)
        elif node.op is not Ops.ACCUMULATE:
            super().emit_node(node)

    def _multiply(self, node: UOp) -> None:
        lines = tile_text.multiply_once(self.ring)
        if self.outside is not None:
            self.emitter.depth -= 1
            self.emitter.line("};")
            self.emitter.lines = [*self.outside, *self.emitter.lines]
            lines = tile_text.multiply_steps(self.ring)
        for line in lines:
            self.emitter.line(line)
        self.emitter.values[node] = self._elements(node)

    def _elements(self, node: UOp) -> dict[tuple[int, ...], Expression]:
        """The registers that hold a thread's elements of the tile."""

        def register(row: int, column: int) -> str:
            return f"acc[{tile_text.register(self.ring, row, column)}]"

        return name_registers(self.emitter, node, self.ring.node.src[2:], register)
