"""Plans for graphs that differ in their sizes alone. In: the structures that a program plans. Out: for one whose like
were planned in other sizes, the same graph with variables in place of the sizes that differ, and their values.

A text that grows by a token, batches of sentences of any length: each step has a graph of its own, whose schedule and
kernels would be made for one run. The first sizes are planned as they are. From the third on the graph is *lifted*:
numbers that differ become expressions over variables, so that one plan serves all sizes. A lifted graph is used for a
structure where it is that structure, node by node, with the values in place of its variables, and for no other. A
structure that comes back gets a plan for its own sizes, whose kernels are faster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tilewright.base.config import options
from tilewright.base.errors import InternalError, UnsupportedError, UserError
from tilewright.base.events import emit
from tilewright.base.records import NamedTuple, mutable_record
from tilewright.engine.compilation.stored import plan_options
from tilewright.engine.planning.bind import BoundGraph
from tilewright.engine.planning.lifted_sizes import BOUNDS, Expressions
from tilewright.engine.planning.plan import NotPlannedError, Plan, Structure, plan_graph, plan_tables
from tilewright.engine.recent import RecentTable
from tilewright.graph.kernels.custom import CustomKernel
from tilewright.graph.kernels.origin import uses_last
from tilewright.graph.ops import Ops, ParamArg
from tilewright.graph.records import Schedule
from tilewright.graph.size_expressions import evaluate_size
from tilewright.graph.sizes import fixed_graph, is_symbolic
from tilewright.graph.spec import element_count, max_count
from tilewright.graph.symbolic import SymbolicInt, capacity, state
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_tensor_graph
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import Buffer
from tilewright.runtime.device import open_driver

# Structures of a family that are planned for their own sizes before it is lifted.
MIN_STATIC = 2
# Runs of a structure with a lifted plan before it gets a plan for its own sizes; at least as many as there were other
# sizes: plans for sizes of which each comes back now and then would take longer than they save.
MAX_RUNS = 2
# Lifted graphs of a family: others are made where sizes exceed the bounds of the first.
MAX_LIFTED = 8
MAX_FAILURES = 3
# A graph of fewer nodes may have as many terms as one of these (`Driver.lifted_terms` for each). Kernels over variables
# take up to four times as long as others: with more terms that is longer than making a plan, about 0.3 ms for a node.
MIN_NODES = 64

_SIZED = frozenset({Ops.RESHAPE, Ops.EXPAND, Ops.PAD, Ops.SHRINK, Ops.IOTA})
# What is mostly stored.
_STORED = frozenset({Ops.PARAM, Ops.REDUCE_AXIS, Ops.CONTIGUOUS, Ops.ASSIGN})
_UNLIFTED = frozenset({Ops.MULTI, Ops.VARIABLE, Ops.SIZE, Ops.THREEFRY})


class Lifted(NamedTuple):
    """A structure over variables, and their values for the structure that it stands for."""

    structure: Structure
    values: dict[str, int]


class _Sample(NamedTuple):
    """A structure as its nodes without numbers (the key of its family), and the numbers in their order."""

    key: tuple[Any, ...]
    numbers: tuple[int, ...]


class _Graph(NamedTuple):
    """A lifted graph: for each variable its bounds, and which number of a sample is its value. Each number of a sample
    is one of `sizes`, known or expressions, and `which` says which."""

    structure: Structure
    variables: tuple[tuple[str, int, int, int], ...]  # name, bounds, position of the number
    sizes: tuple[int, ...]
    which: tuple[int, ...]


@mutable_record
class _Family:
    samples: list[tuple[_Sample, Structure]]
    graphs: list[_Graph]
    lifted: int = 0  # the number of different sizes that had a lifted plan
    failures: int = 0  # to lift it; after some of them, or where a lifted graph cannot be planned, it is given up


_families: RecentTable[tuple[Any, ...], _Family] = RecentTable()
# How often a lifted structure has run with these values. The structure that it stood for is not kept.
_runs: RecentTable[tuple[Any, ...], int] = RecentTable(8)
plan_tables += (_families, _runs)


def lifted_structure(structure: Structure) -> Lifted | None:
    """The structure over variables; None where it is to have a plan for its own sizes."""
    limits = _limits_of(structure)
    sample = None if limits is None else _sample_of(structure)
    if limits is None or sample is None:
        return None
    family = _families.get((sample.key, plan_options()))
    if family is None:
        family = _families[sample.key, plan_options()] = _Family([], [])
        _families.trim()
    lifted = _lifted_in(family, sample, structure, limits)
    if lifted is None:
        return None
    key = (lifted.structure, tuple(lifted.values.items()), plan_options())
    runs = _runs.get(key) or 0
    if not runs:
        family.lifted += 1
    if runs >= max(MAX_RUNS, family.lifted):
        return None
    _runs[key] = runs + 1
    _runs.trim()
    return lifted


def plan_lifted(structure: Structure, bound: BoundGraph) -> Plan:
    """The plan of a lifted structure. Where there is none, structures of its family have plans of their own."""
    try:
        plan = plan_graph(structure, bound=bound)
        _check_updates(structure, plan.schedule)
    except Exception as error:
        _give_up(structure, error)
        raise NotPlannedError from error
    return plan


def _give_up(structure: Structure, error: Exception) -> None:
    emit("lift", structure=structure, failure=f"{type(error).__name__}: {error}")
    for family in _families.values():
        if any(graph.structure == structure for graph in family.graphs):
            family.failures = MAX_FAILURES
            family.graphs.clear()


def _check_updates(structure: Structure, schedule: Schedule) -> None:
    """Refuses a plan that reads and updates memory whose size is a variable: a run may be given a copy of it."""
    written, read = _slots_of_items(schedule)
    for slot in _sized(structure):
        if slot in written and slot in read:
            raise UnsupportedError("realize", "an update of memory of a size that differs", "make a plan for each size")


def give_room(structure: Structure, schedule: Schedule, slots: list[Buffer | None]) -> None:
    """Replaces buffers that a run reads by copies where their memory is for fewer than the greatest sizes: kernels may
    read anything in memory of the size that they were made for, and mask it."""
    written, _ = _slots_of_items(schedule)
    for slot, greatest in _sized(structure).items():
        buffer = slots[slot]
        if buffer is not None and slot not in written:
            slots[slot] = buffer.with_room(greatest)


def _sized(structure: Structure) -> dict[int, int]:
    """The slots of memory whose size is a variable, with its maximum."""
    sizes = {param.arg.slot: param.arg.size for param in structure.params}
    return {slot: size.greatest for slot, size in sizes.items() if isinstance(size, SymbolicInt)}


def _slots_of_items(schedule: Schedule) -> tuple[set[int], set[int]]:
    """Those that are written, and those that are read."""
    written = {access.slot for item in schedule.items for access in item.writes}
    return written, {access.slot for item in schedule.items for access in item.reads}


class _Limits(NamedTuple):
    """Of what a lifted graph may have on its devices: terms for each node, elements of a stored value."""

    terms: int
    elements: int


def _limits_of(structure: Structure) -> _Limits | None:
    """None where one of the devices of a structure lifts no graphs."""
    drivers = [open_driver(name) for name in {structure.device, *(param.arg.device for param in structure.params)}]
    found = _Limits(min(each.lifted_terms for each in drivers), min(each.lifted_elements for each in drivers))
    return found if found.terms else None


# ---------------------------------------------------------------- families


def _sample_of(structure: Structure) -> _Sample | None:
    """The structure without its numbers, and these; None where a node cannot be lifted. What an index is checked
    against is no such number: programs check against constants."""
    numbers: list[int] = []
    order = toposort(*structure.outputs)
    places = {node: place for place, node in enumerate(order)}
    skeleton: list[Any] = []
    for node in order:
        op, arg = node.op, node.arg
        if op in _UNLIFTED:
            return None
        if op is Ops.PARAM:
            numbers.append(arg.size)
            fact: Any = (arg.slot, arg.device)
        elif op in _SIZED:
            fact = _numbered(arg, numbers)
        elif op is Ops.CONST and not isinstance(arg, bool) and float(arg).is_integer():
            numbers.append(int(arg))
            fact = int
        elif op is Ops.CUSTOM_KERNEL:
            if arg.origin is None or arg.sizes:
                return None
            fact = _numbered_kernel(arg, numbers)
        else:
            fact = (arg.__class__, repr(arg) if op is Ops.CONST else arg)
        skeleton.append((op, node.dtype, tuple([places[src] for src in node.src]), fact))
    outputs = tuple([places[node] for node in structure.outputs])
    key = (tuple(skeleton), outputs, len(structure.params), structure.device, structure.pinned)
    return _Sample(key, tuple(numbers))


def _numbered(arg: Any, numbers: list[int]) -> Any:
    """The form of a nested tuple of sizes, whose numbers are collected."""
    if isinstance(arg, tuple):
        return tuple([_numbered(part, numbers) for part in arg])
    numbers.append(arg)
    return None


def _numbered_kernel(arg: CustomKernel, numbers: list[int]) -> Any:
    """A custom kernel without its numbers, which are those of its shapes and of what its origin is called with."""

    def collect(number: Any) -> int:
        numbers.append(number)
        return 0

    shapes = _numbered(arg.shapes, numbers)
    origin = arg.origin.with_numbers(collect)
    return (origin, shapes, arg.output, arg.dtypes, arg.written, arg.sources)


def _lifted_in(family: _Family, sample: _Sample, structure: Structure, limits: _Limits) -> Lifted | None:
    if family.failures >= MAX_FAILURES:
        return None
    for graph in family.graphs:
        values = _values_for(graph, sample, structure)
        if values is not None:
            return Lifted(graph.structure, values)
    if len(family.samples) >= MIN_STATIC and len(family.graphs) < MAX_LIFTED:
        made = _lift([*family.samples, (sample, structure)], limits)
        values = None if made is None else _values_for(made, sample, structure)
        if made is not None and values is not None:
            family.graphs.append(made)
            emit("lift", structure=made.structure, failure="")
            return Lifted(made.structure, values)
        family.failures += 1
    family.samples = [*family.samples[-MIN_STATIC:], (sample, structure)]
    return None


def _values_for(graph: _Graph, sample: _Sample, structure: Structure) -> dict[str, int] | None:
    """The values with which a lifted graph is the structure; None where there are none. The two have the same nodes
    without their numbers, and so are equal where these are."""
    values = {}
    for name, least, greatest, position in graph.variables:
        value = values[name] = sample.numbers[position]
        if not least <= value <= greatest:
            return None
    known = [evaluate_size(s.node, values) if isinstance(s, SymbolicInt) else s for s in graph.sizes]
    is_equal = tuple([known[number] for number in graph.which]) == sample.numbers
    if is_equal and options.VERIFY_GRAPH and fixed_graph(graph.structure.outputs, values) != structure.outputs:
        raise InternalError("a lifted graph has the numbers of a structure and is another graph")
    return values if is_equal else None


# ---------------------------------------------------------------- lifting


def _lift(samples: Sequence[tuple[_Sample, Structure]], limits: _Limits) -> _Graph | None:
    """The graph of the last sample with expressions in place of the numbers that differ between the samples; None where
    they do not follow from few variables, or where no bounds of these decide what is compared with them."""
    columns = list(zip(*(sample.numbers for sample, _ in samples)))
    is_used, state.is_used = state.is_used, True
    for bounds in BOUNDS:
        expressions = Expressions(columns, bounds)
        sizes = [size for column in columns if (size := expressions.of(column)) is not None]
        if len(sizes) < len(columns):
            break
        try:
            lifted = _with_sizes(samples[-1][1], sizes)
            for output in lifted.outputs:
                verify_tensor_graph(output, "lift")
            if _is_worthwhile(lifted, limits):
                known = {size: number for number, size in enumerate(dict.fromkeys(sizes))}
                return _Graph(lifted, tuple(expressions.variables), tuple(known), tuple([known[s] for s in sizes]))
            break
        except (UserError, InternalError, AssertionError):
            continue  # a comparison that these bounds leave open
    state.is_used = is_used
    return None


def _with_sizes(structure: Structure, sizes: Sequence[int]) -> Structure:
    """The structure with these numbers in their order."""
    remaining = iter(sizes)
    done: dict[UOp, UOp] = {}
    for node in toposort(*structure.outputs):
        op, arg, dtype = node.op, node.arg, node.dtype
        src = tuple([done[source] for source in node.src])
        if op is Ops.PARAM:
            arg = ParamArg(arg.slot, next(remaining), arg.device)
        elif op in _SIZED:
            arg = _filled(arg, remaining)
        elif op is Ops.CUSTOM_KERNEL:
            arg = _lifted_kernel(arg, remaining)
        elif op is Ops.CONST and not isinstance(arg, bool) and float(arg).is_integer():
            number = next(remaining)
            if isinstance(number, SymbolicInt):
                op, arg = Ops.SIZE, number
        made = done[node] = UOp(op, dtype, src, arg)
        if made.line is None:
            made.line = node.line
    params = tuple([done.get(param, param) for param in structure.params])  # some are used by gradients alone
    return structure._replace(outputs=tuple([done[node] for node in structure.outputs]), params=params)


def _lifted_kernel(arg: CustomKernel, remaining: Iterator[int]) -> CustomKernel:
    """A custom kernel written with these numbers."""
    shapes = _filled(arg.shapes, remaining)
    used: dict[int, None] = dict.fromkeys(size for shape in shapes for size in shape if isinstance(size, SymbolicInt))

    def number_of(_: int | UOp) -> int:
        number = next(remaining)
        if isinstance(number, SymbolicInt):
            used[number] = None
        return number

    origin = arg.origin.with_numbers(number_of)
    ast = origin.kernel(tuple(zip(arg.dtypes, shapes)), len(arg.written))
    if used and not uses_last(ast, len(shapes)):
        raise UnsupportedError("realize", f"{arg.name} in symbolic sizes", "make a plan for each size")
    return arg._replace(ast=ast, shapes=shapes, sizes=tuple(used), origin=origin)


def _filled(arg: Any, numbers: Any) -> Any:
    return tuple([_filled(part, numbers) for part in arg]) if isinstance(arg, tuple) else next(numbers)


def _is_worthwhile(structure: Structure, limits: _Limits) -> bool:
    """Whether kernels over variables take less time than a plan for each size, and little memory."""
    order = toposort(*structure.outputs)
    summed = 0
    for node in order:
        if node.op is Ops.REDUCE_AXIS:
            summed += capacity(element_count(node.src[0].shape))
        if node.op in _STORED and is_symbolic(node.shape) and max_count(node.shape) > limits.elements:
            return False
        if node.op is Ops.RESHAPE and node.src[0].op is Ops.EXPAND and _merges_sizes(node):
            return False
    return summed <= limits.terms * max(len(order), MIN_NODES)


def _merges_sizes(reshape: UOp) -> bool:
    """Whether axes of sizes that are not known are merged or split. Of a repeated value, as windows of images are, each
    element is then found by divisions by numbers that are not known, where vectors would be loaded."""
    sizes = [size for size in reshape.shape if isinstance(size, SymbolicInt)]
    return any(size not in reshape.src[0].shape for size in sizes)
