"""Plans for graphs that differ in their sizes alone. In: the structures that a program plans. Out: for one whose like were
planned in other sizes, the same graph with variables in place of the sizes that differ, and their values.

A text that grows by a token, batches of sentences of any length: each step has a graph of its own, whose schedule and
kernels would be made for one run. The first sizes are planned as they are. From the third on the graph is *lifted*:
numbers that differ become expressions over variables, so that one plan serves all sizes. A lifted graph is used for a
structure where it is that structure, node by node, with the values in place of its variables, and for no other. A
structure that comes back gets a plan for its own sizes, whose kernels are faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tilewright.base.config import options
from tilewright.base.dtype import dtypes
from tilewright.base.errors import InternalError, UserError
from tilewright.base.events import emit
from tilewright.base.records import NamedTuple, mutable_record
from tilewright.engine.compilation.stored import plan_options
from tilewright.engine.planning.plan import Structure
from tilewright.engine.recent import RecentTable
from tilewright.graph.ops import CheckArg, Ops, ParamArg
from tilewright.graph.size_expressions import evaluate_size
from tilewright.graph.sizes import fixed_graph
from tilewright.graph.spec import element_count
from tilewright.graph.symbolic import SymbolicInt, capacity, state
from tilewright.graph.uop import UOp
from tilewright.graph.verification.verify import verify_tensor_graph
from tilewright.graph.walk import toposort
from tilewright.runtime.device import is_file_device, open_driver

# Structures of a family that are planned for their own sizes before it is lifted.
MIN_STATIC = 2
# Runs of a structure with a lifted plan before it gets a plan for its own sizes.
MAX_RUNS = 2
# Lifted graphs of a family: others are made where sizes exceed the bounds of the first.
MAX_LIFTED = 8
MAX_VARIABLES = 3
# The most elements of a value, and operations of all of them, at the greatest sizes: memory is allocated for those, and
# kernels of larger work are worth a compilation for their own sizes.
MAX_ELEMENTS = 1 << 24
MAX_OPERATIONS = 1 << 31

_SIZED = frozenset({Ops.RESHAPE, Ops.EXPAND, Ops.PAD, Ops.SHRINK, Ops.IOTA})
# What is mostly stored.
_STORED = frozenset({Ops.PARAM, Ops.REDUCE_AXIS, Ops.CONTIGUOUS, Ops.ASSIGN})
_UNLIFTED = frozenset({Ops.CUSTOM_KERNEL, Ops.MULTI, Ops.VARIABLE, Ops.SIZE, Ops.THREEFRY})


class Lifted(NamedTuple):
    """A structure over variables, and their values for the structure that it stands for."""

    structure: Structure
    values: dict[str, int]


class _Sample(NamedTuple):
    """A structure as its nodes without numbers (the key of its family), and the numbers in their order."""

    key: tuple[Any, ...]
    numbers: tuple[int, ...]


class _Graph(NamedTuple):
    """A lifted graph: for each variable its bounds, and a number of a sample from which its value follows."""

    structure: Structure
    variables: tuple[tuple[str, int, int, int, int], ...]  # name, bounds, position of the number, offset


@mutable_record
class _Family:
    samples: list[tuple[_Sample, Structure]]
    graphs: list[_Graph]
    is_given_up: bool = False


@mutable_record
class _Use:
    """A structure with a lifted plan, and how often it has run."""

    lifted: Lifted
    runs: int = 0


_families: RecentTable[tuple[Any, ...], _Family] = RecentTable()
_uses: RecentTable[tuple[Any, ...], _Use | None] = RecentTable(8)


def lifted_structure(structure: Structure) -> Lifted | None:
    """The structure over variables; None where it is to have a plan for its own sizes."""
    if options.DYNAMIC_KERNELS < 2 or not _is_supported(structure):
        return None
    key = (structure, plan_options())
    if key in _uses:
        return _used_again(key)
    sample = _sample_of(structure)
    lifted = None
    if sample is not None:
        family = _families.get((sample.key, plan_options()))
        if family is None:
            family = _families[sample.key, plan_options()] = _Family([], [])
            _families.trim()
        lifted = _lifted_in(family, sample, structure)
    _uses[key] = None if lifted is None else _Use(lifted, 1)
    _uses.trim()
    return lifted


def _used_again(key: tuple[Any, ...]) -> Lifted | None:
    use = _uses[key]
    if use is None or use.runs >= MAX_RUNS:
        return None
    use.runs += 1
    return use.lifted


def give_up(structure: Structure, error: Exception) -> None:
    """Notes that a lifted graph cannot be planned: structures of its family have plans of their own."""
    emit("lift", structure=structure, failure=f"{type(error).__name__}: {error}")
    for family in _families.values():
        if any(graph.structure == structure for graph in family.graphs):
            family.is_given_up = True
            family.graphs.clear()
    for key, use in list(_uses.items()):
        if use is not None and use.lifted.structure == structure:
            _uses[key] = None


def _is_supported(structure: Structure) -> bool:
    devices = {structure.device, *(param.arg.device for param in structure.params)}
    return all(not is_file_device(name) and open_driver(name).takes_variables for name in devices)


# ---------------------------------------------------------------- families


def _sample_of(structure: Structure) -> _Sample | None:
    """The structure without its numbers, and these; None where a node cannot be lifted."""
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
        elif op is Ops.CHECK:
            numbers.append(arg.size)
            fact = (arg.wraps, arg.number)
        elif op is Ops.CONST and not isinstance(arg, bool) and float(arg).is_integer():
            numbers.append(int(arg))
            fact = int
        else:
            fact = (arg.__class__, repr(arg) if op is Ops.CONST else arg)
        skeleton.append((op, node.dtype, tuple([places[src] for src in node.src]), fact))
    outputs = tuple([places[node] for node in structure.outputs])
    key = (tuple(skeleton), outputs, structure.device, structure.pinned)
    return _Sample(key, tuple(numbers))


def _numbered(arg: Any, numbers: list[int]) -> Any:
    """The form of a nested tuple of sizes, whose numbers are collected."""
    if isinstance(arg, tuple):
        return tuple([_numbered(part, numbers) for part in arg])
    numbers.append(arg)
    return None


def _lifted_in(family: _Family, sample: _Sample, structure: Structure) -> Lifted | None:
    if family.is_given_up:
        return None
    for graph in family.graphs:
        values = _values_for(graph, sample, structure)
        if values is not None:
            return Lifted(graph.structure, values)
    if len(family.samples) >= MIN_STATIC and len(family.graphs) < MAX_LIFTED:
        made = _lift([*family.samples, (sample, structure)])
        values = None if made is None else _values_for(made, sample, structure)
        if made is not None and values is not None:
            family.graphs.append(made)
            emit("lift", structure=made.structure, failure="")
            return Lifted(made.structure, values)
    family.samples = [*family.samples[-MIN_STATIC:], (sample, structure)]
    return None


def _values_for(graph: _Graph, sample: _Sample, structure: Structure) -> dict[str, int] | None:
    """The values with which a lifted graph is the structure; None where there are none."""
    values = {}
    for name, least, greatest, position, offset in graph.variables:
        value = values[name] = sample.numbers[position] - offset
        if not least <= value <= greatest:
            return None
    is_equal = fixed_graph(graph.structure.outputs, values) == structure.outputs
    return values if is_equal else None


# ---------------------------------------------------------------- lifting


def _lift(samples: Sequence[tuple[_Sample, Structure]]) -> _Graph | None:
    """The graph of the last sample with expressions in place of the numbers that differ between the samples; None where
    they do not follow from few variables, or where no bounds of these decide what is compared with them."""
    columns = list(zip(*(sample.numbers for sample, _ in samples)))
    is_used, state.is_used = state.is_used, True
    for greatest in (_next_power, lambda number: _next_power(number) - 1, lambda number: number):
        expressions = _Expressions(columns, greatest)
        sizes = [column[-1] if len(set(column)) == 1 else expressions.of(column) for column in columns]
        if None in sizes:
            break
        try:
            lifted = _with_sizes(samples[-1][1], sizes)
            for output in lifted.outputs:
                verify_tensor_graph(output, "lift")
            if _is_small(lifted):
                return _Graph(lifted, tuple(expressions.variables))
        except (UserError, InternalError, AssertionError):
            continue  # a comparison that these bounds leave open
    state.is_used = is_used
    return None


def _next_power(number: int) -> int:
    return 1 << number.bit_length()


class _Expressions:
    """Numbers of several samples as expressions over few variables."""

    def __init__(self, columns: Sequence[tuple[int, ...]], greatest: Callable[[int], int]) -> None:
        self.variables: list[tuple[str, int, int, int, int]] = []
        self._known: dict[tuple[int, ...], int] = {}
        self._columns = columns
        self._greatest = greatest
        # The smallest numbers are sizes of axes, the others mostly their multiples and products.
        differing = sorted({column for column in columns if len(set(column)) > 1}, key=lambda column: (max(column), column))
        for column in differing:
            if self.of(column) is None:
                self._add_variable(column)

    def of(self, column: tuple[int, ...]) -> int | None:
        """The expression of numbers that differ."""
        if column not in self._known:
            size = self._affine(column)
            size = self._product(column) if size is None else size
            if size is None:
                return None
            self._known[column] = size
        return self._known[column]

    def _add_variable(self, column: tuple[int, ...]) -> None:
        if len(self.variables) == MAX_VARIABLES or min(column) < 2:
            return
        name = f"size{len(self.variables)}"
        greatest = self._greatest(max(column))
        node = UOp(Ops.VARIABLE, dtypes.index, (), (name, 2, greatest))
        self.variables.append((name, 2, greatest, self._columns.index(column), 0))
        self._known[column] = SymbolicInt(node, None)

    def _affine(self, column: tuple[int, ...]) -> int | None:
        """factor * known + offset."""
        for known, size in self._known.items():
            pairs = sorted(set(zip(known, column)))
            (x, y), (other_x, other_y) = pairs[0], pairs[-1]
            if other_x == x or (other_y - y) % (other_x - x):
                continue
            factor = (other_y - y) // (other_x - x)
            offset = y - factor * x
            if factor and all(factor * a + offset == b for a, b in pairs):
                return size * factor + offset
        return None

    def _product(self, column: tuple[int, ...]) -> int | None:
        """The product of two known ones, times a number."""
        known = list(self._known.items())
        for number, (first, left) in enumerate(known):
            for second, right in known[number:]:
                products = [a * b for a, b in zip(first, second)]
                if all(products) and column[0] % products[0] == 0:
                    factor = column[0] // products[0]
                    if factor and all(product * factor == value for product, value in zip(products, column)):
                        return left * right * factor
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
        elif op is Ops.CHECK:
            arg = CheckArg(next(remaining), arg.wraps, arg.number)
        elif op is Ops.CONST and not isinstance(arg, bool) and float(arg).is_integer():
            number = next(remaining)
            if isinstance(number, SymbolicInt):
                op, arg = Ops.SIZE, number
        made = done[node] = UOp(op, dtype, src, arg)
        if made.line is None:
            made.line = node.line
    params = tuple([done[param] for param in structure.params])
    return structure._replace(outputs=tuple([done[node] for node in structure.outputs]), params=params)


def _filled(arg: Any, numbers: Any) -> Any:
    return tuple([_filled(part, numbers) for part in arg]) if isinstance(arg, tuple) else next(numbers)


def _is_small(structure: Structure) -> bool:
    """Whether memory and work at the greatest sizes are small."""
    operations = 0
    for node in toposort(*structure.outputs):
        if node.op is Ops.REDUCE_AXIS:
            operations += capacity(element_count(node.src[0].shape))
        if node.op in _STORED and capacity(element_count(node.shape)) > MAX_ELEMENTS:
            return False
    return operations <= MAX_OPERATIONS


def present(size: int, values: dict[str, int]) -> int:
    """A size over variables of a lifted graph as a number."""
    return evaluate_size(size.node, values) if isinstance(size, SymbolicInt) else size
