"""Gradients of tensors. In: a result and what it is to be differentiated by. Out: tensors, lazy like any others.
`backward` adds to `.grad` of the parameters, `gradient` returns; both apply `graph/gradients/rules.py` along one
walk from the result down. What a result depends on is read from its graph: detach() and no_grad() cut it there."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeVar, cast

from tilewright.base.errors import DTypeError, ShapeError, UnsupportedError
from tilewright.engine.execution.traces import is_traced, own_trace
from tilewright.engine.memory import live
from tilewright.graph import build, marks
from tilewright.graph.ops import Ops
from tilewright.graph.spec import Kind
from tilewright.graph.uop import UOp
from tilewright.graph.walk import toposort
from tilewright.tensor.core.base import TensorBase, check_devices, parameter_of
from tilewright.tensor.core.gradient_memo import gradients_of_structure
from tilewright.tensor.core.modes import modes

R = TypeVar("R")
T = TypeVar("T", bound=TensorBase)


class GradientMixin(TensorBase):
    """backward, gradient, contiguous_backward."""

    def backward(
        self, gradient: Self | None = None, create_graph: bool = False, *, retain_graph: bool | None = None
    ) -> Self:
        """Adds to `.grad` of every parameter (a tensor that asked for `requires_grad`) the gradient of this tensor.
        A tensor of more than one element needs `gradient`, what each of its elements weighs. The graph is kept
        with any `retain_graph`, so a second call adds again. `create_graph` lets gradients be taken of `.grad` in
        turn."""
        del retain_graph
        upstream = self._upstream("backward", gradient)
        parameters, empty = _living_parameters()

        def owners(node: UOp) -> list[TensorBase]:
            current = parameters.get(node)
            if current is None:
                earlier = parameter_of(node)
                current = [] if earlier is None else [earlier]
            return current

        def is_wanted(node: UOp) -> bool:
            return bool(owners(node))

        def derive() -> Mapping[UOp, UOp]:
            return Flow(self.uop, is_wanted, stops=True).propagate(upstream)

        is_plain = gradient is None and not create_graph  # else the upstream, or notes of merged views, matter too
        found = gradients_of_structure(self.uop, is_wanted, derive) if is_plain else derive()
        if not found and not self.requires_grad:  # a result may depend on a parameter in name only, as x**0
            message = "no tensor that requires a gradient takes part in it"
            raise UnsupportedError("backward", message, "make the parameters with requires_grad=True")
        for node, value in found.items():
            for parameter in owners(node):
                _accumulate(parameter, value, create_graph)
        for parameter in empty:
            _accumulate(parameter, build.const(parameter.dtype, 0, parameter.shape), create_graph)
        return self

    def gradient(self, *targets: Self, gradient: Self | None = None) -> tuple[Self, ...]:
        """The gradients of this tensor with respect to any tensors that it was computed from: parameters, intermediate
        results and views of them. They are ordinary tensors: gradients can be taken of them. A target stands for
        itself: the uses of another tensor that is an equal expression do not count."""
        for target in targets:
            if not isinstance(target, TensorBase):
                message = f"a {type(target).__name__} is not a target"
                raise DTypeError("gradient", message, "give tensors that the result was computed from, one by one")
            if not target.dtype.is_float:
                message = f"a target of {target.dtype.name} has no gradient"
                raise DTypeError("gradient", message, "give float tensors; cast integers before computing with them")
        upstream = self._upstream("gradient", gradient)
        nodes = {target: _target_node(target) for target in targets}
        wanted = set(nodes.values())

        def is_wanted(node: UOp) -> bool:
            return node in wanted or not wanted.isdisjoint(build.goes_past(node)) or parameter_of(node) in nodes

        found = Flow(self.uop, is_wanted).propagate(upstream)
        requires_grad = modes.grad_enabled and (self.requires_grad or any(target.requires_grad for target in targets))
        results = []
        for number, target in enumerate(targets):
            parts = [value for node, value in found.items() if parameter_of(node) is target]
            parts = parts or _parts_through(nodes[target], found)
            if 0 in target.shape:
                parts = [build.const(target.dtype, 0, target.shape)]
            if not parts and self._depends_on(target, nodes[target]):
                parts = [build.const(target.dtype, 0, target.shape)]
            if not parts:
                raise _unrelated(number, target)
            fitted = (build.reshape(part, target.shape) for part in parts)
            total = functools.reduce(lambda left, right: build.alu(Ops.ADD, left, right), fitted)
            results.append(type(self)._from_uop(total, target.device, requires_grad))
        return tuple(results)

    def _depends_on(self, target: TensorBase, node: UOp) -> bool:
        """Whether the target was read for this tensor, if only through integers (a comparison, a sign bit, an index):
        the slope is zero there. A detached tensor is not read."""
        read = toposort(self.uop, stop=lambda inner: inner.op is Ops.DETACH and inner.arg is None)
        return any(inner is node or node in build.goes_past(inner) or parameter_of(inner) is target for inner in read)

    def contiguous_backward(self) -> Self:
        """The tensor itself; its gradient is stored in memory of its own before it goes on."""
        return self._new(UOp(Ops.DETACH, self.dtype, (self.uop,), "contiguous_backward"))

    def _upstream(self, operation: str, gradient: Self | None) -> UOp:
        """What each element of this tensor weighs in the result."""
        if not self.dtype.is_float:
            message = f"the gradient of {self.dtype.name}"
            raise DTypeError(operation, message, "only floats have gradients; cast before computing with them")
        if gradient is None:
            if self.shape and any(size != 1 for size in self.shape):
                message = f"a gradient of shape {self.shape} has no single meaning"
                remedy = "reduce to one element first (mean, sum), or give gradient=, a tensor of this shape"
                raise ShapeError(operation, message, remedy)
            return build.const(self.dtype, 1, self.shape)
        check_devices(operation, self, gradient)
        if gradient.shape != self.shape:
            message = f"gradient= has shape {gradient.shape}, the tensor has shape {self.shape}"
            raise ShapeError(operation, message, "give one weight for each element")
        return build.cast(gradient.uop, self.dtype)


# ---------------------------------------------------------------- parameters and targets


def _living_parameters() -> tuple[dict[UOp, list[TensorBase]], list[TensorBase]]:
    """The parameters by the node that each is now, reshapes aside; and those without elements. These are constants that
    all look alike in a graph, but whatever they take part in, their gradient has no elements either."""
    by_node: dict[UOp, list[TensorBase]] = {}
    empty: list[TensorBase] = []
    for holder in live.holders():
        if not isinstance(holder, TensorBase) or not holder._is_parameter:
            continue
        if 0 in holder.shape:
            empty.append(holder)
        else:
            by_node.setdefault(build.stored_root(holder.uop), []).append(holder)
    return by_node, empty


def _accumulate(parameter: TensorBase, value: UOp, create_graph: bool) -> None:
    value = build.reshape(value, parameter.shape)
    with live.exchanging:  # another thread may add to the same gradient
        known = parameter.grad
        if known is None:
            node = value if create_graph else marks.detach(value)
            parameter.grad = type(parameter)._from_uop(node, parameter.device, create_graph)
            return
        summed = build.alu(Ops.ADD, known.uop, value)
        known.uop = summed if create_graph else marks.detach(summed)
        known._requires_grad = create_graph


def _target_node(target: TensorBase) -> UOp:
    """The node of a tensor in graphs: its own, or that of its memory where it is not a view of another tensor."""
    scalar = None if 0 in target.shape else build.scalar_of(target.uop)
    if scalar is not None and scalar.op is Ops.CONST:
        message = f"a target of shape {target.shape} is the constant {scalar.arg}, which has no identity"
        raise UnsupportedError("gradient", message, "make the target with requires_grad=True")
    if scalar is not None and target.shape:
        message = f"a target of shape {target.shape} repeats one number, and operations use the number itself"
        raise UnsupportedError("gradient", message, "give the number as the target, or repeat it with .contiguous()")
    root = build.stored_root(target.uop)
    is_memory = root.op in (Ops.BUFFER, Ops.ASSIGN, Ops.COPY, Ops.MULTI) and not target._living_ancestors()
    return root if is_memory else target.uop


def _parts_through(target: UOp, found: Mapping[UOp, UOp]) -> list[UOp]:
    """The gradients that flow to a node, each of its shape. A movement of the node may have been merged with a later
    one, which then carries the gradient; whatever is above such a merged movement flows through it and is not counted
    again."""
    carriers = {node for node in found if node is target or target in build.goes_past(node)}
    lowest = [node for node in carriers if carriers.isdisjoint(_moved_from(node)[1:])]
    return [_moved_back(target, node, found[node]) for node in found if node in lowest]


def _moved_from(node: UOp) -> list[UOp]:
    """The node, what it is a movement of, and so on."""
    chain = [node]
    while chain[-1].op.kind is Kind.MOVEMENT:
        chain.append(chain[-1].src[0])
    return chain


def _moved_back(target: UOp, node: UOp, gradient: UOp) -> UOp:
    """The gradient of a movement of `target` as one of `target`: down to their common source, and up again."""
    from tilewright.graph.gradients.rules import gradients_of, total

    chain = _moved_from(target)
    while node not in chain:
        alike = [one for one in chain if (one.op, one.src) == (node.op, node.src)]
        if alike and node.op is Ops.EXPAND:
            repeated = [axis for axis, (own, size) in enumerate(zip(alike[0].shape, node.shape)) if own != size]
            gradient, node = total(gradient, repeated), alike[0]
        elif alike and node.op is Ops.PAD:
            starts = [before - own for (own, _), (before, _) in zip(alike[0].arg, node.arg)]
            pairs = tuple((start, start + size) for start, size in zip(starts, alike[0].shape))
            gradient, node = build.shrink(gradient, pairs), alike[0]
        else:
            (below,) = gradients_of(node, gradient)
            assert below is not None
            gradient, node = below, node.src[0]
    for step in reversed(chain[: chain.index(node)]):
        gradient = build.movement(step.op, gradient, step.arg)
    return gradient


def _unrelated(number: int, target: TensorBase) -> UnsupportedError:
    line = "an unknown line" if target.uop.line is None else f"{target.uop.line[0]}:{target.uop.line[1]}"
    return UnsupportedError(
        "gradient",
        f"target {number} ({target._described()}, made at {line}) has no part in the result",
        "give tensors that the result was computed from; views of them and detached copies are other tensors",
    )


# ---------------------------------------------------------------- the walk


class Flow:
    """The part of a graph that gradients flow through, from the result to the nodes that are wanted."""

    def __init__(self, root: UOp, is_wanted: Callable[[UOp], bool], stops: bool = False) -> None:
        self.root = root
        self.wanted: set[UOp] = set()
        self.stops = stops  # whether the gradient ends at a wanted node or goes on below it
        self.originals: dict[UOp, UOp] = {}  # of nodes that are computed again
        self.entries: dict[UOp, UOp] = {}  # the input of a checkpoint -> that of the second computation
        self.sizes: dict[UOp, int] = {}  # of what gradients are made from, for sums of them
        self.order = self._ordered(is_wanted)
        self.carries = self._carriers()
        trace = own_trace()
        if trace is not None and any(self._passes(_moved_from(node)[-1]) for node in trace.graphs):
            trace.spoil("it passes gradients through an argument, to what that was computed from")

    def _sources(self, node: UOp) -> tuple[UOp, ...]:
        """The sources that a gradient could reach."""
        if not node.dtype.is_float or (node.op is Ops.DETACH and node.arg is None):
            return ()
        if self.stops and self.originals.get(node, node) in self.wanted:
            return ()
        return node.src

    def _ordered(self, is_wanted: Callable[[UOp], bool]) -> list[UOp]:
        """Every node the gradient could reach, sources before users."""
        order: list[UOp] = []
        seen: set[UOp] = set()
        stack: list[tuple[UOp, bool]] = [(self.root, False)]
        while stack:
            node, is_expanded = stack.pop()
            if is_expanded:
                order.append(node)
            elif node not in seen:
                seen.add(node)
                if is_wanted(node):
                    self.wanted.add(node)
                elif node.op is Ops.BUFFER and node._cache and "cut" in node._cache and not is_traced():
                    message = "a result of a replayed jitted function takes part in it, and a replay makes no graph"
                    raise UnsupportedError("gradient", message, "take gradients inside of it, or use `.detach()` of it")
                stack.append((node, True))
                stack.extend((src, False) for src in self._sources(node) if src not in seen)
        return order

    def _carriers(self) -> set[UOp]:
        """The nodes with a wanted node below them."""
        carriers: set[UOp] = set()
        for node in self.order:
            if node in self.wanted or not carriers.isdisjoint(self._sources(node)):
                carriers.add(node)
        return carriers

    def _passes(self, node: UOp) -> bool:
        """Whether the gradient goes on below a node; one that it stops at is a parameter."""
        if self.stops and node in self.wanted:
            return True
        return node in self.carries and not self.carries.isdisjoint(self._sources(node))

    def propagate(self, upstream: UOp) -> dict[UOp, UOp]:
        """The gradient of each wanted node."""
        sums: dict[UOp, list[UOp]] = {self.root: [upstream]} if self.root in self.carries else {}
        found: dict[UOp, UOp] = {}
        self._descend(self.order, sums, found)
        return found

    def _descend(self, order: Sequence[UOp], sums: dict[UOp, list[UOp]], found: dict[UOp, UOp]) -> None:
        """Users before sources: when a node is met, `sums` holds its whole gradient, a part from each user."""
        from tilewright.graph.gradients.rules import gradients_of
        from tilewright.graph.gradients.sums import fold, gather_terms

        for node in reversed(order):
            if node not in self.carries:
                continue
            parts = sums.pop(node, None)
            terms = [] if parts is None else gather_terms(node, parts, self.sizes)
            original = self.originals.get(node, node)
            if original in self.wanted:
                if terms:
                    found[original] = fold([*filter(None, (found.get(original),)), *terms])
                else:
                    # No slope at all (a rounding, an overwritten value) is a gradient of zeros.
                    found.setdefault(original, build.const(node.dtype, 0, node.shape))
            sources = self._sources(node)
            if not terms or not sources:
                continue
            if _mark_of(node)[0] == "checkpoint":
                self._descend_again(node, fold(terms), sums, found)
                continue
            for gradient in terms:
                for src, part in zip(sources, gradients_of(node, gradient), strict=True):
                    if part is not None and src in self.carries:
                        _give_line(part, node)
                        sums.setdefault(src, []).append(part)

    # ------------------------------------------------------------ checkpoints

    def _descend_again(self, node: UOp, gradient: UOp, sums: dict[UOp, list[UOp]], found: dict[UOp, UOp]) -> None:
        """Through a recomputation of what a checkpoint gives. Its nodes differ from those of the first computation, so
        nothing of the first has to be kept; its inputs are the same."""
        copies = self._computed_again(node, gradient)
        for original, copy in copies.items():
            self.originals[copy] = self.originals.get(original, original)
            if original in self.carries:
                self.carries.add(copy)
        result = copies.get(node.src[0], node.src[0])
        if result in self.carries:
            sums.setdefault(result, []).append(gradient)
        self._descend(list(copies.values()), sums, found)

    def _computed_again(self, node: UOp, gradient: UOp) -> dict[UOp, UOp]:
        """A copy of each node between a checkpoint's result and its inputs, sources first. The inputs wait for the
        gradient, so that the copy is computed when it is needed and not earlier."""
        level = _mark_of(node)[1]

        def is_outside(inner: UOp) -> bool:
            return _mark_of(inner)[1] <= level

        copies: dict[UOp, UOp] = {}
        for inner in toposort(node.src[0], stop=is_outside):
            if _mark_of(inner) == ("enter", level):
                if inner not in self.entries:
                    waits_for = () if build.scalar_of(gradient) is not None else (gradient,)
                    src = (inner.src[0], *waits_for)
                    self.entries[inner] = UOp(Ops.DETACH, inner.dtype, src, ("again", level))
                copies[inner] = self.entries[inner]
            elif not is_outside(inner) and any(src in copies for src in inner.src):
                src = tuple(copies.get(src, src) for src in inner.src)
                copies[inner] = UOp(inner.op, inner.dtype, src, inner.arg)
                _give_line(copies[inner], inner)
        return copies


_UNMARKED = ("", 1 << 30)


def _mark_of(node: UOp) -> tuple[str, int]:
    """What a DETACH says of checkpoints: the kind of the mark, and how many checkpoints lie around it."""
    return node.arg if node.op is Ops.DETACH and isinstance(node.arg, tuple) else _UNMARKED


def _give_line(made: UOp, node: UOp) -> None:
    """What a gradient needs is shown at the line that made the value."""
    stack = [made]
    while stack:
        top = stack.pop()
        if top.line is None and node.line is not None:
            top.line = node.line
            stack.extend(top.src)


# ---------------------------------------------------------------- checkpoints


class _Nesting(threading.local):
    level = 0


_nesting = _Nesting()


def checkpoint(function: Callable[..., R], *tensors: T) -> R:
    """`function(*tensors)`; gradients keep its inputs alone, and what else they need is computed a second
    time, when the gradient arrives there. Memory for time, around each of several blocks of layers. The function gives
    a tensor or a list or tuple of them; it may use other tensors, such as its parameters."""
    if not modes.grad_enabled:
        return function(*tensors)
    level = _nesting.level
    entered = [tensor._new(UOp(Ops.DETACH, tensor.dtype, (tensor.uop,), ("enter", level))) for tensor in tensors]
    _nesting.level = level + 1
    try:
        result: Any = function(*entered)
    finally:
        _nesting.level = level
    if isinstance(result, tuple | list):
        marked: Any = type(result)(_mark_result(part, level) for part in result)
    else:
        marked = _mark_result(result, level)
    return cast(R, marked)


def _mark_result(result: Any, level: int) -> Any:
    if not isinstance(result, TensorBase):
        return result
    return result._new(UOp(Ops.DETACH, result.dtype, (result.uop,), ("checkpoint", level)))
