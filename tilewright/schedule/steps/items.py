"""Writes steps as items. In: steps, and which versions share memory. Out: items over slots, each with the bytes that it
reads and writes. Equal kernels become one node, whatever memory they access."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tilewright.base.digests import blake2b
from tilewright.base.dtype import DType, dtypes
from tilewright.base.records import NamedTuple
from tilewright.base.target import Target
from tilewright.graph.affine import digest
from tilewright.graph.kernels.custom import output_node
from tilewright.graph.ops import Axis, AxisType, CheckArg, Ops, ParamArg
from tilewright.graph.records import Access, Item, KernelInfo, Slot
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import map_graph, size_of, substitute, toposort
from tilewright.schedule.fusion.indexing import touched_span
from tilewright.schedule.steps.step import Part, Step

# For each PARAM of a kernel: the number of its memory, and the element of it at which the PARAM begins.
Memory = tuple[tuple[int, int], ...]


class CanonicalKernel(NamedTuple):
    """A kernel with numbered buffers. For each buffer the number of its memory and the element at which it begins
    there; for each check its number in the run; and the dtype of the checks' words."""

    ast: UOp
    buffers: tuple[int, ...]
    starts: tuple[int, ...]
    checks: tuple[int, ...]
    word: DType


class Slots:
    """Slots in the order of their creation, and the slot of each version; and the canonical kernels that were made
    already, by everything they depend on."""

    def __init__(self) -> None:
        self.table: list[Slot] = []
        self.of: dict[int, int] = {}
        self.kernels: dict[tuple[UOp, Memory, int], CanonicalKernel] = {}

    def add(self, version: int, slot: Slot) -> None:
        self.of[version] = len(self.table)
        self.table.append(slot)

    def slot(self, version: int) -> Slot:
        return self.table[self.of[version]]

    def whole(self, version: int) -> Access:
        return Access(self.of[version], 0, self.slot(version).nbytes)


def write_item(
    step: Step, device: str, slots: Slots, versions: Mapping[UOp, int], target_of: Callable[[str], Target]
) -> Item:
    if step.stores:
        return kernel_item(step, device, slots, target_of(device).start_alignment)
    if step.node.op is Ops.CUSTOM_KERNEL:
        return custom_item(step.node, device, slots, versions)
    target = slots.whole(step.targets[0])
    reads = tuple(map(slots.whole, step.reads))
    return Item(
        None,
        (target.slot, *(read.slot for read in reads)),
        reads,
        (target,) if reads else (),
        device,
        step.node.line,
    )


def kernel_item(step: Step, device: str, slots: Slots, alignment: int) -> Item:
    stores = []
    parts = list(step.loaded)
    for store in step.stores:
        size = int(store.position.vmax) + 1
        buffer = UOp(Ops.PARAM, store.value.dtype, (), ParamArg(len(parts), size))
        parts.append(Part(store.target, store.start, size))
        index = UOp(Ops.INDEX, buffer.dtype, (buffer, store.position))
        stores.append(UOp(Ops.STORE, dtypes.void, (index, store.value)))
    used = [slots.of[part.version] for part in parts]
    distinct = list(dict.fromkeys(used))
    places = [distinct.index(slot) for slot in used]
    firsts = [first_element(parts, used, slot, slots.table[slot].dtype, alignment) for slot in distinct]
    memory = tuple([(k, part.start - firsts[k]) for k, part in zip(places, parts, strict=True)])
    key = (UOp(Ops.SINK, dtypes.void, tuple(stores)), memory, alignment)
    kernel = slots.kernels.get(key)
    if kernel is None:
        kernel = slots.kernels[key] = canonical_kernel(*key)
    buffers = tuple([distinct[k] for k in kernel.buffers])
    rows = zip(kernel.buffers, kernel.starts, buffers, strict=True)
    starts = tuple([(firsts[k] + start) * slots.table[slot].dtype.itemsize for k, start, slot in rows])
    reads, writes = kernel_accesses(kernel.ast, buffers, starts)
    if kernel.checks:
        slots.table.append(Slot(kernel.word, len(kernel.checks), device, "check"))
        buffers, starts = (*buffers, len(slots.table) - 1), (*starts, 0)
        writes = (*writes, Access(buffers[-1], 0, slots.table[-1].nbytes))
    return Item(kernel.ast, buffers, reads, writes, device, step.node.line, starts, kernel.checks)


def first_element(parts: Sequence[Part], used: Sequence[int], slot: int, dtype: DType, alignment: int) -> int:
    """The first element of a slot that parts may touch, rounded down to the alignment of a buffer."""
    step = max(1, alignment // dtype.itemsize)
    return min([part.start for part, other in zip(parts, used, strict=True) if other == slot]) // step * step


def number_checks(sink: UOp, memory: Memory) -> tuple[UOp, tuple[int, ...], DType]:
    """A kernel whose CHECKs count from 0, so that equal kernels are one node; the number of each in the run; and the
    dtype of their words, which are the last parameter."""
    nodes = toposort(sink)
    checks = [node for node in nodes if node.op is Ops.CHECK]
    if not checks:
        return sink, (), dtypes.int32
    slot = len({memory[node.arg.slot][0] for node in nodes if node.op is Ops.PARAM})
    # Not all devices have integers of 64 bits.
    dtype = dtypes.int64 if any(node.dtype.bits == 64 for node in checks) else dtypes.int32
    words = {number: word for word, number in enumerate(dict.fromkeys(node.arg.number for node in checks))}

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is not Ops.CHECK:
            return None
        return node.replace(src=src, arg=CheckArg(node.arg.size, False, words[node.arg.number], slot, dtype.bits))

    return map_graph(sink, visit, nodes), tuple(words), dtype


def custom_item(node: UOp, device: str, slots: Slots, versions: Mapping[UOp, int]) -> Item:
    call = node.arg
    used: list[int] = []
    for slot, position in enumerate(call.sources):
        if slot in call.written:
            used.append(slots.of[versions[output_node(node, slot)]])
        elif position is not None:
            used.append(slots.of[version_behind(node.src[position], versions)])
        else:
            used.append(slots.of[versions[node]])  # an argument that the kernel does not access
    starts = (0,) * len(used)
    reads, writes = kernel_accesses(call.ast, tuple(used), starts)
    return Item(call.ast, tuple(used), reads, writes, device, node.line, starts)


def version_behind(node: UOp, versions: Mapping[UOp, int]) -> int:
    """The version of memory that a value is a view of."""
    while node not in versions:
        node = node.src[0]
    return versions[node]


def canonical_kernel(sink: UOp, memory: Memory, alignment: int) -> CanonicalKernel:
    """A kernel with its buffers and loops numbered from 0, so that equal kernels are one node. PARAMs that share memory
    are one buffer. A buffer is the part of its memory that the kernel touches: the same step on another slice is the
    same kernel.

    before: a[b*4096 + k + 192]    b in 32, k in 64; a of 131072 elements
    after:  a[b*4096 + k]          a of 127040 elements, which begins at byte 768 of its memory"""
    sink, checks, word = number_checks(sink, memory)
    nodes = toposort(sink)
    spans = touched_spans(nodes, memory, alignment)
    moves = [start - spans[k][0] if k in spans else 0 for k, start in memory]
    is_moved = any(moves)
    if is_moved and has_nested_indices(nodes):
        sink, is_moved = move_starts(sink, moves), False
        nodes = toposort(sink)
    params = [node for node in nodes if node.op is Ops.PARAM]
    numbers: dict[int, int] = {}
    exchanges: dict[UOp, UOp] = {}
    for buffer in (*(store.src[0].src[0] for store in sink.src), *params):
        behind, _ = memory[buffer.arg.slot]
        start, stop = spans[behind]
        number = numbers.setdefault(behind, len(numbers))
        exchanges[buffer] = buffer.replace(arg=ParamArg(number, stop - start))
    loops = sorted((node for node in nodes if node.op is Ops.RANGE), key=lambda node: node.arg.id)
    for number, loop in enumerate(loops):
        exchanges[loop] = loop.replace(arg=Axis((number,), loop.arg.kind))
    if is_moved:
        exchanges.update(moved_indices(nodes, moves, exchanges))
    ast = substitute(sink, exchanges)
    loaded = bytes([number % 256 for number in dict.fromkeys([exchanges[param].arg.slot for param in params])])
    named = ast.replace(arg=KernelInfo(kernel_name(ast, loops, loaded)))
    return CanonicalKernel(named, tuple(numbers), tuple([spans[k][0] for k in numbers]), checks, word)


def touched_spans(nodes: Sequence[UOp], memory: Memory, alignment: int) -> dict[int, tuple[int, int]]:
    """The elements [start, stop) of each memory that a kernel accesses, from an aligned byte on (`touched_span`)."""
    spans: dict[int, tuple[int, int]] = {}
    for node in nodes:
        if node.op is not Ops.INDEX:
            continue
        buffer, position = node.src[:2]
        number, first = memory[buffer.arg.slot]
        start, stop = touched_span(position, buffer.arg.size, max(1, alignment // node.dtype.itemsize), first)
        known = spans.get(number, (start, stop))
        spans[number] = (min(start, known[0]), max(stop, known[1]))
    return spans


def move_starts(sink: UOp, moves: Sequence[int]) -> UOp:
    """The kernel with the indices of each PARAM counted from the element that its buffer begins at."""

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Ops.INDEX and (move := moves[node.src[0].arg.slot]):
            return node.with_src((src[0], simplify(src[1] + move), *src[2:]))
        return None

    return map_graph(sink, visit)


def has_nested_indices(nodes: Sequence[UOp]) -> bool:
    """Whether an index, or its mask, is computed from what another index loads."""
    loaded: set[UOp] = set()
    for node in nodes:
        if node.op is Ops.LOAD or not loaded.isdisjoint(node.src):
            if node.op is Ops.INDEX:
                return True
            loaded.add(node)
    return False


def moved_indices(nodes: Sequence[UOp], moves: Sequence[int], exchanges: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
    """What `move_starts` makes of each INDEX, with its buffer and loops replaced: where no index depends on another,
    this takes no second rebuild of the kernel."""
    moved: dict[UOp, UOp] = {}
    for node in nodes:
        if node.op is Ops.INDEX and (move := moves[node.src[0].arg.slot]):
            src = (node.src[0], simplify(node.src[1] + move), *node.src[2:])
            moved[node] = node.with_src(tuple([substitute(each, exchanges) for each in src]))
    return moved


def kernel_name(ast: UOp, loops: Iterable[UOp], loaded: bytes) -> str:
    """What the kernel does and over which sizes; and, so that different kernels have different names, a few digits that
    follow from what it computes and from the buffers that it loads, in order. The same kernel has the same name in
    every schedule and process."""
    kind = "reduce" if any(loop.arg.kind is AxisType.REDUCE for loop in loops) else "map"
    sizes = "_".join(f"{'' if loop.src[0].is_const else 'max'}{size_of(loop)}" for loop in loops) or "1"
    return f"{kind}_{sizes}_{blake2b(digest(ast) + loaded, digest_size=3).hexdigest()}"


def kernel_accesses(
    ast: UOp, slots: tuple[int, ...], starts: tuple[int, ...]
) -> tuple[tuple[Access, ...], tuple[Access, ...]]:
    """The byte ranges of slots that a kernel reads and writes."""
    accesses = [
        (is_write, Access(slots[k], starts[k] + start, starts[k] + stop))
        for k, is_write, start, stop in accessed_bytes(ast)
    ]
    reads = tuple([access for is_write, access in accesses if not is_write])
    return reads, tuple([access for is_write, access in accesses if is_write])


def accessed_bytes(ast: UOp) -> list[tuple[int, bool, int, int]]:
    """The parameters that a kernel accesses, whether it writes them, and the bytes [start, stop) of each, from the
    bounds of its indices. Cached on the kernel, since a program has many equal steps."""
    found: list[tuple[int, bool, int, int]] | None = ast.cache.get("accessed-bytes")
    if found is not None:
        return found
    spans: dict[tuple[int, bool], tuple[int, int]] = {}
    itemsize: dict[int, int] = {}
    for node in toposort(ast):
        if node.op is not Ops.LOAD and node.op is not Ops.STORE:
            continue
        buffer, position = memory_of(node.src[0]), node.src[0].src[1]
        if buffer.op is not Ops.PARAM:
            continue
        start, stop = max(int(position.vmin), 0), min(int(position.vmax) + 1, buffer.arg.size)
        for is_write in (True, False) if node.op is Ops.STORE and node.arg else (node.op is Ops.STORE,):
            key = (buffer.arg.slot, is_write)
            known = spans.get(key, (start, stop))
            spans[key] = (min(start, known[0]), max(stop, known[1]))
        itemsize[buffer.arg.slot] = buffer.dtype.itemsize
    found = [(k, is_write, start * itemsize[k], stop * itemsize[k]) for (k, is_write), (start, stop) in spans.items()]
    ast.cache["accessed-bytes"] = found
    return found
