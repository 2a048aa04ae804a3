"""Graphs as functions of some of their nodes. In: results, and the nodes that they are computed from. Out: a
`GraphFunction`, which makes the same graph over other nodes of those shapes and dtypes.

A training loop makes the same graph in each iteration, over other memory. Its operations check shapes, promote dtypes
and fold trivial cases each time; a function of the graph repeats what came of it, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from tilewright.base.dtype import DType
from tilewright.base.records import NamedTuple
from tilewright.graph.ops import Identity, Ops
from tilewright.graph.sizes import is_symbolic
from tilewright.graph.spec import Op, Shape
from tilewright.graph.symbolic import state as symbolic
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

# What is itself and not a function of its sources: memory and updates of it, a number that is given at launch, a value
# on several devices.
_NO_FUNCTIONS = frozenset({Ops.BUFFER, Ops.PARAM, Ops.ASSIGN, Ops.MULTI, Ops.COPY, Ops.VARIABLE, Ops.SIZE})


class Step(NamedTuple):
    """A node whose sources are values by number: arguments first, then constants, then steps."""

    op: Op
    dtype: DType
    src: tuple[int, ...]
    arg: Any
    shape: Shape


class GraphFunction:
    """A graph over `count` arguments. Functions of equal graphs are equal."""

    __slots__ = ("_hash", "_made", "constants", "count", "outputs", "steps")

    def __init__(
        self, count: int, constants: tuple[UOp, ...], steps: tuple[Step, ...], outputs: tuple[int, ...]
    ) -> None:
        self.count = count
        self.constants = constants
        self.steps = steps
        self.outputs = outputs  # the values by number
        self._hash = hash((count, constants, steps, outputs))
        self._made: list[tuple[Any, ...]] = []  # the steps as `apply` takes them, by its first call

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, GraphFunction)
            and self._hash == other._hash
            and (self.count, self.constants, self.outputs) == (other.count, other.constants, other.outputs)
            and self.steps == other.steps
        )

    def __hash__(self) -> int:
        return self._hash

    def apply(self, arguments: Sequence[UOp], line: tuple[str, int] | None) -> list[UOp]:
        """All values, by number, over other arguments. New nodes get the line, but for the outputs, whose line tells
        whether they were made before."""
        values = [*arguments, *self.constants]
        if not self._made:
            self._made = [_making(self, number) for number in range(len(self.steps))]
        add = values.append
        for op, dtype, first, pick, arg, shape, is_output in self._made:
            given = arg if arg is not Identity else Identity()
            node = UOp(op, dtype, (values[first],) if pick is None else pick(values), given)
            if node._shape is None:
                node._shape = shape
                if node.line is None and not is_output:
                    node.line = line
            add(node)
        return values


def _making(function: GraphFunction, number: int) -> tuple[Any, ...]:
    """A step as `apply` takes it: with what picks its sources, where they are several, and whether it is an output."""
    op, dtype, src, arg, shape = function.steps[number]
    pick = itemgetter(*src) if len(src) > 1 else None
    is_output = function.count + len(function.constants) + number in function.outputs
    return op, dtype, src[0], pick, arg, shape, is_output


def function_of(outputs: Sequence[UOp], arguments: Sequence[UOp]) -> tuple[GraphFunction, dict[UOp, int]] | None:
    """The outputs as a function of the arguments, and the number of each node; None where they depend on memory that is
    no argument. Of the marks that set a node apart from an equal one, those are kept that both nodes need which are in
    this graph: whether there are others in the program is another matter at each call."""
    numbers = {node: number for number, node in enumerate(arguments)}
    order = [node for node in toposort(*outputs, stop=numbers.__contains__) if node not in numbers]
    constants = [node for node in order if not node.src]
    for node in constants:
        numbers[node] = len(numbers)
    first = len(numbers)
    steps: dict[Step, None] = {}
    for node in order:
        if node.op in _NO_FUNCTIONS or (symbolic.is_used and is_symbolic(node.shape)) or _is_of_user(node):
            return None
        src = node.src
        if not src:
            continue
        if _is_mark(node):
            numbers[node] = numbers[src[0]]
            continue
        taken = (numbers[src[0]],) if len(src) == 1 else tuple([numbers[source] for source in src])
        step = Step(node.op, node.dtype, taken, node.arg, node.shape)
        if step in steps:
            mark = Step(Ops.DETACH, src[0].dtype, taken[:1], Identity, src[0].shape)
            while mark in steps:
                mark = mark._replace(src=(first + list(steps).index(mark),))
            steps[mark] = None
            step = step._replace(src=(first + len(steps) - 1, *taken[1:]))
        numbers[node] = first + len(steps)
        steps[step] = None
    outs = tuple([numbers[node] for node in outputs])
    return GraphFunction(len(arguments), tuple(constants), tuple(steps), outs), numbers


def _is_of_user(node: UOp) -> bool:
    """Whether it is a custom kernel of a user, whose gradient is a function that may do anything."""
    return node.op is Ops.CUSTOM_KERNEL and node.arg.origin is None


def _is_mark(node: UOp) -> bool:
    return node.op is Ops.DETACH and node.arg.__class__ is Identity
