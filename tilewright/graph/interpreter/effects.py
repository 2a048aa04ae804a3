"""The interpreter of kernels with an order between effects (docs/decisions/0009). In: a kernel and the arrays of its
PARAMs. Out: the contents of each PARAM after it. It runs element by element and each version of memory is a separate
array, so that order is defined by the versions alone. It is the definition, and slow."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright.base.dtype import cast_scalar
from tilewright.base.errors import InternalError, OutOfBoundsError
from tilewright.graph.interpreter.numpy_math import Array, bitcast_array, numpy_dtype
from tilewright.graph.interpreter.scalar import ScalarMath
from tilewright.graph.ops import Ops, reduce_identity
from tilewright.graph.uop import UOp, memory_of
from tilewright.graph.walk import toposort


class Iteration:
    """The state of one iteration: the value of each open range, and the present contents of memory that an open loop
    writes, with the ranges of that loop. Values computed in an iteration are cached in it; values that do not depend on
    its ranges are cached in the enclosing iteration."""

    def __init__(
        self, ranges: dict[UOp, int], carried: dict[UOp, tuple[Array, frozenset[UOp]]], outer: Iteration | None = None
    ) -> None:
        self.ranges: dict[UOp, int] = ranges if outer is None else {**outer.ranges, **ranges}
        self.carried: dict[UOp, tuple[Array, frozenset[UOp]]] = (
            carried if outer is None else {**outer.carried, **carried}
        )
        self.own = frozenset(ranges)
        self.outer = outer
        self.contents: dict[UOp, Array] = {}
        self.loops: dict[tuple[object, ...], tuple[dict[UOp, Array], dict[UOp, Array]]] = {}

    def around(self, node: UOp) -> Iteration:
        """The innermost iteration that the node depends on."""
        found = self
        while found.outer is not None and found.own.isdisjoint(node.ranges):
            found = found.outer
        return found


def run_effects(sink: UOp, arrays: Mapping[UOp, Array]) -> dict[UOp, Array]:
    """The contents of every PARAM that the kernel writes, as new arrays."""
    return _Interpreter(sink, arrays).run()


class _Interpreter:
    def __init__(self, sink: UOp, arrays: Mapping[UOp, Array]) -> None:
        self.sink = sink
        self.arrays = arrays
        self.name = sink.arg.name if sink.arg is not None else "kernel"

    def run(self) -> dict[UOp, Array]:
        results: dict[UOp, Array] = {}
        start = Iteration({}, {})
        for effect in (*self.sink.src, *effects_on_the_way(self.sink)):
            # An effect that no END closes is executed in every iteration of the kernel.
            ranges = tuple(sorted(effect.ranges, key=lambda axis: axis.arg.id))
            whole = UOp(Ops.END, effect.dtype, (effect, *ranges)) if ranges else effect
            for memory, version in versions_before(whole).items():
                if memory.op is Ops.PARAM:
                    held = results[memory] if memory in results else self.contents(version, start)
                    results[memory] = self.applied(whole, memory, held, start)
        return results

    # ------------------------------------------------------------ memory

    def contents(self, version: UOp, at: Iteration) -> Array:
        """The contents of a version of memory; not to be written to."""
        at = at.around(version)
        found = at.contents.get(version)
        if found is None:
            found = at.contents[version] = self._contents(version, at)
        return found

    def _contents(self, version: UOp, at: Iteration) -> Array:
        memory = memory_of(version)
        if version.op is not Ops.AFTER:
            found = self.arrays.get(memory)
            return np.zeros(memory.arg.size, numpy_dtype(memory.dtype)) if found is None else found.reshape(-1)
        if memory in at.carried:
            now, ranges = at.carried[memory]
            if not ranges.isdisjoint(version.src[1:]):
                return now
        held = self.contents(version.src[0], at)
        for effect in version.src[1:]:
            if effect.op is not Ops.RANGE:
                held = self.applied(effect, memory, held, at)
        return held

    def applied(self, effect: UOp, memory: UOp, held: Array, at: Iteration) -> Array:
        """The contents of `memory` after the effect, if they were `held` before."""
        if effect.op is Ops.STORE:
            return self.stored(effect, held, at) if memory_of(effect.src[0]) is memory else held
        if effect.op is Ops.END:
            return self.looped(effect, memory, held, at)
        if effect.op is Ops.GROUP or effect.op is Ops.BARRIER:
            for source in effect.src:
                held = self.applied(source, memory, held, at)
            return held
        raise InternalError(f"{effect.op} is not an effect")

    def looped(self, end: UOp, memory: UOp, held: Array, at: Iteration) -> Array:
        body, ranges = end.src[0], end.src[1:]
        before = versions_before(end)
        if memory not in before:
            return held
        passed_on = versions_passed_on(body, frozenset(ranges), before)
        before.update({each: first for each, (first, _) in passed_on.items()})
        state = {each: held if each is memory else self.contents(version, at) for each, version in before.items()}
        # One execution of the loop gives the contents of all memory that it writes.
        key = (end, *(id(array) for array in state.values()))
        if key not in at.loops:
            at.loops[key] = (state, self._iterate(end, state, passed_on, at))
        return at.loops[key][1][memory]

    def _iterate(
        self, end: UOp, state: dict[UOp, Array], passed_on: dict[UOp, tuple[UOp, UOp]], at: Iteration
    ) -> dict[UOp, Array]:
        body, ranges = end.src[0], end.src[1:]
        sizes = [int(self.value(axis.src[0], at)) for axis in ranges]
        for counts in itertools.product(*map(range, sizes)):
            carried = {each: (array, frozenset(ranges)) for each, array in state.items()}
            inside = Iteration(dict(zip(ranges, counts)), carried, at)
            state = {
                each: self.contents(passed_on[each][1], inside)
                if each in passed_on
                else self.iterated(body, each, array, inside)
                for each, array in state.items()
            }
        return state

    def iterated(self, body: UOp, memory: UOp, held: Array, at: Iteration) -> Array:
        """The contents of memory after one iteration: first the effects before the body, in the same iteration."""
        version = versions_before(body)[memory]
        earlier: list[UOp] = []
        ranges = at.carried[memory][1]
        while version.op is Ops.AFTER and not version.ranges.isdisjoint(ranges):
            if not ranges.isdisjoint(version.src[1:]):
                break
            earlier.extend(reversed([each for each in version.src[1:] if each.op is not Ops.RANGE]))
            version = version.src[0]
        for effect in reversed(earlier):
            held = self.applied(effect, memory, held, at)
        return self.applied(body, memory, held, at)

    def stored(self, store: UOp, held: Array, at: Iteration) -> Array:
        place, value = store.src
        if len(place.src) > 2 and not self.value(place.src[2], at):
            return held
        changed = held.copy()
        position, given = self.position(place, at), self.value(value, at)
        if store.arg is not None:
            given = cast_scalar(store.arg.value(ScalarMath, held[position].item(), given), value.dtype)
        changed[position] = given
        return changed

    def position(self, place: UOp, at: Iteration) -> int:
        position = int(self.value(place.src[1], at))
        size = memory_of(place).arg.size
        if not 0 <= position < size:
            message = f"position {position} of memory of {size} elements"
            raise OutOfBoundsError(self.name, message, "mask the access", location=place.line)
        return position

    # ------------------------------------------------------------ values

    def value(self, root: UOp, at: Iteration) -> Any:
        values: dict[UOp, Any] = {}
        for node in toposort(root, stop=lambda each: each.op in (Ops.LOAD, Ops.RANGE, Ops.REDUCE)):
            values[node] = self._value(node, [values.get(source) for source in node.src], at)
        return values[root]

    def _value(self, node: UOp, src: list[Any], at: Iteration) -> Any:
        if node.op is Ops.CONST:
            return node.arg
        if node.op is Ops.RANGE:
            return at.ranges[node]
        if node.op is Ops.LOAD:
            return self._loaded(node, at)
        if node.op is Ops.REDUCE:
            return self._reduced(node, at)
        if node.op is Ops.CAST:
            return cast_scalar(src[0], node.dtype)
        if node.op is Ops.BITCAST:
            bits = bitcast_array(np.asarray(src[0], numpy_dtype(node.src[0].dtype)), node.dtype)
            return cast_scalar(bits.item(), node.dtype)
        if node.op.value is None:
            raise InternalError(f"{node.op} has no value in a kernel")
        return cast_scalar(node.op.value(ScalarMath, *src), node.dtype)

    def _loaded(self, node: UOp, at: Iteration) -> Any:
        place = node.src[0]
        if len(place.src) > 2 and not self.value(place.src[2], at):
            return cast_scalar(0, node.dtype) if len(node.src) == 1 else self.value(node.src[1], at)
        found = self.contents(place.src[0], at)[self.position(place, at)]
        return cast_scalar(found.item(), node.dtype)

    def _reduced(self, node: UOp, at: Iteration) -> Any:
        assert node.arg.value is not None
        total = cast_scalar(reduce_identity(node.arg, node.dtype), node.dtype)
        sizes = [int(self.value(axis.src[0], at)) for axis in node.src[1:]]
        for counts in itertools.product(*map(range, sizes)):
            inside = Iteration(dict(zip(node.src[1:], counts)), {}, at)
            total = cast_scalar(node.arg.value(ScalarMath, total, self.value(node.src[0], inside)), node.dtype)
        return total


def versions_before(effect: UOp) -> dict[UOp, UOp]:
    """For each memory that an effect stores to, the version before it."""
    found: dict[UOp, UOp] = {}
    ended = effect.src[1:] if effect.op is Ops.END else ()
    if effect.op is Ops.STORE:
        return {memory_of(effect.src[0]): effect.src[0].src[0]}
    for source in effect.src[:1] if effect.op is Ops.END else effect.src:
        for memory, version in versions_before(source).items():
            while version.op is Ops.AFTER and not version.ranges.isdisjoint(ended):
                version = version.src[0]
            found.setdefault(memory, version)
    return found


def versions_passed_on(body: UOp, ranges: frozenset[UOp], written: dict[UOp, UOp]) -> dict[UOp, tuple[UOp, UOp]]:
    """For memory that is written by effects the body depends on (not by the body itself), and carried from one
    iteration to the next: the version before the loop, and the last version of an iteration."""
    found: dict[UOp, tuple[UOp, UOp]] = {}
    order = toposort(body)
    carried = [
        node.src[0].src[0]
        for node in order
        if node.op is Ops.LOAD and node.src[0].src[0].op is Ops.AFTER and not ranges.isdisjoint(node.src[0].src[0].src)
    ]
    for version in carried:
        memory = memory_of(version)
        last = last_version(memory, order)
        if memory not in written and last is not version:
            found[memory] = (version.src[0], last)
    return found


def last_version(memory: UOp, order: list[UOp]) -> UOp:
    """The version of a memory, among nodes in topological order, that no other version depends on."""
    versions = [node for node in order if node.op is Ops.AFTER and memory_of(node) is memory]
    return next(node for node in reversed(versions) if not any(node in other.src[:1] for other in versions))


def effects_on_the_way(sink: UOp) -> list[UOp]:
    """The last effects on arguments that are not sources of the sink: they are reached through values that were read
    after them."""
    order = toposort(sink)
    named = {memory for effect in sink.src for memory in versions_before(effect)}
    stored = dict.fromkeys(memory_of(node.src[0]) for node in order if node.op is Ops.STORE)
    others = [memory for memory in stored if memory.op is Ops.PARAM and memory not in named]
    return [each for memory in others for each in last_version(memory, order).src[1:] if each.op is not Ops.RANGE]
