"""CHECK_NAN=1. In: a graph that is about to run, and its buffers. Out: nothing, or an error that names the operation,
the index and the user's line at which a value first was NaN or infinite. Results are checked after each run; only where
one is not finite does the interpreter recompute the graph, node by node, to find the origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tilewright.base.errors import NonFiniteError
from tilewright.base.events import emit
from tilewright.base.location import Location
from tilewright.base.records import NamedTuple
from tilewright.engine.execution.run import Execution
from tilewright.engine.execution.watchers import Run
from tilewright.graph.ops import Ops
from tilewright.graph.sizes import fixed_nodes, present_size
from tilewright.graph.spec import Kind, element_count
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.runtime.buffer import Buffer
from tilewright.runtime.device import open_driver

# The most elements of a node that the interpreter computes: it materialises all terms of a matrix product.
MAX_ELEMENTS = 1 << 25


class Origin(NamedTuple):
    """The first node with a value that is not finite, and the coordinates of the element."""

    node: UOp
    coordinates: tuple[int, ...]
    value: float


class NonFiniteGuard:
    """A run to be checked, with the old contents of the inputs that it overwrites."""

    def __init__(self, run: Run) -> None:
        self.outputs = run.outputs
        self.schedule = run.schedule
        self.lines = run.bound.caller_lines()
        self.values = dict(run.bound.values)
        self.inputs = len(run.bound.buffers)
        self.before = contents_before(run)

    def check(self, execution: Execution) -> None:
        """Raises where a result is not finite and that does not follow from an input or a constant."""
        import numpy as np

        kept = [(slot, buffer) for slot, buffer in enumerate(execution.buffers) if buffer is not None]
        spoiled = [
            slot
            for slot, buffer in kept
            if (slot >= self.inputs or slot in self.before)
            and self.schedule.slots[slot].kind != "check"
            and buffer.dtype.is_float
            and not np.isfinite(contents_of(buffer).astype(np.float64)).all()
        ]
        if not spoiled:
            return
        arrays = {slot: self.before.get(slot) for slot, _ in kept[: self.inputs]}
        for slot, buffer in kept:
            if slot < self.inputs and arrays.get(slot) is None:
                arrays[slot] = read_buffer(buffer)
        self._fix_sizes()
        origin = find_origin(self.outputs, {slot: array for slot, array in arrays.items() if array is not None})
        if origin is not None:
            self._raise(
                origin.node.op.name, origin.value, origin.coordinates, self.lines.get(origin.node) or origin.node.line
            )
        elif not can_interpret(self.outputs):
            slot = spoiled[0]
            item = next(item for item in self.schedule.items if any(access.slot == slot for access in item.writes))
            values = contents_of(_buffer(execution, slot))
            index = int(np.argmin(np.isfinite(values.astype(np.float64))))
            name = "a copy" if item.ast is None else f"kernel {item.ast.arg.name}"
            self._raise(name, float(values[index]), (index,), item.line)

    def _fix_sizes(self) -> None:
        """The graph with the values that the variables in its sizes have in this run."""
        if self.values:
            fixed = fixed_nodes(self.outputs, self.values)
            self.outputs = tuple([fixed[node] for node in self.outputs])
            self.lines = {fixed[node]: line for node, line in self.lines.items() if node in fixed}

    def _raise(self, operation: str, value: float, index: tuple[int, ...], line: Location | None) -> None:
        emit("non-finite", operation=operation, value=value, index=index, location=line)
        raise NonFiniteError(
            operation,
            f"the value at index {index} is {value}, and what it is computed from is finite",
            "look at the values there: a division by 0, a logarithm of 0, a sum that is too large for its dtype",
            location=line,
        )


def contents_before(run: Run) -> dict[int, Any]:
    """The contents of the inputs that the run overwrites, by slot."""
    written = {access.slot for item in run.schedule.items for access in item.writes}
    return {
        slot: read_buffer(buffer)
        for slot, buffer in enumerate(run.slots[: len(run.bound.buffers)])
        if buffer is not None and slot in written and buffer.memory is not None
    }


def find_origin(outputs: Sequence[UOp], arrays: Mapping[int, Any]) -> Origin | None:
    """The first node whose value is NaN though no source is, or infinite though all sources are finite. Constants are
    what the user wrote, and a mask of infinities is intended."""
    import numpy as np

    from tilewright.graph.interpreter.evaluate import evaluate

    if not can_interpret(outputs):
        return None
    values: dict[UOp, Any] = {}
    for node in toposort(*outputs):
        given = {source: values[source] for source in node.src}
        bound = {node: arrays[node.arg.slot][: node.arg.size]} if node.op is Ops.PARAM else given
        values[node] = np.ascontiguousarray(evaluate(node, bound))
        if not node.dtype.is_float or node.op.kind is Kind.LEAF or node.op is Ops.PARAM or node.op is Ops.CONST:
            continue
        found = values[node].astype(np.float64)
        if np.isfinite(found).all():
            continue
        sources = [values[source].astype(np.float64) for source in node.src if source.dtype.is_float]
        has_nan, has_infinity = (any(test(source).any() for source in sources) for test in (np.isnan, np.isinf))
        wrong = np.isnan(found) if has_infinity else ~np.isfinite(found)
        if wrong.any() and not has_nan:
            index = tuple(int(number) for number in np.argwhere(wrong)[0])
            return Origin(node, index, float(found[index]))
    return None


def can_interpret(outputs: Sequence[UOp]) -> bool:
    return all(
        all(isinstance(size, int) for size in node.shape) and element_count(node.shape) <= MAX_ELEMENTS
        for node in toposort(*outputs)
    )


def contents_of(buffer: Buffer) -> Any:
    """A copy of the elements that count: memory for a symbolic size has room for more."""
    return read_buffer(buffer)[: present_size(buffer.size)]


def read_buffer(buffer: Buffer) -> Any:
    """A copy of all that the memory of a buffer holds."""
    import numpy as np

    from tilewright.graph.interpreter.numpy_math import numpy_dtype

    data = bytearray(buffer.nbytes)
    if buffer.nbytes:
        driver = open_driver(buffer.device)
        driver.synchronize()
        driver.copy_out(buffer.ensure(), 0, memoryview(data))
    return np.frombuffer(bytes(data), numpy_dtype(buffer.dtype))


def _buffer(execution: Execution, slot: int) -> Buffer:
    found = execution.buffers[slot]
    assert found is not None
    return found
