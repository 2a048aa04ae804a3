"""The schedule stage. In: the nodes to realise, over PARAM leaves. Out: a `Schedule`. `PASSES` says what is done in
which order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from tilewright.base.config import options
from tilewright.base.dtype import dtypes
from tilewright.base.errors import VerifyError
from tilewright.base.events import stage_timer
from tilewright.base.quota import Quota
from tilewright.base.records import field, mutable_record, replace
from tilewright.base.target import Target
from tilewright.graph.ops import Ops
from tilewright.graph.passes import Pass, run_passes
from tilewright.graph.records import Schedule
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.schedule.fusion.fuse import SEPARATE, plan_fusion
from tilewright.schedule.fusion.limits import nodes_to_split
from tilewright.schedule.fusion.operand_order import order_operands
from tilewright.schedule.fusion.row_values import values_of_rows
from tilewright.schedule.fusion.small_factors import order_small_factors
from tilewright.schedule.fusion.transposed import operands_to_transpose
from tilewright.schedule.fusion.uses import Plan
from tilewright.schedule.preparation.checks import keep_checks
from tilewright.schedule.preparation.devices import find_devices, place_constants
from tilewright.schedule.preparation.prepare import prepare_graph, storage_node
from tilewright.schedule.steps.launches import check_joined, join_launches
from tilewright.schedule.steps.memory import place_temps
from tilewright.schedule.steps.order import ItemBuilder

fuse_quota = Quota()  # of FUSE_LIMIT


def any_target(device: str) -> Target:
    return Target(device)


@mutable_record
class Scheduling:
    """A graph on its way to a schedule: what is given, then what each pass adds."""

    outputs: Sequence[UOp]
    params: Sequence[UOp]
    device: str
    pinned: frozenset[int]
    target_of: Callable[[str], Target]
    # The order to be kept among nodes, where one waits for another; empty if none does.
    sequence: tuple[UOp, ...] = ()
    must_store: frozenset[UOp] = frozenset()
    whole: frozenset[UOp] = frozenset()  # stored without a view around it
    plan: Plan = field(init=False)
    devices: dict[UOp, str] = field(init=False)
    builder: ItemBuilder = field(init=False)
    made: Schedule | None = None

    @property
    def graph(self) -> tuple[UOp, ...]:
        if self.made is None:
            return tuple(self.outputs)
        return tuple(item.ast for item in self.made.items if item.ast is not None)

    def verify(self, pass_name: str) -> None:
        from tilewright.graph.verification.verify import (
            verify_kernel,
            verify_tensor_graph,
        )

        if self.made is None:
            verify_tensor_graph(UOp(Ops.SINK, dtypes.void, self.graph), pass_name)
        else:
            for kernel in dict.fromkeys(self.graph):
                verify_kernel(kernel, pass_name)
            for item in self.made.items:
                if (fault := check_joined(item)) is not None:
                    raise VerifyError(fault, stage="schedule", pass_name=pass_name, node=item.ast)

    def plan_again(self) -> None:
        target = self.target_of(self.device)
        self.plan = plan_fusion(self.outputs, self.must_store, self.sequence, self.whole, target)

    def facts_of(self, node: UOp) -> Target:
        return self.target_of(self.devices[node])

    def max_buffers(self, root: UOp) -> int:
        return self.facts_of(root).max_buffers


def place_shared(state: Scheduling) -> None:
    state.outputs = place_constants(state.outputs, state.params, state.device)


def lower_checks(state: Scheduling) -> None:
    state.outputs = keep_checks(state.outputs, state.params, state.device, state.target_of)


def order_computed(state: Scheduling) -> None:
    if has_tensor_cores(state):
        state.outputs = order_operands(state.outputs, target_of_nodes(state), copies_inputs=False)


def prepare_outputs(state: Scheduling) -> None:
    prepared, state.sequence = prepare_graph(state.outputs, state.target_of(state.device))
    state.outputs = [storage_node(node) for node in prepared]


def order_factors(state: Scheduling) -> None:
    """Skipped where nodes have an order to be kept, since it names nodes that would be replaced."""
    if state.sequence:
        return
    if has_tensor_cores(state):
        state.outputs = order_operands(state.outputs, target_of_nodes(state))
    state.outputs = order_small_factors(state.outputs, target_of_nodes(state))


def has_tensor_cores(state: Scheduling) -> bool:
    return any(state.target_of(device).tensor_cores for device in devices_of(state))


def target_of_nodes(state: Scheduling) -> Callable[[UOp], Target]:
    devices = find_devices(toposort(*state.outputs), state.params, state.device)
    return lambda node: state.target_of(devices[node])


def devices_of(state: Scheduling) -> set[str]:
    return {state.device, *(param.arg.device or state.device for param in state.params)}


def fuse_kernels(state: Scheduling) -> None:
    order = toposort(*state.outputs)
    state.whole = nodes_taken_whole(order)
    state.must_store = nodes_to_store(state.outputs, order) | {node for node in state.whole if node.op is not Ops.PARAM}
    state.plan_again()
    state.devices = find_devices(state.plan.order, state.params, state.device)


def store_transposed(state: Scheduling) -> None:
    if operands := operands_to_transpose(state.plan, state.facts_of):
        state.must_store |= operands
        state.plan_again()


def part_rows(state: Scheduling) -> None:
    if apart := values_of_rows(state.plan, state.facts_of):
        state.must_store, state.whole = state.must_store | apart, state.whole | apart
        state.plan_again()


def limit_buffers(state: Scheduling) -> None:
    while apart := nodes_to_split(state.plan, state.max_buffers):
        state.must_store, state.whole = state.must_store | apart, state.whole | apart
        state.plan_again()


def write_values(state: Scheduling) -> None:
    given = (state.plan, state.params, state.outputs, state.devices, state.pinned, state.max_buffers, state.target_of)
    state.builder = ItemBuilder(*given)
    state.builder.write_values()


def merge_kernels(state: Scheduling) -> None:
    if options.FUSE:
        state.builder.merge_steps()


def write_schedule(state: Scheduling) -> None:
    items, slots, outputs = state.builder.write_items()
    state.made = Schedule(tuple(items), tuple(slots), tuple(outputs), (), ())


def join_equal_kernels(state: Scheduling) -> None:
    if options.JOIN_LAUNCHES and state.made is not None:
        state.made = replace(state.made, items=tuple(join_launches(state.made.items, state.target_of)))


def place_memory(state: Scheduling) -> None:
    assert state.made is not None
    offsets, arenas = place_temps(state.made.items, state.made.slots)
    state.made = replace(state.made, offsets=offsets, arenas=arenas)


PASSES: tuple[Pass[Scheduling], ...] = (
    Pass("place_constants", place_shared, "a verified graph", "a value of constants for each device that reads it"),
    Pass("lower_checks", lower_checks, "a verified graph", "CHECK only where the device supports it"),
    Pass(
        "order_computed",
        order_computed,
        "contractions",
        "values between contractions stored in the order in which tensor cores read them",
        is_optional=True,
    ),
    Pass(
        "prepare_graph",
        prepare_outputs,
        "any graph",
        "large reductions split, copies read whole buffers, joins in parts",
    ),
    Pass(
        "order_operands",
        order_factors,
        "contractions",
        "operands of tensor cores stored with a summed axis last",
        is_optional=True,
    ),
    Pass("fuse_kernels", fuse_kernels, "the nodes to store", "the nodes each kernel stores, and its indices into them"),
    Pass(
        "store_transposed",
        store_transposed,
        "the plan",
        "operands stored that a product reads across rows",
        is_optional=True,
    ),
    Pass("part_rows", part_rows, "the plan", "values of rows stored apart from their elements", is_optional=True),
    Pass("limit_buffers", limit_buffers, "the plan", "no kernel with more buffers than the target has"),
    Pass("write_values", write_values, "the plan", "each stored node as loops, loads and reductions"),
    Pass(
        "order_steps",
        lambda state: state.builder.order_steps(),
        "declared accesses",
        "every read sees the version it means",
    ),
    Pass("merge_steps", merge_kernels, "the order", "steps that load the same memory merged", is_optional=True),
    Pass("write_items", write_schedule, "the steps", "items over slots, equal kernels as one node"),
    Pass(
        "join_launches",
        join_equal_kernels,
        "declared accesses",
        "equal small kernels that do not need each other as sections of one",
        is_optional=True,
    ),
    Pass("place_temps", place_memory, "items in order", "temps in arenas, by their live ranges"),
)


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
        # Passes ask for the facts of a device for each kernel and access; a driver makes them from the options.
        state = Scheduling(outputs, params, device, pinned, functools.cache(target_of))
        run_passes("schedule", PASSES, state)
        assert state.made is not None
        return state.made


def nodes_taken_whole(order: Sequence[UOp]) -> frozenset[UOp]:
    """The nodes whose memory copies, updates and custom kernels take as a whole."""
    found: set[UOp] = set()
    for node in order:
        if node.op is Ops.COPY or node.op is Ops.ASSIGN:
            found.add(storage_node(node.src[0]))
        elif node.op is Ops.CUSTOM_KERNEL:
            found.update(map(storage_node, node.src))
    return frozenset(found)


def nodes_to_store(outputs: Sequence[UOp], order: Sequence[UOp]) -> frozenset[UOp]:
    """Outputs, what the user asked to be contiguous, copies, updates and custom kernels."""
    found = set(outputs)
    is_fused, limit = options.FUSE, options.FUSE_LIMIT
    for node in order:
        is_computed = node.op.is_elementwise or node.op in (Ops.REDUCE_AXIS, Ops.GATHER)
        if is_computed and node not in found and not (is_fused and fuse_quota.take(limit)):
            found.add(node)
        if node.op is Ops.CONTIGUOUS:
            found.add(storage_node(node))
        elif node.op in SEPARATE or node.op is Ops.CAT:
            found.add(node)
    return frozenset(node for node in found if node.op is not Ops.PARAM)
