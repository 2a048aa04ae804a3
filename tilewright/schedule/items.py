"""Writing steps down as items. In: steps, and which versions share memory. Out: items over slots, each with the bytes
that it reads and writes. Equal kernels come out as one node, whatever memory they work on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b

from tilewright.base.dtype import DType, dtypes
from tilewright.base.target import Target
from tilewright.graph.affine import digest
from tilewright.graph.kernels.custom import output_node
from tilewright.graph.ops import Axis, AxisType, CheckArg, Ops, ParamArg
from tilewright.graph.records import Access, Item, KernelInfo, Slot
from tilewright.graph.simplify import simplify
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import map_graph, substitute, toposort
from tilewright.schedule.steps import Step
from tilewright.schedule.uses import size_of


class Slots:
    """Slots in the order they are made, and the slot of each version."""

    def __init__(self) -> None:
        self.table: list[Slot] = []
        self.of: dict[int, int] = {}

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
    for store in step.stores:
        buffer = UOp(Ops.PARAM, store.value.dtype, (), ParamArg(store.target, slots.slot(store.target).size))
        index = UOp(Ops.INDEX, buffer.dtype, (buffer, store.position))
        stores.append(UOp(Ops.STORE, dtypes.void, (index, store.value)))
    sink, checks, word = number_checks(UOp(Ops.SINK, dtypes.void, tuple(stores)), slots)
    ast, used, starts = canonical_kernel(sink, slots, alignment)
    reads, writes = kernel_accesses(ast, used, starts)
    if checks:
        slots.table.append(Slot(word, len(checks), device, "check"))
        used, starts = (*used, len(slots.table) - 1), (*starts, 0)
        writes = (*writes, Access(used[-1], 0, slots.table[-1].nbytes))
    return Item(ast, used, reads, writes, device, step.node.line, starts, checks)


def number_checks(sink: UOp, slots: Slots) -> tuple[UOp, tuple[int, ...], DType]:
    """A kernel whose CHECKs count from 0, so that equal kernels are one node; the number of each in the run; and the
    dtype of their words, which are the parameter behind all others."""
    nodes = toposort(sink)
    checks = [node for node in nodes if node.op is Ops.CHECK]
    if not checks:
        return sink, (), dtypes.int32
    slot = len({slots.of[node.arg.slot] for node in nodes if node.op is Ops.PARAM})
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
            used.append(slots.of[versions[node]])  # an argument that the kernel does not touch
    starts = (0,) * len(used)
    reads, writes = kernel_accesses(call.ast, tuple(used), starts)
    return Item(call.ast, tuple(used), reads, writes, device, node.line, starts)


def version_behind(node: UOp, versions: Mapping[UOp, int]) -> int:
    """The version whose memory holds a value that views may lie around."""
    while node not in versions:
        node = node.src[0]
    return versions[node]


def canonical_kernel(sink: UOp, slots: Slots, alignment: int) -> tuple[UOp, tuple[int, ...], tuple[int, ...]]:
    """A kernel over versions with its buffers and loops numbered from 0, so that equal kernels are one node; the slot
    of each buffer, and the byte at which the buffer begins there. Versions that share memory are one buffer. A buffer
    is the part of its slot that the kernel touches: the same step on another slice is the same kernel.

    before: a[b*4096 + k + 192]    b in 32, k in 64; a of 131072 elements
    after:  a[b*4096 + k]          a of 127040 elements, which begins at byte 768 of its slot"""
    nodes = toposort(sink)
    spans = touched_spans(nodes, slots, alignment)
    starts = {node.arg.slot: spans[slots.of[node.arg.slot]][0] for node in nodes if node.op is Ops.PARAM}
    is_moved = any(starts.values())
    if is_moved and has_nested_indices(nodes):
        sink, is_moved = move_starts(sink, starts), False
        nodes = toposort(sink)
    buffers = [store.src[0].src[0] for store in sink.src] + [node for node in nodes if node.op is Ops.PARAM]
    numbers: dict[int, int] = {}
    exchanges: dict[UOp, UOp] = {}
    for buffer in buffers:
        slot = slots.of[buffer.arg.slot]
        start, stop = spans[slot]
        number = numbers.setdefault(slot, len(numbers))
        exchanges[buffer] = buffer.replace(arg=ParamArg(number, stop - start))
    loops = sorted((node for node in nodes if node.op is Ops.RANGE), key=lambda node: node.arg.id)
    for number, loop in enumerate(loops):
        exchanges[loop] = loop.replace(arg=Axis((number,), loop.arg.kind))
    if is_moved:
        exchanges.update(moved_indices(nodes, starts, exchanges))
    ast = substitute(sink, exchanges)
    first_bytes = tuple(spans[slot][0] * slots.table[slot].dtype.itemsize for slot in numbers)
    loaded = bytes([numbers[slots.of[node.arg.slot]] % 256 for node in nodes if node.op is Ops.PARAM])
    return ast.replace(arg=KernelInfo(kernel_name(ast, loops, loaded))), tuple(numbers), first_bytes


def touched_spans(nodes: Sequence[UOp], slots: Slots, alignment: int) -> dict[int, tuple[int, int]]:
    """The elements [start, stop) of each slot that a kernel touches, as far as the bounds of its indices tell, from an
    aligned byte on. An index that may lie outside is masked there, and stays outside of the part."""
    spans: dict[int, tuple[int, int]] = {}
    for node in nodes:
        if node.op is not Ops.INDEX:
            continue
        slot = slots.of[node.src[0].arg.slot]
        size, step = slots.table[slot].size, max(1, alignment // node.dtype.itemsize)
        start = min(max(int(node.src[1].vmin), 0), size - 1) // step * step
        stop = max(min(int(node.src[1].vmax) + 1, size), start + 1)
        known = spans.get(slot, (start, stop))
        spans[slot] = (min(start, known[0]), max(stop, known[1]))
    return spans


def move_starts(sink: UOp, starts: Mapping[int, int]) -> UOp:
    """The kernel with the indices of each version counted from the element that its buffer begins at."""

    def visit(node: UOp, src: tuple[UOp, ...]) -> UOp | None:
        if node.op is Ops.INDEX and (start := starts[node.src[0].arg.slot]):
            return node.with_src((src[0], simplify(src[1] - start), *src[2:]))
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


def moved_indices(nodes: Sequence[UOp], starts: Mapping[int, int], exchanges: Mapping[UOp, UOp]) -> dict[UOp, UOp]:
    """What `move_starts` makes of each INDEX, with its buffer and loops exchanged: where no index lies below another,
    the kernel need not be rebuilt for it."""
    moved: dict[UOp, UOp] = {}
    for node in nodes:
        if node.op is Ops.INDEX and (start := starts[node.src[0].arg.slot]):
            src = (node.src[0], simplify(node.src[1] - start), *node.src[2:])
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
    bounds of its indices. Kept on the kernel: equal steps of a program are many."""
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
        key = (buffer.arg.slot, node.op is Ops.STORE)
        known = spans.get(key, (start, stop))
        spans[key] = (min(start, known[0]), max(stop, known[1]))
        itemsize[buffer.arg.slot] = buffer.dtype.itemsize
    found = [(k, is_write, start * itemsize[k], stop * itemsize[k]) for (k, is_write), (start, stop) in spans.items()]
    ast.cache["accessed-bytes"] = found
    return found
