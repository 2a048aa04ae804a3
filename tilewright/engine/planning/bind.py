"""Graphs over numbered parameters. In: the nodes to compute, as the caller wrote them. Out: a `BoundGraph`: the same
graph with a PARAM for each buffer, so that equal structures are equal graphs, and the buffer behind each PARAM."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from tilewright.base.records import replace
from tilewright.engine.memory.parts import exchange_buffers, is_held
from tilewright.graph.kernels.custom import updated_source, without_gradient
from tilewright.graph.marks import is_seen_by_gradients_alone
from tilewright.graph.ops import CheckArg, Ops, ParamArg
from tilewright.graph.records import Schedule
from tilewright.graph.spec import Kind, Op
from tilewright.graph.symbolic import free_sizes
from tilewright.graph.symbolic import state as symbolic
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort

_WITH_SIZES = frozenset({Ops.RESHAPE, Ops.EXPAND, Ops.PAD, Ops.SHRINK})
_ALL_OPS = [op for op in vars(Ops).values() if isinstance(op, Op)]
# Ops whose node is the same one over bound sources, without and with symbolic sizes. A CHECK is numbered.
_ELEMENTWISE = frozenset(op for op in _ALL_OPS if op.is_elementwise) - {Ops.CHECK}
_PLAIN = _ELEMENTWISE.union(op for op in _ALL_OPS if op.kind is Kind.MOVEMENT)


class BoundGraph:
    """Outputs over PARAMs. Every buffer, and every value that is held already, is a PARAM in order of appearance."""

    def __init__(self, outputs: Sequence[UOp]) -> None:
        self.outputs: tuple[UOp, ...] = ()
        self.buffers: list[UOp] = []  # behind the parameters
        self.assigns: list[UOp] = []  # the nodes that update memory, as the caller wrote them
        self.checks: list[UOp] = []  # the CHECK nodes by their numbers, as the caller wrote them
        self.is_sharded = False  # whether any value is a MULTI
        self.has_reduction = False  # whether any value is reduced, or computed by a custom kernel
        self.values: dict[str, int] = {}  # of the variables in sizes
        self._params: dict[UOp, UOp] = {}  # of each buffer, in the same order
        self._bound: dict[UOp, UOp] = {}  # a node of the caller -> the node over parameters
        self._held: dict[UOp, UOp] = {}  # a value that is held already -> what holds it
        self.add(outputs)

    def add(self, outputs: Sequence[UOp]) -> None:
        """Binds more outputs: those nodes alone that are not bound yet."""
        bound = self._bound
        stop = (lambda node: node in bound or is_held(node)) if bound else is_held
        plain = _ELEMENTWISE if symbolic.is_used else _PLAIN
        for node in toposort(*outputs, stop=stop):
            if node in bound:
                continue
            if node.op not in plain or (node._cache and "realized" in node._cache):
                bound[node] = made = self._bind(node)
                self.is_sharded |= made.op is Ops.MULTI
                continue
            src = tuple([bound[source] for source in node.src])
            bound[node] = made = node if src == node.src else UOp(node.op, node.dtype, src, node.arg)
            if made.line is None:
                made.line = node.line
        self.outputs += tuple([bound[node] for node in outputs])

    @property
    def nodes(self) -> Collection[UOp]:
        """The caller's nodes, as far as what is held already."""
        return self._bound.keys()

    @property
    def params(self) -> tuple[UOp, ...]:
        return tuple(self._params.values())

    def is_current(self) -> bool:
        """Whether binding the graph again would give the same result: the same values are held by the same memory."""
        held = self._held
        if any(node.cache.get("realized") is not memory or not is_held(node) for node, memory in held.items()):
            return False
        return not any(is_held(node) for node in self._bound if node not in held)

    def relocated(self, schedule: Schedule) -> Schedule:
        """The schedule with the lines of this graph's caller. Nodes over parameters are shared by all callers that
        wrote an equal graph and keep the line of the first. The line of an item is the same object as that of its node,
        which tells for which node it was made."""
        lines = {id(made.line): node.line for node, made in self._bound.items() if made.line is not None}
        items = (replace(item, line=lines.get(id(item.line), item.line)) for item in schedule.items)
        return replace(schedule, items=tuple(items))

    def caller_lines(self) -> dict[UOp, tuple[str, int]]:
        """The caller's line of each node over parameters."""
        return {made: node.line for node, made in self._bound.items() if node.line is not None}

    def forget_nodes(self) -> None:
        """Drops the caller's nodes, so that their reference counts are those of others."""
        self.assigns.clear()
        self._bound.clear()
        self._held.clear()
        self._params.clear()

    def _bind(self, node: UOp) -> UOp:
        """The node over parameters; its sources are bound."""
        if node._cache and is_held(node):
            self._held[node] = memory = node.cache["realized"]
            held = exchange_buffers(memory, self._param_of)
            self.is_sharded |= held.op is Ops.MULTI
            shape = free_sizes(node.shape, self.values) if symbolic.is_used else node.shape
            return held if held.shape == shape else UOp(Ops.RESHAPE, node.dtype, (held,), shape)
        if node.op is Ops.BUFFER:
            return self._param_of(node)
        if not node.src:
            return node if not symbolic.is_used else node.replace(arg=free_sizes(node.arg, self.values))
        bound = self._bound
        if node.op is Ops.DETACH and is_seen_by_gradients_alone(node):
            return bound[node.src[0]]
        src = tuple([bound[s] for s in node.src])
        arg = node.arg
        if symbolic.is_used and node.op in _WITH_SIZES:
            arg = free_sizes(arg, self.values)
        if node.op is Ops.ASSIGN:
            src = (src[0], _stored_view(node, bound, self.values), src[2])
        elif node.op is Ops.REDUCE_AXIS:
            self.has_reduction = True
        elif node.op is Ops.CUSTOM_KERNEL:
            self.has_reduction = True
            arg = free_sizes(without_gradient(node), self.values) if symbolic.is_used else without_gradient(node)
        elif node.op is Ops.CHECK:
            arg = CheckArg(arg.size, arg.wraps, len(self.checks))
            self.checks.append(node)
        if updated_source(node) is not None:
            self.assigns.append(node)
        if src == node.src and arg is node.arg:
            return node
        made = UOp(node.op, node.dtype, src, arg)
        if made.line is None:
            made.line = node.line
        return made

    def _param_of(self, buffer: UOp) -> UOp:
        made = self._params.get(buffer)
        if made is None:
            size = free_sizes(buffer.arg.size, self.values) if symbolic.is_used else buffer.arg.size
            arg = ParamArg(len(self.buffers), size, buffer.arg.device)
            made = self._params[buffer] = UOp(Ops.PARAM, buffer.dtype, (), arg)
            self.buffers.append(buffer)
        return made


def _stored_view(assign: UOp, bound: Mapping[UOp, UOp], values: dict[str, int]) -> UOp:
    """The view that an update stores to, over the memory that it updates. Another reader of the same view may have
    realised it: that buffer has the old elements, and is not the target of the update."""
    base, view, _ = assign.src
    chain: list[UOp] = []
    while view is not base:
        chain.append(view)
        view = view.src[0]
    if not any(map(is_held, chain)):
        return bound[assign.src[1]]
    made = bound[base]
    for step in reversed(chain):
        if not is_seen_by_gradients_alone(step):
            made = UOp(step.op, step.dtype, (made,), free_sizes(step.arg, values) if symbolic.is_used else step.arg)
    return made
