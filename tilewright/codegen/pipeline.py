"""The codegen stage. In: an optimised kernel and a target. Out: a linear `Program`. `PASSES` says what is done in
which order."""

from __future__ import annotations

from collections.abc import Callable

from tilewright.base.config import options
from tilewright.base.dtype import dtypes
from tilewright.base.errors import UnsupportedError
from tilewright.base.events import stage_timer
from tilewright.base.records import mutable_record, replace
from tilewright.base.target import Target
from tilewright.codegen.addresses import choose_index_width, split_addresses
from tilewright.codegen.clamps import drop_clamps
from tilewright.codegen.emulation.decompose import decompose
from tilewright.codegen.emulation.emulate_dtype import emulate_dtypes
from tilewright.codegen.emulation.wide_integers import split_wide_integers
from tilewright.codegen.group import lower_groups
from tilewright.codegen.launch import join_cores, settle_threads, share_threads
from tilewright.codegen.loops.cascade import cascade_sums
from tilewright.codegen.loops.epilogues import loop_epilogues
from tilewright.codegen.loops.linearise import LAUNCH_KINDS, Lineariser
from tilewright.codegen.loops.masked_ends import split_masked_ends
from tilewright.codegen.loops.peel import peel_reductions
from tilewright.codegen.loops.repeated_terms import repeat_terms
from tilewright.codegen.loops.separate_loops import separate_loops
from tilewright.codegen.loops.zero_tiles import skip_zero_tiles
from tilewright.codegen.vectors import split_vectors
from tilewright.graph.kernels.threads import Threads
from tilewright.graph.ops import Axis, AxisType, Ops
from tilewright.graph.passes import KernelState, Pass, run_passes
from tilewright.graph.records import KernelInfo, Param, Program
from tilewright.graph.uop import UOp, const, memory_of
from tilewright.graph.walk import toposort

NO_THREADS = Threads(())


@mutable_record
class Lowering(KernelState):
    """A kernel on its way to a program. `threads` are the axes of the work-group, once they are settled."""

    threads: Threads = NO_THREADS
    body: tuple[UOp, ...] | None = None


def on_sink(run: Callable[[UOp], UOp]) -> Callable[[Lowering], None]:
    """Makes a pass of a function of the kernel alone."""

    def run_pass(lowering: Lowering) -> None:
        lowering.sink = run(lowering.sink)

    return run_pass


def on_target(run: Callable[[UOp, Target], UOp]) -> Callable[[Lowering], None]:
    """Makes a pass of a function of the kernel and the target."""

    def run_pass(lowering: Lowering) -> None:
        lowering.sink = run(lowering.sink, lowering.target)

    return run_pass


def share_work_group(lowering: Lowering) -> None:
    lowering.sink, lowering.threads = share_threads(lowering.sink)


def lower_grouped_reductions(lowering: Lowering) -> None:
    lowering.sink = lower_groups(lowering.sink, lowering.threads, lowering.target)


def linearise(lowering: Lowering) -> None:
    lowering.body = tuple(Lineariser(lowering.sink, loop_paths(lowering.sink)).body())


PASSES: tuple[Pass[Lowering], ...] = (
    Pass("join_cores", on_sink(join_cores), "any THREAD axes", "at most one THREAD axis"),
    Pass("separate_loops", on_sink(separate_loops), "any reductions", "each loop belongs to one nest"),
    Pass("emulate_dtypes", on_target(emulate_dtypes), "any dtypes", "arithmetic in dtypes the target has"),
    Pass(
        "repeat_terms", on_sink(repeat_terms), "any tile and group axes", "UNROLL and GROUP axes that values depend on"
    ),
    Pass("share_threads", share_work_group, "LOCAL and GROUP axes", "one axis per axis of the work-group"),
    Pass("lower_groups", lower_grouped_reductions, "GROUP axes", "local memory and barriers"),
    Pass(
        "settle_threads", on_sink(settle_threads), "no grouped reduction", "LOCAL axes alone; one thread stores a value"
    ),
    Pass("peel_reductions", on_target(peel_reductions), "padded axes", "loops without masks", is_optional=True),
    Pass("cascade_sums", on_sink(cascade_sums), "no grouped reduction", "long float sums nested", is_optional=True),
    Pass("split_masked_ends", on_target(split_masked_ends), "masked loops", "masks at their ends", is_optional=True),
    Pass("drop_clamps", on_target(drop_clamps), "masked accesses", "no clamps of masked indices", is_optional=True),
    Pass("skip_zero_tiles", on_target(skip_zero_tiles), "tile axes", "tiles of zeros as constants", is_optional=True),
    Pass("decompose", on_target(decompose), "any ops", "ops the target has"),
    Pass("split_vectors", on_target(split_vectors), "tile axes", "lanes no longer than the target's vectors"),
    Pass("loop_epilogues", on_target(loop_epilogues), "tile axes", "long epilogues in loops", is_optional=True),
    Pass("split_addresses", on_sink(split_addresses), "index maths", "positions as base + tile", is_optional=True),
    Pass("choose_index_width", on_sink(choose_index_width), "bounds", "int32 or int64 instead of index"),
    Pass(
        "split_wide_integers", on_target(split_wide_integers), "64-bit integers", "32-bit words where those are missing"
    ),
    Pass("linearise", linearise, "a graph", "nodes in order, inside their loops"),
)


def lower(sink: UOp, target: Target, scheduled: UOp | None = None) -> Program:
    """`scheduled` is the kernel before its transforms, whose padding does not count as work."""
    with stage_timer("codegen"):
        flops, bytes_moved = estimate_work(sink if scheduled is None else scheduled)
        lowering = Lowering(sink, target)
        run_passes("codegen", PASSES, lowering)
        program = assemble_program(lowering, flops, bytes_moved)
        if program.variables:
            program = replace(program, first_variable=count_buffers(sink if scheduled is None else scheduled))
        if options.VERIFY_GRAPH:
            from tilewright.graph.verification.verify import verify_program

            verify_program(program, PASSES[-1].name)
        return program


def assemble_program(lowering: Lowering, flops: int, bytes_moved: int) -> Program:
    """The record of what the passes left: the body, its parameters and its launch axes."""
    sink, body = lowering.sink, lowering.body
    assert body is not None
    check_atomics(body, lowering)
    launch = sorted((n for n in toposort(sink) if n.op is Ops.RANGE and n.arg.kind in LAUNCH_KINDS), key=_launch_key)
    in_grid = (AxisType.GLOBAL, AxisType.THREAD)
    local = {axis.arg.id: axis for axis in launch if axis.arg.kind not in in_grid}
    local_order = [axis.arg.id for (axis,) in lowering.threads.lanes]
    info = sink.arg if isinstance(sink.arg, KernelInfo) else KernelInfo()
    return Program(
        info.name or "kernel",
        body,
        program_params(sink),
        tuple(axis for axis in launch if axis.arg.kind in in_grid),
        tuple(local[found] for found in local_order if found in local),
        lowering.target,
        flops,
        bytes_moved,
        info.fills,
        tuple(sorted((n for n in toposort(sink) if n.op is Ops.VARIABLE), key=lambda n: (len(n.arg[0]), n.arg[0]))),
        section=section_axis(sink) if info.sections > 1 else None,
        section_buffers=info.section_buffers,
        streams=info.streams,
    )


def check_atomics(body: tuple[UOp, ...], lowering: Lowering) -> None:
    """Refuses a kernel with atomic updates that the target lacks."""
    target = lowering.target
    for node in body:
        if node.op is Ops.STORE and node.arg is not None and not target.updates(node.arg.name, node.src[1].dtype):
            name, device, dtype = lowering.sink.arg.name, target.name, node.src[1].dtype.name
            message = f"the kernel updates {dtype} atomically ({node.arg.name}), which {device} does not support"
            raise UnsupportedError(name, message, "use another device", location=node.line)


def section_axis(sink: UOp) -> UOp:
    """The launch axis that numbers the sections of a kernel; its id follows those of all other axes."""
    numbers = [node.arg.id[0] for node in toposort(sink) if node.op is Ops.RANGE]
    axis = Axis((max(numbers, default=-1) + 1,), AxisType.GLOBAL)
    return UOp(Ops.RANGE, dtypes.int32, (const(dtypes.int32, sink.arg.sections),), axis)


def _launch_key(axis: UOp) -> tuple[str, tuple[int, ...]]:
    return (axis.arg.kind.value, axis.arg.id)


def loop_paths(sink: UOp) -> dict[UOp, tuple[UOp, ...]]:
    """The nest of each output loop, outermost first: rows, which more reductions depend on, before the loops inside
    them. Loops that no effect depends on together follow one another, unless one of them is inside a third loop that
    the other is not inside of."""
    nodes = toposort(sink)
    reduces = [node for node in nodes if node.op is Ops.REDUCE]
    loops = [node for node in nodes if node.op is Ops.RANGE and node.arg.kind is AxisType.LOOP]
    closed = {axis for node in nodes if node.op in (Ops.REDUCE, Ops.END) for axis in node.src[1:]}
    stores = [node for node in nodes if node.op is Ops.STORE]

    def key(loop: UOp) -> tuple[int, int, tuple[int, ...]]:
        users = (sum(loop in node.ranges for node in found) for found in (reduces, stores))
        return (-next(users), -next(users), loop.arg.id)

    order = tuple(sorted((loop for loop in loops if loop not in closed), key=key))
    effects = {node.ranges for node in nodes if node.dtype is dtypes.void and node.op is not Ops.SINK}
    paths: dict[UOp, tuple[UOp, ...]] = {}
    for number, loop in enumerate(order):
        around = [outer for outer in order[:number] if any(outer in ranges and loop in ranges for ranges in effects)]
        path = paths[around[-1]] if around else ()
        if not set(around) <= set(path):
            return {each: order[: position + 1] for position, each in enumerate(order)}
        paths[loop] = (*path, loop)
    return paths


def program_params(sink: UOp) -> tuple[Param, ...]:
    """The buffers of a kernel, with what it does to each."""
    nodes = toposort(sink)
    written = {memory_of(node.src[0]) for node in nodes if node.op is Ops.STORE}
    read = {memory_of(node.src[0]) for node in nodes if node.op is Ops.LOAD or (node.op is Ops.STORE and node.arg)}
    read.update(memory for node in nodes if node.op is Ops.DOT for memory in node.src[:2])
    params = sorted((node for node in nodes if node.op is Ops.PARAM), key=lambda node: node.arg.slot)
    found = [Param(p.arg.slot, p.dtype, p.arg.size, p in read, p in written) for p in params]
    checks = [node for node in nodes if node.op is Ops.CHECK]
    if checks:
        word = dtypes.int64 if checks[0].arg.bits == 64 else dtypes.int32
        count = max(node.arg.number for node in checks) + 1
        found.append(Param(checks[0].arg.slot, word, count, False, True, holds_checks=True))
    return tuple(found)


def count_buffers(sink: UOp) -> int:
    """The buffers that a launch of the kernel gives, with the words of its checks."""
    nodes = toposort(sink)
    slots = [node.arg.slot for node in nodes if node.op is Ops.PARAM or node.op is Ops.CHECK]
    return max(slots, default=-1) + 1


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
