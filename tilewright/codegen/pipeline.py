"""The codegen stage. In: an optimised kernel and a target. Out: a linear `Program`.

separate_loops      needs: any reductions        gives: each loop one nest
emulate_dtypes      needs: any dtypes            gives: arithmetic in dtypes the target has
share_threads       needs: LOCAL and GROUP axes  gives: axes that may share threads as one
lower_groups        needs: GROUP axes            gives: local memory and barriers
settle_threads      needs: no grouped reduction  gives: LOCAL axes alone, one thread storing what is the same for all
cascade_sums        needs: no grouped reduction  gives: float sums of bounded length, long ones nested
decompose           needs: any ops               gives: ops the target has
split_vectors       needs: tile axes             gives: those that are lanes as long as vectors can be
split_addresses     needs: index maths           gives: positions as base + tile
choose_index_width  needs: bounds                gives: int32 or int64 instead of index
split_wide_integers needs: 64-bit integers      gives: pairs of 32-bit words, where the target lacks them
linearise           needs: a graph               gives: nodes in order, inside their loops"""

from __future__ import annotations

from tilewright.base.dtype import dtypes
from tilewright.base.events import stage_timer
from tilewright.base.target import Target
from tilewright.codegen.addresses import choose_index_width, split_addresses
from tilewright.codegen.cascade import cascade_sums
from tilewright.codegen.decompose import decompose
from tilewright.codegen.emulate_dtype import emulate_dtypes
from tilewright.codegen.group import lower_groups
from tilewright.codegen.launch import join_cores, settle_threads, share_threads
from tilewright.codegen.linearise import LAUNCH_KINDS, Lineariser
from tilewright.codegen.separate_loops import separate_loops
from tilewright.codegen.vectors import split_vectors
from tilewright.codegen.wide_integers import split_wide_integers
from tilewright.graph.ops import AxisType, Ops
from tilewright.graph.records import KernelInfo, Param, Program
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort


def lower(sink: UOp, target: Target, scheduled: UOp | None = None) -> Program:
    """`scheduled` is the kernel before its transforms: what they pad it with is not counted as its work."""
    with stage_timer("codegen"):
        flops, bytes_moved = estimate_work(sink if scheduled is None else scheduled)
        sink = emulate_dtypes(separate_loops(join_cores(sink)), target)
        sink, threads = share_threads(sink)
        sink = settle_threads(lower_groups(sink, threads, target))
        sink = cascade_sums(sink)
        sink = decompose(sink, target)
        sink = split_addresses(split_vectors(sink, target))
        sink = split_wide_integers(choose_index_width(sink), target)
        loops = loop_order(sink)
        body = Lineariser(sink, loops).body()
        name = sink.arg.name if isinstance(sink.arg, KernelInfo) and sink.arg.name else "kernel"
        launch = sorted(
            (n for n in toposort(sink) if n.op is Ops.RANGE and n.arg.kind in LAUNCH_KINDS), key=_launch_key
        )
        in_grid = (AxisType.GLOBAL, AxisType.THREAD)
        local = {axis.arg.id: axis for axis in launch if axis.arg.kind not in in_grid}
        local_order = [axis.arg.id for (axis,) in threads.lanes]
        return Program(
            name,
            tuple(body),
            program_params(sink),
            tuple(axis for axis in launch if axis.arg.kind in in_grid),
            tuple(local[found] for found in local_order if found in local),
            target,
            flops,
            bytes_moved,
            sink.arg.fills if isinstance(sink.arg, KernelInfo) else (),
        )


def _launch_key(axis: UOp) -> tuple[str, tuple[int, ...]]:
    return (axis.arg.kind.value, axis.arg.id)


def loop_order(sink: UOp) -> tuple[UOp, ...]:
    """Output loops, outermost first: rows, which more reductions depend on, before the loops inside them."""
    nodes = toposort(sink)
    reduces = [node for node in nodes if node.op is Ops.REDUCE]
    loops = [node for node in nodes if node.op is Ops.RANGE and node.arg.kind is AxisType.LOOP]
    closed = {axis for node in nodes if node.op in (Ops.REDUCE, Ops.END) for axis in node.src[1:]}
    stores = [node for node in nodes if node.op is Ops.STORE]

    def key(loop: UOp) -> tuple[int, int, tuple[int, ...]]:
        users = (sum(loop in node.ranges for node in found) for found in (reduces, stores))
        return (-next(users), -next(users), loop.arg.id)

    return tuple(sorted((loop for loop in loops if loop not in closed), key=key))


def program_params(sink: UOp) -> tuple[Param, ...]:
    """The buffers of a kernel, with what it does to each."""
    nodes = toposort(sink)
    written = {memory_of(node.src[0]) for node in nodes if node.op is Ops.STORE}
    read = {memory_of(node.src[0]) for node in nodes if node.op is Ops.LOAD}
    read.update(memory for node in nodes if node.op is Ops.DOT for memory in node.src[:2])
    params = sorted((node for node in nodes if node.op is Ops.PARAM), key=lambda node: node.arg.slot)
    found = [Param(p.arg.slot, p.dtype, p.arg.size, p in read, p in written) for p in params]
    checks = [node for node in nodes if node.op is Ops.CHECK]
    if checks:
        word = dtypes.int64 if checks[0].arg.bits == 64 else dtypes.int32
        count = max(node.arg.number for node in checks) + 1
        found.append(Param(checks[0].arg.slot, word, count, False, True, holds_checks=True))
    return tuple(found)


def estimate_work(sink: UOp) -> tuple[int, int]:
    """Arithmetic operations and bytes that must move, for the lines of DEBUG=2."""
    operations = 0
    moved: dict[UOp, int] = {}
    for node in toposort(sink):
        count = 1
        for axis in node.src[0].ranges if node.op is Ops.REDUCE else node.ranges:
            count *= int(axis.vmax) + 1
        if (
            node.op.is_elementwise and node.dtype.is_float and node.op not in (Ops.WHERE, Ops.CAST, Ops.BITCAST)
        ) or node.op is Ops.REDUCE:
            operations += count
        elif node.op is Ops.DOT:
            operations += count * 2 * node.arg.length
            moved.update((memory, memory.arg.size * memory.dtype.itemsize) for memory in node.src[:2])
        elif node.op is Ops.INDEX and memory_of(node).op is Ops.PARAM:
            buffer = memory_of(node)
            span = min(buffer.arg.size, count, int(node.src[1].vmax) - int(node.src[1].vmin) + 1)
            moved[buffer] = max(moved.get(buffer, 0), span * buffer.dtype.itemsize)
    return operations, sum(moved.values())
