"""The schedule stage. In: the nodes to realise, over PARAM leaves. Out: a `Schedule`.

keep_checks      needs: a verified graph          gives: CHECK where the device does it, and nowhere else
prepare_graph    needs: any graph                 gives: large reductions split, copies read whole buffers, joined
                                                  values in parts, an order
plan_fusion      needs: the nodes to store        gives: what is stored by which kernel, and every index asked for
factors_to_turn  needs: the plan                  gives: more nodes to store, where a product would read across rows
nodes_to_part    needs: the plan                  gives: more nodes to store, where a kernel has too many buffers
write kernels    needs: the plan                  gives: a value per stored node, as loops, loads and reductions
place updates    needs: the values                gives: how each in-place update is done without harm
order steps      needs: declared accesses         gives: steps such that every read sees the version it means
merge_steps      needs: the order                 gives: fewer steps: those that load the same memory are joined
write items      needs: the steps                 gives: items over slots, equal kernels as one node
place_temps      needs: the items                 gives: arenas"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tilewright.base.config import options
from tilewright.base.events import stage_timer
from tilewright.base.target import Target
from tilewright.graph.ops import Ops
from tilewright.graph.records import Schedule
from tilewright.graph.spec import Kind
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.checks import keep_checks
from tilewright.schedule.fuse import SEPARATE, plan_fusion
from tilewright.schedule.joins import is_part, slice_of_source, with_parts
from tilewright.schedule.limits import nodes_to_part
from tilewright.schedule.memory import place_temps
from tilewright.schedule.order import ItemBuilder, find_devices
from tilewright.schedule.reduction import split_reduction
from tilewright.schedule.turn import factors_to_turn


def any_target(device: str) -> Target:
    return Target(device)


def schedule(
    outputs: Sequence[UOp],
    params: Sequence[UOp],
    device: str,
    pinned: frozenset[int] = frozenset(),
    target_of: Callable[[str], Target] = any_target,
) -> Schedule:
    """`params` are the PARAM nodes in slot order. `pinned` are the slots whose present contents someone else still
    reads: an update of one of them goes to memory of its own. `target_of` gives the facts of a device."""
    with stage_timer("schedule"):
        prepared, sequence = prepare_graph(keep_checks(outputs, params, device, target_of))
        stored = [storage_node(node) for node in prepared]
        must_store, whole = nodes_to_store(stored), nodes_taken_whole(stored)
        plan = plan_fusion(stored, must_store, sequence, whole)
        devices = find_devices(plan.order, params, device)

        def facts_of(node: UOp) -> Target:
            return target_of(devices[node])

        def most_buffers(root: UOp) -> int:
            return facts_of(root).max_buffers

        if turned := factors_to_turn(plan, facts_of):
            must_store |= turned
            plan = plan_fusion(stored, must_store, sequence, whole)
        while apart := nodes_to_part(plan, most_buffers):
            must_store, whole = must_store | apart, whole | apart
            plan = plan_fusion(stored, must_store, sequence, whole)
        builder = ItemBuilder(plan, params, stored, devices, pinned, most_buffers, target_of)
        items, slots, output_slots = builder.build()
        offsets, arenas = place_temps(items, slots)
        return Schedule(tuple(items), tuple(slots), tuple(output_slots), offsets, arenas)


def prepare_graph(outputs: Sequence[UOp]) -> tuple[list[UOp], tuple[UOp, ...]]:
    """Large reductions split; the source of a copy is a buffer that it can copy whole. A value that waits for another
    (a DETACH of two) waits no more; instead the nodes come in an order to be kept, which is empty if nothing waits."""
    done: dict[UOp, UOp] = {}
    has_waiting = False
    part_count = 0
    for node in toposort(*outputs):
        src = tuple(done[s] for s in node.src)
        if node.op is Ops.DETACH and len(src) > 1:
            src = src[:1]
            has_waiting = True
        made = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
        split = split_reduction(made)
        if split is not None:
            note_line(split, node.line, made.src[0])
            made = split
        elif made.op is Ops.COPY and not is_stored_view(made.src[0]):
            whole = UOp(Ops.CONTIGUOUS, made.dtype, made.src)
            whole.line = whole.line or node.line
            made = made.replace(src=(whole,))
        elif made.op is Ops.CAT:
            made = with_parts(made, part_count)
            part_count += len(made.src)
        elif made.op is Ops.SHRINK:
            made = slice_of_source(made) or made
        elif made.op is Ops.CUSTOM_KERNEL:
            made = made.replace(src=tuple(stored_whole(s) for s in made.src))
        if made.line is None:
            made.line = node.line
        done[node] = made
    return [done[node] for node in outputs], tuple(done.values()) if has_waiting else ()


def note_line(node: UOp, line: tuple[str, int] | None, source: UOp) -> None:
    """All that is made in the place of one node comes from that node's line, down to its source."""
    for part in toposort(node, stop=lambda found: found is source):
        if part.line is None and part is not source:
            part.line = line


def storage_node(node: UOp) -> UOp:
    """The node whose memory holds the value: wrappers that do not move elements are looked through."""
    inner = node
    while inner.op in (Ops.CONTIGUOUS, Ops.DETACH, Ops.RESHAPE) and not is_part(inner):
        inner = inner.src[0]
    if inner.op.kind is Kind.MOVEMENT or inner.op in (Ops.CONST, Ops.IOTA):
        while node.op in (Ops.DETACH, Ops.RESHAPE) and node.src[0].op in (Ops.CONTIGUOUS, Ops.DETACH, Ops.RESHAPE):
            node = node.src[0]
        return node
    return inner


def is_stored_view(node: UOp) -> bool:
    return storage_node(node).op.kind not in (Kind.MOVEMENT,)


def stored_whole(node: UOp) -> UOp:
    """The node in memory that a custom kernel can be given: row by row, without a view around it."""
    is_constant = storage_node(node).op in (Ops.CONST, Ops.IOTA)
    return node if is_stored_view(node) and not is_constant else UOp(Ops.CONTIGUOUS, node.dtype, (node,))


def nodes_taken_whole(outputs: Sequence[UOp]) -> frozenset[UOp]:
    """What copies, updates and custom kernels are given as memory."""
    found: set[UOp] = set()
    for node in toposort(*outputs):
        if node.op is Ops.COPY or node.op is Ops.ASSIGN:
            found.add(storage_node(node.src[0]))
        elif node.op is Ops.CUSTOM_KERNEL:
            found.update(map(storage_node, node.src))
    return frozenset(found)


def nodes_to_store(outputs: Sequence[UOp]) -> frozenset[UOp]:
    """Outputs, what the user asked to be contiguous, both sides of a copy, updates and what they update."""
    found = {node for node in outputs if node.op is not Ops.PARAM}
    for node in toposort(*outputs):
        if not options.FUSE and (node.op.is_elementwise or node.op in (Ops.REDUCE_AXIS, Ops.GATHER)):
            found.add(node)
        if node.op is Ops.CONTIGUOUS:
            found.add(storage_node(node))
        elif node.op in SEPARATE or node.op is Ops.CAT:
            found.add(node)
    return frozenset(node for node in found | nodes_taken_whole(outputs) if node.op is not Ops.PARAM)
