"""How a program with a TILE_DOT runs. In: a `Program`. Out: a `TileRing`: the local memories of both operands, how many
stages of them there are, and the loop that fills them. `tile_renderer.py` writes its text, the device asks for its
shared memory."""

from __future__ import annotations

from tilewright.backends.cuda.cores import is_warp_group_core
from tilewright.base.records import record
from tilewright.base.target import TensorCore
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import size_of

# A tile begins at a multiple of this, the length of the pattern that wgmma's swizzle repeats.
ALIGNMENT = 1024
# Work-groups that should fit a multiprocessor at the same time, and stages beyond which more do not help.
GROUPS, MAX_STAGES = 2, 4
# Planes of a tile that hold the high and the low half of numbers that are also there in parts.
PLAIN_PLANES = 2
# The name of a number of steps that a launch gives.
STEP_COUNT = "step_count"


@record
class TileRing:
    node: UOp
    core: TensorCore
    step: UOp | None  # the loop over the sum; None where one step is all of it
    memories: tuple[UOp, UOp]
    stages: int

    @property
    def is_swizzled(self) -> bool:
        return is_warp_group_core(self.core)

    @property
    def steps(self) -> int:
        """The most where the length of the sum is an expression."""
        return 1 if self.step is None else size_of(self.step)

    @property
    def min_steps(self) -> int:
        return 1 if self.step is None else int(self.step.src[0].vmin)

    @property
    def step_count(self) -> str:
        """The number of steps in the text: a name where it is an expression."""
        return STEP_COUNT if self.min_steps < self.steps else str(self.steps)

    @property
    def registers(self) -> int:
        """Elements of a tile that one thread holds."""
        return self.core.rows * self.core.columns // self.core.threads

    @property
    def planes(self) -> int:
        """Of an operand's tile: one for each part. Where one step is all of the sum, the numbers themselves stay too;
        otherwise they are staged again where they are needed."""
        return self.core.parts + (PLAIN_PLANES if self.core.parts > 1 and self.step is None else 0)

    def plane_bytes(self, memory: UOp) -> int:
        nbytes = int(memory.arg.size) * (self.core.part or memory.dtype).itemsize
        return -(-nbytes // ALIGNMENT) * ALIGNMENT

    def bytes_of(self, memory: UOp) -> int:
        return self.planes * self.plane_bytes(memory)

    @property
    def stage_bytes(self) -> int:
        return sum(self.bytes_of(memory) for memory in self.memories)

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage_bytes + ALIGNMENT


def plan_ring(program: Program) -> TileRing | None:
    """The ring of a program with a TILE_DOT; None for any other."""
    node = next((node for node in program.body if node.op is Ops.TILE_DOT), None)
    if node is None:
        return None
    core = next(core for core in program.target.tensor_cores if core.name == node.arg.core)
    step = next((axis for axis in node.ranges if axis.arg.kind is AxisType.REDUCE), None)
    left, right = (memory_of(memory) for memory in node.src[:2])
    ring = TileRing(node, core, step, (left, right), 1)
    room = program.target.max_local_bytes // GROUPS - ALIGNMENT - 1024
    stages = min(MAX_STAGES, ring.steps + 1, max(2, room // ring.stage_bytes)) if step is not None else 1
    return TileRing(node, core, step, (left, right), stages)
