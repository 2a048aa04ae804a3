"""How a program with several TILE_DOTs runs. In: a `Program`. Out: a `TileChain`: where tiles lie in shared memory, the
loop that fills some of them, and the program's body with what stages a step of that loop in one piece.
`chain_renderer.py` writes its text, the device asks for its shared memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.backends.cuda.chain_text import columns_of
from tilewright.backends.cuda.tile_plan import ALIGNMENT
from tilewright.codegen.tiles import axis_size
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort

MAX_STAGES = 3
# Registers of a thread beside its tiles, those of a multiprocessor, and threads of a warp group.
OTHER_REGISTERS, REGISTERS, WARP_GROUP = 48, 65536, 128


@dataclass(frozen=True)
class TileChain:
    """`once` are tiles that are staged before the loop, `ring` those of every step. In the body of `program` the loop
    begins with what stages a step; the barrier `ready` and the rest follow; what both need stands there twice."""

    program: Program
    dots: tuple[UOp, ...]
    loop: UOp | None
    once: tuple[UOp, ...]
    ring: tuple[UOp, ...]
    ready: UOp | None
    stages: int
    threads: int
    groups: int  # of a multiprocessor at the same time

    @property
    def memories(self) -> tuple[UOp, ...]:
        return (*self.once, *self.ring)

    @property
    def once_bytes(self) -> int:
        return sum(map(tile_bytes, self.once))

    @property
    def stage_bytes(self) -> int:
        return sum(map(tile_bytes, self.ring))

    @property
    def shared_bytes(self) -> int:
        return self.once_bytes + self.stages * self.stage_bytes + ALIGNMENT

    def offset(self, memory: UOp) -> int:
        """Where a tile begins: in shared memory, or in its stage."""
        group = self.once if memory in self.once else self.ring
        return sum(map(tile_bytes, group[: group.index(memory)]))


def tile_bytes(memory: UOp) -> int:
    return -(-int(memory.arg.size) * memory.dtype.itemsize // ALIGNMENT) * ALIGNMENT


def plan_chain(program: Program) -> TileChain | None:
    """The chain of a program with several TILE_DOTs, or with one of what threads hold; None for any other."""
    dots = tuple(node for node in program.body if node.op is Ops.TILE_DOT)
    if len(dots) < 2 and not any(node.arg.left is None for node in dots):
        return None
    stores: dict[UOp, list[UOp]] = {}
    for node in program.body:
        if node.op is Ops.STORE and memory_of(node.src[0]).op is Ops.DEFINE_LOCAL:
            stores.setdefault(memory_of(node.src[0]), []).append(node)
    loops = {memory: _loops_around(found[0]) for memory, found in stores.items()}
    loop = next((found[0] for found in loops.values() if found), None)
    ring = tuple(memory for memory, found in loops.items() if found)
    once = tuple(memory for memory, found in loops.items() if not found)
    threads = 1
    for axis in program.local_ranges:
        threads *= axis_size(axis)
    chain = TileChain(program, dots, loop, once, ring, None, 1, threads, 1)
    registers = OTHER_REGISTERS + _live_registers(program, dots)
    groups = max(1, min(2, REGISTERS // (threads * registers)))
    room = program.target.max_local_bytes // groups - 2 * ALIGNMENT - chain.once_bytes
    if loop is not None:
        stages = max(1, min(MAX_STAGES, axis_size(loop) + 1, room // chain.stage_bytes))
        body, ready = _stage_first(program, loop, ring)
        chain = replace(chain, program=replace(program, body=body), ready=ready, stages=stages)
    return replace(chain, groups=groups)


def _live_registers(program: Program, dots: tuple[UOp, ...]) -> int:
    """Registers for accumulators and arrays, and for the largest product beside them."""
    arrays = {node: node.arg.size for node in program.body if node.op is Ops.DEFINE_REG}
    sums = {node.src[0] for node in program.body if node.op is Ops.ACCUMULATE and node.src[1].op is Ops.TILE_DOT}
    held = [columns_of(dot) // 2 for dot in dots]
    return sum(map(int, arrays.values())) + max(held) + sum(map(axis_product, sums))


def axis_product(acc: UOp) -> int:
    total = 1
    for axis in acc.src[1:]:
        total *= axis_size(axis)
    return total


def _loops_around(node: UOp) -> list[UOp]:
    return [axis for axis in node.ranges if axis.arg.kind in (AxisType.LOOP, AxisType.REDUCE)]


def _stage_first(program: Program, loop: UOp, ring: tuple[UOp, ...]) -> tuple[tuple[UOp, ...], UOp]:
    """The body in the order that `TileChain` says, and the barrier after which a step's tiles are read."""
    body = program.body
    start = body.index(loop)
    end = next(n for n, node in enumerate(body) if node.op is Ops.END and node.src[0] is loop)
    inside = body[start + 1 : end]
    stores = {node for node in inside if node.op is Ops.STORE and memory_of(node.src[0]) in ring}
    needed = set(toposort(*stores))
    staging = [node for node in inside if node in needed and node.op is not Ops.BARRIER]
    ready = next(node for node in inside if node.op is Ops.BARRIER and stores & set(toposort(node)))
    users: dict[UOp, list[UOp]] = {}
    for node in inside:
        for source in node.src:
            users.setdefault(source, []).append(node)
    alone = set(stores)  # what nothing but staging needs
    for node in reversed(staging):
        if all(user in alone for user in users.get(node, ())):
            alone.add(node)
    barriers = {node for node in inside if node.op is Ops.BARRIER and node in needed}
    rest = [node for node in inside if node not in alone and node not in barriers and node is not ready]
    return (*body[: start + 1], *staging, ready, *rest, *body[end:]), ready
