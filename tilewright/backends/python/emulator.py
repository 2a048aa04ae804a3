"""The emulator. In: a linear `Program` and the NumPy arrays of its parameters. Out: the arrays, changed as the program
says, or an error where it does what no device may do. Stands at the end of the flow, instead of a compiled kernel.

All threads of a batch of work-groups execute a node together, as one NumPy operation; loops are Python loops. A device
may execute threads in other orders: a program that passes the checks has the same result in any order."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from tilewright.backends.python import access
from tilewright.backends.python.access import Site
from tilewright.backends.python.dot import compute_dot, compute_tile_dot, gather_tile
from tilewright.backends.python.folds import Accumulators, compute, fold_warp
from tilewright.backends.python.launch import GROUP_AXIS, THREAD_AXIS, Launch
from tilewright.backends.python.memory import View, make_parameter_views, make_slot_views
from tilewright.backends.python.plan import is_loop, make_plan
from tilewright.base.errors import EmulatorError, InternalError
from tilewright.graph.interpreter.evaluate import evaluate
from tilewright.graph.interpreter.numpy_math import Array, numpy_dtype
from tilewright.graph.ops import AxisType, Ops, ParamArg
from tilewright.graph.records import Program
from tilewright.graph.spec import Op
from tilewright.graph.uop import TILE_DOT_CLOSED, UOp, memory_of
from tilewright.graph.walk import toposort

# Maximum of elements of one value in a batch of work-groups: a few dozen live values then take some hundred megabytes.
BATCH_ELEMENTS = 1 << 20

Initialised = Sequence[bool | Array]


def run_program(
    program: Program,
    buffers: Sequence[Array],
    initialised: Initialised | None = None,
    check: bool = True,
    *,
    variables: Mapping[str, int] | None = None,
    batch_elements: int = BATCH_ELEMENTS,
) -> None:
    """Execute `program` on `buffers`, one per parameter, in place.

    `initialised` says for each buffer whether the caller defined its contents: a bool, or an array of bool with an
    entry per element, which then learns what the program wrote. Without it, a parameter that the program reads and
    never writes is taken as defined, every other as undefined. `check=False` leaves out all checks but that of bounds.
    `variables` gives the values of VARIABLE nodes by name."""
    with np.errstate(all="ignore"):
        _Run(program, buffers, initialised, check, variables or {}).execute(batch_elements)


class _Run:
    """One launch of a program. `values` and the fields after it are those of the batch being executed."""

    def __init__(
        self,
        program: Program,
        buffers: Sequence[Array],
        initialised: Initialised | None,
        check: bool,
        variables: Mapping[str, int],
    ) -> None:
        self.program = program
        self.check = check
        self.variables = variables
        self.plan = make_plan(program)
        self.launch = Launch(program, self.plan.tile_ranges, self._size_of)
        self.declared = {param.slot: param for param in program.params}
        self.launch_ranges = frozenset((*program.global_ranges, *program.local_ranges))
        self.epoch = 0
        self.parameters = self._make_parameters(buffers, initialised)
        self.constants = {node: self.launch.single(self._number(node), node) for node in self.plan.constants}
        self.values: dict[UOp, Array] = {}
        self.views: dict[UOp, View] = {}
        self.accumulators = Accumulators(self.launch, 0)
        self.groups = np.zeros(0, np.int64)
        self.position = 0
        # Start, current index, all indices; and the trip counts where they differ between threads.
        self.loops: list[tuple[int, int, Array, Array | None]] = []
        self.initialised = initialised

    # ------------------------------------------------------------ before the first work-group

    def _size_of(self, node: UOp) -> int:
        """The size of a launch or tile range, which depends on constants and variables alone."""
        size = node.src[0]
        if size.is_const:
            return int(size.arg)
        return int(evaluate(size, {found: self._variable(found) for found in _variables_below(size)}).item())

    def _number(self, node: UOp) -> object:
        return node.arg if node.is_const else self._variable(node)

    def _variable(self, node: UOp) -> int:
        name = node.arg[0]
        if name not in self.variables:
            raise InternalError(f"{self.program.name}: no value was given for the variable {name!r}")
        return self.variables[name]

    def _make_parameters(self, buffers: Sequence[Array], initialised: Initialised | None) -> dict[int, View]:
        params = self.program.params
        if len(buffers) != len(params) or (initialised is not None and len(initialised) != len(params)):
            raise InternalError(f"{self.program.name} has {len(params)} parameters; {len(buffers)} buffers were given")
        for param, buffer in zip(params, buffers):
            if buffer.dtype != numpy_dtype(param.dtype) or buffer.size != param.size or not buffer.flags.c_contiguous:
                raise InternalError(
                    f"{self.program.name}: parameter {param.slot} is {param.size} contiguous elements of "
                    f"{param.dtype.name}; the buffer has shape {buffer.shape} and {buffer.dtype}"
                )
        written = {position for position, param in enumerate(params) if param.is_written and self.check}
        nodes = {node.arg.slot: node for node in self.plan.memories if node.op is Ops.PARAM}
        arrays = [buffer.reshape(-1) for buffer in buffers]
        named = [
            nodes.get(param.slot, UOp(Ops.PARAM, param.dtype, (), ParamArg(param.slot, param.size))) for param in params
        ]
        views = make_parameter_views(named, arrays, written, self.launch)
        for position, (param, view) in enumerate(zip(params, views)):
            known = param.is_read and not param.is_written if initialised is None else initialised[position]
            elements = np.flatnonzero(np.broadcast_to(np.reshape(known, -1), view.size))
            view.shadow.mark_written(view.cells(elements))
        for view in views:
            view.shadow.is_complete = bool(view.shadow.written.all())
        return {param.slot: view for param, view in zip(params, views)}

    # ------------------------------------------------------------ batches

    def execute(self, batch_elements: int) -> None:
        # Work-groups may have different trip counts; those of a batch have equal ones.
        trips = self._trips_of_groups() if self.plan.trips else None
        if self.plan.trips and trips is None:
            batch_elements = 1
        for groups in self.launch.batches(self._elements_per_group(), batch_elements, trips):
            self._begin_batch(groups)
            while self.position < len(self.program.body):
                self._step(self.position)
        self._tell_written()

    def _trips_of_groups(self) -> Array | None:
        """A row for each work-group: the trip counts of its loops, as its first thread has them. None where they
        depend on a loop around them, or on memory."""
        groups = np.arange(self.launch.group_count)
        self.values = self.launch.range_values(groups) | self.constants
        for node in toposort(*self.plan.trips):
            if node.op.is_elementwise:
                self.values[node] = compute(node.op, node.dtype, [self._value(src) for src in node.src])
            elif node not in self.values:
                return None
        counts = [self._value(node) for node in self.plan.trips]
        columns = [count.reshape(len(count), -1)[:, 0] for count in counts]
        return np.stack([np.broadcast_to(column, groups.size) for column in columns], axis=1)

    def _elements_per_group(self) -> int:
        """The most elements that a value, or the memory of a slot, has in one work-group."""
        threads = self.launch.group_size
        largest = threads * max((self.launch.tile_size(node) for node in self.program.body), default=1)
        for node in self.plan.memories:
            if node.op is not Ops.PARAM:
                largest = max(largest, node.arg.size * (threads if node.op is Ops.DEFINE_REG else 1))
        return largest

    def _begin_batch(self, groups: Array) -> None:
        self.groups = groups
        self.position = 0
        self.epoch += 1
        self.values = self.launch.range_values(groups) | self.constants
        self.accumulators = Accumulators(self.launch, groups.size)
        locals_ = [node for node in self.plan.memories if node.op is Ops.DEFINE_LOCAL]
        registers = [node for node in self.plan.memories if node.op is Ops.DEFINE_REG]
        count = groups.size
        group_numbers = self.launch.along(np.arange(count), GROUP_AXIS)
        thread_numbers = group_numbers * self.launch.group_size
        thread_numbers = thread_numbers + self.launch.along(np.arange(self.launch.group_size), THREAD_AXIS)
        self.views = make_slot_views(locals_, group_numbers, self.launch, is_shared=self.check)
        self.views.update(make_slot_views(registers, thread_numbers, self.launch, is_shared=False))

    def _tell_written(self) -> None:
        if self.initialised is None or not self.check:
            return
        for known, view in zip(self.initialised, self.parameters.values()):
            if isinstance(known, np.ndarray):
                cells = view.cells(np.arange(view.size)).reshape(view.size, view.width)
                known.reshape(-1)[:] = view.shadow.written[cells].all(axis=1)

    # ------------------------------------------------------------ one node

    def _step(self, position: int) -> None:
        node = self.program.body[position]
        op, values = node.op, self.values
        self.position = position + 1
        if op.is_elementwise:
            values[node] = compute(op, node.dtype, [values[src] for src in node.src])
            if op is Ops.CHECK:
                self._note_failure(node)
        elif op in _HANDLERS:
            _HANDLERS[op](self, position, node)
        elif op not in _WITHOUT_EFFECT:
            raise InternalError(f"{self.program.name}: body[{position}] {node!r} does not belong in a linear program")
        if self.position == position + 1:
            # The END of a loop that continues keeps the values that the next iteration reads.
            for done in self.plan.releases[position]:
                values.pop(done, None)

    def _note_failure(self, node: UOp) -> None:
        """Stores any one of the values that are out of range to the word of the check."""
        value, valid = (self._value(src) for src in node.src)
        active = self._active()
        valid = valid if active is None else valid & active
        failed = np.broadcast_arrays(value, valid & ((value < 0) | (value >= node.arg.size)))
        found = failed[0][failed[1]]
        if found.size:
            words = self.parameters[node.arg.slot].data
            words[node.arg.number] = found[0].astype(words.dtype)

    def _value(self, node: UOp) -> Array:
        if node not in self.values:
            raise InternalError(f"{self.program.name}: {node!r} is used but has no value")
        return self.values[node]

    def _site(self, position: int, node: UOp) -> Site:
        return Site(self.program.name, position, node, self.launch, self.groups, self.epoch, self.check)

    # ------------------------------------------------------------ loops and barriers

    def _open_loop(self, position: int, node: UOp) -> None:
        if not is_loop(node, self.launch_ranges):
            return
        if node.arg.kind not in (AxisType.LOOP, AxisType.REDUCE):
            raise InternalError(f"{self.program.name}: body[{position}] {node!r} is not listed as a launch range")
        trips = self._value(node.src[0])
        count = int(trips.max())
        differs = bool((trips != count).any())
        body = self.program.body[position : self.plan.ends[position]]
        if differs and any(inner.op in _COLLECTIVE for inner in body):
            message = "has a trip count that differs between threads, which synchronise in it"
            raise self._site(position, node).error(EmulatorError, message)
        if count < 1:
            self.position = self.plan.ends[position] + 1
            return
        indices = self.launch.along(np.arange(count, dtype=numpy_dtype(node.dtype)), GROUP_AXIS)
        self.loops.append((position, 0, indices, trips if differs else None))
        self.values[node] = indices[:1]

    def _close_loop(self, _position: int, node: UOp) -> None:
        start, index, indices, trips = self.loops.pop()
        if index + 1 == len(indices):
            del self.values[node.src[0]]
            return
        self.loops.append((start, index + 1, indices, trips))
        self.values[node.src[0]] = indices[index + 1 : index + 2]
        self.position = start + 1

    def _active(self) -> Array | None:
        """Which threads are still in the loops around, where their trip counts differ."""
        masks = [index < trips for _, index, _, trips in self.loops if trips is not None]
        return functools.reduce(np.logical_and, masks) if masks else None

    def _barrier(self, _position: int, _node: UOp) -> None:
        self.epoch += 1

    # ------------------------------------------------------------ memory

    def _define_register(self, _position: int, node: UOp) -> None:
        # A register is declared each time it is reached: its contents are undefined from then on.
        self.views[node].shadow.forget_written()

    def _address(self, node: UOp) -> tuple[View, Array, Array | None]:
        index = node.src[0]
        if index.op is not Ops.INDEX:
            raise InternalError(f"{self.program.name}: {node!r} takes {index!r} where an INDEX belongs")
        buffer = memory_of(index)
        view = self.parameters.get(buffer.arg.slot) if buffer.op is Ops.PARAM else self.views.get(buffer)
        if view is None:
            raise InternalError(
                f"{self.program.name}: {node!r} accesses {buffer!r}, which is not memory of the program"
            )
        positions = [self._value(src) for src in index.src[1:] if src.dtype.kind != "void"]
        masks = [*positions[1:2], *(active for active in (self._active(),) if active is not None)]
        return view, positions[0], functools.reduce(np.logical_and, masks) if masks else None

    def _load(self, position: int, node: UOp) -> None:
        view, index, valid = self._address(node)
        site = self._site(position, node)
        if self.check:
            self._check_declared(site, view, "is_read")
        alternatives = [self._value(src) for src in node.src[1:] if src.dtype.kind != "void"]
        self.values[node] = access.load(site, view, index, valid, alternatives[0] if alternatives else None)

    def _store(self, position: int, node: UOp) -> None:
        view, index, valid = self._address(node)
        site = self._site(position, node)
        if self.check:
            self._check_declared(site, view, "is_written")
        access.store(site, view, index, valid, self._value(node.src[1]))

    def _check_declared(self, site: Site, view: View, flag: str) -> None:
        """The order of launches comes from the declared accesses, so a parameter must not be used beyond them."""
        if view.node.op is not Ops.PARAM:
            return
        if not getattr(self.declared[view.node.arg.slot], flag):
            raise site.error(EmulatorError, f"of {view.label}: the program's parameter does not say {flag}")

    def _dot(self, position: int, node: UOp) -> None:
        memories = [self.parameters[memory.arg.slot] for memory in node.src[:2]]
        numbers = [self._value(number) for number in node.src[2:]]
        self.values[node] = compute_dot(self._site(position, node), node, memories, numbers)

    def _tile_dot(self, position: int, node: UOp) -> None:
        site = self._site(position, node)
        row, column = (self._value(number) for number in node.src[2:4])
        right = self.views[memory_of(node.src[1])]
        left: View | Array
        if node.arg.left is None:
            held = [self._value(source) for source in (node.src[0], *node.src[4:TILE_DOT_CLOSED])]
            left = gather_tile(site, node, held, (self.groups.size, self.launch.group_size))
        else:
            left = self.views[memory_of(node.src[0])]
        self.values[node] = compute_tile_dot(site, node, left, right, row, column)

    # ------------------------------------------------------------ accumulators

    def _declare_accumulator(self, _position: int, node: UOp) -> None:
        self.accumulators.declare(node, self._value(node.src[0]))

    def _accumulate(self, position: int, node: UOp) -> None:
        self.accumulators.accumulate(self._site(position, node), self._value(node.src[1]), self._active())

    def _combine(self, position: int, node: UOp) -> None:
        self.values[node] = self.accumulators.combine(self._site(position, node))

    def _fold_warp(self, position: int, node: UOp) -> None:
        value = self._value(node.src[0])
        self.values[node] = fold_warp(self._site(position, node), value, self.launch.group_size)


def _variables_below(node: UOp) -> list[UOp]:
    return [found for found in toposort(node) if found.op is Ops.VARIABLE]


_HANDLERS: dict[Op, Callable[[_Run, int, UOp], None]] = {
    Ops.RANGE: _Run._open_loop,
    Ops.END: _Run._close_loop,
    Ops.BARRIER: _Run._barrier,
    Ops.DEFINE_REG: _Run._define_register,
    Ops.LOAD: _Run._load,
    Ops.STORE: _Run._store,
    Ops.DOT: _Run._dot,
    Ops.TILE_DOT: _Run._tile_dot,
    Ops.ACC: _Run._declare_accumulator,
    Ops.ACCUMULATE: _Run._accumulate,
    Ops.COMBINE: _Run._combine,
    Ops.WARP_FOLD: _Run._fold_warp,
}
# Ops that all threads of a work-group, or of a warp, execute together.
_COLLECTIVE = frozenset({Ops.BARRIER, Ops.WARP_FOLD, Ops.DOT, Ops.TILE_DOT})
_WITHOUT_EFFECT = frozenset({Ops.INDEX, Ops.DEFINE_LOCAL, Ops.CONST, Ops.VARIABLE, Ops.PARAM, Ops.SINK})
