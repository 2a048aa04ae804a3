"""How a program with several TILE_DOTs runs. In: a `Program`. Out: a `TileChain`: the tiles in shared memory, the loop
that fills some of them, and the program's body with the nodes that stage a step of that loop in one piece.
`chain_renderer.py` writes its text, the device asks for its shared memory."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection

from tilewright.backends.cuda.boxes import Box, find_boxes
from tilewright.backends.cuda.chain_text import columns_of
from tilewright.backends.cuda.dot_plan import WARP_GROUP
from tilewright.backends.cuda.tensor_map import TensorMap
from tilewright.backends.cuda.tile_plan import ALIGNMENT
from tilewright.base.records import record, replace
from tilewright.codegen.c_style.launch import Launch, plan_launch
from tilewright.codegen.tiles import tile_value
from tilewright.graph.affine import affine
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import consumers, size_of, toposort

MAX_STAGES = 3
# Stages where a product is one step late: those of the previous and the present step are read, others are in flight.
MIN_LATE_STAGES, MAX_LATE_STAGES = 3, 4
# Registers of a thread besides those of its tiles, and registers of a multiprocessor.
OTHER_REGISTERS, REGISTERS = 48, 65536
# The maximum of work-groups on a multiprocessor, and the shared memory that the system takes for each.
MAX_GROUPS, GROUP_BYTES = 2, 1024
# Numbers of groups that multiply, for which another group fetches.
MULTIPLYING_GROUPS = (2, 3)
BARRIER_BYTES = 8


@record
class Rescaled:
    """A product that is added to an array of registers times a factor: array = array * factor + product. `replaced` are
    the nodes that do so, which are not written one by one."""

    array: UOp
    factor: UOp
    replaced: frozenset[UOp]


@record
class TileChain:
    """`once` are tiles that are staged before the loop, `ring` those of every step. In the body of `program` the loop
    begins with the nodes that stage a step; the barrier `ready` and the rest follow; nodes that both need are in
    both."""

    program: Program
    dots: tuple[UOp, ...]
    loop: UOp | None
    once: tuple[UOp, ...]
    ring: tuple[UOp, ...]
    ready: UOp | None
    stages: int
    threads: int
    groups: int  # of a multiprocessor at the same time
    rescaled: dict[UOp, Rescaled]
    clipped: dict[UOp, UOp]  # each product whose elements are replaced where a comparison fails, by the WHERE
    late: UOp | None = None  # a product that is computed one step later, in parallel with what follows the first one
    boxes: dict[UOp, Box] | None = None  # of all tiles, where a separate warp group has the copy engine fetch them
    run: int = 1  # tiles that a work-group takes at a time, one after another, where tiles are fetched
    is_persistent: bool = False  # whether work-groups take runs until none is left: all runs have equal work

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
    def ring_end(self) -> int:
        return self.once_bytes + self.stages * self.stage_bytes

    @property
    def shared_bytes(self) -> int:
        """With fetched tiles, each stage and the tiles of `once` have two barriers: one is full, one is read."""
        barriers = 0 if self.boxes is None else BARRIER_BYTES * (2 * self.stages + 2)
        return self.ring_end + barriers + ALIGNMENT

    @property
    def multipliers(self) -> int:
        """The warp groups that multiply."""
        return self.threads // WARP_GROUP

    @property
    def launched_threads(self) -> int:
        return self.threads + (0 if self.boxes is None else WARP_GROUP)

    @property
    def maps(self) -> tuple[TensorMap, ...]:
        return () if self.boxes is None else tuple(self.boxes[memory].map for memory in self.memories)

    @property
    def runs(self) -> int:
        return math.prod(size_of(axis) for axis in self.program.global_ranges) // self.run

    def offset(self, memory: UOp) -> int:
        """The offset of a tile in shared memory, or in its stage."""
        group = self.once if memory in self.once else self.ring
        return sum(map(tile_bytes, group[: group.index(memory)]))


def tile_bytes(memory: UOp) -> int:
    return -(-int(memory.arg.size) * memory.dtype.itemsize // ALIGNMENT) * ALIGNMENT


def plan_chain(program: Program) -> TileChain | None:
    """The chain of a program with several TILE_DOTs, or with one whose left operand is in registers; None for any
    other."""
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
    threads = math.prod(map(size_of, program.local_ranges))
    users = consumers(program.body)
    rescaled = {dot: found for dot in dots if (found := _find_rescaled(program, dot, users)) is not None}
    clipped = {dot: users[dot][0] for dot in dots if _is_clipped(dot, users)}
    chain = TileChain(program, dots, loop, once, ring, None, 1, threads, 1, rescaled, clipped)
    registers = OTHER_REGISTERS + _live_registers(program, dots, rescaled)
    groups = max(1, min(MAX_GROUPS, REGISTERS // (threads * registers)))
    if loop is None:
        return replace(chain, groups=groups)
    boxes = _boxes_of(program, stores, threads)
    if boxes is not None:
        groups = 1
        run, is_persistent = _find_run(program, loop)
        chain = replace(chain, run=run, is_persistent=is_persistent)
    shared = (program.target.max_local_bytes + GROUP_BYTES) // groups - GROUP_BYTES
    room = (shared - ALIGNMENT - 2 * BARRIER_BYTES - chain.once_bytes) // (chain.stage_bytes + 2 * BARRIER_BYTES)
    body, ready = _stage_first(program, loop, ring)
    chain = replace(chain, program=replace(program, body=body), ready=ready, groups=groups, boxes=boxes)
    late = next(iter(rescaled), None) if len(dots) == 2 and dots[1] in rescaled else None
    if late is not None and room >= MIN_LATE_STAGES:
        return replace(chain, stages=min(MAX_LATE_STAGES, room), late=late)
    return replace(chain, stages=max(1, min(MAX_STAGES, size_of(loop) + 1, room)))


def chain_launch(chain: TileChain) -> Launch:
    if chain.boxes is None:
        return plan_launch(chain.program)
    count = min(chain.runs, chain.program.target.cores) if chain.is_persistent else chain.runs
    return Launch((count, 1, 1), (chain.launched_threads, 1, 1), (), (), count)


def _boxes_of(program: Program, stores: dict[UOp, list[UOp]], threads: int) -> dict[UOp, Box] | None:
    """The boxes of a program whose tiles are fetched by a separate warp group; None for any other. With a single group
    that multiplies there is none: another work-group of the multiprocessor multiplies while it waits."""
    is_known = program.section is None and all(axis.src[0].is_const for axis in program.global_ranges)
    if not is_known or threads not in [count * WARP_GROUP for count in MULTIPLYING_GROUPS]:
        return None
    return find_boxes(stores, program.local_ranges)


def _find_run(program: Program, loop: UOp) -> tuple[int, bool]:
    """How many tiles a work-group takes at a time, and whether that is equal work for all: where the number of steps
    depends on the tile, as many tiles as always have the same number of steps together."""
    count = loop.src[0]
    axes = sorted(count.ranges, key=lambda axis: axis.arg.id)
    if any(node.op not in (Ops.CONST, Ops.RANGE) and not node.op.is_elementwise for node in toposort(count)):
        return 1, False
    if not axes:
        return 1, True
    last = program.global_ranges[-1]
    if last not in axes or any(axis not in program.global_ranges for axis in axes):
        return 1, False
    others = [axis for axis in axes if axis is not last]
    totals = {
        sum(tile_value(count, {**dict(zip(others, at)), last: number}) for number in range(size_of(last)))
        for at in itertools.product(*(range(size_of(axis)) for axis in others))
    }
    return (size_of(last), True) if len(totals) == 1 else (1, False)


def _is_clipped(dot: UOp, users: dict[UOp, list[UOp]]) -> bool:
    """Whether the product is used as WHERE(x < y, product, constant) alone, x and y counting along its elements."""
    found = users.get(dot, [])
    if len(found) != 1 or found[0].op is not Ops.WHERE:
        return False
    condition, value, other = found[0].src
    if value is not dot or not other.is_const or condition.op is not Ops.CMPLT or len(users[condition]) != 1:
        return False
    if not condition.src[0].dtype.is_int:
        return False
    tiles = {axis for number in dot.src[2:4] for axis in number.ranges if axis.arg.kind.is_tile}
    for number in condition.src:
        own = [atom for atom in affine(number).terms if any(axis.arg.kind.is_tile for axis in atom.ranges)]
        if any(atom.op is not Ops.RANGE or atom not in tiles for atom in own):
            return False
    return True


def _find_rescaled(program: Program, dot: UOp, users: dict[UOp, list[UOp]]) -> Rescaled | None:
    """The product as STORE(at, LOAD(at) * factor + dot), if that is its only use. Products of parts start from zero:
    the tensor core would truncate their sum."""
    if dot.arg.parts > 1:
        return None
    body = program.body
    (add, *others) = users[dot] or [dot]
    if others or add.op is not Ops.ADD or len(users.get(add, ())) != 1 or users[add][0].op is not Ops.STORE:
        return None
    store, product = users[add][0], next((source for source in add.src if source is not dot), dot)
    if product.op is not Ops.MUL or users[product] != [add]:
        return None
    load = next((source for source in product.src if source.op is Ops.LOAD), None)
    if load is None or load.src[0] is not store.src[0] or users[load] != [product]:
        return None
    factor = next((source for source in product.src if source is not load), None)
    memory = memory_of(load.src[0])
    if factor is None or memory.op is not Ops.DEFINE_REG or factor not in body[: body.index(dot)]:
        return None
    return Rescaled(memory, factor, frozenset({add, store, product, load}))


def _live_registers(program: Program, dots: tuple[UOp, ...], rescaled: Collection[UOp]) -> int:
    """Registers for accumulators and arrays, and for the largest product. A left operand in parts is held as such and
    as it is, beside its product."""
    arrays = {node: node.arg.size for node in program.body if node.op is Ops.DEFINE_REG}
    held = [columns_of(dot) // 2 for dot in dots if dot not in rescaled]
    split = [
        columns_of(dot) // 2 + dot.arg.length // 2 + dot.arg.parts * dot.arg.length // 4
        for dot in dots
        if dot.arg.parts > 1 and dot.arg.left is None
    ]
    return (
        sum(map(int, arrays.values()))
        + max(held)
        + max(split, default=0)
        + sum(map(axis_product, _sums(program).values()))
    )


def find_sums(program: Program) -> dict[UOp, UOp]:
    """The accumulator of each product that the tensor core adds to it in each step of a loop: of no product of parts,
    whose sum it would truncate."""
    return {dot: acc for dot, acc in _sums(program).items() if dot.arg.parts == 1}


def _sums(program: Program) -> dict[UOp, UOp]:
    """The accumulator of each product that is summed over a loop, element by element."""
    whole = {node.src[0] for node in program.body if node.op is Ops.COMBINE and len(node.src) == 1}
    updates = [node for node in program.body if node.op is Ops.ACCUMULATE and node.arg is Ops.ADD]
    return {node.src[1]: node.src[0] for node in updates if node.src[1].op is Ops.TILE_DOT and node.src[0] in whole}


def axis_product(acc: UOp) -> int:
    return math.prod(map(size_of, acc.src[1:]))


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
    users = consumers(inside)
    alone = set(stores)  # nodes that only staging needs
    for node in reversed(staging):
        if all(user in alone for user in users[node]):
            alone.add(node)
    barriers = {node for node in inside if node.op is Ops.BARRIER and node in needed}
    rest = [node for node in inside if node not in alone and node not in barriers and node is not ready]
    return (*body[: start + 1], *staging, ready, *_products_first(rest, find_sums(program)), *body[end:]), ready


def _products_first(nodes: list[UOp], sums: Collection[UOp]) -> list[UOp]:
    """Products of two tiles first; products whose left operand is in registers, where they are summed, directly after
    that operand."""
    dots = [node for node in nodes if node.op is Ops.TILE_DOT]
    order = [node for node in nodes if node not in dots or node.arg.left is None]
    for dot in dots:
        if dot.arg.left is None and dot in sums:
            order.remove(dot)
            order.insert(order.index(dot.src[0]) + 1, dot)
    return [*(node for node in dots if node.arg.left is not None), *order]
